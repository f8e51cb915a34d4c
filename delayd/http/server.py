"""The server: start and stop.

`accept` and `connections` take requests in and bound the cost of each client, `routing` finds the
call, `admission` checks the client, the handlers call the engine. A fault of our own in a handler
ends the process, as one in a turn does: the state in memory cannot be trusted any more.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from delayd.access.connection_limits import ConnectionLimits
from delayd.access.reload import AccessControl
from delayd.clock import NS_PER_MS, monotonic_ns
from delayd.core.errors import Refusal
from delayd.http.accept import HttpAcceptor
from delayd.http.admission import Endpoint, Hosts, RequestAdmission
from delayd.http.api import Api
from delayd.http.bounds import Bounds
from delayd.http.connection import HttpRequest
from delayd.http.connections import HttpConnections
from delayd.http.request_reader import require_c_parser
from delayd.http.responses import Reply
from delayd.http.routes import ROUTES
from delayd.http.routing import Route, Router
from delayd.http.ui_files import UI_PATH, page_reply, to_the_page
from delayd.limits import HTTP_STOP_MS_MAX, HTTP_STOP_STEP_MS


class HttpServer:
    """Serves the API on sockets that listen already."""

    def __init__(
        self,
        api: Api,
        access: AccessControl,
        bounds: Bounds,
        hosts: Collection[str],
        listeners: Sequence[socket.socket],
        on_fault: Callable[[BaseException], object],
        *,
        serves_ui: bool = False,
        routes: Iterable[Route] = ROUTES,
        otherwise: Callable[[], Refusal] | None = None,
    ) -> None:
        """Use the running loop, and accept nothing yet.

        `on_fault` is called with a fault of our own, and does not return. Requests that are none of
        the `routes` are refused with what `otherwise` returns, if it is there.

        Raises `NoCParser`.
        """
        require_c_parser()
        api.renewed = access.authenticator.renewed
        admission = RequestAdmission(
            *(api, access.authenticator, Hosts(hosts), bounds.body_bytes_max), serves_ui=serves_ui
        )
        self._api = api
        self.requests = api.requests
        """Answered requests, by the name of the call."""
        self._admission = admission
        self._router: Router[Endpoint] = Router()
        self._otherwise = otherwise
        for route in routes:
            self._serve(route.method, route.path, admission.endpoint(route))
        if serves_ui:
            self._serve("GET", UI_PATH.removesuffix("/"), admission.page_endpoint(to_the_page))
            for path in (UI_PATH, f"{UI_PATH}{{file}}"):
                self._serve("GET", path, admission.page_endpoint(page_reply))
        self.connections = api.connections = HttpConnections(
            self._handle,
            api.turns,
            bounds,
            lambda: monotonic_ns() // NS_PER_MS,
            on_fault,
            ConnectionLimits(
                access.authenticator,
                connections_max=bounds.connections_max,
                per_address_max=bounds.connections_per_ip_max,
                unauthenticated_per_address_max=bounds.unauthenticated_per_ip_max,
            ),
            api.refusals.note,
        )
        self._acceptor = HttpAcceptor(self.connections, listeners, access.http_tls)

    def _serve(self, method: str, path: str, endpoint: Endpoint) -> None:
        self._router.add(method, path, endpoint)
        if method == "GET":
            self._router.add("HEAD", path, endpoint)

    def _handle(self, request: HttpRequest) -> Awaitable[Reply]:
        try:
            endpoint, names = self._router.find(request.method, request.target)
        except Refusal as refusal:
            otherwise = self._otherwise
            return self._admission.refuse(refusal if otherwise is None else otherwise())
        return endpoint(request, names)

    def start(self) -> None:
        """Accept connections."""
        self._acceptor.open()
        self._api.memos.begin(self._api.now_ms())

    def stop_accepting(self) -> None:
        """Accept no more connections; answer 503 to requests that wait for jobs."""
        self._api.is_stopping = True
        self._acceptor.close()
        for stop in [*self._api.waiting]:
            stop()

    async def stop(self) -> None:
        """Wait, for a bounded time, until begun requests are answered; close all connections."""
        loop = self._api.loop
        ends_s = loop.time() + HTTP_STOP_MS_MAX / 1_000
        answering = [*self.connections.finish(), loop.create_task(self._api.durable())]
        _, late = await asyncio.wait(answering, timeout=HTTP_STOP_MS_MAX / 1_000)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)
        # Closing drops asyncio's buffers: without the answer a client would repeat its request.
        unsent = self.connections.unsent()
        while unsent and loop.time() < ends_s:
            await asyncio.sleep(HTTP_STOP_STEP_MS / 1_000)
            unsent = [connection for connection in unsent if connection.has_unsent]
        self.connections.close()

    def abort(self) -> None:
        """Close all connections at once: no change may be acknowledged any more."""
        self.connections.close()
