"""A real daemon takes snapshots while it serves, and starts from them."""

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from delayd.testing.daemon import Daemon, running_daemon
from tests.line_client import LineClient
from tests.rigs.process import put_standing, standing_jobs
from tests.rigs.waiting import until

SNAPSHOT_S_MAX: Final = 60.0
SEGMENT_BYTES: Final = "256KiB"
STANDING: Final = 200
BODY: Final = b"x" * 400


Start = Callable[[], AbstractContextManager[Daemon]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def start(tmp_path: Path, data: Path) -> Start:
    """Starts a daemon that takes snapshots often."""
    config = tmp_path / "delayd.toml"
    config.write_text(f'[journal]\nsegment_bytes = "{SEGMENT_BYTES}"\n')
    return lambda: running_daemon("--config", str(config), data_dir=data)


def snapshots_in(directory: Path) -> list[Path]:
    return sorted(directory.glob("snapshot-*.snap"))


def log_bytes(directory: Path) -> int:
    """How long the log is; a file may go while it is looked at."""
    sizes = 0
    for file in directory.glob("se*.log"):
        with contextlib.suppress(FileNotFoundError):
            sizes += file.stat().st_size
    return sizes


def churn(client: LineClient, jobs: int = 400) -> None:
    """Put jobs and delete them again."""
    client.send(b"put 0 0 60 %d\r\n%b\r\n" % (len(BODY), BODY) * jobs)
    job_ids = [client.reply().split()[1] for _ in range(jobs)]
    client.send(b"".join(b"delete %b\r\n" % job_id for job_id in job_ids))
    assert {client.reply() for _ in range(jobs)} == {b"DELETED\r\n"}


def snapshots_taken(directory: Path, daemon: Daemon, count: int) -> None:
    """Go on until there are so many snapshots more than there have been."""
    ends_s = time.monotonic() + SNAPSHOT_S_MAX
    with LineClient(daemon.address) as client:
        while daemon.log().count("a snapshot was taken") < count:
            assert time.monotonic() < ends_s, f"no snapshot was taken:\n{daemon.log()}"
            churn(client)
    assert snapshots_in(directory)


def test_a_killed_daemon_starts_from_its_snapshot_and_the_log_behind_it_or_from_the_one_before(
    start: Start, data: Path
) -> None:
    with start() as daemon:
        put_standing(daemon, STANDING, BODY)
        snapshots_taken(data, daemon, 3)
        put_standing(daemon, STANDING, BODY)
        daemon.kill()
    assert not (data / "segment-0000000001.log").exists()
    while True:
        with start() as daemon:
            assert standing_jobs(daemon) == 2 * STANDING
            if len(snapshots_in(data)) > 1:
                break
            # Killed while it takes one it may have given up the older, where three would not fit.
            snapshots_taken(data, daemon, 3)
            daemon.kill()
    newest = snapshots_in(data)[-1]
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    with start() as daemon:
        assert standing_jobs(daemon) == 2 * STANDING
        assert "a damaged snapshot was skipped" in daemon.log()
        assert newest.name in daemon.log()


def test_the_disk_is_free_again_when_nobody_says_anything_any_more(
    start: Start, data: Path
) -> None:
    with start() as daemon:
        with LineClient(daemon.address) as client:
            churn(client, 4_000)
        until(lambda: log_bytes(data) <= 256 << 10, SNAPSHOT_S_MAX, seen=lambda: log_bytes(data))
        assert daemon.stop() == 0


def test_a_stop_gives_up_a_snapshot_in_the_making_and_loses_nothing(
    start: Start, data: Path
) -> None:
    with start() as daemon:
        for _ in range(10):
            put_standing(daemon, STANDING, BODY)
        with LineClient(daemon.address) as client:
            for _ in range(30):
                churn(client)
                if list(data.glob("snapshot-*.new")):
                    break
        assert daemon.stop() == 0
    assert not list(data.glob("*.new"))
    with start() as daemon:
        assert standing_jobs(daemon) == 10 * STANDING
