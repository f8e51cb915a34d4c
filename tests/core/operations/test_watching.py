"""Clients that watch many topics: the work that it takes, and the same jobs for less of it."""

import random
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType

from sortedcontainers import SortedList

from delayd.core.session import Session
from delayd.limits import TOPICS_WATCHED_MAX
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


def test_a_reserve_looks_only_at_watched_topics_that_have_ready_jobs(rig: EngineRig) -> None:
    me = wide_client(rig)
    for number in range(100):
        rig.put(f"other{number}")
    assert looks_at_queues(lambda: rig.reserve(me)) == 0
    for name in ("t900", "t3", "t500"):
        rig.put(name)
    assert looks_at_queues(lambda: [rig.reserve(me) for _ in range(4)]) < 30
    assert sorted(me.deadlines) == [101, 102, 103]
    assert looks_at_queues(lambda: rig.reserve(me)) == 0


def test_a_batch_looks_at_each_topic_once_and_then_at_those_that_it_takes_from(
    rig: EngineRig,
) -> None:
    me = wide_client(rig, 500)
    for number in range(500):
        rig.put(f"t{number}", priority=number % 7)
        rig.put(f"t{number}", priority=number % 5)
    assert looks_at_queues(lambda: rig.reserve_all(me)) < 8 * 1_000
    assert len(me.deadlines) == 1_000
    check(rig.engine)


def test_a_batch_of_many_topics_is_what_as_many_reserves_are() -> None:
    rng = random.Random(11)
    for _ in range(20):
        rigs = one_by_one, at_once = EngineRig(), EngineRig()
        puts = [(f"t{rng.randrange(6)}", rng.randrange(3)) for _ in range(40)]
        clients = [wide_client(rig, 6) for rig in rigs]
        for rig in rigs:
            for name, priority in puts:
                rig.put(name, priority=priority)
            rig.pause(puts[0][0], 5_000)
        jobs = [*iter(partial(one_by_one.reserve, clients[0]), 0)]
        assert at_once.reserve_all(clients[1]) == jobs
        check(at_once.engine)


def test_a_topic_that_vanishes_after_its_last_job_is_forgotten(rig: EngineRig) -> None:
    me = rig.client("t")
    rig.put("t")
    rig.delete(me, rig.reserve(me))
    stocked = rig.engine.store.ready_topics.stocked
    assert stocked, "its client watches nothing else, and has not looked"
    rig.close(me)
    assert not rig.engine.store.ready_topics.stocked
    check(rig.engine)
