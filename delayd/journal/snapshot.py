"""Snapshots: their bytes, version 1, the one way of reading them, and writing one.

A snapshot is a file of its own that covers all frames up to one of them: a header, frames with
the engine's records, and a closing frame that says how many there were. Numbers and checksums of a
file are in that file (what is saved in two places is saved at two times).

    header | frame 1 | frame 2 | ... | closing frame, the last bytes of the file

Unlike a log a snapshot is whole or it does not exist: it gets its name after it was synced, read
again and found good. So there is no torn tail here; whatever is not exactly right is `Damage`, and
recovery takes the snapshot before this one. That is why the whole file is verified before the first
payload is handed out: a payload that was played cannot be taken back.

>>> identity = bytes(range(16))
>>> header = SnapshotHeader(identity, sequence=7, time_ms=1_000, wall_ms=1_000)
>>> unpack_snapshot_header(pack_snapshot_header(header)) == header
True
>>> hex(snapshot_mark(identity, 7))
'0x455a605a'
>>> kind, stored = deflated(b"a" * 1_000)
>>> kind.name, len(stored), inflated(kind, stored, 1_000) == b"a" * 1_000
('DEFLATED', 19, True)

Writing one: frames, sync, reading it back, its name, and only then the removal of older files.

    write ... write ─► closing frame ─► sync ─► log synced up to it ─► read again, verified
                                          ─► rename ─► directory synced ─► old files removed

Until the name is durable the snapshot does not exist, and nothing depends on it: whatever fails
before removes the file and raises SnapshotFailed, the journal continues, and another one is tried
later. Afterwards it replaces what is older.

One failure is the journal's own: the directory cannot be synced after the rename. The snapshot may
survive that or not, nothing was removed yet; but the names of new segments of the log wait for the
same sync, and the system reports the loss of such a name once: a later sync would succeed over it.
So nothing more may be acknowledged.

Every method of `SnapshotWriter` blocks on the disk, and is meant for a thread of its own; one at a
time.
"""

import contextlib
import enum
import struct
import zlib
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Final, NamedTuple
from zlib import crc32

from delayd.journal.disk import NO_SPACE, Disk, opened, read_exactly, write_all
from delayd.journal.errors import JournalError, SnapshotFailed
from delayd.journal.format import CHECKSUM, IDENTITY_BYTES, TEMPORARY_SUFFIX
from delayd.journal.retention import KeptSnapshot, Retention
from delayd.limits import SNAPSHOT_DEFLATE_LEVEL, SNAPSHOT_SYNC_BYTES
from delayd.text import counted

# --- Bytes ---------------------------------------------------------------------------------------

SNAPSHOT_VERSION: Final = 1

SNAPSHOT_MAGIC: Final = b"delaysn\n"

# Length and checksum of the header stay as they are in every version to come: only an intact header
# may say that its file is newer, a damaged one is damaged.
SNAPSHOT_HEADER: Final = struct.Struct(f"<8sI{IDENTITY_BYTES}sQQq")
SNAPSHOT_HEADER_BYTES: Final = SNAPSHOT_HEADER.size + CHECKSUM.size
SNAPSHOT_FRAME: Final = struct.Struct("<IIIBQ")
SNAPSHOT_FRAME_OVERHEAD_BYTES: Final = SNAPSHOT_FRAME.size + CHECKSUM.size
SUMMARY: Final = struct.Struct("<QQI")


class SnapshotKind(enum.IntEnum):
    """What a frame of a snapshot carries. A new one needs a new version."""

    RECORDS = 1  # records of the engine, as they are
    DEFLATED = 2  # the same, compressed (RFC 1950)
    CLOSING = 3  # how many jobs and bytes there were, and a checksum over the file: the end


_KINDS: Final = frozenset(map(int, SnapshotKind))


class SnapshotHeader(NamedTuple):
    """What a snapshot says about itself."""

    identity: bytes
    sequence: int  # the last frame of the log that it covers
    time_ms: int
    wall_ms: int


class SnapshotInfo(NamedTuple):
    """A snapshot that was found whole."""

    path: str
    header: SnapshotHeader
    jobs: int
    payload_bytes: int  # what its frames hold, before compression
    file_bytes: int

    @property
    def sequence(self) -> int:
        """The last frame of the log that it covers."""
        return self.header.sequence

    def __str__(self) -> str:
        jobs = counted(self.jobs, "job")
        return f"{self.path}: {jobs} up to frame {self.sequence}, {self.file_bytes} bytes"


class Damage(Exception):
    """A snapshot, or what its name says is one, that is not exactly what was written."""

    def __init__(self, path: str, offset: int, why: str) -> None:
        super().__init__(f"{path} at offset {offset}: {why}")
        self.path = path
        self.offset = offset
        self.why = why


def snapshot_name(sequence: int) -> str:
    """Return the file name of the snapshot that covers the frames up to this one.

    >>> snapshot_name(7)
    'snapshot-00000000000000000007.snap'
    """
    return f"snapshot-{sequence:020d}.snap"


