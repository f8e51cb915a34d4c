"""Why the journal cannot continue: one class for each reaction, one sentence each.

The classes differ in what the daemon should do, not in what went wrong; the sentence names the file
and the offset. `DirectoryLocked`: another daemon lives there. `JournalCorrupt`: durable bytes are
damaged, nothing was changed, a person must decide. `JournalVersion`: a newer delayd wrote this.
`ForeignFile`: this is no journal's directory, or not only; a wrong path, most likely.
`WrongClock`: the journal is sound, the choice of the clock does not fit it.
`NotEmpty`: a new or empty directory is needed.
`JournalFull`: nothing was appended, keep refusing puts. `JournalFailed`: the disk failed,
acknowledge nothing more. `SnapshotFailed`: nothing was lost, try again later.
"""

import contextlib
from collections.abc import Iterator
from typing import ClassVar

from delayd.exits import Exit
from delayd.journal.disk import owners
from delayd.log import LogError


class JournalError(LogError):
    """Any error of the journal."""


class DirectoryLocked(JournalError):
    """Another process owns the directory."""

    exit_code = Exit.DIRECTORY_LOCKED

    def __init__(
        self, path: str, holder: str, rule: str = "one daemon owns a journal directory"
    ) -> None:
        super().__init__(f"{path} is held by {holder}: {rule}")


class DamageError(JournalError):
    """A place in a file that cannot be accepted; nothing was changed. `why` ends a sentence."""

    exit_code = Exit.CORRUPT_JOURNAL
    is_damage = True

    def __init__(self, file: str, offset: int, why: str) -> None:
        super().__init__(f"{file} at offset {offset}: {why}")
        self.file = file
        self.offset = offset
        self.why = why


class JournalCorrupt(DamageError):
    """Durable bytes are damaged or missing."""


class JournalVersion(DamageError):
    """The file is of a newer format than this program reads."""


class ForeignFile(DamageError):
    """A file that is not part of a journal; `why` says what it is and what to do."""

    is_damage = False

    def __init__(self, file: str, why: str) -> None:
        super().__init__(file, 0, why)

    def __str__(self) -> str:
        """Say it without an offset, which would sound like damage."""
        return f"{self.file} {self.why}; nothing was touched"


class WrongClock(JournalError):
    """The directory is one of the other `clock`; `how` is the flag that fits."""

    exit_code = Exit.BAD_CONFIGURATION

    def __init__(self, directory: str, clock: str, how: str) -> None:
        super().__init__(
            f"{directory} has been used with {clock}: start with {how} another directory; "
            "nothing was touched"
        )


class NotEmpty(JournalError):
    """The directory holds something; nothing was changed."""

    exit_code = Exit.USAGE

    def __init__(self, directory: str, name: str) -> None:
        super().__init__(f"{directory} holds {name}: choose a directory that is new or empty")


class FileError(JournalError):
    """An operation on a file did not succeed."""

    outcome: ClassVar[str] = ""

    def __init__(self, file: str, why: str) -> None:
        super().__init__(f"{file}: {why}{self.outcome}")
        self.file = file
        self.why = why


class JournalFailed(FileError):
    """A file operation failed; what was appended and not synced may be lost; no retry."""


class SnapshotFailed(FileError):
    """A snapshot could not be taken; nothing is left of it, and the journal continues without."""

    outcome = "; the snapshot was given up"
    may_be_tried_again = True


class JournalFull(FileError):
    """There was no space; the journal is as it was before the call, and may be tried again."""

    outcome = "; nothing was appended"
    may_be_tried_again = True


@contextlib.contextmanager
def failing(file: str, problem: str = "cannot be read") -> Iterator[None]:
    """Raise an error of the system as JournalFailed: the file, and what cannot be done with it."""
    try:
        yield
    except OSError as error:
        owner = owners(file) if isinstance(error, PermissionError) else ""
        raise JournalFailed(file, f"{problem}: {error.strerror}{owner}") from error
