"""Long seeded walks of `test_engine_model`: crowded states that short runs never come to see.

Hypothesis finds short examples, and starts from nothing each time. These walks keep a few dozen
jobs and clients busy for a thousand steps, with delays, holds and steps of time of like length, so
that things happen to the same job at the same moment.
"""

import random
from collections.abc import Callable
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


SAMPLES: Final[dict[str, Callable[[random.Random], Any]]] = {
    "who": lambda rng: rng.randrange(1000),
    "which": lambda rng: rng.randrange(10_000),
    "name": lambda rng: rng.choice(TOPICS),
    "verb": lambda rng: rng.choice(("use", "watch", "watch", "ignore")),
    "priority": lambda rng: rng.choice((0, 5, 5, 1023, 1024)),
    "delay_ms": lambda rng: rng.choice((0, 0, rng.choice(TIMES_MS), RARE)),
    "pause_ms": lambda rng: rng.choice((0, *TIMES_MS)),
    "ttr_ms": lambda rng: rng.choice((*TIMES_MS, RARE)),
    "wait_ms": lambda rng: rng.choice((None, *TIMES_MS)),
    "step_ms": lambda rng: rng.choice((1, *TIMES_MS)),
    "short_by_ms": lambda rng: rng.randrange(2),
    "body": lambda rng: b"x" * rng.randrange(12),
    "several": lambda rng: [b"x" * rng.randrange(4) for _ in range(rng.randrange(1, 4))],
    "jobs_max": lambda rng: rng.randrange(4),
    "bytes_max": lambda rng: rng.randrange(20),
    "bound": lambda rng: rng.randrange(4),
    "budget": lambda rng: rng.choice((0, 1, 5)),
    "key": lambda rng: rng.choice(KEYS),
    "on": lambda rng: rng.choice(list(Conflict)),
    "given": lambda rng: rng.randrange(16),
    "at_ms": lambda rng: rng.choice((None, None, 0, 1, 999, 2500)),
    "pairs": lambda rng: [some_pair(rng) for _ in range(rng.randrange(1, 4))],
}

WEIGHTS: Final = {
    # How likely each rule of the machine is
    "put_keyed": 16,
    "reserve": 12,
    "put": 10,
    **dict.fromkeys(("change", "sweep"), 8),
    **dict.fromkeys(("release", "one_slice_of_time"), 6),
    **dict.fromkeys(("bury", "kick_job"), 5),
    **dict.fromkeys(("put_alike", "put_keyed_run", "touch", "reschedule", "use_watch_ignore"), 4),
    **dict.fromkeys(("time_passes", "sleep_until_the_deadline"), 4),
    **dict.fromkeys(("reserve_job", "bury_waiting", "delete", "clear", "look_at_a_job"), 3),
    **dict.fromkeys(("reserve_batch", "cancel_wait", "kick", "pause", "close_session"), 2),
}


class Scan:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.crowd = rng.choice((3, 30))
        """Where there are few jobs, many wait for them."""
        self.machine = EngineMachine()
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

    def settle(self) -> None:
        """Sweep away what was cleared: a copy may begin."""
        self.machine.sweep_all()

    def step(self) -> None:
        machine, rng = self.machine, self.rng
        while len(machine.sessions) < 4:
            machine.open_session()
        if len(machine.model.jobs) > self.crowd and machine.idle():
            machine.delete(rng.randrange(1000), [rng.randrange(10_000) for _ in range(3)])
        else:
            rule = self.rules[rng.choices([*WEIGHTS], [*WEIGHTS.values()])[0]]
            if all(is_possible(machine) for is_possible in rule.preconditions):
                what = {name: SAMPLES[name](rng) for name in rule.arguments}
                if rule.function.__name__ == "delete":
                    what["which"] = [what["which"]]
                rule.function(machine, **what)
        machine.agree_in_all_that_can_be_seen()


@pytest.mark.parametrize(
    ("slice_jobs", "steps", "compared_after", "restarted_after"),
    # At times slices stay unfinished, and what is due is settled when somebody asks.
    [(512, 400, 20, 200), (1, 400, 20, 200), (3, 400, 20, 200), (512, 120, 1, 50), (1, 120, 1, 50)],
)
@pytest.mark.walk(1, 80)
def test_a_long_walk_agrees_with_the_model_and_with_the_log_all_the_way(
    slice_jobs: int, steps: int, compared_after: int, restarted_after: int, number: int,
    rng: random.Random, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    # Let a few keys suffice for several parts of their index.
    monkeypatch.setattr(keys, "KEYS_UNDIVIDED", 8)
    monkeypatch.setattr(keys, "KEY_PARTS", 4)
    monkeypatch.setattr(keys, "KEY_BYTES_SPARSE", 64)
    monkeypatch.setattr(keys, "LOOK_EVERY", 1)
    walk = Scan(rng)
    for step in range(1, steps + 1):
        walk.step()
        if step % compared_after == 0:
            walk.machine.the_log_alone_leads_to_the_same_state()
        if step % restarted_after == 0:
            walk.machine.restart(chance=0)
    walk.machine.teardown()
