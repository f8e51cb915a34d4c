"""The bound on disk use, under patterns that are known to defeat logs.

A model state stands for the engine: a dictionary of jobs, whose copies are a snapshot's payloads.
A snapshot is taken whenever one is due, with operations between its frames.
"""

import random
import struct
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import pytest

from delayd.journal.format import END_NAME, LOCK_NAME
from delayd.journal.journal import Journal
from delayd.journal.retention import snapshot_is_due_at
from tests.journal.journals import DIRECTORY, contents_of
from tests.rigs.disk import SimulatedDisk

if TYPE_CHECKING:
    from delayd.journal.snapshot import SnapshotWriter

SEGMENT: Final = 64 << 10
RECORD: Final = struct.Struct("<QI")


class Jobs:
    """A store kept in a journal; a record is id, length and body, and an empty body removes."""

    def __init__(self, *, seed: int = 1, noise: float = 1.0) -> None:
        self.disk = SimulatedDisk()
        self.journal = Journal.open(DIRECTORY, disk=self.disk, segment_bytes=SEGMENT)
        assert list(self.journal.replay()) == []
        self.jobs: dict[int, bytes] = {}
        self.live_bytes = 0
        self.rng = random.Random(seed)
        self.noise = noise
        self.last_id = 0
        self.snapshots = self.copied = self.copied_bytes = self.logged_bytes = 0
        self.excess_bytes = 0
        self.copying: tuple[SnapshotWriter, Iterator[bytes], int] | None = None

    def body(self, length: int = 200) -> bytes:
        noisy = int(length * self.noise)
        return self.rng.randbytes(noisy) + b" " * (length - noisy)

    def put(self, body: bytes) -> int:
        self.last_id += 1
        self.record(self.last_id, body)
        return self.last_id

    def record(self, job_id: int, body: bytes) -> None:
        old = self.jobs.pop(job_id, None)
        self.live_bytes -= len(old) + 12 if old else 0
        if body:
            self.jobs[job_id] = body
            self.live_bytes += len(body) + 12
        payload = packed(job_id, body)
        self.logged_bytes += len(payload)
        self.journal.append(payload, 0, 0)
        self.step()

    def step(self) -> None:
        """What the service does between turns."""
        self.journal.sync()
        is_due = self.journal.snapshot_is_due(self.live_bytes)
        if is_due:
            copy = [packed(number, body) for number, body in self.jobs.items()]
            writer = self.journal.begin_snapshot(self.journal.appended_sequence, 0, 0)
            self.copying = (writer, iter(copy), len(copy))
        if self.copying:
            writer, copies, jobs = self.copying
            pieces = list(islice(copies, 20))
            if pieces:
                piece = b"".join(pieces)
                writer.write(piece)
                self.copied_bytes += len(piece)
            else:
                writer.finish(jobs)
                self.copying = None
                self.copied += jobs
                self.snapshots += 1
        excess = self.disk_bytes() - 2 * self.live_bytes - SEGMENT
        self.excess_bytes = max(self.excess_bytes, excess)

    def settle(self) -> None:
        """Let be taken what is due, without another operation."""
        for _ in range(100_000):
            if not self.copying and not self.journal.snapshot_is_due(self.live_bytes):
                return
            self.step()
        pytest.fail("snapshots are due for ever")

    def disk_bytes(self) -> int:
        sizes = self.disk.file_sizes(DIRECTORY)
        used = sum(size for name, size in sizes.items() if name not in {LOCK_NAME, END_NAME})
        assert used <= self.journal.retention.disk_bytes
        return used

    def check_settled(self) -> None:
        self.settle()
        assert self.disk_bytes() <= 2 * self.live_bytes + SEGMENT
        snapshots = [name for name in contents_of(self.disk) if name.startswith("snapshot")]
        assert len(snapshots) <= 2


def churn(jobs: Jobs) -> None:
    """Reserve and release in a loop: one small record after the other about the same jobs."""
    numbers = [jobs.put(jobs.body()) for _ in range(300)]
    for _ in range(3_000):
        jobs.record(jobs.rng.choice(numbers), jobs.body())


def standing(jobs: Jobs) -> None:
    """A few jobs stay for ever among many that come and go."""
    for number in range(3_000):
        job_id = jobs.put(jobs.body())
        if number % 500:
            jobs.record(job_id, b"")


def growth(jobs: Jobs) -> None:
    """Jobs for next year: nothing but puts."""
    for _ in range(2_000):
        jobs.put(jobs.body())


