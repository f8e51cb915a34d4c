"""The connections of a client with asyncio; what `connection` says of the others is true of these.

At most so many calls are under way at once (`CALLS_MAX`); further ones wait for their turn. Calls
that wait for a job by intent, and calls about jobs in hand, are not counted: a worker that waits
holds up nobody.
"""

import asyncio
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final, TypeVar

from delayd.client.addresses import Address
from delayd.client.connection import reason_of, verified_tls
from delayd.client.errors import ConnectionLost, Refused, Unreachable, reservation_lost
from delayd.client.trouble import Outage
from delayd.client.wires import (
    IDLE_CONNECTIONS_MAX,
    Ask,
    Reader,
    Wire,
    drawn,
    is_silent,
    may_ask_again,
    pauses,
)

T = TypeVar("T")
CALLS_MAX: Final = 64


class AsyncConnection(asyncio.Protocol):
    """One connection. On the line it holds jobs, and has watched topics and shown its token."""

    def __init__(self, where: str, timeout_s: float) -> None:
        self.held = 0
        self.watched = frozenset(("default",))
        self.used = ""
        self.is_greeted = False
        self.is_closed = False
        self.lock = asyncio.Lock()
        self._where = where
        self._timeout_s = timeout_s
        self._transport: asyncio.Transport | None = None
        self._reader: Reader | None = None
        self._reply: asyncio.Future[Any] | None = None
        self._received = bytearray()
        self.is_lent = False
        """Whether somebody reads what comes by `receive`."""

    @classmethod
    async def open(
        cls, address: Address, tls: ssl.SSLContext | None, timeout_s: float
    ) -> "AsyncConnection":
        """Connect. Raises Unreachable."""
        loop = asyncio.get_running_loop()

        def make() -> AsyncConnection:
            return cls(address.url, timeout_s)

        try:
            async with asyncio.timeout(timeout_s):
                if address.path:
                    _, made = await loop.create_unix_connection(make, address.path)
                else:
                    context = (tls or verified_tls()) if address.is_tls else None
                    _, made = await loop.create_connection(
                        make, address.host, address.port, ssl=context
                    )
        except (OSError, ValueError) as error:
            raise Unreachable(address.url, reason_of(error)) from error
        return made

    async def exchange(self, wire: Wire, ask: Ask) -> Any:  # noqa: ANN401 - what is spoken tells
        """Send what is asked and return the reply. Raises ConnectionLost, and is closed then."""
        await self.prepare(wire, ask)
        return await self._exchange(wire.encode(ask), wire.reader(ask, self), ask.wait_s)

    async def prepare(self, wire: Wire, ask: Ask) -> None:
        """Say what must be said on this connection before; a failure means that nothing was."""
        first = wire.before(ask, self)
        if first is None:
            return
        try:
            reader = wire.reader(first, self)
            reply = await self._exchange(wire.encode(first), reader, first.wait_s)
            wire.check_before(ask, first, reply)
        except ConnectionLost as error:
            reason = str(error.__cause__)
            raise ConnectionLost(self._where, reason, may_have_happened=False) from error
        except Refused:
            self.close()
            raise

    async def _exchange(self, data: bytes, reader: Reader, wait_s: float) -> Any:  # noqa: ANN401
        self._reader = reader
        try:
            self.send(data)
            return await self._replied(self._timeout_s + wait_s)
        except BaseException:
            self.close()  # somewhere within a reply
            raise
        finally:
            self._reader = None

    def send(self, data: bytes) -> None:
        """Send. Raises ConnectionLost."""
        if self._transport is None or self.is_closed:
            raise self._lost(ConnectionResetError("the daemon closed it"))
        self._transport.write(data)

    async def receive(self) -> bytes:
        """Return what has come to a lent connection, one byte at least. Raises ConnectionLost."""
        if not self._received:
            await self._replied(self._timeout_s)
        received = bytes(self._received)
        self._received.clear()
        return received

    async def _replied(self, within_s: float) -> Any:  # noqa: ANN401 - what is spoken tells
        """Wait for what `data_received` makes of what comes."""
        if self.is_closed:
            raise self._lost(ConnectionResetError("the daemon closed it"))
        self._reply = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(within_s):
                return await self._reply
        except OSError as error:
            raise self._lost(error) from error
        finally:
            self._reply = None

    def _lost(self, error: OSError) -> ConnectionLost:
        self.close()
        lost = ConnectionLost(self._where, reason_of(error), may_have_happened=True)
        lost.__cause__ = error
        return lost

    @property
    def is_usable(self) -> bool:
        """Whether it is open and silent, so that the next reply is that of the next call."""
        if self._transport is None or self.is_closed:
            return False
        return is_silent(self._transport.get_extra_info("socket").fileno())

    def close(self) -> None:
        """Close it; what it holds on the line is ready again."""
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # --- What asyncio calls ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note what is written to."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Read; what nobody has asked for means that something is wrong."""
        if self.is_lent:
            self._received += data
            if data and self._reply is not None and not self._reply.done():
                self._reply.set_result(None)
            return
        if self._reader is None or self._reply is None or self._reply.done():
            self.close()
            return
        try:
            reply = self._reader.feed(data)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            self._reply.set_exception(error)
            return
        if reply is not None:
            self._reply.set_result(reply)

    def connection_lost(self, _error: Exception | None) -> None:
        """End what waits for a reply."""
        if self._reply is not None and not self._reply.done():
            self.data_received(b"")  # the end may be the end of a reply
        self.is_closed = True
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(ConnectionResetError("the daemon closed it"))


