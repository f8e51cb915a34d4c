"""The contents of requests: one `Form` for each kind of body and query.

The same classes make the OpenAPI document, where they are named without the `Form`. Absent is not
the same as null: an absent field is left as it is, or has the default that its description names.
The values of a query are texts, read as JSON's would be.
"""

from collections.abc import Iterable
from typing import Annotated, Any, ClassVar, Final, Literal, cast

import msgspec

from delayd import limits
from delayd.core.job_parts import TEXTS, Own, Retry
from delayd.core.job_record import State
from delayd.core.operations.put import Conflict
from delayd.core.policy import FIELDS
from delayd.core.scans.scan import NEVER_DUE_MS, Wanted
from delayd.core.targets import Target
from delayd.fields import BASE64, ValueKind, whole_text
from delayd.http.form_reader import Form, Rule, Rules
from delayd.http.problems import FieldError
from delayd.http.values import (
    UNSET,
    Duration,
    GroupName,
    InsteadOf,
    Key,
    Ladder,
    Meta,
    Moment,
    PageMark,
    ReasonId,
    ScheduleName,
    States,
    TargetHeaders,
    TargetMethod,
    TargetUrl,
    TimeBound,
    Token,
    TopicName,
    Ttr,
    Unset,
    Wait,
    about,
)
from delayd.schedules.definition import BODY_BASE64
from delayd.schedules.definition import FIELDS as SCHEDULE_FIELDS

NO_TIME: Final[Any] = 0
"""A plain number as a default, which can stand in a schema; a `Duration` cannot."""

Priority = Annotated[
    int, about("0 is the most urgent; below 1024 counts as urgent.", ge=0, le=limits.PRIORITY_MAX)
]
Attempts = Annotated[int, about("How many attempts it gets at most.", ge=1, le=limits.ATTEMPTS_MAX)]
Percent = Annotated[
    int,
    about(
        "By how much a step is lengthened at random, at most.", ge=0, le=limits.JITTER_PERCENT_MAX
    ),
]
ErrorText = Annotated[
    str, about(f"What went wrong, for people; {limits.ERROR_BYTES_MAX} bytes of it are kept.")
]
JsonBody = Annotated[
    msgspec.Raw | Unset,
    about("Any JSON value; workers get exactly this text.", extra_json_schema={}),
]
BytesBody = Annotated[
    bytes | Unset,
    about("Any bytes, in base64.", extra_json_schema={"pattern": whole_text(BASE64)}),
]


def _has(form: Form, name: str) -> bool:
    value = getattr(form, name)
    return not (value is UNSET or value is None)


def _given(*names: str) -> dict[str, Any]:
    return {"properties": {name: {} for name in names}, "required": [*names]}


def _beside(name: str, other: str) -> Rule:
    schema = {"not": _given(name, other)}
    rule = f"cannot be given with {other}"
    return Rule(schema, name, rule, lambda form: _has(form, name) and _has(form, other))


def _needs(name: str, other: str) -> Rule:
    there = {"properties": {other: {"not": {"type": "null"}}}, "required": [other]}
    schema = {"anyOf": [{"not": _given(name)}, there]}
    rule = f"needs {other} too"
    return Rule(schema, name, rule, lambda form: _has(form, name) and not _has(form, other))


def _either(name: str, other: str) -> Rule:
    schema = {"anyOf": [_given(name), _given(other)]}
    rule = f"is missing: give {name} or {other}"
    return Rule(schema, name, rule, lambda form: not (_has(form, name) or _has(form, other)))


class WithBodyForm(Form, kw_only=True):
    """Something with a body, as JSON or in base64, that is due after a delay or at a moment."""

    rules: ClassVar[Rules] = (_beside("at", "delay"), _beside("body_base64", "body"))

    body: JsonBody = UNSET
    body_base64: BytesBody = UNSET
    delay: (
        Annotated[
            Duration,
            about("How long until it is due; 0: at once, whatever the topic's policy says."),
        ]
        | Unset
    ) = UNSET
    at: Moment | Unset = UNSET

    def kept_texts(self) -> Iterable[msgspec.Raw]:
        """The body."""
        return (self.body,) if isinstance(self.body, msgspec.Raw) else ()

    @property
    def body_bytes(self) -> bytes | None:
        """The body, as it is kept; None if there is none."""
        if isinstance(self.body, msgspec.Raw):
            return bytes(self.body)
        return self.body_base64 if isinstance(self.body_base64, bytes) else None


