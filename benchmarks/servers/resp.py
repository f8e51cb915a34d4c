r"""Redis's protocol, as much of it as the load generator needs: RESP 2.

command(b"ZCARD", b"jobs")     b"*2\r\n$5\r\nZCARD\r\n$4\r\njobs\r\n"
Replies().hear(b":7\r\n")      [7]
"""

import socket
from typing import Final

from benchmarks.line import HOST, PATIENCE_S, UnexpectedReplyError

RECEIVE_BYTES: Final = 65_536
Reply = int | bytes | list["Reply"] | None
INCOMPLETE: Final = -1


def command(*words: bytes) -> bytes:
    r"""Return a command.

    >>> command(b"PING")
    b'*1\r\n$4\r\nPING\r\n'
    """
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


class Replies:
    """The replies of a connection, which may arrive in pieces."""

    def __init__(self) -> None:
        self._pending = b""

    def hear(self, data: bytes) -> list[Reply]:
        """Return all replies that are whole; raises `UnexpectedReplyError` for an error."""
        data = self._pending + data
        found: list[Reply] = []
        at = 0
        while at < len(data):
            reply, end = parse(data, at)
            if end == INCOMPLETE:
                break
            found.append(reply)
            at = end
        self._pending = data[at:]
        return found


def parse(data: bytes, at: int) -> tuple[Reply, int]:
    r"""Return the reply that begins there, and where it ends; `INCOMPLETE` if it is not whole.

    >>> parse(b"*2\r\n$2\r\nab\r\n$-1\r\n", 0)
    ([b'ab', None], 17)
    """
    end = data.find(b"\r\n", at)
    if end < 0:
        return None, INCOMPLETE
    kind, head, end = data[at : at + 1], data[at + 1 : end], end + 2
    if kind == b"-":
        raise UnexpectedReplyError(f"Redis answered {head[:80]!r}")
    if kind == b"+":
        return head, end
    count = int(head)
    if kind == b":":
        return count, end
    if count < 0:
        return None, end
    if kind == b"$":
        after = end + count + 2
        return (data[end : after - 2], after) if after <= len(data) else (None, INCOMPLETE)
    found: list[Reply] = []
    for _ in range(count):
        one, end = parse(data, end)
        if end == INCOMPLETE:
            return None, INCOMPLETE
        found.append(one)
    return found, end


def ask_redis(port: int, *words: bytes) -> Reply:
    """Send one command on a connection of its own; return its reply."""
    with socket.create_connection((HOST, port), timeout=PATIENCE_S) as sock:
        return asked(sock, command(*words))


def asked(sock: socket.socket, request: bytes) -> Reply:
    """Send one command on a connection that blocks; return its reply."""
    sock.sendall(request)
    replies = Replies()
    while not (found := replies.hear(received := sock.recv(RECEIVE_BYTES))):
        if not received:
            raise ConnectionError("closed before the reply was whole")
    return found[0]
