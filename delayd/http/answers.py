"""What requests are answered: one struct for each kind of answer.

They describe; no handler makes one, since a dict that orjson writes takes half the time. The
OpenAPI document is made of them, and tests read what the daemon answers back into them. Members may
be added to answers in later versions, so a client ignores those that it does not know; the structs
here forbid them, so that a test fails when a member is not described.

>>> strictly(Put).decode(b'{"id":1,"outcome":"created","due":"2026-11-21T19:00:00.000Z"}').id
1
"""

from typing import Annotated, Any, Final, TypeVar

import msgspec

from delayd.core.job import Reason, State
from delayd.core.operations.put import Outcome
from delayd.http.schemas import UNSET, Token, Unset
from delayd.limits import HTTP_ERRORS_MAX, PRIORITY_MAX

Meta: Final = msgspec.Meta

JobId = Annotated[int, Meta(ge=1, description="The job's number, never used again.")]
MomentText = Annotated[
    str,
    Meta(
        description="A moment of the wall clock: RFC 3339, in UTC, with milliseconds.",
        examples=["2030-01-01T09:00:00.000Z"],
        extra_json_schema={"format": "date-time"},
    ),
]
Seconds = Annotated[float, Meta(ge=0, description="A length of time, in seconds.")]
Count = Annotated[int, Meta(ge=0)]
Priority = Annotated[int, Meta(ge=0, le=PRIORITY_MAX)]
Status = Annotated[int, Meta(ge=200, le=599, description="As of a request about this one alone.")]
Attempts = Annotated[
    Count, Meta(description="Since its retry ladder began, with the one that is under way.")
]
Ladder = Annotated[list[str], Meta(description="The delays after each failed attempt.")]
JsonBody = Annotated[
    Any, Meta(description="The body where it is JSON: the very text that was put.")
]
BytesBody = Annotated[
    str | Unset,
    Meta(
        description="The body where it is not, in base64.",
        extra_json_schema={"contentEncoding": "base64"},
    ),
]

StateName = Annotated[
    str,
    Meta(
        description="Where the job is in its life.",
        extra_json_schema={"enum": [state.name.lower() for state in State]},
    ),
]
ReasonName = Annotated[
    str,
    Meta(
        description="Why the attempt failed.",
        extra_json_schema={"enum": [reason.name.lower() for reason in Reason]},
    ),
]


HowMany = Annotated[
    int,
    Meta(ge=0, description="To how many jobs it was done before it was refused."),
]


