"""A client of the line protocol for tests: it sends any bytes and knows where a reply ends.

    >>> client.ask("put 5 0 60", b"hello"), client.ask("reserve")      # doctest: +SKIP
    ('INSERTED 1', 'RESERVED 1 5\\r\\nhello')

It has no opinion on what is a good command, and it never waits without a limit. A reply is a line,
and for `RESERVED`, `FOUND` and `OK` also the bytes that the line's last number announces.
"""

import select
import socket
from typing import Final, Self

Address = tuple[str, int]

REPLY_S_MAX: Final = 60.0
"""On a busy machine with a slow disk."""

RECV_BYTES: Final = 1 << 18
WITH_BODY: Final = (b"RESERVED", b"FOUND", b"OK")


class LineClient:
    """One connection; `timeout_s` is the longest that a reply may take to come.

    In the place of an address it takes what is connected already.
    """

    def __init__(self, address: Address | socket.socket, timeout_s: float = REPLY_S_MAX) -> None:
        if isinstance(address, tuple):
            self.socket = socket.create_connection(address, timeout_s)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        else:
            self.socket = address
        self._received = bytearray()
        self._ended = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    def half_close(self) -> None:
        """Say that no more commands will come; replies can still be read."""
        self.socket.shutdown(socket.SHUT_WR)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def something_came(self, within_s: float = 0.0) -> bool:
        """Whether there is anything to read, be it the end of the connection."""
        return bool(self._received) or bool(select.select([self.socket], [], [], within_s)[0])

    def reply(self) -> bytes:
        """The next whole reply with its CRLFs; empty when the server has closed the connection.

        Raises `TimeoutError` when none comes in time, `EOFError` when it breaks off in the middle.
        """
        line_end = self._find_line_end()
        if line_end == 0:
            return b""
        word, *numbers = bytes(self._received[: line_end - 2]).split(b" ")
        # OK alone answers auth.
        has_body = word in WITH_BODY and bool(numbers)
        end = line_end + int(numbers[-1]) + 2 if has_body else line_end
        while len(self._received) < end:
            self._receive(required=True)
        whole = bytes(self._received[:end])
        del self._received[:end]
        if not whole.endswith(b"\r\n"):
            raise ValueError(f"the announced body does not end in CRLF: {whole!r}")
        return whole

    def rest(self) -> bytes:
        """Everything that comes until the server closes the connection."""
        while not self._ended:
            self._receive(required=False)
        whole = bytes(self._received)
        self._received.clear()
        return whole

    def ask(self, line: str, body: bytes | None = None) -> str:
        """Send one command, and its body's size and its body if it has one; the reply as text.

        The reply's last CRLF is left out; bytes beyond ASCII come as Latin-1.
        """
        if body is None:
            self.send(b"%b\r\n" % line.encode("latin-1"))
        else:
            self.send(b"%b %d\r\n%b\r\n" % (line.encode("latin-1"), len(body), body))
        return self.reply().decode("latin-1").removesuffix("\r\n")

    def put(self, body: bytes = b"", *, priority: int = 0, delay: int = 0, ttr: int = 60) -> int:
        """Put a job and give back its id; any answer but INSERTED is a failure."""
        answer = self.ask(f"put {priority} {delay} {ttr}", body)
        word, _, number = answer.partition(" ")
        assert word == "INSERTED", answer
        return int(number)

    def stats(self, of: str = "stats") -> dict[str, str]:
        """The answer to `stats`, `stats-job 7` or `stats-tube x`; quotes stay on the values."""
        answer = self.ask(of)
        assert answer.startswith("OK "), answer
        _size, _rule, *lines = answer.removesuffix("\n").split("\n")
        return dict(line.split(": ", 1) for line in lines)

    def names(self, of: str = "list-tubes") -> list[str]:
        """The answer to `list-tubes` or `list-tubes-watched`."""
        answer = self.ask(of)
        assert answer.startswith("OK "), answer
        _size, _rule, *lines = answer.removesuffix("\n").split("\n")
        return [line.removeprefix("- ") for line in lines]

    def _find_line_end(self) -> int:
        """The index behind the first CRLF; 0 when the connection ended instead."""
        while (found := self._received.find(b"\r\n")) < 0:
            if self._ended:
                if self._received:
                    raise EOFError(f"the server closed within a reply: {bytes(self._received)!r}")
                return 0
            self._receive(required=False)
        return found + 2

    def _receive(self, *, required: bool) -> None:
        try:
            data = self.socket.recv(RECV_BYTES)
        except ConnectionResetError:
            data = b""
        if not data:
            self._ended = True
            if required:
                raise EOFError(f"the server closed within a reply: {bytes(self._received)!r}")
        self._received += data
