"""Servers for the compatibility tests; those with Debian's beanstalkd skip where there is none."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests import servers
from tests.line_client import Address, LineClient
from tests.servers import Server

ALONE_S_MAX: Final = 60.0
POLL_S: Final = 0.001
Connect = Callable[[], LineClient]

AS_1_12: Final = "delayd-beanstalkd --compat 1.12"
AS_1_13: Final = ("delayd-beanstalkd", "delayd serve")
SERVERS: Final = ("beanstalkd", AS_1_12, *AS_1_13)
OURS: Final = SERVERS[1:]


def needs_beanstalkd() -> None:
    if servers.BEANSTALKD is None:
        pytest.skip(servers.NO_BEANSTALKD)


def start(name: str, directory: Path) -> Server:
    match name:
        case "beanstalkd":
            needs_beanstalkd()
            return servers.beanstalkd()
        case "delayd-beanstalkd":
            return servers.delayd_beanstalkd()
        case "delayd-beanstalkd --compat 1.12":
            return servers.delayd_beanstalkd("--compat", "1.12")
        case _:
            return servers.delayd_serve(directory / "data")


@pytest.fixture(scope="module", params=SERVERS)
def any_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with start(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


@pytest.fixture(scope="module", params=OURS)
def our_server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    with start(request.param, tmp_path_factory.mktemp("server")) as server:
        yield server


def connections_to(address: Address) -> Iterator[Connect]:
    """Give out connections to an empty server, and leave it empty: no jobs, no pause."""
    opened: list[LineClient] = []

    def connect() -> LineClient:
        opened.append(LineClient(address))
        return opened[-1]

    with LineClient(address) as keeper:
        first = keeper.put()
        keeper.ask(f"delete {first}")
        yield connect
        for client in opened:
            client.close()
        wait_until_alone(keeper)
        for job in range(first, keeper.put() + 1):
            keeper.ask(f"delete {job}")
        keeper.ask("pause-tube default 0")


class TimeLeft:
    """What is left of a time that begins now, in whole seconds as a server tells them.

    However long the machine takes to ask: `left == "9"` would be wrong a second later.
    """

    def __init__(self, whole_s: int) -> None:
        self._whole_s = whole_s
        self._began_s = time.monotonic()

    def is_told_by(self, told: str | int) -> bool:
        passed_s = time.monotonic() - self._began_s
        return self._whole_s - 1 - passed_s <= int(told) <= self._whole_s - 1


def wait_until_alone(keeper: LineClient, *, clients: int = 1) -> None:
    deadline = time.monotonic() + ALONE_S_MAX
    while keeper.stats()["current-connections"] != str(clients):
        assert time.monotonic() < deadline, "the server keeps connections that are closed"
        time.sleep(POLL_S)


@pytest.fixture
def connect(any_server: Server) -> Iterator[Connect]:
    """Opens connections to each kind of server in turn."""
    yield from connections_to(any_server.address)


@pytest.fixture
def client(connect: Connect) -> LineClient:
    return connect()
