"""The tasks that deliver: one for each call, within deadlines, whatever a sink does."""

import asyncio
import contextlib
import io
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from delayd import limits
from delayd.access.topic_rule import TopicRule
from delayd.core.engine import Engine
from delayd.core.job_parts import note_of
from delayd.core.job_record import State
from delayd.core.operations.tick import caught_up
from delayd.core.operations.topics import set_policy
from delayd.core.policy import Policy
from delayd.core.targets import Target
from delayd.log_lines import Log
from delayd.push.scheduler import PushBounds, Scheduler
from delayd.push.sender import PushCounters, PushSender, SinkTable, checked_end
from delayd.push.sinks import BYTES, DELIVERED, JSON, AttemptEnd, DueJob, Result, content_type_of
from delayd.push.topic_sink import TopicSink
from tests.core.check import check
from tests.fact_rows import rows
from tests.push.bench import GONE, OUTAGE, REFUSED, TIMEOUT_MS, URL
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
    """The sender in the loop of a daemon in memory; `hand` is the sink of urls.

    `take` are the steps of senders.txt, and `look` what is seen after one.
    """

    ENDS: Final = {"delivered": DELIVERED, "refused": REFUSED, "gone": GONE, "outage": OUTAGE}
    TIMES_MS: Final = {
        "timeout": TIMEOUT_MS,
        "extra": limits.PUSH_LEASE_EXTRA_MS + 1,
        "lease": TIMEOUT_MS + limits.PUSH_LEASE_EXTRA_MS + 1,
        "grace": GRACE_MS,
    }

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
        self.stopping: asyncio.Task[None] | None = None
        self._seen = [0, 0]
        self._frames = 0
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
            at_ms=self.clock.now_ms,
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

    # --- Steps of a text --------------------------------------------------------------------------

    def take(self, said: str) -> object:
        act, *words = said.split()
        given = dict(word.split("=") for word in words if "=" in word)
        words = [word for word in words if "=" not in word]
        match act:
            case "sends":
                self.sends(words[0], "" if {"sink", "topic"} & {*given} else "a", **given)
            case "sink":  # that takes all jobs, of these topics alone
                self.named[words[0]] = doing(DELIVERED)
                self.sink_rules[words[0]] = TopicRule((words[1],))
            case "put":
                self.put(*words, **given)
            case "posts":
                self.send("POST", f"/v1/topics/{words[0]}/jobs", {"body": 1})
            case "wait":
                self.pass_ms(self.TIMES_MS.get(words[0]) or int(words[0]))
            case "hold":
                self.disk.hold()
            case "release":
                self.disk.release()
                self.settle()
            case "step_wall":
                self.clock.step_wall(int(words[0]))  # type: ignore[union-attr]
            case "says":
                self.answers(int(words[0]), self.ENDS[words[1]])
            case "has_said":
                self.hand.answers[int(words[0])].set_result(self.ENDS[words[1]])
            case "soon":
                answer = self.hand.answers[int(words[0])]
                self.loop.call_soon(answer.set_result, self.ENDS[words[1]])
            case "stop":
                self.stopping = self.stop()
            case "abort":
                self.sender.abort()
                self.settle()
            case "restart":
                again = self.after_restart()
                check(again)
                return self.states(again)
            case _:
                return self.shown(act, *words)
        return None

    def shown(self, what: str, *words: str) -> object:
        counters = self.sender.counters.by_topic
        match what:
            case "in_flight":
                return self.scheduler.in_flight
            case "message_ids":
                return " ".join({job.message_id for job in self.hand.jobs})
            case "counted":
                counts = counters.get(words[0], {})
                return " ".join(f"{end.value}={count}" for end, count in counts.items() if count)
            case "timed":
                took_ms = self.sender.counters.took_ms
                return " ".join(
                    f"{sink} {sum(took.counts[:-1])} in {took.counts[-1]}"
                    for sink, took in took_ms.items()
                )
            case "error":
                record = self.engine.store.jobs.get(int(words[0]))
                note = None if record is None else note_of(record)
                return "" if note is None else note.error
            case "after_due":
                return self.clock.wall_ms() - self.hand.jobs[-1].due_ms
            case "frames":
                before, self._frames = self._frames, len(self.disk.frames)
                return self._frames - before
        raise AssertionError(what)

    def states(self, engine: Engine) -> str:
        jobs, now_ms = engine.store.jobs, self.clock.request_ms()
        numbers = range(1, self.engine.store.counters.jobs_put + 1)
        return ", ".join(
            f"{n} {caught_up(engine, n, now_ms)[1].name.lower() if jobs.get(n) else 'gone'}"
            for n in numbers
        )

    def look(self) -> str:
        given, cancelled = self._seen
        self._seen = [len(self.hand.jobs), len(self.hand.cancelled)]
        calls = " ".join(f"{job.id}#{job.attempt}" for job in self.hand.jobs[given:])
        ended = " ".join(map(str, self.hand.cancelled[cancelled:]))
        told = [
            self.states(self.engine),
            calls and f"given {calls}",
            ended and f"cancelled {ended}",
        ]
        if self.stopping and self.stopping.done():
            assert self.hand.is_closed
            assert not self.sender.has_strays
            told.append("stopped")
        return ", ".join(filter(None, told))


