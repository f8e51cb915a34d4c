"""Another topic of this daemon as the target of due jobs.

The only sink that changes the daemon's state: a move is recorded by the turn in which it is made.
So a job is in one of the two topics at any time, also after a crash. The sender finds it gone, as a
job that was cancelled meanwhile. A refusal of the other topic is a failed attempt; if targets form
a circle, the job is a dead letter at once.

The module does not know how a job changes topics (`core.operations.forward`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from delayd.core.engine import Engine
from delayd.core.errors import CapReached, Draining, GroupFull, OutOfSpace, Refusal, TargetRefused
from delayd.core.operations.forward import forward
from delayd.core.operations.topics import policy_of
from delayd.core.session import Session
from delayd.core.times import RequestMs
from delayd.push.sinks import DELIVERED, AttemptEnd, DueJob, Result


@final
@dataclass(slots=True, eq=False)
class TopicSink:
    """Puts each job into the topic that is its topic's target."""

    _engine: Engine
    _session: Session
    """Holds the jobs of all attempts."""
    _now_ms: Callable[[], RequestMs]

    async def deliver(self, job: DueJob) -> AttemptEnd:
        """Move the job without an await, so that put and delete are in one turn."""
        push = policy_of(self._engine, job.topic)[0].push
        if push is None or not push.topic:
            error = f"topic {job.topic!r} has no other topic as its target any more"
            return AttemptEnd(Result.FAILED, error)
        try:
            forward(self._engine, self._session, job.id, push.topic, self._now_ms())
        except TargetRefused as refusal:
            return AttemptEnd(Result.EXHAUSTED, str(refusal))
        except Refusal as refused:
            is_full = isinstance(refused, CapReached | Draining | GroupFull | OutOfSpace)
            return AttemptEnd(Result.FAILED, str(refused), is_outage=is_full)
        return DELIVERED

    async def close(self) -> None:
        """Do nothing: there are no connections."""
