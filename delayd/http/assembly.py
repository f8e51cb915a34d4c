"""The HTTP API put together of its parts, for the service; importing this imports aiohttp."""

import socket
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from delayd.http.api import Api
from delayd.http.app import HttpServer
from delayd.http.door import Door, Hosts

if TYPE_CHECKING:
    from delayd.access.entrance import Entrance
    from delayd.http.bounds import Bounds


def http_server(
    api: Api,
    entrance: "Entrance",
    bounds: "Bounds",
    hosts: Collection[str],
    listeners: Sequence[socket.socket],
    on_fault: Callable[[BaseException], object],
) -> HttpServer:
    """Return the server; `start` begins to accept. Raises `NoCParser`."""
    api.renewed = entrance.doorkeeper.renewed
    door = Door(api, entrance.doorkeeper, Hosts(hosts), bounds.body_bytes_max)
    return HttpServer(api, door, listeners, bounds, on_fault=on_fault, tls=entrance.http_tls)
