"""The records of the journal's frames: what each kind says and how it is laid out.

Every change that a client can see, and only those, is one record. Changes that follow from the
clock (a delay ended, a ttr ran out) are not written: they follow from the absolute deadlines in the
records and from the TURN records, which say how far time had been played before the records after
them.

A record is its kind (u8) and then its fields, little-endian. `RECORDS` has a row for each kind;
packing, replay (`core.apply` has the function that carries it out), dump and the table in
docs/internals/journal-format.md follow it. The last field of a kind with a tail is the tail's
length.

>>> pack(Kind.DELETE, 5).hex(" ")
'0b 05 00 00 00 00 00 00 00'
>>> pack(Kind.TOPIC, 1, tail=b"mail").hex(" ")
'02 01 00 00 00 04 6d 61 69 6c'
"""

import enum
import struct
from typing import Final, final


class Kind(enum.IntEnum):
    """The first byte of a record. Numbers never change; a retired one is never used again."""

    TURN = 1
    TOPIC = 2
    PUT = 3
    RESERVE = 4
    TOUCH = 5
    RELEASE = 6
    RETURN = 7
    BURY = 8
    KICK = 9
    RESCHEDULE = 10
    DELETE = 11
    PAUSE = 12
    LAST = 13
    RANK = 14
    OFFSET = 15
    APPOINT = 16
    FAIL = 17
    AMEND = 18
    REWRITE = 19
    POLICY = 20
    CLEAR = 21
    PARTS = 22
    ATTEMPT = 23
    PAUSE_GROUP = 24


@final
class Record:
    """One kind: the layout of its fixed part with the first byte, its fields, its tail's name."""

    def __init__(self, kind: Kind, layout: str, fields: str, tail: str = "") -> None:
        """Name the fields in their order, with their units."""
        self.kind = kind
        self.layout = struct.Struct(layout)
        self.fields = tuple(fields.split())
        self.tail = tail


_ROWS: Final = (
    # Everything due by then had happened.
    Record(Kind.TURN, "<BQ", "time_ms"),
    # The number that records use for it.
    Record(Kind.TOPIC, "<BIB", "topic_number name_bytes", "topic"),
    # A job, as `core.job_record` lays it out.
    Record(Kind.PUT, "<BI", "record_bytes", "job"),
    # Handed out until the deadline; held until another one instead.
    Record(Kind.RESERVE, "<BQQ", "id deadline_ms"),
    Record(Kind.TOUCH, "<BQQ", "id deadline_ms"),
    # Its holder gave it back; its holder's connection closed; its holder parked it.
    Record(Kind.RELEASE, "<BQQQI", "id due_ms delay_ms priority"),
    Record(Kind.RETURN, "<BQ", "id"),
    Record(Kind.BURY, "<BQI", "id priority"),
    # A waiting job is ready again; it got another time; a job of any state is gone.
    Record(Kind.KICK, "<BQ", "id"),
    Record(Kind.RESCHEDULE, "<BQQQ", "id due_ms delay_ms"),
    Record(Kind.DELETE, "<BQ", "id"),
    # Nothing is handed out until then.
    Record(Kind.PAUSE, "<BIQQ", "topic_number until_ms pause_ms"),
    # The last numbers that had been given.
    Record(Kind.LAST, "<BQI", "last_id last_topic_number"),
    # Where a buried job stands: the lower, the longer it has been buried.
    Record(Kind.RANK, "<BQQ", "id rank"),
    # Wall clock minus delayd time, from now on.
    Record(Kind.OFFSET, "<Bq", "offset_ms"),
    # A waiting job got another time, of the wall clock.
    Record(Kind.APPOINT, "<BQQQQ", "id due_ms delay_ms wall_ms"),
    # An attempt failed under a retry rule, and this became of the job: its state, and the topic
    # that it was moved to (0: none).
    Record(
        Kind.FAIL,
        "<BQQQQIBBIH",
        "id failed_ms due_ms delay_ms priority reason state topic_number error_bytes",
        "error",
    ),
    # A waiting job was changed, but for its body (a wall time of 0: none); body and all.
    Record(Kind.AMEND, "<BQQQQQIB", "id due_ms delay_ms wall_ms ttr_ms priority state"),
    Record(Kind.REWRITE, "<BI", "record_bytes", "job"),
    # What holds for the topic from now on.
    Record(Kind.POLICY, "<BIBI", "topic_number source policy_bytes", "policy"),
    # Its waiting jobs are gone; its new number.
    Record(Kind.CLEAR, "<BII", "topic_number next_topic_number"),
    # Which further parts jobs may have from now on: their bits in the word of `core.job_parts`.
    Record(Kind.PARTS, "<BH", "parts"),
    # How long a job was held, and by whom: of the attempt that the FAIL behind it ends.
    Record(Kind.ATTEMPT, "<BQQB", "id lasted_ms who_bytes", "who"),
    # Nothing of a group of the topic is handed out until then.
    Record(Kind.PAUSE_GROUP, "<BIQQB", "topic_number until_ms pause_ms group_bytes", "group"),
)

RECORDS: Final = {row.kind: row for row in _ROWS}
LAYOUTS: Final[dict[int, struct.Struct]] = {row.kind: row.layout for row in _ROWS}
"""The fixed part of each kind with its first byte."""
TAILED: Final[frozenset[int]] = frozenset(row.kind for row in _ROWS if row.tail)
"""The kinds whose last field is a length, so many bytes of which follow."""

# Bound once: looking them up for every job would cost as much as the packing.
pack_turn: Final = LAYOUTS[Kind.TURN].pack
pack_put: Final = LAYOUTS[Kind.PUT].pack
pack_reserve: Final = LAYOUTS[Kind.RESERVE].pack
pack_delete: Final = LAYOUTS[Kind.DELETE].pack


class UnknownRecord(Exception):
    """The payload of a frame holds something that is not a record of this version."""

    def __init__(self, offset: int, why: str) -> None:
        """Say where in the payload, in bytes, and why."""
        super().__init__(f"no record of this version at byte {offset} of its payload: {why}")
        self.offset = offset


def pack(kind: Kind, *fields: int, tail: bytes | None = None) -> bytes:
    """Return a record; the length of its tail, the last field of kinds that have one, is added."""
    if tail is None:
        return RECORDS[kind].layout.pack(kind, *fields)
    return RECORDS[kind].layout.pack(kind, *fields, len(tail)) + tail
