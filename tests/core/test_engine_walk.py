"""Long seeded walks of `test_engine_model`: crowded states that short runs never come to see.

Hypothesis finds short examples, and starts from nothing each time. These walks keep a few dozen
jobs and clients busy for a thousand steps, with delays, holds and steps of time of like length, so
that things happen to the same job at the same moment.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest

from delayd.core import keys
from delayd.core.operations import tick
from delayd.core.operations.put import Conflict
from tests.core.test_engine_model import KEYS, TOPICS, EngineMachine
from tests.rigs.engine import EngineRig

TIMES_MS: Final = (0, 1, 2, 500, 999, 1000, 1001, 1500, 2500, 4000)
RARE: Final = 60_000


def some_pair(rng: random.Random) -> tuple[bytes, bytes]:
    return rng.choice(KEYS), b"x" * rng.randrange(4)


SAMPLES: Final[tuple[tuple[str, Callable[[random.Random], Any]], ...]] = (
    ("who", lambda rng: rng.randrange(1000)),
    ("which", lambda rng: rng.randrange(10_000)),
    ("name", lambda rng: rng.choice(TOPICS)),
    ("verb", lambda rng: rng.choice(("use", "watch", "watch", "ignore"))),
    ("priority", lambda rng: rng.choice((0, 5, 5, 1023, 1024))),
    ("delay_ms", lambda rng: rng.choice((0, 0, rng.choice(TIMES_MS), RARE))),
    ("pause_ms", lambda rng: rng.choice((0, *TIMES_MS))),
    ("ttr_ms", lambda rng: rng.choice((*TIMES_MS, RARE))),
    ("wait_ms", lambda rng: rng.choice((None, *TIMES_MS))),
    ("step_ms", lambda rng: rng.choice((1, *TIMES_MS))),
    ("short_by_ms", lambda rng: rng.randrange(2)),
    ("body", lambda rng: b"x" * rng.randrange(12)),
    ("several", lambda rng: [b"x" * rng.randrange(4) for _ in range(rng.randrange(1, 4))]),
    ("jobs_max", lambda rng: rng.randrange(4)),
    ("bytes_max", lambda rng: rng.randrange(20)),
    ("bound", lambda rng: rng.randrange(4)),
    ("key", lambda rng: rng.choice(KEYS)),
    ("on", lambda rng: rng.choice(list(Conflict))),
    ("given", lambda rng: rng.randrange(16)),
    ("at_ms", lambda rng: rng.choice((None, None, 0, 1, 999, 2500))),
    ("pairs", lambda rng: [some_pair(rng) for _ in range(rng.randrange(1, 4))]),
)

WEIGHTS: Final = {
    # How likely each rule of the machine is
    "put": 8,
    "put_alike": 4,
    "put_by_name": 2,
    "put_keyed": 16,
    "put_keyed_run": 4,
    "change": 8,
    "reserve": 12,
    "reserve_batch": 2,
    "reserve_job": 3,
    "cancel_wait": 2,
    "release": 6,
    "bury": 5,
    "bury_waiting": 3,
    "touch": 4,
    "delete": 3,
    "kick_job": 5,
    "kick": 2,
    "reschedule": 4,
    "pause": 2,
    "look_at_a_job": 3,
    "use_watch_ignore": 4,
    "close_session": 2,
    "one_slice_of_time": 6,
    "time_passes": 4,
    "sleep_until_the_deadline": 4,
}


class Scan:
    machine_type = EngineMachine
    weights: Mapping[str, int] = WEIGHTS

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.samples = dict(SAMPLES)
        self.crowd = rng.choice((3, 30))
        """Where there are few jobs, many wait for them."""
        self.machine = self.machine_type()
        self.rules = {rule.function.__name__: rule for rule in self.machine.rules}
        self.machine.start(
            tick_ms=rng.choice((1, 1, 10, 1000)),
            wheel_size=rng.choice((2, 20, 256)),
            time_ms=rng.choice((0, 1_800_000_000_000)),
            skew_ms=rng.randrange(2),
        )

    @property
    def rig(self) -> EngineRig:
        return self.machine.rig

    def step(self) -> None:
        machine, rng = self.machine, self.rng
        while len(machine.sessions) < 4:
            machine.open_session()
        if len(machine.model.jobs) > self.crowd and machine.idle():
            machine.delete(rng.randrange(1000), [rng.randrange(10_000) for _ in range(3)])
        else:
            rule = self.rules[rng.choices([*self.weights], [*self.weights.values()])[0]]
            if all(is_possible(machine) for is_possible in rule.preconditions):
                what = {name: self.samples[name](rng) for name in rule.arguments}
                if rule.function.__name__ == "delete":
                    what["which"] = [what["which"]]
                rule.function(machine, **what)
        machine.agree_in_all_that_can_be_seen()


def walked_to_the_end(
    walk: Scan, steps: int, *, compared_after: int = 20, restarted_after: int = 200
) -> None:
    """Go all the way, with restarts; so often the log alone must lead to the same state."""
    for step in range(1, steps + 1):
        walk.step()
        if step % compared_after == 0:
            walk.machine.the_log_alone_leads_to_the_same_state()
        if step % restarted_after == 0:
            walk.machine.restart(chance=0)
    walk.machine.teardown()


@pytest.mark.parametrize("slice_jobs", [512, 1, 3])
@pytest.mark.walk(1, 80)
def test_a_long_walk_agrees_with_the_model_all_the_way(
    slice_jobs: int, number: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    walked_to_the_end(Scan(rng), steps=400)


@pytest.mark.parametrize("slice_jobs", [512, 1])
@pytest.mark.walk(1, 80)
def test_a_long_walk_agrees_with_the_log_after_every_step(
    slice_jobs: int, number: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slices stay unfinished: what is due is settled when somebody asks, live and in replay."""
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    small_parts(monkeypatch)
    walked_to_the_end(Scan(rng), steps=120, compared_after=1, restarted_after=50)


def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few keys suffice for several parts of their index."""
    monkeypatch.setattr(keys, "KEYS_UNDIVIDED", 8)
    monkeypatch.setattr(keys, "KEY_PARTS", 4)
    monkeypatch.setattr(keys, "KEY_BYTES_SPARSE", 64)
    monkeypatch.setattr(keys, "LOOK_EVERY", 1)
