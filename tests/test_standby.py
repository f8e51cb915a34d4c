"""A start that follows the log of another daemon: what it announces, and how it ends."""

import gc
import io
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from delayd import recover as recover_module
from delayd.config import Config, load
from delayd.log_lines import Log
from delayd.net.addresses import Listener, Listeners, TcpAddress, UnixAddress
from delayd.recover import GivenUp, Progress, recover
from delayd.service import announced
from delayd.systemd import Notifier
from tests.rigs.clock import START_MS, FakeClock
from tests.rigs.log import MemoryLog, Place

EVERYWHERE = "0.0.0.0"  # noqa: S104 - nothing listens there


@pytest.mark.parametrize(
    ("name", "line", "http", "told"),
    [
        ("off", TcpAddress("10.0.0.7", 11300), None, "line 10.0.0.7:11300"),
        ("off", TcpAddress(EVERYWHERE, 1), TcpAddress("::", 2), "line HERE:1, http HERE:2"),
        ("off", TcpAddress("127.0.0.1", 1), None, "line 127.0.0.1:1 on HERE"),
        ("db-a", TcpAddress("127.0.0.1", 1), TcpAddress(EVERYWHERE, 2), "line db-a:1, http db-a:2"),
        ("2001:db8::1", None, TcpAddress("::", 2), "http [2001:db8::1]:2"),
        ("off", UnixAddress("/run/line"), None, "line unix:/run/line on HERE"),
    ],
)
def test_an_owner_announces_where_others_reach_it(
    name: str, line: object, http: object, told: str
) -> None:
    config = load(None, {"DELAYD_POSTGRES_ADDRESS": name}, {})
    opened = [
        () if address is None else (cast("Listener", SimpleNamespace(address=address)),)
        for address in (line, http)
    ]
    assert announced(config, Listeners(*opened)) == told.replace("HERE", os.uname().nodename)


class Following:
    """A start on a log in memory that another daemon owns."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **more: Any) -> None:  # noqa: ANN401
        self.place = Place()
        self.place.is_owned = True
        self.log = MemoryLog(self.place)
        monkeypatch.setattr(recover_module, "_opened", lambda *_: self.log)
        self.progress = Progress(**more)

    def recover(self) -> None:
        log = Log(io.StringIO(), int)
        recover(
            *(Config(data_dir="data"), FakeClock(START_MS), log, Notifier({}, 1)),
            progress=self.progress,
        )


def test_a_start_that_is_not_wanted_any_more_takes_nothing_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end() -> None:
        rig.progress.is_wanted = False
        rig.place.is_owned = False

    rig = Following(monkeypatch, on_standing_by=end)
    with pytest.raises(GivenUp):
        rig.recover()
    assert rig.progress.log is rig.log
    assert rig.log.is_closed
    assert rig.place.owners == 0


def test_garbage_is_collected_while_a_daemon_stands_by(monkeypatch: pytest.MonkeyPatch) -> None:
    collects: list[bool] = []

    def look() -> None:
        assert rig.progress.is_standing_by
        collects.append(gc.isenabled())
        rig.place.is_owned = False

    rig = Following(monkeypatch, on_standing_by=look)
    rig.recover()
    assert collects == [True]
    assert rig.place.owners == 1
