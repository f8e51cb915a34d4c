"""Clears in the middle of everything else: the walks of `test_engine_walk` with two more doings.

What a clear leaves behind is swept away in slices of a job or a few, with steps of the walk between
them; clients, the log alone and copies must never see any of it. Copies begin when all is swept,
and topics are cleared while they are taken.
"""

import random

import pytest
from hypothesis.stateful import precondition, rule

from delayd.core.job_record import State
from delayd.core.operations import tick
from delayd.core.operations.tick import leases_are_caught_up
from delayd.core.operations.topics import clear as clear_topic
from tests.core.copies import copied_and_lived, small_pages
from tests.core.test_engine_model import EngineMachine, names, some
from tests.core.test_engine_walk import WEIGHTS, Scan, walked_to_the_end


class ClearingMachine(EngineMachine):
    @rule(name=names)
    def clear(self, name: str) -> None:
        engine = self.rig.engine
        while not leases_are_caught_up(engine):
            self.go_to(self.model.time_ms, in_full=False)
        topic = engine.store.topics.by_name.get(name)
        if topic is not None:
            assert clear_topic(engine, topic) == self.forget_waiting_jobs(name)
            assert not clear_topic(engine, topic), "there is nothing left to clear"

    # Until keys of cleared jobs are swept, a run finds them taken.
    put_keyed_run = precondition(lambda self: not self.rig.engine.store.cleared.left)(
        EngineMachine.put_keyed_run
    )

    def forget_waiting_jobs(self, name: str) -> int:
        model = self.model
        gone = [
            job.job_id
            for job in model.jobs.values()
            if job.topic == name and job.state is not State.RESERVED
        ]
        for job_id in gone:
            del model.jobs[job_id]
        model.buried = [job_id for job_id in model.buried if job_id in model.jobs]
        if gone:
            model.forget_unwanted(name)
        return len(gone)

    @rule(budget=some)
    def sweep(self, budget: int) -> None:
        store = self.rig.engine.store
        if store.cleared.left:
            store.cleared.sweep(budget)

    def sweep_all(self) -> None:
        while self.rig.engine.store.cleared.left:
            self.sweep(1)

    def teardown(self) -> None:
        self.sweep_all()
        super().teardown()
        assert len(self.rig.engine.store.topics.by_number) == 1


class ClearingWalk(Scan):
    machine_type = ClearingMachine
    weights = WEIGHTS | {"clear": 3, "sweep": 8}
    machine: ClearingMachine

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.samples["budget"] = lambda rng: rng.choice((0, 1, 5))


@pytest.mark.parametrize("slice_jobs", [512, 1, 3])
@pytest.mark.walk(1, 80)
def test_a_long_walk_with_clears_agrees_with_the_model_all_the_way(
    slice_jobs: int, number: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    walked_to_the_end(ClearingWalk(rng), steps=300)


@pytest.mark.parametrize("bits", [0, 1, 6])
@pytest.mark.parametrize("slice_jobs", [1, 256])
@pytest.mark.walk(1, 80)
def test_a_copy_during_clears_is_the_state_it_began_with_and_goes_on_with_the_log(
    bits: int, slice_jobs: int, number: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    small_pages(monkeypatch, bits)
    walk = ClearingWalk(rng)
    for _ in range(3):
        for _ in range(rng.randrange(80)):
            walk.step()
        walk.machine.sweep_all()
        copied_and_lived(walk, steps_max=number)
