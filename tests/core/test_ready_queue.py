"""The ready queue: by priority and id, whatever comes and goes, with all that is counted of it."""

import random

import pytest

from delayd.core.job_parts import Flag, Own, body_of, pack_parts, with_parts
from delayd.core.job_record import FLAGS_AT, HEADER, TTR_AT, U64, State
from delayd.core.job_table import JobTable
from delayd.core.ready_queue import WHOLE_TOPIC, ReadyQueue, ready_key
from delayd.core.targets import pack_own

ORIGINS = (b"https://a.example", b"https://b.example")
NOW_MS = 100_000


class Jobs:
    """A queue with its records, and beside it what is in it as a plain dict."""

    def __init__(self) -> None:
        self.queue = ReadyQueue()
        self.table = JobTable()
        self.keys: dict[int, int] = {}
        self.since_ms: dict[int, int] = {}
        self.last_id = 0

    def new(self, priority: int, due_ms: int, origin: bytes = b"", ttr_ms: int = 9) -> bytes:
        """Keep the record of a new job."""
        self.last_id += 1
        head = HEADER.pack(self.last_id, due_ms, 0, ttr_ms, priority, 1, State.READY, Flag.NONE)
        record = head + b"body of %d" % self.last_id
        if origin:
            target = pack_own("POST", f"{origin.decode()}/x", ())
            record = with_parts(record, pack_parts(Own(target=target)))
        self.table.put(self.last_id, record)
        self.keys[self.last_id] = ready_key(priority, self.last_id)
        self.since_ms[self.last_id] = due_ms
        return record

    def add(
        self, priority: int = 0, due_ms: int = 0, origin: bytes = b"", since_ms: int = 0
    ) -> int:
        record = self.new(priority, due_ms, origin)
        self.queue.add(self.last_id, priority, due_ms, record, record[FLAGS_AT], since_ms)
        self.since_ms[self.last_id] = since_ms or due_ms
        self.check()
        return self.last_id

    def add_run(self, priorities: list[int], due_ms: int) -> None:
        keys = []
        for priority in priorities:
            self.new(priority, due_ms)
            keys.append(self.keys[self.last_id])
        self.queue.add_run(sorted(keys), due_ms)
        self.check()

    def pop(self) -> int:
        job_id, since_ms, ttr_ms, record = self.queue.pop(self.table, NOW_MS)
        assert record == self.table.get(job_id)
        assert ttr_ms == U64.unpack_from(record, TTR_AT)[0]
        self.leave(job_id, since_ms)
        return job_id

    def pop_run(self, jobs_max: int, bytes_max: int = 1 << 30) -> list[int]:
        run, ttrs, spans = self.queue.pop_run(self.table, jobs_max, bytes_max, NOW_MS)
        assert [job_id for _, job_ids in ttrs for job_id in job_ids] == [each[0] for each in run]
        ttr_of = {job_id: ttr_ms for ttr_ms, job_ids in ttrs for job_id in job_ids}
        in_order = iter(run)
        for first_ms, last_ms, count in spans:
            whose = [next(in_order)[0] for _ in range(count)]
            assert (self.since_ms[whose[0]], self.since_ms[whose[-1]]) == (first_ms, last_ms)
        assert next(in_order, None) is None
        for job_id, body in run:
            record = self.table.get(job_id) or b""
            assert (ttr_of[job_id], body) == (U64.unpack_from(record, TTR_AT)[0], body_of(record))
            self.leave(job_id, self.since_ms[job_id])
        return [job_id for job_id, _ in run]

    def discard(self, job_id: int) -> None:
        record = self.table.get(job_id) or b""
        self.leave(job_id, self.queue.discard(job_id, self.keys[job_id] >> 64, record))

    def leave(self, job_id: int, since_ms: int) -> None:
        assert since_ms == self.since_ms.pop(job_id)
        del self.keys[job_id]

    def check(self) -> None:
        assert [*self.queue] == sorted(self.keys.values())
        assert len(self.queue) == len(self.keys)
        self.queue.check(self.table.get)


def test_the_owner_learns_of_a_first_job_and_of_the_first_and_last_of_a_lane() -> None:
    jobs = Jobs()
    queue = jobs.queue
    told = []

    def tell() -> None:
        told.append([*queue.changed])
        queue.changed.clear()

    first = jobs.add(origin=ORIGINS[0])
    tell()
    jobs.add(origin=ORIGINS[0])
    jobs.add()
    tell()
    jobs.discard(first)
    tell()
    jobs.pop()
    tell()
    assert told == [[WHOLE_TOPIC, ORIGINS[0]], [], [], [ORIGINS[0]]]
    assert queue.lanes is None


def test_a_key_of_a_lane_is_counted_round_and_round() -> None:
    jobs = Jobs()
    ids = [jobs.add(origin=ORIGINS[number % 2]) for number in range(4)]
    assert [jobs.queue.key_at(b"", skips) for skips in range(5)] == [*ids, ids[0]]
    assert [jobs.queue.key_at(ORIGINS[1], skips) for skips in range(3)] == [2, 4, 2]
    assert jobs.queue.key_at(b"https://c.example", 0) is None
    assert Jobs().queue.key_at(b"", 0) is None


@pytest.mark.parametrize("seed", range(4))
def test_whatever_comes_and_goes_the_queue_is_a_sorted_list(seed: int) -> None:
    rng = random.Random(seed)
    jobs = Jobs()
    for _ in range(300):
        due_ms = rng.choice((0, NOW_MS - 1, rng.randrange(NOW_MS)))
        act = rng.randrange(5)
        if act == 0:
            origin = rng.choice((b"", *ORIGINS))
            jobs.add(rng.randrange(3) * 1_000, due_ms, origin, rng.choice((0, 0, due_ms + 7)))
        elif act == 1:
            jobs.add_run([rng.randrange(3) * 1_000 for _ in range(rng.randrange(1, 9))], due_ms)
        elif act == 2 and jobs.keys:
            first = min(jobs.keys, key=jobs.keys.__getitem__)
            assert jobs.pop() == first
        elif act == 3:
            most = rng.randrange(6)
            expected = sorted(jobs.keys, key=jobs.keys.__getitem__)[:most]
            assert jobs.pop_run(most) == expected
        elif jobs.keys:
            jobs.discard(rng.choice([*jobs.keys]))
        jobs.check()
    some = rng.choice([*jobs.keys.values()])
    assert jobs.queue.after(some, 3) == [k for k in sorted(jobs.keys.values()) if k > some][:3]
