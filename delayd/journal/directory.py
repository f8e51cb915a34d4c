"""A journal directory: which files are in it, which process owns it, taking it and giving it back.

Looking changes no file and needs no lock: a stopped daemon's directory, a read-only mount and a
copy can all be looked at. While a daemon runs there it continues writing, so what is seen may be
torn; `holder` shows it. What the files are worth is decided in `recovery`.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from delayd.journal.disk import Disk, LockHeldError
from delayd.journal.errors import DirectoryLocked, ForeignFile, JournalFailed, NotEmpty, failing
from delayd.journal.format import LOCK_NAME, LOST_NAME, TOLERATED_NAMES, check_names, is_ours


class Ownership(NamedTuple):
    """The two locks of an owner, as handles.

    The directory's own cannot be removed by mistake. The file names the process, and is all that
    earlier versions look at.
    """

    directory_handle: int
    file_handle: int


def holder(disk: Disk, directory: str) -> str:
    """Name the process that owns the directory; empty when there is none, or no way to know."""
    # Shared for a moment: a daemon that starts at this very time is refused once.
    named = _named_holder(disk, directory)
    try:
        disk.close(disk.lock_directory(directory, is_shared=True))
    except LockHeldError as error:
        return named or error.holder
    except OSError:
        pass
    return named


def _named_holder(disk: Disk, directory: str) -> str:
    """Name the process that holds the lock file; empty when it is not there, or not locked."""
    try:
        disk.close(disk.share_lock(f"{directory}/{LOCK_NAME}"))
    except LockHeldError as error:
        return error.holder
    except OSError:
        pass
    return ""


def names_in(disk: Disk, directory: str) -> list[str]:
    """Return the names in the directory. Raises JournalFailed."""
    with failing(directory):
        return disk.list_directory(directory)


def look_first(disk: Disk, directory: str) -> None:
    """Raise ForeignFile if something here is not ours, before the lock is one file more.

    What comes after this look is found by `replay`. Raises JournalFailed.
    """
    # A directory that is not there will be made.
    with failing(directory), contextlib.suppress(FileNotFoundError):
        names = disk.list_directory(directory)
        check_names(directory, names)
        check_files(disk, directory, names)


def check_files(disk: Disk, directory: str, names: Iterable[str]) -> None:
    """Raise ForeignFile if one of our names is a pipe's, for which an open would wait for ever.

    Or a device's or a directory's. Raises OSError.
    """
    for name in names:
        path = f"{directory}/{name}"
        # A file may be removed by the daemon of the directory in this very moment.
        with contextlib.suppress(FileNotFoundError):
            if name != LOST_NAME and is_ours(name) and not disk.status(path).is_regular:
                raise ForeignFile(path, "is no file but a directory, pipe or device: remove it")


def take_directory(disk: Disk, directory: str) -> tuple[Ownership, list[str]]:
    """Make the directory if needed and lock it; return the locks, and what was in there.

    Raises DirectoryLocked when another process has it, JournalFailed when it cannot be used.
    """
    try:
        disk.make_directory(directory)
    except FileNotFoundError as missing:
        raise JournalFailed(directory, f"cannot be made: {_why(disk, directory)}") from missing
    except OSError as error:
        raise JournalFailed(directory, f"cannot be made: {error.strerror}") from error
    names = names_in(disk, directory)  # before the lock is one of them
    return _lock(disk, directory), names


def _lock(disk: Disk, directory: str) -> Ownership:
    """Take both locks. Raises DirectoryLocked and JournalFailed."""
    path = f"{directory}/{LOCK_NAME}"
    try:
        # The directory first: where the file is gone, it is not made again beside its owner.
        with failing(directory, "cannot be locked"):
            directory_handle = disk.lock_directory(directory)
    except LockHeldError as held:
        if named := _named_holder(disk, directory):
            raise DirectoryLocked(path, named) from None
        raise DirectoryLocked(directory, held.holder) from None
    try:
        with failing(path, "cannot be locked"):
            return Ownership(directory_handle, disk.lock(path))
    except LockHeldError as held:
        _close(disk, directory_handle)
        raise DirectoryLocked(path, held.holder) from None
    except JournalFailed:
        _close(disk, directory_handle)
        raise


def _why(disk: Disk, directory: str) -> str:
    """Say why a directory cannot be made where the system says that something is not there."""
    parent = os.path.dirname(directory.rstrip("/")) or "."
    try:
        disk.list_directory(parent)
    except FileNotFoundError:
        return f"there is no directory {parent}, make that first"
    except OSError:
        pass  # it is probably there, and must not be read
    # Such as /proc, where the system returns this error for every new name.
    return f"{parent} is there, but takes no new directory"


def release_directory(disk: Disk, owned: Ownership) -> None:
    """Give a directory back: empty its lock file, then close both.

    In this order, so that the number of the next holder is never erased.
    """
    with contextlib.suppress(OSError):  # the number only serves people
        disk.truncate(owned.file_handle, 0)
    _close(disk, owned.file_handle)
    _close(disk, owned.directory_handle)


def _close(disk: Disk, handle: int) -> None:
    """Give a lock back; a close that fails has closed nonetheless."""
    with contextlib.suppress(OSError):
        disk.close(handle)


# --- Filling a new one ---------------------------------------------------------------------------


def leftovers(disk: Disk, directory: str, marker: str) -> list[str]:
    """Return what an unfinished import or backup left, its marker last.

    Raises NotEmpty for anything else, and OSError.
    """
    names = sorted(set(disk.list_directory(directory)) - TOLERATED_NAMES)
    left = []
    if marker in names:
        left = [*filter(is_ours, names), marker]
    for name in names:
        if name not in left:
            raise NotEmpty(directory, name)
    return left


def clear(disk: Disk, directory: str, marker: str) -> None:
    """Remove what is left of an unfinished one, the marker when all else is gone for good.

    Raises NotEmpty and OSError.
    """
    for name in leftovers(disk, directory, marker):
        if name == marker:
            disk.sync_directory(directory)
        disk.unlink(f"{directory}/{name}")


@contextlib.contextmanager
def marked(disk: Disk, directory: str, marker: str) -> Iterator[None]:
    """Keep daemons from starting on the directory unless the block ends well. Raises OSError."""
    path = f"{directory}/{marker}"
    disk.close(disk.create(path))
    disk.sync_directory(directory)
    yield
    disk.unlink(path)
    disk.sync_directory(directory)
