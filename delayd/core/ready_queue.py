"""The ready jobs of one topic, in the order in which they are handed out: by priority, then id.

Where jobs have groups, the groups come in their turns (`core.group_turns`).

    add, add_run     jobs become ready
    pop, pop_run     the next ones are handed out
    discard          one is ready no more: reserved by its id, buried, changed, moved or deleted
    head             the key of the next one: of the heads of several topics the least comes first
    join, leave, …   what becomes of jobs of groups; see there

Priority and id are folded into one integer, `priority << 64 | id`, so that the ready jobs are plain
sorted numbers (`core.sorted_keys`): the head is the next job, any member is removed exactly, and
nothing is ever left behind to be skipped later.

>>> ready_key(1, 9) < ready_key(2, 3) < ready_key(2, 4)
True
>>> job_id_of(ready_key(2, 4))
4

Only this module knows that order: whatever these five do with the keys, all others see a queue with
a head. With its jobs the queue keeps what is to be known of them together: how many are urgent,
since when they are ready (`ages`), and those with a target of their own as a list for each origin
(`lanes`, see `core.push_lanes`); of the jobs of a group only the head is there, while it has its
turn.

Where a topic has ready jobs again, or a lane has its first job or has lost its last one, the queue
notes the origin in `changed`, and its owner takes that; the same where the first group has its turn
or the last one has lost it (`TURNS`).
"""

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, final

from delayd.core.group_turns import NUMBER_SHIFT, Group, Groups
from delayd.core.job_parts import Flag, body_of, target_of
from delayd.core.job_record import (
    DUE_AT,
    FLAGS_AT,
    HEADER_BYTES,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    STATE_AT,
    TTR_AT,
    U64,
    State,
)
from delayd.core.job_table import JobTable
from delayd.core.policy import GroupRule
from delayd.core.sorted_keys import SortedKeys
from delayd.core.stats.histogram import span
from delayd.core.stats.ready_ages import ReadyAges
from delayd.core.targets import origin_of
from delayd.core.times import ROUNDING_MS, PlayedMs
from delayd.core.transitions import was_moved
from delayd.limits import PRIORITY_URGENT_BELOW

ID_MASK: Final = 2**64 - 1
WHOLE_TOPIC: Final = b""
"""In place of an origin: all ready jobs of the topic."""
TURNS: Final = b"turns"
"""In place of an origin: whether any group has its turn."""
_WITHIN: Final = (1 << NUMBER_SHIFT) - 1
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


def _origin_of(record: bytes) -> bytes:
    """Return the lane of a job with a target of its own; moved, exhausted, it has none: empty."""
    target = target_of(record)
    return origin_of(target) if target and not was_moved(record) else b""


def _priority_of(record: bytes) -> int:
    priority: int = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
    return priority


_URGENT_KEYS_END: Final = ready_key(PRIORITY_URGENT_BELOW, 0)


