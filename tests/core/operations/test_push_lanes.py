"""Which jobs the scheduler of pushes gets, when it hears of them, and what becomes of them."""

from itertools import pairwise
from typing import TYPE_CHECKING, Final

import pytest

from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound, ValueOutOfRange
from delayd.core.job_parts import Note, Reason, attempts_of, failure_of, note_of, tally_of
from delayd.core.job_record import State, state_of
from delayd.core.log_space import RESERVE_COST_BYTES
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury, fail_call, give_back_call, release
from delayd.core.operations.change import change, kick_job, reschedule
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.operations.reserve import reserve_job
from delayd.core.operations.sessions import close_session, open_session
from delayd.core.operations.topics import clear, configure, pause, set_policy
from delayd.core.operations.waiting import serve_waiting
from delayd.core.policy import Patterns, Policy
from delayd.core.retry import NO_END
from delayd.core.targets import Target, pack_own
from delayd.limits import DURATION_MS_MAX
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import TTR_MS, EngineRig, kick

if TYPE_CHECKING:
    from delayd.core.push_lanes import Lane
    from delayd.core.session import Session

LEASE_MS: Final = 20_000
A: Final = pack_own("POST", "https://a.example/x", ())
A_TOO: Final = pack_own("PUT", "https://a.example/y?z", (("X-Team", "mail"),))
B: Final = pack_own("POST", "https://b.example:8443/", ())
ORIGIN_A: Final = b"https://a.example"
ORIGIN_B: Final = b"https://b.example:8443"
TO_URL: Final = Policy(push=Target(url="https://t.example/"))
TO_SINK: Final = Policy(push=Target(sink="orders"))


class PushRig:
    """An engine and a stupid scheduler: it asks each lane that it knows until nothing is there."""

    def __init__(self) -> None:
        self.rig = EngineRig()
        self.start()

    def start(self) -> None:
        self.engine.vet_target = lambda target: target
        self.session: Session = open_session(self.engine)

    @property
    def engine(self) -> Engine:
        return self.rig.engine

    def policy(self, name: str, policy: Policy | None) -> None:
        set_policy(self.engine, name, policy, self.rig.now_ms)

    def fresh(self) -> list[tuple[str, bytes]]:
        """Hear of lanes, without asking for a job."""
        return [(topic.name, origin) for topic, origin in take_fresh(self.engine)]

    def calls(self, jobs_max: int = 99) -> list[int]:
        """Hear of lanes and get all jobs that there are for them."""
        return self.get(take_fresh(self.engine), jobs_max)

    def get(self, lanes: "list[Lane]", jobs_max: int = 99) -> list[int]:
        job_ids: list[int] = []
        for lane in lanes:
            while len(job_ids) < jobs_max:
                now_ms = self.rig.now_ms
                job = reserve_call(self.engine, self.session, lane, LEASE_MS, now_ms)
                if job is None:
                    break
                job_ids.append(job[0])
        check(self.engine)
        return job_ids

    def fail(self, job_id: int, error: str = "503", *, is_exhausted: bool = False) -> None:
        fail_call(
            *(self.engine, self.session, job_id, self.rig.now_ms),
            error=error,
            is_exhausted=is_exhausted,
        )

    def delete(self, job_id: int) -> None:
        delete(self.engine, self.session, job_id, self.rig.now_ms)

    def record(self, job_id: int) -> bytes:
        record = self.engine.store.jobs.get(job_id)
        assert record is not None
        return record

    def agrees_with_the_log(self) -> None:
        check(self.engine)
        assert list(canonical(self.rig.replayed())) == list(canonical(self.engine))


@pytest.fixture
def push() -> PushRig:
    return PushRig()


# --- Which jobs, and in which order --------------------------------------------------------------


def test_jobs_with_urls_are_in_a_lane_for_each_topic_and_origin(push: PushRig) -> None:
    for topic, target in (("x", A), ("x", A_TOO), ("x", B), ("y", A), ("x", b"")):
        push.rig.put(topic, target=target)
    assert push.fresh() == [("x", ORIGIN_A), ("x", ORIGIN_B), ("y", ORIGIN_A)]
    assert push.fresh() == []


def test_a_lane_hands_out_the_most_urgent_job_first_and_then_the_oldest(push: PushRig) -> None:
    for priority in (5, 0, 5, 1):
        push.rig.put(target=A, priority=priority)
    push.rig.put(priority=0)
    assert push.calls() == [2, 4, 1, 3]


