"""Reads segments: frame by frame, and, where a frame is bad, searches for good ones after it.

`FrameReader.frames` yields frames from one offset to another and then says why it stopped. It reads
a window of JOURNAL_WINDOW_BYTES at a time; a frame longer than that is read whole, after its length
has been checked against the file, so memory is bounded whatever a length field says.

`FrameReader.search` finds the frames that are intact *after* a bad place by looking for the
segment's mark. Clients cannot forge it, so the cost is one pass over the file, whatever bodies it
holds.

The reader refuses to judge: torn or corrupt is decided in `recovery`.
"""

import enum
from collections.abc import Callable, Generator, Iterator
from typing import Final, NamedTuple
from zlib import crc32

from delayd.journal.disk import Disk
from delayd.journal.format import CHECKSUM, FRAME, FRAME_KINDS, FRAME_OVERHEAD_BYTES, MARK, Frame
from delayd.limits import JOURNAL_PAYLOAD_BYTES_MAX, JOURNAL_WINDOW_BYTES

ZEROS: Final = bytes(JOURNAL_WINDOW_BYTES)


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
    sequence: int
    """The sequence number that the next frame would have had."""

    synced: int
    """What the last good frame knew to be durable."""


def read_exactly(disk: Disk, handle: int, count: int, offset: int) -> bytes:
    """Read `count` bytes; fewer only where the file ends. Raises OSError."""
    data = disk.pread(handle, count, offset)
    while len(data) < count:
        more = disk.pread(handle, count - len(data), offset + len(data))
        if not more:
            break
        data += more
    return data


def end_of_data(disk: Disk, handle: int, start: int, end: int) -> int:
    """Return the offset after the last non-zero byte of a range; `start` if there is none."""
    last = start
    for offset in range(start, end, JOURNAL_WINDOW_BYTES):
        window = read_exactly(disk, handle, min(JOURNAL_WINDOW_BYTES, end - offset), offset)
        # Comparing with zeros is what a preallocated tail costs at start: 64 MiB in about 10 ms.
        if window != ZEROS[: len(window)]:
            last = offset + len(window.rstrip(b"\0"))
    return last


class FrameReader:
    """The frames of one open segment."""

    __slots__ = ("_disk", "_handle", "_mark")

    def __init__(self, disk: Disk, handle: int, mark: int) -> None:
        """Take an open file and the mark of its frames."""
        self._disk = disk
        self._handle = handle
        self._mark = mark

    def frames(
        self,
        start: int,
        end: int,
        sequence: int,
        synced: int,
        on_window: Callable[[int, int], None],
    ) -> Generator[Frame, None, Position]:
        """Yield the frames between two offsets; return where and why that ended.

        `sequence` is what the first frame must have. `on_window(sequence, offset)` is told where
        each window begins. Payloads are `bytes`, ready to be sliced. Raises OSError.
        """
        mark = self._mark
        unpack_head, unpack_checksum = FRAME.unpack_from, CHECKSUM.unpack_from
        head_bytes, overhead_bytes = FRAME.size, FRAME_OVERHEAD_BYTES
        offset, frame_bytes = start, overhead_bytes
        while True:
            asked_bytes = min(max(frame_bytes, JOURNAL_WINDOW_BYTES), end - offset)
            window = read_exactly(self._disk, self._handle, asked_bytes, offset)
            on_window(sequence, offset)
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
        if stop in {Stop.GARBAGE, Stop.SHORT} and self._is_zero(offset, end):
            stop = Stop.END
        return Position(stop, offset, sequence, synced)

    def _is_zero(self, start: int, end: int) -> bool:
        """Whether there are only zeros between the offsets."""
        return end_of_data(self._disk, self._handle, start, end) == start

    def search(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield (sequence, synced) of every intact frame that begins between the offsets.

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
                    yield found
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
