r"""Puts: one job or many, with or without keys, after a delay or at a wall-clock time.

    put_one(topic, body, ...)        -> id of one job
    put_alike(topic, bodies, ...)    -> first id of jobs that differ only in their bodies
    put_keyed(topic, key, on, ...)   -> (id, what happened)
    put_keyed_run(topic, ...)        -> first id of jobs whose keys are all new, 0 when one is not
    find_key(topic_name, key)        -> id, for `delete`, `reschedule`, `kick_job`, `peek`

A key is the client's own name for a job, unique among the live jobs of its topic. `on` says what a
put does when the key is taken. A put has two halves: the *content* (body, priority, ttr, the parts
of `Own`) and the *time*:

    on         content   time   answer
    REJECT        -       -     refused: `JobAlreadyExists`, with the id that is there
    KEEP         old     old    (id, KEPT): as if it had been put just now
    REPLACE      new     new    (id, REPLACED): a new job under the old id; its counters and
                                failures are dropped
    PRESERVE     new     old    (id, PRESERVED)
    EXTEND       old     new    (id, EXTENDED): debounce

A reserved job cannot be changed. For it the last three make a new job, which takes the key over;
the reserved job loses it. A new time takes a buried job out of burial, and its attempts start
again; without one it stays buried.

>>> from delayd.core.engine import Engine
>>> engine = Engine(start_ms=0)
>>> what = {"priority": 0, "ttr_ms": 9_000, "now_ms": 0}
>>> mail = engine.store.topic("mail")
>>> put_keyed(engine, mail, b"a-17", delay_ms=5_000, body=b"1", **what)
(1, <Outcome.CREATED: 'created'>)
>>> put_keyed(engine, mail, b"a-17", Conflict.EXTEND, delay_ms=7_000, body=b"2", **what)
(1, <Outcome.EXTENDED: 'extended'>)
>>> find_key(engine, "mail", b"a-17")
1

A put is one PUT record of the log, with an OFFSET or TOPIC before it where they are due; what it
does to an existing job is a change (`core.operations.change`).
"""

import enum
import struct
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from delayd.core.engine import Engine
from delayd.core.errors import JobAlreadyExists, KeyNotFound, Refusal
from delayd.core.job_parts import (
    Flag,
    Own,
    Packed,
    group_of,
    join_parts,
    pack_key,
    pack_parts,
    tally_of,
    wall_of,
    with_parts,
    without_own,
)
from delayd.core.job_record import FLAGS_AT, HEADER, HEADER_BYTES, STATE_AT, U64, State
from delayd.core.log_records import LAYOUTS, Kind, pack_put
from delayd.core.names import check_keys, checked_key
from delayd.core.operations.change import PARTS_BYTES, When, give_time, rewrite, tell_parts, when
from delayd.core.operations.checks import (
    admit,
    check_own_target,
    check_range,
    require_writable,
    topic_named,
    vet_put,
)
from delayd.core.operations.groups import check_group, grouped, reads_groups
from delayd.core.operations.tick import caught_up
from delayd.core.operations.topics import record_topic
from delayd.core.operations.waiting import serve
from delayd.core.operations.wall_clock import OFFSET_BYTES, tell_offset
from delayd.core.stats.counters import Operation
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.transitions import amended
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import (
    ATTEMPTS_MAX,
    DURATION_MS_MAX,
    JITTER_PERCENT_MAX,
    KEY_BYTES_MAX,
    PRIORITY_MAX,
    RETRY_STEPS_MAX,
    TTR_MS_DEFAULT,
    TTR_MS_FOR_ZERO,
)

# For every put; an enum member's arithmetic costs 40 ns more than an int's.
_PUT: Final = int(Kind.PUT)
_DELAYED: Final = int(State.DELAYED)
_READY: Final = int(State.READY)
_KEY: Final = int(Flag.KEY)
_WALL: Final = int(Flag.WALL)
_MORE: Final = int(Flag.MORE)
_pack_header: Final = HEADER.pack

