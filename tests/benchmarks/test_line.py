"""Cutting replies and reading statistics: a miscount would be a false figure."""

import socket
import threading
from collections.abc import Iterator

import pytest

from benchmarks import line
from benchmarks.accounts import Totals
from benchmarks.actors import Book, Place
from benchmarks.line import Line, UnexpectedReplyError, is_whole, statistic, whole_replies

REPLIES = b"DELETED\r\nRESERVED 7 3\r\nabc\r\nDELETED\r\nRESERVED 12 3\r\nabc\r\n"


def test_replies_end_with_a_line_or_with_the_body_of_a_job() -> None:
    ends = {whole_replies(REPLIES[:cut]) for cut in range(len(REPLIES) + 1)}
    assert [REPLIES[:end].rsplit(b"\r\n", 2)[-2] for end in sorted(ends) if end] == [
        *(b"DELETED", b"abc", b"DELETED", b"abc")
    ]


def test_an_ok_block_is_whole_with_its_last_line_end() -> None:
    reply = b"OK 4\r\n---\n\r\n"
    assert [cut for cut in range(len(reply) + 1) if is_whole(reply[:cut])] == [len(reply)]


def test_a_statistic_is_found_by_its_whole_name() -> None:
    reply = b"OK 9\r\n---\nx-current-jobs: 1\ncurrent-jobs: 2\n\r\n"
    assert statistic(reply, b"current-jobs") == 2
    assert statistic(reply, b"current") is None


@pytest.fixture
def theirs(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The other end of each `Line`."""
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(line, "connect", lambda _port: ours)
    with ours, theirs:
        yield theirs


def test_a_refused_put_is_found_and_quoted(theirs: socket.socket) -> None:
    theirs.sendall(b"INSERTED 1\r\nOUT_OF_MEMORY\r\nINSERTED 2\r\n")
    with pytest.raises(UnexpectedReplyError, match="OUT_OF_MEMORY"):
        Line(0).put_all([b"put 0 0 60 1\r\nx\r\n"] * 3)


def test_more_commands_than_fit_the_buffers_are_sent_in_turns(
    theirs: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "TOGETHER", 2)
    heard: list[bytes] = []

    def answer() -> None:
        while said := theirs.recv(1 << 16):
            heard.append(said)
            theirs.sendall(b"INSERTED 1\r\n" * said.count(b"x"))

    thread = threading.Thread(target=answer)
    thread.start()
    connection = Line(0)
    connection.put_all([b"x\r\n"] * 5)
    connection.close()
    thread.join()
    assert heard == [b"x\r\nx\r\n", b"x\r\nx\r\n", b"x\r\n"]


def test_a_delete_whose_answer_never_came_leaves_the_job_in_doubt(theirs: socket.socket) -> None:
    """As the clients of a soak see it."""
    theirs.sendall(b"USING t\r\nWATCHING 2\r\nWATCHING 1\r\n")
    connection, place = Line(0, "t"), Place({}, Book(), threading.Event())
    number = place.book.ledger.number()
    place.book.ledger.acknowledged(number)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        place.end(number, lambda: connection.ask(b"delete 1\r\n") == b"DELETED\r\n")
    assert place.book.ledger.totals() == Totals(acknowledged=1)
