"""What the daemon in memory does besides the contract: its time, its tokens, its end."""

import asyncio
import datetime as dt
import os
import re
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.client import (
    Forbidden,
    JobNotFound,
    TimedOut,
    Unauthorized,
    Unreachable,
)
from delayd.testing import FakeDelayd, ReceivedCall
from delayd.testing.fake import START
from tests.client.test_imports import modules_after
from tests.client.working import Working

ROOT: Final = Path(__file__).parents[2]


@pytest.fixture
def fake() -> Iterator[FakeDelayd]:
    with FakeDelayd() as fake:
        yield fake


# --- Time ----------------------------------------------------------------------------------------


def test_a_reserve_that_waits_lets_the_time_pass_up_to_the_next_job(fake: FakeDelayd) -> None:
    client = fake.client()
    for delay in ("1ms", "1d", "7d", "30d", "3650d"):
        put = client.put("mail", "x", delay=delay)
        with client.reserve("mail") as job:
            assert (job.text, fake.now) == ("x", put.due)


@pytest.mark.thorough
def test_a_year_of_nights_passes_with_both_changes_of_the_clocks(fake: FakeDelayd) -> None:
    client = fake.client()
    client.put_schedule(
        "nightly", "reports", "sales", cron="30 2 * * *", timezone="America/New_York"
    )
    asked = fake.requests
    with client.reserve("reports") as job:
        assert job.key == "nightly@2026-11-22T07:30:00Z"
    assert fake.requests - asked == 3, "the wait for it is not one request for each level of wheels"
    fake.advance("51w")
    schedule = client.schedule("nightly")
    assert (schedule.runs, schedule.missed) == (358, 0)
    runs = [str(job.key).removeprefix("nightly@") for job in client.jobs("reports")]
    spring = runs.index("2027-03-14T07:00:00Z")
    assert runs[spring - 1 : spring + 2 : 2] == ["2027-03-13T07:30:00Z", "2027-03-15T06:30:00Z"]
    autumn = runs.index("2027-11-06T06:30:00Z")
    assert runs[autumn + 1] == "2027-11-07T07:30:00Z"


def test_a_reserve_passes_its_timeout_and_no_more_with_what_comes_due_for_others(
    fake: FakeDelayd,
) -> None:
    client = fake.client()
    client.put_many("others", [{"body": n, "delay": n} for n in range(10)])
    client.put("mail", "x", delay="10d")
    with pytest.raises(TimedOut):
        client.reserve("mail", timeout="9d")
    assert fake.now == START + dt.timedelta(days=9)
    assert client.topic("others").ready == 10
    assert client.reserve("mail").text == "x"
    assert fake.now == START + dt.timedelta(days=10)


@pytest.mark.thorough
def test_a_reserve_that_would_wait_for_ever_ends(fake: FakeDelayd) -> None:
    with pytest.raises(TimedOut, match="for ever"):
        fake.client().reserve("mail")
    assert fake.now == START


def test_while_a_job_is_in_hand_its_ttr_does_not_run_out_by_the_wait_of_another(
    fake: FakeDelayd,
) -> None:
    client = fake.client()
    client.put("mail", "x", ttr=1)
    job = client.reserve("mail", timeout=0)
    with pytest.raises(TimedOut):
        client.reserve("mail", timeout=0.05)
    assert fake.now == START
    job.ack()


def test_a_rate_is_kept_by_the_clock_of_the_fake(fake: FakeDelayd) -> None:
    client = fake.client()
    client.set_policy("sms", {"rate_per_s": 0.1})
    client.put_many("sms", [{"body": n} for n in range(3)])
    seen = []
    for _ in range(3):
        client.reserve("sms").ack()
        seen.append((fake.now - START).total_seconds())
    assert seen == [0, 10, 20]


# --- Workers, and the time that they wait ---------------------------------------------------------


def noted(work: Working) -> list[dt.datetime]:
    """Work on one job; when that was."""
    seen: list[dt.datetime] = []

    def handle(_job: object) -> None:
        seen.append(work.fake.now)
        work.worker.stop()

    work.run(handle)
    return seen


@pytest.mark.parametrize("delay", ["1d", "7d"])
def test_a_worker_lets_the_time_pass_up_to_the_next_job_and_asks_a_few_times(
    work: Working, delay: str
) -> None:
    put = work.client.put("mail", "x", delay=delay)
    assert noted(work) == [put.due]
    assert work.fake.requests < 20


def test_a_worker_without_jobs_waits_in_real_time_until_somebody_puts_one(work: Working) -> None:
    thread = threading.Timer(0, work.client.put, ("mail", "x"))
    thread.start()
    assert noted(work) == [START]
    thread.join()


# --- Clients --------------------------------------------------------------------------------------


def test_clients_of_one_fake_see_the_same_jobs(fake: FakeDelayd) -> None:
    fake.client().put("mail", "x")

    async def reserved() -> str:
        async with fake.async_client() as client, await client.reserve("mail") as job:
            assert fake.client().topic("mail").reserved == 1  # without asyncio, inside of a task
            return job.text

    assert asyncio.run(reserved()) == "x"
    assert [topic.jobs for topic in fake.client().topics()] == [0]


