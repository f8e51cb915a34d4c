"""Which delayed jobs wait for a wall-clock time, and where the wheel places them.

Wheels turn on delayd time, which cannot be set. A job with an absolute time is placed there by the
*offset*, wall clock minus delayd time:

    offset 1,000   the job is to come when the wall clock says 5,000     due at 4,000
    the wall clock is set back by 300: offset 700                        due at 4,300

When the offset changes, all such jobs have to be placed again, and a million of them take seconds:
it is done in slices. Until its slice comes a job is *unplaced*, and what its record says is out of
date. `current` computes the right one, so code that comes across an unplaced job can put it
right first, and how far the slices are is never visible.

Only jobs whose time has not come are placed again. So an unplaced job remembers the offsets that
have ended since it was placed, each with the time by which it ended: if its time had come by then,
it has come, whatever the wall clock says now.

>>> absolute = WallTimes(tick_ms=1)
>>> absolute.offset_ms = 1_000
>>> absolute.add(7)
>>> absolute.step(700, time_ms=2_000)
>>> absolute.due_ms(7, wall_ms=5_000), absolute.some_unplaced()
(4300, [7])

The jobs are kept as pages of bits: 2 bytes a job where most have an absolute time, 200 where one in
a hundred has.
"""

from collections.abc import Iterator
from typing import Final

from delayd.core.job_parts import Flag, wall_of
from delayd.core.job_record import DUE_AT, FLAGS_AT, STATE_AT, U64, State
from delayd.core.times import PlayedMs
from delayd.core.transitions import placed_anew
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import WALL_STEPS_MAX

_PAGE_BITS: Final = 6
_PAGE_MASK: Final = (1 << _PAGE_BITS) - 1
_DELAYED: Final = int(State.DELAYED)
_WALL: Final = int(Flag.WALL)


class IdSet:
    """A set of job ids, in pages of 64 bits."""

    __slots__ = ("_pages",)

    def __init__(self) -> None:
        self._pages: dict[int, int] = {}

    def add(self, job_id: int) -> None:
        """Add an id that is not in it."""
        page = job_id >> _PAGE_BITS
        self._pages[page] = self._pages.get(page, 0) | 1 << (job_id & _PAGE_MASK)

    def discard(self, job_id: int) -> bool:
        """Take an id out; tell whether it was in."""
        page = job_id >> _PAGE_BITS
        bits = self._pages.get(page, 0)
        bit = 1 << (job_id & _PAGE_MASK)
        if not bits & bit:
            return False
        if bits == bit:
            del self._pages[page]
        else:
            self._pages[page] = bits ^ bit
        return True

    def some(self) -> list[int]:
        """Return some ids, in their order: 1 to 64, where there are any."""
        # Put in again, the page stays the last: no walk over the places of those deleted before.
        page, bits = self._pages.popitem()
        self._pages[page] = bits
        return _ids(page, bits)

    def __contains__(self, job_id: int) -> bool:
        return bool(self._pages.get(job_id >> _PAGE_BITS, 0) >> (job_id & _PAGE_MASK) & 1)

    def __bool__(self) -> bool:
        return bool(self._pages)

    def __iter__(self) -> Iterator[int]:
        """Yield the ids, in no order."""
        for page, bits in self._pages.items():
            yield from _ids(page, bits)


def _ids(page: int, bits: int) -> list[int]:
    base = page << _PAGE_BITS
    return [base | low for low in range(1 << _PAGE_BITS) if bits >> low & 1]


class Layer:
    """Unplaced jobs that were placed by the same offset."""

    __slots__ = ("ended", "ids")

    def __init__(self, ids: IdSet) -> None:
        self.ids = ids
        self.ended: list[tuple[int, int]] = []
        """Offset, and the delayd time by which it ended; of all since these jobs were placed."""


