"""No step of background work takes long, whatever it goes through: jobs are counted, not time."""

from collections.abc import Callable

import pytest

from delayd.core.background_tasks import BackgroundTask, BackgroundTasks, Work
from delayd.core.engine import Engine
from delayd.core.job_record import State
from delayd.core.job_table import PAGE_BITS
from delayd.core.operations.topics import Clear
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.kick import Kick
from delayd.core.scans.list import Calendar, Cursor, Search
from delayd.core.scans.scan import Wanted
from delayd.limits import (
    ADVANCE_SLICE_JOBS,
    PASS_ACTION_COST,
    PASS_BUCKET_COST,
    SWEEP_CHUNK_ENTRIES,
    TASK_STEP_JOBS,
)
from tests.rigs.engine import CountingPages, EngineRig

WEEK_MS = 7 * 86_400_000
JOBS = 800
PAGE_JOBS = 1 << PAGE_BITS


def crowded(delay_ms: int) -> tuple[EngineRig, CountingPages]:
    """Many jobs of one bucket each way: delayed for as long, ready, reserved, buried."""
    rig = EngineRig()
    pages = rig.engine.store.jobs._pages = CountingPages()
    me = rig.client()
    rig.put_many(2 * JOBS, ttr_ms=1_000)
    for _ in range(JOBS):
        rig.bury(me, rig.reserve(me))
        rig.reserve(me)
    for number in range(2 * JOBS):
        rig.put(delay_ms=delay_ms + number % 2 * number, ttr_ms=1_000)
    return rig, pages


MAKERS: dict[str, Callable[[Engine], Work]] = {
    "list": lambda engine: Search(engine, "default", Wanted()),
    "list_on": lambda engine: Search(engine, "default", Wanted(), 10, Cursor(WEEK_MS, 0)),
    "list_held": lambda engine: Search(engine, "default", Wanted(frozenset({State.RESERVED}))),
    "calendar": lambda engine: Calendar(engine, "default", from_ms=0, bin_ms=WEEK_MS, bins=9),
    "dry_run": lambda engine: Bulk(engine, "default", Wanted(), Action.cancel(), dry_run=True),
    "cancel": lambda engine: Bulk(engine, "default", Wanted(), Action.cancel()),
    "kick": lambda engine: Bulk(engine, "default", Wanted(), Action.kick(per_s=10)),
    "kick_topic": lambda engine: Kick(engine, engine.store.topic("default"), JOBS),
    "reschedule": lambda engine: Bulk(engine, "default", Wanted(), Action.reschedule(9_000)),
    "clear": lambda engine: Clear(engine, "default"),
}
ACTIONS = ("cancel", "kick", "kick_topic", "reschedule")


@pytest.mark.thorough
@pytest.mark.parametrize("delay_ms", [5, WEEK_MS])
@pytest.mark.parametrize("name", MAKERS)
def test_a_step_looks_at_no_more_jobs_than_it_may(name: str, delay_ms: int) -> None:
    rig, pages = crowded(delay_ms)
    rig.advance(1_000)  # whatever is due has not come, but for one slice
    tasks = BackgroundTasks(rig.engine)
    tasks.add(BackgroundTask(MAKERS[name](rig.engine), lambda _refusal, _now_ms: None))
    # Reservations that are over are settled first, with several looks for each.
    most = max(4 * ADVANCE_SLICE_JOBS, TASK_STEP_JOBS + PAGE_JOBS)
    if name in ACTIONS:
        # An operation looks at its job a few times, and may bring about a step of a sweep.
        most = TASK_STEP_JOBS + 4 * TASK_STEP_JOBS // PASS_ACTION_COST + SWEEP_CHUNK_ENTRIES
    steps = 0
    while tasks.has_more:
        before = pages.looks
        tasks.step(rig.now_ms)
        assert pages.looks - before <= most
        steps += 1
    assert steps > JOBS // TASK_STEP_JOBS


def test_going_from_one_bucket_to_the_next_is_paid_for(rig: EngineRig) -> None:
    for number in range(1_000):
        rig.put(delay_ms=1 + 300 * number)
    wheel = rig.topic().queues.delays.wheel
    buckets = len(wheel.layout())
    assert buckets > 100
    search = Search(rig.engine, "default", Wanted(from_ms=WEEK_MS))
    steps = 1
    while not search.step(TASK_STEP_JOBS, rig.now_ms):
        steps += 1
    assert steps >= buckets * PASS_BUCKET_COST // TASK_STEP_JOBS