def test_from_the_first_token_on_every_client_needs_one(fake: FakeDelayd) -> None:
    with fake.client() as stranger:
        stranger.put("mail", "x")
        client = fake.client(token=fake.token("put", topics=("mail",)))
        client.put("mail", "y")
        with pytest.raises(Forbidden):
            client.put("sms", "x")
        with pytest.raises(Forbidden):
            client.cancel_many("mail", key_prefix="x")
        for _ in range(20):  # after some failures the answer comes late, but not here
            with pytest.raises(Unauthorized):
                stranger.put("mail", "x")
    assert fake.client(token=fake.token()).topic("mail").ready == 2


def test_a_fake_that_is_closed_is_not_reached() -> None:
    with FakeDelayd() as fake:
        client = fake.client()
        client.put("mail", "x")
    with pytest.raises(Unreachable, match="closed"):
        client.put("mail", "x")
    fake.close()


def test_a_fake_holds_no_descriptor() -> None:
    before = len(os.listdir("/proc/self/fd"))
    fakes = [FakeDelayd() for _ in range(10)]
    for fake in fakes:
        fake.client().put("mail", "x")
    assert len(os.listdir("/proc/self/fd")) == before


# --- How it is imported ---------------------------------------------------------------------------


@pytest.mark.thorough
def test_what_is_imported_for_tests_loads_no_daemon_before_there_is_one() -> None:
    for statement in (
        "import delayd.testing.pytest_plugin",
        "from delayd.testing import FakeDelayd",
    ):
        loaded = modules_after(statement)
        assert not loaded & {"aiohttp", "msgspec", "delayd.core", "delayd.http"}


@pytest.mark.process
def test_pytest_has_the_fixture_where_delayd_is_installed(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(def test_.*?)```", page, re.DOTALL)
    (tmp_path / "test_reviews.py").write_text(program, encoding="utf-8")
    command = (sys.executable, "-m", "pytest", "-q", "-p", "delayd.testing.pytest_plugin")
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run(
        command, check=False, cwd=tmp_path, env=alone, capture_output=True, text=True
    )
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {"delayd": "delayd.testing.pytest_plugin"}


# --- Deliveries -----------------------------------------------------------------------------------

URL: Final = "https://example.com/due?a=b"


def test_a_job_with_a_url_calls_its_receiver_when_it_is_due(fake: FakeDelayd) -> None:
    client = fake.client()
    put = client.put("hooks", {"a": 1}, delay="7d", url=URL, method="PUT", headers={"X-A": "b"})
    fake.advance("6d")
    assert fake.calls == []
    fake.advance("1d")
    (call,) = fake.calls
    assert (call.method, call.url, call.json()) == ("PUT", URL, {"a": 1})
    assert (call.headers["X-A"], call.headers["Delayd-Id"]) == ("b", str(put.id))
    assert client.stats()["push"]["attempts"]["delivered"] == 1
    with pytest.raises(JobNotFound):
        client.get(put.id)


def test_a_receiver_that_fails_is_called_at_each_step_of_the_ladder(fake: FakeDelayd) -> None:
    client = fake.client()
    client.set_policy("hooks", {"retry": "15s 3m", "exhausted": "bury"})
    times = []

    def answer(call: ReceivedCall) -> int:
        times.append((fake.now - START).total_seconds())
        return 503

    fake.answer_call = answer
    put = client.put("hooks", "x", url=URL)
    client.advance_clock("1d")
    assert [call.headers["Delayd-Attempt"] for call in fake.calls] == ["1", "2", "3"]
    assert times == [0, 15, 195]
    info = client.get(put.id)
    assert info.failure is not None
    assert (info.state, info.failure.error) == ("buried", "503 Service Unavailable")


def test_a_receiver_may_use_a_client_and_what_it_raises_is_a_failed_attempt(
    fake: FakeDelayd,
) -> None:
    client = fake.client()

    def answer(call: ReceivedCall) -> int:
        client.put("answers", call.body)
        raise ValueError("no such user")

    fake.answer_call = answer
    put = client.put("hooks", "x", delay=10, url=URL, retry="1h", max_attempts=1)
    fake.advance(10)
    assert client.reserve("answers", timeout=0).body == b"x"
    info = client.get(put.id)
    assert info.state == "buried"
    assert info.failure is not None
    assert "no such user" in info.failure.error


def test_a_topic_delivers_to_another_and_to_a_url_at_any_rate(fake: FakeDelayd) -> None:
    client = fake.client()
    client.set_policy("a", {"push": {"topic": "b"}})
    client.set_policy("c", {"push": {"url": URL, "rate_per_s": 2}})
    client.put("a", "x")
    assert client.topic("b").ready == 1
    client.put_many("c", [{"body": n} for n in range(20)])
    assert sorted(call.json() for call in fake.calls) == list(range(20))