# A run of PUT records: each begins with its length and its id, and then says the same as the others
# up to the end of the header. Packed once: 2.5 % of a put, and more where it is compiled.
_pack_put_and_id: Final = struct.Struct(f"{LAYOUTS[Kind.PUT].format}Q").pack
_pack_alike: Final = struct.Struct(f"<{HEADER.format.removeprefix('<Q')}").pack
_MORE_BYTES: Final = U64.size + OFFSET_BYTES + PARTS_BYTES
"""A wall-clock time, and the records that may stand before a PUT."""
_PUT_HEAD_BYTES: Final = LAYOUTS[Kind.PUT].size
_LENGTHS: Final = [bytes((length,)) for length in range(KEY_BYTES_MAX + 1)]
"""The byte before a key."""


class Conflict(enum.Enum):
    """What a put is to do when its key is taken."""

    REJECT = "reject"
    KEEP = "keep"
    REPLACE = "replace"
    PRESERVE = "preserve"
    EXTEND = "extend"


class Outcome(enum.Enum):
    """What a put under a key has done."""

    CREATED = "created"
    KEPT = "kept"
    REPLACED = "replaced"
    PRESERVED = "preserved"
    EXTENDED = "extended"


class Content(NamedTuple):
    """The content of a job, without its key."""

    priority: int
    ttr_ms: int
    parts: Packed | None
    """Those that the client has set, packed; None: none."""
    body: bytes


def default_ttr_ms(topic: Topic) -> int:
    """Return the ttr to put jobs with where a client says none; 0: the policy has one."""
    return 0 if topic.policy is not None and topic.policy.ttr_ms else TTR_MS_DEFAULT


# --- Without a key -------------------------------------------------------------------------------


def take_id(engine: Engine) -> int:
    """Return the next job id; it is used up even if no job is put."""
    engine.store.last_id += 1
    return engine.store.last_id


def put_one(
    engine: Engine,
    topic: Topic,
    priority: int,
    delay_ms: int,
    ttr_ms: int,
    body: bytes,
    now_ms: RequestMs,
    job_id: int = 0,
    *,
    at_once: bool = False,
) -> int:
    """Accept one job; return its id, which may have been taken before (`take_id`).

    `at_once`: the topic's policy does not replace a delay of 0. Raises `Draining`, `BodyTooBig`,
    `ValueOutOfRange`, `TopicIsInternal`, `DelayTooLong`, `CapReached`, `OutOfSpace`.
    """
    store = engine.store
    if not job_id:
        job_id = store.last_id = store.last_id + 1
    elif job_id < store.last_id:
        engine.out_of_order_ids.append(job_id)
    body_bytes = len(body)
    # What `vet_put` checks, without its calls: a lone put is what clients wait for.
    if not (
        body_bytes <= engine.body_bytes_max
        and not engine.draining
        and 0 <= priority <= PRIORITY_MAX
        and 0 <= delay_ms <= DURATION_MS_MAX
        and 0 <= ttr_ms <= DURATION_MS_MAX
    ):
        vet_put(engine, priority, delay_ms, ttr_ms, body_bytes)
    if not topic.has_no_rules:
        if reads_groups(topic):
            content = (priority, delay_ms, ttr_ms)
            return _put_grouped(engine, topic, *content, (body,), now_ms, job_id, at_once=at_once)
        delay_ms, ttr_ms = _admit_bodies(engine, topic, (body,), delay_ms, ttr_ms, at_once=at_once)
    engine.log_space.take_for_puts(1, body_bytes)
    due_ms = ceil_to_tick(now_ms + delay_ms, engine.tick_ms) if delay_ms else now_ms
    if engine.turn_ms != store.time_ms:
        engine.stamp()
    if not topic.recorded:
        record_topic(engine, topic)
    job_state = _DELAYED if delay_ms else _READY
    ttr_ms = ttr_ms or TTR_MS_FOR_ZERO
    record = (
        _pack_header(job_id, due_ms, now_ms, ttr_ms, priority, topic.number, job_state, 0) + body
    )
    engine.log.append(pack_put(_PUT, len(record)) + record)
    engine.must_sync = True
    store.put(topic, job_id, priority, due_ms, record)
    if topic.waiters:
        serve(engine, topic, now_ms)
    return job_id


