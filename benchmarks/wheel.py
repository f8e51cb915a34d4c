"""The timing wheel beside heapq, SortedList and asyncio's call_later: `python -m benchmarks.wheel`.

For each size, what one entry costs:

    insert          entries due at random within an hour
    insert_delay    all with the same delay, 1,000 in each ms
    cancel          all of the first, in random order
    expire          all of the first, each woken in its ms: 10⁶ an hour are 278 a second
    expire_dense    all due within one second, turned once a ms
    order_timeout   10,000 orders a second, due after 30 s, 90 % of them cancelled before
    memory          bytes an entry, after insert (traced; of the first million)
    memory_cancel   the same, after 90 % of them have been cancelled

Every figure is the median of five runs (`--runs`) after a warm-up, with the garbage collector on,
as in the daemon. Each rival runs in a process of its own and is driven by the same loop, whose own
cost (about 0.1 µs) is in every figure. The ratio says how many times what the wheel takes a rival
takes: below 1 the wheel loses, and the last lines list where.
"""

import argparse
import gc
import json
import random
import statistics
import subprocess
import sys
import tracemalloc
from array import array
from collections.abc import Iterator
from itertools import pairwise
from time import perf_counter

from benchmarks.arguments import length, positive
from benchmarks.timers import TIMERS, DueTimes, Timer

HOUR_MS = 3_600_000
ORDERS_PER_MS = 10
ORDER_DELAY_MS = 30_000
ORDER_PAID = 0.9
SIZES = (10_000, 100_000, 1_000_000, 10_000_000)
OWNER_BYTES_PER_ENTRY = 250
"""The due times, the random orders and the events that drive the rivals."""
TRACED_MAX = 1_000_000
"""Entries of which the memory is traced, which takes memory and time of its own."""

Make = type[Timer]
Result = dict[str, float]


# --- One rival: what it is made to do -------------------------------------------------------------


def fill(make: Make, dues_ms: list[int]) -> tuple[Timer, DueTimes, float]:
    """Insert all at time 0; return the timer, its owner's list, and the seconds that it took."""
    owner: DueTimes = [None] * len(dues_ms)
    timer = make(owner)
    insert = timer.insert
    start = perf_counter()
    for entry, due_ms in enumerate(dues_ms):
        owner[entry] = due_ms
        insert(entry, due_ms, 0)
    return timer, owner, perf_counter() - start


def insert_delay(make: Make, count: int) -> float:
    """Insert with one delay, while the clock moves; return the seconds that it took."""
    owner: DueTimes = [None] * count
    timer = make(owner)
    insert = timer.insert
    start = perf_counter()
    for entry in range(count):
        now_ms = entry // 1000
        due_ms = now_ms + HOUR_MS
        owner[entry] = due_ms
        insert(entry, due_ms, now_ms)
    seconds = perf_counter() - start
    timer.close()
    return seconds


def cancel_all(timer: Timer, owner: DueTimes, order: list[int]) -> float:
    """Cancel all in this order; return the seconds that it took."""
    cancel = timer.cancel
    start = perf_counter()
    for entry in order:
        due_ms = owner[entry]
        assert due_ms is not None
        owner[entry] = None
        cancel(entry, due_ms)
    seconds = perf_counter() - start
    timer.close()
    return seconds


def expire_all(timer: Timer, count: int) -> float:
    """Sleep until each deadline in turn, to the end; return the seconds that it took."""
    fired = 0
    start = perf_counter()
    while (deadline_ms := timer.next_deadline()) is not None:
        fired += timer.expire(deadline_ms)
    seconds = perf_counter() - start
    assert fired == count
    timer.close()
    return seconds


def order_events(count: int, rng: random.Random) -> "array[int]":
    """What happens to the orders, in order of time: time << 32 | entry << 1 | is it paid."""
    events = []
    for entry in range(count):
        placed_ms = entry // ORDERS_PER_MS
        events.append(placed_ms << 32 | entry << 1)
        if rng.random() < ORDER_PAID:
            paid_ms = placed_ms + rng.randrange(1, ORDER_DELAY_MS)
            events.append(paid_ms << 32 | entry << 1 | 1)
    events.sort()
    return array("Q", events)


def order_timeout(make: Make, count: int, events: "array[int]") -> float:
    """Place, pay and time out orders as the events say; return the seconds that it took."""
    owner: DueTimes = [None] * count
    timer = make(owner)
    insert, cancel, next_deadline = timer.insert, timer.cancel, timer.next_deadline
    last_ms = -1
    fired = 0
    start = perf_counter()
    for event in events:
        now_ms = event >> 32
        entry = (event & 0xFFFFFFFF) >> 1
        if now_ms != last_ms:
            # Once a turn, as the daemon does; a turn is a ms here.
            last_ms = now_ms
            deadline_ms = next_deadline()
            if deadline_ms is not None and deadline_ms <= now_ms:
                fired += timer.expire(now_ms)
        if event & 1:
            due_ms = owner[entry]
            assert due_ms is not None
            owner[entry] = None
            cancel(entry, due_ms)
        else:
            due_ms = now_ms + ORDER_DELAY_MS
            owner[entry] = due_ms
            insert(entry, due_ms, now_ms)
    while (deadline_ms := next_deadline()) is not None:
        fired += timer.expire(deadline_ms)
    seconds = perf_counter() - start
    assert fired == 2 * count - len(events)
    timer.close()
    return seconds


