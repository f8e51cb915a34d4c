"""Why the log in a database cannot be used: one class for each reaction.

A sentence names the database without user, password and options, and quotes of what the server said
one line (`DatabasePlace.shown`), so that nothing secret gets into a log.
"""

from typing import Final

from delayd.exits import Exit
from delayd.log import LogError

FULL: Final = "53100"
"""SQLSTATE of a disk that is full."""


class DatabaseError(LogError):
    """Whatever the log in a database may raise at its user; a restart may find it well again."""


class DatabaseLost(DatabaseError):
    """It cannot be reached, or did not answer in time; what was under way may have happened."""


class SnapshotGivenUp(DatabaseError):
    """A snapshot was not taken: nothing is lost, another one is tried later."""

    may_be_tried_again = True


class DatabaseUnfit(DatabaseError):
    """It may lose what was acknowledged, or its role lacks a right: somebody has to decide."""

    exit_code = Exit.BAD_CONFIGURATION


class DatabaseCorrupt(DatabaseError):
    """Its tables hold what delayd did not write, or a newer delayd did; nothing was changed."""

    exit_code = Exit.CORRUPT_JOURNAL


class Fenced(DatabaseError):
    """Another daemon owns the log by now."""

    exit_code = Exit.FENCED


class LeftBehind(DatabaseError):
    """What this standby has read is not, or no longer, the log: it has to read the snapshot."""


class StatementFailed(DatabaseError):
    """The server refused a statement, which changed nothing."""

    def __init__(self, shown: str, state: str, message: str) -> None:
        super().__init__(f"{shown}: {message} (SQLSTATE {state})")
        self.state = state
