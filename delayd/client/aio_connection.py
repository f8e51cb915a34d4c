"""The connections of a client with asyncio; otherwise as those of `connection`.

At most `CALLS_MAX` calls are under way at once; further ones wait for their turn. Calls that wait
for a job, and calls about jobs in hand, are not counted: a waiting worker delays no call.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, Self, TypeVar

from delayd.client.connection import verified_tls
from delayd.client.connection_pool import (
    Ask,
    Link,
    Pool,
    Reader,
    Way,
    carrying,
    exchanging,
    reason_of,
)
from delayd.client.errors import Unreachable, reservation_lost
from delayd.client.steps import Steps, awaited

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
        self._reader: Reader | None = None
        self._reply: asyncio.Future[Any] | None = None
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
        await self.prepare(ask)
        with self.closing():
            return await self._exchange(ask)

    async def prepare(self, ask: Ask) -> None:
        if (first := self.place.wire.before(ask, self)) is not None:
            with self.closing(may_have_happened=False):
                self.place.wire.check_before(ask, first, await self._exchange(first))

    async def _exchange(self, ask: Ask) -> Any:  # noqa: ANN401 - the same
        self._reader = self.place.wire.reader(ask, self)
        try:
            self._send(self.place.wire.encode(ask))
            return await self._replied(self.way.timeout_s + ask.wait_s)
        finally:
            self._reader = None

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
                await self._replied(self.way.timeout_s)
            finally:
                self._is_enough = None

    @property
    def has_surplus(self) -> bool:
        """Whether bytes have arrived that were not read."""
        return bool(self._received)

    def _send(self, data: bytes) -> None:
        if self._transport is None or self.is_closed:
            raise ConnectionResetError("the daemon closed it")
        self._transport.write(data)

    async def _replied(self, within_s: float) -> Any:  # noqa: ANN401 - the wire tells
        """Wait for the reply that `data_received` reads."""
        if self.is_closed:
            raise ConnectionResetError("the daemon closed it")
        self._reply = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(within_s):
                return await self._reply
        finally:
            self._reply = None

    @property
    def descriptor(self) -> int:
        assert self._transport is not None
        return int(self._transport.get_extra_info("socket").fileno())

    def close(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

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
        if not is_waited_for or (self._reader is None and self._is_enough is None):
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
        assert self._reader is not None
        return self._reader.feed(data)

    def connection_lost(self, _error: Exception | None) -> None:
        """End the call that waits for a reply."""
        if self._reply is not None and not self._reply.done():
            self.data_received(b"")  # the end may be the end of a reply
        self.is_closed = True
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionResetError("the daemon closed it"))


class AsyncConnections:
    """The connections of a client."""

    def __init__(self, way: Way, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self.way = way
        self._sleep = sleep
        self._pool: Pool[AsyncConnection] = Pool()
        self._turn = asyncio.Semaphore(CALLS_MAX)

    async def run(self, steps: Steps[T]) -> T:
        return await awaited(carrying(steps, self.exchange, self._pool))

    async def exchange(self, ask: Ask) -> tuple[AsyncConnection, Any]:
        steps = exchanging(ask, self.way, self._pool, self._try, self._sleep)
        answered: tuple[AsyncConnection, Any] = await awaited(steps)
        return answered

    async def borrow(self, ask: Ask) -> AsyncConnection:
        steps = exchanging(ask, self.way, self._pool, self._prepared, self._sleep)
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
        async with contextlib.nullcontext() if ask.wait_s else self._turn:
            connection = await self._take()
            return connection, await connection.exchange(ask)

    async def _prepared(self, ask: Ask) -> tuple[AsyncConnection, None]:
        connection = await self._take()
        await connection.prepare(ask)
        return connection, None

    async def _exchange_on(self, link: AsyncConnection, ask: Ask) -> Any:  # noqa: ANN401 - the same
        async with link.lock:
            if link.is_closed:
                raise reservation_lost()
            return await link.exchange(ask)

    async def _take(self) -> AsyncConnection:
        if (connection := self._pool.take(self.way.place)) is None:
            connection = await AsyncConnection.open(self.way)
            self._pool.was_reached = True
        return connection
