"""Jobs that were handed out and of which nobody has heard; sessions that consume no more."""

import random
from collections.abc import Iterator

import pytest

from delayd.core.job_parts import Own, Reason, Retry
from delayd.core.job_record import State
from delayd.core.log_records import Kind
from delayd.core.operations.attempts import nack as nack_job
from delayd.core.operations.attempts import release
from delayd.core.operations.put import put_keyed
from delayd.core.operations.reserve import touch
from delayd.core.operations.sessions import close_session, leave, stop_consuming, watch
from delayd.core.session import Session
from delayd.core.times import PlayedMs
from delayd.limits import HELD_RETURN_BYTES
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.worlds import DAY_MS, SECOND_MS, World, finish, nack
from tests.rigs.engine import kinds_of


@pytest.fixture
def world() -> Iterator[World]:
    """A world that, whatever happened in it, is the same after a restart."""
    world = World("mail")
    yield world
    check(world.engine)
    world.crash()


def put(world: World, retry: Retry | None = None, *, ttr_ms: int = 30 * SECOND_MS) -> int:
    job_id, _ = put_keyed(
        world.engine,
        world.engine.store.topic("mail"),
        b"",
        priority=7,
        ttr_ms=ttr_ms,
        body=b"hello",
        now_ms=world.now_ms,
        own=Own(retry),
    )
    return job_id


def undelivered(world: World, times: int = 1) -> None:
    """Hand out a job to somebody who is gone before it is told, so often."""
    for _ in range(times):
        session = world.rig.client("mail")
        assert world.rig.reserve(session)
        leave(world.engine, session, Reason.UNDELIVERED, world.now_ms)
        close_session(world.engine, session, world.now_ms)


# --- Attempts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("retry", [None, Retry((60_000,)), Retry(attempts_max=1)])
def test_a_job_that_nobody_heard_of_is_ready_at_once_and_was_not_attempted(
    world: World, retry: Retry | None
) -> None:
    put(world, retry)
    undelivered(world, 3)
    details = world.details(1)
    assert (world.state(1), details.attempts) == (State.READY, 0)
    assert details.failure is not None
    assert details.failure.reason == Reason.UNDELIVERED
    view = views.view_job(world.engine, 1, world.now_ms)
    assert (view.reserves, view.releases, view.timeouts, view.priority) == (3, 0, 0, 7)


def test_the_ladder_begins_with_the_first_attempt_that_was_one(world: World) -> None:
    put(world, Retry((1_000, 2_000)))
    undelivered(world, 2)
    came = world.run(DAY_MS, nack)
    assert [time_ms for time_ms, _ in came] == [0, 1_000, 3_000]
    assert (world.state(1), world.details(1).attempts) == (State.BURIED, 3)


def test_between_attempts_it_costs_none_of_them(world: World) -> None:
    put(world, Retry((1_000, 2_000)))

    def act(world: World, job_id: int, body: bytes) -> None:
        nack(world, job_id, body)
        if len(world.came) == 1:
            world.pass_until(1_000)
            undelivered(world)

    assert [time_ms for time_ms, _ in world.run(DAY_MS, act)] == [0, 1_000, 3_000]


def test_without_a_rule_what_came_before_stays_counted(world: World) -> None:
    put(world)
    for _ in range(2):
        assert world.rig.reserve(world.worker)
        release(world.engine, world.worker, 1, 7, 0, world.now_ms)
    undelivered(world)
    assert world.details(1).attempts == 2


def test_what_is_known_of_the_last_failure_stays(world: World) -> None:
    put(world, Retry((1_000,)))
    assert world.rig.reserve(world.worker)
    nack_job(world.engine, world.worker, 1, world.now_ms, error="no luck")
    world.pass_until(1_000)
    undelivered(world)
    assert world.details(1).error == "no luck"


def test_everything_that_is_held_is_taken_back_in_its_order(world: World) -> None:
    for _ in range(5):
        put(world)
    assert world.rig.reserve_all(world.worker) == [1, 2, 3, 4, 5]
    leave(world.engine, world.worker, Reason.UNDELIVERED, world.now_ms)
    assert not world.worker.deadlines
    assert world.rig.reserve_all(world.rig.client("mail")) == [1, 2, 3, 4, 5]


