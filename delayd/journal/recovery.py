"""What a start may trust of the files it finds: accept, cut the torn tail, or refuse.

Frames are read in order until something is not as it should be. Then one question decides: *was the
frame that should be here known to be durable?* Each frame and each segment header carries
`synced`, the last frame that was durable when it was written, so intact frames after the place are
evidence. If one of them shows that the frame was durable, this is corruption: acknowledged data is
lost, and only a person may decide to continue. Without such evidence it is the torn tail that a
crash leaves: un-synced pages reach the disk in any order, so a lost page may well have intact
frames after it.

Say frames 1, 2, 3 are in the log, 3 carries synced = 1, and 2 is damaged. Frames 2 and 3 were on
their way to the disk together and neither was acknowledged: cut at 2. Had 3 carried
synced = 2, frame 2 was acknowledged before 3 was written: refuse.

Where there are snapshots, `base` decides which one to begin with, and the log is read from the
frame after it; of the files before that only the headers are read.

`RULES` is the whole table. This module changes no file; that is `repair`'s part, after a verdict.
"""

import enum
from collections.abc import Generator, Iterator
from typing import Final, NamedTuple, NoReturn

from delayd.journal.base import Base, Log
from delayd.journal.disk import Disk
from delayd.journal.errors import JournalCorrupt, JournalFailed, JournalVersion
from delayd.journal.format import (
    FIRST_SEQUENCE,
    FORMAT_VERSION,
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    MAGIC,
    PREFIX,
    SEGMENT_NAME,
    Frame,
    SegmentHeader,
    frame_mark,
    segment_name,
    unpack_header,
)
from delayd.journal.reader import FrameReader, Position, Stop, end_of_data, read_exactly
from delayd.journal.snapshot import Damage, payloads


class Found(enum.Enum):
    """What is at the place where reading the log stopped."""

    END = "the frames end"
    BAD_FRAME = "a frame is bad"
    NO_HEADER = "a segment without its header"
    BAD_HEADER = "a segment with a damaged header"
    FOREIGN = "not a segment of a delayd journal"
    NEWER = "written by a newer version"
    MISPLACED = "a segment that does not belong here"


class Behind(enum.Enum):
    """What the intact frames and headers after the place prove about it."""

    NOTHING = "nothing intact follows it"
    UNSYNCED = "what follows it was written before it was known to be durable"
    SYNCED = "what follows it shows that it had been durable"


class Verdict(enum.Enum):
    """What to do about it."""

    ACCEPT = "the log is whole"
    CUT = "the log ends here; keep a copy of the rest and cut it"
    CORRUPT = "refuse: something durable is damaged"
    NEWER = "refuse: this program is too old"


_ACCEPT, _CUT, _CORRUPT, _NEWER = Verdict
RULES: Final[dict[tuple[Found, Behind], Verdict]] = {
    (Found.END, Behind.NOTHING): _ACCEPT,
    (Found.END, Behind.UNSYNCED): _CUT,  # the last frames of a segment were lost, later ones not
    (Found.END, Behind.SYNCED): _CORRUPT,
    (Found.BAD_FRAME, Behind.NOTHING): _CUT,
    (Found.BAD_FRAME, Behind.UNSYNCED): _CUT,
    (Found.BAD_FRAME, Behind.SYNCED): _CORRUPT,
    (Found.NO_HEADER, Behind.NOTHING): _CUT,
    (Found.NO_HEADER, Behind.UNSYNCED): _CUT,
    (Found.NO_HEADER, Behind.SYNCED): _CORRUPT,
    # A header lies within one sector: a crash leaves all of it or none. One that is there but wrong
    # is damage, unless the file holds nothing that could be lost.
    (Found.BAD_HEADER, Behind.NOTHING): _CUT,
    (Found.BAD_HEADER, Behind.UNSYNCED): _CORRUPT,
    (Found.BAD_HEADER, Behind.SYNCED): _CORRUPT,
    (Found.FOREIGN, Behind.NOTHING): _CORRUPT,
    (Found.FOREIGN, Behind.UNSYNCED): _CORRUPT,
    (Found.FOREIGN, Behind.SYNCED): _CORRUPT,
    (Found.NEWER, Behind.NOTHING): _NEWER,
    (Found.NEWER, Behind.UNSYNCED): _NEWER,
    (Found.NEWER, Behind.SYNCED): _NEWER,
    (Found.MISPLACED, Behind.NOTHING): _CORRUPT,
    (Found.MISPLACED, Behind.UNSYNCED): _CORRUPT,
    (Found.MISPLACED, Behind.SYNCED): _CORRUPT,
}

STOPS: Final[dict[Stop, Found]] = {
    Stop.END: Found.END,
    Stop.SHORT: Found.BAD_FRAME,
    Stop.GARBAGE: Found.BAD_FRAME,
    Stop.LENGTH: Found.BAD_FRAME,
    Stop.CHECKSUM: Found.BAD_FRAME,
    Stop.SEQUENCE: Found.BAD_FRAME,
    Stop.KIND: Found.NEWER,
}

UNREADABLE: Final = frozenset({Found.FOREIGN, Found.NEWER, Found.MISPLACED})
"""After a bad place, these cannot prove that it is harmless."""


