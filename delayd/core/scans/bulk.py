"""One operation on many jobs of a topic: cancel, kick, reschedule, by the filter of a search.

A background task (`core.background_tasks`) with a `Scan`. Each job is matched when its turn comes,
and changed by the engine's ordinary operation for one job: what has been done is as durable as if a
client had done it, and stays done if the rest fails. Jobs put after the beginning are not changed;
no job is changed twice. One that is replaced under its key meanwhile is matched as it is then.

    Bulk(engine, name, wanted, action, dry_run=False)

      Action.cancel()            delayed, ready, buried: deleted
      Action.kick(per_s=0)       delayed, buried: ready, the first at once, each later one a
                                 1/per_s later; 0: all at once
      Action.reschedule(delay)   delayed, ready: due this long after their turn
      Action.reschedule_at(wall) delayed, ready: due at that wall-clock time

    .done: how many were changed (dry run: would be)   .refusal: what ended it early, or None

States to which the action does not apply are left out of the filter, and reserved jobs always.
`Bulk` raises `TopicNotFound`, `TopicNameInvalid`, `TopicIsInternal` (of a dry run too),
`ValueOutOfRange` and `DelayTooLong` at once; when a step meets `OutOfSpace` the task is over and
reports it, with the jobs before it changed.

>>> from delayd.core.engine import Engine
>>> from delayd.core.operations.put import put_alike
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> for delay_ms in (5_000, 1_000, 0):
...     job_id = put_alike(engine, topic, 0, delay_ms, 9, [b""], now_ms=0)
>>> bulk = Bulk(engine, "default", Wanted(until_ms=2_000), Action.cancel())
>>> while not bulk.step(budget=100, now_ms=0): pass
>>> bulk.done, topic.jobs
(2, 1)
"""

import math
from typing import Final, NamedTuple

from delayd.core.engine import Engine
from delayd.core.errors import DelayTooLong, JobNotFound, OutOfSpace, Refusal
from delayd.core.job_record import TRANSITIONS, Event, State
from delayd.core.operations.ack import delete_batch
from delayd.core.operations.change import kick_job, kick_later, reschedule
from delayd.core.operations.checks import check_delay, check_range, require_writable, topic_named
from delayd.core.scans.scan import ROW_ID_END, Scan, Wanted
from delayd.core.session import Session
from delayd.core.times import RequestMs
from delayd.core.wall_times import IdSet
from delayd.limits import (
    BULK_PER_S_MAX,
    CAP_MAX,
    DURATION_MS_MAX,
    PASS_ACTION_COST,
    RATE_PER_S_MIN,
    WALL_MS_MAX,
)

_MS_PER_S: Final = 1_000


class Action(NamedTuple):
    """What is done to each job."""

    event: Event
    delay_ms: int = 0
    due_wall_ms: int | None = None
    """The wall-clock time that replaces the delay, in milliseconds since 1970."""
    per_s: float = 0

    @classmethod
    def cancel(cls) -> "Action":
        """Delete it."""
        return cls(Event.DELETE)

    @classmethod
    def kick(cls, per_s: float = 0) -> "Action":
        """Make it ready, `per_s` jobs a second (at least 0.001; 0: at once). `ValueOutOfRange`."""
        check_range("jobs a second", math.ceil(per_s), BULK_PER_S_MAX)
        assert not 0 < per_s < RATE_PER_S_MIN, "the parsers refuse what the clock cannot count to"
        return cls(Event.KICK, per_s=per_s)

    @classmethod
    def reschedule(cls, delay_ms: int) -> "Action":
        """Give it this delay from its turn on. `ValueOutOfRange`."""
        check_range("delay in ms", delay_ms, DURATION_MS_MAX)
        return cls(Event.RESCHEDULE, delay_ms)

    @classmethod
    def reschedule_at(cls, due_wall_ms: int) -> "Action":
        """Give it this wall-clock time. `ValueOutOfRange`."""
        check_range("moment in ms", due_wall_ms, WALL_MS_MAX)
        return cls(Event.RESCHEDULE, due_wall_ms=due_wall_ms)

    @property
    def states(self) -> frozenset[State]:
        """The states to which it applies."""
        return frozenset(
            state
            for state in State
            if state is not State.RESERVED and (state, self.event) in TRANSITIONS
        )


class Bulk:
    """Does one operation on many jobs."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        wanted: Wanted,
        action: Action,
        *,
        dry_run: bool = False,
        limit: int = CAP_MAX,
    ) -> None:
        """Begin; see the module for what is raised. At most `limit` jobs are changed."""
        check_range("limit", limit, CAP_MAX, lowest=1)
        self._engine = engine
        require_writable(engine, name)
        self._topic = topic_named(engine, name)
        self._action = action
        if action.event is Event.RESCHEDULE:
            check_delay(self._topic, action.delay_ms)
        wanted = wanted._replace(states=wanted.states & action.states)
        self._scan = Scan(engine, self._topic, wanted)
        self._dry_run = dry_run
        self._limit = limit
        self._last_id = engine.store.last_id
        self._session = Session()
        self._seen = IdSet()
        self.done = 0
        """How many jobs were changed; in a dry run, how many would have been."""
        self.refusal: Refusal | None = None
        """Why it ended early."""
        self.is_over = False

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Look at `budget` more jobs, fewer where they are changed; tell whether it is over."""
        cost = 1 if self._dry_run else PASS_ACTION_COST
        while budget > 0 and not self.is_over:
            rows = self._scan.take(1 + budget // cost, now_ms)
            budget -= self._scan.cost
            if rows is None:
                self.is_over = True
                break
            budget -= (cost - 1) * len(rows)
            for row in rows:
                job_id = row % ROW_ID_END
                if job_id <= self._last_id and job_id not in self._seen and not self.is_over:
                    self._seen.add(job_id)
                    self._count(job_id, now_ms)
        return self.is_over

    def _count(self, job_id: int, now_ms: RequestMs) -> None:
        """Change this job, unless it has changed since it was matched."""
        try:
            if self._dry_run or self._do(job_id, now_ms):
                self.done += 1
        except JobNotFound:  # it went to a waiting consumer, with the one before it
            return
        except (OutOfSpace, DelayTooLong) as refusal:  # the policy may have changed meanwhile
            self.refusal = refusal
            self.is_over = True
        if self.done >= self._limit:
            self.is_over = True

    def _do(self, job_id: int, now_ms: RequestMs) -> bool:
        """Change this job; tell whether it was still there."""
        engine, action = self._engine, self._action
        if action.event is Event.DELETE:
            return delete_batch(engine, self._session, (job_id,), now_ms)[0]
        if action.event is Event.RESCHEDULE:
            reschedule(engine, job_id, action.delay_ms, now_ms, action.due_wall_ms)
        elif action.per_s and self.done:
            kick_later(engine, job_id, int(self.done * _MS_PER_S / action.per_s) or 1, now_ms)
        else:
            kick_job(engine, job_id, now_ms)
        return True