def test_a_reservation_that_is_over_was_an_attempt(world: World) -> None:
    put(world, Retry((60_000,)), ttr_ms=1_000)
    put(world, ttr_ms=9_000)
    assert world.rig.reserve_all(world.worker) == [1, 2]
    world.engine.store.time_ms = PlayedMs(1_000)  # its slice has not come yet
    leave(world.engine, world.worker, Reason.UNDELIVERED, world.now_ms)
    assert (world.state(1), world.details(1).attempts) == (State.DELAYED, 1)
    assert (world.state(2), world.details(2).attempts) == (State.READY, 0)
    world.rig.run(world.rig.time_ms)


# --- The log -------------------------------------------------------------------------------------


def test_each_is_one_record_that_must_be_synced(world: World) -> None:
    for _ in range(3):
        put(world)
    world.rig.reserve_all(world.worker)
    world.rig.take_log()
    leave(world.engine, world.worker, Reason.UNDELIVERED, world.now_ms)
    payload, must_sync = world.rig.take_log()
    assert must_sync
    assert kinds_of(payload) == [Kind.FAIL] * 3


def test_where_there_is_space_for_nothing_it_is_not_refused(world: World) -> None:
    put(world)
    world.rig.reserve(world.worker)
    world.rig.take_log()
    world.engine.log_space.limit(0, lambda *_: -1)
    leave(world.engine, world.worker, Reason.UNDELIVERED, world.now_ms)
    payload, _ = world.rig.take_log()
    assert len(payload) <= HELD_RETURN_BYTES, "it takes no more than was set aside"
    assert world.engine.log_space.free_bytes == 0
    assert world.state(1) is State.READY


def test_of_nobody_nothing_is_taken(world: World) -> None:
    put(world)
    world.rig.take_log()
    leave(world.engine, Session(), Reason.UNDELIVERED, world.now_ms)
    assert world.rig.take_log() == (b"", False)


@pytest.mark.parametrize("policy", [{}, {"retry": "1s 2s"}, {"max_attempts": 2}])
def test_played_back_it_is_what_it_was(policy: dict[str, object], rng: random.Random) -> None:
    for _ in range(20):
        world = World("mail", crashes=[rng.randrange(20_000) for _ in range(3)])
        world.set_policy("mail", **policy)
        for _ in range(40):
            act = rng.randrange(5)
            if act == 0:
                put(world, rng.choice([None, Retry((500,))]), ttr_ms=rng.choice([1_000, 9_000]))
            elif act == 1 and world.engine.store.topics.by_name["mail"].queues.ready:
                undelivered(world)
            elif act == 2:
                world.rig.reserve(world.worker)
            elif act == 3:
                leave(world.engine, world.worker, Reason.UNDELIVERED, world.now_ms)
                world.worker = world.rig.client(*world.watched)
            else:
                world.pass_until(world.rig.time_ms + rng.choice([0, 500, 1_001]))
            check(world.engine)
            assert [*canonical(world.rig.replayed())] == [*canonical(world.engine)]


# --- Consuming no more ---------------------------------------------------------------------------


def test_who_consumes_no_more_goes_on_holding_what_it_holds(world: World) -> None:
    put(world, ttr_ms=5_000)
    assert world.rig.reserve(world.worker)
    stop_consuming(world.engine, world.worker)
    assert not world.worker.watched
    world.pass_until(4_999)
    assert world.state(1) is State.RESERVED
    touch(world.engine, world.worker, 1, world.now_ms)
    world.pass_until(9_998)
    finish(world, 1, b"")


def test_who_consumes_no_more_waits_no_more(world: World) -> None:
    world.rig.wait(world.worker, 1_000)
    stop_consuming(world.engine, world.worker)
    assert not world.worker.waiting
    put(world)
    world.pass_until(2_000)
    assert world.rig.delivered() == []
    assert world.state(1) is State.READY


def test_who_consumes_no_more_leaves_no_topic_behind() -> None:
    world = World()
    session = Session()
    for name in ("mail", "sms", "fax"):
        watch(world.engine, session, name)
    world.rig.put("sms", delay_ms=5_000)
    world.rig.wait(session)
    assert world.rig.delivered() == []
    stop_consuming(world.engine, session)
    assert {*world.engine.store.topics.by_name} == {"default", "sms"}
    assert world.engine.store.topics.by_name["sms"].watchers == 0
    stop_consuming(world.engine, session)
    check(world.engine)
