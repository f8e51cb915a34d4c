"""One class for each refusal: its sentence, its kind and its word for both protocols.

A `Refusal` is the client's mistake: it is raised before the first record of an operation is
written, and nothing has changed. Its `word` is the reply on the line and the name of HTTP's
problem, its `status` the code that HTTP answers; the sentence has the offending value and the
rule. Several share a word; the `kind` is each one's own. Programs and documents of others rely on
kinds and titles, so these never change, whatever becomes of the name of the class. A `line_word`
is one of beanstalkd's, which the line replies where clients that know no other may get the refusal.
Mistakes of our own are `AssertionError`s and never reach a client as a refusal.

>>> str(JobNotFound(7)), str(JobNotFound(7, 6))
('there is no job 7, or its state does not allow this', 'there has never been a job 7')
>>> JobNotFound.kind, JobNotFound.word, JobNotFound.status
('job_not_found', 'NOT_FOUND', 404)
"""

from collections.abc import Sequence
from typing import ClassVar

from delayd.durations import duration_text
from delayd.fields import Wrong
from delayd.limits import (
    GROUPS_PAUSED_MAX,
    KEY_BYTES_MAX,
    POLICIES_MAX,
    RETRY_AFTER_DRAINING_S,
    RETRY_AFTER_FULL_S,
    TOPIC_NAME_BYTES_MAX,
    TOPICS_WATCHED_MAX,
)


def shown(key: bytes) -> str:
    """Return a key as it can stand in a sentence, whatever its bytes; of a long one the beginning.

    >>> shown(b"a"), len(shown(b"a" * 1_000_000))
    ("'a'", 205)
    """
    rest = "" if len(key) <= KEY_BYTES_MAX else "..."
    return repr(key[:KEY_BYTES_MAX].decode("utf-8", "backslashreplace")) + rest


class Refusal(Exception):
    """An operation that was not carried out; the state is as it was before."""

    kind: ClassVar[str]
    """Which refusal it is, for programs: no other class has it."""
    title: ClassVar[str]
    """What all refusals of the class have in common, in a sentence."""
    word: ClassVar[str]
    """Several classes may have the same, where a client is to do the same."""
    status: ClassVar[int]
    line_word: ClassVar[str | None] = None
    """The line protocol's reply; None: the word."""
    retry_after_s: ClassVar[int | None] = None
    """After how long to try again, where nothing is wrong with the request itself."""


class JobNotFound(Refusal):
    kind = "job_not_found"
    title = "The job does not exist, or its state or holder does not allow the operation."
    word = "NOT_FOUND"
    status = 404

    def __init__(self, job_id: int, last_id: int = -1) -> None:
        """With `last_id`, the highest that a job has had, it is known that no job has this id."""
        if last_id < 0:
            sentence = f"there is no job {job_id}, or its state does not allow this"
        elif 0 < job_id <= last_id:
            sentence = f"there is no job {job_id} any more: it was done or deleted"
        else:
            sentence = f"there has never been a job {job_id}"
        super().__init__(sentence)


class KeyNotFound(Refusal):
    kind = "key_not_found"
    title = "No live job of the topic has the key."
    word = "NOT_FOUND"
    status = 404

    def __init__(self, topic: str, key: bytes) -> None:
        super().__init__(f"topic {topic!r} has no job with the key {shown(key)}")


class KeyInvalid(Refusal):
    kind = "key_invalid"
    title = "The key is invalid."
    word = "BAD_FORMAT"
    status = 422

    def __init__(self, key: bytes) -> None:
        super().__init__(
            f"the key {shown(key)} must be 1 to {KEY_BYTES_MAX} bytes of printable UTF-8 "
            "without spaces"
        )


class JobAlreadyExists(Refusal):
    kind = "job_already_exists"
    title = "A live job of the topic has the key; it can be kept, replaced, preserved or extended."
    word = "JOB_ALREADY_EXISTS"
    status = 409

    def __init__(self, job_id: int, key: bytes) -> None:
        super().__init__(f"job {job_id} has the key {shown(key)} already")
        self.job_id = job_id


class TopicNotFound(Refusal):
    kind = "topic_not_found"
    title = "The topic does not exist: it is unused and has no jobs."
    word = "NOT_FOUND"
    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no topic {name!r}")


class TopicIsInternal(Refusal):
    kind = "topic_internal"
    title = "The topic is reserved: readable by all, changed only by the daemon."
    word = "FORBIDDEN"
    status = 403
    line_word = "NOT_FOUND"

    def __init__(self, name: str) -> None:
        super().__init__(f"topic {name!r} is reserved: only the daemon changes its contents")


