r"""The optional parts of a job's record: one table, `PARTS`, with a row for each.

They lie between the header (`core.job_record`) and the body, in this order, each only if its flag
is set:

    size  part
    28    tally     `Flag.TALLY`: the job has been worked on
    8     wall_ms   `Flag.WALL`: the wall-clock time that the job was put for
    8     rank      `Flag.RANK`: its position among the buried; only in that state
    13    failure   `Flag.FAILURE`: its last failed attempt under a retry rule
    1..   key       `Flag.KEY`: u8 length, the caller's own name for the job
    4..   retry     `Flag.RETRY`: u8 steps, u16 attempts, u8 jitter, u64 ms a step
    3..   note      `Flag.NOTE`: u8 length, topic it came from; u16 length, last error
    2..   more      `Flag.MORE`: a u16 word, and the further parts, each a u16 length and its bytes

The first four have one length each, so where they end follows from the flags alone. The flags of
the header have no bit left, so the word has those of the further parts: bit 15 is set, the others
say which follow. A word without bit 15 is from before there was more than one: it is the length of
a target, and nothing else follows. A job that has no other of them is written so to this day.
They are a target, a group, and the *history*: the last attempts, one behind the other (`ATTEMPT`,
then who made it, then the error).

>>> from delayd.core.job_record import State
>>> record = HEADER.pack(7, 500, 500, 60_000, 3, 1, State.READY, Flag.KEY) + b"\4a-17hello"
>>> key_of(record), body_of(record), retry_of(record), target_of(record)
(b'a-17', b'hello', None, b'')
>>> pushed = with_parts(record, pack_parts(Own(target=b"POST https://a.b")))
>>> target_of(pushed), body_of(pushed), with_parts(pushed, {Flag.TARGET: b""}) == record
(b'POST https://a.b', b'hello', True)

A new part gets a row, the next flag and, if clients set it, a field of `Own`. It is always one of
the further parts. Before the first record that has one, the log has a PARTS record
(`tell_parts` in `core.operations.change`), at which every older delayd refuses the log.
"""

import enum
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, final

from delayd.core.job_record import DUE_AT, FLAGS_AT, HEADER, HEADER_BYTES, U16, U64
from delayd.core.names import GROUP
from delayd.durations import duration_text
from delayd.fields import ValueKind

TALLY: Final = struct.Struct("<QIIIII")
FAILURE: Final = struct.Struct("<BIQ")
RETRY_HEAD: Final = struct.Struct("<BHB")
ATTEMPT: Final = struct.Struct("<QQBBBB")
"""When it ended, how long it was, reason, outcome, the lengths of who made it and of the error."""
HEADER_AND_TALLY: Final = HEADER.size + TALLY.size
COUNT_MAX: Final = 2**32 - 1
WORD_BIT: Final = 0x8000
"""Of the word before the further parts: its other bits are flags, and not a target's length."""
WORD_SHIFT: Final = 8
"""The flag of a further part is its bit in the word, so many bits higher."""

Packed: TypeAlias = Mapping[int, bytes]
"""Parts of variable length as a record has them, by their flags; an empty one is none."""


class Flag(enum.IntFlag):
    """Which optional parts a record has: the flags of its header, and of the word behind them."""

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
    MORE = 128
    """Further parts follow; the flags below are in their word."""
    TARGET = 1 << WORD_SHIFT
    """The job has a target of its own."""
    GROUP = 2 << WORD_SHIFT
    """The job belongs to a group."""
    HISTORY = 4 << WORD_SHIFT
    """Attempts of the job have failed."""


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
    """Where a job that failed came from, and its last error; for people."""

    origin: str = ""
    """The topic that it was moved from, empty if it never was."""
    error: str = ""
    """The last text that its worker gave, or the client that buried it."""


class AttemptOutcome(enum.IntEnum):
    """What became of a job whose attempt failed. Numbers never change: those of states, and one."""

    DELAYED = 0
    READY = 1
    BURIED = 3
    MOVED = 4
    """To another topic, where it is ready."""


class Attempt(NamedTuple):
    """One failed attempt, as it is kept."""

    ended_ms: int
    lasted_ms: int
    """0: it is not known."""
    reason: int
    """A `Reason`."""
    outcome: int
    """An `AttemptOutcome`."""
    who: str
    """Who had the job: the name of a token, an address; empty: it is not known."""
    error: str
    """The first line of what its worker said."""


