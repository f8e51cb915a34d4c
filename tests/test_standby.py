"""A start that follows the log of another daemon: what it announces, and how it ends."""

import gc
import io
import os
from types import SimpleNamespace
from typing import Any, cast

import pytest

from delayd import recover as recover_module
from delayd.config import Config, load
from delayd.figures import log_trouble
from delayd.limits import HANDOVER_LAG_MS_MAX, SLOW_SYNC_MS
from delayd.log import LogOwnership, LogStandby
from delayd.log_lines import Log
from delayd.net.addresses import Listener, Listeners, TcpAddress, UnixAddress
from delayd.recover import GivenUp, Progress, recover
from delayd.service import announced, successor
from delayd.standby import Standby
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


DB = "postgresql://db/jobs"
OWNERSHIP = LogOwnership(*(True, "here", 3, 900, DB, ""), ())


def test_the_log_is_handed_over_to_a_standby_that_has_followed_it() -> None:
    assert "not in a database" in successor(None)[1]
    assert "no other daemon follows" in successor(OWNERSHIP)[1]
    behind = LogStandby("there", 7, HANDOVER_LAG_MS_MAX + 1)
    assert successor(OWNERSHIP._replace(standbys=(behind,))) == (
        "",
        "the standby there is 3.0 s behind: try again when it has caught up",
    )
    level = LogStandby("elsewhere", 1, HANDOVER_LAG_MS_MAX)
    assert successor(OWNERSHIP._replace(standbys=(behind, level))) == ("elsewhere", "")


@pytest.mark.parametrize(
    ("is_whole", "settling_ms", "missing", "trouble", "told"),
    [
        (True, SLOW_SYNC_MS, "", "", ""),
        (True, 3_500, "", "", ""),  # it is waited for here, as long as the lease goes on
        (True, 3_500, "", "connection refused", ""),
        (False, 4_100, "", "", "OVER; the database DB has not answered for 4 s"),
        (False, 9_000, "", f"{DB} is away", "OVER; the database cannot be used: DB is away"),
        (True, 0, "a file", "", "a file: nothing is acknowledged until a snapshot replaces it"),
    ],
)
def test_why_nothing_becomes_durable_is_said_of_the_database(
    is_whole: bool, settling_ms: int, missing: str, trouble: str, told: str
) -> None:
    log = MemoryLog(Place())
    log.ownership, log.keeper = OWNERSHIP._replace(trouble=trouble), "database"
    log.is_whole, log.settling_ms = is_whole, settling_ms
    log.missing = missing
    over = "the lease of the log is over, another daemon may own it by now"
    assert log_trouble(log) == told.replace("OVER", over).replace("DB", DB)


def test_of_a_disk_it_is_said_in_words_of_disks() -> None:
    log = MemoryLog(Place())
    log.settling_ms = 3_500
    assert log_trouble(log) == "the disk has not answered for 3 s"


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


def test_a_standby_says_who_owns_the_log_or_how_far_it_has_read() -> None:
    standby = cast("Any", Standby.__new__(Standby))
    standby._progress = Progress()
    assert standby._state() == ("", "the log is being opened")
    standby._progress.log = log = MemoryLog(Place())
    assert standby._state() == ("", "recovering: about 99 % of the log was read")
    standby._progress.is_standing_by, log.owner = True, "there"
    assert standby._state() == ("there", "this daemon takes the log over")


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
