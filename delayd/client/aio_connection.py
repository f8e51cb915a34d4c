"""The connections of a client with asyncio; otherwise as those of `connection`.

At most `CALLS_MAX` calls are under way at once; further ones wait for their turn. Calls that wait
for a job, and calls about jobs in hand, are not counted: a waiting worker delays no call.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, TypeVar

from delayd.client.attempts import Ask, Failed, Reader, Way, exchanging
from delayd.client.connection import verified_tls
from delayd.client.connection_pool import Link, Pool, reason_of
from delayd.client.errors import ConnectionLost, Unreachable, reservation_lost
from delayd.client.steps import Steps, answered_by, awaited

T = TypeVar("T")
CALLS_MAX: Final = 64
EARLY_BYTES_MAX: Final = 4 << 20
"""Of replies that arrive while a batch does not read them; a thousand of the longest."""


class AsyncConnection(Link, asyncio.Protocol):
    """One connection."""

    def __init__(self, way: Way) -> None:
        super().__init__(way)
        self.lock = asyncio.Lock()
        self.is_lent = False
        """Whether it is borrowed, and read by `receive_until`."""
        self._transport: asyncio.Transport | None = None
        self._ask: Ask | None = None
        self._reader: Reader | None = None
        """Of the reply to that request, if its first bytes were not all of it."""
        self._reply: asyncio.Future[Any] | None = None
        self._loop = asyncio.get_running_loop()
        self._ends_s = 0.0
        """When the time of the present call is over."""
        self._timer: asyncio.TimerHandle | None = None
        self._is_enough: Callable[[bytes], bool] | None = None
        self._received: list[bytes] = []
        self._received_bytes = 0

    @classmethod
    async def open(cls, way: Way) -> Self:
        """Connect. Raises Unreachable."""
        loop, made = asyncio.get_running_loop(), cls(way)
        address = made.place.address
        try:
            async with asyncio.timeout(way.connect_s):
                if address.path:
                    await loop.create_unix_connection(lambda: made, address.path)
                else:
                    tls = (way.tls or verified_tls()) if address.is_tls else None
                    await loop.create_connection(lambda: made, address.host, address.port, ssl=tls)
        except (OSError, ValueError) as error:
            raise Unreachable(address.url, reason_of(error)) from error
        return made

    async def exchange(self, ask: Ask) -> Any:  # noqa: ANN401 - the wire tells
        if self.place.wire.before(ask, self) is not None:
            await self.prepare(ask)
        try:
            return await self._exchange(ask, self.way.timeout_s)
        except BaseException as error:
            self.fail(error)
            raise

    async def prepare(self, ask: Ask) -> None:
        if (first := self.place.wire.before(ask, self)) is not None:
            with self.closing(may_have_happened=False):
                reply = await self._exchange(first, self.way.connect_s)
                self.place.wire.check_before(ask, first, reply)
                self.prove()

    async def _exchange(self, ask: Ask, within_s: float) -> Any:  # noqa: ANN401 - the same
        self._ask = ask
        try:
            self._send(self.place.wire.encode(ask))
            return await self._next_reply(within_s + ask.wait_s)
        finally:
            self._ask = self._reader = self._reply = None

    def send(self, data: bytes) -> None:
        """Send. Raises ConnectionLost."""
        with self.closing():
            self._send(data)

    async def receive_until(self, is_enough: Callable[[bytes], bool]) -> None:
        with self.closing():
            early = b"".join(self._received)
            self._received.clear()
            self._received_bytes = 0
            if early and is_enough(early):
                return
            self._is_enough = is_enough
            try:
                await self._next_reply(self.way.timeout_s)
            finally:
                self._is_enough = self._reply = None

    @property
    def has_surplus(self) -> bool:
        """Whether bytes have arrived that were not read."""
        return bool(self._received)

    def _send(self, data: bytes) -> None:
        if self._transport is None or self.is_closed:
            raise ConnectionResetError("the daemon closed it")
        self._transport.write(data)

    def _next_reply(self, within_s: float) -> asyncio.Future[Any]:
        """Return a future of the reply that `data_received` reads.

        One timer bounds all of them: only when it rings is it found out whether a reply is late.
        """
        if self.is_closed:
            raise ConnectionResetError("the daemon closed it")
        loop = self._loop
        self._reply = loop.create_future()
        self._ends_s = ends_s = loop.time() + within_s
        if self._timer is None or ends_s < self._timer.when():
            self._ring_at(ends_s)
        return self._reply

    def _ring_at(self, ends_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(ends_s, self._rung)

    def _rung(self) -> None:
        """End the call whose time is over; otherwise ring when that of the present one is."""
        self._timer = None
        if self._reply is None or self._reply.done():
            return
        if self._ends_s <= self._loop.time():
            self._reply.set_exception(TimeoutError())
        else:
            self._ring_at(self._ends_s)

    @property
    def descriptor(self) -> int:
        assert self._transport is not None
        return int(self._transport.get_extra_info("socket").fileno())

    @property
    def is_ours(self) -> bool:
        """Whether this process and this event loop made it.

        On the transport of a loop that has ended a request is sent, and no answer comes.
        """
        return super().is_ours and self._loop is asyncio.get_running_loop()

    def close(self) -> None:
        """As that of `Connection`; one of another process or loop is left to Python.

        What a fork has of its parent's loop changes what the parent waits for.
        """
        self.is_closed = True
        self._end_timer()
        if self._transport is not None and self.is_ours:
            self._transport.abort()

    def _end_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- Called by asyncio -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read; bytes without a call are an error of the daemon, and close the connection."""
        is_waited_for = self._reply is not None and not self._reply.done()
        if self.is_lent and not (is_waited_for and self._is_enough):
            self._received.append(data)
            self._received_bytes += len(data)
            if self._received_bytes > EARLY_BYTES_MAX:
                self.close()
            return
        if not is_waited_for or (self._ask is None and self._is_enough is None):
            self.close()
            return
        assert self._reply is not None
        try:
            reply = self._read(data)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._reply.set_exception(error)
            return
        if reply is not None:
            self._reply.set_result(reply)

    def _read(self, data: bytes) -> Any:  # noqa: ANN401 - the wire tells
        """Return the reply once it is whole; None: not yet."""
        if self._is_enough is not None:
            return True if data and self._is_enough(data) else None
        if self._reader is None:
            assert self._ask is not None
            wire = self.place.wire
            if (reply := wire.whole(self._ask, self, data)) is not None:
                return reply
            self._reader = wire.reader(self._ask, self)
        return self._reader.feed(data)

    def connection_lost(self, _error: Exception | None) -> None:
        """End the call that waits for a reply."""
        if self._reply is not None and not self._reply.done():
            self.data_received(b"")  # the end may be the end of a reply
        self.is_closed = True
        self._end_timer()
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionResetError("the daemon closed it"))


