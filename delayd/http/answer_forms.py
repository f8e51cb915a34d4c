"""The bodies of answers: one struct for each kind.

Handlers make them, msgspec writes them, and the OpenAPI document is made of them, where they are
named without the `Answer`. Members may be added to answers in later versions, so a client ignores
those that it does not know; the structs forbid them, so that a test that reads an answer back fails
when a member is not described. Counters begin with the start of the daemon, lengths of time are in
seconds, and null means that there is no value.

>>> msgspec.json.encode(PutAnswer(id=1, outcome=Outcome.CREATED))
b'{"id":1,"outcome":"created"}'
"""

import enum
from typing import Annotated, Any, Literal

import msgspec

from delayd.core.group_turns import GroupBlock
from delayd.core.job_ends import JobEnd
from delayd.core.job_parts import AttemptOutcome, Reason
from delayd.core.job_record import State
from delayd.core.operations.put import Outcome
from delayd.core.stats.trouble import Trouble
from delayd.core.throttle import Block, PushBlock
from delayd.core.topic import Source
from delayd.http.problems import ProblemAnswer
from delayd.http.values import UNSET, Answer, JobId, Meta, MomentText, Token, Unset, about
from delayd.limits import PRIORITY_MAX
from delayd.schedules.definition import Missed, Overlap
from delayd.schedules.progress import ScheduleState


def as_written(text: bytes) -> Any:  # noqa: ANN401 (it stands for any member)
    """Return JSON that was written before as the value of a member."""
    return msgspec.Raw(text)


Seconds = Annotated[float, about("A length of time, in seconds.", ge=0)]
Count = Annotated[int, Meta(ge=0)]
PriorityNumber = Annotated[int, Meta(ge=0, le=PRIORITY_MAX)]
Status = Annotated[
    int, about("The status that a request for this job alone would have had.", ge=200, le=599)
]
Attempts = Annotated[
    Count, about("Attempts since its retry ladder began, the one under way included.")
]
Steps = Annotated[list[str], about("The delay after each failed attempt.")]
JsonBody = Annotated[Any, about("The body if it is JSON: exactly the text that was put.")]
BytesBody = Annotated[bytes | Unset, about("The body if it is not JSON, in base64.")]
OwnGroup = Annotated[str | Unset, about("The group that the job belongs to.")]
OwnUrl = Annotated[
    str | Unset,
    about("Where the job is sent when it is due. Without the scope admin its query is ***."),
]
OwnMethod = Annotated[str | Unset, about("The method of the request to `url`.")]
OwnHeaders = Annotated[
    dict[str, str] | Unset,
    about("The headers of the request to `url`. Without the scope admin their values are ***."),
]


def _named(members: type[enum.Enum], description: str) -> msgspec.Meta:
    """Return the schema of an enum's names in lower case; 0 of flags has no name."""
    names = [member.name.lower() for member in members]
    return about(description, extra_json_schema={"enum": names})


StateName = Annotated[str, _named(State, "Where the job is in its life.")]
ReasonName = Annotated[str, _named(Reason, "Why the attempt failed.")]
SourceName = Annotated[
    str, _named(Source, "Where it was set: in the configuration or by a client.")
]
BlockName = Annotated[
    str,
    about(
        "paused: the topic is paused; full: reserved_max is reached; slow: its rate is used up;"
        " held: the groups of all its ready jobs hold them back."
        " These concern pushes alone, not workers: push_off: pushes are switched off in the"
        " configuration; breaker_open: calls of its target have failed; push_full: as many calls"
        " are under way as allowed; push_slow: the target's rate is used up.",
        extra_json_schema={
            "enum": [
                *(block.name.lower() for block in Block if block.name),
                *(block.value for block in PushBlock),
            ]
        },
    ),
]

PolicyTag = Annotated[str, about("Changes whenever the policy changes; for `If-Match`.")]
TroubleName = Annotated[
    str,
    about(
        "untaken: a ready job has waited for a minute, and nobody took or held one in it; buried:"
        " there are buried jobs; paused: the topic is paused; behind: a ready job has waited for a"
        " minute, although jobs are taken; failing: attempts have failed in the last minute.",
        extra_json_schema={"enum": [each.value for each in Trouble]},
    ),
]

