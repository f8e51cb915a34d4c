"""The requests in the bytes of a connection: aiohttp's parser, and what it refuses.

llhttp reads heads and bodies. What it may hold of a head is bounded: 8,190 bytes of a line, 8,191
of a header, 128 headers. It stops at the first error, which is answered with what is wrong.
"""

import asyncio
import weakref
from collections.abc import Sequence
from typing import Final, final

from aiohttp import http_parser
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError, LineTooLong
from aiohttp.streams import EMPTY_PAYLOAD, StreamReader

from delayd import limits
from delayd.http import problems

_HEAD_END: Final = b"\r\n\r\n"

Message = tuple[http_parser.RawRequestMessage | HttpProcessingError, StreamReader]
"""A head, or the error in it; and its body."""


class NoCParser(Exception):
    """aiohttp lacks its C parser; the one in Python has allowed request smuggling."""

    def __init__(self) -> None:
        super().__init__(
            "aiohttp has no C parser here: install it from a wheel, and do not set"
            " AIOHTTP_NO_EXTENSIONS"
        )


def require_c_parser() -> None:
    """Make sure that requests are read by llhttp. Raises `NoCParser`."""
    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:
        raise NoCParser


class BodyBroken(Exception):
    """The body of a request differs from its headers; raised where it is read."""


@final
class RequestReader:
    """Reads the requests of one connection."""

    __slots__ = ("parser",)

    def __init__(self, connection: BaseProtocol, loop: asyncio.AbstractEventLoop) -> None:
        """Read for a connection, which is paused while nobody takes what has come of a body."""
        self.parser: Final = http_parser.HttpRequestParser(
            # No reference back to the connection: it is freed when it has closed, not later by the
            # garbage collector (`recover.py`).
            weakref.proxy(connection),
            loop,
            limits.HTTP_BODY_BUFFER_BYTES,
            max_line_size=limits.HTTP_LINE_BYTES_MAX,
            max_field_size=limits.HTTP_HEADER_BYTES_MAX,
            max_headers=limits.HTTP_HEADERS_MAX,
            payload_exception=BodyBroken,
            auto_decompress=False,
            max_msg_queue_size=limits.HTTP_ROW_MAX,
        )

    def read(self, data: bytes, steps_max: int) -> Sequence[Message]:
        """Return the requests whose heads end in these bytes; an error is the last.

        They are read in so many steps, a head in each, and then the rest in one.
        """
        end = data.find(_HEAD_END) + len(_HEAD_END)
        if end < len(_HEAD_END) or data.find(_HEAD_END, end) < 0:
            return self._parsed(data)
        # Several: at an error the parser would forget the requests before it.
        messages: list[Message] = []
        start = 0
        for left in range(max(0, steps_max), -1, -1):
            if end < len(_HEAD_END) or not left:
                end = len(data)
            messages += self._parsed(data[start:end])
            if messages and isinstance(error := messages[-1][0], HttpProcessingError):
                if len(messages) > 1:
                    break_off(messages[-2][1], error)
                break
            if end == len(data):
                break
            start, end = end, data.find(_HEAD_END, end) + len(_HEAD_END)
        return messages

    def _parsed(self, data: bytes) -> Sequence[Message]:
        """Return the requests that the parser finds in these bytes, or its error."""
        parser = self.parser
        try:
            messages, is_upgrade, rest = parser.feed_data(data)
            while is_upgrade:  # no call here upgrades to another protocol: the rest is HTTP
                parser.set_upgraded(False)
                more, is_upgrade, rest = parser.feed_data(rest)
                messages = [*messages, *more]
        except HttpProcessingError as error:
            return ((error, EMPTY_PAYLOAD),)
        except Exception:  # noqa: BLE001 (aiohttp lets out what yarl raises for some targets)
            return ((BadHttpMessage("the request cannot be read"), EMPTY_PAYLOAD),)
        return messages


def break_off(body: StreamReader, error: HttpProcessingError) -> None:
    """Raise an error where a body is read, if that has not ended before it."""
    if not body.is_eof():
        broken = BodyBroken(error.message)
        broken.__cause__ = error
        body.set_exception(broken)


# --- Refusals ------------------------------------------------------------------------------------


def refusal_of_body(broken: BodyBroken) -> problems.HttpRefusal:
    """Return the answer to a request whose body cannot be read."""
    if isinstance(broken.__cause__, HttpProcessingError):
        refusal = refusal_of(broken.__cause__)
        if isinstance(refusal, problems.HeaderTooLong):  # of the trailers
            return refusal
    text = f"the body is not what its headers say: {broken}"
    return problems.BadRequest(text.partition("\n")[0])


def refusal_of(error: HttpProcessingError) -> problems.HttpRefusal:
    """Return the answer to what the parser cannot read."""
    if isinstance(error, LineTooLong):
        if error.args[1] == limits.HTTP_LINE_BYTES_MAX:
            return problems.PathTooLong(
                f"the path is longer than {limits.HTTP_LINE_BYTES_MAX} bytes"
            )
        return problems.HeaderTooLong(
            f"a header is longer than {limits.HTTP_HEADER_BYTES_MAX} bytes"
        )
    if error.message == "Too many headers received":
        return problems.HeaderTooLong(f"there are more than {limits.HTTP_HEADERS_MAX} headers")
    text = error.message.partition("\n")[0].rstrip(":")
    if "`Transfer-Encoding`" in text:
        return problems.CodingUnknown()
    return problems.BadRequest(text)
