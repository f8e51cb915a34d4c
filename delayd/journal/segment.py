"""The files that frames are written to, and the space that is reserved for them ahead.

A segment is preallocated, so that an append changes no length and meets no full disk. It is made
under a temporary name, or out of a spare file, and renamed once its header is written. Frames go to
`end`; a frame that did not fit leaves `end` where it was, so that whatever half of it reached the
file is overwritten by the next one and can never be between two good frames. A frame larger than
a segment gets a segment of its own size:

>>> segment_bytes_for(payload_bytes=100, segment_bytes=4096)
4096
>>> segment_bytes_for(payload_bytes=5000, segment_bytes=4096)
5125

A full disk must not keep a job from being removed, so the space for that is reserved while there
still is some: spare files, preallocated and full of zeros. `SpareFiles.take` hands one over when
the log needs its next segment. After a restart `adopt` finds them again: their space was never
given back.

>>> usable_bytes(128 << 10)
130883

The module raises `OSError`; what that means is up to the journal.
"""

import contextlib
import errno
from typing import NamedTuple

from delayd.journal.disk import NO_SPACE, Disk, allocate_whole, end_of_data, read_exactly, write_all
from delayd.journal.format import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    SPARE_NAME,
    TEMPORARY_SUFFIX,
    SegmentHeader,
    frame_mark,
    pack_frame,
    pack_header,
    segment_name,
)
from delayd.limits import (
    DISK_BLOCK_BYTES,
    SPARE_BYTES_MIN,
    SPARE_SLACK_BYTES,
    ZEROED_AHEAD_BYTES,
    ZEROED_AHEAD_FRAME_BYTES_MAX,
)

# --- Segments ------------------------------------------------------------------------------------


class Spare(NamedTuple):
    """A preallocated file, open for writing."""

    path: str
    handle: int
    capacity: int


def usable_bytes(capacity: int) -> int:
    """Return how many bytes of frames a spare file of this length takes for certain."""
    return capacity - HEADER_BYTES - FRAME_OVERHEAD_BYTES - SPARE_SLACK_BYTES


def segment_bytes_for(payload_bytes: int, segment_bytes: int) -> int:
    """Return how long a segment must be that begins with this payload."""
    return max(segment_bytes, HEADER_BYTES + FRAME_OVERHEAD_BYTES + payload_bytes)


