r"""HTTP/1.1 as bytes: a request in, a response out, and no socket.

>>> reader = ResponseReader(Address("http", "127.0.0.1", 11301))
>>> reader.feed(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{")
>>> reader.feed(b"}").body
b'{}'
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from delayd.client.addresses import Address
from delayd.client.answers import members, read_json, shown
from delayd.client.connection_pool import Link
from delayd.client.errors import NotUnderstood, WrongProtocol
from delayd.client.limits import (
    ANSWER_BYTES_MAX,
    CHUNK_HEAD_BYTES_MAX,
    CHUNK_SHARE,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    INTERIM_ANSWERS_MAX,
    TRAILER_BYTES_MAX,
)

JSON_TYPE: Final = "application/json"
UPGRADE_REQUIRED: Final = 426
"""What delayd's line port answers to HTTP; a beanstalkd answers in words of its own."""
SERVICE_UNAVAILABLE: Final = 503
_OF_AN_OWNER: Final = frozenset(("DRAINING", "BUSY", "TOO_MANY_REQUESTS"))
"""Words of 503 of a daemon that serves: another one has no better answer."""
_SWITCHING: Final = 101
_VERSIONS: Final = frozenset(("HTTP/1.1 ", "HTTP/1.0 "))
_CHUNK_SIZE: Final = rb"0*([0-9A-Fa-f]{1,15})[ \t]*(?:;|$)"
_ABOUT_LENGTH: Final = frozenset(("content-length", "transfer-encoding"))
_LINE_REPLIES: Final = (b"UNKNOWN_COMMAND\r\n", b"BAD_FORMAT\r\n")
_PLAIN: Final = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-~")


class Request(NamedTuple):
    """A request, and how it is sent."""

    method: str
    target: str
    """Path and query, percent-encoded."""
    body: bytes = b""
    headers: Mapping[str, str] = {}
    wait_s: float = 0.0
    """How long the daemon may wait for a job, besides the time of an answer."""
    may_repeat: bool = False
    """Whether a repetition does no harm."""
    link: object = None
    """The connection to use; None: any."""


