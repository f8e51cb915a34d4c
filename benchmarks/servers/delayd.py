"""delayd over the line protocol, under each policy of its log, interpreted and compiled."""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from benchmarks.peers import written_bytes_below
from benchmarks.registry import Bench, Durability
from benchmarks.servers.beanstalk import BeanstalkDialect, standing_jobs
from benchmarks.servers.processes import HOST, OwnServer, program, reserved_port

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
    server: OwnServer
    data: Path

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
        """Return the bytes written to its log, without what is reserved in advance."""
        return written_bytes_below(self.data)

    def restart(self) -> float:
        """Kill it and start it on its log; return the seconds until it serves."""
        return self.server.restart()


@dataclass(frozen=True, slots=True)
class DelaydPeer:
    """A delayd with this policy."""

    sync: str
    is_compiled: bool
    delay_unit_ms: int = 1
    poll_pause_s: float = 0.0

    @property
    def subject(self) -> str:
        """Its name."""
        return "delayd, compiled" if self.is_compiled else "delayd"

    @property
    def policy(self) -> Durability:
        """What an acknowledgement means."""
        return SYNC[self.sync]

    @property
    def settings(self) -> str:
        """Its command."""
        return f"delayd serve --data-dir DIR --http off --sync {self.sync}"

    @contextlib.contextmanager
    def serve(self, bench: Bench, directory: Path) -> Iterator[RunningDelayd]:
        """Run it."""
        data = directory / "data"
        beside = Path(sys.executable).parent / "delayd"
        command = [str(beside) if beside.exists() else program("delayd"), "serve"]
        command += ["--data-dir", str(data), "--http", "off", "--sync", self.sync]
        environment = bench.python_path(compiled=self.is_compiled)
        with reserved_port() as port:
            command += ["--line", f"{HOST}:{port}"]
            is_serving = lambda: standing_jobs(port) >= 0  # noqa: E731
            with OwnServer(command, directory, is_serving, environment) as server:
                yield RunningDelayd(port, server, data)


def peers() -> Sequence[DelaydPeer]:
    """Return it under each policy, interpreted and compiled."""
    return [DelaydPeer(sync, is_compiled) for sync in SYNC for is_compiled in (False, True)]
