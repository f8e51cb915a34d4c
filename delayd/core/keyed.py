"""Jobs that go by a key, their caller's own name for them, and changes of jobs that wait.

    put_keyed(topic, key, on, ...)    -> (id, what happened)
    put_keyed_run(topic, ...)         -> first id of jobs whose keys are all new, 0 when one is not
    find_key(topic_name, key)         -> id, for `delete`, `reschedule`, `kick_job`, `peek`
    change(job_id, ...)               another time, priority, ttr or body; several at once

A key is unique among the live jobs of its topic. What a put does when it is taken says `on`. It has
two halves, *what* is to be done (body, priority, ttr, retry rule) and *when*:

    on          what   when   answer
    REJECT       -      -     refused: `JobAlreadyExists`, with the id that is there
    KEEP        old    old    (id, KEPT): as if it had been put just now
    REPLACE     new    new    (id, REPLACED): a new life under the old id; what happened to it is
                              forgotten
    PRESERVE    new    old    (id, PRESERVED)
    EXTEND      old    new    (id, EXTENDED): debounce

A job in somebody's hands cannot be changed any more. There the last three make a new job, which
takes the key over; the other one goes on without. A buried job is brought back by a new time, and
attempts count anew then; without one it stays buried.

>>> from delayd.core.engine import Engine
>>> from delayd.core.puts import Conflict
>>> engine = Engine(start_ms=0)
>>> what = {"priority": 0, "ttr_ms": 9_000, "now_ms": 0}
>>> mail = engine.store.topic("mail")
>>> engine.put_keyed(mail, b"a-17", delay_ms=5_000, body=b"1", **what)
(1, <Outcome.CREATED: 'created'>)
>>> engine.put_keyed(mail, b"a-17", Conflict.EXTEND, delay_ms=7_000, body=b"2", **what)
(1, <Outcome.EXTENDED: 'extended'>)
>>> engine.find_key("mail", b"a-17")
1

Each is one record of the log (with OFFSET or TOPIC before it where they are due): a PUT, a
RESCHEDULE or APPOINT, an AMEND, or a REWRITE where the body changes.
"""

import struct
from collections.abc import Sequence
from typing import Final

from delayd.core.clearing import Clearing
from delayd.core.errors import (
    BodyTooBig,
    JobAlreadyExists,
    KeyNotFound,
    Refusal,
    TopicNotFound,
)
from delayd.core.job import (
    FLAGS_AT,
    HEADER,
    HEADER_BYTES,
    U64,
    Event,
    Flag,
    Retry,
    State,
    body_of,
    pack_key,
    pack_retry,
    tally_of,
    wall_of,
)
from delayd.core.moments import check_range
from delayd.core.puts import (
    Conflict,
    Outcome,
    What,
    When,
    check_keys,
    check_retry,
    checked_key,
    fresh,
    preserved,
)
from delayd.core.records import (
    LAYOUTS,
    Kind,
    pack_amend,
    pack_appoint,
    pack_put,
    pack_reschedule,
    pack_rewrite,
)
from delayd.core.stats.operations import Operation
from delayd.core.topic import Topic, checked_name
from delayd.core.transitions import amended, rescheduled, with_body
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import (
    DURATION_MS_MAX,
    KEY_BYTES_MAX,
    PRIORITY_MAX,
    TTR_MS_FOR_ZERO,
    WALL_MS_MAX,
)

_PUT: Final = int(Kind.PUT)
_KEY: Final = int(Flag.KEY)
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_WALL: Final = int(Flag.WALL)
_KEYED_HEAD: Final = struct.Struct(HEADER.format + "B")
"""What stands before the key in the record of a job that has nothing else."""
_REWRITE_BYTES: Final = LAYOUTS[Kind.REWRITE].size
_OFFSET_BYTES: Final = LAYOUTS[Kind.OFFSET].size


