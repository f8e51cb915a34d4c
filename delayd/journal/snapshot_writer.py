"""Writing one snapshot: frames, sync, reading it back, its name, and only then the removal.

    write ... write ─► closing frame ─► sync ─► log synced up to it ─► read again, verified
                                          ─► rename ─► directory synced ─► old files removed

Until the name is durable the snapshot does not exist, and nothing depends on it: whatever fails
before removes the file and raises SnapshotFailed, the journal continues, and another one is tried
later. Afterwards it replaces what is older.

One failure is the journal's own: the directory cannot be synced after the rename. The snapshot may
survive that or not, nothing was removed yet; but the names of new segments of the log wait for the
same sync, and the system reports the loss of such a name once: a later sync would succeed over it.
So nothing more may be acknowledged.

Every method blocks on the disk, and is meant for a thread of its own; one at a time.
"""

import contextlib
from collections.abc import Callable, Iterator
from zlib import crc32

from delayd.journal.disk import NO_ROOM, Disk
from delayd.journal.errors import JournalError, SnapshotFailed
from delayd.journal.retention import Retention
from delayd.journal.segment import TEMPORARY_SUFFIX, write_all
from delayd.journal.snapshot import (
    SUMMARY,
    Damage,
    SnapshotHeader,
    SnapshotInfo,
    SnapshotKind,
    deflated,
    pack_snapshot_frame,
    pack_snapshot_header,
    snapshot_mark,
    snapshot_name,
    verify,
)
from delayd.limits import SNAPSHOT_SYNC_BYTES


class SnapshotWriter:
    """One snapshot in the making. `finish` or `abandon` ends it, and so does any failure."""

    __slots__ = (
        "_directory",
        "_disk",
        "_end",
        "_fail",
        "_frames",
        "_handle",
        "_header",
        "_make_durable",
        "_mark",
        "_path",
        "_payload_bytes",
        "_position",
        "_retention",
        "_running",
        "_synced_end",
        "_temporary",
        "is_over",
        "is_wanted",
        "left_behind",
    )

    def __init__(
        self,
        disk: Disk,
        directory: str,
        header: SnapshotHeader,
        retention: Retention,
        make_durable: Callable[[int], object],
        fail: Callable[[str, str, OSError], object],
    ) -> None:
        """Use `Journal.begin_snapshot`. Nothing is touched before the first `write`.

        `make_durable(sequence)` syncs the log up to a frame; `fail` ends the journal.
        """
        self._disk = disk
        self._directory = directory
        self._header = header
        self._retention = retention
        self._make_durable = make_durable
        self._fail = fail
        self._path = f"{directory}/{snapshot_name(header.sequence)}"
        self._temporary = self._path + TEMPORARY_SUFFIX
        self._mark = snapshot_mark(header.identity, header.sequence)
        self._position = retention.position
        self._handle: int | None = None
        self._end = self._synced_end = self._running = self._frames = self._payload_bytes = 0
        self.is_over = False
        """It was finished or abandoned."""
        self.is_wanted = True
        """Any thread may set this to False: the writing then fails at the next frame."""
        self.left_behind: list[str] = []
        """Superseded files that could not be removed; the next snapshot tries again."""

    def write(self, payload: bytes) -> None:
        """Add records; they come back in this order. Raises SnapshotFailed.

        Compresses the payload, which takes about 10 ms a MiB and needs no interpreter. Every frame
        is held in memory whole by who reads it.
        """
        with self._abandoning():
            self._go_on()
            kind, stored = deflated(payload)
            self._append(kind, stored, len(payload))
            self._payload_bytes += len(payload)
            if self._end - self._synced_end >= SNAPSHOT_SYNC_BYTES:
                assert self._handle is not None
                self._disk.sync(self._handle)
                self._synced_end = self._end

    def finish(self, jobs: int) -> SnapshotInfo:
        """Make the snapshot durable and verify it, give it its name, remove what it replaces.

        Raises SnapshotFailed when there is no snapshot after all, and JournalFailed.
        """
        with self._abandoning():
            summary = SUMMARY.pack(jobs, self._payload_bytes, self._checksum())
            self._append(SnapshotKind.CLOSING, summary, 0)
            assert self._handle is not None
            self._disk.sync(self._handle)
            self._close()
            self._make_durable(self._header.sequence)
            found = verify(self._disk, self._temporary, inflate=True, go_on=self._go_on)
            written = (self._header, jobs, self._payload_bytes, self._end)
            if found[1:] != written:
                raise Damage(self._temporary, 0, "it does not read as it was written")
            self._disk.rename(self._temporary, self._path)
        self.is_over = True
        try:
            self._disk.sync_directory(self._directory)
        except OSError as error:
            why = f"the directory cannot be synced for {self._path}: {error.strerror}"
            self._fail(self._directory, why, error)
        self._retention.jobs_copied += jobs
        self.left_behind = self._retention.accept(
            self._path, self._header.sequence, (self._end, self._payload_bytes), self._position
        )
        return found._replace(path=self._path)

    def abandon(self) -> None:
        """Give it up and remove the file; does nothing twice."""
        if self.is_over:
            return
        self.is_over = True
        self._close()
        # What cannot be removed is removed by the next start, or overwritten.
        with contextlib.suppress(OSError):
            self._disk.unlink(self._temporary)
        self._retention.written_bytes = 0

    def _go_on(self) -> None:
        if not self.is_wanted:
            raise SnapshotFailed(self._path, "it is not wanted any more")

    def _close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):
                self._disk.close(handle)

    @contextlib.contextmanager
    def _abandoning(self) -> Iterator[None]:
        """Turn errors into SnapshotFailed, and leave no file."""
        assert not self.is_over, "the snapshot is over"
        try:
            yield
        except JournalError:
            self.abandon()
            raise
        except (OSError, Damage) as error:
            self.abandon()
            why = str(error) if isinstance(error, Damage) else str(error.strerror)
            raise SnapshotFailed(self._path, why) from error

    def _checksum(self) -> int:
        """Return the checksum over all that has been written; begin the file if nothing was."""
        if self._handle is None:
            self._begin()
        return self._running

    def _begin(self) -> None:
        self._handle = self._disk.create(self._temporary)
        self._put(pack_snapshot_header(self._header))

    def _append(self, kind: SnapshotKind, stored: bytes, payload_bytes: int) -> None:
        if self._handle is None:
            self._begin()
        self._frames += 1
        self._put(pack_snapshot_frame(self._mark, kind, self._frames, stored, payload_bytes))

    def _put(self, data: bytes) -> None:
        """Write at the end; the older snapshot makes way where there is no room for three."""
        assert self._handle is not None
        self._retention.make_room(len(data))
        try:
            write_all(self._disk, self._handle, data, self._end)
        except OSError as error:
            if error.errno not in NO_ROOM or not self._retention.give_up_older():
                raise
            write_all(self._disk, self._handle, data, self._end)
        self._end += len(data)
        self._running = crc32(data, self._running)
        self._retention.written_bytes = self._end
