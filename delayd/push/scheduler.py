"""The order in which due jobs are delivered, and their outcome; synchronous, without a clock.

    fresh lanes ─► places, in turn ─► reserve ─► PushCall ─► the sender ─► settle, release
         ▲           │ cap, breakers, rate
         └─ parked ◄─┘

A *lane* is the ready jobs of one topic that go to one target: `(topic, origin)` for jobs with urls
of their own, `(topic, b"")` for a topic whose policy has a target. The engine says which lanes have
become fresh (`core.operations.push`); from then on a lane is known here until there is nothing to
hand out in it. A *host* is where lanes go: an origin such as `https://example.com:443`,
`topic:NAME` or `sink:NAME`. A *place* is what shares a cap: a host, or what a target that says its
own concurrency has of it. A *route* is one topic at one host, and has a breaker (`push.breaker`).
Jobs of a place that is full, or of a route whose breaker is open, stay ready: nothing is kept for a
waiting job, but one entry for its lane. A lane whose route may not begin is *parked*, at its route
or at its host, until that may have changed.

Places take turns, and so do the lanes of a place. An example with two calls at most: the lanes
(a, X), (b, X) and (c, Y) are fresh, X is slow. `take_calls` begins (a, X) and (c, Y); whenever one
of them is released, the next comes from the other place, if it has one: X cannot keep Y waiting.

    take_calls(now_ms, at_ms)   reserves what may begin now; the sender waits until that is durable
    settle(call, end)           how the attempt ended; None: it was not made, or that is unknown
    release(call)               nothing of it goes on: its place is free for the next
    wake_ms                     when to call `take_calls` again, for a breaker or a rate; or None

Two times are arguments: `now_ms` is delayd time, as for every operation, and `at_ms` counts on a
clock that never stops, for breakers and rates. A job that was cancelled, moved or ran out of time
during its call is no longer held, so the answer changes nothing.
"""

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from itertools import count, islice
from typing import TYPE_CHECKING, Final, NamedTuple

from delayd.clock import NS_PER_MS
from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound, OutOfSpace
from delayd.core.job_parts import target_of
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import fail_call, give_back_call, held
from delayd.core.operations.push import reserve_call, take_fresh
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
from delayd.push.breaker import BreakerState, HostBreaker, Probe, TopicBreaker
from delayd.push.sinks import AttemptEnd, Result
from delayd.text import visible

if TYPE_CHECKING:
    from delayd.core.push_lanes import Lane


class PushBounds(NamedTuple):
    """Bounds of the configuration."""

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

    host: str
    topic: str
    is_open: bool
    reason: str
    """The last failure, in one line."""


@dataclass(slots=True, eq=False)
class _Host:
    """The destination of lanes of any topic."""

    name: str
    breaker: HostBreaker = field(default_factory=HostBreaker)
    routes: int = 0
    """Number of known routes: the host is forgotten with the last."""
    idle: "dict[str, _Route]" = field(default_factory=dict)
    """Routes that are kept for the state of their breakers, by topic."""
    lanes: int = 0
    """Number of lanes with jobs for it."""
    untried: "deque[_LaneEntry]" = field(default_factory=deque)
    """Lanes of topics that have not failed there, parked while it is in doubt."""
    probing: "deque[_LaneEntry]" = field(default_factory=deque)
    """The same, of topics whose first probe is under way: two lanes each at most."""
    failed: "deque[_LaneEntry]" = field(default_factory=deque)
    """Lanes of topics that have failed there, parked while it is in doubt."""
    alarm_ms: int | None = None
    """When one of them may begin; None: no alarm is set."""


@dataclass(slots=True, eq=False)
class _Route:
    """One topic at one host."""

    host: _Host
    topic: str
    breaker: TopicBreaker
    uses: int = 0
    """Lanes with jobs for it, and calls under way."""
    parked: "list[_LaneEntry]" = field(default_factory=list)
    """Lanes that wait for its own breaker; two at most."""
    alarm_ms: int | None = None
    """When its breaker allows a probe; None: no alarm is set."""

    @property
    def key(self) -> tuple[str, str]:
        return self.host.name, self.topic