# --- Producers -----------------------------------------------------------------------------------


class PutAnswer(Answer, kw_only=True):
    """A job that was put."""

    id: JobId
    outcome: Outcome
    due: MomentText | Unset = UNSET
    """Absent where a put is answered again and its job is gone."""


class PutResultAnswer(Answer, kw_only=True):
    """What became of one job of a batch."""

    status: Status
    id: JobId | Unset = UNSET
    outcome: Outcome | Unset = UNSET
    due: MomentText | Unset = UNSET
    problem: ProblemAnswer | Unset = UNSET


class PutResultsAnswer(Answer, kw_only=True):
    """What became of each job of a batch, in the order of the request."""

    results: list[PutResultAnswer]


class ChangedAnswer(Answer, kw_only=True):
    """A job that was changed."""

    id: JobId
    due: MomentText


class NamedAnswer(Answer, kw_only=True):
    """The job that was meant."""

    id: JobId


# --- Workers -------------------------------------------------------------------------------------


class FailureAnswer(Answer, kw_only=True):
    """The last failed attempt of a job."""

    reason: ReasonName
    at: MomentText
    error: Annotated[
        str | Unset,
        about(
            "What its worker reported, or what the target answered if delayd sent the job there."
            " With the scope admin the beginning of that answer follows the first line."
        ),
    ] = UNSET
    origin: Annotated[str | Unset, about("The topic that it was moved from.")] = UNSET


class AttemptAnswer(Answer, kw_only=True):
    """A failed attempt of a job."""

    ended: MomentText
    lasted: Annotated[Seconds | None, about("How long it took, in seconds; null: not known.")]
    who: Annotated[
        str | Unset, about("Who held the job: the name of a token, or an address; push: delayd.")
    ] = UNSET
    reason: ReasonName
    outcome: Annotated[str, _named(AttemptOutcome, "What became of the job.")]
    error: Annotated[str | Unset, about("The first line of what its worker reported.")] = UNSET


class ReservedJobAnswer(Answer, kw_only=True):
    """A job that was handed out."""

    id: JobId
    topic: str
    token: Token
    attempt: Annotated[int, about("Attempt number, starting at 1.", ge=1)]
    priority: PriorityNumber
    due: MomentText
    lateness: Annotated[Seconds, about("How long after `due` it was handed out, in s.")]
    ttr: Seconds
    expires: Annotated[MomentText, about("When the reservation ends, unless it is extended.")]
    key: str | Unset = UNSET
    group: OwnGroup = UNSET
    failure: FailureAnswer | Unset = UNSET
    url: OwnUrl = UNSET
    method: OwnMethod = UNSET
    headers: OwnHeaders = UNSET
    body: JsonBody = UNSET
    body_base64: BytesBody = UNSET


class ReservedAnswer(Answer, kw_only=True):
    """The jobs that were ready, at least one."""

    jobs: Annotated[list[ReservedJobAnswer], Meta(min_length=1)]


class BecameAnswer(Answer, kw_only=True):
    """What became of a job."""

    id: JobId
    state: StateName
    topic: Annotated[str, about("Its topic now: another one if the policy has moved it.")]
    due: Annotated[MomentText | Unset, about("When it is due again, if it is delayed.")] = UNSET


class TouchedAnswer(Answer, kw_only=True):
    """An extended reservation."""

    id: JobId
    expires: MomentText


class AckResultAnswer(Answer, kw_only=True):
    """What became of one acknowledgement."""

    id: JobId
    status: Status
    problem: ProblemAnswer | Unset = UNSET


class AckResultsAnswer(Answer, kw_only=True):
    """What became of each, in the order of the request."""

    results: list[AckResultAnswer]


class NackResultAnswer(Answer, kw_only=True):
    """What became of one failed attempt."""

    id: JobId
    status: Status
    state: StateName | Unset = UNSET
    topic: str | Unset = UNSET
    due: MomentText | Unset = UNSET
    problem: ProblemAnswer | Unset = UNSET


class NackResultsAnswer(Answer, kw_only=True):
    """What became of each, in the order of the request."""

    results: list[NackResultAnswer]


