"""Connections of calls: every one is made to an address that the egress rules let pass.

    host ─► look_up, in a thread ─► addresses that pass ─► one socket for one of them, vetted again

aiohttp connects to what `_Resolver` returns, and asks `_socket` for each socket, with the very
address that it is about to connect to; so also an address in place of a name is vetted, and a name
that has another address a second later. No proxy, cookie, redirect or user of the environment
is ever used.

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
from typing import Any, Final

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from delayd.limits import (
    PUSH_IDLE_MS,
    PUSH_LOOKUPS_MAX,
    PUSH_ORIGINS_KEPT_MAX,
    PUSH_READ_BYTES,
)
from delayd.push.egress import AddressRefused, EgressRules

LookUp = Callable[[str, int], Awaitable[list[tuple[Any, ...]]]]
"""Finds the addresses of a host: rows as `socket.getaddrinfo` returns them. Raises `OSError`."""

NEW_SOCKETS: Final[ContextVar[list[str]]] = ContextVar("NEW_SOCKETS")
"""Addresses for which sockets were made for the call under way; none: it uses a kept connection.

aiohttp tells it by traces too, which cost every call a tenth of its time.
"""

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


class Connections:
    """Two sessions of aiohttp: one that keeps idle connections, one that closes them."""

    __slots__ = ("_closing", "_keeping", "_kept", "_loop", "_rules")

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
        self._keeping = self._session(resolver, verified, connect_timeout_ms, is_kept=True)
        self._closing = self._session(resolver, verified, connect_timeout_ms, is_kept=False)
        self._kept: dict[str, float] = {}
        """Origins whose connections are kept, and when they were last used; the oldest first."""

    def _session(
        self,
        resolver: AbstractResolver,
        verified: ssl.SSLContext,
        connect_timeout_ms: int,
        *,
        is_kept: bool,
    ) -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(
            resolver=resolver,
            socket_factory=self._socket,
            ssl=verified,
            limit=0,  # the sender has its own, and nothing waits for a place here
            force_close=not is_kept,
            keepalive_timeout=PUSH_IDLE_MS / 1_000 if is_kept else None,
        )
        seconds = connect_timeout_ms / 1_000
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            read_bufsize=PUSH_READ_BYTES,
            skip_auto_headers=("Accept-Encoding",),
            # The sender cuts off what takes too long; and no timeout is rounded up to a second.
            timeout=aiohttp.ClientTimeout(connect=seconds, ceil_threshold=float("inf")),
        )

    def _socket(self, place: tuple[Any, ...]) -> socket.socket:
        """Make the socket for one address, if that may be called. Raises `AddressRefused`."""
        family, kind, protocol, _name, where = place
        self._rules.vet_address(where[0], where[1])
        NEW_SOCKETS.get([]).append(where[0])
        return socket.socket(family, kind, protocol)

    def session(self, origin: str) -> aiohttp.ClientSession:
        """Return the session for a call to this origin."""
        now_s = self._loop.time()
        if self._kept.pop(origin, None) is None and len(self._kept) >= PUSH_ORIGINS_KEPT_MAX:
            oldest = next(iter(self._kept))
            if now_s - self._kept[oldest] < PUSH_IDLE_MS / 1_000:
                return self._closing
            del self._kept[oldest]  # its connections have been closed
        self._kept[origin] = now_s
        return self._keeping

    @property
    def fresh(self) -> aiohttp.ClientSession:
        """A session that uses no connection that was used before."""
        return self._closing

    async def close(self) -> None:
        """Close all connections."""
        await self._keeping.close()
        await self._closing.close()
