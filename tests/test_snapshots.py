"""Snapshots are begun when they are due, disturb nobody, and keep the log short."""

import errno
import io
import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from delayd import snapshots as module
from delayd.core.engine import Engine
from delayd.journal.disk import RealDisk
from delayd.journal.errors import JournalFailed, JournalFull
from delayd.journal.journal import Journal
from delayd.journal.snapshot import SnapshotWriter
from delayd.limits import (
    SNAPSHOT_AHEAD_BYTES,
    SNAPSHOT_ASK_MS,
    SNAPSHOT_PAUSE_MS,
    SNAPSHOT_PAYLOAD_BYTES,
    SNAPSHOT_RETRY_MS_MAX,
    SNAPSHOT_RETRY_MS_MIN,
    SNAPSHOT_SLICE_JOBS,
)
from delayd.logs import Log
from delayd.snapshots import Snapshots, Task
from tests.snapshot_scene import HOUR_MS, SEGMENT, YEAR_MS, Scene


def long_log(scene: Scene) -> None:
    """Leave a log that is much longer than what is live."""
    for _ in range(20):
        scene.put(300)
        scene.commit()
        scene.delete(scene.put(300))
        scene.commit()


# --- When ----------------------------------------------------------------------------------------


def test_a_daemon_at_rest_asks_once_and_sleeps() -> None:
    scene = Scene()
    assert scene.chore() == SNAPSHOT_ASK_MS / 1_000
    scene.clock.advance(SNAPSHOT_ASK_MS)
    assert scene.chore() is None
    scene.put()
    assert scene.turn() == SNAPSHOT_ASK_MS / 1_000
    scene.clock.advance(SNAPSHOT_ASK_MS)
    assert scene.chore() is None
    assert scene.turn(ms=HOUR_MS) is None
    assert not scene.workers


def test_what_had_become_due_before_the_start_is_taken_soon_after_it() -> None:
    scene = Scene()
    long_log(scene)
    scene = scene.restarted()
    scene.rest()
    assert scene.snapshots.taken >= 1
    assert scene.journal.disk_bytes <= 2 * scene.engine.store.live_bytes + SEGMENT
    assert scene.restarted().state() == scene.state()


def test_a_snapshot_waits_for_the_turn_that_appends_what_has_changed() -> None:
    scene = Scene()
    long_log(scene)
    scene.put()  # not committed
    scene.clock.advance(SNAPSHOT_ASK_MS)
    assert scene.chore() == 0
    assert not scene.workers
    scene.turn()
    scene.rest()
    assert scene.snapshots.taken >= 1
    assert scene.restarted().state() == scene.state()


def test_a_snapshot_waits_until_jobs_are_placed_that_the_wall_clock_has_moved() -> None:
    scene = Scene()
    topic = scene.engine.store.topic("default")
    for number in range(200):
        scene.engine.put(
            topic,
            priority=0,
            due_wall_ms=scene.now_ms + HOUR_MS + number,
            ttr_ms=1_000,
            body=b"x",
            now_ms=scene.now_ms,
        )
    long_log(scene)
    scene.engine.follow_wall(-HOUR_MS)
    scene.commit()
    scene.clock.advance(SNAPSHOT_ASK_MS)
    assert scene.chore() == 0
    assert not scene.workers
    while scene.engine.advance(scene.clock.now_ms()):
        pass
    scene.turn()
    scene.rest()
    assert scene.snapshots.taken >= 1
    again = scene.restarted()
    assert again.state() == scene.state()
    assert again.engine.store.wall_times.count == 200


def test_turns_between_two_slices_do_not_bring_the_next_one_forward() -> None:
    scene = Scene()
    scene.put(20 * SNAPSHOT_SLICE_JOBS, delay_ms=HOUR_MS, body=b"")
    scene.commit()
    long_log(scene)
    scene.clock.advance(SNAPSHOT_ASK_MS)
    scene.chore()  # begun
    scene.chore()  # the first slice
    assert scene.snapshots.is_making
    left = len(scene.engine.store.jobs.guarded)
    for _ in range(10):
        scene.put()
        assert scene.turn() == SNAPSHOT_PAUSE_MS / 1_000
        assert len(scene.engine.store.jobs.guarded) >= left - 1  # the page that the put changes
    scene.clock.advance(SNAPSHOT_PAUSE_MS)
    scene.chore()
    assert len(scene.engine.store.jobs.guarded) < left - 1