# --- Jobs ----------------------------------------------------------------------------------------


class JobAnswer(Answer, kw_only=True):
    """A job with its body, as JSON or in base64."""

    id: JobId
    topic: str
    state: StateName
    priority: PriorityNumber
    due: MomentText
    created: MomentText
    ttr: Seconds
    attempts: Attempts
    reserves: Annotated[Count, about("How often it was handed out.")]
    timeouts: Count
    releases: Annotated[Count, about("How often it was released or nacked.")]
    buries: Count
    kicks: Count
    expires: Annotated[MomentText | Unset, about("When its reservation ends.")] = UNSET
    key: str | Unset = UNSET
    group: OwnGroup = UNSET
    retry: Steps | Unset = UNSET
    max_attempts: Annotated[int, Meta(ge=1)] | Unset = UNSET
    jitter_percent: Annotated[int, Meta(ge=1, le=100)] | Unset = UNSET
    failure: FailureAnswer | Unset = UNSET
    history: Annotated[
        list[AttemptAnswer] | Unset,
        about("Its last failed attempts, the oldest first: as many as the policy keeps."),
    ] = UNSET
    url: OwnUrl = UNSET
    method: OwnMethod = UNSET
    headers: OwnHeaders = UNSET
    body: JsonBody = UNSET
    body_base64: BytesBody = UNSET


class PageJobAnswer(Answer, kw_only=True):
    """A job in a list."""

    id: JobId
    state: StateName
    due: MomentText
    priority: PriorityNumber
    key: str | Unset = UNSET
    group: OwnGroup = UNSET
    attempts: Attempts | Unset = UNSET
    failure: FailureAnswer | Unset = UNSET
    url: OwnUrl = UNSET
    method: OwnMethod = UNSET
    body: JsonBody = UNSET
    body_base64: BytesBody = UNSET


After = Annotated[
    str | None, about("`after` for the next request; null: there is no further page.")
]


class PageAnswer(Answer, kw_only=True):
    """One page of jobs, in due order."""

    jobs: list[PageJobAnswer]
    after: After


class FoundJobAnswer(PageJobAnswer, kw_only=True):
    """A job that was found in any topic."""

    topic: str


class FoundAnswer(Answer, kw_only=True):
    """One page of jobs that have a key, sorted by topic."""

    jobs: list[FoundJobAnswer]
    after: After


class DeadGroupAnswer(Answer, kw_only=True):
    """The dead letters of one reason."""

    id: Annotated[
        str, about("Identifies the reason in all topics; other calls take it as `reason`.")
    ]
    reason: Annotated[
        str,
        about(
            "Why they failed: the reason, then the error, with # for what differs from job to job."
        ),
    ]
    jobs: Count
    first: Annotated[MomentText, about("When the first of them failed.")]
    last: MomentText
    job: Annotated[JobId, about("The one that failed last.")]


class DeadTopicAnswer(Answer, kw_only=True):
    """The dead letters of a topic by reason."""

    name: str
    jobs: Annotated[
        Count, about("All its dead letters, those whose reasons are not listed included.")
    ]
    reasons: Annotated[list[DeadGroupAnswer], about("The most frequent first.")]


class DeadAnswer(Answer, kw_only=True):
    """One page of topics with dead letters, sorted by name."""

    topics: list[DeadTopicAnswer]
    after: After


class ManyAnswer(Answer, kw_only=True):
    """How many jobs were changed; `matched` if it was a dry run."""

    cancelled: Count | Unset = UNSET
    kicked: Count | Unset = UNSET
    rescheduled: Count | Unset = UNSET
    cleared: Count | Unset = UNSET
    matched: Count | Unset = UNSET


class TopicCalendarAnswer(Answer, kw_only=True):
    """How many jobs of a topic come due in each span."""

    name: str
    counts: Annotated[list[Count], about("Jobs that come due in each span.")]


class CalendarAnswer(Answer, kw_only=True):
    """How many jobs come due when, by topic."""

    from_: MomentText = msgspec.field(name="from")
    bin: Annotated[Seconds, about("How long each span is, in seconds.")]
    topics: list[TopicCalendarAnswer]
    after: After


# --- Topics --------------------------------------------------------------------------------------


