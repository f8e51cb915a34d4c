"""One job in one of the ways in which it may be, and what operations make of it.

A stupid model of the engine for one job, with times as intervals: the client knows when it asked
and when it was answered, and the daemon decided somewhere in between.

>>> put = Operation(1, "put", "a", 1_000, {"delay_ms": 500, "ttr_ms": 60_000, "body": b"x"})
>>> waiting, = after(ABSENT, put, Context(1_010))
>>> waiting[:3], waiting.job.body
(('waiting', 1500, 1512), b'x')

Under a ladder an attempt that fails has one of a few outcomes; which law held for the topic by then
may itself not be known, so there may be several.

It does not know histories.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.faults.history import Seen

ROUNDING_MS: Final = 2
"""Times are rounded up to the millisecond as they come in, and to the wheel's tick."""

FOREVER: Final = float("inf")
BY_HOLDER: Final = frozenset({"release", "bury", "touch", "nack", "spare"})
BY_ID: Final = BY_HOLDER | {"delete", "kick", "bury-waiting", "reschedule", "change"}
BY_KEY: Final = {"delete-key": "delete", "kick-key": "kick", "reschedule-key": "reschedule"}
NOT_OF_THE_BURIED: Final = frozenset({"reschedule", "bury-waiting"})
FROM_WITHIN: Final = frozenset({"bury-waiting"})
"""Operations inside the daemon: that one was refused is known before anything is synced."""

SWEEPING: Final = frozenset({"clear", "cancel"})
"""Operations on all jobs of a topic."""

WIDE: Final = SWEEPING | {"kick-tube"}
"""Those, and the one on as many as it says: any job may be one of them, or not."""

NEVER_FAILED: Final = -1


class Rule(NamedTuple):
    """A ladder, and how many attempts there are; 0: as many as it has steps, or any number."""

    steps_ms: tuple[int, ...] = ()
    attempts_max: int = 0
    jitter_percent: int = 0


class Law(NamedTuple):
    """What a policy says of failed attempts."""

    rule: Rule | None = None
    target: str = ""
    """The topic that exhausted jobs are moved to; none: they are buried."""
    returns: bool = False
    """A connection that closes is no failed attempt."""


LAWLESS: Final = (Law(),)


class Traits(NamedTuple):
    """What a job is, wherever it is."""

    topic: str = "default"
    key: str = ""
    """Its own, unless it has lost it."""
    body: bytes = b""
    ttr_ms: int = 0
    rule: Rule | None = None
    attempts: int = NEVER_FAILED
    """How often it was handed out since it was put or revived, once an attempt has failed."""
    was_moved: bool = False


class State(NamedTuple):
    """One job in one of the ways it may be; `lo` and `hi` bound when its time comes or is over."""

    kind: str
    """"absent", "waiting" (delayed or ready), "held", "buried" or "gone"."""

    lo: float = 0
    hi: float = 0
    holder: str | None = None
    priority: int = 0
    job: Traits = Traits()


ABSENT: Final = State("absent")
GONE: Final = State("gone")

Way = tuple[State, frozenset[int]]
"""A state, and those operations still without an end that have happened in it; the negative number
of one that was refused, or that has passed this job by."""


@dataclass(slots=True)
class Operation:
    """An operation that was begun."""

    number: int
    kind: str
    client: str
    at_ms: float
    what: dict[str, Any]
    end: str = ""
    ended_ms: float = FOREVER
    begun: int = 0
    """How many entries there were when it began."""
    ended: int = 0
    """And when it ended."""
    is_cut: bool = False
    """The daemon stopped before it had an end."""
    known_traits: Traits | None = None

    def value(self, name: str) -> int:
        """Return a number among its arguments, 0 if it has none of that name."""
        return int(self.what.get(name, 0))

    def text(self, name: str) -> str:
        """Return a text among its arguments, "" if it has none of that name."""
        return str(self.what.get(name) or "")

    @property
    def body(self) -> bytes:
        """Return the body that it put."""
        return bytes(self.what.get("body", b""))

    @property
    def topic(self) -> str:
        """Return the topic that it is about."""
        return str(self.what.get("topic", "default"))

    @property
    def traits(self) -> Traits:
        """Return what a job is that it puts."""
        traits = self.known_traits
        if traits is None:
            rule = as_rule(self.what.get("retry"))
            key, ttr_ms = self.text("key"), self.value("ttr_ms")
            self.known_traits = traits = Traits(self.topic, key, self.body, ttr_ms, rule)
        return traits


