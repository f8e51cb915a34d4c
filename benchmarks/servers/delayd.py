"""delayd: how every benchmark starts it, and as a peer under each policy of its log.

    with running(directory, "--sync", "always") as daemon:
        ...ask daemon.port over the line, daemon.http_port over HTTP...
        daemon.restart()

The daemon is ended with the block.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.line import HOST
from benchmarks.processes import OwnServer, program, reserved_port, written_bytes_below
from benchmarks.registry import Bench, Durability
from benchmarks.servers.beanstalk import BeanstalkDialect, standing_jobs

SYNC: Final = MappingProxyType(
    {
        "always": Durability.BEFORE_ANSWER,
        "interval": Durability.WITHIN_50_MS,
        "never": Durability.UNSYNCED,
    }
)


@dataclass(frozen=True, slots=True)
class RunningDelayd:
    """One that serves."""

    port: int
    """Of the line."""
    http_port: int
    """0 if it has no API."""
    server: OwnServer
    data: Path

    @property
    def pid(self) -> int:
        """The id of its process."""
        return self.server.pid

    @property
    def line_url(self) -> str:
        """Where the client library finds the line."""
        return f"beanstalk://{HOST}:{self.port}"

    @property
    def http_url(self) -> str:
        """Where it finds the API."""
        return f"http://{HOST}:{self.http_port}"

    def dialect(self, body_bytes: int) -> BeanstalkDialect:
        """Return the way of speaking of a new connection."""
        return BeanstalkDialect(body_bytes, has_keys=True)

    def processes(self) -> Sequence[int]:
        """Return the id of its process, and of one that writes a snapshot."""
        return self.server.processes

    def standing(self) -> int:
        """Return how many jobs it has."""
        return standing_jobs(self.port)

    def log_bytes(self) -> int:
        """Return the bytes written to its log and snapshots, without room for more."""
        return written_bytes_below(self.data)

    def restart(self) -> float:
        """Kill it and start it on its log; return the seconds until it serves."""
        return self.server.restart()


@contextlib.contextmanager
def running(
    directory: Path,
    *flags: str,
    config: str = "",
    environment: Mapping[str, str] | None = None,
    http: bool = True,
    has_data: bool = True,
    waits_for: str = "",
) -> Iterator[RunningDelayd]:
    """Run a delayd over a directory while the block runs, on ports that stay the same.

    It is begun with when it answers, or when it has printed `waits_for`, as one that stands by.
    Raises `ServerFailedError`.
    """
    beside = Path(sys.executable).parent / "delayd"
    data = directory / "data"
    command = [str(beside) if beside.exists() else program("delayd"), "serve", *flags]
    if has_data:
        command += ["--data-dir", str(data)]
    if config:
        path = directory / "delayd.toml"
        path.write_text(config, encoding="utf-8")
        command += ["--config", str(path)]
    with reserved_port() as port, reserved_port() as http_port:
        command += ["--line", f"{HOST}:{port}", "--http", f"{HOST}:{http_port}" if http else "off"]

        def is_serving() -> bool:
            return waits_for in server.said if waits_for else standing_jobs(port) >= 0

        server = OwnServer(command, directory, is_serving, environment)
        with server:
            yield RunningDelayd(port, http_port if http else 0, server, data)


@contextlib.contextmanager
def new_delayd(
    bench: Bench,
    *flags: str,
    config: str = "",
    environment: Mapping[str, str] | None = None,
    http: bool = True,
    has_data: bool = True,
) -> Iterator[RunningDelayd]:
    """Run one over a new directory on the disk that is measured."""
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=bench.directory))
        daemon = running(
            Path(directory),
            *flags,
            config=config,
            environment=environment,
            http=http,
            has_data=has_data,
        )
        yield stack.enter_context(daemon)


@dataclass(frozen=True, slots=True)
class DelaydPeer:
    """A delayd with this policy."""

    sync: str
    is_compiled: bool
    http: bool = False
    name: str = ""
    """What tells it from another with this policy."""
    delay_unit_ms: int = 1
    poll_pause_s: float = 0.0

    @property
    def subject(self) -> str:
        """Its name."""
        words = ("delayd", "compiled" * self.is_compiled, self.name)
        return ", ".join(filter(None, words))

    @property
    def policy(self) -> Durability:
        """What an acknowledgement means."""
        return SYNC[self.sync]

    @property
    def settings(self) -> str:
        """Its command."""
        http = "127.0.0.1:PORT" if self.http else "off"
        return f"delayd serve --data-dir DIR --http {http} --sync {self.sync}"

    def serve(self, bench: Bench, directory: Path) -> AbstractContextManager[RunningDelayd]:
        """Run it."""
        environment = bench.python_path(compiled=self.is_compiled)
        return running(directory, "--sync", self.sync, environment=environment, http=self.http)


def peers() -> Sequence[DelaydPeer]:
    """Return it under each policy, interpreted and compiled."""
    return [DelaydPeer(sync, is_compiled) for sync in SYNC for is_compiled in (False, True)]