class AsyncConnections:
    """The connections of a client."""

    def __init__(self, way: Way, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.way = way
        self._sleep = sleep
        self._pool: Pool[AsyncConnection] = Pool()
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None
        """An event loop, and the turns of its calls."""

    async def run(self, steps: Steps[T]) -> T:
        return await awaited(answered_by(steps, self.exchange, self._pool.resumed))

    async def exchange(self, ask: Ask) -> tuple[AsyncConnection, Any]:
        era, failed = self.way.outage.era, None
        if len(self.way.places) == 1:
            try:
                return await self._try(ask)
            except (Unreachable, ConnectionLost) as error:
                failed = Failed(error, era)
        steps = exchanging(ask, self.way, self._try, self._sleep, failed)
        answered: tuple[AsyncConnection, Any] = await awaited(steps)
        return answered

    async def borrow(self, ask: Ask) -> AsyncConnection:
        steps = exchanging(ask, self.way, self._prepared, self._sleep)
        lent: tuple[AsyncConnection, None] = await awaited(steps)
        lent[0].is_lent = True
        return lent[0]

    def give_back(self, connection: AsyncConnection) -> None:
        connection.is_lent = False
        if connection.has_surplus:
            connection.close()
        self._pool.give_back(connection)

    async def close(self) -> None:
        self._pool.close()
        await asyncio.sleep(0)  # the transports close their sockets

    async def _try(self, ask: Ask) -> tuple[AsyncConnection, Any]:
        if ask.link is not None:
            return ask.link, await self._exchange_on(ask.link, ask)
        if ask.wait_s:
            connection = self._pool.take(self.way.place) or await self._connected()
            return connection, await connection.exchange(ask)
        async with self._turns():
            connection = self._pool.take(self.way.place) or await self._connected()
            return connection, await connection.exchange(ask)

    def _turns(self) -> asyncio.Semaphore:
        """Return the turns of this event loop: no other loop gives any back."""
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:
            self._turn = loop, asyncio.Semaphore(CALLS_MAX)
        return self._turn[1]

    async def _prepared(self, ask: Ask) -> tuple[AsyncConnection, None]:
        connection = self._pool.take(self.way.place) or await self._connected()
        await connection.prepare(ask)
        return connection, None

    async def _exchange_on(self, link: AsyncConnection, ask: Ask) -> Any:  # noqa: ANN401 - the same
        if not link.is_ours:
            raise reservation_lost()
        async with link.lock:
            if link.is_closed:
                raise reservation_lost()
            return await link.exchange(ask)

    async def _connected(self) -> AsyncConnection:
        """Return a new connection."""
        connection = await AsyncConnection.open(self.way)
        self.way.was_reached = True
        return connection
