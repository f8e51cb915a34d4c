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
    41      1     flags         which optional parts follow, each only with its flag:
    ..      28    tally         `Flag.TALLY`: the job has been worked on
    ..      8     wall_ms       `Flag.WALL`: the wall-clock time that the job was put for
    ..      8     rank          `Flag.RANK`: its position among the buried; only in that state
    ..      13    failure       `Flag.FAILURE`: its last failed attempt under a retry rule
    ..      1..   key           `Flag.KEY`: u8 length, the caller's own name for the job
    ..      4..   retry         `Flag.RETRY`: u8 steps, u16 attempts, u8 jitter, u64 ms a step
    ..      3..   note          `Flag.NOTE`: u8 length, topic it came from; u16 length, last error
    ..      2..   target        `Flag.TARGET`: u16 length, a url to push to (`core.targets`)
    ..      ..    body          the rest, verbatim

The first four parts have one length each, so where they end follows from the flags alone. What is
after them, the *tail*, is the same after most changes.

>>> record = HEADER.pack(7, 1_500, 500, 60_000, 3, 1, State.DELAYED, Flag.NONE) + b"hello"
>>> len(record), body_of(record), tally_of(record).delay_ms
(47, b'hello', 1000)
>>> record = HEADER.pack(7, 500, 500, 60_000, 3, 1, State.READY, Flag.KEY) + b"\4a-17hello"
>>> key_of(record), body_of(record), retry_of(record), target_of(record)
(b'a-17', b'hello', None, b'')

A reserved job keeps the record it had; which session holds it is in `core.leases`. So handing a job
out and acknowledging it rewrites nothing. How a record becomes another is in `core.transitions`.
This module knows nothing of topics' queues, of the wheel, or of who holds what.
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

U16: Final = struct.Struct("<H")
U32: Final = struct.Struct("<I")
U64: Final = struct.Struct("<Q")
PRIORITY_AND_TOPIC: Final = struct.Struct("<II")
TALLY: Final = struct.Struct("<QIIIII")
FAILURE: Final = struct.Struct("<BIQ")
RETRY_HEAD: Final = struct.Struct("<BHB")
HEADER_BYTES: Final = HEADER.size
HEADER_AND_TALLY: Final = HEADER.size + TALLY.size
COUNT_MAX: Final = 2**32 - 1


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
    """Somebody buried it while nobody held it."""
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


# --- The optional parts --------------------------------------------------------------------------


class Flag(enum.IntFlag):
    """Which optional parts a record carries."""

    NONE = 0
    TALLY = 1
    WALL = 2
    """`due_ms` follows the wall clock for as long as the job is delayed."""
    RANK = 4
    FAILURE = 8
    KEY = 16
    RETRY = 32
    NOTE = 64
    """Only with FAILURE."""
    TARGET = 128
    """The job has a target of its own."""


class Tally(NamedTuple):
    """What has happened to a job so far; all zero, and not stored, for one never worked on."""

    delay_ms: int
    """The delay of the last put, release or reschedule, as it was asked for."""
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0


class Reason(enum.IntEnum):
    """Why an attempt failed. Numbers never change."""

    NACKED = 1
    RELEASED = 2
    TTR_RAN_OUT = 3
    HOLDER_LEFT = 4
    """Its connection closed."""
    BURIED = 5
    """Its holder buried it, or somebody did while it waited: then no attempt has failed."""
    EXCUSED = 6
    """Its connection closed, where that does not count as a failed attempt."""
    UNDELIVERED = 7
    """The HTTP client was gone before the answer was sent: no worker has seen the job. Or a call
    was cut off by a stop, or its place has failed for all (`push.breaker`)."""
    PUSH_FAILED = 8
    """It was delivered to its target, and not taken."""


class Failure(NamedTuple):
    """The last failed attempt of a job under a retry rule."""

    reason: int
    """A `Reason`."""
    attempts_before: int
    """What `Tally.reserves` was when the job was put or last revived: attempts count from there."""
    failed_ms: int


class Retry(NamedTuple):
    """A job's own retry rule, which wins over its topic's."""

    steps_ms: tuple[int, ...] = ()
    """How long it is delayed after the first failed attempt, the second, …"""
    attempts_max: int = 0
    """0: no bound but the steps."""
    jitter_percent: int = 0


class Note(NamedTuple):
    """What people want to know about a job that failed."""

    origin: str = ""
    """The topic that it was moved from, empty if it never was."""
    error: str = ""
    """What its worker, or who buried it, last said of it."""


_TALLY: Final = 1
_WALL: Final = 2
_RANK: Final = 4
_FAILURE: Final = 8
_KEY: Final = 16
_RETRY: Final = 32
_NOTE: Final = 64
_TARGET: Final = 128
FIXED_MASK: Final = _TALLY | _WALL | _RANK | _FAILURE
FIXED_END: Final = tuple(
    HEADER_BYTES
    + (TALLY.size if flags & _TALLY else 0)
    + (U64.size if flags & _WALL else 0)
    + (U64.size if flags & _RANK else 0)
    + (FAILURE.size if flags & _FAILURE else 0)
    for flags in range(FIXED_MASK + 1)
)
"""Where the parts of fixed length end and the tail begins, by the flags of those parts."""
_RANK_END: Final = tuple(FIXED_END[flags & ~_FAILURE] for flags in range(FIXED_MASK + 1))
_WALL_END: Final = tuple(FIXED_END[flags & (_TALLY | _WALL)] for flags in range(FIXED_MASK + 1))


def state_of(record: bytes) -> State:
    """Return the resting state."""
    return State(record[STATE_AT])


