"""Changes of a job's record: each change that can happen to a job, as a function.

Live operation and replay call the same function with the same arguments, so that they cannot differ
in a byte.

>>> from delayd.core.job_record import HEADER, State
>>> from delayd.core.job_parts import Flag, body_of, rank_of, tally_of
>>> record = HEADER.pack(7, 1_500, 500, 60_000, 3, 1, State.DELAYED, Flag.NONE) + b"hello"
>>> parked = buried(record, priority=3, rank=rank_at(2_000, 1))
>>> body_of(parked), tally_of(parked).buries, rank_of(parked) >> RANK_BITS
(b'hello', 1, 2000)
>>> rank_of(kicked(parked))
0

All functions are pure. Whether a change is legal is decided before.
"""

from typing import Final

from delayd.core.job_parts import (
    COUNT_MAX,
    FAILURE,
    FIXED_END,
    FIXED_MASK,
    TALLY,
    Failure,
    Flag,
    Note,
    Reason,
    failure_of,
    note_of,
    pack_note,
    rank_of,
    tally_of,
    wall_of,
    with_parts,
)
from delayd.core.job_record import (
    CREATED_AT,
    DUE_AT,
    FLAGS_AT,
    HEADER,
    STATE_AT,
    TOPIC_AT,
    U32,
    U64,
    State,
)

RANK_BITS: Final = 16
"""Of a rank, for the burials within one millisecond; what is left lasts until the year 10,889. The
65,536th borrows from the next millisecond, which keeps the order."""
RANK_MAX: Final = 2**64 - 1

# Tested for every change; an enum member's arithmetic costs 40 ns more than an int's.
_TALLY: Final = int(Flag.TALLY)
_WALL: Final = int(Flag.WALL)
_RANK: Final = int(Flag.RANK)
_FAILURE: Final = int(Flag.FAILURE)
_KEY: Final = int(Flag.KEY)
_NOTE: Final = int(Flag.NOTE)
_BURIED: Final = int(State.BURIED)
_READY_BYTE: Final = bytes((State.READY,))


def rank_at(time_ms: int, number: int = 0) -> int:
    """Return the rank of a job buried at that time; `number` counts within the millisecond.

    Burials without a request (a ttr ran out for the last time) have number 0: in live slices they
    may come in another order than in a replay, but their ranks are the same.
    """
    return min(RANK_MAX, (time_ms << RANK_BITS) + number)


def amend(
    record: bytes,
    state: State,
    *,
    due_ms: int | None = None,
    wall_ms: int | None = None,
    ttr_ms: int | None = None,
    priority: int | None = None,
    topic: int | None = None,
    delay_ms: int | None = None,
    rank: int | None = None,
    failure: Failure | None = None,
    reserves: int = 0,
    timeouts: int = 0,
    releases: int = 0,
    buries: int = 0,
    kicks: int = 0,
) -> bytes:
    """Return the record in another resting state, with these fields replaced and counts added.

    With another `due_ms` the wall-clock time is dropped, unless a new one is given. A job that
    stays buried keeps its rank.
    """
    job_id, due_now_ms, created_ms, ttr_now_ms, priority_now, topic_now, _, flags = (
        HEADER.unpack_from(record)
    )
    old = tally_of(record)
    tail = record[FIXED_END[flags & FIXED_MASK] :]
    parts = TALLY.pack(
        old.delay_ms if delay_ms is None else delay_ms,
        min(COUNT_MAX, old.reserves + reserves),
        min(COUNT_MAX, old.timeouts + timeouts),
        min(COUNT_MAX, old.releases + releases),
        min(COUNT_MAX, old.buries + buries),
        min(COUNT_MAX, old.kicks + kicks),
    )
    changed_flags = flags & ~FIXED_MASK | _TALLY
    if due_ms is None:
        wall_ms = wall_of(record)
    if wall_ms is not None:
        changed_flags |= _WALL
        parts += U64.pack(wall_ms)
    if state == _BURIED:
        changed_flags |= _RANK
        parts += U64.pack(rank_of(record) if rank is None else rank)
    if flags & _FAILURE or failure is not None:
        changed_flags |= _FAILURE
        parts += FAILURE.pack(*(failure or failure_of(record) or ()))
    head = HEADER.pack(
        job_id,
        due_now_ms if due_ms is None else due_ms,
        created_ms,
        ttr_now_ms if ttr_ms is None else ttr_ms,
        priority_now if priority is None else priority,
        topic_now if topic is None else topic,
        state,
        changed_flags,
    )
    return head + parts + tail


