"""The journal as the service sees it: open, replay, append, sync, close.

    journal = Journal.open("/var/lib/delayd", disk=RealDisk(), segment_bytes=64 << 20)
    for frame in journal.replay():       # everything that was durable, in order
        engine.apply(frame)
    sequence = journal.append(payload, time_ms, wall_ms)      # written, not yet durable
    if journal.sync() >= sequence:                            # now it is: replies may leave
        ...

Two threads may use it: one appends, another syncs. Frames are durable in order: `sync` goes through
the segments from the oldest, and a frame counts only when every segment before its own, its own,
and their names in the directory are on disk.

An error of a write or a sync is final: what the disk holds is unknown, a second sync of the same
file would report success over lost pages, so every later call raises JournalFailed at once. A lack
of room is different: `append` raises JournalFull, the journal is as it was before the call, and the
next call tries again.

The journal refuses to know what a payload means, what time it is, and when it should sync.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Final

from delayd.core.limits import (
    JOURNAL_PAYLOAD_BYTES_MAX,
    JOURNAL_SEGMENT_BYTES_MIN,
    JOURNAL_UNSYNCED_SEGMENTS_MAX,
)
from delayd.journal.disk import Disk, LockHeldError
from delayd.journal.errors import DirectoryLocked, JournalCorrupt, JournalFailed, JournalFull
from delayd.journal.format import (
    FIRST_SEGMENT,
    FIRST_SEQUENCE,
    IDENTITY_BYTES,
    SEGMENT_NAME,
    Frame,
    FrameKind,
    SegmentHeader,
)
from delayd.journal.recovery import Recovery, Verdict
from delayd.journal.repair import TEMPORARY, TORN_COPY, TornTail, cut, remove_leftovers, settle
from delayd.journal.segment import NO_ROOM, Segment, segment_bytes_for

LOCK_NAME: Final = "lock"

OUR_NAMES: Final = (SEGMENT_NAME, TEMPORARY, TORN_COPY)
# An attribute lookup on an enum costs as much as the checksum of a small frame.
_RECORDS: Final = int(FrameKind.RECORDS)

TOLERATED_NAMES: Final = frozenset({LOCK_NAME, "lost+found"})


class Journal:
    """One directory of segments, owned for as long as this object is open."""

    __slots__ = (
        "_active",
        "_appended",
        "_directory",
        "_disk",
        "_failure",
        "_identity",
        "_is_open",
        "_is_replayed",
        "_lock_handle",
        "_segment_bytes",
        "_sync_turn",
        "_synced",
        "_times",
        "_unsynced",
        "torn_tails",
    )

    def __init__(self, directory: str, disk: Disk, segment_bytes: int, lock_handle: int) -> None:
        """Use `Journal.open`."""
        self._directory = directory
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._lock_handle = lock_handle
        self._active: Segment | None = None
        # Segments with bytes that may not be durable, oldest first; the active one is the last.
        # The appending thread adds at the right, the syncing thread removes at the left.
        self._unsynced: deque[Segment] = deque()
        self._sync_turn = threading.Lock()
        self._identity = b""
        self._appended = FIRST_SEQUENCE - 1
        self._synced = FIRST_SEQUENCE - 1
        self._times = (0, 0)
        self._failure: tuple[str, str] | None = None
        # (file, reason) of the first failure, which is the last thing that happens here.
        self._is_open = True
        self._is_replayed = False
        self.torn_tails: list[TornTail] = []
        """What replay had to cut; for the log."""

    @classmethod
    def open(cls, directory: str, *, disk: Disk, segment_bytes: int) -> "Journal":
        """Take the directory, making it if needed; `replay` comes next.

        Raises DirectoryLocked when another process has it, JournalFailed when it cannot be used.
        """
        assert segment_bytes >= JOURNAL_SEGMENT_BYTES_MIN, "configuration has a higher minimum"
        path = f"{directory}/{LOCK_NAME}"
        try:
            disk.make_directory(directory)
            lock_handle = disk.lock(path)
        except LockHeldError as held:
            raise DirectoryLocked(path, held.holder_pid) from None
        except OSError as error:
            raise JournalFailed(path, f"cannot be locked: {error.strerror}") from error
        return cls(directory, disk, segment_bytes, lock_handle)

    @property
    def appended_sequence(self) -> int:
        """The last frame that was appended."""
        return self._appended

    @property
    def synced_sequence(self) -> int:
        """The last frame known to be durable."""
        return self._synced

    def replay(self) -> Iterator[Frame]:
        """Yield every durable frame in order; after the last one the journal takes appends.

        A torn tail is cut after a copy was kept (see `torn_tails`). Raises JournalCorrupt or
        JournalVersion, with nothing changed, and JournalFailed when a file cannot be used.
        Frames with an empty payload mark a clean close; their time counts, they carry nothing.
        """
        assert not self._is_replayed, "a journal is replayed once"
        try:
            names = self._disk.list_directory(self._directory)
        except OSError as error:
            raise JournalFailed(self._directory, f"cannot be read: {error.strerror}") from error
        for name in sorted(names):
            if name not in TOLERATED_NAMES and not any(own.fullmatch(name) for own in OUR_NAMES):
                path = f"{self._directory}/{name}"
                raise JournalCorrupt(path, 0, "this file is not part of a delayd journal")
        recovery = Recovery(self._disk, self._directory, names)
        frame = None
        for frame in recovery.frames():
            yield frame
        if frame is not None:
            self._times = (frame.time_ms, frame.wall_ms)
        try:
            self._take_over(recovery, names)
        except OSError as error:
            raise JournalFailed(
                self._directory, f"cannot be made ready for writing: {error.strerror}"
            ) from error

    def _take_over(self, recovery: Recovery, names: list[str]) -> None:
        """Cut what is torn, make durable what is good, and open the last segment for appending."""
        if recovery.verdict is Verdict.CUT:
            self.torn_tails = cut(self._disk, self._directory, names, recovery)
        settle(self._disk, self._directory, recovery)
        remove_leftovers(self._disk, self._directory, names)
        self._appended = self._synced = recovery.sequence
        self._identity = recovery.identity or self._disk.unique_bytes(IDENTITY_BYTES)
        if recovery.segments:
            self._reopen(recovery)
        self._is_replayed = True

    def _reopen(self, recovery: Recovery) -> None:
        """Open the last segment for appending, preallocated again as far as there is room."""
        last = recovery.segments[-1]
        assert last.header is not None
        handle = self._disk.open(last.path, write=True)
        try:
            self._disk.allocate(handle, self._segment_bytes)
        except OSError as error:
            # A full disk must not keep a daemon from starting: it is then that jobs need draining.
            if error.errno not in NO_ROOM:
                self._disk.close(handle)
                raise
        self._active = Segment(
            self._disk,
            last.path,
            handle,
            last.header,
            end=last.end,
            last_sequence=recovery.sequence,
            capacity=max(self._segment_bytes, last.size_bytes),
            is_named_durably=True,
        )
        self._unsynced.append(self._active)

    def append(self, payload: bytes, time_ms: int, wall_ms: int) -> int:
        """Write one frame, unsynced; return its sequence number.

        Raises JournalFull when there is no room and JournalFailed when the disk failed. The cost
        beyond the write is one checksum and one copy of the payload, about 2 µs for 200 bytes.
        """
        if self._failure is not None:
            raise JournalFailed(*self._failure)
        segment = self._active
        sequence = self._appended + 1
        try:
            if segment is None or not segment.has_room_for(len(payload)):
                segment = self._rotate(len(payload), time_ms, wall_ms)
            segment.append(_RECORDS, sequence, self._synced, time_ms, wall_ms, payload)
        except OSError as error:
            if error.errno in NO_ROOM:
                raise JournalFull(self._directory, f"no room to write: {error.strerror}") from error
            self._failure = (
                self._directory,
                f"frame {sequence} cannot be written: {error.strerror}",
            )
            raise JournalFailed(*self._failure) from error
        self._appended = sequence
        self._times = (time_ms, wall_ms)
        return sequence

    def _rotate(self, payload_bytes: int, time_ms: int, wall_ms: int) -> Segment:
        """Go on in a new segment that holds at least this payload. Raises OSError.

        Only the very first one is synced here. Before any other, recovery knows the journal's
        identity from its predecessors and can tell what a crash left of it.
        """
        assert self._is_open, "the journal is closed"
        assert self._is_replayed, "replay comes before append"
        assert payload_bytes <= JOURNAL_PAYLOAD_BYTES_MAX, "the service splits its batches"
        while len(self._unsynced) > JOURNAL_UNSYNCED_SEGMENTS_MAX:
            self.sync()
        previous = self._active
        header = SegmentHeader(
            identity=self._identity,
            number=previous.number + 1 if previous else FIRST_SEGMENT,
            first_sequence=self._appended + 1,
            synced_sequence=self._synced,
            previous_valid_bytes=previous.end if previous else 0,
            created_ms=time_ms,
            created_wall_ms=wall_ms,
        )
        capacity = segment_bytes_for(payload_bytes, self._segment_bytes)
        segment = Segment.create(self._disk, self._directory, header, capacity)
        if previous is None:
            segment.sync()
            self._disk.sync_directory(self._directory)
            segment.is_named_durably = True
        self._active = segment
        self._unsynced.append(segment)
        return segment

    def sync(self) -> int:
        """Make everything durable that was appended before this call; return the last such frame.

        Blocks as long as the disk does. May run in another thread than `append`. Raises
        JournalFailed; what was appended since the last successful sync may then be lost.
        """
        with self._sync_turn:
            if self._failure is not None:
                raise JournalFailed(*self._failure)
            # What is appended from here on is the next sync's affair.
            target = self._appended
            segments = list(self._unsynced)
            if target > self._synced:
                for segment in segments:
                    self._sync_segment(segment, target, is_full=segment is not segments[-1])
            return self._synced

    def _sync_segment(self, segment: Segment, target: int, *, is_full: bool) -> None:
        """Make one segment durable, its name included; a full one is done with for good."""
        try:
            if is_full:
                segment.trim()
            segment.sync()
            if not segment.is_named_durably:
                self._disk.sync_directory(self._directory)
                segment.is_named_durably = True
            if is_full:
                self._unsynced.popleft()
                segment.close()
        except OSError as error:
            self._failure = (segment.path, f"cannot be synced: {error.strerror}")
            raise JournalFailed(*self._failure) from error
        self._synced = min(target, segment.last_sequence)

    def close(self) -> None:
        """Sync, mark the end, give unused space and the directory back. Does nothing twice.

        Raises JournalFailed when the last sync fails; the directory is released even then.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            if self._active is not None and self._failure is None:
                self._finish(self._active)
        finally:
            for segment in self._unsynced:
                with contextlib.suppress(OSError):
                    segment.close()
            self._unsynced.clear()
            self._active = None
            with contextlib.suppress(OSError):
                self._disk.close(self._lock_handle)

    def _finish(self, segment: Segment) -> None:
        """Sync, then write and sync the frame that testifies to it."""
        synced = self.sync()
        try:
            # Beyond the preallocated end is fine here: the file is cut to its frames anyway.
            segment.append(FrameKind.CLOSED, self._appended + 1, synced, *self._times, b"")
            segment.trim()
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._failure = (segment.path, f"cannot be closed: {error.strerror}")
                raise JournalFailed(*self._failure) from error
        else:
            self._appended += 1
        self.sync()