class Own(NamedTuple):
    """The parts that a client sets, by the names of their rows.

    None: a put gives the job none, and a change leaves what it has. Empty: a change takes it away.
    """

    retry: Retry | None = None
    target: bytes | None = None
    """Vetted and packed (`core.targets.pack_own`)."""
    group: bytes | None = None


# Tested for every job; an enum member's arithmetic costs 40 ns more than an int's.
_TALLY: Final = 1
_WALL: Final = 2
_RANK: Final = 4
_FAILURE: Final = 8
_KEY: Final = 16
_RETRY: Final = 32
_NOTE: Final = 64
_MORE: Final = 128
_TARGET: Final = 1 << WORD_SHIFT
_GROUP: Final = 2 << WORD_SHIFT
_HISTORY: Final = 4 << WORD_SHIFT
FIXED_MASK: Final = _TALLY | _WALL | _RANK | _FAILURE
FIXED_END: Final = tuple(
    HEADER_BYTES
    + (TALLY.size if flags & _TALLY else 0)
    + (U64.size if flags & _WALL else 0)
    + (U64.size if flags & _RANK else 0)
    + (FAILURE.size if flags & _FAILURE else 0)
    for flags in range(FIXED_MASK + 1)
)
"""Where the parts of fixed length end, by their flags."""
_RANK_END: Final = tuple(FIXED_END[flags & ~_FAILURE] for flags in range(FIXED_MASK + 1))
_WALL_END: Final = tuple(FIXED_END[flags & (_TALLY | _WALL)] for flags in range(FIXED_MASK + 1))


# --- Reading -------------------------------------------------------------------------------------


def body_of(record: bytes) -> bytes:
    """Return the body, verbatim."""
    flags = record[FLAGS_AT]
    if flags < _KEY:
        return record[FIXED_END[flags] :]
    if flags < _RETRY:  # a key and nothing else of that sort: most keyed jobs
        at = FIXED_END[flags & FIXED_MASK]
        return record[at + 1 + record[at] :]
    return record[head_bytes_of(record) :]


def _ends_of(record: bytes) -> tuple[int, int, int]:
    """Return where key, retry rule and note end, each empty if its flag is not set."""
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
    return key_end, retry_end, note_end


def _skip(record: bytes, at: int, parts: int) -> int:
    """Return where so many further parts end, of which the first begins there."""
    for _ in range(parts):
        at += U16.size + U16.unpack_from(record, at)[0]
    return at


def head_bytes_of(record: bytes) -> int:
    """Return how long everything before the body is, as the record itself says.

    It may say more than it has, if it is not one of ours; or raise `IndexError`, `struct.error`.
    """
    end = _ends_of(record)[2]
    if not record[FLAGS_AT] & _MORE:
        return end
    word: int = U16.unpack_from(record, end)[0]
    if word < WORD_BIT:
        return end + U16.size + word
    return _skip(record, end + U16.size, (word ^ WORD_BIT).bit_count())


def word_of(record: bytes) -> int:
    """Return the flags of further parts for which the log needs a PARTS record; 0: it needs none.

    As they are in the word, without bit 15.
    """
    if not record[FLAGS_AT] & _MORE:
        return 0
    word: int = U16.unpack_from(record, _ends_of(record)[2])[0]
    return word ^ WORD_BIT if word >= WORD_BIT else 0


def flags_of(record: bytes) -> int:
    """Return the flags of all parts that the record has, and not MORE."""
    flags = record[FLAGS_AT]
    if not flags & _MORE:
        return flags
    word: int = U16.unpack_from(record, _ends_of(record)[2])[0]
    further = (word ^ WORD_BIT) << WORD_SHIFT if word >= WORD_BIT else _TARGET
    return flags & ~_MORE | further


def further_of(record: bytes, flag: int) -> bytes:
    """Return what a further part says; empty if the record does not have it."""
    if not record[FLAGS_AT] & _MORE:
        return b""
    at = _ends_of(record)[2]
    word: int = U16.unpack_from(record, at)[0]
    if word >= WORD_BIT:
        bit = flag >> WORD_SHIFT
        if not word & bit:
            return b""
        at = _skip(record, at + U16.size, (word & (bit - 1)).bit_count())
        word = U16.unpack_from(record, at)[0]
    elif flag != _TARGET:
        return b""
    return record[at + U16.size : at + U16.size + word]


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
    _, at, end = _ends_of(record)
    error_at = at + 1 + record[at]
    origin = record[at + 1 : error_at].decode("ascii", "replace")
    return Note(origin, record[error_at + U16.size : end].decode("utf-8", "replace"))


