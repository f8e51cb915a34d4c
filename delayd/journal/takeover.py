"""Taking a directory over: lock it, and once it was read, cut, settle, clear up, reopen.

The order matters, since a power cut may come between any two steps. What was read is durable before
anything is removed, and the next recovery comes to the same verdict at every point.

This module refuses to decide anything, and to hold anything: it returns what it has opened.
"""

from delayd.journal.disk import NO_ROOM, Disk, LockHeldError
from delayd.journal.errors import DirectoryLocked, JournalFailed
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


def take_directory(disk: Disk, directory: str) -> int:
    """Make the directory if needed and lock it; return the lock's handle.

    Raises DirectoryLocked when another process has it, JournalFailed when it cannot be used.
    """
    try:
        disk.make_directory(directory)
    except FileNotFoundError as error:
        parent = directory.rstrip("/").rpartition("/")[0] or "."
        why = f"cannot be made: there is no directory {parent}, make that first"
        raise JournalFailed(directory, why) from error
    except OSError as error:
        raise JournalFailed(directory, f"cannot be made: {error.strerror}") from error
    path = f"{directory}/{LOCK_NAME}"
    try:
        return disk.lock(path)
    except LockHeldError as held:
        raise DirectoryLocked(path, held.holder_pid) from None
    except OSError as error:
        raise JournalFailed(path, f"cannot be locked: {error.strerror}") from error


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
