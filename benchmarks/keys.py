"""Jobs with keys beside jobs without: `python -m benchmarks.keys`.

    put             one job of a run of 20 with the same times, as clients that pipeline send them
    put alone       one job of its own
    memory          bytes a job, record and index and all (resident, of the process)
    replaced        how much the process has grown when each job has been replaced five times
    cancelled       and when all have been cancelled by their keys, on top of what it began with:
                    what the allocator keeps for the next ones

Bodies have 100 bytes, keys 20, delays an hour. Times are processor times, the medians of `--runs`,
each in a process of its own, plain and keyed in turn; the ratio is that of each pair, and of those
the median. There is no journal: what a record costs to write is the same for both.
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import process_time

from benchmarks.arguments import positive
from delayd.core.engine import Engine
from delayd.core.operations.ack import delete
from delayd.core.operations.put import Conflict, find_key, put_alike, put_keyed, put_keyed_run
from delayd.core.operations.sessions import open_session
from delayd.core.times import RequestMs
from delayd.core.topic import Topic

RUN = 20
REPLACED = 5
BODY = b"x" * 100
DELAY_MS, TTR_MS = 3_600_000, 60_000
KINDS = ("plain", "keyed")


def key_of(number: int) -> bytes:
    """Return a key of 20 bytes."""
    return b"customer-%010d-" % number


def resident_bytes() -> int:
    """Return how much memory the process has."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def put_run(engine: Engine, topic: Topic, kind: str, first: int) -> float:
    """Put a run of jobs; return how long that took, in seconds of processor time."""
    bodies = [BODY] * RUN
    keys = [key_of(number) for number in range(first, first + RUN)]
    begun = process_time()
    if kind == "plain":
        put_alike(engine, topic, 0, DELAY_MS, TTR_MS, bodies, RequestMs(first))
    else:
        put_keyed_run(engine, topic, 0, DELAY_MS, TTR_MS, keys, bodies, RequestMs(first))
    return process_time() - begun


def put_alone(engine: Engine, topic: Topic, kind: str, number: int) -> None:
    """Put one job."""
    if kind == "plain":
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


def putting(engine: Engine, topic: Topic, kind: str, jobs: int) -> float:
    """Put all jobs in runs, the log taken away as after a turn; return the microseconds for one."""
    spent_s = 0.0
    for first in range(0, jobs, RUN):
        spent_s += put_run(engine, topic, kind, first)
        engine.take_log()
    return spent_s / jobs * 1e6


def putting_alone(engine: Engine, topic: Topic, kind: str, jobs: int) -> float:
    """Put more jobs, one at a time; return the microseconds for one."""
    begun = process_time()
    for number in range(jobs, jobs + jobs // 10):
        put_alone(engine, topic, kind, number)
        engine.take_log()
    return (process_time() - begun) / (jobs // 10) * 1e6


def measured(kind: str, jobs: int) -> dict[str, float]:
    """Return the figures of one process."""
    began_bytes = resident_bytes()
    engine = Engine(start_ms=0)
    topic, session = engine.store.topic("default"), open_session(engine)
    figures = {"put_us": putting(engine, topic, kind, jobs)}
    full_bytes = resident_bytes()
    figures["bytes"] = (full_bytes - began_bytes) / jobs
    if kind == "keyed":
        for number in range(REPLACED * jobs):
            put_alone(engine, topic, kind, number % jobs)
            engine.take_log()
        figures["replaced_bytes"] = (resident_bytes() - full_bytes) / jobs
        for number in range(jobs):
            delete(engine, session, find_key(engine, "default", key_of(number)), RequestMs(0))
            engine.take_log()
        figures["cancelled_bytes"] = (resident_bytes() - began_bytes) / jobs
        assert topic.keys is None
    return figures | {"put_alone_us": putting_alone(engine, topic, kind, jobs)}


def in_a_process(kind: str, jobs: int) -> dict[str, float]:
    """Measure in a new process."""
    command = [sys.executable, "-m", "benchmarks.keys", "--kind", kind, "--jobs", str(jobs)]
    said = subprocess.run(command, check=True, capture_output=True)
    figures: dict[str, float] = json.loads(said.stdout)
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=positive, default=1_000_000)
    parser.add_argument("--runs", type=positive, default=5)
    parser.add_argument("--kind", choices=KINDS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.kind:
        sys.stdout.write(json.dumps(measured(chosen.kind, chosen.jobs)))
        return
    pairs = [[in_a_process(kind, chosen.jobs) for kind in KINDS] for _ in range(chosen.runs)]
    sys.stdout.write(f"{'':16}{'plain':>10}{'keyed':>10}{'keyed - plain':>16}{'speed':>8}\n")
    for name in ("put_us", "put_alone_us", "bytes"):
        plain, keyed = (statistics.median(pair[at][name] for pair in pairs) for at in (0, 1))
        ratio = statistics.median(pair[0][name] / pair[1][name] for pair in pairs)
        shown = f"{ratio:8.2f}" if name != "bytes" else ""
        line = f"{name:16}{plain:10.2f}{keyed:10.2f}{keyed - plain:16.2f}{shown}"
        sys.stdout.write(f"{line}\n")
    for name in ("replaced_bytes", "cancelled_bytes"):
        keyed = statistics.median(pair[1][name] for pair in pairs)
        sys.stdout.write(f"{name:16}{'':10}{keyed:10.2f}\n")


if __name__ == "__main__":
    main()
