"""How what the parts of a daemon count gets to the metrics."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

import pytest

from delayd import figures as figures_module
from delayd import turns as turns_module
from delayd.commit import GroupCommit
from delayd.config import SyncPolicy
from delayd.core.stats.refusals import Refusals
from delayd.figures import DaemonFigures
from delayd.journal.file_log import FileLog
from delayd.line.stats import Stats
from delayd.metrics import Metrics
from tests.rigs.commit import HOUR_MS, CommitRig, Watch, set_watch
from tests.rigs.disk import SimulatedDisk
from tests.rigs.http import HttpRig

if TYPE_CHECKING:
    from delayd.http.server import HttpServer


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return set_watch(monkeypatch, turns_module, figures_module)


@pytest.fixture
def turning(watch: Watch) -> CommitRig:
    return CommitRig(watch=watch)


def take_snapshot(rig: CommitRig) -> None:
    """Have one taken: of many jobs hardly any are left."""
    rig.delete(rig.put(2_000))
    rig.put()
    rig.pass_turn()
    rig.rest()
    assert rig.snapshots.taken


def test_the_age_of_a_snapshot_is_known_also_after_a_restart() -> None:
    rig = CommitRig(disk=SimulatedDisk(), snapshots=True)
    known = [rig.journal.snapshot_ms]
    take_snapshot(rig)
    known.append(rig.journal.snapshot_ms)
    rig.pass_turn(HOUR_MS)
    known.append(rig.restarted().journal.snapshot_ms)
    assert known[0] is None
    assert known[1] is not None
    assert known[1] == known[2]


HTTP: Final = cast(
    "HttpServer", SimpleNamespace(connections=SimpleNamespace(open_count=2), requests={})
)


def figures_of(
    rig: CommitRig, turning: CommitRig, log: FileLog | None, commit: GroupCommit | None
) -> DaemonFigures:
    """The figures of a daemon with these parts, and three clients of the line."""
    stats = Stats(rig.engine, 0)
    for _ in range(3):
        stats.note_connection()
    return DaemonFigures(rig.engine, stats, turning.turns, log, commit)


def test_the_metrics_are_told_what_the_parts_have_counted(turning: CommitRig) -> None:
    rig = CommitRig(disk=SimulatedDisk(), snapshots=True)
    take_snapshot(rig)
    writing = CommitRig(SyncPolicy.ALWAYS)
    sources = figures_of(rig, turning, rig.log, writing.commit).sources(lambda: HTTP)
    journal = sources.journal()
    assert journal is not None
    assert journal.commit_ns is writing.commit.commit_ns
    assert journal.sync_ns is writing.commit.sync_ns
    assert journal.batch_records is writing.commit.batch_records
    assert journal.disk_bytes == rig.journal.retention.disk_bytes > 0
    assert rig.journal.snapshot_ms is not None
    assert journal.snapshot_age_ms == rig.engine.store.time_ms - rig.journal.snapshot_ms
    text = b"".join(Metrics(rig.engine, Refusals(), sources).chunks(rig.now_ms))
    assert b'delayd_connections{front_end="line"} 3.0\n' in text
    assert b'delayd_connections{front_end="http"} 2.0\n' in text
    assert b"delayd_snapshot_age_seconds" in text
    writing.close()


def test_the_runs_of_schedules_are_told_of_each_and_of_all() -> None:
    with HttpRig(is_virtual=True) as rig:
        parts = (rig.engine, rig.line.stats, rig.turns, None, None, None, rig.schedules)
        told = DaemonFigures(*parts).sources(lambda: HTTP).schedules
        assert told() is None, "nobody has asked for one"
        hourly = {"topic": "mail", "every": "1h", "body": 1}
        for name, more in (("a", {}), ("b", {"limit": 1}), ("c", {})):
            rig.ok("PUT", f"/v1/schedules/{name}", {**hourly, **more})
        rig.ok("POST", "/v1/schedules/c/pause")
        rig.pass_ms(3_600_000)
        figures = told()
        assert figures is not None
        assert figures.by_state == {"active": 1, "paused": 1, "over": 1}
        assert (figures.counts["put"], figures.counts["missed"]) == (2, 0)
        next_s = (rig.clock.wall_ms() + 3_600_000) / 1_000
        assert [
            (each.name, each.counts["put"], each.next_s, each.outcome) for each in figures.shown
        ] == [("a", 1, next_s, "running"), ("b", 1, None, "running"), ("c", 0, None, "")]
        begun = told()
        for name in "ab":
            assert rig.call("DELETE", f"/v1/schedules/{name}").status == 204
        assert begun is not None
        assert [each.name for each in begun.shown] == ["c"], "the others were removed meanwhile"
        after = told()
        assert after is not None
        assert after.by_state == {"active": 0, "paused": 1, "over": 0}
        assert after.counts["put"] == 2, "no counter goes back"


def test_without_a_journal_there_is_nothing_to_say_of_one(watch: Watch) -> None:
    turning = CommitRig(watch=watch, keeps=False)
    sources = figures_of(turning, turning, None, None).sources(lambda: HTTP)
    assert sources.journal() is None
    assert sources.turns().longest_ns == 0
