"""What people want of a delay queue, in their words, on a fake clock."""

from delayd.core.job import State
from delayd.core.session import Session
from delayd.core.timekeeper import WaitEnd
from delayd.core.views import view_job
from tests.core.rigs import Rig

SECOND_MS = 1000
MINUTE_MS = 60 * SECOND_MS
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


def work_off(rig: Rig, worker: Session, until_ms: int) -> list[tuple[int, bytes]]:
    """Let the worker wait, take and finish jobs until then; return when each came, and its body."""
    came = []
    rig.wait(worker)
    while True:
        deadline_ms = rig.engine.next_deadline()
        if deadline_ms is None or deadline_ms > until_ms:
            break
        rig.play(max(deadline_ms, rig.time_ms))
        for session, outcome in rig.engine.take_deliveries():
            assert session is worker
            assert not isinstance(outcome, WaitEnd)
            job_id, body = outcome
            while job_id:
                came.append((rig.time_ms, body))
                rig.engine.delete(worker, job_id, rig.now_ms)
                job_id, body = rig.engine.reserve(worker, rig.now_ms) or (0, b"")
            rig.wait(worker)
    rig.engine.cancel_wait(worker)
    return came


def test_offers_of_five_one_and_three_seconds_come_out_as_one_three_five() -> None:
    rig = Rig()
    for seconds in (5, 1, 3):
        rig.put(delay_ms=seconds * SECOND_MS, body=b"%d" % seconds)
    came = work_off(rig, rig.client(), MINUTE_MS)
    assert came == [(1000, b"1"), (3000, b"3"), (5000, b"5")]


def test_an_unpaid_order_is_closed_after_thirty_minutes_and_a_paid_one_is_not() -> None:
    rig = Rig()
    worker, shop = rig.client("orders"), rig.client()
    orders = {}
    for minute in range(30):
        rig.play(minute * MINUTE_MS)
        orders[minute] = rig.put("orders", delay_ms=30 * MINUTE_MS, body=b"%d" % minute)
        if minute >= 5 and minute % 10:  # most are paid after five minutes
            rig.engine.delete(shop, orders.pop(minute - 5), rig.now_ms)
    came = work_off(rig, worker, 12 * HOUR_MS)
    assert came == [((minute + 30) * MINUTE_MS, b"%d" % minute) for minute in orders]
    assert [*orders] == [5, 15, 25, 26, 27, 28, 29]


def test_a_trial_of_three_days_a_review_after_seven_and_a_message_after_twenty_minutes() -> None:
    rig = Rig()
    for name, delay_ms in (
        (b"review", 7 * DAY_MS),
        (b"message", 20 * MINUTE_MS),
        (b"trial", 3 * DAY_MS),
        (b"merchant", 5 * MINUTE_MS),
        (b"order", 12 * HOUR_MS),
    ):
        rig.put(delay_ms=delay_ms, body=name)
    assert work_off(rig, rig.client(), 30 * DAY_MS) == [
        (5 * MINUTE_MS, b"merchant"),
        (20 * MINUTE_MS, b"message"),
        (12 * HOUR_MS, b"order"),
        (3 * DAY_MS, b"trial"),
        (7 * DAY_MS, b"review"),
    ]


def test_everything_is_on_time_though_the_daemon_was_killed_in_between() -> None:
    rig = Rig()
    rig.put(delay_ms=30 * MINUTE_MS, body=b"order")
    rig.put(delay_ms=7 * DAY_MS, body=b"review")
    rig.play(10 * MINUTE_MS)
    rig.restart()
    assert work_off(rig, rig.client(), HOUR_MS) == [(30 * MINUTE_MS, b"order")]
    rig.restart()
    assert work_off(rig, rig.client(), 30 * DAY_MS) == [(7 * DAY_MS, b"review")]


def test_a_failed_consumer_tries_again_after_a_while_and_gives_up_in_the_end() -> None:
    rig = Rig()
    worker = rig.client()
    rig.put()
    ladder_ms = [15 * SECOND_MS, 3 * MINUTE_MS, 10 * MINUTE_MS, 30 * MINUTE_MS, 15 * HOUR_MS]
    tried_at_ms = []
    for delay_ms in (*ladder_ms, 0):
        rig.wait(worker) if not (job_id := rig.reserve(worker)) else None
        while not job_id:
            deadline_ms = rig.engine.next_deadline()
            assert deadline_ms is not None
            rig.play(deadline_ms)
            for _, outcome in rig.delivered():
                assert isinstance(outcome, int)
                job_id = outcome
        tried_at_ms.append(rig.time_ms)
        if delay_ms:
            rig.engine.release(worker, job_id, 0, delay_ms, rig.now_ms)
        else:
            rig.engine.bury(worker, job_id, 0)
    expected_ms = [sum(ladder_ms[:tries]) for tries in range(len(ladder_ms) + 1)]
    assert tried_at_ms == expected_ms
    seen = view_job(rig.engine, 1, rig.now_ms)
    assert (seen.state, seen.reserves, seen.releases) == (State.BURIED, 6, 5)
    # A person looks at it and revives it.
    rig.engine.kick_job(1, rig.now_ms)
    assert rig.reserve(worker) == 1


def test_a_consumer_that_dies_without_a_word_costs_one_ttr_and_no_job() -> None:
    rig = Rig()
    rig.put(ttr_ms=30 * SECOND_MS, body=b"mail")
    dead, alive = rig.client(), rig.client()
    rig.reserve(dead)
    assert work_off(rig, alive, HOUR_MS) == [(30 * SECOND_MS, b"mail")]
