"""A scan of the jobs of a topic, a slice at a time, while clients keep working with them.

`Wanted` says which jobs: states, times due, how their keys begin, their group, why they failed.
`Scan` visits all of them, where their topic keeps them:

    delayed    the buckets of the wheel, in the order of time; it ends where `until_ms` is reached
    ready      the sorted list, from where the last slice ended; buried the same
    reserved   a copy of the leases, or page by page the table of all jobs where that is long

Between two slices anything may happen. A job that matches at the beginning and is not changed until
the end is found: the ways from one place to the next (its delay ends, it is handed out) lead to
places that are still to come. It may be found twice, when a bucket has been cascaded meanwhile; so
a caller that counts must remember ids. Jobs are matched when they are found.

A job counts as what it is by the clock, whether or not its slice has come: if due, it is ready. Its
due time is that of its record: for one that is ready, reserved or buried, when it last came due.

>>> from delayd.core.engine import Engine
>>> from delayd.core.operations.put import put_alike
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> for delay_ms in (5_000, 1_000, 0):
...     job_id = put_alike(engine, topic, 0, delay_ms, 9, [b""], now_ms=0)
>>> walk = Scan(engine, topic, Wanted(frozenset({State.DELAYED}), until_ms=2_000))
>>> rows = walk.take(100, now_ms=0)
>>> [divmod(row, ROW_ID_END) for row in rows]
[(1000, 2)]

`core.scans.list` and `core.scans.bulk` decide what to do with the jobs.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from delayd.core.engine import Engine
from delayd.core.job_parts import group_of, key_of
from delayd.core.job_record import DUE_AT, PRIORITY_AND_TOPIC, PRIORITY_AT, STATE_AT, U64, State
from delayd.core.operations.tick import catch_up_leases, leases_are_caught_up
from delayd.core.ready_queue import ID_MASK
from delayd.core.reasons import reason_id, reason_of
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.wheel.buckets import Mark
from delayd.limits import (
    ADVANCE_SLICE_JOBS,
    PASS_ACTION_COST,
    PASS_BUCKET_COST,
    PASS_HELD_COPIED_MAX,
)

if TYPE_CHECKING:
    from delayd.core.store import Store

NEVER_DUE_MS: Final = 1 << 64
"""Later than every due time."""
ROW_ID_END: Final = 1 << 64
"""A row is `due_ms * ROW_ID_END + job_id`: in the order of rows, due order."""
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_RESERVED: Final = int(State.RESERVED)
_unpack_u64: Final = U64.unpack_from
_unpack_topic: Final = PRIORITY_AND_TOPIC.unpack_from


class Wanted(NamedTuple):
    """Which jobs of a topic; by default all of them."""

    states: frozenset[State] = frozenset(State)
    from_ms: int = 0
    """Due at this time of delayd or later."""
    until_ms: int = NEVER_DUE_MS
    """Due before this time."""
    key_prefix: str = ""
    """Jobs whose keys begin like this; with "" those without a key too."""
    reason: str = ""
    """Jobs whose last attempt failed for this reason (`core.reasons`), by its id; "": any jobs."""
    group: bytes = b""
    """Jobs of this group; empty: of any, and those without one."""


def seen_state(store: "Store", job_id: int, record: bytes) -> State:
    """Return the state of a job by the clock, whether or not its slice has come."""
    if job_id in store.leases.sessions:
        return State.RESERVED
    if record[STATE_AT] == _DELAYED and _unpack_u64(record, DUE_AT)[0] <= store.time_ms:
        return State.READY
    return State(record[STATE_AT])


class Scan:
    """One unfinished scan."""

    def __init__(self, engine: Engine, topic: Topic, wanted: Wanted) -> None:
        self._engine = engine
        self._topic = topic
        self._wanted = wanted
        self.until_ms = wanted.until_ms
        """May be lowered meanwhile: jobs due then or later are no longer wanted."""
        self.cost = 0
        """What the last `take` took of the budget."""
        self._slice = 0
        self._parts = self._candidates()

    def take(self, limit: int, now_ms: RequestMs) -> list[int] | None:
        """Return the rows of the wanted among `limit` more jobs; None at the end.

        First what is due is caught up where it would change which jobs match, also a slice at a
        time; the list is then empty.
        """
        state = self._engine
        self.cost = ADVANCE_SLICE_JOBS
        if not leases_are_caught_up(state):
            catch_up_leases(state, ADVANCE_SLICE_JOBS, now_ms)
            return []
        if state.store.wall_times.layers:
            state.store.place_some()
            return []
        each = PASS_ACTION_COST if self._wanted.reason else 1
        self._slice = max(1, limit // each)
        candidates = next(self._parts, None)
        if candidates is None:
            self.cost = 0
            return None
        self.cost = len(candidates) * each + PASS_BUCKET_COST
        return self.rows(candidates)

    def rows(self, job_ids: Iterable[int]) -> list[int]:
        """Return the rows of those that are wanted as they are now."""
        store, topic, wanted = self._engine.store, self._topic, self._wanted
        get, holders, numbered = store.jobs.get, store.leases.sessions, store.topics.by_number
        number, time_ms = topic.number, store.time_ms
        from_ms, until_ms, states = wanted.from_ms, self.until_ms, wanted.states
        prefix, group, reason = wanted.key_prefix.encode(), wanted.group, wanted.reason
        rows = []
        for job_id in job_ids:
            record = get(job_id)
            if record is None:
                continue
            (due_ms,) = _unpack_u64(record, DUE_AT)
            if not from_ms <= due_ms < until_ms:
                continue
            topic_number = _unpack_topic(record, PRIORITY_AT)[1]
            state = record[STATE_AT]
            if job_id in holders:
                if topic_number != number and numbered[topic_number] is not topic:
                    continue
                state = _RESERVED
            elif topic_number != number:
                continue
            elif state == _DELAYED and due_ms <= time_ms:
                state = _READY
            if (
                state in states
                and (not prefix or key_of(record).startswith(prefix))
                and (not group or group_of(record) == group)
                and (not reason or reason_id(reason_of(record)) == reason)
            ):
                rows.append(due_ms * ROW_ID_END + job_id)
        return rows

    # --- Where jobs are --------------------------------------------------------------------------

    def _candidates(self) -> Iterator[Collection[int]]:
        """Yield the ids of jobs that may be wanted, a slice at a time."""
        states = self._wanted.states
        if State.DELAYED in states or State.READY in states:
            yield from self._on_the_wheel()
        if State.READY in states:
            yield from self._in_order(self._ready_after)
        if State.RESERVED in states:
            yield from self._held()
        if State.BURIED in states:
            yield from self._in_order(self._buried_after)

    def _on_the_wheel(self) -> Iterator[Collection[int]]:
        mark = Mark()
        store, topic = self._engine.store, self._topic
        wants_delayed = State.DELAYED in self._wanted.states
        # Read again each time: a topic that is cleared gets another wheel.
        while (span := topic.queues.delays.wheel.enter(mark)) is not None:
            after_ms, until_ms = span
            if after_ms + 1 >= self.until_ms or not (wants_delayed or after_ms < store.time_ms):
                return
            if until_ms < self._wanted.from_ms:
                mark.end = 0
                yield ()
            else:
                yield topic.queues.delays.wheel.next_entries(mark, self._slice)

    def _ready_after(self, key: int, count: int) -> list[int]:
        return self._topic.queues.ready.after(key, count)

    def _buried_after(self, key: int, count: int) -> list[int]:
        return self._topic.queues.buried.after(key, count)

    def _in_order(self, after: Callable[[int, int], list[int]]) -> Iterator[Collection[int]]:
        last = -1
        while keys := after(last, self._slice):
            last = keys[-1]
            yield [key & ID_MASK for key in keys]

    def _held(self) -> Iterator[Collection[int]]:
        store = self._engine.store
        if not self._topic.reserved:
            return
        if len(store.leases.sessions) <= PASS_HELD_COPIED_MAX:
            held = list(store.leases.sessions)
            while held:
                cut = held[-self._slice :]
                del held[-self._slice :]
                yield cut
        else:
            for number in store.jobs.page_numbers():
                yield store.jobs.ids_of_page(number)
