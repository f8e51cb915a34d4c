"""Keys and changes against the model, among everything else that clients and the clock can do."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from delayd.core import keys as index
from delayd.core.job_parts import key_of
from delayd.core.operations import tick
from delayd.core.operations.change import change
from delayd.core.operations.put import Conflict, put_keyed, put_keyed_run
from tests.core import views
from tests.core.copies import copied_on_the_way, small_pages
from tests.core.keyed_model import KeyedModel
from tests.core.test_engine_model import (
    EngineMachine,
    bodies,
    delays,
    names,
    priorities,
    some,
    ttrs,
)
from tests.core.test_engine_walk import OPERATIONS, Scan

KEYS: Final = (b"a", b"b", b"c", b"order-17", "größe".encode(), b"k" * 200)
keys = st.sampled_from(KEYS)
conflicts = st.sampled_from(Conflict)


class KeyedMachine(EngineMachine):
    model_type = KeyedModel
    model: KeyedModel

    def wall_ms(self, at_ms: int | None) -> int | None:
        """A moment of the wall clock, which goes with delayd time here."""
        return None if at_ms is None else self.rig.time_ms + at_ms

    @rule(
        name=names,
        key=keys,
        on=conflicts,
        priority=priorities,
        delay_ms=delays,
        at_ms=st.sampled_from((None, None, None, 0, 7, 5000, 70_000)),
        ttr_ms=ttrs,
        body=bodies,
    )
    def put_keyed(
        self,
        name: str,
        key: bytes,
        on: Conflict,
        priority: int,
        delay_ms: int,
        at_ms: int | None,
        ttr_ms: int,
        body: bytes,
    ) -> None:
        self.model.make_topic(name)
        topic = self.rig.engine.store.topic(name)
        wall_ms = self.wall_ms(at_ms)
        what: dict[str, int] = {"priority": priority, "delay_ms": delay_ms, "ttr_ms": ttr_ms}
        put: Any = partial(
            put_keyed, self.rig.engine, topic, key, on, body=body, due_wall_ms=wall_ms
        )
        now_ms = self.rig.now_ms
        self.agree(
            lambda: self.model.put_keyed(
                name, key, on, body=body, due_wall_ms=wall_ms, now_ms=now_ms, **what
            ),
            lambda: put(now_ms=now_ms, **what),
        )
        self.model.forget_unwanted(name)
        self.rig.engine.store.drop_if_unwanted(topic)

    @rule(
        name=names,
        pairs=st.lists(st.tuples(keys, bodies), min_size=1, max_size=4),
        priority=priorities,
        delay_ms=delays,
        ttr_ms=ttrs,
    )
    def put_keyed_run(
        self, name: str, pairs: list[tuple[bytes, bytes]], priority: int, delay_ms: int, ttr_ms: int
    ) -> None:
        self.model.make_topic(name)
        topic = self.rig.engine.store.topic(name)
        run_keys, run_bodies = [key for key, _ in pairs], [body for _, body in pairs]
        what = {"priority": priority, "delay_ms": delay_ms, "ttr_ms": ttr_ms}
        now_ms = self.rig.now_ms
        first_id = self.agree(
            lambda: self.model.put_keyed_run(
                name, keys=run_keys, bodies=run_bodies, now_ms=now_ms, **what
            ),
            lambda: put_keyed_run(
                self.rig.engine, topic, keys=run_keys, bodies=run_bodies, now_ms=now_ms, **what
            ),
        )
        self.was_refused |= first_id == 0
        self.model.forget_unwanted(name)
        self.rig.engine.store.drop_if_unwanted(topic)

    @rule(
        which=some,
        given=st.integers(0, 15),
        delay_ms=delays,
        at_ms=st.sampled_from((None, None, None, 0, 7, 5000, 70_000)),
        priority=priorities,
        ttr_ms=ttrs,
        body=bodies,
    )
    def change(
        self,
        which: int,
        given: int,
        delay_ms: int,
        at_ms: int | None,
        priority: int,
        ttr_ms: int,
        body: bytes,
    ) -> None:
        """Change what `given` says, bit by bit."""
        job_id, now_ms = self.pick_job(which), self.rig.now_ms
        wall_ms = self.wall_ms(at_ms) if given & 1 else None
        what: dict[str, Any] = {
            "due_wall_ms": wall_ms,
            "delay_ms": delay_ms if given & 1 and wall_ms is None else None,
            "priority": priority if given & 2 else None,
            "ttr_ms": ttr_ms if given & 4 else None,
        }
        new_body = body if given & 8 else None
        self.agree(
            lambda: self.model.change(job_id, now_ms, body=new_body, **what),
            lambda: change(self.rig.engine, job_id, now_ms, body=new_body, **what),
        )

    def compare_jobs(self) -> None:
        super().compare_jobs()
        for job_id, record in views.live_jobs(self.rig.engine.store):
            assert key_of(record) == self.model.jobs[job_id].key


def test_keys_and_changes_agree_with_the_model(examples: Callable[[int], settings]) -> None:
    run_state_machine_as_test(KeyedMachine, settings=examples(4))


class KeyedWalk(Scan):
    machine_type = KeyedMachine
    operations = (
        *OPERATIONS,
        (16, "put_keyed", "name key on priority delay_ms at_ms ttr_ms body"),
        (4, "put_keyed_run", "name pairs priority delay_ms ttr_ms"),
        (8, "change", "which given delay_ms at_ms priority ttr_ms body"),
    )

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.samples |= {
            "key": lambda rng: rng.choice(KEYS),
            "on": lambda rng: rng.choice(list(Conflict)),
            "given": lambda rng: rng.randrange(16),
            "pairs": lambda rng: [
                (rng.choice(KEYS), b"x" * rng.randrange(4)) for _ in range(rng.randrange(1, 4))
            ],
            "at_ms": lambda rng: rng.choice((None, None, 0, 1, 999, 2500)),
        }


@pytest.mark.parametrize("slice_jobs", [512, 1])
@pytest.mark.walk(1, 80)
def test_a_long_walk_with_keys_agrees_with_the_model_and_the_log_after_every_step(
    slice_jobs: int, number: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices stay unfinished: what is due is settled when somebody asks, live and in replay."""
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    small_parts(monkeypatch)
    walk = KeyedWalk(rng)
    for step in range(120):
        walk.step()
        walk.machine.the_log_alone_leads_to_the_same_state()
        if step % 50 == 49:
            walk.machine.restart(chance=0)
    walk.machine.teardown()


@pytest.mark.parametrize("bits", [0, 6])
@pytest.mark.walk(1, 30)
def test_a_copy_with_keyed_jobs_goes_on_with_the_log_behind_it(
    bits: int, number: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", 1)
    small_pages(monkeypatch, bits)
    walk = KeyedWalk(rng)
    for _ in range(6):
        for _ in range(rng.randrange(60)):
            walk.step()
        copied_on_the_way(walk, steps_max=number + 1)


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few keys suffice for several parts."""
    monkeypatch.setattr(index, "KEYS_UNDIVIDED", 8)
    monkeypatch.setattr(index, "KEY_PARTS", 4)
    monkeypatch.setattr(index, "KEY_BYTES_SPARSE", 64)
    monkeypatch.setattr(index, "LOOK_EVERY", 1)
