import asyncio
from collections.abc import Iterator

import pytest

from delayd.testing.daemon import Daemon, running_daemon
from tests.client.made import Made
from tests.client.worlds import KINDS, World


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with running_daemon("--http", "127.0.0.1:0", clock="virtual") as daemon:
        yield daemon


@pytest.fixture
def rivals(daemon: Daemon) -> Iterator[list[World]]:
    """A client of each protocol, and one topic for both."""
    with KINDS["http"](daemon) as http, KINDS["line"](daemon) as line:
        line.topic = http.topic
        yield [http, line]


@pytest.fixture(params=sorted(KINDS))
def world(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[World]:
    with KINDS[request.param](daemon) as world:
        yield world


@pytest.fixture(params=["plain", "asyncio"])
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    loop = asyncio.new_event_loop()
    made = Made(request.param, loop)
    yield made
    made.close()
    loop.close()