class Context(NamedTuple):
    """What an operation meets."""

    now_ms: float
    laws: Callable[[str, float], Collection[Law]] = lambda _topic, _since_ms: LAWLESS
    """What may have held for a topic at some time since then."""
    creators: Collection[int] | None = None
    """The puts that may have made the job; None: any."""


@dataclass(slots=True)
class Job:
    """All that is known of one job."""

    job_id: int
    put: Operation
    ways: set[Way]
    open: dict[int, Operation] = field(default_factory=dict)
    """Operations on it that have no end yet or never will."""
    creators: set[int] = field(default_factory=set)
    """The puts that may have made it."""
    past: list[tuple[float, set[Way]]] = field(default_factory=list)
    """What could be the case until when; kept where a power cut may take something."""
    returned: set[State] = field(default_factory=set)
    """How it was held by connections that have closed since the last start."""
    before: set[State] = field(default_factory=set)
    """What it was before it was handed out, if nothing about it was acknowledged since."""
    undone: set[State] = field(default_factory=set)
    """How it was held when it was seen that its ttr had run out. Nobody writes that down: should
    delayd time go back across a restart, because the wall clock was set back, it is held again."""
    undone_past: list[tuple[float, set[State]]] = field(default_factory=list)
    """The same of what was written since, and until when a power cut could take that."""
    reserved: int = 0
    """How many entries there were when it was handed out the last time."""
    changed: int = 0
    """How many entries there were when anything was acknowledged of it."""
    operations: list[int] = field(default_factory=list)

    @property
    def may_be_lost(self) -> bool:
        """Tell whether its put may not have happened."""
        return any(state.kind == "absent" for state, _ in self.ways)

    @property
    def topics(self) -> set[str]:
        """Return where it may be."""
        lives = {state.job.topic for state, _ in self.ways if state.kind not in {"absent", "gone"}}
        return lives | {self.put.topic}


def reachable(ways: set[Way], begun: Mapping[int, Operation], context: Context) -> set[Way]:
    """Return all that may be the case by now, with these operations begun; the set grows."""
    todo = list(ways)
    known: dict[State, list[tuple[int, State]]] = {}
    """What becomes of a state; many ways share one."""
    while todo:
        state, done = todo.pop()
        if state not in known:
            known[state] = list(steps(state, begun, context))
        for number, later in known[state]:
            if number in done or -number in done:
                continue
            way = (later, done | {number} if number else done)
            if way not in ways:
                ways.add(way)
                todo.append(way)
    return ways


def steps(
    state: State, begun: Mapping[int, Operation], context: Context
) -> Iterator[tuple[int, State]]:
    """Yield what may become of the state at once, with the number of the operation; 0: of none.

    The number is negative where the operation was refused, or has passed the job by.
    """
    for expired in lapses(state, context):
        yield 0, expired
    for number, operation in begun.items():
        for later in after(state, operation, context):
            if operation.kind != "close" or later != state:
                yield number, later
        for passed in passed_by(state, operation, context):
            yield -number, passed


def is_ruled(state: State, laws: Iterable[Law]) -> bool:
    """Tell whether it shows when its ttr runs out."""
    job = state.job
    return job.rule is not None or job.attempts >= 0 or any(law.rule for law in laws)


def lapses(state: State, context: Context) -> Iterator[State]:
    """Yield what a job is whose ttr may have run out, where that shows."""
    if state.kind == "held" and state.lo <= context.now_ms:
        laws = context.laws(state.job.topic, state.lo)
        if is_ruled(state, laws):
            for law in laws:
                yield failed(state, law, state.lo, state.hi)