@dataclass(slots=True, eq=False)
class _Place:
    """Calls that share a cap."""

    name: str
    cap: int = 0
    in_flight: int = 0
    lanes: "deque[_LaneEntry]" = field(default_factory=deque)
    is_queued: bool = False
    """Whether it is in the queue of places that may begin a call."""


@dataclass(slots=True, eq=False)
class _LaneEntry:
    """A lane that has jobs, as far as is known."""

    lane: "Lane"
    route: _Route | None = None
    """Its route; None before it has a place, and when it is forgotten."""
    target: Target | None = None
    """The topic's target when it got its place; None for jobs with their own."""
    probes: int = 0
    """Number of probes, each with another job: one may fail where others succeed."""


@dataclass(slots=True, eq=False)
class PushCall:
    """One attempt to deliver a job, reserved for it."""

    place: _Place
    route: _Route
    target: Target
    job_id: int
    record: bytes
    timeout_ms: int
    probe: Probe
    is_spared: bool
    """If the host fails, the attempt does not count: other jobs wait for the probe."""

    @property
    def topic(self) -> str:
        """The job's topic."""
        return self.route.topic


class Scheduler:
    """Chooses what is delivered next, within all bounds."""

    def __init__(self, engine: Engine, bounds: PushBounds) -> None:
        self._engine = engine
        self._bounds = bounds
        self.session: Final = Session()
        self.session.who = "push"
        """Holds the jobs of all calls."""
        self._heard: deque[Lane] = deque()
        """Fresh lanes that have no place yet."""
        self._known: dict[Lane, _LaneEntry] = {}
        """Lanes at a place, parked, or waiting for their rate. An entry that is no longer here,
        because its topic has another target, is dropped where it is found."""
        self._returning: deque[_LaneEntry] = deque()
        """Lanes that were parked at a host that answers again."""
        self._places: dict[str, _Place] = {}
        """Places with lanes that are not parked, or calls under way."""
        self._hosts: dict[str, _Host] = {}
        self._routes: dict[tuple[str, str], _Route] = {}
        """By the names of host and topic."""
        self._idle: OrderedDict[tuple[str, str], _Route] = OrderedDict()
        """Routes without lanes, kept for the state of their breakers; the longest idle first."""
        self._excused: deque[_Route] = deque()
        """Those of them at hosts that answer again: their failures no longer count."""
        self._queue: deque[_Place] = deque()
        """Places that may begin a call, each once."""
        self._alarms: list[tuple[int, int, _Host | _Route | _LaneEntry]] = []
        """A heap of times when a breaker allows a probe, or a rate the next job."""
        self._numbers = count()  # so that alarms of one instant need not be compared further
        self._rates: dict[str, tuple[float, Throttle]] = {}
        """Topic → the rate of its target, and how much of it is used."""
        self._rates_max = PUSH_PLACES_KEPT_MAX
        self._calls: dict[int, PushCall] = {}
        """Job → its call; answers of other calls are ignored."""
        self.in_flight = 0
        """Calls that are not settled."""
        self.breakers = [0] * len(BreakerState)
        """Number of routes by the state of their breakers."""
        self._turned: list[BreakerTurn] = []
        self.is_stopping = False
        """No call begins any more."""

    # --- Beginning calls -------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Tell whether the last `take_calls` ended at its bound of steps, with more to do."""
        if self.is_stopping:
            return False
        is_free = self.in_flight < self._bounds.calls_max
        is_pending = self._heard or self._returning or self._excused
        return bool(is_pending or (self._queue and is_free))

    @property
    def is_about_to_begin(self) -> bool:
        """Tell whether the next `take_calls` has something to do already."""
        is_fresh = bool(self._engine.store.push_lanes.fresh)
        return self.has_more or (is_fresh and not self.is_stopping)

    @property
    def wake_ms(self) -> int | None:
        """When `take_calls` is due again, on the clock that never stops; None: no alarm is set."""
        return self._alarms[0][0] if self._alarms else None

    def take_calls(self, now_ms: RequestMs, at_ms: int) -> list[PushCall]:
        """Reserve the calls that may begin now, and return them; a bounded number of steps."""
        calls: list[PushCall] = []
        if self.is_stopping:
            return calls
        self._heard += take_fresh(self._engine)
        steps = PUSH_STEPS_PER_TURN
        while steps and self._returning:
            steps -= 1
            self._enter(self._returning.popleft())
        while steps and self._excused:
            steps -= 1
            route = self._excused.popleft()
            if not route.uses and self._routes.get(route.key) is route:
                del self._idle[route.key]
                self._drop(route)
        while steps and self._alarms and self._alarms[0][0] <= at_ms:
            steps -= 1
            self._wake(heapq.heappop(self._alarms)[2], at_ms)
        while steps and self._heard:
            steps -= 1
            lane = self._heard.popleft()
            entry = self._known.get(lane)
            if entry is None or not (lane[1] or entry.target is _target_of(lane[0])):
                if entry is not None:
                    self._detach(entry)
                entry = self._known[lane] = _LaneEntry(lane)
                self._enter(entry)
        while steps and self._queue and self.in_flight < self._bounds.calls_max:
            steps -= 1
            place = self._queue.popleft()
            place.is_queued = False
            call = self._begin(place, place.lanes.popleft(), now_ms, at_ms)
            if call is not None:
                calls.append(call)
            self._update(place)
        return calls

    def _begin(
        self, place: _Place, entry: _LaneEntry, now_ms: RequestMs, at_ms: int
    ) -> PushCall | None:
        """Reserve the next job of the lane; None if it may not be called now, or there is none."""
        route = entry.route
        if route is None:
            return None
        call = None
        if route.breaker.may_begin(at_ms):
            call = self._reserve(place, entry, route, now_ms, at_ms)
        else:
            self._park(entry, route)
        if route.host.breaker.is_in_doubt:
            self._update_host(route.host, at_ms)  # another lane may begin, now or later
        return call

    def _reserve(
        self, place: _Place, entry: _LaneEntry, route: _Route, now_ms: RequestMs, at_ms: int
    ) -> PushCall | None:
        """Reserve the next job of a lane whose route may begin."""
        lane = entry.lane
        topic, origin = lane
        target = entry.target
        if not origin:
            if _target_of(topic) is not target:  # as after every change of the policy
                self._enter(entry)
                return None
            if target is not None and target.rate_per_s and not self._may_take(entry, at_ms):
                return None
        timeout_ms = (target.timeout_ms if target else 0) or self._bounds.timeout_ms
        lease_ms = timeout_ms + PUSH_LEASE_EXTRA_MS
        skips = entry.probes if route.breaker.begins_probes else 0
        job = reserve_call(self._engine, self.session, lane, lease_ms, now_ms, skips)
        if job is None:
            del self._known[lane]
            self._detach(entry)
            return None
        place.lanes.append(entry)
        before = route.breaker.state
        probe = route.breaker.begin(at_ms)
        self._note_state(before, route.breaker.state)
        is_spared = False
        if probe is not Probe.NONE:
            entry.probes += 1
            others_wait = probe is not Probe.OF_TOPIC and route.host.lanes > 1
            others_wait = others_wait or next_key(topic, origin) is not None
            is_spared = others_wait and route.breaker.spares(probe, at_ms)
        place.in_flight += 1
        self.in_flight += 1
        route.uses += 1
        if target is None:
            target = own_target(target_of(job[1]))
        elif target.rate_per_s:
            self._rates[topic.name][1].take(1, at_ms)
        call = PushCall(place, route, target, *job, timeout_ms, probe, is_spared)
        self._calls[call.job_id] = call
        return call

    def left_ms(self, call: PushCall) -> int:
        """Return for how long its job stays reserved for the call; 0: no longer."""
        if self._calls.get(call.job_id) is not call:
            return 0
        ends_ms = self.session.deadlines.get(call.job_id, 0)
        return max(0, ends_ms - self._engine.store.time_ms)

    # --- Ending calls ----------------------------------------------------------------------------

    def settle(self, call: PushCall, end: AttemptEnd | None, now_ms: RequestMs, at_ms: int) -> bool:
        """Carry out the end of a call; None: there was no attempt, or its end is unknown.

        Tells whether the job is a dead letter now.
        """
        self.in_flight -= 1
        self._judge(call, end, at_ms)
        if self._calls.get(call.job_id) is not call:
            return False  # its lease was over, and the job has been called again
        del self._calls[call.job_id]
        engine, session, job_id = self._engine, self.session, call.job_id
        try:
            if end is not None and end.result is Result.DELIVERED:
                held(engine, session, job_id)
                delete(engine, session, job_id, now_ms)
            elif end is None or (
                call.is_spared and end.is_outage and end.result is not Result.EXHAUSTED
            ):
                error = "" if end is None else visible(end.error)
                give_back_call(engine, session, job_id, now_ms, error=error)
            else:
                return fail_call(
                    *(engine, session, job_id, now_ms),
                    error=error_text(end),
                    delay_ms=min(end.retry_after_ms, PUSH_RETRY_AFTER_MS_MAX),
                    is_exhausted=end.result is Result.EXHAUSTED,
                )
        except JobNotFound:
            pass  # cancelled, or its ttr ran out: the answer is of no use
        except OutOfSpace:
            pass  # its lease ends soon, which is a failed attempt too, and needs no space
        return False

    def release(self, call: PushCall) -> None:
        """Let the next call to its place begin; the task of this one has ended."""
        call.place.in_flight -= 1
        self._update(call.place)

    def give_back_all(self, now_ms: RequestMs, at_ms: int) -> None:
        """Give back the jobs of all calls that are not settled; at the stop."""
        for call in [*self._calls.values()]:
            self.settle(call, None, now_ms, at_ms)

    def _judge(self, call: PushCall, end: AttemptEnd | None, at_ms: int) -> None:
        """Report the end of a call to the breakers; let lanes begin that waited for it."""
        route, host = call.route, call.route.host
        breaker = route.breaker
        before, was_in_doubt = breaker.state, host.breaker.is_in_doubt
        if end is None or end.is_ours:
            breaker.give_up(call.probe, at_ms)
        elif self._bounds.has_breakers and end.is_outage and end.result is not Result.DELIVERED:
            breaker.fail(call.probe, at_ms)
        else:
            breaker.succeed(call.probe, at_ms)
        after = breaker.state
        self._note_state(before, after)
        is_open = after is BreakerState.OPEN
        if end is not None and (
            (is_open and before is BreakerState.CLOSED) or (not is_open and after is not before)
        ):
            turned = BreakerTurn(host.name, route.topic, is_open, visible(end.error))
            self._turned.append(turned)
        if call.probe is Probe.FIRST:
            for _ in range(len(host.probing)):
                self._enter(host.probing.popleft())
        if host.breaker.is_in_doubt:
            self._update_host(host, at_ms)
        elif was_in_doubt:
            self._revive(host)
        self._return_parked(route)
        self._let_go(route)

    def take_turned(self) -> list[BreakerTurn]:
        """Return the breakers that have opened or closed since the last call."""
        turned = self._turned
        if turned:
            self._turned = []
        return turned

    # --- Why jobs are not called -----------------------------------------------------------------

    def blocks_of(self, topic: Topic, at_ms: int) -> list[PushBlock]:
        """Return why jobs of the topic that are ready are not called.

        Of many lanes only the first are examined.
        """
        blocks: set[PushBlock] = set()
        target = _target_of(topic)
        if target is not None and topic.is_pushed:
            hosts = [_host_name(target)]
            rate = self._rates.get(topic.name)
            if target.rate_per_s and rate is not None and not rate[1].is_allowed(at_ms):
                blocks.add(PushBlock.SLOW)
        else:
            lanes = islice(topic.queues.ready.lanes or (), PUSH_STEPS_PER_TURN)
            hosts = [origin.decode() for origin in lanes]
        for host in hosts:
            route = self._routes.get((host, topic.name))
            place = self._places.get(_place_name(host, target, topic))
            if route is not None and not route.breaker.may_begin(at_ms):
                blocks.add(PushBlock.OPEN)
            elif place is not None and (
                place.in_flight >= place.cap or self.in_flight >= self._bounds.calls_max
            ):
                blocks.add(PushBlock.FULL)
        return [block for block in PushBlock if block in blocks]

    # --- Lanes, places, hosts and routes ---------------------------------------------------------

    def _enter(self, entry: _LaneEntry) -> None:
        """Queue the lane at the place of its present target; forget it if there is none."""
        if self._known.get(entry.lane) is not entry:
            return
        topic, origin = entry.lane
        cap = self._bounds.calls_per_place_max
        if origin:
            host = name = origin.decode()
        else:
            target = entry.target = _target_of(topic)
            if target is None:
                self._forget(entry)
                return
            host, cap = _host_name(target), target.concurrency or cap
            name = _place_name(host, target, topic)
        self._attach(entry, host, topic.name)
        place = self._places.get(name)
        if place is None:
            place = self._places[name] = _Place(name)
        place.cap = cap
        place.lanes.append(entry)
        self._update(place)

    def _attach(self, entry: _LaneEntry, host_name: str, topic: str) -> None:
        """Set the lane's route."""
        key = host_name, topic
        route = self._routes.get(key)
        if route is None:
            host = self._hosts.get(host_name)
            if host is None:
                host = self._hosts[host_name] = _Host(host_name)
            route = self._routes[key] = _Route(host, topic, TopicBreaker(host.breaker))
            host.routes += 1
            self.breakers[BreakerState.CLOSED] += 1
        if route is entry.route:
            return
        self._detach(entry)
        if self._idle.pop(key, None):
            route.host.idle.pop(topic, None)
        entry.route = route
        route.uses += 1
        route.host.lanes += 1

    def _detach(self, entry: _LaneEntry) -> None:
        """Remove the lane's route."""
        route, entry.route = entry.route, None
        if route is not None:
            host = route.host
            host.lanes -= 1
            if host.lanes and host.breaker.is_in_doubt:
                self._set_alarm(0, host)  # it may have been the next to begin
            self._let_go(route)

    def _let_go(self, route: _Route) -> None:
        """Count one use less; an unused route is kept while its breaker has a state to remember."""
        route.uses -= 1
        if route.uses:
            return
        if route.breaker.is_troubled:
            self._idle[route.key] = route.host.idle[route.topic] = route
            if len(self._idle) <= PUSH_PLACES_KEPT_MAX:
                return
            _, route = self._idle.popitem(last=False)
            route.host.idle.pop(route.topic, None)
        self._drop(route)

    def _drop(self, route: _Route) -> None:
        """Forget an unused route, and its host with the last one."""
        host = route.host
        del self._routes[route.key]
        self.breakers[route.breaker.state] -= 1
        host.routes -= 1
        if not host.routes:
            del self._hosts[host.name]

    def _forget(self, entry: _LaneEntry) -> None:
        """Forget a lane without a target; the engine reports it when it has one again."""
        del self._known[entry.lane]
        self._detach(entry)
        self._engine.store.push_lanes.rest(entry.lane)

    def _update(self, place: _Place) -> None:
        """Queue the place if it may begin a call; forget it if it is not needed."""
        if not place.lanes:
            if not place.in_flight and self._places.get(place.name) is place:
                del self._places[place.name]
        elif not place.is_queued and place.in_flight < place.cap:
            place.is_queued = True
            self._queue.append(place)

    def _park(self, entry: _LaneEntry, route: _Route) -> None:
        """Park a lane whose route may not begin, until that may have changed."""
        host, state = route.host, route.breaker.state
        if state is BreakerState.HALF_OPEN or not host.breaker.is_in_doubt:
            route.parked.append(entry)
            if state is BreakerState.OPEN:
                self._set_alarm(route.breaker.breaker.opens_again_ms, route)
        elif state is BreakerState.OPEN:
            host.failed.append(entry)
        elif route.breaker.has_first:
            host.probing.append(entry)
        else:
            host.untried.append(entry)

    def _return_parked(self, route: _Route) -> None:
        """Queue the lanes that are parked at a route again."""
        parked, route.parked = route.parked, []
        for entry in parked:
            self._enter(entry)

    def _update_host(self, host: _Host, at_ms: int) -> None:
        """Let a lane begin that is parked at a host in doubt, or set an alarm for it."""
        breaker = host.breaker
        next_ms: int | None = None
        if host.untried:
            if breaker.may_begin_first(at_ms):
                next_ms = self._wake_one(host, host.untried, at_ms)
            else:
                next_ms = breaker.next_first_ms
        if host.failed:
            if breaker.breaker.may_begin(at_ms):
                alarm_ms = self._wake_one(host, host.failed, at_ms)
            else:
                is_open = breaker.breaker.state is BreakerState.OPEN
                alarm_ms = breaker.breaker.opens_again_ms if is_open else None
            next_ms = min((ms for ms in (next_ms, alarm_ms) if ms is not None), default=None)
        if next_ms is not None:
            self._set_alarm(next_ms, host)

    def _revive(self, host: _Host) -> None:
        """Let all lanes begin that are parked at a host that answers again.

        O(lanes), in slices by the next calls of `take_calls`.
        """
        for parked in (host.probing, host.untried, host.failed):
            self._returning += parked
            parked.clear()
        self._excused += host.idle.values()
        host.idle.clear()

    def _wake_one(self, host: _Host, parked: deque[_LaneEntry], at_ms: int) -> int | None:
        """Let the next parked lane begin; return when another may, None for no alarm."""
        entry = parked.popleft()
        self._enter(entry)
        is_here = entry.route is not None and entry.route.host is host
        return None if is_here else at_ms  # its topic goes elsewhere now

    def _wake(self, owner: "_Host | _Route | _LaneEntry", at_ms: int) -> None:
        """Let lanes begin after an alarm."""
        if isinstance(owner, _LaneEntry):
            self._enter(owner)
            return
        owner.alarm_ms = None
        if isinstance(owner, _Route):
            self._return_parked(owner)
        else:
            self._update_host(owner, at_ms)

    def _note_state(self, before: BreakerState, after: BreakerState) -> None:
        self.breakers[before] -= 1
        self.breakers[after] += 1

    def _set_alarm(self, alarm_ms: int, owner: "_Host | _Route | _LaneEntry") -> None:
        if not isinstance(owner, _LaneEntry):
            if owner.alarm_ms is not None and owner.alarm_ms <= alarm_ms:
                return
            owner.alarm_ms = alarm_ms
        heapq.heappush(self._alarms, (alarm_ms, next(self._numbers), owner))

    def _may_take(self, entry: _LaneEntry, at_ms: int) -> bool:
        """Tell whether the rate of the lane's target allows a job now; else set an alarm."""
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
        """Forget unused rates. O(rates), each time that their number has doubled."""
        self._rates = {
            name: known
            for name, known in self._rates.items()
            if known[1].arrival_ns > at_ms * NS_PER_MS
        }
        self._rates_max = max(PUSH_PLACES_KEPT_MAX, 2 * len(self._rates))


def _target_of(topic: Topic) -> Target | None:
    """Return the target of the topic's policy."""
    return None if topic.policy is None else topic.policy.push


def _host_name(target: Target) -> str:
    """Return the host of a target: an origin, a topic or a sink."""
    if target.url:
        return origin_of(f"{target.method} {target.url}".encode()).decode()
    return f"topic:{target.topic}" if target.topic else f"sink:{target.sink}"


def _place_name(host: str, target: Target | None, topic: Topic) -> str:
    """Return the name of the place: the host, unless the target has a cap of its own."""
    return f"{host} for {topic.name}" if target is not None and target.concurrency else host


def error_text(end: AttemptEnd) -> str:
    r"""Return the text that is kept of a failed attempt: the error, then the answer.

    >>> error_text(AttemptEnd(Result.FAILED, "503 Service Unavailable", b"try\nlater"))
    '503 Service Unavailable\ntry\\nlater'
    """
    answer = end.answer[:PUSH_ANSWER_BYTES_MAX].decode("utf-8", "replace")
    return f"{visible(end.error)}\n{visible(answer)}" if answer else visible(end.error)
