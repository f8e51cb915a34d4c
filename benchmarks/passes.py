"""Looking at two million jobs, and doing something to them: the chapter `passes`.

One topic with two million jobs and bodies of 100 bytes: half of them delayed, at random within a
week, a quarter ready, a quarter buried. In a process for each reading, without a journal; the
records are taken away after each turn. Operations take turns of `TASK_SLICE_US` each:

    longest           the longest such turn: how long everybody else waits. It is to stay below 5 ms
    processor time    the longest by the time of the processor: what remains of it on a machine that
                      does nothing else
    time              until it is done, when nobody else wants anything

The garbage collector is set up as in the daemon.
"""

import functools
import gc
import random
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter, process_time
from types import MappingProxyType
from typing import Final

from benchmarks.alone import in_a_process
from benchmarks.registry import Bench, Case, Values
from benchmarks.table import percentile
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

JOBS: Final = 2_000_000
HOUR_MS: Final = 3_600_000
WEEK_MS: Final = 168 * HOUR_MS
BODY: Final = b"x" * 100
PAGE: Final = 1_000
DELAYED: Final = Wanted(frozenset({State.DELAYED}))
READY: Final = Wanted(frozenset({State.READY}))
BURIED: Final = Wanted(frozenset({State.BURIED}))
MIDDLE: Final = Cursor(WEEK_MS // 2, 0)
SECOND_HALF: Final = Wanted(from_ms=WEEK_MS // 2)

OPERATIONS: Final[Mapping[str, Callable[[Engine], Work]]] = MappingProxyType(
    {
        "list, first page of the delayed": lambda e: Search(e, "default", DELAYED, PAGE),
        "list, a page from their middle": lambda e: Search(e, "default", DELAYED, PAGE, MIDDLE),
        "list, first page of the ready": lambda e: Search(e, "default", READY, PAGE),
        "list, first page of all": lambda e: Search(e, "default", Wanted(), PAGE),
        "calendar, a week by the hour": lambda e: Calendar(
            e, "default", from_ms=0, bin_ms=HOUR_MS, bins=168
        ),
        "dry run over all": lambda e: Bulk(e, "default", Wanted(), Action.cancel(), dry_run=True),
        "kick the buried, 1,000 a second": lambda e: Bulk(e, "default", BURIED, Action.kick(1000)),
        "reschedule the ready": lambda e: Bulk(e, "default", READY, Action.reschedule(HOUR_MS)),
        "cancel half of a week": lambda e: Bulk(e, "default", SECOND_HALF, Action.cancel()),
        "clear, with what is swept away": lambda e: Clear(e, "default"),
    }
)


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


def take_turn(tasks: BackgroundTasks) -> None:
    """Take steps for as long as one turn goes on with them, or until a pass is over."""
    until = perf_counter() + TASK_SLICE_US / 1e6
    while tasks.has_more and tasks.step(now_ms=RequestMs(0)) is None and perf_counter() <= until:
        pass


def carry_out(engine: Engine, tasks: BackgroundTasks) -> tuple[list[float], float]:
    """Take turns until nothing is left to do; return how long each took, and the worst's work.

    All in ms. Work is what the processor did for it: a turn takes longer when others are at work.
    """
    turns_ms = []
    worst_work_ms = 0.0
    while tasks.has_more:
        start, start_work = perf_counter(), process_time()
        take_turn(tasks)
        worst_work_ms = max(worst_work_ms, (process_time() - start_work) * 1e3)
        turns_ms.append((perf_counter() - start) * 1e3)
        engine.take_log()
    return turns_ms, worst_work_ms


def measured(operation: str, jobs: int) -> Values:
    """Do one thing to so many jobs."""
    gc.disable()
    engine = crowded(jobs)
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)
    gc.enable()
    tasks = BackgroundTasks(engine)
    tasks.add(BackgroundTask(OPERATIONS[operation](engine), lambda _refusal, _now_ms: None))
    turns_ms, work_ms = carry_out(engine, tasks)
    return {
        "p99_ms": percentile(turns_ms, 99),
        "worst_ms": max(turns_ms),
        "cpu_ms": work_ms,
        "seconds": sum(turns_ms) / 1e3,
    }


def reading(operation: str, bench: Bench) -> Values:
    """Measure in a new process."""
    return in_a_process(measured, operation, bench.entries(JOBS))


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [
        Case(
            chapter="passes",
            operation=operation,
            size={"jobs": JOBS},
            subject="delayd",
            measure=functools.partial(reading, operation),
            runs_max=1,
        )
        for operation in OPERATIONS
    ]
