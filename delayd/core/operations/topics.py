"""Operations on whole topics: pause, clear, policies, and the configuration.

    pause(name, pause_ms), pause_group(name, group, pause_ms)
                                                hand out nothing for that long
    set_policy(name, policy, now_ms, if_tag)    from now on; None: the configured one; with a tag
                                                only if the policy in force has it
    policy_of(name)                             the policy in force, and its source
    configure(patterns, jobs_max, bytes_max)    at the start, after the replay
    clear(topic)                                deletes all its waiting jobs at once
    SetPolicy(name, policy), Clear(name)        the same as background tasks

A clear of two million jobs takes 50 µs and one record; what is left of them is swept later
(`core.cleared_jobs`). Reserved jobs stay, with their keys; given back they wait as usual.

The clock decides the state of a job: one whose ttr has run out waits again, and is judged by the
policy of then, whether or not its slice has come. So a policy is set and a topic cleared after all
reservations that are over have been ended, which takes seconds where a million have just run out:
both are background tasks (`core.background_tasks`) that end a slice of them at a time.

>>> from delayd.core.operations.put import put_alike
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> for delay_ms in (5_000, 0):
...     job_id = put_alike(engine, topic, 0, delay_ms, 9, [b""], now_ms=0)
>>> task = Clear(engine, "default")
>>> task.step(budget=100, now_ms=0), task.count, topic.jobs
(True, 2, 0)
"""

from contextlib import suppress

from delayd.core import apply
from delayd.core.engine import Engine
from delayd.core.errors import GroupsFull, PoliciesFull, PolicyChanged, Refusal, TargetRefused
from delayd.core.log_records import Kind, pack
from delayd.core.log_space import TOPIC_COST_BYTES
from delayd.core.names import IDEMPOTENCY_TOPIC, INTERNAL_TOPICS, checked_name
from delayd.core.operations.change import change
from delayd.core.operations.checks import (
    as_daemon,
    check_range,
    require_writable,
    topic_named,
    vetted_target,
)
from delayd.core.operations.tick import catch_up_leases, leases_are_caught_up
from delayd.core.operations.waiting import serve
from delayd.core.policy import NO_POLICY, Patterns, Policy
from delayd.core.ready_queue import job_id_of
from delayd.core.stats.counters import Operation
from delayd.core.targets import way_back
from delayd.core.times import RequestMs
from delayd.core.topic import Source, Topic
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import (
    ADVANCE_SLICE_JOBS,
    DURATION_MS_MAX,
    GROUPS_PAUSED_MAX,
    IDEMPOTENCY_MS,
    POLICIES_MAX,
    POLICY_JSON_BYTES_MAX,
)

_POLICY_COST_BYTES = 2 * TOPIC_COST_BYTES + 2 * (10 + POLICY_JSON_BYTES_MAX)
"""Log space of setting a policy, at most: two topics' names and the policy."""


def record_topic(engine: Engine, topic: Topic) -> None:
    """Record number and policy of a topic, and of those that its jobs may be moved to."""
    chain: list[Topic] = []
    following: Topic | None = topic
    while following is not None and not following.recorded and following not in chain:
        chain.append(following)
        following = following.target
    names = [each.name.encode("ascii") for each in chain]
    items = [
        pack(Kind.TOPIC, each.number, tail=name) for each, name in zip(chain, names, strict=True)
    ]
    # After the names: a policy may say the name of another topic.
    items += [
        pack(Kind.POLICY, each.number, each.policy_source, tail=each.policy.to_json().encode())
        for each in chain
        if each.policy is not None
    ]
    engine.log_space.take(2 * sum(map(len, items)))
    for item in items:
        engine.write_promised(item)
    for each, name in zip(chain, names, strict=True):
        apply.topic(engine.store, each.number, name)


def pause(engine: Engine, name: str, pause_ms: int, now_ms: RequestMs) -> None:
    """Hand out nothing of the topic for that long; 0 resumes at once.

    Raises `TopicNotFound`, `TopicIsInternal`, `ValueOutOfRange`.
    """
    topic, until_ms = _to_pause(engine, name, pause_ms, now_ms)
    if not topic.recorded:
        record_topic(engine, topic)
    engine.record(Kind.PAUSE, topic.number, until_ms, pause_ms)
    topic.pauses += 1
    engine.store.counters.count(topic, Operation.PAUSE)
    apply.pause(engine.store, topic.number, until_ms, pause_ms)
    if not pause_ms:
        serve(engine, topic, now_ms)