class WithTargetForm(WithBodyForm, kw_only=True):
    """Something that may belong to a group, and be sent to a url when it is due."""

    rules: ClassVar[Rules] = (_needs("method", "url"), _needs("headers", "url"))

    group: GroupName | Unset | None = UNSET
    url: TargetUrl | Unset | None = UNSET
    method: TargetMethod | Unset = UNSET
    headers: TargetHeaders | Unset = UNSET

    @property
    def own(self) -> Own | None:
        """Parts of the job's own, without its target; None: there are none."""
        texts: dict[str, Any] = {
            name: text or b"" for name in TEXTS if (text := getattr(self, name)) is not UNSET
        }
        return Own(**texts) if texts else None

    @property
    def target(self) -> Target | None:
        """The target to which a due job is sent; None: there is none."""
        if not isinstance(self.url, str):
            return None
        return Target(
            url=self.url,
            method=self.method if isinstance(self.method, str) else "POST",
            headers=self.headers if isinstance(self.headers, tuple) else (),
        )


class WithRuleForm(WithTargetForm, kw_only=True):
    """Something that may have a retry rule of its own."""

    rules: ClassVar[Rules] = (_either("body", "body_base64"), _needs("jitter_percent", "retry"))

    priority: Priority = limits.PRIORITY_DEFAULT
    ttr: Ttr | Unset = UNSET
    retry: Ladder | Unset = UNSET
    max_attempts: Attempts | Unset = UNSET
    jitter_percent: Percent | Unset = UNSET
    instead_of: InsteadOf | Unset = UNSET

    @property
    def own(self) -> Own | None:
        """Its retry rule, and the rest."""
        if self.group is self.retry is self.max_attempts is UNSET:
            return None  # as most jobs: 0.7 % of a put
        own = super().own
        if self.retry is self.max_attempts is UNSET:
            return own
        rule = Retry(
            self.retry if isinstance(self.retry, tuple) else (),
            self.max_attempts if isinstance(self.max_attempts, int) else 0,
            self.jitter_percent if isinstance(self.jitter_percent, int) else 0,
        )
        return (own or Own())._replace(retry=rule)


class PutJobForm(WithRuleForm, kw_only=True):
    """A job to be put."""

    rules: ClassVar[Rules] = (_needs("on_conflict", "key"),)

    key: Key | Unset = UNSET
    on_conflict: Annotated[
        Conflict | Unset,
        about("What to do when a live job of the topic has the key; reject by default."),
    ] = UNSET

    def broken_rules(self) -> list[FieldError]:
        """Check no rule where none can be broken."""
        if self.body_base64 is self.at is self.retry is self.on_conflict is UNSET and (
            self.body is not UNSET is self.jitter_percent is self.url is self.method is self.headers
        ):
            return []  # as most jobs: 1 us of the 10 us that one takes
        return super().broken_rules()

    @property
    def is_plain(self) -> bool:
        """Whether it has no key, no moment, and nothing of its own."""
        return (
            self.key is self.at is self.retry is self.max_attempts is UNSET
            and self.url is self.group is self.instead_of is UNSET
        )


class PutJobsForm(Form, kw_only=True):
    """Jobs to be put by one request."""

    jobs: Annotated[list[PutJobForm], Meta(min_length=1, max_length=limits.HTTP_BATCH_MAX)]

    def broken_rules(self) -> list[FieldError]:
        """Return the mistakes of each job."""
        return [
            FieldError(f"jobs[{number}].{error.field}", error.detail)
            for number, job in enumerate(self.jobs)
            for error in job.broken_rules()
        ]

    def kept_texts(self) -> Iterable[msgspec.Raw]:
        """The bodies."""
        return (job.body for job in self.jobs if isinstance(job.body, msgspec.Raw))


class PutKeyedForm(WithRuleForm, kw_only=True):
    """A job to be put under the key of the path."""

    on_conflict: Annotated[
        Conflict | Unset,
        about("What to do when a live job of the topic has the key; replace by default."),
    ] = UNSET


class ChangeJobForm(WithTargetForm, kw_only=True):
    """Changes of a waiting or buried job; null removes its url or group."""

    rules: ClassVar[Rules] = (
        Rule(
            *({"minProperties": 1}, "", "must say what is to be changed: one field at least"),
            lambda form: all(getattr(form, name) is UNSET for name in form.__struct_fields__),
        ),
    )

    priority: Priority | Unset = UNSET
    ttr: Ttr | Unset = UNSET


