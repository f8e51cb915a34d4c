"""One client of HTTP: how long it may take, and how much of it may be held.

aiohttp speaks HTTP and lets a client be as slow as it likes. A `Connection` is its protocol with
deadlines:

    connected ─► head ─► body ─► carried out ─► answered ─► idle ─► head ─► ...
                 10 s    1 KiB/s     │          1 KiB/s     75 s
                         60 s        └ may take what it takes

Who takes longer is answered 408 where that can still be understood, and closed. What aiohttp keeps
for a connection is bounded by its parser: 8,190 bytes of a line, 128 headers, 32 requests in a row,
half a MiB of a body that nobody reads. A client is sent one answer at a time, so what waits for it
is one answer at most. The bytes of all requests that have been read and not been answered are
counted together, by the `HttpConnectionLimits`; when they are too many, those who send much are
answered 503.

A request costs less than 1 µs here: its times are noted, and looked at by `DeadlineTimer`.

The module refuses to know what is asked and answered.
"""

import asyncio
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from aiohttp import http_parser, web, web_protocol
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.streams import StreamReader

from delayd import limits
from delayd.http.bounds import Deadline, HeaderTooLong, OurFault, PathTooLong, Refused
from delayd.http.problems import BadRequest, HttpRefusal
from delayd.http.responses import refused

if TYPE_CHECKING:
    from delayd.http.connection_limits import HttpConnectionLimits

_NEVER_MS: Final = -1


class NoCParser(Exception):
    """aiohttp is there without its C parser; the one in Python has let requests be smuggled in."""

    def __init__(self) -> None:
        """Say what to do."""
        super().__init__(
            "aiohttp has no C parser here: install it from a wheel, and do not set"
            " AIOHTTP_NO_EXTENSIONS"
        )


def require_c_parser() -> None:
    """Make sure that requests are read by llhttp. Raises `NoCParser`."""
    if http_parser.HttpRequestParser.__module__ != "aiohttp._http_parser":
        raise NoCParser


PARSING: Final[dict[str, Any]] = {
    "keepalive_timeout": 0,
    "tcp_keepalive": False,
    "access_log": None,
    "max_line_size": limits.HTTP_LINE_BYTES_MAX,
    "max_field_size": limits.HTTP_HEADER_BYTES_MAX,
    "max_headers": limits.HTTP_HEADERS_MAX,
    "auto_decompress": False,
}
"""What aiohttp is told for each connection."""


