"""greenstalk, a client that knows nothing of delayd: each of its methods."""

from collections.abc import Iterator

import greenstalk
import pytest

from tests import servers
from tests.servers import Server


@pytest.fixture(scope="module", params=["1.12", "1.13"])
def our_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with servers.delayd_beanstalkd("--compat", request.param) as server:
        yield server


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