def test_the_jobs_of_a_topic_with_a_target_are_all_in_one_lane(push: PushRig) -> None:
    push.policy("mail", TO_URL)
    for priority in (5, 0, 5):
        push.rig.put("mail", priority=priority)
    assert push.calls() == [2, 1, 3]


def test_a_job_is_not_pushed_before_it_is_due(push: PushRig) -> None:
    push.policy("mail", TO_SINK)
    push.rig.put(target=A, delay_ms=1_000)
    push.rig.put("mail", delay_ms=1_000)
    push.rig.play(999)
    assert push.calls() == []
    push.rig.play(1_000)
    assert push.calls() == [1, 2]


def test_a_plain_job_is_in_no_lane(push: PushRig) -> None:
    push.rig.put()
    push.rig.put(delay_ms=5)
    push.rig.play(5)
    assert push.fresh() == []
    assert not push.engine.store.push_lanes.fresh


def test_a_lane_that_was_heard_of_is_asked_until_nothing_is_there(push: PushRig) -> None:
    """However many jobs come meanwhile, the scheduler is not told again."""
    push.rig.put(target=A)
    (lane,) = take_fresh(push.engine)
    for _ in range(3):
        push.rig.put(target=A)
    assert push.fresh() == []
    got = [reserve_call(push.engine, push.session, lane, LEASE_MS, push.rig.now_ms) for _ in "1234"]
    assert [job[0] for job in got if job] == [1, 2, 3, 4]
    assert reserve_call(push.engine, push.session, lane, LEASE_MS, push.rig.now_ms) is None
    push.rig.put(target=A)
    assert push.calls() == [5]


def test_a_lane_that_is_empty_for_a_while_is_still_heard_of(push: PushRig) -> None:
    push.rig.put(target=A)
    (lane,) = take_fresh(push.engine)
    assert reserve_call(push.engine, push.session, lane, LEASE_MS, push.rig.now_ms)
    push.rig.put(target=A)
    assert push.fresh() == []
    assert reserve_call(push.engine, push.session, lane, LEASE_MS, push.rig.now_ms)


@pytest.mark.parametrize("name", ["default", "mail"])
def test_a_lane_is_fresh_again_after_it_was_found_empty(push: PushRig, name: str) -> None:
    push.policy("mail", TO_SINK)
    for job_id in (1, 2, 3):
        push.rig.put(name, target=b"" if name == "mail" else A)
        assert push.calls() == [job_id]


def test_a_topic_is_not_pushed_to_itself(push: PushRig) -> None:
    """As a pattern may say it."""
    policies = Patterns({"mail.*": Policy(push=Target(topic="mail.out"))})
    configure(push.engine, policies)
    push.rig.put("mail.out")
    push.rig.put("mail.in")
    assert push.fresh() == [("mail.in", b"")]
    check(push.engine)


# --- What a call is ------------------------------------------------------------------------------


def test_a_call_is_a_reservation_for_as_long_as_it_may_take(push: PushRig) -> None:
    job_id = push.rig.put(target=A, ttr_ms=1_000)
    assert push.calls() == [job_id]
    assert push.session.deadlines == {job_id: LEASE_MS}
    push.rig.play(LEASE_MS)
    record = push.record(job_id)
    assert (state_of(record), tally_of(record).timeouts) == (State.DELAYED, 1)
    push.agrees_with_the_log()


def test_a_job_that_was_taken_is_gone(push: PushRig) -> None:
    push.policy("mail", TO_SINK)
    push.rig.put(target=A)
    push.rig.put("mail")
    for job_id in push.calls():
        push.delete(job_id)
    assert not dict(push.engine.store.jobs)
    push.agrees_with_the_log()


def test_a_failed_call_is_a_failed_attempt_with_its_error(push: PushRig) -> None:
    job_id = push.rig.put(target=A)
    push.calls()
    push.fail(job_id, "503 Service Unavailable\nsorry")
    record = push.record(job_id)
    failure, note = failure_of(record), note_of(record)
    assert (state_of(record), tally_of(record).delay_ms) == (State.DELAYED, 15_000)
    assert (failure and failure.reason, attempts_of(record)) == (Reason.PUSH_FAILED, 1)
    assert note is not None
    assert note.error == "503 Service Unavailable\nsorry"
    push.agrees_with_the_log()
    push.rig.play(14_999)
    assert push.calls() == []
    push.rig.play(15_000)
    assert push.calls() == [job_id]


