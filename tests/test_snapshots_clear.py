"""Snapshots and cleared topics: none begins before all is swept away, and one begins then."""

from delayd.core.background_tasks import BackgroundTasks
from delayd.core.operations.topics import clear
from delayd.limits import SNAPSHOT_ASK_MS
from tests.rigs.commit import HOUR_MS, SEGMENT_BYTES, snapshot_rig
from tests.test_snapshots import long_log


def test_none_begins_before_what_a_clear_has_left_behind_is_swept_away() -> None:
    rig = snapshot_rig()
    rig.put(300, delay_ms=HOUR_MS)
    long_log(rig)
    clear(rig.engine, rig.engine.store.topics.by_name["default"])
    rig.append()
    rig.clock.advance(SNAPSHOT_ASK_MS)
    assert rig.step() == 0
    assert not rig.workers
    tasks = BackgroundTasks(rig.engine)
    while tasks.has_more:
        tasks.step(rig.now_ms)
    rig.pass_turn()
    rig.rest()
    assert rig.snapshots.taken >= 1
    again = rig.restarted()
    assert again.state() == rig.state()
    assert not list(again.engine.store.jobs)


def test_when_all_is_swept_away_the_log_gets_shorter_without_another_operation() -> None:
    rig = snapshot_rig()
    rig.put(5_000, delay_ms=HOUR_MS)
    rig.append()
    rig.rest()
    clear(rig.engine, rig.engine.store.topics.by_name["default"])
    rig.pass_turn()
    tasks = BackgroundTasks(rig.engine)
    for _ in range(20):
        tasks.step(rig.now_ms, budget=0)
        rig.rest(2 * SNAPSHOT_ASK_MS)
    assert rig.engine.store.cleared.left
    assert rig.snapshots.taken == 0
    while tasks.has_more:
        tasks.step(rig.now_ms)
    rig.rest()
    assert rig.snapshots.taken >= 1
    assert rig.journal.retention.disk_bytes < SEGMENT_BYTES
