"""Servers that the tests start for themselves: each on a free loopback port, ended by its pid.

    with delayd_beanstalkd("-z", "10") as server, LineClient(server.address) as client:
        assert client.ask("put 0 0 1 11", b"x" * 11) == "JOB_TOO_BIG"

What a server prints goes into a temporary file, so that no pipe fills up and a server that does not
start can be quoted. The module does not know any protocol; tests/line_client.py speaks one.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NoReturn, Self

from tests.rigs import fork_server
from tests.rigs.process import serve_command
from tests.rigs.waiting import until

if TYPE_CHECKING:
    from tests.line_client import Address

HOST: Final = "127.0.0.1"
START_S_MAX: Final = 180.0  # RabbitMQ takes ten seconds where nobody else works
STOP_S_MAX: Final = 60.0
POLL_S: Final = 0.002
READY: Final = re.compile(rb"ready: .*?\bline (?P<host>[0-9.]+):(?P<port>[0-9]+)[,\n]")
BEANSTALKD: Final = shutil.which("beanstalkd")
NO_BEANSTALKD: Final = "beanstalkd is not installed: `make test` installs it where it can"


class ServerNotStarted(AssertionError):
    """The process ended, or said nothing, before it accepted a connection."""


class Server:
    """A running server process; leaving its `with` block ends it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self.name = name
        self.process = process
        self.address: Address = (HOST, 0)
        self._output = output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<{self.name}, pid {self.process.pid}, port {self.address[1]}>"

    def output(self) -> bytes:
        return os.pread(self._output.fileno(), 1 << 20, 0)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self) -> None:
        """End the process as a system would: SIGTERM, and SIGKILL if it does not listen."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
        self._output.close()

    def kill(self) -> None:
        """End the process as a power cut would, as far as the process can tell."""
        self.process.kill()
        self.process.wait()

    def wait_until(self, *, ready: re.Pattern[bytes] | None) -> None:
        """Wait until it accepts a connection at `address`, or at the one that it prints."""
        deadline = time.monotonic() + START_S_MAX
        while time.monotonic() < deadline and self.process.poll() is None:
            if ready is None:
                # Reset: it listened, and ended before it had taken us.
                with (
                    suppress(ConnectionRefusedError, ConnectionResetError),
                    socket.create_connection(self.address, START_S_MAX),
                ):
                    return
            elif found := ready.search(self.output()):
                self.address = (found["host"].decode(), int(found["port"]))
                ready = None
                continue
            time.sleep(POLL_S)
        self.fail_to_start()

    def wait_until_said(self, is_said: Callable[[str], object]) -> None:
        """Wait until this is so of all that it has printed; it goes on."""
        until(lambda: is_said(self.output().decode()) or self.process.poll() is not None)
        assert is_said(self.output().decode()), self.output()

    def wait_for_exit(self) -> NoReturn:
        """Wait for a process that accepts connections, and then finds that it cannot go on.

        Raises `ServerNotStarted` with what it said, like a server that never did.
        """
        self.process.wait(START_S_MAX)
        self.fail_to_start()

    def fail_to_start(self) -> NoReturn:
        text = self.output().decode(errors="replace")
        code = self.process.poll()
        self.stop()
        raise ServerNotStarted(f"{self.name} exited with {code}, having said:\n{text}")


def launch(
    name: str,
    argv: tuple[str, ...],
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """Start a process whose output is kept; nobody waits for it yet."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by Server.stop
    try:
        process = fork_server.start(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=environment,
        )
    except OSError:
        output.close()
        raise
    return Server(name, process, output)


@contextmanager
def free_port() -> Iterator[int]:
    """A port that nobody else is given by the system until the block ends.

    Linux lets a server that sets SO_REUSEADDR, as all do, bind and listen beside a socket that does
    the same and does not listen; whoever asks for port 0, or connects from one, gets another.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        port: int = holder.getsockname()[1]
        yield port


def start_on_a_free_port(name: str, argv: tuple[str, ...]) -> Server:
    """Start a server that takes beanstalkd's flags."""
    with free_port() as port:
        server = launch(name, (*argv, "-l", HOST, "-p", str(port)))
        server.address = (HOST, port)
        server.wait_until(ready=None)
    return server


def executable(name: str) -> str:
    """A command of this project, as installed beside the interpreter that runs the tests."""
    return str(Path(sysconfig.get_path("scripts")) / name)


def beanstalkd(*flags: str) -> Server:
    """Debian's server; the caller has asked `BEANSTALKD` whether there is one."""
    assert BEANSTALKD is not None, NO_BEANSTALKD
    return start_on_a_free_port("beanstalkd", (BEANSTALKD, *flags))


def delayd_beanstalkd(*flags: str) -> Server:
    return start_on_a_free_port("delayd-beanstalkd", (executable("delayd-beanstalkd"), *flags))


def delayd_serve(data_dir: Path, *flags: str) -> Server:
    server = launch("delayd serve", tuple(serve_command(data_dir, *flags)))
    server.wait_until(ready=READY)
    return server
