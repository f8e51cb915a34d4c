"""Servers for the compatibility tests; those with Debian's beanstalkd skip where there is none."""

import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests import servers
from tests.line_client import LineClient
from tests.servers import Server

ALONE_S_MAX: Final = 60.0
POLL_S: Final = 0.001
Connect = Callable[[], LineClient]


def needs_beanstalkd() -> None:
    if servers.BEANSTALKD is None:
        pytest.skip(servers.NO_BEANSTALKD)


@pytest.fixture(scope="module", params=["beanstalkd", "delayd-beanstalkd"])
def any_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Debian's, and delayd in its place."""
    if request.param == "beanstalkd":
        needs_beanstalkd()
    start = servers.beanstalkd if request.param == "beanstalkd" else servers.delayd_beanstalkd
    with start() as server:
        yield server


@pytest.fixture
def connect(any_server: Server) -> Iterator[Connect]:
    """Give out connections to an empty server, and leave it empty: no jobs, no pause."""
    opened: list[LineClient] = []

    def connect() -> LineClient:
        opened.append(LineClient(any_server.address))
        return opened[-1]

    with LineClient(any_server.address) as keeper:
        first = keeper.put()
        keeper.ask(f"delete {first}")
        yield connect
        for client in opened:
            client.close()
        deadline = time.monotonic() + ALONE_S_MAX
        while keeper.stats()["current-connections"] != "1":
            assert time.monotonic() < deadline, "the server keeps connections that are closed"
            time.sleep(POLL_S)
        for job in range(first, keeper.put() + 1):
            keeper.ask(f"delete {job}")
        keeper.ask("pause-tube default 0")


@pytest.fixture
def client(connect: Connect) -> LineClient:
    return connect()
