"""Keys and changes of waiting jobs, as a user would tell of them."""

from typing import Final

import pytest

from delayd.core.dump import Dump
from delayd.core.errors import (
    JobAlreadyExists,
    KeyInvalid,
    KeyNotFound,
    TopicNotFound,
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
from delayd.core.operations.ack import delete, delete_batch
from delayd.core.operations.attempts import bury, release
from delayd.core.operations.change import change, kick_job, reschedule
from delayd.core.operations.put import (
    Conflict,
    Outcome,
    find_key,
    put_keyed,
    put_keyed_run,
    take_id,
)
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import stop_consuming, watch
from delayd.core.operations.tick import reach
from delayd.core.operations.topics import configure
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.policy import Patterns, Policy
from delayd.core.records import Kind
from delayd.core.session import Session
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.transitions import amend, with_note
from delayd.core.views import peek
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import TTR_MS, EngineRig, kinds_of
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
    job_id: int = 0,
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
        job_id=job_id,
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


@pytest.mark.parametrize("state", State)
def test_a_key_that_is_taken_is_refused_with_the_id_that_is_there(state: State) -> None:
    rig, _ = job_in(state)
    before, last_id = list(canonical(rig.engine)), rig.engine.store.last_id
    with pytest.raises(JobAlreadyExists, match="job 1 has the key 'order-17'") as caught:
        put(rig, body=b"new")
    assert caught.value.job_id == 1
    assert list(canonical(rig.engine)) == before
    assert rig.engine.store.last_id == last_id
    assert rig.take_log() == (b"", False)


@pytest.mark.parametrize("state", State)
def test_keep_answers_the_old_id_and_changes_nothing(state: State) -> None:
    rig, _ = job_in(state)
    before = list(canonical(rig.engine))
    assert put_new(rig, Conflict.KEEP) == (1, Outcome.KEPT)
    assert list(canonical(rig.engine)) == before
    assert rig.take_log() == (b"", False)


@pytest.mark.parametrize("state", WAITING)
def test_replace_gives_the_old_id_a_new_life(state: State) -> None:
    rig, _ = job_in(state)
    assert put_new(rig, Conflict.REPLACE) == (1, Outcome.REPLACED)
    seen = views.view_job(rig.engine, 1, rig.now_ms)
    assert (seen.state, seen.priority, seen.left_ms) == (State.DELAYED, 9, 7_000)
    assert (seen.reserves, seen.buries, body_of(rig, 1)) == (0, 0, b"new")
    assert kinds_of(rig.take_log()[0]) == [Kind.REWRITE]
    agree_with_the_log(rig)


@pytest.mark.parametrize("state", WAITING)
def test_preserve_changes_what_is_to_be_done_and_not_when(state: State) -> None:
    rig, _ = job_in(state)
    before = views.view_job(rig.engine, 1, rig.now_ms)
    assert put_new(rig, Conflict.PRESERVE) == (1, Outcome.PRESERVED)
    seen = views.view_job(rig.engine, 1, rig.now_ms)
    assert (seen.state, seen.left_ms, seen.delay_ms) == (state, before.left_ms, before.delay_ms)
    assert (seen.priority, seen.buries, body_of(rig, 1)) == (9, before.buries, b"new")
    assert kinds_of(rig.take_log()[0]) == [Kind.REWRITE]
    agree_with_the_log(rig)


@pytest.mark.parametrize("state", WAITING)
def test_extend_changes_when_and_not_what_is_to_be_done(state: State) -> None:
    rig, _ = job_in(state)
    before = views.view_job(rig.engine, 1, rig.now_ms)
    assert put_new(rig, Conflict.EXTEND) == (1, Outcome.EXTENDED)
    seen = views.view_job(rig.engine, 1, rig.now_ms)
    assert (seen.state, seen.left_ms, seen.delay_ms) == (State.DELAYED, 7_000, 7_000)
    assert (seen.priority, seen.buries, body_of(rig, 1)) == (before.priority, before.buries, b"old")
    assert kinds_of(rig.take_log()[0]) == [Kind.RESCHEDULE]
    agree_with_the_log(rig)


@pytest.mark.parametrize("on", [Conflict.REPLACE, Conflict.PRESERVE, Conflict.EXTEND])
def test_a_job_in_hand_goes_on_without_its_key_which_a_new_one_takes_over(on: Conflict) -> None:
    rig, worker = job_in(State.RESERVED)
    assert put_new(rig, on) == (2, Outcome.CREATED)
    assert find_key(rig.engine, "default", KEY) == 2
    assert worker.deadlines.keys() == {1}
    assert (key_of(record_of(rig, 1)), body_of(rig, 1)) == (b"", b"old")
    assert (body_of(rig, 2), state_of(rig, 2)) == (b"new", State.DELAYED)
    agree_with_the_log(rig)
    release(rig.engine, worker, 1, 0, 0, rig.now_ms)
    assert find_key(rig.engine, "default", KEY) == 2
    delete(rig.engine, worker, 1, rig.now_ms)
    assert find_key(rig.engine, "default", KEY) == 2
    agree_with_the_log(rig)


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


def test_debounce_fires_once_the_last_word_has_been_said() -> None:
    rig = EngineRig()
    for second in range(5):
        rig.run(second * 1_000)
        put(rig, on=Conflict.EXTEND, delay_ms=2_000, body=b"%d" % second)
    worker = rig.client()
    rig.run(5_999)
    assert rig.reserve(worker) == 0
    rig.run(6_000)
    assert reserve(rig.engine, worker, rig.now_ms) == (1, b"0")
    assert rig.reserve(worker) == 0


def test_a_replaced_job_is_handed_to_who_waits_once_it_is_ready() -> None:
    rig, worker = job_in(State.DELAYED)
    rig.wait(worker)
    put(rig, on=Conflict.REPLACE, body=b"now")
    assert rig.engine.take_deliveries() == [(worker, (1, b"now"))]
    agree_with_the_log(rig)


# --- Keys ----------------------------------------------------------------------------------------


def test_the_same_key_in_two_topics_are_two_jobs() -> None:
    rig = EngineRig()
    assert put(rig, topic="a")[0] == 1
    assert put(rig, topic="b")[0] == 2
    assert find_key(rig.engine, "a", KEY) == 1
    assert find_key(rig.engine, "b", KEY) == 2


def test_a_key_finds_its_job_to_cancel_kick_reschedule_and_look_at() -> None:
    rig, worker = job_in(State.DELAYED)
    engine, now_ms = rig.engine, rig.now_ms
    reschedule(engine, find_key(engine, "default", KEY), 9_000, now_ms)
    assert views.view_job(engine, 1, now_ms).left_ms == 9_000
    kick_job(engine, find_key(engine, "default", KEY), now_ms)
    assert peek(engine, find_key(engine, "default", KEY)) == (1, b"old")
    delete(engine, worker, find_key(engine, "default", KEY), now_ms)
    with pytest.raises(KeyNotFound, match="topic 'default' has no job with the key 'order-17'"):
        find_key(engine, "default", KEY)
    assert engine.store.topics.by_name["default"].keys is None
    with pytest.raises(TopicNotFound):
        find_key(engine, "nowhere", KEY)
    with pytest.raises(KeyInvalid):
        find_key(engine, "default", b"")


@pytest.mark.parametrize("how", ["one", "run", "ttr"])
def test_a_key_is_free_again_when_its_job_is_gone_and_not_before(how: str) -> None:
    rig, worker = job_in(State.RESERVED)
    if how == "ttr":
        rig.run(TTR_MS)
        with pytest.raises(JobAlreadyExists):
            put(rig)
    if how == "run":
        delete_batch(rig.engine, worker, [1], rig.now_ms)
    else:
        delete(rig.engine, worker, 1, rig.now_ms)
    assert put(rig) == (2, Outcome.CREATED)
    agree_with_the_log(rig)


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


def test_an_id_that_was_taken_before_is_used_and_noted_as_late() -> None:
    rig = EngineRig()
    early = take_id(rig.engine)
    rig.put()
    assert put(rig, job_id=early) == (1, Outcome.CREATED)
    assert rig.engine.take_out_of_order_ids() == [1]
    assert put(rig, b"next") == (3, Outcome.CREATED)
    assert rig.engine.take_out_of_order_ids() == []


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