def test_a_thread_that_is_behind_is_waited_for_without_polling() -> None:
    scene = Scene(segment=4 << 20, pace=0)
    body = b"x" * 60_000
    for _ in range(250):
        scene.put(1, body=body)
        scene.commit()
        scene.delete(scene.put(1, body=body))
        scene.commit()
    scene.rest(works=False)
    making = scene.snapshots._making
    assert making is not None
    assert (
        SNAPSHOT_AHEAD_BYTES < making.ahead_bytes <= SNAPSHOT_AHEAD_BYTES + SNAPSHOT_PAYLOAD_BYTES
    )
    assert scene.snapshots.chore() is None
    scene.work(2)
    assert scene.snapshots.chore() is not None
    scene.pace = None
    scene.rest()
    assert scene.snapshots.taken >= 1
    assert scene.restarted().state() == scene.state()


def test_no_payload_is_longer_than_its_limit_but_for_a_long_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    write = SnapshotWriter.write

    def noted(writer: SnapshotWriter, payload: bytes) -> None:
        sizes.append(len(payload))
        write(writer, payload)

    monkeypatch.setattr(SnapshotWriter, "write", noted)
    scene = Scene()
    for body_bytes in (10, 3_000, 65_000):
        scene.put(100, delay_ms=HOUR_MS, body=b"x" * body_bytes)
        scene.commit()
    long_log(scene)
    scene.rest()
    assert scene.snapshots.taken >= 1
    assert max(sizes) <= SNAPSHOT_PAYLOAD_BYTES
    assert len(sizes) < 2 * scene.snapshots.taken + 2 * sum(sizes) // SNAPSHOT_PAYLOAD_BYTES


# --- The bound -----------------------------------------------------------------------------------


