"""Snapshots are begun when they are due, disturb nobody, and keep the log short."""

import errno
import math
import random
from collections.abc import Callable
from typing import Final

import pytest

from delayd import snapshots as module
from delayd.core.operations.attempts import bury
from delayd.core.operations.topics import clear
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.times import RequestMs
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
from tests.rigs.commit import HOUR_MS, SEGMENT_BYTES, CommitRig, snapshot_rig
from tests.rigs.engine import put

LONG: Final = b"x" * 1_200
"""A body: few such jobs make a log as long as many short ones do."""


def long_log(rig: CommitRig, times: int = 20, jobs: int = 40, body: bytes = LONG) -> None:
    """Leave a log that is much longer than what is live."""
    for _ in range(times):
        rig.put(jobs, body=body)
        rig.append()
        rig.delete(rig.put(jobs, body=body))
        rig.append()


def raising(error: Exception) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


@pytest.fixture
def rig() -> CommitRig:
    return snapshot_rig()


# --- When ----------------------------------------------------------------------------------------


def test_a_daemon_at_rest_asks_once_and_sleeps(rig: CommitRig) -> None:
    assert rig.step() == SNAPSHOT_ASK_MS / 1_000
    rig.clock.advance(SNAPSHOT_ASK_MS)
    assert rig.step() is None
    rig.put()
    assert rig.pass_turn() == SNAPSHOT_ASK_MS / 1_000
    rig.clock.advance(SNAPSHOT_ASK_MS)
    assert rig.step() is None
    assert rig.pass_turn(ms=HOUR_MS) is None
    assert not rig.workers


def test_what_had_become_due_before_the_start_is_taken_soon_after_it(rig: CommitRig) -> None:
    long_log(rig)
    rig = rig.restarted()
    rig.rest()
    assert rig.snapshots.taken >= 1
    assert rig.journal.retention.disk_bytes <= 2 * rig.engine.store.live_bytes + SEGMENT_BYTES
    assert rig.restarted().state() == rig.state()


def moved(rig: CommitRig) -> None:
    """Set the wall clock, which jobs follow that have to be placed anew."""
    topic = rig.engine.store.topic("default")
    for number in range(200):
        put(rig.engine, topic, due_wall_ms=rig.now_ms + HOUR_MS + number, now_ms=rig.now_ms)
    follow_wall(rig.engine, -HOUR_MS)
    rig.append()


def cleared(rig: CommitRig) -> None:
    """Clear a topic, whose jobs have to be swept away."""
    rig.put(300, delay_ms=HOUR_MS)
    clear(rig.engine, rig.engine.store.topics.by_name["default"])
    rig.append()


@pytest.mark.parametrize("change", [CommitRig.put, moved, cleared])
def test_a_snapshot_waits_until_what_has_changed_is_appended_placed_and_swept(
    rig: CommitRig, change: Callable[[CommitRig], object]
) -> None:
    long_log(rig)
    change(rig)
    rig.clock.advance(SNAPSHOT_ASK_MS)
    assert rig.step() == 0
    assert not rig.workers
    while rig.tasks.has_more:
        rig.tasks.step(rig.now_ms)
    rig.pass_turn()
    rig.rest()
    assert rig.snapshots.taken >= 1
    assert rig.restarted().state() == rig.state()


def test_turns_between_two_slices_do_not_bring_the_next_one_forward(rig: CommitRig) -> None:
    rig.put(20 * SNAPSHOT_SLICE_JOBS, delay_ms=HOUR_MS, body=b"")
    rig.append()
    long_log(rig)
    rig.clock.advance(SNAPSHOT_ASK_MS)
    rig.step()  # begun
    rig.step()  # the first slice
    assert rig.snapshots._making is not None
    left = len(rig.engine.store.jobs.guarded)
    for _ in range(10):
        rig.put()
        assert rig.pass_turn() == SNAPSHOT_PAUSE_MS / 1_000
        assert len(rig.engine.store.jobs.guarded) >= left - 1  # the page that the put changes
    rig.clock.advance(SNAPSHOT_PAUSE_MS)
    rig.step()
    assert len(rig.engine.store.jobs.guarded) < left - 1


