"""Jobs with keys beside jobs without: the chapter `keys`.

    put in runs            one job of a run of 20 with the same times, as clients that pipeline send
                           them; and what each takes, record and index and all
    put                    one job of its own, beside those
    each replaced          how much more the process takes for each job when all have been replaced
                           five times
    each cancelled         and when all have been cancelled by their keys, beside an empty process:
                           what the allocator keeps for the next ones

Bodies have 100 bytes, keys 20, delays an hour. Times are processor times. There is no journal: what
a record costs to write is the same for both. A reading has a process of its own.
"""

import functools
import gc
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import process_time
from types import MappingProxyType
from typing import Final, TypeAlias

from benchmarks.alone import in_a_process
from benchmarks.registry import Bench, Case, Values
from delayd.core.engine import Engine
from delayd.core.operations.ack import delete
from delayd.core.operations.put import Conflict, find_key, put_alike, put_keyed, put_keyed_run
from delayd.core.operations.sessions import open_session
from delayd.core.times import RequestMs
from delayd.core.topic import Topic

JOBS: Final = 1_000_000
ALONE: Final = 0.1
"""Of the jobs, so many more are put one by one."""
RUN: Final = 20
REPLACED: Final = 5
BODY: Final = b"x" * 100
DELAY_MS, TTR_MS = 3_600_000, 60_000
Measure: TypeAlias = Callable[[str, int], Values]
"""Measures one of `KINDS`, with so many jobs."""
KINDS: Final = ("delayd, without keys", "delayd, a key for each job")
PLAIN, KEYED = KINDS


def key_of(number: int) -> bytes:
    """Return a key of 20 bytes."""
    return b"customer-%010d-" % number


def resident_bytes() -> int:
    """Return how much memory the process has."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def put_run(engine: Engine, topic: Topic, kind: str, first: int, count: int) -> float:
    """Put a run of jobs; return how long that took, in seconds of processor time."""
    bodies = [BODY] * count
    keys = [key_of(number) for number in range(first, first + count)]
    begun = process_time()
    if kind == PLAIN:
        put_alike(engine, topic, 0, DELAY_MS, TTR_MS, bodies, RequestMs(first))
    else:
        put_keyed_run(engine, topic, 0, DELAY_MS, TTR_MS, keys, bodies, RequestMs(first))
    return process_time() - begun


def put_alone(engine: Engine, topic: Topic, kind: str, number: int) -> None:
    """Put one job."""
    if kind == PLAIN:
        put_alike(engine, topic, 0, DELAY_MS, TTR_MS, (BODY,), RequestMs(number))
    else:
        put_keyed(
            engine,
            topic,
            key_of(number),
            Conflict.REPLACE,
            priority=0,
            delay_ms=DELAY_MS,
            ttr_ms=TTR_MS,
            body=BODY,
            now_ms=RequestMs(number),
        )


def filled(kind: str, jobs: int) -> tuple[Engine, Topic, Values]:
    """Return an engine with so many jobs, and what they have cost; the log goes after each turn."""
    began_bytes = resident_bytes()
    engine = Engine(start_ms=0)
    topic = engine.store.topic("default")
    spent_s = 0.0
    for first in range(0, jobs, RUN):
        spent_s += put_run(engine, topic, kind, first, min(RUN, jobs - first))
        engine.take_log()
    job_bytes = (resident_bytes() - began_bytes) / jobs
    return engine, topic, {"us": spent_s / jobs * 1e6, "entry_bytes": job_bytes}


def in_runs(kind: str, jobs: int) -> Values:
    """Measure runs of puts."""
    return filled(kind, jobs)[2]


def one_by_one(kind: str, jobs: int) -> Values:
    """Measure puts of one job each."""
    engine, topic, _ = filled(kind, jobs)
    more = max(1, int(jobs * ALONE))
    begun = process_time()
    for number in range(jobs, jobs + more):
        put_alone(engine, topic, kind, number)
        engine.take_log()
    return {"us": (process_time() - begun) / more * 1e6}


def replaced(kind: str, jobs: int) -> Values:
    """Replace all jobs by their keys; return what each takes more."""
    engine, topic, _ = filled(kind, jobs)
    full_bytes = resident_bytes()
    for number in range(REPLACED * jobs):
        put_alone(engine, topic, kind, number % jobs)
        engine.take_log()
    return {"entry_bytes": (resident_bytes() - full_bytes) / jobs}


def cancelled(kind: str, jobs: int) -> Values:
    """Cancel all jobs by their keys; return what is left of each."""
    began_bytes = resident_bytes()
    engine, topic, _ = filled(kind, jobs)
    session = open_session(engine)
    for number in range(jobs):
        delete(engine, session, find_key(engine, "default", key_of(number)), RequestMs(0))
        engine.take_log()
    assert topic.keys is None
    return {"entry_bytes": (resident_bytes() - began_bytes) / jobs}


OPERATIONS: Final[Mapping[str, tuple[Measure, Sequence[str]]]] = MappingProxyType(
    {
        "put in runs": (in_runs, KINDS),
        "put": (one_by_one, KINDS),
        "each replaced": (replaced, (KEYED,)),
        "each cancelled": (cancelled, (KEYED,)),
    }
)


def reading(measure: Measure, kind: str, bench: Bench) -> Values:
    """Measure in a new process."""
    return in_a_process(measure, kind, bench.entries(JOBS))


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [
        Case("keys", operation, {"jobs": JOBS}, kind, functools.partial(reading, measure, kind))
        for operation, (measure, kinds) in OPERATIONS.items()
        for kind in kinds
    ]
