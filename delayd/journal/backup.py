"""A copy of a journal directory, taken while a daemon serves from it, without asking the daemon.

    names listed ─► all files opened ─► end of the last segment found ─► copied, synced
                                                                           └─► verified ─► log-end

Why the copy is consistent. A snapshot never changes once it has its name. A segment only grows, and
what its intact frames hold never changes. An open file can be read even when retention has removed
it, so the set of files is the one of the moment in which they were opened; if one of the listed
files is gone before that, the list is made anew. Only the end of the last segment moves: it is the
last intact frame when it is looked for, and what is written after it later is not copied.

A client is answered after its frame was written. So the copy holds everything that was acknowledged
before the backup began, whatever the sync policy, and ends between two frames, as after a kill.

Say the last segment is read while the daemon writes frame 8 of it: the copy ends with frame 7. If
frame 9 is found intact after it, saying that 8 had been durable, 8 is read again: it is whole now,
or damaged, and then there is no backup.

The copy gets a `log-end` of its own, which tells its last frame: if it is cut off later, nothing
else shows it. The source's is read before the names are listed, so the files hold what it tells.

`marked` keeps daemons from starting on a half copied directory, however the backup ended. The
directory that is copied is not locked.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from delayd.journal.directory import (
    check_files,
    clear,
    leftovers,
    marked,
    names_in,
    release_directory,
    take_directory,
)
from delayd.journal.disk import Disk, copy_bytes, end_of_data, opened, read_exactly, used_bytes
from delayd.journal.errors import (
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalVersion,
    failing,
)
from delayd.journal.format import (
    BACKUP_MARKER,
    END_NAME,
    HEADER_BYTES,
    SEGMENT_NAME,
    SNAPSHOT_NAME,
    VIRTUAL_NAME,
    check_names,
    unpack_header,
)
from delayd.journal.log_end import PROVES_NOTHING, LogEnd, LogEndFile, read_log_end
from delayd.journal.recovery import FrameReader, LogVerdict, Position, Recovery, Stop, last_position
from delayd.limits import BACKUP_ATTEMPTS_MAX, SNAPSHOT_SYNC_BYTES


class HeldFile(NamedTuple):
    """A file of the directory, open for reading."""

    name: str
    handle: int


class Backup(NamedTuple):
    """A directory that was copied, durable and not verified yet."""

    source: str
    target: str
    names: list[str]  # the files in it
    copied_bytes: int
    end: LogEnd  # the last frame that was found, which the copy must hold
    told: LogEnd  # what the source's `log-end` proves

    def verify(self, recovery: Recovery) -> None:
        """Compare what a start would make of the copy with what was there. Raises JournalFailed.

        All frames have been read by `recovery`.
        """
        if recovery.verdict is not LogVerdict.ACCEPT and recovery.place is not None:
            # One in the last file was not copied. With no daemon running, a power cut leaves this.
            torn = f"{recovery.place.why}, and another file follows"
            how = "start the daemon on it once, which cuts what is torn"
            raise JournalFailed(self.source, f"the log is torn ({torn}): {how}")
        if recovery.sequence != self.end.sequence:
            wanted = f"the log went up to frame {self.end.sequence}"
            raise JournalFailed(self.target, f"the copy ends with {recovery.sequence}, {wanted}")
        is_other = self.told.identity not in {b"", self.end.identity}
        if is_other or self.told.sequence > self.end.sequence:
            why = f"the log is another one, or ends before frame {self.told.sequence}"
            raise JournalCorrupt(f"{self.source}/{END_NAME}", 0, why)


@contextlib.contextmanager
def backup(
    disk: Disk,
    source: str,
    target: str,
    watch: Callable[[int], AbstractContextManager[Callable[[int], object]]],
) -> Iterator[Backup]:
    """Copy a journal directory into a new or empty one, and give out what is to be verified.

    The copy counts when the block has ended. If that raises, or anything before, nothing of it is
    left, or a directory on which no daemon starts. `watch` gets the number of bytes, and yields a
    function that gets how many were copied. Raises JournalError.
    """
    with failing(source), contextlib.ExitStack() as held:
        told = _told(disk, source)
        files = _hold(disk, source, held)
        if not any(SEGMENT_NAME.fullmatch(file.name) for file in files):
            raise JournalFailed(source, "there is no log in it, so nothing to back up")
        # Before the lock, which is a file itself; and again under it, for what has come since.
        with contextlib.suppress(OSError):
            leftovers(disk, target, BACKUP_MARKER)
        owned, _ = take_directory(disk, target)
        held.callback(release_directory, disk, owned)
        with failing(target, "cannot be written to"):
            clear(disk, target, BACKUP_MARKER)
            try:
                with marked(disk, target, BACKUP_MARKER):
                    sizes, end = _sizes(disk, source, files)
                    _copy(disk, source, target, files, sizes, watch)
                    names = [file.name for file in files]
                    yield Backup(source, target, names, sum(sizes), end, told)
                    _write_end(disk, target, end)
            except BaseException:
                with contextlib.suppress(OSError, JournalError):
                    clear(disk, target, BACKUP_MARKER)
                raise


def _told(disk: Disk, directory: str) -> LogEnd:
    """Return what the directory's `log-end` proves. Raises JournalError and OSError."""
    check_files(disk, directory, [END_NAME])
    with contextlib.suppress(FileNotFoundError):
        return read_log_end(disk, f"{directory}/{END_NAME}") or PROVES_NOTHING
    return PROVES_NOTHING


