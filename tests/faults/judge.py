"""What may be the case of each job: the sets of ways that everything seen makes smaller.

A job is in one of a few states; an operation without an end may have happened or not. So each job
has a set of *ways*: a state, and which of the open operations have happened in it. `states` says
what an operation makes of a state; here the set grows by that, and what was heard, or seen, leaves
those ways that fit. No way left: a promise is broken, and what the ways were says which.

It does not know the entries of a history; `checker` does.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from tests.faults.digests import Digests, Violation
from tests.faults.laws import Laws
from tests.faults.states import (
    ABSENT,
    FOREVER,
    GONE,
    ROUNDING_MS,
    WIDE,
    Context,
    Job,
    Operation,
    State,
    Way,
    after,
    excused,
    reachable,
)


class ClearedJobs(NamedTuple):
    """What had been begun when a stop cut a put short."""

    stopped_ms: float
    how: str
    cut: list[Operation]
    """Who may have been given the job before, and who may have left."""


class Gone(NamedTuple):
    """A reserve that nobody will hear the end of."""

    reserve: Operation
    closed_ms: float
    """When its connection closed."""
    closed: int
    """And how many entries there were."""


def concerns(operation: Operation, put: Operation) -> bool:
    """Tell whether an operation by key, or on a topic, may be about what was put."""
    is_there = operation.topic == put.topic
    key = put.text("key")
    return is_there and (operation.kind in WIDE or (bool(key) and operation.text("key") == key))


class Judge:
    """Knows jobs, and what is open."""

    def __init__(self, late_ms_max: float = FOREVER, loss_ms: float = 0) -> None:
        self.violations: list[Violation] = []
        self._late_ms = late_ms_max
        self._loss_ms = loss_ms
        self._operations: dict[int, Operation] = {}
        """Those without an end."""
        self._jobs: dict[int, Job] = {}
        self._broken: set[int] = set()
        """Jobs about which enough has been said."""
        self._told: set[int] = set()
        """Their puts."""
        self._nameless: dict[bytes, Operation] = {}
        """Puts whose id nobody has been told, by body."""
        self._ghosts: dict[int, ClearedJobs] = {}
        """Of those that a stop cut short."""
        self._refused: dict[bytes, Operation] = {}
        self._reserves: dict[int, Operation] = {}
        """Reserves without an end: any job may have been handed out to them."""
        self._left: Counter[int] = Counter()
        """How many jobs may still come of each of them."""
        self._first: dict[object, Operation] = {}
        """The first reserve of each batch."""
        self._gone: list[Gone] = []
        """Those whose connection has closed since the last start."""
        self._closes: dict[int, Operation] = {}
        self._batches: dict[object, list[Operation]] = {}
        """Puts that were sent in one piece."""
        self._sweeps: list[Operation] = []
        """Whatever was to empty a topic."""
        self._handed: dict[object, list[int]] = {}
        """Jobs that were handed out in one piece."""
        self._closed = 0
        self._entries = 0
        self._now_ms: float = 0
        self._started_ms: float = 0
        self._has_sync_failed = False
        self._digests = Digests()
        self._laws = Laws(keeps_all=loss_ms > 0)
        self._by_key: dict[tuple[str, str], set[int]] = {}
        """Jobs that have had a key of a topic, dead ones as well."""
        self._wide: dict[int, Operation] = {}
        """Operations without an end that may be about more than one job."""
        self._past: list[tuple[int, Operation]] = []
        """Those of them that have ended since the last start, but may concern a job that nobody has
        heard of yet; and how many entries there were when they ended."""

    def _break(self, invariant: str, why: str, job: Job | None, *more: Operation) -> None:
        numbers = [*(job.operations if job else ()), *(each.number for each in more)]
        self.violations.append(Violation(invariant, why, tuple(dict.fromkeys(numbers))))
        if job:
            self._told.add(job.put.number)
            self._broken.add(job.job_id)
            del self._jobs[job.job_id]

    def _job(self, job_id: int, body: bytes, *about: Operation) -> Job | None:
        """Return the job of this id; one that shows for the first time is known by its body."""
        job = self._jobs.get(job_id)
        if job and not self._may_have(job, body) and body in self._nameless and job.may_be_lost:
            del self._jobs[job_id]  # and its id was given anew
            job = None
        if job is None and job_id not in self._broken:
            put = self._nameless.pop(body, None)
            if put is None:
                self._invented(job_id, body, about)
                return None
            job = self._made(job_id, put)
        if job and not self._may_have(job, body):
            self._break("I3", f"job {job_id} has another body than it was put with", job, *about)
            return None
        return job

    def _made(self, job_id: int, put: Operation) -> Job:
        """Return a job that has shown for the first time, and that this put has made, or another
        one under the same key whose answer is still to come.
        """
        job = Job(job_id, put, {(ABSENT, frozenset())}, {put.number: put}, {put.number})
        job.operations.append(put.number)
        self._jobs[job_id] = job
        key = put.text("key")
        if key:
            self._by_key.setdefault((put.topic, key), set()).add(job_id)
        late = [each for ended, each in self._past if ended > put.begun and concerns(each, put)]
        begun = [each for each in self._wide.values() if concerns(each, put)]
        job.open |= {each.number: each for each in begun}
        job.creators |= {each.number for each in (*begun, *late) if each.kind == "put"}
        self._come_back(job, late)
        if put.number in self._ghosts:
            stopped_ms, how, cut = self._ghosts[put.number]
            states = {state for state, _ in self._reachable(job, stopped_ms, *cut, *late)}
            if how == "stop":
                states |= self._let_go(states, stopped_ms)
            job.ways = {(state._replace(holder=None), frozenset()) for state in states}
            job.open.clear()
        elif late:
            ways = self._reachable(job, self._now_ms, *late)
            numbers = {sign * each.number for each in late for sign in (1, -1)}
            job.ways = {(state, done - numbers) for state, done in ways}
        return job

    def _come_back(self, job: Job, late: list[Operation]) -> None:
        """Let a job be one that connections held which closed before anybody spoke of it.

        Meanwhile somebody may have put another one under its key. But for that, and where no rule
        holds, it is what it was.
        """
        begun = job.open | {each.number: each for each in late}
        puts = [begun[number] for number in job.creators]
        since, since_ms = min(put.begun for put in puts), min(put.at_ms for put in puts)
        ghost = self._ghosts.get(job.put.number)
        now_ms = self._now_ms if ghost is None else ghost.stopped_ms
        context = Context(now_ms, self._laws.of, job.creators)
        gone = [each for each in self._gone if each.closed > since]
        ways = reachable(set(job.ways), begun, context) if gone else set[Way]()
        for reserve, closed_ms, _ in gone:
            then = context._replace(now_ms=closed_ms)
            close = Operation(0, "close", reserve.client, since_ms, {})
            held = {(each, done) for state, done in ways for each in after(state, reserve, then)}
            back = reachable(held, begun, then)
            mine = {way for way in back if way[0].holder == reserve.client}
            job.returned |= {state for state, _ in mine}
            if self._loss_ms:
                job.past.append((closed_ms, mine))
            back = back - mine
            back |= {(each, done) for state, done in mine for each in after(state, close, then)}
            ready = {
                (state.job, state.priority, done)
                for state, done in ways
                if state.kind == "waiting" and state.lo <= closed_ms
            }
            new = {
                (state, done)
                for state, done in back
                if state.kind != "waiting"
                or state.hi > closed_ms + ROUNDING_MS
                or (state.job, state.priority, done) not in ready
            }
            ways |= reachable(new, begun, context)
            job.ways |= new
        job.reserved = self._entries if job.returned else 0

    def _may_have(self, job: Job, body: bytes) -> bool:
        """Tell whether the job may have this body by now."""
        if any(state.job.body == body for state, _ in job.ways) or job.put.body == body:
            return True
        return any(each.body == body for each in job.open.values())

    def _invented(self, job_id: int, body: bytes, about: tuple[Operation, ...]) -> None:
        self._broken.add(job_id)
        if body in self._refused:
            why = f"job {job_id} is there, and its put was refused"
            self._break("I4", why, None, self._refused[body], *about)
            return
        for put in self._nameless.values():
            if put.body.startswith(body) or body.startswith(put.body):
                self._break("I4", f"job {job_id} is a part of what was put", None, put, *about)
                return
        self._break("I3", f"job {job_id} was put by nobody", None, *about)

    def _reachable(self, job: Job, now_ms: float, *more: Operation) -> set[Way]:
        """Return all that may be the case by now."""
        places = self._laws.reached_from(job.topics)
        begun = {each.number: each for each in more} | job.open | self._closes
        for number, reserve in self._reserves.items():
            topics = reserve.what.get("topics")
            if not isinstance(topics, list | tuple) or not places.isdisjoint(topics):
                begun[number] = reserve
        ways = {way for way in job.ways if all(abs(number) in begun for number in way[1])}
        holders = {state.holder for state, _ in ways} | {
            each.client for each in (*more, *self._reserves.values())
        }
        for number, close in self._closes.items():
            if close.client not in holders:
                del begun[number]
        return reachable(ways, begun, Context(now_ms, self._laws.of, job.creators))

    def _happened(
        self, job: Job, operation: Operation, now_ms: float, body: bytes | None = None
    ) -> None:
        """Keep the ways in which the operation has happened, to a job with this body."""
        number = operation.number
        job.changed = self._entries
        ways = self._reachable(job, now_ms, operation)
        kept = {
            (state, done - {number})
            for state, done in ways
            if number in done and (body is None or state == GONE or state.job.body == body)
        }
        if operation.kind == "reserve":
            # Its reply does not wait for a sync, neither of this nor of what made it possible.
            job.before |= {state for state, done in ways if number not in done}
            job.reserved = self._entries
            self._is_written(job)
        else:
            self._is_durable(job, operation, now_ms)
        if kept:
            job.open.pop(number, None)
            self._keep(job, kept, now_ms, {way for way in ways if number not in way[1]})
            return
        states = {state for state, _ in ways}
        kinds = {state.kind for state in states}
        bodies = {state.job.body for state in states if state.kind not in {"absent", "gone"}}
        if body is not None and bodies and body not in bodies:
            invariant, why = "I3", "has another body"
        elif kinds <= {"gone"}:
            invariant, why = "I2", "was deleted before"
        elif "held" in kinds:
            invariant, why = "I7", "is held by somebody else"
        elif operation.kind == "reserve" and "waiting" in kinds:
            invariant, why = "I6", "comes early"
        else:
            invariant, why = "I4", f"can only be {', '.join(sorted(kinds))}"
        said = f"{operation.kind} of job {job.job_id} at {now_ms}, which {why}"
        self._break(invariant, said, job, operation)

    def _is_durable(self, job: Job, operation: Operation, now_ms: float) -> None:
        """Something was changed and acknowledged: so is all that was written of the job before."""
        if operation.begun > job.reserved:
            if self._loss_ms and job.before:
                job.past.append((now_ms, {(state, frozenset()) for state in job.before}))
            job.returned.clear()
            job.before.clear()
            self._is_written(job, now_ms)
        else:
            context = Context(now_ms, self._laws.of)
            job.before = {
                later for state in job.before for later in after(state, operation, context)
            }

    def _is_written(self, job: Job, durable_ms: float = FOREVER) -> None:
        """Something of the job was written: time does not go back to before, unless it is lost.

        `durable_ms`: and it was acknowledged then, so that it is lost as other things are.
        """
        if job.undone:
            job.undone_past.append((FOREVER, set(job.undone)))
            job.undone.clear()
        if durable_ms < FOREVER:
            job.undone_past = [
                (min(until_ms, durable_ms), states)
                for until_ms, states in job.undone_past
                if self._loss_ms
            ]

    def _show_reserves(
        self, job: Job, ways: set[Way], kept: set[Way], *, is_from_within: bool = False
    ) -> None:
        """Keep what the job was before reserves which show before they are answered.

        `ways` are those that were possible until now. That somebody was refused a job shows that it
        was handed out, and does not make it durable; `is_from_within`: nor anything else it shows.
        """
        dropped = ways - kept
        if is_from_within:
            before = {state for state, _ in dropped} - {state for state, _ in kept}
        else:
            shown = {number for _, done in kept for number in done} & self._reserves.keys()
            before = {state for state, done in dropped if not shown <= done}
        if before:
            job.before |= before
            job.reserved = self._entries

    def _keep(self, job: Job, ways: set[Way], now_ms: float, before: Iterable[Way] = ()) -> None:
        """Keep these ways, and what a power cut may bring back: what could be the case until now.

        `before` are the ways in which that which was just heard of has not happened yet: what is
        unknown may have happened first, and be all that a power cut leaves.
        """
        if self._loss_ms:
            past = job.ways.union(before)
            if past != ways:
                job.past.append((now_ms, past))
        job.ways = ways

    def _let_go(self, states: set[State], at_ms: float) -> set[State]:
        """Return what becomes of jobs in hand when the daemon closes all connections."""
        return {
            excused(state, law, 0, at_ms + ROUNDING_MS)
            for state in states
            if state.kind == "held"
            for law in self._laws.of(state.job.topic, 0)
        }