class Segment:
    """A segment open for appending. `end` is where the next frame goes."""

    __slots__ = (
        *("_disk", "_mark", "_pwrite", "_written_end", "capacity", "end", "file_number", "handle"),
        *("_seen", "header", "is_named_durably", "last_sequence", "number", "path", "synced_end"),
    )

    def __init__(
        self,
        disk: Disk,
        path: str,
        handle: int,
        header: SegmentHeader,
        capacity: int,
        end: int = HEADER_BYTES,
    ) -> None:
        """Take an open file that is good up to `end`: a new one, which has only its header.

        Raises OSError.
        """
        self._disk = disk
        self._pwrite = disk.pwrite
        self.handle = handle
        self._mark = frame_mark(header.identity, header.number)
        self.path = path
        self.header = header
        self.number = header.number
        self.file_number = disk.status(handle).number
        self.end = end
        self.synced_end = end  # where the frames end that are known to be durable
        self.last_sequence = header.first_sequence - 1
        self.capacity = capacity
        self._written_end = end  # up to here the file was written to, were it only with zeros
        self._seen = (end, b"")  # an offset, and what stood there at the last `damage`
        self.is_named_durably = False

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
                allocate_whole(disk, handle, capacity)
            write_all(disk, handle, pack_header(header), 0)
            return cls(disk, path, handle, header, capacity)
        except OSError:
            with contextlib.suppress(OSError):
                disk.close(handle)
                disk.unlink(path)
            raise

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
    def space_bytes(self) -> int:
        """How much longer the segment may get without asking the disk for space."""
        return max(0, self.capacity - self.end)

    def has_space_for(self, payload_bytes: int) -> bool:
        """Whether a frame with this payload still fits into the preallocated space."""
        return self.end + FRAME_OVERHEAD_BYTES + payload_bytes <= self.capacity

    def append(
        self, kind: int, sequence: int, synced: int, time_ms: int, wall_ms: int, payload: bytes
    ) -> None:
        """Write one frame in one call. Raises OSError, with `end` where it was."""
        frame = pack_frame(self._mark, kind, sequence, synced, time_ms, wall_ms, payload)
        frame_bytes = len(frame)
        if self.end + frame_bytes > self._written_end:
            self._write_ahead(frame_bytes)
        try:
            written = self._pwrite(self.handle, frame, self.end)
            if written != frame_bytes:
                write_all(self._disk, self.handle, frame[written:], self.end + written)
        except OSError as error:
            if error.errno in NO_SPACE:
                self._erase(frame_bytes)
            raise
        self.end += frame_bytes
        self.last_sequence = sequence

    def _write_ahead(self, frame_bytes: int) -> None:
        """Write zeros after a short frame, so that the syncs to come need no more than its bytes.

        Space that is only allocated counts as zeros until it is written to. That is metadata, and a
        sync of the first bytes in a block has to wait for the file system's own journal as well.
        Raises OSError, unless there is no space.
        """
        frame_end = self.end + frame_bytes
        self._written_end = frame_end
        start = -(-frame_end // DISK_BLOCK_BYTES) * DISK_BLOCK_BYTES
        ahead_bytes = min(ZEROED_AHEAD_BYTES, self.capacity - start)
        if frame_bytes > ZEROED_AHEAD_FRAME_BYTES_MAX or ahead_bytes <= 0:
            return
        try:
            self._pwrite(self.handle, bytes(ahead_bytes), start)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            # Where space is not kept for what is allocated. The frame may still fit.
        self._written_end = start + ahead_bytes

    def _erase(self, frame_bytes: int) -> None:
        """Put zeros over what arrived of a frame that did not fit.

        Recovery would cut it as a torn tail anyway, so a failure here changes nothing; but it would
        keep a copy of it first, and a disk that is full has no space for copies.
        """
        with contextlib.suppress(OSError):
            reached = min(self.end + frame_bytes, self._disk.size(self.handle))
            if reached > self.end:
                write_all(self._disk, self.handle, bytes(reached - self.end), self.end)

    def damage(self) -> str:
        """Return what is wrong with what the last call has found at the end; empty: nothing."""
        offset, seen = self._seen
        last = max(HEADER_BYTES, self.end - FRAME_OVERHEAD_BYTES)
        try:
            found = read_exactly(self._disk, self.handle, len(seen), offset)
            self._seen = (last, read_exactly(self._disk, self.handle, self.end - last, last))
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return "was overwritten" if found != seen else ""

    def sync(self) -> None:
        """Make every byte appended so far durable, but not the name, which is the directory's."""
        self._disk.sync(self.handle)

    def trim(self) -> None:
        """Give the unused rest of the preallocated space back; for a segment that is complete."""
        self._disk.truncate(self.handle, self.end)

    def close(self) -> None:
        """Close the file."""
        self._disk.close(self.handle)


# --- Spare files ---------------------------------------------------------------------------------


class SpareFiles:
    """The spare files of one journal directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._last_number = 0
        self._spares: list[Spare] = []
        self.space_bytes = 0  # what the spare files take together
        self.is_exhausted = False  # the last try to add one found the disk full
        self.keep_free_bytes = 0
        """What must be left on the disk. Without space for a snapshot nothing would ever be freed
        but by removing the last job."""

    def places(self, payload_bytes: int) -> int:
        """Count the spare files that take a frame with this payload."""
        return sum(usable_bytes(spare.capacity) >= payload_bytes for spare in self._spares)

    def adopt(self, names: list[str]) -> None:
        """Take over what an earlier run left. Raises OSError.

        Only zeros are good: a file that had just become a segment when the power went may have got
        its old name back, and its frames could be taken for those of the next segment.
        """
        for match in sorted(filter(None, map(SPARE_NAME.fullmatch, names)), key=lambda m: m[1]):
            self._last_number = int(match[1])
            path = f"{self._directory}/{match[0]}"
            handle = self._disk.open(path, write=True)
            capacity = self._disk.size(handle)
            if usable_bytes(capacity) > 0 and not end_of_data(self._disk, handle, 0, capacity):
                self._keep(Spare(path, handle, capacity))
            else:
                self._disk.close(handle)
                self._disk.unlink(path)

    def add(self, capacity: int) -> None:
        """Create one more file of this length. Raises OSError, and then leaves no file."""
        if self._disk.free_bytes(self._directory) < capacity + self.keep_free_bytes:
            self.is_exhausted = True
            raise OSError(errno.ENOSPC, "the rest is left for a snapshot")
        self._last_number += 1
        path = f"{self._directory}/spare-{self._last_number:010d}.log"
        handle = self._disk.create(path)
        try:
            allocate_whole(self._disk, handle, capacity)
        except OSError:
            self.is_exhausted = True
            with contextlib.suppress(OSError):
                self._disk.close(handle)
                self._disk.unlink(path)
            raise
        self.is_exhausted = False
        self._keep(Spare(path, handle, capacity))

    def grow(self, space_bytes: int, payload_bytes: int, places: int, usual: int) -> None:
        """Add files until there is this much space, and `places` for so long a payload.

        Files are of the `usual` length or, on a disk nearly full, smaller. Raises OSError.
        """
        while self.space_bytes < space_bytes:
            self._add_some(usual)
        while payload_bytes and self.places(payload_bytes) < places:
            self.add(payload_bytes + payload_bytes - usable_bytes(payload_bytes))

    def _add_some(self, usual: int) -> None:
        """Add a file of the usual length, or half of it and so on: a full disk has small gaps."""
        size = max(usual, SPARE_BYTES_MIN)
        while True:
            try:
                self.add(size)
            except OSError as error:
                if error.errno not in NO_SPACE or size == SPARE_BYTES_MIN:
                    raise
                size = max(size // 2, SPARE_BYTES_MIN)
            else:
                return

    def _keep(self, spare: Spare) -> None:
        self._spares.append(spare)
        self.space_bytes += usable_bytes(spare.capacity)

    def _let_go(self, spare: Spare) -> None:
        self._spares.remove(spare)
        self.space_bytes -= usable_bytes(spare.capacity)

    def take(self, payload_bytes: int) -> Spare | None:
        """Hand over the smallest file that takes a frame with this payload, if there is one."""
        fitting = [spare for spare in self._spares if usable_bytes(spare.capacity) >= payload_bytes]
        if not fitting:
            return None
        spare = min(fitting, key=lambda fit: fit.capacity)
        self._let_go(spare)
        return spare

    def shrink(self, space_bytes: int) -> None:
        """Give back files that are not needed for this much space. Raises OSError."""
        for spare in list(self._spares):
            if self.space_bytes - usable_bytes(spare.capacity) >= space_bytes:
                self._let_go(spare)
                self._disk.close(spare.handle)
                self._disk.unlink(spare.path)

    def take_lost(self) -> list[str]:
        """Forget the files that are not there as they were made; return their paths.

        Costs a call of the system for each, or two.
        """
        lost = [spare for spare in self._spares if self._is_lost(spare)]
        for spare in lost:
            self._let_go(spare)
            with contextlib.suppress(OSError):
                self._disk.close(spare.handle)
        return [spare.path for spare in lost]

    def _is_lost(self, spare: Spare) -> bool:
        try:
            there, ours = self._disk.status(spare.path), self._disk.status(spare.handle)
        except OSError:
            return True
        return there.number != ours.number or there.size_bytes < spare.capacity

    def close(self) -> None:
        """Close the files and leave them where they are, for the next run."""
        for spare in self._spares:
            with contextlib.suppress(OSError):
                self._disk.close(spare.handle)
        self._spares.clear()
        self.space_bytes = 0
