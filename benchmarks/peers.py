"""What the kernel and a server of the line protocol say about a server, and how it is ended.

Whatever is started is ended by its process id with SIGKILL, which is also the crash that recovery
is measured from.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

START_SECONDS_MAX: Final = 120.0
"""How long a start may take, a recovery of millions of jobs included."""

REPLY_SECONDS_MAX: Final = 30.0
TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class ServerFailedError(Exception):
    """A server did not start; the message ends with what it wrote."""


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
        return sum(cpu_ticks(self._proc("stat"))) / TICKS_A_SECOND

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