def target_of(record: bytes) -> bytes:
    """Return the job's own target, as `core.targets` packs it; empty when it has none."""
    return further_of(record, _TARGET)


def group_of(record: bytes) -> bytes:
    """Return what the job belongs to; empty if it is nothing."""
    return further_of(record, _GROUP)


def history_of(record: bytes) -> list[Attempt]:
    """Return the last failed attempts that are kept, the oldest first."""
    packed = further_of(record, _HISTORY)
    attempts = []
    at = 0
    while at < len(packed):
        ended_ms, lasted_ms, reason, outcome, who_bytes, error_bytes = ATTEMPT.unpack_from(
            packed, at
        )
        error_at = at + ATTEMPT.size + who_bytes
        who = packed[at + ATTEMPT.size : error_at].decode("utf-8", "replace")
        at = error_at + error_bytes
        error = packed[error_at:at].decode("utf-8", "replace")
        attempts.append(Attempt(ended_ms, lasted_ms, reason, outcome, who, error))
    return attempts


def attempts_of(record: bytes) -> int:
    """Return how often the job came back from a holder since it was put or last revived."""
    if not record[FLAGS_AT] & (_TALLY | _FAILURE):  # as of nearly all that are handed out
        return 0
    failure = failure_of(record)
    return tally_of(record).reserves - (0 if failure is None else failure.attempts_before)


# --- Packing -------------------------------------------------------------------------------------


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


def pack_note(note: Note | None) -> bytes:
    """Return the part of a record that says what is known of the failure; nothing for None."""
    if note is None:
        return b""
    origin, error = note.origin.encode("ascii"), note.error.encode()
    return bytes((len(origin),)) + origin + U16.pack(len(error)) + error


def pack_further(text: bytes) -> bytes:
    """Return a further part of a record; nothing for an empty one."""
    return U16.pack(len(text)) + text if text else b""


def pack_attempt(attempt: Attempt) -> bytes:
    """Return one attempt of a history."""
    *numbers, who, error = attempt
    packed = who.encode(), error.encode()
    return ATTEMPT.pack(*numbers, *map(len, packed)) + b"".join(packed)


def pack_history(attempts: Iterable[Attempt]) -> bytes:
    """Return the part of a record that says which attempts have failed; nothing for none."""
    return pack_further(b"".join(map(pack_attempt, attempts)))


def longer_history(record: bytes, attempt: Attempt, kept: int) -> bytes:
    """Return that part of a record with one attempt more, at most `kept` of them."""
    packed = further_of(record, _HISTORY)
    ends = [0]
    while (at := ends[-1]) < len(packed):
        lengths_at = at + ATTEMPT.size - 2
        ends.append(at + ATTEMPT.size + packed[lengths_at] + packed[lengths_at + 1])
    oldest_at = ends[max(0, len(ends) - kept)] if kept else 0
    return pack_further(packed[oldest_at:] + pack_attempt(attempt) if kept else b"")


# --- The table -----------------------------------------------------------------------------------

Shown: TypeAlias = int | str
Show = Callable[[Any], Iterable[tuple[str, Shown]]]


@final
class JobPart:
    """One part: its name and flag, how it is read, packed and shown in dumps."""

    def __init__(
        self,
        name: str,
        flag: Flag,
        unpack: Callable[[bytes], Any],
        show: Show,
        pack: Callable[[Any], bytes] | None = None,
        kind: ValueKind | None = None,
    ) -> None:
        """Make a row.

        `unpack` reads the part of a record that has it, `show` gives the names and values of a
        dump; `pack` is None where the part has a fixed length: `transitions.amend` packs those.
        `kind` is there where a client gives the part as one text under its name, and gets it back
        so.
        """
        self.name = name
        self.flag = int(flag)
        self.unpack = unpack
        self.show = show
        self.pack = pack
        self.kind = kind


def _text(name: str) -> Show:
    """Return how a part is shown that is one text."""
    return lambda text: ((name, text.decode("utf-8", "backslashreplace")),)


def _attempts(history: list[Attempt]) -> Iterable[tuple[str, Shown]]:
    """Yield how a history is shown: a value for each attempt, from 1."""
    for number, each in enumerate(history, 1):
        what = f"{Reason(each.reason).name.lower()} {AttemptOutcome(each.outcome).name.lower()}"
        where = f" by {each.who}" if each.who else ""
        error = f": {each.error}" if each.error else ""
        yield f"attempt_{number}", f"{each.ended_ms} {each.lasted_ms} {what}{where}{error}"


