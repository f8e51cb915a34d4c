"""Copies taken while a walk goes on, and what a start makes of them and of the log behind them.

    copied_on_the_way(walk, steps_max=3)     # copies, compares, goes on, and compares again

Pages can be made small, so that most of them change before the copy comes to them.
"""

import random
from typing import Protocol

import pytest

from delayd.core import job_table, snapshot_copy
from delayd.core.engine import Engine
from delayd.core.replay import Replay
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.times import PlayedMs
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig

HOUR_MS = 3_600_000
WHOLE = 1 << 40


def whole(engine: Engine) -> bytes:
    """A copy taken in one slice."""
    return SnapshotCopy(engine.store).take(WHOLE, WHOLE)


def state(engine: Engine) -> list[object]:
    """What a copy keeps: ids that were taken and came to nothing are no part of it."""
    return [("last id", engine.store.last_put_id), *list(canonical(engine))[1:]]


def restored(rig: EngineRig, time_ms: int, *payloads: bytes, now_ms: int | None = None) -> Engine:
    """What a start at `now_ms` makes of a copy that began at `time_ms` and the log behind it."""
    rig.start_ms, kept_ms = time_ms, rig.start_ms
    replay = Replay(rig.new_engine())
    rig.start_ms = kept_ms
    for payload in payloads:
        replay.play(payload)
    replay.finish(PlayedMs(time_ms if now_ms is None else now_ms))
    check(replay.engine)
    return replay.engine


def small_pages(monkeypatch: pytest.MonkeyPatch, bits: int) -> None:
    monkeypatch.setattr(job_table, "PAGE_BITS", bits)
    monkeypatch.setattr(job_table, "PAGE_MASK", (1 << bits) - 1)
    monkeypatch.setattr(job_table, "_PAGE_JOBS", 1 << bits)
    monkeypatch.setattr(snapshot_copy, "PAGE_BITS", bits)


class Walk(Protocol):
    """What goes on while a copy is taken."""

    rng: random.Random

    @property
    def rig(self) -> EngineRig: ...

    def step(self) -> None: ...

    def settle(self) -> None: ...


def taken_while(walk: Walk, steps_max: int) -> bytes:
    """A copy of what is there now, with steps of the walk between its slices."""
    rng = walk.rng
    copy = SnapshotCopy(walk.rig.engine.store)
    pieces = []
    while not copy.is_over:
        for _ in range(rng.randrange(steps_max + 1)):
            walk.step()
        pieces.append(copy.take(rng.choice((1, 2, 7)), rng.choice((1, 60, WHOLE))))
    return b"".join(pieces)


def copied_on_the_way(walk: Walk, steps_max: int) -> None:
    """Take a copy with steps between its slices; it is the state that it began with.

    What it and the log behind it lead to is the state of now.
    """
    rig = walk.rig
    walk.settle()
    rig.take_log()
    time_ms, frames = rig.time_ms, len(rig.log)
    expected, at_once = state(rig.engine), whole(rig.engine)
    copied = taken_while(walk, steps_max)
    assert copied == at_once
    engine = restored(rig, time_ms, copied)
    assert state(engine) == expected
    assert whole(restored(rig, time_ms, whole(engine))) == whole(engine)
    for _ in range(walk.rng.randrange(20)):
        walk.step()
    rig.take_log()
    of_tail = restored(rig, time_ms, copied, *rig.log[frames:], now_ms=rig.time_ms)
    assert state(of_tail) == state(rig.replayed()) == state(rig.engine)
