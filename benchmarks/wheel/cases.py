"""The cases of the chapter `wheel`, and what is not tried because it would take too long."""

import contextlib
import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Final

from benchmarks.registry import Bench, Case, NotMeasuredError, Values
from benchmarks.wheel.operations import OPERATIONS
from benchmarks.wheel.timers import ROUNDS_SIZE, TIMERS, WHEELS, WITH_ROUNDS
from delayd.limits import WHEEL_SIZE_DEFAULT

ROOT: Final = Path(__file__).parent.parent.parent
BUDGET_S: Final = 150.0
"""What a reading may take, judged by the size before; all together take 45 minutes."""
RUNS: Final[Mapping[int, int]] = MappingProxyType({10**4: 3, 10**5: 2, 10**6: 1, 10**7: 1})
"""Size → readings of each case: large ones are less at the mercy of other programs."""
LARGEST: Final = 10**7
OF_THE_LARGEST: Final = ("insert", "insert, one delay", "cancel", "expire, dense")
TRACED: Final = 10**5
"""Entries whose memory is traced, which takes memory and time of its own."""
WHEEL_SIZES: Final = (20, 64, 256, 1_024, 4_096)
BY_WHEEL_SIZE: Final = "expire in a minute"
ENTRIES_IN_A_MINUTE: Final = 10**4
START: Final = (
    "import sys, delayd; sys.path.insert(0, sys.argv[1]);"
    "from benchmarks.wheel.alone import main; main(*sys.argv[2:])"
)
"""delayd by PYTHONPATH, and benchmarks of this checkout: a compiled copy has some too."""
STARTS_S: Final = 0.2
"""Of a reading: to start Python, whatever the size."""
HOUR_OF_TICKS_S: Final = 2.5
"""Of a reading: what 3,600,000 ticks of empty slots take at least, whatever the size."""


def alone(bench: Bench, subject: str, operation: str, entries: int, wheel_size: int) -> Values:
    """Take a reading in a process of its own."""
    path = bench.python_path(compiled=subject.endswith("compiled")) or {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-P", "-c", START, str(ROOT)]
    command += [subject, operation, str(entries), str(wheel_size)]
    done = subprocess.run(command, env={**os.environ, **path}, stdout=subprocess.PIPE, check=True)
    values: Values = json.loads(done.stdout)
    return values


def ticks_an_hour(subject: str, operation: str) -> bool:
    """Whether a rival has to visit every slot of an hour, whatever is in it."""
    return operation == "expire" and subject in WITH_ROUNDS


def reading(subject: str, operation: str, entries: int, wheel_size: int, bench: Bench) -> Values:
    """Take a reading, unless it would take too long or this effort is smaller."""
    most = bench.effort.entries_max
    if most < entries and most >= min(RUNS):
        raise NotMeasuredError(f"not tried: this effort ends at {most:,} entries")
    entries = bench.entries(entries)
    took_s = bench.kept("seconds", lambda: contextlib.nullcontext(dict[tuple[str, ...], float]()))
    smaller_s = took_s.get((subject, operation, str(entries // 10)))
    if smaller_s is not None and entries > min(RUNS):
        fixed_s = HOUR_OF_TICKS_S if ticks_an_hour(subject, operation) else STARTS_S
        expected_s = fixed_s + (smaller_s - fixed_s) * 10
        if expected_s > BUDGET_S:
            took_s[subject, operation, str(entries)] = expected_s
            raise NotMeasuredError(f"not tried: it would take about {expected_s:.0f} s")
    began_s = perf_counter()
    values = alone(bench, subject, operation, entries, wheel_size)
    took_s[subject, operation, str(entries)] = perf_counter() - began_s
    return values


def case(operation: str, entries: int, subject: str, wheel_size: int | None = None) -> Case:
    """Return a case; `wheel_size` is given where it is what is varied."""
    size: dict[str, int | str] = {"entries": entries}
    if wheel_size is not None:
        size["wheel size"] = wheel_size
    elif subject.startswith("delayd"):
        wheel_size = WHEEL_SIZE_DEFAULT
    else:
        wheel_size = ROUNDS_SIZE
    return Case(
        chapter="wheel",
        operation=operation,
        size=size,
        subject=subject,
        measure=functools.partial(reading, subject, operation, entries, wheel_size),
        settings=f"{wheel_size:,} slots of 1 ms" if subject in WHEELS else "",
        runs_max=1 if ticks_an_hour(subject, operation) else RUNS[entries],
    )


def sizes_of(operation: str) -> Iterator[int]:
    """Yield how many entries an operation is done with, from few to many."""
    if operation.startswith("hold"):
        yield TRACED
    else:
        yield from (size for size in RUNS if size < LARGEST or operation in OF_THE_LARGEST)


def cases() -> Sequence[Case]:
    """Return the chapter, operation by operation."""
    return [
        *(
            case(operation, entries, subject)
            for operation in OPERATIONS
            if operation != BY_WHEEL_SIZE
            for entries in sizes_of(operation)
            for subject in TIMERS
        ),
        *(
            case(BY_WHEEL_SIZE, ENTRIES_IN_A_MINUTE, subject, wheel_size)
            for wheel_size in WHEEL_SIZES
            for subject in WHEELS
        ),
    ]
