"""What the clients of a soak make of an answer that does not come."""

import socket
import threading

import pytest

from benchmarks import line as line_module
from benchmarks.accounts import Totals
from benchmarks.actors import Book, Place
from benchmarks.line import Line


def test_a_delete_whose_answer_never_came_leaves_the_job_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(line_module, "connect", lambda _port: ours)
    theirs.sendall(b"USING t\r\nWATCHING 2\r\nWATCHING 1\r\n")
    line, place = Line(0, "t"), Place({}, Book(), threading.Event())
    number = place.book.ledger.number()
    place.book.ledger.acknowledged(number)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(ConnectionResetError):
        place.end(number, lambda: line.ask(b"delete 1\r\n") == b"DELETED\r\n")
    assert place.book.ledger.totals() == Totals(acknowledged=1)
    line.close()
    theirs.close()
