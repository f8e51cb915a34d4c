"""Changes of waiting jobs: kicks, burials, and another time, priority, ttr or body.

Each is one record of the log (with an OFFSET before it where it is due): a KICK, a RESCHEDULE or
APPOINT, an AMEND, or a REWRITE where the body changes or the job is buried.
"""

from typing import Final, NamedTuple

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.errors import BodyTooBig
from delayd.core.job_parts import (
    Flag,
    Own,
    body_of,
    group_of,
    pack_parts,
    tally_of,
    wall_of,
    with_parts,
    word_of,
)
from delayd.core.job_record import FLAGS_AT, HEADER, Event, State
from delayd.core.log_records import LAYOUTS, Kind, pack
from delayd.core.operations.checks import admit, check_delay, check_own_target, check_range
from delayd.core.operations.groups import check_group
from delayd.core.operations.tick import job_for
from delayd.core.operations.waiting import serve
from delayd.core.operations.wall_clock import OFFSET_BYTES, tell_offset
from delayd.core.retry import cut_error
from delayd.core.stats.counters import Operation
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.transitions import amended, buried_waiting
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import DURATION_MS_MAX, PRIORITY_MAX, TTR_MS_FOR_ZERO, WALL_MS_MAX

_WALL: Final = int(Flag.WALL)
_MORE: Final = int(Flag.MORE)
_REWRITE_BYTES: Final = LAYOUTS[Kind.REWRITE].size
PARTS_BYTES: Final = LAYOUTS[Kind.PARTS].size
BY_HAND: Final = "by hand"
"""The error of a job that was buried while it waited, without another one."""


class When(NamedTuple):
    """When a job is to be done.

    >>> When(due_ms=5_000, delay_ms=0, wall_ms=None).state.name
    'READY'
    """

    due_ms: int
    delay_ms: int
    """0: at once."""
    wall_ms: int | None
    """The wall-clock time that it was put for, if it was."""

    @property
    def state(self) -> State:
        """The state of a job that waits for that."""
        return State.DELAYED if self.delay_ms else State.READY


def when(engine: Engine, delay_ms: int, due_wall_ms: int | None, now_ms: RequestMs) -> When:
    """Return when a job is due that comes after a delay, or at a wall-clock time.

    A wall-clock time that is past is now.
    """
    if due_wall_ms is None:
        due_ms = ceil_to_tick(now_ms + delay_ms, engine.tick_ms) if delay_ms else now_ms
        return When(due_ms, delay_ms, None)
    due_ms = engine.store.wall_times.place(due_wall_ms)
    if due_ms <= engine.store.time_ms:
        return When(now_ms, 0, due_wall_ms)
    return When(due_ms, max(1, due_ms - now_ms), due_wall_ms)


# --- Kicking -------------------------------------------------------------------------------------


def kick_job(engine: Engine, job_id: int, now_ms: RequestMs) -> None:
    """Make a buried or delayed job ready; `JobNotFound`, `TopicIsInternal`."""
    job_for(engine, job_id, Event.KICK, now_ms)
    engine.record(Kind.KICK, job_id)
    topic = apply.kick(engine.store, job_id)
    engine.store.counters.count(topic, Operation.KICK)
    serve(engine, topic, now_ms)


def kick_later(engine: Engine, job_id: int, delay_ms: int, now_ms: RequestMs) -> None:
    """Kick a buried or delayed job, to come due after this delay; `JobNotFound`.

    Counts as a kick. One item of the log: half of it would make the job ready too soon.
    """
    job_for(engine, job_id, Event.KICK, now_ms)
    due_ms = ceil_to_tick(now_ms + delay_ms, engine.tick_ms)
    fields = job_id, due_ms, delay_ms
    engine.write(pack(Kind.KICK, job_id) + pack(Kind.RESCHEDULE, *fields))
    apply.kick(engine.store, job_id)
    topic = apply.reschedule(engine.store, *fields)
    engine.store.counters.count(topic, Operation.KICK)
    serve(engine, topic, now_ms)


# --- Burying -------------------------------------------------------------------------------------


def bury_waiting(
    engine: Engine, job_id: int, now_ms: RequestMs, *, priority: int | None = None, error: str = ""
) -> None:
    """Bury a delayed or ready job until it is kicked, as a dead letter with that error.

    No attempt is counted. Raises `JobNotFound`, `TopicIsInternal`, `ValueOutOfRange`, `OutOfSpace`.
    """
    check_range("priority", priority or 0, PRIORITY_MAX)
    record = job_for(engine, job_id, Event.BURY_WAITING, now_ms)
    text = cut_error(error or BY_HAND).decode()
    rank = engine.store.next_rank()
    topic = _rewritten(engine, buried_waiting(record, priority, rank, now_ms, text))
    engine.store.counters.count(topic, Operation.BURY)
    serve(engine, topic, now_ms)


# --- Another time --------------------------------------------------------------------------------


def reschedule(
    engine: Engine, job_id: int, delay_ms: int, now_ms: RequestMs, due_wall_ms: int | None = None
) -> None:
    """Give a delayed or ready job this delay, or a wall-clock time, instead of its time.

    Raises `JobNotFound`, `TopicIsInternal`, `ValueOutOfRange`, `DelayTooLong`, `OutOfSpace`.
    """
    check_range("delay in ms", delay_ms, DURATION_MS_MAX)
    check_range("moment in ms", due_wall_ms or 0, WALL_MS_MAX)
    record = job_for(engine, job_id, Event.RESCHEDULE, now_ms)
    new = when(engine, delay_ms, due_wall_ms, now_ms)
    is_wall_time = due_wall_ms is not None
    check_delay(engine.store.topic_of(record), new.delay_ms, is_wall_time=is_wall_time)
    give_time(engine, job_id, new, Operation.RESCHEDULE, now_ms)


