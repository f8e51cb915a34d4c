"""The simulated disk as a fault test wants it: syncs take time, and failures are noted.

While a sync goes on, others go on writing: `meanwhile` is called in the middle of it, and what is
written there is not covered. A failed sync of the log is noted in the history, and so is its end
(R3): another file of the log was synced, and then the directory.
"""

from collections.abc import Callable, Iterator

from tests.rigs.disk import (
    SECTOR_BYTES,
    Piece,
    SimulatedDisk,
    _File,
    _overwrite,
    _resize,
    _Write,
)


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
        """Make durable what a sync covers, or lose it."""
        is_log = file.name.startswith("segment-")
        try:
            self._call("sync")
        except OSError:
            del file.unsynced[:covered]
            if is_log and covered:
                # A sync that covers nothing has nothing to lose.
                self._distrust(id(file))
            raise
        for change in file.unsynced[:covered]:
            if isinstance(change, int):
                _resize(file.durable, change)
            else:
                _overwrite(file.durable, change.data, change.offset)
        del file.unsynced[:covered]
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
    def _crash_file(file: _File, survives: Callable[[Piece], bool] | None) -> None:
        """Leave of each sector what it was at some moment: a later write of it brings the earlier.

        The disk writes sectors of the page cache, not what somebody once wrote there.
        """
        if survives is None:
            SimulatedDisk._crash_file(file, None)
            return
        pieces = [piece for change in file.unsynced for piece in _pieces(change)]
        last = {
            sector: number
            for number, (sector, offset, data) in enumerate(pieces)
            if survives(Piece("length" if data is None else "bytes", file.name, offset))
        }
        for number, (sector, offset, data) in enumerate(pieces):
            if number <= last.get(sector, -1):
                if data is None:
                    _resize(file.durable, offset)
                else:
                    _overwrite(file.durable, data, offset)
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

    def used_bytes(self) -> int:
        """Return the length of all files together."""
        return (1 << 62) - self._space_of(1 << 62)

    def _space_of(self, capacity_bytes: int) -> int:
        before, self.capacity_bytes = self.capacity_bytes, capacity_bytes
        space_bytes = self._space()
        self.capacity_bytes = before
        return space_bytes


def _pieces(change: _Write | int) -> Iterator[tuple[int, int, bytes | None]]:
    """Yield (sector, offset, bytes) of a write; of a new length, which is a sector of its own."""
    if isinstance(change, int):
        yield -1 - change, change, None
        return
    start, end = change.offset, change.offset + len(change.data)
    while start < end:
        sector = start // SECTOR_BYTES
        stop = min(end, (sector + 1) * SECTOR_BYTES)
        yield sector, start, change.data[start - change.offset : stop - change.offset]
        start = stop


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


Survives = Callable[[Piece], bool] | None
