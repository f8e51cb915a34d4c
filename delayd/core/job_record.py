r"""The record of a job: how one is laid out, what states it has, which changes are legal.

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
    41      1     flags         which optional parts follow (`core.job_parts`), each only with its
    flag ..      ..    body          the rest, verbatim

>>> record = HEADER.pack(7, 1_500, 500, 60_000, 3, 1, State.DELAYED, 0) + b"hello"
>>> len(record), state_of(record).name
(47, 'DELAYED')

A reserved job keeps the record it had; which session holds it is in `core.leases`. So handing a job
out and acknowledging it rewrites nothing. How a record becomes another is in `core.transitions`.
"""

import enum
import struct
from typing import Final

HEADER: Final = struct.Struct("<QQQQIIBB")
ID_AT: Final = 0
DUE_AT: Final = 8
CREATED_AT: Final = 16
TTR_AT: Final = 24
PRIORITY_AT: Final = 32
TOPIC_AT: Final = 36
STATE_AT: Final = 40
FLAGS_AT: Final = 41

U16: Final = struct.Struct("<H")
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
PRIORITY_AND_TOPIC: Final = struct.Struct("<II")
HEADER_BYTES: Final = HEADER.size


class State(enum.IntEnum):
    """Where a job is in its life."""

    DELAYED = 0
    READY = 1
    RESERVED = 2
    BURIED = 3


class Event(enum.Enum):
    """What can happen to a job."""

    CAME_DUE = enum.auto()
    RESERVE = enum.auto()
    RELEASE = enum.auto()
    BURY = enum.auto()
    BURY_WAITING = enum.auto()
    """A client buried it while it waited."""
    KICK = enum.auto()
    TOUCH = enum.auto()
    RESCHEDULE = enum.auto()
    CHANGE = enum.auto()
    DELETE = enum.auto()
    HOLD_ENDED = enum.auto()
    """The ttr ran out, or the holder's connection closed."""


TRANSITIONS: Final[dict[tuple[State, Event], frozenset[State | None]]] = {
    (State.DELAYED, Event.CAME_DUE): frozenset({State.READY}),
    (State.DELAYED, Event.RESERVE): frozenset({State.RESERVED}),
    (State.DELAYED, Event.BURY_WAITING): frozenset({State.BURIED}),
    (State.DELAYED, Event.KICK): frozenset({State.READY}),
    (State.DELAYED, Event.RESCHEDULE): frozenset({State.DELAYED, State.READY}),
    (State.DELAYED, Event.CHANGE): frozenset({State.DELAYED, State.READY}),
    (State.DELAYED, Event.DELETE): frozenset({None}),
    (State.READY, Event.RESERVE): frozenset({State.RESERVED}),
    (State.READY, Event.BURY_WAITING): frozenset({State.BURIED}),
    (State.READY, Event.RESCHEDULE): frozenset({State.DELAYED, State.READY}),
    (State.READY, Event.CHANGE): frozenset({State.DELAYED, State.READY}),
    (State.READY, Event.DELETE): frozenset({None}),
    (State.RESERVED, Event.RELEASE): frozenset({State.READY, State.DELAYED, State.BURIED}),
    (State.RESERVED, Event.BURY): frozenset({State.BURIED}),
    (State.RESERVED, Event.TOUCH): frozenset({State.RESERVED}),
    (State.RESERVED, Event.DELETE): frozenset({None}),
    # Under a retry rule a failed attempt leads to a delay or, in the end, to the buried.
    (State.RESERVED, Event.HOLD_ENDED): frozenset({State.READY, State.DELAYED, State.BURIED}),
    (State.BURIED, Event.RESERVE): frozenset({State.RESERVED}),
    (State.BURIED, Event.KICK): frozenset({State.READY}),
    (State.BURIED, Event.CHANGE): frozenset({State.BURIED, State.DELAYED, State.READY}),
    (State.BURIED, Event.DELETE): frozenset({None}),
}
"""From a state, by an event, to one of these states (None: gone). An absent pair is a refusal."""


def state_of(record: bytes) -> State:
    """Return the resting state."""
    return State(record[STATE_AT])
