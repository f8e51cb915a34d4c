"""Whether a target may be set: what is not its shape."""

from dataclasses import replace

import pytest

from delayd.access.signing_secrets import Secrets
from delayd.access.topic_rule import TopicRule
from delayd.core.errors import NotForTopic, TargetRefused
from delayd.core.policy import Patterns, Policy
from delayd.core.targets import Target
from delayd.push.egress import EgressRules
from delayd.push.vetting import TargetRules
from tests.access.secret_samples import named

URL = "https://hooks.example/jobs"


def refusal(rules: TargetRules, target: Target) -> TargetRefused:
    with pytest.raises(TargetRefused) as refused:
        rules.vet(target)
    return refused.value


@pytest.mark.parametrize(
    "name",
    ["Delayd_Topic", "Webhook_Id", "Content_Length", "Transfer_Encoding", "Content_Type", "Proxy"],
)
def test_a_header_that_some_receivers_take_for_delayds_own_is_not_set(name: str) -> None:
    refused = refusal(TargetRules(EgressRules(), None, ()), Target(url=URL, headers=((name, "a"),)))
    assert refused.field == "headers"
    assert f'"{name}"' in str(refused)
    assert "which no job may set" in str(refused)


# --- For which topics ----------------------------------------------------------------------------


def limited(**changes: object) -> TargetRules:
    """Secret and sink `b` are for the topics b*, `old` for all."""
    return TargetRules(
        EgressRules(),
        Secrets([replace(named("b", 1), topics=("b*",)), named("old", 2)]),
        {"b", "old"},
        sink_rules={"b": TopicRule(("b*",)), "old": TopicRule(None)},
        **changes,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("target", "field"),
    [(Target(url=URL, secrets=("old", "b")), "secrets"), (Target(sink="b"), "sink")],
)
def test_a_secret_and_a_sink_are_used_by_their_topics_alone(target: Target, field: str) -> None:
    rules = limited()
    rules.vet_use(target, "b1")
    with pytest.raises(
        NotForTopic, match=r"'b' is for the topics b\*, and not for 'a'$"
    ) as refused:
        rules.vet_use(target, "a")
    assert refused.value.field == field
    patterns = {name: Policy(push=target) for name in ("b1", "b.*", "a", "*")}
    _, errors = rules.vet_patterns(Patterns(patterns))
    assert [error.partition(": ")[0] for error in errors] == ['topics."a".push', 'topics."*".push']


def test_a_target_that_names_no_secret_is_judged_by_those_that_are_usual() -> None:
    rules = limited(sign_with=("b",))
    rules.vet_use(Target(url=URL), "b1")
    rules.vet_use(Target(url=URL, secrets=("old",)), "a")
    rules.vet_use(Target(topic="a"), "a")
    with pytest.raises(NotForTopic, match=r"of push\.sign_with"):
        rules.vet_use(Target(url=URL), "a")


@pytest.mark.parametrize("url", ["http://x.example/?s3cret", "https://ada:s3cret@x.example/"])
def test_what_is_refused_says_no_query_and_no_password(url: str) -> None:
    refused = refusal(TargetRules(EgressRules(), None, ()), Target(url=url))
    assert "x.example" in str(refused)
    assert "s3cret" not in str(refused)
