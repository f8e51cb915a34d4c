"""Changes of a job's record: each change that can happen to a job, as a function.

Live operation and replay call the same function with the same arguments, so that they cannot differ
in a byte.

>>> from delayd.core.job import HEADER, Flag, State, body_of, rank_of, tally_of
>>> record = HEADER.pack(7, 1_500, 500, 60_000, 3, 1, State.DELAYED, Flag.NONE) + b"hello"
>>> parked = buried(record, priority=3, rank=rank_at(2_000, 1))
>>> body_of(parked), tally_of(parked).buries, rank_of(parked) >> RANK_BITS
(b'hello', 1, 2000)
>>> rank_of(kicked(parked))
0

All functions are pure, and refuse to check whether the change is legal.
"""

from typing import Final

from delayd.core.job import (
    COUNT_MAX,
    CREATED_AT,
    DUE_AT,
    FAILURE,
    FIXED_END,
    FIXED_MASK,
    FLAGS_AT,
    HEADER,
    STATE_AT,
    TALLY,
    TOPIC_AT,
    U32,
    U64,
    Failure,
    Flag,
    Note,
    Retry,
    State,
    body_of,
    failure_of,
    head_bytes_of,
    key_of,
    note_of,
    pack_key,
    pack_note,
    pack_retry,
    rank_of,
    retry_of,
    tally_of,
    wall_of,
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
_RETRY: Final = int(Flag.RETRY)
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


# --- The parts of variable length ----------------------------------------------------------------


def with_tail(
    record: bytes, *, key: bytes, retry: Retry | None, note: Note | None, body: bytes
) -> bytes:
    """Return the record with this tail after its fixed parts."""
    flags = record[FLAGS_AT] & FIXED_MASK
    flags |= (_KEY if key else 0) | (_RETRY if retry else 0) | (_NOTE if note else 0)
    head = (
        record[:FLAGS_AT] + bytes((flags,)) + record[FLAGS_AT + 1 : FIXED_END[flags & FIXED_MASK]]
    )
    return head + pack_key(key) + pack_retry(retry) + pack_note(note) + body


def with_body(record: bytes, body: bytes) -> bytes:
    """Return the record with another body."""
    return record[: head_bytes_of(record)] + body


def with_note(record: bytes, note: Note | None) -> bytes:
    """Return the record with this note, or without one."""
    key, retry, body = key_of(record), retry_of(record), body_of(record)
    return with_tail(record, key=key, retry=retry, note=note, body=body)


def without_key(record: bytes) -> bytes:
    """Return the record of a job whose key was taken over by another one, or that was moved."""
    retry, note, body = retry_of(record), note_of(record), body_of(record)
    return with_tail(record, key=b"", retry=retry, note=note, body=body)


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
    record: bytes,
    due_ms: int,
    delay_ms: int,
    wall_ms: int,
    ttr_ms: int,
    priority: int,
    state: int,
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
