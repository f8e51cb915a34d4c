"""Workers, on the daemon in memory, and jobs that touch themselves."""

import asyncio
import threading
from typing import Any

import pytest

from delayd.client import (
    AsyncJob,
    AsyncWorker,
    Client,
    ConnectionLost,
    Draining,
    Job,
    NotReserved,
    Unreachable,
    Worker,
)
from delayd.client.http_calls import HttpCalls
from delayd.client.jobs import Toucher, touched
from delayd.testing.fake import FakeDelayd


def finished(worker: Worker) -> None:
    thread = threading.Thread(target=worker.run)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()


def test_a_worker_calls_its_handler_with_each_job_and_acknowledges_it() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put_many("mail", [{"body": n} for n in range(20)])
    seen: list[int] = []

    def handle(job: Job) -> None:
        seen.append(job.json())
        if len(seen) == 20:
            worker.stop()

    worker = Worker(client, "mail", handle, concurrency=4)
    worker.run()
    assert sorted(seen) == list(range(20))
    assert client.topics() == []


def test_a_handler_that_raises_has_failed_its_attempt_and_the_worker_goes_on() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.set_policy("mail", {"retry": "15s 3m", "exhausted": "bury"})
    put = client.put("mail", "x")
    told: list[tuple[str, int]] = []

    def note(error: BaseException, job: Job | AsyncJob | None) -> None:
        assert job is not None
        told.append((str(error), job.id))

    def handle(job: Job) -> None:
        if job.attempt == 3:
            worker.stop()
        raise ValueError(f"attempt {job.attempt}")

    worker = Worker(client, "mail", handle, on_error=note)
    worker.run()
    assert told == [(f"attempt {n}", put.id) for n in (1, 2, 3)]
    info = client.get(put.id)
    assert (info.state, info.attempts) == ("buried", 3)
    assert info.failure is not None
    assert info.failure.error == "ValueError: attempt 3"


def test_a_stopped_worker_finishes_the_job_in_hand() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put_many("mail", [{"body": n} for n in range(2)])
    entered, may_go_on = threading.Event(), threading.Event()

    def handle(job: Job) -> None:
        entered.set()
        may_go_on.wait(60)
        assert job.json() == 0

    worker = Worker(client, "mail", handle)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert entered.wait(60)
    worker.stop()
    may_go_on.set()
    thread.join(60)
    (left,) = client.jobs("mail", bodies=True)
    assert (left.json(), left.state) == (1, "ready")


class Faulty:
    """Fails as often as it is told, and then does what the fake does."""

    def __init__(self, fake: FakeDelayd, errors: list[Exception]) -> None:
        self._inner = fake.client()
        self._errors = errors

    def run(self, steps: Any) -> Any:  # noqa: ANN401 - as what it stands for
        if self._errors:
            raise self._errors.pop(0)
        return self._inner._run(steps)

    def close(self) -> None:
        """Nothing is open."""


def test_a_worker_waits_for_a_daemon_that_is_away_with_growing_pauses() -> None:
    fake = FakeDelayd()
    fake.client().put("mail", "x")
    errors: list[Exception] = [
        Unreachable("http://h", "refused"),
        ConnectionLost("http://h", "closed", may_have_happened=True),
        Draining("not now"),
    ]
    client = Client.over(Faulty(fake, list(errors)), HttpCalls())
    told: list[BaseException] = []
    pauses: list[float] = []

    def chance() -> float:
        pauses.append(1.0)
        return 0.0

    worker = Worker(
        client,
        "mail",
        lambda job: worker.stop(),
        on_error=lambda error, job: told.append(error),
        chance=chance,
    )
    worker.run()
    assert [type(error) for error in told] == [type(error) for error in errors]
    assert len(pauses) == 3


def test_a_worker_raises_what_is_no_passing_trouble() -> None:
    client = Client.over(Faulty(FakeDelayd(), [NotReserved("never for a reserve")]), HttpCalls())
    with pytest.raises(NotReserved):
        Worker(client, "mail", print, concurrency=3).run()


def test_a_worker_with_asyncio_does_the_same() -> None:
    fake = FakeDelayd()
    seen: list[int] = []
    told: list[str] = []

    async def go() -> None:
        async with fake.async_client() as client:
            await client.put_many("mail", [{"body": n} for n in range(20)])

            async def handle(job: AsyncJob) -> None:
                await asyncio.sleep(0)
                seen.append(job.json())
                if len(set(seen)) == 20:
                    worker.stop()
                if job.json() == 7:
                    raise ValueError("seven")

            worker = AsyncWorker(
                client,
                "mail",
                handle,
                concurrency=5,
                on_error=lambda error, job: told.append(str(error)),
            )
            await worker.run()

    asyncio.run(go())
    assert set(seen) == set(range(20))
    assert told[0] == "seven"


def test_a_job_in_its_block_is_touched_until_the_block_ends() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put("mail", "x", ttr=60)
    job = client.reserve("mail", timeout=0)
    fake.advance(40)
    assert touched(job)
    fake.advance(40)
    assert touched(job)
    fake.advance(60)
    assert not touched(job)
    assert job.is_lost


def test_the_thread_that_touches_ends_with_the_last_job() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put("mail", "x", ttr=0.03)
    was_touched = threading.Event()
    job = client.reserve("mail", timeout=0)
    job.touch = was_touched.set  # type: ignore[method-assign]
    toucher = Toucher()
    toucher.add(job, 0.03)
    assert was_touched.wait(60)
    toucher.discard(job)
    for thread in threading.enumerate():
        if thread.name == "delayd-touch":
            thread.join(60)
            assert not thread.is_alive()
