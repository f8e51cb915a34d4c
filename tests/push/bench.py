"""The scheduler of pushes as a world of facts: scheduler.txt. `Bench` has the engine's acts.

sends mail a max_attempts=1        the policy of mail sends its jobs to a host
jobs mail 3                        put some
take                               what may begin now
end 1 outage                       how the call of a job ended; `1:0` is its first call
go 0.5                             both clocks go on; `tick` moves the one of calls alone
"""

# ruff: noqa: ANN401 - options go to the operations as they are

from collections.abc import Iterable
from typing import Any, Final

import pytest

from delayd.core.log_records import Kind
from delayd.limits import BREAKER_FAILURES
from delayd.push.scheduler import PushBounds, PushCall, Scheduler
from delayd.push.sinks import DELIVERED, AttemptEnd, Result
from delayd.push.topic_sink import TopicSink
from tests.core.bench import Bench
from tests.core.check import check, check_lanes
from tests.push.test_sinks import JOB

URL: Final = "https://{}.example:443/jobs"
REFUSED: Final = AttemptEnd(Result.FAILED, "404 Not Found")
OUTAGE: Final = AttemptEnd(Result.FAILED, "503 Service Unavailable", is_outage=True)
GONE: Final = AttemptEnd(Result.EXHAUSTED, "410 Gone")
TIMEOUT_MS: Final = 15_000
AT_MS: Final = 50_000
ENDS: Final[dict[str, AttemptEnd | None]] = {
    "delivered": DELIVERED,
    "refused": REFUSED,
    "outage": OUTAGE,
    "gone": GONE,
    "none": None,
    "ours": REFUSED._replace(is_ours=True),
    "secret": OUTAGE._replace(answer=b"what only admins may see"),
}


class PushBench(Bench):
    def __init__(self) -> None:
        super().__init__()
        self.engine.vet_target = lambda target: target
        self.at_ms = AT_MS
        self._calls: dict[int, list[PushCall]] = {}
        self._open: list[PushCall] = []
        self.bounds()

    def bounds(self, *, calls: int = 256, per_place: int = 8, breakers: int = 1) -> None:
        bounds = PushBounds(calls, per_place, TIMEOUT_MS, bool(breakers))
        self.scheduler = Scheduler(self.engine, bounds)

    def sends(self, topic: str, host: str = "", **fields: Any) -> None:
        """Let the policy of the topic send its jobs to a host, or wherever `push` says."""
        push = {**({"url": URL.format(host)} if host else {}), **fields.pop("push", {})}
        self.set_policy(topic, **{"retry": "1s 2s", "push": push, **fields})

    def own(self, topic: str, host: str) -> str:
        """Put a job with a url of its own."""
        return self.put(topic, url=f"https://{host}.example:443/own")

    def fill(self, topic: str, jobs: int = 1) -> list[int]:
        return self._rig.put_many(jobs, topic)

    # --- Calls -----------------------------------------------------------------------------------

    def begun_in_turn(self) -> list[PushCall]:
        """What a turn lets begin."""
        return self.scheduler.take_calls(self._rig.now_ms, self.at_ms)

    def begun(self) -> list[PushCall]:
        """What may begin now, however many turns that takes."""
        calls = self.begun_in_turn()
        while self.scheduler.has_more:
            calls += self.begun_in_turn()
        if calls:
            check(self.engine)
        else:
            check_lanes(self.engine)
        return calls

    def ended(self, calls: Iterable[PushCall], end: AttemptEnd | None = DELIVERED) -> None:
        for call in calls:
            self.scheduler.settle(call, end, self._rig.now_ms, self.at_ms)
            self.scheduler.release(call)
            check(self.engine)

    def take(self) -> list[int]:
        calls = self.begun()
        for call in calls:
            self._calls.setdefault(call.job_id, []).append(call)
        self._open += calls
        return [call.job_id for call in calls]

    def _of(self, which: Any) -> PushCall:
        job_id, _, number = str(which).partition(":")
        return self._calls[int(job_id)][int(number or -1)]

    def call(self, which: Any) -> list[Any]:
        call = self._of(which)
        return [call.target.method, call.target.url, call.timeout_ms / 1_000]

    def probe(self, which: Any) -> str:
        probe = self._of(which).probe
        return probe.name.lower() if probe else "none"

    def settle(self, which: Any, how: str = "delivered", after: float = 0) -> bool:
        """Say how a call ended, while it goes on; return whether the job is a dead letter now."""
        end = ENDS[how]
        if end and after:
            end = end._replace(retry_after_ms=round(after * 1_000))
        return self.scheduler.settle(self._of(which), end, self._rig.now_ms, self.at_ms)

    def release_call(self, which: Any) -> None:
        self.scheduler.release(self._of(which))
        self._open.remove(self._of(which))
        check(self.engine)

    def end(self, which: Any, how: str = "delivered", after: float = 0) -> bool:
        is_dead = self.settle(which, how, after)
        self.release_call(which)
        return is_dead

    def end_all(self, how: str = "delivered") -> None:
        for call in [*self._open]:
            self.end(f"{call.job_id}:{self._calls[call.job_id].index(call)}", how)

    def forwards(self, job_id: int) -> str:
        """Let the topic sink have a job that is under way; return what it says at once."""
        self._rig.take_log()
        sink = TopicSink(self.engine, self.scheduler.session, lambda: self._rig.now_ms)
        with pytest.raises(StopIteration) as at_once:
            sink.deliver(JOB._replace(id=job_id)).send(None)
        self.records = [kind.name for kind in self._rig.kinds() if kind is not Kind.TURN]
        end: AttemptEnd = at_once.value.value
        error = end.error.replace(":", "")  # which would name a world
        return f"{'outage' if end.is_outage else end.result.value} {error}".strip()

    def down(self, topic: str) -> None:
        """Have so many jobs of the topic fail that its breaker opens."""
        self.fill(topic, BREAKER_FAILURES)
        for _ in range(BREAKER_FAILURES):
            self.take()
            self.end_all("outage")

    def stopping(self) -> None:
        self.scheduler.is_stopping = True

    def give_back_all(self) -> None:
        self.scheduler.give_back_all(self._rig.now_ms, self.at_ms)

    # --- Time, and what is seen ------------------------------------------------------------------

    def go(self, seconds: float) -> None:
        self.tick(seconds)
        self.wait(seconds)

    def tick(self, seconds: float) -> None:
        self.at_ms += round(seconds * 1_000)

    def wakes_in(self) -> float | None:
        at_ms = self.scheduler.wake_ms
        return None if at_ms is None else (at_ms - self.at_ms) / 1_000

    def flights(self) -> int:
        return self.scheduler.in_flight

    def breakers(self) -> list[int]:
        return list(self.scheduler.breakers)

    def blocks(self, topic: str) -> list[str]:
        found = self.scheduler.blocks_of(self.engine.store.topic(topic), self.at_ms)
        return [block.name.lower() for block in found]

    def turned(self) -> list[str]:
        """Return which breakers have opened or closed since the last time, and why."""
        return [
            f"{turn[0]} {turn[1]} {'open' if turn[2] else 'closed'} {turn[3]}".strip()
            for turn in self.scheduler.take_turned()
        ]

    def kept(self) -> int:
        """Return how many things the scheduler remembers."""
        names = (
            *("_alarms", "_calls", "_heard", "_hosts", "_idle", "_known", "_places", "_queue"),
            *("_rates", "_returning", "_routes"),
        )
        return sum(len(getattr(self.scheduler, name)) for name in names)
