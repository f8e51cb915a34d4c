"""What each call is for, in words, what it answers, and which refusals of its own it has.

A column of the table of calls, kept apart because it is prose. The OpenAPI document shows it; what
every call may be refused for (no token, no JSON, a field that is wrong) is worked out there, from
the call's other columns.
"""

import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from delayd.core.errors import (
    BodyTooBig,
    CapReached,
    DelayTooLong,
    Draining,
    JobAlreadyExists,
    JobNotFound,
    KeyInvalid,
    KeyNotFound,
    OutOfSpace,
    PolicyInvalid,
    Refusal,
    TopicIsInternal,
    TopicNameInvalid,
    TopicNotFound,
    ValueOutOfRange,
)
from delayd.http import answers, overviews
from delayd.http.answers import Answer
from delayd.http.problems import (
    JSON,
    JobReserved,
    KeyReused,
    NoClock,
    NotReady,
    ReservationLost,
    WrongState,
)
from delayd.limits import HTTP_BATCH_MAX, HTTP_WAIT_MS_MAX


class Section(enum.Enum):
    """To whom calls matter; the values are headings."""

    PRODUCERS = "Producers"
    WORKERS = "Workers"
    JOBS = "Jobs"
    TOPICS = "Topics"
    DAEMON = "Daemon"


class Said(NamedTuple):
    """One answer that is no refusal."""

    when: str
    """What it means."""
    kinds: tuple[type[Answer], ...] = ()
    """What it may say."""
    media: str = ""
    """The type of a body that `kinds` does not describe; empty where there is none."""
    has_location: bool = False
    """`Location` leads to the job."""


class Entry(NamedTuple):
    """One call."""

    name: str
    """What programs made of the OpenAPI document call it; never changes."""
    section: Section
    summary: str
    about: str
    answers: Mapping[int, Said]
    refusals: tuple[type[Refusal], ...] = ()
    """Beside those that every call with such a path, body and query has."""


def _said(**by_status: Said) -> Mapping[int, Said]:
    """Return answers by status: `_said(s200=...)`."""
    return MappingProxyType({int(name[1:]): said for name, said in by_status.items()})


_PUT_REFUSALS: Final = (
    ValueOutOfRange,
    DelayTooLong,
    BodyTooBig,
    CapReached,
    OutOfSpace,
    Draining,
)
_HELD: Final = (JobNotFound, ReservationLost)
_CHANGE_REFUSALS: Final = (
    JobReserved,
    ValueOutOfRange,
    DelayTooLong,
    BodyTooBig,
    CapReached,
    OutOfSpace,
)
_NAMED: Final = _said(s200=Said("It is done; the job's number.", (answers.Named,)))
_CHANGED: Final = _said(s200=Said("It is changed.", (answers.Changed,)))
_JOB: Final = _said(s200=Said("The job.", (answers.Job,)))
_RESERVED: Final = _said(
    s200=Said("Jobs, the most urgent first.", (answers.Reserved,)),
    s204=Said("No job became ready while the call waited."),
)
_MANY_DONE: Final = _said(s200=Said("To how many.", (overviews.Many,)))
_POLICY: Final = _said(s200=Said("What holds now.", (overviews.PolicyOfTopic,)))
_PAUSED: Final = _said(s200=Said("Until when.", (overviews.Paused,)))
_BULK: Final = (
    "It takes seconds where millions of jobs are looked at; others are served meanwhile. Whoever "
    "hangs up ends it where it stands, and what was done by then stays done."
)
_MANY: Final = f"{HTTP_BATCH_MAX:,} at most"

# --- Producers -----------------------------------------------------------------------------------

PUT_JOB: Final = Entry(
    "put_job",
    Section.PRODUCERS,
    "Put a job, or many",
    'The job is on disk when this is answered. `{"jobs": [...]}` puts '
    f"{_MANY}, in one commit: what is malformed refuses the whole request, and what is refused for "
    "another reason (a key that is taken, a cap) is told for that job alone. With an "
    "`Idempotency-Key` the same request, sent again within a day, makes no second job.",
    _said(
        s200=Said(
            "A live job has the key, and on_conflict says what became of it.",
            (answers.Put,),
            has_location=True,
        ),
        s201=Said(
            "The job was made; or all jobs of the batch were put.",
            (answers.Put, answers.PutResults),
            has_location=True,
        ),
        s207=Said("Some jobs of the batch were refused; each says how.", (answers.PutResults,)),
    ),
    (*_PUT_REFUSALS, JobAlreadyExists, KeyReused),
)
PUT_KEY: Final = Entry(
    "put_job_by_key",
    Section.PRODUCERS,
    "Put a job under a key",
    "Sent twice it has the effect of once: the job that has the key gets the new body, time, "
    "priority, ttr and ladder, unless `on_conflict` says otherwise.",
    _said(
        s200=Said(
            "The job that has the key was changed or kept.", (answers.Put,), has_location=True
        ),
        s201=Said("The job was made.", (answers.Put,), has_location=True),
    ),
    (*_PUT_REFUSALS, JobAlreadyExists, KeyInvalid),
)