class TopicNameInvalid(Refusal):
    kind = "topic_name_invalid"
    title = "The topic's name is invalid."
    word = "BAD_FORMAT"
    status = 422

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the topic name {name[: TOPIC_NAME_BYTES_MAX + 1]!r} must be 1 to 200 of"
            " A-Z a-z 0-9 - + / ; . $ _ ( ), and must not begin with -"
        )


class ValueOutOfRange(Refusal):
    kind = "value_out_of_range"
    title = "A number is out of range."
    word = "BAD_FORMAT"
    status = 422

    def __init__(self, field: str, value: int, lowest: int, highest: int) -> None:
        super().__init__(f"{field} is {value}, outside {lowest} to {highest}")
        self.field = field


class DelayTooLong(Refusal):
    """With `is_moment` a wall-clock time was wanted, and the delay is how long it is until then."""

    kind = "delay_too_long"
    title = "The delay is longer than the topic allows."
    word = "BAD_FORMAT"
    status = 422

    def __init__(self, delay_ms: int, delay_ms_max: int, topic: str, *, is_moment: bool) -> None:
        super().__init__(
            f"delay_max of topic {topic!r} is {duration_text(delay_ms_max)},"
            f" and this would be {duration_text(delay_ms)}"
        )
        self.is_moment = is_moment


class BodyTooBig(Refusal):
    """Without a `topic` it is the daemon itself that accepts no more."""

    kind = "body_too_big"
    title = "The body is longer than this daemon, or the topic, accepts."
    word = "JOB_TOO_BIG"
    status = 413

    def __init__(self, body_bytes: int, body_bytes_max: int, topic: str | None = None) -> None:
        super().__init__(
            f"jobs.body_bytes_max of this daemon is {body_bytes_max},"
            f" and this body has {body_bytes} bytes"
            if topic is None
            else f"body_bytes_max of topic {topic!r} is {body_bytes_max},"
            f" and this body has {body_bytes} bytes"
        )


class LastWatched(Refusal):
    kind = "last_watched"
    title = "A consumer must watch at least one topic."
    word = "NOT_IGNORED"
    status = 409

    def __init__(self, name: str) -> None:
        super().__init__(f"{name!r} is the only topic watched and cannot be ignored")


class TooManyWatched(Refusal):
    kind = "too_many_watched"
    title = "A consumer may watch so many topics at most."
    word = "OUT_OF_MEMORY"
    status = 409

    def __init__(self, name: str) -> None:
        super().__init__(
            f"topic {name!r} would be one more than the {TOPICS_WATCHED_MAX} that one client may"
            " watch"
        )


class Draining(Refusal):
    kind = "draining"
    title = "The daemon was told to accept no more jobs."
    word = "DRAINING"
    status = 503
    retry_after_s = RETRY_AFTER_DRAINING_S

    def __init__(self) -> None:
        super().__init__("this daemon is draining and accepts no new jobs")


class PolicyInvalid(Refusal):
    kind = "policy_invalid"
    title = "The policy is invalid."
    word = "BAD_FORMAT"
    status = 422

    def __init__(self, errors: Sequence[Wrong]) -> None:
        super().__init__("the policy is not valid: " + "; ".join(map(str, errors)))
        self.errors = errors


class PolicyChanged(Refusal):
    kind = "policy_changed"
    title = "The policy is not the one that the request is about: it was changed since."
    word = "POLICY_CHANGED"
    status = 412

    def __init__(self, name: str, tag: str, wanted: str) -> None:
        super().__init__(
            f"the policy of topic {name!r} has the tag {tag} now, and not {wanted}: it was changed"
            " since; read it again"
        )


class PoliciesFull(Refusal):
    kind = "policies_full"
    title = "As many topics have policies of their own as may have one."
    word = "OUT_OF_MEMORY"
    status = 409

    def __init__(self, name: str) -> None:
        super().__init__(
            f"topic {name!r} would be one more than the {POLICIES_MAX} that may have a policy of"
            " their own: remove another's, or configure one for a pattern of names"
        )


class ScheduleNotFound(Refusal):
    kind = "schedule_not_found"
    title = "There is no schedule of that name."
    word = "NOT_FOUND"
    status = 404

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no schedule {name!r}")


