"""The kick of a topic in slices: which jobs, how many, and what happens in between."""

import random

import pytest

from delayd.core.log_records import Kind
from delayd.core.operations.topics import clear
from delayd.core.ready_queue import job_id_of
from delayd.core.scans.kick import Kick
from delayd.core.session import Session
from delayd.core.topic import Topic
from delayd.limits import DELAYED_SORTED_MAX, PASS_ACTION_COST
from tests.core.check import check
from tests.rigs.engine import EngineRig, kick, kinds_of

JOBS = 300
MANY = DELAYED_SORTED_MAX + 500


def with_buried(jobs: int = JOBS) -> tuple[EngineRig, Session, Topic]:
    rig = EngineRig()
    me = rig.client()
    rig.put_many(jobs)
    for job_id in rig.reserve_all(me):
        rig.bury(me, job_id)
    rig.take_log()
    return rig, me, rig.topic()


def with_delayed(delays_ms: list[int]) -> tuple[EngineRig, Session, Topic]:
    """Put jobs with these delays, the n-th under the id n + 1."""
    rig = EngineRig()
    me = rig.client()
    for delay_ms in delays_ms:
        rig.put(delay_ms=delay_ms)
    rig.take_log()
    return rig, me, rig.topic()


def ready(topic: Topic) -> list[int]:
    return [job_id_of(key) for key in topic.queues.ready]


def test_a_step_kicks_so_many_as_its_budget_allows() -> None:
    rig, _, topic = with_buried()
    work = Kick(rig.engine, topic, JOBS)
    steps = 0
    while not work.step(10 * PASS_ACTION_COST, rig.now_ms):
        assert kinds_of(rig.take_log()[0]).count(Kind.KICK) <= 10
        check(rig.engine)
        steps += 1
    assert work.done == JOBS == len(ready(topic))
    assert steps == JOBS // 10


def test_those_buried_after_the_beginning_stay_buried() -> None:
    rig, me, topic = with_buried(30)
    work = Kick(rig.engine, topic, 1_000)
    work.step(10 * PASS_ACTION_COST, rig.now_ms)
    (first, *_) = rig.reserve_all(me)
    rig.bury(me, first)
    while not work.step(10 * PASS_ACTION_COST, rig.now_ms):
        pass
    assert work.done == 30
    assert [job_id_of(key) for key in topic.queues.buried] == [first]


def test_two_at_once_kick_as_many_as_one_after_the_other() -> None:
    rig, _, topic = with_buried()
    first, second = Kick(rig.engine, topic, 150), Kick(rig.engine, topic, 100)
    over = [False, False]
    while not all(over):
        over = [work.step(7 * PASS_ACTION_COST, rig.now_ms) for work in (first, second)]
    assert (first.done, second.done) == (150, 100)
    assert ready(topic) == list(range(1, 251))


def test_deletes_and_a_clear_in_between_leave_fewer_to_be_kicked() -> None:
    rig, me, topic = with_buried()
    work = Kick(rig.engine, topic, JOBS)
    work.step(10 * PASS_ACTION_COST, rig.now_ms)
    rig.delete(me, 20)
    work.step(20 * PASS_ACTION_COST, rig.now_ms)
    clear(rig.engine, topic)
    assert work.step(10 * PASS_ACTION_COST, rig.now_ms)
    assert work.done == 30
    check(rig.engine)


@pytest.mark.parametrize("jobs", [50, MANY])
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0, 2.0])
def test_of_the_delayed_it_kicks_those_that_are_soonest_due(
    jobs: int, share: float, rng: random.Random
) -> None:
    delays_ms = [rng.choice((5, 300, 70_000, 80_000_000)) + rng.randrange(50) for _ in range(jobs)]
    rig, _, topic = with_delayed(delays_ms)
    bound = int(jobs * share)
    expected = sorted(range(1, jobs + 1), key=lambda job_id: (delays_ms[job_id - 1], job_id))
    assert kick(rig.engine, topic, bound, rig.now_ms) == min(bound, jobs)
    assert sorted(ready(topic)) == sorted(expected[:bound])
    check(rig.engine)


@pytest.mark.parametrize("bound", [MANY - 100, MANY, 2 * MANY])
def test_what_is_put_or_delayed_again_meanwhile_is_not_kicked_twice(bound: int) -> None:
    rig, me, topic = with_delayed([60_000 + number for number in range(MANY)])
    work = Kick(rig.engine, topic, bound)
    kicked_again = 0
    while not work.step(40 * PASS_ACTION_COST, rig.now_ms):
        rig.put(delay_ms=70_000)
        if job_id := rig.reserve(me):
            assert job_id <= MANY
            rig.release(me, job_id, 0, 61_500)
            kicked_again += 1
    assert kicked_again
    assert work.done == min(bound, MANY)
    check(rig.engine)


def test_a_million_of_one_instant_are_not_looked_at_in_one_step() -> None:
    rig, _, topic = with_delayed([60_000] * MANY)
    seen = 0
    work = Kick(rig.engine, topic, 1)
    while not work.step(100, rig.now_ms):
        seen += 1
    assert seen >= MANY // 100
    assert ready(topic) == [1]
