"""How much a reserve hands out, and how long it takes; stories.txt tells who gets what."""

import pytest

from delayd.core.operations.put import put_alike
from delayd.core.times import RequestMs
from delayd.limits import (
    BODY_BYTES_DEFAULT,
    HTTP_FREE_BYTES,
    HTTP_LOOK_ITEMS,
    HTTP_RESERVED_BYTES_MAX,
)
from tests.rigs.clock import FakeClock
from tests.rigs.http import JOBS, RESERVE, HttpRig, SliceWatch, put, wait


def put_bodies(rig: HttpRig, topic: str, *bodies: bytes) -> None:
    now_ms = RequestMs(rig.clock.now_ms())
    put_alike(rig.engine, rig.engine.store.topic(topic), 0, 0, 60_000, bodies, now_ms)


@pytest.mark.thorough
def test_no_more_bodies_are_handed_out_than_an_answer_should_hold_and_one_however_long() -> None:
    with HttpRig(is_checked=False) as rig:
        for name in ("mail", "sms"):
            put_bodies(rig, name, *[b"x" * BODY_BYTES_DEFAULT] * 100)
        expected = HTTP_RESERVED_BYTES_MAX // BODY_BYTES_DEFAULT + 1
        assert len(rig.ok("POST", RESERVE, {"max": 100})["jobs"]) == expected
        both = {"topics": ["mail", "sms"], "max": 100}
        assert len(rig.ok("POST", "/v1/reserve", both)["jobs"]) == expected
        rig.engine.body_bytes_max = 2 * HTTP_RESERVED_BYTES_MAX
        put_bodies(rig, "fax", *[b"x" * (HTTP_RESERVED_BYTES_MAX + 1)] * 2)
        assert len(rig.ok("POST", "/v1/topics/fax/reserve", {"max": 2})["jobs"]) == 1


def test_a_worker_that_waits_gets_its_job_in_the_turn_in_which_it_comes_due(rig: HttpRig) -> None:
    put(rig, delay=5)
    waiting = wait(rig)
    rig.pass_ms(5_000)
    before = rig.turns_taken
    rig.pass_ms(1)
    assert rig.turns_taken - before <= 3, "one for the job, one for the answer, one to sleep"
    assert waiting.the_answer.status == 200


@pytest.mark.parametrize("goes", [False, True])
def test_a_long_answer_is_written_in_slices_with_turns_of_others_between(
    rig: HttpRig, goes: bool
) -> None:
    """Of 40 jobs each second one's ttr runs out meanwhile; or the client goes."""
    for number in range(40):
        put(rig, body=[number, "x" * HTTP_FREE_BYTES], ttr=10 if number % 2 else 60)
    rig.api.loop_time.now_ns = SliceWatch()
    worker = rig.send("POST", RESERVE, {"max": 40}, is_settled=False)
    for others, _ in enumerate(rig.meanwhile(worker), 1):
        if others == 5 and goes:
            break
        if others == 5:
            assert isinstance(rig.clock, FakeClock)
            rig.clock.advance(10_001)
    if goes:
        assert len(rig.engine.store.leases.sessions) == 40
        worker.hang_up()
        rig.settle()
        jobs = rig.ok("POST", RESERVE, {"max": 40})["jobs"]
        assert [(job["body"][0], job["attempt"]) for job in jobs] == [(n, 1) for n in range(40)]
        return
    assert others > 8
    bodies = [job["body"][0] for job in worker.the_answer.json["jobs"]]
    assert len(bodies) < 40, "not those whose ttr ran out meanwhile"
    assert {number for number in range(40) if not number % 2} <= {*bodies}


def test_short_jobs_are_written_some_at_a_time(rig: HttpRig) -> None:
    jobs = 4 * HTTP_LOOK_ITEMS
    rig.ok("POST", JOBS, {"jobs": [{"body": 1}] * jobs})
    rig.api.loop_time.now_ns = SliceWatch()
    before = rig.turns_taken
    assert len(rig.ok("POST", RESERVE, {"max": jobs})["jobs"]) == jobs
    assert 8 <= rig.turns_taken - before < 16, "of others, after each 32 jobs"
