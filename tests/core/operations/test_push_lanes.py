"""What lanes leave behind and what they cost. Which jobs they hand out: tests/core/lanes.txt."""

from itertools import pairwise
from typing import Final

import pytest

from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.policy import Policy
from delayd.core.targets import Target, pack_own
from tests.core.check import check
from tests.rigs.engine import EngineRig

A: Final = pack_own("POST", "https://a.example/x", ())
B: Final = pack_own("POST", "https://b.example:8443/", ())


def calls(rig: EngineRig) -> list[int]:
    """Ask all lanes that are heard of until nothing is there."""
    pushes = rig.client()
    job_ids = []
    for lane in take_fresh(rig.engine):
        while job := reserve_call(rig.engine, pushes, lane, 9, rig.now_ms):
            job_ids.append(job[0])
    return job_ids


@pytest.fixture(params=[A, b""], ids=["own", "topic"])
def target(request: pytest.FixtureRequest, rig: EngineRig) -> bytes:
    """The target of the jobs of `mail`, which has one if they have none."""
    rig.engine.vet_target = lambda target: target
    rig.set_policy("mail", Policy(push=None if request.param else Target(sink="orders")))
    return bytes(request.param)


def test_a_cleared_topic_is_swept_in_small_steps(rig: EngineRig, target: bytes) -> None:
    rig.put_many(200, "mail", target=target)
    rig.put_many(200, "mail", target=target and B)
    lanes = rig.topic("mail").queues.ready.lanes
    rig.clear("mail")
    check(rig.engine)
    left = [400]
    while rig.engine.store.cleared.left:
        rig.engine.store.cleared.sweep(100)
        left.append(len(rig.engine.store.jobs) if lanes is None else sum(map(len, lanes.values())))
    assert left[-1] == 0
    assert max(a - b for a, b in pairwise(left)) <= 1 + 100 // 8
    rig.agree_with_the_log()


def test_nothing_is_left_of_a_topic_that_vanished(rig: EngineRig) -> None:
    lanes = rig.engine.store.push_lanes
    for is_paused in (False, True, False, True):
        job_id = rig.put("gone", target=A)
        if is_paused:
            rig.pause("gone", 5_000)
            assert calls(rig) == []
        rig.delete(rig.client(), job_id)
        assert "gone" not in rig.engine.store.topics.by_name
        assert (lanes.fresh, lanes.heard, lanes.resting) == ({}, set(), {})
