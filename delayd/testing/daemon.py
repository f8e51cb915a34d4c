"""A daemon under test: the real one, in a process of its own.

    with running_daemon() as daemon:
        client = greenstalk.Client(daemon.address)

It listens on a free port of 127.0.0.1 and keeps its jobs in a directory that is removed afterwards.
A directory of the caller's own stays, for a test of a crash:

    with running_daemon(data_dir=directory) as daemon:
        ...put jobs...
        daemon.kill()
    with running_daemon(data_dir=directory) as daemon:
        ...they are there...

With a virtual clock time stands still, so that a test of days takes milliseconds:

    with running_daemon(clock="virtual") as daemon:
        ...put a job with a delay of a week...
        daemon.advance(7 * 24 * 3600)
        ...reserve it...

`Daemon` is the process alone, for another command or other flags. The module uses the command
`advance-clock` of the line protocol, and otherwise leaves the sockets to the client's library.
"""

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Final, Literal, Self

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 60.0

_READY: Final = re.compile(rb"^delayd \S+ ready: (.+)\n", re.MULTILINE)
_OURS: Final = ("DELAYD_", "LISTEN_", "NOTIFY_", "WATCHDOG_")
"""Variables that a daemon reads; those of the tests' environment are not passed on."""


class DaemonNotStarted(Exception):
    """The process ended, or was not ready in time.

    `exit_code` is None if it was still running; `log` is what it wrote to standard error.
    """

    def __init__(self, exit_code: int | None, log: str) -> None:
        how = "was not ready in time" if exit_code is None else f"exited with {exit_code}"
        super().__init__(f"the daemon {how}, having said:\n{log}")
        self.exit_code = exit_code
        self.log = log


class ClockStands(Exception):
    """The clock could not be advanced: it is not virtual, or it would pass the year 9999."""

    def __init__(self, answer: str) -> None:
        super().__init__(f"the clock was not advanced, the daemon said {answer!r}")


class Daemon:
    """A daemon's process; leaving its `with` block ends it.

    `environment` is added to that of the caller. Raises `DaemonNotStarted`.
    """

    start_process: ClassVar[Callable[..., subprocess.Popen[bytes]]] = subprocess.Popen
    """What starts the process, called as this is."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        directory: str | None = None,
        inherited_fds: Sequence[int] = (),
    ) -> None:
        inherited = {name: os.environ[name] for name in os.environ if not name.startswith(_OURS)}
        with contextlib.ExitStack() as stack:
            self._log = stack.enter_context(tempfile.TemporaryFile())
            self.process = self.start_process(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**inherited, **(environment or {})},
                cwd=directory,
                pass_fds=inherited_fds,
            )
            stack.pop_all()  # from here on the end of the process closes the log
        listens_on = self._wait_until_ready()
        self.listens_on = listens_on.get("line", "")
        """The address of its line protocol: `127.0.0.1:11300` or `unix:/run/line.sock`."""
        self.http_listens_on = listens_on.get("http", "")
        """The same for HTTP; empty where it is off, as it is for `running_daemon`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()
        self._log.close()

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self.process.pid

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for a daemon that listens on one."""
        return _host_and_port(self.listens_on)

    @property
    def http_address(self) -> tuple[str, int]:
        """The same for HTTP."""
        return _host_and_port(self.http_listens_on)

    def advance(self, seconds: float) -> float:
        """Advance the virtual clock; return its time, in seconds since 1970.

        When this returns everything due by then has happened, in order, and workers that wait have
        been sent their jobs. Raises `ClockStands` when there is nothing to advance.
        """
        with socket.create_connection(self.address) as connection:
            connection.sendall(b"advance-clock %.3f\r\n" % seconds)
            with connection.makefile("rb") as replies:
                word, _, time_s = replies.readline().partition(b" ")
        if word != b"ADVANCED":
            raise ClockStands(word.decode().strip())
        return float(time_s)

    def log(self) -> str:
        """Everything it has written to standard error."""
        size = os.fstat(self._log.fileno()).st_size
        return os.pread(self._log.fileno(), size, 0).decode(errors="replace")

    def stop(self) -> int:
        """End it by SIGTERM, and return its exit code. It is killed if it takes too long."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self._end(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """End it as a crash would."""
        self.process.kill()
        return self._end(None)

    def _end(self, within_s: float | None) -> int:
        code = self.process.wait(within_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def _wait_until_ready(self) -> dict[str, str]:
        """Return the first address of each protocol."""
        assert self.process.stdout is not None
        output = self.process.stdout.fileno()
        printed, is_over = b"", False
        while not is_over and select.select([output], [], [], START_S_MAX)[0]:
            data = os.read(output, 4096)
            is_over = not data
            printed += data
            if found := _READY.search(printed):
                addresses: dict[str, str] = {}
                for part in found[1].decode().split(", "):
                    protocol, _, address = part.partition(" ")
                    addresses.setdefault(protocol, address)
                return addresses
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Standard output has ended, so the process does; or time is over, and it never will.
            self.process.wait(STOP_S_MAX if is_over else 1.0)
        code = self.process.poll()
        self.kill()
        with self._log:
            raise DaemonNotStarted(code, self.log())


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


@contextlib.contextmanager
def running_daemon(
    *flags: str,
    data_dir: str | os.PathLike[str] | None = None,
    clock: Literal["system", "virtual"] = "system",
    within: str | None = None,
) -> Iterator[Daemon]:
    """Start `delayd serve` with these flags on a free port, and stop it in the end.

    Without a `data_dir` it gets one of its own, made in the directory `within` or where temporary
    files are, and removed afterwards. Where the clock is
    virtual, time stands still but for `Daemon.advance`.
    """
    with contextlib.ExitStack() as stack:
        if data_dir is None:
            data_dir = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="delayd-", dir=within)
            )
        where = ("--data-dir", os.fspath(data_dir), "--line", "127.0.0.1:0", "--http", "off")
        how = ("--clock", clock, *flags)
        yield stack.enter_context(Daemon((sys.executable, "-m", "delayd", "serve", *where, *how)))
