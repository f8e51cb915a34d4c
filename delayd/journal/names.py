"""What may be in a journal's directory: files of ours, the lock, and what every mount point has."""

from collections.abc import Iterable
from typing import Final

from delayd.journal.errors import JournalCorrupt
from delayd.journal.format import SEGMENT_NAME
from delayd.journal.repair import TEMPORARY, TORN_COPY
from delayd.journal.reserve import SPARE_NAME
from delayd.journal.snapshot import SNAPSHOT_NAME

LOCK_NAME: Final = "lock"

OUR_NAMES: Final = (SEGMENT_NAME, SNAPSHOT_NAME, TEMPORARY, TORN_COPY, SPARE_NAME)

TOLERATED_NAMES: Final = frozenset({LOCK_NAME, "lost+found"})


def check_names(directory: str, names: Iterable[str]) -> None:
    """Raise JournalCorrupt if a file is not one of ours, so that a wrong path does no harm."""
    for name in sorted(names):
        if name not in TOLERATED_NAMES and not any(own.fullmatch(name) for own in OUR_NAMES):
            path = f"{directory}/{name}"
            raise JournalCorrupt(path, 0, "this file is not part of a delayd journal")
