"""The bytes of the log, version 1, and the names of the files in a journal directory.

docs/internals/journal-format.md says the same for people. A segment is a file: a header, then
frames without gaps, then zeros up to its preallocated length. A frame is one group commit. Two
fields carry the safety of recovery:

- `mark`, the first four bytes of each frame, is computed from the journal's id and the segment's
  number, so that recovery can find frames after damage, and nothing that a client put into a body,
  no other journal and no other segment can look like one. The checksum starts from the same value.
- `synced` says which frames were known to be durable when this one was written. Damage *before*
  that point destroyed something acknowledged; damage after it may just be a crash.

The worked example of the document: journal id 00 01 .. 0f, segment 1.

>>> identity = bytes(range(16))
>>> hex(frame_mark(identity, 1))
'0xc0aedfd8'
>>> frame = pack_frame(frame_mark(identity, 1), FrameKind.RECORDS, 1, 0, 1_000, 1_000, b"hello")
>>> len(frame) == FRAME_OVERHEAD_BYTES + 5
True
"""

import enum
import re
import struct
from collections.abc import Collection
from typing import Final, NamedTuple
from zlib import crc32

from delayd.journal.errors import ForeignFile, WrongClock

FORMAT_VERSION: Final = 1

MAGIC: Final = b"delayd\x1a\n"
"""Begins each segment. The last two bytes end a listing on a terminal and show a text-mode copy."""

IDENTITY_BYTES: Final = 16

# The magic and the version keep these offsets in every future version.
PREFIX: Final = struct.Struct("<8sI")
HEADER: Final = struct.Struct("<8sI16sQQQQQq")
FRAME: Final = struct.Struct("<IIBQQQq")
CHECKSUM: Final = struct.Struct("<I")
MARK: Final = struct.Struct("<I")

# Bound once: compiled, looking up a method takes as long as a quarter of the packing.
_pack_frame_head: Final = FRAME.pack
_pack_checksum: Final = CHECKSUM.pack

HEADER_BYTES: Final = HEADER.size + CHECKSUM.size
FRAME_OVERHEAD_BYTES: Final = FRAME.size + CHECKSUM.size

SEGMENT_NAME: Final = re.compile(r"segment-([0-9]{10})\.log")
FIRST_SEGMENT: Final = 1
FIRST_SEQUENCE: Final = 1


class FrameKind(enum.IntEnum):
    """What a frame carries. A number never changes; a new one needs a new format version."""

    RECORDS = 1  # records of the engine
    CLOSED = 2  # nothing: the journal was closed, and everything before was durable


FRAME_KINDS: Final = frozenset(map(int, FrameKind))


class Frame(NamedTuple):
    """One group commit, read back."""

    sequence: int
    time_ms: int
    wall_ms: int
    payload: bytes


class SegmentHeader(NamedTuple):
    """What a segment says about itself and its place."""

    identity: bytes  # sixteen bytes that no other journal has
    number: int
    first_sequence: int
    synced_sequence: int  # the frames up to this one were durable when the segment was made
    previous_valid_bytes: int
    """Where the previous segment ends; its bytes after that are void. 0 in the first segment."""

    created_ms: int
    created_wall_ms: int


def segment_name(number: int) -> str:
    """Return the file name of a segment.

    >>> segment_name(7)
    'segment-0000000007.log'
    """
    return f"segment-{number:010d}.log"


def frame_mark(identity: bytes, number: int) -> int:
    """Return the four bytes that begin every frame of this segment and of no other."""
    # An all-zero mark would be taken for the end of preallocation.
    return crc32(number.to_bytes(8, "little"), crc32(identity)) or 1


def pack_header(header: SegmentHeader) -> bytes:
    """Return the first HEADER_BYTES of a segment."""
    head = HEADER.pack(MAGIC, FORMAT_VERSION, *header)
    return head + CHECKSUM.pack(crc32(head))


def unpack_header(head: bytes) -> SegmentHeader | None:
    """Return the header, None when its checksum is wrong. The caller has checked the prefix."""
    if CHECKSUM.unpack_from(head, HEADER.size)[0] != crc32(head[: HEADER.size]):
        return None
    return SegmentHeader(*HEADER.unpack_from(head)[2:])


