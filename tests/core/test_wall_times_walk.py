"""Long seeded walks with a restless wall clock.

They set it again and again while jobs are still being placed after the step before, and compare
with a model that knows only this: a job comes at the first moment at which the wall clock says its
time or later, and what has come has come.
"""

import random
from dataclasses import dataclass
from typing import Final

import pytest

from delayd.core import wall_times
from delayd.core.job_record import State
from delayd.core.operations import tick
from delayd.core.operations.wall_clock import follow_wall
from tests.rigs.engine import EngineRig

HOUR_MS: Final = 3_600_000
NOW_MS: Final = 1_700_000_000_000


@dataclass
class Waiting:
    """What the model knows of a delayed job."""

    wall_ms: int | None
    due_ms: int
    has_come: bool = False


class ClockWalk:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.tick_ms = rng.choice((1, 1, 7, 1000))
        start_ms = rng.choice((0, NOW_MS))
        self.rig = EngineRig(time_ms=start_ms, tick_ms=self.tick_ms, skew_ms=rng.randrange(2))
        self.offset_ms = 0
        self.jobs: dict[int, Waiting] = {}
        self.me = self.rig.client()

    # The model.

    def place(self, wall_ms: int) -> int:
        return -(-max(0, wall_ms - self.offset_ms) // self.tick_ms) * self.tick_ms

    def let_come(self) -> None:
        time_ms = self.rig.time_ms
        for job in self.jobs.values():
            if not job.has_come:
                if job.wall_ms is not None:
                    job.due_ms = self.place(job.wall_ms)
                job.has_come = job.due_ms <= time_ms

    # What happens.

    def wall_near_now(self) -> int:
        near_ms = self.rig.time_ms + self.offset_ms + self.rng.randrange(-2_000, 6_000)
        return max(0, self.rng.choice((near_ms, near_ms, near_ms + HOUR_MS)))

    def put(self) -> None:
        for _ in range(self.rng.choice((1, 3, 80))):
            wall_ms = self.wall_near_now()
            self.jobs[self.rig.put(due_wall_ms=wall_ms)] = Waiting(wall_ms, self.place(wall_ms))

    def put_relative(self) -> None:
        delay_ms = self.rng.randrange(1, 6_000)
        due_ms = -(-(self.rig.now_ms + delay_ms) // self.tick_ms) * self.tick_ms
        self.jobs[self.rig.put(delay_ms=delay_ms)] = Waiting(None, due_ms)

    def set_clock(self) -> None:
        rng = self.rng
        self.offset_ms = rng.choice((0, 0, rng.randrange(-5_000, 5_000), 10**9, -(10**9)))
        follow_wall(self.rig.engine, self.offset_ms)

    def slice(self) -> None:
        self.rig.advance(self.rig.time_ms + self.rng.choice((0, 0, 1, 500, 3_000)))

    def settle(self) -> None:
        """Let nothing be under way: a copy may begin."""
        self.rig.run(self.rig.time_ms)

    def everything(self) -> None:
        self.rig.run(self.rig.time_ms + self.rng.choice((0, 1, 2_000)))
        self.let_come()
        assert not self.rig.engine.store.wall_times.layers
        for job_id in self.jobs:
            self.compare(job_id)

    def reschedule(self) -> None:
        job_id = self.rng.choice([*self.jobs])
        wall_ms = self.wall_near_now()
        self.rig.reschedule(job_id, 0, wall_ms)
        self.jobs[job_id] = Waiting(wall_ms, self.place(wall_ms))

    def delete_kick_or_reserve(self) -> None:
        job_id = self.rng.choice([*self.jobs])
        del self.jobs[job_id]
        match self.rng.randrange(4):
            case 0:
                self.rig.delete(self.me, job_id)
            case 1:
                self.rig.kick_job(job_id) if self.is_delayed(job_id) else None
            case 2:
                self.rig.bury_waiting(job_id)
            case _:
                self.rig.reserve_job(self.me, job_id)
                self.rig.release(self.me, job_id, 0, 1_000)

    def is_delayed(self, job_id: int) -> bool:
        return self.rig.view(job_id).state is State.DELAYED

    def look(self) -> None:
        self.compare(self.rng.choice([*self.jobs]))

    def compare(self, job_id: int) -> None:
        job = self.jobs[job_id]
        expected = State.READY if job.has_come else State.DELAYED
        assert self.rig.view(job_id).state is expected, (job_id, job)
        if not job.has_come:
            assert self.rig.view(job_id).left_ms == max(0, job.due_ms - self.rig.now_ms)

    def step(self) -> None:
        doings = (
            *(self.slice,) * 4,
            *(self.set_clock,) * 2,
            *(self.look, self.reschedule, self.delete_kick_or_reserve) * bool(self.jobs),
            *(self.put, self.put_relative, self.everything),
        )
        doing = self.rng.choice(doings)
        # The model lets come what is due before the clock is set as well as after.
        self.let_come()
        doing()
        self.let_come()
        assert not self.me.deadlines


@pytest.mark.parametrize("slice_jobs", [512, 1, 3])
@pytest.mark.walk(1, 120)
def test_a_walk_with_a_restless_wall_clock_agrees_with_the_model(
    slice_jobs: int, number: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    if number % 2:
        monkeypatch.setattr(wall_times, "WALL_STEPS_MAX", 2)
    walk = ClockWalk(rng)
    for step in range(200):
        walk.step()
        if step % 20 == 0:
            walk.rig.agree_with_the_log()
        if step % 50 == 49:
            walk.rig.restart()
            follow_wall(walk.rig.engine, walk.offset_ms)
            walk.me = walk.rig.client()
    walk.everything()
    walk.rig.agree_with_the_log()
