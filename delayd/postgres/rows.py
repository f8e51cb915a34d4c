"""What is in rows, as values: the row that says who owns the log, and frames.

A row of frames holds one group commit: its frames one after the other, with the bytes that they
have in a file (docs/internals/journal-format.md). Their mark is made of the log's identity and the
epoch of the owner that appended them, in place of the number of a segment.

>>> from delayd.journal.format import frame_mark, pack_frame
>>> identity = bytes(range(16))
>>> frame = pack_frame(frame_mark(identity, 3), FrameKind.RECORDS, 7, 6, 1_000, 1_000, b"hello")
>>> [*frames_in(frame, frame_mark(identity, 3), 7)] == [Frame(7, 1_000, 1_000, b"hello")]
True

A database may be wrong, or somebody else's: nothing is taken for granted of what it says.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple
from zlib import crc32

from delayd.journal.format import (
    CHECKSUM,
    FRAME,
    FRAME_OVERHEAD_BYTES,
    IDENTITY_BYTES,
    Frame,
    FrameKind,
)
from delayd.postgres.connection import Row, whole
from delayd.postgres.statements import SNAPSHOT_TABLES
from delayd.text import visible

_ADDRESS_CHARACTERS_MAX: Final = 300
_SETTINGS_CHARACTERS_MAX: Final = 600


class LogRow(NamedTuple):
    """The row of the log."""

    format: int
    identity: bytes
    epoch: int
    owner: bytes
    address: str
    settings: str  # the owner's, as `DatabasePlace.settings`
    head: int  # the number of the last frame, and its checksum
    checksum: int
    snapshot: int  # the frame that the snapshot is of; 0: there is none
    snapshot_round: int  # the last bit is the number of its table
    snapshot_bytes: int
    lease_ms: int
    lease_us: int
    now_us: int  # when it was read, by the database's clock

    @property
    def snapshot_table(self) -> int:
        """In which table the snapshot is."""
        return self.snapshot_round % SNAPSHOT_TABLES

    @classmethod
    def read(cls, row: Row) -> "LogRow":
        """Return what a row says. Raises ValueError."""
        kind, identity, epoch, owner, address, *numbers = row
        if len(identity) != IDENTITY_BYTES:
            raise ValueError(f"the identity has {len(identity)} bytes")
        where, _, settings = address.decode(errors="replace").partition("\n")
        shown = shown_address(where), visible(settings[:_SETTINGS_CHARACTERS_MAX])
        return cls(whole(kind), identity, whole(epoch), owner, *shown, *map(whole, numbers))


def shown_address(address: str) -> str:
    """Return an address as people may see it, whatever the database says."""
    return visible(address[:_ADDRESS_CHARACTERS_MAX])


def checksum_of(frame: bytes) -> int:
    """Return the checksum that ends a frame."""
    checksum: int = CHECKSUM.unpack_from(frame, len(frame) - CHECKSUM.size)[0]
    return checksum


def frames_in(data: bytes, mark: int, first: int) -> Iterator[Frame]:
    """Yield the frames of a row, among which this number is. Raises ValueError.

    The row may begin with earlier ones.
    """
    at = 0
    if len(data) >= FRAME_OVERHEAD_BYTES:
        first = min(first, FRAME.unpack_from(data)[3])
    while at < len(data):
        if at + FRAME_OVERHEAD_BYTES > len(data):
            raise ValueError(f"frame {first} is cut off")
        found, payload_bytes, kind, sequence, _, time_ms, wall_ms = FRAME.unpack_from(data, at)
        sum_at = at + FRAME.size + payload_bytes
        if sum_at + CHECKSUM.size > len(data):
            raise ValueError(f"frame {first} is cut off")
        checksum = CHECKSUM.unpack_from(data, sum_at)[0]
        if found != mark or checksum != crc32(memoryview(data)[at + 4 : sum_at], mark):
            raise ValueError(f"frame {first} is damaged")
        if sequence != first:
            raise ValueError(f"frame {sequence} is where frame {first} should be")
        if kind != FrameKind.RECORDS:
            raise ValueError(f"frame {first} is of a kind that this version does not know")
        yield Frame(sequence, time_ms, wall_ms, data[at + FRAME.size : sum_at])
        at, first = sum_at + CHECKSUM.size, first + 1
