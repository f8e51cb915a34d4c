"""Delivers: one task for each call that is under way, begun when its reservation is durable.

    turn: something is ready ─► take_calls ─► commit ─► start: a task and a deadline for each
                                   ▲                        │
                                   └──── settle, release ◄──┘ the sink's answer, or the deadline

A sink's error cannot harm anything else: any exception or result is turned into an `AttemptEnd`.
When the deadline passes, the attempt has failed at once, and its task is cancelled; a task that
goes on only keeps its place at this target until it ends. A stop waits for calls for the grace
period, then gives their jobs back, and waits for no task.

Deadlines, breakers and rates count in real time, also where the clock of the jobs is virtual.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from delayd.access.topic_rule import TopicRule
from delayd.clock import NS_PER_MS, Clock
from delayd.core.errors import NotForTopic
from delayd.core.job_parts import body_of, key_of
from delayd.core.job_record import CREATED_AT, DUE_AT, U64
from delayd.core.retry import attempt_number
from delayd.core.stats.histogram import Histogram
from delayd.core.targets import Target
from delayd.core.throttle import PushBlock
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.durations import duration_text
from delayd.limits import (
    PUSH_BEGUN_PER_PASS,
    PUSH_BOUNDS_MS,
    PUSH_CLOSE_MS,
    PUSH_LOG_LINES,
    PUSH_LOG_MS,
    TOPICS_SHOWN_MAX,
)
from delayd.log_lines import Log
from delayd.push.breaker import BreakerState
from delayd.push.scheduler import PushCall, Scheduler
from delayd.push.sinks import AttemptEnd, DueJob, Result, Sink, content_type_of
from delayd.push.task_gate import Gate
from delayd.text import hide_in_urls

_SHOWN_CHARACTERS: Final = 80


class PushTurns(Protocol):
    """The turns, as far as the sender needs them."""

    def when_durable(self, callback: Callable[[], object]) -> None:
        """Call back when all changes so far are as durable as the policy promises."""

    def ask(self) -> None:
        """Take the next turn at once."""

    def wake_loop(self) -> None:
        """Have asyncio check its timers and callbacks."""


@dataclass(slots=True, eq=False)
class SinkTable:
    """The sinks of a daemon, found by a target."""

    _webhook: Sink
    _topic: Sink
    _named: Mapping[str, Sink]
    """Those of the configuration."""
    _rules: Mapping[str, TopicRule]
    """The topics that may use them."""

    def find(self, target: Target, topic: str) -> tuple[str, Sink]:
        """Return the sink of a target of this topic, and its label.

        `LookupError` when there is none, `NotForTopic`.
        """
        if target.url:
            return "url", self._webhook
        if target.topic:
            return "topic", self._topic
        if target.sink in self._rules:
            self._rules[target.sink].require(f"sink {target.sink!r}", topic, "sink")
        return target.sink, self._named[target.sink]

    async def close(self) -> None:
        """Close all of them, also if one raises."""
        sinks = (self._webhook, self._topic, *self._named.values())
        await asyncio.gather(*(sink.close() for sink in sinks), return_exceptions=True)


@dataclass(slots=True, eq=False)
class _Underway:
    """A call under way."""

    call: PushCall
    sink: str
    begun_ms: int
    deadline: asyncio.TimerHandle
    is_settled: bool = False


class PushCounters:
    """Counts attempts that have ended: by topic and result, and how long they took.

    The first topics with deliveries are counted by name, all others together, so that a scrape is
    bounded however many topics there are.
    """

    def __init__(self) -> None:
        self.by_topic: Final[dict[str, dict[Result, int]]] = {}
        self.others: Final = dict.fromkeys(Result, 0)
        """The counts of all topics that are not in `by_topic`."""
        self.took_ms: Final[dict[str, Histogram]] = {}
        """Sink → how long its attempts took, with any result."""

    def note(self, topic: str, sink: str, result: Result, took_ms: int) -> None:
        """Count an attempt that has ended; exhausted: it has made its job a dead letter."""
        counts = self.by_topic.get(topic)
        if counts is None:
            counts = self.others
            if len(self.by_topic) < TOPICS_SHOWN_MAX:
                counts = self.by_topic[topic] = dict.fromkeys(Result, 0)
        counts[result] += 1
        histogram = self.took_ms.get(sink)
        if histogram is None:
            histogram = self.took_ms[sink] = Histogram(PUSH_BOUNDS_MS)
        histogram.note(took_ms)


class PushSender:
    """Begins calls and takes their answers, in the loop that is running."""

    def __init__(
        self,
        scheduler: Scheduler,
        turns: PushTurns,
        clock: Clock,
        sinks: SinkTable,
        log: Log,
        log_id: str,
        *,
        at_ms: Callable[[], int],
    ) -> None:
        """`log_id` distinguishes this daemon's jobs from those of all others.

        `at_ms` is a clock that never stops, in the time of the loop.
        """
        self.scheduler: Final = scheduler
        self._turns = turns
        self._clock = clock
        self._sinks = sinks
        self._log = log
        self._log_id = log_id
        self._at_ms = at_ms
        self._loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[AttemptEnd], _Underway] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._gate = Gate(PUSH_BEGUN_PER_PASS)
        self._lines_since_ms = 0
        self._lines = 0
        self.counters: Final = PushCounters()

    # --- Beginning calls -------------------------------------------------------------------------

    def on_push(self, now_ms: RequestMs) -> None:
        """Begin the calls that may begin; in a turn, or between two."""
        scheduler = self.scheduler
        at_ms = self._at_ms()
        calls = scheduler.take_calls(now_ms, at_ms)
        if calls:
            self._turns.when_durable(functools.partial(self._start, calls))
        wake_ms = at_ms if scheduler.has_more else scheduler.wake_ms
        if wake_ms is not None and (self._timer is None or wake_ms < self._timer_ms):
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ms = wake_ms
            self._timer = self._loop.call_later((wake_ms - at_ms) / 1_000, self._wake)
            self._turns.wake_loop()

    def _wake(self) -> None:
        self._timer = None
        self._go_on()

    def _go_on(self) -> None:
        """Begin further calls after one has ended outside of a turn."""
        self.on_push(self._clock.request_ms())
        self._turns.ask()
        for turned in self.scheduler.take_turned():
            if self._may_log():
                where = {"place": turned.host, "topic": turned.topic}
                if turned.is_open:
                    text = "deliveries fail: jobs of this topic for this place wait"
                    self._log.warning(text, **where, reason=turned.reason)
                else:
                    self._log.info("deliveries succeed again", **where)

    def _start(self, calls: list[PushCall]) -> None:
        """Begin calls whose reservations are durable."""
        if self.scheduler.is_stopping:
            return  # their jobs are given back by the stop
        now_ms = self._clock.request_ms()
        at_ms = self._at_ms()
        # Rounded down: no job seems early to a receiver that compares.
        ahead_ms = self._clock.wall_offset_ns()[0] // NS_PER_MS
        for call in calls:
            left_ms = self.scheduler.left_ms(call)
            if not left_ms:  # the disk took so long that the lease has ended
                self.scheduler.settle(call, None, now_ms, at_ms)
                self._drop(call)
                continue
            # An answer after the end of its reservation would be of no use.
            call.timeout_ms = min(call.timeout_ms, left_ms)
            try:
                label, sink = self._sinks.find(call.target, call.topic)
            except (LookupError, NotForTopic) as error:
                self._conclude(call, _end_without_sink(call, error), call.target.sink, 0)
                self._drop(call)
                continue
            job = self._due_job(call, now_ms, ahead_ms)
            task = self._loop.create_task(_delivered(self._gate, sink, job))
            deadline = self._loop.call_later(call.timeout_ms / 1_000, self._expire, task)
            self._tasks[task] = _Underway(call, label, at_ms, deadline)
            task.add_done_callback(self._ended)

    def _due_job(self, call: PushCall, now_ms: RequestMs, wall_ahead_ms: int) -> DueJob:
        """Return the job for a sink; `wall_ahead_ms` is the wall clock minus delayd time."""
        record, body = call.record, body_of(call.record)
        due_ms: int = U64.unpack_from(record, DUE_AT)[0]
        created_ms: int = U64.unpack_from(record, CREATED_AT)[0]
        return DueJob(
            id=call.job_id,
            # With the time of the put: a log that is restored from a backup gives numbers again.
            message_id=f"{self._log_id}_{created_ms:x}_{call.job_id}",
            topic=call.topic,
            key=key_of(record),
            body=body,
            content_type=content_type_of(body, call.target.headers),
            attempt=attempt_number(record),
            due_ms=due_ms + wall_ahead_ms,
            lateness_ms=max(0, now_ms - due_ms),
            timeout_ms=call.timeout_ms,
            target=call.target,
        )

    def is_busy(self) -> bool:
        """Tell whether a call is under way, or about to begin."""
        return self.scheduler.in_flight > 0 or self.scheduler.is_about_to_begin

    # --- Ending calls ----------------------------------------------------------------------------

    def _ended(self, task: asyncio.Task[AttemptEnd]) -> None:
        """Settle the call by its answer, unless it is settled; let the next one begin."""
        underway = self._tasks.pop(task)
        underway.deadline.cancel()
        if not underway.is_settled:
            self._settle(underway, _end_of(task))
        self.scheduler.release(underway.call)
        if self.scheduler.is_stopping:
            self._turns.ask()  # so that a delivery is recorded at once, not at the end of the stop
        else:
            self._go_on()

    def _expire(self, task: asyncio.Task[AttemptEnd]) -> None:
        """Settle a call whose time is over, and cancel its task."""
        if task.done():
            return  # at the last moment
        underway = self._tasks[task]
        error = f"no answer within {duration_text(underway.call.timeout_ms)}"
        self._settle(underway, AttemptEnd(Result.FAILED, error, is_outage=True))
        task.cancel()
        self._go_on()

    def _settle(self, underway: _Underway, end: AttemptEnd) -> None:
        underway.is_settled = True
        took_ms = self._at_ms() - underway.begun_ms
        self._conclude(underway.call, end, underway.sink, took_ms)

    def _conclude(self, call: PushCall, end: AttemptEnd, sink: str, took_ms: int) -> None:
        """Record the end of an attempt, and count it."""
        is_dead = self.scheduler.settle(call, end, self._clock.request_ms(), self._at_ms())
        self.counters.note(call.topic, sink, Result.EXHAUSTED if is_dead else end.result, took_ms)

    def _drop(self, call: PushCall) -> None:
        """Release a call that is not begun."""
        self.scheduler.release(call)
        self._loop.call_soon(self._go_on)

    # --- The end ---------------------------------------------------------------------------------

    async def stop(self, grace_ms: int) -> None:
        """Begin no more calls; wait so long for those under way, then give their jobs back."""
        self.scheduler.is_stopping = True
        unsettled = [task for task, underway in self._tasks.items() if not underway.is_settled]
        if unsettled:
            await asyncio.wait(unsettled, timeout=grace_ms / 1_000)
        for task, underway in self._tasks.items():
            if task.done() and not underway.is_settled:  # in the last moment
                self._settle(underway, _end_of(task))
        self.abort()
        self.scheduler.give_back_all(self._clock.request_ms(), self._at_ms())
        self._turns.ask()
        closing = self._loop.create_task(self._sinks.close())
        await asyncio.wait([closing, *self._tasks], timeout=PUSH_CLOSE_MS / 1_000)

    def abort(self) -> None:
        """End all calls at once, without recording their ends."""
        self.scheduler.is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for task, underway in self._tasks.items():
            underway.is_settled = True
            underway.deadline.cancel()
            task.cancel()

    @property
    def has_strays(self) -> bool:
        """Tell whether tasks go on although they were cancelled."""
        return bool(self._tasks)

    # --- Figures and the log ---------------------------------------------------------------------

    def blocks_of(self, topic: Topic) -> list[PushBlock]:
        """Return why jobs of the topic that are ready are not called now."""
        return self.scheduler.blocks_of(topic, self._at_ms())

    def stats(self) -> dict[str, object]:
        """Return the sums of all topics, as plain values."""
        counts = (*self.counters.by_topic.values(), self.counters.others)
        return {
            "under_way": self.scheduler.in_flight,
            "attempts": {result.value: sum(count[result] for count in counts) for result in Result},
            "places": self._places(),
        }

    def figures(
        self, others: str
    ) -> tuple[dict[str, dict[str, int]], int, dict[str, int], Mapping[str, Histogram]]:
        """Return attempts by topic and result, those under way, places by state, times by sink.

        `others` is the label of the topics that have no name of their own.
        """
        attempts = {
            topic: {result.value: count for result, count in counts.items()}
            for topic, counts in (*self.counters.by_topic.items(), (others, self.counters.others))
        }
        return attempts, self.scheduler.in_flight, self._places(), self.counters.took_ms

    def _places(self) -> dict[str, int]:
        counts = self.scheduler.breakers
        return {state.name.lower(): counts[state] for state in BreakerState}

    def _may_log(self) -> bool:
        """Tell whether there may be one more line in this minute: there may be many places."""
        at_ms = self._at_ms()
        if at_ms - self._lines_since_ms >= PUSH_LOG_MS:
            self._lines_since_ms, self._lines = at_ms, 0
        self._lines += 1
        return self._lines <= PUSH_LOG_LINES


_CANCELLED: Final = AttemptEnd(Result.FAILED, "the sink has cancelled itself", is_outage=True)


def _end_without_sink(call: PushCall, error: Exception) -> AttemptEnd:
    """Return the end of an attempt without a sink."""
    if isinstance(error, NotForTopic):  # no failure of the sink, which other topics may use
        return AttemptEnd(Result.FAILED, str(error), is_ours=True)
    text = f"the configuration has no sink {call.target.sink}"
    return AttemptEnd(Result.FAILED, text, is_outage=True)


def _end_of(task: asyncio.Task[AttemptEnd]) -> AttemptEnd:
    """Return the end of the attempt whose task is done."""
    return _CANCELLED if task.cancelled() else task.result()


async def _delivered(gate: Gate, sink: Sink, job: DueJob) -> AttemptEnd:
    """Deliver by the sink; an exception is a failed attempt."""
    await gate.passed()
    try:
        end = checked_end(await sink.deliver(job))
        return end._replace(error=hide_in_urls(end.error))
    except asyncio.CancelledError:
        raise
    except BaseException as fault:  # noqa: BLE001 - not even SystemExit of a sink ends the daemon
        text = ""
        with contextlib.suppress(Exception):
            text = f": {fault}" if str(fault) else ""
        error = hide_in_urls(f"{type(fault).__name__}{text}".partition("\n")[0])
        return AttemptEnd(Result.FAILED, error, is_outage=True)


def checked_end(end: object) -> AttemptEnd:
    """Return the end that a sink has returned, or a failure if it is no `AttemptEnd`.

    >>> checked_end("ok").error
    "the sink has returned 'ok' instead of an AttemptEnd"
    """
    match end:
        case AttemptEnd(Result(), str(), bytes(), int(), bool(), bool()) if end.retry_after_ms >= 0:
            return end
    error = f"the sink has returned {str(repr(end))[:_SHOWN_CHARACTERS]} instead of an AttemptEnd"
    return AttemptEnd(Result.FAILED, error, is_outage=True)
