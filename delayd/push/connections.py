"""Connections of calls: every one is made to an address that the egress rules let pass.

    host ─► look_up, in a thread ─► addresses that pass ─► one socket for one of them, vetted again

aiohttp's connectors keep the connections. They connect to what `_Resolver` returns, and ask
`_socket` for each socket, with the very address that they are about to connect to; so also an
address in place of a name is vetted, and a name that has another address a second later. No proxy
and no user of the environment is ever used.

    ask(origin, request) ─► a connection, kept or new ─► status, Retry-After, how the body begins

A request is written, and its answer read, on the connection itself: aiohttp's session would take
two thirds of the time of a call, for what no call needs, such as cookies and redirects. Its parser
reads the answers.

Idle connections are kept for a few seconds, of a bounded number of origins: calls to ten thousand
hosts in turn must not use up the descriptors of the daemon's clients. Others are closed after their
call.

aiohttp's client takes 0.1 to 0.3 s to import, so `push.webhook` imports this module at the first
call.
"""

import asyncio
import contextlib
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from aiohttp.streams import StreamReader
from yarl import URL

from delayd.limits import (
    PUSH_ANSWER_BYTES_MAX,
    PUSH_ANSWER_MS,
    PUSH_ANSWER_READ_BYTES_MAX,
    PUSH_CLOSE_MS,
    PUSH_HINTS_MAX,
    PUSH_IDLE_MS,
    PUSH_LOOKUPS_MAX,
    PUSH_ORIGINS_KEPT_MAX,
    PUSH_PIECE_BYTES,
    PUSH_READ_BYTES,
)
from delayd.push.egress import AddressRefused, EgressRules

LookUp = Callable[[str, int], Awaitable[list[tuple[Any, ...]]]]
"""Finds the addresses of a host: rows as `socket.getaddrinfo` returns them. Raises `OSError`."""

_NEW_SOCKETS: Final[ContextVar[list[str]]] = ContextVar("_NEW_SOCKETS")
"""Addresses for which sockets were made for the call under way; none: it uses a kept connection.

aiohttp tells it by traces too, which cost every call a tenth of its time.
"""

_SWITCHING: Final = 101
_NUMERIC: Final = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


