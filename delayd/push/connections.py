"""HTTP connections to receivers, each to an address that the egress rules allow.

    host ─► look_up, in a thread ─► allowed addresses ─► a socket for one of them, vetted again

`_socket` makes each socket, and its argument is the address that is connected to; so an address in
place of a name is vetted too, and so is a name whose address has changed since it was looked up.
Proxies and credentials of the environment are never used.

    ask(origin, request) ─► a connection, kept or new ─► status, Retry-After, start of the body

A request is written as a whole, or in pieces as the receiver takes them. `push.transports` passes
the answer to `push.answer_reader` in pieces of a bounded size, up to a bounded number of bytes;
nothing is queued between them. A connection on which bytes arrive without a request is closed at
once.

Idle connections are kept for a few seconds, for a bounded number of origins: calls to ten thousand
hosts in turn must not use up the descriptors for the daemon's clients. The connections of other
origins are closed after their call.
"""

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Final, final
from urllib.parse import urlsplit

from delayd.limits import (
    PUSH_ANSWER_MS,
    PUSH_CLOSE_MS,
    PUSH_IDLE_MS,
    PUSH_LOOKUPS_MAX,
    PUSH_NAMES_MAX,
    PUSH_NAMES_MS,
    PUSH_ORIGINS_KEPT_MAX,
    PUSH_PIECE_BYTES,
    PUSH_RECEIVED_BYTES_MAX,
)
from delayd.push.answer_reader import AnswerReader, NotHttp
from delayd.push.egress import AddressRefused, EgressRules
from delayd.push.transports import BoundedTransport, Tls, TooMuch, Transports

LookUp = Callable[[str, int], Awaitable[list[tuple[Any, ...]]]]
"""Finds the addresses of a host: rows as `socket.getaddrinfo` returns them. Raises `OSError`."""

_PORTS: Final = {"http": 80, "https": 443}


class NoConnection(Exception):
    """There is no connection to the receiver."""

    def __init__(self, error: OSError, *, is_look_up: bool = False) -> None:
        self.error = error
        self.is_look_up = is_look_up
        """The look-up of its name failed."""
        super().__init__(str(error))


class NoAnswer(Exception):
    """The receiver has closed the connection before it answered."""


async def look_up(host: str, port: int) -> list[tuple[Any, ...]]:
    """Ask the system for the addresses of a host. Raises `OSError`.

    Each look-up has a thread of its own, which is not joined: one that hangs must delay neither
    other hosts nor the end of the process.
    """
    loop = asyncio.get_running_loop()
    found: asyncio.Future[list[tuple[Any, ...]]] = loop.create_future()

    def finish(rows: list[tuple[Any, ...]], error: OSError | None) -> None:
        if found.done():
            return  # cancelled
        if error is not None:
            found.set_exception(error)
        else:
            found.set_result(rows)

    def work() -> None:
        rows: list[tuple[Any, ...]] = []
        failure = None
        try:
            # As bytes: Python would encode a string with its own codec of international names.
            rows = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, rows, failure)

    threading.Thread(target=work, name=f"look up {host}", daemon=True).start()
    return await found


