"""The tasks that deliver: one for each call, within deadlines, whatever a sink does."""

import asyncio
import io
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

import pytest

from delayd.access.topic_rule import TopicRule
from delayd.core.job_record import State
from delayd.core.operations.tick import caught_up
from delayd.core.operations.topics import set_policy
from delayd.core.policy import Policy
from delayd.core.targets import Target
from delayd.limits import (
    BREAKER_FAILURES,
    BREAKER_OPEN_MS,
    PUSH_CLOSE_MS,
    PUSH_LEASE_EXTRA_MS,
    PUSH_LOG_LINES,
    PUSH_LOOK_BYTES_MAX,
    TOPICS_SHOWN_MAX,
)
from delayd.log_lines import Log
from delayd.push.scheduler import PushBounds, Scheduler
from delayd.push.sender import PushCounters, PushSender, SinkTable, checked_end
from delayd.push.sinks import BYTES, DELIVERED, JSON, AttemptEnd, DueJob, Result, content_type_of
from delayd.push.topic_sink import TopicSink
from tests.core.check import check
from tests.push.rig import GONE, OUTAGE, REFUSED, TIMEOUT_MS, URL
from tests.rigs.http import HttpRig

LOG_ID: Final = "0123456789abcdef"
GRACE_MS: Final = 3_000


class HandSink:
    """Notes what it is given, and answers when the test says so."""

    def __init__(self) -> None:
        self.jobs: list[DueJob] = []
        self.answers: dict[int, asyncio.Future[Any]] = {}
        self.cancelled: list[int] = []
        self.is_closed = False

    async def deliver(self, job: DueJob) -> AttemptEnd:
        self.jobs.append(job)
        answer = self.answers[job.id] = asyncio.get_running_loop().create_future()
        try:
            end: AttemptEnd = await answer
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            raise
        return end

    async def close(self) -> None:
        self.is_closed = True


class QuickSink:
    """Does the same with every job, at once."""

    def __init__(self, does: Callable[[DueJob], Awaitable[Any]]) -> None:
        self.does = does
        self.begun = 0

    async def deliver(self, job: DueJob) -> AttemptEnd:
        self.begun += 1
        end: AttemptEnd = await self.does(job)
        return end

    async def close(self) -> None:
        """Nothing is open."""


class SenderRig(HttpRig):
    """The sender in the loop of a daemon in memory; `hand` is the sink of urls."""

    def __init__(
        self, *, calls_max: int = 256, per_place: int = 8, is_checked: bool = True
    ) -> None:
        super().__init__(is_checked=is_checked)
        self.hand = HandSink()
        self.named: dict[str, Any] = {}
        self.sink_rules: dict[str, TopicRule] = {}
        self.engine.vet_target = lambda target: target
        self.scheduler = Scheduler(self.engine, PushBounds(calls_max, per_place, TIMEOUT_MS))
        self.said = io.StringIO()
        self.ahead_ms = 0
        """How far real time is ahead of the clock of the jobs."""
        self.sender = self.loop.run_until_complete(self._made())
        self.turns.on_push = self.sender.on_push
        self.settle()

    async def _made(self) -> PushSender:
        topics = TopicSink(self.engine, self.scheduler.session, self.clock.request_ms)
        return PushSender(
            self.scheduler,
            self.turns,
            self.clock,
            SinkTable(self.hand, topics, self.named, self.sink_rules),
            Log(self.said, self.clock.wall_ms),
            LOG_ID,
            at_ms=lambda: self.clock.now_ms() + self.ahead_ms,
        )

    def sends(self, name: str, host: str = "", /, **push: object) -> None:
        """Let the policy of the topic send its jobs to a host, or wherever `push` says."""
        if host:
            push["url"] = URL.format(host)
        policy = Policy.from_fields({"retry": "1s 2s", "push": push})
        set_policy(self.engine, name, policy, self.clock.request_ms())
        self.turns.ask()
        self.settle()

    def put(self, topic: str, **fields: object) -> int:
        answer = self.ok("POST", f"/v1/topics/{topic}/jobs", {"body": 1, **fields})
        return int(answer["id"])

    def answers(self, job_id: int, end: object = DELIVERED) -> None:
        """Let the sink answer for this job."""
        self.hand.answers.pop(job_id).set_result(end)
        self.settle()

    def state(self, job_id: int) -> State | None:
        if self.engine.store.jobs.get(job_id) is None:
            return None
        return caught_up(self.engine, job_id, self.clock.request_ms())[1]

    def given(self) -> list[int]:
        """The jobs that the sink of urls has been given."""
        return [job.id for job in self.hand.jobs]

    def stop(self, grace_ms: int = GRACE_MS) -> asyncio.Task[None]:
        """Begin to stop."""
        task = self.loop.create_task(self.sender.stop(grace_ms))
        self.settle()
        return task

    def lines(self) -> list[str]:
        """What was logged, without the time."""
        return [line.partition(" ")[2] for line in self.said.getvalue().splitlines()]


