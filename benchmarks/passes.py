"""Looking at two million jobs, and doing something to them: `python -m benchmarks.passes`.

One topic with `--jobs` jobs (2,000,000) and bodies of 100 bytes: half of them delayed, at random
within a week, a quarter ready, a quarter buried. In one process,
without a journal; the records are taken away after each turn. For each operation:

    turns     how many turns it takes, each of which gives it `TASK_SLICE_US`
    worst     the longest such turn, in ms: how long everybody else waits. It must stay below 5
    work      the longest by the time of the processor: what remains of `worst` on an idle machine
    p99       of the turns
    seconds   until it is done, when nobody else wants anything

The garbage collector is set up as in the daemon. A machine that does something else meanwhile shows
in `worst` first.
"""

import argparse
import gc
import random
import statistics
from collections.abc import Callable, Iterator
from time import perf_counter, process_time

from benchmarks.arguments import positive
from delayd.core.background_tasks import BackgroundTask, BackgroundTasks, Work
from delayd.core.engine import Engine
from delayd.core.job_record import State
from delayd.core.operations.attempts import bury
from delayd.core.operations.put import put_alike
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session
from delayd.core.operations.topics import Clear
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.list import Calendar, Cursor, Search
from delayd.core.scans.scan import Wanted
from delayd.core.times import RequestMs
from delayd.limits import GC_YOUNG_OBJECTS, TASK_SLICE_US

WEEK_MS = 7 * 86_400_000
BODY = b"x" * 100
PAGE = 1_000
TARGET_MS = 5.0
DELAYED = Wanted(frozenset({State.DELAYED}))
READY = Wanted(frozenset({State.READY}))
BURIED = Wanted(frozenset({State.BURIED}))

Row = tuple[str, Callable[[Engine], Work]]


def crowded(jobs: int) -> Engine:
    """Make an engine with so many jobs in the topic `default`."""
    engine = Engine(start_ms=0)
    topic = engine.store.topic("default")
    rng = random.Random(1)
    me = open_session(engine)
    for _ in range(jobs // 4):
        put_alike(engine, topic, 0, 0, 60_000, (BODY,), RequestMs(0))
        job = reserve(engine, me, RequestMs(0))
        assert job is not None
        bury(engine, me, job[0], 0, RequestMs(0))
        engine.take_log()
    for number in range(3 * jobs // 4):
        delay_ms = rng.randrange(1, WEEK_MS) if number % 3 else 0
        put_alike(engine, topic, 0, delay_ms, 60_000, (BODY,), RequestMs(0))
        engine.take_log()
    return engine


def rows() -> Iterator[Row]:
    """What is measured, one after the other on the same jobs; what removes them comes last."""
    yield "list, first page of the delayed", lambda e: Search(e, "default", DELAYED, PAGE)
    middle = Cursor(WEEK_MS // 2, 0)
    yield (
        "list, a page from their middle",
        lambda e: Search(e, "default", DELAYED, PAGE, middle),
    )
    yield "list, first page of the ready", lambda e: Search(e, "default", READY, PAGE)
    yield "list, first page of all", lambda e: Search(e, "default", Wanted(), PAGE)
    hour_ms = 3_600_000
    yield (
        "calendar, a week by the hour",
        lambda e: Calendar(e, "default", from_ms=0, bin_ms=hour_ms, bins=168),
    )
    yield (
        "dry run over all",
        lambda e: Bulk(e, "default", Wanted(), Action.cancel(), dry_run=True),
    )
    yield (
        "kick the buried, 1,000 a second",
        lambda e: Bulk(e, "default", BURIED, Action.kick(1000)),
    )
    yield (
        "reschedule the ready",
        lambda e: Bulk(e, "default", READY, Action.reschedule(hour_ms)),
    )
    second_half = Wanted(from_ms=WEEK_MS // 2)
    yield "cancel half of a week", lambda e: Bulk(e, "default", second_half, Action.cancel())
    yield "clear, until it is answered", lambda e: Clear(e, "default")


def take_turn(tasks: BackgroundTasks) -> BackgroundTask | None:
    """Take steps for as long as one turn goes on with them; return the pass that is over."""
    until = perf_counter() + TASK_SLICE_US / 1e6
    while tasks.has_more:
        over = tasks.step(now_ms=RequestMs(0))
        if over is not None:
            return over
        if perf_counter() > until:
            break
    return None


def carry_out(engine: Engine, tasks: BackgroundTasks) -> tuple[list[float], float]:
    """Take turns until a pass is over, or all are; return how long each took, and the worst's work.

    All in ms. Work is what the processor did for it: a turn takes longer when others are at work.
    """
    turns_ms = []
    worst_work_ms = 0.0
    while tasks.has_more:
        start, start_work = perf_counter(), process_time()
        over = take_turn(tasks)
        worst_work_ms = max(worst_work_ms, (process_time() - start_work) * 1e3)
        turns_ms.append((perf_counter() - start) * 1e3)
        engine.take_log()
        if over is not None:
            break
    return turns_ms, worst_work_ms


def report(name: str, turns_ms: list[float], work_ms: float) -> str:
    """Return one row of the table."""
    worst_ms = max(turns_ms)
    p99_ms = statistics.quantiles(turns_ms, n=100)[98] if len(turns_ms) > 1 else worst_ms
    times = f"{worst_ms:>8.2f}{work_ms:>8.2f}{p99_ms:>8.2f}{sum(turns_ms) / 1e3:>9.3f}"
    verdict = "" if worst_ms < TARGET_MS else f"  above {TARGET_MS} ms"
    return f"{name:<36}{len(turns_ms):>8}{times}{verdict}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--jobs", type=positive, default=2_000_000, help="how many stand (%(default)s)"
    )
    jobs = parser.parse_args().jobs
    gc.disable()
    engine = crowded(jobs)
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)
    gc.enable()
    tasks = BackgroundTasks(engine)
    heads = "".join(f"{head:>8}" for head in ("turns", "worst", "work", "p99"))
    print(f"{f'{jobs:,} jobs':<36}{heads}{'seconds':>9}")
    for name, make in rows():
        tasks.add(BackgroundTask(make(engine), lambda _refusal, _now_ms: None))
        print(report(name, *carry_out(engine, tasks)), flush=True)
    print(report("     ... until all is swept away", *carry_out(engine, tasks)))
    assert not engine.store.jobs.page_numbers(), "something is left"


if __name__ == "__main__":
    main()
