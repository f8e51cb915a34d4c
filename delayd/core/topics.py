"""Which topics there are: by name, by number, and in the order in which they are listed.

A topic exists as long as it is needed: used, watched, with jobs, with a policy of its own, or the
target of another topic's exhausted jobs. In a replay no topic is used or watched, so `keeps_all`
keeps all of them until it is over.

The store does what a policy changes for the jobs of its topic, and removes what belongs to a
removed topic.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final, final

from delayd.core.names import INTERNAL_TOPICS
from delayd.core.policy import Policy
from delayd.core.queues import Queues
from delayd.core.throttle import Block
from delayd.core.topic import Source, Topic
from delayd.limits import TOPICS_SHOWN_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCKS_WITHOUT_RULE: Final = int(Block.PAUSED | Block.HELD)


@final
class Topics:
    """All topics."""

    __slots__ = (
        *("by_name", "by_number", "internal", "is_capped", "keeps_all", "last_number", "listing"),
        *("own_policies", "policy_for", "shown"),
    )

    def __init__(self) -> None:
        self.by_name: dict[str, Topic] = {}
        self.by_number: dict[int, Topic] = {}
        """A number from before a clear stays here until no record has it."""
        self.listing: list[Topic] = []
        """In order of creation, a removed one's place taken by the last (beanstalkd)."""
        self.last_number = 0
        self.internal: dict[str, Topic] = {}
        """The internal topics that exist, by name; see `core.operations.checks`."""
        self.keeps_all = False
        """No topic is removed: a replay is running."""
        self.shown = 0
        """Topics whose metrics have their name."""
        self.is_capped = False
        """There is a cap on the jobs of all topics together, so every put is checked."""
        self.own_policies = 0
        """Topics that clients have given policies."""
        self.policy_for: Callable[[str], Policy | None] | None = None
        """The configured policy for a topic of that name; None during a replay."""

    def add(self, name: str, queues: Queues) -> Topic:
        """Make a topic with these queues; `number` must follow."""
        topic = Topic(name, queues)
        topic.place = len(self.listing)
        topic.has_own_metrics = self.shown < TOPICS_SHOWN_MAX
        self.shown += topic.has_own_metrics
        self.mark_rules(topic)
        if topic.is_internal:
            self.internal[name] = topic
        self.listing.append(topic)
        self.by_name[name] = topic
        return topic

    def number(self, topic: Topic, number: int) -> None:
        """Let this number lead to the topic, beside those that it had."""
        topic.number = number
        self.by_number[number] = topic
        self.last_number = max(self.last_number, number)

    def remove(self, topic: Topic) -> None:
        """Remove a topic."""
        del self.by_name[topic.name]
        del self.by_number[topic.number]
        if topic.is_internal:
            del self.internal[topic.name]
        self.shown -= topic.has_own_metrics
        last = self.listing.pop()
        if last is not topic:
            self.listing[topic.place] = last
            last.place = topic.place

    def set_policy(
        self, topic: Topic, policy: Policy | None, source: Source, target: Topic | None
    ) -> Topic | None:
        """Set the topic's policy from now on; return the target that it had before."""
        self.own_policies -= topic.has_own_policy
        topic.policy = policy
        topic.policy_source = source
        self.own_policies += topic.has_own_policy
        push = None if policy is None else policy.push
        topic.is_pushed = push is not None and push.topic != topic.name
        self.mark_rules(topic)
        former, topic.target = topic.target, target
        if target is not None:
            target.feeders += 1
        if former is not None:
            former.feeders -= 1
        return former

    def mark_rules(self, topic: Topic) -> None:
        """Note whether puts into the topic have to check rules."""
        topic.has_no_rules = topic.policy is None and not self.is_capped and not topic.is_internal

    def check(self) -> None:
        """Assert that names, places and policies agree."""
        assert set(self.by_name.values()) == set(self.listing)
        assert self.internal == {
            name: topic for name, topic in self.by_name.items() if name in INTERNAL_TOPICS
        }
        assert self.shown == sum(topic.has_own_metrics for topic in self.listing)
        assert self.shown <= TOPICS_SHOWN_MAX
        assert self.own_policies == sum(topic.has_own_policy for topic in self.listing)
        feeders = Counter(topic.target for topic in self.listing)
        for place, topic in enumerate(self.listing):
            assert topic.place == place
            assert topic.is_wanted, f"{topic.name} should have vanished"
            assert self.by_number.get(topic.number) is topic
            policy = topic.policy
            assert topic.has_no_rules == (
                policy is None and not self.is_capped and not topic.is_internal
            )
            assert topic.feeders == feeders[topic]
            assert topic is not topic.target
            push = None if policy is None else policy.push
            assert topic.is_pushed == (push is not None and push.topic != topic.name)
            if topic.throttle is None:
                assert not topic.blocks & ~_BLOCKS_WITHOUT_RULE
                assert policy is None or not (policy.reserved_max or policy.rate_per_s)
