"""What may be in a journal's directory: files of ours, the lock, and what every mount point has."""

import re
from collections.abc import Collection
from typing import Final

from delayd.journal.errors import ForeignFile, WrongClock
from delayd.journal.format import SEGMENT_NAME
from delayd.journal.repair import TEMPORARY, TORN_COPY
from delayd.journal.reserve import SPARE_NAME
from delayd.journal.snapshot import SNAPSHOT_NAME

LOCK_NAME: Final = "lock"

OUR_NAMES: Final = (SEGMENT_NAME, SNAPSHOT_NAME, TEMPORARY, TORN_COPY, SPARE_NAME)

TOLERATED_NAMES: Final = frozenset({LOCK_NAME, "lost+found"})

MARKER_NAME: Final = "import-unfinished"
"""Lies in the directory for as long as not all jobs of an import are in it."""

VIRTUAL_NAME: Final = "virtual-clock"
"""Lies in a directory that is used with a virtual clock, from the first time on and for good."""

BINLOG_NAME: Final = re.compile(r"binlog\.([1-9][0-9]*)")
"""beanstalkd's files; for its directory the refusal says how to import the jobs."""


def check_names(directory: str, names: Collection[str]) -> None:
    """Raise ForeignFile if a file is not one of ours, so that a wrong path does no harm."""
    foreign = [name for name in names if not _is_ours(name)]
    if not foreign:
        return
    # What says most about the directory comes first.
    name = min(foreign, key=lambda name: (name != MARKER_NAME, not _is_binlog(name), name))
    if name == MARKER_NAME:
        why = "is left of an unfinished import: the same command begins it again"
    elif _is_binlog(name):
        how = f"delayd import-beanstalkd {directory} --data-dir NEW_DIRECTORY"
        why = f"is beanstalkd's: to take its jobs over, stop it and run `{how}`"
    else:
        why = "is not delayd's: choose a directory of its own, or move the file away"
    raise ForeignFile(f"{directory}/{name}", why)


def check_clock(directory: str, names: Collection[str], *, is_virtual: bool) -> None:
    """Raise WrongClock if the directory belongs to the other clock; a fresh one does to neither.

    Their times are not comparable: a job of next week, put on one, would come at once or in years.
    """
    if VIRTUAL_NAME in names:
        if not is_virtual:
            raise WrongClock(directory, "a virtual clock", "--clock virtual, or with")
    elif is_virtual and not TOLERATED_NAMES.issuperset(names):
        raise WrongClock(directory, "the system clock", "--clock system, or with")


def _is_ours(name: str) -> bool:
    is_fixed = name in TOLERATED_NAMES or name == VIRTUAL_NAME
    return is_fixed or any(own.fullmatch(name) for own in OUR_NAMES)


def _is_binlog(name: str) -> bool:
    return BINLOG_NAME.fullmatch(name) is not None