def reserve_and_release_for_an_hour(scene: Scene) -> None:
    """400 jobs that circle: reserved, given back with a delay, due, reserved again."""
    scene.put(400)
    scene.turn()
    for _ in range(HOUR_MS // 3_000):
        while scene.engine.store.topics.by_name["default"].queues.ready:
            job_id = scene.reserve()
            scene.engine.release(scene.me, job_id, 0, 20_000, scene.now_ms)
            scene.turn(ms=5)
        scene.turn(ms=3_000)


def few_buried_among_many_deleted(scene: Scene) -> None:
    """Every hundredth job is buried and stays; all others come and go."""
    for _ in range(200):
        job_ids = scene.put(100)
        scene.turn()
        scene.engine.bury(scene.me, scene.reserve(), 0, scene.engine.store.time_ms)
        scene.turn(ms=1)
        scene.delete(job_ids[1:])
        scene.turn(ms=20)


def delays_of_a_year(scene: Scene) -> None:
    """Nothing but puts, and some of them looked at and put off again."""
    for _ in range(2_000):
        job_ids = scene.put(5, delay_ms=YEAR_MS)
        scene.engine.reschedule(job_ids[2], 2 * YEAR_MS, scene.now_ms)
        scene.turn(ms=10)


@pytest.mark.parametrize("pace", [None, 1])
@pytest.mark.parametrize(
    "pattern", [reserve_and_release_for_an_hour, few_buried_among_many_deleted, delays_of_a_year]
)
def test_the_disk_never_holds_more_than_twice_what_is_live_and_a_segment(
    pattern: Callable[[Scene], None], pace: int | None
) -> None:
    scene = Scene(pace=pace)
    pattern(scene)
    assert scene.excess_bytes <= 0
    assert scene.snapshots.taken >= 1 or pattern is delays_of_a_year
    scene.rest()
    assert scene.excess_bytes <= 0
    assert scene.restarted().state() == scene.state()


def test_after_a_mass_of_jobs_has_gone_the_log_is_short_without_another_operation() -> None:
    scene = Scene()
    job_ids = []
    for _ in range(300):
        job_ids += scene.put(50)
        scene.turn(ms=1)
    for number in range(0, len(job_ids) - 10, 10):
        scene.delete(job_ids[number : number + 10])
        scene.turn()
    scene.rest()
    assert len(scene.engine.store.jobs) == 10
    assert scene.journal.disk_bytes <= 2 * scene.engine.store.live_bytes + SEGMENT
    assert scene.chore() is None
    assert sum(name.startswith("snapshot-") for name in scene.names) == 2
    assert scene.restarted().state() == scene.state()


def test_a_snapshot_that_changes_nothing_is_not_taken_over_and_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    scene.put(10)
    scene.turn()
    monkeypatch.setattr(Journal, "snapshot_is_due", lambda *_: True)
    scene.rest(HOUR_MS)
    assert scene.snapshots.taken == 2
    assert scene.chore() is None


# --- Trouble -------------------------------------------------------------------------------------


def test_a_snapshot_that_fails_is_tried_again_later_and_later() -> None:
    scene = Scene()
    long_log(scene)
    begun_ms = scene.clock.now_ms()
    waits_ms = []
    for failures in range(1, 10):
        # Every file but the snapshot's exists already.
        scene.disk.fail(scene.disk.verb_counts["create"] + 1, OSError(errno.EIO, "gone"), "create")
        while scene.snapshots.failed < failures:
            wanted_s = scene.chore()
            scene.clock.advance(math.ceil((wanted_s or 0) * 1_000))
        waits_ms.append(scene.clock.now_ms() - begun_ms)
        begun_ms = scene.clock.now_ms()
    expected = [min(SNAPSHOT_RETRY_MS_MIN << n, SNAPSHOT_RETRY_MS_MAX) for n in range(8)]
    assert waits_ms[1:] == [pytest.approx(wait_ms, abs=50) for wait_ms in expected]
    warnings = [line for line in scene.log_lines() if "a snapshot failed" in line]
    assert len(warnings) == 9
    assert not scene.failures
    assert not scene.engine.store.jobs.guarded
    assert not any(name.endswith(".new") for name in scene.names)
    scene.put()
    scene.turn()
    scene.rest()
    assert scene.snapshots.taken >= 1
    assert scene.snapshots._retry_ms == SNAPSHOT_RETRY_MS_MIN
    assert scene.restarted().state() == scene.state()


def test_turns_while_it_waits_to_try_again_do_not_try() -> None:
    scene = Scene()
    long_log(scene)
    scene.disk.fail(scene.disk.verb_counts["create"] + 1, OSError(errno.EIO, "gone"), "create")
    scene.rest(SNAPSHOT_RETRY_MS_MIN // 2)
    assert scene.snapshots.failed == 1
    workers = len(scene.workers)
    for _ in range(100):
        scene.put()
        scene.turn(ms=10)
    assert len(scene.workers) == workers


def test_no_room_for_the_frame_that_a_snapshot_needs_is_such_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    long_log(scene)

    def full(*_: object) -> None:
        raise JournalFull("directory", "no room")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "begin_snapshot", full)
        scene.rest(SNAPSHOT_RETRY_MS_MIN // 2)
    assert (scene.snapshots.failed, scene.failures) == (1, [])
    scene.rest()
    assert scene.snapshots.taken >= 1


def test_a_failure_of_the_journal_is_told_to_who_must_stop() -> None:
    scene = Scene()
    long_log(scene)
    scene.disk.fail(
        scene.disk.verb_counts["sync_directory"] + 1, OSError(errno.EIO, "gone"), "sync_directory"
    )
    scene.rest(HOUR_MS)
    assert [type(failure) for failure in scene.failures] == [JournalFailed]
    assert scene.snapshots.taken == 0
    scene.snapshots.close()


def test_a_journal_that_has_failed_before_begins_no_snapshot(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    long_log(scene)

    def broken(*_: object) -> None:
        raise JournalFailed("file", "cannot be written")

    monkeypatch.setattr(Journal, "begin_snapshot", broken)
    scene.rest(SNAPSHOT_RETRY_MS_MIN // 2)
    assert len(scene.failures) == 1
    assert not scene.workers


def test_a_fault_of_our_own_in_the_thread_reaches_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene()
    long_log(scene)

    def wrong(*_: object) -> None:
        raise AssertionError("planted")

    monkeypatch.setattr(SnapshotWriter, "finish", wrong)
    with pytest.raises(AssertionError, match="planted"):
        scene.rest()


def test_a_file_that_cannot_be_removed_is_named() -> None:
    scene = Scene()
    long_log(scene)
    scene.rest()
    for number in range(1, 50):
        error = OSError(errno.EACCES, "not yours")
        scene.disk.fail(scene.disk.verb_counts["unlink"] + number, error, "unlink")
    for _ in range(2):
        long_log(scene)
        scene.rest()
    assert any("cannot be removed" in line for line in scene.log_lines())


def test_whatever_call_fails_meanwhile_every_job_is_there_afterwards(rng: random.Random) -> None:
    for _ in range(60):
        scene = Scene(pace=rng.choice((None, 1)))
        long_log(scene)
        number = scene.disk.call_count + rng.randrange(1, 80)
        scene.disk.fail(number, OSError(errno.ENOSPC, "full"))
        scene.rest(HOUR_MS)
        assert scene.restarted().state() == scene.state()


# --- The end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks_done", range(3))
def test_an_unfinished_snapshot_is_given_up_at_the_stop(tasks_done: int) -> None:
    scene = Scene(segment=1 << 20, pace=0)
    for _ in range(60):
        scene.put(300)
        scene.commit()
        scene.delete(scene.put(300))
        scene.commit()
    scene.rest(works=False)
    scene.worker.work(tasks_done)
    assert scene.snapshots.is_making
    scene.snapshots.close()
    assert scene.worker.is_over
    assert not any(name.endswith(".new") for name in scene.names)
    assert not scene.engine.store.jobs.guarded
    scene.journal.close()
    for task in scene.told:  # what was on its way comes too late and does nothing
        task()
    assert scene.snapshots.taken == 0
    assert scene.restarted().state() == scene.state()


def test_a_stop_in_the_middle_of_the_copy_leaves_neither_file_nor_guard() -> None:
    scene = Scene()
    for _ in range(20):
        scene.put(SNAPSHOT_SLICE_JOBS, delay_ms=HOUR_MS)
        scene.commit()
    for _ in range(20):
        long_log(scene)
    scene.clock.advance(SNAPSHOT_ASK_MS)
    while not any(name.endswith(".new") for name in scene.names):
        scene.chore()
        scene.clock.advance(SNAPSHOT_PAUSE_MS)
    assert scene.engine.store.jobs.guarded
    assert not scene.worker.tasks
    scene.snapshots.close()
    assert not scene.engine.store.jobs.guarded
    assert not any(name.endswith(".new") for name in scene.names)
    scene.journal.close()
    assert scene.restarted().state() == scene.state()


def test_a_stop_without_a_snapshot_in_the_making_has_nothing_to_do() -> None:
    scene = Scene()
    scene.snapshots.close()
    assert not scene.workers
    assert scene.snapshots.chore() is None


def test_the_thread_ends_with_its_snapshot(tmp_path: Path, rng: random.Random) -> None:
    """The real thread, and a real disk."""
    journal = Journal.open(str(tmp_path / "data"), disk=RealDisk(), segment_bytes=SEGMENT)
    assert not list(journal.replay())
    engine = Engine(start_ms=0)
    told: list[Task] = []
    threads: list[module.Thread] = []

    def new_worker() -> module.Thread:
        threads.append(module.Thread())
        return threads[-1]

    def fail(error: Exception) -> None:
        raise error

    snapshots = Snapshots(
        engine,
        journal,
        Log(io.StringIO(), lambda: 0),
        wall_ms=lambda: 0,
        tell=told.append,
        on_failure=fail,
        new_worker=new_worker,
        now_ns=lambda: 1 << 60,
    )
    topic = engine.store.topic("default")
    me = engine.open_session()
    while snapshots.taken < 3:
        bodies = [rng.randbytes(100) for _ in range(20)]
        first_id = engine.put_alike(topic, 0, 0, 1, bodies, 0)
        engine.delete_batch(me, range(first_id, first_id + 19), 0)
        journal.append(b"".join(engine.take_log()[0]), 0, 0)
        journal.sync()
        snapshots.chore()
        while told:
            told.pop(0)()
    snapshots.close()
    journal.close()
    assert not any(thread._thread.is_alive() for thread in threads)
