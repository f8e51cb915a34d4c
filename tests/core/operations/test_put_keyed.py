"""Keys and changes of waiting jobs, as a user would tell of them."""

from typing import Final

import pytest

from delayd.core.dump import Dump
from delayd.core.errors import (
    JobAlreadyExists,
    KeyInvalid,
)
from delayd.core.job_parts import (
    Failure,
    Flag,
    Note,
    Own,
    Reason,
    Retry,
    attempts_of,
    failure_of,
    key_of,
    note_of,
    retry_of,
    wall_of,
)
from delayd.core.job_record import FLAGS_AT, State
from delayd.core.names import checked_key
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury
from delayd.core.operations.change import change, kick_job
from delayd.core.operations.put import (
    Conflict,
    Outcome,
    find_key,
    put_keyed,
    put_keyed_run,
)
from delayd.core.operations.sessions import stop_consuming, watch
from delayd.core.operations.tick import reach
from delayd.core.operations.topics import configure
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.policy import Patterns, Policy
from delayd.core.session import Session
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.transitions import amend, with_note
from delayd.core.views import peek
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import TTR_MS, EngineRig
from tests.rigs.engine import put as put_job

KEY: Final = b"order-17"
HOUR_MS: Final = 3_600_000


def put(
    rig: EngineRig,
    key: bytes = KEY,
    on: Conflict = Conflict.REJECT,
    *,
    topic: str = "default",
    delay_ms: int = 0,
    body: bytes = b"old",
    priority: int = 0,
    due_wall_ms: int | None = None,
    retry: Retry | None = None,
) -> tuple[int, Outcome]:
    return put_keyed(
        rig.engine,
        rig.engine.store.topic(topic),
        key,
        on,
        priority=priority,
        delay_ms=delay_ms,
        due_wall_ms=due_wall_ms,
        ttr_ms=TTR_MS,
        body=body,
        now_ms=rig.now_ms,
        own=Own(retry),
    )


def record_of(rig: EngineRig, job_id: int) -> bytes:
    record = rig.engine.store.jobs.get(job_id)
    assert record is not None
    return record


def state_of(rig: EngineRig, job_id: int) -> State:
    return views.view_job(rig.engine, job_id, rig.now_ms).state


def body_of(rig: EngineRig, job_id: int) -> bytes:
    return peek(rig.engine, job_id)[1]


def job_in(state: State) -> tuple[EngineRig, Session]:
    """A daemon with one keyed job in that state, and the one who works on it."""
    rig = EngineRig()
    worker = rig.client()
    assert put(rig, delay_ms=HOUR_MS if state is State.DELAYED else 0) == (1, Outcome.CREATED)
    if state in {State.RESERVED, State.BURIED}:
        assert rig.reserve(worker) == 1
    if state is State.BURIED:
        bury(rig.engine, worker, 1, 5, rig.now_ms)
    assert state_of(rig, 1) is state
    rig.take_log()
    return rig, worker


def agree_with_the_log(rig: EngineRig) -> None:
    check(rig.engine)
    assert list(canonical(rig.replayed())) == list(canonical(rig.engine))


# --- Conflicts -----------------------------------------------------------------------------------

WAITING: Final = (State.DELAYED, State.READY, State.BURIED)


def put_new(rig: EngineRig, on: Conflict) -> tuple[int, Outcome]:
    return put(rig, on=on, delay_ms=7_000, body=b"new", priority=9)


@pytest.mark.parametrize("on", Conflict)
def test_a_job_whose_ttr_has_run_out_waits_again_though_its_slice_has_not_come(
    on: Conflict,
) -> None:
    rig, _ = job_in(State.RESERVED)
    rig.engine.store.time_ms = PlayedMs(TTR_MS)
    if on is Conflict.REJECT:
        with pytest.raises(JobAlreadyExists):
            put(rig, on=on)
    else:
        assert put_new(rig, on)[0] == 1
    assert views.view_job(rig.engine, 1, rig.now_ms).timeouts == (on is not Conflict.REPLACE)
    agree_with_the_log(rig)