PARTS: Final = (
    JobPart("tally", Flag.TALLY, tally_of, lambda tally: tally._asdict().items()),
    JobPart("wall", Flag.WALL, wall_of, lambda wall_ms: (("wall_ms", wall_ms),)),
    JobPart("rank", Flag.RANK, rank_of, lambda rank: (("rank", rank),)),
    JobPart("failure", Flag.FAILURE, failure_of, lambda failure: failure._asdict().items()),
    JobPart("key", Flag.KEY, key_of, _text("key"), pack_key),
    JobPart(
        "retry",
        Flag.RETRY,
        retry_of,
        lambda retry: (
            ("retry", " ".join(map(duration_text, retry.steps_ms))),
            ("max_attempts", retry.attempts_max),
            ("jitter_percent", retry.jitter_percent),
        ),
        pack_retry,
    ),
    JobPart("note", Flag.NOTE, note_of, lambda note: note._asdict().items(), pack_note),
    JobPart("target", Flag.TARGET, target_of, _text("target"), pack_further),
    JobPart("group", Flag.GROUP, group_of, _text("group"), pack_further, GROUP),
    JobPart("history", Flag.HISTORY, history_of, _attempts, pack_history),
)
"""In the order in which records have them."""

_TAIL: Final = tuple(part.flag for part in PARTS if part.pack is not None and part.flag < _MORE)
_FURTHER: Final = tuple(part.flag for part in PARTS if part.flag > _MORE)
WORD_KNOWN: Final = sum(_FURTHER) >> WORD_SHIFT
"""The bits of the word that this version knows."""
_OWN: Final = tuple(part for part in PARTS if part.name in Own._fields)
TEXTS: Final = {part.name: part.kind for part in PARTS if part.kind is not None}
"""The parts that clients give as one text, by their names."""


def texts_of(record: bytes) -> dict[str, str]:
    """Return those of `TEXTS` that the job has."""
    if not word_of(record):
        return {}
    texts = {name: part.unpack(record) for part in _OWN if (name := part.name) in TEXTS}
    return {name: text.decode() for name, text in texts.items() if text}


def pack_parts(own: Own) -> dict[int, bytes]:
    """Return the parts that a client has set; an empty one is to be taken away."""
    packed: dict[int, bytes] = {}
    for part in _OWN:
        value = getattr(own, part.name)
        if value is not None:
            assert part.pack is not None
            packed[part.flag] = part.pack(value)
    return packed


def without_own() -> dict[int, bytes]:
    """Return what takes away all parts that a client sets."""
    return {part.flag: b"" for part in _OWN}


def join_parts(parts: Packed) -> tuple[int, bytes]:
    """Return the parts in their order, and what they add to the flags of the header."""
    flags = word = 0
    pieces: list[bytes] = []
    for flag in _TAIL:
        if piece := parts.get(flag):
            flags |= flag
            pieces.append(piece)
    further: list[bytes] = []
    for flag in _FURTHER:
        if piece := parts.get(flag):
            word |= flag >> WORD_SHIFT
            further.append(piece)
    if word:
        flags |= _MORE
        if word != _TARGET >> WORD_SHIFT:
            pieces.append(U16.pack(WORD_BIT | word))
    return flags, b"".join(pieces + further)


def parts_of(record: bytes) -> dict[int, bytes]:
    """Return the parts of variable length that the record has, as they are packed."""
    flags = flags_of(record)
    at = FIXED_END[flags & FIXED_MASK]
    parts: dict[int, bytes] = {}
    for flag, end in zip(_TAIL, _ends_of(record), strict=True):
        parts[flag] = record[at:end]
        at = end
    if flags > _MORE:
        at += U16.size if word_of(record) else 0
        for flag in _FURTHER:
            if flags & flag:
                end = _skip(record, at, 1)
                parts[flag] = record[at:end]
                at = end
    return parts


def with_parts(record: bytes, parts: Packed, body: bytes | None = None) -> bytes:
    """Return the record with these parts instead of its own, and with another body if given."""
    fixed = record[FLAGS_AT] & FIXED_MASK
    flags, tail = join_parts(parts_of(record) | dict(parts))
    head = record[:FLAGS_AT] + bytes((fixed | flags,)) + record[FLAGS_AT + 1 : FIXED_END[fixed]]
    return head + tail + (body_of(record) if body is None else body)
