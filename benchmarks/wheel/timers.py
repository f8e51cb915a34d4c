"""The timing wheel and its rivals behind one interface, so that `operations` drives each alike.

All are told of entries by number. Who drives them keeps `due_ms`, a list from entry to due time or
None, and sets it before an insert and before a cancel, as delayd's engine does with its jobs; who
needs to know what is still wanted may look there. `expire` sets it to None for what it fires.

All keep time in milliseconds, and fire an entry when `expire` is called at its due time, no later.
`tests/benchmarks/test_wheel.py` compares each with a list that is searched.
"""

import asyncio
import heapq
import selectors
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, NamedTuple, Protocol, TypeAlias

from sortedcontainers import SortedDict, SortedList

from delayd.core.wheel.wheel import TimingWheel
from delayd.limits import WHEEL_TICK_MS_DEFAULT

DueTimes: TypeAlias = list[int | None]
"""Entry → when it is due, None when it is not wanted."""


class Timer(NamedTuple):
    """What can be done with every rival."""

    insert: Callable[[int, int, int], object]
    """(entry, due_ms, now_ms): fire the entry at that time."""
    cancel: Callable[[int, int], object]
    """(entry, due_ms): do not fire the entry."""
    next_deadline: Callable[[], int | None]
    """When to call `expire` next, None when never."""
    expire: Callable[[int, int], int]
    """(now_ms, limit): fire what is due, about so many if it can stop in between; how many it
    fired. More is due if `next_deadline` is not later than now."""
    close: Callable[[], object]
    """Free what the garbage collector does not."""


class Rival(Protocol):
    """A rival that is one object."""

    def insert(self, entry: int, due_ms: int, now_ms: int, /) -> None: ...  # noqa: D102
    def cancel(self, entry: int, due_ms: int, /) -> None: ...  # noqa: D102
    def next_deadline(self) -> int | None: ...  # noqa: D102
    def expire(self, now_ms: int, limit: int, /) -> int: ...  # noqa: D102


def driven(rival: Rival, close: Callable[[], object] = int) -> Timer:
    """Return how a rival is driven: by its methods, which are called directly."""
    return Timer(rival.insert, rival.cancel, rival.next_deadline, rival.expire, close)


def wheel(due_ms: DueTimes, wheel_size: int) -> Timer:
    """Return delayd's wheel; inserts and deadlines are its own methods, as in the engine."""
    ours = TimingWheel(WHEEL_TICK_MS_DEFAULT, wheel_size, 0, due_ms.__getitem__)
    advance = ours.advance
    drop = ours.cancel

    def cancel(_entry: int, _due_ms: int) -> None:
        drop()

    def expire(now_ms: int, limit: int) -> int:
        fired = advance(now_ms, limit)
        for entry in fired:
            due_ms[entry] = None
        return len(fired)

    return Timer(ours.insert, cancel, ours.next_deadline, expire, int)


class Heap:
    """A heap of (due, entry). A cancelled row keeps its memory until it comes up."""

    def __init__(self, due_ms: DueTimes) -> None:
        """Start empty."""
        self._due_ms = due_ms
        self._rows: list[tuple[int, int]] = []

    def insert(self, entry: int, due_ms: int, _now_ms: int) -> None:
        """Push it."""
        heapq.heappush(self._rows, (due_ms, entry))

    def cancel(self, _entry: int, _due_ms: int) -> None:
        """Do nothing."""

    def next_deadline(self) -> int | None:
        """Look at the first row, wanted or not."""
        return self._rows[0][0] if self._rows else None

    def expire(self, now_ms: int, limit: int) -> int:
        """Pop, and leave out what is no longer wanted."""
        rows, due_ms = self._rows, self._due_ms
        pop = heapq.heappop
        count = 0
        while rows and rows[0][0] <= now_ms and limit > 0:
            at_ms, entry = pop(rows)
            limit -= 1
            if due_ms[entry] == at_ms:
                due_ms[entry] = None
                count += 1
        return count


