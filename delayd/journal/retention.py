"""Which files are kept, and when a snapshot is due: the bound on disk use and its arithmetic.

The promise: log and snapshots together take no more than

    allowed = 2 * live + segment       live: the bytes that a snapshot of the state would hold

and two snapshots are kept, with the log since the older one. Oldest to the left:

    older ┤▒▒▒▒▒▒▒ log A ▒▒▒▒▒▒▒├ newest ┤▒▒▒▒▒ log B ▒▒▒▒▒│ preallocated │

The log is cut into files of a quarter segment ("file" below). Up to one file of it lies before the
older snapshot, since the file that holds its last frame is kept whole, and up to one is
preallocated after the last frame; one more is left free for what is appended while a snapshot is
being written. What remains of the four is one. So after the next snapshot, when `newest` is the
older one, `expected` (live, times what compression gained the last time) the newest, and B the new
A, the frames before and after it may take

    space = 2 * live + file - newest - expected

Taking turns evenly, each gets half. Growth is no waste, though: frames that made the state larger
are paid for by `live` itself. Hence a snapshot is due when B reaches

    (space + growth) / 2      growth = live - what the newest snapshot holds, 0 if that is negative

but not before half a file; or when all files together come within one file of what is allowed and
the next snapshot would free more than it takes. The second is what happens when jobs vanish: the
state is small, the snapshots are still large. Two snapshots in a row make both of them small.

A daemon at rest goes further when nearly nothing is live (`is_mostly_garbage`): the log continues
in a new small file (`Journal.shrink`), and when two snapshots cover its first frame all older files
are removed. What 1 M jobs leave on disk when the last is deleted is then one MiB, a second later.
On a full disk it does so without a rest, and as soon as the log is twice as long as what is live:
otherwise nobody could put anything while a disk is full of log that nobody needs.

Say the segment is 256 MiB, so a file is 64 MiB. With nothing live, space = 64 MiB, and a snapshot
(of next to nothing) is due for every 32 MiB of log. With 100 MiB live that compress to half,
space = 200 + 64 - 50 - 50 = 164 MiB, and one is due for every 82 MiB. With 100 MiB live that do not
compress at all it is every 32 MiB: two full snapshots leave no more than that.

>>> snapshot_is_due_at(
...     file_bytes=16, live_bytes=100, newest_bytes=50, held_bytes=100, expected_bytes=50
... )
58

While a snapshot is being written there would be three. If they do not fit, the older one is given
up first, with its part of the log: the newest is durable and verified and replaces it. The bound is
exceeded only for as long as a snapshot takes, when the state shrinks or the log grows faster than a
snapshot can be written; it is met again once none is due. Not counted are the copies of torn tails,
which are kept for people, and the reserve, which is space for the removal of live jobs.

Nothing is removed before all that replaces it is durable. Removals themselves are not synced: a
file that comes back after a power cut is one that recovery does not need, and the next start or
snapshot removes it again.

Threads: the loop appends and asks, another thread writes snapshots and removes files; the lock is
never held while the disk works.
"""

import errno
import threading
from typing import Final, NamedTuple

from delayd.journal.disk import Disk
from delayd.journal.segment import Segment
from delayd.limits import (
    GARBAGE_BYTES_FULL,
    GARBAGE_PER_FILE,
    GARBAGE_PER_LIVE,
    GARBAGE_PER_LIVE_FULL,
    JOURNAL_FILES_PER_SEGMENT,
)
from delayd.text import counted

_SNAPSHOT_OVERHEAD_BYTES: Final = 256


