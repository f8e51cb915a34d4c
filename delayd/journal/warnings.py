"""What may be a loss, and cannot be told from a start that was cut short.

Where anything on the disk proves that something durable is missing, `recovery` refuses. Two cases
are left in which there is nothing to prove it with, since whatever could testify is gone as well:

    data/segment-0000000001.log, 0 bytes    the power failed while the file was being made, or
                                            somebody emptied it
    data/spare-0000000001.log, no segment   the same, or the files of the log were removed

A directory with nothing in it but a lock is what every daemon leaves that never had a job. To
refuse would keep a daemon from starting after an ordinary power cut; to say nothing would let a
queue begin anew that was emptied by mistake. So a start goes on, and says so; `delayd journal
check` says the same. The module refuses to decide anything.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from delayd.journal.format import FIRST_SEQUENCE
from delayd.journal.names import TOLERATED_NAMES, VIRTUAL_NAME
from delayd.journal.recovery import Found, Recovery, Verdict
from delayd.text import counted

NO_LOG: Final = (
    "a log was begun in the directory, and none is left in it: no job was ever acknowledged here, "
    "or the log is lost"
)
NO_HEADER: Final = (
    "a file of the log has no header: the power failed while it was being made, or it was emptied, "
    "and what was in it is lost"
)

NOT_OF_A_LOG: Final = TOLERATED_NAMES | {VIRTUAL_NAME}
"""What is there without a log having been there."""
NAMES_SHOWN_MAX: Final = 3


class StartWarning(NamedTuple):
    """Something that a person should look at before the jobs are missed."""

    sentence: str
    """What it is and may mean: one of the sentences above."""

    found: str
    """What was found."""

    def __str__(self) -> str:
        """Say all of it."""
        return f"{self.sentence} ({self.found})"


def doubts(directory: str, names: Collection[str], recovery: Recovery) -> list[StartWarning]:
    """Return what is doubtful about a directory that a start accepts.

    `names` are what was in it before the lock was taken; `recovery` has read all frames, and
    nothing was changed since.
    """
    assert recovery.verdict in {Verdict.ACCEPT, Verdict.CUT}, "what is refused is beyond doubt"
    doubtful = []
    if recovery.verdict is Verdict.CUT and recovery.place is not None:
        for segment in recovery.segments[recovery.place.segment_index :]:
            if segment.found is Found.NO_HEADER:
                found = f"{segment.path}: {counted(segment.size_bytes, 'byte')}"
                doubtful.append(StartWarning(NO_HEADER, found))
    ours = sorted(set(names) - NOT_OF_A_LOG)
    if ours and recovery.sequence < FIRST_SEQUENCE:
        shown = ", ".join(ours[:NAMES_SHOWN_MAX])
        more = len(ours) - NAMES_SHOWN_MAX
        shown += f" and {more} more" if more > 0 else ""
        doubtful.append(StartWarning(NO_LOG, f"{directory} holds {shown}"))
    return doubtful
