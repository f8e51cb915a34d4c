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

# weight, operation, what it takes
OPERATIONS: Final = (
    (8, "put", "who priority delay_ms ttr_ms body"),
    (4, "put_alike", "who priority delay_ms ttr_ms several"),
    (2, "put_by_name", "name priority delay_ms ttr_ms body"),
    (16, "put_keyed", "name key on priority delay_ms at_ms ttr_ms body"),
    (4, "put_keyed_run", "name pairs priority delay_ms ttr_ms"),
    (8, "change", "which given delay_ms at_ms priority ttr_ms body"),
    (12, "reserve", "who wait_ms"),
    (2, "reserve_batch", "who jobs_max bytes_max"),
    (3, "reserve_job", "who which"),
    (2, "cancel_wait", "who"),
    (6, "release", "who which priority delay_ms"),
    (5, "bury", "who which priority"),
    (3, "bury_waiting", "which priority"),
    (4, "touch", "who which"),
    (3, "delete", "who which"),
    (5, "kick_job", "which"),
    (2, "kick", "who bound"),
    (4, "reschedule", "which delay_ms"),
    (2, "pause", "name pause_ms"),
    (3, "look_at_a_job", "which"),
    (4, "use_watch_ignore", "who name verb"),
    (2, "close_session", "who"),
    (6, "one_slice_of_time", "step_ms"),
    (4, "time_passes", "step_ms"),
    (4, "sleep_until_the_deadline", "short_by_ms"),
)
WITHOUT_IDLE_CLIENT: Final = (
    *(
        "put_by_name",
        "put_keyed",
        "put_keyed_run",
        "change",
        "cancel_wait",
        "kick_job",
        "bury_waiting",
        "reschedule",
        "pause",
    ),
    *("look_at_a_job", "close_session", "one_slice_of_time", "time_passes"),
    "sleep_until_the_deadline",
)


class Scan:
    machine_type = EngineMachine
    operations: tuple[tuple[int, str, str], ...] = OPERATIONS

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.samples = dict(SAMPLES)
        self.crowd = rng.choice((3, 30))
        """Where there are few jobs, many wait for them."""
        self.machine = self.machine_type()
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
            weights = [row[0] for row in self.operations]
            _, operation, takes = rng.choices(self.operations, weights)[0]
            if machine.idle() or operation in WITHOUT_IDLE_CLIENT:
                what = {name: self.samples[name](rng) for name in takes.split()}
                if operation == "delete":
                    what["which"] = [what["which"]]
                getattr(machine, operation)(**what)
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
