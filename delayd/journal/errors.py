"""Why the journal cannot continue: one class for each reaction, one sentence each.

The classes differ in what the daemon should do, not in what went wrong; the sentence names the file
and the offset. `DirectoryLocked`: another daemon lives there. `JournalCorrupt`: durable bytes are
damaged, nothing was changed, a person must decide. `JournalVersion`: a newer delayd wrote this.
`ForeignFile`: this is no journal's directory, or not only; a wrong path, most likely.
`WrongClock`: the journal is sound, the choice of the clock does not fit it.
`JournalFull`: nothing was appended, keep refusing puts. `JournalFailed`: the disk broke its word,
acknowledge nothing more. `SnapshotFailed`: nothing was lost, try again later.
"""


class JournalError(Exception):
    """Whatever the journal may raise at its user."""


class DirectoryLocked(JournalError):
    """Another process owns the directory."""

    def __init__(
        self, path: str, holder_pid: int | None, rule: str = "one daemon owns a journal directory"
    ) -> None:
        """Name the lock file, the process that holds it if it is known, and the rule it keeps."""
        holder = "another process" if holder_pid is None else f"process {holder_pid}"
        super().__init__(f"{path} is held by {holder}: {rule}")
        self.path = path
        self.holder_pid = holder_pid


class DamageError(JournalError):
    """A place in a file that cannot be accepted; nothing was changed."""

    def __init__(self, file: str, offset: int, why: str) -> None:
        """Name the file, the offset in it, and the reason as the end of a sentence."""
        super().__init__(f"{file} at offset {offset}: {why}")
        self.file = file
        self.offset = offset
        self.why = why


class JournalCorrupt(DamageError):
    """Durable bytes are damaged or missing."""


class JournalVersion(DamageError):
    """The file is sound as far as can be told, but a newer format than this program reads."""


class ForeignFile(DamageError):
    """A file that is not part of a journal. Nothing is damaged, and nothing was changed."""

    def __init__(self, file: str, why: str) -> None:
        """Name the file, then say what it is and what to do."""
        super().__init__(file, 0, why)

    def __str__(self) -> str:
        """Say it without an offset, which would sound like damage."""
        return f"{self.file} {self.why}; nothing was touched"


class WrongClock(JournalError):
    """The directory is one of the other clock; nothing was changed."""

    def __init__(self, directory: str, clock: str, how: str) -> None:
        """Name the directory, the clock it was used with, and the flag that fits."""
        super().__init__(
            f"{directory} has been used with {clock}: start with {how} another directory; "
            "nothing was touched"
        )
        self.directory = directory


class JournalFailed(JournalError):
    """A file operation failed; what was appended and not synced may be lost; no retry."""

    def __init__(self, file: str, why: str) -> None:
        """Name the file and the reason."""
        super().__init__(f"{file}: {why}")
        self.file = file
        self.why = why


class SnapshotFailed(JournalError):
    """A snapshot could not be taken; nothing is left of it, and the journal continues without."""

    def __init__(self, file: str, why: str) -> None:
        """Name the file and the reason."""
        super().__init__(f"{file}: {why}; the snapshot was given up")
        self.file = file
        self.why = why


class JournalFull(JournalError):
    """There was no room; the journal is as it was before the call, and may be tried again."""

    def __init__(self, file: str, why: str) -> None:
        """Name the file and the reason."""
        super().__init__(f"{file}: {why}; nothing was appended")
        self.file = file
        self.why = why
