from collections.abc import Iterator

import pytest

from delayd.testing.daemon import Daemon, running_daemon
from tests.client.made import Made
from tests.client.working import Working
from tests.client.worlds import KINDS, World, world_of


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    with running_daemon("--http", "127.0.0.1:0", clock="virtual") as daemon:
        yield daemon


@pytest.fixture
def rivals(daemon: Daemon) -> Iterator[list[World]]:
    """A client of each protocol, and one topic for both."""
    with world_of("http", daemon) as http, world_of("line", daemon) as line:
        line.topic = http.topic
        yield [http, line]


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[World]:
    with world_of(request.param, daemon) as world:
        yield world


@pytest.fixture(params=["plain", "asyncio"])
def made(request: pytest.FixtureRequest) -> Iterator[Made]:
    with Made(request.param) as made:
        yield made


@pytest.fixture(params=["plain", "asyncio"])
def work(request: pytest.FixtureRequest) -> Working:
    return Working(request.param)
