"""Failed attempts under policies, one rule at a time, live and after a restart."""

from collections.abc import Iterator

import pytest

from delayd.core.job_parts import Failure, Own, Reason, Retry
from delayd.core.job_record import State
from delayd.core.log_records import Kind
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import nack as nack_job
from delayd.core.operations.attempts import release as release_job
from delayd.core.operations.put import Conflict, put_keyed
from delayd.core.operations.reserve import reserve_job
from delayd.core.operations.topics import configure, policy_of, set_policy
from delayd.core.policy import Patterns, Policy
from delayd.core.replay import Replay
from delayd.core.times import PlayedMs
from delayd.core.topic import Source
from delayd.limits import ERROR_BYTES_MAX
from tests.core import views
from tests.core.check import check
from tests.core.worlds import SECOND_MS, World, close, nack
from tests.rigs.engine import kinds_of


@pytest.fixture
def world() -> Iterator[World]:
    """A world that, whatever happened in it, is the same after a restart."""
    world = World("mail")
    yield world
    check(world.engine)
    world.crash()


def put_with(world: World, retry: Retry | None, key: bytes = b"") -> int:
    job_id, _ = put_keyed(
        world.engine,
        world.engine.store.topic("mail"),
        key,
        Conflict.REJECT,
        priority=0,
        ttr_ms=30 * SECOND_MS,
        body=b"hello",
        now_ms=world.now_ms,
        own=Own(retry),
    )
    return job_id


def times(came: list[tuple[int, bytes]]) -> list[int]:
    return [time_ms for time_ms, _ in came]


# --- Rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("late_ms", [0, 1, 9_999, 50_000])
def test_a_lapse_counts_from_the_deadline_however_late_its_slice_comes(
    world: World, late_ms: int
) -> None:
    world.set_policy("mail", retry="10s")
    world.rig.put("mail", ttr_ms=1_000)
    assert world.rig.reserve(world.worker) == 1
    world.engine.store.time_ms = PlayedMs(1_000 + late_ms)
    details = world.details(1)
    assert details.failure == Failure(Reason.TTR_RAN_OUT, 0, 1_000)
    assert world.state(1) is (State.DELAYED if late_ms < 10_000 else State.READY)


