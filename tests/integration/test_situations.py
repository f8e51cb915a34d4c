"""What people want a delay queue for, in days of virtual time, each with a crash in the middle."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.rigs.process import LADDER_S, DaemonRig

Way = Callable[[DaemonRig], None]

MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 24 * HOUR_S
POLICY = '[topics."mail.*"]\nretry = "15s 3m 10m 30m 30m 1h 2h 6h 15h"\n'


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[DaemonRig]:
    with DaemonRig(tmp_path, POLICY) as rig:
        yield rig


# --- Orders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [0.5, 12])
def test_an_unpaid_order_is_closed_unless_it_was_paid_before(rig: DaemonRig, hours: float) -> None:
    for order in (1, 2):
        said = rig.put(f"close {order}", hours * HOUR_S, tube="close", words=f" key=order-{order}")
        assert said == f"INSERTED {order}"
    rig.passes(hours * HOUR_S - 1)
    rig.crashes()
    assert rig.ask("delete-key close order-1") == "DELETED"  # it was paid
    assert rig.comes("close") is None
    rig.passes(1)
    assert rig.comes("close") == "close 2"
    assert rig.comes("close") is None
    assert rig.ask("delete-key close order-2") == "NOT_FOUND"


def test_twenty_minutes_after_an_order_a_message_is_sent(rig: DaemonRig) -> None:
    rig.put("thank you", 20 * MINUTE_S)
    rig.passes(10 * MINUTE_S)
    rig.crashes()
    rig.passes(10 * MINUTE_S - 0.001)
    assert rig.comes() is None
    rig.passes(0.001)
    assert rig.comes() == "thank you"


def test_a_merchant_who_does_not_accept_in_five_minutes_loses_the_order(rig: DaemonRig) -> None:
    rig.put("take back", 5 * MINUTE_S, words=" key=order-1")
    rig.passes(299.999)
    rig.crashes()
    assert rig.comes() is None
    rig.passes(0.001)
    assert rig.comes() == "take back"


def test_without_a_review_for_seven_days_there_is_the_default_one(rig: DaemonRig) -> None:
    rig.put("five stars", 7 * DAY_S, words=" key=delivery-1")
    rig.put("five stars", 7 * DAY_S, words=" key=delivery-2")
    rig.passes(3 * DAY_S)
    rig.crashes()
    assert rig.ask("delete-key default delivery-2") == "DELETED"  # reviewed
    rig.passes(4 * DAY_S)
    assert rig.comes() == "five stars"
    assert rig.comes() is None


def test_a_trial_of_three_days_ends_on_the_millisecond(rig: DaemonRig) -> None:
    rig.put("trial over", 3 * DAY_S)
    rig.passes(3 * DAY_S - 0.001)
    rig.crashes()
    assert rig.state() == "delayed"
    rig.passes(0.001)
    assert rig.state() == "ready"


def test_each_new_change_puts_off_what_is_to_follow_once(rig: DaemonRig) -> None:
    said = rig.put("index", 10, words=" key=page on=extend")
    assert said == "INSERTED 1"
    for _ in range(5):
        rig.passes(9)
        assert rig.put("index", 10, words=" key=page on=extend") == "EXTENDED 1"
    rig.crashes()
    rig.passes(9.999)
    assert rig.comes() is None
    rig.passes(0.001)
    assert rig.comes() == "index"


# --- Moments -------------------------------------------------------------------------------------


@pytest.mark.parametrize("hour", [7, 0])
def test_news_comes_at_the_hour_by_the_wall_clock(rig: DaemonRig, hour: int) -> None:
    now = datetime.fromtimestamp(rig.daemon.advance(0), UTC)
    # Not tomorrow, which may be in a millisecond.
    then = (now + timedelta(days=2)).replace(hour=hour, minute=0, second=0, microsecond=0)
    delay_s = round((then - now).total_seconds(), 3)
    rig.put("news", delay_s)
    rig.passes(delay_s / 2)
    rig.crashes()
    rig.passes(delay_s - round(delay_s / 2, 3) - 0.01)
    assert rig.comes() is None
    rig.passes(0.01)
    assert rig.comes() == "news"


# --- Asking again --------------------------------------------------------------------------------


def test_the_state_of_a_refund_is_asked_for_until_it_is_there(rig: DaemonRig) -> None:
    rig.put("refund 1")
    for asked in range(1, 6):
        assert rig.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
        if asked == 5:
            break
        assert rig.ask(f"release 1 0 {5 * MINUTE_S}") == "RELEASED"
        rig.passes(5 * MINUTE_S - 1)
        if asked == 3:
            rig.crashes()
        assert rig.ask("reserve-with-timeout 0") == "TIMED_OUT"
        rig.passes(1)
    assert rig.ask("delete 1") == "DELETED"


def test_a_failed_consumer_is_never_tried_again_at_once(rig: DaemonRig) -> None:
    rig.put("send", words=" retry=30s,5m attempts=2")
    assert rig.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
    assert rig.ask("nack 1 the infrastructure is down") == "NACKED"
    assert rig.ask("reserve-with-timeout 0") == "TIMED_OUT"
    rig.passes(29.999)
    rig.crashes()
    assert rig.ask("reserve-with-timeout 0") == "TIMED_OUT"
    rig.passes(0.001)
    assert rig.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")


def test_offers_of_5_1_and_3_seconds_come_out_as_1_3_5(rig: DaemonRig) -> None:
    for delay_s in (5, 1, 3):
        rig.put(str(delay_s), delay_s)
    rig.crashes()
    with rig.connect() as worker:
        worker.send(b"reserve\r\n" * 3)
        rig.passes(5)
        came = [worker.reply().split(b"\r\n")[1] for _ in range(3)]
    assert came == [b"1", b"3", b"5"]


# --- The ladder ----------------------------------------------------------------------------------


def hangs(rig: DaemonRig) -> None:
    """A worker keeps the job beyond its ttr."""
    with rig.connect() as worker:
        assert worker.ask("watch mail.a") == "WATCHING 2"
        assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
        rig.passes(60)
        assert worker.ask("touch 1") == "NOT_FOUND"


def drops(rig: DaemonRig) -> None:
    """A worker's connection closes."""
    with rig.connect() as worker:
        assert worker.ask("watch mail.a") == "WATCHING 2"
        assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
    while rig.state() == "reserved":  # until the daemon has seen it
        pass