@pytest.mark.parametrize(
    ("asked_ms", "waits_ms"), [(0, 15_000), (14_999, 15_000), (60_000, 60_000)]
)
def test_who_asks_for_more_time_gets_it_and_for_less_does_not(
    push: PushRig, asked_ms: int, waits_ms: int
) -> None:
    job_id = push.rig.put(target=A)
    push.calls()
    now_ms = push.rig.now_ms
    fail_call(push.engine, push.session, job_id, now_ms, error="429", delay_ms=asked_ms)
    assert tally_of(push.record(job_id)).delay_ms == waits_ms


def test_an_attempt_that_ends_the_ladder_ends_it_whoever_asks_for_more_time(push: PushRig) -> None:
    push.policy("default", Policy(attempts_max=1))
    job_id = push.rig.put(target=A)
    push.calls()
    fail_call(push.engine, push.session, job_id, push.rig.now_ms, error="429", delay_ms=60_000)
    assert state_of(push.record(job_id)) is State.BURIED


@pytest.mark.parametrize("exhausted", [None, "failed"])
def test_a_job_that_will_never_be_taken_is_a_dead_letter_at_once(
    push: PushRig, exhausted: str | None
) -> None:
    push.policy("default", Policy(exhausted=exhausted))
    job_id = push.rig.put(target=A)
    push.calls()
    push.fail(job_id, "410 Gone", is_exhausted=True)
    record = push.record(job_id)
    assert push.engine.store.topic_of(record).name == exhausted or "default"
    assert state_of(record) is (State.READY if exhausted else State.BURIED)
    assert push.calls() == []
    push.agrees_with_the_log()


def test_a_job_that_was_not_attempted_is_ready_again_and_nothing_is_counted(push: PushRig) -> None:
    push.policy("mail", TO_URL)
    push.rig.put(target=A)
    push.rig.put("mail")
    for job_id in push.calls():
        give_back_call(push.engine, push.session, job_id, push.rig.now_ms)
        assert attempts_of(push.record(job_id)) == 0
    assert push.calls() == [1, 2]
    push.agrees_with_the_log()


def test_a_job_that_is_given_back_with_an_error_keeps_it_and_its_attempts(push: PushRig) -> None:
    push.policy("mail", TO_URL)
    push.rig.put("mail")
    (job_id,) = push.calls()
    said = "503 Service Unavailable"
    give_back_call(push.engine, push.session, job_id, push.rig.now_ms, error=said)
    note = note_of(push.record(job_id))
    assert (attempts_of(push.record(job_id)), note) == (0, Note(error=said))
    assert push.calls() == [job_id]
    push.agrees_with_the_log()


def test_a_call_without_an_end_says_so_when_its_lease_is_over(push: PushRig) -> None:
    """As after a kill: of a dead letter without an answer somebody wants to know why."""
    push.policy("mail", Policy(attempts_max=1, push=Target(url="https://t.example/")))
    push.policy("plain", Policy(attempts_max=1))
    job_id = push.rig.put("mail")
    plain_id = push.rig.put("plain")
    assert push.calls() == [job_id]
    assert reserve_job(push.engine, push.session, plain_id, push.rig.now_ms)
    push.rig.play(TTR_MS + LEASE_MS)
    for each, error in ((job_id, NO_END), (plain_id, "")):
        record = push.record(each)
        note, failure = note_of(record), failure_of(record)
        assert state_of(record) is State.BURIED
        assert ("" if note is None else note.error) == error
        assert failure is not None
        assert failure.reason == Reason.TTR_RAN_OUT
    push.agrees_with_the_log()


def test_a_job_after_so_many_others_is_called_counted_round_and_round(push: PushRig) -> None:
    push.policy("mail", TO_URL)
    for topic, target in (("own", A), ("mail", b"")):
        job_ids = [push.rig.put(topic, target=target) for _ in range(3)]
        (lane,) = take_fresh(push.engine)
        for skips in (1, 2, 3, 100):
            called = reserve_call(push.engine, push.session, lane, LEASE_MS, push.rig.now_ms, skips)
            assert called is not None
            assert called[0] == job_ids[skips % 3]
            give_back_call(push.engine, push.session, called[0], push.rig.now_ms)
    push.agrees_with_the_log()


