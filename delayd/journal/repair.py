"""What is done to the files of a directory: by a start, and by a person who cuts the log.

A start (`open_directory`) makes the files ready for writing once recovery has decided that they can
be believed. The order matters, since a power cut may come between any two steps; at every point the
next recovery comes to the same verdict.

- Cut the torn tail: first copy everything that will go, sync and name the copy; then remove later
  segments, the last one first; then cut the tail itself.
- Settle: make durable what was just read. After a kill the frames may be in the page cache only,
  and after a failed sync the system may even call those pages clean: reading them proves nothing
  and syncing them does nothing. So everything not known to be durable is written once more, the
  same bytes at the same place, and then synced.
- Remove what is not needed any more, and open the last segment again.

A start never cuts off anything that had been durable. A person who has read a refusal ("segment 3
at offset 4711") may (`prepared`), so everything is done to make it the right place: the log must be
whole up to there, a frame must end there, what would be given up is counted first, and it is copied
before it goes, like a torn tail.
"""

import contextlib
import errno
from collections.abc import Iterator
from typing import NamedTuple

from delayd.journal.directory import look_first, names_in, release_directory, take_directory
from delayd.journal.disk import (
    NO_SPACE,
    Disk,
    allocate_whole,
    copy_bytes,
    end_of_data,
    file_bytes,
    opened,
)
from delayd.journal.errors import DamageError, failing
from delayd.journal.format import END_NAME, HEADER_BYTES, TEMPORARY, TORN_COPY, segment_name
from delayd.journal.recovery import (
    Found,
    FrameReader,
    LogPlace,
    LogVerdict,
    Recovery,
    SegmentFile,
    Stop,
    last_position,
)
from delayd.journal.retention import KeptSnapshot, LogFile, Retention
from delayd.journal.segment import Segment, SpareFiles
from delayd.limits import JOURNAL_TORN_COPIES_MAX
from delayd.text import counted

# --- A start -------------------------------------------------------------------------------------


class TornTail(NamedTuple):
    """Bytes that were cut from a segment because a crash had interrupted their writing."""

    file: str
    offset: int
    cut_bytes: int
    copy: str  # the file that keeps them

    def __str__(self) -> str:
        cut_bytes = counted(self.cut_bytes, "byte")
        return f"{cut_bytes} at offset {self.offset} of {self.file}, kept in {self.copy}"


def remove_leftovers(recovery: Recovery) -> None:
    """Remove unfinished files, and the oldest torn copies above the limit."""
    disk, directory, names = recovery.disk, recovery.directory, recovery.names
    for name in names:
        if TEMPORARY.fullmatch(name):
            disk.unlink(f"{directory}/{name}")
    copies = [match for match in map(TORN_COPY.fullmatch, names) if match]
    # The log only grows, so the place of a cut also tells its age.
    copies.sort(key=lambda match: [int(part or 1) for part in match.groups()])
    for match in copies[: max(0, len(copies) - JOURNAL_TORN_COPIES_MAX)]:
        disk.unlink(f"{directory}/{match[0]}")


def cut(recovery: Recovery) -> list[TornTail]:
    """Cut the log at the place where recovery stopped, keeping copies. Raises OSError."""
    assert recovery.place is not None
    disk, directory = recovery.disk, recovery.directory
    offsets = {recovery.place.segment_index: recovery.place.offset}
    doomed = list(enumerate(recovery.segments))[recovery.place.segment_index :]
    tails = []
    for index, segment in doomed:
        tail = _keep_copy(recovery, segment, offsets.get(index, 0))
        if tail:
            tails.append(tail)
    disk.sync_directory(directory)
    for index, segment in reversed(doomed):
        offset = offsets.get(index, 0)
        if offset:
            with opened(disk, segment.path, write=True) as handle:
                disk.truncate(handle, offset)
                _sync_for_good(disk, handle)
        else:
            disk.unlink(segment.path)
            disk.sync_directory(directory)
            recovery.segments.pop()
    return tails