class ReserveForm(Form, kw_only=True):
    """How many jobs of a topic to reserve, and how long to wait."""

    max: Annotated[int, about("How many jobs at most.", ge=1, le=limits.HTTP_BATCH_MAX)] = 1
    wait: Annotated[Wait, about("How long to wait for a job.")] = NO_TIME
    bodies: Annotated[
        Literal["auto", "base64"],
        about("auto: body if it is JSON, else body_base64; base64: always body_base64."),
    ] = "auto"


class ReserveAnyForm(ReserveForm, kw_only=True):
    """How many jobs of several topics to reserve, and how long to wait."""

    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=limits.HTTP_TOPICS_MAX)]


class HeldForm(Form, kw_only=True):
    """The reservation."""

    token: Token


class NackForm(HeldForm, kw_only=True):
    """A failed attempt."""

    delay: Duration = NO_TIME
    error: ErrorText = ""
    priority: Priority | Unset = UNSET
    counts: Annotated[
        bool,
        about(
            "false: no attempt is counted, and no retry rule applies: it is ready after the delay."
        ),
    ] = True
    dead: Annotated[
        bool,
        about(
            "true: it is not tried again, but buried, or moved if its topic moves exhausted jobs;"
            " the delay and counts have no meaning then."
        ),
    ] = False


class BuryWaitingForm(Form, kw_only=True):
    """A job to be buried that is not reserved."""

    error: ErrorText = ""
    priority: Priority | Unset = UNSET


class BuryForm(BuryWaitingForm, kw_only=True):
    """A job to be buried, by its holder if there is a token."""

    token: Token | Unset = UNSET


class HeldManyForm(Form, kw_only=True):
    """The reservations."""

    tokens: Annotated[list[Token], Meta(min_length=1, max_length=limits.HTTP_BATCH_MAX)]


class NackManyForm(Form, kw_only=True):
    """Failed attempts."""

    nacks: Annotated[list[NackForm], Meta(min_length=1, max_length=limits.HTTP_BATCH_MAX)]


class PauseForm(Form, kw_only=True):
    """How long the topic is paused."""

    duration: Annotated[Ttr, about("How long; `resume` ends a pause.")]


PerSecond = Annotated[
    float,
    about(
        "How many a second; all at once by default. 0 is refused, so that a rate that was"
        " computed wrong does not release everything.",
        ge=limits.RATE_PER_S_MIN,
        le=limits.BULK_PER_S_MAX,
    ),
]


class KickForm(Form, kw_only=True):
    """Buried jobs to be made ready."""

    max: Annotated[
        int, about("How many jobs at most; all by default.", ge=1, le=limits.CAP_MAX)
    ] = limits.CAP_MAX
    per_second: PerSecond | Unset = UNSET
    reason: Annotated[ReasonId | Unset, about("Only those that are dead for this reason.")] = UNSET
    group: Annotated[GroupName | Unset, about("Only those of this group.")] = UNSET


class RescheduleForm(Form, kw_only=True):
    """When the jobs become due."""

    rules: ClassVar[Rules] = (_either("delay", "at"), _beside("at", "delay"))

    delay: Annotated[Duration, about("How long from now.")] | Unset = UNSET
    at: Moment | Unset = UNSET


class AdvanceForm(Form, kw_only=True):
    """How far the virtual clock is advanced."""

    by: Duration


class NothingForm(Form, kw_only=True):
    """No fields."""


# --- Queries, and the body of a policy -----------------------------------------------------------

DAY_MS: Final = 86_400_000


def _place(bound: TimeBound | Unset, now_ms: int, offset_ms: int, *, otherwise_ms: int = 0) -> int:
    """Return a bound in delayd time, which the wall clock is ahead of by `offset_ms`."""
    if not isinstance(bound, TimeBound):
        return otherwise_ms
    return max(0, bound.ms + (-offset_ms if bound.is_moment else now_ms))


