"""Answers to refused requests: `application/problem+json` (RFC 9457).

    {"type": "urn:delayd:JOB_ALREADY_EXISTS", "title": "...", "status": 409,
     "detail": "job 7 has the key 'order-17' already", "word": "JOB_ALREADY_EXISTS",
     "kind": "job_already_exists", "job_id": 7}

The table is the classes themselves: each `Refusal`, of the core or one of those that only HTTP has,
has a kind of its own, a title, a word for both protocols and a status. None of them ever changes,
and the type is made of the word. `errors` lists all mistakes of a request by field; a `Retry-After`
says when to try again if the request itself is right.

>>> from delayd.core.errors import JobNotFound
>>> problem = problem_of(JobNotFound(7))
>>> problem.type, problem.status
('urn:delayd:NOT_FOUND', 404)
"""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Final

import msgspec

from delayd import __version__
from delayd.core.errors import (
    DelayTooLong,
    JobAlreadyExists,
    PolicyInvalid,
    Refusal,
    ScheduleInvalid,
    TargetRefused,
    ValueOutOfRange,
)
from delayd.http.values import UNSET, Answer, JobId, Meta, Unset, about
from delayd.limits import HTTP_ERROR_CHARACTERS_MAX, HTTP_ERRORS_MAX, RETRY_AFTER_FULL_S

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
"""A batch: one job in JSON on each line."""
CONTENT_TYPE: Final = "application/problem+json"
"""Of the answers that are problems."""
SERVER: Final = f"delayd/{__version__}"

# --- The answer ----------------------------------------------------------------------------------

HowMany = Annotated[int, about("How many jobs had been changed before the refusal.", ge=0)]


