"""The topic sink: a due job goes to another topic of the same daemon, within one turn."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from delayd.core.operations.topics import configure, set_policy
from delayd.core.policy import Patterns, Policy
from delayd.core.session import Session
from delayd.core.targets import Target
from delayd.push.sinks import DELIVERED, AttemptEnd, Result
from delayd.push.topic_sink import TopicSink
from tests.push.test_sinks import JOB
from tests.rigs.engine import EngineRig


def at_once(coroutine: Coroutine[Any, Any, AttemptEnd]) -> AttemptEnd:
    """Run it as long as it awaits nothing, which is to the end."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: AttemptEnd = end.value
        return result
    raise AssertionError("it has awaited something")


def rig_with(*, target: str) -> tuple[EngineRig, Session, int, TopicSink]:
    """A session that holds a job of `mail`, whose policy names the other topic, and the sink."""
    rig = EngineRig()
    rig.engine.vet_target = lambda target: target
    set_policy(rig.engine, "mail", Policy(push=Target(topic=target)), rig.now_ms)
    job_id = rig.put("mail", body=b"hi")
    me = rig.client("mail")
    assert rig.reserve(me) == job_id
    return rig, me, job_id, TopicSink(rig.engine, me, lambda: rig.now_ms)


def test_a_job_is_moved_without_awaiting_anything() -> None:
    rig, me, job_id, sink = rig_with(target="out")
    assert at_once(sink.deliver(JOB._replace(id=job_id))) == DELIVERED
    assert not me.deadlines
    assert rig.reserve_all(rig.client("out")) == [job_id + 1]
    asyncio.run(sink.close())


def test_a_job_that_is_not_held_any_more_is_left_alone() -> None:
    rig, _, job_id, sink = rig_with(target="out")
    rig.play(60_000)
    rig.take_log()
    end = at_once(sink.deliver(JOB._replace(id=job_id)))
    assert (end.result, end.is_outage) == (Result.FAILED, False)
    assert rig.take_log()[0] == b""


def test_a_topic_that_is_full_is_an_outage() -> None:
    rig, _, job_id, sink = rig_with(target="out")
    rig.put("out")
    set_policy(rig.engine, "out", Policy(jobs_max=1), rig.now_ms)
    end = at_once(sink.deliver(JOB._replace(id=job_id)))
    assert (end.result, end.is_outage) == (Result.FAILED, True)
    assert "jobs_max" in end.error


def test_a_body_that_is_too_long_there_is_the_jobs_own_fault() -> None:
    rig, _, job_id, sink = rig_with(target="out")
    set_policy(rig.engine, "out", Policy(body_bytes_max=1), rig.now_ms)
    end = at_once(sink.deliver(JOB._replace(id=job_id)))
    assert (end.result, end.is_outage) == (Result.FAILED, False)


def test_a_circle_makes_a_dead_letter_at_once() -> None:
    rig, _, _, _ = rig_with(target="out")
    rig.restart()
    configure(rig.engine, Patterns({"out": Policy(push=Target(topic="mail"))}))
    me = rig.client("mail")
    job_id = rig.put("mail")
    assert job_id in rig.reserve_all(me)
    sink = TopicSink(rig.engine, me, lambda: rig.now_ms)
    end = at_once(sink.deliver(JOB._replace(id=job_id)))
    assert end.result is Result.EXHAUSTED
    assert end.error == "topic 'out' must not push round in a circle: mail, out, mail"


def test_a_topic_that_has_lost_its_target_meanwhile_keeps_the_job() -> None:
    rig, me, job_id, sink = rig_with(target="out")
    set_policy(rig.engine, "mail", None, rig.now_ms)
    end = at_once(sink.deliver(JOB._replace(id=job_id)))
    said = "topic 'mail' has no other topic as its target any more"
    assert end == AttemptEnd(Result.FAILED, said)
    assert job_id in me.deadlines
