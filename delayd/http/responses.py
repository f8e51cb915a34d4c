"""Answers as bytes.

    HTTP/1.1 201 Created                               by status and media type, remembered
    Content-Type: application/json                              "
    Server: delayd/1.0                                          "
    Location: /v1/jobs/7                               of this answer alone
    Content-Length: 42
    Date: Sat, 21 Nov 2026 12:00:00 GMT                a new one each second

    {"id":7, ...}

An answer is complete before its first byte is sent, so its head is this text with three numbers in
it. Only the page of metrics is made and sent in pieces.

The module does not know requests or connections.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import Final

import msgspec

from delayd.clock import monotonic_ns, system_wall_ms
from delayd.core.errors import Refusal
from delayd.core.stats.requests import RequestCounters
from delayd.http.answer_forms import AckResultAnswer, NackResultAnswer, PutResultAnswer
from delayd.http.problems import CONTENT_TYPE, JSON, SERVER, headers_of, problem_of
from delayd.http.values import UNSET, Answer

NO_CONTENT: Final = 204
MULTI_STATUS: Final = 207
MS_PER_S: Final = 1_000
HTTP_1_0: Final = (1, 0)
HTTP_1_1: Final = (1, 1)


@dataclass(slots=True, eq=False)
class Reply:
    """An answer: status, headers and body."""

    status: int
    body: bytes = b""
    media_type: str = JSON
    headers: Mapping[str, str] | None = None
    """Beside those of every answer; never with text of clients, so they need no escaping."""
    pieces: Iterable[bytes] | None = None
    """In place of a body."""
    is_sent: bool = False
    waits_for_log: bool = False
    """It is sent when all that was done before it is durable."""
    counters: RequestCounters | None = None
    """Where it is counted; None: it was, or is not."""
    begun_ns: int = 0
    """When its request was read."""

    def count(self) -> None:
        """Count it: it is about to be sent."""
        if self.counters is not None:
            self.counters.note(self.status, monotonic_ns() - self.begun_ns)

    def head(self, *, closes: bool, version: tuple[int, int] = HTTP_1_1) -> bytes:
        """Return the bytes before the body; `closes`: the connection ends with this answer."""
        text = _beginning(self.status, self.media_type)
        if self.headers:
            text += "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        if self.status != NO_CONTENT:
            text += f"Content-Length: {len(self.body)}\r\n"
        if closes:
            text += "Connection: close\r\n"
        elif version == HTTP_1_0:
            text += "Connection: keep-alive\r\n"
        return f"{text}{_date(system_wall_ms() // MS_PER_S)}\r\n".encode("ascii")

    def head_of_pieces(self, *, closes: bool, version: tuple[int, int], is_chunked: bool) -> bytes:
        """Return the bytes before the pieces, whose length is not known."""
        text = _beginning(self.status, self.media_type)
        if version == HTTP_1_0:
            text = text.replace("HTTP/1.1", "HTTP/1.0", 1)
        if is_chunked:
            text += "Transfer-Encoding: chunked\r\n"
        text += _date(system_wall_ms() // MS_PER_S)
        if closes == (version >= HTTP_1_1):  # the version does not imply it
            text += f"Connection: {'close' if closes else 'keep-alive'}\r\n"
        return f"{text}\r\n".encode("ascii")


@lru_cache
def _beginning(status: int, media_type: str) -> str:
    """Return the first lines of answers of this kind.

    >>> _beginning(204, JSON).splitlines()[0]
    'HTTP/1.1 204 No Content'
    """
    text = f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\n"
    if status != NO_CONTENT:
        text += f"Content-Type: {media_type}\r\n"
    return f"{text}Server: {SERVER}\r\n"


@lru_cache(maxsize=2)
def _date(epoch_s: int) -> str:
    r"""Return the header of a moment (RFC 9110, 5.6.7).

    >>> _date(784111777)
    'Date: Sun, 06 Nov 1994 08:49:37 GMT\r\n'
    """
    return f"Date: {formatdate(epoch_s, usegmt=True)}\r\n"


# --- Answers of handlers -------------------------------------------------------------------------

written: Final = msgspec.json.Encoder(enc_hook=str).encode
"""Returns an answer in JSON; names of topics may be a `TopicName`, which is a `str`."""


def reply(
    status: int,
    answer: Answer,
    headers: Mapping[str, str] | None = None,
    *,
    waits_for_log: bool = False,
) -> Reply:
    """Return an answer in JSON."""
    return Reply(status, written(answer), headers=headers, waits_for_log=waits_for_log)


class Results:
    """The results of a batch, each written as soon as it is known."""

    __slots__ = ("_is_mixed", "_texts")

    def __init__(self) -> None:
        self._texts: list[bytes] = []
        self._is_mixed = False

    def add(self, result: AckResultAnswer | NackResultAnswer | PutResultAnswer) -> None:
        """Take the result of the next item."""
        self._is_mixed = self._is_mixed or result.problem is not UNSET
        self._texts.append(written(result))

    def add_refused(
        self, kind: type[AckResultAnswer | NackResultAnswer], job_id: int, refusal: Refusal
    ) -> None:
        """Take the refusal of the next item."""
        self.add(kind(id=job_id, status=refusal.status, problem=problem_of(refusal)))

    def add_written(self, text: bytes) -> None:
        """Take the JSON of one success."""
        self._texts.append(text)

    def add_alike(self, text: bytes, job_ids: Sequence[int]) -> None:
        """Take successes that differ only in the id, for which this JSON has a place."""
        if job_ids:
            self._texts.append(b",".join([text] * len(job_ids)) % (*job_ids,))

    def reply(self, status: int) -> Reply:
        """Return the answer: this status if no item was refused. It waits for the log."""
        body = b'{"results":[%b]}' % b",".join(self._texts)
        return Reply(MULTI_STATUS if self._is_mixed else status, body, waits_for_log=True)


def refused(refusal: Refusal, **done: int) -> Reply:
    """Return the answer to a refused request; `done` says how many jobs were changed before."""
    problem = written(problem_of(refusal, **done))
    return Reply(refusal.status, problem, CONTENT_TYPE, headers_of(refusal))


def closing_reply(refusal: Refusal) -> bytes:
    """Return a whole answer, after which the connection closes."""
    status = HTTPStatus(refusal.status)
    body = written(problem_of(refusal))
    headers = {
        "Content-Type": CONTENT_TYPE,
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers_of(refusal),
    }
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *map(": ".join, headers.items())]
    return "\r\n".join((*lines, "\r\n")).encode() + body
