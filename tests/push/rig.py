"""The scheduler of deliveries on an engine and two clocks that the test moves.

    rig = SchedulerRig(calls_max=2)
    rig.sends("mail", url="https://example.com/jobs")      # the policy of the topic
    rig.put("mail")
    call, = rig.take()                                     # reserved, to be delivered
    rig.ends(call, FAILED)
    rig.pass_ms(1_000)                                     # both clocks

Every step that does something checks the engine.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from delayd.core.job_parts import note_of
from delayd.core.job_record import State
from delayd.core.operations.tick import caught_up
from delayd.core.policy import Policy
from delayd.push.scheduler import PushBounds, PushCall, Scheduler
from delayd.push.sinks import DELIVERED, AttemptEnd, Result
from tests.core.check import check, check_lanes
from tests.rigs.engine import EngineRig

URL: Final = "https://{}.example:443/jobs"
REFUSED: Final = AttemptEnd(Result.FAILED, "404 Not Found")
OUTAGE: Final = AttemptEnd(Result.FAILED, "503 Service Unavailable", is_outage=True)
GONE: Final = AttemptEnd(Result.EXHAUSTED, "410 Gone")
TIMEOUT_MS: Final = 15_000
START_MS: Final = 1_000_000
AT_MS: Final = 50_000


def kept(scheduler: Scheduler) -> int:
    """How many things the scheduler remembers."""
    names = (
        *("_alarms", "_calls", "_heard", "_hosts", "_idle", "_known", "_places", "_queue"),
        *("_rates", "_returning", "_routes"),
    )
    return sum(len(getattr(scheduler, name)) for name in names)


class SchedulerRig(EngineRig):
    def __init__(
        self, *, calls_max: int = 256, per_place: int = 8, has_breakers: bool = True
    ) -> None:
        super().__init__(time_ms=START_MS)
        self.at_ms = AT_MS
        self.engine.vet_target = lambda target: target
        self.bounds = PushBounds(calls_max, per_place, TIMEOUT_MS, has_breakers)
        self.scheduler = Scheduler(self.engine, self.bounds)

    def sends(
        self,
        name: str,
        host: str = "",
        rules: Mapping[str, object] | None = None,
        /,
        **push: object,
    ) -> None:
        """Let the policy of the topic send its jobs to a host, or wherever `push` says."""
        if host:
            push["url"] = URL.format(host)
        fields = {"retry": "1s 2s", "push": push, **(rules or {})}
        self.set_policy(name, Policy.from_fields(fields))

    def puts(self, topic: str, jobs: int) -> list[int]:
        return self.put_many(jobs, topic)

    # --- Calls -----------------------------------------------------------------------------------

    def take(self) -> list[PushCall]:
        """What may begin now, however many turns that takes."""
        calls = self.scheduler.take_calls(self.now_ms, self.at_ms)
        while self.scheduler.has_more:
            calls += self.scheduler.take_calls(self.now_ms, self.at_ms)
        if calls:
            check(self.engine)
        else:
            check_lanes(self.engine)
        return calls

    def ends(self, call: PushCall, end: AttemptEnd | None = DELIVERED) -> None:
        self.scheduler.settle(call, end, self.now_ms, self.at_ms)
        self.scheduler.release(call)
        check(self.engine)

    def all_end(self, calls: Iterable[PushCall], end: AttemptEnd | None = DELIVERED) -> None:
        for call in calls:
            self.ends(call, end)

    def pass_ms(self, ms: int) -> None:
        """Let time pass on both clocks."""
        self.at_ms += ms
        self.play(self.time_ms + ms)

    # --- Looking ---------------------------------------------------------------------------------

    def state(self, job_id: int) -> State | None:
        """The state of a job; None when it is gone."""
        if self.engine.store.jobs.get(job_id) is None:
            return None
        return caught_up(self.engine, job_id, self.now_ms)[1]

    def error(self, job_id: int) -> str:
        """What is kept of its last failed attempt."""
        record = self.engine.store.jobs.get(job_id)
        note = None if record is None else note_of(record)
        return "" if note is None else note.error
