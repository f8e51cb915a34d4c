"""A fixed workload: a daemon that does the same each time, and is struck at one of its calls.

It recovers, serves one client for some turns while the log goes through several files, and stops in
good order.
"""

import contextlib
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from delayd.exits import Exit
from delayd.testing.daemon import DaemonNotStarted
from tests.faults.real_daemon import Tracing, started, wait_for_exit, wait_for_tracer
from tests.faults.real_load import PatientClient, Record, Worker, life, look
from tests.faults.real_trace import calls_in, sites

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


class Trials:
    """A directory in which the workload has run once; each trial begins with a copy of it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._record = Record()
        self._trials = 0
        self.trace = folder / "trace"
        """Where the tracer of the trial writes; one that was killed may still do so a moment."""
        work(self.home, self._record, "first")

    @property
    def home(self) -> Path:
        """The directory that nothing was done to yet."""
        return self._folder / "scene"

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

    def sites(self, calls: tuple[str, ...], *, and_all_later: bool = False) -> dict[str, list[int]]:
        """Trace the workload; name every call that it makes on its directory."""
        with self.trial() as (directory, record):
            tracing = Tracing(self.trace, ",".join(calls), flags=["-y"])
            code, log = work(directory, record, "second", tracing)
            assert code == Exit.OK, log
            record.check("without any fault")
            found = calls_in(wait_for_tracer(self.trace))
            return sites(found, str(directory), and_all_later=and_all_later)
