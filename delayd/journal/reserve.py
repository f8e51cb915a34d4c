"""Space taken ahead: preallocated files that wait to become segments.

A full disk must not keep a job from being removed, so the room for that is taken while there still
is some. A file of the reserve holds nothing but zeros; `take` hands it over when the log needs its
next segment, which then meets no full disk. After a restart `adopt` finds the files again: their
space was never given back.

    >>> usable_bytes(128 << 10)
    130883

It refuses to know how much room is needed: the service counts the jobs.
"""

import contextlib
import errno
import re
from typing import Final, NamedTuple

from delayd.journal.disk import NO_ROOM, Disk
from delayd.journal.format import FRAME_OVERHEAD_BYTES, HEADER_BYTES
from delayd.journal.reader import end_of_data
from delayd.limits import SPARE_BYTES_MIN, SPARE_SLACK_BYTES

SPARE_NAME: Final = re.compile(r"spare-([0-9]{10})\.log")


class Spare(NamedTuple):
    """A preallocated file, open for writing."""

    path: str
    handle: int
    capacity: int


def usable_bytes(capacity: int) -> int:
    """Return how many bytes of frames a spare file of this length takes for certain."""
    return capacity - HEADER_BYTES - FRAME_OVERHEAD_BYTES - SPARE_SLACK_BYTES


class Reserve:
    """The spare files of one journal directory."""

    __slots__ = (
        "_directory",
        "_disk",
        "_last_number",
        "_spares",
        "is_exhausted",
        "keep_free_bytes",
        "room_bytes",
    )

    def __init__(self, disk: Disk, directory: str) -> None:
        """Start without any."""
        self._disk = disk
        self._directory = directory
        self._last_number = 0
        self._spares: list[Spare] = []
        self.room_bytes = 0
        """What the spare files take together."""
        self.is_exhausted = False
        """The last try to add one found the disk full."""
        self.keep_free_bytes = 0
        """What must be left on the disk. Without room for a snapshot nothing would ever be freed
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
        """Make one more file of this length. Raises OSError, with nothing left behind."""
        if self._disk.free_bytes(self._directory) < capacity + self.keep_free_bytes:
            self.is_exhausted = True
            raise OSError(errno.ENOSPC, "the rest is left for a snapshot")
        self._last_number += 1
        path = f"{self._directory}/spare-{self._last_number:010d}.log"
        handle = self._disk.create(path)
        try:
            self._disk.allocate(handle, capacity)
        except OSError:
            self.is_exhausted = True
            with contextlib.suppress(OSError):
                self._disk.close(handle)
                self._disk.unlink(path)
            raise
        self.is_exhausted = False
        self._keep(Spare(path, handle, capacity))

    def grow(self, room_bytes: int, payload_bytes: int, places: int, usual: int) -> None:
        """Add files until there is this much room, and `places` for so long a payload.

        Files are of the `usual` length or, on a disk nearly full, smaller. Raises OSError.
        """
        while self.room_bytes < room_bytes:
            self._add_some(usual)
        while payload_bytes and self.places(payload_bytes) < places:
            self.add(payload_bytes + payload_bytes - usable_bytes(payload_bytes))

    def _add_some(self, usual: int) -> None:
        sizes = sizes_to_try(usual)
        for size in sizes:
            try:
                self.add(size)
            except OSError as error:
                if error.errno not in NO_ROOM or size == sizes[-1]:
                    raise
            else:
                return

    def _keep(self, spare: Spare) -> None:
        self._spares.append(spare)
        self.room_bytes += usable_bytes(spare.capacity)

    def take(self, payload_bytes: int) -> Spare | None:
        """Hand over the smallest file that takes a frame with this payload, if there is one."""
        fitting = [spare for spare in self._spares if usable_bytes(spare.capacity) >= payload_bytes]
        if not fitting:
            return None
        spare = min(fitting, key=lambda fit: fit.capacity)
        self._spares.remove(spare)
        self.room_bytes -= usable_bytes(spare.capacity)
        return spare

    def shrink(self, room_bytes: int) -> None:
        """Give back files that are not needed for this much room. Raises OSError."""
        for spare in list(self._spares):
            if self.room_bytes - usable_bytes(spare.capacity) >= room_bytes:
                self._spares.remove(spare)
                self.room_bytes -= usable_bytes(spare.capacity)
                self._disk.close(spare.handle)
                self._disk.unlink(spare.path)

    def close(self) -> None:
        """Close the files and leave them where they are, for the next run."""
        for spare in self._spares:
            with contextlib.suppress(OSError):
                self._disk.close(spare.handle)
        self._spares.clear()
        self.room_bytes = 0


def sizes_to_try(usual: int) -> list[int]:
    """Return lengths for a new file, from the usual one down: a disk nearly full has small gaps.

    >>> sizes_to_try(500_000)
    [500000, 250000, 131072]
    """
    sizes = [max(usual, SPARE_BYTES_MIN)]
    while sizes[-1] > SPARE_BYTES_MIN:
        sizes.append(max(sizes[-1] // 2, SPARE_BYTES_MIN))
    return sizes