def snapshot_mark(identity: bytes, sequence: int) -> int:
    """Return the four bytes that begin every frame of this snapshot and of no other file."""
    return crc32(b"snapshot" + sequence.to_bytes(8, "little"), crc32(identity)) or 1


def pack_snapshot_header(header: SnapshotHeader) -> bytes:
    """Return the first SNAPSHOT_HEADER_BYTES of a snapshot."""
    head = SNAPSHOT_HEADER.pack(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, *header)
    return head + CHECKSUM.pack(crc32(head))


def unpack_snapshot_header(head: bytes) -> SnapshotHeader | None:
    """Return the header of any version; None when it is damaged."""
    if len(head) < SNAPSHOT_HEADER_BYTES or head[: len(SNAPSHOT_MAGIC)] != SNAPSHOT_MAGIC:
        return None
    if CHECKSUM.unpack_from(head, SNAPSHOT_HEADER.size)[0] != crc32(head[: SNAPSHOT_HEADER.size]):
        return None
    return SnapshotHeader(*SNAPSHOT_HEADER.unpack_from(head)[2:])


def pack_snapshot_frame(
    mark: int, kind: SnapshotKind, number: int, stored: bytes, payload_bytes: int
) -> bytes:
    """Return the bytes of a frame; `payload_bytes` is the length before compression."""
    head = SNAPSHOT_FRAME.pack(mark, len(stored), payload_bytes, kind, number)
    checksum = crc32(stored, crc32(head[4:], mark))
    return b"".join((head, stored, CHECKSUM.pack(checksum)))


def deflated(payload: bytes) -> tuple[SnapshotKind, bytes]:
    """Return the payload compressed, or as it is where that is no shorter; about 10 ms a MiB."""
    packed = zlib.compress(payload, SNAPSHOT_DEFLATE_LEVEL)
    if len(packed) < len(payload):
        return SnapshotKind.DEFLATED, packed
    return SnapshotKind.RECORDS, payload


def inflated(kind: int, stored: bytes, payload_bytes: int) -> bytes | None:
    """Return the payload, None if it is not what the frame says; memory is bounded by what it says.

    >>> inflated(SnapshotKind.RECORDS, b"abc", 4) is None
    True
    """
    if kind == SnapshotKind.RECORDS:
        return stored if len(stored) == payload_bytes else None
    inflater = zlib.decompressobj()
    try:
        payload = inflater.decompress(stored, max(1, payload_bytes))
    except zlib.error:
        return None
    # The inflater may need one more call to check its own checksum.
    if not inflater.eof and inflater.decompress(inflater.unconsumed_tail, 1):
        return None
    is_whole = inflater.eof and not inflater.unused_data and len(payload) == payload_bytes
    return payload if is_whole else None


class _Frame(NamedTuple):
    kind: int
    payload_bytes: int
    stored: bytes


def verify(
    disk: Disk, path: str, *, inflate: bool, go_on: Callable[[], object] = bool
) -> SnapshotInfo:
    """Read the whole file and return what it is; with `inflate`, unpack every frame as well.

    Memory: one frame. Cost: one pass, about 1 s a GB, three times that with `inflate`. `go_on` is
    called before each frame, and ends it by what it raises. Raises Damage, and OSError when it
    cannot be read.
    """
    with opened(disk, path) as handle:
        frames = _frames(partial(read_exactly, disk, handle), disk.size(handle), path)
        while True:
            go_on()
            try:
                frame = next(frames)
            except StopIteration as stop:
                info: SnapshotInfo = stop.value
                return info
            if inflate and inflated(frame.kind, frame.stored, frame.payload_bytes) is None:
                raise Damage(path, 0, "a frame cannot be decompressed")


def payloads(disk: Disk, path: str) -> Iterator[bytes]:
    """Yield the payloads in the order in which they were written. Raises Damage and OSError."""
    with opened(disk, path) as handle:
        yield from payloads_in(partial(read_exactly, disk, handle), disk.size(handle), path)


def payloads_in(read: "Read", size_bytes: int, path: str) -> Iterator[bytes]:
    """Yield the payloads of a snapshot of so many bytes, which are read from front to back."""
    for frame in _frames(read, size_bytes, path):
        payload = inflated(frame.kind, frame.stored, frame.payload_bytes)
        if payload is None:
            raise Damage(path, 0, "a frame cannot be decompressed")
        yield payload


Read = Callable[[int, int], bytes]
"""`read(length, offset)` returns so many bytes of the snapshot, fewer at its end."""