def _sync_for_good(disk: Disk, handle: int) -> None:
    """Sync a file of the log. An error is never a lack of space, after which one tries again.

    What was written may be gone then, and a second sync would find nothing left to do.
    """
    try:
        disk.sync(handle)
    except OSError as error:
        raise OSError(errno.EIO, error.strerror) from error


def _keep_copy(recovery: Recovery, segment: SegmentFile, offset: int) -> TornTail | None:
    """Copy a file's bytes from the offset on, without the zeros behind them; sync the copy."""
    disk = recovery.disk
    with opened(disk, segment.path) as source:
        end = end_of_data(disk, source, offset, segment.size_bytes)
        end = max((end, *(ends for _, ends in _frames_from(recovery, segment, source, offset))))
        if end == offset:
            return None
        copy = _free_path(recovery, segment, offset)
        target = disk.create(copy)
        try:
            copy_bytes(disk, (source, offset), (target, 0), end - offset)
            disk.sync(target)
        finally:
            disk.close(target)
    return TornTail(segment.path, offset, end - offset, copy)


def _frames_from(
    recovery: Recovery, segment: SegmentFile, handle: int, offset: int
) -> Iterator[tuple[int, int]]:
    """Yield (sequence, where it ends) of the intact frames from an offset of a file on.

    That may be behind the last byte that is not zero: a checksum ends with any.
    """
    if recovery.identity is not None:
        reader = FrameReader(recovery.disk, handle, recovery.identity, segment.number)
        for sequence, _, ends in reader.search(max(offset, HEADER_BYTES), segment.size_bytes):
            yield sequence, ends


def _free_path(recovery: Recovery, segment: SegmentFile, offset: int) -> str:
    """Return a path for a copy that hides no earlier one."""
    first = f"{segment_name(segment.number)}.torn-{offset}"
    copy, serial = first, 1
    while copy in recovery.names:
        serial += 1
        copy = f"{first}-{serial}"
    return f"{recovery.directory}/{copy}"


def settle(recovery: Recovery) -> None:
    """Write what may not be durable once more and sync it. Raises OSError."""
    disk = recovery.disk
    # The last checkpoint before the first frame that no later frame calls durable.
    checkpoint = None
    for candidate in recovery.checkpoints:
        if checkpoint is None or candidate.sequence <= recovery.synced + 1:
            checkpoint = candidate
    for index, segment in enumerate(recovery.segments):
        if checkpoint is None or index < checkpoint.segment_index:
            continue
        first = checkpoint.offset if index == checkpoint.segment_index else 0
        if first == HEADER_BYTES:
            first = 0  # no frame of it is known to be durable, so neither is its header
        with opened(disk, segment.path, write=True) as handle:
            copy_bytes(disk, (handle, first), (handle, first), segment.end - first)
            disk.sync(handle)
    disk.sync_directory(recovery.directory)


def open_directory(
    recovery: Recovery, reserve: SpareFiles, retention: Retention, segment_bytes: int
) -> tuple[list[TornTail], Segment | None]:
    """Cut what is torn, make durable what is good, remove what is not needed any more.

    Returns what was cut and the last segment, open for appending. Raises OSError.
    """
    reserve.adopt(recovery.names)
    torn_tails = _cut(recovery, reserve) if recovery.verdict is LogVerdict.CUT else []
    settle(recovery)
    remove_leftovers(recovery)
    active = _reopened(recovery, segment_bytes) if recovery.segments else None
    _adopt(recovery, active, retention)
    return torn_tails, active


