"""The simulated disk as a fault test wants it: syncs take time, and failures are noted.

While a sync goes on, others go on writing: `meanwhile` is called in the middle of it, and what is
written there is not covered. A failed sync of the log is noted in the history, and so is its end
(R3): another file of the log was synced, and then the directory.
"""

import random
from collections.abc import Callable

from tests.rigs.disk import (
    SECTOR_BYTES,
    Piece,
    SimulatedDisk,
    _carry_out,
    _File,
    _piece_of,
    _sectors,
)

Survives = Callable[[Piece], bool]
"""Which of the un-synced pieces reach the disk."""


def some_survive(rng: random.Random) -> Survives:
    """Let chance decide what of the un-synced reaches the disk, and how much."""
    share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
    return lambda _piece: rng.random() < share


class BusyDisk(SimulatedDisk):
    """Lets others work while it syncs; tells `note` of failed syncs of the log."""

    def __init__(self, note: Callable[[str], object]) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None
        self._note = note
        self._distrusted: set[int] = set()
        self._is_written_again = False

    def begin_sync(self, handle: int) -> "BegunSync":
        """Begin a sync of what has been written so far; somebody calls its `end`."""
        file = self._file(handle)
        return BegunSync(self, file, len(file.unsynced))

    def sync(self, handle: int, /) -> None:
        begun = self.begin_sync(handle)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
            self.meanwhile = meanwhile
        begun.end()

    def end_sync(self, file: _File, covered: int) -> None:
        is_log = file.name.startswith("segment-")
        try:
            super().end_sync(file, covered)
        except OSError:
            if is_log and covered:
                # A sync that covers nothing has nothing to lose.
                self._distrust(id(file))
            raise
        if is_log and self._distrusted and id(file) not in self._distrusted:
            self._is_written_again = True

    def sync_directory(self, path: str) -> None:
        try:
            super().sync_directory(path)
        except OSError:
            self._distrust(0)
            raise
        if self._is_written_again:
            self._distrusted.clear()
            self._is_written_again = False
            self._note("fresh start")

    def _distrust(self, file: int) -> None:
        self._distrusted.add(file)
        self._is_written_again = False
        self._note("sync failed")

    @staticmethod
    def _crash_file(file: _File, survives: Survives | None) -> None:
        """Leave of each sector what it was at some moment: a later write of it brings the earlier.

        The disk writes sectors of the page cache, not what somebody once wrote there. A new length
        is a sector of its own.
        """
        pieces = [
            (-1 - each if isinstance(each, int) else each.offset // SECTOR_BYTES, each)
            for change in file.unsynced
            for each in _sectors(change)
        ]
        last = {
            sector: number
            for number, (sector, piece) in enumerate(pieces)
            if survives is not None and survives(_piece_of(file, piece))
        }
        for number, (sector, piece) in enumerate(pieces):
            if number <= last.get(sector, -1):
                _carry_out(file.durable, piece)
        file.volatile = bytearray(file.durable)
        file.unsynced.clear()

    def kill(self) -> None:
        super().kill()
        self.meanwhile = None
        self._distrusted.clear()

    @property
    def has_plans(self) -> bool:
        """Tell whether a fault is still to come."""
        return bool(self._faults)


class BegunSync:
    """A sync that goes on; one at a time of a file, which is what a journal does."""

    def __init__(self, disk: BusyDisk, file: _File, covered: int) -> None:
        self._disk = disk
        self._file = file
        self._covered = covered
        self.name = file.name

    def end(self) -> None:
        """Let it end. Raises OSError."""
        self._disk.end_sync(self._file, self._covered)
