"""The line protocol for harnesses: whole replies, one question, and a connection that waits.

What is timed is driven by the load generator (`benchmarks.servers.generator`); this is for what
happens before and beside it. Every benchmark that speaks to a socket fails with the two errors.
"""

import re
import socket
from collections.abc import Sequence
from typing import Final

HOST: Final = "127.0.0.1"
RECEIVE_BYTES: Final = 65_536
PATIENCE_S: Final = 30.0
"""A server that says nothing for so long has failed the measurement."""
LINE_S_MAX: Final = 120.0
"""A `Line` waits so long: it asks for what takes long."""
TOGETHER: Final = 2_000
"""Commands that are sent before their replies are read: they and their replies fit the buffers."""


class UnexpectedReplyError(Exception):
    """The server answered something that cannot have been asked for."""


class ServerSilentError(Exception):
    """The server closed the connection or stopped answering."""


def connect(port: int) -> socket.socket:
    """Return a non-blocking connection to a server on this machine."""
    connection = socket.create_connection((HOST, port), timeout=PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def whole_replies(received: bytes) -> int:
    r"""Return where the last complete reply ends; RESERVED is complete with its body line.

    >>> whole_replies(b"DELETED\r\nRESERVED 7 1\r\nx")
    9
    """
    end = received.rfind(b"\n") + 1
    last_line = received.rfind(b"\n", 0, max(end - 1, 0)) + 1
    return last_line if received.startswith(b"RESERVED ", last_line, end) else end


def is_whole(reply: bytes) -> bool:
    r"""Whether the reply is complete: a line, or an OK block.

    >>> is_whole(b"OK 4\r\n---\n"), is_whole(b"OK 4\r\n---\n\r\n")
    (False, True)
    """
    line, line_end, rest = reply.partition(b"\r\n")
    if not line_end:
        return False
    return not line.startswith(b"OK ") or len(rest) == int(line[3:]) + 2


def ask(port: int, command: bytes) -> bytes:
    """Send one command on a connection of its own; return its reply: a line, or an OK block."""
    with socket.create_connection((HOST, port), timeout=PATIENCE_S) as sock:
        sock.sendall(command)
        reply = b""
        while not is_whole(reply):
            received = sock.recv(RECEIVE_BYTES)
            if not received:
                raise ConnectionError("closed before the reply was whole")
            reply += received
        return reply


def statistic(reply: bytes, name: bytes) -> int | None:
    r"""Return one number of a stats or stats-tube reply; None if it is not there.

    >>> statistic(b"OK 20\r\n---\ncurrent-jobs: 3\n\r\n", b"current-jobs")
    3
    """
    found = re.search(rb"^" + re.escape(name) + rb": (\d+)$", reply, re.MULTILINE)
    return int(found[1]) if found else None


class Line:
    """A connection that waits for each reply, or for many; it uses and watches one tube."""

    def __init__(self, port: int, tube: str = "default") -> None:
        self._sock = connect(port)
        self._sock.settimeout(LINE_S_MAX)
        self._replies = self._sock.makefile("rb")
        if tube != "default":
            self.ask(b"use %b\r\n" % tube.encode())
            self.ask(b"watch %b\r\n" % tube.encode())
            self.ask(b"ignore default\r\n")

    def send(self, commands: bytes) -> None:
        """Send and read nothing; the replies must fit the buffers."""
        self._sock.sendall(commands)

    def reply(self) -> bytes:
        """Read a reply: one line, and the job's body behind it where it has one."""
        line = self._replies.readline()
        if line.startswith(b"RESERVED "):
            line += self._replies.read(int(line.split()[2]) + 2)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("closed before the reply was whole")
        return line

    def read(self, count: int) -> bytes:
        """Read so many bytes, wherever a reply ends."""
        return self._replies.read(count)

    def ask(self, command: bytes) -> bytes:
        """Send one command and return its reply."""
        self.send(command)
        return self.reply()

    def ask_many(self, commands: Sequence[bytes]) -> list[bytes]:
        """Send commands, many at once, and return the replies."""
        replies: list[bytes] = []
        for first in range(0, len(commands), TOGETHER):
            some = commands[first : first + TOGETHER]
            self.send(b"".join(some))
            replies.extend(self.reply() for _ in some)
        return replies

    def put_all(self, commands: Sequence[bytes]) -> None:
        """Send puts; raise `UnexpectedReplyError` if one is refused."""
        odd = [one for one in self.ask_many(commands) if not one.startswith(b"INSERTED ")]
        if odd:
            raise UnexpectedReplyError(f"a put was answered {odd[0][:80]!r}")

    def close(self) -> None:
        """End the connection, also where a forked process has it."""
        self._sock.shutdown(socket.SHUT_RDWR)
        self._replies.close()
        self._sock.close()