def _adopt(recovery: Recovery, active: Segment | None, retention: Retention) -> None:
    """Tell the books what files there are. Raises OSError."""
    disk = recovery.disk
    log = []
    for found in recovery.segments:
        first_sequence = found.header.first_sequence if found.header else None
        file_number = disk.status(found.path).number
        log.append(LogFile(found.number, found.path, first_sequence, found.size_bytes, file_number))
    if active is not None:
        log[-1].segment = active
    snapshots = []
    for sequence, path in reversed(recovery.base.older_paths):
        size_bytes = file_bytes(disk, path)
        snapshots.append(KeptSnapshot(path, sequence, size_bytes, size_bytes, 0))
    if info := recovery.base.snapshot:
        position = sum(file.used_bytes for file in log) - recovery.bytes_after_base
        sizes = (info.file_bytes, info.payload_bytes)
        snapshots.append(KeptSnapshot(info.path, info.sequence, *sizes, position))
    damaged = [(damage.path, file_bytes(disk, damage.path)) for damage in recovery.base.damaged]
    retention.adopt(log, snapshots, damaged)


def _cut(recovery: Recovery, reserve: SpareFiles) -> list[TornTail]:
    """Cut what is torn; on a full disk the reserve makes way for the copy."""
    try:
        return cut(recovery)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        reserve.shrink(0)
        return cut(recovery)


def _reopened(recovery: Recovery, segment_bytes: int) -> Segment:
    """Open the last segment for appending, preallocated again if there is space.

    What a snapshot takes is left on the disk: without one a full disk could not be cleared.
    """
    disk, last, snapshot = recovery.disk, recovery.segments[-1], recovery.base.snapshot
    assert last.header is not None
    handle = disk.open(last.path, write=True)
    capacity = max(segment_bytes, last.size_bytes)
    kept_bytes = snapshot.file_bytes if snapshot else 0
    try:
        if disk.free_bytes(recovery.directory) < capacity - disk.size(handle) + kept_bytes:
            raise OSError(errno.ENOSPC, "the rest is left for a snapshot")
        allocate_whole(disk, handle, capacity)
    except OSError as error:
        # A full disk must not keep a daemon from starting: it is then that jobs need draining.
        if error.errno not in NO_SPACE:
            disk.close(handle)
            raise
        capacity = disk.size(handle)
    segment = Segment(disk, last.path, handle, last.header, capacity, last.end)
    segment.last_sequence = recovery.sequence
    segment.is_named_durably = True
    return segment


# --- A cut by hand -------------------------------------------------------------------------------


class NoSuchPlace(Exception):
    """The log cannot be cut there; nothing was changed."""


class Rest:
    """What follows a place, up to the end of the log."""

    def __init__(self) -> None:
        self.data_bytes = 0  # without the zeros behind the data of files
        self.segments = 0  # how many files it is in
        self.frames = 0  # intact ones among it
        self.first_sequence = 0
        self.last_sequence = 0

    def count(self, sequence: int) -> None:
        """Count an intact frame."""
        self.first_sequence = min(self.first_sequence or sequence, sequence)
        self.last_sequence = max(self.last_sequence, sequence)
        self.frames += 1

    def __str__(self) -> str:
        amount = f"{counted(self.data_bytes, 'byte')} in {counted(self.segments, 'file')}"
        if not self.frames:
            return f"{amount}, without an intact frame"
        span = f"{self.first_sequence} to {self.last_sequence}"
        return f"{amount}, with {counted(self.frames, 'intact frame')} ({span})"


def rest_after(recovery: Recovery, place: LogPlace) -> Rest:
    """Count what follows a place of the log. One pass over it. Raises JournalFailed."""
    disk, rest = recovery.disk, Rest()
    for index, segment in enumerate(recovery.segments[place.segment_index :]):
        offset = place.offset if index == 0 else 0
        with failing(segment.path), opened(disk, segment.path) as handle:
            end = end_of_data(disk, handle, offset, segment.size_bytes)
            rest.segments += end > offset
            for sequence, ends in _frames_from(recovery, segment, handle, offset):
                rest.count(sequence)
                end = max(end, ends)
            rest.data_bytes += end - offset
    return rest