# --- Workers -------------------------------------------------------------------------------------

RESERVE: Final = Entry(
    "reserve",
    Section.WORKERS,
    "Reserve jobs of a topic",
    f"Takes up to `max` ready jobs at once, or waits for the first, {HTTP_WAIT_MS_MAX // 1_000} s "
    "at most. A job is the caller's until its `ttr` has passed; its `token` says so to the calls "
    "below. Whoever hangs up before the answer leaves has reserved nothing, and no attempt is "
    "counted.",
    _RESERVED,
    (OutOfSpace,),
)
RESERVE_ANY: Final = RESERVE._replace(
    name="reserve_any",
    summary="Reserve jobs of several topics",
    about="The same for several topics: the most urgent of them all come first.",
    refusals=(*RESERVE.refusals, TopicIsInternal),
)
ACK: Final = Entry(
    "ack",
    Section.WORKERS,
    "Acknowledge a job",
    "It is done, and gone for good. A worker that was too slow has lost the job, and its token "
    "disturbs nobody.",
    _NAMED,
    _HELD,
)
ACK_MANY: Final = Entry(
    "ack_many",
    Section.WORKERS,
    "Acknowledge many jobs",
    f"In one commit, {_MANY}; tells of each whether it was still the caller's.",
    _said(
        s200=Said("All are done.", (answers.AckResults,)),
        s207=Said("Some were refused; each says how.", (answers.AckResults,)),
    ),
)
NACK: Final = Entry(
    "nack",
    Section.WORKERS,
    "Say that an attempt has failed",
    "What becomes of the job says its retry rule, or that of its topic: the next step of the "
    "ladder, burial, another topic. A `delay` of the caller's wins over the step. Without a rule "
    "the job is ready again, after that delay.",
    _said(s200=Said("What became of the job.", (answers.Became,))),
    (*_HELD, ValueOutOfRange, OutOfSpace),
)
NACK_MANY: Final = Entry(
    "nack_many",
    Section.WORKERS,
    "Say that many attempts have failed",
    f"In one commit, {_MANY}; tells of each what became of the job.",
    _said(
        s200=Said("All were taken.", (answers.NackResults,)),
        s207=Said("Some were refused; each says how.", (answers.NackResults,)),
    ),
)
TOUCH: Final = Entry(
    "touch",
    Section.WORKERS,
    "Ask for more time",
    "The reservation lasts a full `ttr` from now.",
    _said(s200=Said("It goes on.", (answers.Touched,))),
    (*_HELD, OutOfSpace),
)
BURY: Final = Entry(
    "bury",
    Section.WORKERS,
    "Park a job",
    "It is handed to nobody until somebody kicks it.",
    _said(s200=Said("It is buried.", (answers.Became,))),
    (*_HELD, OutOfSpace),
)

# --- Jobs ----------------------------------------------------------------------------------------

GET_JOB: Final = Entry(
    "get_job",
    Section.JOBS,
    "Look at a job",
    "In whatever state; nothing about it changes.",
    _JOB,
    (JobNotFound,),
)
GET_KEY: Final = GET_JOB._replace(
    name="get_job_by_key",
    summary="Look at the job that has a key",
    refusals=(KeyNotFound,),
)
CHANGE_JOB: Final = Entry(
    "change_job",
    Section.JOBS,
    "Change a job",
    "A new time, priority, ttr or body, at one stroke; what is absent stays. A new time takes a "
    "buried job out of burial. A reserved job is its holder's.",
    _CHANGED,
    (JobNotFound, *_CHANGE_REFUSALS),
)
CHANGE_KEY: Final = CHANGE_JOB._replace(
    name="change_job_by_key",
    summary="Change the job that has a key",
    refusals=(KeyNotFound, *_CHANGE_REFUSALS),
)
CANCEL_JOB: Final = Entry(
    "cancel_job",
    Section.JOBS,
    "Cancel a job",
    "It is gone for good, delayed, ready or buried. A reserved job is its holder's.",
    _NAMED,
    (JobNotFound, JobReserved),
)
CANCEL_KEY: Final = CANCEL_JOB._replace(
    name="cancel_job_by_key",
    summary="Cancel the job that has a key",
    refusals=(KeyNotFound, JobReserved),
)
KICK_JOB: Final = Entry(
    "kick_job",
    Section.JOBS,
    "Make a job ready",
    "One that is delayed comes at once; one that is buried is revived, and its ladder begins anew.",
    _NAMED,
    (JobNotFound, JobReserved, WrongState, OutOfSpace),
)
KICK_KEY: Final = KICK_JOB._replace(
    name="kick_job_by_key",
    summary="Make the job ready that has a key",
    refusals=(KeyNotFound, JobReserved, WrongState, OutOfSpace),
)