def put_alike(
    engine: Engine,
    topic: Topic,
    priority: int,
    delay_ms: int,
    ttr_ms: int,
    bodies: Sequence[bytes],
    now_ms: RequestMs,
    *,
    at_once: bool = False,
) -> int:
    """Accept jobs that differ only in their bodies; return the first of their ids, in sequence.

    Refuses all or none, for the same reasons as `put_one`; of many, a job costs a third of what one
    alone costs.
    """
    if len(bodies) == 1:
        return put_one(
            engine, topic, priority, delay_ms, ttr_ms, bodies[0], now_ms, at_once=at_once
        )
    store = engine.store
    first_id = store.last_id + 1
    store.last_id += len(bodies)
    body_bytes = max(map(len, bodies))
    vet_put(engine, priority, delay_ms, ttr_ms, body_bytes)
    if not topic.has_no_rules:
        if reads_groups(topic):
            content = (priority, delay_ms, ttr_ms)
            return _put_grouped(engine, topic, *content, bodies, now_ms, first_id, at_once=at_once)
        delay_ms, ttr_ms = _admit_bodies(engine, topic, bodies, delay_ms, ttr_ms, at_once=at_once)
    engine.log_space.take_for_puts(len(bodies), body_bytes)
    due_ms = ceil_to_tick(now_ms + delay_ms, engine.tick_ms) if delay_ms else now_ms
    job_state = _DELAYED if delay_ms else _READY
    ttr_ms = ttr_ms or TTR_MS_FOR_ZERO
    if engine.turn_ms != store.time_ms:
        engine.stamp()
    if not topic.recorded:
        record_topic(engine, topic)
    log = engine.log.append
    alike = _pack_alike(due_ms, now_ms, ttr_ms, priority, topic.number, job_state, 0)
    records = []
    job_id = first_id
    for body in bodies:
        # One item for each record: a turn that fits no file whole is divided between items.
        item = _pack_put_and_id(_PUT, HEADER_BYTES + len(body), job_id) + alike + body
        log(item)
        records.append(item[_PUT_HEAD_BYTES:])
        job_id += 1
    engine.must_sync = True
    store.put_alike(topic, first_id, priority, due_ms, records)
    if topic.waiters:
        serve(engine, topic, now_ms)
    return first_id


def _put_grouped(
    engine: Engine,
    topic: Topic,
    priority: int,
    delay_ms: int,
    ttr_ms: int,
    bodies: Sequence[bytes],
    now_ms: RequestMs,
    first_id: int,
    *,
    at_once: bool,
) -> int:
    """Accept jobs whose groups are read in their bodies, with ids from the first on; return it."""
    owns = [grouped(topic, None, b"", body) for body in bodies]
    parts = [None if own is None else pack_parts(own) for own in owns]
    for group, jobs in Counter(own.group for own in owns if own is not None).items():
        check_group(topic, group, jobs=jobs)
    lengths = [_head_bytes(b"", own) + len(body) for own, body in zip(parts, bodies, strict=True)]
    delay_ms, ttr_ms = admit(
        engine,
        topic,
        jobs=len(bodies),
        record_bytes=sum(lengths),
        body_bytes=max(map(len, bodies)),
        delay_ms=delay_ms,
        ttr_ms=ttr_ms,
        at_once=at_once,
    )
    engine.log_space.take_for_puts(len(bodies), max(lengths) + _MORE_BYTES)
    new = when(engine, delay_ms, None, now_ms)
    for job_id, (own, body) in enumerate(zip(parts, bodies, strict=True), first_id):
        _write_new(engine, topic, job_id, b"", Content(priority, ttr_ms, own, body), new, now_ms)
    serve(engine, topic, now_ms)
    return first_id


