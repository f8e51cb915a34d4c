"""Space for records, from files: what is preallocated, and more of it from the disk.

A full disk is asked once a second at most, and only for records, or to see whether a put would be
taken: nothing polls.
"""

import contextlib
import os.path
from typing import TYPE_CHECKING

from delayd.clock import NS_PER_MS, monotonic_ns
from delayd.journal.journal import Journal
from delayd.limits import (
    EMERGENCY_BYTES,
    JOURNAL_RECORD_HEAD_BYTES,
    SPACE_RETRY_MS,
    SPARE_BYTES_MIN,
)

if TYPE_CHECKING:
    from delayd.log import OnSpaceChange


class FileSpace:
    """Gets space for the engine from a journal."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._places = 0
        self._asked_ns: int | None = None
        self.on_change: OnSpaceChange = lambda _is_full: None
        """Called when the disk becomes full, with True, and when it no longer is."""
        self.is_full = False  # the last request for more failed
        self.is_stale = False
        """There is less than `beyond` returned last; any thread may set it."""

    def beyond(self, set_aside_bytes: int) -> int:
        self._places = 0
        self.is_stale = False
        journal = self._journal
        free_bytes = journal.space_bytes
        enough_bytes = set_aside_bytes + EMERGENCY_BYTES + journal.segment_bytes
        if free_bytes > enough_bytes + journal.segment_bytes:
            journal.shrink_space(enough_bytes)
            free_bytes = journal.space_bytes
        if self.is_full:
            wanted_bytes = set_aside_bytes + EMERGENCY_BYTES + SPARE_BYTES_MIN
            if free_bytes >= wanted_bytes:
                # A snapshot or removals have made space: there is no need to ask.
                self._note_full(is_full=False)
            else:
                # Perhaps only short jobs are put, which still fit: they would never ask.
                self.more(wanted_bytes - free_bytes, 0, 0)
                free_bytes = journal.space_bytes
        self.is_stale = self.is_full  # until it is not, each turn looks again
        return free_bytes - set_aside_bytes

    def more(self, missing_bytes: int, body_bytes: int, places: int) -> int:
        now_ns = monotonic_ns()
        if self._asked_ns is not None and now_ns - self._asked_ns < SPACE_RETRY_MS * NS_PER_MS:
            return -1
        self._places += places
        journal = self._journal
        before_bytes = journal.space_bytes
        record_bytes = body_bytes + JOURNAL_RECORD_HEAD_BYTES if places else 0
        is_full = not journal.make_space(before_bytes + missing_bytes, record_bytes, self._places)
        self._asked_ns = now_ns if is_full else None
        self._note_full(is_full=is_full)
        return -1 if is_full else journal.space_bytes - before_bytes

    def _note_full(self, *, is_full: bool) -> None:
        """Let the journal know, and tell when it is the other way round than before."""
        self._journal.retention.is_full = is_full and not self.trouble
        if is_full is not self.is_full:
            self.is_full = is_full
            self.on_change(is_full)

    @property
    def trouble(self) -> str:
        """Why no file could be made for more, where that is not a lack of space."""
        return self._journal.space_trouble

    def figures(self) -> dict[str, str | int]:
        """Return the directory, the free bytes of its disk, and how many a put needs at least."""
        journal = self._journal
        figures: dict[str, str | int] = {"directory": os.path.abspath(journal.directory)}
        with contextlib.suppress(OSError):
            figures["free_bytes"] = journal.disk_free_bytes()
        return figures | {"needed_bytes": journal.retention.next_snapshot_bytes + SPARE_BYTES_MIN}
