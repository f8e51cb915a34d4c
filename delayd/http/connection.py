"""One connection of HTTP: its requests in order, its deadlines, and the bytes it may hold.

`http.request_reader` reads heads and bodies. Everything else of a connection is here: requests are
answered one after the other, and each part has a deadline:

    connected ─► head ─► body ─► handled ─► answered ─► idle ─► head ─► ...
                 10 s    1 KiB/s   │         1 KiB/s    75 s
                         60 s      └ no limit

A client that takes longer is answered 408 where it can still read that, and closed. Buffers of a
connection are bounded: a head, 32 requests in a row, half a MiB of a body that no handler reads,
and one answer, since answers are sent one at a time. The bytes of all unanswered requests are
counted together (`http.connections`); when they are too many, clients that send much are answered
503.

Deadlines cost a request less than 1 µs: its times are noted, and checked by `net.deadlines`.

The module does not know calls and their answers, and of other connections only `Shared`. Of aiohttp
it uses the streams that its parser fills with bodies, and the base class of its protocols, by their
public names.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator
from functools import partial
from typing import Any, Final, Protocol

from aiohttp import hdrs, http_parser
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

from delayd import limits
from delayd.access.connection_limits import ConnectionLimits, Peer, Rejection
from delayd.http import problems
from delayd.http.bounds import Bounds
from delayd.http.request_reader import (
    BodyBroken,
    Message,
    RequestReader,
    break_off,
    refusal_of,
    refusal_of_body,
)
from delayd.http.responses import HTTP_1_1, Reply, refused
from delayd.net.deadlines import Deadlines, body_ms_max
from delayd.net.peers import hears_nothing

# --- Carrying on ---------------------------------------------------------------------------------


class BegunCoroutine(Coroutine[Any, Any, None]):
    """A coroutine that has been carried out up to its first wait, for a task to go on with.

    `asyncio` starts each task in the next pass of its loop; eager tasks came with Python 3.12.
    """

    __slots__ = ("_coroutine", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], waits_for: object) -> None:
        """`waits_for` is what it has yielded."""
        self._coroutine = coroutine
        self._waits_for = [waits_for]

    def send(self, value: object) -> object:
        """Go on, the first time with the wait that has begun."""
        return self._waits_for.pop() if self._waits_for else self._coroutine.send(value)

    def throw(self, *error: Any) -> object:  # noqa: ANN401 (as a coroutine's)
        """Raise an error where it waits."""
        self._waits_for.clear()
        try:
            return self._coroutine.throw(*error)
        finally:
            del error  # it leads to this frame, which must not lead back to it

    def close(self) -> None:
        """End it where it waits."""
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        """Only tasks go on with it."""
        raise NotImplementedError


# --- The connection ------------------------------------------------------------------------------

_NEVER_MS: Final = -1
_READING: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})
"""The methods of requests that change nothing."""
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGone(ConnectionResetError):
    """The client has disconnected."""


class AnswerTurns(Protocol):
    """The turns, which make durable what answers tell."""

    def reply_when_durable(self, client: "HttpConnection", data: bytes) -> None:
        """Send a client an answer when all that was done so far is durable."""

    def when_durable(self, callback: Callable[[], object]) -> None:
        """Call back then."""

    def wake_loop(self) -> None:
        """Let the event loop go on: a turn has given it something to do."""


class Shared(Protocol):
    """The state that all connections of a server share."""

    loop: asyncio.AbstractEventLoop
    turns: AnswerTurns
    bounds: Bounds
    now_ms: Callable[[], int]
    deadlines: "Deadlines[HttpConnection]"
    held_bytes: int
    """Bytes of requests that have not been answered."""
    held_bytes_max: int
    body_grace_ms: int
    pause_bytes: int
    replies: dict[Rejection, bytes]
    too_slow: bytes
    handle: Callable[["HttpRequest"], Awaitable[Reply]]
    on_fault: Callable[[BaseException], object]
    note: Callable[[str], object]
    admission: ConnectionLimits

    async def next_piece(self, pieces: Iterator[bytes]) -> bytes | None:
        """Return the next piece of an answer, None at its end: one between two turns, of all."""

    def forget(self, connection: "HttpConnection") -> None:
        """Stop counting a connection."""


class HttpRequest:
    """One request, whose head has arrived; its body may still be arriving."""

    __slots__ = (
        *("_url", "body", "connection", "headers", "keep_alive"),
        *("method", "sent_bytes", "target", "version"),
    )

    def __init__(
        self,
        message: http_parser.RawRequestMessage,
        body: StreamReader,
        connection: "HttpConnection",
    ) -> None:
        self.method = message.method
        self.target = message.path
        """Path and query, as sent."""
        self.version = message.version
        self.headers = message.headers
        self.keep_alive = not message.should_close
        self.body = body
        self.connection = connection
        self.sent_bytes = 0
        """Of the answer."""
        self._url = message.url

    @property
    def query(self) -> list[tuple[str, str]]:
        """The names and values after the `?`."""
        return [*self._url.query.items()]

    @property
    def transport(self) -> asyncio.Transport | None:
        """The connection of the request; None: its client has disconnected."""
        return self.connection.transport

    @property
    def remote(self) -> str:
        """The address of the client; empty: it has none, or has disconnected."""
        transport = self.transport
        peer = None if transport is None else transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else str(peer or "")


class HttpConnection(BaseProtocol):
    """One client: reads its requests, has them answered, and watches its deadlines."""

    __slots__ = (
        *("_body", "_body_bytes", "_body_ms", "_current", "_drained", "_has_full_body"),
        *("_has_full_row", "_has_last_body", "_head_ms", "_idle_ms", "_is_over", "_is_spent"),
        *("_held", "_reader", "_row", "_sent_bytes", "_shared", "_untaken"),
        *("ends_half_closed", "held_bytes", "is_answering", "is_half_closed"),
        *("__weakref__", "look_s", "peer", "task"),
    )

    def __init__(self, shared: Shared, peer: Peer) -> None:
        """Only `http.connections` makes connections, of a peer that it has admitted."""
        self._reader = RequestReader(self, shared.loop)
        super().__init__(shared.loop, self._reader.parser)
        self._shared = shared
        self.peer = peer
        self.look_s = 0
        self.held_bytes = 0
        """Bytes of its requests that have not been answered."""
        self.is_answering = False
        """A request is being answered, or its answer waits for the log."""
        self.task: asyncio.Task[None] | None = None
        """Answers the requests; None: none has to wait for anything but the log."""
        self._held: Reply | None = None
        """The answer to the current request, which waits for the log."""
        self._row: deque[Message] = deque()
        """Requests that have arrived and are not begun."""
        self._current: HttpRequest | None = None
        """The request that is being handled."""
        self._is_over = False
        """Nothing more is read; the connection closes when the current request is answered."""
        self._has_last_body = False
        """Only the rest of the current request's body is still read: the daemon stops."""
        self.is_half_closed = False
        """The client sends no more, or has gone."""
        self.ends_half_closed = False
        """The current request ends when the client sends no more."""
        self._has_full_row = False
        self._has_full_body = False
        """Nothing is read until a handler has read some of the body."""
        self._drained: asyncio.Future[None] | None = None
        """Done when enough of an answer was taken; None: nothing waits for that."""
        self._head_ms = _NEVER_MS
        """When the first byte of the next head arrived; `_NEVER_MS`: none has."""
        self._idle_ms = 0
        """When the last answer was sent."""
        self._body: StreamReader | None = None
        """The body that is arriving."""
        self._body_ms = 0
        self._body_bytes = 0
        """Since when its speed counts, and how much had arrived by then."""
        self._is_spent = False
        """The request has been answered without its body, which is discarded as it arrives."""
        self._sent_bytes = 0
        self._untaken: tuple[int, int, int] | None = None
        """Since when answers wait, how many bytes waited then, and `_sent_bytes` then."""

    def has_shown_token(self) -> None:
        """Count it no longer as unauthenticated."""
        self._shared.admission.authenticated(self.peer)

    # --- Called by asyncio -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin: the deadline of the first head counts from now."""
        assert isinstance(transport, asyncio.Transport)
        transport.set_write_buffer_limits(self._shared.pause_bytes)
        super().connection_made(transport)
        self._head_ms = now_ms = self._shared.now_ms()
        self._shared.deadlines.watch(self, now_ms + self._shared.bounds.header_ms)

    def data_received(self, data: bytes) -> None:
        """Parse bytes; note whether a head or a body is incomplete."""
        if self._is_over:
            if self._has_last_body:
                self._read_last_body(data)
            return
        shared = self._shared
        if not self._is_spent:
            size = len(data)
            self.held_bytes += size
            shared.held_bytes += size
        messages = self._reader.read(data, limits.HTTP_ROW_MAX - len(self._row))
        if messages:
            self._head_ms = _NEVER_MS
            self._row += messages
            self._note_last(*messages[-1])
            if len(self._row) >= limits.HTTP_ROW_MAX and not self._has_full_row:
                self._has_full_row = True
                self._read_no_more()
                shared.deadlines.watch(self, shared.now_ms() + limits.HTTP_GONE_LOOK_MS)
        elif self._body is not None:
            if self._body.is_eof():
                self._body = None
                self._is_spent = False
        elif data and self._head_ms < 0:
            self._head_ms = now_ms = shared.now_ms()
            shared.deadlines.watch(self, now_ms + shared.bounds.header_ms)
        if shared.held_bytes > shared.held_bytes_max and self.held_bytes > limits.HTTP_SMALL_BYTES:
            shared.note(Rejection.HELD_BYTES.name)
            self._cut(shared.replies[Rejection.HELD_BYTES])
        if self._row and not self.is_answering:
            self._begin()

    def _read_last_body(self, data: bytes) -> None:
        """Parse more of the last body; all bytes after it are dropped."""
        body = self._body
        if body is None or body.is_eof():
            return
        self.held_bytes += len(data)
        self._shared.held_bytes += len(data)
        for message, _ in self._reader.read(data, limits.HTTP_ROW_MAX):
            if isinstance(message, HttpProcessingError):
                break_off(body, message)
        if body.is_eof():
            self._body = None

    def _note_last(self, message: object, body: StreamReader) -> None:
        """Note the last request that has arrived; its body may be incomplete."""
        if isinstance(message, HttpProcessingError):
            self._is_over = True
            if self._body is not None:
                # The error is inside the body of the previous request, whose handler waits.
                break_off(self._body, message)
        self._is_spent = False
        if body.is_eof():
            self._body = None
            return
        self._body = body
        self._body_ms = now_ms = self._shared.now_ms()
        self._body_bytes = 0
        self._shared.deadlines.watch(self, now_ms + self._shared.body_grace_ms)

    def pause_writing(self) -> None:
        """Start the deadline for the client to read its buffered answers."""
        super().pause_writing()
        if self._untaken is None:
            now_ms = self._shared.now_ms()
            self._shared.deadlines.watch(self, self._await_taking(now_ms))

    def resume_writing(self) -> None:
        """Continue the answer: the client has taken enough of it."""
        super().resume_writing()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def eof_received(self) -> bool:
        """Answer the complete requests of a client that sends no more; tell whether there are any.

        A client that is gone cannot be told apart. So a reserve ends here, whose jobs would be lost
        until their ttr runs out, and work that takes long, which nobody else could stop. An answer
        that is being sent goes on: a client that is gone shows when more is written.
        """
        self._is_over = self.is_half_closed = True
        if not self.is_answering:
            return False
        current = self._current
        has_begun = current is not None and current.sent_bytes > 0
        if self._body is not None or (self.ends_half_closed and not has_begun):
            return False
        transport = self.transport
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            return False
        if current is not None and self._is_in_vain(current.method):
            return False
        shared = self._shared
        shared.deadlines.watch(self, shared.now_ms() + limits.HTTP_GONE_LOOK_MS)
        return True

    def _is_in_vain(self, method: str) -> bool:
        """Tell whether a request only reads, and its client is gone.

        While the connection is read from, the system reports that the client is gone.
        """
        if not (self.is_half_closed or self._has_full_row) or method not in _READING:
            return False
        sock = None if self.transport is None else self.transport.get_extra_info("socket")
        return sock is not None and hears_nothing(sock)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection, and cancel its current request."""
        self._shared.forget(self)
        super().connection_lost(exc)
        self._is_over = True
        self._row.clear()
        if self.task is not None:
            self.task.cancel()
        elif self.is_answering:  # it is not sent any more
            self._held = self._current = None
            self.is_answering = False

    # --- Called by the streams of bodies ---------------------------------------------------------

    def pause_reading(self) -> None:
        """Stop reading: no handler reads the buffered part of the body."""
        self._has_full_body = True
        super().pause_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:  # noqa: FBT001, FBT002 (aiohttp's)
        """Read on, if reading waited for this; called for each piece that is taken."""
        if self._has_full_body:
            self._has_full_body = False
            super().resume_reading(resume_parser)
            if self._has_full_row:
                self._read_no_more()

    def _read_no_more(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def _take_row_on(self) -> None:
        """Read on when the row is short again, first what the parser has kept back."""
        self._reader.parser.message_consumed()
        if self._has_full_row and len(self._row) <= limits.HTTP_ROW_MAX // 2:
            self.data_received(b"")
            if len(self._row) < limits.HTTP_ROW_MAX:
                self._has_full_row = False
                if self.transport is not None and not self._has_full_body:
                    self.transport.resume_reading()

    # --- Answering -------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Answer the requests of the row; with a task from where one has to wait.

        Most wait for nothing but the log, and need no pass of the event loop: a quarter of a put.
        Until then there is no current task, which timeouts of asyncio need.
        """
        self.is_answering = True
        answering = self._serve()
        try:
            waits_for = answering.send(None)
        except StopIteration:
            return
        self.task = self._shared.loop.create_task(BegunCoroutine(answering, waits_for))

    async def _serve(self) -> None:
        """Answer the requests of the row in order; close after the last one that may come.

        It ends at an answer that waits for the log: `send` goes on.
        """
        try:
            if self.writing_paused and self.transport is not None:
                await self._written(self.transport)
            while self._row and self._held is None:
                message, body = self._row.popleft()
                if not isinstance(message, HttpProcessingError) and self._is_in_vain(
                    message.method
                ):
                    raise ClientGone
                self._take_row_on()
                if not await self._serve_one(message, body):
                    self._is_over = True
                    self._row.clear()
        except ConnectionError:
            self._is_over = True  # the client has gone
        except Exception as fault:  # noqa: BLE001 (of any kind: the answer cannot be sent)
            self._is_over = True
            self._shared.on_fault(fault)
        finally:
            self.task = None
            if self._held is None:
                self._current = None
                self.is_answering = False
        if self._is_over and not self.is_answering and self.transport is not None:
            self.transport.close()

    async def _serve_one(
        self, message: http_parser.RawRequestMessage | HttpProcessingError, body: StreamReader
    ) -> bool:
        """Answer a request; tell whether the connection stays open for more."""
        if isinstance(message, HttpProcessingError):
            reply = refused(refusal_of(message))
            await self._write(reply.head(closes=True) + reply.body)
            return False
        request = self._current = HttpRequest(message, body, self)
        reply = await self._carried_out(request)
        if reply.waits_for_log:
            if self._may_hold(request):
                self._hold(reply, request)
                return True
            await self._durable()
        reply.count()
        if not reply.is_sent:
            await self._send(reply, request)
        self._note_answer(request)
        self._current = None
        return await self._discarded(request.body) and request.keep_alive

    def _may_hold(self, request: HttpRequest) -> bool:
        """Tell whether a turn may send the answer: nothing has to be waited for after it."""
        transport = self.transport
        return (
            transport is not None
            and transport.get_extra_info("ssl_object") is None
            and request.body.is_eof()
        )

    def _hold(self, reply: Reply, request: HttpRequest) -> None:
        """Have a turn send the answer when all that was done so far is durable."""
        self._held = reply
        self._shared.turns.reply_when_durable(self, _bytes_of(reply, request))

    def send(self, data: bytes) -> None:
        """Send the answer that has waited for the log; called in a turn."""
        reply, request, transport = self._held, self._current, self.transport
        if reply is None or request is None:
            return  # the client has gone
        assert transport is not None, "a connection that is gone holds no answer"
        self._held = self._current = None
        reply.count()
        if not transport.is_closing():
            self._sent_bytes += len(data)
            transport.write(data)
            self._note_answer(request)
        if transport.is_closing() or not request.keep_alive:
            self._is_over = True
            self._row.clear()
        if self._row or self._is_over or self.writing_paused or transport.is_closing():
            self.task = self._shared.loop.create_task(self._serve())
            self._shared.turns.wake_loop()
        else:
            self.is_answering = False

    async def _durable(self) -> None:
        """Wait until all that was done so far is durable."""
        durable = self._shared.loop.create_future()
        self._shared.turns.when_durable(partial(_complete, durable))
        await durable

    async def _carried_out(self, request: HttpRequest) -> Reply:
        """Return the handler's answer; if it fails, a problem, and close after it."""
        try:
            return await self._shared.handle(request)
        except BodyBroken as error:
            refusal: problems.HttpRefusal = refusal_of_body(error)
        except ConnectionError:
            raise
        except Exception as fault:
            self._shared.on_fault(fault)
            if request.sent_bytes:
                raise ConnectionResetError("the answer cannot be ended") from fault
            refusal = problems.OurFault("something went wrong in the daemon; its log says what")
        request.keep_alive = False
        return refused(refusal)

    async def _send(self, reply: Reply, request: HttpRequest) -> None:
        """Send an answer, and wait while the client takes none of it; `ConnectionError`."""
        reply.is_sent = True
        if reply.pieces is not None:
            await self._send_pieces(reply, reply.pieces, request)
            return
        await self._write(_bytes_of(reply, request), request)

    async def deliver(self, reply: Reply, request: HttpRequest) -> None:
        """Send an answer, and wait until the kernel has taken all of it; `ConnectionError`.

        If it is cancelled, the client has gone before all of it was sent. With TLS up to two pieces
        may wait in asyncio, which cannot be seen.
        """
        transport = self.transport
        if transport is None or transport.get_extra_info("ssl_object") is not None:
            await self._send(reply, request)
            return
        transport.set_write_buffer_limits(0)
        await self._send(reply, request)
        transport.set_write_buffer_limits(self._shared.pause_bytes)

    async def _send_pieces(
        self, reply: Reply, pieces: Iterable[bytes], request: HttpRequest
    ) -> None:
        """Send an answer in chunks; to HTTP/1.0, its end is that of the connection."""
        has_body, version = request.method != hdrs.METH_HEAD, request.version
        is_chunked = has_body and version >= HTTP_1_1
        request.keep_alive &= is_chunked or not has_body
        closes = not request.keep_alive
        head = reply.head_of_pieces(closes=closes, version=version, is_chunked=is_chunked)
        await self._write(head, request)
        left = iter(pieces if has_body else ())
        while (piece := await self._shared.next_piece(left)) is not None:
            if piece:
                data = b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece
                await self._write(data, request)
        if is_chunked:
            await self._write(b"0\r\n\r\n", request)

    async def _write(self, data: bytes, request: HttpRequest | None = None) -> None:
        """Write, and wait while the client takes nothing; `ClientGone`."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ClientGone
        self._sent_bytes += len(data)
        if request is not None:
            request.sent_bytes += len(data)
        if transport.get_extra_info("ssl_object") is None:
            transport.write(data)
            await self._written(transport)
            return
        # asyncio's TLS buffers everything at once, and notices that the client takes nothing, or is
        # gone, only at the next piece or in the next round of the loop.
        for start in range(0, len(data), limits.HTTP_REPLY_PAUSE_BYTES):
            transport.write(data[start : start + limits.HTTP_REPLY_PAUSE_BYTES])
            await asyncio.sleep(0)
            await self._written(transport)

    async def _written(self, transport: asyncio.Transport) -> None:
        """Wait while the client takes none of the written bytes; `ClientGone`."""
        if transport.is_closing():
            raise ClientGone
        if self.writing_paused:
            self._drained = self._shared.loop.create_future()
            await self._drained
            self._drained = None

    def ask_for_body(self) -> None:
        """Send 100 Continue to a client that waits for it before its body."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(_CONTINUE)

    async def _discarded(self, body: StreamReader) -> bool:
        """Discard the rest of a body; tell whether its end came in time."""
        if body.is_eof():
            return True
        await asyncio.sleep(0)  # from here on it is in a task, which the timeout needs
        try:
            async with asyncio.timeout(self._shared.body_grace_ms / 1_000):
                while not body.is_eof():
                    await body.readany()
        except (TimeoutError, BodyBroken):
            return False
        return True

    def _note_answer(self, request: HttpRequest) -> None:
        shared = self._shared
        if self._body is not None and request.body is self._body and not self._body.is_eof():
            self._is_spent = True
        # Each request of the row counts for an equal share; the sum is exact in the end.
        has_body = self._body is not None and not self._is_spent
        others = len(self._row) + has_body + (self._head_ms >= 0)
        released = self.held_bytes // (others + 1)
        self.held_bytes -= released
        shared.held_bytes -= released
        self._idle_ms = now_ms = shared.now_ms()
        if self._head_ms >= 0:
            self._head_ms = now_ms

    def finish(self) -> asyncio.Task[None] | None:
        """Close after the current request, and read no other; return the task that answers it."""
        self._is_over = True
        self._has_last_body = not self._row
        self._row.clear()
        if not self.is_answering and self.transport is not None:
            self.transport.close()
        return self.task

    @property
    def has_unsent(self) -> bool:
        """Whether some of its answers waits for the client to take it."""
        return self.transport is not None and self.transport.get_write_buffer_size() > 0

    # --- Deadlines -------------------------------------------------------------------------------

    def expire(self, now_ms: int) -> int:
        """Close the connection if a deadline has passed; return when the next may, 0 for never."""
        if self.transport is None:
            return 0
        waiting_bytes = self.transport.get_write_buffer_size()
        if waiting_bytes:
            return self._check_answer(now_ms, waiting_bytes)
        if self._untaken is not None:
            self._untaken = None
            self._idle_ms = now_ms  # it has read until now
        if self._body is not None and self._body.is_eof():
            self._body = None
            self._is_spent = False
        bounds = self._shared.bounds
        if self._body is not None:
            due_ms = self._body_due_ms(now_ms, self._body)
            word = "SLOW_BODY"
        elif self.is_answering:
            return self._check_handled(now_ms)
        elif self._head_ms >= 0:
            due_ms = self._head_ms + bounds.header_ms
            word = "SLOW_HEADER"
        else:
            due_ms = self._idle_ms + bounds.idle_ms
            word = "SLOW_IDLE"
        if now_ms < due_ms:
            return due_ms
        # A client that has sent nothing would take a reply for the next answer.
        self._close_for(word, self._shared.too_slow if self.held_bytes else b"")
        return now_ms + limits.HTTP_LOOK_MS

    def _check_handled(self, now_ms: int) -> int:
        """End a request that only reads, whose client is gone."""
        if self._current is not None and self._is_in_vain(self._current.method):
            assert self.transport is not None, "a connection that is gone is not looked at"
            self.transport.abort()
            return 0
        is_read = not (self.is_half_closed or self._has_full_row)
        return now_ms + (limits.HTTP_LOOK_MS if is_read else limits.HTTP_GONE_LOOK_MS)

    def _body_due_ms(self, now_ms: int, body: StreamReader) -> int:
        """Return when the body is too late, by how much of it has arrived."""
        if self._has_full_body or self._has_full_row:
            # The daemon itself does not read: the client is not to blame.
            self._body_ms = now_ms
            self._body_bytes = body.total_bytes
        came_bytes = body.total_bytes - self._body_bytes
        shared = self._shared
        return self._body_ms + body_ms_max(
            came_bytes, grace_ms=shared.body_grace_ms, in_all_ms=shared.bounds.body_ms
        )

    def _check_answer(self, now_ms: int, waiting_bytes: int) -> int:
        if self._untaken is None:
            return self._await_taking(now_ms)
        since_ms, then_bytes, sent_bytes = self._untaken
        if now_ms < since_ms + limits.HTTP_TAKE_MS:
            return since_ms + limits.HTTP_TAKE_MS
        taken_bytes = then_bytes - waiting_bytes + self._sent_bytes - sent_bytes
        enough_bytes = limits.HTTP_TAKE_MS // 1_000 * limits.BYTES_PER_S_MIN
        if taken_bytes < enough_bytes or waiting_bytes > self._shared.bounds.write_buffer_bytes_max:
            self._close_for("SLOW_ANSWER", b"")
            return 0
        return self._await_taking(now_ms)

    def _await_taking(self, now_ms: int) -> int:
        """Note how many bytes wait now; return when some of them must have been taken."""
        assert self.transport is not None, "a connection that is gone is not looked at"
        self._untaken = (now_ms, self.transport.get_write_buffer_size(), self._sent_bytes)
        return now_ms + limits.HTTP_TAKE_MS

    def _close_for(self, word: str, reply: bytes) -> None:
        self._shared.note(word)
        self._cut(reply)

    def _cut(self, reply: bytes) -> None:
        """Close, with a reply if there is one and no answer was being sent."""
        transport = self.transport
        assert transport is not None, "a connection that is gone is not cut"
        current = self._current
        is_of_this = current is None or (current.body is self._body and not current.sent_bytes)
        if reply and is_of_this and not transport.is_closing():
            transport.write(reply)
            transport.close()
        else:
            transport.abort()
        self._is_over = True
        self._row.clear()  # requests that have not been begun are dropped


def _bytes_of(reply: Reply, request: HttpRequest) -> bytes:
    """Return an answer as it is sent. An answer that has been sent is not kept.

    That would be a MiB for each of a thousand workers.
    """
    head = reply.head(closes=not request.keep_alive, version=request.version)
    body, reply.body = reply.body, b""
    return head if request.method == hdrs.METH_HEAD else head + body


def _complete(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
