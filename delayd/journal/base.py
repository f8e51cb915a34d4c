"""What a start continues from: the newest snapshot that is whole, or the log from its first frame.

Two questions decide. What do the files say that bear the name of a snapshot? And does the log reach
back to the frame that comes next? `BASES` is the whole table. A damaged snapshot is no corruption
as long as something older replaces it: the one before and the longer log give the same state.
Whatever is damaged is reported and left where it is; the next snapshot takes its place.

Say the directory holds snapshots up to frames 40 and 70 and the log from frame 38 on. The newer one
is whole: continue with frame 71. It is damaged: continue from 40, with frame 41. Both are: the log
would have to begin with frame 1, it does not, so refuse.

That a snapshot bears its name also testifies that its frames had been durable, since it gets the
name after them; the log may not end before `testimony`.

This module reads snapshots only; the log's frames are the affair of `recovery`.
"""

import enum
import errno
from collections.abc import Sequence
from typing import Final, NamedTuple

from delayd.journal.disk import Disk
from delayd.journal.errors import JournalCorrupt, JournalError, JournalVersion
from delayd.journal.snapshot import (
    SNAPSHOT_NAME,
    SNAPSHOT_VERSION,
    Damage,
    SnapshotInfo,
    read_snapshot_header,
    snapshot_name,
    unpack_snapshot_header,
    verify,
    version_of,
)


class Snapshots(enum.Enum):
    """What the snapshots of a directory are, taken together."""

    NONE = "there is none"
    WHOLE = "the newest is whole"
    PREVIOUS = "the newest is damaged, an older one is whole"
    DAMAGED = "all are damaged"
    NEWER = "one was written by a newer version"
    FOREIGN = "one belongs to another journal or bears another's name"


class LogStart(enum.Enum):
    """How the log joins what would come before it: the snapshot to be used, or nothing."""

    NOTHING = "there is no log"
    REACHES = "the next frame is in it, as far as headers can tell"
    GAP = "it begins behind the next frame"


class Basis(enum.Enum):
    """What to continue from."""

    LOG = "the first frame of the log"
    NEWEST = "the newest snapshot"
    PREVIOUS = "the newest of the older snapshots that is whole"
    CORRUPT = "refuse: something durable is damaged or missing"
    NEWER = "refuse: this program is too old"


_NOTHING, _REACHES, _GAP = LogStart
BASES: Final[dict[tuple[Snapshots, LogStart], Basis]] = {
    (Snapshots.NONE, _NOTHING): Basis.LOG,  # a new directory
    (Snapshots.NONE, _REACHES): Basis.LOG,
    (Snapshots.NONE, _GAP): Basis.CORRUPT,
    # A snapshot never stands alone: the file that holds its last frame is kept with it.
    (Snapshots.WHOLE, _NOTHING): Basis.CORRUPT,
    (Snapshots.WHOLE, _REACHES): Basis.NEWEST,
    (Snapshots.WHOLE, _GAP): Basis.CORRUPT,
    (Snapshots.PREVIOUS, _NOTHING): Basis.CORRUPT,
    (Snapshots.PREVIOUS, _REACHES): Basis.PREVIOUS,
    (Snapshots.PREVIOUS, _GAP): Basis.CORRUPT,
    (Snapshots.DAMAGED, _NOTHING): Basis.CORRUPT,
    (Snapshots.DAMAGED, _REACHES): Basis.LOG,
    (Snapshots.DAMAGED, _GAP): Basis.CORRUPT,
    # Files of a newer delayd or of another program: what else they changed is not known.
    (Snapshots.NEWER, _NOTHING): Basis.NEWER,
    (Snapshots.NEWER, _REACHES): Basis.NEWER,
    (Snapshots.NEWER, _GAP): Basis.NEWER,
    (Snapshots.FOREIGN, _NOTHING): Basis.CORRUPT,
    (Snapshots.FOREIGN, _REACHES): Basis.CORRUPT,
    (Snapshots.FOREIGN, _GAP): Basis.CORRUPT,
}


class Log(NamedTuple):
    """What the headers of the segments say about the log as a whole."""

    path: str
    """The first segment."""

    identity: bytes | None
    first_sequence: int | None
    """The log's first frame; None if that header is unreadable, which reading will judge."""


