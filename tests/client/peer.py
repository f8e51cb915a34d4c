"""A daemon that does what a test says, connection by connection and byte by byte.

    with ScriptedPeer([[Read(b"\r\n"), Send(b"DELE"), Close()], [...]]) as peer:
        client = Client(f"beanstalk://127.0.0.1:{peer.port}")
    assert peer.received == [b"delete 7\r\n", ...]

Each connection that comes gets the next script. After the last one nothing is accepted. A test that
goes on when the peer is gone holds its port: `with free_port() as port, ScriptedPeer([...], port)`.
"""

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

import pytest

from delayd.client import ConnectionLost

TOKEN: Final = "7-1a1ff7acb80-1"  # noqa: S105 - of a reservation
ACKED: Final = b'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"id":7}'
PUT: Final = b'HTTP/1.1 201 Created\r\nContent-Length: 29\r\n\r\n{"id":7, "outcome":"created"}'


class Read(NamedTuple):
    """Read until what came since the last one ends so, or with one of these."""

    until: bytes | tuple[bytes, ...]


class Send(NamedTuple):
    """Send this."""

    data: bytes


class Close(NamedTuple):
    """Close the connection."""


class Hold(NamedTuple):
    """Do nothing until the test is over."""


Step = Read | Send | Close | Hold


class ScriptedPeer:
    """A server on loopback."""

    def __init__(self, scripts: Sequence[Sequence[Step]], port: int = 0) -> None:
        self.received: list[bytes] = [b""] * len(scripts)
        self._scripts = scripts
        self._is_over = threading.Event()
        self.ended = [threading.Event() for _ in scripts]
        """Which connections have been closed."""
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self._connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve)

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def line(self) -> str:
        return f"beanstalk://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._is_over.set()
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)
        # Connections that never came are not waited for.
        for _ in self._scripts:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
            except OSError:
                break
        self._thread.join()

    def _serve(self) -> None:
        for number, script in enumerate(self._scripts):
            connection, _ = self._listener.accept()
            if self._is_over.is_set():
                connection.close()
                break
            self._connection = connection
            with connection:
                self._play(connection, number, script)
            self.ended[number].set()
        self._listener.close()

    @staticmethod
    def _received_of(connection: socket.socket) -> bytes:
        try:
            return connection.recv(1 << 16)
        except ConnectionResetError:
            return b""

    def _play(self, connection: socket.socket, number: int, script: Sequence[Step]) -> None:
        for step in script:
            match step:
                case Read(until):
                    since = b""
                    while not since.endswith(until):
                        data = self._received_of(connection)
                        if not data:
                            return
                        since += data
                        self.received[number] += data
                case Send(data):
                    connection.sendall(data)
                case Close():
                    return
                case Hold():
                    self._is_over.wait()


@contextlib.contextmanager
def lost(why: str = "") -> Iterator[None]:
    """What is in it loses its connection, and may have happened."""
    with pytest.raises(ConnectionLost, match=why or None) as caught:
        yield
    assert caught.value.may_have_happened


def put_in(batch: Any, count: int) -> None:  # noqa: ANN401 - of either kind
    with batch:
        for number in range(count):
            batch.put("mail", number)
