"""Leases: which session holds which reserved job, and until when.

A lease is in three places: `sessions` leads from the job to its session, the session's `deadlines`
say until when, and the lane of leases has an entry that fires then. `Leases` keeps them consistent.
It began a ttr before its deadline, but for those in `begun`, which were extended since, and those
in `calls`, lent for a call. Of these the log says nothing: what a replay has to know is in `begun`.
"""

from collections.abc import Callable, Sequence
from typing import final

from delayd.core.session import Session
from delayd.core.timers import TimerLane, TimerQueue
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.wheel.wheel import TimingWheel, ceil_to_tick


@final
class Leases:
    """All reserved jobs."""

    __slots__ = ("_queue", "begun", "calls", "lane", "last_end", "sessions")

    def __init__(
        self, new_wheel: Callable[[Callable[[int], int | None]], TimingWheel], queue: TimerQueue
    ) -> None:
        """Start without any; `new_wheel(due_of)` makes the wheel of the lane, which is queued."""
        self._queue = queue
        self.sessions: dict[int, Session] = {}
        """Job id → the session that holds it."""
        self.begun: dict[int, int] = {}
        """Job id → when it was handed out, of leases that were extended."""
        self.calls: dict[int, int] = {}
        """Job id → when its call began, of this process."""
        self.last_end: tuple[int, int, str] = (0, 0, "")
        """A job, how long it was held, and by whom, for the history: its lease is about to end."""
        self.lane = TimerLane(new_wheel(self._ends))

    def _ends(self, job_id: int) -> int | None:
        session = self.sessions.get(job_id)
        return None if session is None else session.deadlines[job_id]

    def add(self, job_id: int, session: Session, deadline_ms: int, time_ms: PlayedMs) -> None:
        """Note that the session holds the job."""
        self.sessions[job_id] = session
        session.deadlines[job_id] = deadline_ms
        if deadline_ms < session.soonest_ms:  # noqa: PLR1730 - a call of `min` costs 60 ns
            session.soonest_ms = deadline_ms
        if self.lane.wheel.insert(job_id, deadline_ms, time_ms):
            self._queue.queue(self.lane)

    def add_run(
        self,
        ttrs: list[tuple[int, list[int]]],
        session: Session,
        now_ms: RequestMs,
        time_ms: PlayedMs,
    ) -> list[tuple[int, list[int]]]:
        """Note that the session holds jobs: of (ttr, ids), return (deadline, ids)."""
        leased = []
        for ttr_ms, job_ids in ttrs:
            deadline_ms: int = ceil_to_tick(now_ms + ttr_ms, self.lane.wheel.tick_ms)
            session.soonest_ms = min(session.soonest_ms, deadline_ms)
            self.sessions.update(dict.fromkeys(job_ids, session))
            session.deadlines.update(dict.fromkeys(job_ids, deadline_ms))
            if self.lane.wheel.insert_run(job_ids, deadline_ms, time_ms):
                self._queue.queue(self.lane)
            leased.append((deadline_ms, job_ids))
        return leased

    def begun_ms(self, job_id: int, ttr_ms: int) -> int:
        """Return when a job with this ttr was handed out."""
        return self.calls.get(job_id) or self._begun_ms(job_id, ttr_ms)

    def _begun_ms(self, job_id: int, ttr_ms: int) -> int:
        """Return the same as far as the log says it."""
        return self.begun.get(job_id) or self.sessions[job_id].deadlines[job_id] - ttr_ms

    def extend(self, job_id: int, deadline_ms: int, ttr_ms: int, time_ms: PlayedMs) -> None:
        """Extend the lease of a job with this ttr to this deadline."""
        self.begun[job_id] = self._begun_ms(job_id, ttr_ms)
        self.sessions[job_id].deadlines[job_id] = deadline_ms
        self.lane.wheel.cancel()
        if self.lane.wheel.insert(job_id, deadline_ms, time_ms):
            self._queue.queue(self.lane)

    def remove(self, job_id: int, *, has_fired: bool = False) -> None:
        """End a lease, whose entry may have fired already."""
        del self.sessions.pop(job_id).deadlines[job_id]
        if self.begun:
            self.begun.pop(job_id, None)
        if self.calls:
            self.calls.pop(job_id, None)
        if not has_fired:
            self.lane.wheel.cancel()

    def forget(self, job_ids: Sequence[int]) -> None:
        """Forget when leases began that have ended: `remove` of a run does without."""
        for known in (self.begun, self.calls):
            if known:
                for job_id in job_ids:
                    known.pop(job_id, None)

    def check(self) -> None:
        """Assert that each lease is where it belongs."""
        assert all(job_id in session.deadlines for job_id, session in self.sessions.items())
        assert len(self.lane.wheel) == len(self.sessions)
        assert self.begun.keys() | self.calls.keys() <= self.sessions.keys()
        self.lane.wheel.check()
