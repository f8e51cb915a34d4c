"""What a start may believe of the files it finds: accept, cut the torn tail, or refuse.

Frames are read in order until something is not as it should be. Then one question decides: *was the
frame that should be here known to be durable?* Each frame and each segment header carries
`synced`, the last frame that was durable when it was written, so intact frames after the place are
witnesses. A witness that says "yes, it was durable" makes it corruption: something acknowledged is
lost, and only a person may decide to continue. Without such a witness it is the torn tail that a
crash leaves: un-synced pages reach the disk in any order, so a lost page may well have intact
frames after it. `RULES` is the whole table.

Say frames 1, 2, 3 are in the log, 3 carries synced = 1, and 2 is damaged. Frames 2 and 3 were on
their way to the disk together and neither was acknowledged: cut at 2. Had 3 carried synced = 2,
frame 2 was acknowledged before 3 was written: refuse.

A start continues from the newest snapshot that is whole, or from the log's first frame (`Base`).
Two questions decide: what are the snapshots, and does the log reach back to the frame that comes
next? `BASES` is the whole table. A damaged snapshot is no corruption as long as something older
stands in for it: the one before and the longer log give the same state. What is damaged is reported
and left where it is; the next snapshot takes its place. The log is read from the frame after the
snapshot; of the files before that only the headers are looked at, and older snapshots are not read
at all. `unused_damage` reads them, for who has the time.

Say the directory holds snapshots up to frames 40 and 70 and the log from frame 38 on. The newer one
is whole: continue with frame 71. It is damaged: continue from 40, with frame 41. Both are: the log
would have to begin with frame 1, it does not, so refuse. A snapshot's name also testifies that its
frames had been durable, since it gets the name after them; the log may not end before `testimony`.

A log may also not end before the frame that the file `log-end` tells (`log_end`): an older copy of
its last file is whole in itself.

Where anything on the disk proves that something durable is missing, a start refuses. In two cases
nothing may be left to prove it with:

    data/segment-0000000001.log, 0 bytes    the power failed while the file was being made, or the
                                            file was emptied
    data/spare-0000000001.log, no segment   the same, or the files of the log were removed

A directory with nothing in it but a lock is what every daemon leaves that never had a job. To
refuse would keep a daemon from starting after an ordinary power cut; to say nothing would let a
queue start empty that was emptied by mistake. So a start continues and warns (`start_warnings`),
and `delayd journal check` says the same.

This module changes no file; `repair` does, after a verdict.
"""

import contextlib
import enum
import errno
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from functools import partial
from typing import Final, NamedTuple
from zlib import crc32

from delayd.journal.directory import check_files
from delayd.journal.disk import Disk, end_of_data, opened, read_exactly, used_bytes
from delayd.journal.errors import DamageError, JournalCorrupt, JournalVersion, failing
from delayd.journal.format import (
    CHECKSUM,
    END_NAME,
    FIRST_SEQUENCE,
    FORMAT_VERSION,
    FRAME,
    FRAME_KINDS,
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    MAGIC,
    MARK,
    PREFIX,
    SEGMENT_NAME,
    SNAPSHOT_NAME,
    TOLERATED_NAMES,
    VIRTUAL_NAME,
    Frame,
    SegmentHeader,
    frame_mark,
    segment_name,
    unpack_header,
)
from delayd.journal.log_end import PROVES_NOTHING, LogEnd, read_log_end
from delayd.journal.snapshot import (
    SNAPSHOT_HEADER_BYTES,
    SNAPSHOT_VERSION,
    Damage,
    SnapshotInfo,
    payloads,
    snapshot_name,
    unpack_snapshot_header,
    verify,
)
from delayd.limits import JOURNAL_PAYLOAD_BYTES_MAX, JOURNAL_WINDOW_BYTES
from delayd.text import counted

# --- Reading frames ------------------------------------------------------------------------------


class Stop(enum.Enum):
    """Why reading frames came to an end."""

    END = "the frames end here"
    SHORT = "a frame ends beyond the end of the segment"
    GARBAGE = "these bytes are no frame"
    LENGTH = "a frame claims an impossible length"
    CHECKSUM = "a frame does not match its checksum"
    SEQUENCE = "an intact frame has the wrong sequence number"
    KIND = "an intact frame is of a kind that this program does not know"


class Position(NamedTuple):
    """Where reading stopped, and why."""

    stop: Stop
    offset: int
    sequence: int  # the sequence number that the next frame would have had
    synced: int  # what the last good frame knew to be durable


