"""Schedules of real daemons: nights without one, and those of the configuration."""

import datetime as dt
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from delayd.client import Client, ScheduleConfigured
from delayd.testing.daemon import Daemon, running_daemon
from tests.client.worlds import http_url
from tests.config_files import written
from tests.faults.test_real_clock import WallClock
from tests.http_client import HTTP
from tests.rigs.process import serve_command, warnings_of


def test_a_report_of_nights_without_the_daemon_comes_once_when_it_is_back(tmp_path: Path) -> None:
    """The nights are those of March 2030: the second one has no half past two in New York."""
    wall = WallClock(tmp_path)
    command = serve_command(tmp_path / "data", *HTTP)

    @contextmanager
    def daemon_at(moment: str) -> Iterator[Client]:
        ahead_s = dt.datetime.fromisoformat(moment).timestamp() - time.time()
        wall.set(f"{ahead_s:+.0f}")
        with (
            Daemon(command, environment=wall.environment) as daemon,
            Client(http_url(daemon)) as client,
        ):
            yield client

    with daemon_at("2030-03-08T20:00:00Z") as client:
        made = client.put_schedule(
            *("nightly", "reports", {}), cron="30 2 * * *", timezone="America/New_York"
        )
        assert made.next == dt.datetime(2030, 3, 9, 7, 30, tzinfo=dt.UTC)
    with daemon_at("2030-03-10T12:00:00Z") as client:
        with client.reserve("reports", timeout=60) as job:
            assert job.key == "nightly@2030-03-10T07:00:00Z"
        found = client.schedule("nightly")
        assert (found.runs, found.missed, found.late, found.state) == (1, 1, 1, "active")
        assert found.last is not None
        assert found.last.outcome == "done"
        assert found.next == dt.datetime(2030, 3, 11, 6, 30, tzinfo=dt.UTC)


CONFIGURED: Final = """
[schedules.a]
topic = "t"
cron = "@daily"
body = "of a"
[schedules.b]
topic = "t"
every = "1h"
body = {{ n = {n} }}
"""


def test_the_configuration_sets_changes_and_removes_its_schedules_at_a_start(
    tmp_path: Path,
) -> None:
    flags = (*HTTP, "--config", written(tmp_path, CONFIGURED.format(n=1)))
    home = tmp_path / "data"
    with (
        running_daemon(*flags, data_dir=home, clock="virtual") as daemon,
        Client(http_url(daemon)) as client,
    ):
        made = {each.name: (each.source, each.body) for each in client.schedules()}
        assert made == {"a": ("configuration", b"of a"), "b": ("configuration", b'{"n":1}')}
        with pytest.raises(ScheduleConfigured):
            client.remove_schedule("a")
        client.put_schedule("c", "t", "mine", every="1h")
        daemon.advance(3_600)
        assert not warnings_of(daemon)
        assert "the configuration added schedules (a, b)" in daemon.log()
    written(tmp_path, CONFIGURED.format(n=2).replace("[schedules.a]", "[schedules.c]"))
    with (
        running_daemon(*flags, data_dir=home, clock="virtual") as daemon,
        Client(http_url(daemon)) as client,
    ):
        left = {each.name: (each.source, each.body, each.runs) for each in client.schedules()}
        assert left == {"b": ("configuration", b'{"n":2}', 1), "c": ("run_time", b"mine", 1)}
        (warning,) = warnings_of(daemon)
        assert "'c'" in warning
        assert "remove it, and restart" in warning
        said = "the configuration changed schedules (b) and removed schedules (a)"
        assert said in daemon.log()