def nacks(rig: DaemonRig) -> None:
    """A worker says that it failed."""
    with rig.connect() as worker:
        assert worker.ask("watch mail.a") == "WATCHING 2"
        assert worker.ask("reserve-with-timeout 0").startswith("RESERVED 1 ")
        assert worker.ask("nack 1 no route to host") == "NACKED"


@pytest.mark.parametrize(
    "ways",
    [(hangs,), (drops,), (nacks,), (hangs, drops, nacks)],
    ids=["hangs", "drops", "nacks", "each in turn"],
)
def test_a_notification_climbs_the_ladder_and_is_a_dead_letter_then(
    rig: DaemonRig, ways: tuple[Way, ...]
) -> None:
    rig.put("call back", tube="mail.a")
    for attempt, step_s in enumerate(LADDER_S):
        ways[attempt % len(ways)](rig)
        if attempt == 4:
            rig.crashes()
        stats = rig.client.stats("stats-job 1")
        assert stats["state"] == "delayed"
        assert stats["delay"] == str(step_s)
        assert stats["attempts"] == str(attempt + 1)
        rig.passes(step_s - 0.001)
        assert rig.state() == "delayed"
        rig.passes(0.001)
        assert rig.state() == "ready", "it fires at its moment, counted from the failure"
    nacks(rig)
    rig.crashes()
    stats = rig.client.stats("stats-job 1")
    assert stats["state"] == "buried"
    assert stats["attempts"] == "10"
    assert stats["failure"] == "nacked"
    assert stats["error"] == '"no route to host"'
    rig.passes(30 * DAY_S)
    assert rig.state() == "buried", "it is kept for a person to look at"
    assert rig.ask("peek 1").startswith("FOUND 1 ")
    assert rig.ask("redrive mail.a 10") == "REDRIVEN 1"
    assert rig.comes("mail.a") == "call back"


def test_a_revived_job_climbs_from_the_bottom(rig: DaemonRig) -> None:
    rig.put("call back", tube="mail.a", words=" retry=10s")
    nacks(rig)
    rig.passes(10)
    nacks(rig)
    assert rig.state() == "buried"
    rig.crashes()
    assert rig.ask("kick-job 1") == "KICKED"
    nacks(rig)
    assert rig.client.stats("stats-job 1")["delay"] == "10"


def test_a_worker_that_hangs_gives_the_job_to_the_next_one_within_one_advance(
    rig: DaemonRig,
) -> None:
    """The first one's ttr ends after 60 s, the first step after 75: all in one go."""
    rig.put("call back", tube="mail.a")
    with rig.connect() as first, rig.connect() as second:
        for worker in (first, second):
            worker.ask("watch mail.a")
            worker.send(b"reserve\r\n")
        assert first.reply() == b"RESERVED 1 9\r\ncall back\r\n"
        rig.passes(60 + LADDER_S[0] + 30)
        assert second.reply() == b"RESERVED 1 9\r\ncall back\r\n"
        stats = rig.client.stats("stats-job 1")
        assert (stats["state"], stats["time-left"]) == ("reserved", "29")


def test_a_job_that_kills_its_consumers_ends_in_the_dead_letters(rig: DaemonRig) -> None:
    rig.put("poison", tube="mail.a", words=" attempts=3")
    for step_s in LADDER_S[:2]:
        drops(rig)
        rig.crashes()
        rig.passes(step_s)
    drops(rig)
    assert rig.state() == "buried"
    rig.passes(365 * DAY_S)
    assert rig.comes("mail.a") is None
