"""greenstalk, a client that knows nothing of delayd, uses every one of its methods on it."""

import time
from collections.abc import Callable, Iterator
from typing import Final

import greenstalk
import pytest

from tests.compat.conftest import TimeLeft
from tests.servers import Server

TextClient = greenstalk.Client[str]
Client = Callable[..., TextClient]

PRIORITY: Final = greenstalk.DEFAULT_PRIORITY


@pytest.fixture
def client(our_server: Server) -> Iterator[Client]:
    """Makes clients of each way of running delayd in turn; their jobs are gone afterwards."""
    made: list[TextClient] = []

    def make(**options: str | list[str]) -> TextClient:
        made.append(greenstalk.Client(our_server.address, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for each in made:
        each.close()
    with greenstalk.Client(our_server.address) as keeper:
        while keeper.stats()["current-connections"] > 1:
            pass  # what they held is not free before the server has seen that they are gone
        for job in range(1, keeper.stats()["total-jobs"] * 2 + 2):
            try:
                keeper.delete(job)
            except greenstalk.NotFoundError:
                continue


def test_a_job_is_put_reserved_and_deleted(client: Client) -> None:
    queue = client()
    job = queue.put("hällo")
    reserved = queue.reserve(timeout=0)
    assert (reserved.id, reserved.body) == (job, "hällo")
    queue.delete(reserved)
    with pytest.raises(greenstalk.NotFoundError):
        queue.peek(job)


def test_bytes_are_kept_as_they_are(our_server: Server) -> None:
    with greenstalk.Client(our_server.address, encoding=None) as queue:
        body = bytes(range(256)) + b"\r\n"
        queue.put(body)
        job = queue.reserve()
        assert job.body == body
        queue.delete(job)


def test_tubes_named_at_the_start_are_used_and_watched(client: Client) -> None:
    queue = client(use="orders", watch=["orders", "mail"])
    assert queue.using() == "orders"
    assert sorted(queue.watching()) == ["mail", "orders"]
    assert set(queue.tubes()) >= {"default", "orders", "mail"}
    single = client(watch="mail")
    assert single.watching() == ["mail"]


def test_use_watch_and_ignore_change_the_tubes(client: Client) -> None:
    queue = client()
    queue.use("elsewhere")
    assert queue.using() == "elsewhere"
    assert queue.watch("elsewhere") == 2
    assert queue.ignore("default") == 1
    with pytest.raises(greenstalk.NotIgnoredError):
        queue.ignore("elsewhere")
    queue.put("x")
    assert queue.reserve(timeout=0).body == "x"


def test_the_most_urgent_job_comes_first(client: Client) -> None:
    queue = client()
    for priority in (5, 1, 3):
        queue.put(str(priority), priority=priority)
    assert [queue.reserve(timeout=0).body for _ in range(3)] == ["1", "3", "5"]


def test_a_delayed_job_comes_when_it_is_due(client: Client) -> None:
    queue = client()
    queue.put("later", delay=1000)
    with pytest.raises(greenstalk.TimedOutError):
        queue.reserve(timeout=0)
    assert queue.peek_delayed().body == "later"
    began_s = time.monotonic()
    queue.put("soon", delay=1)
    assert queue.reserve(timeout=30).body == "soon"
    assert time.monotonic() - began_s >= 1


def test_a_job_is_reserved_by_its_id(client: Client) -> None:
    queue = client()
    job = queue.put("x", delay=100)
    assert queue.reserve_job(job).id == job
    with pytest.raises(greenstalk.NotFoundError):
        queue.reserve_job(job)


def test_a_job_is_released_with_another_priority_and_delay(client: Client) -> None:
    queue = client()
    queue.put("x")
    job = queue.reserve(timeout=0)
    left = TimeLeft(100)
    queue.release(job, priority=9, delay=100)
    stats = queue.stats_job(job)
    assert (stats["state"], stats["pri"], stats["delay"]) == ("delayed", 9, 100)
    assert left.is_told_by(stats["time-left"])
    assert stats["releases"] == 1


def test_a_job_is_buried_peeked_at_and_kicked(client: Client) -> None:
    queue = client()
    queue.put("x")
    queue.bury(queue.reserve(timeout=0))
    buried = queue.peek_buried()
    assert queue.stats_job(buried)["state"] == "buried"
    assert queue.kick(10) == 1
    assert queue.peek_ready().id == buried.id
    job = queue.put("y", delay=100)
    queue.kick_job(job)
    assert queue.stats_job(job)["state"] == "ready"


def test_a_job_is_touched_while_it_is_reserved(client: Client) -> None:
    queue = client()
    queue.put("x")
    job = queue.reserve(timeout=0)
    queue.touch(job)
    queue.delete(job)
    with pytest.raises(greenstalk.NotFoundError):
        queue.touch(job)


def test_the_end_of_a_reservation_is_announced(client: Client) -> None:
    queue = client()
    queue.put("x", ttr=1)  # it is told one second before the end
    queue.reserve(timeout=0)
    with pytest.raises(greenstalk.DeadlineSoonError):
        queue.reserve()


def test_a_tube_is_paused_and_resumed(client: Client) -> None:
    queue = client()
    queue.put("x")
    left = TimeLeft(100)
    queue.pause_tube("default", 100)
    with pytest.raises(greenstalk.TimedOutError):
        queue.reserve(timeout=0)
    assert left.is_told_by(queue.stats_tube("default")["pause-time-left"])
    queue.pause_tube("default", 0)
    assert queue.reserve(timeout=0).body == "x"


def test_statistics_are_whole_dictionaries(client: Client) -> None:
    queue = client(use="counted")
    began_s = time.monotonic()
    job = queue.put("x", priority=7, ttr=33)
    none = dict.fromkeys(("reserves", "timeouts", "releases", "buries", "kicks"), 0)
    job_stats = {"id": job, "tube": "counted", "state": "ready", "pri": 7, "delay": 0}
    told = queue.stats_job(job)
    assert 0 <= told["age"] <= time.monotonic() - began_s
    job_stats |= {"age": told["age"], "ttr": 33, "time-left": 0, "file": 0}
    assert told == job_stats | none
    one = dict.fromkeys(("current-jobs-urgent", "current-jobs-ready", "current-using"), 1)
    none = dict.fromkeys(greenstalk.StatsTube.__annotations__, 0)
    assert queue.stats_tube("counted") == none | one | {"total-jobs": 1, "name": "counted"}
    stats = queue.stats()
    assert set(greenstalk.Stats.__annotations__) <= set(stats)
    assert stats["draining"] == "false"
    assert isinstance(stats["id"], str)  # of digits alone it would have become a number
    assert stats["current-jobs-ready"] == 1


def test_refusals_are_the_exceptions_that_the_client_knows(client: Client) -> None:
    queue = client()
    with pytest.raises(greenstalk.JobTooBigError):
        queue.put("x" * 65536)
    with pytest.raises(greenstalk.BadFormatError):
        queue.use("-not-a-name")
    with pytest.raises(greenstalk.BadFormatError):
        queue.put("x", priority=2**32)
    queue = client()  # the body that followed the refused put has been read as a command
    for peek in (queue.peek_ready, queue.peek_delayed, queue.peek_buried):
        with pytest.raises(greenstalk.NotFoundError):
            peek()
    with pytest.raises(greenstalk.NotFoundError):
        queue.stats_tube("nowhere")
    with pytest.raises(greenstalk.NotFoundError):
        queue.release(greenstalk.Job(0, ""), PRIORITY)


def test_a_client_that_closes_gives_its_jobs_back(client: Client) -> None:
    queue, other = client(), client()
    job = queue.put("x", ttr=100)
    queue.reserve(timeout=0)
    queue.close()
    assert other.reserve(timeout=60).id == job
