"""What commit, turns and snapshots count, and how it gets to the metrics."""

from collections.abc import Callable
from typing import Final

import pytest

from delayd import commit as commit_module
from delayd import service as service_module
from delayd import turns as turns_module
from delayd.config import SyncPolicy
from delayd.core.stats.histogram import Histogram
from delayd.core.stats.refusals import Refusals
from delayd.limits import BATCH_BOUNDS_RECORDS, HELD_BOUNDS_NS, SYNC_BOUNDS_NS
from delayd.metrics import Metrics
from delayd.service import sources_of
from tests.snapshot_scene import HOUR_MS
from tests.snapshot_scene import Scene as SnapshotScene
from tests.test_commit_trouble import Clockwork, Desk
from tests.turn_scene import Stage, Watch

MS: Final = 1_000_000


@pytest.fixture
def clockwork(monkeypatch: pytest.MonkeyPatch) -> Clockwork:
    made = Clockwork()
    monkeypatch.setattr(commit_module, "monotonic_ns", lambda: made.now_ns)
    return made


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    made = Watch()
    monkeypatch.setattr(turns_module, "monotonic_ns", made)
    monkeypatch.setattr(service_module, "monotonic_ns", made)
    return made


def expect(histogram: Histogram, bounds: tuple[int, ...], *values: int) -> None:
    expected = Histogram(bounds)
    for value in values:
        expected.note(value)
    assert (histogram.counts, histogram.sum) == (expected.counts, expected.sum)


# --- Commits -------------------------------------------------------------------------------------


def test_a_lone_commit_takes_as_long_as_its_sync(clockwork: Clockwork) -> None:
    desk = Desk(SyncPolicy.ALWAYS)
    desk.turn(b"one", b"two")
    clockwork.pass_ms(7)
    desk.commit._synced(None, 6 * MS)
    expect(desk.commit.sync_ns, SYNC_BOUNDS_NS, 6 * MS)
    expect(desk.commit.commit_ns, SYNC_BOUNDS_NS, 7 * MS)
    expect(desk.commit.batch_records, BATCH_BOUNDS_RECORDS, 2)
    desk.close()


def test_who_comes_during_a_sync_waits_for_that_one_and_the_next(clockwork: Clockwork) -> None:
    desk = Desk(SyncPolicy.ALWAYS)
    desk.turn(b"one")
    clockwork.pass_ms(3)
    desk.turn(b"two", b"three")
    clockwork.pass_ms(4)
    desk.turn(b"four")
    clockwork.pass_ms(1)
    desk.commit._synced(None, 8 * MS)
    clockwork.pass_ms(10)
    desk.commit._synced(None, 10 * MS)
    expect(desk.commit.commit_ns, SYNC_BOUNDS_NS, 8 * MS, 5 * MS + 10 * MS)
    expect(desk.commit.batch_records, BATCH_BOUNDS_RECORDS, 1, 3)
    desk.turn(b"five")
    clockwork.pass_ms(2)
    desk.commit._synced(None, 2 * MS)
    expect(desk.commit.commit_ns, SYNC_BOUNDS_NS, 8 * MS, 15 * MS, 2 * MS)
    desk.close()


def test_who_waited_for_a_sync_and_needed_none_is_not_taken_for_the_first_of_the_next(
    clockwork: Clockwork,
) -> None:
    desk = Desk(SyncPolicy.ALWAYS)
    desk.turn(b"one")
    clockwork.pass_ms(3)
    desk.commit.commit([b"two"], [], must_sync=False, time_ms=0, wall_ms=0)
    desk.commit._synced(None, 3 * MS)
    clockwork.pass_ms(500)
    desk.turn(b"three")
    clockwork.pass_ms(2)
    desk.commit._synced(None, 2 * MS)
    expect(desk.commit.commit_ns, SYNC_BOUNDS_NS, 3 * MS, 2 * MS)
    expect(desk.commit.batch_records, BATCH_BOUNDS_RECORDS, 1, 2)
    desk.close()


# --- Turns ---------------------------------------------------------------------------------------


def take(watch: Watch, ms: int) -> Callable[[], None]:
    def happen() -> None:
        watch.now_ns += ms * MS

    return happen


def test_what_happens_between_two_polls_holds_the_loop(watch: Watch) -> None:
    stage = Stage(watch)
    stage.turns.turn()
    stage.turns.chore = take(watch, 3)
    stage.slept(None, lambda: None, lambda: None)
    # Before the first poll nobody waits, and behind the last one nobody has polled again.
    expect(stage.turns.held_ns, HELD_BOUNDS_NS, 3 * MS, 3 * MS)
    assert stage.turns.longest_held.within(watch.now_ns) == 3 * MS


def test_what_asyncio_does_between_two_sleeps_counts_and_sleep_itself_does_not(
    watch: Watch,
) -> None:
    stage = Stage(watch)
    take(watch, 1)()
    stage.turns.turn()
    stage.slept(5.0)
    take(watch, 40)()
    stage.slept(5.0)
    expect(stage.turns.held_ns, HELD_BOUNDS_NS, 40 * MS)
    assert stage.turns.longest_held.within(watch.now_ns) == 40 * MS


def take_snapshot(scene: SnapshotScene) -> None:
    """Have one taken: of many jobs hardly any are left."""
    scene.delete(scene.put(2_000))
    scene.put()
    scene.turn()
    scene.rest()
    assert scene.snapshots.taken


# --- All together --------------------------------------------------------------------------------


def test_the_age_of_a_snapshot_is_known_also_after_a_restart() -> None:
    scene = SnapshotScene()
    known = [scene.journal.snapshot_ms]
    take_snapshot(scene)
    known.append(scene.journal.snapshot_ms)
    scene.turn(HOUR_MS)
    known.append(scene.restarted().journal.snapshot_ms)
    assert known[0] is None
    assert known[1] is not None
    assert known[1] == known[2]


def test_the_metrics_are_told_what_the_parts_have_counted(watch: Watch) -> None:
    stage = Stage(watch)
    scene = SnapshotScene()
    take_snapshot(scene)
    desk = Desk(SyncPolicy.ALWAYS)
    sources = sources_of(
        scene.engine,
        stage.turns,
        scene.journal,
        desk.commit,
        connections=lambda: {"line": 3},
        repairs=lambda: 1,
    )
    journal = sources.journal()
    assert journal is not None
    assert journal.commit_ns is desk.commit.commit_ns
    assert journal.sync_ns is desk.commit.sync_ns
    assert journal.batch_records is desk.commit.batch_records
    assert journal.disk_bytes == scene.journal.disk_bytes > 0
    assert scene.journal.snapshot_ms is not None
    assert journal.snapshot_age_ms == scene.engine.store.time_ms - scene.journal.snapshot_ms
    text = b"".join(Metrics(scene.engine, Refusals(), sources).chunks(scene.now_ms))
    assert b'delayd_connections{front_end="line"} 3.0\n' in text
    assert b"delayd_snapshot_age_seconds" in text
    desk.close()


def test_without_a_journal_there_is_nothing_to_say_of_one(watch: Watch) -> None:
    stage = Stage(watch, keeps=False)
    sources = sources_of(stage.engine, stage.turns, None, None, connections=dict, repairs=int)
    assert sources.journal() is None
    assert sources.turns().longest_ns == 0
