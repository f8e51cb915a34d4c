"""Servers for the compatibility tests; those with Debian's beanstalkd skip where there is none."""

from collections.abc import Callable, Iterator

import pytest

from tests import servers
from tests.line_client import LineClient
from tests.rigs.waiting import until
from tests.servers import Server

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
        until(lambda: keeper.stats()["current-connections"] == "1")  # closed ones are gone
        for job in range(first, keeper.put() + 1):
            keeper.ask(f"delete {job}")
        keeper.ask("pause-tube default 0")


@pytest.fixture
def client(connect: Connect) -> LineClient:
    return connect()
