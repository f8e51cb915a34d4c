"""The real daemon in a process of its own.

    with running_daemon() as daemon: ...            # of `delayd.testing.daemon`, which is shipped
    with daemon_of(directory, *flags) as daemon: ...          # other flags, on this directory
    with DaemonRig(tmp_path) as rig:                          # on a virtual clock, with a client
        rig.put("hello", delay=60)
        rig.passes(60)
        rig.crashes()
        assert rig.comes() == "hello"

`tests.faults.real_daemon` starts it under a tracer; `tests.servers` starts what beanstalkd's
clients talk to: beanstalkd, `delayd-beanstalkd`, `delayd serve`.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from delayd.testing.daemon import Daemon, running_daemon
from tests.line_client import LineClient

SLOWNESS: Final = ("the disk was slow to sync", "no client was heard for long")
LADDER_S: Final = (15, 180, 600, 1_800, 1_800, 3_600, 7_200, 21_600, 54_000)
"""15s 3m 10m 30m 30m 1h 2h 6h 15h"""


def serve_command(data_dir: str | os.PathLike[str], *flags: str) -> list[str]:
    """The command line of a daemon on a free port; later flags win over earlier ones."""
    where = ["--data-dir", os.fspath(data_dir), "--line", "127.0.0.1:0", "--http", "off"]
    return [sys.executable, "-m", "delayd", "serve", *where, *flags]


def daemon_of(data_dir: str | os.PathLike[str], *flags: str) -> Daemon:
    """Start `delayd serve` on this directory. Raises DaemonNotStarted."""
    return Daemon(serve_command(data_dir, *flags))


def warnings_of(daemon: Daemon) -> list[str]:
    """What it has warned of, but for how slow this machine is."""
    warnings = [line for line in daemon.log().splitlines() if " warning " in line]
    return [line for line in warnings if not any(said in line for said in SLOWNESS)]


def standing_jobs(daemon: Daemon) -> int:
    """Ask how many jobs are delayed."""
    with LineClient(daemon.address) as client:
        return int(client.stats("stats")["current-jobs-delayed"])


def put_standing(daemon: Daemon, jobs: int, body: bytes) -> None:
    """Put jobs that are delayed for an hour."""
    with LineClient(daemon.address) as client:
        for _ in range(jobs):
            client.put(body, delay=3600)


@contextlib.contextmanager
def client_beside(
    daemon: Daemon, work: Callable[[LineClient], object], pause_s: float = 0
) -> Iterator[None]:
    """Let a client do this again and again, in a thread, until the block ends."""
    is_over = threading.Event()

    def repeat() -> None:
        with LineClient(daemon.address) as client:
            while not is_over.wait(pause_s):
                work(client)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class DaemonRig:
    """One data directory, the daemon on it on a virtual clock, and a client."""

    def __init__(self, home: Path, config: str = "") -> None:
        self._flags: tuple[str, ...] = ()
        if config:
            file = home / "delayd.toml"
            file.write_text(config)
            self._flags = ("--config", str(file))
        self._home = home / "data"
        self._stack = contextlib.ExitStack()
        self._start()

    def _start(self) -> None:
        self.daemon: Daemon = self._stack.enter_context(
            running_daemon(*self._flags, data_dir=self._home, clock="virtual")
        )
        self.client: LineClient = self._stack.enter_context(self.connect())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def connect(self) -> LineClient:
        return LineClient(self.daemon.address)

    def crashes(self) -> None:
        """Kill the daemon and start it again."""
        time_s = self.daemon.advance(0)
        self.daemon.kill()
        self._stack.close()
        self._start()
        assert self.daemon.advance(0) == time_s

    def passes(self, seconds: float) -> None:
        """Let time pass."""
        self.daemon.advance(seconds)

    def ask(self, line: str, body: str | None = None) -> str:
        """Say it and return the answer."""
        if body is None:
            return self.client.ask(line)
        self.client.send(f"{line}\r\n{body}\r\n".encode())
        return self.client.reply().decode().removesuffix("\r\n")

    def put(self, body: str, delay: float = 0, *, tube: str = "default", words: str = "") -> str:
        """Put a job with a ttr of 60 seconds; the answer."""
        return self.ask(f"put-in-tube {tube} 0 {delay} 60 {len(body)}{words}", body)

    def comes(self, *tubes: str) -> str | None:
        """The body of the job that is ready in one of these tubes, done at once; None for none."""
        with self.connect() as worker:
            for tube in tubes:
                worker.ask(f"watch {tube}")
            if tubes:
                worker.ask("ignore default")
            answer = worker.ask("reserve-with-timeout 0")
            if answer == "TIMED_OUT":
                return None
            head, _, body = answer.partition("\r\n")
            assert worker.ask(f"delete {head.split()[1]}") == "DELETED"
            return body

    def state(self, job_id: int = 1) -> str:
        """In which state the job is."""
        return self.client.stats(f"stats-job {job_id}")["state"]