class WhichForm(Form, kw_only=True):
    """Which jobs of a topic; by default all of them."""

    state: Annotated[
        States | Unset, about("Only jobs in these states; in all of them by default.")
    ] = UNSET
    from_: Annotated[
        TimeBound | Unset, about("Only jobs due at this time or later; a duration counts from now.")
    ] = msgspec.field(default=UNSET, name="from")
    to: Annotated[TimeBound | Unset, about("Only jobs due before this time.")] = UNSET
    prefix: Annotated[
        str, about("Only jobs whose key begins with this.", max_length=limits.KEY_BYTES_MAX)
    ] = ""
    reason: Annotated[
        ReasonId | Unset,
        about("Only jobs whose last attempt failed for this reason: an id of get_dead."),
    ] = UNSET
    group: Annotated[GroupName | Unset, about("Only jobs of this group.")] = UNSET

    def wanted(self, now_ms: int, offset_ms: int) -> Wanted:
        """Return the same in delayd time, which the wall clock is ahead of by `offset_ms`."""
        states = self.state if isinstance(self.state, frozenset) else frozenset(State)
        from_ms = _place(self.from_, now_ms, offset_ms, otherwise_ms=0)
        until_ms = _place(self.to, now_ms, offset_ms, otherwise_ms=NEVER_DUE_MS)
        reason = self.reason if isinstance(self.reason, str) else ""
        group = self.group if isinstance(self.group, bytes) else b""
        return Wanted(states, from_ms, until_ms, self.prefix, reason, group)

    @property
    def names_moment(self) -> bool:
        """Whether the wall clock matters."""
        return any(
            isinstance(bound, TimeBound) and bound.is_moment for bound in (self.from_, self.to)
        )

    def broken_rules(self) -> list[FieldError]:
        """Refuse an end before its beginning, and a prefix that is not UTF-8."""
        errors = []
        first, last = self.from_, self.to
        # A moment and a duration from now cannot be compared without a clock.
        if (
            isinstance(first, TimeBound)
            and isinstance(last, TimeBound)
            and first.is_moment == last.is_moment
            and last.ms <= first.ms
        ):
            errors.append(FieldError("to", "must be later than from"))
        try:
            self.prefix.encode()
        except UnicodeEncodeError:
            errors.append(FieldError("prefix", "must be UTF-8, as keys are"))
        return errors


class ListJobsForm(WhichForm, kw_only=True):
    """Which page of which jobs."""

    limit: Annotated[
        int, about("How many jobs on a page, at most.", ge=1, le=limits.SEARCH_JOBS_MAX)
    ] = limits.HTTP_PAGE_DEFAULT
    after: Annotated[
        PageMark | Unset, about("The page after this one: `after` of the previous answer.")
    ] = UNSET
    bodies: Annotated[bool, about("With their bodies; a page with long ones ends sooner.")] = False


_AfterTopic = Annotated[
    TopicName | Unset, about("Topics after this one: `after` of the previous answer.")
]


class FindKeyForm(Form, kw_only=True):
    """Which page of the jobs that have a key."""

    limit: Annotated[
        int, about("How many jobs on a page, at most.", ge=1, le=limits.SEARCH_JOBS_MAX)
    ] = limits.HTTP_PAGE_DEFAULT
    after: _AfterTopic = UNSET


class DeadForm(Form, kw_only=True):
    """Which topics' dead letters are grouped."""

    topic: Annotated[
        list[TopicName],
        about(
            "Only these topics; may be given several times. By default all topics with dead"
            " letters, page by page.",
            max_length=limits.HTTP_DEAD_TOPICS_MAX,
        ),
    ] = msgspec.field(default_factory=list)
    limit: Annotated[
        int, about("How many topics on a page, at most.", ge=1, le=limits.HTTP_DEAD_TOPICS_MAX)
    ] = limits.HTTP_DEAD_TOPICS_MAX
    after: _AfterTopic = UNSET

    def broken_rules(self) -> list[FieldError]:
        """Refuse a page of topics that are named."""
        return _page_of_named(self)


class ManyJobsForm(WhichForm, kw_only=True):
    """Which jobs are changed."""

    dry_run: Annotated[bool, about("Change nothing, and answer how many would be changed.")] = False


class CancelJobsForm(ManyJobsForm, kw_only=True):
    """Which jobs are cancelled; none of them by a filter that was forgotten."""

    all: Annotated[bool, about("Every job of the topic; without a filter it must be true.")] = False

    def broken_rules(self) -> list[FieldError]:
        """Require a filter, or `all`."""
        errors = super().broken_rules()
        is_unset = self.state is self.from_ is self.to is self.reason is self.group is UNSET
        has_filter = bool(self.prefix) or not is_unset
        if self.all and has_filter:
            errors.append(FieldError("all", "cannot be given with a filter"))
        elif not (self.all or has_filter or self.dry_run):
            rule = "must be true to cancel every job of the topic: there is no filter"
            errors.append(FieldError("all", rule))
        return errors