def pause_group(engine: Engine, name: str, group: bytes, pause_ms: int, now_ms: RequestMs) -> None:
    """Hand out nothing of the group for that long; 0 resumes at once.

    Raises `TopicNotFound`, `TopicIsInternal`, `ValueOutOfRange`, `GroupsFull`, `OutOfSpace`.
    """
    topic, until_ms = _to_pause(engine, name, pause_ms, now_ms)
    groups = topic.queues.ready.groups
    paused = {} if groups is None else groups.paused
    if pause_ms and group not in paused and len(paused) >= GROUPS_PAUSED_MAX:
        raise GroupsFull(topic.name)
    if not topic.recorded:
        record_topic(engine, topic)
    engine.record(Kind.PAUSE_GROUP, topic.number, until_ms, pause_ms, tail=group)
    topic.pauses += 1
    engine.store.counters.count(topic, Operation.PAUSE)
    apply.pause_group(engine.store, topic.number, until_ms, pause_ms, group)
    if not pause_ms:
        serve(engine, topic, now_ms)


def _to_pause(engine: Engine, name: str, pause_ms: int, now_ms: RequestMs) -> tuple[Topic, int]:
    """Return the topic, and until when it or a group of it is to be paused; 0: no longer."""
    require_writable(engine, name)
    topic = topic_named(engine, name)
    check_range("pause in ms", pause_ms, DURATION_MS_MAX)
    return topic, ceil_to_tick(now_ms + pause_ms, engine.tick_ms) if pause_ms else 0


def clear(engine: Engine, topic: Topic) -> int:
    """Delete the jobs of the topic that are not reserved; return how many. O(jobs reserved).

    No reservation may be overdue (`catch_up_leases`): its job waits again, and is cleared. Never
    refused: log space is set aside for the removal of each job, and one is enough.
    """
    store = engine.store
    assert leases_are_caught_up(engine), "a job whose ttr has run out would live on"
    if topic.jobs == topic.reserved:
        return 0
    number = store.topics.last_number + 1
    engine.write_promised(pack(Kind.CLEAR, topic.number, number))
    cleared = apply.clear(store, topic.number, number)
    engine.log_space.jobs -= cleared
    store.counters.count(topic, Operation.CLEAR, cleared)
    store.drop_if_unwanted(topic)
    return cleared


# --- Policies ------------------------------------------------------------------------------------


def set_policy(
    engine: Engine, name: str, policy: Policy | None, now_ms: RequestMs, if_tag: str = ""
) -> Policy:
    """Give the topic this policy from now on, and return the policy in force.

    It replaces the configured policy as a whole; None, or an empty one, restores that. Makes the
    topic, and the one that its exhausted jobs are moved to. With `if_tag` the policy in force must
    have this tag. Raises what `vetted_policy` does, `PolicyChanged`, and `OutOfSpace`.
    O(reservations that are over).
    """
    store = engine.store
    policy = vetted_policy(engine, name, policy)
    if if_tag and (tag := policy_of(engine, name)[0].tag) != if_tag:
        raise PolicyChanged(name, tag, if_tag)
    engine.log_space.require(_POLICY_COST_BYTES)
    while not catch_up_leases(engine, ADVANCE_SLICE_JOBS, now_ms):
        pass
    topic = store.topic(name)
    source = Source.RUN_TIME
    if policy is None:
        policy = None if store.topics.policy_for is None else store.topics.policy_for(name)
        source = Source.CONFIGURATION
    if (policy, source) != (topic.policy, topic.policy_source):
        _change_policy(engine, topic, policy, source)
        serve(engine, topic, now_ms)
    store.drop_if_unwanted(topic)
    return policy or NO_POLICY


def vetted_policy(engine: Engine, name: str, policy: Policy | None) -> Policy | None:
    """Return the policy as it is to be set; None for one that says nothing.

    Raises `TopicNameInvalid`, `TopicIsInternal`, `PoliciesFull`, `TargetRefused`, `PushIsOff`.
    """
    require_writable(engine, checked_name(name))
    if policy is None or policy == NO_POLICY:
        return None
    topic = engine.store.topics.by_name.get(name)
    if engine.store.topics.own_policies >= POLICIES_MAX and not (topic and topic.has_own_policy):
        raise PoliciesFull(name)
    if policy.exhausted is not None:
        require_writable(engine, policy.exhausted)  # its jobs would be put there
    if policy.push is None:
        return policy
    require_writable(engine, policy.push.topic)
    try:
        check_way(engine, name, policy.push.topic)
        target = vetted_target(engine, policy.push, name)
    except TargetRefused as refusal:
        refusal.field = f"push.{refusal.field}"
        raise
    return policy if target == policy.push else policy._replace(push=target)


def check_way(engine: Engine, name: str, target: str) -> None:
    """Raise `TargetRefused` if jobs pushed from the topic to that one would go round."""
    way = way_back(name, target, lambda following: policy_of(engine, following)[0].push)
    if way:
        raise TargetRefused(f"topic {target!r}", f"must not push round in a circle: {way}")