def test_who_does_not_hold_the_job_can_neither_fail_it_nor_give_it_back(push: PushRig) -> None:
    job_id = push.rig.put(target=A)
    for _ in range(2):
        with pytest.raises(JobNotFound):
            push.fail(job_id)
        with pytest.raises(JobNotFound):
            give_back_call(push.engine, push.session, job_id, push.rig.now_ms)
        if push.calls():  # and it is out of time the second time
            push.rig.play(LEASE_MS)
    push.rig.play(LEASE_MS + 15_000)
    assert push.calls() == [job_id]
    with pytest.raises(ValueOutOfRange):
        fail_call(
            *(push.engine, push.session, job_id, push.rig.now_ms),
            error="",
            delay_ms=DURATION_MS_MAX + 1,
        )


# --- Beside workers ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default", "mail"])
def test_a_worker_that_waits_comes_first(push: PushRig, name: str) -> None:
    push.policy("mail", TO_SINK)
    target = b"" if name == "mail" else A
    worker = push.rig.client(name)
    push.rig.wait(worker)
    push.rig.put(name, target=target)
    assert push.rig.delivered() == [(worker, 1)]
    assert push.calls() == []
    push.rig.put(name, target=target)
    assert push.calls() == [2]


@pytest.mark.parametrize("name", ["default", "mail"])
def test_a_worker_may_take_what_would_be_pushed(push: PushRig, name: str) -> None:
    push.policy("mail", TO_SINK)
    worker = push.rig.client(name)
    for _ in range(5):
        push.rig.put(name, target=b"" if name == "mail" else A)
    assert push.rig.reserve(worker) == 1
    assert push.rig.reserve_all(worker) == [2, 3, 4, 5]
    assert push.calls() == []
    release(push.engine, worker, 3, 0, 0, push.rig.now_ms)
    push.rig.play(15_000)
    assert push.calls() == [3]
    close_session(push.engine, worker, push.rig.now_ms)
    push.rig.play(30_000)
    assert push.calls() == [1, 2, 4, 5]


# --- What holds a lane up ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default", "mail"])
def test_a_paused_topic_is_not_pushed_until_its_time(push: PushRig, name: str) -> None:
    push.policy("mail", TO_SINK)
    push.rig.put(name, target=b"" if name == "mail" else A)
    for pause_ms in (1_000, 5_000):
        pause(push.engine, name, pause_ms, push.rig.now_ms)
        assert push.calls() == []
    push.rig.play(4_999)
    assert push.calls() == []
    push.rig.play(5_000)
    assert push.calls() == [1]


def test_a_topic_that_is_resumed_is_pushed_at_once(push: PushRig) -> None:
    push.rig.put(target=A)
    pause(push.engine, "default", 5_000, push.rig.now_ms)
    assert push.calls() == []
    pause(push.engine, "default", 0, push.rig.now_ms)
    assert push.calls() == [1]


@pytest.mark.parametrize("name", ["default", "mail"])
def test_no_more_jobs_are_pushed_at_once_than_may_be_reserved(push: PushRig, name: str) -> None:
    push.policy("mail", Policy(push=Target(sink="s"), reserved_max=2))
    push.policy("default", Policy(reserved_max=2))
    for _ in range(5):
        push.rig.put(name, target=b"" if name == "mail" else A)
    assert push.calls() == [1, 2]
    assert push.calls() == []
    push.delete(1)
    assert push.calls() == [3]
    push.fail(2)
    assert push.calls() == [4]
    give_back_call(push.engine, push.session, 3, push.rig.now_ms)
    assert push.calls() == [3]
    push.rig.play(LEASE_MS)
    assert push.calls() == [2, 5]


@pytest.mark.parametrize("name", ["default", "mail"])
def test_pushes_count_for_the_rate_of_a_topic(push: PushRig, name: str) -> None:
    push.policy("mail", Policy(push=Target(sink="s"), rate_per_s=2))
    push.policy("default", Policy(rate_per_s=2))
    for _ in range(3):
        push.rig.put(name, target=b"" if name == "mail" else A)
    came_ms: list[int] = []
    while len(came_ms) < 3:
        came_ms += [push.rig.time_ms] * len(push.calls())
        push.rig.play(push.rig.time_ms + 50)
    assert came_ms == [0, 500, 1_000]