FACTS: Final = dict(rows(Path(__file__).parent / "senders.txt"))


@pytest.mark.parametrize("name", FACTS)
def test_fact(name: str) -> None:
    given = FACTS[name].given.split("; ")
    words = [step.partition("=") for step in given if " " not in step and "=" in step]
    bounds: dict[str, Any] = {word: int(value) for word, _, value in words}
    with SenderRig(**bounds) as bench:
        for step in given[len(bounds) :]:
            if step:
                bench.take(step)
        for steps, outcome in FACTS[name].then:
            *others, last = steps.split("; ")
            for step in others:
                bench.take(step)
            returned = bench.take(last)
            assert str(bench.look() if returned is None else returned) == outcome


@pytest.fixture
def rig() -> Iterator[SenderRig]:
    with SenderRig() as made:
        yield made


# --- What a sink is told -------------------------------------------------------------------------


def test_a_number_that_is_given_again_after_a_restore_makes_another_message() -> None:
    messages = set()
    for after_ms in (0, 1):
        with SenderRig() as restored:
            restored.clock.advance(after_ms)  # type: ignore[union-attr]
            restored.sends("mail", "a")
            assert restored.put("mail") == 1
            restored.settle()
            messages.add(restored.hand.jobs[0].message_id)
    assert len(messages) == 2