def _admit_bodies(
    engine: Engine,
    topic: Topic,
    bodies: Sequence[bytes],
    delay_ms: int,
    ttr_ms: int,
    key_bytes: int = 0,
    *,
    at_once: bool = False,
) -> tuple[int, int]:
    """Return what delay and ttr jobs with these bodies get in a topic with rules."""
    return admit(
        engine,
        topic,
        jobs=len(bodies),
        record_bytes=HEADER_BYTES * len(bodies) + key_bytes + sum(map(len, bodies)),
        body_bytes=max(map(len, bodies)),
        delay_ms=delay_ms,
        ttr_ms=ttr_ms,
        at_once=at_once,
    )


# --- Keys ----------------------------------------------------------------------------------------


def find_key(engine: Engine, topic_name: str, key: bytes) -> int:
    """Return the live job that has the key; `KeyNotFound`, `TopicNotFound`, `KeyInvalid`."""
    job_id = engine.store.keys.owner_of(topic_named(engine, topic_name), checked_key(key))
    if not job_id:
        raise KeyNotFound(topic_name, key)
    return job_id


# --- Under a key ---------------------------------------------------------------------------------


def put_keyed(
    engine: Engine,
    topic: Topic,
    key: bytes,
    on: Conflict = Conflict.REJECT,
    *,
    priority: int,
    delay_ms: int = 0,
    due_wall_ms: int | None = None,
    ttr_ms: int,
    body: bytes,
    now_ms: RequestMs,
    own: Own | None = None,
    at_once: bool = False,
) -> tuple[int, Outcome]:
    """Accept a job under a key, or change the one that has it as `on` says; return its id.

    An empty key means no key. With `due_wall_ms` it comes at that wall-clock time, past ones
    included, by the last offset of `follow_wall`. `own` has its own parts, such as a retry rule.
    Else as `put_alike`. Raises `JobAlreadyExists`, `KeyInvalid`, `TargetRefused`, and what that
    raises.
    """
    vet_put(engine, priority, delay_ms, ttr_ms, len(body), due_wall_ms)
    if topic.is_internal:
        require_writable(engine, topic.name)  # before the answer shows whether the key is taken
    own = _vetted_own(topic, own, key, body)
    content = Content(priority, ttr_ms, None if own is None else pack_parts(own), body)
    old_id = _taken(engine, topic, key, on, now_ms) if key else 0
    if old_id and on is Conflict.KEEP:
        return old_id, Outcome.KEPT
    old = engine.store.jobs.get(old_id) or b""
    is_extension = bool(old) and on is Conflict.EXTEND  # which keeps the old body
    new = when(engine, 0 if on is Conflict.PRESERVE and old else delay_ms, due_wall_ms, now_ms)
    if not topic.has_no_rules:
        if own is not None and not is_extension:
            check_group(topic, own.group, group_of(old) if old else b"")
        more_bytes = _head_bytes(key, content.parts) + len(body) - len(old)
        default_ms, ttr_ms = admit(
            engine,
            topic,
            jobs=0 if old else 1,
            record_bytes=0 if is_extension else more_bytes,
            body_bytes=len(body),
            delay_ms=new.delay_ms,
            ttr_ms=ttr_ms,
            at_once=at_once,
            is_wall_time=due_wall_ms is not None,
        )
        new = when(engine, default_ms, None, now_ms) if due_wall_ms is None else new
        content = content._replace(ttr_ms=ttr_ms)
    if not old:
        return _create(engine, topic, key, content, new, now_ms), Outcome.CREATED
    if is_extension:
        give_time(engine, old_id, new, Operation.CHANGE, now_ms)
        return old_id, Outcome.EXTENDED
    if on is Conflict.REPLACE:
        rewrite(engine, _fresh(old_id, topic, key, content, new, now_ms), now_ms)
        return old_id, Outcome.REPLACED
    rewrite(engine, _preserved(old, content), now_ms)
    return old_id, Outcome.PRESERVED