def test_without_log_space_nothing_is_pushed_until_there_is_some(push: PushRig) -> None:
    push.policy("mail", TO_SINK)
    push.rig.put(target=A)
    push.rig.put("mail")
    space = push.engine.log_space
    space.limit(RESERVE_COST_BYTES - 1, lambda *_: 0)
    assert push.calls() == []
    assert space.is_short
    assert push.fresh() == []
    space.limit(2 * RESERVE_COST_BYTES, lambda *_: 0)
    serve_waiting(push.engine, push.rig.now_ms)
    assert push.calls() == [1, 2]
    assert space.free_bytes == 0


# --- What ends it --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default", "mail"])
def test_a_job_that_was_cancelled_is_not_pushed(push: PushRig, name: str) -> None:
    push.policy("mail", TO_SINK)
    for _ in range(2):
        push.rig.put(name, target=b"" if name == "mail" else A)
    push.delete(1)
    assert push.calls() == [2]
    push.delete(2)
    assert push.calls() == []


@pytest.mark.parametrize("name", ["default", "mail"])
def test_a_cleared_topic_pushes_nothing_but_what_comes_after(push: PushRig, name: str) -> None:
    push.policy("mail", TO_SINK)
    for _ in range(200):
        push.rig.put(name, target=b"" if name == "mail" else A)
    topic = push.engine.store.topic(name)
    assert clear(push.engine, topic) == 200
    check(push.engine)
    assert push.calls() == []
    push.rig.put(name, target=b"" if name == "mail" else A)
    assert push.calls() == [201]
    steps = 0
    while push.engine.store.cleared.left:
        push.engine.store.cleared.sweep(100)
        steps += 1
    assert steps > 10
    push.agrees_with_the_log()


def test_the_lanes_of_a_cleared_topic_are_freed_in_small_steps(push: PushRig) -> None:
    for _ in range(200):
        push.rig.put(target=A)
        push.rig.put(target=B)
    lanes = push.engine.store.topic("default").queues.ready.lanes
    clear(push.engine, push.engine.store.topic("default"))
    assert lanes is not None
    left = []
    while push.engine.store.cleared.left:
        push.engine.store.cleared.sweep(100)
        left.append(sum(map(len, lanes.values())))
    assert left[0] == 400
    assert left[-1] == 0
    assert max(a - b for a, b in pairwise(left)) <= 1 + 100 // 8


def test_a_buried_job_is_pushed_again_when_it_is_kicked(push: PushRig) -> None:
    push.policy("default", Policy(attempts_max=1))
    push.rig.put(target=A)
    push.rig.put(target=B)
    for job_id in push.calls():
        push.fail(job_id)
    assert push.calls() == []
    kick_job(push.engine, 1, push.rig.now_ms)
    assert push.calls() == [1]
    assert kick(push.engine, push.engine.store.topic("default"), 10, push.rig.now_ms) == 1
    assert push.calls() == [2]
    push.agrees_with_the_log()


def test_a_job_that_gets_another_time_or_another_body_is_pushed_then(push: PushRig) -> None:
    push.rig.put(target=A)
    reschedule(push.engine, 1, 1_000, push.rig.now_ms)
    assert push.calls() == []
    change(push.engine, 1, push.rig.now_ms, priority=7, body=b"new")
    push.rig.play(1_000)
    change(push.engine, 1, push.rig.now_ms, priority=9)
    assert push.calls() == [1]


def test_a_job_that_was_moved_is_not_called_by_its_own_url(push: PushRig) -> None:
    push.policy("default", Policy(attempts_max=1, exhausted="failed"))
    push.rig.put(target=A)
    push.calls()
    push.fail(1)
    assert push.calls() == []
    worker = push.rig.client("failed")
    assert push.rig.reserve(worker) == 1
    bury(push.engine, worker, 1, 0, push.rig.now_ms)
    kick_job(push.engine, 1, push.rig.now_ms)
    assert push.calls() == []
    push.policy("failed", TO_SINK)
    assert push.calls() == [1]
    push.agrees_with_the_log()


# --- Policies ------------------------------------------------------------------------------------


def test_a_target_counts_for_the_jobs_that_are_ready_already(push: PushRig) -> None:
    push.rig.put("mail")
    push.rig.put("mail")
    push.policy("mail", TO_URL)
    assert push.calls() == [1, 2]