class ListTopicsForm(Form, kw_only=True):
    """Which page of the topics."""

    after: Annotated[
        TopicName | Unset, about("Names after this one: `after` of the previous answer.")
    ] = UNSET
    limit: Annotated[
        int, about("How many topics on a page, at most.", ge=1, le=limits.HTTP_TOPICS_PAGE_MAX)
    ] = limits.HTTP_PAGE_DEFAULT


class ListGroupsForm(Form, kw_only=True):
    """Which groups of a topic come first, and which page of them."""

    order: Annotated[
        Literal["name", "ready", "oldest", "reserved"],
        about(
            "name: all of them, page by page; ready: those with most ready jobs; oldest: those"
            " whose next job has been ready for longest; reserved: those with most reserved jobs."
        ),
    ] = "name"
    limit: Annotated[int, about("How many groups at most.", ge=1, le=limits.GROUPS_SHOWN_MAX)] = (
        limits.HTTP_PAGE_DEFAULT
    )
    after: Annotated[
        GroupName | Unset, about("Only names after this one: `after` of the previous answer.")
    ] = UNSET


class HorizonForm(Form, kw_only=True):
    """Which topics, from when, how far, and in how many spans."""

    topic: Annotated[
        list[TopicName],
        about(
            "Only these topics; may be given several times. By default all topics with"
            " delayed jobs, page by page.",
            max_length=limits.HTTP_CALENDAR_TOPICS_MAX,
        ),
    ] = msgspec.field(default_factory=list)
    from_: Annotated[
        TimeBound | Unset, about("When it begins, now by default; a duration counts from now.")
    ] = msgspec.field(default=UNSET, name="from")
    horizon: Annotated[Duration | Unset, about("How far it reaches; a day by default.")] = UNSET
    bins: Annotated[
        int, about("How many spans it is divided into.", ge=1, le=limits.CALENDAR_BINS_MAX)
    ] = 24
    after: _AfterTopic = UNSET

    @property
    def horizon_ms(self) -> int:
        """How far it reaches."""
        return self.horizon if isinstance(self.horizon, int) else DAY_MS

    @property
    def names_moment(self) -> bool:
        """Whether the wall clock matters."""
        return isinstance(self.from_, TimeBound) and self.from_.is_moment

    def from_ms(self, now_ms: int, offset_ms: int) -> int:
        """Return where it begins in delayd time; the wall clock is `offset_ms` ahead of that."""
        return _place(self.from_, now_ms, offset_ms, otherwise_ms=now_ms)

    def broken_rules(self) -> list[FieldError]:
        """Refuse bins below a millisecond, and a page of topics that are named."""
        errors = []
        if self.horizon_ms < self.bins:
            errors.append(FieldError("horizon", "must be at least a millisecond for each bin"))
        return [*errors, *_page_of_named(self)]


def _page_of_named(form: DeadForm | HorizonForm) -> list[FieldError]:
    """Refuse a page of topics that are named."""
    if form.topic and form.after is not UNSET:
        return [FieldError("after", "cannot be given with topic: all of them are told")]
    return []


def _setting(kind: ValueKind) -> Any:  # noqa: ANN401 (a type)
    schema = {"anyOf": [kind.schema, {"type": "null"}]}
    rule = "See docs/policies.md. null is the same as no such field."
    return Annotated[Any, about(rule, extra_json_schema=schema)]


PolicyBodyForm: Final = cast(
    "type[Form]",
    msgspec.defstruct(
        "PolicyBodyForm",
        [(field.name, _setting(field.kind), UNSET) for field in FIELDS],
        bases=(Form,),
        namespace={
            "__doc__": "A policy; its mistakes are found by `core.policy`, which reads it again,"
            " all at once.",
        },
        kw_only=True,
        forbid_unknown_fields=False,
    ),
)


def _schedule_field(kind: ValueKind, *, is_needed: bool = False) -> Any:  # noqa: ANN401 (a type)
    rule = kind.schema.get("description", "") or "See docs/http.md."
    if is_needed:
        return Annotated[Any, about(rule, extra_json_schema=kind.schema)]
    schema = {"anyOf": [kind.schema, {"type": "null"}]}
    return Annotated[Any, about(f"{rule} null: as if it were absent.", extra_json_schema=schema)]


