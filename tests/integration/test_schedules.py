"""Schedules as a new user meets them: docs/schedules.md, and nights without a daemon."""

import datetime as dt
import json
import time
from pathlib import Path
from typing import Any, Final

import pytest

from delayd.cli.main import invoke
from delayd.client import Client, ScheduleConfigured
from delayd.exits import Exit
from delayd.testing.daemon import Daemon, running_daemon
from tests.config_files import written
from tests.faults.test_real_clock import WallClock
from tests.http_client import HTTP
from tests.pages import Reader, needs_curl
from tests.rigs.process import serve_command, warnings_of

ZONE: Final = "America/New_York"
NIGHTLY: Final = (
    "put",
    "nightly",
    "{}",
    "--topic",
    "reports",
    "--cron",
    "30 2 * * *",
    "--tz",
    ZONE,
)


class Shell:
    """Somebody who types `delayd schedule`, and the daemon that answers."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def asks(self, daemon: Daemon) -> str:
        """Have this daemon answer from now on; return its url."""
        url = f"http://{daemon.http_listens_on}"
        self._monkeypatch.setenv("DELAYD_URL", url)
        return url

    def type(self, *words: str) -> str:
        code = invoke(["schedule", *words])
        said = self._capsys.readouterr()
        assert code == Exit.OK, said.err
        return said.out

    def objects(self, *words: str) -> list[Any]:
        return [json.loads(line) for line in self.type(*words, "--json").splitlines()]


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    return Shell(capsys, monkeypatch)


@needs_curl
def test_schedules_do_what_the_page_says(tmp_path: Path) -> None:
    with running_daemon(*HTTP, clock="virtual") as daemon:
        Reader(tmp_path, daemon).follow("schedules.md")


def test_a_report_of_nights_without_the_daemon_comes_once_when_it_is_back(
    tmp_path: Path, shell: Shell
) -> None:
    """The nights are those of March 2030: the second one has no half past two in New York."""
    wall, home = WallClock(tmp_path), tmp_path / "data"

    def at(moment: str) -> None:
        ahead_s = dt.datetime.fromisoformat(moment).timestamp() - time.time()
        wall.set(f"{ahead_s:+.0f}")

    at("2030-03-08T20:00:00Z")
    with Daemon(serve_command(home, *HTTP), environment=wall.environment) as daemon:
        shell.asks(daemon)
        assert "next run 2030-03-09T07:30:00Z, Sat 2030-03-09 02:30:00 EST" in shell.type(*NIGHTLY)
    at("2030-03-10T12:00:00Z")
    with (
        Daemon(serve_command(home, *HTTP), environment=wall.environment) as daemon,
        Client(shell.asks(daemon)) as client,
    ):
        with client.reserve("reports", timeout=60) as job:
            assert job.key == "nightly@2030-03-10T07:00:00Z"
        (shown,) = shell.objects("show", "nightly")
        counts = {name: shown[name] for name in ("runs", "missed", "late", "state")}
        assert counts == {"runs": 1, "missed": 1, "late": 1, "state": "active"}
        assert shown["last"]["outcome"] == "done"
        assert shown["next"] == "2030-03-11T06:30:00.000Z"


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
        Client(f"http://{daemon.http_listens_on}") as client,
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
        Client(f"http://{daemon.http_listens_on}") as client,
    ):
        left = {each.name: (each.source, each.body, each.runs) for each in client.schedules()}
        assert left == {"b": ("configuration", b'{"n":2}', 1), "c": ("run_time", b"mine", 1)}
        (warning,) = warnings_of(daemon)
        assert "'c'" in warning
        assert "remove it, and restart" in warning
        said = "the configuration changed schedules (b) and removed schedules (a)"
        assert said in daemon.log()