class ScheduleInvalid(Refusal):
    kind = "schedule_invalid"
    title = "The schedule is invalid."
    word = "BAD_FORMAT"
    status = 422

    def __init__(self, errors: Sequence[Wrong]) -> None:
        super().__init__("the schedule is not valid: " + "; ".join(map(str, errors)))
        self.errors = errors


class ScheduleOver(Refusal):
    kind = "schedule_over"
    title = "The schedule has no more runs."
    word = "SCHEDULE_OVER"
    status = 409

    def __init__(self, name: str) -> None:
        super().__init__(f"schedule {name!r} is over: it has had as many runs as its limit allows")


class ScheduleConfigured(Refusal):
    kind = "schedule_configured"
    title = "The schedule belongs to the configuration of the daemon, and is changed there."
    word = "FORBIDDEN"
    status = 409

    def __init__(self, name: str) -> None:
        super().__init__(
            f"schedule {name!r} is set by the daemon's configuration ([schedules]): change it there"
        )


class SchedulesFull(Refusal):
    kind = "schedules_full"
    title = "There are as many schedules as there may be."
    word = "OUT_OF_MEMORY"
    status = 409

    def __init__(self, name: str, highest: int) -> None:
        super().__init__(f"schedule {name!r} would be one more than the {highest} that may be")


class TargetRefused(Refusal):
    """Its sentence is `part`, a part of the target with its value, and the `rule` for that part.

    `field` is the name of the part; without one `part` begins with it.
    """

    kind = "target_refused"
    title = "The target of a push is refused."
    word = "BAD_FORMAT"
    status = 422

    def __init__(self, part: str, rule: str, field: str = "") -> None:
        super().__init__(f"{part} {rule}")
        self.field = field or part.partition(" ")[0]


class NotForTopic(TargetRefused):
    kind = "not_for_topic"
    title = "The secret or the sink of a target is not for this topic."
    word = "NOT_FOR_TOPIC"


class PushIsOff(Refusal):
    kind = "push_off"
    title = "This daemon delivers nothing by itself."
    word = "PUSH_IS_OFF"
    status = 422

    def __init__(self) -> None:
        super().__init__(
            "push.enabled is false in this daemon's configuration: nothing is delivered"
        )


class CapReached(Refusal):
    """Without a `topic` it is a cap of the daemon.

    Where more than one is `needed`, some may be free: then the sentence says how many.
    """

    kind = "cap_reached"
    title = "A cap of the topic or of the daemon is reached."
    word = "OUT_OF_MEMORY"
    status = 507
    retry_after_s = RETRY_AFTER_FULL_S

    def __init__(
        self, cap: str, highest: int, in_use: int, topic: str | None = None, *, needed: int = 1
    ) -> None:
        owner = "this daemon" if topic is None else f"topic {topic!r}"
        super().__init__(
            f"{cap} of {owner} is {highest} and {in_use} are in use"
            if needed == 1
            else f"{cap} of {owner} is {highest}, {in_use} are in use and {needed} more are needed"
        )
        self.cap = cap
        self.highest = highest
        self.in_use = in_use
        self.needed = needed
        self.topic = topic


class GroupFull(Refusal):
    kind = "group_full"
    title = "The group has as many jobs as its topic's policy allows."
    word = "GROUP_FULL"
    status = 507
    retry_after_s = RETRY_AFTER_FULL_S

    def __init__(self, topic: str, group: bytes, highest: int, in_use: int) -> None:
        super().__init__(
            f"group_jobs_max of topic {topic!r} is {highest} and group {shown(group)} has {in_use}"
        )
        self.topic = topic


class GroupMissing(Refusal):
    kind = "group_missing"
    title = "The topic takes only jobs with a group, and the put has none."
    word = "BAD_FORMAT"
    status = 422

    def __init__(self, topic: str, source: str | None) -> None:
        where = "" if source is None else f", and {source!r} gives none"
        super().__init__(f"topic {topic!r} takes only jobs with a group{where}")


class GroupsFull(Refusal):
    kind = "groups_full"
    title = "As many groups of the topic are paused as can be at once."
    word = "OUT_OF_MEMORY"
    status = 409

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"{GROUPS_PAUSED_MAX} groups of topic {topic!r} are paused: no more can be"
        )


class OutOfSpace(Refusal):
    kind = "out_of_space"
    title = "No space is left beyond what is kept for removals and snapshots."
    word = "OUT_OF_MEMORY"
    status = 507
    retry_after_s = RETRY_AFTER_FULL_S

    def __init__(self) -> None:
        super().__init__("the journal has no room for this; no accepted job is lost")
