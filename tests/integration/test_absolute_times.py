"""A real daemon whose wall clock is set while jobs with absolute times wait."""

import datetime as dt
import math
import re
from pathlib import Path

from delayd.client import Client
from delayd.testing.daemon import Daemon
from tests.faults.test_real_clock import WallClock
from tests.http_client import HTTP
from tests.line_client import LineClient
from tests.rigs.process import serve_command

HOUR_S = 3_600


def hours_left(daemon: Daemon) -> int:
    """Whole hours until the last job is due, by the daemon; some minutes may have passed."""
    with LineClient(daemon.address) as client:
        left_s = int(client.stats("stats-job 3")["time-left"])
    hours = math.ceil(left_s / HOUR_S)
    assert hours * HOUR_S - left_s <= 300
    return hours


def test_a_job_follows_the_wall_clock_of_the_daemon(tmp_path: Path) -> None:
    wall = WallClock(tmp_path)
    command = serve_command(tmp_path / "data", *HTTP)
    with Daemon(command, environment=wall.environment) as daemon:
        with Client(f"http://{daemon.http_listens_on}") as client:
            begun = dt.datetime.now(dt.UTC)
            for seconds in (1.5, HOUR_S, 3 * HOUR_S):
                client.put("t", "x", at=begun + dt.timedelta(seconds=seconds))
            assert client.reserve("t", timeout=60).id == 1
            assert dt.datetime.now(dt.UTC) >= begun + dt.timedelta(seconds=1.5)
            wall.set("+3600")
            assert client.reserve("t", timeout=60).id == 2
            assert hours_left(daemon) == 2
            wall.set("-3600")
            client.reserve_many("t", limit=1, timeout=0)
            assert hours_left(daemon) == 4
        # Milliseconds may go by between its first readings of two clocks, which it puts right too.
        told = re.findall(r"the wall clock was set or corrected.* by_ms=(-?\d+)", daemon.log())
        steps = [round(int(step_ms) / HOUR_S / 1_000) for step_ms in told]
        assert [step for step in steps if step] == [1, -2]
        daemon.kill()
    wall.set("+7200")
    with Daemon(command, environment=wall.environment) as daemon:
        assert hours_left(daemon) == 1
