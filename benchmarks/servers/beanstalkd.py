"""Debian's beanstalkd: without a log, with one that is synced every 50 ms, or for each command.

It runs as its man page says: `-b` has the folder of the log, `-f` how many milliseconds may pass
between syncs. Its delays are whole seconds, and it has no keys.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.line import HOST
from benchmarks.processes import OwnServer, program, reserved_port
from benchmarks.registry import Bench, Durability, NotMeasuredError
from benchmarks.servers.beanstalk import BeanstalkDialect, standing_jobs


@dataclass(frozen=True, slots=True)
class RunningBeanstalkd:
    """One that serves."""

    port: int
    server: OwnServer
    log: Path | None

    def dialect(self, body_bytes: int) -> BeanstalkDialect:
        """Return the way of speaking of a new connection."""
        return BeanstalkDialect(body_bytes)

    def processes(self) -> Sequence[int]:
        """Return the id of its one process."""
        return self.server.processes

    def standing(self) -> int:
        """Return how many jobs it has."""
        return standing_jobs(self.port)

    def log_bytes(self) -> int:
        """Return the bytes written to its log, without the zeros that it writes in advance."""
        files = self.log.glob("binlog.*") if self.log else ()
        return sum(len(file.read_bytes().rstrip(b"\0")) for file in files)

    def restart(self) -> float:
        """Kill it and start it on its log; return the seconds until it serves."""
        if self.log is None:
            raise NotMeasuredError("it keeps nothing")
        return self.server.restart()


@dataclass(frozen=True, slots=True)
class BeanstalkdPeer:
    """A beanstalkd with these flags; `-b` is added if they are not empty."""

    policy: Durability
    flags: tuple[str, ...] = ()
    subject: str = "beanstalkd"
    delay_unit_ms: int = 1_000
    poll_pause_s: float = 0.0

    @property
    def settings(self) -> str:
        """Its command."""
        return " ".join(("beanstalkd", *(("-b DIR", *self.flags) if self.flags else ())))

    @contextlib.contextmanager
    def serve(self, bench: Bench, directory: Path) -> Iterator[RunningBeanstalkd]:
        """Run it."""
        del bench
        command = [program("beanstalkd"), "-l", HOST]
        log = None
        if self.flags:
            log = directory / "log"
            log.mkdir()
            command += ["-b", str(log), *self.flags]
        with reserved_port() as port:
            command += ["-p", str(port)]
            with OwnServer(command, directory, lambda: standing_jobs(port) >= 0) as server:
                yield RunningBeanstalkd(port, server, log)


def peers() -> Sequence[BeanstalkdPeer]:
    """Return it under each policy."""
    return [
        BeanstalkdPeer(Durability.IN_MEMORY),
        BeanstalkdPeer(Durability.WITHIN_50_MS, ("-f", "50")),
        BeanstalkdPeer(Durability.BEFORE_ANSWER, ("-f", "0")),
    ]
