"""The queues of a topic: each job is where its state says, and comes out again."""

import random

from delayd.core.job_parts import Flag
from delayd.core.job_record import HEADER, U64, State
from delayd.core.queues import Queues
from delayd.core.ready_queue import ready_key
from delayd.core.timers import TimerLane
from delayd.core.times import PlayedMs
from delayd.core.wheel.buckets import WheelCounts
from delayd.core.wheel.wheel import TimingWheel


class Jobs:
    """Queues with the records that they ask for."""

    def __init__(self) -> None:
        self.records: dict[int, bytes] = {}
        self.due_ms: dict[int, int] = {}
        wheel = TimingWheel(1, 20, 0, self.due_ms.get, WheelCounts())
        self.queues = Queues(TimerLane(wheel, "mail"))

    def place(self, job_id: int, state: State, priority: int = 0, due_ms: int = 0) -> bool:
        flags = Flag.RANK if state is State.BURIED else Flag.NONE
        rank = U64.pack(job_id) if flags else b""
        self.records[job_id] = record = (
            HEADER.pack(job_id, due_ms, 0, 9, priority, 1, state, flags) + rank
        )
        if state is State.DELAYED:
            self.due_ms[job_id] = due_ms
        is_earlier = self.queues.place(job_id, priority, due_ms, record, PlayedMs(0))
        self.queues.check(self.records.get)
        return is_earlier

    def unplace(self, job_id: int) -> None:
        record = self.records.pop(job_id)
        self.queues.unplace(job_id, HEADER.unpack_from(record)[4], record)
        self.due_ms.pop(job_id, None)
        self.queues.check(self.records.get)


def test_only_the_job_that_is_due_first_asks_for_the_lane_to_be_queued() -> None:
    jobs = Jobs()
    assert jobs.place(1, State.DELAYED, due_ms=9)
    assert not jobs.place(2, State.DELAYED, due_ms=12)
    assert jobs.place(3, State.DELAYED, due_ms=4)


def test_buried_jobs_are_in_the_order_of_their_ranks() -> None:
    jobs = Jobs()
    for job_id in (3, 1, 2):
        jobs.place(job_id, State.BURIED)
    assert list(jobs.queues.buried) == [ready_key(rank, rank) for rank in (1, 2, 3)]


def test_whatever_is_placed_comes_out_again(rng: random.Random) -> None:
    jobs = Jobs()
    job_ids = list(range(1, 61))
    for job_id in job_ids:
        state = rng.choice((State.DELAYED, State.READY, State.BURIED))
        jobs.place(job_id, state, rng.randrange(2_000), rng.randrange(1, 999))
    assert len(jobs.queues) == 60
    rng.shuffle(job_ids)
    for job_id in job_ids[:30]:
        jobs.unplace(job_id)
    left: list[int] = []
    while some := jobs.queues.take_some(7):
        left += some
    # The wheel may name jobs that are gone.
    assert sorted(jobs.records.keys() & {*left}) == sorted(job_ids[30:])
