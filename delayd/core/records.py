"""The records of the journal's frames: what each kind says and how it is laid out.

Every change that a client can see, and only those, is one record. Changes that follow from the
clock (a delay ended, a ttr ran out) are not written: they follow from the absolute deadlines in the
records and from the TURN records, which say how far time had been played before the records after
them.

A record is its kind (u8) and then, little-endian:

    kind        fields                                     meaning
    TURN        time u64                                   everything due by then had happened
    TOPIC       number u32, length u8, name                the number that records use for it
    PUT         length u32, record                         a job, as `core.job` lays it out
    RESERVE     id u64, deadline u64                       handed out until the deadline
    TOUCH       id u64, deadline u64                       held until this deadline instead
    RELEASE     id u64, due u64, delay u64, priority u32   its holder gave it back
    RETURN      id u64                                     its holder's connection closed
    BURY        id u64, priority u32                       its holder parked it
    KICK        id u64                                     back to ready
    RESCHEDULE  id u64, due u64, delay u64                 a waiting job got another time
    DELETE      id u64                                     gone
    LAST        id u64, topic u32                          the last numbers that had been given
    PAUSE       topic u32, until u64, length u64           nothing is handed out until then
    RANK        id u64, rank u64                           where a buried job stands: the lower, the
                                                           longer it has been buried
    OFFSET      offset i64                                 wall clock minus delayd time, from now on
    APPOINT     id u64, due u64, delay u64, wall u64       a waiting job got another time, absolute
    FAIL        id u64, failed u64, due u64, delay u64,    an attempt failed under a retry rule, and
                priority u32, reason u8, state u8,         this became of the job: its state, and
                topic u32, length u16, error               the topic that it was moved to (0: none)
    AMEND       id u64, due u64, delay u64, wall u64,      a waiting job was changed, but for its
                ttr u64, priority u32, state u8            body; a wall of 0: none
    REWRITE     length u32, record                         a waiting job was changed, body and all
    POLICY      topic u32, source u8, length u32, text     what holds for the topic from now on
    CLEAR       topic u32, number u32                      its waiting jobs are gone; its new number

>>> pack_delete(Kind.DELETE, 5).hex(" ")
'0b 05 00 00 00 00 00 00 00'
"""

import enum
import struct
from typing import Final


class Kind(enum.IntEnum):
    """The first byte of a record. Numbers are for ever; a retired one is never given again."""

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


LAYOUTS: Final[dict[Kind, struct.Struct]] = {
    Kind.TURN: struct.Struct("<BQ"),
    Kind.TOPIC: struct.Struct("<BIB"),
    Kind.PUT: struct.Struct("<BI"),
    Kind.RESERVE: struct.Struct("<BQQ"),
    Kind.TOUCH: struct.Struct("<BQQ"),
    Kind.RELEASE: struct.Struct("<BQQQI"),
    Kind.RETURN: struct.Struct("<BQ"),
    Kind.BURY: struct.Struct("<BQI"),
    Kind.KICK: struct.Struct("<BQ"),
    Kind.RESCHEDULE: struct.Struct("<BQQQ"),
    Kind.DELETE: struct.Struct("<BQ"),
    Kind.PAUSE: struct.Struct("<BIQQ"),
    Kind.LAST: struct.Struct("<BQI"),
    Kind.RANK: struct.Struct("<BQQ"),
    Kind.OFFSET: struct.Struct("<Bq"),
    Kind.APPOINT: struct.Struct("<BQQQQ"),
    Kind.FAIL: struct.Struct("<BQQQQIBBIH"),
    Kind.AMEND: struct.Struct("<BQQQQQIB"),
    Kind.REWRITE: struct.Struct("<BI"),
    Kind.POLICY: struct.Struct("<BIBI"),
    Kind.CLEAR: struct.Struct("<BII"),
}
"""The fixed part of each kind with its first byte."""

TAILED: Final = frozenset({Kind.TOPIC, Kind.PUT, Kind.FAIL, Kind.REWRITE, Kind.POLICY})
"""The kinds whose last field is a length, so many bytes of which follow."""

# Bound once: looking them up for every job would cost as much as the packing.
pack_turn: Final = LAYOUTS[Kind.TURN].pack
pack_topic: Final = LAYOUTS[Kind.TOPIC].pack
pack_put: Final = LAYOUTS[Kind.PUT].pack
pack_reserve: Final = LAYOUTS[Kind.RESERVE].pack
pack_touch: Final = LAYOUTS[Kind.TOUCH].pack
pack_release: Final = LAYOUTS[Kind.RELEASE].pack
pack_return: Final = LAYOUTS[Kind.RETURN].pack
pack_bury: Final = LAYOUTS[Kind.BURY].pack
pack_kick: Final = LAYOUTS[Kind.KICK].pack
pack_reschedule: Final = LAYOUTS[Kind.RESCHEDULE].pack
pack_delete: Final = LAYOUTS[Kind.DELETE].pack
pack_pause: Final = LAYOUTS[Kind.PAUSE].pack
pack_last: Final = LAYOUTS[Kind.LAST].pack
pack_rank: Final = LAYOUTS[Kind.RANK].pack
pack_offset: Final = LAYOUTS[Kind.OFFSET].pack
pack_appoint: Final = LAYOUTS[Kind.APPOINT].pack
pack_fail: Final = LAYOUTS[Kind.FAIL].pack
pack_amend: Final = LAYOUTS[Kind.AMEND].pack
pack_rewrite: Final = LAYOUTS[Kind.REWRITE].pack
pack_policy: Final = LAYOUTS[Kind.POLICY].pack
pack_clear: Final = LAYOUTS[Kind.CLEAR].pack


def topic_record(number: int, name: str) -> bytes:
    """Return the TOPIC record, name and all."""
    return pack_topic(Kind.TOPIC, number, len(name)) + name.encode("ascii")


def policy_record(number: int, source: int, policy: str) -> bytes:
    """Return the POLICY record with the policy as JSON; empty: none."""
    text = policy.encode("ascii")
    return pack_policy(Kind.POLICY, number, source, len(text)) + text