class FrameReader:
    """The frames of one open segment."""

    def __init__(self, disk: Disk, handle: int, identity: bytes, number: int) -> None:
        self._disk = disk
        self._handle = handle
        self._mark = frame_mark(identity, number)
        self.windows: list[tuple[int, int]] = []
        """(sequence, offset) of the first frame of each window that `frames` has read."""

    def frames(
        self, start: int, end: int, sequence: int, synced: int
    ) -> Generator[Frame, None, Position]:
        """Yield the frames between two offsets; return where and why that ended.

        `sequence` is what the first frame must have. Payloads are `bytes`, ready to be sliced.
        Raises OSError.
        """
        mark = self._mark
        unpack_head, unpack_checksum = FRAME.unpack_from, CHECKSUM.unpack_from
        head_bytes, overhead_bytes = FRAME.size, FRAME_OVERHEAD_BYTES
        offset, frame_bytes = start, overhead_bytes
        while True:
            asked_bytes = min(max(frame_bytes, JOURNAL_WINDOW_BYTES), end - offset)
            window = read_exactly(self._disk, self._handle, asked_bytes, offset)
            self.windows.append((sequence, offset))
            view = memoryview(window)
            at, frame_bytes = 0, overhead_bytes
            # A million small frames pass here at about 1 µs each; hence the local names.
            while len(window) - at >= overhead_bytes:
                found_mark, payload_bytes, kind, found_sequence, found_synced, time_ms, wall_ms = (
                    unpack_head(window, at)
                )
                if found_mark != mark:
                    return self._stop(Stop.GARBAGE, offset + at, end, sequence, synced)
                body = at + head_bytes
                sum_at = body + payload_bytes
                if sum_at + 4 > len(window):
                    frame_bytes += payload_bytes
                    break
                if unpack_checksum(window, sum_at)[0] != crc32(view[at + 4 : sum_at], mark):
                    return self._stop(Stop.CHECKSUM, offset + at, end, sequence, synced)
                if found_sequence != sequence:
                    return self._stop(Stop.SEQUENCE, offset + at, end, sequence, synced)
                if kind not in FRAME_KINDS:
                    return self._stop(Stop.KIND, offset + at, end, sequence, synced)
                synced = found_synced
                sequence += 1
                at = sum_at + 4
                yield Frame(found_sequence, time_ms, wall_ms, window[body:sum_at])
            offset += at
            if frame_bytes > overhead_bytes + JOURNAL_PAYLOAD_BYTES_MAX:
                return self._stop(Stop.LENGTH, offset, end, sequence, synced)
            if frame_bytes > end - offset or len(window) < asked_bytes:
                return self._stop(Stop.SHORT, offset, end, sequence, synced)

    def _stop(self, stop: Stop, offset: int, end: int, sequence: int, synced: int) -> Position:
        """Return the position; what looked like a bad frame is the end if only zeros follow."""
        if stop in {Stop.GARBAGE, Stop.SHORT}:
            has_data = end_of_data(self._disk, self._handle, offset, end) > offset
            stop = stop if has_data else Stop.END
        return Position(stop, offset, sequence, synced)

    def search(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (sequence, synced, where it ends) of every intact frame between the offsets.

        One pass over the file; intact frames are stepped over whole. Raises OSError.
        """
        needle = MARK.pack(self._mark)
        offset, wanted_bytes = start, JOURNAL_WINDOW_BYTES
        while end - offset >= FRAME_OVERHEAD_BYTES:
            window = read_exactly(self._disk, self._handle, min(wanted_bytes, end - offset), offset)
            wanted_bytes = JOURNAL_WINDOW_BYTES
            at, frame_bytes = window.find(needle), 0
            while at >= 0:
                frame_bytes = self._claimed_bytes(window, at)
                if frame_bytes > end - offset - at:
                    at = window.find(needle, at + 1)
                elif frame_bytes > len(window) - at:
                    break
                elif (found := self._intact(window, at, frame_bytes)) is not None:
                    yield *found, offset + at + frame_bytes
                    at = window.find(needle, at + frame_bytes)
                else:
                    at = window.find(needle, at + 1)
            if at >= 0:
                # The frame is longer than the window: read again with one that holds all of it.
                wanted_bytes = max(wanted_bytes, frame_bytes)
                offset += at
            else:
                # The mark itself may straddle two windows.
                offset += max(1, len(window) - len(needle) + 1)

    def _claimed_bytes(self, window: bytes, at: int) -> int:
        """Return how long the frame at this place says it is; a bare head's length if cut off."""
        if len(window) - at < FRAME.size:
            return FRAME_OVERHEAD_BYTES
        payload_bytes: int = FRAME.unpack_from(window, at)[1]
        return FRAME_OVERHEAD_BYTES + payload_bytes

    def _intact(self, window: bytes, at: int, frame_bytes: int) -> tuple[int, int] | None:
        """Return (sequence, synced) if the frame matches its checksum."""
        sum_at = at + frame_bytes - CHECKSUM.size
        checksum = crc32(memoryview(window)[at + 4 : sum_at], self._mark)
        if CHECKSUM.unpack_from(window, sum_at)[0] != checksum:
            return None
        _, _, _, sequence, synced, _, _ = FRAME.unpack_from(window, at)
        return sequence, synced


def last_position(frames: Generator[Frame, None, Position]) -> Position:
    """Read the frames to their end. Raises OSError."""
    while True:
        try:
            next(frames)
        except StopIteration as stopped:
            position: Position = stopped.value
            return position


def newer(version: int, known: int) -> str:
    """Say that a file is of a version that this program does not know."""
    return f"the format version is {version}, this program reads up to {known}"


# --- Snapshots -----------------------------------------------------------------------------------


class SnapshotsFound(enum.Enum):
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


_LOG, _NEWEST, _PREVIOUS, _LOST, _NEWER_YET = Basis
_BASES_BY_SNAPSHOTS: Final[dict[SnapshotsFound, tuple[Basis, Basis, Basis]]] = {
    # where the log is:    not there    reaching    after a gap
    SnapshotsFound.NONE: (_LOG, _LOG, _LOST),  # without a log a new directory
    # A snapshot never stands alone: the file that holds its last frame is kept with it.
    SnapshotsFound.WHOLE: (_LOST, _NEWEST, _LOST),
    SnapshotsFound.PREVIOUS: (_LOST, _PREVIOUS, _LOST),
    SnapshotsFound.DAMAGED: (_LOST, _LOG, _LOST),
    # Files of a newer delayd or of another program: what else they changed is not known.
    SnapshotsFound.NEWER: (_NEWER_YET, _NEWER_YET, _NEWER_YET),
    SnapshotsFound.FOREIGN: (_LOST, _LOST, _LOST),
}
BASES: Final = {
    (snapshots, log): basis
    for snapshots, row in _BASES_BY_SNAPSHOTS.items()
    for log, basis in zip(LogStart, row, strict=True)
}


@contextlib.contextmanager
def _sectors_read(path: str) -> Iterator[None]:
    """Raise a sector that cannot be read as Damage; other errors are none."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise Damage(path, 0, f"it cannot be read: {error.strerror}") from error


def _verified(disk: Disk, path: str) -> SnapshotInfo:
    """Read a snapshot to its end. Raises Damage and OSError."""
    with _sectors_read(path):
        return verify(disk, path, inflate=False)


class Base:
    """The decision about the snapshots of one directory; `decide` makes it."""

    def __init__(self, disk: Disk, directory: str, names: Sequence[str]) -> None:
        self._disk = disk
        matches = filter(None, map(SNAPSHOT_NAME.fullmatch, names))
        self._sequences = sorted((int(match[1]) for match in matches), reverse=True)
        self._paths = [f"{directory}/{snapshot_name(number)}" for number in self._sequences]
        self._trouble: DamageError | None = None
        self.snapshots = SnapshotsFound.NONE
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

    def decide(self, identity: bytes | None, log_path: str, first_sequence: int) -> None:
        """Find what to continue from. Raises JournalCorrupt, JournalVersion and OSError.

        What is known of the log: the identity in its headers, its first segment, empty where there
        is no log, and its first frame, 0 if that header is unreadable, which reading will judge.
        """
        self.snapshots = self._judge_headers(identity) or self._find_whole()
        if not log_path:
            self.log_start = LogStart.NOTHING
        elif first_sequence > self.sequence + 1:
            self.log_start = LogStart.GAP
        else:
            self.log_start = LogStart.REACHES
        self.basis = BASES[self.snapshots, self.log_start]
        if self.basis in {Basis.CORRUPT, Basis.NEWER}:
            raise self._trouble or self._missing_log(log_path, first_sequence)

    def _judge_headers(self, identity: bytes | None) -> SnapshotsFound | None:
        """Look for what must not be here at all, in every snapshot; None if there is nothing."""
        for sequence, path in zip(self._sequences, self._paths, strict=True):
            try:
                with opened(self._disk, path) as handle:
                    head = read_exactly(self._disk, handle, SNAPSHOT_HEADER_BYTES, 0)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                continue
            header = unpack_snapshot_header(head)
            if header is None:
                continue
            version = PREFIX.unpack_from(head)[1]
            if version > SNAPSHOT_VERSION:
                self._trouble = JournalVersion(path, 0, newer(version, SNAPSHOT_VERSION))
                return SnapshotsFound.NEWER
            identity = identity or header.identity
            if header.identity != identity:
                why = "the snapshot belongs to another journal"
            elif header.sequence != sequence:
                why = f"the header says that this is snapshot {header.sequence}"
            else:
                continue
            self._trouble = JournalCorrupt(path, 0, why)
            return SnapshotsFound.FOREIGN
        return None

    def _find_whole(self) -> SnapshotsFound:
        """Verify from the newest on until one is whole."""
        for path in self._paths:
            try:
                self.snapshot = _verified(self._disk, path)
            except Damage as damage:
                self.damaged.append(damage)
            else:
                return SnapshotsFound.PREVIOUS if self.damaged else SnapshotsFound.WHOLE
        return SnapshotsFound.DAMAGED if self.damaged else SnapshotsFound.NONE

    def _missing_log(self, log_path: str, first_sequence: int) -> DamageError:
        if not log_path:
            missing = "the log that continues after it is missing"
            path = self.snapshot.path if self.snapshot else self._paths[0]
            return JournalCorrupt(path, 0, missing)
        wanted = f"the log begins with frame {first_sequence}, wanted is {self.sequence + 1}"
        if self.damaged:
            worst = self.damaged[0]
            return JournalCorrupt(worst.path, worst.offset, f"{worst.why}, and {wanted}")
        return JournalCorrupt(log_path, 0, wanted)


# --- The log -------------------------------------------------------------------------------------


class Found(enum.Enum):
    """What is at the place where reading the log stopped."""

    END = "the frames end"
    BAD_FRAME = "a frame is bad"
    NO_HEADER = "a segment without its header"
    BAD_HEADER = "a segment with a damaged header"
    FOREIGN = "not a segment of a delayd journal"
    NEWER = "written by a newer version"
    MISPLACED = "a segment that does not belong here"


class After(enum.Enum):
    """What the intact frames and headers after the place prove about it."""

    NOTHING = "nothing intact follows it"
    UNSYNCED = "what follows it was written before it was known to be durable"
    SYNCED = "what follows it shows that it had been durable"


class LogVerdict(enum.Enum):
    """What to do about it."""

    ACCEPT = "the log is whole"
    CUT = "the log ends here; keep a copy of the rest and cut it"
    CORRUPT = "refuse: something durable is damaged"
    NEWER = "refuse: this program is too old"


_ACCEPT, _CUT, _CORRUPT, _NEWER = LogVerdict
_RULES_BY_PLACE: Final[dict[Found, tuple[LogVerdict, LogVerdict, LogVerdict]]] = {
    # what follows it: nothing, unsynced, synced
    Found.END: (_ACCEPT, _CUT, _CORRUPT),  # cut: the last frames were lost, later ones not
    Found.BAD_FRAME: (_CUT, _CUT, _CORRUPT),
    Found.NO_HEADER: (_CUT, _CUT, _CORRUPT),
    # A header lies within one sector: a crash leaves all of it or none. One that is there but wrong
    # is damage, unless the file holds nothing that could be lost.
    Found.BAD_HEADER: (_CUT, _CORRUPT, _CORRUPT),
    Found.FOREIGN: (_CORRUPT, _CORRUPT, _CORRUPT),
    Found.NEWER: (_NEWER, _NEWER, _NEWER),
    Found.MISPLACED: (_CORRUPT, _CORRUPT, _CORRUPT),
}
RULES: Final = {
    (found, after): verdict
    for found, row in _RULES_BY_PLACE.items()
    for after, verdict in zip(After, row, strict=True)
}

STOPS: Final[dict[Stop, Found]] = {
    Stop.END: Found.END,
    **dict.fromkeys((Stop.SHORT, Stop.GARBAGE, Stop.LENGTH), Found.BAD_FRAME),
    **dict.fromkeys((Stop.CHECKSUM, Stop.SEQUENCE), Found.BAD_FRAME),
    Stop.KIND: Found.NEWER,
}

UNREADABLE: Final = frozenset({Found.FOREIGN, Found.NEWER, Found.MISPLACED})
"""After a bad place, these cannot prove that it is harmless."""


class SegmentFile:
    """A segment as it was found; `end` is where its good frames end, once they have been read."""

    def __init__(self, disk: Disk, path: str, number: int) -> None:
        """Read and judge the header: `found` is what is wrong with it, None if nothing is.

        Raises OSError.
        """
        self.path = path
        self.number = number
        with opened(disk, path) as handle:
            self.size_bytes = disk.size(handle)
            head = read_exactly(disk, handle, HEADER_BYTES, 0)
        self.header, self.found, self.why = _judge_header(head, number)
        self.end = 0


class LogPlace(NamedTuple):
    """Where reading the log stopped."""

    segment_index: int
    offset: int
    found: Found
    why: str


class Checkpoint(NamedTuple):
    """A frame's place, noted once for each window that was read."""

    sequence: int
    segment_index: int
    offset: int


def _judge_header(head: bytes, number: int) -> tuple[SegmentHeader | None, Found | None, str]:
    """Return (header, what is wrong, the reason in words)."""
    begun = head.rstrip(b"\0")
    if len(head) < HEADER_BYTES or (len(begun) < len(MAGIC) and MAGIC.startswith(begun)):
        # Zeros, or the first bytes of a write that was cut short before the power was.
        return None, Found.NO_HEADER, "the segment has no header"
    magic, version = PREFIX.unpack_from(head)
    if magic != MAGIC:
        return None, Found.FOREIGN, "this is not a segment of a delayd journal"
    if version > FORMAT_VERSION:
        return None, Found.NEWER, newer(version, FORMAT_VERSION)
    header = unpack_header(head)
    if header is None or version != FORMAT_VERSION:
        return None, Found.BAD_HEADER, "the header does not match its checksum"
    if header.number != number:
        misplaced = f"the header says that this is segment {header.number}"
        return header, Found.MISPLACED, misplaced
    return header, None, ""


class Recovery:
    """One reading of a journal directory. `frames()` first; then the rest is known."""

    def __init__(
        self, disk: Disk, directory: str, names: list[str], *, may_grow: bool = False
    ) -> None:
        """Look at the headers of the segments among the names.

        `may_grow`: a daemon may be writing to the log, so it is only read, up to where that is.
        Raises ForeignFile and JournalFailed.
        """
        with failing(directory):
            check_files(disk, directory, names)
        self._may_grow = may_grow
        self.disk = disk
        self.directory = directory
        self.names = names
        self.segments: list[SegmentFile] = []
        self.sequence = FIRST_SEQUENCE - 1  # the last good frame
        self.synced = 0  # what that frame knew to be durable
        self.checkpoints: list[Checkpoint] = []
        self.place: LogPlace | None = None
        self.verdict: LogVerdict | None = None
        numbers = sorted(int(match[1]) for match in map(SEGMENT_NAME.fullmatch, names) if match)
        for number in numbers:
            path = f"{directory}/{segment_name(number)}"
            with failing(path):
                self.segments.append(SegmentFile(disk, path, number))
        headers = [segment.header for segment in self.segments if segment.header]
        self.identity = headers[0].identity if headers else None
        self.base = Base(disk, directory, names)  # what the log is read on top of
        self.end_path = f"{directory}/{END_NAME}"
        self.log_end: LogEnd | None = PROVES_NOTHING  # how far the log went; None: unreadable
        if END_NAME in names:
            with failing(self.end_path):
                self.log_end = read_log_end(disk, self.end_path)
        self.bytes_after_base = 0  # how much log was read after it
        self.start_index = 0  # the segment in which reading begins

    def frames(self) -> Iterator[Frame]:
        """Yield every frame that can be believed, then decide.

        What a snapshot holds comes first, as frames with the sequence that it covers. Raises
        JournalCorrupt, JournalVersion, or JournalFailed when a file cannot be read.
        """
        self._check_end()
        self._choose_base()
        yield from self._snapshot_frames()
        place = yield from self._after_base(self._read())
        after = self._after(place) if place else After.NOTHING
        if place and self._may_grow and self._was_being_written(place):
            place, after = place._replace(found=Found.END, why=Stop.END.value), After.NOTHING
        proof = after.value
        if after is not After.SYNCED and self.log_end and self.log_end.sequence > self.sequence:
            after = After.SYNCED
            missing = f"the frames {self.sequence + 1} to {self.log_end.sequence} are missing"
            proof = f"{missing}, which had been durable: {self.end_path} says so"
        found = place.found if place else Found.END
        self.place, self.verdict = place, RULES[found, after]
        if place is None or self.verdict in {LogVerdict.ACCEPT, LogVerdict.CUT}:
            return
        file = self.segments[place.segment_index].path
        if self.verdict is LogVerdict.NEWER:
            raise JournalVersion(file, place.offset, place.why)
        why = place.why if after is After.NOTHING else f"{place.why}; {proof}"
        raise JournalCorrupt(file, place.offset, why)

    @property
    def expected_bytes(self) -> int:
        """About how much `frames` reads, when it has begun, without what is preallocated.

        It looks through the zeros at the end of the last file. Raises JournalFailed.
        """
        snapshot = self.base.snapshot
        log = 0
        for index, segment in enumerate(self.segments[self.start_index :], self.start_index):
            limit = self._limit(index)
            if limit == segment.size_bytes:  # it may be preallocated
                with (
                    failing(segment.path, "cannot be read"),
                    opened(self.disk, segment.path) as handle,
                ):
                    limit = used_bytes(self.disk, handle)
            log += limit
        return log + (snapshot.payload_bytes if snapshot else 0)

    def _check_end(self) -> None:
        """Raise JournalCorrupt if the log that the end is of is not here."""
        end = self.log_end
        if end is None or end is PROVES_NOTHING or end.identity == self.identity:
            return
        self.verdict = LogVerdict.CORRUPT
        why = "it belongs to another journal than the log; without this file the log is taken as is"
        if self.identity is None:
            why = (
                f"the frames up to {end.sequence} had been durable, and there is no log with them: "
                "restore its files, or remove this one to begin without them"
            )
        raise JournalCorrupt(self.end_path, 0, why)

    def _choose_base(self) -> None:
        """Decide what to begin with, and in which segment the log continues from there."""
        log_path, first_sequence = "", 0
        for first in self.segments[:1]:
            log_path = first.path
            if first.header and not first.found:
                first_sequence = first.header.first_sequence
        try:
            with failing(self.directory):
                self.base.decide(self.identity, log_path, first_sequence)
        except DamageError as error:
            is_newer = isinstance(error, JournalVersion)
            self.verdict = LogVerdict.NEWER if is_newer else LogVerdict.CORRUPT
            raise
        self.sequence = self.synced = self.base.sequence
        for index, segment in enumerate(self.segments):
            header = None if segment.found else segment.header
            if self.base.snapshot and header and header.first_sequence <= self.base.sequence + 1:
                self.start_index, self.sequence = index, header.first_sequence - 1

    def _snapshot_frames(self) -> Iterator[Frame]:
        """Yield what the snapshot holds; one empty frame, for its time, if that is nothing."""
        info = self.base.snapshot
        if info is None:
            return
        _, sequence, time_ms, wall_ms = info.header
        if not info.payload_bytes:
            yield Frame(sequence, time_ms, wall_ms, b"")
        try:
            with failing(info.path):
                for payload in payloads(self.disk, info.path):
                    yield Frame(sequence, time_ms, wall_ms, payload)
        except Damage as damage:
            # It was whole a moment ago, and half of it is played already.
            self.verdict = LogVerdict.CORRUPT
            raise JournalCorrupt(damage.path, damage.offset, damage.why) from damage

    def _after_base(
        self, frames: Generator[Frame, None, LogPlace | None]
    ) -> Generator[Frame, None, LogPlace | None]:
        """Pass on the frames that the snapshot does not cover."""
        covered_bytes = 0
        place: LogPlace | None = None
        try:
            frame = next(frames)
            while frame.sequence <= self.base.sequence:
                covered_bytes += FRAME_OVERHEAD_BYTES + len(frame.payload)
                frame = next(frames)
        except StopIteration as stop:
            place = stop.value
        else:
            yield frame
            place = yield from frames
        read = (segment.end - HEADER_BYTES for segment in self.segments[self.start_index :])
        self.bytes_after_base = sum(bytes_ for bytes_ in read if bytes_ > 0) - covered_bytes
        return place

    def _read(self) -> Generator[Frame, None, LogPlace | None]:
        """Yield frames until one is missing; return the place, None for an empty directory."""
        place = self._misplaced_before_start()
        if place:
            return place
        for index, segment in enumerate(self.segments):
            if index < self.start_index:
                continue
            place = self._continues(index)
            if place:
                return place
            assert segment.header is not None
            position = yield from self._read_segment(index, segment.header, self._limit(index))
            self.sequence, self.synced = position.sequence - 1, position.synced
            segment.end = position.offset
            place = LogPlace(index, position.offset, STOPS[position.stop], position.stop.value)
            if position.stop is not Stop.END:
                return place
        return place

    def _read_segment(
        self, index: int, header: SegmentHeader, end: int
    ) -> Generator[Frame, None, Position]:
        path = self.segments[index].path
        with failing(path), opened(self.disk, path) as handle:
            reader = FrameReader(self.disk, handle, header.identity, header.number)
            synced = max(self.synced, header.synced_sequence)
            position = yield from reader.frames(HEADER_BYTES, end, self.sequence + 1, synced)
        for sequence, offset in reader.windows:
            self.checkpoints.append(Checkpoint(sequence, index, offset))
        return position

    def unused_damage(self) -> Iterator[Damage]:
        """Read what a start does not need, and yield what is damaged; `frames` comes first.

        That is the older snapshots, and the log that the one in use covers. What a daemon removes
        meanwhile is left out. Raises JournalFailed.
        """
        covered = range(self.start_index)
        looks: list[tuple[str, Callable[[], object]]] = [
            *((path, partial(_verified, self.disk, path)) for _, path in self.base.older_paths),
            *(
                (self.segments[index].path, partial(self._check_covered, index))
                for index in covered
            ),
        ]
        for path, look in looks:
            try:
                with failing(path), contextlib.suppress(FileNotFoundError), _sectors_read(path):
                    look()
            except Damage as damage:
                yield damage

    def _check_covered(self, index: int) -> None:
        """Read a segment in front of the one with which reading began. Raises Damage, OSError."""
        segment, following = self.segments[index : index + 2]
        header = segment.header
        if segment.found or header is None:
            raise Damage(segment.path, 0, segment.why)
        with opened(self.disk, segment.path) as handle:
            reader = FrameReader(self.disk, handle, header.identity, header.number)
            frames = reader.frames(HEADER_BYTES, self._limit(index), header.first_sequence, 0)
            stop, offset, sequence, _ = last_position(frames)
        if stop is not Stop.END:
            raise Damage(segment.path, offset, stop.value)
        continues = following.header
        if continues and not following.found and following.number == segment.number + 1:
            missing = f"the frames {sequence} to {continues.first_sequence - 1} are missing"
            if continues.first_sequence > sequence:
                raise Damage(segment.path, offset, missing)

    def _misplaced_before_start(self) -> LogPlace | None:
        """Look for what does not belong here in front of the first segment that is read.

        Damage there does no harm; a foreign file or one of a newer program is not damage.
        """
        for index, segment in enumerate(self.segments[: self.start_index]):
            if segment.found in UNREADABLE:
                return LogPlace(index, 0, segment.found, segment.why)
            if segment.header and segment.header.identity != self.identity:
                return LogPlace(index, 0, Found.MISPLACED, "the segment belongs to another journal")
        return None

    def _limit(self, index: int) -> int:
        """Return where the frames of this segment end at the latest: the next segment knows."""
        segment = self.segments[index]
        for following in self.segments[index + 1 : index + 2]:
            header = following.header
            if header and not following.found and following.number == segment.number + 1:
                return max(HEADER_BYTES, min(segment.size_bytes, header.previous_valid_bytes))
        return segment.size_bytes

    def _continues(self, index: int) -> LogPlace | None:
        """Return what is wrong about this segment coming next, None if nothing is."""
        segment = self.segments[index]
        previous = self.segments[index - 1] if index > self.start_index else None
        if previous and segment.number != previous.number + 1:
            why = f"the frames end, and segment {previous.number + 1} is missing"
            return LogPlace(index - 1, previous.end, Found.END, why)
        if segment.found:
            return LogPlace(index, 0, segment.found, segment.why)
        header = segment.header
        assert header is not None
        if header.identity != self.identity:
            return LogPlace(index, 0, Found.MISPLACED, "the segment belongs to another journal")
        if self.base.snapshot and index == self.start_index:
            return None
        following = self.sequence + 1
        previous_end = previous.end if previous else 0
        if header.first_sequence == following and header.previous_valid_bytes == previous_end:
            return None
        is_short = header.previous_valid_bytes > previous_end
        if previous and is_short and header.first_sequence > following:
            why = f"the frames {following} to {header.first_sequence - 1} are missing"
            return LogPlace(index - 1, previous_end, Found.END, why)
        why = f"the segment begins with frame {header.first_sequence}, wanted is {following}"
        return LogPlace(index, 0, Found.MISPLACED, why)

    def _after(self, place: LogPlace) -> After:
        """Find out from the intact frames and headers after the place whether it was durable."""
        missing = self.sequence + 1
        seen = After.NOTHING
        if self.base.testimony >= missing:
            return After.SYNCED
        if place.found is Found.END and place.segment_index + 1 == len(self.segments):
            return seen
        for segment in self.segments[place.segment_index :]:
            is_place = segment is self.segments[place.segment_index]
            start = max(place.offset, HEADER_BYTES) if is_place else HEADER_BYTES
            if segment.found in UNREADABLE:
                return After.SYNCED
            if not is_place:
                # Even one that was never finished: the log cannot continue in front of it.
                seen = After.UNSYNCED
                if segment.header and segment.header.synced_sequence >= missing:
                    return After.SYNCED
            for sequence, synced in self._witnesses(segment, start):
                if synced >= missing:
                    return After.SYNCED
                if sequence >= missing:
                    seen = After.UNSYNCED
        return seen

    def _was_being_written(self, place: LogPlace) -> bool:
        """Tell whether a frame is whole at the place by now: what follows is newer, no evidence."""
        if place.found not in {Found.END, Found.BAD_FRAME} or self.identity is None:
            return False
        segment = self.segments[place.segment_index]
        with failing(segment.path), opened(self.disk, segment.path) as handle:
            reader = FrameReader(self.disk, handle, self.identity, segment.number)
            end = self._limit(place.segment_index)
            frames = reader.frames(place.offset, end, self.sequence + 1, self.synced)
            return next(frames, None) is not None

    def _witnesses(self, segment: SegmentFile, start: int) -> Iterator[tuple[int, int]]:
        """Yield (sequence, synced) of the intact frames from an offset on."""
        with failing(segment.path), opened(self.disk, segment.path) as handle:
            end = segment.size_bytes
            if segment is self.segments[self.start_index] and not segment.header:
                # The first header is synced before anything is written after it, and without it
                # there is no mark to look for: whatever is there may have been durable.
                has_more = len(self.segments) > self.start_index + 1
                if has_more or end_of_data(self.disk, handle, start, end) > start:
                    yield self.sequence + 1, self.sequence + 1
                return
            assert self.identity is not None
            reader = FrameReader(self.disk, handle, self.identity, segment.number)
            for sequence, synced, _ in reader.search(start, end):
                yield sequence, synced


# --- Warnings ------------------------------------------------------------------------------------

NO_LOG: Final = (
    "a log was begun in the directory, and none is left in it: no job was ever acknowledged here, "
    "or the log is lost"
)
NO_HEADER: Final = (
    "a file of the log has no header: the power failed while it was being made, or it was emptied, "
    "and what was in it is lost"
)

BAD_END: Final = (
    "the file that says how far the log goes cannot be read: the power failed while it was being "
    "made, or it is damaged, and nothing shows it if the end of the log is missing"
)

NOT_OF_A_LOG: Final = TOLERATED_NAMES | {VIRTUAL_NAME}
"""What is there without a log having been there."""
NAMES_SHOWN_MAX: Final = 3


class StartWarning(NamedTuple):
    """Something that a person should look at before the jobs are missed."""

    sentence: str  # what it is and may mean: one of the sentences above
    found: str  # what was found

    def __str__(self) -> str:
        return f"{self.sentence} ({self.found})"


def start_warnings(recovery: Recovery, names: Collection[str]) -> list[StartWarning]:
    """Return what is doubtful about a directory that a start accepts.

    `names` are what was in it before the lock was taken; `recovery` has read all frames, and
    nothing was changed since.
    """
    assert recovery.verdict in {LogVerdict.ACCEPT, LogVerdict.CUT}, (
        "what is refused is beyond doubt"
    )
    warnings = []
    if recovery.verdict is LogVerdict.CUT and recovery.place is not None:
        for segment in recovery.segments[recovery.place.segment_index :]:
            if segment.found is Found.NO_HEADER:
                found = f"{segment.path}: {counted(segment.size_bytes, 'byte')}"
                warnings.append(StartWarning(NO_HEADER, found))
    if recovery.log_end is None:
        warnings.append(StartWarning(BAD_END, recovery.end_path))
    ours = sorted(set(names) - NOT_OF_A_LOG)
    if ours and recovery.sequence < FIRST_SEQUENCE:
        shown = ", ".join(ours[:NAMES_SHOWN_MAX])
        more = len(ours) - NAMES_SHOWN_MAX
        shown += f" and {more} more" if more > 0 else ""
        warnings.append(StartWarning(NO_LOG, f"{recovery.directory} holds {shown}"))
    return warnings