def give_time(
    engine: Engine, job_id: int, new: When, operation: Operation, now_ms: RequestMs
) -> None:
    """Give a job that waits or is buried another time, counted as this; `OutOfSpace`."""
    due_ms, delay_ms, wall_ms = new
    fields = job_id, due_ms, delay_ms
    if wall_ms is None:
        engine.record(Kind.RESCHEDULE, *fields)
        topic = apply.reschedule(engine.store, *fields)
    else:
        _record_change(engine, pack(Kind.APPOINT, *fields, wall_ms), follows_wall=True)
        topic = apply.appoint(engine.store, *fields, wall_ms)
    engine.store.counters.count(topic, operation)
    serve(engine, topic, now_ms)


# --- Anything ------------------------------------------------------------------------------------


def change(
    engine: Engine,
    job_id: int,
    now_ms: RequestMs,
    *,
    delay_ms: int | None = None,
    due_wall_ms: int | None = None,
    priority: int | None = None,
    ttr_ms: int | None = None,
    own: Own | None = None,
    body: bytes | None = None,
) -> None:
    """Change the given fields of a job that waits or is buried; all or nothing, in one record.

    A new time takes a job out of burial. An empty part of `own` takes away what the job
    has. Raises `JobNotFound`, also for one that is reserved, `TopicIsInternal`, `BodyTooBig`,
    `ValueOutOfRange`, `DelayTooLong`, `TargetRefused`, `CapReached`, `OutOfSpace`.
    """
    assert delay_ms is None or due_wall_ms is None
    if body is not None and len(body) > engine.body_bytes_max:
        raise BodyTooBig(len(body), engine.body_bytes_max)
    check_range("priority", priority or 0, PRIORITY_MAX)
    check_range("delay in ms", delay_ms or 0, DURATION_MS_MAX)
    check_range("moment in ms", due_wall_ms or 0, WALL_MS_MAX)
    check_range("ttr in ms", ttr_ms or 0, DURATION_MS_MAX)
    record = job_for(engine, job_id, Event.CHANGE, now_ms)
    _, due_ms, _, ttr_now_ms, priority_now, _, job_state, _ = HEADER.unpack_from(record)
    new = When(due_ms, tally_of(record).delay_ms, wall_of(record))
    has_new_time = delay_ms is not None or due_wall_ms is not None
    if has_new_time:
        new = when(engine, delay_ms or 0, due_wall_ms, now_ms)
        job_state = int(new.state)
    topic = engine.store.topic_of(record)
    changed = record
    if own is not None or body is not None:
        own = own or Own()
        check_own_target(topic, own.target)
        check_group(topic, own.group, group_of(record))
        changed = with_parts(record, pack_parts(own), body)
    if not topic.has_no_rules:
        admit(
            engine,
            topic,
            jobs=0,
            record_bytes=len(changed) - len(record),
            body_bytes=0 if body is None else len(body),
            delay_ms=new.delay_ms if has_new_time else 0,
            ttr_ms=0,
            is_wall_time=due_wall_ms is not None,
        )
    ttr_ms = ttr_now_ms if ttr_ms is None else ttr_ms or TTR_MS_FOR_ZERO
    fields = (
        *(job_id, new.due_ms, new.delay_ms, new.wall_ms or 0, ttr_ms),
        *(priority_now if priority is None else priority, job_state),
    )
    if changed is not record:
        rewrite(engine, amended(changed, *fields[1:]), now_ms)
        return
    _record_change(engine, pack(Kind.AMEND, *fields), follows_wall=bool(new.wall_ms))
    _conclude(engine, apply.amend(engine.store, *fields), now_ms)


def rewrite(engine: Engine, record: bytes, now_ms: RequestMs) -> None:
    """Give a job that waits or is buried this record, of the same id and key; `OutOfSpace`."""
    _conclude(engine, _rewritten(engine, record), now_ms)


def _rewritten(engine: Engine, record: bytes) -> Topic:
    body_bytes = len(body_of(record))
    head_bytes = _REWRITE_BYTES + len(record) - body_bytes + OFFSET_BYTES + PARTS_BYTES
    engine.log_space.take_for_rewrite(head_bytes, body_bytes)
    if record[FLAGS_AT] & _WALL:
        tell_offset(engine)
    if record[FLAGS_AT] >= _MORE:
        tell_parts(engine, record)
    engine.write_promised(pack(Kind.REWRITE, tail=record))
    return apply.rewrite(engine.store, record)


def tell_parts(engine: Engine, record: bytes) -> None:
    """See that the log says which further parts a job may have, before a record has them."""
    word = word_of(record)
    if word & ~engine.store.parts_recorded:
        engine.write_promised(pack(Kind.PARTS, word))
        apply.parts(engine.store, word)


def _record_change(engine: Engine, item: bytes, *, follows_wall: bool) -> None:
    """Record the change of a job at rest, an OFFSET before it where it is due; `OutOfSpace`."""
    if follows_wall:
        engine.log_space.require(2 * (len(item) + OFFSET_BYTES))
        tell_offset(engine)
    engine.write(item)


def _conclude(engine: Engine, topic: Topic, now_ms: RequestMs) -> None:
    engine.store.counters.count(topic, Operation.CHANGE)
    serve(engine, topic, now_ms)
