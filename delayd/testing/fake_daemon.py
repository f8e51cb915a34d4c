"""The daemon's own parts, without files and sockets, for a `FakeDelayd`.

    client ─► request as bytes ─► HttpConnection ─► handlers ─► engine
                                       answer ◄──────┴─ turn: due jobs, tasks, waits

All parts are the daemon's except those of this module: connections in memory, a turn without a log,
and the moves of the clock.
"""

import asyncio
import io
import os
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from delayd.access.authenticator import Authenticator
from delayd.access.reload import AccessControl
from delayd.access.scopes import Scope
from delayd.access.tokens import TOKEN_BYTES, Tokens, issue
from delayd.client.addresses import DEFAULT_URL
from delayd.client.errors import Unreachable
from delayd.clock import VirtualClock
from delayd.config import Config
from delayd.core.background_tasks import BackgroundTask, BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.operations.tick import advance, next_deadline
from delayd.core.stats.refusals import Refusals
from delayd.core.times import PlayedMs
from delayd.core.virtual_clock import ClockAdvance
from delayd.http.api import Api, Reports
from delayd.http.bounds import Bounds
from delayd.http.connection import HttpConnection
from delayd.http.connections import HttpConnections
from delayd.http.server import HttpServer
from delayd.limits import IDEMPOTENCY_KEYS_DEFAULT
from delayd.line.stats import Stats
from delayd.log_lines import Log
from delayd.metrics import CONTENT_TYPE
from delayd.push.answer_reader import AnswerReader
from delayd.push.opening import Push
from delayd.push.sender import PushSender
from delayd.schedules.opening import ScheduleOpener
from delayd.testing.received import ReceivedCall
from delayd.testing.virtual_loop import VirtualLoop

PEER: Final = ("127.0.0.1", 50_000)
NEVER: Final = float("inf")
EVENTS_MAX: Final = 16
"""Events until those who wait look again: a delay of a day moves down the wheels three times."""
PIECE_BYTES: Final = 1 << 18
"""So much of a request comes at once, as from a socket."""


def raised(fault: BaseException) -> None:
    """Raise a fault of the daemon where it was met."""
    raise fault


class MemoryTransport(asyncio.Transport):
    """A connection in memory, to which the daemon writes."""

    def __init__(self, connections: HttpConnections) -> None:
        super().__init__({"peername": PEER})
        protocol = connections.admit(PEER, 0)
        assert isinstance(protocol, HttpConnection), "it is the only one"
        self.protocol: Final = protocol
        self.received = b""
        self.is_over = False
        self._loop = connections.loop
        protocol.connection_made(self)

    def write(self, data: Any) -> None:  # noqa: ANN401 - asyncio's signature
        """Keep an answer's bytes."""
        self.received += data

    def is_closing(self) -> bool:
        """Tell whether it has ended."""
        return self.is_over

    def close(self) -> None:
        """End."""
        if not self.is_over:
            self.is_over = True
            self._loop.call_soon(self.protocol.connection_lost, None)

    abort = close

    def pause_reading(self) -> None:
        """Do nothing: requests are whole."""

    resume_reading = pause_reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: nothing is buffered."""

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing is buffered."""
        return 0


class MemoryReceiver:
    """The receiver of all deliveries: accepts a call, and answers with a status."""

    def __init__(self, receive: Callable[[ReceivedCall], int]) -> None:
        self._receive = receive

    async def ask(self, origin: str, head: bytes, body: bytes) -> AnswerReader:
        """Read the request and return the answer."""
        first, *lines = head.decode().splitlines()
        method, tail, _ = first.split(" ")
        headers = dict(line.split(": ", 1) for line in lines)
        status = self._receive(ReceivedCall(method, origin + tail, headers, body))
        answer = AnswerReader()
        answer.feed(b"HTTP/1.1 %d\r\nContent-Length: 0\r\n\r\n" % status)
        return answer


