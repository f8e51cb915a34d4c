"""What a start does to the files once recovery has decided that they can be believed.

Cutting a torn tail happens in an order that makes a crash in the middle harmless: first a copy of
everything that will go, synced and named; then later segments, the last one first; then the tail
itself. Whatever is left at any moment leads recovery to the same verdict.

Settling makes durable what was just read. After a kill the frames may stand in the page cache only,
and after a failed sync the system may even call those pages clean: reading them proves nothing and
syncing them does nothing. So everything not known to be durable is written once more, the same
bytes at the same place, and then synced.

This module refuses to decide anything.
"""

import errno
import re
from typing import Final, NamedTuple

from delayd.journal.disk import Disk
from delayd.journal.format import HEADER_BYTES, SEGMENT_NAME
from delayd.journal.reader import end_of_data, read_exactly
from delayd.journal.recovery import Recovery, SegmentFile
from delayd.journal.segment import TEMPORARY_SUFFIX, write_all
from delayd.journal.snapshot import SNAPSHOT_NAME
from delayd.limits import JOURNAL_TORN_COPIES_MAX, JOURNAL_WINDOW_BYTES
from delayd.text import counted

TORN_COPY: Final = re.compile(SEGMENT_NAME.pattern + r"\.torn-([0-9]+)(?:-([0-9]+))?")
TEMPORARY: Final = re.compile(
    f"(?:{SEGMENT_NAME.pattern}|{SNAPSHOT_NAME.pattern}){re.escape(TEMPORARY_SUFFIX)}"
)


class TornTail(NamedTuple):
    """Bytes that were cut from a segment because a crash had interrupted their writing."""

    file: str
    offset: int
    cut_bytes: int
    copy: str
    """The file that keeps them."""

    def __str__(self) -> str:
        """Say it as the log does."""
        cut_bytes = counted(self.cut_bytes, "byte")
        return f"{cut_bytes} at offset {self.offset} of {self.file}, kept in {self.copy}"


def remove_leftovers(disk: Disk, directory: str, names: list[str]) -> None:
    """Remove files that were never finished, and the oldest torn copies beyond the limit."""
    for name in names:
        if TEMPORARY.fullmatch(name):
            disk.unlink(f"{directory}/{name}")
    copies = [match for match in map(TORN_COPY.fullmatch, names) if match]
    # The log only grows, so the place of a cut also tells its age.
    copies.sort(key=lambda match: [int(part or 1) for part in match.groups()])
    for match in copies[: max(0, len(copies) - JOURNAL_TORN_COPIES_MAX)]:
        disk.unlink(f"{directory}/{match[0]}")


def cut(disk: Disk, directory: str, names: list[str], recovery: Recovery) -> list[TornTail]:
    """Cut the log at the place where recovery stopped, keeping copies. Raises OSError."""
    assert recovery.place is not None
    offsets = {recovery.place.segment_index: recovery.place.offset}
    doomed = list(enumerate(recovery.segments))[recovery.place.segment_index :]
    tails = []
    for index, segment in doomed:
        tail = _keep_copy(disk, names, segment, offsets.get(index, 0))
        if tail:
            tails.append(tail)
    disk.sync_directory(directory)
    for index, segment in reversed(doomed):
        offset = offsets.get(index, 0)
        if offset:
            handle = disk.open(segment.path, write=True)
            try:
                disk.truncate(handle, offset)
                _sync_for_good(disk, handle)
            finally:
                disk.close(handle)
        else:
            disk.unlink(segment.path)
            disk.sync_directory(directory)
            recovery.segments.pop()
    return tails


def _sync_for_good(disk: Disk, handle: int) -> None:
    """Sync a file of the log. An error is never a lack of room, after which one tries again.

    What was written may be gone then, and a second sync would find nothing left to do.
    """
    try:
        disk.sync(handle)
    except OSError as error:
        raise OSError(errno.EIO, error.strerror) from error


def _keep_copy(disk: Disk, names: list[str], segment: SegmentFile, offset: int) -> TornTail | None:
    """Copy a file's bytes from the offset on, without the zeros at their end; sync the copy."""
    source = disk.open(segment.path)
    try:
        end = end_of_data(disk, source, offset, segment.size_bytes)
        if end == offset:
            return None
        copy = _free_name(segment, offset, names)
        target = disk.create(copy)
        try:
            for start in range(offset, end, JOURNAL_WINDOW_BYTES):
                data = read_exactly(disk, source, min(JOURNAL_WINDOW_BYTES, end - start), start)
                write_all(disk, target, data, start - offset)
            disk.sync(target)
        finally:
            disk.close(target)
    finally:
        disk.close(source)
    return TornTail(segment.path, offset, end - offset, copy)


def _free_name(segment: SegmentFile, offset: int, names: list[str]) -> str:
    """Return a path for a copy that hides no earlier one."""
    directory, _, name = segment.path.rpartition("/")
    copy, serial = f"{name}.torn-{offset}", 1
    while copy in names:
        serial += 1
        copy = f"{name}.torn-{offset}-{serial}"
    return f"{directory}/{copy}"


def settle(disk: Disk, directory: str, recovery: Recovery) -> None:
    """Write what may not be durable once more and sync it. Raises OSError."""
    # The last checkpoint before the first frame that no later frame calls durable.
    checkpoint = None
    for candidate in recovery.checkpoints:
        if checkpoint is None or candidate.sequence <= recovery.synced + 1:
            checkpoint = candidate
    for index, segment in enumerate(recovery.segments):
        if checkpoint is None or index < checkpoint.segment_index:
            continue
        handle = disk.open(segment.path, write=True)
        try:
            first = checkpoint.offset if index == checkpoint.segment_index else 0
            if first == HEADER_BYTES:
                first = 0  # no frame of it is known to be durable, so neither is its header
            for start in range(first, segment.end, JOURNAL_WINDOW_BYTES):
                data = read_exactly(
                    disk, handle, min(JOURNAL_WINDOW_BYTES, segment.end - start), start
                )
                write_all(disk, handle, data, start)
            disk.sync(handle)
        finally:
            disk.close(handle)
    disk.sync_directory(directory)
