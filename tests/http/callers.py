"""Clients of the HTTP API in memory: a transport that a connection writes to, and its answers.

`tests/http/scene.py` makes them, and has the loop on which everything happens.
"""

import asyncio
import json as json_module
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from delayd.http.connections import Connection

if TYPE_CHECKING:
    from delayd.http.connections import HttpConnections

_HEAD: Final = re.compile(rb"HTTP/\d\.\d (\d{3}) [^\r\n]*\r\n(.*?\r\n)\r\n", re.DOTALL)


class Answer(NamedTuple):
    """What a client has received for one request."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes

    @property
    def json(self) -> Any:  # noqa: ANN401 (whatever it is)
        """The body, read as JSON."""
        return json_module.loads(self.body)

    @property
    def word(self) -> str:
        """The word of a problem."""
        assert self.headers["content-type"] == "application/problem+json", self
        assert self.json["status"] == self.status
        return str(self.json["word"])

    @property
    def fields(self) -> list[str]:
        """The fields that a problem names, in its order."""
        return [error["field"] for error in self.json.get("errors", [])]


class Client(asyncio.Transport):
    """One connection: what the daemon writes to, and whoever reads it."""

    def __init__(self, guard: "HttpConnections", peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer})
        admitted = guard.admit(peer, 0)
        assert isinstance(admitted, Connection), admitted
        self.protocol: Final = admitted
        self.received = bytearray()
        self.is_closed = False
        """The daemon has closed it, or `hang_up` was called."""
        self._loop = guard.loop
        self._is_ending = False
        self._methods: list[str] = []
        self._answers: list[Answer] = []
        guard.loop.call_soon(self.protocol.connection_made, self)

    # --- What a test does ------------------------------------------------------------------------

    @property
    def answer(self) -> Answer | None:
        """The answer to the latest request; None while there is none."""
        self._read()
        return None if self._methods or not self._answers else self._answers[-1]

    @property
    def the_answer(self) -> Answer:
        """The answer to the latest request, which is there."""
        answer = self.answer
        assert answer is not None, "there is no answer yet"
        return answer

    def say(self, method: str, data: bytes) -> None:
        """Send a whole request as it is."""
        self._methods.append(method)
        self._loop.call_soon(self.protocol.data_received, data)

    def hang_up(self) -> None:
        """Go away without a word; `settle` sees what follows."""
        self._end(None)

    # --- What the daemon does --------------------------------------------------------------------

    def write(self, data: Any) -> None:  # noqa: ANN401 (asyncio's signature)
        """Receive."""
        assert not self.is_closed, "nothing is written to a closed transport"
        self.received += data

    def writelines(self, list_of_data: Any) -> None:  # noqa: ANN401 (the same)
        """Receive."""
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        """Whether it ends or has ended."""
        return self._is_ending

    def close(self) -> None:
        """End."""
        self._end(None)

    def abort(self) -> None:
        """End."""
        self._end(None)

    def pause_reading(self) -> None:
        """Requests are short here."""

    def resume_reading(self) -> None:
        """The same."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Everything is taken at once."""

    def get_write_buffer_size(self) -> int:
        """So nothing waits."""
        return 0

    def _end(self, error: Exception | None) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        self.is_closed = True
        self.protocol.connection_lost(error)

    # --- Reading ---------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take whole answers off what was received."""
        while self._methods:
            head = _HEAD.match(self.received)
            if head is None:
                assert not self.received or b"\r\n\r\n" not in self.received, self.received
                return
            headers = dict(_headers(head[2]))
            status = int(head[1])
            has_body = self._methods[0] != "HEAD" and status not in {204, 304}
            end = head.end()
            body = b""
            if has_body and headers.get("transfer-encoding") == "chunked":
                whole = _chunks(bytes(self.received), end)
                if whole is None:
                    return
                body, end = whole
            elif has_body:
                end += int(headers["content-length"])
                if len(self.received) < end:
                    return
                body = bytes(self.received[head.end() : end])
            del self.received[:end]
            self._methods.pop(0)
            self._answers.append(Answer(status, headers, body))


def _headers(data: bytes) -> Iterator[tuple[str, str]]:
    for line in data.decode().splitlines():
        name, _, value = line.partition(": ")
        yield name.lower(), value


def _chunks(data: bytes, at: int) -> tuple[bytes, int] | None:
    """The body that is sent in chunks, and where it ends; None if not all of it is there."""
    body = b""
    while (line_end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:line_end], 16)
        at = line_end + 2 + size + 2
        if len(data) < at:
            return None
        body += data[line_end + 2 : at - 2]
        if not size:
            return body, at
    return None


def request(
    method: str,
    path: str,
    json: object = None,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    token: str = "",
) -> bytes:
    """A request as bytes."""
    body = data
    if json is not None:
        body = json_module.dumps(json).encode()
    said = {"Host": "localhost"}
    if body is not None:
        said |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    if token:
        said["Authorization"] = f"Bearer {token}"
    said |= headers or {}
    lines = [f"{method} {path} HTTP/1.1", *map(": ".join, said.items())]
    return "\r\n".join((*lines, "\r\n")).encode() + (body or b"")
