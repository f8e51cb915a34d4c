"""A daemon over days and crashes, in memory or as a process: stories are played on both.

    with Story(tmp_path, '[topics."mail.*"]\nretry = "15s 3m"\n', MemoryDaemon) as story:
        story.put("hello", delay=60)
        story.passes(60)
        story.crashes()
        assert story.comes() == "hello"

It is told over the line protocol, on a virtual clock. A crash of the daemon in memory compares what
comes back with what was there, and checks the engine.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, cast

from delayd.config import load
from delayd.core.operations.topics import configure
from delayd.testing.daemon import running_daemon
from tests.core.canonical import canonical
from tests.core.check import check
from tests.line_client import LineClient
from tests.rigs.line import Client, LineRig

if TYPE_CHECKING:
    import socket

LADDER_S: Final = (15, 180, 600, 1_800, 1_800, 3_600, 7_200, 21_600, 54_000)
"""15s 3m 10m 30m 30m 1h 2h 6h 15h"""


class MemorySocket:
    """What a `LineClient` sends to and receives from."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._received = b""

    def sendall(self, data: bytes) -> None:
        self._received += self._client.says(data)

    def recv(self, _bytes_max: int) -> bytes:
        received, self._received = self._received + self._client.replies(), b""
        if not received:
            raise TimeoutError
        return received

    def close(self) -> None:
        self._client.closes()


class MemoryDaemon:
    """The daemon's line protocol, without a process and without sockets."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._rig = LineRig(is_virtual=True)
        self.start()

    def start(self) -> None:
        before = self._rig
        self._rig = LineRig(is_virtual=True, after=before)
        check(self._rig.engine)
        assert [*canonical(self._rig.engine)] == [*canonical(before.engine)]
        config = load(str(self._config), {}, {})
        configure(self._rig.engine, config.topics, config.jobs_max, config.bytes_max)

    def connect(self) -> LineClient:
        return LineClient(cast("socket.socket", MemorySocket(self._rig.client())))

    def kill(self) -> None:
        """Keep what is in the log, and nothing else."""

    close = kill


class ProcessDaemon:
    """The process, on one directory."""

    def __init__(self, config: Path) -> None:
        self._flags = ("--config", str(config))
        self._data_dir = config.parent / "data"
        self.start()

    def start(self) -> None:
        self._stack = contextlib.ExitStack()
        self._daemon = self._stack.enter_context(
            running_daemon(*self._flags, data_dir=self._data_dir, clock="virtual")
        )

    def connect(self) -> LineClient:
        return LineClient(self._daemon.address)

    def kill(self) -> None:
        self._daemon.kill()
        self.close()

    def close(self) -> None:
        self._stack.close()


class Story:
    """One daemon with what it has on disk, and a client."""

    def __init__(
        self, home: Path, config: str, daemon: Callable[[Path], MemoryDaemon | ProcessDaemon]
    ) -> None:
        self._config = home / "delayd.toml"
        self._config.write_text(config)
        self._daemon = daemon(self._config)
        self.client = self.connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.client.close()
        self._daemon.close()

    def connect(self) -> LineClient:
        return self._daemon.connect()

    def crashes(self, config: str | None = None) -> None:
        """Kill the daemon and start it again, with another configuration if it is told."""
        time_s = self.passes(0)
        self._daemon.kill()
        self.client.close()
        if config is not None:
            self._config.write_text(config)
        self._daemon.start()
        self.client = self.connect()
        assert self.passes(0) == time_s

    def passes(self, seconds: float) -> float:
        """Let time pass; return the time."""
        with self.connect() as client:
            word, time_s = client.ask(f"advance-clock {seconds:.3f}").split()
        assert word == "ADVANCED"
        return float(time_s)

    def ask(self, line: str, body: str | None = None) -> str:
        """Say it and return the answer."""
        return self.client.ask(line, None if body is None else body.encode())

    def put(self, body: str, delay: float = 0, *, tube: str = "default", words: str = "") -> str:
        """Put a job with a ttr of 60 seconds; the answer."""
        self.client.send(
            f"put-in-tube {tube} 0 {delay} 60 {len(body)}{words}\r\n{body}\r\n".encode()
        )
        return self.client.reply().decode().removesuffix("\r\n")

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

    def comes_after(self, seconds: float, *tubes: str) -> str | None:
        """What comes when so much time has passed, a millisecond before which nothing does."""
        self.passes(seconds - 0.001)
        assert self.comes(*tubes) is None
        self.passes(0.001)
        return self.comes(*tubes)

    def job(self, job_id: int = 1) -> dict[str, str]:
        """What is told of a job."""
        return self.client.stats(f"stats-job {job_id}")

    def state(self, job_id: int = 1) -> str:
        """In which state the job is."""
        return self.job(job_id)["state"]
