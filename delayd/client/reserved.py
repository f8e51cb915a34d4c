"""What a job in hand tells, with asyncio or without."""

import json
from typing import Any, Protocol

from delayd.client.results import Became, Failure, Reservation, Time


class Reserved(Protocol):
    """A job in hand: what the daemon said of it, and whether it is finished."""

    reservation: Reservation
    is_finished: bool
    """Whether its outcome was told: acknowledged, nacked, buried or released."""
    is_lost: bool
    """Whether it was found while it was worked on that the reservation had ended."""
    became: Became | None
    """What became of it when it was nacked."""

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
    def body(self) -> bytes:
        """What was put, byte for byte."""
        return self.reservation.body

    @property
    def text(self) -> str:
        """The body, as UTF-8."""
        return self.body.decode()

    def json(self) -> Any:  # noqa: ANN401 - whatever the body says
        """Return the body, read as JSON."""
        return json.loads(self.body)

    @property
    def token(self) -> str:
        """Names this one reservation, over HTTP: another process may acknowledge with it."""
        return self.reservation.token

    @property
    def attempt(self) -> int | None:
        """From 1; None on the line."""
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


def held(job: Reserved | str) -> Reservation | str:
    """Return what the daemon knows the job by."""
    return job if isinstance(job, str) else job.reservation
