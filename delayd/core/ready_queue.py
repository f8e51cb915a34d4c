"""The ready jobs of one topic, in the order in which they are handed out: by priority, then id.

    add, add_run     jobs become ready
    pop, pop_run     the next ones are handed out
    discard          one is ready no more: reserved by its id, buried, changed, moved or deleted
    head             the key of the next one: of the heads of several topics the least comes first

Priority and id are folded into one integer, `priority << 64 | id`, so that the ready jobs are a
plain sorted list of numbers: the head is the next job, any member is removed exactly, and nothing
is ever left behind to be skipped later.

>>> ready_key(1, 9) < ready_key(2, 3) < ready_key(2, 4)
True
>>> job_id_of(ready_key(2, 4))
4

Only this module knows that order, so that there may be another: whatever these five do with the
keys, all others see a queue with a head. With its jobs the queue keeps what is to be known of them
together: how many are urgent, since when they are ready (`ages`), and those with a target of their
own as a list for each origin (`lanes`, see `core.push_lanes`).

Where a topic has ready jobs again, or a lane has its first job or has lost its last one, the queue
notes the origin in `changed`, and its owner takes that.
"""

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final, final

from sortedcontainers import SortedList

from delayd.core.job_parts import Flag, body_of, target_of
from delayd.core.job_record import DUE_AT, FLAGS_AT, HEADER_BYTES, STATE_AT, TTR_AT, U64, State
from delayd.core.job_table import JobTable
from delayd.core.stats.histogram import span
from delayd.core.stats.ready_ages import ReadyAges
from delayd.core.targets import origin_of
from delayd.core.times import ROUNDING_MS, PlayedMs
from delayd.core.transitions import was_moved
from delayd.limits import PRIORITY_URGENT_BELOW

ID_MASK: Final = 2**64 - 1
WHOLE_TOPIC: Final = b""
"""In place of an origin: all ready jobs of the topic."""
_READY: Final = int(State.READY)
_BURIED: Final = int(State.BURIED)
_MORE: Final = int(Flag.MORE)
"""Its bit is the highest: flags of a job with a target of its own are no less."""
_unpack_u64: Final = U64.unpack_from
_unpack_due_and_ttr: Final = struct.Struct(f"<Q{TTR_AT - DUE_AT - 8}xQ").unpack_from
"""From DUE_AT on."""


def ready_key(priority: int, job_id: int) -> int:
    """Return the number by which ready jobs are sorted."""
    return priority << 64 | job_id


def job_id_of(key: int) -> int:
    """Return the job of a ready key."""
    return key & ID_MASK


def ready_since(record: bytes, changed: bytes, former_ms: int, time_ms: PlayedMs) -> int:
    """Return since when a job counts as ready that its changed record makes ready.

    0: since it was due. One that is ready already is so since `former_ms`.
    """
    due_ms: int = _unpack_u64(changed, DUE_AT)[0]
    if record[STATE_AT] == _READY and due_ms == _unpack_u64(record, DUE_AT)[0]:
        return former_ms if former_ms != due_ms else 0
    is_kicked = due_ms > time_ms + ROUNDING_MS or (record[STATE_AT] == _BURIED and due_ms < time_ms)
    return time_ms if is_kicked else 0


_URGENT_KEYS_END: Final = ready_key(PRIORITY_URGENT_BELOW, 0)