@final
class _Names:
    """Returns the allowed addresses of hosts; keeps the look-up of a name for a short time."""

    def __init__(self, rules: EgressRules, look_up_host: LookUp) -> None:
        self._rules = rules
        self._look_up = look_up_host
        self._loop = asyncio.get_running_loop()
        self._places = asyncio.Semaphore(PUSH_LOOKUPS_MAX)
        self._known: dict[tuple[str, int], tuple[float, asyncio.Task[list[tuple[Any, ...]]]]] = {}
        """For host and port: when the look-up began, and its task. The oldest first."""

    async def addresses(self, host: str, port: int) -> list[tuple[Any, ...]]:
        """Return rows as `socket.getaddrinfo` does. Raises `AddressRefused`, or `OSError`."""
        with contextlib.suppress(ValueError):  # it is a name
            is_v4 = ipaddress.ip_address(host).version == 4
            family = socket.AF_INET if is_v4 else socket.AF_INET6
            where = (host, port) if is_v4 else (host, port, 0, 0)
            return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", where)]
        return self._allowed(host, port, await asyncio.shield(self._recent(host, port)))

    def _recent(self, host: str, port: int) -> "asyncio.Task[list[tuple[Any, ...]]]":
        """Return a look-up that began less than `PUSH_NAMES_MS` ago, or begin one."""
        now_s = self._loop.time()
        known = self._known.get((host, port))
        if known is None or now_s - known[0] > PUSH_NAMES_MS / 1_000:
            known = now_s, self._loop.create_task(self._ask(host, port))
            self._known.pop((host, port), None)
            if len(self._known) >= PUSH_NAMES_MAX:
                del self._known[next(iter(self._known))]
            self._known[host, port] = known
        return known[1]

    async def _ask(self, host: str, port: int) -> list[tuple[Any, ...]]:
        is_known = False
        try:
            async with self._places:
                rows = await self._look_up(host, port)
            is_known = True
        finally:
            if not is_known:
                self._known.pop((host, port), None)
        return rows

    def _allowed(self, host: str, port: int, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        refused: AddressRefused | None = None
        allowed: list[tuple[Any, ...]] = []
        for row in rows:
            where = row[4]
            # The fourth part is the zone: without it this would be another address.
            address = f"{where[0]}%{where[3]}" if len(where) > 3 and where[3] else where[0]
            try:
                self._rules.vet_address(address, port, host)
            except AddressRefused as error:
                refused = refused or error
            else:
                allowed.append(row)
        if not allowed:
            raise refused or OSError(f"{host} has no address")
        return allowed

    def close(self) -> None:
        """Cancel the look-ups under way."""
        for _since_s, task in self._known.values():
            task.cancel()
        self._known.clear()


@final
class _Connection(asyncio.Protocol):
    """One connection, and the answer that is awaited on it."""

    __slots__ = (
        *("_answer", "_cut", "_failure", "_is_idle", "_loop", "_transport", "_writable", "over"),
    )

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: BoundedTransport | None = None
        self._answer = AnswerReader()
        self._is_idle = True
        self._cut: asyncio.TimerHandle | None = None
        """Ends an answer that takes too long after its status."""
        self._writable: asyncio.Future[None] | None = None
        """Not None: more may be written when it is done."""
        self.over: asyncio.Future[None] = self._loop.create_future()
        """Done when the answer is complete, or will not come."""
        self._failure: type[NotHttp | NoAnswer] | None = None
        """Why there is no answer. A class: an exception's frames would refer to the connection."""

    @property
    def is_open(self) -> bool:
        """Tell whether something can be sent."""
        return self._transport is not None and not self._transport.is_closing()

    # --- Called by the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, BoundedTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._is_idle or self.over.done():
            # Bytes without a request must not be taken for the next answer.
            self.abort()
            return
        had_status = bool(self._answer.status)
        try:
            self._answer.feed(data)
        except NotHttp:
            self._fail(NotHttp)
            self.abort()
            return
        if self._answer.is_over:
            self.over.set_result(None)
        elif self._answer.status and not had_status:
            self._cut = self._loop.call_later(PUSH_ANSWER_MS / 1_000, self._end)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.resume_writing()
        if not self.over.done() and not self._answer.status and isinstance(exc, TooMuch):
            self._fail(NotHttp)
        else:
            self._end()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def _end(self) -> None:
        """End the answer: as received if its status is known, otherwise as `NoAnswer`."""
        if not self.over.done():
            if self._answer.status or self._is_idle:
                self.over.set_result(None)
            else:
                self._fail(NoAnswer)

    def _fail(self, failure: type[NotHttp | NoAnswer]) -> None:
        self._failure = failure
        self.over.set_result(None)

    # --- A call ----------------------------------------------------------------------------------

    async def exchange(self, head: bytes, body: bytes) -> AnswerReader:
        """Send a request and return its answer. Raises `NoAnswer` or `NotHttp`."""
        transport = self._transport
        if transport is None or transport.is_closing():
            raise NoAnswer
        answer = self._answer = AnswerReader()
        self.over = self._loop.create_future()
        self._failure = None
        self._is_idle = False
        transport.allow(PUSH_RECEIVED_BYTES_MAX)
        writing: asyncio.Task[None] | None = None
        try:
            if len(body) <= PUSH_PIECE_BYTES:
                transport.write(head + body)
            else:
                writing = self._loop.create_task(self._write_long(head, body))
            await self.over
            if self._failure is not None:
                raise self._failure
            is_written = writing is None or writing.done()
            self._is_idle = answer.is_whole and is_written
            return answer
        finally:
            if writing is not None:
                writing.cancel()
            if self._cut is not None:
                self._cut.cancel()
                self._cut = None
            if not answer.is_over:
                self.abort()

    @property
    def is_idle(self) -> bool:
        """Tell whether the connection can be used again."""
        return self._is_idle and self.is_open

    async def _write_long(self, head: bytes, body: bytes) -> None:
        """Write a long body in pieces as the receiver takes them; it may answer before the end."""
        left = memoryview(body)
        piece: bytes | memoryview = head
        while piece and self._transport is not None:
            self._transport.write(piece)
            if self._writable is not None:
                await self._writable
            piece, left = left[:PUSH_PIECE_BYTES], left[PUSH_PIECE_BYTES:]

    # --- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close once everything is sent, but after `PUSH_CLOSE_MS` at the latest."""
        transport = self._transport
        if transport is not None:
            transport.close()
            if transport.get_write_buffer_size():
                self._loop.call_later(PUSH_CLOSE_MS / 1_000, transport.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


@final
class Connections:
    """Sends requests, on new connections or on idle ones that were kept."""

    def __init__(
        self,
        rules: EgressRules,
        connect_timeout_ms: int,
        verified: ssl.SSLContext,
        look_up_host: LookUp = look_up,
    ) -> None:
        """Belong to the running loop."""
        self._rules = rules
        self._connect_timeout_ms = connect_timeout_ms
        self._verified = verified
        self._loop = asyncio.get_running_loop()
        self._names = _Names(rules, look_up_host)
        self._transports = Transports()
        self._used: set[_Connection] = set()
        self._idle: dict[str, list[tuple[float, _Connection]]] = {}
        """By origin, with the time at which they became idle; the last used one at the end."""
        self._kept: dict[str, float] = {}
        """Origins whose connections are kept, with the time of their last use; the oldest first."""
        self._sweeping: asyncio.TimerHandle | None = None

    async def ask(self, origin: str, head: bytes, body: bytes) -> AnswerReader:
        """Send a request and return its answer; `head` comes without its last, empty line.

        Raises `TimeoutError` without a connection in time, `NoConnection` with the reason,
        `NoAnswer` and `NotHttp`.
        """
        is_kept = self._keeps(origin)
        connection = self._idle_one(origin) if is_kept else None
        if connection is not None:
            with contextlib.suppress(NoAnswer):
                return await self._ask_on(connection, origin, head + b"\r\n", body)
            # The server closed the kept connection while the request was being sent.
            is_kept = False
        connection = await self._connect(origin)
        if not is_kept:
            return await self._ask_on(connection, "", head + b"Connection: close\r\n\r\n", body)
        return await self._ask_on(connection, origin, head + b"\r\n", body)

    async def _ask_on(
        self, connection: _Connection, origin: str, head: bytes, body: bytes
    ) -> AnswerReader:
        """Ask on this connection; then keep it for `origin`, or close it if that is empty."""
        self._used.add(connection)
        try:
            answer = await connection.exchange(head, body)
        finally:
            self._used.discard(connection)
            if origin and connection.is_idle:
                self._keep(origin, connection)
            else:
                connection.close()
        return answer

    # --- Connections that are kept ---------------------------------------------------------------

    def _keeps(self, origin: str) -> bool:
        """Keep connections to this origin from now on; return False if there are too many origins.

        An origin that was not used for `PUSH_IDLE_MS` makes room.
        """
        now_s = self._loop.time()
        if self._kept.pop(origin, None) is None and len(self._kept) >= PUSH_ORIGINS_KEPT_MAX:
            oldest = next(iter(self._kept))
            if now_s - self._kept[oldest] < PUSH_IDLE_MS / 1_000:
                return False
            del self._kept[oldest]
        self._kept[origin] = now_s
        return True

    def _idle_one(self, origin: str) -> _Connection | None:
        """Return a kept connection that has not been idle for too long, if there is one."""
        idle = self._idle.get(origin, [])
        while idle:
            since_s, connection = idle.pop()
            if connection.is_idle and self._loop.time() - since_s < PUSH_IDLE_MS / 1_000:
                return connection
            connection.close()
        return None

    def _keep(self, origin: str, connection: _Connection) -> None:
        self._idle.setdefault(origin, []).append((self._loop.time(), connection))
        if self._sweeping is None:
            self._sweeping = self._loop.call_later(PUSH_IDLE_MS / 1_000, self._sweep)

    def _sweep(self) -> None:
        """Close connections that have been idle for too long."""
        latest_s = self._loop.time() - PUSH_IDLE_MS / 1_000
        for origin, idle in list(self._idle.items()):
            left = []
            for since_s, connection in idle:
                if since_s > latest_s and connection.is_idle:
                    left.append((since_s, connection))
                else:
                    connection.close()
            if left:
                self._idle[origin] = left
            else:
                del self._idle[origin]
        self._sweeping = None
        if self._idle:
            self._sweeping = self._loop.call_later(PUSH_IDLE_MS / 1_000, self._sweep)

    # --- New connections -------------------------------------------------------------------------

    async def _connect(self, origin: str) -> _Connection:
        """Connect. Raises `TimeoutError` and `NoConnection`."""
        url = urlsplit(origin)
        host = url.hostname or ""
        port = url.port or _PORTS[url.scheme]
        tls = Tls(self._verified, host.rstrip(".")) if url.scheme == "https" else None
        is_connecting = False
        async with asyncio.timeout(self._connect_timeout_ms / 1_000):
            try:
                addresses = await self._names.addresses(host, port)
                is_connecting = True
                _transport, connection = await self._transports.connect(
                    addresses, _Connection, tls, self._socket
                )
            except OSError as error:
                is_look_up = not is_connecting and not isinstance(error, AddressRefused)
                # Its frames would keep the job in memory until the next full garbage collection.
                error.with_traceback(None)
                raise NoConnection(error, is_look_up=is_look_up) from error
        return connection

    def _socket(self, place: tuple[Any, ...]) -> socket.socket:
        """Make the socket for an address that the rules allow. Raises `AddressRefused`."""
        family, kind, protocol, _name, where = place
        self._rules.vet_address(where[0], where[1])
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Close all connections."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            self._sweeping = None
        self._names.close()
        idle = [connection for each in self._idle.values() for _since_s, connection in each]
        self._idle.clear()
        for connection in [*idle, *self._used]:
            connection.abort()
