"""What people want a delay queue for, in days of virtual time, each with a crash in the middle."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.integration.virtual_world import LADDER_S, World

Way = Callable[[World], None]

MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 24 * HOUR_S
POLICY = '[topics."mail.*"]\nretry = "15s 3m 10m 30m 30m 1h 2h 6h 15h"\n'


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, POLICY) as world:
        yield world


# --- Orders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [0.5, 12])
def test_an_unpaid_order_is_closed_unless_it_was_paid_before(world: World, hours: float) -> None:
    for order in (1, 2):
        said = world.put(
            f"close {order}", hours * HOUR_S, tube="close", words=f" key=order-{order}"
        )
        assert said == f"INSERTED {order}"
    world.passes(hours * HOUR_S - 1)
    world.crashes()
    assert world.ask("delete-key close order-1") == "DELETED"  # it was paid
    assert world.comes("close") is None
    world.passes(1)
    assert world.comes("close") == "close 2"
    assert world.comes("close") is None
    assert world.ask("delete-key close order-2") == "NOT_FOUND"


def test_twenty_minutes_after_an_order_a_message_is_sent(world: World) -> None:
    world.put("thank you", 20 * MINUTE_S)
    world.passes(10 * MINUTE_S)
    world.crashes()
    world.passes(10 * MINUTE_S - 0.001)
    assert world.comes() is None
    world.passes(0.001)
    assert world.comes() == "thank you"


def test_a_merchant_who_does_not_accept_in_five_minutes_loses_the_order(world: World) -> None:
    world.put("take back", 5 * MINUTE_S, words=" key=order-1")
    world.passes(299.999)
    world.crashes()
    assert world.comes() is None
    world.passes(0.001)
    assert world.comes() == "take back"


def test_without_a_review_for_seven_days_there_is_the_default_one(world: World) -> None:
    world.put("five stars", 7 * DAY_S, words=" key=delivery-1")
    world.put("five stars", 7 * DAY_S, words=" key=delivery-2")
    world.passes(3 * DAY_S)
    world.crashes()
    assert world.ask("delete-key default delivery-2") == "DELETED"  # reviewed
    world.passes(4 * DAY_S)
    assert world.comes() == "five stars"
    assert world.comes() is None


def test_a_trial_of_three_days_ends_on_the_millisecond(world: World) -> None:
    world.put("trial over", 3 * DAY_S)
    world.passes(3 * DAY_S - 0.001)
    world.crashes()
    assert world.state() == "delayed"
    world.passes(0.001)
    assert world.state() == "ready"


def test_each_new_change_puts_off_what_is_to_follow_once(world: World) -> None:
    said = world.put("index", 10, words=" key=page on=extend")
    assert said == "INSERTED 1"
    for _ in range(5):
        world.passes(9)
        assert world.put("index", 10, words=" key=page on=extend") == "EXTENDED 1"
    world.crashes()
    world.passes(9.999)
    assert world.comes() is None
    world.passes(0.001)
    assert world.comes() == "index"


# --- Moments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("hour", [7, 0])
def test_news_comes_at_the_hour_by_the_wall_clock(world: World, hour: int) -> None:
    now = datetime.fromtimestamp(world.daemon.advance(0), UTC)
    then = (now + timedelta(days=1)).replace(hour=hour, minute=0, second=0, microsecond=0)
    delay_s = round((then - now).total_seconds(), 3)
    world.put("news", delay_s)
    world.passes(delay_s / 2)
    world.crashes()
    world.passes(delay_s - round(delay_s / 2, 3) - 0.01)
    assert world.comes() is None
    world.passes(0.01)
    assert world.comes() == "news"


# --- Asking again --------------------------------------------------------------------------------


def test_the_state_of_a_refund_is_asked_for_until_it_is_there(world: World) -> None:
    world.put("refund 1")
    for asked in range(1, 6):
        assert world.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
        if asked == 5:
            break
        assert world.ask(f"release 1 0 {5 * MINUTE_S}") == "RELEASED"
        world.passes(5 * MINUTE_S - 1)
        if asked == 3:
            world.crashes()
        assert world.ask("reserve-with-timeout 0") == "TIMED_OUT"
        world.passes(1)
    assert world.ask("delete 1") == "DELETED"


def test_a_failed_consumer_is_never_tried_again_at_once(world: World) -> None:
    world.put("send", words=" retry=30s,5m attempts=2")
    assert world.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
    assert world.ask("nack 1 the infrastructure is down") == "NACKED"
    assert world.ask("reserve-with-timeout 0") == "TIMED_OUT"
    world.passes(29.999)
    world.crashes()
    assert world.ask("reserve-with-timeout 0") == "TIMED_OUT"
    world.passes(0.001)
    assert world.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")


def test_offers_of_5_1_and_3_seconds_come_out_as_1_3_5(world: World) -> None:
    for delay_s in (5, 1, 3):
        world.put(str(delay_s), delay_s)
    world.crashes()
    with world.connect() as worker:
        worker.send(b"reserve\r\n" * 3)
        world.passes(5)
        came = [worker.reply().split(b"\r\n")[1] for _ in range(3)]
    assert came == [b"1", b"3", b"5"]


# --- The ladder ----------------------------------------------------------------------------------


def hangs(world: World) -> None:
    """A worker keeps the job beyond its ttr."""
    with world.connect() as worker:
        assert worker.ask("watch mail.a") == "WATCHING 2"
        assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
        world.passes(60)
        assert worker.ask("touch 1") == "NOT_FOUND"


def drops(world: World) -> None:
    """A worker's connection closes."""
    with world.connect() as worker:
        assert worker.ask("watch mail.a") == "WATCHING 2"
        assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
    while world.state() == "reserved":  # until the daemon has seen it
        pass


