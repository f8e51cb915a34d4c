"""Which due jobs are delivered next, and what becomes of them: synchronous, and without a clock.

    fresh lanes ─► places, in turn ─► reserve ─► PushCall ─► the sender ─► settle, release
                     │ cap, breaker, rate

A *lane* is the ready jobs of one topic that go to one target: `(topic, origin)` for jobs with urls
of their own, `(topic, b"")` for a topic whose policy has a target. The engine says which lanes have
become fresh (`core.operations.push`); from then on a lane is known here until there is nothing to
hand out in it. A *place* is what shares a cap and a breaker: an origin such as
`https://example.com:443`, `topic:NAME` or `sink:NAME`. A target that says its own concurrency is a
place of its own. Jobs of a place that is full, or whose breaker is open, stay ready: nothing is
kept for a waiting job, but one entry for its lane.

Places take turns, and so do the lanes of a place. An example with two calls at most: the lanes
(a, X), (b, X) and (c, Y) are fresh, X is slow. `take_calls` begins (a, X) and (c, Y); whenever one
of them is released, the next comes from the other place, if it has one: X cannot keep Y waiting.

    take_calls(now_ms, at_ms)   reserves what may begin now; the sender waits until that is durable
    settle(call, end)           what the sink said; None: it was not attempted, or nobody knows
    release(call)               nothing of it goes on: its place is free for the next
    wake_ms                     when to come again, for a breaker or a rate; None: only when told

Two times are arguments: `now_ms` is delayd time, as for every operation, and `at_ms` counts on a
clock that never stops, for breakers and rates. What was cancelled, given away or ran out of time
while its call was under way is no longer held, so its answer changes nothing.
"""

import heapq
from collections import OrderedDict, deque
from itertools import count, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from delayd.clock import NS_PER_MS
from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound, OutOfSpace
from delayd.core.job import target_of
from delayd.core.operations.finish import delete
from delayd.core.operations.push import fail_call, give_back_call, reserve_call, take_fresh
from delayd.core.operations.reserve import held
from delayd.core.push_lanes import next_key
from delayd.core.session import Session
from delayd.core.targets import Target, origin_of, own_target
from delayd.core.throttle import PushBlock, Throttle
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.limits import (
    PUSH_ANSWER_BYTES_MAX,
    PUSH_LEASE_EXTRA_MS,
    PUSH_PLACES_KEPT_MAX,
    PUSH_RETRY_AFTER_MS_MAX,
    PUSH_STEPS_PER_TURN,
)
from delayd.logs import escape
from delayd.push.breaker import Breaker, BreakerState
from delayd.push.sinks import AttemptEnd, Result

if TYPE_CHECKING:
    from delayd.core.push_lanes import Lane


class PushBounds(NamedTuple):
    """What the configuration allows."""

    calls_max: int
    """Under way at once."""
    calls_per_place_max: int
    """Of those to one place, unless its target says another number."""
    timeout_ms: int
    """How long an attempt may take, unless its target says otherwise."""
    has_breakers: bool = True
    """Not on a virtual clock: breakers count in real time."""


class BreakerTurn(NamedTuple):
    """A breaker that has opened or closed, for the log."""

    place: str
    is_open: bool
    reason: str
    """The last failure, in one line."""