LIST_JOBS: Final = Entry(
    "list_jobs",
    Section.JOBS,
    "List jobs of a topic",
    "A page of them, in due order. `after` of one answer leads to the next page; a job that nobody "
    "touches meanwhile is on one page exactly.",
    _said(s200=Said("A page.", (overviews.Page,))),
    (TopicNotFound,),
)
CANCEL_JOBS: Final = Entry(
    "cancel_jobs",
    Section.JOBS,
    "Cancel many jobs",
    f"All that match, but those that somebody works on. {_BULK}",
    _MANY_DONE,
    (TopicNotFound,),
)
KICK_JOBS: Final = Entry(
    "kick_jobs",
    Section.JOBS,
    "Make many jobs ready",
    f"All that match and are delayed or buried. {_BULK}",
    _MANY_DONE,
    (TopicNotFound, OutOfSpace),
)
RESCHEDULE_JOBS: Final = Entry(
    "reschedule_jobs",
    Section.JOBS,
    "Reschedule many jobs",
    "All that match and are delayed or ready come due after the same delay from now, or at the"
    f" same time. {_BULK}",
    _MANY_DONE,
    (TopicNotFound, ValueOutOfRange, DelayTooLong, OutOfSpace),
)
CALENDAR: Final = Entry(
    "get_calendar",
    Section.JOBS,
    "Count what comes due when",
    "Delayed jobs in each of so many spans of time from now on, by topic.",
    _said(s200=Said("The counts.", (overviews.Calendar,))),
    (TopicNotFound, TopicNameInvalid, ValueOutOfRange),
)

# --- Topics --------------------------------------------------------------------------------------

LIST_TOPICS: Final = Entry(
    "list_topics",
    Section.TOPICS,
    "List topics",
    "A page of those that the token may see, sorted by name.",
    _said(s200=Said("A page.", (overviews.TopicPage,))),
)
GET_TOPIC: Final = Entry(
    "get_topic",
    Section.TOPICS,
    "Look at a topic",
    "A topic is there as long as it has jobs, consumers that wait, a pause or a policy of its own.",
    _said(s200=Said("All there is to say.", (overviews.Topic,))),
    (TopicNotFound,),
)
GET_POLICY: Final = Entry(
    "get_policy",
    Section.TOPICS,
    "See what holds for a topic",
    "Or would, if there were such a topic.",
    _POLICY,
)
SET_POLICY: Final = Entry(
    "set_policy",
    Section.TOPICS,
    "Say what holds for a topic",
    "In the place of what was said before, or what the configuration says. Kept over restarts.",
    _POLICY,
    (PolicyInvalid, OutOfSpace),
)
DROP_POLICY: Final = Entry(
    "drop_policy",
    Section.TOPICS,
    "Let hold what the configuration says",
    "Answers what that is.",
    _POLICY,
    (OutOfSpace,),
)
PAUSE: Final = Entry(
    "pause",
    Section.TOPICS,
    "Hand out nothing for a while",
    "Jobs go on coming due, and wait.",
    _PAUSED,
    (TopicNotFound, ValueOutOfRange, OutOfSpace),
)
RESUME: Final = Entry(
    "resume", Section.TOPICS, "End a pause", "At once.", _PAUSED, (TopicNotFound, OutOfSpace)
)
KICK: Final = Entry(
    "kick",
    Section.TOPICS,
    "Revive buried jobs",
    "The longest buried first; with `per_second` the first at once and each of the others one step "
    "later.",
    _MANY_DONE,
    (TopicNotFound, ValueOutOfRange, OutOfSpace),
)
CLEAR: Final = Entry(
    "clear",
    Section.TOPICS,
    "Forget all jobs of a topic",
    "But those that somebody works on; in no time, however many there are.",
    _MANY_DONE,
    (TopicNotFound, OutOfSpace),
)

# --- Daemon --------------------------------------------------------------------------------------

STATS: Final = Entry(
    "get_stats",
    Section.DAEMON,
    "See the figures of the daemon",
    "For people; Prometheus reads `/metrics`.",
    _said(s200=Said("The figures.", (overviews.Stats,))),
)
METRICS: Final = Entry(
    "get_metrics",
    Section.DAEMON,
    "See all figures, for Prometheus",
    "Its text format.",
    _said(s200=Said("The figures.", media="text/plain")),
)
HEALTHZ: Final = Entry(
    "healthz",
    Section.DAEMON,
    "Ask whether it lives",
    "A process that does not answer this is to be started again.",
    _said(s200=Said("It does.", (overviews.Lives,))),
)
READYZ: Final = Entry(
    "readyz",
    Section.DAEMON,
    "Ask whether it takes jobs",
    "While it does not, no producer should be sent here: it drains, its disk is full or silent.",
    _said(s200=Said("It does.", (overviews.Ready,))),
    (NotReady, Draining),
)
ADVANCE: Final = Entry(
    "advance_clock",
    Section.DAEMON,
    "Let time go on",
    "Of a daemon with `--clock virtual`. Everything due by then happens before the answer.",
    _said(s200=Said("How far it has come.", (overviews.Advanced,))),
    (NoClock, ValueOutOfRange),
)
OPENAPI: Final = Entry(
    "get_openapi",
    Section.DAEMON,
    "This document",
    "Needs no token.",
    _said(s200=Said("OpenAPI 3.1.", media=JSON)),
)
