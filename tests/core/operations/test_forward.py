"""Forwarding due jobs to another topic: what goes along, what is refused, that none is lost."""

from collections.abc import Callable

import pytest

from delayd.core.engine import Engine
from delayd.core.errors import (
    CapReached,
    Draining,
    JobNotFound,
    Refusal,
    TargetRefused,
)
from delayd.core.job_parts import Own, Retry, body_of, group_of, key_of, retry_of
from delayd.core.job_record import STATE_AT, State
from delayd.core.log_records import Kind
from delayd.core.operations.forward import forward
from delayd.core.operations.put import Conflict, find_key, put_keyed
from delayd.core.operations.topics import configure, set_policy
from delayd.core.policy import Patterns, Policy
from delayd.core.session import Session
from delayd.core.targets import Target
from delayd.core.times import RequestMs
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig, kinds_of


def with_push() -> EngineRig:
    rig = EngineRig()
    rig.engine.vet_target = lambda target: target
    return rig


def put_key(rig: EngineRig, topic: str, body: bytes) -> int:
    job_id, _ = put_keyed(
        rig.engine,
        rig.engine.store.topic(topic),
        b"order-17",
        Conflict.REJECT,
        priority=3,
        ttr_ms=7_000,
        body=body,
        now_ms=rig.now_ms,
        own=Own(Retry((5,)), group=b"g"),
    )
    return job_id


def held(rig: EngineRig, body: bytes = b"hi") -> tuple[Session, int]:
    """A session that holds a job with a key."""
    job_id = put_key(rig, "orders", body)
    me = rig.client("orders")
    assert rig.reserve(me) == job_id
    return me, job_id


def record_of(rig: EngineRig, job_id: int) -> bytes:
    record = rig.engine.store.jobs.get(job_id)
    assert record is not None
    return record


def push_to(rig: EngineRig, topic: str, target: str) -> None:
    set_policy(rig.engine, topic, Policy(push=Target(topic=target)), rig.now_ms)


def test_a_job_is_put_there_and_deleted_here_with_body_priority_ttr_key_and_group() -> None:
    rig = with_push()
    me, job_id = held(rig)
    new_id = forward(rig.engine, me, job_id, "mail", rig.now_ms)
    assert rig.engine.store.jobs.get(job_id) is None
    assert find_key(rig.engine, "mail", b"order-17") == new_id
    worker = rig.client("mail")
    assert rig.reserve(worker) == new_id
    assert body_of(record_of(rig, new_id)) == b"hi"
    assert (group_of(record_of(rig, new_id)), retry_of(record_of(rig, new_id))) == (b"g", None)
    assert worker.deadlines[new_id] == rig.now_ms + 7_000
    check(rig.engine)
    assert list(canonical(rig.replayed())) == list(canonical(rig.engine))


def test_the_put_comes_before_the_delete_and_both_are_of_one_turn() -> None:
    rig = with_push()
    me, job_id = held(rig)
    rig.take_log()
    forward(rig.engine, me, job_id, "mail", rig.now_ms)
    payload, must_sync = rig.take_log()
    assert kinds_of(payload) == [Kind.TOPIC, Kind.PUT, Kind.DELETE]
    assert must_sync


def test_a_key_that_is_taken_there_is_not_taken_over_and_no_job_is_lost() -> None:
    rig = with_push()
    there = put_key(rig, "mail", b"first")
    me, job_id = held(rig, b"second")
    new_id = forward(rig.engine, me, job_id, "mail", rig.now_ms)
    assert find_key(rig.engine, "mail", b"order-17") == there
    assert key_of(record_of(rig, new_id)) == b""
    assert rig.reserve_all(rig.client("mail")) == [there, new_id]


def test_waiting_workers_of_the_other_topic_get_the_job_at_once() -> None:
    rig = with_push()
    worker = rig.client("mail")
    rig.wait(worker)
    me, job_id = held(rig)
    new_id = forward(rig.engine, me, job_id, "mail", rig.now_ms)
    assert rig.delivered() == [(worker, new_id)]


def test_the_policy_of_the_other_topic_holds() -> None:
    rig = with_push()
    set_policy(rig.engine, "mail", Policy(delay_ms=500), rig.now_ms)
    me, job_id = held(rig)
    new_id = forward(rig.engine, me, job_id, "mail", rig.now_ms)
    assert State(record_of(rig, new_id)[STATE_AT]) is State.DELAYED


def forbid_jobs(engine: Engine) -> None:
    set_policy(engine, "mail", Policy(jobs_max=1), RequestMs(0))
    engine.store.topic("mail")


def drain(engine: Engine) -> None:
    engine.draining = True


@pytest.mark.parametrize(("cause", "refusal"), [(forbid_jobs, CapReached), (drain, Draining)])
def test_what_the_other_topic_refuses_changes_nothing(
    cause: Callable[[Engine], None], refusal: type[Refusal]
) -> None:
    rig = with_push()
    put_key(rig, "mail", b"first")
    me, job_id = held(rig)
    cause(rig.engine)
    rig.take_log()
    before = list(canonical(rig.engine))
    with pytest.raises(refusal):
        forward(rig.engine, me, job_id, "mail", rig.now_ms)
    assert list(canonical(rig.engine)) == before
    assert rig.take_log()[0] == b""


def test_a_topic_that_only_a_refused_job_would_have_made_is_not_there() -> None:
    rig = with_push()
    me, job_id = held(rig)
    rig.engine.draining = True
    with pytest.raises(Draining):
        forward(rig.engine, me, job_id, "mail", rig.now_ms)
    assert "mail" not in rig.engine.store.topics.by_name


def test_only_who_holds_the_job_can_forward_it() -> None:
    rig = with_push()
    me, job_id = held(rig)
    with pytest.raises(JobNotFound):
        forward(rig.engine, rig.client("orders"), job_id, "mail", rig.now_ms)
    rig.play(7_000)
    with pytest.raises(JobNotFound):
        forward(rig.engine, me, job_id, "mail", rig.now_ms)
    assert "mail" not in rig.engine.store.topics.by_name


# --- Circles -------------------------------------------------------------------------------------


def test_a_policy_that_would_close_a_circle_is_refused_with_the_way() -> None:
    rig = with_push()
    push_to(rig, "a", "b")
    push_to(rig, "b", "c")
    with pytest.raises(
        TargetRefused, match=r"^topic 'a' must not push round in a circle: c, a, b, c$"
    ):
        push_to(rig, "c", "a")
    push_to(rig, "c", "d")


def test_a_circle_by_way_of_configured_patterns_is_refused() -> None:
    rig = with_push()
    configure(rig.engine, Patterns({"b*": Policy(push=Target(topic="a"))}))
    with pytest.raises(TargetRefused, match=r"a, b7, a$"):
        push_to(rig, "a", "b7")


def test_a_way_that_is_too_long_is_refused() -> None:
    rig = with_push()
    for number in reversed(range(15)):
        push_to(rig, f"t{number}", f"t{number + 1}")
    with pytest.raises(TargetRefused, match=r"circle"):
        push_to(rig, "t", "t0")


def test_a_job_in_a_circle_that_a_new_configuration_has_closed_is_not_forwarded() -> None:
    rig = with_push()
    push_to(rig, "orders", "mail")
    rig.restart()
    configure(rig.engine, Patterns({"mail": Policy(push=Target(topic="orders"))}))
    me, job_id = held(rig)
    with pytest.raises(TargetRefused, match=r"circle: orders, mail, orders$"):
        forward(rig.engine, me, job_id, "mail", rig.now_ms)
    assert job_id in me.deadlines