class SegmentFile:
    """A segment as it was found; `end` is where its good frames end, once they have been read."""

    __slots__ = ("end", "found", "header", "number", "path", "size_bytes", "why")

    def __init__(self, path: str, number: int, size_bytes: int, head: bytes) -> None:
        """Judge the head of the file: `found` is what is wrong with it, None if nothing is."""
        self.path = path
        self.number = number
        self.size_bytes = size_bytes
        self.header, self.found, self.why = _judge_header(head, number)
        self.end = 0


class Place(NamedTuple):
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


def examine(disk: Disk, path: str, number: int) -> SegmentFile:
    """Read a segment's header and say what is wrong with it. Raises OSError."""
    handle = disk.open(path)
    try:
        size_bytes = disk.size(handle)
        head = read_exactly(disk, handle, HEADER_BYTES, 0)
    finally:
        disk.close(handle)
    return SegmentFile(path, number, size_bytes, head)


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
        newer = f"the format version is {version}, this program reads up to {FORMAT_VERSION}"
        return None, Found.NEWER, newer
    header = unpack_header(head)
    if header is None or version != FORMAT_VERSION:
        return None, Found.BAD_HEADER, "the header does not match its checksum"
    if header.number != number:
        misplaced = f"the header says that this is segment {header.number}"
        return header, Found.MISPLACED, misplaced
    return header, None, ""


