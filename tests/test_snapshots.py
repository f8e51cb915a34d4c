"""Snapshots are begun when they are due, disturb nobody, and keep the log short: snapshots.txt.

`long_log` leaves a log much longer than what is live, `many 3` one of 60 jobs that are gone and 3
that stay. `turn` fires, appends and takes a step, `rest` lets time pass in which nobody asks for
anything, `again 20 put, turn 10` does that 20 times. `free`, `leave`: so many bytes of the disk.
"""

# ruff: noqa: ANN401 - steps take and return what they like

import errno
import math
import operator
import random
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

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
    EMERGENCY_BYTES,
    JOURNAL_SHRUNK_BYTES,
    SHRUNK_BYTES_FULL,
    SNAPSHOT_AHEAD_BYTES,
    SNAPSHOT_ASK_MS,
    SNAPSHOT_CALM_MS,
    SNAPSHOT_PAUSE_MS,
    SNAPSHOT_PAYLOAD_BYTES,
    SNAPSHOT_RETRY_MS_MAX,
    SNAPSHOT_RETRY_MS_MIN,
    SNAPSHOT_SLICE_JOBS,
    SPARE_BYTES_MIN,
)
from tests.fact_rows import rows, taken
from tests.rigs.commit import (
    DIRECTORY,
    HOUR_MS,
    SEGMENT_BYTES,
    YEAR_MS,
    CommitRig,
    snapshot_rig,
)
from tests.rigs.disk import PowerCut
from tests.rigs.engine import put

FACTS: Final = dict(rows(Path(__file__).parent / "snapshots.txt"))
PARTS: Final = {
    "put": "rig.put",
    "append": "rig.append",
    "pass": "rig.clock.advance",
    "turn": "rig.pass_turn",
    "step": "rig.step",
    "rest": "rig.rest",
    "work": "rig.work",
    "close": "rig.snapshots.close",
    "begin_works": "patch.undo",
    "taken": "rig.snapshots.taken",
    "failed": "rig.snapshots.failed",
    "ahead": "rig.snapshots._making.ahead_bytes",
    "log_bytes": "rig.journal.retention.log_bytes_since_snapshot",
    "disk_bytes": "rig.journal.retention.disk_bytes",
}
"""Steps that a part of the rig takes, or that see how it is."""
NAMES: Final = {
    "AHEAD": SNAPSHOT_AHEAD_BYTES,
    "ASK": SNAPSHOT_ASK_MS,
    "CALM": SNAPSHOT_CALM_MS,
    "FULL": SHRUNK_BYTES_FULL,
    "HOUR": HOUR_MS,
    "MIB": 1 << 20,
    "PAYLOAD": SNAPSHOT_PAYLOAD_BYTES,
    "RETRY": SNAPSHOT_RETRY_MS_MIN,
    "SEGMENT": SEGMENT_BYTES,
    "SHRUNK": JOURNAL_SHRUNK_BYTES,
    "SPARE": SPARE_BYTES_MIN,
    "YEAR": YEAR_MS,
}
SIGNS: Final = {"+": operator.add, "*": operator.mul, "/": operator.floordiv}
COMPARED: Final = {"<": operator.lt, ">": operator.gt}
LONG: Final = b"x" * 1_200
"""A body: few such jobs make a log as long as many short ones do."""


def value(text: str) -> Any:
    """A number, also such as `SHRUNK+500`, or the word itself."""
    for sign, fold in SIGNS.items():
        left, found, right = text.partition(sign)
        if found:
            return fold(value(left), value(right))
    return NAMES.get(text, int(text) if text.isdigit() else text)


def long_log(rig: CommitRig, times: int = 20, jobs: int = 40, body: bytes = LONG) -> None:
    """Leave a log that is much longer than what is live."""
    for _ in range(times):
        rig.put(jobs, body=body)
        rig.append()
        rig.delete(rig.put(jobs, body=body))
        rig.append()


def many_gone(alive: int) -> CommitRig:
    """A daemon with so many jobs after 60 that are gone, their records in 1 MiB of log."""
    rig = snapshot_rig(segment_bytes=16 << 20)
    rig.put(alive, delay_ms=YEAR_MS)
    for _ in range(12):
        rig.delete(rig.put(5, body=b"x" * 12_500))
        rig.pass_turn(ms=1)
    return rig


def full_disk(alive: int, free_bytes: int = SHRUNK_BYTES_FULL + 1_000) -> CommitRig:
    """A daemon that refuses puts after many jobs; so much is free on the disk."""
    rig = many_gone(alive)
    rig.disk.capacity_bytes = rig.journal.retention.disk_bytes + free_bytes
    rig.journal.retention.is_full = True
    rig.snapshots.ask_soon()
    return rig


def raising(error: Exception) -> Callable[..., None]:
    def call(*_: object) -> None:
        raise error

    return call