def failed(
    state: State, law: Law, lo: float, hi: float, delay_ms: int = 0, *, is_noted: bool = False
) -> State:
    """Return what becomes of a job whose attempt failed between two times.

    `is_noted`: an error is kept of it even without a rule.
    """
    job, rule = state.job, rule_for(state.job.rule, law.rule)
    again = State("waiting", lo + delay_ms, hi + delay_ms, priority=state.priority)
    if rule is None and not is_noted:
        return again._replace(job=handed(job))
    number = job.attempts + 1 if job.attempts >= 0 else 1
    if rule is None:
        return again._replace(job=job._replace(attempts=number))
    steps_ms = rule.steps_ms
    is_over = bool(rule.attempts_max) and number >= rule.attempts_max
    if is_over or (steps_ms and number > len(steps_ms)):
        if law.target and not job.was_moved:
            moved = job._replace(topic=law.target, key="", attempts=0, was_moved=True)
            return State("waiting", lo, hi, priority=state.priority, job=moved)
        return State("buried", priority=state.priority, job=job._replace(attempts=number))
    job = job._replace(attempts=number)
    if steps_ms and not delay_ms:
        step_ms = steps_ms[number - 1]
        longest_ms = step_ms + step_ms * rule.jitter_percent // 100
        again = again._replace(lo=lo + step_ms, hi=hi + longest_ms)
    return again._replace(job=job)


def excused(state: State, law: Law, lo: float, hi: float) -> State:
    """Return what a job is that its holder left without having failed."""
    job = state.job
    if rule_for(job.rule, law.rule) is None:
        job = handed(job)
    elif job.attempts < 0:
        job = job._replace(attempts=0)
    return State("waiting", lo, hi, priority=state.priority, job=job)


def handed(job: Traits) -> Traits:
    """Return what a job is that comes back without having failed: that counts, if anything does."""
    return job if job.attempts < 0 else job._replace(attempts=job.attempts + 1)


def revived(state: State) -> Traits:
    """Return what a job is that is taken out of burial."""
    is_counted = state.kind == "buried" and state.job.attempts >= 0
    return state.job._replace(attempts=0) if is_counted else state.job


def rule_for(own: Rule | None, topics: Rule | None) -> Rule | None:
    """Return the rule that a job is under: its own ladder, or else its topic's."""
    if own is None or topics is None or own.steps_ms:
        return topics if own is None else own
    return topics._replace(attempts_max=own.attempts_max)


def after(state: State, operation: Operation, context: Context) -> list[State]:
    """Return what the operation makes of the state by now; nothing if it cannot happen to it."""
    kind, now_ms = operation.kind, context.now_ms
    start_ms, by_ms = operation.at_ms, now_ms + ROUNDING_MS
    is_held = state.kind == "held"
    is_mine = is_held and state.holder == operation.client
    if kind == "close":
        if not is_mine:
            return [state]
        is_no_failure = bool(operation.what.get("stops"))
        return [
            (excused if law.returns or is_no_failure else failed)(state, law, start_ms, by_ms)
            for law in context.laws(state.job.topic, start_ms)
        ]
    if kind == "put":
        return _put(state, operation, context)
    if kind == "reserve":
        topics = operation.what.get("topics")
        is_watched = topics is None or state.job.topic in topics
        if not is_watched or state.lo > now_ms or not (state.kind == "waiting" or is_held):
            return []
        if is_held and is_ruled(state, context.laws(state.job.topic, state.lo)):
            return []
        ttr_ms = state.job.ttr_ms
        times = (max(start_ms, state.lo) + ttr_ms, by_ms + ttr_ms)
        return [State("held", *times, operation.client, state.priority, state.job)]
    if kind in BY_HOLDER:
        return _held(state, operation, context) if is_mine and state.hi >= start_ms else []
    if kind in SWEEPING:
        is_there = is_at_rest(state, context) and state.job.topic == operation.topic
        return [GONE] if is_there else []
    if kind == "kick-tube":
        if state.job.topic != operation.topic or state.kind in {"absent", "gone"}:
            return []
        kind = "kick"
    if kind in BY_KEY:
        if state.job.key != operation.text("key") or state.kind in {"absent", "gone"}:
            return []
        kind = BY_KEY[kind]
    is_mine = is_mine and state.hi >= start_ms
    if not is_at_rest(state, context) and not (is_mine and kind == "delete"):
        return []
    return _any(state, kind, operation, by_ms)