class AsyncConnections:
    """The connections of a client."""

    def __init__(
        self,
        address: Address,
        wire: Wire,
        *,
        tls: ssl.SSLContext | None,
        timeout_s: float,
        patience_s: float,
        outage: Outage | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        chance: Callable[[], float] = drawn,
    ) -> None:
        self._address = address
        self._wire = wire
        self._tls = tls
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._outage = outage or Outage()
        self._sleep = sleep
        self._chance = chance
        self._was_reached = False
        self._is_closed = False
        self._idle: list[AsyncConnection] = []
        self._turn = asyncio.Semaphore(CALLS_MAX)

    async def run(self, steps: Generator[Any, Any, T]) -> T:
        """Carry out an operation."""
        try:
            ask = next(steps)
            while True:
                ask = steps.send(await self.exchange(ask))
        except StopIteration as done:
            result: T = done.value
            return result

    async def exchange(self, ask: Ask) -> Any:  # noqa: ANN401 - what is spoken tells
        """Return the reply, on a new connection if the first one fails and it does no harm."""
        ahead = pauses(self._patience_s, self._chance)
        era, is_away = self._outage.era, False
        while True:
            try:
                if ask.link is not None:
                    return await self._exchange_on(ask.link, ask)
                async with contextlib.nullcontext() if ask.wait_s else self._turn:
                    reply = await self._try(ask)
            except (Unreachable, ConnectionLost) as error:
                pause_s = next(ahead, None) if self._was_reached else None
                if pause_s is None or not may_ask_again(ask, error):
                    raise
                self._outage.begin(error, era)
            else:
                if is_away:
                    self._outage.end(era)
                return reply
            await self._sleep(pause_s)
            era, is_away = self._outage.era, True

    async def borrow(self, ask: Ask) -> AsyncConnection:
        """Return a connection, ready for this, to somebody who gives it back or closes it."""
        connection = await self._take(needs_free=False)
        await connection.prepare(self._wire, ask)
        connection.is_lent = True
        return connection

    async def close(self) -> None:
        """Close the idle connections; the others are closed when their calls end."""
        self._is_closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
        await asyncio.sleep(0)  # the transports close their sockets

    async def _try(self, ask: Ask) -> Any:  # noqa: ANN401 - what is spoken tells
        connection = await self._take(needs_free=ask.takes_jobs)
        async with connection.lock:
            reply = await connection.exchange(self._wire, ask)
        if getattr(reply, "is_last", False):
            connection.close()
        else:
            self.give_back(connection)
        return reply

    async def _exchange_on(self, link: AsyncConnection, ask: Ask) -> Any:  # noqa: ANN401 - what is spoken tells
        async with link.lock:
            if link.is_closed:
                raise reservation_lost()
            return await link.exchange(self._wire, ask)

    async def _take(self, *, needs_free: bool) -> AsyncConnection:
        """Return an idle connection, or a new one."""
        fits = [each for each in self._idle if not (needs_free and each.held)]
        for idle in reversed(fits):
            self._idle.remove(idle)
            if idle.is_usable:
                return idle
            idle.close()
        connection = await AsyncConnection.open(self._address, self._tls, self._timeout_s)
        self._was_reached = True
        return connection

    def give_back(self, connection: AsyncConnection) -> None:
        """Keep a connection for the next call, unless there are enough."""
        connection.is_lent = False
        free = sum(not each.held for each in self._idle)
        if not self._is_closed and (connection.held or free < IDLE_CONNECTIONS_MAX):
            self._idle.append(connection)
        else:
            connection.close()
