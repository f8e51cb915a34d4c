"""One job in one of the ways in which it may be, and what operations make of it.

A stupid model of the engine for one job, with times as intervals: the client knows when it asked
and when it was answered, and the daemon decided somewhere in between.

>>> put = Operation(1, "put", "a", 1_000, {"delay_ms": 500})
>>> after(ABSENT, put, ttr_ms=60_000, now_ms=1_010)
State(kind='waiting', lo=1500, hi=1512, holder=None, priority=0)

It refuses to know histories.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tests.faults.history import Seen

ROUNDING_MS: Final = 2
"""Times are rounded up to the millisecond as they come in, and again to the wheel's tick."""

FOREVER: Final = float("inf")
BY_HOLDER: Final = frozenset({"release", "bury", "touch"})
BY_ID: Final = BY_HOLDER | {"delete", "kick", "reschedule"}


class State(NamedTuple):
    """One job in one of the ways it may be; `lo` and `hi` bound when its time comes or is over."""

    kind: str
    """"absent", "waiting" (delayed or ready), "held", "buried" or "gone"."""

    lo: float = 0
    hi: float = 0
    holder: str | None = None
    priority: int = 0


ABSENT: Final = State("absent")
GONE: Final = State("gone")

Way = tuple[State, frozenset[int]]
"""A state, and those operations still without an end that have happened in it; the negative number
of one that was refused."""


@dataclass(slots=True)
class Operation:
    """An operation that was begun."""

    number: int
    kind: str
    client: str
    at_ms: float
    what: dict[str, object]
    end: str = ""
    ended_ms: float = FOREVER
    begun: int = 0
    """How many entries there were when it began."""
    is_cut: bool = False
    """The daemon stopped before it had an end."""

    def value(self, name: str) -> int:
        """Return a number among its arguments, 0 if it has none of that name."""
        value = self.what.get(name, 0)
        assert isinstance(value, int)
        return value

    @property
    def body(self) -> bytes:
        """Return the body that it put."""
        return as_bytes(self.what.get("body", b""))


@dataclass(slots=True)
class Job:
    """All that is known of one job."""

    job_id: int
    put: Operation
    ways: set[Way]
    open: dict[int, Operation] = field(default_factory=dict)
    """Operations on it that have no end yet or never will."""
    past: list[tuple[float, set[Way]]] = field(default_factory=list)
    """What could be the case until when; kept where a power cut may take something."""
    returned: set[State] = field(default_factory=set)
    """How it was held by connections that have closed since the last start."""
    before: set[State] = field(default_factory=set)
    """What it was before it was handed out, if nothing about it was acknowledged since."""
    reserved: int = 0
    """How many entries there were when it was handed out the last time."""
    operations: list[int] = field(default_factory=list)

    @property
    def may_be_lost(self) -> bool:
        """Tell whether its put may not have happened."""
        return any(state == ABSENT for state, _ in self.ways)


def reachable(
    ways: set[Way], begun: Mapping[int, Operation], ttr_ms: int, now_ms: float
) -> set[Way]:
    """Return all that may be the case by now, with these operations begun; the set grows."""
    todo = list(ways)
    while todo:
        state, done = todo.pop()
        for number, operation in begun.items():
            if number in done or -number in done:
                continue
            next_state = after(state, operation, ttr_ms, now_ms)
            nexts = []
            if next_state is not None and (operation.kind != "close" or next_state != state):
                nexts.append((next_state, done | {number}))
            if operation.kind in BY_ID and may_refuse(state, operation, now_ms):
                nexts.append((state, done | {-number}))
            for way in nexts:
                if way not in ways:
                    ways.add(way)
                    todo.append(way)
    return ways


def after(state: State, operation: Operation, ttr_ms: int, now_ms: float) -> State | None:
    """Return what the operation makes of the state by now, None if it cannot happen to it."""
    kind, start_ms, by_ms = operation.kind, operation.at_ms, now_ms + ROUNDING_MS
    delay_ms, priority = operation.value("delay_ms"), operation.value("priority")
    is_mine = state.kind == "held" and state.holder == operation.client
    if kind == "close":
        return State("waiting", start_ms, by_ms, priority=state.priority) if is_mine else state
    is_mine = is_mine and state.hi >= start_ms
    is_over = state.kind == "held" and state.lo <= now_ms
    is_free = state.kind in {"waiting", "buried"} or is_over
    later = State("waiting", start_ms + delay_ms, by_ms + delay_ms, priority=state.priority)
    if kind == "put" and state == ABSENT:
        return later._replace(priority=priority)
    if kind == "reserve" and state.kind in {"waiting", "held"} and state.lo <= now_ms:
        held = ("held", max(start_ms, state.lo) + ttr_ms, by_ms + ttr_ms, operation.client)
        return State(*held, priority=state.priority)
    if kind in BY_HOLDER and is_mine:
        if kind == "touch":
            return state._replace(lo=start_ms + ttr_ms, hi=by_ms + ttr_ms)
        changed = State("buried") if kind == "bury" else later
        return changed._replace(priority=priority)
    if kind == "delete" and (is_mine or is_free):
        return GONE
    if kind == "kick" and is_free:
        return later._replace(lo=min(state.lo, start_ms), hi=by_ms)
    if kind == "reschedule" and is_free and state.kind != "buried":
        return later
    return None


def held_by(gone: Iterable[tuple[Operation, float]], put: Operation) -> Iterator[State]:
    """Yield how connections may have held a job which closed before anybody spoke of it."""
    ttr_ms = put.value("ttr_ms")
    waiting = after(ABSENT, put, ttr_ms, put.at_ms)
    for reserve, closed_ms in gone:
        held = waiting and after(waiting, reserve, ttr_ms, closed_ms)
        if held:
            yield held


def may_refuse(state: State, operation: Operation, now_ms: float) -> bool:
    """Tell whether "no such job" is a right answer to the operation in this state."""
    is_held = state.kind == "held" and state.hi >= operation.at_ms
    if operation.kind in BY_HOLDER or state.kind == "held":
        is_mine = state.kind == "held" and state.holder == operation.client
        if operation.kind in BY_HOLDER or (operation.kind == "delete" and is_mine):
            return not (is_mine and state.lo > now_ms)
        return is_held or operation.kind == "kick"
    if operation.kind == "kick" and state.kind == "waiting":
        return state.lo <= now_ms
    return state.kind in {"absent", "gone"} or (
        operation.kind == "reschedule" and state.kind == "buried"
    )


def fits(state: State, seen: Seen, at_ms: float, late_ms: float) -> bool:
    """Tell whether somebody may have seen the state like this."""
    if seen.priority is not None and seen.priority != state.priority:
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


def as_bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("latin-1")
    assert isinstance(value, bytes)
    return value


def as_seen(job: object) -> Seen:
    """Return what an observation in a history says of one job."""
    assert isinstance(job, list | tuple)
    job_id, state, body, *rest = job
    return Seen(job_id, state, as_bytes(body), *rest)
