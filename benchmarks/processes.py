"""Starting and ending the servers that are measured, and what the kernel knows of them.

A server runs on a free port of the loopback interface, over a directory of its own, and is ended by
its process id with SIGKILL, which is also the crash that recovery is measured from. "Ready" is what
it does, not what it says: it answers. Only RabbitMQ and PostgreSQL are started by what the tests
have for them.
"""

import contextlib
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from benchmarks.line import HOST
from benchmarks.registry import NotMeasuredError

START_SECONDS_MAX: Final = 120.0
"""How long a start may take, a recovery of millions of jobs included."""
RETRY_S: Final = 0.002
PSS: Final = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


class ServerFailedError(Exception):
    """A server did not start; the message ends with what it wrote."""


def program(name: str) -> str:
    """Return the path of a program; raise `NotMeasuredError` if it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise NotMeasuredError(f"{name} is not installed")
    return path


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Give a port that the system gives to nobody else while the block runs.

    A server that sets SO_REUSEADDR, as all do, may bind it and listen meanwhile.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        port: int = holder.getsockname()[1]
        yield port


class OwnServer:
    """A server process of this harness, which can be killed and started again.

        with OwnServer(command, directory, is_serving) as server:
            server.restart()

    What it prints goes to the file `output` in its directory.
    """

    start_process: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen
    """What starts the process, called as this is."""

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        is_serving: Callable[[], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Take what starts it; `is_serving` asks it for something and may raise `OSError`."""
        self._command = command
        self._directory = directory
        self._is_serving = is_serving
        self._environment = os.environ | dict(environment or {})
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def said(self) -> str:
        """What it has printed so far."""
        return (self._directory / "output").read_text(encoding="utf-8", errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> float:
        """Start it; return the seconds until it served. Raises `ServerFailedError`."""
        with (self._directory / "output").open("ab") as sink:
            began = time.perf_counter()
            self._process = process = self.start_process(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=self._environment,
            )
        while process.poll() is None and time.perf_counter() < began + START_SECONDS_MAX:
            with contextlib.suppress(OSError):  # it does not listen yet, or not to us: ask again
                if self._is_serving():
                    return time.perf_counter() - began
            time.sleep(RETRY_S)
        self.kill()
        wrote = self.said[-500:]
        raise ServerFailedError(f"{self._command[0]} did not come to serve; it wrote {wrote!r}")

    def kill(self) -> None:
        """End it at once, and wait until it is gone; twice is once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def restart(self) -> float:
        """Kill it and start it again on what it wrote; return the seconds until it served."""
        self.kill()
        return self.start()

    def stop(self) -> None:
        """Ask it to end, and wait until it has; raise `ServerFailedError` if it does not."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(START_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailedError(f"{self._command[0]} did not end") from None

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid

    @property
    def processes(self) -> Sequence[int]:
        """Its process and all that descend from it."""
        return [self.pid, *descendants(self.pid)]


def descendants(process: int) -> Iterator[int]:
    """Yield the ids of the living processes that a process has started, and of theirs."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    wanted = [process]
    while wanted:
        found = children.get(wanted.pop(), [])
        yield from found
        wanted += found


def thread_seconds(processes: Sequence[int]) -> dict[str, float]:
    """Return the processor time of each living thread so far, by the scheduler's clock."""
    found: dict[str, float] = {}
    for process in processes:
        with contextlib.suppress(FileNotFoundError):  # the process has ended meanwhile
            for thread in Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    on_processor = (thread / "schedstat").read_text().split()[0]
                    found[thread.name] = int(on_processor) / 1e9
    return found


def seconds_between(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Return the processor time of all threads that live at the end, since the beginning.

    >>> seconds_between({"7": 1.0, "8": 5.0}, {"7": 1.5, "9": 0.25})
    0.75
    """
    return sum(seconds - before.get(thread, 0.0) for thread, seconds in after.items())


def spent_seconds(processes: Sequence[int]) -> float:
    """Return the processor time of their living threads so far."""
    return sum(thread_seconds(processes).values())


def resident_bytes(processes: Sequence[int]) -> int:
    """Return the memory that they hold; what several share counts once (PSS)."""
    found = 0
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            smaps = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8")
            if shared_out := PSS.search(smaps):
                found += int(shared_out[1]) * 1024
    return found


def wake_ups(processes: Sequence[int]) -> int:
    """Return how often their living threads have gone to sleep of themselves so far."""
    found = 0
    for process in processes:
        for status in Path(f"/proc/{process}/task").glob("*/status"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found += status_number(status.read_text("utf-8"), "voluntary_ctxt_switches")
    return found


def status_number(status: str, field: str) -> int:
    r"""Return a number from /proc/PID/status.

    >>> status_number("Name:\tx\nVmRSS:\t  1024 kB\n", "VmRSS")
    1024
    """
    found = re.search(rf"^{field}:\s+(\d+)", status, re.MULTILINE)
    if found is None:
        raise ValueError(f"no field {field} in {status!r}")
    return int(found[1])


def held_bytes(process: int, field: str = "VmRSS") -> int:
    """Return the memory that one process holds, shared or not; `VmHWM` is the most it held."""
    status = Path(f"/proc/{process}/status").read_text(encoding="utf-8")
    return status_number(status, field) * 1024


def forget_highest(process: int) -> None:
    """Count the most memory that a process held from now on."""
    Path(f"/proc/{process}/clear_refs").write_text("5", encoding="utf-8")


def descriptors(process: int) -> int:
    """Return how many descriptors a process has open."""
    return len(os.listdir(f"/proc/{process}/fd"))


def written_bytes(path: Path) -> int:
    """Return how many bytes of a file are data: blocks that were only reserved are holes."""
    found = 0
    with contextlib.suppress(OSError), path.open("rb") as file:  # gone, a folder, or no more data
        hole = 0
        while True:
            data = os.lseek(file.fileno(), hole, os.SEEK_DATA)
            hole = os.lseek(file.fileno(), data, os.SEEK_HOLE)
            found += hole - data
    return found


def written_bytes_below(directory: Path) -> int:
    """Return how many bytes of the files of a folder are data."""
    return sum(written_bytes(path) for path in directory.rglob("*"))