class Rows:
    """A sorted list of (due, entry)."""

    def __init__(self, due_ms: DueTimes) -> None:
        """Start empty."""
        self._due_ms = due_ms
        self._rows: SortedList[tuple[int, int]] = SortedList()

    def insert(self, entry: int, due_ms: int, _now_ms: int) -> None:
        """Add it in its place."""
        self._rows.add((due_ms, entry))

    def cancel(self, entry: int, due_ms: int) -> None:
        """Take it out at once."""
        self._rows.remove((due_ms, entry))

    def next_deadline(self) -> int | None:
        """Look at the first row."""
        return self._rows[0][0] if self._rows else None

    def expire(self, now_ms: int, limit: int) -> int:
        """Take rows off the front."""
        rows, due_ms = self._rows, self._due_ms
        count = 0
        while rows and count < limit and rows[0][0] <= now_ms:
            _, entry = rows.pop(0)
            due_ms[entry] = None
            count += 1
        return count


class ByTime:
    """A sorted dict from due time to the entries that are due then."""

    def __init__(self, due_ms: DueTimes) -> None:
        """Start empty."""
        self._due_ms = due_ms
        self._at: SortedDict[int, dict[int, None]] = SortedDict()

    def insert(self, entry: int, due_ms: int, _now_ms: int) -> None:
        """Add it to the entries of its time."""
        entries = self._at.get(due_ms)
        if entries is None:
            entries = self._at[due_ms] = {}
        entries[entry] = None

    def cancel(self, entry: int, due_ms: int) -> None:
        """Take it out at once."""
        entries = self._at[due_ms]
        del entries[entry]
        if not entries:
            del self._at[due_ms]

    def next_deadline(self) -> int | None:
        """Look at the first time."""
        return self._at.keys()[0] if self._at else None

    def expire(self, now_ms: int, limit: int) -> int:
        """Take times off the front, the last one whole."""
        due_ms = self._due_ms
        count = 0
        while self._at and count < limit and self._at.keys()[0] <= now_ms:
            _, entries = self._at.popitem(0)
            for entry in entries:
                due_ms[entry] = None
            count += len(entries)
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


class CallLater:
    """asyncio's own timers: a heap of handles, rebuilt when half of them are cancelled."""

    def __init__(self, due_ms: DueTimes) -> None:
        """Start a loop that nobody else uses."""
        self._due_ms = due_ms
        self._loop = _ToldTime(_NoFiles())
        self._handles: list[asyncio.TimerHandle | None] = [None] * len(due_ms)
        self._fired = 0

    def insert(self, entry: int, due_ms: int, _now_ms: int) -> None:
        """Do what call_later does, which adds the loop's time and calls call_at."""
        self._handles[entry] = self._loop.call_at(due_ms / 1000, self._fire, entry)

    def cancel(self, entry: int, _due_ms: int) -> None:
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

    def expire(self, now_ms: int, _limit: int) -> int:
        """Take one turn of the loop, without what run_forever does once; it takes all at once."""
        before = self._fired
        self._loop.now_s = now_ms / 1000
        self._loop._run_once()  # type: ignore[attr-defined]  # noqa: SLF001
        return self._fired - before

    def close(self) -> None:
        """Close the loop's own socket pair."""
        self._loop.close()


class SingleWheel:
    """The plain wheel: an array of slots, one a tick, and for each entry how many rounds it waits.

    Every tick looks at all entries of its slot: those with no round left fire, and the others lose
    one. With 4 slots, at tick 0, an entry due at 9 is in slot 1 with 2 rounds to go.
    """

    def __init__(self, due_ms: DueTimes, wheel_size: int) -> None:
        """Start empty, with the first tick to come."""
        self._due_ms = due_ms
        self._size = wheel_size
        self._slots: list[dict[int, int]] = [{} for _ in range(wheel_size)]
        self._tick = 0
        self._held = 0

    def insert(self, entry: int, due_ms: int, now_ms: int) -> None:
        """Put it into its slot, with its rounds."""
        if self._held == 0:
            self._tick = max(self._tick, now_ms)
        self._held += 1
        self._slots[due_ms % self._size][entry] = (due_ms - self._tick) // self._size

    def cancel(self, entry: int, due_ms: int) -> None:
        """Take it out at once."""
        del self._slots[due_ms % self._size][entry]
        self._held -= 1

    def next_deadline(self) -> int | None:
        """Return the next tick, whether there is something in its slot or not."""
        return self._tick if self._held else None

    def expire(self, now_ms: int, limit: int) -> int:
        """Turn tick by tick, each whole."""
        due_ms = self._due_ms
        count = 0
        while self._held and self._tick <= now_ms and count < limit:
            slot = self._slots[self._tick % self._size]
            self._tick += 1
            fired = [entry for entry, rounds in slot.items() if rounds == 0]
            for entry in fired:
                del slot[entry]
                due_ms[entry] = None
            for entry in slot:
                slot[entry] -= 1
            count += len(fired)
            self._held -= len(fired)
        return count