def is_at_rest(state: State, context: Context) -> bool:
    """Tell whether nobody may hold the job by now."""
    if state.kind == "held" and state.lo <= context.now_ms:
        return not is_ruled(state, context.laws(state.job.topic, state.lo))
    return state.kind in {"waiting", "buried"}


def _any(state: State, kind: str, operation: Operation, by_ms: float) -> list[State]:
    """Return what an operation makes of a job that nobody holds."""
    start_ms, delay_ms = operation.at_ms, operation.value("delay_ms")
    job = handed(state.job) if state.kind == "held" else revived(state)
    later = State("waiting", start_ms, by_ms, priority=state.priority, job=job)
    if kind == "delete":
        return [GONE]
    if kind == "kick":
        return [later._replace(lo=min(state.lo, start_ms))]
    if kind in NOT_OF_THE_BURIED and state.kind == "buried":
        return []
    if kind == "bury-waiting":
        job = job._replace(attempts=max(0, job.attempts))
        return [State("buried", priority=state.priority, job=job)]
    if kind == "reschedule":
        return [later._replace(lo=start_ms + delay_ms, hi=by_ms + delay_ms)]
    assert kind == "change", kind
    what = operation.what
    changed = later._replace(lo=start_ms + delay_ms, hi=by_ms + delay_ms)
    if "delay_ms" not in what:
        changed = state._replace(holder=None)
        if state.kind == "held":
            changed = changed._replace(kind="waiting", job=job)
    traits = changed.job
    if "ttr_ms" in what:
        traits = traits._replace(ttr_ms=operation.value("ttr_ms"))
    if "body" in what:
        traits = traits._replace(body=operation.body)
    if "priority" in what:
        changed = changed._replace(priority=operation.value("priority"))
    return [changed._replace(job=traits)]


def _held(state: State, operation: Operation, context: Context) -> list[State]:
    """Return what its holder makes of a job."""
    kind, start_ms, by_ms = operation.kind, operation.at_ms, context.now_ms + ROUNDING_MS
    delay_ms = operation.value("delay_ms")
    if kind == "touch":
        ttr_ms = state.job.ttr_ms
        return [state._replace(lo=start_ms + ttr_ms, hi=by_ms + ttr_ms)]
    if kind not in {"nack", "spare"}:
        state = state._replace(priority=operation.value("priority"))
    found = []
    for law in context.laws(state.job.topic, start_ms):
        if kind == "bury":
            job = handed(state.job)
            if rule_for(job.rule, law.rule) is not None and job.attempts < 0:
                job = job._replace(attempts=1)
            found.append(State("buried", priority=state.priority, job=job))
        elif kind == "spare":
            found.append(excused(state, law, start_ms, by_ms))
        else:
            is_noted = kind == "nack"
            found.append(failed(state, law, start_ms, by_ms, delay_ms, is_noted=is_noted))
    return found


