"""A journal directory looked at, for people: who holds it, and what stands behind a place.

Nothing here changes a file, and nothing needs the lock: a stopped daemon's directory, a read-only
mount and a copy can all be looked at. While a daemon runs there it goes on writing, so what is seen
may be torn; `holder` tells. The module refuses to decide anything: that is done in `recovery`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from delayd.journal.disk import Disk, LockHeldError
from delayd.journal.errors import JournalFailed
from delayd.journal.format import HEADER_BYTES, frame_mark
from delayd.journal.names import LOCK_NAME
from delayd.journal.reader import FrameReader, end_of_data
from delayd.journal.recovery import Place, Recovery
from delayd.text import counted


@dataclass(slots=True)
class Rest:
    """What stands behind a place, up to the end of the log."""

    data_bytes: int = 0
    """Without the zeros at the ends of files."""
    segments: int = 0
    """How many files it is in."""
    frames: int = 0
    """Intact ones among it."""
    first_sequence: int = 0
    last_sequence: int = 0

    def count(self, sequence: int) -> None:
        """Count an intact frame."""
        self.first_sequence = min(self.first_sequence or sequence, sequence)
        self.last_sequence = max(self.last_sequence, sequence)
        self.frames += 1

    def __str__(self) -> str:
        """Say it in a sentence."""
        what = f"{counted(self.data_bytes, 'byte')} in {counted(self.segments, 'file')}"
        if not self.frames:
            return f"{what}, without an intact frame"
        span = f"{self.first_sequence} to {self.last_sequence}"
        return f"{what}, with {counted(self.frames, 'intact frame')} ({span})"


class Holder(NamedTuple):
    """The process that owns a directory; its number may be unknown."""

    pid: int | None

    def __str__(self) -> str:
        """Name it in a sentence."""
        return "another process" if self.pid is None else f"process {self.pid}"


def holder(disk: Disk, directory: str) -> Holder | None:
    """Return who holds the directory now; None when nobody does, or it cannot be told."""
    try:
        # Shared for a moment: a daemon that starts in just that moment is refused once.
        disk.close(disk.share_lock(f"{directory}/{LOCK_NAME}"))
    except LockHeldError as error:
        return Holder(error.holder_pid)
    except OSError:
        return None
    return None


def names_in(disk: Disk, directory: str) -> list[str]:
    """Return the names in the directory. Raises JournalFailed."""
    try:
        return disk.list_directory(directory)
    except OSError as error:
        raise JournalFailed(directory, f"cannot be read: {error.strerror}") from error


def rest_behind(disk: Disk, recovery: Recovery, place: Place) -> Rest:
    """Count what stands behind a place of the log. One pass over it. Raises JournalFailed."""
    rest = Rest()
    for index, segment in enumerate(recovery.segments[place.segment_index :]):
        offset = place.offset if index == 0 else 0
        try:
            handle = disk.open(segment.path)
            try:
                end = end_of_data(disk, handle, offset, segment.size_bytes)
                rest.data_bytes += end - offset
                rest.segments += end > offset
                if recovery.identity is not None:
                    mark = frame_mark(recovery.identity, segment.number)
                    start = max(offset, HEADER_BYTES)
                    for sequence, _ in FrameReader(disk, handle, mark).search(start, end):
                        rest.count(sequence)
            finally:
                disk.close(handle)
        except OSError as error:
            raise JournalFailed(segment.path, f"cannot be read: {error.strerror}") from error
    return rest
