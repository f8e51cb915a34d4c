"""Push: which targets may be set, which jobs are handed out, and what becomes of them."""

from contextlib import nullcontext
from typing import Any

import pytest

from delayd.core.errors import CapReached, NotForTopic, PushIsOff, TargetRefused, TopicIsInternal
from delayd.core.job_parts import Own, Retry, body_of, tally_of, target_of
from delayd.core.job_record import State, state_of
from delayd.core.names import INTERNAL_TOPIC
from delayd.core.operations.attempts import bury, nack
from delayd.core.operations.change import change, kick_job, reschedule
from delayd.core.operations.checks import vetted_own
from delayd.core.operations.push import undeliverable
from delayd.core.operations.put import Conflict, put_keyed
from delayd.core.operations.topics import SetPolicy, policy_of, set_policy
from delayd.core.policy import Policy, parse_ladder
from delayd.core.retry import PUSH_STEPS_MS
from delayd.core.targets import Target, pack_own
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import TTR_MS, EngineRig, kick, put

URL = "https://example.com/jobs"


def normalised(target: Target) -> Target:
    """What may be called is kept in lower case; nothing of `example.org` may be."""
    if "example.org" in target.url:
        raise TargetRefused(f"url {target.url!r}", "must be of a host in push.hosts")
    return target._replace(url=target.url.lower())


def with_push() -> EngineRig:
    rig = EngineRig()
    rig.engine.vet_target = normalised
    return rig


# --- Setting a target ----------------------------------------------------------------------------


def test_a_policy_with_a_target_is_refused_where_push_is_off() -> None:
    rig = EngineRig()
    before = list(canonical(rig.engine))
    for policy in (Policy(push=Target(url=URL)), Policy(push=Target(topic="out"))):
        with pytest.raises(PushIsOff):
            set_policy(rig.engine, "mail", policy, rig.now_ms)
        with pytest.raises(PushIsOff):
            SetPolicy(rig.engine, "mail", policy)
    assert list(canonical(rig.engine)) == before


def test_a_target_that_may_not_be_called_is_refused_with_the_rule() -> None:
    rig = with_push()
    before = list(canonical(rig.engine))
    policy = Policy(push=Target(url="https://example.org/"))
    with pytest.raises(TargetRefused, match=r"^url 'https://example.org/' must be of a host in"):
        set_policy(rig.engine, "mail", policy, rig.now_ms)
    assert list(canonical(rig.engine)) == before


def test_a_target_is_kept_as_it_is_vetted() -> None:
    rig = with_push()
    policy = Policy(jobs_max=7, push=Target(url="HTTPS://EXAMPLE.COM/"))
    kept = set_policy(rig.engine, "mail", policy, rig.now_ms)
    assert kept == Policy(jobs_max=7, push=Target(url="https://example.com/"))
    assert policy_of(rig.engine, "mail")[0] == kept


def test_topics_whose_jobs_may_not_be_delivered_any_more_are_told_without_secrets() -> None:
    """As at a start with another configuration, and when it is read again."""
    rig = with_push()
    rig.engine.vet_target = lambda target: target
    for name, push in (
        ("good", Target(url=URL)),
        ("bad", Target(url="https://example.org/s3cret?key=s3cret")),
        ("sunk", Target(sink="gone")),
    ):
        set_policy(rig.engine, name, Policy(push=push), rig.now_ms)
    own_id = rig.put("own", target=pack_own("POST", URL, ()))
    assert list(undeliverable(rig.engine)) == []

    def vet(target: Target) -> Target:
        if target.sink:
            raise TargetRefused(f"sink {target.sink!r}:", "there is none of that name")
        return normalised(target)

    rig.engine.vet_target = vet
    assert dict(undeliverable(rig.engine)) == {
        "bad": "url 'https://example.org/' must be of a host in push.hosts",
        "sunk": "sink 'gone': there is none of that name",
    }
    rig.engine.vet_target = None
    off = "push.enabled is false"
    assert dict(undeliverable(rig.engine)) == dict.fromkeys(("good", "bad", "sunk", "own"), off)
    assert state_of(rig.engine.store.jobs.get(own_id) or b"") is State.READY


def only_b(_target: Target, topic: str) -> None:
    if not topic.startswith("b"):
        raise NotForTopic("secret 'b'", f"is for the topics b*, and not for {topic!r}", "secrets")


def test_a_target_that_is_not_for_the_topic_is_refused_and_named_at_a_start() -> None:
    rig = with_push()
    policy = Policy(push=Target(url=URL, secrets=("b",)))
    set_policy(rig.engine, "before", policy, rig.now_ms)
    set_policy(rig.engine, "other", policy, rig.now_ms)
    rig.put("own", target=pack_own("POST", URL, ()))
    rig.engine.vet_use = only_b
    set_policy(rig.engine, "b1", policy, rig.now_ms)
    before = list(canonical(rig.engine))
    for ask in (set_policy, lambda engine, name, policy, _: SetPolicy(engine, name, policy)):
        with pytest.raises(NotForTopic, match=r"^secret 'b' is for") as refused:
            ask(rig.engine, "a", policy, rig.now_ms)
        assert refused.value.field == "push.secrets"
    with pytest.raises(NotForTopic):
        vetted_own(rig.engine, Target(url=URL), "a")
    assert vetted_own(rig.engine, Target(url=URL), "b2")
    assert list(canonical(rig.engine)) == before
    said = "secret 'b' is for the topics b*, and not for {!r}"
    assert dict(undeliverable(rig.engine)) == {
        "other": said.format("other"),
        "own": said.format("own"),
    }