@final
class ReadyQueue:
    """The ready jobs of one topic."""

    __slots__ = ("_keys", "ages", "changed", "count", "groups", "is_listed", "lanes", "urgent")

    def __init__(self) -> None:
        self._keys = SortedKeys()
        self.count = 0
        """The jobs; to ask the list costs 60 ns."""
        self.urgent = 0
        """Those that count as urgent."""
        self.ages = ReadyAges()
        """Since when they are ready."""
        self.lanes: dict[bytes, SortedKeys] | None = None
        """Origin → keys of the jobs that have a target there; None while none has one."""
        self.groups: Groups | None = None
        """None while no job of the topic has one."""
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
        if self.groups is None:
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
        if self.groups is not None:
            self._add_to_group(self.groups, priority, job_id, record)
        elif flags >= _MORE:
            self._enter_lane(key, record)

    def add_run(self, keys: Sequence[int], since_ms: int) -> None:
        """Take in jobs without targets of their own, ready since then; in the order of keys."""
        self._keys.add_run(keys)
        self.count += len(keys)
        self.urgent += bisect_left(keys, _URGENT_KEYS_END)
        self.ages.add(since_ms, len(keys))
        if not self.is_listed:
            self._list()
        if self.groups is not None:
            self.groups.loose.ready += len(keys)
            self._turn(self.groups.loose)

    def _list(self) -> None:
        self.is_listed = True
        self.changed.append(WHOLE_TOPIC)

    # --- Jobs are handed out ---------------------------------------------------------------------

    def head(self) -> int:
        """Return the key of the next job; there must be one that may be handed out."""
        if self.groups is not None:
            job_id = self.groups.turns.first() & ID_MASK
            return ready_key(_priority_of(self.groups.jobs.get(job_id) or b""), job_id)
        return self._keys.first()

    def pop(self, jobs: JobTable, time_ms: int) -> tuple[int, int, int, bytes]:
        """Take out the next job; return its id, since when it was ready, its ttr, its record.

        There must be one that may be handed out; its group has it in hand now.
        """
        key = self._keys.pop_first() if self.groups is None else self._take_turn(time_ms)
        self.count -= 1
        if key < _URGENT_KEYS_END:
            self.urgent -= 1
        job_id = key & ID_MASK
        record = jobs.get(job_id)
        assert record is not None
        if self.lanes is not None and record[FLAGS_AT] >= _MORE and self.groups is None:
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
        keys, ages, groups = self._keys, self.ages, self.groups
        has_lanes = self.lanes is not None and groups is None
        since = ages.since
        low_ms = high_ms = first_ms = last_ms = counted = urgent = 0
        for _ in range(min(jobs_max, self.count) if bytes_max >= 0 else 0):
            if groups is not None and not groups.turns:
                break
            key = keys.pop_first() if groups is None else self._take_turn(time_ms)
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
        self.count -= 1
        if priority < PRIORITY_URGENT_BELOW:
            self.urgent -= 1
        if self.groups is not None:
            self._discard_from_group(self.groups, priority, job_id, record)
        else:
            self._keys.remove(key)
            if record[FLAGS_AT] >= _MORE:
                self._leave_lane(key, record)
        return self.ages.leave(job_id, _unpack_u64(record, DUE_AT)[0])

    def take_some(self, count: int) -> list[int]:
        """Take some keys out of a queue that is not used any more; none: it has no more.

        Keys of lanes are of jobs that are gone: they come last, only to be freed in small steps.
        So are turns and groups, for which 0 is no job.
        """
        keys = self._keys
        if not keys and self.groups is not None:
            if taken := self.groups.take_some(count):
                return [0] * taken
            self.groups = None
        if not keys and self.lanes:
            origin, keys = self.lanes.popitem()
            if len(keys) > count:
                self.lanes[origin] = keys
        return keys.take_last(count)

    # --- Groups ----------------------------------------------------------------------------------

    def join(self, groups: Groups, name: bytes) -> None:
        """Count a job that has this group; `groups` are taken if there are none yet."""
        if self.groups is None:
            self.groups = groups
            self.changed.append(TURNS)
            groups.loose.ready = self.count
            self._turn(groups.loose)
        self.groups.join(name)

    def leave(self, name: bytes, time_ms: int) -> None:
        """Count a job no more; it is not ready."""
        assert self.groups is not None
        self.groups.leave(name, time_ms)
        self.end_groups()

    def end_groups(self) -> None:
        """Forget the groups if there are none any more."""
        if self.groups is not None and self.groups.is_over:
            self.groups = None
            self.changed.append(TURNS)

    def hold(self, record: bytes, more: int) -> None:
        """Count one job more in the hands of its group, or with -1 one less."""
        if self.groups is not None and (group := self.groups.of(record)).number:
            group.reserved += more
            if self.groups.rule.reserved_max:
                self._turn(group)

    def retry(self, record: bytes, more: int) -> None:
        """Count one job more that waits for another attempt, or with -1 one less."""
        if self.groups is not None and (group := self.groups.of(record)).number:
            group.retrying += more
            if self.groups.rule.waits:
                self._turn(group)

    def served(self, record: bytes, time_ms: int) -> None:
        """Count as its turn that a job was handed out which was not the next one."""
        if self.groups is not None:
            group = self.groups.of(record)
            self.groups.served(group, time_ms)
            self._turn(group, anew=True)

    def pause_group(
        self, groups: Groups, name: bytes, until_ms: int, pause_ms: int, time_ms: int
    ) -> None:
        """Hand out nothing of a group until then; 0: it is not paused any more."""
        self.join(groups, name)
        self._turn(groups.pause(name, until_ms, pause_ms))
        self.leave(name, time_ms)

    def follow(self, rule: GroupRule) -> None:
        """Have the groups follow another rule from the next `wake_groups` on."""
        if self.groups is not None and self.groups.rule != rule:
            self.groups.follow(rule)
            self.changed.append(TURNS)

    def wake_groups(self, groups: Groups, steps: int, time_ms: int) -> None:
        """Open groups whose time has come, and judge those that are pending; so many at most."""
        while groups.pending and steps > 0:
            steps -= self._renew(groups, steps, time_ms)
        while steps > 0 and not groups.pending and (group := groups.take_timed(time_ms)):
            self._turn(group)
            if groups.by_name.get(group.name) is group:
                groups.drop_if_idle(group, time_ms)
            steps -= 1
        self.changed.append(TURNS)
        self.end_groups()

    def _renew(self, groups: Groups, steps: int, time_ms: int) -> int:
        """Judge the last pending group, or bring some of its jobs in order; return the steps."""
        group = groups.pending[-1]
        if groups.by_name.get(group.name) is not group and group.number:
            groups.pending.pop()
            return 1
        groups.renew(group, time_ms)
        first = group.former << NUMBER_SHIFT
        former = self._keys.after(first - 1, steps) if group.former else []
        former = former[: bisect_right(former, first | _WITHIN)]
        for key in former:
            job_id = key & ID_MASK
            record = groups.jobs.get(job_id) or b""
            self._keys.remove(key)
            self._keys.add(groups.key(group, _priority_of(record), job_id))
        if len(former) < steps:
            group.former = 0
            if group.by_put == groups.rule.by_put or not group.number:
                groups.pending.pop()
                self._turn(group, anew=True)
                groups.drop_if_idle(group, time_ms)
        return len(former) + 1

    def _add_to_group(self, groups: Groups, priority: int, job_id: int, record: bytes) -> None:
        group = groups.of(record)
        key = groups.key(group, priority, job_id)
        self._keys.add(key)
        group.ready += 1
        if not group.number:
            self._enter_lane(key, record)
        if group.head < 0 or key < group.head:
            self._turn(group)

    def _discard_from_group(
        self, groups: Groups, priority: int, job_id: int, record: bytes
    ) -> None:
        group = groups.of(record)
        key = groups.key(group, priority, job_id)
        if group.former and key not in self._keys:
            key = groups.former_key(group, priority, job_id)
        self._keys.remove(key)
        group.ready -= 1
        if not group.number:
            self._leave_lane(key, record)
        if key == group.head:
            self._turn(group)

    def _take_turn(self, time_ms: int) -> int:
        """Take the job whose turn it is out of the keys; return its key without the group."""
        groups = self.groups
        assert groups is not None
        job_id = groups.turns.first() & ID_MASK
        record = groups.jobs.get(job_id) or b""
        group = groups.of(record)
        self._keys.remove(group.head)
        group.ready -= 1
        if group.number:
            group.reserved += 1
        else:
            self._leave_lane(group.head, record)
        groups.served(group, time_ms)
        self._turn(group, anew=True)
        return ready_key(_priority_of(record), job_id)

    def _turn(self, group: Group, *, anew: bool = False) -> None:
        """Give the group its turn, if it has a ready job and may hand it out; or take it."""
        groups = self.groups
        assert groups is not None
        head = -1
        if group.ready and groups.block_of(group) is None:
            head = self.first_of(group)
        if head == group.head and not anew:
            return
        if group.head >= 0:
            groups.turns.remove(group.turn)
            if group.origin:
                self._leave_origin(group.origin, group.turn)
                group.origin = b""
        if head >= 0:
            job_id = head & ID_MASK
            record = groups.jobs.get(job_id) or b""
            group.turn = groups.rank(group, record) << 64 | job_id
            groups.turns.add(group.turn)
            if group.number and (origin := _origin_of(record)):
                group.origin = origin
                self._enter_origin(origin, group.turn)
        else:
            group.turn = -1
        group.head = head
        if groups.has_turns != bool(groups.turns):
            groups.has_turns = not groups.has_turns
            self.changed.append(TURNS)

    def first_of(self, group: Group) -> int:
        """Return the key of the next ready job of a group, whether or not it may go; -1: none."""
        first = group.number << NUMBER_SHIFT
        key = self._keys.following(first - 1)
        return key if key <= first | _WITHIN else -1

    @property
    def group_count(self) -> int:
        """How many groups there are, those that are paused without jobs included."""
        return 0 if self.groups is None else len(self.groups.by_name)

    @property
    def is_held(self) -> bool:
        """Tell whether none may be handed out because of the limits of their groups."""
        return self.groups is not None and bool(self.groups.pending or not self.groups.turns)

    # --- Lanes -----------------------------------------------------------------------------------

    def _enter_lane(self, key: int, record: bytes) -> None:
        origin = _origin_of(record)
        if origin:
            self._enter_origin(origin, key)

    def _enter_origin(self, origin: bytes, key: int) -> None:
        if self.lanes is None:
            self.lanes = {}
        lane = self.lanes.get(origin)
        if lane is None:
            lane = self.lanes[origin] = SortedKeys()
            self.changed.append(origin)
        lane.add(key)

    def _leave_lane(self, key: int, record: bytes) -> None:
        origin = _origin_of(record)
        if origin:
            self._leave_origin(origin, key)

    def _leave_origin(self, origin: bytes, key: int) -> None:
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
        keys: SortedKeys | None
        if origin:
            keys = None if self.lanes is None else self.lanes.get(origin)
        else:
            keys = self._keys if self.groups is None else self.groups.turns
        return keys.at(skips % len(keys)) if keys else None

    def after(self, key: int, count: int) -> list[int]:
        """Return so many keys that follow this one, or fewer at the end; -1: from the start.

        Those of groups come one group after the other.
        """
        return self._keys.after(key, count)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        return iter(self._keys)

    def check(self, record_of: Callable[[int], bytes | None]) -> None:
        """Assert that counts, ages and lanes are those of the jobs. O(jobs)."""
        if not self._keys and self.groups is None:
            assert self.count == self.urgent == 0
            assert self.lanes is None
            self.ages.check(())
            return
        records = {key: record_of(job_id_of(key)) or b"" for key in self._keys}
        assert self.count == len(self._keys) == len(records)
        assert self.is_listed or not self.count, "a topic with ready jobs is not listed"
        priorities = {key: _priority_of(record) for key, record in records.items()}
        urgent = sum(priority < PRIORITY_URGENT_BELOW for priority in priorities.values())
        assert self.urgent == urgent
        self.ages.check(
            (job_id_of(key), _unpack_u64(rec, DUE_AT)[0]) for key, rec in records.items()
        )
        groups = self.groups
        lanes: dict[bytes, list[int]] = {}
        for key, record in records.items():
            group = None if groups is None else groups.of(record)
            if group is None or not group.number:
                lane_key = key
                assert key >> 64 == priorities[key]
            else:
                assert key >> NUMBER_SHIFT in {group.number, group.former}
                lane_key = group.turn if key == group.head else -1
            if _origin_of(record) and lane_key >= 0:
                lanes.setdefault(_origin_of(record), []).append(lane_key)
        found = {origin: [*keys] for origin, keys in (self.lanes or {}).items()}
        assert found == {origin: sorted(keys) for origin, keys in lanes.items()}
        assert self.lanes is None or self.lanes
        if groups is not None:
            groups.check()
            in_groups = Counter(groups.of(record).number for record in records.values())
            for each in (*groups, groups.loose):
                assert each.ready == in_groups[each.number]
