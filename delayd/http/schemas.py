"""What requests say: one `Form` for each kind of body and query.

The same classes make the OpenAPI document. Absent is not the same as null: what is absent is left
as it is, or has the default that its description names.
"""

from typing import Annotated, Any, ClassVar, Final, Literal

import msgspec

from delayd.core.job import Retry
from delayd.core.operations.put import Conflict
from delayd.http.problems import FieldError
from delayd.http.reading import Form, Rules
from delayd.http.values import Duration, Key, Ladder, Moment, TopicName, Ttr
from delayd.limits import (
    ATTEMPTS_MAX,
    BULK_PER_S_MAX,
    CAP_MAX,
    ERROR_BYTES_MAX,
    HTTP_BATCH_MAX,
    HTTP_TOPICS_MAX,
    HTTP_WAIT_MS_MAX,
    JITTER_PERCENT_MAX,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    RATE_PER_S_MIN,
)

Meta: Final = msgspec.Meta
Unset = msgspec.UnsetType
UNSET: Final = msgspec.UNSET
NO_TIME: Final[Any] = 0
"""A plain number as a default, which can stand in a schema; a `Duration` cannot."""

Priority = Annotated[
    int,
    Meta(ge=0, le=PRIORITY_MAX, description="0 is the most urgent; below 1024 counts as urgent."),
]
Attempts = Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX, description="Attempts at most.")]
Percent = Annotated[
    int, Meta(ge=0, le=JITTER_PERCENT_MAX, description="How much longer a step may get by chance.")
]
Token = Annotated[
    str,
    Meta(
        min_length=5,
        max_length=60,
        pattern="^[1-9][0-9]{0,18}-[0-9a-f]{1,16}-[0-9]{1,10}$",
        description="What the reserve gave with the job: good for this reservation alone.",
        examples=["17-19e0a2b3c4d-1"],
        extra={"rule": 'must be what the reserve gave with the job, such as "17-19e0a2b3c4d-1"'},
    ),
]
ErrorText = Annotated[
    str,
    Meta(description=f"What went wrong, for people; {ERROR_BYTES_MAX} bytes of it are kept."),
]
JsonBody = Annotated[
    msgspec.Raw | Unset,
    Meta(description="Any JSON value, handed back as the very text.", extra_json_schema={}),
]
BytesBody = Annotated[
    bytes | Unset,
    Meta(
        description="Any bytes, in base64.",
        extra_json_schema={"pattern": "^[A-Za-z0-9+/]*={0,2}$"},
    ),
]
Webhook = Annotated[
    Any,
    Meta(
        description="Refused: delivery by webhook is not there yet.", extra_json_schema={"not": {}}
    ),
]


class WithBody(Form, kw_only=True):
    """Something that has a body, in one of two ways."""

    told_rules: ClassVar[Rules] = ({"not": {"required": ["body", "body_base64"]}},)

    body: JsonBody = UNSET
    body_base64: BytesBody = UNSET

    def broken_rules(self) -> list[FieldError]:
        """Only one body."""
        errors = []
        if self.body is not UNSET and self.body_base64 is not UNSET:
            errors.append(FieldError("body_base64", "cannot come beside body"))
        return errors

    @property
    def body_bytes(self) -> bytes | None:
        """The body, as it is kept; None if there is none."""
        if isinstance(self.body, msgspec.Raw):
            return bytes(self.body)
        return self.body_base64 if isinstance(self.body_base64, bytes) else None


class WithTime(WithBody, kw_only=True):
    """Something that comes after a delay or at a moment."""

    told_rules: ClassVar[Rules] = ({"not": {"required": ["delay", "at"]}},)

    delay: (
        Annotated[Duration, Meta(description="0: at once, whatever the topic's policy says.")]
        | Unset
    ) = UNSET
    at: Moment | Unset = UNSET

    def broken_rules(self) -> list[FieldError]:
        """Only one time."""
        errors = super().broken_rules()
        if self.delay is not UNSET and self.at is not UNSET:
            errors.append(FieldError("at", "cannot come beside delay"))
        return errors


class WithRule(WithTime, kw_only=True):
    """Something that may have a retry rule of its own."""

    told_rules: ClassVar[Rules] = (
        {"anyOf": [{"required": ["body"]}, {"required": ["body_base64"]}]},
        {"dependentRequired": {"jitter_percent": ["retry"]}},
    )

    priority: Priority = PRIORITY_DEFAULT
    ttr: Ttr | Unset = UNSET
    retry: Ladder | Unset = UNSET
    max_attempts: Attempts | Unset = UNSET
    jitter_percent: Percent | Unset = UNSET
    url: Webhook = UNSET
    push: Webhook = UNSET

    def broken_rules(self) -> list[FieldError]:
        """A body there must be; jitter needs a ladder."""
        errors = super().broken_rules()
        if self.body is UNSET and self.body_base64 is UNSET:
            errors.append(FieldError("body", "is missing; body_base64 takes its place"))
        if self.jitter_percent is not UNSET and self.retry is UNSET:
            errors.append(FieldError("jitter_percent", "needs retry beside it"))
        for name in ("url", "push"):
            if getattr(self, name) is not UNSET:
                errors.append(FieldError(name, "this version pushes nothing: consumers reserve"))
        return errors

    @property
    def rule(self) -> Retry | None:
        """The retry rule, None if there is none."""
        if self.retry is UNSET and self.max_attempts is UNSET:
            return None
        return Retry(
            tuple(self.retry) if isinstance(self.retry, tuple) else (),
            self.max_attempts if isinstance(self.max_attempts, int) else 0,
            self.jitter_percent if isinstance(self.jitter_percent, int) else 0,
        )


