"""A client of HTTP that sends any bytes, and the crowds that attack a daemon.

    with HttpClient(daemon.http_address) as client:
        status, body = client.ask("POST", "/v1/topics/mail/jobs", {"body": 1})

It has no opinion on what a request is, and never waits without a limit.
"""

import json
import os
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from delayd.testing.daemon import Daemon
from tests.line_client import Address

REPLY_S_MAX: Final = 60.0
"""On a busy machine."""

HTTP: Final = ("--http", "127.0.0.1:0")
"""The flags of a daemon that speaks HTTP as well."""

_STATUS: Final = re.compile(rb"HTTP/[0-9.]+ (\d{3}) ")
_LENGTH: Final = re.compile(rb"(?i)\r\nContent-Length: *(\d+)")


class Answer(NamedTuple):
    """What came back; status 0: the connection was closed instead."""

    status: int
    body: bytes = b""

    @property
    def json(self) -> Any:  # noqa: ANN401 (whatever it is)
        return json.loads(self.body)


class HttpClient:
    """One connection."""

    def __init__(
        self, address: Address, timeout_s: float = REPLY_S_MAX, receive_bytes: int = 0
    ) -> None:
        """Connect; the system keeps `receive_bytes` of what is not read, 0: as many as it likes."""
        self.socket = socket.socket()
        self.socket.settimeout(timeout_s)
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.connect(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def die(self) -> None:
        """Go as a process does that is killed while it has not read everything."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_what_it_takes(self, data: bytes) -> bool:
        """Send to somebody who may have closed; tell whether all of it left."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def answer(self, *, has_body: bool = True) -> Answer:
        """The next answer; TimeoutError when none comes in time."""
        while (end := self._received.find(b"\r\n\r\n")) < 0:
            if not self._receive():
                return Answer(0)
        head = self._received[:end]
        status = _STATUS.match(head)
        assert status is not None, head
        length = _LENGTH.search(head)
        whole = end + 4 + (int(length[1]) if length is not None and has_body else 0)
        while len(self._received) < whole:
            if not self._receive():
                return Answer(0)
        body = self._received[end + 4 : whole]
        self._received = self._received[whole:]
        return Answer(int(status[1]), body)

    def is_closed(self) -> bool:
        """Wait for the end of the connection; anything else that comes is in its way."""
        return not self._received and not self._receive()

    def _receive(self) -> bool:
        try:
            data = self.socket.recv(1 << 18)
        except ConnectionResetError:
            return False
        self._received += data
        return bool(data)

    def ask(self, method: str, path: str, content: object = None, *headers: str) -> Answer:
        """Send a request with JSON in it, and wait for the answer."""
        self.send(request(method, path, content, *headers))
        return self.answer(has_body=method != "HEAD")


def request(method: str, path: str, content: object = None, *headers: str) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *headers]
    body = b""
    if content is not None or method == "POST":
        lines.append("Content-Type: application/json")
    if content is not None:
        body = json.dumps(content).encode()
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join((*lines, "", "")).encode() + body


@contextmanager
def crowd(address: Address, number: int, greeting: bytes = b"") -> Iterator[list[socket.socket]]:
    """So many connections, each of which has said the same; they are closed in the end."""
    members: list[socket.socket] = []
    try:
        for _ in range(number):
            members.append(socket.create_connection(address, REPLY_S_MAX))
            if greeting:
                members[-1].sendall(greeting)
        yield members
    finally:
        for member in members:
            member.close()


def memory_bytes(daemon: Daemon, what: str = "VmRSS") -> int:
    """How much memory the daemon uses; VmHWM: has used at most."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    found = re.search(rf"{what}:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1_024


def descriptors(daemon: Daemon) -> int:
    """How many files and sockets the daemon has open."""
    return len(list(Path(f"/proc/{daemon.pid}/fd").iterdir()))


def sockets(daemon: Daemon) -> int:
    """How many of these are sockets: those it listens on, and its clients'."""
    found = 0
    for link in Path(f"/proc/{daemon.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            found += os.readlink(link).startswith("socket:")
    return found
