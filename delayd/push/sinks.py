"""The interface of a sink: where due jobs go when nobody comes for them.

A sink is given one due job at a time, as many at once as its target allows, and says what became of
it. It never sees the daemon's state, and the sender never sees what the sink talks to:

    DELIVERED    it is there for good: the job is removed
    FAILED       try again, by the job's retry ladder or in `retry_after_ms` at the earliest
    EXHAUSTED    it will never be taken: the job is a dead letter at once

Whatever `deliver` raises is a failed attempt too, with the exception as its error; being cancelled
(the daemon stops, or the time for the attempt is over) must leave nothing behind that a second
attempt could not meet. At least once: after a crash a job that was delivered may come again, with
the same `message_id`.

>>> AttemptEnd(Result.FAILED, "503 Service Unavailable", retry_after_ms=30_000).result.name
'FAILED'
"""

import enum
from collections.abc import Mapping
from typing import NamedTuple, Protocol


class DueJob(NamedTuple):
    """One attempt to deliver a job."""

    id: int
    message_id: str
    """The same for every attempt of this job, and for no other job of any daemon."""
    topic: str
    key: bytes
    body: bytes
    content_type: str
    attempt: int
    """1 upwards."""
    due_ms: int
    """When it was due, in milliseconds of Unix time."""
    lateness_ms: int
    """How much later this attempt begins than it was due."""
    timeout_ms: int
    """How long this attempt may take; then it is cancelled and has failed."""
    url: str = ""
    """Where to; empty for sinks that the configuration names."""
    method: str = "POST"
    headers: tuple[tuple[str, str], ...] = ()
    secrets: tuple[str, ...] = ()
    """Names of the secrets to sign with."""


class Result(enum.Enum):
    """What became of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"
    EXHAUSTED = "exhausted"


class AttemptEnd(NamedTuple):
    """The end of an attempt."""

    result: Result
    error: str = ""
    """What went wrong, in one line, such as the status of the answer."""
    answer: bytes = b""
    """The beginning of what was answered, for people who look for the reason."""
    retry_after_ms: int = 0
    """Not before so many milliseconds have passed; 0: as the ladder says."""
    is_outage: bool = False
    """The place itself is to blame, not this job: other jobs would fare no better now."""


DELIVERED = AttemptEnd(Result.DELIVERED)


class Sink(Protocol):
    """A kind of place that due jobs go to."""

    async def deliver(self, job: DueJob) -> AttemptEnd:
        """Deliver one job; several may be under way at once."""
        ...

    async def close(self) -> None:
        """Let go of connections; nothing is delivered any more."""
        ...


class SinkFactory(Protocol):
    """What an entry point of the group `delayd.sinks` names: makes a sink of its options."""

    def __call__(self, name: str, options: Mapping[str, object]) -> Sink:
        """Make the sink that the configuration calls `name`; connect at the first job, not here.

        Raises `ValueError` whose message names each option that is wrong, and the rule.
        """
        ...
