"""What the daemon in memory does besides the contract: its time."""

import asyncio
import datetime as dt

import pytest

from delayd.client import TimedOut
from delayd.testing.fake import START, FakeDelayd
from delayd.testing.fake_jobs import REFUSALS
from tests.http.rig import http_refusals


def test_the_refusals_of_the_fake_are_those_of_the_daemon() -> None:
    daemon = {kind.kind: (kind.status, kind.word, kind.title) for kind in http_refusals()}
    assert {kind: daemon[kind] for kind in REFUSALS} == REFUSALS


def test_a_reserve_that_waits_lets_the_time_pass_up_to_the_next_job() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put("mail", "x", delay="7d")
    with client.reserve("mail") as job:
        assert job.text == "x"
        assert fake.now == START + dt.timedelta(days=7)


def test_a_reserve_with_a_timeout_passes_that_time_and_no_more() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put("mail", "x", delay=10)
    with pytest.raises(TimedOut):
        client.reserve("mail", timeout=9)
    assert fake.now == START + dt.timedelta(seconds=9)


def test_a_reserve_that_would_wait_for_ever_ends() -> None:
    with pytest.raises(TimedOut, match="for ever"):
        FakeDelayd().client().reserve("mail")


def test_while_a_job_is_in_hand_its_ttr_does_not_run_out_by_the_wait_of_another() -> None:
    fake = FakeDelayd()
    client = fake.client()
    client.put("mail", "x", ttr=1)
    job = client.reserve("mail", timeout=0)
    with pytest.raises(TimedOut):
        client.reserve("mail", timeout=0.05)
    assert fake.now < START + dt.timedelta(seconds=1)
    job.ack()


def test_clients_of_one_fake_see_the_same_jobs() -> None:
    fake = FakeDelayd()
    fake.client().put("mail", "x")

    async def reserved() -> str:
        async with fake.async_client() as client, await client.reserve("mail") as job:
            return job.text

    assert asyncio.run(reserved()) == "x"
    assert fake.client().topics() == []


def test_what_the_daemon_would_call_by_itself_is_kept() -> None:
    client = FakeDelayd().client()
    put = client.put("hooks", {"a": 1}, url="https://example.com/", headers={"X-A": "b"})
    assert client.get(put.id).details["url"] == "https://example.com/"
