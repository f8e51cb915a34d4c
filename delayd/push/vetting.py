"""Whether a target may be set: its url may be called, its secrets and its sink exist.

And whether it may be set for a topic: a secret and a sink may be for some topics only. A url is
returned in the form in which it is kept and called. What is allowed may change while targets stay:
each call checks again, for the topic in which the job is then.

>>> rules = TargetRules(EgressRules(hosts=["hooks.example"]), None, ["orders"])
>>> rules.vet(Target(url="https://Hooks.example:443/a?b")).url
'https://hooks.example/a?b'
>>> rules.vet(Target(sink="order"))
Traceback (most recent call last):
delayd.core.errors.TargetRefused: sink 'order': there is none of that name; did you mean orders?
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from delayd.core.errors import TargetRefused
from delayd.core.policy import Patterns
from delayd.core.targets import Target, ambiguous_headers
from delayd.push.egress import EgressRules
from delayd.text import did_you_mean, shown_url

if TYPE_CHECKING:
    from delayd.access.signing_secrets import Secrets
    from delayd.access.topic_rule import TopicRule


class TargetRules:
    """What a configuration allows to be set."""

    __slots__ = ("_secrets", "_sign_with", "_sink_rules", "_sinks", "egress")

    def __init__(
        self,
        egress: EgressRules,
        secrets: "Secrets | None",
        sinks: Collection[str],
        *,
        sign_with: Sequence[str] = (),
        sink_rules: "Mapping[str, TopicRule]" = MappingProxyType({}),
    ) -> None:
        """`sinks` are the names of those that are configured, `sink_rules` for which topics.

        `sign_with` names the secrets of targets that name none.
        """
        self.egress = egress
        """What may be called."""
        self._secrets = secrets
        self._sinks = sinks
        self._sign_with = sign_with
        self._sink_rules = sink_rules

    def vet(self, target: Target) -> Target:
        """Return the target as it is to be kept. Raises `TargetRefused`."""
        unknown = target.secrets if self._secrets is None else self._secrets.unknown(target.secrets)
        if unknown:
            rule = "must be in the file of push.secrets"
            raise TargetRefused(f"secret {unknown[0]!r}", rule, field="secrets")
        if target.sink and target.sink not in self._sinks:
            hint = did_you_mean(target.sink, self._sinks)
            raise TargetRefused(f"sink {target.sink!r}:", f"there is none of that name{hint}")
        if not target.url:
            return target
        if rule := ambiguous_headers(target.headers):
            raise TargetRefused("headers:", rule, field="headers")
        try:
            return target._replace(url=self.egress.vet_url(target.url))
        except ValueError as error:
            raise TargetRefused(f"url {shown_url(target.url)!r}:", str(error)) from None

    def vet_use(self, target: Target, topic: str) -> None:
        """Raise `NotForTopic` if jobs of the topic may not use the target's secrets or sink."""
        if target.sink in self._sink_rules:
            self._sink_rules[target.sink].require(f"sink {target.sink!r}", topic, "sink")
        if target.url and self._secrets is not None:
            self._secrets.to_sign_with(topic, target.secrets, self._sign_with)

    def vet_patterns(self, patterns: Patterns) -> tuple[Patterns, list[str]]:
        """Return the policies of a configuration as they are kept, and all that is wrong."""
        by_pattern, errors = dict(patterns.by_pattern), []
        for pattern, policy in patterns.by_pattern.items():
            if policy.push is not None:
                try:
                    target = self.vet(policy.push)
                    # As if the pattern were a name: what it means beside is seen at each call.
                    self.vet_use(target, pattern)
                    by_pattern[pattern] = policy.replaced("push", target)
                except TargetRefused as refusal:
                    errors.append(f'topics."{pattern}".push: {refusal}')
        return Patterns(by_pattern), errors
