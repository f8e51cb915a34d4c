"""Pages of topics, and long work on one; stories.txt has the calls about topics."""

import random

import pytest

from delayd import limits
from delayd import turns as turns_module
from delayd.core.operations.put import put_alike
from delayd.core.policy import FIELDS
from delayd.core.times import RequestMs
from delayd.http.answer_forms import PolicyAnswer
from tests.rigs.http import HttpRig, SliceWatch, request


def test_pages_of_topics_hold_each_of_them_once(rig: HttpRig, rng: random.Random) -> None:
    expected = {f"{rng.choice('abc')}.{number}" for number in range(150)}
    for name in expected:
        rig.engine.store.topic(name).users += 1
    seen: list[str] = []
    path = "/v1/topics?limit=7"
    after = ""
    while True:
        told = rig.ok("GET", path + after)
        seen += [topic["name"] for topic in told["topics"]]
        if told["after"] is None:
            break
        assert len(told["topics"]) == 7
        after = f"&after={told['after']}"
    assert seen == sorted(seen)
    assert {*seen} - {"default"} == expected
    assert len(seen) == len({*seen})


def test_thousands_of_topics_are_gone_through_in_slices() -> None:
    with HttpRig(is_checked=False, slice_now_ns=SliceWatch()) as rig:
        for number in range(4_000):
            rig.engine.store.topic(f"t{number}").users += 1
        before = rig.turns_taken
        told = rig.ok("GET", f"/v1/topics?limit={limits.HTTP_TOPICS_PAGE_MAX}")
        assert len(told["topics"]) == limits.HTTP_TOPICS_PAGE_MAX
        assert (
            rig.turns_taken - before
            >= 4_000 // limits.HTTP_TOPICS_STEP + limits.HTTP_TOPICS_PAGE_MAX
        )


def test_a_policy_is_answered_with_the_fields_that_the_core_knows() -> None:
    assert set(PolicyAnswer.__struct_fields__) == {row.name for row in FIELDS}


@pytest.mark.thorough
def test_others_are_served_while_a_million_are_kicked(monkeypatch: pytest.MonkeyPatch) -> None:
    with HttpRig(is_checked=False) as rig:
        jobs = 20 * limits.TASK_STEP_JOBS
        topic = rig.engine.store.topic("mail")
        topic.users += 1
        put_alike(
            rig.engine, topic, 0, 3_600_000, 1_000, [b"x"] * jobs, RequestMs(rig.clock.now_ms())
        )
        looks = iter(range(0, 10**12, limits.TASK_SLICE_US * 1_000))
        monkeypatch.setattr(turns_module, "monotonic_ns", looks.__next__)
        admin = rig.send("POST", "/v1/topics/mail/jobs/kick", is_settled=False)
        other = rig.send("GET", "/healthz", is_settled=False)
        served = 0
        for _ in range(10_000):
            if admin.answer is not None:
                break
            rig.step()
            if other.answer is not None:
                served += 1
                other.say("GET", request("GET", "/healthz"))
        assert admin.the_answer.json == {"kicked": jobs}
        assert served > 20, "others wait for all of it"
