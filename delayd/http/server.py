"""The server: start and stop.

`connections` reads requests and bounds what a connection may cost, `dispatch` finds the
call, `door` lets requests in, the handlers ask the engine. A fault of our own in a handler ends the
process, as one in a turn does: what is in memory cannot be trusted any more.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from delayd.clock import monotonic_ns
from delayd.core.errors import Refusal
from delayd.http.accept import HttpAcceptor
from delayd.http.admission import AccessControl, Door
from delayd.http.api import Api
from delayd.http.bounds import Bounds
from delayd.http.connection_limits import HttpConnectionLimits
from delayd.http.connections import HttpRequest, require_c_parser
from delayd.http.responses import Reply
from delayd.http.routes import ROUTES
from delayd.http.routing import Router
from delayd.limits import HTTP_STOP_MS_MAX

if TYPE_CHECKING:
    import ssl

NS_PER_MS: Final = 1_000_000


class HttpServer:
    """Serves the API on sockets that listen already."""

    def __init__(
        self,
        api: Api,
        door: Door,
        listeners: Sequence[socket.socket],
        bounds: Bounds,
        *,
        on_fault: Callable[[BaseException], object],
        tls: "ssl.SSLContext | None" = None,
    ) -> None:
        """Put it together; `on_fault` is told of a fault of our own, and does not return."""
        require_c_parser()
        self._api = api
        self._door = door
        self._listeners = listeners
        self._bounds = bounds
        self._on_fault = on_fault
        self._tls = tls
        self._router: Router[AccessControl] = Router()
        for route in ROUTES:
            entrance = door.entrance(route)
            self._router.add(route.method, route.path, entrance)
            if route.method == "GET":
                self._router.add("HEAD", route.path, entrance)
        self.guard: HttpConnectionLimits | None = None
        """Knows the connections; None before the start."""
        self._acceptor: HttpAcceptor | None = None

    def _answer(self, request: HttpRequest) -> Awaitable[Reply]:
        """Answer a request."""
        try:
            entrance, names = self._router.find(request.method, request.target)
        except Refusal as refusal:
            return self._door.turn_away(refusal)
        return entrance(request, names)

    async def start(self) -> None:
        """Accept connections."""
        self.guard = HttpConnectionLimits(
            self._answer,
            self._bounds,
            lambda: monotonic_ns() // NS_PER_MS,
            self._on_fault,
            self._door.admission(self._bounds),
        )
        self.guard.note = self._api.refusals.note
        self._api.guard = self.guard
        self._acceptor = HttpAcceptor(self.guard, self._listeners, self._tls)
        self._acceptor.open()
        self._api.forgetting.begin(self._api.now_ms())

    def stop_accepting(self) -> None:
        """Accept nobody any more; those who wait for jobs are told that it is over."""
        self._api.is_stopping = True
        if self._acceptor is not None:
            self._acceptor.close()
        for consumer in [*self._api.waiting]:
            consumer.stop()

    async def stop(self) -> None:
        """Let what was begun be answered, for a bounded time, and close all connections."""
        if self.guard is None:
            return
        answering = self.guard.finish()
        if answering:
            _, late = await asyncio.wait(answering, timeout=HTTP_STOP_MS_MAX / 1_000)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        self.guard.close()

    def abort(self) -> None:
        """Close all connections at once: nothing may be acknowledged any more."""
        if self.guard is not None:
            self.guard.close()