def nacks(world: World) -> None:
    """A worker says that it failed."""
    with world.connect() as worker:
        assert worker.ask("watch mail.a") == "WATCHING 2"
        assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
        assert worker.ask("nack 1 no route to host") == "NACKED"


@pytest.mark.parametrize(
    "ways",
    [(hangs,), (drops,), (nacks,), (hangs, drops, nacks)],
    ids=["hangs", "drops", "nacks", "each in turn"],
)
def test_a_notification_climbs_the_ladder_and_is_a_dead_letter_then(
    world: World, ways: tuple[Way, ...]
) -> None:
    world.put("call back", tube="mail.a")
    for attempt, step_s in enumerate(LADDER_S):
        ways[attempt % len(ways)](world)
        if attempt == 4:
            world.crashes()
        stats = world.client.stats("stats-job 1")
        assert stats["state"] == "delayed"
        assert stats["delay"] == str(step_s)
        assert stats["attempts"] == str(attempt + 1)
        world.passes(step_s - 0.001)
        assert world.state() == "delayed"
        world.passes(0.001)
        assert world.state() == "ready", "it fires at its moment, counted from the failure"
    nacks(world)
    world.crashes()
    stats = world.client.stats("stats-job 1")
    assert stats["state"] == "buried"
    assert stats["attempts"] == "10"
    assert stats["failure"] == "nacked"
    assert stats["error"] == '"no route to host"'
    world.passes(30 * DAY_S)
    assert world.state() == "buried", "it is kept for a person to look at"
    assert world.ask("peek 1").startswith("FOUND 1 ")
    assert world.ask("redrive mail.a 10") == "REDRIVEN 1"
    assert world.comes("mail.a") == "call back"


def test_a_revived_job_climbs_from_the_bottom(world: World) -> None:
    world.put("call back", tube="mail.a", words=" retry=10s")
    nacks(world)
    world.passes(10)
    nacks(world)
    assert world.state() == "buried"
    world.crashes()
    assert world.ask("kick-job 1") == "KICKED"
    nacks(world)
    assert world.client.stats("stats-job 1")["delay"] == "10"


def test_a_worker_that_hangs_gives_the_job_to_the_next_one_within_one_advance(world: World) -> None:
    """The first one's ttr ends after 60 s, the first step after 75: all in one go."""
    world.put("call back", tube="mail.a")
    with world.connect() as first, world.connect() as second:
        for worker in (first, second):
            worker.ask("watch mail.a")
            worker.send(b"reserve\r\n")
        assert first.reply() == b"RESERVED 1 9\r\ncall back\r\n"
        world.passes(60 + LADDER_S[0] + 30)
        assert second.reply() == b"RESERVED 1 9\r\ncall back\r\n"
        stats = world.client.stats("stats-job 1")
        assert (stats["state"], stats["time-left"]) == ("reserved", "29")


def test_a_job_that_kills_its_consumers_ends_in_the_dead_letters(world: World) -> None:
    world.put("poison", tube="mail.a", words=" attempts=3")
    for step_s in LADDER_S[:2]:
        drops(world)
        world.crashes()
        world.passes(step_s)
    drops(world)
    assert world.state() == "buried"
    world.passes(365 * DAY_S)
    assert world.comes("mail.a") is None
