"""Importing what a real beanstalkd wrote, and a binlog that one wrote once and that is kept here.

The committed files were written by Debian's beanstalkd 1.12 with `-s 4096`, and left by a kill -9.
"""

import random
import shutil
import time
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from delayd.cli.main import invoke
from delayd.core.engine import Engine
from delayd.core.job_parts import Tally, body_of, tally_of
from delayd.core.job_record import HEADER, State, state_of
from delayd.core.times import PlayedMs
from delayd.exits import Exit
from delayd.journal.disk import RealDisk
from delayd.journal.journal import Journal
from tests import servers
from tests.binlog.binlogs import BURIED, CREATED_NS, NS, file_of, full, short
from tests.compat.conftest import needs_beanstalkd
from tests.line_client import LineClient
from tests.rigs.engine import played

KEPT: Final = Path(__file__).parent / "binlogs" / "beanstalkd-1.12"
LONGEST_S: Final = 2**32 - 1
SEGMENT_BYTES: Final = 1 << 20

Capture = pytest.CaptureFixture[str]


class Seen(NamedTuple):
    """A job as an import must bring it."""

    topic: str
    body: bytes
    state: State = State.READY
    priority: int = 0
    ttr_ms: int = 60_000
    tally: Tally = Tally(0)


LATER: Final = LONGEST_S * 1_000
EXPECTED: Final = {
    1: Seen("mail", b"ready", priority=7),
    2: Seen("mail", b"later", State.DELAYED, LONGEST_S, 120_000, Tally(LATER)),
    3: Seen("mail", b"parked", State.BURIED, 5, tally=Tally(0, reserves=1, buries=1)),
    4: Seen("mail", b"kicked", State.READY, 6, tally=Tally(0, reserves=1, buries=1, kicks=1)),
    5: Seen("mail", b"parked too", State.BURIED, 4, tally=Tally(0, reserves=1, buries=1)),
    6: Seen("mail", b"again", State.DELAYED, 9, tally=Tally(LATER, reserves=1, releases=1)),
    7: Seen("bills", b"", ttr_ms=1_000),
    9: Seen("bills", b"\0\r\n\xff\r\n"),
    # A reservation is not written when it happens; this one was, when the job was copied on.
    10: Seen("bills", b"in somebody's hands", ttr_ms=100_000, tally=Tally(0, reserves=1)),
}


def imported(binlog_dir: Path, data_dir: Path) -> Engine:
    """Import and give back what a start finds."""
    words = ["import-beanstalkd", str(binlog_dir), "--data-dir", str(data_dir)]
    assert invoke(words) == Exit.OK
    journal = Journal.open(str(data_dir), disk=RealDisk(), segment_bytes=SEGMENT_BYTES)
    try:
        frames = list(journal.replay())
    finally:
        journal.close()
    replay = played(frames)
    assert replay is not None
    replay.finish(PlayedMs(frames[-1].time_ms))
    return replay.engine


def seen(engine: Engine) -> dict[int, Seen]:
    jobs = {}
    for job_id, record in engine.store.jobs:
        _, due_ms, created_ms, ttr_ms, priority, _, _, _ = HEADER.unpack_from(record)
        topic, state = engine.store.topic_of(record), state_of(record)
        jobs[job_id] = Seen(topic.name, body_of(record), state, priority, ttr_ms, tally_of(record))
        if state is State.DELAYED:
            assert 0 <= due_ms - created_ms - tally_of(record).delay_ms < 600_000
    return jobs


def test_the_kept_binlog_is_read_as_the_beanstalkd_meant_it(
    tmp_path: Path, capsys: Capture
) -> None:
    engine = imported(KEPT, tmp_path / "data")
    assert seen(engine) == EXPECTED
    out, err = capsys.readouterr()
    said = "9 jobs in 2 topics: 5 ready, 2 delayed, 0 reserved, 2 buried"
    assert out == f"{tmp_path}/data now holds {said}\n"
    assert err == f"delayd: the jobs go to {tmp_path}/data\n", "and nothing was left out"


def walk(client: LineClient, rng: random.Random) -> None:
    """Do what comes to mind, with jobs in three tubes."""
    last_id = 0
    for _ in range(400):
        job_id = rng.randint(1, last_id + 1)
        match rng.randrange(9):
            case 0 | 1 | 2:
                client.ask(f"use tube-{rng.randrange(3)}")
                delay = rng.choice((0, 0, 1000, 2000))
                body = rng.randbytes(rng.choice((0, 10, 200)))
                last_id = client.put(body, priority=rng.randrange(4), delay=delay, ttr=1000)
            case 3:
                client.ask(f"delete {job_id}")
            case 4:
                client.ask(f"kick-job {job_id}")
            case 5:
                client.ask(f"kick {rng.randrange(3)}")
            case _:
                client.ask(f"reserve-job {job_id}")
                what = rng.choice(("bury {} 5", "release {} 3 0", "release {} 2 500", "touch {}"))
                client.ask(what.format(job_id))
    client.ask(f"reserve-job {last_id}")