class RatesAnswer(Answer, kw_only=True):
    """Jobs a second, in the last minute, or since the daemon's start if that was later."""

    put: float
    reserved: float
    deleted: float
    failed: Annotated[float, about("Attempts that ended in a nack, or because the ttr ran out.")]
    window: Annotated[Seconds, about("The length of that time, in seconds: 60, or less.")]


class LatenessAnswer(Answer, kw_only=True):
    """How long something took, in seconds; null where it has not happened."""

    jobs: Annotated[Count, about("How often it has happened.")]
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class TopicCountsAnswer(Answer, kw_only=True):
    """Jobs of a topic by state, how many consumers wait for them, and how it is doing."""

    name: str
    jobs: Count
    delayed: Count
    ready: Count
    reserved: Count
    buried: Count
    urgent: Annotated[Count, about("Ready with a priority below 1024.")]
    waiting: Annotated[Count, about("Consumers that wait for a job.")]
    paused_until: Annotated[MomentText | None, about("null: it is not paused.")]
    oldest_ready_age: Annotated[
        float | None, about("How long the oldest ready job has been ready, in seconds.")
    ]
    trouble: Annotated[TroubleName | None, about("The worst problem that it has; null: none.")]
    rates: RatesAnswer
    late: Annotated[LatenessAnswer, about("How late delays ended, in the last minute.")]
    groups: (
        Annotated[int, about("How many groups its jobs belong to; absent: to none.", ge=1)] | Unset
    ) = UNSET


class TopicPageAnswer(Answer, kw_only=True):
    """One page of topics, sorted by name."""

    topics: list[TopicCountsAnswer]
    after: After


class PolicyAnswer(Answer, kw_only=True):
    """The policy of a topic; an absent field is not set."""

    ttr: str | Unset = UNSET
    delay: str | Unset = UNSET
    retry: Steps | Unset = UNSET
    jitter_percent: Count | Unset = UNSET
    max_attempts: Count | Unset = UNSET
    exhausted: str | Unset = UNSET
    on_close: str | Unset = UNSET
    history: Count | Unset = UNSET
    jobs_max: Count | Unset = UNSET
    bytes_max: Count | Unset = UNSET
    body_bytes_max: Count | Unset = UNSET
    delay_max: str | Unset = UNSET
    reserved_max: Count | Unset = UNSET
    rate_per_s: Annotated[float, Meta(gt=0)] | Unset = UNSET
    push: Annotated[dict[str, Any], about("Where due jobs are sent.")] | Unset = UNSET
    group_reserved_max: Count | Unset = UNSET
    group_rate_per_s: Annotated[float, Meta(gt=0)] | Unset = UNSET
    group_jobs_max: Count | Unset = UNSET
    group_order: Literal["put"] | Unset = UNSET
    group_on_retry: Literal["wait"] | Unset = UNSET
    fair: Annotated[bool | Unset, about("Whether its groups take turns.")] = UNSET
    group_weights: dict[str, Count] | Unset = UNSET
    group_from: str | Unset = UNSET
    group_required: bool | Unset = UNSET


class PolicyOfTopicAnswer(Answer, kw_only=True):
    """The policy of a topic, and where it was set."""

    policy: PolicyAnswer
    policy_tag: PolicyTag
    source: SourceName


class UseAnswer(Answer, kw_only=True):
    """How much of a cap is used."""

    in_use: Count
    max: Annotated[Count | None, about("null: there is no cap.")]


class TopicUsageAnswer(Answer, kw_only=True):
    """How much of each cap of a topic is used."""

    jobs: UseAnswer
    bytes: UseAnswer
    reserved: UseAnswer


class TopicAnswer(TopicCountsAnswer, kw_only=True):
    """A topic: counts, policy, ages and rates. Counters begin with the daemon's start."""

    using: Annotated[Count, about("Connections of the line protocol that use it for their puts.")]
    watching: Annotated[Count, about("Consumers that watch it.")]
    blocks: Annotated[list[BlockName], about("Why nothing is handed out.")]
    due_to_ready: Annotated[
        LatenessAnswer, about("How late delays ended, since the daemon's start.")
    ]
    ready_to_reserved: Annotated[
        LatenessAnswer, about("How long ready jobs waited, since the daemon's start.")
    ]
    operations: dict[str, Count]
    usage: TopicUsageAnswer
    policy: PolicyAnswer
    policy_tag: PolicyTag
    source: SourceName


