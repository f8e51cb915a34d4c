"""Policies by configuration alone: a stock client, a real daemon that is killed and stopped."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import greenstalk
import pytest

from delayd.testing.daemon import Daemon, running_daemon
from tests.line_client import LineClient

LADDER: Final = """
[topics."mail.*"]
retry = "15s 3m"
reserved_max = 1
[jobs]
jobs_max = 3
"""
BURY_AT_ONCE: Final = """
[topics."mail.*"]
max_attempts = 1
"""


class House:
    """Where daemons live one after the other, each with a configuration of its own."""

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        self.data_dir.mkdir()
        self.config = directory / "delayd.toml"
        self.daemons = contextlib.ExitStack()

    def daemon(self, config: str) -> Daemon:
        self.config.write_text(config)
        flags = ("--config", str(self.config))
        running = running_daemon(*flags, data_dir=self.data_dir, clock="virtual")
        return self.daemons.enter_context(running)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    with house.daemons:
        yield house


def state(daemon: Daemon, job_id: int = 1) -> object:
    with LineClient(daemon.address) as client:
        return client.stats(f"stats-job {job_id}")["state"]


def test_a_stock_client_gets_a_ladder_and_dead_letters_through_kills_by_configuration_alone(
    house: House,
) -> None:
    for attempt in range(3):
        daemon = house.daemon(LADDER)
        worker = greenstalk.Client(daemon.address, use="mail.welcome", watch="mail.welcome")
        if not attempt:
            worker.put("hello")
        job = worker.reserve(timeout=0)
        worker.release(job)
        assert state(daemon) == ("delayed", "delayed", "buried")[attempt]
        with pytest.raises(greenstalk.TimedOutError):
            worker.reserve(timeout=0)
        daemon.advance((15, 180, 0)[attempt])
        if attempt < 2:
            assert state(daemon) == "ready"
        worker.close()
        daemon.kill()
    daemon = house.daemon(LADDER)
    assert state(daemon) == "buried"
    with greenstalk.Client(daemon.address, use="mail.welcome", watch="mail.welcome") as client:
        client.kick(1)
        assert client.reserve(timeout=0).body == "hello"
    daemon.kill()


def test_a_closed_connection_is_a_failure_and_a_graceful_stop_is_none(house: House) -> None:
    daemon = house.daemon(BURY_AT_ONCE)
    with LineClient(daemon.address) as client:
        for _ in range(2):
            assert client.ask("put-in-tube mail.a 0 0 60", b"x").startswith("INSERTED")
    with LineClient(daemon.address) as dies:
        dies.ask("watch mail.a")
        assert dies.ask("reserve").startswith("RESERVED 1 ")
    ends_s = time.monotonic() + 60
    while state(daemon) == "reserved" and time.monotonic() < ends_s:
        time.sleep(0.01)  # until the daemon has seen that it closed
    assert state(daemon) == "buried"
    stays = LineClient(daemon.address)
    stays.ask("watch mail.a")
    assert stays.ask("reserve").startswith("RESERVED 2 ")
    assert daemon.stop() == 0
    stays.close()
    daemon = house.daemon(BURY_AT_ONCE)
    assert (state(daemon, 1), state(daemon, 2)) == ("buried", "ready")
    daemon.kill()


def test_caps_and_limits_of_the_configuration_hold(house: House) -> None:
    daemon = house.daemon(LADDER)
    with LineClient(daemon.address) as client, LineClient(daemon.address) as worker:
        for _ in range(3):
            client.ask("put-in-tube mail.a 0 0 60", b"x")
        assert client.ask("put-in-tube other 0 0 60", b"x") == "OUT_OF_MEMORY"
        worker.ask("watch mail.a")
        assert worker.ask("reserve").startswith("RESERVED 1 ")
        assert worker.ask("reserve-with-timeout 0") == "TIMED_OUT"
        assert worker.ask("delete 1") == "DELETED"
        assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 2 ")
        assert client.ask("put-in-tube other 0 0 60", b"x") == "INSERTED 5"
    daemon.kill()


def test_a_restart_with_another_configuration_judges_by_that_one(house: House) -> None:
    daemon = house.daemon(LADDER)
    with LineClient(daemon.address) as client:
        for _ in range(3):
            client.ask("put-in-tube mail.a 0 0 60", b"x")
        client.ask("watch mail.a")
        assert client.ask("reserve").startswith("RESERVED 1 ")
        daemon.kill()
    daemon = house.daemon(BURY_AT_ONCE)
    assert state(daemon) == "reserved"
    daemon.advance(60)
    assert state(daemon) == "buried"
    with LineClient(daemon.address) as client:
        assert client.ask("put-in-tube mail.a 0 0 60", b"x").startswith("INSERTED")
    daemon.kill()
    daemon = house.daemon("")
    with LineClient(daemon.address) as client:
        assert client.ask("get-policy mail.a") == "OK 2\r\n{}"
    daemon.kill()