def jobs_of(client: LineClient, last_id: int) -> list[dict[str, str]]:
    """Everything that can be seen of each job; times that run on in steps of ten seconds."""
    jobs = []
    for job_id in range(1, last_id + 1):
        found = client.ask(f"peek {job_id}")
        if found != "NOT_FOUND":
            job = client.stats(f"stats-job {job_id}")
            job |= {"body": found, "tube": job["tube"].strip('"'), "file": ""}
            jobs.append(job)
    return jobs


def same_jobs(theirs: list[dict[str, str]], ours: list[dict[str, str]], apart_s: float) -> None:
    """Compare what was asked for within so many seconds."""
    for their, our in zip(theirs, ours, strict=True):
        if their["state"] == "buried":
            # A restarted beanstalkd counts burying them once more.
            their["buries"] = str(int(their["buries"]) - 1)
        for key in ("age", "time-left"):
            assert abs(int(their.pop(key)) - int(our.pop(key))) <= 2 + apart_s
        assert our == their


def order_of(client: LineClient, tube: str) -> list[str]:
    """The ready jobs as they are handed out."""
    client.ask(f"watch {tube}")
    client.ask("ignore default")
    replies = []
    while (reply := client.ask("reserve-with-timeout 0")).startswith("RESERVED"):
        replies.append(reply)
    client.ask("watch default")
    client.ask(f"ignore {tube}")
    return replies


def compare_with_a_restart(binlog_dir: Path, tmp_path: Path, last_id: int) -> int:
    """Hold a restarted beanstalkd against a delayd on the imported jobs; count the jobs."""
    shutil.copytree(binlog_dir, tmp_path / "copy")
    data_dir = tmp_path / "data"
    words = ["import-beanstalkd", str(tmp_path / "copy"), "--data-dir", str(data_dir)]
    assert invoke(words) == Exit.OK
    with (
        servers.beanstalkd("-b", str(binlog_dir)) as theirs,
        servers.delayd_serve(data_dir) as ours,
        LineClient(theirs.address) as their_client,
        LineClient(ours.address) as our_client,
    ):
        began_s = time.monotonic()
        jobs, our_jobs = jobs_of(their_client, last_id), jobs_of(our_client, last_id)
        same_jobs(jobs, our_jobs, time.monotonic() - began_s)
        for tube in ("tube-0", "tube-1", "tube-2"):
            assert order_of(our_client, tube) == order_of(their_client, tube)
    return len(jobs)


def test_imported_jobs_are_what_a_restarted_beanstalkd_has(
    tmp_path: Path, rng: random.Random
) -> None:
    needs_beanstalkd()
    binlog_dir = tmp_path / "binlog"
    binlog_dir.mkdir()
    with servers.beanstalkd("-b", str(binlog_dir), "-s", "4096") as server:
        with LineClient(server.address) as client:
            walk(client, rng)
        server.kill()
    assert compare_with_a_restart(binlog_dir, tmp_path, 200) > 20


def test_the_older_format_is_read_as_beanstalkd_reads_it(tmp_path: Path) -> None:
    needs_beanstalkd()
    (tmp_path / "binlog").mkdir()
    records = [
        full(
            1, b"old", "tube-0", version=5, priority=1, reserves=1, timeouts=2, releases=3, kicks=5
        ),
        full(2, b"parked", "tube-0", version=5),
        short(2, b"parked", version=5, state=BURIED, created_ns=CREATED_NS, reserves=1, buries=1),
        full(3, b"deleted", "tube-1", version=5),
        short(3, b"deleted", version=5, state=0),
        full(4, b"newer", "tube-1", version=5, ttr_ns=7 * NS),
    ]
    content = file_of(*records, version=5, zeros=500)
    (tmp_path / "binlog" / "binlog.1").write_bytes(content)
    assert compare_with_a_restart(tmp_path / "binlog", tmp_path, 5) == 3


def test_a_binlog_that_a_running_beanstalkd_holds_is_refused(
    tmp_path: Path, capsys: Capture
) -> None:
    needs_beanstalkd()
    (tmp_path / "binlog").mkdir()
    words = ["import-beanstalkd", str(tmp_path / "binlog"), "--data-dir", str(tmp_path / "data")]
    with (
        servers.beanstalkd("-b", str(tmp_path / "binlog")) as server,
        LineClient(server.address) as client,
    ):
        client.ask("list-tubes")  # it listens before it opens its binlog, and answers after
        assert invoke(words) == Exit.DIRECTORY_LOCKED
    assert "lock is held by another process" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
    assert invoke(words) == Exit.OK