async def look_up(host: str, port: int) -> list[tuple[Any, ...]]:
    """Ask the system for the addresses of a host. Raises `OSError`.

    Each look-up has a thread of its own, which nothing waits for: one that hangs must hold up
    neither other hosts nor the end of the process.
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
            # As bytes: for a text Python would use its own codec of international names.
            rows = socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM)
        except OSError as error:
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(finish, rows, failure)

    threading.Thread(target=work, name=f"look up {host}", daemon=True).start()
    return await found


class _Resolver(AbstractResolver):
    """Returns those addresses of a host that may be called, and fails if none may."""

    def __init__(self, rules: EgressRules, look_up_host: LookUp) -> None:
        self._rules = rules
        self._look_up = look_up_host
        self._places = asyncio.Semaphore(PUSH_LOOKUPS_MAX)

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002 - aiohttp's
    ) -> list[ResolveResult]:
        async with self._places:
            rows = await self._look_up(host, port)
        refused: AddressRefused | None = None
        passed: list[ResolveResult] = []
        for row_family, _kind, protocol, _name, where in rows:
            # A fourth part is the zone, without which the address means another one.
            address = f"{where[0]}%{where[3]}" if len(where) > 3 and where[3] else where[0]
            try:
                self._rules.vet_address(address, port, host)
            except AddressRefused as error:
                refused = refused or error
            else:
                passed.append(
                    ResolveResult(
                        hostname=host,
                        host=address,
                        port=port,
                        family=row_family,
                        proto=protocol,
                        flags=_NUMERIC,
                    )
                )
        if not passed:
            raise refused or OSError(f"{host} has no address")
        return passed

    async def close(self) -> None:
        """Do nothing: a look-up under way ends by itself."""


class CallAnswer(NamedTuple):
    """What was answered."""

    status: int
    retry_after: str
    """The header of that name; empty: there was none."""
    beginning: bytes
    """Of its body."""


class Connections:
    """Two connectors of aiohttp: one that keeps idle connections, one that closes them."""

    __slots__ = ("_closing", "_keeping", "_kept", "_loop", "_rules", "_timeout")

    def __init__(
        self,
        rules: EgressRules,
        connect_timeout_ms: int,
        verified: ssl.SSLContext,
        look_up_host: LookUp = look_up,
    ) -> None:
        """Be ready to connect, in the loop that is running."""
        self._rules = rules
        self._loop = asyncio.get_running_loop()
        resolver = _Resolver(rules, look_up_host)
        self._keeping = self._connector(resolver, verified, is_kept=True)
        self._closing = self._connector(resolver, verified, is_kept=False)
        # No timeout is rounded up to a second.
        self._timeout = aiohttp.ClientTimeout(
            connect=connect_timeout_ms / 1_000, ceil_threshold=float("inf")
        )
        self._kept: dict[str, tuple[float, aiohttp.ClientRequest]] = {}
        """Origins whose connections are kept: when they were last used, the oldest first, and what
        the connector asks of a request."""

    def _connector(
        self, resolver: AbstractResolver, verified: ssl.SSLContext, *, is_kept: bool
    ) -> aiohttp.TCPConnector:
        return aiohttp.TCPConnector(
            resolver=resolver,
            socket_factory=self._socket,
            ssl=verified,
            limit=0,  # the sender has its own, and nothing waits for a place here
            force_close=not is_kept,
            keepalive_timeout=PUSH_IDLE_MS / 1_000 if is_kept else None,
        )

    def _socket(self, place: tuple[Any, ...]) -> socket.socket:
        """Make the socket for one address, if that may be called. Raises `AddressRefused`."""
        family, kind, protocol, _name, where = place
        self._rules.vet_address(where[0], where[1])
        _NEW_SOCKETS.get([]).append(where[0])
        return socket.socket(family, kind, protocol)

    async def ask(self, origin: str, head: bytes, body: bytes) -> CallAnswer:
        """Send a request and return its answer; `head` is without the empty line at its end.

        Raises `TimeoutError` if there is no connection in time, else what aiohttp raises.
        """
        known = self._known(origin)
        if known is not None:
            new_sockets: list[str] = []
            _NEW_SOCKETS.set(new_sockets)
            connection = await self._keeping.connect(known, [], self._timeout)
            try:
                return await _exchange(connection, head + b"\r\n", body)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                if new_sockets:
                    raise
            # The server has closed a kept connection while the request was on its way.
        connection = await self._closing.connect(self._request(origin), [], self._timeout)
        return await _exchange(connection, head + b"Connection: close\r\n\r\n", body)

    def _known(self, origin: str) -> aiohttp.ClientRequest | None:
        """Note that connections to this origin are kept; None: those to too many others are."""
        now_s = self._loop.time()
        known = self._kept.pop(origin, None)
        if known is None and len(self._kept) >= PUSH_ORIGINS_KEPT_MAX:
            oldest = next(iter(self._kept))
            if now_s - self._kept[oldest][0] < PUSH_IDLE_MS / 1_000:
                return None
            del self._kept[oldest]  # its connections have been closed
        request = self._request(origin) if known is None else known[1]
        self._kept[origin] = now_s, request
        return request

    def _request(self, origin: str) -> aiohttp.ClientRequest:
        """Return what a connector asks where to connect to."""
        return aiohttp.ClientRequest("POST", URL(origin, encoded=True), loop=self._loop)

    async def close(self) -> None:
        """Close all connections."""
        await self._keeping.close()
        await self._closing.close()


async def _exchange(connection: Connection, head: bytes, body: bytes) -> CallAnswer:
    """Send a request and return its answer; the connection is kept or closed then.

    Raises what aiohttp's parser raises, and `ClientOSError` or `ServerDisconnectedError`.
    """
    protocol = connection.protocol
    assert protocol is not None, "a connection that was returned has one"
    transport = protocol.transport
    writing: asyncio.Task[None] | None = None
    is_answered = False
    try:
        if transport is None or len(protocol):
            # Closed; or it was kept, and an answer to nothing waits there, which must not be taken
            # for the answer to this.
            raise aiohttp.ServerDisconnectedError
        protocol.set_response_params(
            read_until_eof=True, auto_decompress=False, read_bufsize=PUSH_READ_BYTES
        )
        if len(body) <= PUSH_PIECE_BYTES:
            transport.write(head + body)
        else:
            loop = asyncio.get_running_loop()
            writing = loop.create_task(_write_long(StreamWriter(protocol, loop), head, body))
        message, content = await protocol.read()
        hints = 0
        while message.code < 200 and message.code != _SWITCHING:  # such as 103 Early Hints
            hints += 1
            if hints > PUSH_HINTS_MAX:
                raise aiohttp.http.HttpProcessingError(message="one hint after the other")
            message, content = await protocol.read()
        beginning = await _beginning(content)
        is_answered = True
        if content.is_eof() and (writing is None or writing.done()):
            connection.release()
        return CallAnswer(message.code, message.headers.get("Retry-After", ""), beginning)
    finally:
        if writing is not None:
            writing.cancel()
        connection.close()  # unless it was released
        if transport is not None and transport.is_closing():
            # Or what was written would wait for a peer that never reads, and TLS for its goodbye.
            close_ms = PUSH_CLOSE_MS if is_answered else 0
            asyncio.get_running_loop().call_later(close_ms / 1_000, transport.abort)


async def _write_long(writer: StreamWriter, head: bytes, body: bytes) -> None:
    """Write a long body in pieces, as fast as they are taken; an answer may come before its end."""
    left = memoryview(body)
    # What ends the connection is heard where the answer is waited for.
    with contextlib.suppress(aiohttp.ClientError, OSError):
        await writer.write(head)
        while left:
            await writer.write(left[:PUSH_PIECE_BYTES])
            left = left[PUSH_PIECE_BYTES:]


async def _beginning(content: StreamReader) -> bytes:
    """Read the answer, so that its connection can be used again, and return how it begins.

    One that is long, slow or broken is cut off: the status has been told, and that is what counts.
    """
    if content.is_eof():  # as nearly every answer to a call
        return content.read_nowait()[:PUSH_ANSWER_BYTES_MAX]
    beginning = b""
    read_bytes = 0
    with contextlib.suppress(TimeoutError, aiohttp.ClientError, OSError):
        async with asyncio.timeout(PUSH_ANSWER_MS / 1_000):
            while read_bytes <= PUSH_ANSWER_READ_BYTES_MAX and (piece := await content.readany()):
                beginning += piece[: PUSH_ANSWER_BYTES_MAX - len(beginning)]
                read_bytes += len(piece)
    return beginning
