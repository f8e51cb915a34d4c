"""What people want of a delay queue, in their words, on a fake clock; the daemon is killed on the
way in each of them, and comes back.
"""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from delayd.core.job_parts import Reason
from delayd.core.job_record import State
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import release as release_job
from delayd.core.operations.change import kick_job
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.scan import Wanted
from tests.core.worlds import (
    DAY_MS,
    HOUR_MS,
    LADDER,
    MINUTE_MS,
    SECOND_MS,
    STEPS_MS,
    Act,
    World,
    close,
    finish,
    hang,
    nack,
    person,
    release,
)
from tests.rigs.engine import put


def test_offers_of_five_one_and_three_seconds_come_out_as_one_three_five() -> None:
    world = World(crashes=(500, 2_000, 4_999))
    for seconds in (5, 1, 3):
        world.rig.put(delay_ms=seconds * SECOND_MS, body=b"%d" % seconds)
    assert world.run(MINUTE_MS, finish) == [(1000, b"1"), (3000, b"3"), (5000, b"5")]


@pytest.mark.parametrize("limit_ms", [30 * MINUTE_MS, 12 * HOUR_MS])
def test_an_unpaid_order_is_closed_in_time_and_a_paid_one_is_not(limit_ms: int) -> None:
    world = World("orders", crashes=(7 * MINUTE_MS, 17 * MINUTE_MS, limit_ms + 10 * MINUTE_MS))
    orders = {}
    for minute in range(30):
        world.pass_until(minute * MINUTE_MS)
        orders[minute] = world.rig.put("orders", delay_ms=limit_ms, body=b"%d" % minute)
        if minute >= 5 and minute % 10:  # most are paid after five minutes
            delete(world.engine, person(world), orders.pop(minute - 5), world.now_ms)
    came = world.run(2 * DAY_MS, finish)
    assert came == [(minute * MINUTE_MS + limit_ms, b"%d" % minute) for minute in orders]
    assert [*orders] == [5, 15, 25, 26, 27, 28, 29]


def test_a_trial_of_three_days_a_review_after_seven_and_a_message_after_twenty_minutes() -> None:
    world = World(crashes=(MINUTE_MS, 6 * HOUR_MS, 3 * DAY_MS - 1, 3 * DAY_MS + 1))
    for name, delay_ms in (
        (b"review", 7 * DAY_MS),
        (b"message", 20 * MINUTE_MS),
        (b"trial", 3 * DAY_MS),
        (b"merchant", 5 * MINUTE_MS),
        (b"order", 12 * HOUR_MS),
    ):
        world.rig.put(delay_ms=delay_ms, body=name)
    assert world.run(30 * DAY_MS, finish) == [
        (5 * MINUTE_MS, b"merchant"),
        (20 * MINUTE_MS, b"message"),
        (12 * HOUR_MS, b"order"),
        (3 * DAY_MS, b"trial"),
        (7 * DAY_MS, b"review"),
    ]


def test_a_merchant_who_accepts_in_time_keeps_the_order() -> None:
    world = World(crashes=(2 * MINUTE_MS,))
    accepted = world.rig.put(delay_ms=5 * MINUTE_MS, body=b"accepted")
    world.rig.put(delay_ms=5 * MINUTE_MS, body=b"ignored")
    world.pass_until(5 * MINUTE_MS - 1)
    delete(world.engine, person(world), accepted, world.now_ms)
    assert world.run(DAY_MS, finish) == [(5 * MINUTE_MS, b"ignored")]


def test_news_at_seven_and_messages_at_midnight_come_when_the_wall_clock_says_so() -> None:
    berlin = timezone(timedelta(hours=1))
    begins = datetime(2026, 11, 20, 22, 30, tzinfo=berlin)
    offset_ms = int(begins.timestamp() * 1_000)
    world = World(crashes=(HOUR_MS, 5 * HOUR_MS))
    for body, at in (
        (b"news", datetime(2026, 11, 21, 7, 0, tzinfo=berlin)),
        (b"midnight", datetime(2026, 11, 21, 0, 0, tzinfo=berlin)),
        (b"midnight of others", datetime(2026, 11, 21, 0, 0, tzinfo=UTC)),
    ):
        follow_wall(world.engine, offset_ms)
        put(
            world.engine,
            world.engine.store.topic("default"),
            priority=0,
            due_wall_ms=int(at.timestamp() * 1_000),
            ttr_ms=MINUTE_MS,
            body=body,
            now_ms=world.now_ms,
        )
    assert world.run(DAY_MS, finish) == [
        (90 * MINUTE_MS, b"midnight"),
        (150 * MINUTE_MS, b"midnight of others"),
        (510 * MINUTE_MS, b"news"),
    ]


