"""Push: which targets may be set, what a job's own costs, and the ladder of what is pushed."""

from typing import Final

import pytest

from delayd.core.errors import NotForTopic, TargetRefused
from delayd.core.job_parts import Own, Retry, tally_of
from delayd.core.job_record import State, state_of
from delayd.core.operations.checks import vetted_own
from delayd.core.operations.push import undeliverable
from delayd.core.operations.topics import SetPolicy, policy_of, set_policy
from delayd.core.policy import Policy, parse_ladder
from delayd.core.retry import PUSH_STEPS_MS
from delayd.core.targets import Target, pack_own
from tests.core.canonical import canonical
from tests.rigs.engine import EngineRig

URL: Final = "https://example.com/jobs"
OWN: Final = b"POST https://example.com/own\nX-Team: mail"
LADDER_MS: Final = parse_ladder("15s 3m 10m 30m 30m 1h 2h 6h 15h")


def normalised(target: Target) -> Target:
    """What may be called is kept in lower case; nothing of `example.org` may be."""
    if target.sink:
        raise TargetRefused(f"sink {target.sink!r}:", "there is none of that name")
    if "example.org" in target.url:
        raise TargetRefused(f"url {target.url!r}", "must be of a host in push.hosts")
    return target._replace(url=target.url.lower())


def only_b(_target: Target, topic: str) -> None:
    if not topic.startswith("b"):
        raise NotForTopic("secret 'b'", f"is for the topics b*, and not for {topic!r}", "secrets")


@pytest.fixture
def rig() -> EngineRig:
    rig = EngineRig()
    rig.engine.vet_target = normalised
    return rig


# --- Setting a target ----------------------------------------------------------------------------


def test_a_target_is_kept_as_it_is_vetted(rig: EngineRig) -> None:
    kept = rig.set_policy("mail", jobs_max=7, push=Target(url="HTTPS://EXAMPLE.COM/"))
    assert kept == Policy(jobs_max=7, push=Target(url="https://example.com/"))
    assert policy_of(rig.engine, "mail")[0] == kept


def test_a_url_that_is_too_long_when_it_is_encoded_is_refused(rig: EngineRig) -> None:
    rig.engine.vet_target = lambda target: target._replace(url=target.url + "a" * 2_048)
    with pytest.raises(TargetRefused, match="has more than 2048 bytes when encoded"):
        rig.set_policy("mail", push=Target(url=URL))


def test_topics_whose_jobs_may_not_be_delivered_any_more_are_told_without_secrets(
    rig: EngineRig,
) -> None:
    """As at a start with another configuration, and when it is read again."""
    rig.engine.vet_target = lambda target: target
    for name, push in (
        ("good", Target(url=URL)),
        ("bad", Target(url="https://example.org/s3cret?key=s3cret")),
        ("sunk", Target(sink="gone")),
    ):
        rig.set_policy(name, push=push)
    own_id = rig.put("own", target=pack_own("POST", URL, ()))
    assert list(undeliverable(rig.engine)) == []
    rig.engine.vet_target = normalised
    assert dict(undeliverable(rig.engine)) == {
        "bad": "url 'https://example.org/' must be of a host in push.hosts",
        "sunk": "sink 'gone': there is none of that name",
    }
    rig.engine.vet_target = None
    off = "push.enabled is false"
    assert dict(undeliverable(rig.engine)) == dict.fromkeys(("good", "bad", "sunk", "own"), off)
    assert state_of(rig.record(own_id)) is State.READY


def test_a_target_that_is_not_for_the_topic_is_refused_and_named_at_a_start(rig: EngineRig) -> None:
    policy = Policy(push=Target(url=URL, secrets=("b",)))
    rig.set_policy("before", policy)
    rig.set_policy("other", policy)
    rig.put("own", target=pack_own("POST", URL, ()))
    rig.engine.vet_use = only_b
    rig.set_policy("b1", policy)
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
    assert dict(undeliverable(rig.engine)) == {name: said.format(name) for name in ("other", "own")}


def test_a_way_round_many_topics_is_refused_as_a_circle(rig: EngineRig) -> None:
    for number in reversed(range(15)):
        rig.set_policy(f"t{number}", push=Target(topic=f"t{number + 1}"))
    with pytest.raises(TargetRefused, match=r"circle"):
        rig.set_policy("t", push=Target(topic="t0"))


# --- A job's own target --------------------------------------------------------------------------


def test_a_jobs_target_takes_log_space_as_a_body_as_long_does() -> None:
    long = b"POST https://example.com/".ljust(6_000, b"a")
    spent_bytes = []
    for target, body_bytes in ((long, 0), (b"", 6_000)):
        rig = EngineRig()
        rig.engine.log_space.limit(1 << 30, lambda *_: 0)
        rig.put_keyed(b"key", ttr_ms=1, body=b"b" * body_bytes, own=Own(target=target))
        spent_bytes.append((1 << 30) - rig.engine.log_space.free_bytes)
    assert spent_bytes[0] == spent_bytes[1] + 2 * 2  # twice the length of the part


@pytest.mark.parametrize(
    ("policy", "retry", "expected_ms"),
    [
        (None, None, LADDER_MS),
        (Policy(push=Target(topic="out")), None, LADDER_MS),
        (Policy(jobs_max=9), None, LADDER_MS),
        (Policy(retry_ms=(7,)), None, (7,)),
        (Policy(retry_ms=(7, 8)), Retry((9,)), (9,)),
        (None, Retry((9, 10)), (9, 10)),
        (None, Retry(attempts_max=3), LADDER_MS[:2]),
        (Policy(attempts_max=2), None, LADDER_MS[:1]),
        (Policy(attempts_max=2), Retry(attempts_max=3), LADDER_MS[:2]),
        (Policy(retry_ms=(7, 8, 9)), Retry(attempts_max=2), (7,)),
    ],
)
def test_what_is_pushed_climbs_a_ladder_unless_another_wins_and_attempts_end_any(
    rig: EngineRig, policy: Policy | None, retry: Retry | None, expected_ms: tuple[int, ...]
) -> None:
    assert LADDER_MS == PUSH_STEPS_MS
    me = rig.client()
    rig.set_policy("default", policy)
    rig.put(retry=retry, target=b"" if policy and policy.push else OWN)
    waits_ms: list[int] = []
    while rig.reserve(me):
        rig.nack(me, 1)
        if rig.view(1).state is State.DELAYED:
            waits_ms.append(tally_of(rig.record(1)).delay_ms)
            rig.play(rig.time_ms + waits_ms[-1])
    assert tuple(waits_ms) == expected_ms
    assert rig.view(1).state is State.BURIED

    rig.agree_with_the_log()