_LIVES: Final = Request("GET", "/healthz")


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
    octets = text.encode(errors="surrogatepass")  # the daemon refuses other bytes than UTF-8
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in octets)


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
    """Reads one response of the daemon at `address`; `feed` returns it when it is whole.

    Answers of 1xx before it are skipped.
    """

    def __init__(self, address: Address, answer_bytes_max: int = ANSWER_BYTES_MAX) -> None:
        self._address = address
        self._bytes_max = answer_bytes_max
        self._received = bytearray()
        self._interim = 0
        self._searched = 0
        """So many bytes have no end of a head."""
        self._status = 0
        self._headers: dict[str, str] = {}
        self._body_at = 0
        """Where the body begins, or in chunks the next one; 0: the head is not read yet."""
        self._length: int | None = None
        self._chunks: bytearray | None = None
        self._framing_bytes = 0

    def feed(self, data: bytes) -> Response | None:
        """Read bytes; none mean that the connection has ended."""
        self._received += data
        if not self._body_at and not self._read_head():
            return None
        if self._chunks is not None:
            return self._read_chunks(self._chunks)
        if self._length is not None:
            end = self._body_at + self._length
            return self._whole(end) if len(self._received) >= end else None
        if len(self._received) - self._body_at > self._bytes_max:
            raise self._too_long()
        return None if data else self._whole(len(self._received))

    # --- The head --------------------------------------------------------------------------------

    def _read_head(self) -> bool:
        """Read the first line and the headers, once they are whole; tell whether they are."""
        while True:
            received = self._received
            end = received.find(b"\r\n\r\n", self._searched)
            if received.startswith(_LINE_REPLIES):
                raise self._is_line()
            if end > HEAD_BYTES_MAX or (end < 0 and len(received) > HEAD_BYTES_MAX):
                raise NotUnderstood(f"the head of an answer is longer than {HEAD_BYTES_MAX} bytes")
            if end < 0:
                if not b"HTTP/1.".startswith(received[:7]):
                    raise NotUnderstood(f"{shown(bytes(received))} is not an answer of HTTP")
                self._searched = max(0, len(received) - 3)
                return False
            self._parse_head(received[:end].decode("latin-1").split("\r\n"))
            if self._status >= 200:
                break
            self._interim += 1
            if self._status == _SWITCHING or self._interim > INTERIM_ANSWERS_MAX:
                raise NotUnderstood(f"status {self._status}, again and again or unasked")
            del received[: end + 4]
            self._searched = 0
            self._headers.clear()
        if self._status == UPGRADE_REQUIRED:
            raise self._is_line()
        self._body_at = end + 4
        self._find_length()
        return True

    def _parse_head(self, lines: list[str]) -> None:
        first, status = lines[0], lines[0][9:12]
        is_status = status.isascii() and status.isdigit() and "1" <= status[0] <= "5"
        if first[:9] not in _VERSIONS or not is_status or first[12:13].strip():
            raise NotUnderstood(f"{shown(first)} is not the first line of an answer of HTTP")
        if len(lines) > HEADERS_MAX:
            raise NotUnderstood(f"an answer has more than {HEADERS_MAX} headers")
        headers = self._headers
        for line in lines[1:]:
            name, colon, value = line.partition(":")
            name = name.lower()
            value = value.strip()
            if not colon:
                raise NotUnderstood(f"{shown(line)} is not a header")
            if name in headers and headers[name] != value and name in _ABOUT_LENGTH:
                raise NotUnderstood(f"the header {name} is there twice, and not the same")
            headers[name] = value
        self._status = int(status)
        if first[7] == "0":
            headers.setdefault("connection", "close")

    def _find_length(self) -> None:
        """Find out where the body ends. Raises NotUnderstood."""
        length, coding = self._headers.get("content-length"), self._headers.get("transfer-encoding")
        if self._status in {204, 304}:
            self._length = 0
        elif coding is not None:
            if length is not None or coding.lower() != "chunked":
                raise NotUnderstood(f"an answer in the Transfer-Encoding {shown(coding)}")
            self._chunks = bytearray()
        elif length is not None:
            if not (length.isascii() and length.isdigit() and len(length) < 19):
                raise NotUnderstood(f"the Content-Length is {shown(length)}")
            self._length = int(length)
            if self._length > self._bytes_max:
                raise self._too_long()

    def _is_line(self) -> WrongProtocol:
        address = self._address
        return WrongProtocol(address.url, "the line protocol", address.other.url)

    def _too_long(self) -> NotUnderstood:
        return NotUnderstood(f"the answer is longer than answer_bytes_max, {self._bytes_max} bytes")

    # --- The body --------------------------------------------------------------------------------

    def _read_chunks(self, body: bytearray) -> Response | None:
        """Move whole chunks from the received bytes to the body."""
        received, at = self._received, self._body_at
        response = None
        while (end := received.find(b"\r\n", at, at + CHUNK_HEAD_BYTES_MAX)) >= 0:
            head = bytes(received[at:end])
            if (found := re.match(_CHUNK_SIZE, head)) is None:
                raise NotUnderstood(f"a chunk has the size {shown(head)}")
            size = int(found[1], 16)
            if len(body) + size > self._bytes_max:
                raise self._too_long()
            if not size:
                response = self._after_chunks(body, end + 2)
                break
            start = end + 2
            if len(received) < start + size + 2:
                break
            if received[start + size : start + size + 2] != b"\r\n":
                raise NotUnderstood("a chunk is longer than it says")
            body += memoryview(received)[start : start + size]
            self._framing_bytes += start + 2 - at
            if self._framing_bytes > HEAD_BYTES_MAX + self._bytes_max // CHUNK_SHARE:
                raise NotUnderstood("an answer in too many and too small chunks")
            at = start + size + 2
        else:
            if len(received) - at >= CHUNK_HEAD_BYTES_MAX:
                raise NotUnderstood("a chunk's size is too long")
        del received[self._body_at : at]
        return response

    def _after_chunks(self, body: bytearray, at: int) -> Response | None:
        """Read and ignore the lines after the last chunk."""
        received = self._received
        end = at if received.startswith(b"\r\n", at) else received.find(b"\r\n\r\n", at) + 2
        if end < at:
            if len(received) - at > TRAILER_BYTES_MAX:
                raise NotUnderstood(f"{TRAILER_BYTES_MAX} bytes after the last chunk")
            return None
        return self._response(bytes(body), is_surplus=len(received) > end + 2)

    def _whole(self, end: int) -> Response:
        body = bytes(memoryview(self._received)[self._body_at : end])
        return self._response(body, is_surplus=len(self._received) > end)

    def _response(self, body: bytes, *, is_surplus: bool) -> Response:
        """Return the response; a connection with surplus bytes is not used again."""
        if is_surplus:
            self._headers["connection"] = "close"
        return Response(self._status, self._headers, body)


class HttpWire:
    """HTTP, for a connection."""

    def __init__(
        self, address: Address, token: str, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self._address = address
        self._token = token
        self._bytes_max = answer_bytes_max
        self._closes = False
        """Whether the last answer closed its connection, as a proxy may do with each: then nothing
        is asked before a request."""

    def encode(self, ask: Request) -> bytes:
        """Write a request."""
        return request_bytes(ask, self._address.authority, self._token)

    def reader(self, _ask: Request, _link: object) -> ResponseReader:
        """Return a reader of one response."""
        return ResponseReader(self._address, self._bytes_max)

    def whole(self, _ask: Request, _link: object, _data: bytes) -> None:
        """Return None: responses are left to the reader."""

    def before(self, _ask: Request, link: Link) -> Request | None:
        """Return a request that changes nothing, if nothing was answered yet."""
        return None if link.is_proven or self._closes else _LIVES

    def check_before(self, _ask: Request, _first: Request, reply: Response) -> None:
        """Take any answer: what it refuses, the request itself will be refused."""
        self._closes = reply.is_last
        if self._closes:
            raise ConnectionResetError("the daemon closed it")

    def why_elsewhere(self, reply: Response) -> str:
        """Return what a daemon says that does not serve: it stands by, stops, or has no lease."""
        self._closes = reply.is_last
        if reply.status != SERVICE_UNAVAILABLE:
            return ""
        try:
            problem = members(read_json(reply.body))
        except NotUnderstood:
            return ""
        is_owner = problem.get("word") in _OF_AN_OWNER or "word" not in problem
        return "" if is_owner else shown(problem.get("detail", "")).removeprefix("the text ")
