"""What each rival is made to do, and how long it takes: a function for each operation.

Each gets a way to make a timer, the size of its wheel and how many entries there are, and returns
what `registry.VALUES` names. The random numbers follow one seed, so all rivals get the same.
"""

import random
import tracemalloc
from array import array
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, process_time
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from benchmarks.registry import Values
from benchmarks.wheel.timers import DueTimes, Make, Timer
from delayd.limits import ADVANCE_SLICE_JOBS

HOUR_MS: Final = 3_600_000
MINUTE_MS: Final = 60_000
SECOND_MS: Final = 1_000
ORDERS_PER_MS: Final = 10
ORDER_DELAY_MS: Final = 30_000
ORDER_PAID: Final = 0.9
CANCELLED: Final = 0.9
IN_A_ROW: Final = 32
"""Inserts or cancels that a pause is measured over."""


class Filled(NamedTuple):
    """A timer with entries, and what it took to insert them."""

    timer: Timer
    owner: DueTimes
    seconds: float
    longest_s: float


def values(seconds: float, longest_s: float, count: int) -> Values:
    """Return the readings of so many entries."""
    return {"us": seconds / count * 1e6, "worst_ms": longest_s * 1e3}


def random_dues(count: int, span_ms: int) -> "array[int]":
    """Return due times at random within a span from 1 ms on."""
    rng = random.Random(1)
    return array("Q", (rng.randrange(1, span_ms) for _ in range(count)))


def shuffled(count: int) -> "array[int]":
    """Return all entries in random order."""
    order = list(range(count))
    random.Random(2).shuffle(order)
    return array("Q", order)


# --- The loops that drive a timer ----------------------------------------------------------------


def fill(make: Make, wheel_size: int, dues_ms: Sequence[int], per_ms: int = 0) -> Filled:
    """Insert all at time 0, or so many in each millisecond, due so long after it."""
    owner: DueTimes = [None] * len(dues_ms)
    timer = make(owner, wheel_size)
    insert = timer.insert
    longest_s = 0.0
    began_s = process_time()
    for first in range(0, len(dues_ms), IN_A_ROW):
        row_began_s = perf_counter()
        for entry in range(first, min(first + IN_A_ROW, len(dues_ms))):
            now_ms = entry // per_ms if per_ms else 0
            due_ms = owner[entry] = now_ms + dues_ms[entry]
            insert(entry, due_ms, now_ms)
        longest_s = max(longest_s, perf_counter() - row_began_s)
    return Filled(timer, owner, process_time() - began_s, longest_s)


def cancel_all(timer: Timer, owner: DueTimes, order: Sequence[int]) -> tuple[float, float]:
    """Cancel these; return the seconds that it took, and the longest of so many in a row."""
    cancel = timer.cancel
    longest_s = 0.0
    began_s = process_time()
    for first in range(0, len(order), IN_A_ROW):
        row_began_s = perf_counter()
        for entry in order[first : first + IN_A_ROW]:
            due_ms = owner[entry]
            assert due_ms is not None
            owner[entry] = None
            cancel(entry, due_ms)
        longest_s = max(longest_s, perf_counter() - row_began_s)
    return process_time() - began_s, longest_s


def expire_all(timer: Timer, expected: int) -> tuple[float, float]:
    """Sleep until each deadline in turn, to the end; return the seconds, and the longest call."""
    next_deadline, expire = timer.next_deadline, timer.expire
    longest_s = 0.0
    fired = 0
    began_s = process_time()
    while (deadline_ms := next_deadline()) is not None:
        call_began_s = perf_counter()
        fired += expire(deadline_ms, ADVANCE_SLICE_JOBS)
        call_s = perf_counter() - call_began_s
        longest_s = max(longest_s, call_s)
    seconds = process_time() - began_s
    assert fired == expected, f"{fired} fired, {expected} were due"
    timer.close()
    return seconds, longest_s


# --- The operations ------------------------------------------------------------------------------


def insert(make: Make, wheel_size: int, count: int) -> Values:
    """Insert entries that are due at random within an hour."""
    filled = fill(make, wheel_size, random_dues(count, HOUR_MS))
    filled.timer.close()
    return values(filled.seconds, filled.longest_s, count)


def insert_one_delay(make: Make, wheel_size: int, count: int) -> Values:
    """Insert entries with the same delay, 1,000 in each millisecond."""
    filled = fill(make, wheel_size, array("Q", [HOUR_MS]) * count, per_ms=1_000)
    filled.timer.close()
    return values(filled.seconds, filled.longest_s, count)


def cancel(make: Make, wheel_size: int, count: int) -> Values:
    """Cancel all entries of `insert` in random order."""
    filled = fill(make, wheel_size, random_dues(count, HOUR_MS))
    seconds, longest_s = cancel_all(filled.timer, filled.owner, shuffled(count))
    filled.timer.close()
    return values(seconds, longest_s, count)


def cancel_and_clean_up(make: Make, wheel_size: int, count: int) -> Values:
    """The same, and then whatever there is to do until nothing is held."""
    filled = fill(make, wheel_size, random_dues(count, HOUR_MS))
    cancels_s, longest_cancels_s = cancel_all(filled.timer, filled.owner, shuffled(count))
    rest_s, longest_s = expire_all(filled.timer, 0)
    return values(cancels_s + rest_s, max(longest_cancels_s, longest_s), count)


