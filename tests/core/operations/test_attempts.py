"""Failed attempts under configured policies, and what is taken back. Single rules: facts.txt."""

from delayd.core.job_record import State
from delayd.core.log_records import Kind
from delayd.core.operations.tick import caught_up
from delayd.core.operations.topics import policy_of
from delayd.core.policy import Patterns, Policy
from delayd.core.topic import Source
from delayd.limits import ERROR_BYTES_MAX
from tests.core.check import check
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
    rig.engine = rig.replayed(now_ms, Patterns(patterns))
    check(rig.engine)
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
