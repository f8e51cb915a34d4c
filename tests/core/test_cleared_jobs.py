"""What a clear leaves: the old queues under the old number, until the sweep is through."""

import pytest

from delayd.core.background_tasks import BackgroundTasks
from delayd.core.operations.topics import clear
from tests.core.check import check
from tests.rigs.engine import EngineRig


def cleared_rig(jobs: int = 3) -> EngineRig:
    """A topic that has been cleared of so many jobs, none of them swept."""
    rig = EngineRig()
    for _ in range(jobs):
        rig.put("mail", delay_ms=50)
    clear(rig.engine, rig.engine.store.topics.by_name["mail"])
    check(rig.engine)
    return rig


def test_cleared_jobs_keep_the_number_and_the_queues_that_the_topic_loses(rig: EngineRig) -> None:
    rig.put("mail", delay_ms=50)
    topic = rig.engine.store.topics.by_name["mail"]
    number, queues = topic.number, topic.queues
    clear(rig.engine, topic)
    (cleared,) = rig.engine.store.cleared.left
    assert cleared.number == number != topic.number
    assert cleared.queues is queues is not topic.queues
    assert cleared.topic is topic


def test_the_old_number_leads_to_the_topic_until_all_are_swept() -> None:
    rig = cleared_rig()
    store = rig.engine.store
    (cleared,) = store.cleared.left
    assert store.topics.by_number[cleared.number] is cleared.topic
    tasks = BackgroundTasks(rig.engine)
    while tasks.has_more:
        tasks.step(rig.now_ms, budget=1)
        check(rig.engine)
    assert not store.cleared.left
    assert cleared.number not in store.topics.by_number
    assert len(store.jobs) == 0


def test_check_finds_cleared_jobs_that_are_lost() -> None:
    rig = cleared_rig()
    rig.engine.store.cleared.left.clear()
    with pytest.raises(AssertionError):
        check(rig.engine)


def test_check_finds_cleared_jobs_under_another_number() -> None:
    rig = cleared_rig()
    left = rig.engine.store.cleared.left
    left[0] = left[0]._replace(number=left[0].number + 100)
    with pytest.raises(AssertionError):
        check(rig.engine)