def _vetted_own(topic: Topic, own: Own | None, key: bytes, body: bytes) -> Own | None:
    """Return the parts of a put, with the group that the topic's policy reads where it says none.

    Raises `ValueOutOfRange` if a retry rule does not fit a record, `TargetRefused` if the topic
    takes no target of the job's own, `GroupMissing` if it takes only jobs with a group.
    """
    if not topic.has_no_rules:
        own = grouped(topic, own, key, body)
    if own is None:
        return None
    retry = own.retry
    if retry is not None:
        check_range("retry steps", len(retry.steps_ms), RETRY_STEPS_MAX)
        if retry.steps_ms:  # as many as 255: a loop over them would be half of the put
            check_range("retry step in ms", min(retry.steps_ms), DURATION_MS_MAX)
            check_range("retry step in ms", max(retry.steps_ms), DURATION_MS_MAX)
        check_range("attempts", retry.attempts_max, ATTEMPTS_MAX)
        check_range("jitter in percent", retry.jitter_percent, JITTER_PERCENT_MAX)
    check_own_target(topic, own.target)
    return own


def _head_bytes(key: bytes, parts: Packed | None) -> int:
    """Return how long the header of a record, the key and these parts of it are."""
    own_bytes = len(join_parts(parts)[1]) if parts else 0
    return HEADER_BYTES + len(pack_key(key)) + own_bytes


def _taken(engine: Engine, topic: Topic, key: bytes, on: Conflict, now_ms: RequestMs) -> int:
    """Return the job that has the key and conflicts with a put; 0 when none does."""
    old_id = engine.store.keys.owner_of(topic, checked_key(key))
    if not old_id:
        return 0
    # That may move the last job of a topic to another one. It stays: it is about to get a job.
    topic.users += 1
    job_state = caught_up(engine, old_id, now_ms)[1]
    topic.users -= 1
    if not engine.store.keys.owner_of(topic, key):
        return 0  # its ttr has run out, and that moved it to another topic, without its key
    if on is Conflict.REJECT:
        raise JobAlreadyExists(old_id, key)
    return 0 if job_state is State.RESERVED and on is not Conflict.KEEP else old_id


def _create(
    engine: Engine, topic: Topic, key: bytes, content: Content, new: When, now_ms: RequestMs
) -> int:
    """Accept a new job whose key is free, or that of a reserved job; return its id."""
    parts_bytes = _head_bytes(key, content.parts) - HEADER_BYTES + _MORE_BYTES
    engine.log_space.take_for_puts(1, parts_bytes + len(content.body))
    job_id = take_id(engine)
    _write_new(engine, topic, job_id, key, content, new, now_ms)
    serve(engine, topic, now_ms)
    return job_id


def _write_new(
    engine: Engine,
    topic: Topic,
    job_id: int,
    key: bytes,
    content: Content,
    new: When,
    now_ms: RequestMs,
) -> None:
    """Record and take in a new job, for which log space was taken."""
    store = engine.store
    if new.wall_ms is not None:
        tell_offset(engine)
    if not topic.recorded:
        record_topic(engine, topic)
    record = _fresh(job_id, topic, key, content, new, now_ms)
    if record[FLAGS_AT] >= _MORE:
        tell_parts(engine, record)
    engine.write_promised(pack_put(_PUT, len(record)) + record)
    store.put(topic, job_id, content.priority, new.due_ms, record)
    store.wall_times.note(job_id, record, store.time_ms)