def test_an_error_is_cut_at_a_whole_character_and_the_last_one_known_stays(world: World) -> None:
    world.set_policy("mail", retry="1s 1s")
    put_with(world, None)
    world.rig.reserve(world.worker)
    nack_job(world.engine, world.worker, 1, world.now_ms, error="x" + "é" * ERROR_BYTES_MAX)
    error = "x" + "é" * (ERROR_BYTES_MAX // 2 - 1)
    assert world.details(1).error == error
    world.crash()
    assert times(world.run(1_000, close)) == [1_000]
    assert world.details(1).error == error


# --- Moved to another topic ----------------------------------------------------------------------


def test_a_lapse_moves_a_job_as_well_and_serves_who_waits_there(world: World) -> None:
    world.set_policy("mail", attempts_max=2, exhausted="dead")
    world.rig.put("mail", ttr_ms=1_000)
    world.rig.reserve(world.worker)
    nack_job(world.engine, world.worker, 1, world.now_ms, error="no route")
    world.rig.reserve(world.worker)
    undertaker = world.rig.client("dead")
    world.rig.wait(undertaker)
    world.rig.play(5_000)
    assert world.rig.delivered() == [(undertaker, 1)]
    details = world.details(1)
    assert (details.origin, details.error) == ("mail", "no route")


def test_a_job_that_was_moved_is_not_woken_by_what_its_old_topics_wheel_still_holds(
    world: World,
) -> None:
    world.set_policy("mail", attempts_max=1, exhausted="dead")
    world.rig.put("mail", delay_ms=5_000)  # whose entry stays in the bucket when it is reserved
    reserve_job(world.engine, world.worker, 1, world.now_ms)
    nack_job(world.engine, world.worker, 1, world.now_ms)
    reserve_job(world.engine, world.worker, 1, world.now_ms)
    release_job(world.engine, world.worker, 1, 0, 5_000, world.now_ms)
    check(world.engine)
    world.rig.play(5_000)
    check(world.engine)
    assert len(world.engine.store.topics.by_name["dead"].queues.ready) == 1
    assert not world.engine.store.topics.by_name["mail"].queues.ready


# --- Policies ------------------------------------------------------------------------------------


def test_a_policy_makes_its_topic_and_its_target_and_both_stay(world: World) -> None:
    world.set_policy("a", attempts_max=1, exhausted="b")
    world.crash()
    assert policy_of(world.engine, "a") == (Policy(attempts_max=1, exhausted="b"), Source.RUN_TIME)
    assert policy_of(world.engine, "b") == (Policy(), Source.CONFIGURATION)
    assert set_policy(world.engine, "a", None, world.now_ms) == Policy()
    for name in ("a", "b"):
        assert name not in world.engine.store.topics.by_name
        assert policy_of(world.engine, name) == (Policy(), Source.CONFIGURATION)


def test_of_a_topic_that_nobody_uses_is_said_what_would_hold() -> None:
    world = World("mail")
    theirs = Policy(retry_ms=(1_000,))
    configure(world.engine, Patterns({"order*": theirs}))
    assert policy_of(world.engine, "orders") == (theirs, Source.CONFIGURATION)
    assert policy_of(world.engine, "others") == (Policy(), Source.CONFIGURATION)
    assert "orders" not in world.engine.store.topics.by_name


def test_what_ran_out_before_a_policy_was_set_is_judged_by_what_held_then(world: World) -> None:
    world.rig.put("mail", ttr_ms=1_000)
    world.rig.reserve(world.worker)
    world.engine.store.time_ms = PlayedMs(1_000)
    world.set_policy("mail", retry="1h")
    assert world.state(1) is State.READY
    world.rig.reserve(world.rig.client("mail"))
    world.engine.store.time_ms = PlayedMs(2_000)
    set_policy(world.engine, "mail", None, world.now_ms)
    assert world.state(1) is State.DELAYED


def configured(world: World, patterns: dict[str, Policy], now_ms: int) -> list[Kind]:
    """Restart with this configuration; return what was recorded because of it."""
    world.rig.take_log()
    replay = Replay(world.rig.new_engine())
    for payload in world.rig.log:
        replay.play(payload)
    configure(replay.engine, Patterns(patterns))
    replay.finish(PlayedMs(now_ms))
    world.rig.engine = replay.engine
    check(replay.engine)
    world.worker = world.rig.client(*world.watched)
    return kinds_of(world.rig.take_log()[0])


def test_the_configuration_gives_a_topic_its_policy_and_the_log_says_so(world: World) -> None:
    configure(world.engine, Patterns({"ma*": Policy(retry_ms=(1_000,), exhausted="dead")}))
    world.rig.put("mail")
    payload, _ = world.rig.take_log()
    assert kinds_of(payload) == [Kind.TURN, Kind.TOPIC, Kind.TOPIC, Kind.POLICY, Kind.PUT]
    world.run(500, nack)
    world.crash()  # a restart without its configuration, which nothing needs
    assert times(world.run(5_000, nack)) == [1_000]
    assert views.view_topic(world.engine, "dead", world.now_ms).ready == 1


def test_a_changed_configuration_is_recorded_once_and_holds_for_what_ran_out_meanwhile() -> None:
    world = World("mail")
    world.rig.put("mail", ttr_ms=1_000)
    world.rig.reserve(world.worker)
    first = {"mail": Policy(retry_ms=(60_000,))}
    assert configured(world, first, now_ms=5_000) == [Kind.TURN, Kind.POLICY]
    assert world.state(1) is State.DELAYED
    world.crash()
    assert configured(world, first, now_ms=5_000) == []
    assert configured(world, {}, now_ms=5_000) == [Kind.TURN, Kind.POLICY]
    assert policy_of(world.engine, "mail") == (Policy(), Source.CONFIGURATION)


def test_a_policy_of_run_time_takes_the_place_of_the_configured_one_until_it_is_taken_back() -> (
    None
):
    world = World("mail")
    ours, theirs = Policy(jobs_max=5), Policy(retry_ms=(1_000,))
    configure(world.engine, Patterns({"mail": theirs}))
    assert policy_of(world.engine, "mail") == (theirs, Source.CONFIGURATION)
    world.rig.put("mail")
    assert configured(world, {"mail": theirs}, 0) == []
    assert policy_of(world.engine, "mail") == (theirs, Source.CONFIGURATION)
    assert set_policy(world.engine, "mail", ours, world.now_ms) == ours
    assert configured(world, {"mail": theirs}, 0) == []
    assert policy_of(world.engine, "mail") == (ours, Source.RUN_TIME)
    assert set_policy(world.engine, "mail", Policy(), world.now_ms) == theirs
    assert policy_of(world.engine, "mail") == (theirs, Source.CONFIGURATION)


def test_a_topic_that_comes_back_has_what_is_configured_then_and_no_more_what_was(
    world: World,
) -> None:
    configure(world.engine, Patterns({"a": Policy(attempts_max=1)}))
    world.rig.put("a")
    delete(world.engine, world.worker, 1, world.now_ms)
    assert "a" not in world.engine.store.topics.by_name
    configure(world.engine, None)
    world.rig.put("a", ttr_ms=1_000)
    reserve_job(world.engine, world.worker, 2, world.now_ms)
    world.rig.play(1_000)
    assert world.state(2) is State.READY
    world.crash()
    assert world.state(2) is State.READY
