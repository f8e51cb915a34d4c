"""Daemons that are attacked: started with or without a tracer, killed, and started again.

    with started(directory) as daemon, LineClient(daemon.address) as client: ...
    with started(directory, tracing=Injection("fdatasync", "signal=KILL", 7)) as daemon: ...

A tracer (`strace -D`) runs beside the daemon and not above it, so that signals and exit codes are
those of the daemon itself. The module does not know what is said to a daemon.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from delayd.exits import Exit
from delayd.testing.daemon import Daemon, DaemonNotStarted
from tests.rigs.process import serve_command
from tests.rigs.waiting import until

POLL_S: Final = 0.005
TRACER_S_MAX: Final = 60.0
EXIT_S_MAX: Final = 60.0
SMALL_SEGMENTS: Final = "16KiB"
"""So that snapshots are taken every moment; files of the log have 128 KiB at least."""

WATCHDOG_S: Final = 1.0
"""What a watched daemon is told; it says that it is alive twice as often."""

PATIENT: Final = {"DELAYD_HTTP_HEADER_TIMEOUT": "1h", "DELAYD_HTTP_IDLE_TIMEOUT": "1h"}
"""A connection may be made long before somebody asks by it: machines that are busy stop for
seconds."""


def now_ms() -> float:
    """The clock of all histories: it goes on while daemons come and go."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) / 1_000_000


def need_root() -> None:
    """Skip where mounts and loop devices cannot be made."""
    if os.geteuid() != 0:
        pytest.skip("this needs root: it mounts file systems of its own")


def need(program: str) -> str:
    """Return where the program is, or skip."""
    path = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin:/usr/bin:/bin")
    if path is None:
        pytest.skip(f"{program} is not installed: `make test` installs it where it can")
    return path


class Injection(NamedTuple):
    """What a tracer does to a system call: an error, a signal, a delay."""

    calls: str
    """Their names, with commas."""

    what: str
    """As strace says it: `error=EIO`, `signal=KILL`, `delay_enter=200000` (in µs)."""

    when: str = ""
    """The call's number in its thread, from 1: `7`, `7+`, `7..9`; nothing: each."""

    def expression(self) -> str:
        when = f":when={self.when}" if self.when else ""
        return f"inject={self.calls}:{self.what}{when}"


class Tracing(NamedTuple):
    """How a daemon is traced."""

    output: Path
    """Where the tracer writes what it saw."""

    calls: str
    """The names of the calls that are looked at, with commas."""

    injections: Sequence[Injection] = ()
    flags: Sequence[str] = ()

    def command(self) -> list[str]:
        words = [need("strace"), "-D", "-f", "-q", "-o", str(self.output)]
        if not any(injection.what.startswith("signal=") for injection in self.injections):
            # Much faster, but strace 6.1 then loses the signals it should inject.
            words.append("--seccomp-bpf")
        # What begins with an execve is the process itself: see `wait_for_tracer`.
        words += ["-e", f"trace=execve,{self.calls}", "-e", "signal=none", *self.flags]
        for injection in self.injections:
            words += ["-e", injection.expression()]
        return words


def started(
    data_dir: str | os.PathLike[str],
    *flags: str,
    segment_bytes: str = SMALL_SEGMENTS,
    tracing: Tracing | None = None,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> Daemon:
    """Start `delayd serve`; `before` are words in front of the command. Raises DaemonNotStarted."""
    command = [*before, *serve_command(data_dir, *flags)]
    if tracing is not None:
        command = [*tracing.command(), *command]
    ours = {"DELAYD_JOURNAL_SEGMENT_BYTES": segment_bytes, **PATIENT}
    return Daemon(command, environment={**ours, **(environment or {})})


def refused(data_dir: str | os.PathLike[str], code: Exit, **options: Any) -> str:  # noqa: ANN401
    """See that a start, as by `started`, ends with this exit code; return what it says."""
    with pytest.raises(DaemonNotStarted) as caught, started(data_dir, **options):
        pass
    assert caught.value.exit_code == code, caught.value
    return caught.value.log


@contextmanager
def systemd(folder: Path) -> Iterator[socket.socket]:
    """The socket that systemd reads; what it says is for `said`."""
    path = folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(path))
        listener.settimeout(60)
        yield listener
    path.unlink()


def notifying(folder: Path) -> dict[str, str]:
    """Variables by which a daemon talks to `systemd`, which watches that it is alive."""
    watchdog_us = str(int(WATCHDOG_S * 1_000_000))
    return {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": watchdog_us}


def said(listener: socket.socket, what: str) -> str:
    """Wait until the daemon says this, and return the whole message."""
    while True:
        message = listener.recv(4096).decode()
        if what in message.split("\n"):
            return message


@contextmanager
def standing_still(daemon: Daemon) -> Iterator[None]:
    """Let the daemon stand still for a while, none of its threads in the middle of a call."""
    daemon.process.send_signal(signal.SIGSTOP)
    try:
        tasks = Path(f"/proc/{daemon.pid}/task")
        until(lambda: all(_state_of(task) == "T" for task in tasks.iterdir()))
        yield
    finally:
        daemon.process.send_signal(signal.SIGCONT)


def _state_of(task: Path) -> str:
    """As the kernel names it; nothing for a thread that has ended since it was listed."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def wait_for_exit(daemon: Daemon) -> int | None:
    """Return its exit code; None if it goes on."""
    try:
        return daemon.process.wait(EXIT_S_MAX)
    except subprocess.TimeoutExpired:
        return None


def kill_with_its_tracer(daemon: Daemon) -> None:
    """Kill a daemon whose calls are being delayed: the tracer would keep it until they are over."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    tracer = int(status.partition("TracerPid:")[2].split()[0])
    daemon.process.kill()
    if tracer:
        with suppress(ProcessLookupError):  # with nothing left to trace it goes by itself
            os.kill(tracer, signal.SIGKILL)
    daemon.kill()


def wait_for_tracer(output: Path) -> str:
    """Return all that the tracer wrote about a process that has ended.

    The end of the process is the last line. Threads may end long before, and a tracer falls behind
    when the machine is busy: that it has written nothing for a while says nothing.
    """
    until_s = time.monotonic() + TRACER_S_MAX
    while time.monotonic() < until_s:
        said = output.read_text(errors="replace") if output.exists() else ""
        process = said.partition(" ")[0]
        if re.search(rf"^{process} +\+\+\+ (exited|killed).*\n", said, re.MULTILINE):
            return re.sub(rf"^{process} +execve\(.*\n", "", said, flags=re.MULTILINE)
        time.sleep(POLL_S)
    raise AssertionError(f"the tracer did not finish {output}")
