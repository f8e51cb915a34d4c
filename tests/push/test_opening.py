"""Whether a target may be set: what is not its shape."""

from dataclasses import replace
from typing import TYPE_CHECKING, cast

import pytest

from delayd.access.signing_secrets import Secrets
from delayd.config import Config, SinkSection
from delayd.core.errors import NotForTopic, TargetRefused
from delayd.core.policy import Patterns, Policy
from delayd.core.targets import Target
from delayd.push.opening import Push
from tests.access.secret_samples import named

if TYPE_CHECKING:
    from delayd.push.sinks import Sink

URL = "https://hooks.example/jobs"


def refusal(push: Push, target: Target) -> TargetRefused:
    with pytest.raises(TargetRefused) as refused:
        push.vet(target)
    return refused.value


@pytest.mark.parametrize(
    "name",
    ["Delayd_Topic", "Webhook_Id", "Content_Length", "Transfer_Encoding", "Content_Type", "Proxy"],
)
def test_a_header_that_some_receivers_take_for_delayds_own_is_not_set(name: str) -> None:
    refused = refusal(Push(Config(), None, (), {}), Target(url=URL, headers=((name, "a"),)))
    assert refused.field == "headers"
    assert f'"{name}"' in str(refused)
    assert "which no job may set" in str(refused)


# --- For which topics ----------------------------------------------------------------------------


def limited(*sign_with: str) -> Push:
    """Secret and sink `b` are for the topics b*, `old` for all."""
    sinks = {"b": SinkSection("", {}, ("b*",)), "old": SinkSection("", {})}
    secrets = Secrets([replace(named("b", 1), topics=("b*",)), named("old", 2)])
    hand = dict.fromkeys(sinks, cast("Sink", None))
    return Push(Config(push_sign_with=sign_with, sinks=sinks), secrets, (), hand)


@pytest.mark.parametrize(
    ("target", "field"),
    [(Target(url=URL, secrets=("old", "b")), "secrets"), (Target(sink="b"), "sink")],
)
def test_a_secret_and_a_sink_are_used_by_their_topics_alone(target: Target, field: str) -> None:
    push = limited()
    push.vet_use(target, "b1")
    with pytest.raises(
        NotForTopic, match=r"'b' is for the topics b\*, and not for 'a'$"
    ) as refused:
        push.vet_use(target, "a")
    assert refused.value.field == field
    patterns = {name: Policy(push=target) for name in ("b1", "b.*", "a", "*")}
    _, errors = push.vet_patterns(Patterns(patterns))
    assert [error.partition(": ")[0] for error in errors] == ['topics."a".push', 'topics."*".push']


def test_a_target_that_names_no_secret_is_judged_by_those_that_are_usual() -> None:
    push = limited("b")
    push.vet_use(Target(url=URL), "b1")
    push.vet_use(Target(url=URL, secrets=("old",)), "a")
    push.vet_use(Target(topic="a"), "a")
    with pytest.raises(NotForTopic, match=r"of push\.sign_with"):
        push.vet_use(Target(url=URL), "a")


@pytest.mark.parametrize("url", ["http://x.example/?s3cret", "https://ada:s3cret@x.example/"])
def test_what_is_refused_says_no_query_and_no_password(url: str) -> None:
    refused = refusal(Push(Config(), None, (), {}), Target(url=url))
    assert "x.example" in str(refused)
    assert "s3cret" not in str(refused)
