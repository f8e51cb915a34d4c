"""Cutting replies and reading statistics: a miscount would be a false figure."""

import socket
import threading

import pytest

from benchmarks import line
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


def test_a_refused_put_is_found_and_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(line, "connect", lambda _port: ours)
    theirs.sendall(b"INSERTED 1\r\nOUT_OF_MEMORY\r\nINSERTED 2\r\n")
    connection = Line(0)
    with pytest.raises(UnexpectedReplyError, match="OUT_OF_MEMORY"):
        connection.put_all([b"put 0 0 60 1\r\nx\r\n"] * 3)
    connection.close()
    theirs.close()


def test_more_commands_than_fit_the_buffers_are_sent_in_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(line, "connect", lambda _port: ours)
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
    theirs.close()
    assert heard == [b"x\r\nx\r\n", b"x\r\nx\r\n", b"x\r\n"]