def with_note(record: bytes, note: Note | None) -> bytes:
    """Return the record with this note, or without one."""
    return with_parts(record, {_NOTE: pack_note(note)})


def without_key(record: bytes) -> bytes:
    """Return the record of a job whose key was taken over by another one, or that was moved."""
    return with_parts(record, {_KEY: b""})


def revived(record: bytes) -> Failure | None:
    """Return the failure of a job taken out of burial: attempts count from here."""
    failure = failure_of(record)
    if failure is None or record[STATE_AT] != _BURIED:
        return failure
    return failure._replace(attempts_before=tally_of(record).reserves)


# --- What happens to jobs ------------------------------------------------------------------------


def released(record: bytes, due_ms: int, delay_ms: int, priority: int) -> bytes:
    """Return the record of a job that its holder released."""
    return amend(
        record,
        State.DELAYED if delay_ms else State.READY,
        due_ms=due_ms,
        delay_ms=delay_ms,
        priority=priority,
        reserves=1,
        releases=1,
    )


def returned(record: bytes) -> bytes:
    """Return the record of a job whose holder's connection closed."""
    return amend(record, State.READY, reserves=1)


def expired(record: bytes) -> bytes:
    """Return the record of a job whose ttr ran out."""
    return amend(record, State.READY, reserves=1, timeouts=1)


def buried(record: bytes, priority: int, rank: int) -> bytes:
    """Return the record of a job that its holder buried."""
    return amend(record, State.BURIED, priority=priority, rank=rank, reserves=1, buries=1)


def buried_waiting(
    record: bytes, priority: int | None, rank: int, buried_ms: int, error: str
) -> bytes:
    """Return the record of a job that was buried while it waited: no attempt has failed."""
    failure = failure_of(record) or Failure(Reason.BURIED, tally_of(record).reserves, buried_ms)
    failure = failure._replace(reason=Reason.BURIED, failed_ms=buried_ms)
    note = note_of(record) or Note()
    changed = amend(record, State.BURIED, priority=priority, rank=rank, failure=failure, buries=1)
    return with_note(changed, note._replace(error=error))


def kicked(record: bytes) -> bytes:
    """Return the record of a delayed or buried job that was made ready."""
    return amend(record, State.READY, failure=revived(record), kicks=1)


def rescheduled(record: bytes, due_ms: int, delay_ms: int, wall_ms: int | None = None) -> bytes:
    """Return the record of a job that was given another time, absolute with `wall_ms`.

    A buried one waits again from then on.
    """
    state = State.DELAYED if delay_ms else State.READY
    failure = revived(record)
    return amend(record, state, due_ms=due_ms, delay_ms=delay_ms, wall_ms=wall_ms, failure=failure)


def amended(
    record: bytes, due_ms: int, delay_ms: int, wall_ms: int, ttr_ms: int, priority: int, state: int
) -> bytes:
    """Return the record of a waiting job that was changed, except its body; `wall_ms` 0: none."""
    return amend(
        record,
        State(state),
        due_ms=due_ms,
        wall_ms=wall_ms or None,
        ttr_ms=ttr_ms,
        priority=priority,
        delay_ms=delay_ms,
        failure=None if state == _BURIED else revived(record),
    )


def ranked(record: bytes, rank: int) -> bytes:
    """Return the record of a buried job with this position."""
    return amend(record, State.BURIED, rank=rank)


def renumbered(record: bytes, number: int) -> bytes:
    """Return the record of a job whose topic has this number."""
    return record[:TOPIC_AT] + U32.pack(number) + record[STATE_AT:]


def placed_anew(record: bytes, due_ms: int) -> bytes:
    """Return the record of a job whose wall-clock time is now at this delayd time."""
    return record[:DUE_AT] + U64.pack(due_ms) + record[CREATED_AT:]


def came_due(record: bytes) -> bytes:
    """Return the record of a delayed job whose delay has ended."""
    return record[:STATE_AT] + _READY_BYTE + record[FLAGS_AT:]


def was_moved(record: bytes) -> bool:
    """Tell whether the job was exhausted in another topic, and moved to the one where it is."""
    note = note_of(record)
    return note is not None and bool(note.origin)