def test_a_url_that_is_too_long_when_it_is_encoded_is_refused() -> None:
    rig = with_push()
    rig.engine.vet_target = lambda target: target._replace(url=target.url + "a" * 2_048)
    with pytest.raises(TargetRefused, match="has more than 2048 bytes when encoded"):
        set_policy(rig.engine, "mail", Policy(push=Target(url=URL)), rig.now_ms)


def test_a_topic_is_not_its_own_target_and_the_internal_topic_is_none() -> None:
    rig = with_push()
    with pytest.raises(TargetRefused, match=r"^topic 'mail' must not push round in a circle: mail"):
        set_policy(rig.engine, "mail", Policy(push=Target(topic="mail")), rig.now_ms)
    with pytest.raises(TopicIsInternal):
        set_policy(rig.engine, "mail", Policy(push=Target(topic=INTERNAL_TOPIC)), rig.now_ms)


# --- A job's own target --------------------------------------------------------------------------

OWN = b"POST https://example.com/own\nX-Team: mail"
MINUTE_MS = 60_000
LADDER_MS = parse_ladder("15s 3m 10m 30m 30m 1h 2h 6h 15h")


def record_of(rig: EngineRig, job_id: int) -> bytes:
    record = rig.engine.store.jobs.get(job_id)
    assert record is not None
    return record


def put_under_key(rig: EngineRig, on: Conflict, target: bytes, *, topic: str = "default") -> int:
    job_id, _ = put_keyed(
        rig.engine,
        rig.engine.store.topic(topic),
        b"key",
        on,
        priority=0,
        delay_ms=500,
        ttr_ms=MINUTE_MS,
        body=b"body",
        own=Own(target=target),
        now_ms=rig.now_ms,
    )
    return job_id


def agree_with_the_log(rig: EngineRig) -> None:
    check(rig.engine)
    assert list(canonical(rig.replayed())) == list(canonical(rig.engine))


def test_a_job_keeps_its_target_whatever_happens_to_it() -> None:
    rig = EngineRig()
    engine, me = rig.engine, rig.client("default", "failed")
    policy = Policy(retry_ms=(1_000,), exhausted="failed")
    set_policy(engine, "default", policy, rig.now_ms)
    job_id = rig.put(body=b"body", target=OWN, delay_ms=100)
    reschedule(engine, job_id, 5, rig.now_ms)
    reschedule(engine, job_id, 0, rig.now_ms, 7)
    change(engine, job_id, rig.now_ms, priority=7)
    change(engine, job_id, rig.now_ms, body=b"changed")
    kick_job(engine, job_id, rig.now_ms)
    assert rig.reserve(me) == job_id
    nack(engine, me, job_id, rig.now_ms, error="no")
    agree_with_the_log(rig)
    rig.play(1_000)
    assert rig.reserve(me) == job_id
    rig.play(rig.time_ms + TTR_MS)  # the ttr runs out, the ladder is used up
    assert rig.engine.store.topic_of(record_of(rig, job_id)).name == "failed"
    assert rig.reserve(me) == job_id
    bury(engine, me, job_id, 0, rig.now_ms)
    kick(engine, engine.store.topic("failed"), 1, rig.now_ms)
    agree_with_the_log(rig)
    record = record_of(rig, job_id)
    assert (target_of(record), body_of(record)) == (OWN, b"changed")
    rig.restart()
    assert record_of(rig, job_id) == record


def test_a_put_under_a_taken_key_says_where_the_job_goes_unless_it_only_extends_it() -> None:
    other = b"POST https://example.com/other"
    for on, target in (
        (Conflict.KEEP, OWN),
        (Conflict.EXTEND, OWN),
        (Conflict.PRESERVE, other),
        (Conflict.REPLACE, other),
    ):
        rig = EngineRig()
        job_id = put_under_key(rig, Conflict.REJECT, OWN)
        assert put_under_key(rig, on, other) == job_id
        assert target_of(record_of(rig, job_id)) == target
        agree_with_the_log(rig)


def test_a_job_has_no_target_of_its_own_where_the_topic_has_one() -> None:
    rig = with_push()
    set_policy(rig.engine, "mail", Policy(push=Target(url=URL)), rig.now_ms)
    before = list(canonical(rig.engine))
    with pytest.raises(TargetRefused, match=r"^url cannot be given: topic 'mail' has a target$"):
        put_under_key(rig, Conflict.REJECT, OWN, topic="mail")
    assert list(canonical(rig.engine)) == before
    put_under_key(rig, Conflict.REJECT, b"", topic="mail")


