"""Snapshots and cleared topics: none begins before all is swept away, and one begins then."""

from delayd.core.background import BackgroundTasks
from delayd.limits import SNAPSHOT_ASK_MS
from tests.snapshot_scene import HOUR_MS, SEGMENT, Scene
from tests.test_snapshots import long_log


def test_none_begins_before_what_a_clear_has_left_behind_is_swept_away() -> None:
    scene = Scene()
    scene.put(300, delay_ms=HOUR_MS)
    long_log(scene)
    scene.engine.clear(scene.engine.store.topics.by_name["default"])
    scene.commit()
    scene.clock.advance(SNAPSHOT_ASK_MS)
    assert scene.chore() == 0
    assert not scene.workers
    tasks = BackgroundTasks(scene.engine.state)
    while tasks.has_more:
        tasks.step(scene.now_ms)
    scene.turn()
    scene.rest()
    assert scene.snapshots.taken >= 1
    again = scene.restarted()
    assert again.state() == scene.state()
    assert not list(again.engine.store.jobs)


def test_when_all_is_swept_away_the_log_gets_shorter_without_another_operation() -> None:
    scene = Scene()
    scene.put(5_000, delay_ms=HOUR_MS)
    scene.commit()
    scene.rest()
    scene.engine.clear(scene.engine.store.topics.by_name["default"])
    scene.turn()
    tasks = BackgroundTasks(scene.engine.state)
    for _ in range(20):
        tasks.step(scene.now_ms, budget=0)
        scene.rest(2 * SNAPSHOT_ASK_MS)
    assert scene.engine.store.cleared
    assert scene.snapshots.taken == 0
    while tasks.has_more:
        tasks.step(scene.now_ms)
    scene.rest()
    assert scene.snapshots.taken >= 1
    assert scene.journal.disk_bytes < SEGMENT