class Base:
    """The decision about the snapshots of one directory; `decide` makes it."""

    def __init__(self, disk: Disk, directory: str, names: Sequence[str]) -> None:
        """Note the names; nothing is read."""
        self._disk = disk
        matches = filter(None, map(SNAPSHOT_NAME.fullmatch, names))
        self._sequences = sorted((int(match[1]) for match in matches), reverse=True)
        self._paths = [f"{directory}/{snapshot_name(number)}" for number in self._sequences]
        self._trouble: JournalError | None = None
        self.snapshots = Snapshots.NONE
        self.log_start: LogStart | None = None
        self.basis: Basis | None = None
        self.snapshot: SnapshotInfo | None = None
        """What to continue from; None: the first frame of the log."""
        self.damaged: list[Damage] = []
        """Snapshots that could not be used, newest first; for the log."""

    @property
    def sequence(self) -> int:
        """The last frame that need not be read from the log."""
        return self.snapshot.sequence if self.snapshot else 0

    @property
    def testimony(self) -> int:
        """The last frame that a snapshot's name shows to have been durable."""
        return self._sequences[0] if self._sequences else 0

    @property
    def older_paths(self) -> list[tuple[int, str]]:
        """(sequence, path) of the snapshots before the one in use, newest first; not verified."""
        pairs = zip(self._sequences, self._paths, strict=True)
        return [pair for pair in pairs if pair[0] < self.sequence]

    def decide(self, log: Log | None) -> None:
        """Find what to continue from. Raises JournalCorrupt, JournalVersion and OSError."""
        self.snapshots = self._judge_headers(log) or self._find_whole()
        if log is None:
            self.log_start = LogStart.NOTHING
        elif log.first_sequence is not None and log.first_sequence > self.sequence + 1:
            self.log_start = LogStart.GAP
        else:
            self.log_start = LogStart.REACHES
        self.basis = BASES[self.snapshots, self.log_start]
        if self.basis in {Basis.CORRUPT, Basis.NEWER}:
            raise self._trouble or self._missing_log(log)

    def _judge_headers(self, log: Log | None) -> Snapshots | None:
        """Look for what must not be here at all, in every snapshot; None if there is nothing."""
        identity = log.identity if log else None
        for sequence, path in zip(self._sequences, self._paths, strict=True):
            try:
                head = read_snapshot_header(self._disk, path)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                continue
            header = unpack_snapshot_header(head)
            if header is None:
                continue
            if version_of(head) > SNAPSHOT_VERSION:
                self._trouble = JournalVersion(
                    path,
                    0,
                    f"the format version is {version_of(head)}, this program reads up to "
                    f"{SNAPSHOT_VERSION}",
                )
                return Snapshots.NEWER
            identity = identity or header.identity
            if header.identity != identity:
                why = "the snapshot belongs to another journal"
            elif header.sequence != sequence:
                why = f"the header says that this is snapshot {header.sequence}"
            else:
                continue
            self._trouble = JournalCorrupt(path, 0, why)
            return Snapshots.FOREIGN
        return None

    def _find_whole(self) -> Snapshots:
        """Verify from the newest on until one is whole."""
        for path in self._paths:
            try:
                self.snapshot = verify(self._disk, path, inflate=False)
            except Damage as damage:
                self.damaged.append(damage)
            except OSError as error:
                # A sector that cannot be read is damage like any other; other errors are not.
                if error.errno != errno.EIO:
                    raise
                self.damaged.append(Damage(path, 0, f"it cannot be read: {error.strerror}"))
            else:
                return Snapshots.PREVIOUS if self.damaged else Snapshots.WHOLE
        return Snapshots.DAMAGED if self.damaged else Snapshots.NONE

    def _missing_log(self, log: Log | None) -> JournalError:
        if log is None:
            missing = "the log that continues after it is missing"
            path = self.snapshot.path if self.snapshot else self._paths[0]
            return JournalCorrupt(path, 0, missing)
        wanted = f"the log begins with frame {log.first_sequence}, wanted is {self.sequence + 1}"
        if self.damaged:
            worst = self.damaged[0]
            return JournalCorrupt(worst.path, worst.offset, f"{worst.why}, and {wanted}")
        return JournalCorrupt(log.path, 0, wanted)
