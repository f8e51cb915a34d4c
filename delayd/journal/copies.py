"""A directory as the source or the target of a copied log (`delayd.log_copy`)."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from delayd.journal.directory import (
    Ownership,
    look_first,
    names_in,
    release_directory,
    take_directory,
)
from delayd.journal.disk import Disk
from delayd.journal.errors import JournalFailed
from delayd.journal.format import BACKUP_MARKER, Frame, check_clock
from delayd.journal.new import new_journal
from delayd.journal.recovery import Recovery
from delayd.journal.snapshot import SnapshotHeader

_SAME_CLOCK: Final = (0, 0)


class DirectorySource:
    """A directory that no daemon uses; it is only read, and locked meanwhile."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self.shown = directory
        self.identity = b""
        self.wall_ahead_ns = _SAME_CLOCK
        self._owned: Ownership | None = None

    def frames(self) -> Iterator[Frame]:
        look_first(self._disk, self.shown)
        self._owned, names = take_directory(self._disk, self.shown)
        check_clock(self.shown, names, is_virtual=False)
        recovery = Recovery(self._disk, self.shown, names)
        yield from recovery.frames()
        self.identity = recovery.identity or b""

    def confirm(self) -> None:
        """The lock has kept all daemons out."""

    def close(self) -> None:
        if self._owned is not None:
            release_directory(self._disk, self._owned)
            self._owned = None


class DirectoryTarget:
    """A new or empty directory."""

    def __init__(self, disk: Disk, directory: str, segment_bytes: int) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self.shown = directory
        self.wall_ahead_ns = _SAME_CLOCK

    @contextlib.contextmanager
    def filled(
        self,
        header: SnapshotHeader,
        payloads: Iterator[bytes],
        jobs: Callable[[], int],  # noqa: ARG002 (mypyc deletes no argument of a generator)
    ) -> Iterator[Iterator[Frame]]:
        new = new_journal(
            self._disk, self.shown, self._segment_bytes, BACKUP_MARKER, header.identity
        )
        with new as journal:
            for payload in payloads:
                journal.append(payload, header.time_ms, header.wall_ms)
            journal.close()
            names = [each for each in names_in(self._disk, self.shown) if each != BACKUP_MARKER]
            recovery = Recovery(self._disk, self.shown, names)
            yield recovery.frames()
            if recovery.sequence != journal.appended_sequence:
                raise JournalFailed(self.shown, "the copy ends too early")