class Keyed(Clearing):
    """An engine in which jobs have keys, and can be changed while they wait."""

    def __init__(self, start_ms: int, tick_ms: int, wheel_size: int, body_bytes_max: int) -> None:
        """Start without jobs at `start_ms` of delayd time."""
        super().__init__(start_ms, tick_ms, wheel_size, body_bytes_max)
        self.out_of_order_ids: list[int] = []
        """Jobs put since `take_out_of_order_ids` whose ids were taken before those of others."""

    def take_out_of_order_ids(self) -> list[int]:
        """Return the late ids since the last call."""
        out_of_order_ids, self.out_of_order_ids = self.out_of_order_ids, []
        return out_of_order_ids

    def find_key(self, topic_name: str, key: bytes) -> int:
        """Return the live job that has the key; `KeyNotFound`, `TopicNotFound`, `KeyInvalid`."""
        topic = self.store.topics.by_name.get(checked_name(topic_name))
        if topic is None:
            raise TopicNotFound(topic_name)
        job_id = self.store.owner_of(topic, checked_key(key))
        if not job_id:
            raise KeyNotFound(topic_name, key)
        return job_id

    # --- Putting one -----------------------------------------------------------------------------

    def put_keyed(
        self,
        topic: Topic,
        key: bytes,
        on: Conflict = Conflict.REJECT,
        *,
        priority: int,
        delay_ms: int = 0,
        due_wall_ms: int | None = None,
        ttr_ms: int,
        body: bytes,
        now_ms: int,
        retry: Retry | None = None,
        job_id: int = 0,
        at_once: bool = False,
    ) -> tuple[int, Outcome]:
        """Accept a job under a key, or do with the one that has it what `on` says; return its id.

        With `due_wall_ms` it comes at that moment of the wall clock, whatever `delay_ms` says. An
        empty key is none. `job_id` is given when an id was taken before; `at_once` as in
        `put_alike`. Raises `JobAlreadyExists`, `KeyInvalid` and what `put` raises.
        """
        self._vet_put(priority, delay_ms, ttr_ms, len(body), due_wall_ms)
        if topic.is_internal:
            self.require_writable(topic.name)  # before anything is said of who has the key
        check_retry(retry)
        old_id = self._taken(topic, key, on, now_ms) if key else 0
        if old_id and on is Conflict.KEEP:
            return old_id, Outcome.KEPT
        old = self.store.jobs.get(old_id) or b""
        is_extension = bool(old) and on is Conflict.EXTEND
        when = self._when(0 if on is Conflict.PRESERVE and old else delay_ms, due_wall_ms, now_ms)
        if not topic.has_no_rules:
            parts_bytes = HEADER_BYTES + len(pack_key(key)) + len(pack_retry(retry))
            default_ms, ttr_ms = self._admit(
                topic,
                jobs=0 if old else 1,
                # An `extend` keeps the old body, whatever comes with it.
                record_bytes=0 if is_extension else parts_bytes + len(body) - len(old),
                body_bytes=len(body),
                delay_ms=when.delay_ms,
                ttr_ms=ttr_ms,
                at_once=at_once,
                is_moment=due_wall_ms is not None,
            )
            if due_wall_ms is None:
                when = self._when(default_ms, None, now_ms)
        what = What(priority, ttr_ms or TTR_MS_FOR_ZERO, retry, body)
        if not old:
            return self._create(topic, key, what, when, now_ms, job_id), Outcome.CREATED
        if is_extension:
            self._extend(old_id, old, when, now_ms)
            return old_id, Outcome.EXTENDED
        if on is Conflict.REPLACE:
            self._rewrite(old_id, fresh(old_id, topic, key, what, when, now_ms), now_ms)
            return old_id, Outcome.REPLACED
        self._rewrite(old_id, preserved(old, what), now_ms)
        return old_id, Outcome.PRESERVED

    def put_at(
        self,
        topic: Topic,
        *,
        priority: int,
        due_wall_ms: int,
        ttr_ms: int,
        body: bytes,
        now_ms: int,
        job_id: int = 0,
    ) -> int:
        """Accept a job for a moment of the wall clock, one that is past included; return its id.

        By the offset that `follow_wall` was told last; `job_id` when that was taken before. Raises
        what `put` raises.
        """
        job_id = job_id or self.take_id()
        self.put_keyed(
            topic,
            b"",
            priority=priority,
            due_wall_ms=due_wall_ms,
            ttr_ms=ttr_ms,
            body=body,
            now_ms=now_ms,
            job_id=job_id,
        )
        return job_id

    def _taken(self, topic: Topic, key: bytes, on: Conflict, now_ms: int) -> int:
        """Return the job that has the key and stands in the way of a put; 0 when none does."""
        old_id = self.store.owner_of(topic, checked_key(key))
        if not old_id:
            return 0
        # That may move the last job of a topic to another one. It stays: it is about to get a job.
        topic.users += 1
        state = self.settled(old_id, now_ms)[1]
        topic.users -= 1
        if not self.store.owner_of(topic, key):
            return 0  # its ttr has run out, and that moved it to another topic, without its key
        if on is Conflict.REJECT:
            raise JobAlreadyExists(old_id, key)
        return 0 if state is State.RESERVED and on is not Conflict.KEEP else old_id

    def _when(self, delay_ms: int, due_wall_ms: int | None, now_ms: int) -> When:
        if due_wall_ms is not None:
            return When(*self._placed(due_wall_ms, now_ms), due_wall_ms)
        due_ms = ceil_to_tick(now_ms + delay_ms, self.tick_ms) if delay_ms else now_ms
        return When(due_ms, delay_ms, None)

    def _create(
        self, topic: Topic, key: bytes, what: What, when: When, now_ms: int, job_id: int
    ) -> int:
        """Accept a new job whose key is free, or in the hands of somebody else."""
        store = self.store
        parts_bytes = len(pack_key(key)) + len(pack_retry(what.retry)) + U64.size + _OFFSET_BYTES
        self.room.take_for_puts(1, parts_bytes + len(what.body))
        if not job_id:
            job_id = self.take_id()
        elif job_id < store.last_id:
            self.out_of_order_ids.append(job_id)
        if when.wall_ms is not None:
            self._tell_offset()
        if not topic.recorded:
            self._record_topic(topic)
        record = fresh(job_id, topic, key, what, when, now_ms)
        self._write_promised(pack_put(Kind.PUT, len(record)) + record)
        store.put(topic, job_id, what.priority, when.due_ms, record)
        store.note_wall(job_id, record)
        self._serve(topic, now_ms)
        return job_id

    # --- Putting many ----------------------------------------------------------------------------

    def put_keyed_run(
        self,
        topic: Topic,
        priority: int,
        delay_ms: int,
        ttr_ms: int,
        keys: Sequence[bytes],
        bodies: Sequence[bytes],
        now_ms: int,
    ) -> int:
        """Accept jobs that differ in keys and bodies; return the first of their ids, in sequence.

        0, and nothing has changed, if a key is taken or there twice: `put_keyed` then says of each
        what becomes of it. Refuses all or none. A job costs a quarter of what that costs.
        """
        store = self.store
        check_keys(keys)
        body_bytes = len(bodies[0]) if len(bodies) == 1 else max(map(len, bodies))
        self._vet_put(priority, delay_ms, ttr_ms, body_bytes)
        first_id = store.last_id + 1
        if not store.claim_run(topic, keys, first_id):
            return 0
        try:
            if not topic.has_no_rules:
                parts_bytes = (HEADER_BYTES + 1) * len(keys) + sum(map(len, keys))
                delay_ms, ttr_ms = self._admit(
                    topic,
                    jobs=len(keys),
                    record_bytes=parts_bytes + sum(map(len, bodies)),
                    body_bytes=body_bytes,
                    delay_ms=delay_ms,
                    ttr_ms=ttr_ms,
                )
            self.room.take_for_puts(len(keys), body_bytes + 1 + KEY_BYTES_MAX)
            if not topic.recorded:
                self._record_topic(topic)
        except Refusal:
            topic.let_go_run(keys, first_id)
            raise
        store.last_id += len(keys)
        when = self._when(delay_ms, None, now_ms)
        records = self._put_records(topic, priority, when, ttr_ms, keys, bodies, now_ms)
        store.put_alike(topic, first_id, priority, when.due_ms, records)
        if topic.waiters:
            self._serve(topic, now_ms)
        return first_id

    def _put_records(
        self,
        topic: Topic,
        priority: int,
        when: When,
        ttr_ms: int,
        keys: Sequence[bytes],
        bodies: Sequence[bytes],
        now_ms: int,
    ) -> list[bytes]:
        """Record jobs with the last ids that were taken; return their records."""
        if self._turn_ms != self.store.time_ms:
            self._stamp()
        self._must_sync = True
        log, pack = self._log.append, _KEYED_HEAD.pack
        first_id = self.store.last_id + 1 - len(keys)
        due_ms, number, ttr_ms = when.due_ms, topic.number, ttr_ms or TTR_MS_FOR_ZERO
        state = int(when.state)
        records = []
        for job_id, (key, body) in enumerate(zip(keys, bodies, strict=True), first_id):
            head = pack(job_id, due_ms, now_ms, ttr_ms, priority, number, state, _KEY, len(key))
            record = head + key + body
            # One item for each record: a turn that fits no file whole is divided between items.
            log(pack_put(_PUT, len(record)) + record)
            records.append(record)
        return records

    # --- Changing what waits ---------------------------------------------------------------------

    def change(
        self,
        job_id: int,
        now_ms: int,
        *,
        delay_ms: int | None = None,
        due_wall_ms: int | None = None,
        priority: int | None = None,
        ttr_ms: int | None = None,
        body: bytes | None = None,
    ) -> None:
        """Change what is given of a job that waits or is buried; all or nothing, in one record.

        A new time takes a buried job out again. Raises `JobNotFound`, also for one in somebody's
        hands, `TopicIsInternal`, `BodyTooBig`, `ValueOutOfRange`, `DelayTooLong`, `CapReached`,
        `OutOfSpace`.
        """
        assert delay_ms is None or due_wall_ms is None
        self._vet_change(delay_ms, due_wall_ms, priority, ttr_ms, body)
        record = self._job(job_id, Event.CHANGE, now_ms)
        _, due_ms, _, ttr_now_ms, priority_now, _, state, _ = HEADER.unpack_from(record)
        when = When(due_ms, tally_of(record).delay_ms, wall_of(record))
        has_new_time = delay_ms is not None or due_wall_ms is not None
        if has_new_time:
            when = self._when(delay_ms or 0, due_wall_ms, now_ms)
            state = int(when.state)
        topic = self.store.topic_of(record)
        if not topic.has_no_rules:
            self._admit(
                topic,
                jobs=0,
                record_bytes=0 if body is None else len(body) - len(body_of(record)),
                body_bytes=0 if body is None else len(body),
                delay_ms=when.delay_ms if has_new_time else 0,
                ttr_ms=0,
                is_moment=due_wall_ms is not None,
            )
        ttr_ms = ttr_now_ms if ttr_ms is None else ttr_ms or TTR_MS_FOR_ZERO
        fields = (
            *(when.due_ms, when.delay_ms, when.wall_ms or 0, ttr_ms),
            *(priority_now if priority is None else priority, state),
        )
        changed = amended(record, *fields)
        if body is not None:
            self._rewrite(job_id, with_body(changed, body), now_ms)
            return
        item = pack_amend(Kind.AMEND, job_id, *fields)
        self.room.take(2 * (len(item) + _OFFSET_BYTES))
        self._apply(job_id, changed, item, now_ms)

    def _vet_change(
        self,
        delay_ms: int | None,
        due_wall_ms: int | None,
        priority: int | None,
        ttr_ms: int | None,
        body: bytes | None,
    ) -> None:
        if body is not None and len(body) > self.body_bytes_max:
            raise BodyTooBig(len(body), self.body_bytes_max)
        check_range("priority", priority or 0, PRIORITY_MAX)
        check_range("delay in ms", delay_ms or 0, DURATION_MS_MAX)
        check_range("moment in ms", due_wall_ms or 0, WALL_MS_MAX)
        check_range("ttr in ms", ttr_ms or 0, DURATION_MS_MAX)

    def _extend(self, job_id: int, record: bytes, when: When, now_ms: int) -> None:
        """Give a job that waits or is buried another time."""
        due_ms, delay_ms, wall_ms = when
        item = (
            pack_reschedule(Kind.RESCHEDULE, job_id, due_ms, delay_ms)
            if wall_ms is None
            else pack_appoint(Kind.APPOINT, job_id, due_ms, delay_ms, wall_ms)
        )
        self.room.take(2 * (len(item) + _OFFSET_BYTES))
        self._apply(job_id, rescheduled(record, due_ms, delay_ms, wall_ms), item, now_ms)

    def _rewrite(self, job_id: int, record: bytes, now_ms: int) -> None:
        """Give a job that waits or is buried another record, which says the same id and key."""
        body_bytes = len(body_of(record))
        head_bytes = _REWRITE_BYTES + len(record) - body_bytes + _OFFSET_BYTES
        self.room.take_for_rewrite(head_bytes, body_bytes)
        item = pack_rewrite(Kind.REWRITE, len(record)) + record
        self._apply(job_id, record, item, now_ms)

    def _apply(self, job_id: int, changed: bytes, item: bytes, now_ms: int) -> None:
        """Record the change of a job at rest, for which room was taken, and carry it out."""
        if changed[FLAGS_AT] & _WALL:
            self._tell_offset()
        self._write_promised(item)
        topic = self.store.move(job_id, changed)
        self.store.note_wall(job_id, changed)
        self.store.count(topic, Operation.CHANGE)
        self._serve(topic, now_ms)
