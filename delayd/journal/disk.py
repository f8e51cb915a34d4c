"""The file layer: the only place where delayd touches files of its journal.

`Disk` is a protocol of a dozen verbs, small enough that a simulated disk
(`tests.rigs.disk`) can keep every promise of it, and break every promise that a real one
breaks. One conformance suite runs against both. The verbs raise `OSError` as the operating system
does; what that means is decided above. What is promised, and no more:

- what `pwrite` wrote is seen by `pread` at once, and survives the death of the process;
- it survives a power cut once `sync` on that handle has returned;
- a name made, changed or removed survives a power cut once `sync_directory` has returned;
- un-synced changes survive or not, each for itself, in any order, and torn at any sector.
"""

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from delayd.limits import JOURNAL_WINDOW_BYTES

FILE_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700

NO_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Errors of a write that mean: nothing is broken, there was just no space."""
NO_DIRECTORY_LOCKS: Final = frozenset(
    {errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
)
"""Errors that mean: the file system cannot lock a directory."""
ZEROS: Final = bytes(JOURNAL_WINDOW_BYTES)


class LockHeldError(Exception):
    """The lock is held by another process; `holder_pid` is what that wrote into the file."""

    def __init__(self, holder_pid: int | None) -> None:
        self.holder = "another process" if holder_pid is None else f"process {holder_pid}"
        super().__init__(f"held by {self.holder}")
        self.holder_pid = holder_pid


class FileStatus(NamedTuple):
    """What a name or a handle stands for."""

    number: int  # no other file of the same file system has it at this time
    is_regular: bool  # a file with bytes in it: no directory, pipe or device
    size_bytes: int


class Disk(Protocol):
    """What the journal asks of a disk. Handles are small integers; paths are strings."""

    def make_directory(self, path: str) -> None:
        """Make the directory, durably and for its owner alone; do nothing if it is there."""

    def list_directory(self, path: str, /) -> list[str]:
        """Return the names in the directory, in any order."""

    def sync_directory(self, path: str) -> None:
        """Make the names in the directory durable."""

    def lock(self, path: str) -> int:
        """Take the lock file, making it if needed; `close` gives it back. Raises LockHeldError."""

    def share_lock(self, path: str) -> int:
        """Keep others from taking an existing lock file, changing nothing; `close` ends that.

        Several may share it. Raises LockHeldError when another process has it exclusively.
        """

    def lock_directory(self, path: str, *, is_shared: bool = False) -> int:
        """Lock an existing directory itself, with no file for it; `close` gives it back.

        Alone or shared, independent of `lock` and `share_lock`; the holder is not known. Raises
        LockHeldError.
        """

    def open(self, path: str, *, write: bool = False) -> int:
        """Open an existing file."""

    def create(self, path: str) -> int:
        """Make an empty file and open it for writing; a file of that name is emptied."""

    def close(self, handle: int, /) -> None:
        """Close the handle; this syncs nothing."""

    def size(self, handle: int) -> int:
        """Return the length of the file in bytes."""

    def status(self, file: int | str, /) -> FileStatus:
        """Return what a handle, or a path, stands for; a directory has a number as well."""

    def pread(self, handle: int, count: int, offset: int, /) -> bytes:
        """Return up to `count` bytes from `offset`; fewer at the end of the file, or at whim."""

    def pwrite(self, handle: int, data: bytes, offset: int, /) -> int:
        """Write at `offset` and return how many bytes were written: at least one, maybe not all."""

    def allocate(self, handle: int, size: int) -> None:
        """See that the file is at least `size` long and has the space; new bytes are zeros.

        After an error the file may keep what was had of it, up to all the space of the disk.
        """

    def free_bytes(self, path: str) -> int:
        """Return about how much more the directory's file system takes."""

    def truncate(self, handle: int, size: int, /) -> None:
        """Cut or extend the file to this length."""

    def sync(self, handle: int, /) -> None:
        """Make the file's bytes and length durable."""

    def rename(self, old_path: str, new_path: str, /) -> None:
        """Give the file another name, replacing what had it."""

    def unlink(self, path: str, /) -> None:
        """Remove the name."""

    def unique_bytes(self, count: int, /) -> bytes:
        """Return bytes that no other journal has got."""