def test_a_refund_is_asked_after_every_ten_minutes_until_it_has_succeeded() -> None:
    world = World(crashes=(5 * MINUTE_MS, 25 * MINUTE_MS))
    world.rig.put(delay_ms=10 * MINUTE_MS, body=b"refund")

    def ask(world: World, job_id: int, body: bytes) -> None:
        if len(world.came) < 6:
            release_job(world.engine, world.worker, job_id, 0, 10 * MINUTE_MS, world.now_ms)
        else:
            finish(world, job_id, body)

    came = world.run(DAY_MS, ask)
    assert [time_ms for time_ms, _ in came] == [n * 10 * MINUTE_MS for n in range(1, 7)]


def test_a_silent_downstream_is_asked_in_steps_by_configuration_alone() -> None:
    world = World("calls", crashes=(70 * SECOND_MS, 20 * MINUTE_MS))
    world.set_policy("calls", retry=LADDER)
    world.rig.put("calls", body=b"call")

    def ask(world: World, job_id: int, body: bytes) -> None:
        (release if len(world.came) < 5 else finish)(world, job_id, body)

    came = world.run(DAY_MS, ask)
    assert [time_ms for time_ms, _ in came] == [sum(STEPS_MS[:tries]) for tries in range(5)]
    assert not world.engine.store.topics.by_name["calls"].jobs


# --- The ladder ----------------------------------------------------------------------------------

TTR_MS = 40 * SECOND_MS
CRASHES = (
    *(5 * SECOND_MS, 50 * SECOND_MS, 4 * MINUTE_MS, 20 * MINUTE_MS, 80 * MINUTE_MS),
    *(3 * HOUR_MS, 12 * HOUR_MS, 24 * HOUR_MS),
)
WAYS = {
    "hangs past its ttr": (hang, TTR_MS, Reason.TTR_RAN_OUT),
    "drops its connection": (close, 0, Reason.HOLDER_LEFT),
    "nacks": (nack, 0, Reason.NACKED),
    "releases": (release, 0, Reason.RELEASED),
}


def begins_ms(takes_ms: tuple[int, ...]) -> list[int]:
    """When each attempt begins, if each takes so long to fail."""
    times_ms = [0]
    for step_ms, take_ms in zip(STEPS_MS, takes_ms, strict=False):
        times_ms.append(times_ms[-1] + take_ms + step_ms)
    return times_ms


@pytest.mark.parametrize("crashes", [(), CRASHES], ids=["without a crash", "with crashes"])
@pytest.mark.parametrize("way", WAYS)
def test_a_notification_is_repeated_by_the_ladder_and_then_a_dead_letter_that_can_be_revived(
    way: str, crashes: tuple[int, ...]
) -> None:
    act, take_ms, reason = WAYS[way]
    world = World("mail", crashes=crashes)
    world.set_policy("mail", retry=LADDER)
    job_id = world.rig.put("mail", ttr_ms=TTR_MS, body=b"hello")
    came = world.run(60 * HOUR_MS, act)
    expected_ms = begins_ms((take_ms,) * 9)
    assert [time_ms for time_ms, _ in came] == expected_ms
    assert not world.crashes

    assert world.state(job_id) is State.BURIED
    details = world.details(job_id)
    assert details.failure is not None
    assert details.failure.reason is not None
    assert Reason(details.failure.reason) is reason
    assert details.failure.failed_ms == expected_ms[-1] + take_ms
    assert details.attempts == 10
    assert details.error == ("attempt 10: connection refused" if act is nack else "")

    world.crash()
    kick_job(world.engine, job_id, world.now_ms)
    assert world.details(job_id).attempts == 0
    began_ms = world.rig.time_ms
    again = world.run(began_ms + 60 * HOUR_MS, act)
    assert [time_ms - began_ms for time_ms, _ in again] == expected_ms
    assert world.state(job_id) is State.BURIED