class PutJob(WithRule, kw_only=True):
    """A job to be put."""

    told_rules: ClassVar[Rules] = ({"dependentRequired": {"on_conflict": ["key"]}},)

    key: Key | Unset = UNSET
    on_conflict: Annotated[
        Conflict | Unset,
        Meta(description="What to do when a live job of the topic has the key; reject by default."),
    ] = UNSET

    def broken_rules(self) -> list[FieldError]:
        """What to do about a key needs one."""
        if self.body_base64 is self.at is self.retry is self.on_conflict is UNSET and (
            self.body is not UNSET is self.jitter_percent is self.url is self.push
        ):
            return []  # as most are: 1 us a job is a tenth of what it takes
        errors = super().broken_rules()
        if self.on_conflict is not UNSET and self.key is UNSET:
            errors.append(FieldError("on_conflict", "needs key beside it"))
        return errors


class PutJobs(Form, kw_only=True):
    """Jobs to be put, in one commit."""

    jobs: Annotated[list[PutJob], Meta(min_length=1, max_length=HTTP_BATCH_MAX)]

    def broken_rules(self) -> list[FieldError]:
        """What is wrong with each of them."""
        return [
            FieldError(f"jobs[{number}].{error.field}", error.detail)
            for number, job in enumerate(self.jobs)
            for error in job.broken_rules()
        ]


class PutKeyed(WithRule, kw_only=True):
    """A job to be put under the key of the path."""

    on_conflict: Annotated[
        Conflict | Unset,
        Meta(
            description="What to do when a live job of the topic has the key; replace by default."
        ),
    ] = UNSET


class ChangeJob(WithTime, kw_only=True):
    """What is to be another of a job that waits or is buried."""

    told_rules: ClassVar[Rules] = ({"minProperties": 1},)

    priority: Priority | Unset = UNSET
    ttr: Ttr | Unset = UNSET

    def broken_rules(self) -> list[FieldError]:
        """Something there must be."""
        errors = super().broken_rules()
        if all(getattr(self, name) is UNSET for name in self.__struct_fields__):
            errors.append(FieldError("", "must say what is to be changed: one field at least"))
        return errors


class Reserve(Form, kw_only=True):
    """Jobs wanted of one topic."""

    told_rules: ClassVar[Rules] = (
        {
            "properties": {
                "wait": {"anyOf": [{"type": "string"}, {"maximum": HTTP_WAIT_MS_MAX // 1_000}]}
            }
        },
    )

    max: Annotated[int, Meta(ge=1, le=HTTP_BATCH_MAX, description="Jobs at most.")] = 1
    wait: Duration = NO_TIME
    bodies: Annotated[
        Literal["auto", "base64"],
        Meta(description="auto: as body where it is JSON, else as body_base64; base64: always."),
    ] = "auto"

    def broken_rules(self) -> list[FieldError]:
        """No longer than what stands between client and daemon allows."""
        errors = []
        if self.wait > HTTP_WAIT_MS_MAX:
            errors.append(FieldError("wait", f"must be at most {HTTP_WAIT_MS_MAX // 1_000} s"))
        return errors


class ReserveAny(Reserve, kw_only=True):
    """Jobs wanted of several topics."""

    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=HTTP_TOPICS_MAX)]


class Held(Form, kw_only=True):
    """The reservation that is meant."""

    token: Token


class Nack(Held, kw_only=True):
    """A failed attempt."""

    delay: Duration = NO_TIME
    error: ErrorText = ""
    priority: Priority | Unset = UNSET


class Bury(Held, kw_only=True):
    """A job to be parked."""

    error: ErrorText = ""
    priority: Priority | Unset = UNSET


class HeldMany(Form, kw_only=True):
    """The reservations that are meant."""

    tokens: Annotated[list[Token], Meta(min_length=1, max_length=HTTP_BATCH_MAX)]


class NackMany(Form, kw_only=True):
    """Failed attempts."""

    nacks: Annotated[list[Nack], Meta(min_length=1, max_length=HTTP_BATCH_MAX)]


class Pause(Form, kw_only=True):
    """How long nothing is handed out."""

    duration: Duration

    def broken_rules(self) -> list[FieldError]:
        """A pause of nothing would end one."""
        return [] if self.duration else [FieldError("duration", "must be more than 0; see resume")]


PerSecond = Annotated[
    float,
    Meta(
        ge=RATE_PER_S_MIN,
        le=BULK_PER_S_MAX,
        description="How fast; all at once by default. A rate that was reckoned to be 0 is refused,"
        " or it would let everything go.",
    ),
]


class Kick(Form, kw_only=True):
    """Buried jobs to be made ready."""

    max: Annotated[int, Meta(ge=1, le=CAP_MAX, description="Jobs at most; all by default.")] = (
        CAP_MAX
    )
    per_second: PerSecond | Unset = UNSET


class Reschedule(Form, kw_only=True):
    """When jobs are to come due."""

    told_rules: ClassVar[Rules] = ({"oneOf": [{"required": ["delay"]}, {"required": ["at"]}]},)

    delay: Annotated[Duration, Meta(description="Counted from when it is done.")] | Unset = UNSET
    at: Moment | Unset = UNSET

    def broken_rules(self) -> list[FieldError]:
        """One time there must be, and no more."""
        if self.delay is self.at is UNSET:
            return [FieldError("delay", "is missing; at takes its place")]
        if UNSET not in (self.delay, self.at):
            return [FieldError("at", "cannot come beside delay")]
        return []


class Advance(Form, kw_only=True):
    """How far the virtual clock goes on."""

    by: Duration


class Nothing(Form, kw_only=True):
    """Nothing needs to be said."""
