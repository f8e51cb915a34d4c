"""One segment that is being written: append, sync, trim.

A segment is preallocated, so that an append changes no length and meets no full disk. It is made
under a temporary name, or out of a file of the reserve, and renamed once its header is written.
Frames go to `end`; a frame that did not fit leaves `end` where it was, so that whatever half of it
reached the file is overwritten by the next one and can never be between two good frames.

A frame larger than a segment gets a segment of its own size:

>>> segment_bytes_for(payload_bytes=100, segment_bytes=4096)
4096
>>> segment_bytes_for(payload_bytes=5000, segment_bytes=4096)
5125

The segment refuses to know what a failure means for the journal; it raises `OSError`.
"""

import contextlib
from typing import Final

from delayd.journal.disk import NO_ROOM, Disk
from delayd.journal.format import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    SegmentHeader,
    frame_mark,
    pack_frame,
    pack_header,
    segment_name,
)
from delayd.journal.reserve import Spare

TEMPORARY_SUFFIX: Final = ".new"


def segment_bytes_for(payload_bytes: int, segment_bytes: int) -> int:
    """Return how long a segment must be that begins with this payload."""
    return max(segment_bytes, HEADER_BYTES + FRAME_OVERHEAD_BYTES + payload_bytes)


def write_all(disk: Disk, handle: int, data: bytes, offset: int) -> None:
    """Write all of `data`, however many calls the disk makes of it. Raises OSError."""
    written = disk.pwrite(handle, data, offset)
    while written < len(data):
        written += disk.pwrite(handle, data[written:], offset + written)


class Segment:
    """A segment open for appending. `end` is where the next frame goes."""

    __slots__ = (
        "_disk",
        "_handle",
        "_mark",
        "_pwrite",
        "capacity",
        "end",
        "header",
        "is_named_durably",
        "last_sequence",
        "number",
        "path",
        "synced_end",
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        handle: int,
        header: SegmentHeader,
        *,
        end: int,
        last_sequence: int,
        capacity: int,
        is_named_durably: bool,
    ) -> None:
        """Take an open file whose bytes up to `end` are durable and whose last frame is known."""
        self._disk = disk
        self._pwrite = disk.pwrite
        self._handle = handle
        self._mark = frame_mark(header.identity, header.number)
        self.path = path
        self.header = header
        self.number = header.number
        self.end = end
        self.synced_end = end
        """Where the frames end that are known to be durable."""
        self.last_sequence = last_sequence
        self.capacity = capacity
        self.is_named_durably = is_named_durably

    @classmethod
    def begin(
        cls,
        disk: Disk,
        directory: str,
        header: SegmentHeader,
        capacity: int,
        spare: Spare | None = None,
    ) -> "Segment":
        """Make the file, preallocated and with its header, but not yet under its name.

        A spare file is used instead of a new one, if given. Nothing is synced. Raises OSError.
        """
        path = f"{directory}/{segment_name(header.number)}{TEMPORARY_SUFFIX}"
        if spare is None:
            handle = disk.create(path)
        else:
            path, handle, capacity = spare
        try:
            if spare is None:
                disk.allocate(handle, capacity)
            write_all(disk, handle, pack_header(header), 0)
        except OSError:
            with contextlib.suppress(OSError):
                disk.close(handle)
                disk.unlink(path)
            raise
        return cls(
            disk,
            path,
            handle,
            header,
            end=HEADER_BYTES,
            last_sequence=header.first_sequence - 1,
            capacity=capacity,
            is_named_durably=False,
        )

    def publish(self, directory: str) -> None:
        """Give the file the name of its number, in place of what had it. Raises OSError."""
        path = f"{directory}/{segment_name(self.number)}"
        try:
            self._disk.rename(self.path, path)
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(self.path)
            raise
        self.path = path

    @property
    def room_bytes(self) -> int:
        """How much longer the segment may get without asking the disk for space."""
        return max(0, self.capacity - self.end)

    def has_room_for(self, payload_bytes: int) -> bool:
        """Whether a frame with this payload still fits into the preallocated space."""
        return self.end + FRAME_OVERHEAD_BYTES + payload_bytes <= self.capacity

    def append(
        self, kind: int, sequence: int, synced: int, time_ms: int, wall_ms: int, payload: bytes
    ) -> None:
        """Write one frame in one call. Raises OSError, with `end` where it was."""
        frame = pack_frame(self._mark, kind, sequence, synced, time_ms, wall_ms, payload)
        frame_bytes = len(frame)
        try:
            written = self._pwrite(self._handle, frame, self.end)
            if written != frame_bytes:
                write_all(self._disk, self._handle, frame[written:], self.end + written)
        except OSError as error:
            if error.errno in NO_ROOM:
                self._erase(frame_bytes)
            raise
        self.end += frame_bytes
        self.last_sequence = sequence

    def _erase(self, frame_bytes: int) -> None:
        """Put zeros over what arrived of a frame that did not fit.

        Recovery would cut it as a torn tail anyway, so a failure here changes nothing; but it would
        keep a copy of it first, and a disk that is full has no room for copies.
        """
        with contextlib.suppress(OSError):
            reached = min(self.end + frame_bytes, self._disk.size(self._handle))
            if reached > self.end:
                write_all(self._disk, self._handle, bytes(reached - self.end), self.end)

    @property
    def handle(self) -> int:
        """The open file, for who syncs it elsewhere."""
        return self._handle

    def sync(self) -> None:
        """Make every byte appended so far durable; the name is the directory's affair."""
        self._disk.sync(self._handle)

    def trim(self) -> None:
        """Give the unused rest of the preallocated space back; for a segment that is complete."""
        self._disk.truncate(self._handle, self.end)

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self._handle)