class PausedAnswer(Answer, kw_only=True):
    """When the pause ends."""

    paused_until: Annotated[MomentText | None, about("null: it is not paused.")]


class GroupAnswer(Answer, kw_only=True):
    """A group of jobs; of one that no job has, all numbers are 0."""

    name: str
    jobs: Annotated[Count, about("In any state.")]
    ready: Count
    reserved: Count
    retrying: Annotated[Count, about("Delayed jobs that wait for another attempt.")]
    weight: Annotated[int, about("How many turns it has where others have one.", ge=1)]
    ready_age: Annotated[
        float | None, about("How long the job that comes next has been ready, in seconds.")
    ]
    paused_until: Annotated[MomentText | None, about("null: it is not paused.")]
    blocked: Annotated[
        str | Unset,
        about(
            "Why it hands out nothing; absent: it hands out what is ready. paused: it is paused;"
            " the other words are the field of the policy that holds it back.",
            extra_json_schema={"enum": [each.value for each in GroupBlock]},
        ),
    ] = UNSET


class GroupPageAnswer(Answer, kw_only=True):
    """Groups of a topic, in the order that was asked for."""

    groups: list[GroupAnswer]
    count: Annotated[Count, about("How many groups the topic has.")]
    after: Annotated[
        str | None, about("`after` for the next request, in the order of names; null: no more.")
    ]


# --- Schedules -----------------------------------------------------------------------------------


class DefinitionAnswer(Answer, kw_only=True):
    """What a schedule is; an absent field says nothing."""

    topic: str
    cron: str | Unset = UNSET
    every: str | Unset = UNSET
    timezone: Annotated[str | Unset, about("UTC, where it is absent.")] = UNSET
    start: MomentText | Unset = UNSET
    end: MomentText | Unset = UNSET
    limit: Count | Unset = UNSET
    missed: Annotated[Missed | Unset, about("latest, where it is absent.")] = UNSET
    window: str | Unset = UNSET
    overlap: Annotated[Overlap | Unset, about("allow, where it is absent.")] = UNSET
    jitter: str | Unset = UNSET
    priority: PriorityNumber | Unset = UNSET
    ttr: str | Unset = UNSET
    retry: Steps | Unset = UNSET
    max_attempts: Count | Unset = UNSET
    jitter_percent: Count | Unset = UNSET
    group: OwnGroup = UNSET
    url: OwnUrl = UNSET
    method: OwnMethod = UNSET
    headers: OwnHeaders = UNSET
    body: JsonBody = UNSET
    body_base64: BytesBody = UNSET


class RunAnswer(Answer, kw_only=True):
    """The last run of a schedule."""

    key: Annotated[str, about("Of its job: the name of the schedule, @, and `due`.")]
    id: Annotated[JobId | None, about("Of its job; null: it was refused.")]
    due: Annotated[MomentText, about("Its nominal time.")]
    outcome: Annotated[
        str,
        about(
            "running: its job is neither done nor dead; done; dead; cancelled: deleted while no"
            " worker held it, or replaced; ended: done or cancelled before the daemon's start;"
            " refused: no job was put.",
            extra_json_schema={
                "enum": ["running", *(end.value for end in JobEnd), "ended", "refused"]
            },
        ),
    ]
    error: Annotated[str | None, about("Why it was refused, or is dead.")]


ScheduleChange = Annotated[
    Literal["created", "changed", "unchanged"] | Unset, about("What a PUT has done.")
]


