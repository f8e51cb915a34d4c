"""A key is looked for in all topics, a slice at a time, whatever happens meanwhile."""

import random

import pytest

from delayd.core.names import SCHEDULES_TOPIC
from delayd.core.operations.ack import delete_batch
from delayd.core.operations.checks import as_daemon
from delayd.core.scans.find import KeySearch
from delayd.core.session import Session
from delayd.limits import TASK_STEP_JOBS
from tests.rigs.engine import EngineRig

TOPICS = 3 * TASK_STEP_JOBS


def rig_with(topics: int) -> EngineRig:
    """An engine with so many topics, in each of which a job has the key k."""
    rig = EngineRig()
    for number in range(topics):
        rig.put_keyed(b"k", topic=f"t{number}")
    return rig


def names_of(search: KeySearch) -> list[str]:
    return [name for name, _ in search.found]


@pytest.mark.parametrize(("cost", "at_once"), [(1, TASK_STEP_JOBS), (TASK_STEP_JOBS // 2, 2)])
def test_each_step_looks_at_so_many_topics(cost: int, at_once: int) -> None:
    rig = rig_with(TOPICS)
    search = KeySearch(rig.engine, b"other", bool, cost=cost)
    steps = 0
    while not search.step(TASK_STEP_JOBS, rig.now_ms):
        steps += 1
    assert steps == 1 + (TOPICS + 1) // at_once  # the default one too


def test_pages_put_together_are_all_topics_by_name() -> None:
    rig = rig_with(TOPICS)
    with as_daemon(rig.engine):
        rig.put_keyed(b"k", topic=SCHEDULES_TOPIC)  # nobody looks for it
    names, after = [], ""
    while True:
        search = KeySearch(rig.engine, b"k", lambda name: name != "t7", 100, after)
        while not search.step(TASK_STEP_JOBS, rig.now_ms):
            pass
        assert len(search.found) <= 100
        names += names_of(search)
        if search.after is None:
            break
        after = search.after
    assert names == sorted({f"t{number}" for number in range(TOPICS)} - {"t7"})


def test_jobs_that_go_meanwhile_are_not_shown(rng: random.Random) -> None:
    rig = rig_with(TOPICS)
    search = KeySearch(rig.engine, b"k", bool)
    gone = set()
    while not search.step(TASK_STEP_JOBS, rig.now_ms):
        for job_id in rng.sample(range(1, TOPICS + 1), 5):
            if delete_batch(rig.engine, Session(), [job_id], rig.now_ms)[0]:
                gone.add(job_id)
    found = {row.job_id for _, row in search.found}
    assert {*range(1, TOPICS + 1)} - gone <= found
    assert len(found & gone) < len(gone)