def _hold(disk: Disk, directory: str, held: contextlib.ExitStack) -> list[HeldFile]:
    """Open all files that a start would read, all there at one time.

    Raises JournalError and OSError.
    """
    for _ in range(BACKUP_ATTEMPTS_MAX):
        # Snapshots first: in a list of many names one may be there already, and a file of the log
        # that was made before it not yet.
        names = list(filter(SNAPSHOT_NAME.fullmatch, names_in(disk, directory)))
        found = names_in(disk, directory)
        check_names(directory, found)
        check_files(disk, directory, found)
        names += (name for name in found if SEGMENT_NAME.fullmatch(name) or name == VIRTUAL_NAME)
        files = []
        try:
            for name in sorted(names):
                handle = held.enter_context(opened(disk, f"{directory}/{name}"))
                files.append(HeldFile(name, handle))
        except FileNotFoundError:
            # A snapshot was finished meanwhile, and this file removed.
            held.close()
        except OSError as error:
            raise JournalFailed(directory, f"cannot be read: {error.strerror}") from error
        else:
            return files
    raise JournalFailed(directory, "its files are removed faster than they can be opened")


def _sizes(disk: Disk, source: str, files: list[HeldFile]) -> tuple[list[int], LogEnd]:
    """Return how much of each file is to be copied, and the last frame. Raises JournalError."""
    last_segment = max(file.name for file in files if SEGMENT_NAME.fullmatch(file.name))
    end = PROVES_NOTHING
    sizes = []
    for name, handle in files:
        with failing(f"{source}/{name}"):
            size_bytes = disk.size(handle)
            if name == last_segment:
                size_bytes, end = _end_of_frames(disk, f"{source}/{name}", handle)
            elif SEGMENT_NAME.fullmatch(name) and used_bytes(disk, handle) < size_bytes:
                # Full, but not cut to its frames yet; or the last checksum ends with a zero.
                size_bytes, _ = _end_of_frames(disk, f"{source}/{name}", handle)
        sizes.append(size_bytes)
    return sizes, end


def _copy(
    disk: Disk,
    source: str,
    target: str,
    files: list[HeldFile],
    sizes: list[int],
    watch: Callable[[int], AbstractContextManager[Callable[[int], object]]],
) -> None:
    """Copy the files, which are open, and sync each and their names. Raises JournalError."""
    with watch(sum(sizes)) as on_bytes:
        for file, size_bytes in zip(files, sizes, strict=True):
            with failing(f"{source}/{file.name}", f"cannot be copied to {target}"):
                _copy_file(disk, file, f"{target}/{file.name}", size_bytes, on_bytes)
    with failing(target, "cannot be synced"):
        disk.sync_directory(target)


def _copy_file(
    disk: Disk, file: HeldFile, path: str, size_bytes: int, on_bytes: Callable[[int], object]
) -> None:
    """Copy so much of a file, in pieces that a busy disk can bear, and sync it. Raises OSError."""
    handle = disk.create(path)
    try:
        for offset in range(0, size_bytes, SNAPSHOT_SYNC_BYTES):
            count = min(SNAPSHOT_SYNC_BYTES, size_bytes - offset)
            copy_bytes(disk, (file.handle, offset), (handle, offset), count)
            disk.sync(handle)
            on_bytes(count)
        disk.sync(handle)
    finally:
        disk.close(handle)


def _write_end(disk: Disk, target: str, end: LogEnd) -> None:
    """Write down where the copy ends, durably. Raises JournalError."""
    file = LogEndFile(disk, target, end.identity)
    with failing(f"{target}/{END_NAME}", "cannot be written"):
        try:
            file.write(end.sequence, is_closed=True)
        finally:
            file.close()


def _end_of_frames(disk: Disk, path: str, handle: int) -> tuple[int, LogEnd]:
    """Return where the frames of the last segment end, and the last one of them.

    Raises JournalCorrupt, JournalVersion and OSError.
    """
    size_bytes = disk.size(handle)
    head = read_exactly(disk, handle, HEADER_BYTES, 0)
    header = unpack_header(head) if len(head) == HEADER_BYTES else None
    if header is None:
        # What it is, the verification of the copy finds out.
        return end_of_data(disk, handle, 0, size_bytes), PROVES_NOTHING
    reader = FrameReader(disk, handle, header.identity, header.number)
    position = Position(Stop.END, HEADER_BYTES, header.first_sequence, 0)
    durable_offset = -1
    while True:
        _, offset, sequence, synced = position
        position = last_position(reader.frames(offset, size_bytes, sequence, synced))
        if position.stop is Stop.KIND:
            raise JournalVersion(path, position.offset, position.stop.value)
        if position.offset == durable_offset:
            # It had been durable before it was read again, so it was not being written.
            raise JournalCorrupt(path, position.offset, position.stop.value)
        found = reader.search(position.offset, size_bytes)
        if position.stop is Stop.END or all(synced < position.sequence for _, synced, _ in found):
            return position.offset, LogEnd(header.identity, position.sequence - 1, 0)
        durable_offset = position.offset