class Connection(web_protocol.RequestHandler):
    """aiohttp's side of one client, with deadlines."""

    __slots__ = (
        "_answered_bytes",
        "_body",
        "_body_bytes",
        "_body_ms",
        "_guard",
        "_head_ms",
        "_held_bytes",
        "_idle_ms",
        "_is_spent",
        "_requests",
        "_untaken",
        "_wire",
        "look_s",
        "origin",
        "stranger",
    )

    def __init__(
        self, guard: "HttpConnectionLimits", server: web.Server, origin: str | None
    ) -> None:
        """Wait for a client from there; only `HttpConnectionLimits.admit` makes connections."""
        super().__init__(server, loop=guard.loop, **PARSING)
        # aiohttp sets no timer for the keep-alive while it has one.
        self._keepalive_handle = guard.no_timer
        self._guard = guard
        self.origin = origin
        """Where it comes from; None: from here, where nobody is counted."""
        self.stranger = False
        """It has not shown a token, and has to."""
        self.look_s = 0
        self._wire: asyncio.Transport | None = None
        """The transport, also when aiohttp has let go of it and it still sends."""
        self._requests = 0
        """Requests whose head is known; `_request_count` as it was when last looked at."""
        self._held_bytes = 0
        self._head_ms = _NEVER_MS
        """Since when the next request's head comes; never: nothing of it has come."""
        self._idle_ms = 0
        """When the last answer was sent."""
        self._body: StreamReader | None = None
        """The body that comes."""
        self._body_ms = 0
        self._body_bytes = 0
        """Since when it counts, and what had come by then."""
        self._is_spent = False
        """The request has been answered without its body, which is thrown away as it comes."""
        self._answered_bytes = 0
        self._untaken: tuple[int, int, int] | None = None
        """Since when answers wait, how much waited, and `_answered_bytes` then."""

    def has_shown_token(self) -> None:
        """Count no longer among those who have not."""
        if self.stranger:
            self._guard.recognize(self)

    # --- What asyncio calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the first head has its time from now."""
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        transport.set_write_buffer_limits(self._guard.pause_bytes)
        super().connection_made(transport)
        self._head_ms = now_ms = self._guard.now_ms()
        self._guard.rounds.watch(self, now_ms + self._guard.bounds.header_ms)

    def data_received(self, data: bytes) -> None:
        """Take in what has come; note whether a head or a body is to follow."""
        if self._force_close or self._close:
            return
        guard = self._guard
        if not self._is_spent:
            size = len(data)
            self._held_bytes += size
            guard.held_bytes += size
        super().data_received(data)
        if self._requests != self._request_count:
            self._requests = self._request_count
            self._head_ms = _NEVER_MS
            if self._messages:
                self._note_request(*self._messages[-1])
        elif self._body is not None:
            if self._body.is_eof():
                self._body = None
                self._is_spent = False
        elif data and self._head_ms < 0:
            self._head_ms = now_ms = guard.now_ms()
            guard.rounds.watch(self, now_ms + guard.bounds.header_ms)
        if guard.held_bytes > guard.held_bytes_max:
            self._hold_no_more()

    def _note_request(self, message: object, body: StreamReader) -> None:
        """Note the last request that has come, of which the body may be missing."""
        if self._body is not None and isinstance(message, web_protocol._ErrInfo):  # noqa: SLF001
            # aiohttp tells the next request what is wrong with this one's body, which waits for
            # more of it and has nobody left to hear from.
            self._body.set_exception(web_protocol.RequestPayloadError(message.message))
        self._is_spent = False
        if body.is_eof():
            self._body = None
            return
        self._body = body
        self._body_ms = now_ms = self._guard.now_ms()
        self._body_bytes = 0
        self._guard.rounds.watch(self, now_ms + self._guard.body_grace_ms)

    def _hold_no_more(self) -> None:
        """Refuse the request that is one too many, unless it is a small one."""
        if self._held_bytes > limits.HTTP_SMALL_BYTES:
            self._guard.refused[Refused.HELD_BYTES] += 1
            self._cut(self._guard.replies[Refused.HELD_BYTES])

    def pause_writing(self) -> None:
        """Give the client some time to take what waits for it."""
        super().pause_writing()
        if self._wire is not None and self._untaken is None:
            now_ms = self._guard.now_ms()
            self._guard.rounds.watch(self, self._await_taking(now_ms))

    def connection_lost(self, exc: BaseException | None) -> None:
        """Be gone; who still answers is cancelled."""
        self._guard.forget(self)
        self._wire = None
        super().connection_lost(exc)

    # --- What aiohttp calls ----------------------------------------------------------------------

    def log_access(
        self,
        request: web.BaseRequest,
        response: web.StreamResponse,  # noqa: ARG002 (aiohttp's signature)
        time: float | None,  # noqa: ARG002
    ) -> None:
        """Note that a request has been answered; aiohttp would log it here."""
        guard = self._guard
        if self._body is not None and request.content is self._body and not self._body.is_eof():
            self._is_spent = True
        # Of what came in a row each has an equal share: exactly so in the end.
        has_body = self._body is not None and not self._is_spent
        behind = len(self._messages) + has_body + (self._head_ms >= 0)
        released = self._held_bytes // (behind + 1)
        self._held_bytes -= released
        guard.held_bytes -= released
        self._answered_bytes += request.writer.output_size
        self._idle_ms = now_ms = guard.now_ms()
        if self._head_ms >= 0:
            self._head_ms = now_ms

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 (aiohttp's signature)
    ) -> web.StreamResponse:
        """Return what is answered where no handler has answered, and close afterwards."""
        if exc is None and status != HTTPStatus.BAD_REQUEST:
            exc = TimeoutError("a handler of a request has timed out")
        if self.transport is None or request.writer.output_size > 0:
            self._note_fault(exc)
            raise ConnectionResetError("nobody can be answered any more")
        refusal = self._refusal_for(exc)
        if isinstance(refusal, OurFault):
            self._note_fault(exc)
        answer = refused(refusal)
        answer.force_close()
        return answer

    def log_exception(self, *_args: object, **fields: object) -> None:
        """Tell of a fault of ours; aiohttp would log it and go on."""
        self._note_fault(fields.get("exc_info"))

    def _note_fault(self, fault: object) -> None:
        if not isinstance(fault, ConnectionError | web_protocol.RequestPayloadError | None):
            assert isinstance(fault, BaseException)
            self._guard.on_fault(fault)

    @staticmethod
    def _refusal_for(exc: BaseException | None) -> HttpRefusal:
        """Say in our words what the parser complains of."""
        if isinstance(exc, LineTooLong):
            if exc.args[1] == limits.HTTP_LINE_BYTES_MAX:
                return PathTooLong(f"the path is longer than {limits.HTTP_LINE_BYTES_MAX} bytes")
            return HeaderTooLong(f"a header is longer than {limits.HTTP_HEADER_BYTES_MAX} bytes")
        if isinstance(exc, HttpProcessingError):
            if exc.message == "Too many headers received":
                return HeaderTooLong(f"there are more than {limits.HTTP_HEADERS_MAX} headers")
            return BadRequest(exc.message.partition("\n")[0].rstrip(":"))
        if isinstance(exc, web_protocol.RequestPayloadError):
            return BadRequest(f"the body is not what its headers say: {exc}".partition("\n")[0])
        return OurFault("something went wrong in the daemon; its log says what")

    # --- Deadlines -------------------------------------------------------------------------------

    def look(self, now_ms: int) -> int:
        """Close the connection if a deadline has passed; return when to look next, 0 for never."""
        if self._wire is None:
            return 0
        waiting_bytes = self._wire.get_write_buffer_size()
        if waiting_bytes:
            return self._look_at_answer(now_ms, waiting_bytes)
        self._untaken = None
        if self._body is not None and self._body.is_eof():
            self._body = None
            self._is_spent = False
        bounds = self._guard.bounds
        if self._body is not None:
            due_ms = self._body_due_ms(now_ms, self._body)
            deadline = Deadline.BODY
        elif self._waiter is None or self._messages:
            return now_ms + limits.HTTP_LOOK_MS
        elif self._head_ms >= 0:
            due_ms = self._head_ms + bounds.header_ms
            deadline = Deadline.HEADER
        else:
            due_ms = self._idle_ms + bounds.idle_ms
            deadline = Deadline.IDLE
        if now_ms < due_ms:
            return due_ms
        # Who has not said anything has asked for nothing, and would take it for the next answer.
        self._close_for(deadline, self._guard.too_slow if self._held_bytes else b"")
        return self._look_after_closing(now_ms)

    def _body_due_ms(self, now_ms: int, body: StreamReader) -> int:
        """Return when the body is too late, as much of it as has come."""
        if self._reading_paused or self._buffer_paused:
            # It is we who do not read.
            self._body_ms = now_ms
            self._body_bytes = body.total_bytes
        came_bytes = body.total_bytes - self._body_bytes
        allowed_ms = came_bytes * 1_000 // limits.HTTP_BYTES_PER_S_MIN
        guard = self._guard
        return self._body_ms + min(max(allowed_ms, guard.body_grace_ms), guard.bounds.body_ms)

    def _look_at_answer(self, now_ms: int, waiting_bytes: int) -> int:
        """Close a client that does not take its answers."""
        if self._untaken is None:
            return self._await_taking(now_ms)
        since_ms, then_bytes, answered_bytes = self._untaken
        if now_ms < since_ms + limits.HTTP_TAKE_MS:
            return since_ms + limits.HTTP_TAKE_MS
        taken_bytes = then_bytes - waiting_bytes + self._answered_bytes - answered_bytes
        enough_bytes = limits.HTTP_TAKE_MS // 1_000 * limits.HTTP_BYTES_PER_S_MIN
        if taken_bytes < enough_bytes or waiting_bytes > self._guard.bounds.write_buffer_bytes_max:
            self._close_for(Deadline.ANSWER, b"")
            return 0
        return self._await_taking(now_ms)

    def _await_taking(self, now_ms: int) -> int:
        """Note how much waits now; return when some of it has to be taken."""
        assert self._wire is not None, "a connection that is gone is not looked at"
        self._untaken = (now_ms, self._wire.get_write_buffer_size(), self._answered_bytes)
        return now_ms + limits.HTTP_TAKE_MS

    def _look_after_closing(self, now_ms: int) -> int:
        return 0 if self._wire is None else now_ms + limits.HTTP_LOOK_MS

    def _close_for(self, deadline: Deadline, reply: bytes) -> None:
        self._guard.closed[deadline] += 1
        self._guard.note(f"SLOW_{deadline.name}")
        self._cut(reply)

    def _cut(self, reply: bytes) -> None:
        """Close, with a reply if there is one and nothing else was being said."""
        wire = self._wire
        assert wire is not None, "a connection that is gone is not cut"
        current = self._current_request
        is_of_this = current is None or (
            current.content is self._body and current.writer.output_size == 0
        )
        if reply and is_of_this and not wire.is_closing():
            wire.write(reply)
            wire.close()
        else:
            wire.abort()
        # Not by aiohttp's own `force_close`, which lets go of the transport at once: a handler that
        # reads on before the connection is lost would be told RuntimeError, as for a fault of ours.
        self._force_close = True
        if self._waiter is not None:
            self._waiter.cancel()
        if current is None and self._task_handler is not None:
            # A request that has come and not been begun is not begun.
            self._messages.clear()
            self._task_handler.cancel()