@pytest.mark.thorough
@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("pattern", [churn, standing, growth])
def test_the_bound_holds_at_every_moment(pattern: Callable[[Jobs], None], noise: float) -> None:
    jobs = Jobs(noise=noise)
    pattern(jobs)
    assert jobs.excess_bytes <= 0
    jobs.check_settled()


@pytest.mark.thorough
def test_a_growing_state_is_not_copied_over_and_over() -> None:
    jobs = Jobs()
    growth(jobs)
    # Frames cost a fifth of it here, and that is all that there is to save.
    assert jobs.copied_bytes < 20 * jobs.logged_bytes
    compressible = Jobs(noise=0.2)
    growth(compressible)
    assert compressible.copied_bytes < jobs.copied_bytes / 4


@pytest.mark.thorough
def test_random_patterns_settle_within_the_bound_and_replay_to_the_same_state(
    rng: random.Random,
) -> None:
    for _ in range(8):
        jobs = Jobs(seed=rng.randrange(1 << 30), noise=rng.random())
        for _ in range(rng.randrange(1, 6)):
            puts, share = rng.randrange(1, 600), rng.random()
            size = rng.choice([0, 50, 500, 3_000])
            for _ in range(puts):
                jobs.put(jobs.body(size + 1))
                if jobs.jobs and rng.random() < share:
                    jobs.record(rng.choice(list(jobs.jobs)), b"")
            if rng.random() < 0.3:
                for number in list(jobs.jobs):
                    jobs.record(number, b"")
        jobs.put(b"last")
        jobs.check_settled()
        jobs.disk.crash()
        journal = Journal.open(DIRECTORY, disk=jobs.disk, segment_bytes=SEGMENT)
        state: dict[int, bytes] = {}
        for frame in journal.replay():
            play(state, frame.payload)
        assert state == jobs.jobs


def packed(job_id: int, body: bytes) -> bytes:
    return RECORD.pack(job_id, len(body)) + body


def play(state: dict[int, bytes], payload: bytes) -> None:
    at = 0
    while at < len(payload):
        job_id, body_bytes = RECORD.unpack_from(payload, at)
        at += RECORD.size + body_bytes
        state.pop(job_id, None)
        if body_bytes:
            state[job_id] = payload[at - body_bytes : at]


@pytest.mark.thorough
def test_the_books_are_right_after_a_restart() -> None:
    jobs = Jobs(noise=0.5)
    churn(jobs)
    jobs.settle()
    jobs.put(b"last")
    before = jobs.journal.retention.log_bytes_since_snapshot
    jobs.disk.kill()
    journal = Journal.open(DIRECTORY, disk=jobs.disk, segment_bytes=SEGMENT)
    list(journal.replay())
    assert journal.retention.log_bytes_since_snapshot == pytest.approx(before, abs=200)
    used = sum(len(content) for content in contents_of(jobs.disk).values())
    assert used <= journal.retention.disk_bytes <= used + 100
    assert not journal.snapshot_is_due(jobs.live_bytes)


@pytest.mark.thorough
def test_the_journal_tells_its_files_and_how_many_jobs_were_copied() -> None:
    jobs = Jobs()
    assert (jobs.journal.retention.file_numbers, jobs.journal.retention.jobs_copied) == ((0, 0), 0)
    growth(jobs)
    jobs.settle()
    names = sorted(name for name in contents_of(jobs.disk) if name.startswith("segment-"))
    numbers = tuple(int(name[8:18]) for name in (names[0], names[-1]))
    assert jobs.journal.retention.file_numbers == numbers
    assert 1 < numbers[0] < numbers[1]
    assert jobs.journal.retention.jobs_copied == jobs.copied
    assert jobs.copied > len(jobs.jobs)


@pytest.mark.parametrize(
    ("live_bytes", "newest_bytes", "held_bytes", "expected_bytes", "due_at"),
    [
        (0, 0, 0, 0, 8),
        (100, 50, 100, 50, 58),
        (100, 100, 100, 100, 8),
        (100, 0, 0, 100, 108),  # growth from nothing: only what is no growth counts
        (0, 500, 500, 0, 8),
    ],
)
def test_a_snapshot_is_due_as_the_arithmetic_says(
    live_bytes: int, newest_bytes: int, held_bytes: int, expected_bytes: int, due_at: int
) -> None:
    assert due_at == snapshot_is_due_at(
        file_bytes=16,
        live_bytes=live_bytes,
        newest_bytes=newest_bytes,
        held_bytes=held_bytes,
        expected_bytes=expected_bytes,
    )