def _change_policy(engine: Engine, topic: Topic, policy: Policy | None, source: Source) -> None:
    """Record the topic's policy from now on, and apply it."""
    if not topic.recorded:
        record_topic(engine, topic)
    if policy is not None and policy.exhausted not in {None, topic.name}:
        target = engine.store.topic(policy.exhausted or "")
        if not target.recorded:
            record_topic(engine, target)
    text = b"" if policy is None else policy.to_json().encode()
    engine.record(Kind.POLICY, topic.number, source, tail=text)
    apply.policy(engine.store, topic.number, source, text)


def policy_of(engine: Engine, name: str) -> tuple[Policy, Source]:
    """Return the topic's policy and its source; `TopicNameInvalid`.

    For a topic that does not exist: the policy that it would have.
    """
    topic = engine.store.topics.by_name.get(checked_name(name))
    if topic is not None:
        return topic.policy or NO_POLICY, topic.policy_source
    policy_for = engine.store.topics.policy_for
    policy = None if policy_for is None else policy_for(name)
    return policy or NO_POLICY, Source.CONFIGURATION


# --- As background tasks -------------------------------------------------------------------------


class SetPolicy:
    """Sets the policy of a topic."""

    def __init__(self, engine: Engine, name: str, policy: Policy | None, if_tag: str = "") -> None:
        """Begin; raises what `vetted_policy` does."""
        self._engine = engine
        self._if_tag = if_tag
        self._name = name
        self._policy = vetted_policy(engine, name, policy)

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Set the policy, unless more reservations must end before; `set_policy` says what else."""
        if not catch_up_leases(self._engine, budget, now_ms):
            return False
        set_policy(self._engine, self._name, self._policy, now_ms, self._if_tag)
        return True


class Clear:
    """Clears one topic."""

    def __init__(self, engine: Engine, name: str) -> None:
        """Begin; `TopicNotFound`, `TopicNameInvalid`, `TopicIsInternal`."""
        require_writable(engine, name)
        topic_named(engine, name)
        self._engine = engine
        self._name = name
        self.count = 0
        """How many jobs were cleared, when it is over."""

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Clear the topic, unless more reservations must end before."""
        if not catch_up_leases(self._engine, budget, now_ms):
            return False
        topic = self._engine.store.topics.by_name.get(self._name)
        self.count = 0 if topic is None else clear(self._engine, topic)
        return True


# --- At the start --------------------------------------------------------------------------------


def configure(
    engine: Engine,
    patterns: Patterns | None = None,
    jobs_max: int | None = None,
    bytes_max: int | None = None,
) -> None:
    """Apply the configuration: policies by patterns, caps on all jobs.

    Call once, after the replay and before time advances, so that later expiries are decided by it.
    Changed policies are recorded. O(topics).
    """
    store = engine.store
    assert leases_are_caught_up(engine), "a replay would decide by another policy"
    engine.jobs_max, engine.bytes_max = jobs_max, bytes_max
    store.topics.is_capped = jobs_max is not None or bytes_max is not None
    store.topics.policy_for = None if patterns is None else patterns.of
    for topic in list(store.topics.listing):
        if store.topics.by_name.get(topic.name) is not topic:
            continue  # it existed only because of a policy that is gone
        store.topics.mark_rules(topic)
        source = topic.policy_source
        policy = lawful_policy(topic) if source is Source.RUN_TIME else None
        if policy is None or policy == NO_POLICY:
            source = Source.CONFIGURATION
            policy = None if patterns is None else patterns.of(topic.name)
        if policy == topic.policy:
            continue
        if topic.recorded:
            _change_policy(engine, topic, policy, source)
        else:
            store.set_policy(topic, policy, source)
        store.drop_if_unwanted(topic)


def lawful_policy(topic: Topic) -> Policy | None:
    """Return the policy that a client has set for the topic, as far as it is allowed now.

    None for an internal topic. Jobs that were to be moved there when exhausted are buried.
    """
    policy = topic.policy
    if policy is None or topic.is_internal:
        return None
    return policy._replace(exhausted=None) if policy.exhausted in INTERNAL_TOPICS else policy


def reclaim(engine: Engine, now_ms: RequestMs) -> None:
    """Undo what clients of older versions did to the memos of Idempotency-Keys.

    A pause ends. Buried jobs wait for a full day from now: no key is dropped too soon.
    """
    own = engine.store.topics.internal.get(IDEMPOTENCY_TOPIC)
    if own is None:
        return
    # Without log space the next start does it; nothing depends on it.
    with suppress(Refusal), as_daemon(engine):
        if own.paused_until_ms is not None:
            pause(engine, IDEMPOTENCY_TOPIC, 0, now_ms)
        for key in list(own.queues.buried):
            change(engine, job_id_of(key), now_ms, delay_ms=IDEMPOTENCY_MS)