@pytest.mark.parametrize("number", range(4))
def test_workers_that_fail_in_different_ways_climb_the_same_ladder(number: int) -> None:
    world = World("mail", crashes=CRASHES)
    world.set_policy("mail", retry=LADDER)
    job_id = world.rig.put("mail", ttr_ms=TTR_MS)
    acts = [*WAYS.values()]
    chosen = [acts[(number + n * (number + 1)) % 4] for n in range(10)]

    def act(world: World, job_id: int, body: bytes) -> None:
        chosen[len(world.came) - 1][0](world, job_id, body)

    came = world.run(60 * HOUR_MS, act)
    takes_ms = tuple(take_ms for _, take_ms, _ in chosen)
    assert [time_ms for time_ms, _ in came] == begins_ms(takes_ms)
    assert world.state(job_id) is State.BURIED


def test_a_failed_consumer_never_tries_again_at_once() -> None:
    world = World("mail", crashes=(100 * SECOND_MS,))
    world.set_policy("mail", retry="15s 3m")
    for _ in range(5):
        world.rig.put("mail")
    came = world.run(DAY_MS, close)
    assert len(came) == 15
    assert {time_ms for time_ms, _ in came} == {0, 15_000, 195_000}


def test_a_job_that_kills_its_consumers_ends_in_the_dead_letters() -> None:
    world = World("mail", crashes=(HOUR_MS,))
    world.set_policy("mail", attempts_max=3)
    poison = world.rig.put("mail", body=b"poison")
    for n in range(5):
        world.rig.put("mail", body=b"%d" % n)

    def work(world: World, job_id: int, body: bytes) -> None:
        (close if body == b"poison" else finish)(world, job_id, body)

    came = world.run(DAY_MS, work)
    assert [body for _, body in came] == [b"poison"] * 3 + [b"%d" % n for n in range(5)]
    assert world.state(poison) is State.BURIED
    topic = world.engine.store.topics.by_name["mail"]
    assert (topic.jobs, len(topic.queues.buried)) == (1, 1)


def test_a_consumer_that_dies_without_a_word_costs_one_ttr_and_no_job() -> None:
    world = World(crashes=(10 * SECOND_MS,))
    world.rig.put(ttr_ms=30 * SECOND_MS, body=b"mail")
    dead = world.rig.client()
    world.rig.reserve(dead)
    assert world.run(HOUR_MS, finish) == [(30 * SECOND_MS, b"mail")]


def test_without_a_policy_a_closed_connection_and_a_release_are_ready_at_once() -> None:
    acts: list[Act] = [close, release, hang, finish]
    world = World(crashes=(10 * SECOND_MS,))
    world.rig.put(ttr_ms=30 * SECOND_MS)

    def act(world: World, job_id: int, body: bytes) -> None:
        acts[len(world.came) - 1](world, job_id, body)

    came = world.run(HOUR_MS, act)
    assert [time_ms for time_ms, _ in came] == [0, 0, 0, 30 * SECOND_MS]


def test_many_dead_letters_are_revived_at_a_limited_rate_with_all_their_settings() -> None:
    world = World("mail", crashes=(90 * SECOND_MS,))
    world.set_policy("mail", retry="1s")
    for n in range(6):
        world.rig.put("mail", priority=n, ttr_ms=TTR_MS + n, body=b"%d" % n)
    world.run(MINUTE_MS, nack)
    assert len(world.engine.store.topics.by_name["mail"].queues.buried) == 6
    wanted = Wanted(frozenset({State.BURIED}))
    bulk = Bulk(world.engine, "mail", wanted, Action.kick(2), limit=5)
    while not bulk.step(100, world.now_ms):
        pass
    came = world.run(2 * MINUTE_MS, finish)
    assert came == [(MINUTE_MS + n * 500, b"%d" % n) for n in range(5)]
    assert len(world.engine.store.topics.by_name["mail"].queues.buried) == 1