class Cut(NamedTuple):
    """A cut that can be made; the directory is locked as long as it can."""

    recovery: Recovery
    place: LogPlace
    rest: Rest  # what would be given up

    @property
    def path(self) -> str:
        """The segment."""
        return self.recovery.segments[self.place.segment_index].path

    def cut(self) -> list[TornTail]:
        """Copy and cut. Raises JournalFailed, when all is still there."""
        recovery = self.recovery
        recovery.place = self.place
        with failing(recovery.directory, "cannot be cut"):
            tails = cut(recovery)
            if END_NAME in recovery.names:  # it may prove that what was cut is missing
                recovery.disk.unlink(recovery.end_path)
                recovery.disk.sync_directory(recovery.directory)
        return tails


@contextlib.contextmanager
def prepared(disk: Disk, directory: str, number: int, offset: int) -> Iterator[Cut]:
    """Lock the directory and give out the cut at this offset of that segment.

    Raises DirectoryLocked, ForeignFile, NoSuchPlace, JournalFailed.
    """
    look_first(disk, directory)
    owned, _ = take_directory(disk, directory)
    try:
        recovery = Recovery(disk, directory, names_in(disk, directory))
        with failing(directory):
            place = place_to_cut(recovery, number, offset)
        yield Cut(recovery, place, rest_after(recovery, place))
    finally:
        release_directory(disk, owned)


def place_to_cut(recovery: Recovery, number: int, offset: int) -> LogPlace:
    """Return the place for a cut at this offset of that segment, if the log can be cut there.

    Reads the log up to where it can be read. Raises NoSuchPlace, JournalFailed.
    """
    numbers = [segment.number for segment in recovery.segments]
    if number not in numbers:
        raise NoSuchPlace(f"there is no segment {number}")
    index = numbers.index(number)
    try:
        for _ in recovery.frames():
            pass
    except DamageError as error:
        if recovery.place is None:
            raise NoSuchPlace(f"a cut of the log does not mend this: {error}") from error
    stop = recovery.place
    assert stop is not None, "there is a segment, so reading stopped in one"
    if (index, offset) > (stop.segment_index, stop.offset):
        segment = recovery.segments[stop.segment_index]
        raise NoSuchPlace(
            f"the log can be read only up to segment {segment.number}, offset {stop.offset} "
            f"({stop.why}): a cut after that place repairs nothing"
        )
    following = recovery.sequence + 1
    if (index, offset) != (stop.segment_index, stop.offset):
        following = _frame_at(recovery.disk, recovery.segments[index], offset)
    if following <= recovery.base.testimony:
        raise NoSuchPlace(
            f"the newest snapshot goes up to frame {recovery.base.testimony}, and the log must "
            f"too: a cut there would leave it at {following - 1}; if that snapshot is the one that "
            "is damaged, move its file to another directory first"
        )
    if recovery.base.snapshot and (index, offset) == (recovery.start_index, 0):
        # A segment before it may be damaged: a start reads none of those, and then it would.
        raise NoSuchPlace(
            f"the snapshot needs segment {number} behind it: {number}:{HEADER_BYTES} gives up "
            "every frame in it and keeps the file"
        )
    return LogPlace(index, offset, Found.END, "cut by hand")


def _frame_at(disk: Disk, segment: SegmentFile, offset: int) -> int:
    """Return the frame that begins there, or would; raise NoSuchPlace if none does."""
    header = segment.header
    if header is None:
        raise NoSuchPlace(f"the header of segment {segment.number} cannot be read")
    if offset == 0:
        return header.first_sequence
    if offset < HEADER_BYTES:
        raise NoSuchPlace(f"offset {offset} is within the header: 0 gives the whole segment up")
    with opened(disk, segment.path) as handle:
        reader = FrameReader(disk, handle, header.identity, header.number)
        first = header.first_sequence
        position = last_position(reader.frames(HEADER_BYTES, offset, first, 0))
    if position.stop is not Stop.END or position.offset != offset:
        raise NoSuchPlace(
            f"no frame of segment {segment.number} ends at offset {offset}; the nearest place "
            f"before it is {position.offset}"
        )
    return position.sequence
