"""What is answered to who looks at many jobs, at topics, or at the daemon itself.

As in `answers`: they describe, and no handler makes one. What was counted was counted since the
start of the daemon, lengths of time are in seconds, and null is what there is not.
"""

from typing import Annotated, Final, Literal

import msgspec

from delayd.core.throttle import Block
from delayd.core.topic import Source
from delayd.http.answers import (
    Answer,
    Attempts,
    BytesBody,
    Count,
    Failure,
    JobId,
    JsonBody,
    Ladder,
    MomentText,
    Priority,
    Seconds,
    StateName,
)
from delayd.http.schemas import UNSET, Unset

Meta: Final = msgspec.Meta

# --- Jobs ----------------------------------------------------------------------------------------


class PageJob(Answer, kw_only=True):
    """A job, as far as a page tells."""

    id: JobId
    state: StateName
    due: MomentText
    priority: Priority
    key: str | Unset = UNSET
    attempts: Attempts | Unset = UNSET
    failure: Failure | Unset = UNSET
    body: JsonBody = UNSET
    body_base64: BytesBody = UNSET


After = Annotated[
    str | None, Meta(description="What `after` of the next request is to be; null: that was all.")
]


class Page(Answer, kw_only=True):
    """One page of jobs, in due order."""

    jobs: list[PageJob]
    after: After


class Many(Answer, kw_only=True):
    """To how many jobs it was done; `matched` where nothing was to be done."""

    cancelled: Count | Unset = UNSET
    kicked: Count | Unset = UNSET
    rescheduled: Count | Unset = UNSET
    cleared: Count | Unset = UNSET
    matched: Count | Unset = UNSET


class TopicCalendar(Answer, kw_only=True):
    """What comes due of a topic."""

    name: str
    counts: Annotated[list[Count], Meta(description="Jobs in each span, the first from now on.")]


class Calendar(Answer, kw_only=True):
    """What comes due when."""

    from_: MomentText = msgspec.field(name="from")
    bin: Annotated[Seconds, Meta(description="How long each span is, in seconds.")]
    topics: list[TopicCalendar]
    after: After


# --- Topics --------------------------------------------------------------------------------------


class TopicCounts(Answer, kw_only=True):
    """How many jobs a topic has, and who waits for them."""

    name: str
    jobs: Count
    delayed: Count
    ready: Count
    reserved: Count
    buried: Count
    urgent: Annotated[Count, Meta(description="Ready with a priority below 1024.")]
    waiting: Annotated[Count, Meta(description="Consumers that wait for a job.")]
    paused_until: Annotated[MomentText | None, Meta(description="null: it is not paused.")]


class TopicPage(Answer, kw_only=True):
    """One page of topics, sorted by name."""

    topics: list[TopicCounts]
    after: After


class Policy(Answer, kw_only=True):
    """What holds for a topic; what is absent is as if there were no policy."""

    ttr: str | Unset = UNSET
    delay: str | Unset = UNSET
    retry: Ladder | Unset = UNSET
    jitter_percent: Count | Unset = UNSET
    max_attempts: Count | Unset = UNSET
    exhausted: str | Unset = UNSET
    on_close: str | Unset = UNSET
    jobs_max: Count | Unset = UNSET
    bytes_max: Count | Unset = UNSET
    body_bytes_max: Count | Unset = UNSET
    delay_max: str | Unset = UNSET
    reserved_max: Count | Unset = UNSET
    rate_per_s: Annotated[float, Meta(gt=0)] | Unset = UNSET


SourceName = Annotated[
    str,
    Meta(
        description="Who said so: the configuration, or a client.",
        extra_json_schema={"enum": [source.name.lower() for source in Source]},
    ),
]


class PolicyOfTopic(Answer, kw_only=True):
    """What holds for a topic, and who said so."""

    policy: Policy
    source: SourceName


class Rates(Answer, kw_only=True):
    """Jobs a second, in the last minute."""

    put: float
    reserved: float
    deleted: float


