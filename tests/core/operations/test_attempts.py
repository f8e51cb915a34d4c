"""Failed attempts under configured policies, and what is taken back. Single rules: facts.txt."""

import random
from collections.abc import Callable

import pytest

from delayd.core.job_parts import Own, Reason, Retry
from delayd.core.job_record import State
from delayd.core.log_records import Kind
from delayd.core.operations.sessions import leave
from delayd.core.operations.tick import caught_up
from delayd.core.operations.topics import configure, policy_of
from delayd.core.policy import Patterns, Policy
from delayd.core.replay import Replay
from delayd.core.times import PlayedMs
from delayd.core.topic import Source
from delayd.limits import ERROR_BYTES_MAX, HELD_RETURN_BYTES
from tests.core.check import check
from tests.core.worlds import World
from tests.rigs.engine import EngineRig


def test_an_error_is_cut_at_a_whole_character(rig: EngineRig) -> None:
    me = rig.client()
    rig.put()
    rig.reserve(me)
    rig.nack(me, 1, error="x" + "é" * ERROR_BYTES_MAX)
    assert rig.details(1).error == "x" + "é" * (ERROR_BYTES_MAX // 2 - 1)
    rig.agree_with_the_log()


def configured(rig: EngineRig, patterns: dict[str, Policy], now_ms: int) -> list[Kind]:
    """Restart with this configuration; return what was recorded because of it."""
    rig.take_log()
    replay = Replay(rig.new_engine())
    for payload in rig.log:
        replay.play(payload)
    configure(replay.engine, Patterns(patterns))
    replay.finish(PlayedMs(now_ms))
    rig.engine = replay.engine
    check(replay.engine)
    return rig.kinds()


def test_a_changed_configuration_is_recorded_once_and_holds_for_what_ran_out_meanwhile(
    rig: EngineRig,
) -> None:
    rig.put("mail", ttr_ms=1_000)
    rig.reserve(rig.client("mail"))
    first = {"mail": Policy(retry_ms=(60_000,))}
    recorded = [Kind.TURN, Kind.POLICY]
    assert configured(rig, first, now_ms=5_000) == recorded
    assert caught_up(rig.engine, 1, rig.now_ms)[1] is State.DELAYED
    rig.agree_with_the_log()
    for patterns, expected in ((first, []), ({}, recorded), ({}, []), (first, recorded)):
        assert configured(rig, patterns, now_ms=5_000) == expected
        policy = patterns.get("mail", Policy())
        assert policy_of(rig.engine, "mail") == (policy, Source.CONFIGURATION)
    ours = Policy(jobs_max=5)
    assert rig.set_policy("mail", ours) == ours
    assert configured(rig, first, 5_000) == []
    assert policy_of(rig.engine, "mail") == (ours, Source.RUN_TIME)
    assert rig.set_policy("mail", Policy()) == first["mail"]


# --- Jobs that were handed out and of which no worker has heard ----------------------------------


def test_what_is_undelivered_takes_the_log_space_that_was_set_aside(rig: EngineRig) -> None:
    me = rig.client()
    rig.put()
    rig.reserve(me)
    rig.take_log()
    rig.engine.log_space.limit(0, lambda *_: -1)
    leave(rig.engine, me, Reason.UNDELIVERED, rig.now_ms)
    assert len(rig.take_log()[0]) <= HELD_RETURN_BYTES
    assert rig.engine.log_space.free_bytes == 0


@pytest.mark.parametrize("policy", [{}, {"retry": "1s 2s"}, {"max_attempts": 2}])
def test_played_back_it_is_what_it_was(
    policy: dict[str, object], rng: random.Random, share: Callable[[range], range]
) -> None:
    for _ in share(range(20)):
        world = World("mail", crashes=[rng.randrange(20_000) for _ in range(3)])
        world.set_policy("mail", **policy)
        rig = world.rig
        for _ in range(40):
            match rng.randrange(5):
                case 0:
                    own = Own(rng.choice([None, Retry((500,))]))
                    rig.put_keyed(b"", topic="mail", ttr_ms=rng.choice([1_000, 9_000]), own=own)
                case 1:
                    gone = rig.client("mail")
                    rig.reserve(gone)
                    leave(rig.engine, gone, Reason.UNDELIVERED, rig.now_ms)
                    rig.close(gone)
                case 2:
                    rig.reserve(world.worker)
                case 3:
                    leave(rig.engine, world.worker, Reason.UNDELIVERED, rig.now_ms)
                    world.worker = rig.client(*world.watched)
                case _:
                    world.pass_until(rig.time_ms + rng.choice([0, 500, 1_001]))
            rig.agree_with_the_log()
