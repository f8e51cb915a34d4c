"""The timing wheel and its rivals behind one interface, so that `wheel.py` can drive each alike.

All are told of entries by number. Who drives them keeps `due_ms`, a list from entry to due time or
None, and sets it before `insert` and before `cancel`, as delayd's engine does with its jobs; who
needs to know what is still wanted may look there. `expire` sets it to None for what it fires.
"""

import asyncio
import heapq
import selectors
from abc import ABC, abstractmethod
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Final

from sortedcontainers import SortedList

from delayd.core.wheel.wheel import TimingWheel
from delayd.limits import ADVANCE_SLICE_JOBS, WHEEL_SIZE_DEFAULT, WHEEL_TICK_MS_DEFAULT

DueTimes = list[int | None]


class Timer(ABC):
    """What every rival can do."""

    BYTES_PER_ENTRY: ClassVar[int]
    """What to expect, so that a size that does not fit is not tried."""

    @abstractmethod
    def __init__(self, due_ms: DueTimes) -> None:
        """Start empty, at time 0."""

    @abstractmethod
    def insert(self, entry: int, due_ms: int, now_ms: int) -> None:
        """Fire the entry at `due_ms`."""

    @abstractmethod
    def cancel(self, entry: int, due_ms: int) -> None:
        """Do not fire the entry."""

    @abstractmethod
    def next_deadline(self) -> int | None:
        """Return when to call `expire` next, None when never."""

    @abstractmethod
    def expire(self, now_ms: int) -> int:
        """Fire all that is due; return how many."""

    def close(self) -> None:  # noqa: B027  (most have nothing to close)
        """Free what the garbage collector does not."""


class Wheel(Timer):
    """Ours, with the defaults of the daemon."""

    BYTES_PER_ENTRY = 24

    def __init__(self, due_ms: DueTimes) -> None:
        """Start empty."""
        self._due_ms = due_ms
        self._wheel = TimingWheel(WHEEL_TICK_MS_DEFAULT, WHEEL_SIZE_DEFAULT, 0, due_ms.__getitem__)

    def insert(self, entry: int, due_ms: int, now_ms: int) -> None:
        """Hand it to the wheel."""
        self._wheel.insert(entry, due_ms, now_ms)

    def cancel(self, entry: int, due_ms: int) -> None:  # noqa: ARG002  # other queues need them
        """Tell the wheel."""
        self._wheel.cancel()

    def next_deadline(self) -> int | None:
        """Ask the wheel."""
        return self._wheel.next_deadline()

    def expire(self, now_ms: int) -> int:
        """Turn the wheel slice by slice, as the daemon does."""
        due_ms = self._due_ms
        count = 0
        while True:
            fired = self._wheel.advance(now_ms, ADVANCE_SLICE_JOBS)
            for entry in fired:
                due_ms[entry] = None
            count += len(fired)
            deadline_ms = self._wheel.next_deadline()
            if deadline_ms is None or deadline_ms > now_ms:
                return count


class Heap(Timer):
    """A heap of (due, entry)."""

    BYTES_PER_ENTRY = 100

    def __init__(self, due_ms: DueTimes) -> None:
        """Start empty."""
        self._due_ms = due_ms
        self._rows: list[tuple[int, int]] = []

    def insert(self, entry: int, due_ms: int, now_ms: int) -> None:  # noqa: ARG002
        """Push it."""
        heapq.heappush(self._rows, (due_ms, entry))

    def cancel(self, entry: int, due_ms: int) -> None:
        """Do nothing: the row keeps its memory until it comes up."""

    def next_deadline(self) -> int | None:
        """Look at the first row, wanted or not."""
        return self._rows[0][0] if self._rows else None

    def expire(self, now_ms: int) -> int:
        """Pop, and leave out what is no longer wanted then."""
        rows = self._rows
        due_ms = self._due_ms
        pop = heapq.heappop
        count = 0
        while rows and rows[0][0] <= now_ms:
            at_ms, entry = pop(rows)
            if due_ms[entry] == at_ms:
                due_ms[entry] = None
                count += 1
        return count


class Sorted(Timer):
    """A sorted list of (due, entry)."""

    BYTES_PER_ENTRY = 120

    def __init__(self, due_ms: DueTimes) -> None:
        """Start empty."""
        self._due_ms = due_ms
        self._rows: SortedList[tuple[int, int]] = SortedList()

    def insert(self, entry: int, due_ms: int, now_ms: int) -> None:  # noqa: ARG002
        """Add it in its place."""
        self._rows.add((due_ms, entry))

    def cancel(self, entry: int, due_ms: int) -> None:
        """Take it out at once."""
        self._rows.remove((due_ms, entry))

    def next_deadline(self) -> int | None:
        """Look at the first row."""
        return self._rows[0][0] if self._rows else None

    def expire(self, now_ms: int) -> int:
        """Take rows off the front."""
        rows = self._rows
        due_ms = self._due_ms
        count = 0
        while rows and rows[0][0] <= now_ms:
            _, entry = rows.pop(0)
            due_ms[entry] = None
            count += 1
        return count


class _NoFiles(selectors.SelectSelector):
    """Never waits, so that the time can be an argument."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:  # noqa: ARG002
        return []


class _ToldTime(asyncio.SelectorEventLoop):
    """An event loop that takes the time it is told for the time it is."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s


class CallLater(Timer):
    """asyncio's own timers: a heap of handles, rebuilt when half of them are cancelled."""

    BYTES_PER_ENTRY = 400

    def __init__(self, due_ms: DueTimes) -> None:
        """Start a loop that nobody else uses."""
        self._due_ms = due_ms
        self._loop = _ToldTime(_NoFiles())
        self._handles: list[asyncio.TimerHandle | None] = [None] * len(due_ms)
        self._fired = 0

    def insert(self, entry: int, due_ms: int, now_ms: int) -> None:  # noqa: ARG002
        """Do what call_later does, which adds the loop's time and calls call_at."""
        self._handles[entry] = self._loop.call_at(due_ms / 1000, self._fire, entry)

    def cancel(self, entry: int, due_ms: int) -> None:  # noqa: ARG002
        """Cancel its handle."""
        handle = self._handles[entry]
        assert handle is not None
        handle.cancel()
        self._handles[entry] = None

    def next_deadline(self) -> int | None:
        """Look where the loop itself looks; it has no public way."""
        rows = self._loop._scheduled  # type: ignore[attr-defined]  # noqa: SLF001
        return round(rows[0].when() * 1000) if rows else None

    def _fire(self, entry: int) -> None:
        self._fired += 1
        self._due_ms[entry] = None
        self._handles[entry] = None

    def expire(self, now_ms: int) -> int:
        """Take one turn of the loop, without what run_forever does once at its start."""
        before = self._fired
        self._loop.now_s = now_ms / 1000
        self._loop._run_once()  # type: ignore[attr-defined]  # noqa: SLF001
        return self._fired - before

    def close(self) -> None:
        """Close the loop's own socket pair."""
        self._loop.close()


TIMERS: Final[Mapping[str, type[Timer]]] = MappingProxyType(
    {"wheel": Wheel, "heapq": Heap, "SortedList": Sorted, "call_later": CallLater}
)