@final
class ReadyQueue:
    """The ready jobs of one topic."""

    __slots__ = ("_keys", "ages", "changed", "count", "is_listed", "lanes", "urgent")

    def __init__(self) -> None:
        self._keys: SortedList[int] = SortedList()
        self.count = 0
        """The jobs; to ask the list costs 60 ns."""
        self.urgent = 0
        """Those that count as urgent."""
        self.ages = ReadyAges()
        """Since when they are ready."""
        self.lanes: dict[bytes, SortedList[int]] | None = None
        """Origin → keys of the jobs that have a target there; None while none has one."""
        self.is_listed = False
        """It may have jobs, and its topic is in `ReadyTopics.stocked`."""
        self.changed: list[bytes] = []
        """Origins of lanes that have got their first job or lost their last one since the owner
        looked; `WHOLE_TOPIC`: the queue was not listed and has a job."""

    # --- Jobs become ready -----------------------------------------------------------------------

    def add(
        self, job_id: int, priority: int, due_ms: int, record: bytes, flags: int, since_ms: int = 0
    ) -> None:
        """Take in a job, ready since it was due, or since `since_ms` if that is given.

        `flags` are those of its record: to read them there again costs 1 % of a put.
        """
        key = priority << 64 | job_id
        self._keys.add(key)
        self.count += 1
        if priority < PRIORITY_URGENT_BELOW:
            self.urgent += 1
        ages = self.ages
        if since_ms and ages.keep(job_id, since_ms):
            due_ms = since_ms
        if ages.newest_ms <= due_ms < ages.newest_end_ms:
            ages.newest += 1
        else:
            ages.add(due_ms)
        if not self.is_listed:
            self._list()
        if flags >= _MORE:
            self._enter_lane(key, record)

    def add_run(self, keys: Sequence[int], since_ms: int) -> None:
        """Take in jobs without targets of their own, ready since then; in the order of keys."""
        add = self._keys.add
        for key in keys:
            add(key)
        self.count += len(keys)
        self.urgent += bisect_left(keys, _URGENT_KEYS_END)
        self.ages.add(since_ms, len(keys))
        if not self.is_listed:
            self._list()

    def _list(self) -> None:
        self.is_listed = True
        self.changed.append(WHOLE_TOPIC)

    # --- Jobs are handed out ---------------------------------------------------------------------

    def head(self) -> int:
        """Return the key of the next job; there must be one."""
        key: int = self._keys[0]
        return key

    def pop(self, jobs: JobTable) -> tuple[int, int, int, bytes]:
        """Take out the next job; return its id, since when it was ready, its ttr, its record."""
        key: int = self._keys.pop(0)
        self.count -= 1
        if key < _URGENT_KEYS_END:
            self.urgent -= 1
        job_id = key & ID_MASK
        record = jobs.get(job_id)
        assert record is not None
        if self.lanes is not None and record[FLAGS_AT] >= _MORE:
            self._leave_lane(key, record)
        # What `ReadyAges.leave` does, without calls for a job that has just become ready.
        since_ms, ttr_ms = _unpack_due_and_ttr(record, DUE_AT)
        ages = self.ages
        if ages.since:
            since_ms = ages.since.pop(job_id, since_ms)
        if ages.newest_ms <= since_ms < ages.newest_end_ms:
            ages.newest -= 1
        else:
            ages.add(since_ms, -1)
        return job_id, since_ms, ttr_ms, record

    def pop_run(
        self, jobs: JobTable, jobs_max: int, bytes_max: int, time_ms: int
    ) -> tuple[list[tuple[int, bytes]], list[tuple[int, list[int]]], list[tuple[int, int, int]]]:
        """Take out so many of the next jobs, until their bodies exceed `bytes_max`.

        Returns (id, body) of each; (ttr, ids) of neighbours with the same ttr; and since when they
        were ready: (first, last, number of jobs) of neighbours that share a `span`. Mostly all do.
        """
        run: list[tuple[int, bytes]] = []
        ttrs: list[tuple[int, list[int]]] = []
        same: list[int] = []
        last_ttr_ms = -1
        spans: list[tuple[int, int, int]] = []
        keys, ages, has_lanes = self._keys, self.ages, self.lanes is not None
        since = ages.since
        low_ms = high_ms = first_ms = last_ms = counted = urgent = 0
        for _ in range(min(jobs_max, self.count) if bytes_max >= 0 else 0):
            key: int = keys.pop(0)
            if key < _URGENT_KEYS_END:
                urgent += 1
            job_id = key & ID_MASK
            record = jobs.get(job_id)
            assert record is not None
            flags = record[FLAGS_AT]
            if has_lanes and flags >= _MORE:
                self._leave_lane(key, record)
            since_ms, ttr_ms = _unpack_due_and_ttr(record, DUE_AT)
            if since:
                since_ms = since.pop(job_id, since_ms)
            if not low_ms <= since_ms < high_ms:
                if len(run) > counted:
                    spans.append((first_ms, last_ms, len(run) - counted))
                low_ms, high_ms = span(since_ms, time_ms, ages.shift)
                first_ms = since_ms
                counted = len(run)
            last_ms = since_ms
            if ttr_ms != last_ttr_ms:
                same = []
                ttrs.append((ttr_ms, same))
                last_ttr_ms = ttr_ms
            same.append(job_id)
            body = record[HEADER_BYTES:] if not flags else body_of(record)
            run.append((job_id, body))
            bytes_max -= len(body)
            if bytes_max < 0:
                break
        if run:
            spans.append((first_ms, last_ms, len(run) - counted))
        for first_ms, _, count in spans:
            ages.add(first_ms, -count)
        self.count -= len(run)
        self.urgent -= urgent
        return run, ttrs, spans

    # --- Others go -------------------------------------------------------------------------------

    def discard(self, job_id: int, priority: int, record: bytes) -> int:
        """Take out this very job; return since when it was ready."""
        key = priority << 64 | job_id
        self._keys.remove(key)
        self.count -= 1
        if priority < PRIORITY_URGENT_BELOW:
            self.urgent -= 1
        if record[FLAGS_AT] >= _MORE:
            self._leave_lane(key, record)
        return self.ages.leave(job_id, _unpack_u64(record, DUE_AT)[0])

    def take_some(self, count: int) -> list[int]:
        """Take some keys out of a queue that is not used any more; none: it has no more.

        Keys of lanes are of jobs that are gone: they come last, only to be freed in small steps.
        """
        keys = self._keys
        if not keys and self.lanes:
            origin, keys = self.lanes.popitem()
            if len(keys) > count:
                self.lanes[origin] = keys
        return [keys.pop() for _ in range(min(count, len(keys)))]

    # --- Lanes -----------------------------------------------------------------------------------

    def _enter_lane(self, key: int, record: bytes) -> None:
        """Take in a job, if it has a target of its own; moved, exhausted, it has no lane."""
        target = target_of(record)
        if not target or was_moved(record):
            return
        origin = origin_of(target)
        if self.lanes is None:
            self.lanes = {}
        lane = self.lanes.get(origin)
        if lane is None:
            self.lanes[origin] = SortedList((key,))
            self.changed.append(origin)
        else:
            lane.add(key)

    def _leave_lane(self, key: int, record: bytes) -> None:
        target = target_of(record)
        if not target or was_moved(record):
            return
        origin = origin_of(target)
        assert self.lanes is not None
        lane = self.lanes[origin]
        lane.remove(key)
        if not lane:
            del self.lanes[origin]
            self.changed.append(origin)
            self.lanes = self.lanes or None

    # --- What others see -------------------------------------------------------------------------

    def key_at(self, origin: bytes, skips: int) -> int | None:
        """Return a key of the lane, or of all: of the job after so many, counted round and round.

        None when there is none.
        """
        keys = self._keys if not origin else None if self.lanes is None else self.lanes.get(origin)
        return keys[skips % len(keys)] if keys else None

    def after(self, key: int, count: int) -> list[int]:
        """Return so many keys that follow this one, or fewer at the end; -1: from the start."""
        return list(islice(self._keys.irange(key, inclusive=(False, True)), count))

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def check(self, record_of: Callable[[int], bytes | None]) -> None:
        """Assert that counts, ages and lanes are those of the jobs. O(jobs)."""
        records = {key: record_of(job_id_of(key)) or b"" for key in self._keys}
        assert self.count == len(self._keys) == len(records)
        assert self.is_listed or not self.count, "a topic with ready jobs is not listed"
        assert self.urgent == sum(key >> 64 < PRIORITY_URGENT_BELOW for key in records)
        self.ages.check(
            (job_id_of(key), _unpack_u64(rec, DUE_AT)[0]) for key, rec in records.items()
        )
        lanes: dict[bytes, list[int]] = {}
        for key, record in records.items():
            if target_of(record) and not was_moved(record):
                lanes.setdefault(origin_of(target_of(record)), []).append(key)
        assert {origin: [*keys] for origin, keys in (self.lanes or {}).items()} == lanes
        assert self.lanes is None or self.lanes
