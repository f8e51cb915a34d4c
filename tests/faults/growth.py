"""Patterns of use that are known to make logs grow, an hour of them in a moment.

Engine, journal and snapshots are the daemon's; a turn is appended and synced at once, and the
snapshots' thread works a task at a time between turns.
"""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delayd.core.engine import Engine
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury, release
from delayd.core.operations.change import reschedule
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.sessions import open_session
from delayd.core.operations.tick import advance
from delayd.core.times import RequestMs
from delayd.journal.file_log import FileLog
from delayd.log import LogError
from tests.faults.adapter import Loop, SteppedSnapshots, news_of
from tests.faults.bytes_of_a_log import append_turn, opened
from tests.journal.journals import DIRECTORY
from tests.rigs.clock import FakeClock
from tests.rigs.disk import SimulatedDisk
from tests.rigs.engine import put

if TYPE_CHECKING:
    from delayd.core.session import Session

TTR_MS: Final = 60_000
YEAR_MS: Final = 365 * 86_400_000
HOUR_MS: Final = 3_600_000


class House:
    """A daemon's engine and journal, with the books of what they take on the disk."""

    def __init__(self, segment_bytes: int, seed: int = 1) -> None:
        self.segment_bytes = segment_bytes
        self.rng = random.Random(seed)
        self.clock = FakeClock()
        self.disk = SimulatedDisk()
        self.journal = opened(self.disk, segment_bytes)
        self.engine = Engine(start_ms=self.clock.now_ms())
        self.topic = self.engine.store.topic("default")
        self.worker: Session = open_session(self.engine)
        self.loop = Loop(self.clock.now_ms)
        self.snapshots = SteppedSnapshots(
            self.engine,
            FileLog(self.journal, news_of(self.clock), None),
            self.loop,
            self.clock,
            self._failed,
        )
        self.excess_bytes = 0
        """By how much the bound was passed while no snapshot was due or in the making."""
        self.turns = 0

    @staticmethod
    def _failed(error: LogError) -> None:
        raise error

    def put(self, delay_ms: int, body_bytes: int = 100) -> int:
        """Put a job."""
        return put(
            self.engine,
            self.topic,
            priority=0,
            delay_ms=delay_ms,
            ttr_ms=TTR_MS,
            body=self.rng.randbytes(body_bytes),
            now_ms=self.clock.now_ms() + 1,
        )

    def reserved(self, jobs: int) -> list[int]:
        """Take up to so many jobs in hand."""
        now_ms = self.clock.now_ms() + 1
        return [
            each[0]
            for each in reserve_batch(self.engine, self.worker, jobs, 1 << 40, RequestMs(now_ms))
        ]

    def turn(self, passes_ms: int = 0) -> None:
        """End the turn, and let time pass until the next."""
        append_turn(self.engine, self.journal)
        self._look_after_snapshots()
        self.turns += 1
        if passes_ms:
            self.clock.advance(passes_ms)
            self.loop.ring()
            while advance(self.engine, self.clock.now_ms(), RequestMs(self.clock.now_ms() + 1)):
                pass

    def _look_after_snapshots(self) -> None:
        self.snapshots.step()
        self.snapshots.worker.step(may_sync_log=True)
        self.loop.ring()
        is_quiet = self.snapshots._making is None
        if is_quiet and not self.journal.snapshot_is_due(self.engine.store.live_bytes):
            excess_bytes = self.disk_bytes() - self.bound_bytes()
            self.excess_bytes = max(self.excess_bytes, excess_bytes)

    def settle(self) -> None:
        """Let the snapshots be taken that are due, with nothing else going on."""
        for _ in range(100_000):
            self.clock.advance(300)
            self.loop.ring()
            self._look_after_snapshots()
            is_due = self.journal.snapshot_is_due(self.engine.store.live_bytes)
            if self.snapshots._making is None and not is_due:
                return
        raise AssertionError("snapshots are due for ever")

    def disk_bytes(self) -> int:
        """Return what log and snapshots take, the space taken ahead left out."""
        return sum(
            size
            for name, size in self.disk.file_sizes(DIRECTORY).items()
            if name.startswith(("segment-", "snapshot-"))
        )

    def bound_bytes(self) -> int:
        """Return what is promised: 2 x live + one segment."""
        return 2 * self.engine.store.live_bytes + self.segment_bytes


def an_hour_of_work(house: House, jobs: int) -> None:
    """Reserve each job and release it with a delay, again and again for an hour."""
    for start in range(0, jobs, 500):
        for _ in range(start, min(jobs, start + 500)):
            house.put(0)
        house.turn()
    ends_ms = house.clock.now_ms() + HOUR_MS
    while house.clock.now_ms() < ends_ms:
        for job_id in house.reserved(500):
            delay_ms = house.rng.randrange(60_000, 900_000)
            release(
                house.engine, house.worker, job_id, 0, delay_ms, RequestMs(house.clock.now_ms() + 1)
            )
        house.turn(1_000)


def a_few_buried_among_many(house: House, jobs: int) -> None:
    """Bury 400 jobs in all, and delete all others."""
    for number in range(jobs):
        house.put(0)
        for job_id in house.reserved(1):
            if number % (jobs // 400) == 0:
                bury(house.engine, house.worker, job_id, 0, RequestMs(house.engine.store.time_ms))
            else:
                delete(house.engine, house.worker, job_id, RequestMs(house.clock.now_ms() + 1))
        if number % 20 == 19:
            house.turn(10)
    house.turn(10)


def nothing_but_next_year(house: House, jobs: int) -> None:
    """Put jobs for next year, and put them off again and again."""
    for number in range(jobs):
        job_id = house.put(YEAR_MS)
        for _ in range(8):
            put_off = house.rng.randrange(1, job_id + 1)
            reschedule(house.engine, put_off, YEAR_MS, RequestMs(house.clock.now_ms() + 1))
        if number % 20 == 19:
            house.turn(10)
    house.turn(10)


PATTERNS: Final[tuple[Callable[[House, int], None], ...]] = (
    an_hour_of_work,
    a_few_buried_among_many,
    nothing_but_next_year,
)
