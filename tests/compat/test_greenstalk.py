"""greenstalk, a client that knows nothing of delayd: each of its methods, and retries by rule."""

from pathlib import Path
from typing import Final

import greenstalk
import pytest

from delayd.testing.daemon import Daemon, running_daemon
from tests.servers import Server

Queue = greenstalk.Client[str]

CONFIGURATION: Final = """
[topics."mail.*"]
retry = ["15s", "3m", "10m", "30m", "30m", "1h", "2h", "6h", "15h"]

[topics."once"]
max_attempts = 1
exhausted = "mail.dead"
"""
LADDER_S: Final = (15, 180, 600, 1_800, 1_800, 3_600, 7_200, 21_600, 54_000)


def test_each_method_does_what_it_says(our_server: Server) -> None:
    with greenstalk.Client(our_server.address, use="orders", watch=["orders", "mail"]) as queue:
        assert (queue.using(), sorted(queue.watching())) == ("orders", ["mail", "orders"])
        assert set(queue.tubes()) >= {"default", "orders", "mail"}
        assert (queue.watch("other"), queue.ignore("mail")) == (3, 2)
        queue.use("other")
        urgent = queue.put("urgent", priority=1, ttr=33)
        queue.put("hällo", priority=5)
        assert queue.peek_ready().id == urgent
        told = queue.stats_job(urgent)
        assert (told["tube"], told["pri"], told["ttr"], told["state"]) == ("other", 1, 33, "ready")
        assert told.keys() == greenstalk.StatsJob.__annotations__.keys()
        first, second = (queue.reserve(timeout=0) for _ in range(2))
        assert (first.id, second.body) == (urgent, "hällo")
        queue.touch(first)
        queue.delete(first)
        queue.release(second, priority=9, delay=100)
        assert queue.peek_delayed().id == second.id
        told = queue.stats_job(second)
        assert (told["state"], told["pri"], told["releases"]) == ("delayed", 9, 1)
        queue.bury(queue.reserve_job(second.id))
        assert queue.peek_buried().id == second.id
        assert queue.kick(10) == 1
        queue.kick_job(queue.put("later", delay=100))
        queue.pause_tube("other", 100)
        with pytest.raises(greenstalk.TimedOutError):
            queue.reserve(timeout=0)
        assert 0 < queue.stats_tube("other")["pause-time-left"] <= 100
        queue.pause_tube("other", 0)
        told_of_tube = queue.stats_tube("other")
        assert told_of_tube.keys() == greenstalk.StatsTube.__annotations__.keys()
        assert (told_of_tube["name"], told_of_tube["current-jobs-ready"]) == ("other", 2)
        for _ in range(2):
            queue.delete(queue.reserve(timeout=0))
        stats = queue.stats()
        assert set(greenstalk.Stats.__annotations__) <= set(stats)
        assert stats["draining"] == "false"
        assert isinstance(stats["id"], str)  # of digits alone it would have become a number
        queue.put("x", ttr=1)  # it is told one second before the end
        queue.reserve(timeout=0)
        with pytest.raises(greenstalk.DeadlineSoonError):
            queue.reserve()
    with greenstalk.Client(our_server.address, encoding=None, watch="other") as binary:
        binary.delete(binary.reserve(timeout=60))  # of the one that has closed
        body = bytes(range(256)) + b"\r\n"
        binary.put(body)
        binary.watch("default")
        job = binary.reserve(timeout=0)
        assert job.body == body
        binary.delete(job)


def test_refusals_are_the_exceptions_that_the_client_knows(our_server: Server) -> None:
    with greenstalk.Client(our_server.address) as queue:
        with pytest.raises(greenstalk.JobTooBigError):
            queue.put("x" * 65536)
        with pytest.raises(greenstalk.NotIgnoredError):
            queue.ignore("default")
        for missing in (
            *(queue.peek_ready, queue.peek_delayed, queue.peek_buried),
            *(lambda: queue.peek(4711), lambda: queue.reserve_job(4711)),
            *(lambda: queue.stats_tube("nowhere"), lambda: queue.touch(greenstalk.Job(0, ""))),
            lambda: queue.release(greenstalk.Job(0, ""), 0),
        ):
            with pytest.raises(greenstalk.NotFoundError):
                missing()
        with pytest.raises(greenstalk.BadFormatError):
            queue.use("-not-a-name")
        with pytest.raises(greenstalk.BadFormatError):
            queue.put("x", priority=2**32)


def test_by_the_configuration_alone_it_has_retries_and_dead_letters(tmp_path: Path) -> None:
    file = tmp_path / "delayd.toml"
    file.write_text(CONFIGURATION)
    with running_daemon("--config", str(file), clock="virtual") as daemon:
        with greenstalk.Client(daemon.address, use="mail.sales", watch="mail.sales") as queue:
            climbs_the_ladder(daemon, queue)
        with greenstalk.Client(daemon.address, use="once", watch=["once", "mail.dead"]) as queue:
            job_id = queue.put("call back")
            queue.release(queue.reserve(timeout=0))
            told: dict[str, object] = {**queue.stats_job(job_id)}
            assert (told["tube"], told["moved-from"]) == ("mail.dead", "once")
            assert queue.reserve(timeout=0).id == job_id
        with greenstalk.Client(daemon.address) as queue:  # a tube without a rule
            job_id = queue.put("hello")
            queue.release(queue.reserve(timeout=0))
            assert queue.reserve(timeout=0).id == job_id


def climbs_the_ladder(daemon: Daemon, queue: Queue) -> None:
    """Fail at each step, until it is buried, and once more when it was kicked."""
    job_id = queue.put("call back", ttr=60)

    def told() -> dict[str, object]:
        return {**queue.stats_job(job_id)}

    for number, step_s in enumerate(LADDER_S):
        if number == 0:
            queue.reserve(timeout=0)
            daemon.advance(60)
            assert told()["failure"] == "ttr-ran-out"
        elif number == 1:
            with greenstalk.Client(daemon.address, watch="mail.sales") as worker:
                worker.reserve(timeout=0)
            while told()["state"] == "reserved":  # until the daemon has seen it
                pass
            assert told()["failure"] == "holder-left"
        else:
            queue.release(queue.reserve(timeout=0))
        assert told()["state"] == "delayed"
        daemon.advance(step_s - 0.001)
        with pytest.raises(greenstalk.TimedOutError):
            queue.reserve(timeout=0)
        daemon.advance(0.001)
    queue.release(queue.reserve(timeout=0))
    assert (queue.peek_buried().id, told()["failure"]) == (job_id, "released")
    assert queue.kick(10) == 1
    queue.release(queue.reserve(timeout=0))
    assert told()["delay"] == 15
