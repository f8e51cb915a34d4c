"""T-M2: a daemon with many jobs takes snapshots while it works: no fork, no long pause."""

import time
from pathlib import Path
from typing import Final

from delayd.limits import UNSYNCED_BYTES_MAX
from tests.faults.conftest import Runs
from tests.faults.real_daemon import started
from tests.faults.real_load import PatientClient
from tests.http_client import memory_bytes
from tests.line_client import Address

JOBS_PER_PACKET: Final = 1_000
BODY: Final = b"x" * 100
SNAPSHOTS: Final = 2
PAUSE_S_MAX: Final = 60.0
"""Machines that test are busy: how long exactly is for the benchmarks (chapter `lateness`)."""


def put_many(address: Address, jobs: int) -> None:
    """Put jobs that come in an hour, and take every answer."""
    with PatientClient(address) as client:
        packet = b"put 0 3600 60 %d\r\n%b\r\n" % (len(BODY), BODY) * JOBS_PER_PACKET
        for _ in range(jobs // JOBS_PER_PACKET):
            client.send(packet)
            for _ in range(JOBS_PER_PACKET):
                assert client.reply().startswith(b"INSERTED ")


def test_m2_many_jobs_are_written_down_while_others_are_served(
    quick_path: Path, tmp_path: Path, runs: Runs
) -> None:
    """T-M2: while a snapshot is taken, a client that puts and deletes waits for no long time.

    There is no second process and no second copy of the jobs; and what is recovered is all of them.
    """
    jobs = runs.times(50_000, 1_000_000)
    segment_bytes = "1MiB" if jobs < 100_000 else "16MiB"
    # A million jobs, twice in snapshots and once in the log: more than the quick disk takes.
    home = quick_path if jobs < 100_000 else tmp_path
    with started(home, "--sync", "interval", segment_bytes=segment_bytes) as daemon:
        put_many(daemon.address, jobs)
        before_bytes = memory_bytes(daemon)
        pauses: list[float] = []
        most_bytes = before_bytes
        rounds = 0
        with PatientClient(daemon.address) as client:
            while daemon.log().count("a snapshot was taken") < SNAPSHOTS:
                rounds += 1
                begun_s = time.monotonic()
                job_id = client.put(BODY * 400, delay=3_600)
                assert client.ask(f"delete {job_id}") == "DELETED"
                pauses.append(time.monotonic() - begun_s)
                most_bytes = max(most_bytes, memory_bytes(daemon))
                children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children").read_text()
                assert not children.strip(), "somebody was forked"
                assert rounds < 100_000, "no snapshot is taken"
        assert max(pauses) < PAUSE_S_MAX
        # What waits for a slow disk comes on top.
        assert most_bytes < before_bytes * 1.4 + UNSYNCED_BYTES_MAX
        daemon.kill()
    with started(home) as daemon, PatientClient(daemon.address) as client:
        assert client.stats()["current-jobs-delayed"] == str(jobs)
        daemon.kill()
    runs.count("T-M2", jobs, "jobs")