def snapshot_is_due_at(
    *, file_bytes: int, live_bytes: int, newest_bytes: int, held_bytes: int, expected_bytes: int
) -> int:
    """Return how long the log after the newest snapshot may get; see the module.

    `held_bytes` is the newest snapshot before compression.
    """
    space = 2 * live_bytes + file_bytes - newest_bytes - expected_bytes
    growth = max(0, live_bytes - held_bytes)
    return max(file_bytes // 2, (space + growth) // 2)


class LogFile:
    """A file of the log; one that this run has written knows its own length."""

    __slots__ = ("file_bytes", "file_number", "first_sequence", "number", "path", "segment")

    def __init__(
        self,
        number: int,
        path: str,
        first_sequence: int | None,
        file_bytes: int,
        file_number: int,
        segment: Segment | None = None,
    ) -> None:
        """Note a file; `file_number` is the disk's for it."""
        self.number = number
        self.path = path
        self.first_sequence = first_sequence
        self.file_bytes = file_bytes
        self.file_number = file_number
        self.segment = segment

    @property
    def used_bytes(self) -> int:
        """Its length without the preallocated rest."""
        return self.segment.end if self.segment else self.file_bytes

    @property
    def held_bytes(self) -> int:
        """Its length on disk."""
        return max(self.segment.capacity, self.segment.end) if self.segment else self.file_bytes


class KeptSnapshot(NamedTuple):
    """A snapshot in the directory."""

    path: str
    sequence: int
    file_bytes: int
    payload_bytes: int  # what it holds, before compression
    position: int
    """How much log there had been when it was taken, counted as `Retention.position` does."""


class Retention:
    """The books of one journal directory: what is there, what it takes, what may go.

    They keep to `2 * live + segment_bytes`.
    """

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._file_bytes = segment_bytes // JOURNAL_FILES_PER_SEGMENT
        self._lock = threading.Lock()
        self._log: list[LogFile] = []
        self._snapshots: list[KeptSnapshot] = []
        """Whole ones, oldest first; two, or more where removing failed."""
        self._damaged: list[tuple[str, int]] = []
        self._leaving: set[str] = set()  # files that another thread is removing
        # Sums over the files of the log but for the last, and over those that are gone.
        self._full_bytes = 0
        self._gone_bytes = 0
        self._live_bytes = 0
        self.written_bytes = 0  # what the snapshot in the making has written
        self.jobs_copied = 0  # into snapshots that were finished
        self.is_full = False
        """Puts are refused because the disk is full: log that is not needed is worth removing."""

    # --- What is there ---------------------------------------------------------------------------

    def adopt(
        self, log: list[LogFile], snapshots: list[KeptSnapshot], damaged: list[tuple[str, int]]
    ) -> None:
        """Begin with what recovery found, oldest first; remove what is not needed. Raises OSError.

        `damaged` are snapshots: their paths and lengths.
        """
        self._log = log
        self._snapshots = snapshots
        self._damaged = damaged
        self._recount()
        self._remove_superseded(keep=2)

    def add(self, segment: Segment) -> None:
        """Note the segment that the log continues in; it replaces those from its number on."""
        first_sequence = segment.header.first_sequence
        file = LogFile(
            segment.number, segment.path, first_sequence, 0, segment.file_number, segment
        )
        with self._lock:
            self._log = [known for known in self._log if known.number < segment.number]
            self._log.append(file)
            self._recount()

    def accept(self, snapshot: KeptSnapshot) -> list[str]:
        """Note a finished snapshot, remove what it supersedes; return what could not be removed.

        All that replaces the removed must be durable: the snapshot, its name, and the log up to it.
        """
        with self._lock:
            self.written_bytes = 0
            self._snapshots.append(snapshot)
        return self._remove_superseded(keep=2, has_taken_over=True)

    @property
    def file_numbers(self) -> tuple[int, int]:
        """The numbers of the log's oldest and newest file; zeros where there is none."""
        log = self._log  # another thread may put a shorter one in its place
        return (log[0].number, log[-1].number) if log else (0, 0)

    @property
    def newest_sequence(self) -> int:
        """What the newest snapshot covers; 0 when there is none."""
        return self._snapshots[-1].sequence if self._snapshots else 0

    # --- How much it is --------------------------------------------------------------------------

    def _recount(self) -> None:
        self._full_bytes = sum(file.used_bytes for file in self._log[:-1])

    @property
    def position(self) -> int:
        """How much log there has been, in bytes, headers included; only differences mean much."""
        last_bytes = self._log[-1].used_bytes if self._log else 0
        return self._gone_bytes + self._full_bytes + last_bytes

    @property
    def log_bytes_since_snapshot(self) -> int:
        """How much log recovery would read after the newest snapshot."""
        return max(0, self.position - (self._snapshots[-1].position if self._snapshots else 0))

    @property
    def disk_bytes(self) -> int:
        """What log and snapshots take on disk, preallocated space included."""
        last_bytes = self._log[-1].held_bytes if self._log else 0
        return (
            self._full_bytes
            + last_bytes
            + sum(kept.file_bytes for kept in self._snapshots)
            + sum(size_bytes for _, size_bytes in self._damaged)
            + self.written_bytes
        )

    @property
    def _allowed_bytes(self) -> int:
        return 2 * self._live_bytes + self._segment_bytes

    def is_due(self, live_bytes: int) -> bool:
        """Tell whether a snapshot should be taken now; `make_space` remembers the amount.

        On a full disk one is as soon as it frees more than it takes.
        """
        with self._lock:
            self._live_bytes = live_bytes
            newest = self._snapshots[-1] if self._snapshots else KeptSnapshot("", 0, 0, 0, 0)
            expected_bytes = self._expected_bytes(newest)
            is_near = self.disk_bytes + self._file_bytes > self._allowed_bytes
            gain_bytes = self._file_bytes // 4
            if self.is_full:
                is_near, gain_bytes = True, min(gain_bytes, GARBAGE_BYTES_FULL)
            if is_near and self._freed_by_next() > expected_bytes + gain_bytes:
                return True
            return self.log_bytes_since_snapshot >= snapshot_is_due_at(
                file_bytes=self._file_bytes,
                live_bytes=live_bytes,
                newest_bytes=newest.file_bytes,
                held_bytes=newest.payload_bytes,
                expected_bytes=expected_bytes,
            )

    def is_mostly_garbage(self, live_bytes: int) -> bool:
        """Tell whether the log is worth shrinking when the daemon is at rest, or the disk full."""
        log_bytes = self._full_bytes + (self._log[-1].used_bytes if self._log else 0)
        per_live = GARBAGE_PER_LIVE_FULL if self.is_full else GARBAGE_PER_LIVE
        return log_bytes > per_live * live_bytes + self.garbage_bytes_min

    @property
    def garbage_bytes_min(self) -> int:
        """Return how long a log may be whatever is live, and a file that need not be replaced."""
        least_bytes = self._file_bytes // GARBAGE_PER_FILE
        return min(least_bytes, GARBAGE_BYTES_FULL) if self.is_full else least_bytes

    @property
    def next_snapshot_bytes(self) -> int:
        """How much the next snapshot is expected to take: puts must leave it, or none can be."""
        return self._expected_bytes(self._snapshots[-1]) if self._snapshots else self._live_bytes

    def _expected_bytes(self, newest: KeptSnapshot) -> int:
        """Return what a snapshot of the live bytes takes if it compresses as the newest has."""
        expected_bytes = self._live_bytes
        if newest.payload_bytes:
            share = self._live_bytes * newest.file_bytes // newest.payload_bytes
            expected_bytes = min(expected_bytes, share)
        return expected_bytes + _SNAPSHOT_OVERHEAD_BYTES

    def _freed_by_next(self) -> int:
        """Count what could go once there is one snapshot more."""
        snapshots = sum(kept.file_bytes for kept in self._snapshots[:-1])
        damaged = sum(size_bytes for _, size_bytes in self._damaged)
        log = sum(file.used_bytes for file in self._log[: self._first_needed(self.newest_sequence)])
        return snapshots + damaged + log

    # --- What may go -----------------------------------------------------------------------------

    def make_space(self, more_bytes: int) -> bool:
        """Give up the older snapshot if the bound demands it before so much more is written."""
        with self._lock:
            is_needed = self.disk_bytes + more_bytes > self._allowed_bytes
        return is_needed and self.give_up_older()

    def give_up_older(self) -> bool:
        """Remove all that the newest snapshot replaces; tell whether that was anything."""
        before_bytes = self.disk_bytes
        if self._snapshots:
            self._remove_superseded(keep=1)
        return self.disk_bytes < before_bytes

    def _first_needed(self, sequence: int) -> int:
        """Return the index of the file of the log that holds this frame; 0 when in doubt."""
        first_needed = 0
        for index, file in enumerate(self._log):
            if file.first_sequence is not None and file.first_sequence <= sequence:
                first_needed = index
        return first_needed

    def _remove_superseded(self, keep: int, *, has_taken_over: bool = False) -> list[str]:
        """Remove all but the newest snapshots and the log since the oldest of those.

        Damaged ones go when a new one `has_taken_over`. Returns the paths of what could not be
        removed; it stays in the books for another try.
        """
        with self._lock:
            snapshots = self._snapshots[:-keep]
            # With fewer snapshots than asked for, the first frame of the log counts as one.
            kept = self._snapshots[-keep:]
            sequence = kept[0].sequence if len(kept) == keep else 0
            files = self._log[: self._first_needed(sequence)]
            newest_sequence = self.newest_sequence
            damaged = [path for path, _ in self._damaged] if has_taken_over else []
            self._leaving = {old.path for old in snapshots} | {file.path for file in files}
        left = [old.path for old in snapshots if not self._unlink(old.path)]
        left += [path for path in damaged if not self._unlink(path)]
        # Oldest first, so that the log never has a hole.
        gone: list[LogFile] = []
        for file in files:
            if not self._unlink(file.path):
                left.append(file.path)
                break
            gone.append(file)
        with self._lock:
            assert newest_sequence == self.newest_sequence, "one thread removes files"
            self._snapshots = [old for old in self._snapshots if old in kept or old.path in left]
            self._damaged = [
                old for old in self._damaged if old[0] not in damaged or old[0] in left
            ]
            self._gone_bytes += sum(file.used_bytes for file in gone)
            self._log = self._log[len(gone) :]
            self._leaving.clear()
            self._recount()
        return left

    # --- What has vanished -----------------------------------------------------------------------

    def take_lost(self) -> dict[str, str]:
        """Look at every file and forget those that are not as they were left: path → what it is.

        Costs a call of the system for each file, of which there are some ten, and reads a little of
        the last one. Called between appends.
        """
        with self._lock:
            lost = {}
            for file in self._log[:-1]:
                lost[file.path] = self._loss(file.path, file.used_bytes, file.file_number)
            for file in self._log[-1:]:
                # With what is preallocated: a write after a cut makes the file longer again.
                loss = self._loss(file.path, file.held_bytes, file.file_number)
                if not loss and file.segment:
                    loss = file.segment.damage()
                lost[file.path] = loss
            for kept in self._snapshots:
                lost[kept.path] = self._loss(kept.path, kept.file_bytes)
            lost = {path: loss for path, loss in lost.items() if loss}
            if lost:
                self._gone_bytes += sum(file.used_bytes for file in self._log if file.path in lost)
                self._log = [file for file in self._log if file.path not in lost]
                self._snapshots = [kept for kept in self._snapshots if kept.path not in lost]
                self._recount()
        return lost

    def _loss(self, path: str, file_bytes: int, file_number: int | None = None) -> str:
        """Say what has become of a file; empty: nothing, or this program is removing it."""
        if path in self._leaving:
            return ""
        try:
            status = self._disk.status(path)
        except FileNotFoundError:
            return "was removed"
        except OSError as error:
            return f"cannot be found any more: {error.strerror}"
        if file_number not in {None, status.number}:
            return "was replaced by another file"
        if status.size_bytes < file_bytes:
            return f"was cut to {counted(status.size_bytes, 'byte')}"
        return ""

    def _unlink(self, path: str) -> bool:
        try:
            self._disk.unlink(path)
        except OSError as error:
            return error.errno == errno.ENOENT
        return True