def test_a_sink_is_told_everything_about_the_job_that_is_due(rig: SenderRig) -> None:
    rig.sends(
        *("mail", "a"),
        headers={"X-Team": "red"},
        secrets=["main"],
        timeout="2s",
        method="PUT",
    )
    put_ms = rig.clock.request_ms()
    job_id = rig.put("mail", delay="5s", key="order-7", body={"a": 1})
    due_ms = rig.clock.now_ms() + 5_001
    rig.clock.advance(5_001 + 20)  # type: ignore[union-attr]
    rig.settle()
    (job,) = rig.hand.jobs
    assert job == DueJob(
        id=job_id,
        message_id=f"{LOG_ID}_{put_ms:x}_{job_id}",
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
        (b"[" + b" " * limits.PUSH_LOOK_BYTES_MAX + b"]", JSON),
        (b"[" + b" " * limits.PUSH_LOOK_BYTES_MAX + b"}", BYTES),
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


# --- When a call begins and ends -----------------------------------------------------------------


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


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even that")


def doing(what: Any) -> QuickSink:  # noqa: ANN401 - whatever a sink may do
    """A sink that raises this, or returns it."""

    async def does(_job: DueJob) -> object:
        if isinstance(what, BaseException):
            raise what
        return what

    return QuickSink(does)


async def ignoring_its_end(_job: DueJob) -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


@pytest.mark.parametrize(
    ("what", "error"),
    [
        (RuntimeError("no route to\nhost"), "RuntimeError: no route to"),
        (Unspeakable(), "Unspeakable"),
        (SystemExit(3), "SystemExit: 3"),
        (asyncio.CancelledError(), "the sink has cancelled itself"),
        ("delivered", "the sink has returned 'delivered' instead of an AttemptEnd"),
        (
            AttemptEnd("delivered"),  # type: ignore[arg-type]
            "the sink has returned AttemptEnd(result='delivered', error='', ",
        ),
    ],
)
def test_whatever_a_sink_does_is_a_failed_attempt(rig: SenderRig, what: object, error: str) -> None:
    rig.named["odd"] = doing(what)
    rig.sends("mail", sink="odd")
    job_id = rig.put("mail")
    assert rig.state(job_id) is State.DELAYED
    said = rig.ok("GET", f"/v1/jobs/{job_id}")
    assert error in str(said)
    for _ in range(limits.BREAKER_FAILURES - 1):
        rig.put("mail")
    begun = rig.named["odd"].begun
    rig.put("mail")
    assert rig.named["odd"].begun == begun == limits.BREAKER_FAILURES, "the breaker is open"


def test_no_sink_can_return_what_is_no_end_of_an_attempt() -> None:
    good = AttemptEnd(Result.FAILED, "no", b"answer", 5, True)
    assert checked_end(good) is good
    for wrong in (None, object(), good._replace(retry_after_ms=-1)):
        assert checked_end(wrong).error.startswith("the sink has returned ")
        assert len(checked_end(wrong).error) < 200


def test_no_error_of_a_sink_has_the_password_or_query_of_a_url(rig: SenderRig) -> None:
    raises = OSError("no route to amqp://ada:s3cret@host:5672/v and https://a.example/?s3cret")
    fails = AttemptEnd(Result.FAILED, "no answer of amqp://ada:s3cret@host:5672/v")
    for name, what in (("raises", raises), ("fails", fails)):
        rig.named[name] = doing(what)
        rig.sends(name, sink=name)
        ids = [rig.put(name) for _ in range(limits.BREAKER_FAILURES)]
        told = str(rig.ok("GET", f"/v1/jobs/{ids[0]}"))
        assert "amqp://***@host:5672/v" in told
        assert "s3cret" not in told + rig.said.getvalue()


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
        rig.pass_ms(limits.PUSH_CLOSE_MS)
        assert stopping.done()
        assert rig.sender.has_strays
        for task in asyncio.all_tasks(rig.loop):  # which never end but with the process
            task._log_destroy_pending = False  # type: ignore[attr-defined]


# --- The end -------------------------------------------------------------------------------------


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


# --- The log and figures -------------------------------------------------------------------------


def test_places_that_fail_and_succeed_again_are_logged_without_what_may_be_secret(
    rig: SenderRig,
) -> None:
    rig.sends("mail", url="https://a.example:443/secret?token=1")
    jobs = [rig.put("mail") for _ in range(limits.BREAKER_FAILURES)]
    for job_id in jobs:
        rig.answers(job_id, OUTAGE._replace(answer=b"private"))
    rig.pass_ms(limits.BREAKER_OPEN_MS + 1)
    rig.answers(rig.hand.jobs[-1].id)
    where = 'place="https://a.example:443" topic="mail"'
    failing = (
        "warning deliveries fail: jobs of this topic for this place wait"
        f' {where} reason="503 Service Unavailable"'
    )
    assert rig.lines() == [failing, f"info deliveries succeed again {where}"]


@pytest.mark.thorough
def test_so_many_lines_are_logged_in_a_minute_and_no_more() -> None:
    with SenderRig(is_checked=False) as rig:
        rig.named["odd"] = doing(OSError("no route"))

        def fails(topic: str) -> None:
            rig.sends(topic, sink="odd", concurrency=limits.BREAKER_FAILURES)
            for _ in range(limits.BREAKER_FAILURES):
                rig.put(topic)

        for number in range(limits.PUSH_LOG_LINES + 5):
            fails(f"t{number}")
        assert len(rig.lines()) == limits.PUSH_LOG_LINES
        assert 'place="sink:odd" topic="t0"' in rig.lines()[0]
        rig.pass_ms(limits.PUSH_LOG_MS)
        fails("later")
        assert len(rig.lines()) == limits.PUSH_LOG_LINES + 1


def test_the_figures_tell_what_goes_on_and_what_was(rig: SenderRig) -> None:
    rig.sends("mail", "a")
    jobs = [rig.put("mail") for _ in range(limits.BREAKER_FAILURES + 1)]
    for job_id in jobs[1:]:
        rig.answers(job_id, OUTAGE)
    attempts = {"delivered": 0, "failed": limits.BREAKER_FAILURES, "exhausted": 0}
    places = {"closed": 0, "open": 1, "half_open": 0}
    assert rig.sender.stats() == {"under_way": 1, "attempts": attempts, "places": places}
    by_topic, under_way, states, took_ms = rig.sender.figures("other topics")
    assert by_topic == {"mail": attempts, "other topics": dict.fromkeys(attempts, 0)}
    assert (under_way, states, [*took_ms]) == (1, places, ["url"])


def test_topics_beyond_the_bound_are_counted_together() -> None:
    counters = PushCounters()
    for number in range(limits.TOPICS_SHOWN_MAX + 3):
        counters.note(f"t{number}", "url", Result.DELIVERED, 1)
    assert (len(counters.by_topic), counters.others[Result.DELIVERED]) == (
        limits.TOPICS_SHOWN_MAX,
        3,
    )
