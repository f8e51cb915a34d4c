"""What a standby answers over HTTP: its own health, and where the owner of the log is.

    /healthz        200
    /readyz         503 with the owner's address: send it no jobs
    /metrics        its role and its lag; as of the owner, it may need a token
    all the rest    503 with the owner's address

It is the server of the API with three calls, so connections, hosts, tokens and TLS are bounded and
checked as they are there. Its engine is empty: jobs are replayed into another one, by a thread.
"""

import socket
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from delayd.access.reload import AccessControl
from delayd.clock import Clock
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.stats.refusals import Refusals
from delayd.http.api import Api, Call, Reports
from delayd.http.bounds import Bounds
from delayd.http.connection import HttpConnection
from delayd.http.problems import NotReady, StandingBy
from delayd.http.responses import Reply
from delayd.http.routes import ROUTES
from delayd.http.server import HttpServer
from delayd.schedules.opening import ScheduleOpener

_CALLS: Final = ("healthz", "readyz", "get_metrics")


class _NoTurns:
    """The turns of a daemon in which nothing changes."""

    def when_durable(self, callback: Callable[[], object]) -> None:
        callback()

    def reply_when_durable(self, client: HttpConnection, data: bytes) -> None:
        client.send(data)

    def wake_loop(self) -> None:
        """It looks at everything."""

    def ask(self) -> None:
        """There is no turn to take."""

    def look_at_wall_clock(self) -> None:
        """No job follows it."""


def standby_server(
    clock: Clock,
    access: AccessControl,
    bounds: Bounds,
    hosts: Sequence[str],
    listeners: Sequence[socket.socket],
    on_fault: Callable[[BaseException], object],
    *,
    state: Callable[[], tuple[str, str]],
    metrics: Callable[[int], Iterable[bytes]],
    metrics_type: str,
) -> HttpServer:
    """Return the server, on the running loop.

    `state` returns the owner's address, and while that is not known why this daemon does not serve.
    """
    engine = Engine(start_ms=0)

    def refusal() -> Refusal:
        owner, why = state()
        return StandingBy(owner) if owner else NotReady(why)

    async def readyz(_call: Call) -> Reply:
        raise refusal()

    tasks, turns = BackgroundTasks(engine), _NoTurns()
    api = Api(
        *(engine, turns, clock, tasks),
        ScheduleOpener(engine, tasks, turns.look_at_wall_clock, lambda _line: None),
        standing=None,
        refusals=Refusals(),
        reports=Reports(
            lambda _now_ms: {},
            metrics=metrics,
            metrics_type=metrics_type,
            log_trouble=str,
            space_trouble=str,
            push_blocks=lambda _topic: (),
        ),
        idempotency_keys_max=1,
    )
    routes = [route for route in ROUTES if route.name in _CALLS]
    return HttpServer(
        *(api, access, bounds, hosts, listeners, on_fault),
        routes=[
            route._replace(handler=readyz) if route.name == "readyz" else route for route in routes
        ],
        otherwise=refusal,
    )