class Bench:
    """A rig, and what is done to it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.patch = patch
        self.rig = snapshot_rig()

    def take(self, step: str) -> Any:
        act, *words = step.split()
        if act == "again":
            for each in " ".join(words[1:]).split(", ") * int(words[0]):
                self.take(each)
            return None
        named = dict(word.split("=") for word in words if "=" in word)
        found: Any = attrgetter(PARTS.get(act, act))(self)
        if not callable(found):
            return found
        values = (value(word) for word in words if "=" not in word)
        return found(*values, **{name: value(word) for name, word in named.items()})

    def thorough(self) -> None:
        """`make check` leaves the fact out."""

    def new(self, **how: int) -> None:
        self.rig = snapshot_rig(**how)

    def many(self, alive: int) -> None:
        self.rig = many_gone(alive)

    def full(self, alive: int, free_bytes: int) -> None:
        self.rig = full_disk(alive, free_bytes)

    def restart(self) -> None:
        self.rig = self.rig.restarted()

    # --- Jobs and time ---------------------------------------------------------------------------

    def come_and_go(self, body_bytes: int = 150) -> None:
        self.rig.delete(self.rig.put(body=b"x" * body_bytes))

    def noise(self, body_bytes: int) -> None:
        """Put a job that no snapshot makes shorter."""
        self.rig.put(delay_ms=YEAR_MS, body=random.Random(1).randbytes(body_bytes))

    def oldest(self, jobs: int) -> None:
        """Delete so many."""
        self.rig.delete([job_id for job_id, _ in islice(self.rig.engine.store.jobs, jobs)])

    def long_log(self, times: int = 20, jobs: int = 40, body_bytes: int = len(LONG)) -> None:
        long_log(self.rig, times, jobs, b"x" * body_bytes)

    def moved(self) -> None:
        """Set the wall clock, which jobs follow that have to be placed anew."""
        engine, now_ms = self.rig.engine, self.rig.now_ms
        topic = engine.store.topic("default")
        for after in range(200):
            put(engine, topic, due_wall_ms=now_ms + HOUR_MS + after, now_ms=now_ms)
        follow_wall(engine, -HOUR_MS)

    def clear(self) -> None:
        clear(self.rig.engine, self.rig.engine.store.topics.by_name["default"])

    def sweep(self) -> None:
        self.rig.tasks.step(self.rig.now_ms, budget=0)

    def tasks(self) -> None:
        while self.rig.tasks.has_more:
            self.rig.tasks.step(self.rig.now_ms)

    def rest_until_taken(self) -> None:
        while not self.rig.snapshots.taken:
            self.rig.rest(1)

    def quick(self) -> None:
        """From now on the thread is."""
        self.rig.pace = None

    # --- The journal and its disk ----------------------------------------------------------------

    def due(self, times: int) -> None:
        """Let a snapshot be due until so many were taken."""
        is_due = lambda *_, **__: self.rig.snapshots.taken < times  # noqa: E731
        self.patch.setattr(Journal, "snapshot_is_due", is_due)

    def begin_fails(self, how: str) -> None:
        error = {"full": JournalFull, "broken": JournalFailed}[how]("file", how)
        self.patch.setattr(Journal, "begin_snapshot", raising(error))

    def fail(self, verb: str, times: int = 1) -> None:
        disk = self.rig.disk
        for after in range(1, times + 1):
            disk.fail(disk.verb_counts[verb] + after, OSError(errno.EIO, "gone"), verb)

    def free(self, free_bytes: int) -> None:
        """Have a disk with so much beside the log."""
        self.rig.disk.capacity_bytes = self.rig.journal.retention.disk_bytes + free_bytes

    def leave(self, free_bytes: int) -> None:
        """Let others use the disk up to so much."""
        assert self.rig.disk.capacity_bytes is not None
        self.rig.disk.capacity_bytes -= self.rig.disk.free_bytes(DIRECTORY) - free_bytes

    def spare(self, more_bytes: int) -> None:
        """Have a file of the reserve for so much more."""
        assert self.rig.journal.make_space(self.rig.journal.space_bytes + more_bytes)

    def shrink(self) -> bool:
        """Ask for a shorter file when a whole one more is needed."""
        journal, clock = self.rig.journal, self.rig.clock
        needed_bytes = journal.space_bytes + journal.segment_bytes
        return journal.shrink(needed_bytes, clock.now_ms(), clock.wall_ms())

    # --- What is seen ----------------------------------------------------------------------------

    def begun(self) -> int:
        return len(self.rig.workers)

    def jobs(self) -> int:
        return len(self.rig.engine.store.jobs)

    def unswept(self) -> int:
        return len(self.rig.engine.store.cleared.left)

    def excess(self) -> int:
        """By how much the log is longer than twice what is live and a segment."""
        retention, live_bytes = self.rig.journal.retention, self.rig.engine.store.live_bytes
        return retention.disk_bytes - 2 * live_bytes - SEGMENT_BYTES

    def files(self, beginning: str) -> int:
        return sum(name.startswith(beginning) for name in self.rig.names)

    def warned(self, *words: str) -> bool:
        return " ".join(words) in self.rig.said.getvalue()

    def failures(self) -> str:
        return " ".join(type(failure).__name__ for failure in self.rig.failures)

    def same(self) -> bool:
        """Whether a start finds all that there is."""
        return self.rig.restarted().state() == self.rig.state()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.thorough] * fact.given.startswith("thorough"))
        for name, fact in FACTS.items()
    ],
)
def test_fact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch)
    found: Any
    for found, outcome in taken(FACTS[name], bench.take):
        sign, _, expected = outcome.partition(" ")
        if sign == "=":
            assert str(found) == str(value(expected))
        else:
            assert COMPARED[sign](found, value(expected)), found


# --- What no row can say -------------------------------------------------------------------------


@pytest.fixture
def rig() -> CommitRig:
    return snapshot_rig()


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


def test_a_fault_of_our_own_in_the_thread_reaches_the_loop(
    rig: CommitRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_log(rig)
    monkeypatch.setattr(SnapshotWriter, "finish", raising(AssertionError("planted")))
    with pytest.raises(AssertionError, match="planted"):
        rig.rest()


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


# --- A log of which nearly nothing is alive ------------------------------------------------------


def test_what_the_next_turn_may_write_fits_the_shorter_log() -> None:
    rig = many_gone(alive=3)
    space = rig.engine.log_space
    space.limit(rig.journal.space_bytes - space.set_aside_bytes(held=0), lambda *_: 0)
    rig.rest()
    assert rig.journal.space_bytes < 2 * JOURNAL_SHRUNK_BYTES
    assert EMERGENCY_BYTES < space.free_bytes <= rig.journal.space_bytes


def test_on_a_full_disk_a_snapshot_is_due_as_soon_as_it_frees_more_than_it_takes() -> None:
    rig = snapshot_rig(segment_bytes=4 << 20)  # files of 1 MiB, a snapshot for each half of one
    rig.put(delay_ms=YEAR_MS)
    is_due: set[tuple[bool, bool]] = set()
    while rig.snapshots.taken < 4:
        rig.delete(rig.put(body=b"x" * 50_000))
        rig.pass_turn(SNAPSHOT_CALM_MS // 2)
        retention, live_bytes = rig.journal.retention, rig.engine.store.live_bytes
        usual = retention.is_due(live_bytes)
        retention.is_full = True
        is_due.add((usual, retention.is_due(live_bytes)))
        retention.is_full = False
    assert is_due >= {(False, False), (False, True)}


def test_where_no_file_can_be_made_the_log_goes_on_in_the_one_that_there_is() -> None:
    rig = many_gone(3)
    rig.disk.fail(rig.disk.verb_counts["create"] + 1, OSError(errno.EMFILE, "too many"), "create")
    assert rig.log.space.more(1 << 30, 0, 0) == -1
    assert (rig.log.space.is_full, rig.log.space.trouble) == (True, "too many")
    rig.snapshots.ask_soon()
    rig.rest(SNAPSHOT_CALM_MS // 2)
    assert rig.snapshots.taken == 0
    assert "segment-0000000002.log" not in rig.names


def test_a_start_on_a_disk_nearly_full_leaves_what_a_snapshot_takes() -> None:
    rig = many_gone(alive=3)
    rig.rest()
    # Its last file has 1 MiB; a start makes it a quarter of a segment again.
    file_bytes = rig.segment_bytes // 4
    full_bytes = rig.journal.retention.disk_bytes + file_bytes - JOURNAL_SHRUNK_BYTES
    for spared_bytes, capacity in ((0, JOURNAL_SHRUNK_BYTES), (10_000, file_bytes)):
        rig.disk.capacity_bytes = full_bytes + spared_bytes
        rig.restarted()
        assert len(rig.disk.file_bytes(f"{DIRECTORY}/segment-0000000002.log")) == capacity


WAYS: Final = (many_gone, full_disk)
Way = Callable[[int], CommitRig]


def calls_of_a_shrinking(way: Way) -> int:
    rig = way(3)
    before = rig.disk.call_count
    rig.rest()
    return rig.disk.call_count - before


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whichever_call_fails_while_the_log_is_shrunk_every_job_is_there(
    error: int, way: Way
) -> None:
    for number in range(1, calls_of_a_shrinking(way) + 1):
        rig = way(3)
        rig.disk.fail(rig.disk.call_count + number, OSError(error, "broken"))
        rig.rest(HOUR_MS)
        assert rig.restarted().state() == rig.state(), number


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_wherever_the_power_goes_while_the_log_is_shrunk_every_job_is_there(
    rng: random.Random, way: Way
) -> None:
    for number in range(1, calls_of_a_shrinking(way) + 1):
        rig = way(3)
        rig.disk.fail(rig.disk.call_count + number, PowerCut())
        with pytest.raises(PowerCut):
            rig.rest(HOUR_MS)
        rig.disk.crash(lambda _: rng.random() < 0.5)
        assert rig.restarted().state() == rig.state(), number