class RealDisk:
    """The operating system's files."""

    # The system's own functions: no frame of Python between, above all for the two that carry the
    # load.
    pread = staticmethod(os.pread)
    pwrite = staticmethod(os.pwrite)
    sync = staticmethod(os.fdatasync)
    close = staticmethod(os.close)
    truncate = staticmethod(os.ftruncate)
    list_directory = staticmethod(os.listdir)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    unique_bytes = staticmethod(os.urandom)

    def make_directory(self, path: str) -> None:
        parent = os.path.dirname(path.rstrip("/")) or "."
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            # Its creator may have died before it was durable; but a directory that an
            # administrator made for us may well lie in one that we must not read.
            with contextlib.suppress(PermissionError):
                self.sync_directory(parent)
        else:
            self.sync_directory(parent)

    def sync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def lock(self, path: str) -> int:
        """Take the lock file and write our process id into it; the kernel drops it when we die."""
        handle = self._made(path)
        with self._locking(handle):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The id is only for the message of a second daemon: on a full disk we do without it.
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.pwrite(handle, b"%d\n" % os.getpid(), 0)
        return handle

    def share_lock(self, path: str) -> int:
        """Keep others from taking the lock file, whichever of the system's two locks they use.

        Neither lock sees the other: delayd takes one on its directories, beanstalkd the other.
        """
        handle = self.open(path)
        with self._locking(handle):
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return handle

    def lock_directory(self, path: str, *, is_shared: bool = False) -> int:
        """Lock a directory, which unlike a file in it is not removed while it is in use.

        Some file systems have no locks for directories, NFS for one: there this does nothing.
        """
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise LockHeldError(None) from None
        except OSError as error:
            if error.errno not in NO_DIRECTORY_LOCKS:
                os.close(handle)
                raise
        return handle

    @staticmethod
    @contextlib.contextmanager
    def _locking(handle: int) -> Iterator[None]:
        """Close a lock file that cannot be taken; its holder has written a process id there."""
        try:
            yield
        except BlockingIOError:
            holder = os.pread(handle, 20, 0).strip()
            os.close(handle)
            raise LockHeldError(int(holder) if holder.isdigit() else None) from None
        except OSError:
            os.close(handle)
            raise

    def open(self, path: str, *, write: bool = False) -> int:
        """Open an existing file; a pipe of that name is not waited for, and refused."""
        handle = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_NONBLOCK | os.O_CLOEXEC)
        mode = os.fstat(handle).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            os.close(handle)
            raise OSError(errno.EINVAL, "it is not a file", path)
        return handle

    def create(self, path: str) -> int:
        """Make an empty file and open it for writing."""
        return self._made(path, os.O_TRUNC)

    @staticmethod
    def _made(path: str, more: int = 0) -> int:
        """Open a file of this very name, made if needed: what a link points to is another's."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | more
        try:
            return os.open(path, flags, FILE_MODE)
        except OSError as error:
            if error.errno == errno.ELOOP:
                why = "it is a link, and what it points to was not touched: remove the link"
                raise OSError(errno.ELOOP, why, path) from None
            raise

    def size(self, handle: int) -> int:
        return os.fstat(handle).st_size

    def status(self, file: int | str, /) -> FileStatus:
        found = os.stat(file)
        return FileStatus(found.st_ino, stat.S_ISREG(found.st_mode), found.st_size)

    def allocate(self, handle: int, size: int) -> None:
        """Reserve space, so that neither a full disk nor a new length meets the writes to come.

        Where there is too little, ext4 takes all of it and then reports the error; tmpfs does not.
        """
        os.posix_fallocate(handle, 0, size)

    def free_bytes(self, path: str) -> int:
        """Return what the file system has left for us."""
        system = os.statvfs(path)
        return system.f_bavail * system.f_frsize


@contextlib.contextmanager
def opened(disk: Disk, path: str, *, write: bool = False) -> Iterator[int]:
    """Open an existing file for a while. Raises OSError."""
    handle = disk.open(path, write=write)
    try:
        yield handle
    finally:
        disk.close(handle)


def file_bytes(disk: Disk, path: str) -> int:
    """Return the length of a file. Raises OSError."""
    with opened(disk, path) as handle:
        return disk.size(handle)


def read_exactly(disk: Disk, handle: int, count: int, offset: int) -> bytes:
    """Read `count` bytes; fewer only where the file ends. Raises OSError."""
    data = disk.pread(handle, count, offset)
    while len(data) < count:
        more = disk.pread(handle, count - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def end_of_data(disk: Disk, handle: int, start: int, end: int) -> int:
    """Return the offset after the last non-zero byte of a range; `start` if there is none."""
    last = start
    for offset in range(start, end, JOURNAL_WINDOW_BYTES):
        window = read_exactly(disk, handle, min(JOURNAL_WINDOW_BYTES, end - offset), offset)
        # Comparing with zeros is what a preallocated tail costs at start: 64 MiB in about 10 ms.
        if window != ZEROS[: len(window)]:
            last = offset + len(window.rstrip(b"\0"))
    return last


def used_bytes(disk: Disk, handle: int) -> int:
    """Return the offset after the last non-zero byte of a file. O(zeros at its end)."""
    end = disk.size(handle)
    while end > 0:
        start = max(0, end - JOURNAL_WINDOW_BYTES)
        used = end_of_data(disk, handle, start, end)
        if used > start:
            return used
        end = start
    return 0


def allocate_whole(disk: Disk, handle: int, size: int) -> None:
    """Allocate all of it; after an error the file is as long as before. Raises OSError."""
    before = disk.size(handle)
    try:
        disk.allocate(handle, size)
    except OSError:
        # This also frees what lies after the end of the file.
        with contextlib.suppress(OSError):
            disk.truncate(handle, before)
        raise


def write_all(disk: Disk, handle: int, data: bytes, offset: int) -> None:
    """Write all of `data`, however many calls the disk makes of it. Raises OSError."""
    written = disk.pwrite(handle, data, offset)
    while written < len(data):
        written += disk.pwrite(handle, data[written:], offset + written)


def copy_bytes(disk: Disk, source: tuple[int, int], target: tuple[int, int], count: int) -> None:
    """Copy so many bytes from one (handle, offset) to another. Raises OSError."""
    for done in range(0, count, JOURNAL_WINDOW_BYTES):
        window_bytes = min(JOURNAL_WINDOW_BYTES, count - done)
        data = read_exactly(disk, source[0], window_bytes, source[1] + done)
        if len(data) < window_bytes:
            raise OSError(errno.EIO, "the file became shorter while it was copied")
        write_all(disk, target[0], data, target[1] + done)


def owners(file: str) -> str:
    """Return a clause that names the owner of a file that this user may not use; empty: unknown."""
    import pwd  # noqa: PLC0415 - only after an error

    def name(uid: int) -> str:
        try:
            return pwd.getpwuid(uid).pw_name
        except KeyError:
            return str(uid)

    try:
        uid = os.stat(file).st_uid
    except OSError:
        return ""
    return f"; it belongs to the user {name(uid)}, and this is {name(os.geteuid())}"
