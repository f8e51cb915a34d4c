"""Taking a directory over: lock it, and once it was read, cut, settle, clear up, reopen.

The order matters, since a power cut may come between any two steps. What was read is durable before
anything is removed, and the next recovery comes to the same verdict at every point.

This module refuses to decide anything, and to hold anything: it returns what it has opened.
"""

import contextlib
import os

from delayd.journal.disk import NO_ROOM, Disk, LockHeldError
from delayd.journal.errors import DirectoryLocked, JournalFailed
from delayd.journal.inspection import names_in
from delayd.journal.names import LOCK_NAME, check_names
from delayd.journal.recovery import Recovery, Verdict
from delayd.journal.repair import TornTail, cut, remove_leftovers, settle
from delayd.journal.reserve import Reserve
from delayd.journal.retention import Retention
from delayd.journal.segment import Segment


def look_first(disk: Disk, directory: str) -> None:
    """Raise ForeignFile if something here is not ours, before the lock is one file more.

    What comes after this look is found by `replay`. Raises JournalFailed.
    """
    try:
        names = disk.list_directory(directory)
    except FileNotFoundError:
        return  # it will be made
    except OSError as error:
        raise JournalFailed(directory, f"cannot be read: {error.strerror}") from error
    check_names(directory, names)


def take_directory(disk: Disk, directory: str) -> tuple[int, list[str]]:
    """Make the directory if needed and lock it; return the lock's handle, and what was in there.

    Raises DirectoryLocked when another process has it, JournalFailed when it cannot be used.
    """
    try:
        disk.make_directory(directory)
    except FileNotFoundError as error:
        raise JournalFailed(directory, f"cannot be made: {_why(disk, directory)}") from error
    except OSError as error:
        raise JournalFailed(directory, f"cannot be made: {error.strerror}") from error
    names = names_in(disk, directory)  # before the lock is one of them
    path = f"{directory}/{LOCK_NAME}"
    try:
        return disk.lock(path), names
    except LockHeldError as held:
        raise DirectoryLocked(path, held.holder_pid) from None
    except OSError as error:
        raise JournalFailed(path, f"cannot be locked: {error.strerror}") from error


def _why(disk: Disk, directory: str) -> str:
    """Say why a directory cannot be made where the system says that something is not there."""
    parent = os.path.dirname(directory.rstrip("/")) or "."
    try:
        disk.list_directory(parent)
    except FileNotFoundError:
        return f"there is no directory {parent}, make that first"
    except OSError:
        pass  # it is there, as far as can be told, and must not be read
    # Such as /proc, of which the system says so whatever shall be made in it.
    return f"{parent} is there, but takes no new directory"


def release_directory(disk: Disk, handle: int) -> None:
    """Give a directory back: empty its lock, then close it.

    In this order, so that what is emptied is never the number of who comes next.
    """
    with contextlib.suppress(OSError):  # the number only serves people
        disk.truncate(handle, 0)
    with contextlib.suppress(OSError):
        disk.close(handle)


def take_over(
    disk: Disk,
    directory: str,
    names: list[str],
    recovery: Recovery,
    reserve: Reserve,
    retention: Retention,
    segment_bytes: int,
) -> tuple[list[TornTail], Segment | None]:
    """Cut what is torn, make durable what is good, remove what is not needed any more.

    Returns what was cut and the last segment, open for appending. Raises OSError.
    """
    reserve.adopt(names)
    torn_tails = []
    if recovery.verdict is Verdict.CUT:
        torn_tails = _cut(disk, directory, names, recovery, reserve)
    settle(disk, directory, recovery)
    remove_leftovers(disk, directory, names)
    active = _reopened(disk, recovery, segment_bytes) if recovery.segments else None
    retention.adopt(recovery, active)
    return torn_tails, active


def _cut(
    disk: Disk, directory: str, names: list[str], recovery: Recovery, reserve: Reserve
) -> list[TornTail]:
    """Cut what is torn; on a full disk the reserve makes way for the copy."""
    try:
        return cut(disk, directory, names, recovery)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        reserve.shrink(0)
        return cut(disk, directory, names, recovery)


def _reopened(disk: Disk, recovery: Recovery, segment_bytes: int) -> Segment:
    """Open the last segment for appending, preallocated again as far as there is room."""
    last = recovery.segments[-1]
    assert last.header is not None
    handle = disk.open(last.path, write=True)
    capacity = max(segment_bytes, last.size_bytes)
    try:
        disk.allocate(handle, capacity)
    except OSError as error:
        # A full disk must not keep a daemon from starting: it is then that jobs need draining.
        if error.errno not in NO_ROOM:
            disk.close(handle)
            raise
        capacity = disk.size(handle)
    return Segment(
        disk,
        last.path,
        handle,
        last.header,
        end=last.end,
        last_sequence=recovery.sequence,
        capacity=capacity,
        is_named_durably=True,
    )