class WallTimes:
    """The delayed jobs with absolute times that have not come, and the offset of now."""

    __slots__ = ("_placed", "count", "layers", "offset_ms", "recorded_ms", "tick_ms")

    def __init__(self, tick_ms: int) -> None:
        """Start without jobs, the wall clock and delayd time being the same."""
        self.tick_ms = tick_ms
        self.offset_ms = 0
        self.recorded_ms: int | None = None
        """The last offset in the log; the present one while there are jobs."""
        self.count = 0
        """How many jobs there are."""
        self.layers: list[Layer] = []
        """The unplaced, those first that have been it the longest; empty when all are placed."""
        self._placed = IdSet()

    def place(self, wall_ms: int) -> int:
        """Return the delayd time of a wall-clock time, by the present offset; never too early."""
        return self._by(self.offset_ms, wall_ms)

    def _by(self, offset_ms: int, wall_ms: int) -> int:
        return ceil_to_tick(max(0, wall_ms - offset_ms), self.tick_ms)

    @property
    def is_full(self) -> bool:
        """Tell whether unplaced jobs must be placed before the next step."""
        return bool(self.layers) and len(self.layers[0].ended) >= WALL_STEPS_MAX

    def add(self, job_id: int) -> None:
        """Take in a job that is placed by the offset of now."""
        self._placed.add(job_id)
        self.count += 1

    def discard(self, job_id: int) -> None:
        """Forget a job, if it is one of these."""
        if self._placed.discard(job_id):
            self.count -= 1
            return
        for layer in self.layers:
            if layer.ids.discard(job_id):
                self.count -= 1
                if not layer.ids:
                    self.layers.remove(layer)
                return

    def step(self, offset_ms: int, time_ms: PlayedMs) -> None:
        """Set another offset from `time_ms` on: all jobs are unplaced."""
        assert not self.is_full, "the oldest layer has to be placed first"
        if self._placed:
            self.layers.append(Layer(self._placed))
            self._placed = IdSet()
        for layer in self.layers:
            layer.ended.append((self.offset_ms, time_ms))
        self.offset_ms = offset_ms

    def due_ms(self, job_id: int, wall_ms: int) -> int | None:
        """Return when an unplaced job comes due, or came due when it did; None for any other."""
        for layer in self.layers:
            if job_id in layer.ids:
                for offset_ms, time_ms in layer.ended:
                    due_ms = self._by(offset_ms, wall_ms)
                    if due_ms <= time_ms:
                        return due_ms
                return self.place(wall_ms)
        return None

    def current(self, job_id: int, record: bytes) -> bytes:
        """Return the record of a delayed job with the due time that it has, placed or not."""
        if self.layers:
            wall_ms = wall_of(record)
            due_ms = None if wall_ms is None else self.due_ms(job_id, wall_ms)
            if due_ms is not None:
                return placed_anew(record, due_ms)
        return record

    def note(self, job_id: int, record: bytes, time_ms: PlayedMs) -> None:
        """Take in a job just put or moved, if it waits for a wall-clock time."""
        if (
            record[STATE_AT] == _DELAYED
            and record[FLAGS_AT] & _WALL
            and U64.unpack_from(record, DUE_AT)[0] > time_ms
        ):
            self.add(job_id)

    def some_unplaced(self) -> list[int]:
        """Return some jobs, 1 to 64, of those that have been unplaced the longest.

        The caller places each: by `discard` and, unless it is due, `add`.
        """
        return self.layers[0].ids.some()

    def ids(self) -> tuple[set[int], set[int]]:
        """Return which jobs are placed and which are not. For tests. O(jobs)."""
        unplaced = [job_id for layer in self.layers for job_id in layer.ids]
        assert len(set(unplaced)) == len(unplaced)
        return set(self._placed), set(unplaced)

    def check(self) -> None:
        """Assert that the jobs are counted and that the log knows where they are. O(jobs)."""
        placed, unplaced = self.ids()
        assert not placed & unplaced
        assert self.count == len(placed) + len(unplaced)
        assert all(layer.ids for layer in self.layers)
        assert self.recorded_ms == self.offset_ms or not self.count
