"""The records of a frame as values with names, for people who look into a journal.

`FIELDS` names what each kind of record says; a job is spread out into the fields of its record. The
records of a log name a topic once and use its number from then on, so a `Dump` goes along the log
from its beginning and remembers the names.

>>> from delayd.core.records import pack_delete, pack_topic
>>> dump = Dump()
>>> payload = pack_topic(Kind.TOPIC, 1, 4) + b"mail" + pack_delete(Kind.DELETE, 7)
>>> for record in dump.records(payload):
...     print(record.kind.name, record.fields)
TOPIC {'topic_number': 1, 'topic': 'mail'}
DELETE {'id': 7}

Replay carries records out; this module only reads them, and refuses to know how they are shown.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from delayd.core.job import (
    FLAGS_END,
    HEADER,
    HEADER_AND_TALLY,
    TALLY,
    U64,
    Flag,
    State,
    Tally,
    body_of,
    tally_of,
    wall_of,
)
from delayd.core.records import LAYOUTS, Kind
from delayd.core.replay import UnknownRecord

FIELDS: Final[dict[Kind, tuple[str, ...]]] = {
    Kind.TURN: ("time_ms",),
    Kind.TOPIC: ("topic_number", "name_bytes"),
    Kind.PUT: ("record_bytes",),
    Kind.RESERVE: ("id", "deadline_ms"),
    Kind.TOUCH: ("id", "deadline_ms"),
    Kind.RELEASE: ("id", "due_ms", "delay_ms", "priority"),
    Kind.RETURN: ("id",),
    Kind.BURY: ("id", "priority"),
    Kind.KICK: ("id",),
    Kind.RESCHEDULE: ("id", "due_ms", "delay_ms"),
    Kind.DELETE: ("id",),
    Kind.PAUSE: ("topic_number", "until_ms", "pause_ms"),
    Kind.LAST: ("last_id", "last_topic_number"),
    Kind.RANK: ("id", "rank"),
    Kind.OFFSET: ("offset_ms",),
    Kind.APPOINT: ("id", "due_ms", "delay_ms", "wall_ms"),
}
"""What stands behind the kind, as `LAYOUTS` lays it out."""

JOB_FIELDS: Final = ("id", "due_ms", "created_ms", "ttr_ms", "priority", "topic_number", "state")

MOMENTS: Final = frozenset(
    ("time_ms", "deadline_ms", "due_ms", "created_ms", "until_ms", "wall_ms")
)
"""The fields that are points of delayd time, `wall_ms` of the wall clock; the others that end in
`_ms` are durations."""

Value = int | str


class Dumped(NamedTuple):
    """A record as it can be shown."""

    kind: Kind
    fields: dict[str, Value]
    body: bytes | None
    """Of a PUT, verbatim."""


class Dump:
    """Reads the frames of one log in their order."""

    __slots__ = ("_names",)

    def __init__(self) -> None:
        """Begin at the beginning of a log or of a snapshot: no topic has a name yet."""
        self._names: dict[int, str] = {}

    def records(self, payload: bytes) -> Iterator[Dumped]:
        """Yield the records of one frame; `UnknownRecord` where something else stands."""
        at, end = 0, len(payload)
        while at < end:
            try:
                kind = Kind(payload[at])
            except ValueError:
                raise UnknownRecord(at, f"its kind is {payload[at]}") from None
            layout = LAYOUTS[kind]
            if at + layout.size > end:
                raise UnknownRecord(at, "the last record is cut short")
            values: tuple[int, ...] = layout.unpack_from(payload, at)[1:]
            tail_bytes = values[-1] if kind in {Kind.TOPIC, Kind.PUT} else 0
            behind = at + layout.size + tail_bytes
            if behind > end:
                raise UnknownRecord(at, "the last record is cut short")
            yield self._dumped(at, kind, values, payload[at + layout.size : behind])
            at = behind

    def _dumped(self, at: int, kind: Kind, values: tuple[int, ...], tail: bytes) -> Dumped:
        if kind is Kind.PUT:
            return self._job(at, tail)
        fields: dict[str, Value] = dict(zip(FIELDS[kind], values, strict=True))
        if kind is Kind.TOPIC:
            del fields["name_bytes"]
            fields["topic"] = self._names[values[0]] = tail.decode("ascii", "backslashreplace")
        elif "topic_number" in fields:
            fields["topic"] = self._name(values[0])
        return Dumped(kind, fields, None)

    def _job(self, at: int, record: bytes) -> Dumped:
        if len(record) < HEADER.size:
            raise UnknownRecord(at, "its job is shorter than a job's header")
        *values, flags = HEADER.unpack_from(record)
        fields: dict[str, Value] = dict(zip(JOB_FIELDS, values, strict=True))
        state = fields["state"]
        if state not in set(State):
            raise UnknownRecord(at, f"its job's state is {state}")
        fields["state"] = State(state).name.lower()
        fields["topic"] = self._name(values[JOB_FIELDS.index("topic_number")])
        if flags >= FLAGS_END:
            raise UnknownRecord(at, f"its job's flags are {flags}")
        if flags & Flag.TALLY:
            if len(record) < HEADER_AND_TALLY:
                raise UnknownRecord(at, "its job is shorter than a job's header and tally")
            fields.update(zip(Tally._fields, tally_of(record), strict=True))
        if flags & Flag.WALL:
            if len(record) < HEADER.size + TALLY.size * (flags & Flag.TALLY) + U64.size:
                raise UnknownRecord(at, "its job is shorter than its wall-clock time")
            fields["wall_ms"] = wall_of(record) or 0
        return Dumped(Kind.PUT, fields, body_of(record))

    def _name(self, number: int) -> str:
        """Return the topic's name, or its number where the log has not given it one."""
        return self._names.get(number, f"#{number}")