class Recovery:
    """One reading of a journal directory. `frames()` first; then the rest is known."""

    def __init__(self, disk: Disk, directory: str, names: list[str]) -> None:
        """Look at the headers of the segments among the names. Raises JournalFailed."""
        self._disk = disk
        self._directory = directory
        self.segments: list[SegmentFile] = []
        self.sequence = FIRST_SEQUENCE - 1
        """The last good frame."""
        self.synced = 0
        """What that frame knew to be durable."""
        self.checkpoints: list[Checkpoint] = []
        self.place: Place | None = None
        self.verdict: Verdict | None = None
        numbers = sorted(int(match[1]) for match in map(SEGMENT_NAME.fullmatch, names) if match)
        for number in numbers:
            path = f"{directory}/{segment_name(number)}"
            try:
                self.segments.append(examine(disk, path, number))
            except OSError as error:
                _cannot_read(path, error)
        headers = [segment.header for segment in self.segments if segment.header]
        self.identity = headers[0].identity if headers else None
        self.base = Base(disk, directory, names)
        """What the log is read on top of."""
        self.bytes_behind_base = 0
        """How much log was read after it."""
        self.start_index = 0
        """The segment in which reading begins."""

    def frames(self) -> Iterator[Frame]:
        """Yield every frame that can be believed, then decide.

        What a snapshot holds comes first, as frames with the sequence that it covers. Raises
        JournalCorrupt, JournalVersion, or JournalFailed when a file cannot be read.
        """
        self._choose_base()
        yield from self._snapshot_frames()
        place = yield from self._behind_base(self._read())
        behind = self._behind(place) if place else Behind.NOTHING
        found = place.found if place else Found.END
        self.place, self.verdict = place, RULES[found, behind]
        if place is None or self.verdict in {Verdict.ACCEPT, Verdict.CUT}:
            return
        file = self.segments[place.segment_index].path
        if self.verdict is Verdict.NEWER:
            raise JournalVersion(file, place.offset, place.why)
        why = place.why if behind is Behind.NOTHING else f"{place.why}; {behind.value}"
        raise JournalCorrupt(file, place.offset, why)

    @property
    def expected_bytes(self) -> int:
        """About how much `frames` yields, when it has begun; with what is preallocated, so less."""
        snapshot = self.base.snapshot
        log = sum(segment.size_bytes for segment in self.segments[self.start_index :])
        return log + (snapshot.payload_bytes if snapshot else 0)

    def _choose_base(self) -> None:
        """Decide what to begin with, and in which segment the log continues from there."""
        log = None
        if self.segments:
            first = self.segments[0]
            header = None if first.found else first.header
            log = Log(first.path, self.identity, header.first_sequence if header else None)
        try:
            self.base.decide(log)
        except JournalVersion:
            self.verdict = Verdict.NEWER
            raise
        except JournalCorrupt:
            self.verdict = Verdict.CORRUPT
            raise
        except OSError as error:
            _cannot_read(self._directory, error)
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
            for payload in payloads(self._disk, info.path):
                yield Frame(sequence, time_ms, wall_ms, payload)
        except Damage as damage:
            # It was whole a moment ago, and half of it is played already.
            self.verdict = Verdict.CORRUPT
            raise JournalCorrupt(damage.path, damage.offset, damage.why) from damage
        except OSError as error:
            _cannot_read(info.path, error)

    def _behind_base(
        self, frames: Generator[Frame, None, Place | None]
    ) -> Generator[Frame, None, Place | None]:
        """Pass on the frames that the snapshot does not cover."""
        covered_bytes = 0
        place: Place | None = None
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
        self.bytes_behind_base = sum(bytes_ for bytes_ in read if bytes_ > 0) - covered_bytes
        return place

    def _read(self) -> Generator[Frame, None, Place | None]:
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
            place = Place(index, position.offset, STOPS[position.stop], position.stop.value)
            if position.stop is not Stop.END:
                return place
        return place

    def _read_segment(
        self, index: int, header: SegmentHeader, end: int
    ) -> Generator[Frame, None, Position]:
        """Yield the frames of one segment."""
        path = self.segments[index].path
        checkpoints = self.checkpoints

        def note(sequence: int, offset: int) -> None:
            checkpoints.append(Checkpoint(sequence, index, offset))

        try:
            handle = self._disk.open(path)
            try:
                reader = FrameReader(self._disk, handle, frame_mark(header.identity, header.number))
                synced = max(self.synced, header.synced_sequence)
                return (
                    yield from reader.frames(HEADER_BYTES, end, self.sequence + 1, synced, note)
                )
            finally:
                self._disk.close(handle)
        except OSError as error:
            _cannot_read(path, error)

    def _misplaced_before_start(self) -> Place | None:
        """Look for what does not belong here in front of the first segment that is read.

        Damage there does no harm; a foreign file or one of a newer program is not damage.
        """
        for index, segment in enumerate(self.segments[: self.start_index]):
            if segment.found in UNREADABLE:
                return Place(index, 0, segment.found, segment.why)
            if segment.header and segment.header.identity != self.identity:
                return Place(index, 0, Found.MISPLACED, "the segment belongs to another journal")
        return None

    def _limit(self, index: int) -> int:
        """Return where the frames of this segment end at the latest: the next segment knows."""
        segment = self.segments[index]
        for following in self.segments[index + 1 : index + 2]:
            header = following.header
            if header and not following.found and following.number == segment.number + 1:
                return max(HEADER_BYTES, min(segment.size_bytes, header.previous_valid_bytes))
        return segment.size_bytes

    def _continues(self, index: int) -> Place | None:
        """Return what is wrong about this segment coming next, None if nothing is."""
        segment = self.segments[index]
        previous = self.segments[index - 1] if index > self.start_index else None
        if previous and segment.number != previous.number + 1:
            why = f"the frames end, and segment {previous.number + 1} is missing"
            return Place(index - 1, previous.end, Found.END, why)
        if segment.found:
            return Place(index, 0, segment.found, segment.why)
        header = segment.header
        assert header is not None
        if header.identity != self.identity:
            return Place(index, 0, Found.MISPLACED, "the segment belongs to another journal")
        if self.base.snapshot and index == self.start_index:
            return None
        following = self.sequence + 1
        previous_end = previous.end if previous else 0
        if header.first_sequence == following and header.previous_valid_bytes == previous_end:
            return None
        is_short = header.previous_valid_bytes > previous_end
        if previous and is_short and header.first_sequence > following:
            why = f"the frames {following} to {header.first_sequence - 1} are missing"
            return Place(index - 1, previous_end, Found.END, why)
        why = f"the segment begins with frame {header.first_sequence}, wanted is {following}"
        return Place(index, 0, Found.MISPLACED, why)

    def _behind(self, place: Place) -> Behind:
        """Find out from the intact frames and headers after the place whether it was durable."""
        missing = self.sequence + 1
        seen = Behind.NOTHING
        if self.base.testimony >= missing:
            return Behind.SYNCED
        if place.found is Found.END and place.segment_index + 1 == len(self.segments):
            return seen
        for segment in self.segments[place.segment_index :]:
            is_place = segment is self.segments[place.segment_index]
            start = max(place.offset, HEADER_BYTES) if is_place else HEADER_BYTES
            if segment.found in UNREADABLE:
                return Behind.SYNCED
            if not is_place:
                # Even one that was never finished: the log cannot continue in front of it.
                seen = Behind.UNSYNCED
                if segment.header and segment.header.synced_sequence >= missing:
                    return Behind.SYNCED
            for sequence, synced in self._witnesses(segment, start):
                if synced >= missing:
                    return Behind.SYNCED
                if sequence >= missing:
                    seen = Behind.UNSYNCED
        return seen

    def _witnesses(self, segment: SegmentFile, start: int) -> Iterator[tuple[int, int]]:
        """Yield (sequence, synced) of the intact frames from an offset on."""
        try:
            handle = self._disk.open(segment.path)
            try:
                end = segment.size_bytes
                if segment is self.segments[self.start_index] and not segment.header:
                    # The first header is synced before anything is written after it, and without
                    # it there is no mark to look for: whatever is there may have been durable.
                    has_more = len(self.segments) > self.start_index + 1
                    if has_more or end_of_data(self._disk, handle, start, end) > start:
                        yield self.sequence + 1, self.sequence + 1
                    return
                assert self.identity is not None
                mark = frame_mark(self.identity, segment.number)
                yield from FrameReader(self._disk, handle, mark).search(start, end)
            finally:
                self._disk.close(handle)
        except OSError as error:
            _cannot_read(segment.path, error)


def _cannot_read(path: str, error: OSError) -> NoReturn:
    """Raise the error as the journal's own."""
    raise JournalFailed(path, f"cannot be read: {error.strerror}") from error
