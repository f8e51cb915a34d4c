"""The HTTP API put together of its parts, for the service; importing this imports aiohttp."""

import socket
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from delayd.http.admission import Door, Hosts
from delayd.http.api import Api
from delayd.http.server import HttpServer

if TYPE_CHECKING:
    from delayd.access.control import AccessControl
    from delayd.http.bounds import Bounds


def http_server(
    api: Api,
    entrance: "AccessControl",
    bounds: "Bounds",
    hosts: Collection[str],
    listeners: Sequence[socket.socket],
    on_fault: Callable[[BaseException], object],
) -> HttpServer:
    """Return the server; `start` begins to accept. Raises `NoCParser`."""
    api.renewed = entrance.authenticator.renewed
    door = Door(api, entrance.authenticator, Hosts(hosts), bounds.body_bytes_max)
    return HttpServer(api, door, listeners, bounds, on_fault=on_fault, tls=entrance.http_tls)