@pytest.fixture
def rig() -> Iterator[SenderRig]:
    with SenderRig() as made:
        yield made


# --- What a sink is told -------------------------------------------------------------------------


def test_a_sink_is_told_everything_about_the_job_that_is_due(rig: SenderRig) -> None:
    rig.sends(
        *("mail", "a"),
        headers={"X-Team": "red"},
        secrets=["main"],
        timeout="2s",
        method="PUT",
    )
    job_id = rig.put("mail", delay="5s", key="order-7", body={"a": 1})
    due_ms = rig.clock.now_ms() + 5_001
    rig.clock.advance(5_001 + 20)  # type: ignore[union-attr]
    rig.settle()
    (job,) = rig.hand.jobs
    assert job == DueJob(
        id=job_id,
        message_id=f"{LOG_ID}_{job_id}",
        topic="mail",
        key=b"order-7",
        body=b'{"a": 1}',
        content_type=JSON,
        attempt=1,
        due_ms=due_ms,
        lateness_ms=21,
        timeout_ms=2_000,
        target=Target(
            URL.format("a"),
            method="PUT",
            headers=(("X-Team", "red"),),
            timeout_ms=2_000,
            secrets=("main",),
        ),
    )


def test_the_attempts_of_a_job_are_numbered_and_have_one_message_id(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    job_id = rig.put("mail")
    for _ in range(3):
        rig.answers(job_id, REFUSED)
        rig.pass_ms(2_001)
    assert [(job.attempt, job.message_id) for job in rig.hand.jobs] == [
        (number, f"{LOG_ID}_{job_id}") for number in (1, 2, 3)
    ]


def test_the_time_when_a_job_was_due_is_told_by_the_wall_clock(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    rig.clock.step_wall(3_600_000)  # type: ignore[union-attr]
    rig.put("mail")
    (job,) = rig.hand.jobs
    assert job.due_ms == rig.clock.wall_ms() + 1


def test_what_is_not_known_of_the_wall_clock_lets_no_job_seem_early(
    rig: SenderRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part of a millisecond, or a pause between the readings of two clocks."""
    least_ns, least_ms = rig.clock.wall_offset_ns()[0], rig.clock.wall_at(0)
    offset_ns = (least_ns + 300_000, least_ns + 1_800_000)
    monkeypatch.setattr(rig.clock, "wall_offset_ns", lambda: offset_ns)
    monkeypatch.setattr(rig.clock, "wall_at", lambda time_ms: least_ms + 2 + time_ms)
    rig.sends("mail", "a")
    rig.put("mail")
    (job,) = rig.hand.jobs
    assert job.due_ms == rig.clock.wall_ms() + 1


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b'{"a": [1, 2]}', JSON),
        (b"[" * 100_000, BYTES),
        (b"[" + b" " * PUSH_LOOK_BYTES_MAX + b"]", JSON),
        (b"[" + b" " * PUSH_LOOK_BYTES_MAX + b"}", BYTES),
        (b'"\xff"', BYTES),
        (b"hello", BYTES),
    ],
)
def test_a_body_that_looks_like_json_is_called_so(body: bytes, kind: str) -> None:
    assert content_type_of(body) == kind


def test_the_content_type_of_a_target_comes_before_what_the_body_looks_like(
    rig: SenderRig,
) -> None:
    rig.sends("mail", "a", headers={"content-type": "text/plain"})
    rig.put("mail")
    assert rig.hand.jobs[0].content_type == "text/plain"


def test_a_topic_that_is_a_target_is_given_the_job(rig: SenderRig) -> None:
    rig.sends("mail", topic="next")
    rig.put("mail", body={"a": 1})
    mail, following = (rig.engine.store.topic(name) for name in ("mail", "next"))
    assert (mail.jobs, len(following.queues.ready)) == (0, 1)
    assert rig.sender.counters.took_ms.keys() == {"topic"}


# --- When a call begins and ends -----------------------------------------------------------------


def test_a_call_begins_when_its_reservation_is_durable(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    job_id = rig.put("mail", delay="1s")
    rig.disk.hold()
    rig.pass_ms(1_001)
    assert (rig.state(job_id), rig.given()) == (State.RESERVED, [])
    rig.disk.release()
    rig.settle()
    assert rig.given() == [job_id]


def test_a_call_whose_reservation_ran_out_before_it_was_durable_never_begins(
    rig: SenderRig,
) -> None:
    rig.sends("mail", "a")
    rig.disk.hold()
    rig.send("POST", "/v1/topics/mail/jobs", {"body": 1})
    rig.pass_ms(TIMEOUT_MS + PUSH_LEASE_EXTRA_MS + 1)
    assert rig.state(1) is State.DELAYED
    rig.disk.release()
    rig.settle()
    assert (rig.given(), rig.scheduler.in_flight) == ([], 0)
    rig.pass_ms(1_000)
    assert [(job.id, job.attempt) for job in rig.hand.jobs] == [(1, 2)]
    rig.answers(1)
    assert rig.state(1) is None


def test_of_two_calls_that_become_durable_at_once_the_later_one_alone_begins(
    rig: SenderRig,
) -> None:
    rig.sends("mail", "a")
    rig.disk.hold()
    rig.send("POST", "/v1/topics/mail/jobs", {"body": 1})
    rig.pass_ms(TIMEOUT_MS + PUSH_LEASE_EXTRA_MS + 1)
    rig.pass_ms(1_000)
    rig.disk.release()
    rig.settle()
    assert [(job.id, job.attempt) for job in rig.hand.jobs] == [(1, 2)]
    assert rig.scheduler.in_flight == 1


def test_a_call_that_begins_late_ends_with_its_reservation(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    rig.disk.hold()
    rig.send("POST", "/v1/topics/mail/jobs", {"body": 1})
    rig.pass_ms(TIMEOUT_MS)
    rig.disk.release()
    rig.settle()
    assert rig.given() == [1]
    rig.pass_ms(PUSH_LEASE_EXTRA_MS + 1)
    assert rig.hand.cancelled == [1]


def test_what_a_sink_says_is_recorded(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    jobs = [rig.put("mail") for _ in range(3)]
    for job_id, end in zip(jobs, (DELIVERED, REFUSED, GONE), strict=True):
        rig.answers(job_id, end)
    states = [rig.state(job_id) for job_id in jobs]
    assert states == [None, State.DELAYED, State.BURIED]
    again = rig.after_restart()
    check(again)
    assert [again.store.jobs.get(job_id) is None for job_id in jobs] == [True, False, False]


def test_the_next_call_begins_when_one_has_ended() -> None:
    with SenderRig(per_place=1) as rig:
        rig.sends("mail", "a")
        first, second = rig.put("mail"), rig.put("mail")
        assert rig.given() == [first]
        rig.answers(first)
        assert rig.given() == [first, second]


def test_an_attempt_that_gets_no_answer_in_time_has_failed_and_is_cancelled(
    rig: SenderRig,
) -> None:
    rig.sends("mail", "a", timeout="2s")
    job_id = rig.put("mail")
    rig.pass_ms(1_999)
    assert rig.state(job_id) is State.RESERVED
    rig.pass_ms(1)
    assert (rig.state(job_id), rig.hand.cancelled) == (State.DELAYED, [job_id])
    assert rig.sender.counters.by_topic["mail"][Result.FAILED] == 1
    assert rig.scheduler.in_flight == 0


def test_an_answer_at_the_deadline_counts_once() -> None:
    with SenderRig() as rig:
        rig.sends("mail", "a", timeout="2s")
        job_id = rig.put("mail")
        rig.hand.answers[job_id].set_result(DELIVERED)
        rig.pass_ms(2_000)
        assert rig.state(job_id) is None
        assert sum(rig.sender.counters.by_topic["mail"].values()) == 1


def test_when_a_breaker_lets_a_probe_through_it_is_made_without_anything_else_happening(
    rig: SenderRig,
) -> None:
    rig.sends("mail", "a")
    jobs = [rig.put("mail") for _ in range(BREAKER_FAILURES)]
    for job_id in jobs:
        rig.answers(job_id, OUTAGE)
    waiting = rig.put("mail")
    assert waiting not in rig.given()
    rig.pass_ms(BREAKER_OPEN_MS)
    assert waiting in rig.given()


def test_a_call_makes_one_task_and_one_timer_and_a_waiting_job_makes_neither() -> None:
    with SenderRig(per_place=2) as rig:
        rig.sends("mail", "a")
        for _ in range(50):
            rig.put("mail")
        tasks = asyncio.all_tasks(rig.loop)
        assert len([task for task in tasks if "_delivered" in repr(task)]) == 2
        timers = [timer for timer in rig.loop._scheduled if "_expire" in repr(timer)]  # type: ignore[attr-defined]
        assert len(timers) == 2


# --- Sinks that do what they should not -----------------------------------------------------------


async def raising(_job: DueJob) -> None:
    raise RuntimeError("no route to\nhost")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


async def raising_what_says_nothing(_job: DueJob) -> None:
    raise Unspeakable


async def leaving(_job: DueJob) -> None:
    raise SystemExit(3)


async def cancelling(_job: DueJob) -> None:
    raise asyncio.CancelledError


async def saying_nonsense(_job: DueJob) -> str:
    return "delivered"


async def saying_more_nonsense(_job: DueJob) -> AttemptEnd:
    return AttemptEnd("delivered")  # type: ignore[arg-type]


async def ignoring_its_end(_job: DueJob) -> None:
    while True:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize(
    ("does", "error"),
    [
        (raising, "RuntimeError: no route to"),
        (raising_what_says_nothing, "Unspeakable"),
        (leaving, "SystemExit: 3"),
        (cancelling, "the sink has cancelled itself"),
        (saying_nonsense, "the sink has returned 'delivered' instead of an AttemptEnd"),
        (saying_more_nonsense, "the sink has returned AttemptEnd(result='delivered', error='', "),
    ],
)
def test_whatever_a_sink_does_is_a_failed_attempt(
    rig: SenderRig, does: Callable[[DueJob], Awaitable[Any]], error: str
) -> None:
    rig.named["odd"] = QuickSink(does)
    rig.sends("mail", sink="odd")
    job_id = rig.put("mail")
    assert rig.state(job_id) is State.DELAYED
    said = rig.ok("GET", f"/v1/jobs/{job_id}")
    assert error in str(said)
    for _ in range(BREAKER_FAILURES - 1):
        rig.put("mail")
    begun = rig.named["odd"].begun
    rig.put("mail")
    assert rig.named["odd"].begun == begun == BREAKER_FAILURES, "the breaker is open"


def test_no_sink_can_return_what_is_no_end_of_an_attempt() -> None:
    good = AttemptEnd(Result.FAILED, "no", b"answer", 5, True)
    assert checked_end(good) is good
    for wrong in (None, object(), good._replace(retry_after_ms=-1)):
        assert checked_end(wrong).error.startswith("the sink has returned ")
        assert len(checked_end(wrong).error) < 200


def test_a_sink_that_is_not_configured_any_more_is_a_failed_attempt(rig: SenderRig) -> None:
    rig.sends("mail", sink="former")
    job_id = rig.put("mail")
    assert rig.state(job_id) is State.DELAYED
    assert "the configuration has no sink former" in str(rig.ok("GET", f"/v1/jobs/{job_id}"))
    assert rig.sender.counters.by_topic["mail"][Result.FAILED] == 1


def test_no_error_of_a_sink_has_the_password_or_query_of_a_url(rig: SenderRig) -> None:
    async def raises(_job: DueJob) -> AttemptEnd:
        raise OSError("no route to amqp://ada:s3cret@host:5672/v and https://a.example/?s3cret")

    async def fails(_job: DueJob) -> AttemptEnd:
        return AttemptEnd(Result.FAILED, "no answer of amqp://ada:s3cret@host:5672/v")

    for name, does in (("raises", raises), ("fails", fails)):
        rig.named[name] = QuickSink(does)
        rig.sends(name, sink=name)
        ids = [rig.put(name) for _ in range(BREAKER_FAILURES)]
        told = str(rig.ok("GET", f"/v1/jobs/{ids[0]}"))
        assert "amqp://***@host:5672/v" in told
        assert "s3cret" not in told + rig.said.getvalue()


def test_a_sink_that_is_not_for_the_topic_is_a_failed_attempt_and_serves_others(
    rig: SenderRig,
) -> None:
    """The policy was set before the sink had topics."""

    async def takes(_job: DueJob) -> AttemptEnd:
        return DELIVERED

    rig.named["b"] = QuickSink(takes)
    rig.sink_rules["b"] = TopicRule(("b*",))
    for topic in ("a", "b1"):
        rig.sends(topic, sink="b")
    ids = [rig.put("a") for _ in range(BREAKER_FAILURES)]
    assert {rig.state(job_id) for job_id in ids} == {State.DELAYED}
    said = "sink 'b' is for the topics b*, and not for 'a'"
    assert said in str(rig.ok("GET", f"/v1/jobs/{ids[0]}"))
    rig.put("b1")
    assert rig.named["b"].begun == 1
    assert rig.sender.counters.by_topic["b1"][Result.DELIVERED] == 1


def test_a_task_that_ignores_its_end_keeps_its_place_and_nothing_else() -> None:
    with SenderRig(calls_max=1, per_place=1) as rig:
        rig.named["deaf"] = QuickSink(ignoring_its_end)
        rig.sends("mail", sink="deaf")
        rig.sends("bulk", "a")
        job_id = rig.put("mail")
        other = rig.put("bulk")
        assert rig.given() == [], "one call is the most"
        rig.pass_ms(TIMEOUT_MS)
        assert (rig.state(job_id), rig.given()) == (State.DELAYED, [other])
        rig.pass_ms(60_000)
        assert rig.named["deaf"].begun == 1
        rig.answers(other)
        stopping = rig.stop()
        assert not stopping.done()
        rig.pass_ms(PUSH_CLOSE_MS)
        assert stopping.done()
        assert rig.sender.has_strays
        let_go(rig)


def let_go(rig: SenderRig) -> None:
    """Forget tasks that never end, as the end of the process does."""
    for task in asyncio.all_tasks(rig.loop):
        task._log_destroy_pending = False  # type: ignore[attr-defined]


# --- The end -------------------------------------------------------------------------------------


def test_a_stop_lets_calls_under_way_end_and_begins_no_other() -> None:
    with SenderRig(per_place=1) as rig:
        rig.sends("mail", "a")
        first, second = rig.put("mail"), rig.put("mail")
        stopping = rig.stop()
        rig.answers(first)
        assert stopping.done()
        assert (rig.state(first), rig.state(second)) == (None, State.READY)
        assert (rig.given(), rig.hand.is_closed) == ([first], True)


def test_what_is_said_during_a_stop_is_recorded_at_once(
    rig: SenderRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.sends("mail", "a")
    first, second = rig.put("mail"), rig.put("mail")
    stopping = rig.stop()
    asked: list[State | None] = []
    monkeypatch.setattr(rig.turns, "ask", lambda: asked.append(rig.state(first)))
    rig.answers(first)
    assert (asked, stopping.done()) == ([None], False), "it would have waited for the next timer"
    monkeypatch.undo()
    rig.answers(second)


def test_an_answer_at_the_end_of_the_grace_period_counts(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    job_id = rig.put("mail")
    stopping = rig.stop()
    rig.loop.call_soon(rig.hand.answers[job_id].set_result, DELIVERED)
    rig.pass_ms(GRACE_MS)
    assert (stopping.done(), rig.state(job_id)) == (True, None)
    assert rig.sender.counters.by_topic["mail"][Result.DELIVERED] == 1


def test_calls_that_take_longer_than_the_grace_period_are_given_back_uncounted(
    rig: SenderRig,
) -> None:
    rig.sends("mail", "a")
    job_id = rig.put("mail")
    stopping = rig.stop()
    rig.pass_ms(GRACE_MS - 1)
    assert not stopping.done()
    rig.pass_ms(1)
    assert stopping.done()
    assert (rig.state(job_id), rig.hand.cancelled) == (State.READY, [job_id])
    assert not rig.sender.has_strays
    assert rig.sender.counters.by_topic == {}
    again = rig.after_restart()
    assert caught_up(again, job_id, rig.clock.request_ms())[1] is State.READY


def test_calls_that_wait_for_the_disk_at_a_stop_are_given_back_and_never_begun(
    rig: SenderRig,
) -> None:
    rig.sends("mail", "a")
    job_id = rig.put("mail", delay="1s")
    rig.disk.hold()
    rig.pass_ms(1_001)
    stopping = rig.stop()
    assert (stopping.done(), rig.state(job_id)) == (True, State.READY)
    rig.disk.release()
    rig.settle()
    assert (rig.given(), rig.state(job_id)) == ([], State.READY)


def test_a_stop_with_nothing_under_way_takes_no_time(rig: SenderRig) -> None:
    assert rig.stop().done()


def test_an_abort_records_nothing_any_more(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    job_id = rig.put("mail")
    frames = len(rig.disk.frames)
    rig.sender.abort()
    rig.settle()
    assert (rig.state(job_id), len(rig.disk.frames)) == (State.RESERVED, frames)


# --- The log and figures -------------------------------------------------------------------------


def test_places_that_fail_and_succeed_again_are_logged_without_what_may_be_secret(
    rig: SenderRig,
) -> None:
    rig.sends("mail", url="https://a.example:443/secret?token=1")
    jobs = [rig.put("mail") for _ in range(BREAKER_FAILURES)]
    for job_id in jobs:
        rig.answers(job_id, OUTAGE._replace(answer=b"private"))
    rig.pass_ms(BREAKER_OPEN_MS + 1)
    rig.answers(rig.hand.jobs[-1].id)
    where = 'place="https://a.example:443" topic="mail"'
    failing = (
        "warning deliveries fail: jobs of this topic for this place wait"
        f' {where} reason="503 Service Unavailable"'
    )
    assert rig.lines() == [failing, f"info deliveries succeed again {where}"]


def test_so_many_lines_are_logged_in_a_minute_and_no_more() -> None:
    with SenderRig(is_checked=False) as rig:
        rig.named["odd"] = QuickSink(raising)
        for number in range(PUSH_LOG_LINES + 5):
            rig.sends(f"t{number}", sink="odd", concurrency=BREAKER_FAILURES)
            for _ in range(BREAKER_FAILURES):
                rig.put(f"t{number}")
        assert len(rig.lines()) == PUSH_LOG_LINES
        assert 'place="sink:odd" topic="t0"' in rig.lines()[0]


def test_attempts_are_counted_by_topic_and_result_and_timed_by_sink(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    jobs = [rig.put("mail") for _ in range(3)]
    rig.pass_ms(30)
    for job_id, end in zip(jobs, (DELIVERED, DELIVERED, GONE), strict=True):
        rig.answers(job_id, end)
    counts = rig.sender.counters
    assert counts.by_topic["mail"] == {
        Result.DELIVERED: 2,
        Result.FAILED: 0,
        Result.EXHAUSTED: 1,
    }
    assert (sum(counts.took_ms["url"].counts[:-1]), counts.took_ms["url"].counts[-1]) == (3, 90)


def test_the_figures_tell_what_goes_on_and_what_was(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    jobs = [rig.put("mail") for _ in range(BREAKER_FAILURES + 1)]
    for job_id in jobs[1:]:
        rig.answers(job_id, OUTAGE)
    attempts = {"delivered": 0, "failed": BREAKER_FAILURES, "exhausted": 0}
    places = {"closed": 0, "open": 1, "half_open": 0}
    assert rig.sender.stats() == {"under_way": 1, "attempts": attempts, "places": places}
    by_topic, under_way, states, took_ms = rig.sender.figures("other topics")
    assert by_topic == {"mail": attempts, "other topics": dict.fromkeys(attempts, 0)}
    assert (under_way, states, [*took_ms]) == (1, places, ["url"])


def test_topics_beyond_the_bound_are_counted_together() -> None:
    counters = PushCounters()
    for number in range(TOPICS_SHOWN_MAX + 3):
        counters.note(f"t{number}", "url", Result.DELIVERED, 1)
    assert (len(counters.by_topic), counters.others[Result.DELIVERED]) == (TOPICS_SHOWN_MAX, 3)
