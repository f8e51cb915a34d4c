"""How much one client may have and how long it may take, and what is said to those who want more.

The module refuses to know how that is counted.
"""

import enum
from dataclasses import dataclass, fields
from http import HTTPStatus

import orjson

from delayd import limits
from delayd.core.errors import Refusal
from delayd.http.problems import CONTENT_TYPE, HttpRefusal, headers_of, problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How much and how long; `limits.py` says why."""

    connections_max: int = limits.CONNECTIONS_DEFAULT
    connections_per_ip_max: int = limits.HTTP_CONNECTIONS_PER_IP_DEFAULT
    strangers_per_ip_max: int = limits.HTTP_STRANGERS_PER_IP_DEFAULT
    header_ms: int = limits.HTTP_HEADER_MS_DEFAULT
    body_ms: int = limits.HTTP_BODY_MS_DEFAULT
    idle_ms: int = limits.HTTP_IDLE_MS_DEFAULT
    body_bytes_max: int = limits.HTTP_BODY_BYTES_DEFAULT
    held_bytes_max: int = limits.HTTP_HELD_BYTES_DEFAULT
    write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_DEFAULT


def bounds_of(config: object) -> Bounds:
    """Return what a configuration says: of `connections_max` its `http_connections_max`, and so on.

    It is not typed, since HTTP refuses to know the configuration of the whole daemon.
    """
    names = (field.name for field in fields(Bounds))
    return Bounds(**{name: getattr(config, f"http_{name}") for name in names})


class Deadline(enum.StrEnum):
    """What somebody took too long for."""

    HEADER = "header"
    BODY = "body"
    IDLE = "idle"
    ANSWER = "answer"


class PathTooLong(HttpRefusal):
    """The path is longer than this daemon reads."""

    word = "URI_TOO_LONG"
    status = 414


class HeaderTooLong(HttpRefusal):
    """A header is longer than this daemon reads, or there are too many of them."""

    word = "HEADER_TOO_LONG"
    status = 431


class OurFault(HttpRefusal):
    """A fault in the daemon."""

    word = "INTERNAL_ERROR"
    status = 500


def reply_of(refusal: Refusal) -> bytes:
    """Return a whole answer after which the connection closes."""
    status = HTTPStatus(type(refusal).status)
    body = orjson.dumps(problem_of(refusal))
    headers = {
        "Content-Type": CONTENT_TYPE,
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers_of(refusal),
    }
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *map(": ".join, headers.items())]
    return "\r\n".join((*lines, "\r\n")).encode() + body