class Answer(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What is answered."""


AnswerT = TypeVar("AnswerT", bound=Answer)


def strictly(kind: type[AnswerT]) -> msgspec.json.Decoder[AnswerT]:
    """Return what reads answers of one kind, and refuses members that are not described."""
    return msgspec.json.Decoder(kind)


# --- Problems ------------------------------------------------------------------------------------


class FieldError(Answer, kw_only=True):
    """One thing that is wrong with a request."""

    field: Annotated[str, Meta(description="Where, as `jobs[3].delay`; empty for the whole.")]
    detail: Annotated[str, Meta(description="The rule, and often the value that breaks it.")]


class Problem(Answer, kw_only=True):
    """Why a request was refused; nothing has changed (RFC 9457)."""

    type: Annotated[str, Meta(description="`urn:delayd:` and the word.")]
    title: Annotated[str, Meta(description="What all problems of this kind have in common.")]
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: Annotated[str, Meta(description="What it is this time, for people.")]
    word: Annotated[
        str, Meta(description="What it is, for programs: the line protocol's word, if it has one.")
    ]
    errors: (
        Annotated[
            list[FieldError],
            Meta(max_length=HTTP_ERRORS_MAX, description="Everything that is wrong, by field."),
        ]
        | Unset
    ) = UNSET
    job_id: Annotated[JobId | Unset, Meta(description="The job that is in the way.")] = UNSET
    cancelled: HowMany | Unset = UNSET
    kicked: HowMany | Unset = UNSET
    rescheduled: HowMany | Unset = UNSET


# --- Producers -----------------------------------------------------------------------------------


class Put(Answer, kw_only=True):
    """A job that was put."""

    id: JobId
    outcome: Outcome
    due: MomentText | Unset = UNSET
    """Absent where a put is answered again and its job is gone."""


class PutResult(Answer, kw_only=True):
    """What became of one job of a batch."""

    status: Status
    id: JobId | Unset = UNSET
    outcome: Outcome | Unset = UNSET
    due: MomentText | Unset = UNSET
    problem: Problem | Unset = UNSET


class PutResults(Answer, kw_only=True):
    """What became of each job of a batch, in the order of the request."""

    results: list[PutResult]


class Changed(Answer, kw_only=True):
    """A job that was changed."""

    id: JobId
    due: MomentText


class Named(Answer, kw_only=True):
    """The job that was meant."""

    id: JobId


# --- Workers -------------------------------------------------------------------------------------


class Failure(Answer, kw_only=True):
    """The last failed attempt of a job."""

    reason: ReasonName
    at: MomentText
    error: Annotated[str | Unset, Meta(description="What its worker said.")] = UNSET
    origin: Annotated[str | Unset, Meta(description="The topic that it was moved from.")] = UNSET


class ReservedJob(Answer, kw_only=True):
    """A job for its worker."""

    id: JobId
    topic: str
    token: Token
    attempt: Annotated[int, Meta(ge=1, description="The how manieth attempt this is.")]
    priority: Priority
    due: MomentText
    lateness: Annotated[Seconds, Meta(description="How long after that it was handed out, in s.")]
    ttr: Seconds
    expires: Annotated[MomentText, Meta(description="When the reservation ends by itself.")]
    key: str | Unset = UNSET
    failure: Failure | Unset = UNSET
    body: JsonBody = UNSET
    body_base64: BytesBody = UNSET


class Reserved(Answer, kw_only=True):
    """The jobs that were ready; one at least."""

    jobs: Annotated[list[ReservedJob], Meta(min_length=1)]


class Became(Answer, kw_only=True):
    """What became of a job."""

    id: JobId
    state: StateName
    topic: Annotated[str, Meta(description="Another one if its policy has moved it.")]
    due: Annotated[MomentText | Unset, Meta(description="Of a delayed job.")] = UNSET


class Touched(Answer, kw_only=True):
    """A reservation that goes on."""

    id: JobId
    expires: MomentText


class AckResult(Answer, kw_only=True):
    """What became of one acknowledgement."""

    id: JobId
    status: Status
    problem: Problem | Unset = UNSET


class AckResults(Answer, kw_only=True):
    """What became of each, in the order of the request."""

    results: list[AckResult]


class NackResult(Answer, kw_only=True):
    """What became of one failed attempt."""

    id: JobId
    status: Status
    state: StateName | Unset = UNSET
    topic: str | Unset = UNSET
    due: MomentText | Unset = UNSET
    problem: Problem | Unset = UNSET


class NackResults(Answer, kw_only=True):
    """What became of each, in the order of the request."""

    results: list[NackResult]


# --- Looking -------------------------------------------------------------------------------------


class ListedJob(Answer, kw_only=True):
    """A job without its body."""

    id: JobId
    topic: str
    state: StateName
    priority: Priority
    due: MomentText
    created: MomentText
    ttr: Seconds
    attempts: Attempts
    reserves: Annotated[Count, Meta(description="How often it was handed out.")]
    timeouts: Count
    releases: Annotated[Count, Meta(description="Nacks count too.")]
    buries: Count
    kicks: Count
    expires: Annotated[MomentText | Unset, Meta(description="Of a reserved job.")] = UNSET
    key: str | Unset = UNSET
    retry: Ladder | Unset = UNSET
    max_attempts: Annotated[int, Meta(ge=1)] | Unset = UNSET
    jitter_percent: Annotated[int, Meta(ge=1, le=100)] | Unset = UNSET
    failure: Failure | Unset = UNSET


class Job(ListedJob, kw_only=True):
    """A job with its body, in one of two ways."""

    body: JsonBody = UNSET
    body_base64: BytesBody = UNSET
