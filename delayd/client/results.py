"""Results of operations.

>>> failure = Failure(reason="nacked", error="no route to host")
>>> JobInfo(7, "mail", "buried", body=b"hello", failure=failure).text
'hello'
"""

import datetime as dt
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from delayd.client.values import Outcome, State

Time = dt.datetime
NO_DETAILS: Final[Mapping[str, Any]] = MappingProxyType({})


class PutResult(NamedTuple):
    """The result of a put."""

    id: int
    outcome: Outcome
    """`created`, or how the job that had the key was changed."""
    due: Time | None = None
    """When it is due; None on the line."""


class Became(NamedTuple):
    """The outcome of a failed attempt."""

    state: State | None
    """None on the line, whose reply has no state."""
    topic: str
    """Another one if a policy has moved the job."""
    due: Time | None = None
    """Of a delayed job."""


class Failure(NamedTuple):
    """The last failed attempt of a job."""

    reason: str
    at: Time | None = None
    error: str = ""
    origin: str = ""
    """The topic that the job was moved from."""


class Attempt(NamedTuple):
    """A failed attempt of a job."""

    reason: str
    outcome: str
    """What became of the job: `delayed`, `ready`, `buried`, `moved`."""
    ended: Time | None = None
    """None on the line, which has `age`."""
    lasted: float | None = None
    """How long it was, in seconds; None: not known."""
    who: str = ""
    """Who had the job: the name of a token, an address; empty: not known."""
    error: str = ""
    age: int | None = None
    """How long ago it ended, in seconds, on the line."""


TEXTS: Final = ("group",)
"""What a job has of its own that is one text: fields of jobs, and options of a put."""


class JobInfo(NamedTuple):
    """A job as it was at the time of the request."""

    id: int
    topic: str
    state: State
    due: Time | None = None
    priority: int = 0
    created: Time | None = None
    ttr: float | None = None
    expires: Time | None = None
    key: str = ""
    group: str = ""
    """Empty: none."""
    attempts: int = 0
    failure: Failure | None = None
    history: tuple[Attempt, ...] = ()
    """The last attempts that failed, the oldest first; not in a list."""
    body: bytes | None = None
    """None in a list without bodies."""
    details: Mapping[str, Any] = NO_DETAILS
    """All members of the daemon's answer, under its names."""

    @property
    def text(self) -> str:
        """The body, as UTF-8."""
        return (self.body or b"").decode()

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """Return the body, read as JSON."""
        return json.loads(self.body or b"")


class DeadGroup(NamedTuple):
    """The dead letters of a topic that failed for one reason."""

    topic: str
    id: str
    """Of the reason, for `reason` of other calls; the same in every topic."""
    reason: str
    """With `#` for what differs from job to job; empty: all other reasons."""
    jobs: int
    first: Time | None = None
    """When the first of them failed."""
    last: Time | None = None
    job: int = 0
    """The one that failed last."""


def with_others(groups: list[DeadGroup], topic: str, jobs: int) -> list[DeadGroup]:
    """Return the groups of a topic, and one for those of its dead letters that are in none."""
    others = jobs - sum(group.jobs for group in groups)
    return [*groups, DeadGroup(topic, "", "", others)] if others > 0 else groups


class Reservation(NamedTuple):
    """A job that this client holds until it expires."""

    id: int
    topic: str
    token: str
    """Names this one reservation, over HTTP."""
    body: bytes
    attempt: int | None = None
    """Attempt number, starting at 1."""
    priority: int | None = None
    due: Time | None = None
    lateness: float | None = None
    """How long it had been due when it was handed out, in seconds."""
    ttr: float | None = None
    expires: Time | None = None
    key: str = ""
    group: str = ""
    """On the line empty: use `get`."""
    failure: Failure | None = None
    """Why the last attempt failed."""
    link: Any = None
    """The connection that holds it, on the line."""


class TopicInfo(NamedTuple):
    """Jobs of a topic by state, and how many consumers wait for them."""

    name: str
    delayed: int
    ready: int
    reserved: int
    buried: int
    urgent: int
    waiting: int
    paused_until: Time | None = None
    """On the line to the second, by the clock of this machine; None in the last second."""
    details: Mapping[str, Any] = NO_DETAILS
    """All members of the daemon's answer, under its names."""
    oldest_ready_age: float | None = None
    """How long the oldest ready job has been ready, in seconds; None on the line, as the next."""
    trouble: str | None = None
    """The worst that is wrong: untaken, buried, paused, behind or failing; None: nothing."""
    groups: int = 0
    """How many groups its jobs belong to."""

    @property
    def jobs(self) -> int:
        """How many there are in all states."""
        return self.delayed + self.ready + self.reserved + self.buried


