"""T-C4: a real daemon is killed and started again, over and over, and no timed job comes early.

Each job's body says when it is due, by the clock of this process: when its put was about to be
sent, and its delay. What is read from a worker's socket before that was handed out early.
"""

import contextlib
import random
import re
import select
import signal
import socket
import time
from pathlib import Path
from typing import Final

from tests.faults.conftest import Runs
from tests.faults.real_daemon import started, wait_for_exit

NS_PER_MS: Final = 1_000_000
DELAY_MS_MAX: Final = 1_500
"""So that many are due in the next life."""
AT_ONCE: Final = 50
JOBS_A_LIFE: Final = 1_000
BEHIND_MAX: Final = 5_000
BODY: Final = re.compile(rb"RESERVED (\d+) 30\r\n(\d{20} \d{9})\r\n")
ANSWER: Final = re.compile(rb"RESERVED_BATCH (\d+)\r\n|TIMED_OUT\r\n|DEADLINE_SOON\r\n")
TAKE: Final = b"reserve-batch 100 1\r\n"
DRAIN_S_MAX: Final = 60.0


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Timed:
    """What was put and what came, over all lives of a daemon."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.acknowledged = 0
        self.came: set[bytes] = set()
        self.early_ns: list[int] = []
        self.latest_ns = 0
        self._number = 0

    @property
    def wanted(self) -> int:
        """How many jobs to put in a life: none while a slow machine has many to work on."""
        return JOBS_A_LIFE if self.acknowledged - len(self.came) < BEHIND_MAX else 0

    def puts(self) -> bytes:
        """Some puts; each body is unlike all others."""
        pieces = []
        for _ in range(AT_ONCE):
            delay_ms = self.rng.randrange(1, DELAY_MS_MAX)
            due_ns = now_ns() + delay_ms * NS_PER_MS
            self._number += 1
            what = (*divmod(delay_ms, 1_000), due_ns, self._number)
            pieces.append(b"put 0 %d.%03d 60 30\r\n%020d %09d\r\n" % what)
        return b"".join(pieces)

    def note(self, bodies: list[bytes], read_ns: int) -> None:
        """Judge jobs that were read no later than now."""
        for body in bodies:
            late_ns = read_ns - int(body[:20])
            self.latest_ns = max(self.latest_ns, late_ns)
            if late_ns < 0:
                self.early_ns.append(late_ns)
            self.came.add(body)

    def live(self, address: tuple[str, int], until_s: float, jobs: int) -> None:
        """Put so many jobs and work on what comes, until then or until nothing is left."""
        with socket.create_connection(address) as producer, socket.create_connection(address) as us:
            answered, taken = b"", b""
            us.sendall(TAKE)
            while time.monotonic() < until_s and (jobs > 0 or len(self.came) < self.acknowledged):
                if jobs > 0:
                    producer.sendall(self.puts())
                    jobs -= AT_ONCE
                for ready in select.select([producer, us], [], [], 0 if jobs > 0 else 0.02)[0]:
                    data = ready.recv(1 << 18)
                    if ready is producer:
                        lines, _, answered = (answered + data).rpartition(b"\r\n")
                        self.acknowledged += lines.count(b"INSERTED")
                        continue
                    taken += data
                    read_ns = now_ns()
                    answer, found = ANSWER.search(taken), BODY.findall(taken)
                    if answer is not None and len(found) == int(answer[1] or 0):
                        self.note([body for _, body in found], read_ns)
                        deletes = b"".join(b"delete %b\r\n" % job_id for job_id, _ in found)
                        us.sendall(deletes + TAKE)
                        taken = b""


def test_c4_no_timed_job_is_early_over_restarts(quick_path: Path, runs: Runs) -> None:
    """T-C4: every stop is bridged by the wall clock, and each doubt about it makes jobs late."""
    restarts = runs.times(4, 1_000)
    rng = next(runs.rng("T-C4", 1, 1))
    timed = Timed(rng)
    for _ in range(restarts):
        with started(quick_path / "data", segment_bytes="64MiB") as daemon:
            with contextlib.suppress(ConnectionError):
                timed.live(daemon.address, time.monotonic() + rng.uniform(0.1, 0.7), timed.wanted)
            if rng.random() < 0.8:
                daemon.kill()
            else:
                daemon.process.send_signal(signal.SIGTERM)
                wait_for_exit(daemon)
    with started(quick_path / "data", segment_bytes="64MiB") as daemon:
        timed.live(daemon.address, time.monotonic() + DRAIN_S_MAX, 0)
    runs.count("T-C4", restarts, "restarts")
    runs.count("T-C4", timed.acknowledged, "timed jobs")
    assert not timed.early_ns, f"by {[-ns / NS_PER_MS for ns in timed.early_ns[:20]]} ms"
    assert len(timed.came) >= timed.acknowledged