def body_of(record: bytes) -> bytes:
    """Return the body, verbatim."""
    flags = record[FLAGS_AT]
    if flags < _KEY:
        return record[FIXED_END[flags] :]
    if flags < _RETRY:  # a key and nothing else of that sort: most keyed jobs
        at = FIXED_END[flags & FIXED_MASK]
        return record[at + 1 + record[at] :]
    return record[_ends_of(record)[3] :]


def _ends_of(record: bytes) -> tuple[int, int, int, int]:
    """Return where key, retry rule, note and target end, each empty if its flag is not set."""
    flags = record[FLAGS_AT]
    key_end = FIXED_END[flags & FIXED_MASK]
    if flags & _KEY:
        key_end += 1 + record[key_end]
    retry_end = key_end
    if flags & _RETRY:
        retry_end += RETRY_HEAD.size + U64.size * record[key_end]
    note_end = retry_end
    if flags & _NOTE:
        note_end += 1 + record[note_end]
        note_end += U16.size + U16.unpack_from(record, note_end)[0]
    target_end = note_end
    if flags & _TARGET:
        target_end += U16.size + U16.unpack_from(record, note_end)[0]
    return key_end, retry_end, note_end, target_end


def head_bytes_of(record: bytes) -> int:
    """Return how long everything before the body is, as the record itself says.

    It may say more than it has, if it is not one of ours; or raise `IndexError`, `struct.error`.
    """
    return _ends_of(record)[3]


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
    wall_ms: int = U64.unpack_from(record, _WALL_END[flags & FIXED_MASK] - U64.size)[0]
    return wall_ms


def rank_of(record: bytes) -> int:
    """Return the position of a buried job among the buried of its topic; 0 if it has none."""
    flags = record[FLAGS_AT]
    if not flags & _RANK:
        return 0
    rank: int = U64.unpack_from(record, _RANK_END[flags & FIXED_MASK] - U64.size)[0]
    return rank


def failure_of(record: bytes) -> Failure | None:
    """Return the last failed attempt under a retry rule; None when there was none."""
    flags = record[FLAGS_AT]
    if not flags & _FAILURE:
        return None
    return Failure(*FAILURE.unpack_from(record, FIXED_END[flags & FIXED_MASK] - FAILURE.size))


def key_of(record: bytes) -> bytes:
    """Return the caller's own name for the job; empty when it has none."""
    flags = record[FLAGS_AT]
    if not flags & _KEY:
        return b""
    at = FIXED_END[flags & FIXED_MASK]
    return record[at + 1 : at + 1 + record[at]]


def has_key(record: bytes, key: bytes) -> bool:
    """Tell whether that is the caller's own name for the job."""
    flags = record[FLAGS_AT]
    if not flags & _KEY:
        return False
    at = FIXED_END[flags & FIXED_MASK]
    return record[at] == len(key) and record.startswith(key, at + 1)


def retry_of(record: bytes) -> Retry | None:
    """Return the job's own retry rule; None when its topic's counts."""
    flags = record[FLAGS_AT]
    if not flags & _RETRY:
        return None
    at = _ends_of(record)[0]
    steps, attempts_max, jitter_percent = RETRY_HEAD.unpack_from(record, at)
    steps_ms = struct.unpack_from(f"<{steps}Q", record, at + RETRY_HEAD.size)
    return Retry(steps_ms, attempts_max, jitter_percent)


def note_of(record: bytes) -> Note | None:
    """Return what there is to say about a job that failed; None when there is nothing."""
    if not record[FLAGS_AT] & _NOTE:
        return None
    _, at, end, _ = _ends_of(record)
    error_at = at + 1 + record[at]
    origin = record[at + 1 : error_at].decode("ascii", "replace")
    return Note(origin, record[error_at + U16.size : end].decode("utf-8", "replace"))


def target_of(record: bytes) -> bytes:
    """Return the job's own target, as `core.targets` packs it; empty when it has none."""
    if not record[FLAGS_AT] & _TARGET:
        return b""
    _, _, at, end = _ends_of(record)
    return record[at + U16.size : end]


def attempts_of(record: bytes) -> int:
    """Return how often the job came back from a holder since it was put or last revived."""
    failure = failure_of(record)
    return tally_of(record).reserves - (0 if failure is None else failure.attempts_before)


def pack_key(key: bytes) -> bytes:
    """Return the part of a record that says the key; nothing for an empty one."""
    return bytes((len(key),)) + key if key else b""


def pack_retry(retry: Retry | None) -> bytes:
    """Return the part of a record that says the job's own retry rule; nothing for None."""
    if retry is None:
        return b""
    steps_ms, attempts_max, jitter_percent = retry
    head = RETRY_HEAD.pack(len(steps_ms), attempts_max, jitter_percent)
    return head + struct.pack(f"<{len(steps_ms)}Q", *steps_ms)


def retry_bytes(retry: Retry | None) -> int:
    """Return how long that part is; packing 255 steps takes as long as half of a put."""
    return 0 if retry is None else RETRY_HEAD.size + U64.size * len(retry.steps_ms)


def pack_note(note: Note | None) -> bytes:
    """Return the part of a record that says what is known of the failure; nothing for None."""
    if note is None:
        return b""
    origin, error = note.origin.encode("ascii"), note.error.encode()
    return bytes((len(origin),)) + origin + U16.pack(len(error)) + error


def pack_target(target: bytes) -> bytes:
    """Return the part of a record that says the job's own target; nothing for an empty one."""
    return U16.pack(len(target)) + target if target else b""
