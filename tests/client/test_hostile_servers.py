"""Servers that never end: a program keeps its memory and gets its time back."""

import contextlib
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest

from delayd.client import ConnectionLost, DelaydError, NotUnderstood, Unreachable
from delayd.client.attempts import Attempts
from tests.client.made import Made
from tests.client.peer import (
    ACKED,
    TOKEN,
    Close,
    Hold,
    Read,
    ScriptedPeer,
    Send,
    Step,
    lost,
    put_in,
)

BYTES_MAX: Final = 1 << 20
MEMORY_BYTES_MAX: Final = 12 * BYTES_MAX
"""What is received, a copy of it, and what it is parsed to."""
HEAD: Final = b"HTTP/1.1 200 OK\r\n"

FLOODS: Final = {
    "a head": (HEAD, b"X: y\r\n" * 1_000),
    "one header": (HEAD + b"X: ", b"y" * 10_000),
    "a body": (HEAD + b"\r\n", b"x" * 10_000),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 1_000),
    "long chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"2710\r\n" + b"x" * 10_002),
    "trailers": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", b"X: y\r\n" * 1_000),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1_000),
}
LINE_FLOODS: Final = {
    "a line": (b"", b"x" * 10_000),
    "a body": (b"OK 1000000000000\r\n", b"x" * 10_000),
    "replies": (b"", b"FOUND 1 1\r\nx\r\n" * 1_000),
    "batches": (b"", b"RESERVED_BATCH 1000\r\n" * 1_000),
    "jobs": (b"RESERVED_BATCH 1000\r\n", b"RESERVED 1 9000\r\n" + b"x" * 9_000 + b"\r\n"),
}


@contextlib.contextmanager
def flooding(first: bytes, again: bytes, pause_s: float = 0) -> Iterator[int]:
    """A server that sends something again and again until the one connection is closed."""
    is_over, was_closed = threading.Event(), threading.Event()
    calls: list[socket.socket] = []

    def serve() -> None:
        while True:
            connection, _ = listener.accept()
            with connection:
                if is_over.is_set():
                    return
                calls.append(connection)
                connection.settimeout(60)
                connection.recv(1 << 16)
                try:
                    connection.sendall(first)
                    while not is_over.wait(pause_s):
                        connection.sendall(again)
                except ConnectionError:
                    was_closed.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield port
            assert was_closed.wait(60)
            assert len(calls) == 1  # it is not asked again
        finally:
            is_over.set()
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join()


def check_flood(made: Made, scheme: str, flood: tuple[bytes, bytes], ask: Any) -> None:  # noqa: ANN401 - a function
    with flooding(*flood) as port:
        client = made.client(f"{scheme}://127.0.0.1:{port}", answer_bytes_max=BYTES_MAX)
        tracemalloc.start()
        try:
            with pytest.raises(NotUnderstood) as caught:
                ask(client)
            _now, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert caught.value.where == f"{scheme}://127.0.0.1:{port}"
        assert caught.value.may_have_happened
        assert peak < MEMORY_BYTES_MAX
        made.close()


@pytest.mark.thorough
@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_of_http_ends_with_an_error_and_little_memory(made: Made, flood: str) -> None:
    check_flood(made, "http", FLOODS[flood], lambda client: client.ack(TOKEN))


@pytest.mark.parametrize("flood", LINE_FLOODS)
def test_a_flood_on_the_line_ends_with_an_error_and_little_memory(made: Made, flood: str) -> None:
    check_flood(made, "beanstalk", LINE_FLOODS[flood], lambda client: client.get(7))


def test_a_flood_of_a_batch_ends_with_an_error(made: Made) -> None:
    begin: list[Step] = [Read(b"use mail\r\n"), Send(b"USING mail\r\n"), Read(b"\r\n1\r\n")]
    with ScriptedPeer([[*begin, Send(b"x" * 10_000), Read(b"never")]]) as peer:
        batch = made.client(peer.line).batch()
        with pytest.raises(NotUnderstood, match="longer than") as caught:
            put_in(batch, 2)
        assert caught.value.may_have_happened
        peer.ended[0].wait(60)


