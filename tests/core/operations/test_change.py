"""Changes of jobs that wait: another time, priority, ttr or body, all or nothing."""

import pytest

from delayd.core.errors import BodyTooBig, JobNotFound, Refusal, ValueOutOfRange
from delayd.core.job import State, tally_of
from delayd.core.operations.change import change
from delayd.core.operations.finish import bury
from delayd.core.operations.put import find_key
from delayd.core.records import Kind
from delayd.core.views import peek_buried
from tests.core import views
from tests.core.canonical import canonical
from tests.core.operations.test_put_keyed import (
    KEY,
    WAITING,
    agree_with_the_log,
    body_of,
    job_in,
    put,
    record_of,
    state_of,
)
from tests.core.rig import EngineRig, kinds_of


@pytest.mark.parametrize("state", WAITING)
@pytest.mark.parametrize("has_body", [False, True])
def test_everything_about_a_waiting_job_is_changed_by_one_record(
    state: State, has_body: bool
) -> None:
    rig, _ = job_in(state)
    body = b"changed" if has_body else None
    change(rig.engine, 1, rig.now_ms, body=body, delay_ms=4_000, priority=77, ttr_ms=5_000)
    seen = views.view_job(rig.engine, 1, rig.now_ms)
    assert (seen.state, seen.left_ms, seen.delay_ms) == (State.DELAYED, 4_000, 4_000)
    assert (seen.priority, seen.ttr_ms, body_of(rig, 1)) == (77, 5_000, body or b"old")
    assert kinds_of(rig.take_log()[0]) == [Kind.REWRITE if has_body else Kind.AMEND]
    assert find_key(rig.engine, "default", KEY) == 1
    agree_with_the_log(rig)


@pytest.mark.parametrize("state", WAITING)
def test_what_is_not_given_stays(state: State) -> None:
    rig, _ = job_in(state)
    change(rig.engine, 1, rig.now_ms)
    before = views.view_job(rig.engine, 1, rig.now_ms)
    assert before.state is state
    change(rig.engine, 1, rig.now_ms, priority=3)
    assert views.view_job(rig.engine, 1, rig.now_ms) == before._replace(priority=3)
    change(rig.engine, 1, rig.now_ms, body=b"other")
    assert views.view_job(rig.engine, 1, rig.now_ms) == before._replace(priority=3)
    change(rig.engine, 1, rig.now_ms, ttr_ms=0)
    assert views.view_job(rig.engine, 1, rig.now_ms).ttr_ms == 1_000
    agree_with_the_log(rig)


def test_a_buried_job_stays_where_it_is_among_the_buried_until_it_gets_another_time() -> None:
    rig = EngineRig()
    worker = rig.client()
    for number in range(3):
        put(rig, b"%d" % number)
    rig.reserve_all(worker)
    for job_id in (2, 3, 1):
        bury(rig.engine, worker, job_id, 0, rig.now_ms)
    change(rig.engine, 2, rig.now_ms, priority=9, body=b"patched")
    topic = rig.engine.store.topics.by_name["default"]
    assert peek_buried(rig.engine, topic) == (2, b"patched")
    change(rig.engine, 2, rig.now_ms, delay_ms=0)
    assert state_of(rig, 2) is State.READY
    assert peek_buried(rig.engine, topic) == (3, b"old")
    assert tally_of(record_of(rig, 2)).kicks == 0
    agree_with_the_log(rig)


def test_a_job_in_hand_or_not_there_cannot_be_changed() -> None:
    rig, _ = job_in(State.RESERVED)
    for job_id in (1, 2):
        with pytest.raises(JobNotFound):
            change(rig.engine, job_id, rig.now_ms, priority=1)
    assert rig.take_log() == (b"", False)


@pytest.mark.parametrize(
    ("refusal", "wrong"),
    [
        (ValueOutOfRange, {"priority": 2**32}),
        (ValueOutOfRange, {"delay_ms": -1}),
        (ValueOutOfRange, {"due_wall_ms": 2**60}),
        (ValueOutOfRange, {"ttr_ms": -1}),
        (BodyTooBig, {"body": b"x" * 65_536}),
    ],
)
def test_a_change_with_a_value_that_cannot_be_changes_nothing(
    refusal: type[Refusal], wrong: dict[str, int]
) -> None:
    rig, _ = job_in(State.READY)
    before = list(canonical(rig.engine))
    with pytest.raises(refusal):
        change(rig.engine, 1, rig.now_ms, **wrong)  # type: ignore[arg-type]
    assert list(canonical(rig.engine)) == before
    assert rig.take_log() == (b"", False)
