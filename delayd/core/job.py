"""The record of a job: how one is laid out, what states it has, which changes are legal.

A job at rest *is* its record, one `bytes` value. The same bytes are appended to the journal, kept
in memory and copied into a snapshot, so nothing is ever encoded twice and the garbage collector has
nothing to walk. Little-endian throughout:

    offset  size  field
    0       8     id            1 upwards, never reused while the log remembers it
    8       8     due_ms        when the delay ends, on delayd time, already rounded up to the tick
    16      8     created_ms    when the job was put
    24      8     ttr_ms        how long a reservation lasts
    32      4     priority      0 is the most urgent
    36      4     topic         the number that a TOPIC record gave the name
    40      1     state         a resting state: DELAYED, READY or BURIED
    41      1     flags         which optional parts follow
    42      28    tally         only with `Flag.TALLY`: the job has been worked on
    ..      8     wall_ms       only with `Flag.WALL`: the wall-clock time that the job was put for
    ..      ..    body          the rest, verbatim

>>> record = HEADER.pack(7, 1_500, 500, 60_000, 3, 1, State.DELAYED, Flag.NONE) + b"hello"
>>> len(record), body_of(record), tally_of(record).delay_ms
(47, b'hello', 1000)
>>> buried = amend(record, State.BURIED, buries=1)
>>> body_of(buried), tally_of(buried).buries, state_of(buried).name
(b'hello', 1, 'BURIED')

A reserved job keeps the record it had; that somebody holds it is said elsewhere (`Store.holders`),
so that handing a job out and acknowledging it rewrites nothing. This module knows nothing of
topics' queues, of the wheel, or of who holds what.
"""

import enum
import struct
from typing import Final, NamedTuple

HEADER: Final = struct.Struct("<QQQQIIBB")
ID_AT: Final = 0
DUE_AT: Final = 8
CREATED_AT: Final = 16
TTR_AT: Final = 24
PRIORITY_AT: Final = 32
TOPIC_AT: Final = 36
STATE_AT: Final = 40
FLAGS_AT: Final = 41

U64: Final = struct.Struct("<Q")
PRIORITY_AND_TOPIC: Final = struct.Struct("<II")
TALLY: Final = struct.Struct("<QIIIII")
HEADER_BYTES: Final = HEADER.size
HEADER_AND_TALLY: Final = HEADER.size + TALLY.size
COUNT_MAX: Final = 2**32 - 1


class State(enum.IntEnum):
    """Where a job is in its life."""

    DELAYED = 0
    READY = 1
    RESERVED = 2
    BURIED = 3


_TALLY: Final = 1
_WALL: Final = 2
_BODY_AT: Final = (
    HEADER_BYTES,
    HEADER_AND_TALLY,
    HEADER_BYTES + U64.size,
    HEADER_AND_TALLY + U64.size,
)
"""Where the body begins, by the flags."""
FLAGS_END: Final = len(_BODY_AT)
"""Flags of this version are less than that."""
_READY_BYTE: Final = bytes((State.READY,))


class Event(enum.Enum):
    """What can happen to a job."""

    CAME_DUE = enum.auto()
    RESERVE = enum.auto()
    RELEASE = enum.auto()
    BURY = enum.auto()
    KICK = enum.auto()
    TOUCH = enum.auto()
    RESCHEDULE = enum.auto()
    DELETE = enum.auto()
    HOLD_ENDED = enum.auto()
    """The ttr ran out, or the holder's connection closed."""


TRANSITIONS: Final[dict[tuple[State, Event], frozenset[State | None]]] = {
    (State.DELAYED, Event.CAME_DUE): frozenset({State.READY}),
    (State.DELAYED, Event.RESERVE): frozenset({State.RESERVED}),
    (State.DELAYED, Event.KICK): frozenset({State.READY}),
    (State.DELAYED, Event.RESCHEDULE): frozenset({State.DELAYED, State.READY}),
    (State.DELAYED, Event.DELETE): frozenset({None}),
    (State.READY, Event.RESERVE): frozenset({State.RESERVED}),
    (State.READY, Event.RESCHEDULE): frozenset({State.DELAYED, State.READY}),
    (State.READY, Event.DELETE): frozenset({None}),
    (State.RESERVED, Event.RELEASE): frozenset({State.READY, State.DELAYED}),
    (State.RESERVED, Event.BURY): frozenset({State.BURIED}),
    (State.RESERVED, Event.TOUCH): frozenset({State.RESERVED}),
    (State.RESERVED, Event.DELETE): frozenset({None}),
    (State.RESERVED, Event.HOLD_ENDED): frozenset({State.READY}),
    (State.BURIED, Event.RESERVE): frozenset({State.RESERVED}),
    (State.BURIED, Event.KICK): frozenset({State.READY}),
    (State.BURIED, Event.DELETE): frozenset({None}),
}
"""From a state, by an event, to one of these states (None: gone). An absent pair is a refusal."""


