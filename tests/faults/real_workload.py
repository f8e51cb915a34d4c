"""A fixed workload: a daemon that does the same each time, and is struck at one of its calls.

It recovers, serves one client for some turns while the log goes through several files, and stops in
good order. A tracer says which system calls it makes on its directory, and the number of each:

    19411 openat(AT_FDCWD, "/d/segment-0000000001.log", O_RDWR|O_CREAT|...) = 8</d/segment-...>
    19412 fdatasync(8</d/segment-0000000001.log> <unfinished ...>

>>> calls = calls_in('7 openat(AT_FDCWD, "/a") = 3\\n7 openat(AT_FDCWD, "/d/x") = 4\\n')
>>> sites(calls, "/d")
{'openat': [2]}

The number is what a tracer counts when it is told to strike at the n-th: each call by itself, each
thread by itself.
"""

import contextlib
import random
import re
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from delayd.exits import Exit
from delayd.testing.daemon import DaemonNotStarted
from tests.faults.conftest import Runs
from tests.faults.real_daemon import Tracing, started, wait_for_exit, wait_for_tracer
from tests.faults.real_load import PatientClient, Record, Worker, life, look

FILE_CALLS: Final = (
    *("openat", "pwrite64", "write", "fdatasync", "fsync", "rename", "renameat", "renameat2"),
    *("unlink", "unlinkat", "ftruncate", "fallocate", "mkdir", "io_submit"),
)
"""Whatever changes a directory, as Python's functions and C's make them."""

BEGUN: Final = re.compile(r"^(\d+) +(\w+)\((.*)$", re.MULTILINE)


class Call(NamedTuple):
    """A system call that was begun."""

    thread: int
    name: str
    number: int
    """From 1, among the calls of that name of that thread."""

    rest: str
    """What stands behind the bracket."""


def calls_in(said: str) -> Iterator[Call]:
    """Yield the calls in the order in which they were begun."""
    counts: Counter[tuple[str, str]] = Counter()
    for thread, name, rest in BEGUN.findall(said):
        counts[thread, name] += 1
        yield Call(int(thread), name, counts[thread, name], rest)


def sites(
    calls: Iterable[Call], directory: str, *, and_all_later: bool = False
) -> dict[str, list[int]]:
    """Return, for each call, the numbers that concern the directory in every thread.

    With `and_all_later`, those from which on nothing else is concerned. Calls that name no file are
    taken to concern it.
    """
    ours: defaultdict[str, set[int]] = defaultdict(set)
    others: defaultdict[str, set[int]] = defaultdict(set)
    for call in calls:
        is_ours = call.name in {"io_submit", "sendto"} or directory in call.rest
        (ours if is_ours else others)[call.name].add(call.number)
    found = {}
    for name, numbers in sorted(ours.items()):
        last = max(others[name], default=0) if and_all_later else 0
        if chosen := sorted(each for each in numbers - others[name] if each > last):
            found[name] = chosen
    return found


def sampled(
    found: dict[str, list[int]], runs: Runs, short: tuple[str, ...]
) -> Iterator[tuple[str, int]]:
    """Yield all calls and numbers in the long run, otherwise one of each of these calls."""
    for name, numbers in found.items():
        if runs.is_long:
            yield from ((name, number) for number in numbers)
        elif name in short:
            yield name, numbers[len(numbers) // 2]


# --- The workload -------------------------------------------------------------------------------


TURNS: Final = 60
SIZES: Final = (100, 2_000, 9_000)
"""Files of the log have 128 KiB at least: several are written, and snapshots replace them."""


def work(
    directory: Path, record: Record, name: str, tracing: Tracing | None = None
) -> tuple[int, str]:
    """Do always the same; return how the daemon ended, and its log."""
    code, log = None, ""
    try:
        with started(directory, tracing=tracing) as daemon:
            record.note("started")
            worker = Worker(daemon.address, name, record, random.Random("fixed"), SIZES)
            while worker.turns < TURNS and worker.turn():
                pass
            worker.leave()
            code = wait_for_exit(daemon) if worker.turns < TURNS else daemon.stop()
            log = daemon.log()
    except DaemonNotStarted as error:
        code, log = error.exit_code, error.log
    assert code is not None, f"it neither serves nor ends:\n{log}"
    record.note("stopped", how="stop" if code == Exit.OK else "kill")
    return code, log


def recover_and_check(directory: Path, record: Record, about: str) -> None:
    """Start on what was left, twice: the second finds what the first made of it."""
    for _ in range(2):
        with life(directory, record) as daemon, PatientClient(daemon.address) as client:
            look(client, record)
            assert daemon.kill() == -signal.SIGKILL
    record.check(about)


class Scene:
    """A directory that a daemon has left, and what is known about it: trials begin with a copy."""

    def __init__(self, folder: Path, home: Path, record: Record) -> None:
        self._folder, self._record = folder, record
        self.home = home
        """The directory that nothing was done to yet."""
        self._trials = 0
        self.trace = folder / "trace"
        """Where the tracer of the trial writes; one that was killed may still do so a moment."""

    @contextlib.contextmanager
    def trial(self) -> Iterator[tuple[Path, Record]]:
        """Give out a copy of the directory, and what is known about it."""
        self._trials += 1
        copy = self._folder / f"trial-{self._trials}"
        shutil.copytree(self.home, copy)
        self.trace = self._folder / f"trace-{self._trials}"
        yield copy, self._record.fork()
        shutil.rmtree(copy)
        self.trace.unlink(missing_ok=True)

    def looking_at(self, calls: Iterable[str]) -> Tracing:
        """How a trial is traced whose calls are to be named by `sites_in`."""
        return Tracing(self.trace, ",".join(calls), flags=["-y"])

    def sites_in(self, directory: Path, *, and_all_later: bool = False) -> dict[str, list[int]]:
        """Name every call that the trial has made on its directory."""
        found = calls_in(wait_for_tracer(self.trace))
        return sites(found, str(directory), and_all_later=and_all_later)


class Trials(Scene):
    """What the workload leaves that has run once, and is run again in each trial."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, folder / "scene", Record())
        work(self.home, self._record, "first")

    def sites(self, calls: Iterable[str], *, and_all_later: bool = False) -> dict[str, list[int]]:
        """Trace the workload; name every call that it makes on its directory."""
        with self.trial() as (directory, record):
            code, log = work(directory, record, "second", self.looking_at(calls))
            assert code == Exit.OK, log
            record.check("without any fault")
            return self.sites_in(directory, and_all_later=and_all_later)