def _fresh(
    job_id: int, topic: Topic, key: bytes, content: Content, new: When, now_ms: RequestMs
) -> bytes:
    """Return the record of a new job."""
    due_ms, delay_ms, wall_ms = new
    priority, ttr_ms, own, body = content
    ttr_ms = ttr_ms or TTR_MS_FOR_ZERO
    flags, parts = _KEY if key else 0, pack_key(key)
    if own is not None:
        flags, parts = join_parts({_KEY: parts, **own})
    flags |= 0 if wall_ms is None else _WALL
    job_state = _DELAYED if delay_ms else _READY
    head = _pack_header(job_id, due_ms, now_ms, ttr_ms, priority, topic.number, job_state, flags)
    wall = b"" if wall_ms is None else U64.pack(wall_ms)
    return head + wall + parts + body


def _preserved(record: bytes, content: Content) -> bytes:
    """Return the record of a job with another content and the same time."""
    due_ms: int = HEADER.unpack_from(record)[1]
    delay_ms, wall_ms = tally_of(record).delay_ms, wall_of(record) or 0
    changed = amended(
        record,
        due_ms,
        delay_ms,
        wall_ms,
        content.ttr_ms or TTR_MS_FOR_ZERO,
        content.priority,
        record[STATE_AT],
    )
    return with_parts(changed, without_own() | dict(content.parts or {}), content.body)


# --- Many under keys -----------------------------------------------------------------------------


def put_keyed_run(
    engine: Engine,
    topic: Topic,
    priority: int,
    delay_ms: int,
    ttr_ms: int,
    keys: Sequence[bytes],
    bodies: Sequence[bytes],
    now_ms: RequestMs,
) -> int:
    """Accept jobs that differ in keys and bodies; return the first of their ids, in sequence.

    0, and nothing has changed, if a key is taken or given twice, or groups are to be read: then put
    each with `put_keyed`.
    Refuses all or none. A job costs a quarter of what that costs.
    """
    store = engine.store
    check_keys(keys)
    if not topic.has_no_rules and reads_groups(topic):
        return 0
    body_bytes = len(bodies[0]) if len(bodies) == 1 else max(map(len, bodies))
    vet_put(engine, priority, delay_ms, ttr_ms, body_bytes)
    first_id = store.last_id + 1
    if not store.keys.claim_run(topic, keys, first_id):
        return 0
    try:
        if not topic.has_no_rules:
            key_bytes = len(keys) + sum(map(len, keys))
            delay_ms, ttr_ms = _admit_bodies(engine, topic, bodies, delay_ms, ttr_ms, key_bytes)
        engine.log_space.take_for_puts(len(keys), body_bytes + 1 + KEY_BYTES_MAX)
        if not topic.recorded:
            record_topic(engine, topic)
    except Refusal:
        topic.let_go_run(keys, first_id)
        raise
    store.last_id += len(keys)
    new = when(engine, delay_ms, None, now_ms)
    if engine.turn_ms != store.time_ms:
        engine.stamp()
    engine.must_sync = True
    log, due_ms, ttr_ms = engine.log.append, new.due_ms, ttr_ms or TTR_MS_FOR_ZERO
    alike = _pack_alike(due_ms, now_ms, ttr_ms, priority, topic.number, int(new.state), _KEY)
    records = []
    job_id = first_id
    for key, body in zip(keys, bodies, strict=True):
        parts_bytes = HEADER_BYTES + 1 + len(key) + len(body)
        head = _pack_put_and_id(_PUT, parts_bytes, job_id)
        item = b"".join((head, alike, _LENGTHS[len(key)], key, body))
        log(item)  # one for each, as in `put_alike`
        records.append(item[_PUT_HEAD_BYTES:])
        job_id += 1
    store.put_alike(topic, first_id, priority, due_ms, records)
    if topic.waiters:
        serve(engine, topic, now_ms)
    return first_id