class GroupInfo(NamedTuple):
    """A group of a topic's jobs; one that no job has is all zeros."""

    name: str
    jobs: int
    """In whatever state."""
    ready: int
    reserved: int
    retrying: int
    """Delayed jobs that wait for another attempt."""
    weight: int
    """How many turns it has where others have one."""
    ready_age: float | None = None
    """How long the job that comes next has been ready, in seconds."""
    paused_until: Time | None = None
    blocked: str = ""
    """Why it hands out nothing: `paused`, or the field of the policy that holds it back."""


class GroupPage(NamedTuple):
    """Groups of a topic, in the order that was asked for."""

    groups: list[GroupInfo]
    total: int
    """How many the topic has."""
    after: str | None = None
    """For `after` of the next page, in the order of names; None: there is none."""


class PolicyInfo(NamedTuple):
    """The policy in force."""

    policy: dict[str, Any]
    source: str
    """`configuration` or `run_time`; empty on the line, whose reply has no source."""
    policy_tag: str = ""
    """Another one as soon as the policy says something else; for `if_tag` of `set_policy`."""


class LastRun(NamedTuple):
    """The run of a schedule that came last."""

    outcome: str
    """`running`, or how its job has ended: `done`, `dead`, `cancelled`, `ended`; or `refused`."""
    due: Time | None = None
    """The time for which it was planned."""
    key: str = ""
    """Of its job."""
    id: int | None = None
    """Of its job; None: there is none."""
    error: str = ""
    """Why it was refused."""


class ScheduleInfo(NamedTuple):
    """A schedule, and what has become of its runs."""

    name: str
    topic: str
    state: str
    """`active`, `paused` or `over`."""
    next: Time | None = None
    """When the next run is due; None: there is none."""
    definition: Mapping[str, Any] = NO_DETAILS
    """What `put_schedule` was given, but for the body."""
    body: bytes | None = None
    """Of the job of each run."""
    source: str = ""
    """`configuration` or `run_time`."""
    note: str = ""
    """Why it is paused."""
    created: Time | None = None
    changed: Time | None = None
    """When it was given another definition last; None: never."""
    runs: int = 0
    """Jobs that were put."""
    missed: int = 0
    """Runs that were due while no daemon ran, and were not put later."""
    skipped: int = 0
    """Runs that were due while the one before was under way."""
    refused: int = 0
    """Runs whose job was refused."""
    late: int = 0
    """Runs that were more than a second late."""
    last: LastRun | None = None
    """None: there was none."""
    queued: Time | None = None
    """The run that waits for the end of the last one; None: none does."""
    tzdata: str = ""
    """The version of the time zones by which it is planned."""
    details: Mapping[str, Any] = NO_DETAILS
    """All members of the daemon's answer, under its names."""
    change: str = ""
    """What `put_schedule` has done: `created`, `changed` or `unchanged`; else empty."""

    @property
    def text(self) -> str:
        """The body, as UTF-8."""
        return (self.body or b"").decode()

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """Return the body, read as JSON."""
        return json.loads(self.body or b"")


class RunResult(NamedTuple):
    """The job of a run that was asked for."""

    id: int
    key: str
    outcome: str = "created"
    """`kept`: a run of the same millisecond was there already, and no other was put."""


class BackfillResult(NamedTuple):
    """The runs of a past range."""

    put: int
    """Jobs that were put."""
    kept: int
    """Runs whose job was there."""


class SchedulePreview(NamedTuple):
    """When the next runs of a schedule are due, if all goes well."""

    runs: list[Time]
    timezone: str
    """By which its cron expression counts."""
    tzdata: str
    """The version of the time zones."""
    now: Time | None = None
    """The daemon's time; older ones do not say it."""


class Calendar(NamedTuple):
    """How many delayed jobs come due in each of equal spans from now."""

    start: Time | None
    """None on the line, whose reply has no start."""
    bin_s: float
    topics: dict[str, list[int]]


class Health(NamedTuple):
    """Whether the daemon accepts jobs now."""

    is_ready: bool
    reason: str = ""
    """Why it does not."""
