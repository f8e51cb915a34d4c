"""Starting and stopping the servers that are measured, and reading what the kernel knows of them.

A server is a command with two places to fill in, `{port}` and `{dir}`: a free port of the loopback
interface and an empty directory of its own, removed afterwards. Whatever is started is ended by its
process id with SIGKILL, which is also the crash that recovery is measured from. "Ready" is not what
a server says but what it does: it answers a command.

Another server can stand in delayd's place, or in the peer's, by its command alone.
"""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

START_SECONDS_MAX: Final = 120.0
"""How long a start may take, a recovery of millions of jobs included."""

RETRY_S: Final = 0.001
REPLY_SECONDS_MAX: Final = 30.0
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")

DELAYD: Final = (
    "{bin}/delayd serve --data-dir {dir} --line 127.0.0.1:{port} --http off --sync {sync}"
)
BEANSTALKD: Final = "beanstalkd -l 127.0.0.1 -p {port}"
NO_LOG: Final = BEANSTALKD
SYNC_DEFAULT: Final = BEANSTALKD + " -b {dir}"
SYNC_EACH: Final = BEANSTALKD + " -b {dir} -f 0"
SYNC_50_MS: Final = BEANSTALKD + " -b {dir} -f 50"


class ServerFailedError(Exception):
    """A server did not start; the message ends with what it wrote."""


def delayd_command(template: str, sync: str) -> str:
    """Fill in which delayd (the one installed beside this interpreter) and its sync policy."""
    return template.replace("{bin}", str(Path(sys.executable).parent)).replace("{sync}", sync)


def status_number(status: str, field: str) -> int:
    r"""Return a number from /proc/PID/status.

    >>> status_number("Name:\tx\nVmRSS:\t  1024 kB\n", "VmRSS")
    1024
    """
    found = re.search(rf"^{field}:\s+(\d+)", status, re.MULTILINE)
    if found is None:
        raise ValueError(f"no field {field} in {status!r}")
    return int(found[1])


def cpu_ticks(stat: str) -> tuple[int, int]:
    """Return user and system ticks from /proc/PID/stat, whatever the process calls itself.

    >>> cpu_ticks("7 (a) b) S 1 7 7 0 -1 0 9 0 0 0 30 12 0 0")
    (30, 12)
    """
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]), int(fields[12])


def statistic(reply: bytes, name: bytes) -> int | None:
    r"""Return one number of a stats or stats-tube reply; None if it is not there.

    >>> statistic(b"OK 20\r\n---\ncurrent-jobs: 3\n\r\n", b"current-jobs")
    3
    """
    found = re.search(rb"^" + re.escape(name) + rb": (\d+)$", reply, re.MULTILINE)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    started: float
    """`time.perf_counter()` just before exec."""

    def kill(self) -> None:
        """End it at once and wait until it is gone; twice is once."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def resident_bytes(self) -> int:
        """Return the memory it holds at the moment."""
        return status_number(self._proc("status"), "VmRSS") * 1024

    def highest_bytes(self) -> int:
        """Return the most memory it held since its start, or since `forget_highest`."""
        return status_number(self._proc("status"), "VmHWM") * 1024

    def forget_highest(self) -> None:
        """Count the highest memory from now on."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5", encoding="utf-8")

    def descriptors(self) -> int:
        """Return how many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def cpu_seconds(self) -> float:
        """Return the processor time of all its threads so far."""
        return sum(self.cpu_ticks()) / TICKS_A_SECOND

    def cpu_ticks(self) -> tuple[int, int]:
        """Return the ticks of all its threads so far: in user mode, in the kernel."""
        return cpu_ticks(self._proc("stat"))

    def scheduled_seconds(self) -> float:
        """Return the processor time of its living threads so far, by the scheduler's clock."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9

    def wake_ups(self) -> int:
        """Return how often its threads have gone to sleep of themselves so far."""
        threads = Path(f"/proc/{self.process.pid}/task").glob("*/status")
        return sum(
            status_number(thread.read_text(), "voluntary_ctxt_switches") for thread in threads
        )

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self.process.pid}/{name}").read_text(encoding="utf-8")


def ask(port: int, command: bytes) -> bytes:
    """Send one command on a connection of its own; return its reply: a line, or an OK block."""
    with socket.create_connection(("127.0.0.1", port), timeout=REPLY_SECONDS_MAX) as sock:
        sock.sendall(command)
        reply = b""
        while not is_whole(reply):
            received = sock.recv(65_536)
            if not received:
                raise ConnectionError("closed before the reply was whole")
            reply += received
        return reply


def is_whole(reply: bytes) -> bool:
    r"""Whether the reply is complete.

    >>> is_whole(b"OK 4\r\n---\n"), is_whole(b"OK 4\r\n---\n\r\n")
    (False, True)
    """
    line, line_end, rest = reply.partition(b"\r\n")
    if not line_end:
        return False
    return not line.startswith(b"OK ") or len(rest) == int(line[3:]) + 2


class Stable:
    """Where servers are started: a directory on a real disk, and the processors they may use."""

    def __init__(self, directory: Path, server_cpus: frozenset[int] | None) -> None:
        self._directory = directory
        self._server_cpus = server_cpus

    @contextmanager
    def directory(self) -> Iterator[Path]:
        """Give an empty directory that is removed afterwards."""
        with tempfile.TemporaryDirectory(prefix="bench-line-", dir=self._directory) as name:
            yield Path(name)

    @contextmanager
    def server(self, command: str) -> Iterator[Server]:
        """Run a server on a new directory for the length of the block."""
        with self.directory() as directory, self.server_on(command, directory) as server:
            yield server

    @contextmanager
    def server_on(
        self,
        command: str,
        directory: Path,
        serving: Callable[[bytes], bool] = bool,
    ) -> Iterator[Server]:
        """Run a server on this directory; the block begins when its `stats` reply is `serving`."""
        server, output = self._spawn(command, directory)
        try:
            wait_until_serving(server, output, serving)
            yield server
        finally:
            server.kill()

    def _spawn(self, command: str, directory: Path) -> tuple[Server, Path]:
        port = free_port()
        words = [word.format(port=port, dir=directory) for word in command.split()]
        if shutil.which(words[0]) is None:
            raise ServerFailedError(f"there is no {words[0]}")
        output = directory.with_name(directory.name + ".output")
        with output.open("wb") as sink:
            started = time.perf_counter()
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT
            )
        if self._server_cpus is not None:
            os.sched_setaffinity(process.pid, self._server_cpus)
        return Server(process, port, started), output


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


def free_port() -> int:
    """Return a port nobody listens on; stock servers cannot be asked which one they took."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
    assert isinstance(port, int)
    return port


def wait_until_serving(server: Server, output: Path, serving: Callable[[bytes], bool]) -> None:
    """Ask for `stats` until the reply is `serving`; raise `ServerFailedError` if it never is."""
    try:
        while time.perf_counter() < server.started + START_SECONDS_MAX:
            if server.process.poll() is not None:
                break
            try:
                if serving(ask(server.port, b"stats\r\n")):
                    return
            except OSError:
                pass  # not listening yet, or not for us: ask again
            time.sleep(RETRY_S)
        said = output.read_text(encoding="utf-8", errors="replace")[-500:]
        raise ServerFailedError(f"{server.process.args!r} did not come to serve; it wrote {said!r}")
    finally:
        output.unlink()
