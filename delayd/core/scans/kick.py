"""The kick of a topic: its buried jobs become ready or, when none is buried, its delayed ones.

    Kick(engine, topic, bound)    .done: how many were kicked, when it is over

A background task (`core.background_tasks`), whose first step is enough where there are few. The
longest buried come first. Of the delayed it is those that are soonest due: the wheel sorts a
thousand; of more a scan finds them, with a heap of the best so far where there are more than
`bound`. What is buried or put after the beginning stays as it is. Each job is kicked by the
operation for one job, so what has been done stays done if the log has no space for the rest.

>>> from delayd.core.operations.put import put_alike
>>> engine = Engine(start_ms=0)
>>> topic = engine.store.topic("default")
>>> for delay_ms in (5_000, 1_000, 3_000):
...     job_id = put_alike(engine, topic, 0, delay_ms, 9, [b""], now_ms=0)
>>> kick = Kick(engine, topic, bound=2)
>>> while not kick.step(budget=100, now_ms=0): pass
>>> kick.done, [job_id_of(key) for key in topic.queues.ready]
(2, [2, 3])
"""

from heapq import heappush, heapreplace

from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound, OutOfSpace
from delayd.core.job_record import State
from delayd.core.operations.change import kick_job
from delayd.core.operations.checks import require_writable
from delayd.core.ready_queue import job_id_of
from delayd.core.scans.scan import ROW_ID_END, Scan, Wanted
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.wall_times import IdSet
from delayd.limits import DELAYED_SORTED_MAX, PASS_ACTION_COST


class Kick:
    """Kicks jobs of one topic."""

    def __init__(self, engine: Engine, topic: Topic, bound: int) -> None:
        """Begin; at most `bound` jobs are kicked. `TopicIsInternal`."""
        require_writable(engine, topic.name)
        self._engine = engine
        self._topic = topic
        self._bound = bound
        buried = topic.queues.buried
        self._last_key: int = buried.last() if buried else 0
        self._last_id = engine.store.last_id
        self._rows: list[int] = []
        """Of delayed jobs that are to be kicked: the negatives, as a heap unless it takes all."""
        self._scan: Scan | None = None
        self._takes_all = bound >= topic.delayed
        self._seen = IdSet()
        if not buried and topic.delayed <= DELAYED_SORTED_MAX:
            self._rows += [-job_id for job_id in topic.queues.delays.wheel.soonest(bound)[::-1]]
        elif not buried and bound:
            self._scan = Scan(engine, topic, Wanted(frozenset({State.DELAYED})))
        self.done = 0
        """How many jobs were kicked."""

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Kick some more jobs; return whether that was all. `OutOfSpace` if there was none."""
        while budget > 0:
            if job_id := self._next():
                budget -= PASS_ACTION_COST
                try:
                    kick_job(self._engine, job_id, now_ms)
                    self.done += 1
                except JobNotFound:  # it came due just now, or another client was quicker
                    continue
                except OutOfSpace:
                    if not self.done:
                        raise
                    return True
            elif self._scan is None:
                return True
            else:
                budget -= self._find(self._scan, budget, now_ms)
        return False

    def _next(self) -> int:
        """Return the next job to be kicked; 0 when none is known."""
        if self.done == self._bound:
            return 0
        if self._last_key:
            buried = self._topic.queues.buried  # read each time: a clear replaces it
            return job_id_of(buried.first()) if buried and buried.first() <= self._last_key else 0
        if self._rows and (self._takes_all or self._scan is None):
            return -self._rows.pop() % ROW_ID_END
        return 0

    def _find(self, scan: Scan, limit: int, now_ms: RequestMs) -> int:
        """Look at some more delayed jobs; return what that took of the budget."""
        rows = scan.take(limit, now_ms)
        if rows is None:
            self._scan = None
            return 0
        best, seen = self._rows, self._seen
        for row in rows:
            job_id = row % ROW_ID_END
            if job_id > self._last_id or job_id in seen:
                continue
            seen.add(job_id)
            if self._takes_all:
                best.append(-row)
            elif len(best) < self._bound:
                heappush(best, -row)
            elif -row > best[0]:
                heapreplace(best, -row)
        if len(best) == self._bound and not self._takes_all:
            scan.until_ms = min(scan.until_ms, -best[0] // ROW_ID_END + 1)
        return scan.cost