class FieldError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One thing that is wrong with a request."""

    field: Annotated[str, about("Where, as `jobs[3].delay`; empty for the whole.")]
    detail: Annotated[str, about("The rule, and often the value that breaks it.")]


class ProblemAnswer(Answer, kw_only=True):
    """Why a request was refused; nothing has changed (RFC 9457)."""

    type: Annotated[str, about("`urn:delayd:` and the word.")]
    title: Annotated[str, about("What all problems of this kind have in common.")]
    status: Annotated[int, Meta(ge=400, le=599)]
    detail: Annotated[str, about("What is wrong with this request, for people.")]
    word: Annotated[
        str,
        about("What kind of problem it is, for programs: the line protocol's word, if it has one."),
    ]
    kind: Annotated[str, about("Which refusal it is, for programs: several may share a word.")]
    errors: (
        Annotated[
            Sequence[FieldError],
            about("Everything that is wrong, by field.", max_length=HTTP_ERRORS_MAX),
        ]
        | Unset
    ) = UNSET
    job_id: Annotated[JobId | Unset, about("The job that has the key.")] = UNSET
    owner: Annotated[str | Unset, about("Where the daemon is that owns the log.")] = UNSET
    cancelled: HowMany | Unset = UNSET
    kicked: HowMany | Unset = UNSET
    rescheduled: HowMany | Unset = UNSET
    put: HowMany | Unset = UNSET


WRONG_TOKEN: Final = "the token is not valid: it is misspelt, was revoked, or is not read yet"  # noqa: S105 - a sentence
ENDED_TOKEN: Final = "the token was revoked or has expired meanwhile"  # noqa: S105 - the same

# --- Refusals that only HTTP has -----------------------------------------------------------------


class HttpRefusal(Refusal):
    """A refusal that only HTTP uses.

    A subclass names its kind, word and status, its title, which is its docstring too, and its
    sentence with `{}` for the arguments with which it is raised.
    """

    sentence: ClassVar[str] = "{}"

    def __init_subclass__(
        cls, *, kind: str, word: str, status: int, retry_after_s: int | None = None
    ) -> None:
        """Note a row of the table of refusals."""
        super().__init_subclass__()
        cls.kind, cls.word, cls.status, cls.retry_after_s = kind, word, status, retry_after_s
        cls.__doc__ = cls.title

    def __init__(self, *shown: Any) -> None:  # noqa: ANN401 (values that the sentence shows)
        super().__init__(self.sentence.format(*shown))
        self.shown = shown


class NotJson(HttpRefusal, kind="not_json", word="BAD_JSON", status=400):
    title = "The body cannot be read as JSON."
    sentence = "the body is not JSON: {}"


class BadRequest(HttpRefusal, kind="request_malformed", word="BAD_FORMAT", status=400):
    title = "The request is not valid HTTP, or has a query or body that the call does not take."


class RequestInvalid(HttpRefusal, kind="request_invalid", word="BAD_FORMAT", status=422):
    title = "The request is invalid; `errors` lists every problem."

    def __init__(self, errors: Sequence[FieldError]) -> None:
        self.errors = tuple(
            FieldError(_cut(error.field), _cut(error.detail)) for error in errors[:HTTP_ERRORS_MAX]
        )
        shown = [
            f"{error.field}: {error.detail}" if error.field else error.detail
            for error in self.errors
        ]
        super().__init__("; ".join(shown[:3]) + (" ..." if len(shown) > 3 else ""))


def _cut(text: str) -> str:
    if len(text) <= HTTP_ERROR_CHARACTERS_MAX:
        return text
    return text[:HTTP_ERROR_CHARACTERS_MAX] + "..."


class Unauthorized(HttpRefusal, kind="unauthorized", word="UNAUTHORIZED", status=401):
    title = "A valid token is needed."

    def __init__(self, why: str = "a token is needed: Authorization: Bearer dlyd_...") -> None:
        super().__init__(why)


class Forbidden(HttpRefusal, kind="forbidden", word="FORBIDDEN", status=403):
    title = "The token does not allow this."


class SourceRefused(HttpRefusal, kind="source_refused", word="FORBIDDEN", status=403):
    title = "The Host is unknown, or the request comes from a web page."


class NoSuchCall(HttpRefusal, kind="no_such_call", word="UNKNOWN_COMMAND", status=404):
    title = "There is no such path."
    sentence = "the path {} does not exist; /openapi.json lists all paths"


class MethodNotAllowed(
    HttpRefusal, kind="method_not_allowed", word="METHOD_NOT_ALLOWED", status=405
):
    title = "The path does not support this method."

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{method} is not supported here: use {', '.join(allowed)}")
        self.allowed = tuple(allowed)


class TooSlow(HttpRefusal, kind="request_timeout", word="REQUEST_TIMEOUT", status=408):
    title = "The request did not arrive in time."


class JobReserved(HttpRefusal, kind="job_reserved", word="RESERVED", status=409):
    title = "The job is reserved by a worker."
    sentence = "job {} is reserved: only the worker that holds it can finish it"


class ReservationLost(HttpRefusal, kind="reservation_lost", word="NOT_RESERVED", status=409):
    title = "The reservation has ended: its ttr ran out, or the job went to another worker."
    sentence = "job {} is not reserved with this token, or not any more"


class WrongState(HttpRefusal, kind="wrong_state", word="WRONG_STATE", status=409):
    title = "The state of the job does not allow this."
    sentence = "job {} is {} and cannot be {}"


class KeyReused(
    HttpRefusal, kind="idempotency_key_reused", word="IDEMPOTENCY_KEY_REUSED", status=422
):
    title = "The Idempotency-Key was used for another request."
    sentence = "this Idempotency-Key was used for another request before"


class IdempotencyKeysFull(
    HttpRefusal,
    kind="idempotency_keys_full",
    word="IDEMPOTENCY_KEYS_FULL",
    status=507,
    retry_after_s=RETRY_AFTER_FULL_S,
):
    title = "The daemon remembers as many Idempotency-Keys as it may."
    sentence = (
        "http.idempotency_keys_max is {}, and as many keys are remembered: send the job without the"
        " header, with a key of its own, or when the oldest is a day old"
    )


class BodyTooLong(HttpRefusal, kind="request_too_long", word="JOB_TOO_BIG", status=413):
    title = "The request is longer than this daemon reads."
    sentence = "the request's body is longer than {} bytes{}"

    def __init__(self, bytes_max: int, hint: str = "") -> None:
        super().__init__(bytes_max, hint)


class MediaTypeWrong(
    HttpRefusal, kind="media_type_unsupported", word="UNSUPPORTED_MEDIA_TYPE", status=415
):
    title = "The Content-Type is not JSON in UTF-8, or the body is compressed."


class PathTooLong(HttpRefusal, kind="path_too_long", word="URI_TOO_LONG", status=414):
    title = "The path is longer than this daemon reads."


class HeaderTooLong(HttpRefusal, kind="header_too_long", word="HEADER_TOO_LONG", status=431):
    title = "A header is longer than this daemon reads, or there are too many of them."


class OurFault(HttpRefusal, kind="internal_error", word="INTERNAL_ERROR", status=500):
    title = "An internal error of the daemon."


class TooMany(
    HttpRefusal, kind="too_many_requests", word="TOO_MANY_REQUESTS", status=429, retry_after_s=1
):
    title = "The client has too many connections or requests."


class Busy(HttpRefusal, kind="busy", word="BUSY", status=503, retry_after_s=1):
    title = "The daemon cannot do this now."


class Stopping(HttpRefusal, kind="stopping", word="STOPPING", status=503, retry_after_s=1):
    title = "The daemon is stopping."
    sentence = "the daemon is stopping; try again in a second"


class NotReady(HttpRefusal, kind="not_ready", word="NOT_READY", status=503, retry_after_s=1):
    title = "The daemon cannot accept jobs now."


class StandingBy(HttpRefusal, kind="standing_by", word="NOT_READY", status=503, retry_after_s=1):
    title = "This daemon stands by: another one owns the log."
    sentence = "another daemon owns the log: {}"


class ExpectationWrong(
    HttpRefusal, kind="expectation_unsupported", word="EXPECTATION_FAILED", status=417
):
    title = "The Expect header asks for something that this daemon does not support."
    sentence = "Expect: {!r} is not 100-continue"


class CodingUnknown(
    HttpRefusal, kind="transfer_encoding_unsupported", word="NOT_IMPLEMENTED", status=501
):
    title = "The Transfer-Encoding is not chunked."
    sentence = "the Transfer-Encoding must be chunked, and nothing else"


class VersionWrong(
    HttpRefusal, kind="http_version_unsupported", word="HTTP_VERSION_NOT_SUPPORTED", status=505
):
    title = "The version of HTTP is not supported."
    sentence = "this daemon speaks HTTP/1.1 and 1.0"


class NoClock(HttpRefusal, kind="no_virtual_clock", word="NO_VIRTUAL_CLOCK", status=409):
    title = "The clock is not virtual, so it cannot be advanced."
    sentence = (
        "this daemon uses the system's clock; only one started with --clock virtual can be advanced"
    )


class NoStandby(HttpRefusal, kind="no_standby", word="NO_STANDBY", status=409):
    title = "No standby can take the log over now."


# --- From a refusal to its answer ----------------------------------------------------------------


def problem_of(refusal: Refusal, **done: int) -> ProblemAnswer:
    """Return the answer; `done` says how many jobs were changed before: `kicked=3`."""
    problem = ProblemAnswer(
        type=f"urn:delayd:{refusal.word}",
        title=refusal.title,
        status=refusal.status,
        detail=str(refusal),
        word=refusal.word,
        kind=refusal.kind,
        errors=errors_of(refusal) or UNSET,
        owner=refusal.shown[0] if isinstance(refusal, StandingBy) else UNSET,
        **done,
    )
    if isinstance(refusal, JobAlreadyExists):
        problem.job_id = refusal.job_id
    elif isinstance(refusal, JobReserved | ReservationLost | WrongState):
        problem.job_id = refusal.shown[0]
    return problem


FIELDS: Final = {
    "delay in ms": "delay",
    "moment in ms": "at",
    "ttr in ms": "ttr",
    "pause in ms": "duration",
    "time in ms": "by",
    "jobs a second": "per_second",
    "span in ms": "horizon",
    "retry step in ms": "retry",
    "retry steps": "retry",
    "attempts": "max_attempts",
    "jitter in percent": "jitter_percent",
}
"""The core's name of a value -> the request's field, where they differ."""


def errors_of(refusal: Refusal) -> Sequence[FieldError]:
    """Return the mistakes by field, if the refusal has any."""
    if isinstance(refusal, RequestInvalid):
        return refusal.errors
    if isinstance(refusal, PolicyInvalid | ScheduleInvalid):
        return [
            FieldError(place, f"{value}: {rule}" if value else rule)
            for place, rule, value, _ in refusal.errors
        ]
    if isinstance(refusal, ValueOutOfRange):
        return [FieldError(FIELDS.get(refusal.field, refusal.field), str(refusal))]
    if isinstance(refusal, TargetRefused):
        return [FieldError(refusal.field, str(refusal))]
    if isinstance(refusal, DelayTooLong):
        return [FieldError("at" if refusal.is_moment else "delay", str(refusal))]
    return ()


def headers_of(refusal: Refusal) -> dict[str, str]:
    """Return the headers that belong to the problem."""
    headers = {}
    if refusal.retry_after_s is not None:
        headers["Retry-After"] = str(refusal.retry_after_s)
    if isinstance(refusal, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="delayd"'
    if isinstance(refusal, MethodNotAllowed):
        headers["Allow"] = ", ".join(refusal.allowed)
    return headers
