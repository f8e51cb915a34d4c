"""The records of a frame as values with names, for people who read a journal.

The fields of a record have the names that `core.log_records` gives them; a job is spread out into
those of its own record. The records of a log name a topic once and use its number from then on, so
a `Dump` reads the log from its beginning and remembers the names.

>>> from delayd.core.log_records import pack
>>> dump = Dump()
>>> payload = pack(Kind.TOPIC, 1, tail=b"mail") + pack(Kind.DELETE, 7)
>>> for record in dump.records(payload):
...     print(record.kind.name, record.fields)
TOPIC {'topic_number': 1, 'topic': 'mail'}
DELETE {'id': 7}
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from delayd.core.job_parts import (
    FIXED_END,
    FIXED_MASK,
    HEADER_AND_TALLY,
    PARTS,
    WORD_KNOWN,
    WORD_SHIFT,
    Flag,
    Reason,
    body_of,
    flags_of,
    head_bytes_of,
)
from delayd.core.job_record import FLAGS_AT, HEADER, State
from delayd.core.log_records import RECORDS, Kind, UnknownRecord

JOB_FIELDS: Final = ("id", "due_ms", "created_ms", "ttr_ms", "priority", "topic_number", "state")

MOMENTS: Final = frozenset(
    ("time_ms", "deadline_ms", "due_ms", "created_ms", "failed_ms", "until_ms", "wall_ms")
)
"""The fields that are points of delayd time, `wall_ms` of the wall clock; the others that end in
`_ms` are durations."""

SOURCES: Final = ("configuration", "run time")
"""Where a policy comes from, by its number in the record."""

Value = int | str


class Dumped(NamedTuple):
    """A record as it can be shown."""

    kind: Kind
    fields: dict[str, Value]
    body: bytes | None
    """Of a PUT or a REWRITE, verbatim."""


class Dump:
    """Reads the frames of one log in their order."""

    def __init__(self) -> None:
        """Begin at the beginning of a log or of a snapshot: no topic has a name yet."""
        self._names: dict[int, str] = {}

    def records(self, payload: bytes) -> Iterator[Dumped]:
        """Yield the records of one frame; `UnknownRecord` for anything else."""
        at, end = 0, len(payload)
        while at < end:
            try:
                kind = Kind(payload[at])
            except ValueError:
                raise UnknownRecord(at, f"its kind is {payload[at]}") from None
            layout = RECORDS[kind].layout
            if at + layout.size > end:
                raise UnknownRecord(at, "the last record is cut short")
            values: tuple[int, ...] = layout.unpack_from(payload, at)[1:]
            behind = at + layout.size + (values[-1] if RECORDS[kind].tail else 0)
            if behind > end:
                raise UnknownRecord(at, "the last record is cut short")
            yield self._dumped(at, kind, values, payload[at + layout.size : behind])
            at = behind

    def _dumped(self, at: int, kind: Kind, values: tuple[int, ...], tail: bytes) -> Dumped:
        if kind in {Kind.PUT, Kind.REWRITE}:
            return self._job(at, kind, tail)
        row = RECORDS[kind]
        fields: dict[str, Value] = dict(zip(row.fields, values, strict=True))
        if "state" in fields:
            fields["state"] = _member(at, State, "job's state", fields["state"])
        if "reason" in fields:
            fields["reason"] = _member(at, Reason, "reason", fields["reason"])
        if kind is Kind.PARTS:
            _check_known(at, values[0])
            flags = values[0] << WORD_SHIFT
            fields["parts"] = " ".join(part.name for part in PARTS if part.flag & flags)
        if "source" in fields:
            fields["source"] = SOURCES[values[1]] if values[1] < len(SOURCES) else values[1]
        if row.tail:
            del fields[row.fields[-1]]
            fields[row.tail] = tail.decode("utf-8", "backslashreplace")
        if kind is Kind.TOPIC:
            fields["topic"] = self._names[values[0]] = tail.decode("ascii", "backslashreplace")
        if "topic_number" in fields and kind is not Kind.TOPIC:
            self._add_topic(fields)
        if kind is Kind.CLEAR:
            # Its new number goes by the old name.
            self._names[values[1]] = self._name(values[0])
        return Dumped(kind, fields, None)

    def _add_topic(self, fields: dict[str, Value]) -> None:
        """Say the name beside the number; a failed attempt mostly names no topic."""
        number = fields["topic_number"]
        assert isinstance(number, int)
        if number:
            fields["topic"] = self._name(number)
        else:
            del fields["topic_number"]

    def _job(self, at: int, kind: Kind, record: bytes) -> Dumped:
        if len(record) < HEADER.size:
            raise UnknownRecord(at, "its job is shorter than a job's header")
        *values, flags = HEADER.unpack_from(record)
        fields: dict[str, Value] = dict(zip(JOB_FIELDS, values, strict=True))
        fields["state"] = _member(at, State, "job's state", fields["state"])
        fields["topic"] = self._name(values[JOB_FIELDS.index("topic_number")])
        if flags & Flag.TALLY and len(record) < HEADER_AND_TALLY:
            raise UnknownRecord(at, "its job is shorter than a job's header and tally")
        if not _is_whole(record):
            raise UnknownRecord(at, "its job is shorter than its parts")
        flags = flags_of(record)
        _check_known(at, flags >> WORD_SHIFT)
        for part in PARTS:
            if flags & part.flag:
                fields.update(part.show(part.unpack(record)))
        if flags & Flag.FAILURE:
            fields["reason"] = _member(at, Reason, "reason", fields["reason"])
        return Dumped(kind, fields, body_of(record))

    def _name(self, number: int) -> str:
        """Return the topic's name, or its number where the log has not given it one."""
        return self._names.get(number, f"#{number}")


def _is_whole(record: bytes) -> bool:
    """Tell whether everything that the flags announce is there."""
    if len(record) < FIXED_END[record[FLAGS_AT] & FIXED_MASK]:
        return False
    try:
        return head_bytes_of(record) <= len(record)
    except (IndexError, struct.error):
        return False


def _check_known(at: int, word: int) -> None:
    if word & ~WORD_KNOWN:
        raise UnknownRecord(at, f"jobs have parts that this version does not know: {word:#x}")


def _member(at: int, members: type[State] | type[Reason], noun: str, number: Value) -> str:
    """Return the name of the member with that number; `UnknownRecord` if there is none."""
    if number not in set(members):
        raise UnknownRecord(at, f"its {noun} is {number}")
    return members(number).name.lower()