def _put(state: State, put: Operation, context: Context) -> list[State]:
    """Return what a put makes of a job: it makes it, or changes the one that has its key."""
    is_absent = state.kind == "absent"
    is_maker = is_absent and (context.creators is None or put.number in context.creators)
    if not is_maker and (is_absent or not has_key_of(state, put)):
        return []
    start_ms, by_ms = put.at_ms, context.now_ms + ROUNDING_MS
    delay_ms, priority, traits = put.value("delay_ms"), put.value("priority"), put.traits
    # Of a moment of the wall clock nobody here knows when it comes.
    is_appointed = "wall_ms" in put.what
    lo, hi = (0, FOREVER) if is_appointed else (start_ms + delay_ms, by_ms + delay_ms)
    waiting = State("waiting", lo, hi, priority=priority, job=traits)
    if is_maker:
        return [waiting]
    on = put.text("on") or "reject"
    if on in {"reject", "keep"}:
        return [state]
    if not is_at_rest(state, context):
        return []
    if on == "replace":
        return [waiting]
    job = handed(state.job) if state.kind == "held" else state.job
    state = state._replace(job=job, holder=None)
    if state.kind == "held":
        state = state._replace(kind="waiting")
    if on == "extend":
        return [waiting._replace(priority=state.priority, job=revived(state))]
    job = job._replace(body=traits.body, ttr_ms=traits.ttr_ms, rule=traits.rule)
    return [state._replace(priority=priority, job=job)]


def has_key_of(state: State, operation: Operation) -> bool:
    """Tell whether the job has the key that the operation is about."""
    key, job = operation.text("key"), state.job
    is_live = state.kind not in {"absent", "gone"}
    return bool(key) and is_live and (job.key, job.topic) == (key, operation.topic)


def passed_by(state: State, operation: Operation, context: Context) -> list[State]:
    """Return what the state is after the operation has been refused, or was not about this job."""
    kind, now_ms = operation.kind, context.now_ms
    if kind == "put":
        if not has_key_of(state, operation):
            return [state] if operation.text("key") else []
        is_displaced = operation.text("on") not in {"", "reject", "keep"}
        if is_displaced and state.kind == "held" and state.hi >= operation.at_ms:
            return [state._replace(job=state.job._replace(key=""))]
        return []
    if kind in SWEEPING:
        is_held = state.kind == "held" and state.hi >= operation.at_ms
        is_elsewhere = state.job.topic != operation.topic
        return [state] if is_held or is_elsewhere or state.kind in {"absent", "gone"} else []
    if kind == "kick-tube":
        return [state]
    if kind in BY_KEY:
        kind = BY_KEY[kind]
        if not has_key_of(state, operation):
            return [state]
    elif kind not in BY_ID:
        return []
    return [state] if may_refuse(state, kind, operation, now_ms) else []


def may_refuse(state: State, kind: str, operation: Operation, now_ms: float) -> bool:
    """Tell whether "no such job" is a right answer to the operation in this state."""
    is_held = state.kind == "held" and state.hi >= operation.at_ms
    if kind in BY_HOLDER or state.kind == "held":
        is_mine = state.kind == "held" and state.holder == operation.client
        if kind in BY_HOLDER or (kind == "delete" and is_mine):
            return not (is_mine and state.lo > now_ms)
        return is_held or kind == "kick"
    if kind == "kick" and state.kind == "waiting":
        return state.lo <= now_ms
    is_buried = kind in NOT_OF_THE_BURIED and state.kind == "buried"
    return is_buried or state.kind in {"absent", "gone"}


def fits(state: State, seen: Seen, at_ms: float, late_ms: float) -> bool:
    """Tell whether somebody may have seen the state like this."""
    job = state.job
    if seen.priority is not None and seen.priority != state.priority:
        return False
    if seen.body != job.body or seen[5:] not in {
        (None, None, None),
        (job.topic, job.key, job.attempts),
    }:
        return False
    is_past = state.kind in {"waiting", "held"} and state.lo <= at_ms
    if seen.state == "ready":
        return is_past
    if seen.state in {"delayed", "reserved"}:
        is_timely = state.hi + late_ms >= at_ms
        is_due = seen.due_ms is None or state.lo <= seen.due_ms <= state.hi
        is_kind = state.kind == ("held" if seen.state == "reserved" else "waiting")
        return is_kind and is_timely and is_due
    return state.kind == seen.state == "buried"


def as_rule(value: tuple[tuple[int, ...], int, int] | None) -> Rule | None:
    """Return the rule that a history says: steps, highest number of attempts, jitter."""
    return Rule(*value) if value else None