@pytest.mark.parametrize(
    ("scheme", "ask", "first", "again"),
    [
        ("http", lambda client: client.ack(TOKEN), HEAD + b"\r\n", b"x"),
        ("http", lambda client: client.ack(TOKEN), HEAD, b"X"),
        ("beanstalk", lambda client: client.cancel(7), b"DEL", b"E"),
        (
            "beanstalk",
            lambda client: put_in(client.batch(), 2_000),
            b"USING mail\r\n",
            b"INSERTED 1\r\n",
        ),
    ],
)
def test_a_server_that_drips_is_given_up_when_the_time_of_an_answer_is_over(
    made: Made, scheme: str, ask: Callable[[Any], Any], first: bytes, again: bytes
) -> None:
    with flooding(first, again, pause_s=0.01) as port:
        client = made.client(f"{scheme}://127.0.0.1:{port}", timeout_s=0.15)
        with lost("no answer in time"):
            ask(client)
        made.close()


def test_patience_counts_the_time_of_attempts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr("delayd.client.attempts.time.monotonic", lambda: now_s[0])
    made = Made("plain")
    client = made.client("http://127.0.0.1:1", patience_s=60)
    ask, way = next(client._calls.health()), made.connections[0].way
    way.was_reached = True
    attempts, count = Attempts(ask, way), 0
    with contextlib.suppress(ConnectionLost):
        while True:
            with attempts:
                count += 1
                now_s[0] += 30  # as long as an answer may take
                raise ConnectionLost("x", "no answer in time", may_have_happened=True)
    assert count == 4  # the first one, and two or three within a minute


WRONG: Final = {
    "http": (HEAD + b'Content-Length: 10\r\n\r\n{"id": []}', ACKED, "`id` is an array and not"),
    "line": (b"INSERTED 7\r\n", b"DELETED\r\n", "delete was answered the text 'INSERTED 7'"),
}


@pytest.mark.parametrize("scheme", WRONG)
def test_what_is_wrong_in_an_answer_closes_its_connection(made: Made, scheme: str) -> None:
    wrong, right, why = WRONG[scheme]
    end = (b"delete 7\r\n", b"\r\n\r\n")
    first: list[Step] = [Read(end), Send(wrong), Read(b"never")]
    with ScriptedPeer([first, [Read(end), Send(right), Close()]]) as peer:
        client = made.client(getattr(peer, scheme))
        with pytest.raises(NotUnderstood, match=why):
            client.cancel(7)
        assert client.cancel(7) == 7
        assert peer.received[0].lower().count(b"delete") == 1


def test_nothing_was_done_if_what_is_said_before_is_not_understood(made: Made) -> None:
    with ScriptedPeer([[Read(b"use mail\r\n"), Send(b"nonsense\r\n"), Hold()]]) as peer:
        client = made.client(peer.line)
        with pytest.raises(NotUnderstood, match="this was not done") as caught:
            client.put_many("mail", [{"body": 1}])
        assert not caught.value.may_have_happened
        made.close()


@pytest.mark.parametrize("scheme", ["https", "beanstalks"])
def test_what_speaks_no_tls_is_unreachable(made: Made, scheme: str) -> None:
    said = Send(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with ScriptedPeer([[said, Close()]]) as peer, pytest.raises(Unreachable):
        made.client(f"{scheme}://127.0.0.1:{peer.port}").cancel(7)


def test_a_batch_keeps_what_was_answered_before_nonsense(made: Made) -> None:
    script: list[Step] = [
        *(Read(b"use mail\r\n"), Send(b"USING mail\r\n"), Read(b"2\r\n")),
        *(Send(b"INSERTED 1\r\nDELETED\r\nINSERTED 3\r\n"), Read(b"never")),
    ]
    with ScriptedPeer([script]) as peer:
        client = made.client(peer.line)
        batch = client.batch()
        with pytest.raises(DelaydError, match="put was answered the text 'DELETED'"):
            put_in(batch, 3)
        assert [result.id for result in batch.results] == [1]
        made.close()