def test_the_topics_target_wins_over_those_of_its_jobs(push: PushRig) -> None:
    push.rig.put("mail", target=A)
    push.rig.put("mail", target=B)
    heard = take_fresh(push.engine)
    push.policy("mail", TO_URL)
    for lane in heard:
        assert reserve_call(push.engine, push.session, lane, LEASE_MS, push.rig.now_ms) is None
    assert push.fresh() == [("mail", b"")]
    push.policy("mail", None)
    assert push.fresh() == [("mail", ORIGIN_A), ("mail", ORIGIN_B)]
    check(push.engine)


def test_a_job_with_a_url_that_comes_due_where_the_topic_has_a_target_goes_there(
    push: PushRig,
) -> None:
    push.rig.put("mail", target=A, delay_ms=1_000)
    push.policy("mail", TO_URL)
    push.rig.play(1_000)
    assert push.fresh() == [("mail", b"")]
    check(push.engine)


def test_without_its_target_a_topic_pushes_nothing_more(push: PushRig) -> None:
    push.policy("mail", TO_URL)
    push.rig.put("mail")
    (lane,) = take_fresh(push.engine)
    push.policy("mail", Policy(jobs_max=9))
    assert reserve_call(push.engine, push.session, lane, LEASE_MS, push.rig.now_ms) is None
    push.rig.put("mail")
    assert push.calls() == []


def test_of_another_target_the_scheduler_hears_at_once(push: PushRig) -> None:
    """The former one may be out of reach, so that it would not ask for a long time."""
    push.policy("mail", TO_URL)
    push.rig.put("mail")
    assert push.fresh() == [("mail", b"")]
    push.policy("mail", TO_SINK)
    assert push.fresh() == [("mail", b"")]
    push.policy("mail", Policy(push=TO_SINK.push, jobs_max=9))
    assert push.fresh() == []


def test_a_target_set_while_the_topic_is_empty_counts_for_what_comes(push: PushRig) -> None:
    worker = push.rig.client("mail")
    push.rig.put("mail")
    assert push.rig.reserve(worker) == 1
    push.policy("mail", TO_URL)
    push.calls()
    push.rig.put("mail")
    assert push.calls() == [2]


def test_jobs_that_workers_took_while_the_topic_was_full_leave_the_lane_alive(
    push: PushRig,
) -> None:
    push.policy("mail", Policy(push=Target(sink="s"), reserved_max=1))
    push.rig.put("mail")
    push.rig.put("mail")
    assert push.calls() == [1]
    push.delete(2)
    push.delete(1)
    assert push.calls() == []
    push.rig.put("mail")
    assert push.calls() == [3]


# --- Restarts ------------------------------------------------------------------------------------


def test_after_a_restart_the_same_lanes_are_fresh(push: PushRig) -> None:
    push.policy("mail", TO_URL)
    for target in (A, B, A):
        push.rig.put(target=target)
    push.rig.put("mail")
    push.rig.put(delay_ms=50, target=B)
    assert push.calls(jobs_max=1) == [1]
    push.rig.restart()
    push.start()
    check(push.engine)
    heard = take_fresh(push.engine)
    names = [(topic.name, origin) for topic, origin in heard]
    assert sorted(names) == [("default", ORIGIN_A), ("default", ORIGIN_B), ("mail", b"")]
    assert sorted(push.get(heard)) == [2, 3, 4]
    for job_id in (2, 3, 4):
        push.delete(job_id)
    # The job that was being called is held until its lease ends, which is a failed attempt.
    push.rig.play(LEASE_MS)
    assert push.calls() == [5]
    push.rig.play(LEASE_MS + 15_000)
    assert push.calls() == [1]


def test_nothing_is_left_of_a_topic_that_vanished(push: PushRig) -> None:
    lanes = push.engine.store.push_lanes
    for _ in range(3):
        job_id = push.rig.put("gone", target=A)
        push.delete(job_id)
        assert "gone" not in push.engine.store.topics.by_name
        assert (lanes.fresh, lanes.heard, lanes.resting) == ({}, set(), {})
        job_id = push.rig.put("gone", target=A)
        pause(push.engine, "gone", 5_000, push.rig.now_ms)
        assert push.calls() == []
        push.delete(job_id)
        assert (lanes.fresh, lanes.heard, lanes.resting) == ({}, set(), {})
