"""The dead letters of a topic by reason: how many, since when, and one of each.

    DeadReasons(engine, name)    .groups(): the largest first, .jobs: all that were looked at

A background task (`core.background_tasks`) that looks at every buried job, in slices. Groups beyond
a bound are counted together. `Wanted.reason` of a scan selects the jobs of one group.

>>> from delayd.core.operations.change import bury_waiting
>>> from delayd.core.operations.put import put_alike
>>> engine = Engine(start_ms=0)
>>> first_id = put_alike(engine, engine.store.topic("default"), 0, 0, 9, [b""] * 3, now_ms=0)
>>> for number, error in enumerate(("no order 17", "no order 4711", "busy")):
...     bury_waiting(engine, first_id + number, now_ms=0, error=error)
>>> reasons = DeadReasons(engine, "default")
>>> while not reasons.step(budget=100, now_ms=0): pass
>>> [(group.reason, group.jobs, group.job_id) for group in reasons.groups()]
[('buried: no order #', 2, 2), ('buried: busy', 1, 3)]
"""

from heapq import nlargest
from typing import final

from delayd.core.engine import Engine
from delayd.core.job_parts import failure_of
from delayd.core.job_record import DUE_AT, U64, State
from delayd.core.operations.checks import topic_named
from delayd.core.reasons import reason_id, reason_of
from delayd.core.scans.scan import ROW_ID_END, Scan, Wanted
from delayd.core.times import RequestMs
from delayd.core.wall_times import IdSet
from delayd.limits import PASS_ACTION_COST, REASONS_KEPT_MAX, REASONS_SHOWN_MAX


@final
class DeadGroup:
    """The dead letters of one reason; times are delayd's."""

    __slots__ = ("first_ms", "id", "job_id", "jobs", "last_ms", "reason")

    def __init__(self, reason: str, group_id: str, failed_ms: int) -> None:
        self.reason = reason
        self.id = group_id
        self.jobs = 0
        self.first_ms = failed_ms
        """When the first of them failed."""
        self.last_ms = failed_ms
        self.job_id = 0
        """The one that failed last."""

    def add(self, job_id: int, failed_ms: int) -> None:
        """Count one more."""
        self.jobs += 1
        self.first_ms = min(self.first_ms, failed_ms)
        if failed_ms >= self.last_ms:
            self.last_ms, self.job_id = failed_ms, job_id


@final
class DeadReasons:
    """Groups the dead letters of one topic."""

    def __init__(self, engine: Engine, name: str) -> None:
        """Begin; `TopicNotFound`, `TopicNameInvalid`."""
        self._store = engine.store
        self._scan = Scan(engine, topic_named(engine, name), Wanted(frozenset({State.BURIED})))
        self._seen = IdSet()
        self._groups: dict[str, DeadGroup] = {}
        self.jobs = 0
        """How many dead letters there are; complete when it is over."""
        self.is_over = False

    def groups(self) -> list[DeadGroup]:
        """Return the largest groups, by size; there may be more jobs than they have."""
        by_size = lambda group: (group.jobs, group.last_ms)  # noqa: E731
        return nlargest(REASONS_SHOWN_MAX, self._groups.values(), key=by_size)

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Look at some more jobs; tell if it is over. Grouping one takes as long as a change."""
        while budget > 0 and not self.is_over:
            rows = self._scan.take(1 + budget // PASS_ACTION_COST, now_ms)
            self.is_over = rows is None
            budget -= self._scan.cost
            for row in rows or ():
                job_id = row % ROW_ID_END
                if job_id not in self._seen:
                    self._seen.add(job_id)
                    self._count(job_id)
                    budget -= PASS_ACTION_COST - 1
        return self.is_over

    def _count(self, job_id: int) -> None:
        record = self._store.jobs.get(job_id)
        assert record is not None
        self.jobs += 1
        reason = reason_of(record)
        group_id = reason_id(reason)
        failure = failure_of(record)
        # Buried as in beanstalkd it has no time of that: when it was due comes nearest.
        failed_ms: int = (
            U64.unpack_from(record, DUE_AT)[0] if failure is None else failure.failed_ms
        )
        group = self._groups.get(group_id)
        if group is None:
            if len(self._groups) >= REASONS_KEPT_MAX:
                return
            group = self._groups[group_id] = DeadGroup(reason, group_id, failed_ms)
        group.add(job_id, failed_ms)
