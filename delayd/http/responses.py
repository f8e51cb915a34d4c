"""Answers, as they go over the wire.

    HTTP/1.1 201 Created                               by status and media type, remembered
    Content-Type: application/json                              "
    Server: delayd/1.0                                          "
    Location: /v1/jobs/7                               of this answer alone
    Content-Length: 42
    Date: Sat, 21 Nov 2026 12:00:00 GMT                a new one each second

    {"id":7, ...}

An answer is there whole before its first byte is sent, so its head is this text with three numbers
in it. aiohttp's own responses make a dictionary of headers, complete it in four places and write it
out: a seventh of all that a put over HTTP costs. What is sent, and that a client is waited for that
does not take it, is aiohttp's affair here too.

A `Reply` answers one request. It refuses to know what it says.
"""

from collections.abc import Mapping
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson
from aiohttp import web

from delayd.clock import system_wall_ms
from delayd.core.errors import Refusal
from delayd.http.problems import CONTENT_TYPE, JSON, SERVER, headers_of, problem_of

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

NO_CONTENT: Final = 204
MULTI_STATUS: Final = 207
MS_PER_S: Final = 1_000
_HTTP_1_0: Final = (1, 0)


class Reply(web.StreamResponse):
    """An answer with everything that is in it."""

    def __init__(
        self,
        status: int,
        body: bytes = b"",
        media_type: str = JSON,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Have this to say.

        `headers` come beside those that every answer has. They are the daemon's own words: what
        clients say is not to be repeated there.
        """
        super().__init__(status=status)
        self.body = body
        self.media_type = media_type
        self._more_headers = headers
        self._closes = False
        self._asked: web.BaseRequest | None = None

    @property
    def keep_alive(self) -> bool:
        """Whether the connection serves another request."""
        return not self._closes

    def force_close(self) -> None:
        """Say nothing more on this connection."""
        self._closes = True

    async def prepare(self, request: web.BaseRequest) -> "AbstractStreamWriter":
        """Take note of whom it answers; aiohttp calls this first."""
        self._asked = request
        return request.writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Send it, and wait while the client takes nothing; aiohttp calls this second."""
        request, self._asked = self._asked, None
        assert request is not None, "it has not been prepared"
        assert not data, "what it says is known from the beginning"
        self._closes = self._closes or not request.keep_alive
        whole = self._head(request)
        if request.method != "HEAD":
            whole += self.body
        # aiohttp holds the answer until it has the next: a thousand workers, a MiB for each.
        self.body = b""
        await request.writer.write_eof(whole)

    def _head(self, request: web.BaseRequest) -> bytes:
        text = _beginning(self.status, self.media_type)
        if self._more_headers:
            text += "".join(f"{name}: {value}\r\n" for name, value in self._more_headers.items())
        if self.status != NO_CONTENT:
            text += f"Content-Length: {len(self.body)}\r\n"
        if self._closes:
            text += "Connection: close\r\n"
        elif request.version == _HTTP_1_0:
            text += "Connection: keep-alive\r\n"
        return f"{text}Date: {_date(system_wall_ms() // MS_PER_S)}\r\n\r\n".encode("ascii")


@lru_cache
def _beginning(status: int, media_type: str) -> str:
    """Return what answers of this kind begin with.

    >>> _beginning(204, JSON).splitlines()[0]
    'HTTP/1.1 204 No Content'
    """
    text = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    if status != NO_CONTENT:
        text += f"Content-Type: {media_type}\r\n"
    return f"{text}Server: {SERVER}\r\n"


@lru_cache(maxsize=2)
def _date(epoch_s: int) -> str:
    """Return a moment as HTTP writes it (RFC 9110, 5.6.7).

    >>> _date(784111777)
    'Sun, 06 Nov 1994 08:49:37 GMT'
    """
    return formatdate(epoch_s, usegmt=True)


# --- What handlers answer ------------------------------------------------------------------------


def reply(status: int, content: object, headers: Mapping[str, str] | None = None) -> Reply:
    """Return an answer in JSON."""
    return Reply(status, orjson.dumps(content), headers=headers)


def nothing() -> Reply:
    """Return an answer that says nothing: 204."""
    return Reply(NO_CONTENT)


def refused(refusal: Refusal, **done: int) -> Reply:
    """Return the answer to a request that is refused; to how many it was done all the same."""
    problem = orjson.dumps(problem_of(refusal) | done)
    return Reply(refusal.status, problem, CONTENT_TYPE, headers_of(refusal))


def refused_item(refusal: Refusal) -> dict[str, Any]:
    """Return what a batch tells of one of many that is refused."""
    return {"status": refusal.status, "problem": problem_of(refusal)}


def reply_of_many(results: list[dict[str, Any]], status: int) -> Reply:
    """Return the answer to a batch: this status if none of them was refused."""
    if any("problem" in result for result in results):
        status = MULTI_STATUS
    return reply(status, {"results": results})