class _Place:
    """Where lanes go."""

    __slots__ = ("breaker", "cap", "has_alarm", "in_flight", "is_queued", "lanes", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.cap = 0
        self.in_flight = 0
        self.breaker = Breaker()
        self.lanes: deque[_LaneEntry] = deque()
        self.is_queued = False
        """It is in the queue of places that may begin a call."""
        self.has_alarm = False
        """It is told when its breaker lets a probe through."""


class _LaneEntry:
    """A lane that has something to hand out, as far as is known."""

    __slots__ = ("lane", "probes", "target")

    def __init__(self, lane: "Lane") -> None:
        self.lane = lane
        self.target: Target | None = None
        """The topic's, by which it was put to its place; None for jobs with their own."""
        self.probes = 0
        """Made with its jobs, with another one each: what fails for one may succeed for others."""


class PushCall:
    """One attempt to deliver a job, reserved for it."""

    __slots__ = (
        *("is_probe", "is_spared", "job_id", "place", "record", "target", "timeout_ms", "topic"),
    )

    def __init__(
        self,
        place: _Place,
        target: Target,
        topic: str,
        job: tuple[int, bytes],
        timeout_ms: int,
        *,
        is_probe: bool,
        is_spared: bool,
    ) -> None:
        self.place = place
        self.target = target
        self.topic = topic
        self.job_id, self.record = job
        self.timeout_ms = timeout_ms
        self.is_probe = is_probe
        self.is_spared = is_spared
        """If the place fails, the attempt does not count: others wait for it too."""


class Scheduler:
    """Chooses what is delivered next, within all bounds."""

    __slots__ = (
        "_alarms",
        "_bounds",
        "_calls",
        "_engine",
        "_heard",
        "_idle",
        "_known",
        "_numbers",
        "_places",
        "_queue",
        "_rates",
        "_rates_max",
        "_turned",
        "breakers",
        "in_flight",
        "is_stopping",
        "session",
    )

    def __init__(self, engine: Engine, bounds: PushBounds) -> None:
        """Begin with nothing under way."""
        self._engine = engine
        self._bounds = bounds
        self.session: Final = Session()
        """Holds the jobs of all calls."""
        self._heard: deque[Lane] = deque()
        """Lanes that have become fresh, and are not at their places yet."""
        self._known: dict[Lane, _LaneEntry] = {}
        """Lanes that are at a place, or wait for their rate. An entry that is not here any more,
        because its topic has another target now, is dropped where it is found."""
        self._places: dict[str, _Place] = {}
        self._idle: OrderedDict[str, _Place] = OrderedDict()
        """Those without lanes, kept for what their breakers know; the longest idle first."""
        self._queue: deque[_Place] = deque()
        """Places that may begin a call, each once."""
        self._alarms: list[tuple[int, int, _Place | _LaneEntry]] = []
        """A heap: when a breaker lets a probe through, or a rate the next job."""
        self._numbers = count()  # so that alarms of one instant need not be compared further
        self._rates: dict[str, tuple[float, Throttle]] = {}
        """Topic → the rate of its target, and what is used of it."""
        self._rates_max = PUSH_PLACES_KEPT_MAX
        self._calls: dict[int, PushCall] = {}
        """Job → the call that its answer has to come from."""
        self.in_flight = 0
        """Calls that are not settled."""
        self.breakers = [0] * len(BreakerState)
        """How many places have their breakers in which state."""
        self._turned: list[BreakerTurn] = []
        self.is_stopping = False
        """No call begins any more."""

    # --- What begins -----------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Tell whether there is more to do than the last `take_calls` was allowed to."""
        if self.is_stopping:
            return False
        return bool(self._heard or (self._queue and self.in_flight < self._bounds.calls_max))

    @property
    def is_about_to_begin(self) -> bool:
        """Tell whether the next `take_calls` has something to do already."""
        is_fresh = bool(self._engine.store.push_lanes.fresh)
        return self.has_more or (is_fresh and not self.is_stopping)

    @property
    def wake_ms(self) -> int | None:
        """When to come again, on the clock that never stops; None: only when told."""
        return self._alarms[0][0] if self._alarms else None

    def take_calls(self, now_ms: RequestMs, at_ms: int) -> list[PushCall]:
        """Reserve what may begin now, and return it; a bounded number of steps."""
        calls: list[PushCall] = []
        if self.is_stopping:
            return calls
        self._heard += take_fresh(self._engine)
        steps = PUSH_STEPS_PER_TURN
        while steps and self._heard:
            steps -= 1
            lane = self._heard.popleft()
            entry = self._known.get(lane)
            if entry is None or not (lane[1] or entry.target is _target_of(lane[0])):
                entry = self._known[lane] = _LaneEntry(lane)
                self._enter(entry, at_ms)
        while steps and self._alarms and self._alarms[0][0] <= at_ms:
            steps -= 1
            _, _, who = heapq.heappop(self._alarms)
            if isinstance(who, _LaneEntry):
                self._enter(who, at_ms)
            else:
                who.has_alarm = False
                self._look_at(who, at_ms)
        while steps and self._queue and self.in_flight < self._bounds.calls_max:
            steps -= 1
            place = self._queue.popleft()
            place.is_queued = False
            if place.breaker.may_begin(at_ms):
                call = self._begin(place, place.lanes.popleft(), now_ms, at_ms)
                if call is not None:
                    calls.append(call)
            self._look_at(place, at_ms)
        return calls

    def _begin(
        self, place: _Place, entry: _LaneEntry, now_ms: RequestMs, at_ms: int
    ) -> PushCall | None:
        """Reserve the next job of the lane; None if it may not be called now, or there is none."""
        lane = entry.lane
        topic, origin = lane
        target = entry.target
        if not origin:
            if _target_of(topic) is not target:  # as after every change of the policy
                self._enter(entry, at_ms)
                return None
            if target is not None and target.rate_per_s and not self._may_take(entry, at_ms):
                return None
        timeout_ms = (target.timeout_ms if target else 0) or self._bounds.timeout_ms
        lease_ms = timeout_ms + PUSH_LEASE_EXTRA_MS
        skips = 0 if place.breaker.state is BreakerState.CLOSED else entry.probes
        job = reserve_call(self._engine, self.session, lane, lease_ms, now_ms, skips)
        if job is None:
            del self._known[lane]
            return None
        place.lanes.append(entry)
        before = place.breaker.state
        is_probe = is_spared = place.breaker.begin(at_ms)
        if is_probe:
            entry.probes += 1
            others_wait = len(place.lanes) > 1 or next_key(topic, origin) is not None
            is_spared = others_wait and place.breaker.spares(at_ms)
        self._note_state(before, place.breaker.state)
        place.in_flight += 1
        self.in_flight += 1
        if target is None:
            target = own_target(target_of(job[1]))
        elif target.rate_per_s:
            self._rates[topic.name][1].take(1, at_ms)
        call = PushCall(
            *(place, target, topic.name, job, timeout_ms), is_probe=is_probe, is_spared=is_spared
        )
        self._calls[call.job_id] = call
        return call

    def left_ms(self, call: PushCall) -> int:
        """Return for how long its job stays reserved for the call; 0: it is not any more."""
        if self._calls.get(call.job_id) is not call:
            return 0
        ends_ms = self.session.deadlines.get(call.job_id, 0)
        return max(0, ends_ms - self._engine.store.time_ms)

    # --- What became of it -----------------------------------------------------------------------

    def settle(self, call: PushCall, end: AttemptEnd | None, now_ms: RequestMs, at_ms: int) -> bool:
        """Carry out what became of a call; None: it was not attempted, or nobody knows.

        Tells whether the job is a dead letter now.
        """
        self.in_flight -= 1
        self._judge(call, end, at_ms)
        self._look_at(call.place, at_ms)
        if self._calls.get(call.job_id) is not call:
            return False  # its lease was over, and the job has been called again
        del self._calls[call.job_id]
        engine, session, job_id = self._engine, self.session, call.job_id
        try:
            held(engine, session, job_id)
            if end is None:
                give_back_call(engine, session, job_id, now_ms)
            elif end.result is Result.DELIVERED:
                delete(engine, session, job_id, now_ms)
            else:
                is_exhausted = end.result is Result.EXHAUSTED
                said = (engine, session, job_id, now_ms)
                if call.is_spared and end.is_outage and not is_exhausted:
                    give_back_call(*said, error=escape(end.error))
                else:
                    delay_ms = min(end.retry_after_ms, PUSH_RETRY_AFTER_MS_MAX)
                    error = error_text(end)
                    return fail_call(
                        *said, error=error, delay_ms=delay_ms, is_exhausted=is_exhausted
                    )
        except JobNotFound:
            pass  # cancelled or out of time: the answer is of no more use
        except OutOfSpace:
            pass  # its lease ends soon, which is a failed attempt too, and needs no space
        return False

    def release(self, call: PushCall, at_ms: int) -> None:
        """Let the next call to its place begin: nothing of this one goes on."""
        call.place.in_flight -= 1
        self._look_at(call.place, at_ms)

    def give_back_all(self, now_ms: RequestMs, at_ms: int) -> None:
        """Give back the jobs of all calls that are not settled; for the end."""
        for call in [*self._calls.values()]:
            self.settle(call, None, now_ms, at_ms)

    def _judge(self, call: PushCall, end: AttemptEnd | None, at_ms: int) -> None:
        """Tell the breaker of the place what the end of a call says of it."""
        place = call.place
        breaker = place.breaker
        before = breaker.state
        if end is None:
            breaker.give_up(call.is_probe, at_ms)
        elif self._bounds.has_breakers and end.is_outage and end.result is not Result.DELIVERED:
            breaker.fail(call.is_probe, at_ms)
        else:
            breaker.succeed()
        after = breaker.state
        self._note_state(before, after)
        is_open = after is BreakerState.OPEN
        if end is not None and (
            (is_open and before is BreakerState.CLOSED) or (not is_open and after is not before)
        ):
            self._turned.append(BreakerTurn(place.name, is_open, escape(end.error)))

    def take_turned(self) -> list[BreakerTurn]:
        """Return the breakers that have opened or closed since the last call."""
        turned = self._turned
        if turned:
            self._turned = []
        return turned

    # --- Why nothing is called -------------------------------------------------------------------

    def blocks_of(self, topic: Topic, at_ms: int) -> list[PushBlock]:
        """Return why jobs of the topic that are ready are not called.

        Of the places of many lanes the first are looked at.
        """
        blocks: set[PushBlock] = set()
        target = _target_of(topic)
        if target is not None and topic.is_pushed:
            names = [_place_name(target, topic)]
            rate = self._rates.get(topic.name)
            if target.rate_per_s and rate is not None and not rate[1].is_allowed(at_ms):
                blocks.add(PushBlock.SLOW)
        else:
            lanes = islice(topic.queues.lanes or (), PUSH_STEPS_PER_TURN)
            names = [origin.decode() for origin in lanes]
        for place in filter(None, map(self._places.get, names)):
            if not place.breaker.may_begin(at_ms):
                blocks.add(PushBlock.OPEN)
            elif place.in_flight >= place.cap or self.in_flight >= self._bounds.calls_max:
                blocks.add(PushBlock.FULL)
        return [block for block in PushBlock if block in blocks]

    # --- Lanes and places ------------------------------------------------------------------------

    def _enter(self, entry: _LaneEntry, at_ms: int) -> None:
        """Queue the lane at the place where it goes now; forget it if it goes nowhere."""
        if self._known.get(entry.lane) is not entry:
            return
        topic, origin = entry.lane
        cap = self._bounds.calls_per_place_max
        if origin:
            name = origin.decode()
        else:
            target = entry.target = _target_of(topic)
            if target is None:
                self._forget(entry.lane)
                return
            name, cap = _place_name(target, topic), target.concurrency or cap
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = _Place(name)
            self.breakers[BreakerState.CLOSED] += 1
        self._idle.pop(name, None)
        place.cap = cap
        place.lanes.append(entry)
        self._look_at(place, at_ms)

    def _look_at(self, place: _Place, at_ms: int) -> None:
        """Queue the place if it may begin a call, or see when; forget it if it is not needed."""
        if not place.lanes:
            if not place.in_flight:
                self._rest(place)
        elif place.is_queued or place.in_flight >= place.cap:
            pass
        elif place.breaker.may_begin(at_ms):
            place.is_queued = True
            self._queue.append(place)
        elif place.breaker.state is BreakerState.OPEN and not place.has_alarm:
            place.has_alarm = True
            self._set_alarm(place.breaker.opens_again_ms, place)

    def _forget(self, lane: "Lane") -> None:
        """Forget a lane that goes nowhere; the engine tells of it when it does again."""
        del self._known[lane]
        self._engine.store.push_lanes.rest(lane)

    def _rest(self, place: _Place) -> None:
        """Keep a place without lanes while there is something to remember of it."""
        if self._places.get(place.name) is not place:
            return  # forgotten already; its alarm alone was left
        if not place.breaker.is_untroubled:
            self._idle[place.name] = place
            if len(self._idle) <= PUSH_PLACES_KEPT_MAX:
                return
            _, place = self._idle.popitem(last=False)
        del self._places[place.name]
        self.breakers[place.breaker.state] -= 1

    def _note_state(self, before: BreakerState, after: BreakerState) -> None:
        self.breakers[before] -= 1
        self.breakers[after] += 1

    def _set_alarm(self, alarm_ms: int, who: "_Place | _LaneEntry") -> None:
        heapq.heappush(self._alarms, (alarm_ms, next(self._numbers), who))

    def _may_take(self, entry: _LaneEntry, at_ms: int) -> bool:
        """Tell whether the rate of the lane's target allows a job now; else it waits for that."""
        topic, target = entry.lane[0], entry.target
        assert target is not None
        known = self._rates.get(topic.name)
        if known is None or known[0] != target.rate_per_s:
            throttle = Throttle(None, target.rate_per_s)
            if known is not None:
                throttle.go_on_from(known[1], at_ms)
            elif len(self._rates) >= self._rates_max:
                self._forget_rates(at_ms)
            known = self._rates[topic.name] = (target.rate_per_s, throttle)
        if known[1].is_allowed(at_ms):
            return True
        self._set_alarm(known[1].next_ms(1), entry)
        return False

    def _forget_rates(self, at_ms: int) -> None:
        """Forget the rates of which nothing is used. O(rates), when they have doubled."""
        self._rates = {
            name: known
            for name, known in self._rates.items()
            if known[1].arrival_ns > at_ms * NS_PER_MS
        }
        self._rates_max = max(PUSH_PLACES_KEPT_MAX, 2 * len(self._rates))


def _target_of(topic: Topic) -> Target | None:
    """Return where the policy of the topic sends its jobs."""
    return None if topic.policy is None else topic.policy.push


def _place_name(target: Target, topic: Topic) -> str:
    """Return what the topic's target shares with others, if it does: its origin, topic or sink."""
    if target.url:
        name = origin_of(f"{target.method} {target.url}".encode()).decode()
    else:
        name = f"topic:{target.topic}" if target.topic else f"sink:{target.sink}"
    return f"{name} for {topic.name}" if target.concurrency else name


def error_text(end: AttemptEnd) -> str:
    r"""Return the text that is kept of a failed attempt: the error, then what was answered.

    >>> error_text(AttemptEnd(Result.FAILED, "503 Service Unavailable", b"try\nlater"))
    '503 Service Unavailable\ntry\\nlater'
    """
    answer = end.answer[:PUSH_ANSWER_BYTES_MAX].decode("utf-8", "replace")
    return f"{escape(end.error)}\n{escape(answer)}" if answer else escape(end.error)