def test_a_buried_job_that_is_brought_back_counts_its_attempts_anew() -> None:
    for bring_back in (
        lambda rig: put(rig, on=Conflict.EXTEND, delay_ms=5),
        lambda rig: change(rig.engine, 1, rig.now_ms, delay_ms=5),
        lambda rig: kick_job(rig.engine, 1, rig.now_ms),
    ):
        rig, _ = job_in(State.BURIED)
        failure = Failure(Reason.NACKED, 0, 77)
        failed = with_note(amend(record_of(rig, 1), State.BURIED, failure=failure), Note("", "no"))
        rig.engine.store.move(1, failed)
        assert attempts_of(record_of(rig, 1)) == 1
        put(rig, on=Conflict.PRESERVE, body=b"other")
        assert attempts_of(record_of(rig, 1)) == 1
        bring_back(rig)
        record = record_of(rig, 1)
        assert attempts_of(record) == 0
        assert failure_of(record) == Failure(Reason.NACKED, 1, 77)
        assert note_of(record) == Note("", "no")
        assert key_of(record) == KEY
        put(rig, on=Conflict.REPLACE)
        assert record_of(rig, 1)[FLAGS_AT] == Flag.KEY


def test_a_replaced_job_is_handed_to_who_waits_once_it_is_ready() -> None:
    rig, worker = job_in(State.DELAYED)
    rig.wait(worker)
    put(rig, on=Conflict.REPLACE, body=b"now")
    assert rig.engine.take_deliveries() == [(worker, (1, b"now"))]
    agree_with_the_log(rig)


# --- Keys ----------------------------------------------------------------------------------------


def test_jobs_put_by_name_are_the_same_one_by_one_and_in_a_run() -> None:
    names = [b"k%d" % number for number in range(100)]
    logs: list[list[bytes]] = []
    for is_run in (False, True):
        rig = EngineRig()
        topic = rig.engine.store.topic("default")
        if is_run:
            bodies = [name * 2 for name in names]
            assert (
                put_keyed_run(rig.engine, topic, 3, 5_000, TTR_MS, names, bodies, RequestMs(0)) == 1
            )
        else:
            for name in names:
                put(rig, name, delay_ms=5_000, priority=3, body=name * 2)
        agree_with_the_log(rig)
        logs.append(rig.log)
    assert logs[0] == logs[1]


@pytest.mark.parametrize("taken", [[b"x", KEY, b"y"], [b"x", b"y", b"x"]])
def test_a_run_with_a_key_that_is_taken_or_there_twice_does_nothing(taken: list[bytes]) -> None:
    rig, _ = job_in(State.DELAYED)
    before, last_id = list(canonical(rig.engine)), rig.engine.store.last_id
    topic = rig.engine.store.topic("default")
    assert put_keyed_run(rig.engine, topic, 0, 0, 9, taken, [b""] * 3, RequestMs(0)) == 0
    assert (list(canonical(rig.engine)), rig.engine.store.last_id) == (before, last_id)
    assert rig.take_log() == (b"", False)
    agree_with_the_log(rig)


@pytest.mark.parametrize("key", [b"a", b"~!", "größe/1".encode(), b"k" * 200, "日本".encode()])
def test_a_key_is_printable_utf_8(key: bytes) -> None:
    assert checked_key(key) == key
    rig = EngineRig()
    assert put(rig, key) == (1, Outcome.CREATED)
    agree_with_the_log(rig)
    topic = rig.engine.store.topic("other")
    assert put_keyed_run(rig.engine, topic, 0, 0, 9, [key], [b""], RequestMs(0)) == 2


@pytest.mark.parametrize(
    "key",
    [b"k" * 201, b"a b", b"a\tb", b"\x7f", b"\xff", b"a\0", "a\u00a0b".encode(), b"\xc3", b"\n"],
)
def test_any_other_key_is_refused(key: bytes) -> None:
    rig = EngineRig()
    with pytest.raises(KeyInvalid, match="not 1 to 200 bytes of printable UTF-8 without spaces"):
        put(rig, key)
    topic = rig.engine.store.topic("default")
    for run in ([b"good", key], [key]):
        with pytest.raises(KeyInvalid):
            put_keyed_run(rig.engine, topic, 0, 0, 9, run, [b""] * len(run), RequestMs(0))
    with pytest.raises(KeyInvalid):
        put_keyed_run(rig.engine, topic, 0, 0, 9, [b"good", b""], [b"", b""], RequestMs(0))
    assert rig.take_log() == (b"", False)
    assert topic.keys is None


