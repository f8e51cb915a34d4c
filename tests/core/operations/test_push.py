"""Push: which targets may be set, which jobs are handed out, and what becomes of them."""

import pytest

from delayd.core.errors import PushIsOff, TargetRefused, TopicIsInternal
from delayd.core.names import INTERNAL_TOPIC
from delayd.core.operations.topics import SetPolicy, policy_of, set_policy
from delayd.core.policy import Policy
from delayd.core.targets import Target
from tests.core.canonical import canonical
from tests.core.rig import EngineRig

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


def test_a_url_that_is_too_long_when_it_is_encoded_is_refused() -> None:
    rig = with_push()
    rig.engine.vet_target = lambda target: target._replace(url=target.url + "a" * 2_048)
    with pytest.raises(TargetRefused, match="has more than 2048 bytes when encoded"):
        set_policy(rig.engine, "mail", Policy(push=Target(url=URL)), rig.now_ms)


def test_a_topic_is_not_its_own_target_and_the_internal_topic_is_none() -> None:
    rig = with_push()
    with pytest.raises(TargetRefused, match=r"^topic 'mail' must not be its own target$"):
        set_policy(rig.engine, "mail", Policy(push=Target(topic="mail")), rig.now_ms)
    with pytest.raises(TopicIsInternal):
        set_policy(rig.engine, "mail", Policy(push=Target(topic=INTERNAL_TOPIC)), rig.now_ms)
