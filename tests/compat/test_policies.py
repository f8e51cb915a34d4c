"""greenstalk, unmodified, gets retries and dead letters by the daemon's configuration alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import greenstalk
import pytest

from delayd.testing.daemon import Daemon, running_daemon

CONFIGURATION: Final = """
[topics."mail.*"]
retry = ["15s", "3m", "10m", "30m", "30m", "1h", "2h", "6h", "15h"]

[topics."once"]
max_attempts = 1
exhausted = "mail.dead"
"""
LADDER_S: Final = (15, 180, 600, 1_800, 1_800, 3_600, 7_200, 21_600, 54_000)

Queue = greenstalk.Client[str]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    file = tmp_path / "delayd.toml"
    file.write_text(CONFIGURATION)
    with running_daemon("--config", str(file), clock="virtual") as daemon:
        yield daemon


@pytest.fixture
def queue(daemon: Daemon) -> Iterator[Queue]:
    with greenstalk.Client(daemon.address, use="mail.sales", watch="mail.sales") as queue:
        yield queue


def shown(queue: Queue, job_id: int) -> dict[str, object]:
    """What `stats-job` says, beyond what the client has types for."""
    return {**queue.stats_job(job_id)}


def test_a_released_job_climbs_the_ladder_and_is_buried_at_its_end(
    daemon: Daemon, queue: Queue
) -> None:
    put = queue.put("call back", ttr=60)
    for step_s in LADDER_S:
        queue.release(queue.reserve(timeout=0))
        assert shown(queue, put)["state"] == "delayed"
        daemon.advance(step_s - 0.001)
        with pytest.raises(greenstalk.TimedOutError):
            queue.reserve(timeout=0)
        daemon.advance(0.001)
    queue.release(queue.reserve(timeout=0))
    assert queue.peek_buried().id == put
    assert shown(queue, put)["failure"] == "released"


def test_a_dead_letter_is_revived_by_an_ordinary_kick(daemon: Daemon, queue: Queue) -> None:
    put = queue.put("call back", ttr=60)
    for step_s in (*LADDER_S, 0):
        queue.release(queue.reserve(timeout=0))
        daemon.advance(step_s)
    assert queue.kick(10) == 1
    queue.release(queue.reserve(timeout=0))
    assert shown(queue, put)["delay"] == 15


def test_a_worker_that_goes_away_has_failed(daemon: Daemon, queue: Queue) -> None:
    put = queue.put("call back", ttr=60)
    with greenstalk.Client(daemon.address, watch="mail.sales") as worker:
        worker.reserve(timeout=0)
    while shown(queue, put)["state"] == "reserved":  # until the daemon has seen it
        pass
    assert shown(queue, put)["failure"] == "holder-left"
    daemon.advance(15)
    assert queue.reserve(timeout=0).id == put


def test_a_worker_that_hangs_has_failed_when_its_time_is_over(daemon: Daemon, queue: Queue) -> None:
    put = queue.put("call back", ttr=60)
    queue.reserve(timeout=0)
    daemon.advance(60)
    assert shown(queue, put)["failure"] == "ttr-ran-out"
    daemon.advance(15)
    assert queue.reserve(timeout=0).id == put


def test_an_exhausted_job_is_moved_to_where_dead_letters_are_kept(daemon: Daemon) -> None:
    with greenstalk.Client(daemon.address, use="once", watch=["once", "mail.dead"]) as queue:
        put = queue.put("call back", ttr=60)
        queue.release(queue.reserve(timeout=0))
        stats = shown(queue, put)
        assert (stats["tube"], stats["state"], stats["moved-from"]) == (
            "mail.dead",
            "ready",
            "once",
        )
        assert queue.reserve(timeout=0).id == put


def test_other_tubes_are_as_beanstalkd_has_them(daemon: Daemon) -> None:
    with greenstalk.Client(daemon.address) as queue:
        put = queue.put("hello")
        queue.release(queue.reserve(timeout=0))
        assert queue.reserve(timeout=0).id == put
        assert set(queue.stats_tube("default")) == {
            *("name", "current-jobs-urgent", "current-jobs-ready", "current-jobs-reserved"),
            *("current-jobs-delayed", "current-jobs-buried", "total-jobs", "current-using"),
            *("current-watching", "current-waiting", "cmd-delete", "cmd-pause-tube", "pause"),
            "pause-time-left",
        }