class Flag(enum.IntFlag):
    """Which optional parts a record carries."""

    NONE = 0
    TALLY = 1
    WALL = 2
    """`due_ms` follows the wall clock for as long as the job is delayed."""


class Tally(NamedTuple):
    """What has happened to a job so far; all zero, and not stored, for one never worked on."""

    delay_ms: int
    """The delay of the last put, release or reschedule, as it was asked for."""
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0


def state_of(record: bytes) -> State:
    """Return the resting state."""
    return State(record[STATE_AT])


def body_of(record: bytes) -> bytes:
    """Return the body, verbatim."""
    return record[_BODY_AT[record[FLAGS_AT]] :]


def tally_of(record: bytes) -> Tally:
    """Return what has happened to the job; for one never worked on, the delay it was put with."""
    if record[FLAGS_AT] & _TALLY:
        return Tally(*TALLY.unpack_from(record, HEADER.size))
    due_ms, created_ms = struct.unpack_from("<QQ", record, DUE_AT)
    return Tally(max(0, due_ms - created_ms))


def wall_of(record: bytes) -> int | None:
    """Return the wall-clock time that the job was put for; None when it was put with a delay."""
    flags = record[FLAGS_AT]
    if not flags & _WALL:
        return None
    wall_ms: int = U64.unpack_from(record, _BODY_AT[flags] - U64.size)[0]
    return wall_ms


def amend(
    record: bytes,
    state: State,
    *,
    due_ms: int | None = None,
    wall_ms: int | None = None,
    priority: int | None = None,
    delay_ms: int | None = None,
    reserves: int = 0,
    timeouts: int = 0,
    releases: int = 0,
    buries: int = 0,
    kicks: int = 0,
) -> bytes:
    """Return the record in another resting state, with these fields replaced and counts added.

    With another `due_ms` a wall-clock time is forgotten, unless there is another one.
    """
    job_id, due_now_ms, created_ms, ttr_ms, priority_now, topic, _, _ = HEADER.unpack_from(record)
    old = tally_of(record)
    counts = (
        min(COUNT_MAX, old.reserves + reserves),
        min(COUNT_MAX, old.timeouts + timeouts),
        min(COUNT_MAX, old.releases + releases),
        min(COUNT_MAX, old.buries + buries),
        min(COUNT_MAX, old.kicks + kicks),
    )
    if due_ms is None:
        wall_ms = wall_of(record)
    head = HEADER.pack(
        job_id,
        due_now_ms if due_ms is None else due_ms,
        created_ms,
        ttr_ms,
        priority_now if priority is None else priority,
        topic,
        state,
        _TALLY if wall_ms is None else _TALLY | _WALL,
    )
    delay_ms = old.delay_ms if delay_ms is None else delay_ms
    wall = b"" if wall_ms is None else U64.pack(wall_ms)
    return head + TALLY.pack(delay_ms, *counts) + wall + body_of(record)


def released(record: bytes, due_ms: int, delay_ms: int, priority: int) -> bytes:
    """Return the record of a job that its holder gave back."""
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
    """Return the record of a job whose holder went away."""
    return amend(record, State.READY, reserves=1)


def lapsed(record: bytes) -> bytes:
    """Return the record of a job whose ttr ran out."""
    return amend(record, State.READY, reserves=1, timeouts=1)


def buried(record: bytes, priority: int) -> bytes:
    """Return the record of a job that its holder parked."""
    return amend(record, State.BURIED, priority=priority, reserves=1, buries=1)


def kicked(record: bytes) -> bytes:
    """Return the record of a delayed or buried job that was made ready."""
    return amend(record, State.READY, kicks=1)


def rescheduled(record: bytes, due_ms: int, delay_ms: int, wall_ms: int | None = None) -> bytes:
    """Return the record of a waiting job that was given another time, absolute with `wall_ms`."""
    state = State.DELAYED if delay_ms else State.READY
    return amend(record, state, due_ms=due_ms, delay_ms=delay_ms, wall_ms=wall_ms)


def placed_anew(record: bytes, due_ms: int) -> bytes:
    """Return the record of a job whose wall-clock time is now at this delayd time."""
    return record[:DUE_AT] + U64.pack(due_ms) + record[CREATED_AT:]


def came_due(record: bytes) -> bytes:
    """Return the record of a delayed job whose delay has ended."""
    return record[:STATE_AT] + _READY_BYTE + record[FLAGS_AT:]
