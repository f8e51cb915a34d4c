"""Clients that watch many topics: the work that it takes, and the same jobs for less of it."""

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from delayd.core.operations.reserve import reserve_batch
from delayd.core.ready_queue import ReadyQueue
from delayd.core.session import Session
from delayd.core.sorted_keys import SortedKeys
from delayd.limits import TOPICS_WATCHED_MAX
from tests.core.check import check
from tests.rigs.engine import EngineRig

LOOKS = pytest.mark.compiled_skip("compiled functions have no frames")


def wide_client(rig: EngineRig, topics: int = TOPICS_WATCHED_MAX - 1) -> Session:
    return rig.client(*(f"t{number}" for number in range(topics)))


def looks_at_queues(action: Callable[[], object]) -> int:
    """How often the action asks whether a topic has ready jobs, or which is the first."""
    asking = {ReadyQueue.__len__.__code__, SortedKeys.first.__code__}
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


@LOOKS
def test_a_reserve_looks_only_at_watched_topics_that_have_ready_jobs(rig: EngineRig) -> None:
    me = wide_client(rig)
    for number in range(100):
        rig.put(f"other{number}")
    assert looks_at_queues(lambda: rig.reserve(me)) == 0
    for name in ("t900", "t3", "t500"):
        rig.put(name)
    assert 0 < looks_at_queues(lambda: [rig.reserve(me) for _ in range(4)]) < 30
    assert sorted(me.deadlines) == [101, 102, 103]
    assert looks_at_queues(lambda: rig.reserve(me)) == 0


@LOOKS
def test_a_batch_looks_at_each_topic_once_and_then_at_those_that_it_takes_from(
    rig: EngineRig,
) -> None:
    me = wide_client(rig, 500)
    for number in range(500):
        rig.put(f"t{number}", priority=number % 7)
        rig.put(f"t{number}", priority=number % 5)
    assert 0 < looks_at_queues(lambda: rig.reserve_all(me)) < 8 * 1_000
    assert len(me.deadlines) == 1_000
    check(rig.engine)


@pytest.mark.parametrize("watched", [["default"], ["default", "other"]])
def test_a_batch_for_which_no_space_is_left_has_no_jobs(rig: EngineRig, watched: list[str]) -> None:
    rig.put()
    assert reserve_batch(rig.engine, rig.client(*watched), 5, -1, rig.now_ms) == []
