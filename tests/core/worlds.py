"""A daemon with a worker, in which days pass in milliseconds and the power fails on the way.

`World.run` lets a worker wait for jobs and do with each what it is told. At the times of `crashes`
the daemon is killed and comes back from its log; its clients connect again, and whoever held a job
is gone without a word.
"""

from collections.abc import Callable, Sequence
from typing import Final

from delayd.core.engine import Engine
from delayd.core.job_record import State
from delayd.core.operations.reserve import reserve
from delayd.core.operations.tick import next_deadline
from delayd.core.operations.waiting import cancel_wait
from delayd.core.policy import Policy
from delayd.core.session import WaitEnd
from delayd.core.times import RequestMs
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.views import JobDetails
from tests.rigs.engine import EngineRig

SECOND_MS: Final = 1_000
DAY_MS: Final = 24 * 3_600 * SECOND_MS

Act = Callable[["World", int, bytes], object]
"""What a worker does with a job that it was given."""


class World:
    def __init__(
        self, *watched: str, crashes: Sequence[int] = (), time_ms: int = 0, tick_ms: int = 1
    ) -> None:
        self.rig = EngineRig(time_ms=time_ms, tick_ms=tick_ms)
        self.watched = watched or ("default",)
        self.crashes = sorted(crashes)
        self.worker = self.rig.client(*self.watched)
        self.came: list[tuple[int, bytes]] = []
        """When each job came to a worker, and its body."""

    @property
    def engine(self) -> Engine:
        return self.rig.engine

    @property
    def now_ms(self) -> RequestMs:
        return self.rig.now_ms

    def set_policy(self, name: str, **fields: object) -> None:
        self.rig.set_policy(name, Policy.from_fields(fields))

    def state(self, job_id: int) -> State:
        return self.rig.view(job_id).state

    def details(self, job_id: int) -> JobDetails:
        return self.rig.details(job_id)

    # --- What happens ----------------------------------------------------------------------------

    def crash(self) -> None:
        """Kill the daemon and start it again."""
        before = [*canonical(self.engine)]
        self.rig.restart()
        assert [*canonical(self.engine)] == before
        check(self.engine)
        self.worker = self.rig.client(*self.watched)

    def pass_until(self, time_ms: int) -> None:
        """Let time pass without anybody working."""
        while self.crashes and self.crashes[0] <= time_ms:
            self.rig.play(self.crashes.pop(0))
            self.crash()
        self.rig.play(time_ms)

    def run(self, until_ms: int, act: "Act") -> list[tuple[int, bytes]]:
        """Let a worker wait for jobs until then, and do that with each; return when each came."""
        came = len(self.came)
        while True:
            job = reserve(self.engine, self.worker, self.now_ms)
            if job is None:
                job = self.wait(until_ms)
            if job is None:
                return self.came[came:]
            self.came.append((self.rig.time_ms, job[1]))
            act(self, *job)

    def wait(self, until_ms: int) -> tuple[int, bytes] | None:
        """Wait for a job until then, through all crashes."""
        self.rig.wait(self.worker)
        while True:
            for session, outcome in self.engine.take_deliveries():
                assert session is self.worker
                assert not isinstance(outcome, WaitEnd)
                return outcome
            next_ms = next_deadline(self.engine)
            if next_ms is None or next_ms > until_ms:
                next_ms = until_ms
            if self.crashes and self.crashes[0] <= next_ms:
                self.pass_until(self.crashes[0])
                self.rig.wait(self.worker)
            elif next_ms == self.rig.time_ms == until_ms:
                cancel_wait(self.engine, self.worker)
                return None
            else:
                self.rig.play(max(next_ms, self.rig.time_ms))


# --- What workers do -----------------------------------------------------------------------------


def finish(world: World, job_id: int, _body: bytes) -> None:
    world.rig.delete(world.worker, job_id)


def nack(world: World, job_id: int, _body: bytes) -> None:
    error = f"attempt {len(world.came)}: connection refused"
    world.rig.nack(world.worker, job_id, error=error)


def release(world: World, job_id: int, _body: bytes) -> None:
    """What stock beanstalk clients know."""
    world.rig.release(world.worker, job_id)


def close(world: World, _job_id: int, _body: bytes) -> None:
    """Die, and be replaced by another one."""
    world.rig.close(world.worker)
    world.worker = world.rig.client(*world.watched)


def hang(world: World, _job_id: int, _body: bytes) -> None:
    """Never say anything again, and be joined by another one."""
    world.worker = world.rig.client(*world.watched)