class ScheduleAnswer(Answer, kw_only=True):
    """A schedule, and what has become of its runs since it was made."""

    name: str
    definition: DefinitionAnswer
    source: Annotated[
        Literal["run_time", "configuration"], about("Where it was set; the latter is fixed.")
    ]
    state: Annotated[ScheduleState, about("over: there are no more runs.")]
    note: Annotated[str | Unset, about("Why it is paused.")] = UNSET
    next: Annotated[MomentText | None, about("When the next run is due; null: there is none.")]
    created: MomentText
    changed: Annotated[MomentText | None, about("When it got this definition; null: always.")]
    runs: Annotated[Count, about("Jobs that were put.")]
    missed: Annotated[
        Count, about("Runs that were due while no daemon ran, and were not put later.")
    ]
    last_missed: Annotated[
        MomentText | None, about("When the last of these were noticed; null: there were none.")
    ]
    skipped: Annotated[Count, about("Runs that were due while the one before was under way.")]
    refused: Annotated[Count, about("Runs whose job was refused, by a cap for example.")]
    late: Annotated[Count, about("Runs that came more than a second after they were due.")]
    last: Annotated[RunAnswer | None, about("null: there was none.")]
    queued: Annotated[
        MomentText | None, about("The nominal time of a run that waits for the end of `last`.")
    ]
    tzdata: Annotated[str, about("The version of the time zones by which it is planned.")]
    change: ScheduleChange = UNSET


class ChangedScheduleAnswer(Answer, kw_only=True):
    """Of a schedule that was made or changed, for a token that may not look at it."""

    name: str
    topic: str
    state: Annotated[ScheduleState, about("over: there are no more runs.")]
    next: Annotated[MomentText | None, about("When the next run is due; null: there is none.")]
    note: Annotated[str | Unset, about("With which it was paused just now.")] = UNSET
    change: ScheduleChange = UNSET


class SchedulePageAnswer(Answer, kw_only=True):
    """One page of schedules, sorted by name."""

    schedules: list[ScheduleAnswer]
    after: After
    now: MomentText


class RanAnswer(Answer, kw_only=True):
    """The job of a run."""

    id: JobId
    key: str
    outcome: Annotated[
        Outcome, about("created, or kept: a run of this very millisecond was there already.")
    ]


class BackfilledAnswer(Answer, kw_only=True):
    """What a backfill has done."""

    put: Annotated[Count, about("Jobs that were put.")]
    kept: Annotated[Count, about("Runs whose job was there, and was left as it is.")]


class PreviewAnswer(Answer, kw_only=True):
    """When runs are due, if all goes well."""

    runs: list[MomentText]
    timezone: Annotated[str, about("By which a cron expression counts.")]
    tzdata: Annotated[str, about("The version of the time zones.")]
    now: MomentText


# --- The daemon ----------------------------------------------------------------------------------


class CpuAnswer(Answer, kw_only=True):
    """Processor time of the process, in seconds."""

    user: Seconds
    system: Seconds


class MachineAnswer(Answer, kw_only=True):
    """The machine that it runs on."""

    hostname: str
    os: str
    platform: str


class JournalAnswer(Answer, kw_only=True):
    """The log, in files of `segment_bytes`, or in a database, which has no files."""

    oldest_file: Count
    current_file: Count
    jobs_copied: Annotated[Count, about("Jobs copied into snapshots.")]
    records_written: Count
    segment_bytes: Count


class DiskAnswer(Answer, kw_only=True):
    """The volume of the data directory."""

    free_bytes: Count
    needed_bytes: Annotated[
        Count, about("With less, puts are refused once the files made in advance are full.")
    ]


class StandbyAnswer(Answer, kw_only=True):
    """A daemon that follows the log."""

    address: str
    lag_frames: Annotated[Count, about("Frames that it has not read yet.")]
    lag: Annotated[Seconds, about("How long ago it had last read everything.")]


class OwnershipAnswer(Answer, kw_only=True):
    """Who owns the log in a database."""

    owner: Annotated[bool, about("Whether this daemon owns it.")]
    address: Annotated[str, about("The address of the owner.")]
    epoch: Annotated[Count, about("How many times it has changed owner.")]
    lease_left: Annotated[
        Seconds,
        about("How long the lease lasts, in seconds; 0: another daemon may own the log by now."),
    ]
    database: str
    trouble: Annotated[str, about("Why the database cannot be reached; empty: it can.")]
    standbys: list[StandbyAnswer]


class LineAnswer(Answer, kw_only=True):
    """The line protocol."""

    connections: Count
    connections_total: Count
    producers: Count
    workers: Count
    commands: dict[str, Count]


