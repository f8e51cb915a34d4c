"""Copies taken while a walk goes on, and what a start makes of them and of the log behind them.

    copied_on_the_way(walk, steps_max=3)     # copies, compares, goes on, and compares again

Pages can be made small, so that most of them change before the copy comes to them.
"""

import random
from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from delayd.core import job_table, snapshot_copy
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury, release
from delayd.core.operations.change import bury_waiting, reschedule
from delayd.core.operations.reserve import reserve, reserve_job
from delayd.core.operations.sessions import open_session, watch
from delayd.core.operations.tick import advance
from delayd.core.replay import Replay
from delayd.core.session import Session
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.topic import Topic
from delayd.core.views import peek_buried, peek_delayed
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig, kick

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


def life_of(engine: Engine, seed: int) -> Iterator[object]:
    """The same doings on any engine, and what came of each."""
    rng = random.Random(seed)
    now_ms = engine.store.time_ms
    me = open_session(engine)
    for name in ("a", "b", "c"):
        watch(engine, me, name)
    for _ in range(60):
        now_ms = PlayedMs(now_ms + rng.choice((0, 1, 999, 5000, HOUR_MS)))
        while advance(engine, now_ms):
            pass
        topic = engine.store.topics.by_name[rng.choice(("default", "a", "b", "c"))]
        job_id = rng.choice([0, *me.deadlines, *sorted(job for job, _ in engine.store.jobs)])
        try:
            yield doing(engine, me, topic, job_id, rng.randrange(10), RequestMs(now_ms))
        except Refusal as refusal:
            yield type(refusal)
        yield state(engine)


def doing(
    engine: Engine, me: Session, topic: Topic, job_id: int, number: int, now_ms: RequestMs
) -> object:
    doings: tuple[Callable[[], object], ...] = (
        lambda: reserve(engine, me, now_ms),
        lambda: reserve(engine, me, now_ms),
        lambda: kick(engine, topic, 2, now_ms),
        lambda: bury(engine, me, job_id, 7, RequestMs(engine.store.time_ms)),
        lambda: release(engine, me, job_id, 3, 900, now_ms),
        lambda: delete(engine, me, job_id, now_ms),
        lambda: reserve_job(engine, me, job_id, now_ms),
        lambda: reschedule(engine, job_id, 2_000, now_ms),
        lambda: bury_waiting(engine, job_id, now_ms),
        lambda: views.view_job(engine, job_id, now_ms),
    )
    seen = peek_delayed(engine, topic), peek_buried(engine, topic)
    return seen, doings[number]()


def copied_on_the_way(walk: Walk, steps_max: int) -> tuple[Engine, Engine]:
    """Take a copy with steps between its slices; it is the state that it began with.

    What it and the log behind it lead to is the state of now; return it, and that of the log.
    """
    rig = walk.rig
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
    of_log = rig.replayed()
    assert state(of_tail) == state(of_log) == state(rig.engine)
    return of_tail, of_log


def copied_and_lived(walk: Walk, steps_max: int) -> None:
    """Take such a copy; what it leads to has the same life before it as what the log leads to."""
    of_tail, of_log = copied_on_the_way(walk, steps_max)
    seed = walk.rng.randrange(1 << 30)
    assert list(life_of(of_tail, seed)) == list(life_of(of_log, seed))