def _frames(read: Read, size_bytes: int, path: str) -> Generator[_Frame, None, SnapshotInfo]:
    head = read(SNAPSHOT_HEADER_BYTES, 0)
    header = unpack_snapshot_header(head)
    if header is None:
        raise Damage(path, 0, "the header is damaged")
    mark = snapshot_mark(header.identity, header.sequence)
    offset, running, payload_bytes, number = len(head), crc32(head), 0, 0
    while True:
        number += 1
        raw = _read_frame(read, path, offset, size_bytes)
        frame = _judged(raw, mark, number)
        if frame is None:
            raise Damage(path, offset, "a frame is damaged")
        offset += len(raw)
        if frame.kind == SnapshotKind.CLOSING:
            break
        running = crc32(raw, running)
        payload_bytes += frame.payload_bytes
        yield frame
    jobs, claimed_bytes, checksum = SUMMARY.unpack(frame.stored)
    if (claimed_bytes, checksum) != (payload_bytes, running) or offset != size_bytes:
        raise Damage(path, offset, "the closing frame does not match the file")
    return SnapshotInfo(path, header, jobs, payload_bytes, size_bytes)


def _read_frame(read: Read, path: str, offset: int, end: int) -> bytes:
    """Return the bytes that a frame claims; a length above the file's is never read."""
    head = read(SNAPSHOT_FRAME.size, offset)
    if len(head) < SNAPSHOT_FRAME.size:
        raise Damage(path, offset, "the snapshot ends without its closing frame")
    rest_bytes = SNAPSHOT_FRAME.unpack(head)[1] + CHECKSUM.size
    if offset + len(head) + rest_bytes > end:
        raise Damage(path, offset, "a frame ends beyond the end of the file")
    return head + read(rest_bytes, offset + len(head))


def _judged(raw: bytes, mark: int, number: int) -> _Frame | None:
    found_mark, stored_bytes, payload_bytes, kind, found_number = SNAPSHOT_FRAME.unpack_from(raw)
    if len(raw) != SNAPSHOT_FRAME_OVERHEAD_BYTES + stored_bytes:
        return None
    sum_at = len(raw) - CHECKSUM.size
    if CHECKSUM.unpack_from(raw, sum_at)[0] != crc32(memoryview(raw)[4:sum_at], mark):
        return None
    if (found_mark, found_number) != (mark, number) or kind not in _KINDS:
        return None
    if kind == SnapshotKind.CLOSING and stored_bytes != SUMMARY.size:
        return None
    return _Frame(kind, payload_bytes, raw[SNAPSHOT_FRAME.size : sum_at])


# --- Writing -------------------------------------------------------------------------------------


class SnapshotWriter:
    """One snapshot in the making. `finish` or `abandon` ends it, and so does any failure."""

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
        self.is_over = False  # it was finished or abandoned
        self.is_wanted = True
        """Any thread may set this to False: the writing then fails at the next frame."""
        self.left_behind: list[str] = []
        """Superseded files that could not be removed; the next snapshot tries again."""

    @property
    def time_ms(self) -> int:
        """Delayd time of the state that it holds."""
        return self._header.time_ms

    def write(self, payload: bytes) -> None:
        """Add records; they come back in this order. Raises SnapshotFailed.

        Compresses the payload, which takes about 10 ms a MiB and needs no interpreter. Every frame
        is held in memory whole when it is read.
        """
        with self._abandoning():
            self._go_on()
            kind, stored = deflated(payload)
            handle = self._begun()
            self._append(kind, stored, len(payload))
            self._payload_bytes += len(payload)
            if self._end - self._synced_end >= SNAPSHOT_SYNC_BYTES:
                self._disk.sync(handle)
                self._synced_end = self._end

    def finish(self, jobs: int) -> SnapshotInfo:
        """Make the snapshot durable and verify it, give it its name, remove what it replaces.

        Raises SnapshotFailed when there is no snapshot after all, and JournalFailed.
        """
        with self._abandoning():
            handle = self._begun()
            summary = SUMMARY.pack(jobs, self._payload_bytes, self._running)
            self._append(SnapshotKind.CLOSING, summary, 0)
            self._disk.sync(handle)
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
        sizes = (self._end, self._payload_bytes)
        kept = KeptSnapshot(self._path, self._header.sequence, *sizes, self._position)
        self.left_behind = self._retention.accept(kept)
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

    def _begun(self) -> int:
        """Return the file, with its header."""
        if self._handle is None:
            self._handle = self._disk.create(self._temporary)
            self._put(pack_snapshot_header(self._header))
        return self._handle

    def _append(self, kind: SnapshotKind, stored: bytes, payload_bytes: int) -> None:
        self._frames += 1
        self._put(pack_snapshot_frame(self._mark, kind, self._frames, stored, payload_bytes))

    def _put(self, data: bytes) -> None:
        """Write at the end; the older snapshot makes way where there is no space for three."""
        assert self._handle is not None
        self._retention.make_space(len(data))
        try:
            write_all(self._disk, self._handle, data, self._end)
        except OSError as error:
            if error.errno not in NO_SPACE or not self._retention.give_up_older():
                raise
            write_all(self._disk, self._handle, data, self._end)
        self._end += len(data)
        self._running = crc32(data, self._running)
        self._retention.written_bytes = self._end
