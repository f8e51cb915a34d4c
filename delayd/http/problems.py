"""Answers to refused requests: `application/problem+json` (RFC 9457).

    {"type": "urn:delayd:JOB_ALREADY_EXISTS", "title": "...", "status": 409,
     "detail": "job 7 has the key 'order-17' already", "word": "JOB_ALREADY_EXISTS",
     "kind": "job_already_exists", "job_id": 7}

The table is the classes themselves: each `Refusal`, of the core or one of those that only HTTP has,
has a kind of its own, a title, a word for both wires and a status. None of them ever changes, and
the type is made of the word. `errors` lists everything that is wrong with a request, with the
field; a `Retry-After` says when it may succeed if the request itself is right.

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
    cancelled: HowMany | Unset = UNSET
    kicked: HowMany | Unset = UNSET
    rescheduled: HowMany | Unset = UNSET


# --- Refusals that only HTTP has -----------------------------------------------------------------


class HttpRefusal(Refusal):
    """A refusal that only HTTP uses.

    A subclass names its word, its status, its kind, its title, and its sentence with `{}` for what
    is said of it when it is raised.
    """

    sentence: ClassVar[str] = "{}"

    def __init_subclass__(cls, *, word: str, status: int, retry_after_s: int | None = None) -> None:
        """Note what the table of refusals says of this one."""
        super().__init_subclass__()
        cls.word, cls.status, cls.retry_after_s = word, status, retry_after_s

    def __init__(self, *said: Any) -> None:  # noqa: ANN401 (whatever the sentence shows)
        super().__init__(self.sentence.format(*said))
        self.said = said


class NotJson(HttpRefusal, word="BAD_JSON", status=400):
    """The body cannot be read as JSON."""

    kind = "not_json"
    title = "The body cannot be read as JSON."
    sentence = "the body is not a JSON text: {}"


class BadRequest(HttpRefusal, word="BAD_FORMAT", status=400):
    """The request is not valid HTTP, or has a query or body that the call does not take."""

    kind = "request_malformed"
    title = "The request is not valid HTTP, or has a query or body that the call does not take."


class RequestInvalid(HttpRefusal, word="BAD_FORMAT", status=422):
    """The request is invalid; `errors` lists every problem."""

    kind = "request_invalid"
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


class Unauthorized(HttpRefusal, word="UNAUTHORIZED", status=401):
    """A valid token is needed."""

    kind = "unauthorized"
    title = "A valid token is needed."

    # What is missing, and not what is wrong with what was given; only of a whole token that has
    # expired it is said when.
    def __init__(self, expiry: str = "") -> None:
        super().__init__(expiry or "a valid token is needed: Authorization: Bearer dlyd_...")


class Forbidden(HttpRefusal, word="FORBIDDEN", status=403):
    """The token does not allow this."""

    kind = "forbidden"
    title = "The token does not allow this."


class SourceRefused(HttpRefusal, word="FORBIDDEN", status=403):
    """The Host is unknown, or the request comes from a web page."""

    kind = "source_refused"
    title = "The Host is unknown, or the request comes from a web page."


class NoSuchCall(HttpRefusal, word="UNKNOWN_COMMAND", status=404):
    """There is no such path."""

    kind = "no_such_call"
    title = "There is no such path."
    sentence = "the path {} does not exist; /openapi.json lists all paths"


class MethodNotAllowed(HttpRefusal, word="METHOD_NOT_ALLOWED", status=405):
    """The path does not support this method."""

    kind = "method_not_allowed"
    title = "The path does not support this method."

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        super().__init__(f"{method} is not among {', '.join(allowed)}")
        self.allowed = tuple(allowed)


class TooSlow(HttpRefusal, word="REQUEST_TIMEOUT", status=408):
    """The request did not arrive in time."""

    kind = "request_timeout"
    title = "The request did not arrive in time."


class JobReserved(HttpRefusal, word="RESERVED", status=409):
    """The job is reserved by a worker."""

    kind = "job_reserved"
    title = "The job is reserved by a worker."
    sentence = "job {} is reserved: only its holder can say what becomes of it"


class ReservationLost(HttpRefusal, word="NOT_RESERVED", status=409):
    """The reservation has ended: its ttr ran out, or the job went to another worker."""

    kind = "reservation_lost"
    title = "The reservation has ended: its ttr ran out, or the job went to another worker."
    sentence = "job {} is not reserved under this token, or no longer"


class WrongState(HttpRefusal, word="WRONG_STATE", status=409):
    """The state of the job does not allow this."""

    kind = "wrong_state"
    title = "The state of the job does not allow this."
    sentence = "job {} is {}, which does not allow to {} it"


class KeyReused(HttpRefusal, word="IDEMPOTENCY_KEY_REUSED", status=422):
    """The Idempotency-Key was used for another request."""

    kind = "idempotency_key_reused"
    title = "The Idempotency-Key was used for another request."
    sentence = "this Idempotency-Key came with another request before"


class IdempotencyKeysFull(
    HttpRefusal, word="IDEMPOTENCY_KEYS_FULL", status=507, retry_after_s=RETRY_AFTER_FULL_S
):
    """The daemon remembers as many Idempotency-Keys as it may."""

    kind = "idempotency_keys_full"
    title = "The daemon remembers as many Idempotency-Keys as it may."
    sentence = (
        "http.idempotency_keys_max is {}, and as many keys are remembered: send the job without the"
        " header, with a key of its own, or when the oldest is a day old"
    )


class BodyTooLong(HttpRefusal, word="JOB_TOO_BIG", status=413):
    """The request is longer than this daemon reads."""

    kind = "request_too_long"
    title = "The request is longer than this daemon reads."
    sentence = "the request's body is longer than {} bytes{}"

    def __init__(self, bytes_max: int, hint: str = "") -> None:
        super().__init__(bytes_max, hint)


class MediaTypeWrong(HttpRefusal, word="UNSUPPORTED_MEDIA_TYPE", status=415):
    """The Content-Type is not JSON in UTF-8, or the body is compressed."""

    kind = "media_type_unsupported"
    title = "The Content-Type is not JSON in UTF-8, or the body is compressed."


class PathTooLong(HttpRefusal, word="URI_TOO_LONG", status=414):
    """The path is longer than this daemon reads."""

    kind = "path_too_long"
    title = "The path is longer than this daemon reads."


class HeaderTooLong(HttpRefusal, word="HEADER_TOO_LONG", status=431):
    """A header is longer than this daemon reads, or there are too many of them."""

    kind = "header_too_long"
    title = "A header is longer than this daemon reads, or there are too many of them."


class OurFault(HttpRefusal, word="INTERNAL_ERROR", status=500):
    """An internal error of the daemon."""

    kind = "internal_error"
    title = "An internal error of the daemon."


class TooMany(HttpRefusal, word="TOO_MANY_REQUESTS", status=429, retry_after_s=1):
    """The client has too many connections or requests."""

    kind = "too_many_requests"
    title = "The client has too many connections or requests."


class Busy(HttpRefusal, word="BUSY", status=503, retry_after_s=1):
    """The daemon cannot do this now."""

    kind = "busy"
    title = "The daemon cannot do this now."


class Stopping(HttpRefusal, word="STOPPING", status=503, retry_after_s=1):
    """The daemon is stopping."""

    kind = "stopping"
    title = "The daemon is stopping."
    sentence = "the daemon is stopping; try again in a second"


class NotReady(HttpRefusal, word="NOT_READY", status=503, retry_after_s=1):
    """The daemon cannot accept jobs now."""

    kind = "not_ready"
    title = "The daemon cannot accept jobs now."


class ExpectationWrong(HttpRefusal, word="EXPECTATION_FAILED", status=417):
    """The Expect header asks for something that this daemon does not support."""

    kind = "expectation_unsupported"
    title = "The Expect header asks for something that this daemon does not support."
    sentence = "Expect: {!r} is not 100-continue"


class CodingUnknown(HttpRefusal, word="NOT_IMPLEMENTED", status=501):
    """The Transfer-Encoding is not chunked."""

    kind = "transfer_encoding_unsupported"
    title = "The Transfer-Encoding is not chunked."
    sentence = "the Transfer-Encoding must be chunked, and nothing else"


class VersionWrong(HttpRefusal, word="HTTP_VERSION_NOT_SUPPORTED", status=505):
    """The version of HTTP is not supported."""

    kind = "http_version_unsupported"
    title = "The version of HTTP is not supported."
    sentence = "this daemon speaks HTTP/1.1 and 1.0"


class NoClock(HttpRefusal, word="NO_VIRTUAL_CLOCK", status=409):
    """The clock is not virtual, so it cannot be advanced."""

    kind = "no_virtual_clock"
    title = "The clock is not virtual, so it cannot be advanced."
    sentence = (
        "this daemon uses the system's clock; only one started with --clock virtual can be advanced"
    )


# --- From a refusal to its answer ----------------------------------------------------------------


def problem_of(refusal: Refusal, **done: int) -> ProblemAnswer:
    """Return the answer; `done` says to how many jobs it was done before: `kicked=3`."""
    problem = ProblemAnswer(
        type=f"urn:delayd:{refusal.word}",
        title=refusal.title,
        status=refusal.status,
        detail=str(refusal),
        word=refusal.word,
        kind=refusal.kind,
        errors=errors_of(refusal) or UNSET,
        **done,
    )
    if isinstance(refusal, JobAlreadyExists):
        problem.job_id = refusal.job_id
    elif isinstance(refusal, JobReserved | ReservationLost | WrongState):
        problem.job_id = refusal.said[0]
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
"""The core's name of a value -> that of the request's field, where they differ."""


def errors_of(refusal: Refusal) -> Sequence[FieldError]:
    """Return which fields are wrong, as far as the refusal knows."""
    if isinstance(refusal, RequestInvalid):
        return refusal.errors
    if isinstance(refusal, PolicyInvalid):
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