def expired(make: Make, wheel_size: int, dues_ms: Sequence[int]) -> Values:
    """Insert all; what is measured is how they expire."""
    filled = fill(make, wheel_size, dues_ms)
    return values(*expire_all(filled.timer, len(dues_ms)), len(dues_ms))


def expire(make: Make, wheel_size: int, count: int) -> Values:
    """Expire entries that are due at random within an hour."""
    return expired(make, wheel_size, random_dues(count, HOUR_MS))


def expire_in_a_minute(make: Make, wheel_size: int, count: int) -> Values:
    """Expire entries that are due at random within a minute."""
    return expired(make, wheel_size, random_dues(count, MINUTE_MS))


def expire_dense(make: Make, wheel_size: int, count: int) -> Values:
    """Expire entries that are due at random within a second."""
    return expired(make, wheel_size, random_dues(count, SECOND_MS))


def expire_one_instant(make: Make, wheel_size: int, count: int) -> Values:
    """Expire entries that are all due in one millisecond, a minute from now."""
    return expired(make, wheel_size, array("Q", [MINUTE_MS]) * count)


def order_events(count: int) -> "array[int]":
    """What happens to the orders, in order of time: time << 32 | entry << 1 | is it paid."""
    rng = random.Random(1)
    events = []
    for entry in range(count):
        placed_ms = entry // ORDERS_PER_MS
        events.append(placed_ms << 32 | entry << 1)
        if rng.random() < ORDER_PAID:
            paid_ms = placed_ms + rng.randrange(1, ORDER_DELAY_MS)
            events.append(paid_ms << 32 | entry << 1 | 1)
    events.sort()
    return array("Q", events)


def order_timeout(make: Make, wheel_size: int, count: int) -> Values:
    """Place, pay and time out orders; the pause is of one `expire`."""
    events = order_events(count)
    owner: DueTimes = [None] * count
    timer = make(owner, wheel_size)
    insert, cancel, next_deadline = timer.insert, timer.cancel, timer.next_deadline
    last_ms = -1
    fired = 0
    longest_s = 0.0
    began_s = process_time()
    for event in events:
        now_ms = event >> 32
        entry = (event & 0xFFFFFFFF) >> 1
        if now_ms != last_ms:
            # Once a turn, as the daemon does; a turn is a ms here.
            last_ms = now_ms
            while (deadline_ms := next_deadline()) is not None and deadline_ms <= now_ms:
                call_began_s = perf_counter()
                fired += timer.expire(now_ms, ADVANCE_SLICE_JOBS)
                longest_s = max(longest_s, perf_counter() - call_began_s)
        if event & 1:
            due_ms = owner[entry]
            assert due_ms is not None
            owner[entry] = None
            cancel(entry, due_ms)
        else:
            due_ms = owner[entry] = now_ms + ORDER_DELAY_MS
            insert(entry, due_ms, now_ms)
    seconds = process_time() - began_s
    rest_s, longest_rest_s = expire_all(timer, 2 * count - len(events) - fired)
    return values(seconds + rest_s, max(longest_s, longest_rest_s), count)


def traced_bytes(make: Make, wheel_size: int, count: int, cancelled: int) -> int:
    """Return what a timer and its owner hold when so many entries have been cancelled."""
    dues_ms, order = random_dues(count, HOUR_MS), shuffled(count)
    tracemalloc.start()
    filled = fill(make, wheel_size, dues_ms)
    cancel_all(filled.timer, filled.owner, order[:cancelled])
    traced = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    filled.timer.close()
    return traced


def nothing(_due_ms: DueTimes, _wheel_size: int) -> Timer:
    """Return a timer that keeps nothing: what its owner holds is not the others' either."""
    return Timer(lambda *_: None, lambda *_: None, lambda: None, lambda *_: 0, int)


def held(make: Make, wheel_size: int, count: int, cancelled: int) -> Values:
    """The bytes that an entry of `insert` takes when so many of them have been cancelled."""
    of_owner = traced_bytes(nothing, wheel_size, count, cancelled)
    return {"entry_bytes": (traced_bytes(make, wheel_size, count, cancelled) - of_owner) / count}


def hold(make: Make, wheel_size: int, count: int) -> Values:
    """The bytes that an entry takes."""
    return held(make, wheel_size, count, 0)


def hold_cancelled(make: Make, wheel_size: int, count: int) -> Values:
    """The bytes that an entry takes when 90 % of all have been cancelled."""
    return held(make, wheel_size, count, int(CANCELLED * count))


Operation: TypeAlias = Callable[[Make, int, int], Values]

OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType(
    {
        "insert": insert,
        "insert, one delay": insert_one_delay,
        "cancel": cancel,
        "cancel, cleaned up": cancel_and_clean_up,
        "expire": expire,
        "expire, dense": expire_dense,
        "expire, one instant": expire_one_instant,
        "order timeout": order_timeout,
        "hold": hold,
        "hold, 90 % cancelled": hold_cancelled,
        "expire in a minute": expire_in_a_minute,
    }
)
"""By the names that they have in the results."""