def test_keyed_jobs_replaced_five_times_and_cancelled_leave_nothing() -> None:
    rig = EngineRig()
    me = rig.client()
    topic = rig.engine.store.topics.by_name["default"]
    names = [b"customer-%d" % number for number in range(2_000)]
    put_keyed_run(rig.engine, topic, 0, HOUR_MS, TTR_MS, names, names, RequestMs(0))
    for _ in range(5):
        for name in names:
            assert put(rig, name, Conflict.REPLACE, delay_ms=HOUR_MS)[1] is Outcome.REPLACED
    assert topic.jobs == len(names)
    for name in names:
        delete(rig.engine, me, find_key(rig.engine, "default", name), RequestMs(0))
    assert topic.keys is None
    rig.run(2 * HOUR_MS)
    assert rig.reserve(me) == 0
    check(rig.engine)


# --- A job's own retry rule, and absolute times --------------------------------------------------


def test_a_job_keeps_its_own_retry_rule_with_a_key_and_without() -> None:
    rig = EngineRig()
    retry = Retry((15_000, 180_000), 9, 10)
    topic = rig.engine.store.topics.by_name["default"]
    job_id = put_job(
        rig.engine, topic, priority=0, delay_ms=0, ttr_ms=TTR_MS, body=b"x", now_ms=0, retry=retry
    )
    assert job_id == 1
    put(rig, retry=retry, body=b"y")
    put(rig, b"plain")
    put(rig, b"plain", Conflict.PRESERVE, retry=Retry((), 3))
    rig.restart()
    assert [retry_of(record_of(rig, job_id)) for job_id in (1, 2, 3)] == [
        *(retry, retry, Retry((), 3))
    ]
    assert [body_of(rig, job_id) for job_id in (1, 2)] == [b"x", b"y"]
    shown = list(Dump().records(b"".join(rig.log)))
    assert [record.fields.get("retry") for record in shown[2:]] == ["15s 3m", "15s 3m", None, ""]


def test_a_keyed_job_can_follow_the_wall_clock() -> None:
    rig = EngineRig(time_ms=1_000_000)
    for key, on in ((b"a", Conflict.REJECT), (b"b", Conflict.REPLACE), (b"c", Conflict.EXTEND)):
        if on is not Conflict.REJECT:
            put(rig, key, delay_ms=HOUR_MS)
        put(rig, key, on, due_wall_ms=1_005_000)
    follow_wall(rig.engine, -300)
    rig.run(rig.time_ms)
    agree_with_the_log(rig)
    for job_id in (1, 2, 3):
        assert views.view_job(rig.engine, job_id, rig.now_ms).left_ms == 5_300
    put(rig, b"b", Conflict.PRESERVE, body=b"still")
    change(rig.engine, 3, rig.now_ms, priority=7)
    follow_wall(rig.engine, 0)
    rig.run(rig.time_ms)
    for job_id in (1, 2, 3):
        assert views.view_job(rig.engine, job_id, rig.now_ms).left_ms == 5_000
    put(rig, b"a", Conflict.REPLACE, delay_ms=5)
    assert wall_of(record_of(rig, 1)) is None
    agree_with_the_log(rig)


def test_a_topic_whose_last_job_is_moved_away_by_the_put_itself_is_there_for_the_new_one() -> None:
    rig = EngineRig()
    configure(rig.engine, Patterns({"mail": Policy(attempts_max=1, exhausted="dead")}))
    assert put(rig, topic="mail", body=b"old") == (1, Outcome.CREATED)
    worker = Session()
    watch(rig.engine, worker, "mail")
    assert rig.reserve(worker) == 1
    stop_consuming(rig.engine, worker)
    # Its ttr is over, and its slice has not come: the put finds out, and the job goes to the dead.
    reach(rig.engine, PlayedMs(rig.time_ms + TTR_MS + 1))
    assert put(rig, on=Conflict.REPLACE, topic="mail", body=b"new") == (2, Outcome.CREATED)
    topics = rig.engine.store.topics.by_name
    assert [topics[name].jobs for name in ("mail", "dead")] == [1, 1]
    check(rig.engine)
    assert [*canonical(rig.replayed())] == [*canonical(rig.engine)]
