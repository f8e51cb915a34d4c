"""Clients that watch many topics: the limit, the order of the list, and the work that it takes."""

import random
import sys
from collections.abc import Callable
from types import FrameType

import pytest
from sortedcontainers import SortedList

from delayd.core.errors import TooManyWatched
from delayd.core.operations.ack import delete
from delayd.core.operations.sessions import close_session, ignore, watch
from delayd.core.operations.topics import pause
from delayd.core.session import Session
from delayd.limits import TOPICS_WATCHED_MAX
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig


def wide_client(rig: EngineRig, topics: int = TOPICS_WATCHED_MAX - 1) -> Session:
    return rig.client(*(f"t{number}" for number in range(topics)))


def looks_at_queues(action: Callable[[], object]) -> int:
    """How often the action asks whether a topic has ready jobs, or which is the first."""
    asking = {SortedList.__len__.__code__, SortedList.__getitem__.__code__}
    looks = 0

    def count(frame: FrameType, event: str, _arg: object) -> None:
        nonlocal looks
        looks += event == "call" and frame.f_code in asking

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return looks


def names(session: Session) -> list[str]:
    return [topic.name for topic in session.watched]


def test_a_watch_above_the_limit_is_refused_and_changes_nothing() -> None:
    rig = EngineRig()
    me = wide_client(rig)
    watch(rig.engine, me, "the-last")
    before = [*canonical(rig.engine)], names(me)
    with pytest.raises(TooManyWatched, match="'one-more' would be one more than the 1000"):
        watch(rig.engine, me, "one-more")
    assert ([*canonical(rig.engine)], names(me)) == before
    assert "one-more" not in rig.engine.store.topics.by_name
    watch(rig.engine, me, "t7")
    assert names(me) == before[1]
    ignore(rig.engine, me, "t7")
    watch(rig.engine, me, "one-more")
    assert names(me)[-1] == "one-more"
    check(rig.engine)


def test_a_reserve_looks_only_at_topics_that_have_ready_jobs() -> None:
    rig = EngineRig()
    me = wide_client(rig)
    assert looks_at_queues(lambda: rig.reserve(me)) == 0
    for name in ("t900", "t3", "t500"):
        rig.put(name)
    assert looks_at_queues(lambda: [rig.reserve(me) for _ in range(4)]) < 30
    assert sorted(me.deadlines) == [1, 2, 3]
    assert looks_at_queues(lambda: rig.reserve(me)) == 0


def test_a_batch_looks_at_each_topic_once_and_then_at_those_that_it_takes_from() -> None:
    rig = EngineRig()
    me = wide_client(rig, 500)
    for number in range(500):
        rig.put(f"t{number}", priority=number % 7)
        rig.put(f"t{number}", priority=number % 5)
    looks = looks_at_queues(lambda: rig.reserve_all(me))
    assert len(me.deadlines) == 1_000
    assert looks < 8 * 1_000
    check(rig.engine)


def test_a_batch_of_many_topics_is_what_as_many_reserves_are() -> None:
    rng = random.Random(11)
    for _ in range(20):
        rigs = EngineRig(), EngineRig()
        puts = [(f"t{rng.randrange(6)}", rng.randrange(3)) for _ in range(40)]
        clients = [wide_client(rig, 6) for rig in rigs]
        for rig in rigs:
            for name, priority in puts:
                rig.put(name, priority=priority)
            pause(rig.engine, puts[0][0], 5_000, rig.now_ms)
        one_by_one, at_once = rigs
        jobs = []
        while job_id := one_by_one.reserve(clients[0]):
            jobs.append(job_id)
        assert at_once.reserve_all(clients[1]) == jobs
        check(at_once.engine)


def test_topics_of_others_with_ready_jobs_are_not_looked_at() -> None:
    rig = EngineRig()
    me = wide_client(rig, 20)
    for number in range(100):
        rig.put(f"other{number}")
    assert looks_at_queues(lambda: rig.reserve(me)) == 0


def test_a_topic_that_vanishes_after_its_last_job_is_forgotten() -> None:
    rig = EngineRig()
    me = rig.client("t")
    rig.put("t")
    delete(rig.engine, me, rig.reserve(me), rig.now_ms)
    assert rig.engine.store.ready_topics.stocked, (
        "its client watches nothing else, and has not looked"
    )
    close_session(rig.engine, me, rig.now_ms)
    assert not rig.engine.store.ready_topics.stocked
    check(rig.engine)
