"""Changes of jobs that wait: another time, priority, ttr or body, all or nothing."""

import pytest

from delayd.core.errors import BodyTooBig, JobNotFound, Refusal, ValueOutOfRange
from delayd.core.job_parts import Reason, attempts_of, failure_of, note_of, tally_of
from delayd.core.job_record import State
from delayd.core.operations.attempts import bury, nack
from delayd.core.operations.change import BY_HAND, bury_waiting, change, kick_job
from delayd.core.operations.put import find_key
from delayd.core.operations.topics import set_policy
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.policy import Policy
from delayd.core.ready_queue import ID_MASK
from delayd.core.records import Kind
from delayd.core.stats.counters import Operation
from delayd.core.views import peek_buried
from delayd.limits import ERROR_BYTES_MAX
from tests.core import views
from tests.core.canonical import canonical
from tests.core.operations.test_put_keyed import (
    HOUR_MS,
    KEY,
    WAITING,
    agree_with_the_log,
    body_of,
    job_in,
    put,
    record_of,
    state_of,
)
from tests.rigs.engine import EngineRig, kinds_of


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


# --- Burying -------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.DELAYED, State.READY])
def test_a_job_that_waits_is_buried_by_one_record_with_a_reason_and_no_attempt(
    state: State,
) -> None:
    rig, worker = job_in(state)
    before = tally_of(record_of(rig, 1))
    bury_waiting(rig.engine, 1, rig.now_ms, error="wrong address", priority=7)
    record = record_of(rig, 1)
    failure, note = failure_of(record), note_of(record)
    assert state_of(rig, 1) is State.BURIED
    assert failure is not None
    assert note is not None
    assert (failure.reason, failure.failed_ms) == (Reason.BURIED, rig.now_ms)
    assert (note.error, note.origin) == ("wrong address", "")
    assert tally_of(record) == before._replace(buries=1)
    assert attempts_of(record) == 0
    assert views.view_job(rig.engine, 1, rig.now_ms).priority == 7
    assert body_of(rig, 1) == b"old"
    assert kinds_of(rig.take_log()[0]) == [Kind.REWRITE]
    assert find_key(rig.engine, "default", KEY) == 1
    assert not rig.reserve(worker)
    agree_with_the_log(rig)


def test_who_buries_a_job_and_does_not_say_why_leaves_that_it_was_a_person() -> None:
    rig, _ = job_in(State.READY)
    bury_waiting(rig.engine, 1, rig.now_ms)
    note = note_of(record_of(rig, 1))
    assert note is not None
    assert note.error == BY_HAND


def test_an_error_is_cut_to_what_is_kept() -> None:
    rig, _ = job_in(State.READY)
    bury_waiting(rig.engine, 1, rig.now_ms, error="\u00e9" * 700)
    note = note_of(record_of(rig, 1))
    assert note is not None
    assert note.error == "\u00e9" * (ERROR_BYTES_MAX // 2)
    agree_with_the_log(rig)


def test_a_job_that_was_buried_as_it_waited_is_the_last_of_the_buried() -> None:
    rig = EngineRig()
    worker = rig.client()
    for number in range(3):
        put(rig, b"%d" % number)
    assert rig.reserve(worker) == 1
    bury(rig.engine, worker, 1, 0, rig.now_ms)
    bury_waiting(rig.engine, 3, rig.now_ms)
    bury_waiting(rig.engine, 2, rig.now_ms)
    topic = rig.engine.store.topics.by_name["default"]
    assert [key & ID_MASK for key in topic.queues.buried] == [1, 3, 2]
    agree_with_the_log(rig)


def test_a_job_whose_delay_ends_while_it_is_buried_stays_buried() -> None:
    rig, worker = job_in(State.DELAYED)
    bury_waiting(rig.engine, 1, rig.now_ms)
    rig.run(2 * HOUR_MS)
    assert state_of(rig, 1) is State.BURIED
    assert not rig.reserve(worker)
    agree_with_the_log(rig)


def test_the_ladder_of_a_job_that_was_buried_as_it_waited_begins_anew_with_a_kick() -> None:
    rig = EngineRig()
    worker = rig.client()
    set_policy(rig.engine, "default", Policy(retry_ms=(1_000, 2_000)), rig.now_ms)
    put(rig)
    assert rig.reserve(worker) == 1
    nack(rig.engine, worker, 1, rig.now_ms, error="busy")
    bury_waiting(rig.engine, 1, rig.now_ms)
    assert attempts_of(record_of(rig, 1)) == 1
    kick_job(rig.engine, 1, rig.now_ms)
    assert attempts_of(record_of(rig, 1)) == 0
    assert rig.reserve(worker) == 1
    nack(rig.engine, worker, 1, rig.now_ms)
    assert views.view_job(rig.engine, 1, rig.now_ms).left_ms == 1_000
    agree_with_the_log(rig)


def test_a_job_that_is_buried_as_it_waits_stays_in_its_topic() -> None:
    rig = EngineRig()
    policy = Policy(attempts_max=1, exhausted="dead", jobs_max=1, bytes_max=60)
    set_policy(rig.engine, "default", policy, rig.now_ms)
    put(rig)
    bury_waiting(rig.engine, 1, rig.now_ms, error="why" * 50)
    assert state_of(rig, 1) is State.BURIED
    topic = rig.engine.store.topics.by_name["default"]
    assert rig.engine.store.topic_of(record_of(rig, 1)) is topic
    assert (topic.jobs, topic.bytes) == (1, len(record_of(rig, 1)))
    assert topic.operations[Operation.BURY] == 1
    agree_with_the_log(rig)


def test_a_job_for_a_wall_clock_time_is_buried_and_no_longer_follows_the_clock() -> None:
    rig = EngineRig()
    put(rig, due_wall_ms=HOUR_MS)
    bury_waiting(rig.engine, 1, rig.now_ms)
    assert rig.engine.store.wall_times.count == 0
    follow_wall(rig.engine, 2 * HOUR_MS)
    rig.run(10)
    assert state_of(rig, 1) is State.BURIED
    agree_with_the_log(rig)