def _of_schedule(schema: dict[str, Any]) -> Rule:
    return Rule(schema, "", "", lambda _form: False)


def _are_there(*names: str, beside: str = "") -> dict[str, Any]:
    """Return the schema of an object where these are not null, beside another one that may be."""
    is_something: dict[str, Any] = {"not": {"type": "null"}}
    present = _given(*names, beside) if beside else _given(*names)
    return present | {"properties": present["properties"] | dict.fromkeys(names, is_something)}


def _is_with(name: str, other: str) -> Rule:
    return _of_schedule({"anyOf": [{"not": _are_there(name)}, _are_there(other)]})


ScheduleBodyForm: Final = cast(
    "type[Form]",
    msgspec.defstruct(
        "ScheduleBodyForm",
        [
            *(
                (field.name, _schedule_field(field.kind, is_needed=field.is_needed), UNSET)
                for field in SCHEDULE_FIELDS
            ),
            ("body", JsonBody, UNSET),
            ("body_base64", _schedule_field(BODY_BASE64), UNSET),
        ],
        bases=(Form,),
        namespace={
            "__doc__": "A schedule; its mistakes are found by `schedules.definition`, which reads"
            " it again, all at once.",
            "rules": (
                _of_schedule(_given("topic")),
                _of_schedule({"anyOf": [_are_there("cron"), _are_there("every")]}),
                _of_schedule({"not": _are_there("cron", "every")}),
                _of_schedule({"anyOf": [_given("body"), _are_there("body_base64")]}),
                _of_schedule({"not": _are_there("body_base64", beside="body")}),
                _is_with("timezone", "cron"),
                _is_with("method", "url"),
                _is_with("headers", "url"),
                _is_with("jitter_percent", "retry"),
            ),
            "kept_texts": lambda form: (form.body,) if isinstance(form.body, msgspec.Raw) else (),
        },
        kw_only=True,
        forbid_unknown_fields=False,
    ),
)


class NoteForm(Form, kw_only=True):
    """Why a schedule is paused."""

    note: Annotated[str, about(f"For people; {limits.SCHEDULE_NOTE_BYTES_MAX} bytes at most.")] = ""


class BackfillForm(Form, kw_only=True):
    """Of which time the runs are put; both ends are part of it."""

    from_: Annotated[Moment, about("The nominal time of the first run, or before.")] = (
        msgspec.field(name="from")
    )
    until: Annotated[
        Moment | Unset,
        about("The nominal time of the last run, or after; not after now, which is the default."),
    ] = UNSET


class ListSchedulesForm(Form, kw_only=True):
    """Which page of which schedules."""

    topic: Annotated[TopicName | Unset, about("Those that put jobs there; all by default.")] = UNSET
    prefix: Annotated[
        str, about("How the name begins.", max_length=limits.SCHEDULE_NAME_BYTES_MAX)
    ] = ""
    after: Annotated[
        ScheduleName | Unset, about("Names after this one: `after` of the previous answer.")
    ] = UNSET
    limit: Annotated[
        int, about("Schedules of the page.", ge=1, le=limits.HTTP_SCHEDULES_PAGE_MAX)
    ] = limits.HTTP_PAGE_DEFAULT


class PreviewForm(Form, kw_only=True):
    """How many runs are told."""

    count: Annotated[int, about("Runs at most.", ge=1, le=limits.SCHEDULE_PREVIEW_MAX)] = (
        limits.SCHEDULE_PREVIEW_DEFAULT
    )


class PreviewNewForm(PreviewForm, kw_only=True):
    """How many runs of a schedule that is not made, or not changed yet, are told."""

    name: Annotated[
        ScheduleName | Unset,
        about("What it is or would be called: a jitter goes by the name, and so do past runs."),
    ] = UNSET


class ReadyForm(Form, kw_only=True):
    """What the daemon is to be ready for."""

    puts: Annotated[
        bool,
        about("Puts as well. `false`: ready also while it drains or its disk is full."),
    ] = True


class HistoryForm(Form, kw_only=True):
    """How many minutes."""

    minutes: Annotated[
        int,
        about(
            "How many minutes that are over; the current one is added.",
            ge=1,
            le=limits.HISTORY_MINUTES_MAX,
        ),
    ] = 60
