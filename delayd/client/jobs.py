"""Jobs in hand, with asyncio or without: their fields, and how they end."""

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from delayd.client.errors import DelaydError, Refused
from delayd.client.results import Became, Failure, Reservation, Time
from delayd.client.steps import Steps

C = TypeVar("C")
J = TypeVar("J")
T = TypeVar("T")

HERE: Final = os.path.dirname(__file__)
WORDS_BYTES_MAX: Final = 700
"""So many bytes of an exception's words; the daemon keeps 1,024 in all, and the place too."""


class Reserved(Protocol[C]):
    """A job in hand: its reservation, and how it ended."""

    client: C
    """The client that reserved it."""
    reservation: Reservation
    is_finished: bool
    """Whether it was acknowledged, nacked, buried or released."""
    is_lost: bool
    """Whether a touch found that the reservation had ended."""
    became: Became | None
    """The outcome of a nack."""

    def __init__(self, client: C, reservation: Reservation) -> None:
        self.client = client
        self.reservation = reservation
        self.is_finished = self.is_lost = False
        self.became = None

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.topic!r}>"

    @property
    def id(self) -> int:
        """Its number."""
        return self.reservation.id

    @property
    def topic(self) -> str:
        """Its topic."""
        return self.reservation.topic

    @property
    def key(self) -> str:
        """Its key; empty if it has none."""
        return self.reservation.key

    @property
    def group(self) -> str | None:
        """Its group; None: it has none. On the line always None: use `client.get`."""
        return self.reservation.group or None

    @property
    def body(self) -> bytes:
        """The body, byte for byte."""
        return self.reservation.body

    @property
    def text(self) -> str:
        """The body, as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:  # noqa: ANN401 - any JSON
        """Return the body, read as JSON."""
        return json.loads(self.body)

    @property
    def token(self) -> str:
        """Names this one reservation, over HTTP: another process may acknowledge with it."""
        return self.reservation.token

    @property
    def attempt(self) -> int | None:
        """Attempt number, starting at 1."""
        return self.reservation.attempt

    @property
    def due(self) -> Time | None:
        """When it was due."""
        return self.reservation.due

    @property
    def expires(self) -> Time | None:
        """When the reservation ends, as it was when the job was handed out; `touch` extends it."""
        return self.reservation.expires

    @property
    def failure(self) -> Failure | None:
        """Why the last attempt failed."""
        return self.reservation.failure


def leaving(job: Reserved[Any], error: BaseException | None) -> Steps[None]:
    """End the block of a job: acknowledge it, or report the error of a failed attempt."""
    job.client.keep_no_more(job)
    if job.is_finished:
        return
    if error is None:
        yield job.client.ack(job)
        return
    with contextlib.suppress(DelaydError):  # the first exception is raised
        yield job.client.nack(job, error=described(error))


Held = Reserved[Any] | str
"""A job in hand, or over HTTP the token of its reservation."""


def held(job: Held) -> Reservation | str:
    """Return the reservation of the job, or its token."""
    return job if isinstance(job, str) else job.reservation


def finishing(job: Held | int, steps: Steps[T]) -> Steps[T]:
    """Finish a job, and note it."""
    outcome = yield from steps
    if not isinstance(job, int | str):
        job.is_finished = True
    return outcome


def nacking(job: Held, steps: Steps[Became]) -> Steps[Became]:
    """Report a failed attempt, and note the outcome."""
    became = yield from finishing(job, steps)
    if not isinstance(job, str):
        job.became = became
    return became


def finishing_many(
    jobs: Sequence[Held], steps: Steps[list[Refused | None]]
) -> Steps[list[Refused | None]]:
    """Acknowledge jobs, and note which were acknowledged."""
    outcomes = yield from steps
    for job, refusal in zip(jobs, outcomes, strict=True):
        if refusal is None and not isinstance(job, str):
            job.is_finished = True
    return outcomes


def described(error: BaseException) -> str:
    """Return the text of an exception that is kept: class, message, and place.

    >>> described(ValueError("no such user"))
    'ValueError: no such user'
    """
    place = place_of(error)
    try:
        words = str(error)
    except Exception:  # noqa: BLE001 - it is told without its message
        words = ""
    words = words.encode(errors="replace")[:WORDS_BYTES_MAX].decode(errors="ignore")
    return f"{type(error).__name__}: {words}".removesuffix(": ") + place


def place_of(error: BaseException) -> str:
    """Return the last line of the handler's own file in the traceback: ` (mail.py:17)`."""
    places = []
    traceback = error.__traceback__
    while traceback is not None:
        path = traceback.tb_frame.f_code.co_filename
        if os.path.dirname(path) != HERE:
            places.append((path, traceback.tb_lineno))
        traceback = traceback.tb_next
    lines = [line for path, line in places if path == places[0][0]]
    return f" ({os.path.basename(places[0][0])}:{lines[-1]})" if lines else ""