def test_a_jobs_target_counts_for_the_caps_of_its_topic() -> None:
    rig = EngineRig()
    put_under_key(rig, Conflict.REJECT, OWN)
    held_bytes = rig.engine.store.topic("default").bytes
    for spare, is_taken in ((0, True), (-1, False)):
        policy = Policy(bytes_max=held_bytes + spare)
        rig = EngineRig()
        set_policy(rig.engine, "default", policy, rig.now_ms)
        with nullcontext() if is_taken else pytest.raises(CapReached):
            put_under_key(rig, Conflict.REJECT, OWN)


def test_a_jobs_target_takes_log_space() -> None:
    """What the log must take of one with a long target is what it takes of a body as long."""
    long = b"POST https://example.com/".ljust(6_000, b"a")
    spent_bytes = []
    for target, body_bytes in ((long, 0), (b"", 6_000)):
        rig = EngineRig()
        rig.engine.log_space.limit(1 << 30, lambda *_: 0)
        put_keyed(
            *(rig.engine, rig.engine.store.topic("default"), b"key"),
            priority=0,
            ttr_ms=1,
            now_ms=rig.now_ms,
            body=b"b" * body_bytes,
            own=Own(target=target),
        )
        spent_bytes.append((1 << 30) - rig.engine.log_space.free_bytes)
    assert spent_bytes[0] == spent_bytes[1] + 2 * 2  # twice the length of the part


# --- The retry rule ------------------------------------------------------------------------------


def waits_ms(rig: EngineRig, topic: str = "default") -> list[int]:
    """Let each attempt fail, and say how long the job waited after each, until it is buried."""
    me = rig.client(topic)
    found: list[int] = []
    while (job_id := rig.reserve(me)) and len(found) < 99:
        topic_of_job = rig.engine.store.topic_of(record_of(rig, job_id))
        if topic_of_job.name != topic:
            break
        nack(rig.engine, me, job_id, rig.now_ms)
        if state_of(record_of(rig, job_id)) is not State.DELAYED:
            break
        found.append(tally_of(record_of(rig, job_id)).delay_ms)
        rig.play(rig.time_ms + found[-1])
    agree_with_the_log(rig)
    return found


def test_a_job_with_a_target_climbs_the_ladder_of_pushed_jobs() -> None:
    rig = EngineRig()
    rig.put(target=OWN)
    assert tuple(waits_ms(rig)) == LADDER_MS == PUSH_STEPS_MS
    assert state_of(record_of(rig, 1)) is State.BURIED


def test_a_job_of_a_topic_with_a_target_climbs_it_too() -> None:
    rig = with_push()
    set_policy(rig.engine, "mail", Policy(push=Target(sink="s")), rig.now_ms)
    rig.put("mail")
    assert tuple(waits_ms(rig, "mail")) == LADDER_MS


@pytest.mark.parametrize(
    ("policy", "retry", "expected_ms"),
    [
        (Policy(retry_ms=(7,)), None, (7,)),
        (Policy(retry_ms=(7, 8)), Retry((9,)), (9,)),
        (None, Retry((9, 10)), (9, 10)),
        (None, Retry(attempts_max=3), LADDER_MS[:2]),
        (Policy(attempts_max=2), None, LADDER_MS[:1]),
        (Policy(attempts_max=2), Retry(attempts_max=3), LADDER_MS[:2]),
        (Policy(retry_ms=(7, 8, 9)), Retry(attempts_max=2), (7,)),
        (Policy(jobs_max=9), None, LADDER_MS),
    ],
)
def test_another_ladder_wins_and_a_number_of_attempts_ends_any(
    policy: Policy | None, retry: Retry | None, expected_ms: tuple[int, ...]
) -> None:
    rig = EngineRig()
    set_policy(rig.engine, "default", policy, rig.now_ms)
    what: dict[str, Any] = {"priority": 0, "ttr_ms": TTR_MS, "body": b"", "now_ms": rig.now_ms}
    put(rig.engine, rig.engine.store.topic("default"), retry=retry, target=OWN, **what)
    assert tuple(waits_ms(rig)) == expected_ms


def test_what_time_ends_climbs_the_same_ladder_in_a_replay() -> None:
    rig = EngineRig()
    me = rig.client()
    rig.put(target=OWN, ttr_ms=1_000)
    assert rig.reserve(me) == 1
    rig.play(1_000)
    record = record_of(rig, 1)
    assert (state_of(record), tally_of(record).delay_ms) == (State.DELAYED, LADDER_MS[0])
    agree_with_the_log(rig)


def test_a_job_that_was_moved_is_not_pushed_and_climbs_no_ladder_there() -> None:
    rig = EngineRig()
    policy = Policy(retry_ms=(5,), exhausted="failed")
    set_policy(rig.engine, "default", policy, rig.now_ms)
    rig.put(target=OWN)
    assert waits_ms(rig) == [5]
    assert waits_ms(rig, "failed") == []
    assert state_of(record_of(rig, 1)) is State.READY
