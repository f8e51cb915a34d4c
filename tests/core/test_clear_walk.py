"""Clears in the middle of everything else: the walks of `test_engine_walk` with two more doings.

What a clear leaves behind is swept away in slices of a job or a few, with steps of the walk between
them; clients, the log alone and copies must never see any of it. Copies begin when all is swept,
and topics are cleared while they are taken.
"""

import contextlib
import random
from typing import TYPE_CHECKING, Final

import pytest

from delayd.core.errors import KeyNotFound, Refusal
from delayd.core.job_parts import key_of
from delayd.core.job_record import State
from delayd.core.operations import tick
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury, nack, release
from delayd.core.operations.change import bury_waiting
from delayd.core.operations.put import Conflict, find_key, put_keyed, put_keyed_run
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.tick import leases_are_caught_up
from delayd.core.operations.topics import Clear, set_policy
from delayd.core.operations.topics import clear as clear_topic
from delayd.core.policy import Policy
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.copies import copied_on_the_way, restored, small_pages, state, whole
from tests.core.test_engine_model import EngineMachine
from tests.core.test_engine_walk import OPERATIONS, Scan, walked_to_the_end
from tests.rigs.engine import EngineRig

if TYPE_CHECKING:
    from collections.abc import Callable


class ClearingMachine(EngineMachine):
    def clear(self, name: str) -> None:
        engine = self.rig.engine
        while not leases_are_caught_up(engine):
            self.go_to(self.model.time_ms, in_full=False)
        topic = engine.store.topics.by_name.get(name)
        if topic is not None:
            assert clear_topic(engine, topic) == self.forget_waiting_jobs(name)
            assert not clear_topic(engine, topic), "there is nothing left to clear"

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
    operations = (*OPERATIONS, (3, "clear", "name"), (8, "sweep", "budget"))
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
        copied_on_the_way(walk, steps_max=number)


POLICIES: Final = (
    None,
    Policy(retry_ms=(20,), exhausted="b"),
    Policy(attempts_max=1, exhausted="b"),
)


class KeyedCrowd:
    """Few keys, and jobs that come and go under them; topics are cleared, and swept by and by.

    Jobs that fail are retried, buried or moved from `a` to `b`, by policies that come and go too.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rig = EngineRig()
        self.me = self.rig.client("a", "b")

    def step(self) -> None:
        rng, engine, now_ms = self.rng, self.rig.engine, self.rig.now_ms
        topic = engine.store.topics.by_name[rng.choice(("a", "b"))]
        key = b"%d" % rng.randrange(6)
        held = rng.choice([*self.me.deadlines] or [1])
        on = rng.choice(list(Conflict))
        delay_ms = rng.choice((0, 50))

        def put() -> None:
            put_keyed(
                engine,
                topic,
                key,
                on,
                priority=0,
                delay_ms=delay_ms,
                ttr_ms=70,
                body=b"x",
                now_ms=now_ms,
            )

        keys = [b"%d" % rng.randrange(6) for _ in range(2)]
        doings: list[Callable[[], object]] = [
            *[put] * 3,
            lambda: put_keyed_run(engine, topic, 0, delay_ms, 70, keys, [b"y", b"z"], now_ms),
            *[lambda: reserve_batch(engine, self.me, 3, 10, now_ms)] * 4,
            lambda: release(engine, self.me, held, 0, delay_ms, now_ms),
            lambda: bury(engine, self.me, held, 0, now_ms),
            lambda: bury_waiting(engine, find_key(engine, topic.name, key), now_ms),
            lambda: delete(engine, self.me, held, now_ms),
            lambda: delete(engine, self.me, find_key(engine, topic.name, key), now_ms),
            *[lambda: nack(engine, self.me, held, now_ms, error="why")] * 3,
            lambda: set_policy(engine, "a", rng.choice(POLICIES), now_ms),
            lambda: self.rig.run(self.rig.time_ms + rng.randrange(30)),
            lambda: self.rig.advance(self.rig.time_ms + rng.randrange(30)),
            self.clear,
            *[lambda: engine.store.cleared.left and engine.store.cleared.sweep(0)] * 2,
        ]
        with contextlib.suppress(Refusal):
            rng.choice(doings)()

    def clear(self) -> None:
        clear = Clear(self.rig.engine, self.rng.choice(("a", "b")))
        while not clear.step(1, self.rig.now_ms):
            pass

    def owners(self) -> dict[tuple[str, bytes], int]:
        """Who has which key, by looking at every job."""
        store = self.rig.engine.store
        return {
            (store.topic_of(record).name, key_of(record)): job_id
            for job_id, record in views.live_jobs(store)
            if key_of(record)
        }

    def found(self) -> dict[tuple[str, bytes], int]:
        found = {}
        for name in ("a", "b"):
            for key in (b"%d" % number for number in range(6)):
                with contextlib.suppress(KeyNotFound):
                    found[name, key] = find_key(self.rig.engine, name, key)
        return found


@pytest.mark.walk(1, 60)
def test_keys_of_cleared_jobs_are_free_and_those_of_jobs_in_hand_are_not(
    number: int, rng: random.Random
) -> None:
    for _ in range(10):
        crowd = KeyedCrowd(rng)
        engine = crowd.rig.engine
        for _ in range(100):
            crowd.step()
            if rng.random() < 0.3:
                assert crowd.found() == crowd.owners()
            check(engine)
        assert list(canonical(crowd.rig.replayed())) == list(canonical(engine))
        while engine.store.cleared.left:
            engine.store.cleared.sweep(1)
        check(engine)
        copied = restored(crowd.rig, crowd.rig.time_ms, whole(engine))
        assert state(copied) == state(engine)
        for topic in engine.store.topics.listing:
            assert len(topic.keys or ()) == sum(name == topic.name for name, _ in crowd.owners())
