"""The real daemon in a process of its own.

    with running_daemon() as daemon: ...            # of `delayd.testing.daemon`, which is shipped
    with daemon_of(directory, *flags) as daemon: ...          # other flags, on this directory

`tests.rigs.story` has it on a virtual clock, with crashes. `tests.faults.real_daemon` starts it
under a tracer; `tests.servers` starts what beanstalkd's clients talk to: beanstalkd,
`delayd-beanstalkd`, `delayd serve`.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from delayd.access.token_entries import Entry
from delayd.testing.daemon import Daemon
from tests import config_files
from tests.access import samples
from tests.line_client import LineClient

SLOWNESS: Final = ("the disk was slow to sync", "clients had to wait: the daemon was busy")


def serve_command(data_dir: str | os.PathLike[str], *flags: str) -> list[str]:
    """The command line of a daemon on a free port; later flags win over earlier ones."""
    where = ["--data-dir", os.fspath(data_dir), "--line", "127.0.0.1:0", "--http", "off"]
    return [sys.executable, "-m", "delayd", "serve", *where, *flags]


def daemon_of(data_dir: str | os.PathLike[str], *flags: str) -> Daemon:
    """Start `delayd serve` on this directory. Raises DaemonNotStarted."""
    return Daemon(serve_command(data_dir, *flags))


def token_flags(directory: Path, *entries: Entry, more: str = "") -> tuple[str, str]:
    """Write a file of tokens, and a configuration of it and `more`; the flags of a daemon."""
    tokens = samples.written(directory / "tokens.json", *entries)
    return "--config", config_files.written(directory, f'auth.tokens = "{tokens}"\n{more}')


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
