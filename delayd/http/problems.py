"""What a refused request is answered: `application/problem+json` (RFC 9457).

    {"type": "urn:delayd:JOB_ALREADY_EXISTS", "title": "...", "status": 409,
     "detail": "job 7 has the key 'order-17' already", "word": "JOB_ALREADY_EXISTS", "job_id": 7}

The table is the classes themselves: each `Refusal`, of the core or one of those that only HTTP has,
says its word for both wires and its status. The type is made of the word, which never changes.
`errors` lists everything that is wrong with a request, with the field; a `Retry-After` says when it
may go better where the request itself is right.

>>> from delayd.core.errors import JobNotFound
>>> problem = problem_of(JobNotFound(7))
>>> problem["type"], problem["status"]
('urn:delayd:NOT_FOUND', 404)
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from delayd import __version__
from delayd.core.errors import (
    DelayTooLong,
    JobAlreadyExists,
    PolicyInvalid,
    Refusal,
    ValueOutOfRange,
)
from delayd.limits import HTTP_ERROR_CHARACTERS_MAX, HTTP_ERRORS_MAX

JSON: Final = "application/json"
CONTENT_TYPE: Final = "application/problem+json"
"""Of the answers that are problems."""
SERVER: Final = f"delayd/{__version__}"
TYPE_PREFIX: Final = "urn:delayd:"


class FieldError(NamedTuple):
    """One thing that is wrong with a request."""

    field: str
    """Where, as `jobs[3].delay`; a name in the path or the query, or `` for the whole."""
    detail: str
    """The rule, and the value that breaks it."""


class HttpRefusal(Refusal):
    """A refusal that only HTTP has a use for."""


class NotJson(HttpRefusal):
    """The body cannot be read as JSON."""

    word = "BAD_JSON"
    status = 400

    def __init__(self, why: str) -> None:
        """Say where it goes wrong."""
        super().__init__(f"the body is not a JSON text: {why}")


class BadRequest(HttpRefusal):
    """The request is not one that HTTP knows."""

    word = "BAD_FORMAT"
    status = 400


class RequestInvalid(HttpRefusal):
    """The request says something that cannot be; everything that is wrong is listed."""

    word = "BAD_FORMAT"
    status = 422

    def __init__(self, errors: Sequence[FieldError]) -> None:
        """Name each field and the rule it breaks."""
        errors = [FieldError(*map(_cut, error)) for error in errors[:HTTP_ERRORS_MAX]]
        shown = [
            f"{error.field}: {error.detail}" if error.field else error.detail for error in errors
        ]
        super().__init__("; ".join(shown[:3]) + (" ..." if len(shown) > 3 else ""))
        self.errors = tuple(errors)


def _cut(text: str) -> str:
    if len(text) <= HTTP_ERROR_CHARACTERS_MAX:
        return text
    return text[:HTTP_ERROR_CHARACTERS_MAX] + "..."


class Unauthorized(HttpRefusal):
    """Nobody may do this without a token that is good for it."""

    word = "UNAUTHORIZED"
    status = 401

    def __init__(self) -> None:
        """Say what is missing, and not what is wrong with what was given."""
        super().__init__("a valid token is needed: Authorization: Bearer dlyd_...")


class Forbidden(HttpRefusal):
    """The token is not good for this."""

    word = "FORBIDDEN"
    status = 403


class SourceRefused(HttpRefusal):
    """The request was meant for somebody else, or comes from a web page."""

    word = "FORBIDDEN"
    status = 403


class NoSuchCall(HttpRefusal):
    """The path leads nowhere."""

    word = "UNKNOWN_COMMAND"
    status = 404

    def __init__(self, path: str) -> None:
        """Name the path."""
        super().__init__(f"there is nothing at {path}; /openapi.json lists what there is")


class MethodNotAllowed(HttpRefusal):
    """The path is there, and not for this method."""

    word = "METHOD_NOT_ALLOWED"
    status = 405

    def __init__(self, method: str, allowed: Sequence[str]) -> None:
        """Name the method, and those that there are."""
        super().__init__(f"{method} is not among {', '.join(allowed)}")
        self.allowed = tuple(allowed)


class TooSlow(HttpRefusal):
    """The request did not arrive in time."""

    word = "REQUEST_TIMEOUT"
    status = 408


class JobReserved(HttpRefusal):
    """Somebody works on the job; until that ends it is theirs."""

    word = "RESERVED"
    status = 409

    def __init__(self, job_id: int) -> None:
        """Name the job."""
        super().__init__(f"job {job_id} is reserved: only its holder can say what becomes of it")
        self.job_id = job_id


class ReservationLost(HttpRefusal):
    """The reservation has ended: its ttr ran out, or the job went to somebody else."""

    word = "NOT_RESERVED"
    status = 409

    def __init__(self, job_id: int) -> None:
        """Name the job."""
        super().__init__(f"job {job_id} is not reserved under this token, or no longer")
        self.job_id = job_id


class WrongState(HttpRefusal):
    """The job is there, and its state does not allow this."""

    word = "WRONG_STATE"
    status = 409

    def __init__(self, job_id: int, state: str, what: str) -> None:
        """Name the job, its state and what cannot be done."""
        super().__init__(f"job {job_id} is {state}, which does not allow to {what} it")
        self.job_id = job_id


class KeyReused(HttpRefusal):
    """The Idempotency-Key was used for something else."""

    word = "IDEMPOTENCY_KEY_REUSED"
    status = 422

    def __init__(self) -> None:
        """Say so."""
        super().__init__("this Idempotency-Key came with another request before")


class BodyTooLong(HttpRefusal):
    """The request is longer than this daemon reads."""

    word = "JOB_TOO_BIG"
    status = 413

    def __init__(self, bytes_max: int) -> None:
        """Name the bound."""
        super().__init__(f"the request's body is longer than {bytes_max} bytes")


class MediaTypeWrong(HttpRefusal):
    """The body is not said to be JSON, or is packed."""

    word = "UNSUPPORTED_MEDIA_TYPE"
    status = 415


class TooMany(HttpRefusal):
    """One client asks for more than its share."""

    word = "TOO_MANY_REQUESTS"
    status = 429
    retry_after_s = 1


class Busy(HttpRefusal):
    """The daemon cannot do this now."""

    word = "BUSY"
    status = 503
    retry_after_s = 1


class Stopping(HttpRefusal):
    """The daemon is stopping."""

    word = "STOPPING"
    status = 503
    retry_after_s = 1

    def __init__(self) -> None:
        """Say so."""
        super().__init__("this daemon is stopping; another will be there soon")


class NotReady(HttpRefusal):
    """Jobs cannot be taken on now."""

    word = "NOT_READY"
    status = 503
    retry_after_s = 1


class ExpectationWrong(HttpRefusal):
    """The client expects something before it sends the body that this daemon does not do."""

    word = "EXPECTATION_FAILED"
    status = 417

    def __init__(self, expected: str) -> None:
        """Name it."""
        super().__init__(f"Expect: {expected!r} is not 100-continue")


class VersionWrong(HttpRefusal):
    """The request is of a version of HTTP that this daemon does not speak."""

    word = "HTTP_VERSION_NOT_SUPPORTED"
    status = 505

    def __init__(self) -> None:
        """Name those that it does."""
        super().__init__("this daemon speaks HTTP/1.1 and 1.0")


class NoClock(HttpRefusal):
    """Time cannot be advanced by hand."""

    word = "NO_VIRTUAL_CLOCK"
    status = 409

    def __init__(self) -> None:
        """Say what it takes."""
        super().__init__("this daemon lives by the system's clock; see --clock virtual")


def title_of(refusal: type[Refusal]) -> str:
    """Return what all refusals of the class have in common, in a sentence."""
    return (refusal.__doc__ or "").partition("\n")[0]


def problem_of(refusal: Refusal) -> dict[str, object]:
    """Return the members of the problem."""
    kind = type(refusal)
    problem: dict[str, object] = {
        "type": TYPE_PREFIX + kind.word,
        "title": title_of(kind),
        "status": kind.status,
        "detail": str(refusal),
        "word": kind.word,
    }
    errors = errors_of(refusal)
    if errors:
        problem["errors"] = [error._asdict() for error in errors]
    if isinstance(refusal, JobAlreadyExists | JobReserved | ReservationLost | WrongState):
        problem["job_id"] = refusal.job_id
    return problem


_POLICY_ERROR: Final = re.compile(r"([^\s=:]+)(?: = |: )(.*)", re.DOTALL)

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
        return [*map(_policy_error, refusal.errors)]
    if isinstance(refusal, ValueOutOfRange):
        return [FieldError(FIELDS.get(refusal.field, refusal.field), str(refusal))]
    if isinstance(refusal, DelayTooLong):
        return [FieldError("at" if refusal.is_moment else "delay", str(refusal))]
    return ()


def _policy_error(error: str) -> FieldError:
    """Return a mistake in a policy with its field, which stands first; whole if it is in none.

    >>> _policy_error('ttr = "x": must be seconds')
    FieldError(field='ttr', detail='"x": must be seconds')
    >>> _policy_error("it is not a JSON object")
    FieldError(field='', detail='it is not a JSON object')
    """
    match = _POLICY_ERROR.fullmatch(error)
    return FieldError("", error) if match is None else FieldError(match[1], match[2])


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
