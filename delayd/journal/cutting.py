"""Cutting a log by hand, at the place that a refusal names: "segment 3 at offset 4711".

A start never cuts off anything that had been durable. A person may, and so everything is done to
make it the right place: the log must be whole up to there, and a frame must end there; what would
be given up is counted first; and it is copied before it goes, like a torn tail.

This module refuses to ask for confirmation, and to judge whether a cut is a good idea.
"""

import contextlib
from collections.abc import Generator, Iterator
from typing import NamedTuple

from delayd.journal.disk import Disk
from delayd.journal.errors import DamageError, JournalFailed
from delayd.journal.format import HEADER_BYTES, Frame, frame_mark
from delayd.journal.inspection import Rest, names_in, rest_behind
from delayd.journal.open_directory import look_first, release_directory, take_directory
from delayd.journal.reader import FrameReader, Position, Stop
from delayd.journal.recovery import Found, Place, Recovery, SegmentFile
from delayd.journal.repair import TornTail, cut


class NoSuchPlace(Exception):
    """The log cannot be cut there; nothing was changed."""


class Operation(NamedTuple):
    """A cut that can be made; the directory is locked as long as it can."""

    disk: Disk
    directory: str
    names: list[str]
    recovery: Recovery
    place: Place
    rest: Rest
    """What would be given up."""

    @property
    def path(self) -> str:
        """The segment."""
        return self.recovery.segments[self.place.segment_index].path

    def cut(self) -> list[TornTail]:
        """Copy and cut. Raises JournalFailed, when all is still there."""
        self.recovery.place = self.place
        try:
            return cut(self.disk, self.directory, self.names, self.recovery)
        except OSError as error:
            raise JournalFailed(self.directory, f"cannot be cut: {error.strerror}") from error


@contextlib.contextmanager
def prepared(disk: Disk, directory: str, number: int, offset: int) -> Iterator[Operation]:
    """Lock the directory and give out the cut at this offset of that segment.

    Raises DirectoryLocked, ForeignFile, NoSuchPlace, JournalFailed.
    """
    look_first(disk, directory)
    handle, _ = take_directory(disk, directory)
    try:
        names = names_in(disk, directory)
        recovery = Recovery(disk, directory, names)
        try:
            place = place_to_cut(disk, recovery, number, offset)
        except OSError as error:
            raise JournalFailed(directory, f"cannot be read: {error.strerror}") from error
        rest = rest_behind(disk, recovery, place)
        yield Operation(disk, directory, names, recovery, place, rest)
    finally:
        release_directory(disk, handle)


def place_to_cut(disk: Disk, recovery: Recovery, number: int, offset: int) -> Place:
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
        following = _frame_at(disk, recovery.segments[index], offset)
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
    return Place(index, offset, Found.END, "cut by hand")


def _frame_at(disk: Disk, segment: SegmentFile, offset: int) -> int:
    """Return the frame that begins there, or would; raise NoSuchPlace if none does."""
    header = segment.header
    if header is None:
        raise NoSuchPlace(f"the header of segment {segment.number} cannot be read")
    if offset == 0:
        return header.first_sequence
    if offset < HEADER_BYTES:
        raise NoSuchPlace(f"offset {offset} is within the header: 0 gives the whole segment up")
    handle = disk.open(segment.path)
    try:
        reader = FrameReader(disk, handle, frame_mark(header.identity, header.number))
        position = _last_position(
            reader.frames(HEADER_BYTES, offset, header.first_sequence, 0, lambda *_: None)
        )
    finally:
        disk.close(handle)
    if position.stop is not Stop.END or position.offset != offset:
        raise NoSuchPlace(
            f"no frame of segment {segment.number} ends at offset {offset}; the nearest place "
            f"before it is {position.offset}"
        )
    return position.sequence


def _last_position(frames: Generator[Frame, None, Position]) -> Position:
    """Read the frames to their end."""
    while True:
        try:
            next(frames)
        except StopIteration as stopped:
            position: Position = stopped.value
            return position