class Lateness(Answer, kw_only=True):
    """How long something took, in seconds; null where it has not happened."""

    jobs: Annotated[Count, Meta(description="How often it has happened.")]
    mean: float | None
    p50: float | None
    p90: float | None
    p99: float | None


class Use(Answer, kw_only=True):
    """How much of a cap is used."""

    in_use: Count
    max: Annotated[Count | None, Meta(description="null: there is no cap.")]


class TopicUsage(Answer, kw_only=True):
    """How much of each cap of a topic is used."""

    jobs: Use
    bytes: Use
    reserved: Use


BlockName = Annotated[
    str,
    Meta(
        description="paused; full: so many are in hand as may be; slow: its rate is used up.",
        extra_json_schema={
            "enum": [name for block in Block if (name := (block.name or "").lower())]
        },
    ),
]


class Topic(TopicCounts, kw_only=True):
    """All there is to say of a topic; what was counted was counted since the daemon's start."""

    using: Annotated[Count, Meta(description="Connections of the line protocol that put here.")]
    watching: Annotated[Count, Meta(description="Consumers that would take jobs of it.")]
    blocks: Annotated[list[BlockName], Meta(description="Why nothing is handed out.")]
    oldest_ready_age: Annotated[
        float | None, Meta(description="How long the oldest ready job has been ready, in seconds.")
    ]
    rates: Rates
    due_to_ready: Annotated[Lateness, Meta(description="How late delays ended.")]
    ready_to_reserved: Annotated[Lateness, Meta(description="How long ready jobs waited.")]
    operations: dict[str, Count]
    usage: TopicUsage
    policy: Policy
    source: SourceName


class Paused(Answer, kw_only=True):
    """Until when nothing is handed out."""

    paused_until: Annotated[MomentText | None, Meta(description="null: it is not paused.")]


# --- The daemon ----------------------------------------------------------------------------------


class Cpu(Answer, kw_only=True):
    """Processor time of the process, in seconds."""

    user: Seconds
    system: Seconds


class Machine(Answer, kw_only=True):
    """Where it runs."""

    hostname: str
    os: str
    platform: str


class Journal(Answer, kw_only=True):
    """The log, in files of `segment_bytes`."""

    oldest_file: Count
    current_file: Count
    jobs_copied: Annotated[Count, Meta(description="By snapshots.")]
    records_written: Count
    segment_bytes: Count


class Line(Answer, kw_only=True):
    """The line protocol."""

    connections: Count
    connections_total: Count
    producers: Count
    workers: Count
    commands: dict[str, Count]


class Http(Answer, kw_only=True):
    """This API."""

    connections: Count
    waiting: Annotated[Count, Meta(description="Requests that wait for a job.")]


class JobCounts(Answer, kw_only=True):
    """Jobs of all topics, by state."""

    ready: Count
    urgent: Count
    reserved: Count
    delayed: Count
    buried: Count


class DaemonUsage(Answer, kw_only=True):
    """How much of each cap on all topics together is used."""

    jobs: Use
    bytes: Use


class Stats(Answer, kw_only=True):
    """The daemon as a whole; what was counted was counted since its start."""

    version: str
    id: Annotated[str, Meta(description="Another one after each start.")]
    pid: Count
    uptime: Seconds
    cpu: Cpu
    machine: Machine
    journal: Journal
    line: Line
    http: Http
    draining: bool
    topics: Count
    jobs: JobCounts
    oldest_ready_age: float | None
    rates: Rates
    operations: dict[str, Count]
    usage: DaemonUsage
    body_bytes_max: Count


class Lives(Answer, kw_only=True):
    """The process serves."""

    status: Literal["ok"]


class Ready(Answer, kw_only=True):
    """Jobs are taken on."""

    status: Literal["ready"]


class Advanced(Answer, kw_only=True):
    """How far time has come."""

    now: MomentText