class HashedWheel:
    """A hashed wheel with rounds in Netty's way (`HashedWheelTimer`).

    Inserts and cancels are queued, and done by the next tick: up to 100,000 inserts are moved to
    their slots by one tick. A tick looks at all entries of its slot, as in the plain wheel. Netty's
    ticks are 100 ms by default; here it is 1 ms, so that it is as exact as the others.

    Netty links the entries of a slot; a dict has the same costs here. (Varghese and Lauck: Hashed
    and Hierarchical Timing Wheels, 1987, scheme 6.)
    """

    MOVED_MAX: ClassVar[int] = 100_000

    def __init__(self, due_ms: DueTimes, wheel_size: int) -> None:
        """Start empty, with the first tick to come."""
        self._due_ms = due_ms
        self._size = wheel_size
        self._slots: list[dict[int, int]] = [{} for _ in range(wheel_size)]
        self._inserted: list[tuple[int, int]] = []
        self._cancelled: list[tuple[int, int]] = []
        self._tick = 0
        self._held = 0

    def insert(self, entry: int, due_ms: int, now_ms: int) -> None:
        """Queue it for the next tick."""
        if self._held == 0:
            self._tick = max(self._tick, now_ms)
        self._held += 1
        self._inserted.append((entry, due_ms))

    def cancel(self, entry: int, due_ms: int) -> None:
        """Queue its removal for the next tick."""
        self._cancelled.append((entry, due_ms))

    def next_deadline(self) -> int | None:
        """Return the next tick, whether there is something in its slot or not."""
        return self._tick if self._held else None

    def _settle(self) -> None:
        """Move to their slots what was inserted, and remove what was cancelled."""
        slots, size, tick = self._slots, self._size, self._tick
        cancelled, self._cancelled = self._cancelled, []
        for entry, due_ms in cancelled:
            self._held -= slots[due_ms % size].pop(entry, None) is not None
        moved = self._inserted[: self.MOVED_MAX]
        del self._inserted[: self.MOVED_MAX]
        for entry, due_ms in moved:
            if self._due_ms[entry] == due_ms:
                at = max(due_ms, tick)
                slots[at % size][entry] = (at - tick) // size
            else:
                self._held -= 1  # cancelled before it was in a slot

    def expire(self, now_ms: int, limit: int) -> int:
        """Turn tick by tick, each whole."""
        due_ms = self._due_ms
        count = 0
        while self._held and self._tick <= now_ms and count < limit:
            if self._inserted or self._cancelled:
                self._settle()
            slot = self._slots[self._tick % self._size]
            self._tick += 1
            fired = [entry for entry, rounds in slot.items() if rounds <= 0]
            for entry in fired:
                del slot[entry]
                due_ms[entry] = None
            for entry in slot:
                slot[entry] -= 1
            count += len(fired)
            self._held -= len(fired)
        return count


def call_later(due_ms: DueTimes, _wheel_size: int) -> Timer:
    """Return asyncio's timers."""
    rival = CallLater(due_ms)
    return driven(rival, rival.close)


Make: TypeAlias = Callable[[DueTimes, int], Timer]
"""Start empty at time 0; who is no wheel needs no size of one."""

TIMERS: Final[Mapping[str, Make]] = MappingProxyType(
    {
        "delayd": wheel,
        "delayd, compiled": wheel,
        "heapq": lambda due_ms, _: driven(Heap(due_ms)),
        "SortedList": lambda due_ms, _: driven(Rows(due_ms)),
        "SortedDict": lambda due_ms, _: driven(ByTime(due_ms)),
        "call_later": call_later,
        "hashed wheel": lambda due_ms, size: driven(HashedWheel(due_ms, size)),
        "single wheel": lambda due_ms, size: driven(SingleWheel(due_ms, size)),
    }
)
WITH_ROUNDS: Final = ("hashed wheel", "single wheel")
WHEELS: Final = ("delayd", "delayd, compiled", *WITH_ROUNDS)
"""Those that have a size."""
ROUNDS_SIZE: Final = 4_096
"""Slots of the wheels with rounds, where the size is not what is varied: more would be faster
still, since an hour has 3,600,000 ticks; 512 is Netty's default."""