@pytest.mark.thorough
def test_a_thread_that_is_behind_is_waited_for_without_polling() -> None:
    rig = snapshot_rig(segment_bytes=4 << 20, pace=0)
    long_log(rig, 250, 1, b"x" * 60_000)
    rig.rest(works=False)
    making = rig.snapshots._making
    assert making is not None
    assert (
        SNAPSHOT_AHEAD_BYTES < making.ahead_bytes <= SNAPSHOT_AHEAD_BYTES + SNAPSHOT_PAYLOAD_BYTES
    )
    assert rig.snapshots.step() is None
    rig.work(2)
    assert rig.snapshots.step() is not None
    rig.pace = None
    rig.rest()
    assert rig.snapshots.taken >= 1
    assert rig.restarted().state() == rig.state()


@pytest.mark.thorough
def test_no_payload_is_longer_than_its_limit_but_for_a_long_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    write = SnapshotWriter.write

    def noted(writer: SnapshotWriter, payload: bytes) -> None:
        sizes.append(len(payload))
        write(writer, payload)

    monkeypatch.setattr(SnapshotWriter, "write", noted)
    rig = snapshot_rig()
    for body_bytes in (10, 3_000, 65_000):
        rig.put(100, delay_ms=HOUR_MS, body=b"x" * body_bytes)
        rig.append()
    long_log(rig)
    rig.rest()
    assert rig.snapshots.taken >= 1
    assert max(sizes) <= SNAPSHOT_PAYLOAD_BYTES
    assert len(sizes) < 2 * rig.snapshots.taken + 2 * sum(sizes) // SNAPSHOT_PAYLOAD_BYTES


# --- The bound -----------------------------------------------------------------------------------


@pytest.mark.thorough
def test_behind_a_slow_thread_the_disk_holds_twice_what_is_live_and_a_segment_at_most() -> None:
    """Every hundredth job is buried and stays; more patterns are in faults/test_growth.py."""
    rig = snapshot_rig(pace=1)
    for _ in range(100):
        job_ids = rig.put(100)
        rig.pass_turn()
        bury(rig.engine, rig.session, rig.reserve(), 0, RequestMs(rig.engine.store.time_ms))
        rig.pass_turn(ms=1)
        rig.delete(job_ids[1:])
        rig.pass_turn(ms=20)
    assert rig.snapshots.taken >= 1
    rig.rest()
    assert rig.excess_bytes <= 0
    assert rig.restarted().state() == rig.state()


@pytest.mark.thorough
def test_after_a_mass_of_jobs_has_gone_the_log_is_short_without_another_operation(
    rig: CommitRig,
) -> None:
    job_ids = []
    for _ in range(300):
        job_ids += rig.put(50)
        rig.pass_turn(ms=1)
    for number in range(0, len(job_ids) - 10, 10):
        rig.delete(job_ids[number : number + 10])
        rig.pass_turn()
    rig.rest()
    assert len(rig.engine.store.jobs) == 10
    assert rig.journal.retention.disk_bytes <= 2 * rig.engine.store.live_bytes + SEGMENT_BYTES
    assert rig.step() is None
    assert sum(name.startswith("snapshot-") for name in rig.names) == 2
    assert rig.restarted().state() == rig.state()


def test_when_what_was_cleared_is_swept_away_the_log_gets_shorter_without_another_operation(
    rig: CommitRig,
) -> None:
    rig.put(5_000, delay_ms=HOUR_MS)
    rig.append()
    rig.rest()
    clear(rig.engine, rig.engine.store.topics.by_name["default"])
    rig.pass_turn()
    for _ in range(20):
        rig.tasks.step(rig.now_ms, budget=0)
        rig.rest(2 * SNAPSHOT_ASK_MS)
    assert rig.engine.store.cleared.left
    assert rig.snapshots.taken == 0
    while rig.tasks.has_more:
        rig.tasks.step(rig.now_ms)
    rig.rest()
    assert rig.snapshots.taken >= 1
    assert rig.journal.retention.disk_bytes < SEGMENT_BYTES


