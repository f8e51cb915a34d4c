"""What people want a delay queue for, in days of virtual time, each with a crash in the middle.

Each story is played in memory and again with the real process.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.line_client import LineClient
from tests.rigs.story import LADDER_S, MemoryDaemon, ProcessDaemon, Story

MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 24 * HOUR_S
POLICY = '[topics."mail.*"]\nretry = "15s 3m 10m 30m 30m 1h 2h 6h 15h"\n'


@pytest.fixture(
    params=[
        pytest.param(MemoryDaemon, id="memory"),
        pytest.param(ProcessDaemon, id="process", marks=pytest.mark.process),
    ]
)
def story(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Story]:
    with Story(tmp_path, POLICY, request.param) as story:
        yield story


# --- Orders --------------------------------------------------------------------------------------


def test_an_unpaid_order_is_closed_on_the_millisecond_unless_it_was_paid_before(
    story: Story,
) -> None:
    for order in (1, 2):
        story.put(f"close {order}", 12 * HOUR_S, tube="close", words=f" key=order-{order}")
    story.passes(12 * HOUR_S - 0.002)
    story.crashes()
    assert story.ask("delete-key close order-1") == "DELETED"  # it was paid
    assert story.state(2) == "delayed"
    assert story.comes_after(0.002, "close") == "close 2"
    assert story.comes("close") is None
    assert story.ask("delete-key close order-2") == "NOT_FOUND"


def test_each_new_change_puts_off_what_is_to_follow_once(story: Story) -> None:
    story.put("index", 10, words=" key=page on=extend")
    for _ in range(5):
        story.passes(9)
        assert story.put("index", 10, words=" key=page on=extend") == "EXTENDED 1"
    story.crashes()
    assert story.comes_after(10) == "index"


# --- Asking again --------------------------------------------------------------------------------


def test_the_state_of_a_refund_is_asked_for_until_it_is_there(story: Story) -> None:
    story.put("refund 1")
    for asked in range(1, 6):
        assert story.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
        if asked == 5:
            break
        assert story.ask(f"release 1 0 {5 * MINUTE_S}") == "RELEASED"
        story.passes(5 * MINUTE_S - 1)
        if asked == 3:
            story.crashes()
        assert story.ask("reserve-with-timeout 0") == "TIMED_OUT"
        story.passes(1)
    assert story.ask("delete 1") == "DELETED"


def test_offers_of_5_1_and_3_seconds_come_out_as_1_3_5(story: Story) -> None:
    for delay_s in (5, 1, 3):
        story.put(str(delay_s), delay_s)
    story.crashes()
    with story.connect() as worker:
        worker.send(b"reserve\r\n" * 3)
        story.passes(5)
        came = [worker.reply().split(b"\r\n")[1] for _ in range(3)]
    assert came == [b"1", b"3", b"5"]


# --- The ladder ----------------------------------------------------------------------------------


def hangs(story: Story) -> None:
    """A worker keeps the job beyond its ttr."""
    with taken(story) as worker:
        story.passes(60)
        assert worker.ask("touch 1") == "NOT_FOUND"


def drops(story: Story) -> None:
    """A worker's connection closes."""
    taken(story).close()
    while story.state() == "reserved":  # until the daemon has seen it
        pass


def nacks(story: Story) -> None:
    """A worker says that it failed."""
    with taken(story) as worker:
        assert worker.ask("nack 1 no route to host") == "NACKED"


def releases(story: Story) -> None:
    """What stock beanstalk clients know."""
    with taken(story) as worker:
        assert worker.ask("release 1 0 0") == "RELEASED"


def taken(story: Story) -> LineClient:
    """A worker that has the job."""
    worker = story.connect()
    assert worker.ask("watch mail.a") == "WATCHING 2"
    assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
    return worker


WAYS: Final[dict[Callable[[Story], None], str]] = {
    nacks: "nacked",
    hangs: "ttr-ran-out",
    drops: "holder-left",
    releases: "released",
}


def test_a_notification_climbs_the_ladder_and_is_a_dead_letter_then(story: Story) -> None:
    story.put("call back", tube="mail.a")
    for attempt, (step_s, way) in enumerate(zip(LADDER_S, itertools.cycle(WAYS), strict=False)):
        way(story)
        if attempt == 4:
            story.crashes()
        job = story.job()
        assert (job["state"], job["delay"]) == ("delayed", str(step_s))
        assert job["attempts"] == str(attempt + 1)
        assert job["failure"] == WAYS[way]
        story.passes(step_s - 0.001)
        assert story.state() == "delayed"
        story.passes(0.001)
        assert story.state() == "ready", "it fires at its moment, counted from the failure"
    nacks(story)
    story.crashes()
    job = story.job()
    assert (job["state"], job["attempts"]) == ("buried", "10")
    assert (job["failure"], job["error"]) == ("nacked", '"no route to host"')
    story.passes(30 * DAY_S)
    assert story.state() == "buried", "it is kept for a person to look at"
    assert story.ask("peek 1").startswith("FOUND 1 ")
    assert story.ask("redrive mail.a 10") == "REDRIVEN 1"
    assert story.comes("mail.a") == "call back"


def test_a_revived_job_climbs_from_the_bottom(story: Story) -> None:
    story.put("call back", tube="mail.a", words=" retry=10s")
    nacks(story)
    story.passes(10)
    nacks(story)
    assert story.state() == "buried"
    story.crashes()
    assert story.ask("kick-job 1") == "KICKED"
    nacks(story)
    assert story.job()["delay"] == "10"


def test_a_worker_that_hangs_gives_the_job_to_the_next_one_within_one_advance(story: Story) -> None:
    """The first one's ttr ends after 60 s, the first step after 75: all in one go."""
    story.put("call back", tube="mail.a")
    with story.connect() as first, story.connect() as second:
        for worker in (first, second):
            worker.ask("watch mail.a")
            worker.send(b"reserve\r\n")
        assert first.reply() == b"RESERVED 1 9\r\ncall back\r\n"
        story.passes(60 + LADDER_S[0] + 30)
        assert second.reply() == b"RESERVED 1 9\r\ncall back\r\n"
        job = story.job()
        assert (job["state"], job["time-left"]) == ("reserved", "29")


def test_without_a_policy_what_failed_is_ready_at_once_but_what_hangs_waits_for_its_ttr(
    story: Story,
) -> None:
    story.put("call back", tube="mail.a")
    story.crashes("")
    for way in (drops, releases, hangs):
        way(story)
        assert story.state() == "ready"
    assert story.comes("mail.a") == "call back"


# --- Limits and other configurations -------------------------------------------------------------


def test_caps_and_limits_of_the_configuration_hold(story: Story) -> None:
    story.crashes('[topics."mail.*"]\nreserved_max = 1\n[jobs]\njobs_max = 3\n')
    for _ in range(3):
        story.put("x", tube="mail.a")
    assert story.put("x") == "OUT_OF_MEMORY"
    with taken(story) as worker:
        assert worker.ask("reserve-with-timeout 0") == "TIMED_OUT"
        assert worker.ask("delete 1") == "DELETED"
        assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 2 ")
        assert story.put("x").startswith("INSERTED ")


def test_a_restart_with_another_configuration_judges_by_that_one(story: Story) -> None:
    story.put("x", tube="mail.a")
    worker = taken(story)
    story.crashes('[topics."mail.*"]\nmax_attempts = 1\n')
    worker.close()
    assert story.state() == "reserved"
    story.passes(60)
    assert story.state() == "buried"
    story.crashes("")
    assert story.ask("get-policy mail.a") == "OK 2\r\n{}"
