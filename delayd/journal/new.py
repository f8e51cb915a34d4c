"""A journal that a command fills: new, and marked as unfinished until it is whole."""

import contextlib
from collections.abc import Iterator

from delayd.journal.directory import clear, leftovers, marked
from delayd.journal.disk import Disk
from delayd.journal.errors import failing
from delayd.journal.journal import Journal


@contextlib.contextmanager
def new_journal(
    disk: Disk, directory: str, segment_bytes: int, marker: str, identity: bytes = b""
) -> Iterator[Journal]:
    """Give out a new journal, ready for appends; what is left half written is marked as such.

    It has this identity, if it is a copy. Raises NotEmpty, and what `Journal.open` raises.
    """
    # Before the lock, which is a file itself; and again under it, for what has come since.
    with contextlib.suppress(OSError):
        leftovers(disk, directory, marker)
    journal = Journal.open(directory, disk=disk, segment_bytes=segment_bytes, identity=identity)
    try:
        with failing(directory, "cannot be written to"):
            clear(disk, directory, marker)
            for _ in journal.replay():
                raise AssertionError("an empty directory has no frames")
            with marked(disk, directory, marker):
                yield journal
                journal.close()
    finally:
        journal.close()
