"""Groups of jobs that are put or changed: which one it is, and whether there is a place in it.

    grouped(topic, own, key, body)      what a client set of its own, with the group that the policy
                                        reads in the key or the body where the put says none
    check_group(topic, group)           refuses a job more than the group may have

A group is read once, at the put, and kept in the job's record. What it may do with its jobs is in
`core.group_turns`.

>>> from delayd.core.policy import Policy
>>> from delayd.core.store import Store
>>> from delayd.core.topic import Source
>>> store = Store(tick_ms=1, wheel_size=256, start_ms=0)
>>> topic = store.topic("mail")
>>> store.set_policy(topic, Policy.from_json('{"group_from": "key:/"}'), Source.RUN_TIME)
>>> grouped(topic, None, b"acme/17", b"").group
b'acme'
"""

from delayd.core.errors import GroupFull, GroupMissing
from delayd.core.job_parts import Own
from delayd.core.names import GROUP
from delayd.core.topic import Topic


def reads_groups(topic: Topic) -> bool:
    """Tell whether a put that says no group may need one."""
    policy = topic.policy
    return policy is not None and bool(policy.group_from or policy.is_group_required)


def grouped(topic: Topic, own: Own | None, key: bytes, body: bytes) -> Own | None:
    """Return the parts of a put, with a group if the topic's policy reads one; `GroupMissing`."""
    policy = topic.policy
    if policy is None or (own is not None and own.group):
        return own
    name = _read(policy.group_from, key, body) if policy.group_from else b""
    if name:
        return (own or Own())._replace(group=name)
    if policy.is_group_required:
        raise GroupMissing(topic.name, policy.group_from)
    return own


def _read(source: str, key: bytes, body: bytes) -> bytes:
    """Return the group of a job with this key and body; empty where there is none, or no name."""
    what, _, rest = source.partition(":")
    if what == "key":
        text: str | None = key.decode().partition(rest)[0] if rest else key.decode()
    else:
        from delayd.json_text import text_field  # noqa: PLC0415 - few topics need it

        text = text_field(body, rest)
    try:
        return bytes(GROUP.read(text or ""))
    except ValueError:
        return b""


def check_group(topic: Topic, group: bytes | None, former: bytes = b"", jobs: int = 1) -> None:
    """Raise `GroupFull` if so many jobs more, of the `former` group so far, are too many of it.

    `GroupMissing` if a job is to have none any more, and the topic takes only jobs with a group.
    """
    policy = topic.policy
    if policy is None or group is None or group == former:
        return
    if not group and policy.is_group_required:
        raise GroupMissing(topic.name, None)
    if not group or policy.group_jobs_max is None:
        return
    groups = topic.queues.ready.groups
    state = None if groups is None else groups.by_name.get(group)
    in_use = 0 if state is None else state.jobs
    if in_use + jobs > policy.group_jobs_max:
        raise GroupFull(topic.name, group, policy.group_jobs_max, in_use)