def pack_frame(
    mark: int, kind: int, sequence: int, synced: int, time_ms: int, wall_ms: int, payload: bytes
) -> bytes:
    """Return the bytes of a frame."""
    head = _pack_frame_head(mark, len(payload), kind, sequence, synced, time_ms, wall_ms)
    # The mark itself stays out of the sum: a checksum that starts from a value and then reads that
    # value no longer depends on it.
    checksum = crc32(payload, crc32(head[4:], mark))
    return b"".join((head, payload, _pack_checksum(checksum)))


# --- Files of a directory ------------------------------------------------------------------------

SNAPSHOT_NAME: Final = re.compile(r"snapshot-([0-9]{20})\.snap")
SPARE_NAME: Final = re.compile(r"spare-([0-9]{10})\.log")
TEMPORARY_SUFFIX: Final = ".new"
TORN_COPY: Final = re.compile(SEGMENT_NAME.pattern + r"\.torn-([0-9]+)(?:-([0-9]+))?")
TEMPORARY: Final = re.compile(
    f"(?:{SEGMENT_NAME.pattern}|{SNAPSHOT_NAME.pattern}){re.escape(TEMPORARY_SUFFIX)}"
)

LOCK_NAME: Final = "lock"

OUR_NAMES: Final = (SEGMENT_NAME, SNAPSHOT_NAME, TEMPORARY, TORN_COPY, SPARE_NAME)

LOST_NAME: Final = "lost+found"
"""The directory that file systems make for what they have found."""

TOLERATED_NAMES: Final = frozenset({LOCK_NAME, LOST_NAME})

END_NAME: Final = "log-end"
"""Says how far the log went; see `log_end`."""

IMPORT_MARKER: Final = "import-unfinished"
BACKUP_MARKER: Final = "backup-unfinished"
MARKERS: Final = (IMPORT_MARKER, BACKUP_MARKER)
"""One lies in the directory for as long as not all of an import or of a backup is in it."""

VIRTUAL_NAME: Final = "virtual-clock"
"""Lies in a directory that is used with a virtual clock, from the first time on and for good."""

BINLOG_NAME: Final = re.compile(r"binlog\.([1-9][0-9]*)")
"""beanstalkd's files; for its directory the refusal says how to import the jobs."""


def check_names(directory: str, names: Collection[str]) -> None:
    """Raise ForeignFile if a file is not one of ours, so that a wrong path does no harm."""
    foreign = [name for name in names if not is_ours(name)]
    if not foreign:
        return
    # What says most about the directory comes first.
    name = min(
        foreign, key=lambda name: (name not in MARKERS, not BINLOG_NAME.fullmatch(name), name)
    )
    if name in MARKERS:
        operation = name.removesuffix("-unfinished")
        why = f"is left of an unfinished {operation}: the same command begins it again"
    elif BINLOG_NAME.fullmatch(name):
        how = f"delayd import-beanstalkd {directory} --data-dir NEW_DIRECTORY"
        why = f"is beanstalkd's: to import its jobs, stop it and run `{how}`"
    else:
        why = "is not delayd's: choose a directory of its own, or move the file away"
        if any(SEGMENT_NAME.fullmatch(name) or SNAPSHOT_NAME.fullmatch(name) for name in names):
            why = (
                "is unknown to this delayd: if a newer one has used the directory, start that, or "
                "this one with a backup from before the upgrade; else move the file away"
            )
    raise ForeignFile(f"{directory}/{name}", why)


def check_clock(directory: str, names: Collection[str], *, is_virtual: bool) -> None:
    """Raise WrongClock if the directory belongs to the other clock; a fresh one does to neither.

    Their times are not comparable: a job of next week, put on one, would come at once or in years.
    """
    if VIRTUAL_NAME in names:
        if not is_virtual:
            raise WrongClock(directory, "a virtual clock", "--clock virtual, or with")
    elif is_virtual and not TOLERATED_NAMES.issuperset(names):
        raise WrongClock(directory, "the system clock", "--clock system, or with")


def is_ours(name: str) -> bool:
    """Tell whether a journal directory may have a file of that name."""
    is_fixed = name in TOLERATED_NAMES or name in {VIRTUAL_NAME, END_NAME}
    return is_fixed or any(own.fullmatch(name) for own in OUR_NAMES)