def memory(make: Make, dues_ms: list[int], rng: random.Random) -> tuple[float, float]:
    """Return the bytes an entry takes, and takes still when 90 % of all have been cancelled."""
    cancelled = rng.sample(range(len(dues_ms)), len(dues_ms) * 9 // 10)
    tracemalloc.start()
    timer, owner, _ = fill(make, dues_ms)
    # The owner's list is not the timer's.
    filled = tracemalloc.get_traced_memory()[0] - sys.getsizeof(owner)
    cancel_all(timer, owner, cancelled)
    left = tracemalloc.get_traced_memory()[0] - sys.getsizeof(owner)
    tracemalloc.stop()
    return filled / len(dues_ms), left / len(dues_ms)


def measure(make: Make, count: int, runs: int) -> Result:
    """Return the median seconds of each operation, and the bytes an entry takes."""
    rng = random.Random(1)
    spread = [rng.randrange(1, HOUR_MS) for _ in range(count)]
    filled, left = memory(make, spread[:TRACED_MAX], rng)
    dense = [rng.randrange(1, 1000) for _ in range(count)]
    order = list(range(count))
    rng.shuffle(order)
    events = order_events(count, rng)
    seconds: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        seconds.setdefault(name, []).append(value)

    for _ in range(1 + runs):
        gc.collect()
        timer, owner, took = fill(make, spread)
        note("insert", took)
        note("cancel", cancel_all(timer, owner, order))
        del timer, owner
        timer, owner, _ = fill(make, spread)
        note("expire", expire_all(timer, count))
        del timer, owner
        timer, owner, _ = fill(make, dense)
        note("expire_dense", expire_all(timer, count))
        del timer, owner
        note("insert_delay", insert_delay(make, count))
        note("order_timeout", order_timeout(make, count, events))
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    return medians | {"memory": filled, "memory_cancel": left}


# --- All rivals: who runs, and what is printed ----------------------------------------------------

OPERATIONS = ("insert", "insert_delay", "cancel", "expire", "expire_dense", "order_timeout")


def available_bytes() -> int:
    """Return how much memory is free for a rival."""
    with open("/proc/meminfo", encoding="ascii") as meminfo:
        for line in meminfo:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0


def run_alone(name: str, count: int, runs: int) -> Result:
    """Measure one rival in a fresh process, so that none has another's memory or garbage."""
    command = [sys.executable, "-m", "benchmarks.wheel", "--alone", name]
    command += ["--sizes", str(count), "--runs", str(runs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    result: Result = json.loads(done.stdout)
    return result


def why_not(name: str, count: int, took_before: float | None, budget_s: float) -> str | None:
    """Return why a rival is not tried at this size, if it is not."""
    wants = (TIMERS[name].BYTES_PER_ENTRY + OWNER_BYTES_PER_ENTRY) * count
    if wants > available_bytes():
        return f"needs about {wants / 1e9:.1f} GB of memory"
    if took_before is not None and took_before > budget_s:
        return f"would take about {took_before:.0f} s, --budget is {budget_s:.0f} s"
    return None


def table(count: int, results: dict[str, Result]) -> Iterator[str]:
    """Yield the lines of one size's table."""
    yield f"{count:,} entries".ljust(18) + "".join(name.rjust(20) for name in results)
    ours = results.get("wheel")
    for operation in (*OPERATIONS, "memory", "memory_cancel"):
        cells = []
        for result in results.values():
            is_memory = operation.startswith("memory")
            value = result[operation] if is_memory else result[operation] / count * 1e6
            cell = f"{value:.0f} B" if is_memory else f"{value:.2f} µs"
            ratio = f"{result[operation] / ours[operation]:.2f}x" if ours else ""
            cells.append(cell.rjust(10) + ratio.rjust(10))
        yield operation.ljust(18) + "".join(cells)
    yield ""


def losses(count: int, results: dict[str, Result]) -> Iterator[str]:
    """Yield where a rival is faster or smaller than the wheel."""
    ours = results.get("wheel", {})
    for name, result in results.items():
        for operation, value in ours.items():
            if result[operation] < value:
                ratio = value / result[operation]
                yield f"{operation}_{count} takes the wheel {ratio:.2f} times what {name} takes"


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.wheel",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sizes", type=positive, nargs="+", default=SIZES, metavar="N")
    parser.add_argument("--runs", type=positive, default=5, metavar="N")
    parser.add_argument("--timers", nargs="+", choices=TIMERS, default=list(TIMERS))
    parser.add_argument(
        "--budget",
        type=length,
        default=600.0,
        metavar="S",
        help="seconds that one rival may take for one size, judged by the size before",
    )
    parser.add_argument("--alone", choices=TIMERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Print a table for each size, and where the wheel loses."""
    options = arguments()
    sizes = sorted(options.sizes)
    if options.alone:
        print(json.dumps(measure(TIMERS[options.alone], sizes[0], options.runs)))
        return
    expected_s: dict[str, float] = {}
    lost: list[str] = []
    growth = {small: large / small for small, large in pairwise(sizes)}
    for count in sizes:
        results: dict[str, Result] = {}
        for name in options.timers:
            reason = why_not(name, count, expected_s.get(name), options.budget)
            if reason:
                print(f"{name} is skipped at {count:,}: {reason}")
                continue
            start = perf_counter()
            results[name] = run_alone(name, count, options.runs)
            expected_s[name] = (perf_counter() - start) * growth.get(count, 1)
        print(*table(count, results), sep="\n", flush=True)
        lost += losses(count, results)
    print(*lost, sep="\n")


if __name__ == "__main__":
    main()