class FakeDaemon:
    """One daemon; `receive` answers the calls that it makes, with a status."""

    def __init__(self, start_ms: int, receive: Callable[[ReceivedCall], int]) -> None:
        self.clock = VirtualClock(start_ms)
        self.engine = Engine(start_ms=start_ms)
        self._tasks = BackgroundTasks(self.engine)
        self._is_closed = False
        self._callbacks: list[Callable[[], object]] = []
        self._entries: list[Any] = []
        self._authenticator = Authenticator(wall_ms=self.clock.wall_ms)
        self._loop = VirtualLoop(self._turn)  # type: ignore[abstract]  # asyncio's other methods are not used
        self._idle: list[MemoryTransport] = []
        """Connections that no request is using: a receiver may call back."""
        with self._loop.running():
            self._sender = self._deliveries(receive)
            stats = Stats(self.engine, start_ms)
            schedules = ScheduleOpener(
                *(self.engine, self._tasks, self.look_at_wall_clock, lambda _line: None)
            )
            api = Api(
                *(self.engine, self, self.clock, self._tasks, schedules),
                standing=self.clock,
                refusals=Refusals(),
                idempotency_keys_max=IDEMPOTENCY_KEYS_DEFAULT,
                reports=Reports(
                    lambda now_ms: {**stats.beside_jobs(now_ms), "push": self._sender.stats()},
                    metrics=lambda _now_ms: (),
                    metrics_type=CONTENT_TYPE,
                    log_trouble=str,
                    space_trouble=lambda: "",
                    push_blocks=self._sender.blocks_of,
                ),
            )
            access = AccessControl(self._authenticator)
            self._server = HttpServer(api, access, Bounds(), (), (), raised)
            self._server.start()

    def _deliveries(self, receive: Callable[[ReceivedCall], int]) -> PushSender:
        """Deliver as the daemon does without a configuration, but to a receiver in memory."""
        engine, clock = self.engine, self.clock
        push = Push(Config(), None, (), {})
        sender = push.sender(
            *(engine, self, clock, Log(io.StringIO(), clock.wall_ms), b"fake"),
            caller=MemoryReceiver(receive),
            at_ms=lambda: round(self._loop.time() * 1_000),
        )
        engine.vet_target, engine.vet_use = push.vet, push.vet_use
        engine.is_calling = sender.is_busy
        return sender

    # --- Requests --------------------------------------------------------------------------------

    def exchange(self, data: bytes, reader: Any) -> Any:  # noqa: ANN401 - the client's wire tells
        """Return the answer to a request, as the reader reads it."""
        if self._is_closed:
            raise Unreachable(DEFAULT_URL, "this FakeDelayd is closed")
        if self._idle:
            transport = self._idle.pop()
        else:
            with self._loop.running():
                transport = MemoryTransport(self._server.connections)
        for start in range(0, len(data), PIECE_BYTES):
            piece = data[start : start + PIECE_BYTES] if len(data) > PIECE_BYTES else data
            self._loop.run(transport.protocol.data_received, piece)
        while True:
            received, transport.received = transport.received, b""
            if (reply := reader.feed(received)) is not None:
                if not transport.is_over:
                    self._idle.append(transport)
                return reply
            if self.engine.waits and (next_ms := next_deadline(self.engine)) is not None:
                self.advance(next_ms - self.clock.now_ms())
            else:
                self._loop.skip()
                self._loop.run(bool)

    def close(self) -> None:
        """Answer no more."""
        self._is_closed = True
        self._loop.run(self._sender.abort)
        self._loop.run(self._server.abort)

    def token(self, scopes: tuple[str, ...], topics: tuple[str, ...]) -> str:
        """Return a new token; from now on every client needs one."""
        wanted = {Scope(scope) for scope in scopes} or set(Scope)
        name = f"token {len(self._entries) + 1}"
        created_s = self.clock.now_ms() // 1_000
        text, entry = issue(os.urandom(TOKEN_BYTES), name, wanted, topics, created_s=created_s)
        self._entries.append(entry)
        self._authenticator.tokens = Tokens(self._entries)
        return text

    # --- Time ------------------------------------------------------------------------------------

    def advance(self, by_ms: int) -> None:
        """Advance the clock, with everything due by then."""
        self._tasks.add(BackgroundTask(ClockAdvance(self.engine, self.clock, by_ms), _checked))
        self._loop.run(bool)

    @property
    def has_jobs_in_hand(self) -> bool:
        """Tell whether a job is reserved."""
        return bool(self.engine.store.leases.sessions)

    def pass_time(self, most_ms: float) -> float:
        """Advance the clock to the next events, until a job is ready; return by how much.

        By 0 while a job is in hand, and if there is no next event.
        """
        begun_ms = self.clock.now_ms()
        until_ms = begun_ms + most_ms
        for _ in range(0 if self.has_jobs_in_hand else EVENTS_MAX):
            next_ms = next_deadline(self.engine)
            if next_ms is None and most_ms == NEVER:
                break
            to_ms = until_ms if next_ms is None else min(until_ms, next_ms)
            self.advance(max(0, int(to_ms - self.clock.now_ms())))
            if to_ms == until_ms or self._has_ready_jobs:
                break
        return self.clock.now_ms() - begun_ms

    @property
    def _has_ready_jobs(self) -> bool:
        """Tell whether there may be a job for a worker."""
        topics = self.engine.store.topics.listing
        return any(topic.queues.ready.count for topic in topics if not topic.is_internal)

    # --- The turns of the API --------------------------------------------------------------------

    def when_durable(self, callback: Callable[[], object]) -> None:
        """Call back in the next turn: memory counts as durable here."""
        self._callbacks.append(callback)

    def reply_when_durable(self, client: HttpConnection, data: bytes) -> None:
        """Send an answer in the next turn."""
        self._callbacks.append(partial(client.send, data))

    def ask(self) -> None:
        """Do nothing: the next turn comes at once."""

    def wake_loop(self) -> None:
        """Do nothing: the loop checks everything."""

    def look_at_wall_clock(self) -> None:
        """Do nothing: it is the clock."""

    def _turn(self) -> bool:
        """Carry out due events, and answer waiting clients; tell whether there was anything."""
        engine, now_ms = self.engine, self.clock.request_ms()
        next_ms = next_deadline(engine)
        is_busy = next_ms is not None and next_ms <= now_ms and advance(engine, PlayedMs(now_ms))
        if self._tasks.has_more:
            is_busy = is_busy or not engine.awaits_calls
            if (task := self._tasks.step(now_ms)) is not None:
                task.conclude(self.clock.request_ms())
        for session, outcome in engine.take_deliveries():
            assert session.owner is not None, "a session that waits has an owner"
            session.owner.deliver(outcome, self.clock.request_ms())
        scheduler = self._sender.scheduler
        if scheduler.is_about_to_begin:
            self._sender.on_push(self.clock.request_ms())
            is_busy = True
        engine.take_log()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()
        if is_busy or callbacks:
            return True
        if scheduler.wake_ms is None or scheduler.in_flight:
            return False
        self._loop.skip()  # a target's rate takes no time
        return True


def _checked(refusal: Refusal | None, _now_ms: object) -> None:
    if refusal is not None:
        raise refusal
