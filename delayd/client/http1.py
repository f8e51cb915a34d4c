r"""HTTP/1.1 as bytes: a request in, a response out, and no socket.

>>> reader = ResponseReader(Address("http", "127.0.0.1", 11301))
>>> reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{")
>>> reader.feed(b"}").body
b'{}'
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from delayd.client.addresses import Address
from delayd.client.errors import NotUnderstood, WrongProtocol

HEAD_BYTES_MAX: Final = 1 << 16
JSON_TYPE: Final = "application/json"
UPGRADE_REQUIRED: Final = 426
"""What delayd's line port answers to HTTP; a beanstalkd answers in words of its own."""
_LINE_REPLIES: Final = (b"UNKNOWN_COMMAND\r\n", b"BAD_FORMAT\r\n")
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")


class Request(NamedTuple):
    """A request, and how it may be treated."""

    method: str
    target: str
    """Path and query, percent-encoded."""
    body: bytes = b""
    headers: Mapping[str, str] = {}
    wait_s: float = 0.0
    """How long the daemon may take by intent, besides the time of an answer."""
    may_repeat: bool = False
    """Whether doing it twice is as good as doing it once."""
    link: object = None
    """On which connection; None: on any."""


class Response(NamedTuple):
    """A whole response; the names of its headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def is_last(self) -> bool:
        """Whether the daemon closes the connection after it."""
        return self.headers.get("connection", "").lower() == "close"


def quoted(text: str) -> str:
    """Write text so that it can be a part of a path or of a query.

    `urllib.parse` takes longer to import than all of this package.

    >>> quoted("a b/ü")
    'a%20b%2F%C3%BC'
    """
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in text.encode())


def query_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Write a query.

    >>> query_text([("state", "ready"), ("from", "+1 h")])
    'state=ready&from=%2B1%20h'
    """
    return "&".join(f"{name}={quoted(value)}" for name, value in pairs)


def request_bytes(request: Request, authority: str, token: str = "") -> bytes:
    """Write a request."""
    lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {authority}"]
    if token:
        lines.append(f"Authorization: Bearer {token}")
    if request.body or request.method in {"POST", "PUT", "PATCH"}:
        if "Content-Type" not in request.headers:
            lines.append(f"Content-Type: {JSON_TYPE}")
        lines.append(f"Content-Length: {len(request.body)}")
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a token, header or path must be one line")
    return "\r\n".join((*lines, "\r\n")).encode() + request.body


class ResponseReader:
    """Reads one response; `feed` returns it when it is whole. `address` is whose it is."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._received = bytearray()
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body_at = 0
        self._body = bytearray()

    def feed(self, data: bytes) -> Response | None:
        """Take what was received; no data means that the connection has ended."""
        self._received += data
        if not self._body_at and not self._read_head():
            return None
        if self._status in {204, 304}:
            return self._whole(self._body_at)
        if self._headers.get("transfer-encoding", "").lower() == "chunked":
            return self._read_chunks()
        length = self._headers.get("content-length")
        if length is None:
            return None if data else self._whole(len(self._received))
        if not length.isdigit():
            raise NotUnderstood(f"the Content-Length is {length!r}")
        end = self._body_at + int(length)
        return self._whole(end) if len(self._received) >= end else None

    def _read_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if self._received.startswith(_LINE_REPLIES):
            raise self._is_line()
        if end < 0:
            if len(self._received) > HEAD_BYTES_MAX or not b"HTTP/1.".startswith(
                self._received[:7]
            ):
                raise NotUnderstood(f"{bytes(self._received[:40])!r} is not an answer of HTTP")
            return False
        first, *lines = self._received[:end].decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdigit():
            raise NotUnderstood(f"{first!r} is not the first line of an answer of HTTP")
        for line in lines:
            name, _, value = line.partition(":")
            self._headers[name.strip().lower()] = value.strip()
        self._status = int(status[:3])
        if self._status == UPGRADE_REQUIRED:
            raise self._is_line()
        self._body_at = end + 4
        return True

    def _is_line(self) -> WrongProtocol:
        address = self._address
        return WrongProtocol(address.url, "the line protocol", address.other.url)

    def _read_chunks(self) -> Response | None:
        """Take whole chunks off what was received."""
        while (end := self._received.find(b"\r\n", self._body_at)) >= 0:
            text = bytes(self._received[self._body_at : end]).partition(b";")[0]
            try:
                size = int(text, 16)
            except ValueError:
                raise NotUnderstood(f"a chunk has the size {text!r}") from None
            start = end + 2
            if len(self._received) < start + size + 2:
                return None
            if not size:
                return Response(self._status, self._headers, bytes(self._body))
            self._body += self._received[start : start + size]
            self._body_at = start + size + 2
        return None

    def _whole(self, end: int) -> Response:
        return Response(self._status, self._headers, bytes(self._received[self._body_at : end]))


class HttpWire:
    """HTTP as what a connection speaks."""

    def __init__(self, address: Address, token: str) -> None:
        self._address = address
        self._token = token

    def encode(self, ask: Request) -> bytes:
        """Write a request."""
        return request_bytes(ask, self._address.authority, self._token)

    def reader(self, _ask: Request, _link: object) -> ResponseReader:
        """Return a reader of one response."""
        return ResponseReader(self._address)

    def before(self, _ask: Request, _link: object) -> None:
        """Every request says all."""

    def check_before(self, _ask: Request, _said: object, _reply: object) -> None:
        """There was nothing."""