def test_a_snapshot_that_changes_nothing_is_not_taken_over_and_over(
    rig: CommitRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.put(10)
    rig.pass_turn()
    monkeypatch.setattr(Journal, "snapshot_is_due", lambda *_, **__: True)
    rig.rest(HOUR_MS)
    assert rig.snapshots.taken == 2
    assert rig.step() is None


# --- Trouble -------------------------------------------------------------------------------------


def test_a_snapshot_that_fails_is_tried_again_later_and_later(rig: CommitRig) -> None:
    long_log(rig)
    begun_ms = rig.clock.now_ms()
    waits_ms = []
    for failures in range(1, 10):
        # Every file but the snapshot's exists already.
        rig.disk.fail(rig.disk.verb_counts["create"] + 1, OSError(errno.EIO, "gone"), "create")
        while rig.snapshots.failed < failures:
            wanted_s = rig.step()
            rig.clock.advance(math.ceil((wanted_s or 0) * 1_000))
        waits_ms.append(rig.clock.now_ms() - begun_ms)
        begun_ms = rig.clock.now_ms()
    expected = [min(SNAPSHOT_RETRY_MS_MIN << n, SNAPSHOT_RETRY_MS_MAX) for n in range(8)]
    assert waits_ms[1:] == [pytest.approx(wait_ms, abs=50) for wait_ms in expected]
    warnings = [line for line in rig.log_lines() if "a snapshot failed" in line]
    assert len(warnings) == 9
    assert not rig.failures
    assert not rig.engine.store.jobs.guarded
    assert not any(name.endswith(".new") for name in rig.names)
    rig.put()
    rig.pass_turn()
    rig.rest()
    assert rig.snapshots.taken >= 1
    assert rig.snapshots._retry_ms == SNAPSHOT_RETRY_MS_MIN
    assert rig.restarted().state() == rig.state()


def test_turns_while_it_waits_to_try_again_do_not_try(rig: CommitRig) -> None:
    long_log(rig)
    rig.disk.fail(rig.disk.verb_counts["create"] + 1, OSError(errno.EIO, "gone"), "create")
    rig.rest(SNAPSHOT_RETRY_MS_MIN // 2)
    assert rig.snapshots.failed == 1
    workers = len(rig.workers)
    for _ in range(100):
        rig.put()
        rig.pass_turn(ms=10)
    assert len(rig.workers) == workers


def test_one_that_failed_is_tried_at_once_when_half_as_much_is_live(rig: CommitRig) -> None:
    long_log(rig)
    rig.disk.fail(rig.disk.verb_counts["create"] + 1, OSError(errno.ENOSPC, "full"), "create")
    rig.rest(SNAPSHOT_ASK_MS + 1_000)
    jobs = len(rig.engine.store.jobs)
    for deleted, taken in ((jobs // 4, 0), (jobs // 2, 1)):
        rig.delete([job_id for job_id, _ in rig.engine.store.jobs][:deleted])
        rig.append()
        rig.rest(SNAPSHOT_ASK_MS + 100)
        assert (rig.snapshots.failed, rig.snapshots.taken) == (1, taken)


def test_no_space_for_the_frame_that_a_snapshot_needs_is_such_a_failure(
    rig: CommitRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_log(rig)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "begin_snapshot", raising(JournalFull("directory", "no space")))
        rig.rest(SNAPSHOT_RETRY_MS_MIN // 2)
    assert (rig.snapshots.failed, rig.failures) == (1, [])
    rig.rest()
    assert rig.snapshots.taken >= 1


def test_a_failure_of_the_journal_is_told_to_who_must_stop(rig: CommitRig) -> None:
    long_log(rig)
    rig.disk.fail(
        rig.disk.verb_counts["sync_directory"] + 1, OSError(errno.EIO, "gone"), "sync_directory"
    )
    rig.rest(HOUR_MS)
    assert [type(failure) for failure in rig.failures] == [JournalFailed]
    assert rig.snapshots.taken == 0
    rig.snapshots.close()


def test_a_journal_that_has_failed_before_begins_no_snapshot(
    rig: CommitRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_log(rig)
    failed = JournalFailed("file", "cannot be written")
    monkeypatch.setattr(Journal, "begin_snapshot", raising(failed))
    rig.rest(SNAPSHOT_RETRY_MS_MIN // 2)
    assert len(rig.failures) == 1
    assert not rig.workers


def test_a_fault_of_our_own_in_the_thread_reaches_the_loop(
    rig: CommitRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_log(rig)
    monkeypatch.setattr(SnapshotWriter, "finish", raising(AssertionError("planted")))
    with pytest.raises(AssertionError, match="planted"):
        rig.rest()


def test_a_file_that_cannot_be_removed_is_named(rig: CommitRig) -> None:
    long_log(rig)
    rig.rest()
    for number in range(1, 50):
        error = OSError(errno.EACCES, "not yours")
        rig.disk.fail(rig.disk.verb_counts["unlink"] + number, error, "unlink")
    for _ in range(2):
        long_log(rig)
        rig.rest()
    assert any("cannot be removed" in line for line in rig.log_lines())


def test_whatever_call_fails_meanwhile_every_job_is_there_afterwards(
    rng: random.Random, often: Callable[[int, int], range]
) -> None:
    for _ in often(15, 200):
        rig = snapshot_rig(pace=rng.choice((None, 1)))
        long_log(rig)
        number = rig.disk.call_count + rng.randrange(1, 80)
        rig.disk.fail(number, OSError(errno.ENOSPC, "full"))
        rig.rest(HOUR_MS)
        assert rig.restarted().state() == rig.state()


# --- The end -------------------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("tasks_done", range(3))
def test_an_unfinished_snapshot_is_given_up_at_the_stop(tasks_done: int) -> None:
    rig = snapshot_rig(segment_bytes=1 << 20, pace=0)
    long_log(rig, 60)
    rig.rest(works=False)
    rig.worker.work(tasks_done)
    assert rig.snapshots._making is not None
    rig.snapshots.close()
    assert rig.worker.is_over
    assert not any(name.endswith(".new") for name in rig.names)
    assert not rig.engine.store.jobs.guarded
    rig.journal.close()
    for task in rig.told:  # what was on its way comes too late and does nothing
        task()
    assert rig.snapshots.taken == 0
    assert rig.restarted().state() == rig.state()


@pytest.mark.thorough
def test_a_stop_in_the_middle_of_the_copy_leaves_neither_file_nor_guard(rig: CommitRig) -> None:
    for _ in range(20):
        rig.put(SNAPSHOT_SLICE_JOBS, delay_ms=HOUR_MS)
        rig.append()
    for _ in range(10):
        rig.delete(rig.put(10, body=b"x" * 60_000))
        rig.append()
    rig.clock.advance(SNAPSHOT_ASK_MS)
    while not any(name.endswith(".new") for name in rig.names):
        rig.step()
        rig.clock.advance(SNAPSHOT_PAUSE_MS)
    assert rig.engine.store.jobs.guarded
    assert not rig.worker.tasks
    rig.snapshots.close()
    assert not rig.engine.store.jobs.guarded
    assert not any(name.endswith(".new") for name in rig.names)
    rig.journal.close()
    assert rig.restarted().state() == rig.state()


def test_a_stop_without_a_snapshot_in_the_making_has_nothing_to_do(rig: CommitRig) -> None:
    rig.snapshots.close()
    assert not rig.workers
    assert rig.snapshots.step() is None


def test_the_thread_ends_with_its_snapshot(rig: CommitRig) -> None:
    """The real thread."""
    threads: list[module.Thread] = []

    def new_worker() -> module.Thread:
        threads.append(module.Thread())
        return threads[-1]

    rig.snapshots._new_worker = new_worker
    while rig.snapshots.taken < 3:
        rig.delete(rig.put(20)[1:])
        rig.pass_turn(ms=1)
        while rig.told:
            rig.told.pop(0)()
    rig.snapshots.close()
    rig.journal.close()
    assert len(threads) >= 3
    assert not any(thread._thread.is_alive() for thread in threads)
    assert rig.restarted().state() == rig.state()