class HttpAnswer(Answer, kw_only=True):
    """This API."""

    connections: Count
    waiting: Annotated[Count, about("Requests that wait for a job.")]


class PushAnswer(Answer, kw_only=True):
    """Deliveries of due jobs."""

    under_way: Count
    attempts: Annotated[
        dict[str, Count],
        about("Deliveries by result: delivered, failed, exhausted (now a dead letter)."),
    ]
    places: Annotated[
        dict[str, Count],
        about("Targets by the state of their circuit breaker: closed, open, half_open."),
    ]


class JobCountsAnswer(Answer, kw_only=True):
    """Jobs of all topics, by state."""

    ready: Count
    urgent: Count
    reserved: Count
    delayed: Count
    buried: Count


class DaemonUsageAnswer(Answer, kw_only=True):
    """How much of each cap on all topics together is used."""

    jobs: UseAnswer
    bytes: UseAnswer


class SchedulesAnswer(Answer, kw_only=True):
    """The schedules together, and their runs since the daemon's start."""

    active: Count
    paused: Count
    over: Annotated[Count, about("They have no more runs.")]
    runs: Annotated[Count, about("Jobs that were put.")]
    missed: Annotated[Count, about("Due while no daemon ran, and not put later.")]
    skipped: Annotated[Count, about("Due while the one before was under way.")]
    refused: Annotated[Count, about("Their jobs were refused.")]
    late: Annotated[Count, about("More than a second after they were due.")]


class StatsAnswer(Answer, kw_only=True):
    """The daemon as a whole; counters begin with its start."""

    version: str
    compiled: Annotated[bool, about("Whether delayd runs compiled; false: as interpreted Python.")]
    id: Annotated[str, about("Changes with each start.")]
    pid: Count
    uptime: Seconds
    cpu: CpuAnswer
    machine: MachineAnswer
    journal: JournalAnswer
    line: LineAnswer
    http: HttpAnswer
    push: Annotated[PushAnswer | None, about("null: nothing is delivered.")] = None
    disk: Annotated[DiskAnswer | None, about("null: the system does not tell.")] = None
    ownership: Annotated[OwnershipAnswer | Unset, about("Only if the log is in a database.")] = (
        UNSET
    )
    draining: bool
    topics: Count
    jobs: JobCountsAnswer
    oldest_ready_age: float | None
    rates: RatesAnswer
    late: Annotated[LatenessAnswer, about("How late delays ended, in the last minute.")]
    operations: dict[str, Count]
    usage: DaemonUsageAnswer
    schedules: SchedulesAnswer
    body_bytes_max: Count


class MinuteAnswer(Answer, kw_only=True):
    """What has happened in a minute of the clock."""

    from_: MomentText = msgspec.field(name="from")
    put: Count
    reserved: Count
    deleted: Count
    failed: Annotated[Count, about("Attempts that ended in a nack, or because the ttr ran out.")]
    late_p50: Annotated[
        Seconds | None, about("The median of how late delays ended; null: none has ended.")
    ]
    late_p99: Seconds | None


class HistoryAnswer(Answer, kw_only=True):
    """The last minutes."""

    now: MomentText
    start: Annotated[MomentText, about("When the daemon started: nothing older is known.")]
    minutes: Annotated[list[MinuteAnswer], about("The oldest first; the last one is not over yet.")]


class AccessAnswer(Answer, kw_only=True):
    """The client's name, and what it may do."""

    name: Annotated[str, about("What the token, user or certificate is called.")]
    scopes: Annotated[list[str], about("In alphabetical order.")]
    topics: Annotated[list[str], about("Patterns of the topics that the scopes are for.")]


class LivesAnswer(Answer, kw_only=True):
    """The process is alive."""

    status: Literal["ok"]


class ReadyAnswer(Answer, kw_only=True):
    """The daemon accepts jobs, or all but those."""

    status: Literal["ready"]


class HandoverAnswer(Answer, kw_only=True):
    """The daemon is shutting down, and a standby takes its log over."""

    standby: Annotated[str, about("The address of the standby that has read most of the log.")]


class AdvancedAnswer(Answer, kw_only=True):
    """The time of the virtual clock."""

    now: MomentText
