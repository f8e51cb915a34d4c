"""Judges a history: what may be the case of each job, narrowed by everything that was seen.

A job is in one of a few states; an operation without an end may have happened or not. So each job
has a set of *ways*: a state, and which of the open operations have happened in it. An `ok` keeps
the ways in which the operation has happened, a refusal those in which it could be refused, a look
at the job those that look like that. No way left: a promise is broken, and what the ways were says
which. Nothing is assumed of the order of operations that overlap.

    put ok, release(delay) unknown, power cut       ways: held · waiting for the delay · ready
    seen "delayed" with another due time            none of them: I4

It does not know how the daemon works; `history` says what it is told.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from tests.faults.history import Entry, Seen, jobs_seen
from tests.faults.laws import Laws
from tests.faults.states import (
    ABSENT,
    BY_HOLDER,
    BY_ID,
    BY_KEY,
    FOREVER,
    FROM_WITHIN,
    GONE,
    ROUNDING_MS,
    SWEEPING,
    WIDE,
    Context,
    Job,
    Operation,
    State,
    Way,
    after,
    excused,
    fits,
    is_ruled,
    reachable,
)

NOTES_FROM: Final = 1 << 40
"""Numbers for operations that the history has none for."""


class Violation(NamedTuple):
    """A promise that was broken, and by what."""

    invariant: str
    why: str
    operations: tuple[int, ...] = ()


class Digests:
    """The states there were, by the frame after which they were the case: I8 and I10.

    The state that a start finds is that after some frame, and no reply had left that depended on a
    later one.
    """

    def __init__(self) -> None:
        self._prefixes: dict[int, object] = {}
        self._acked = 0

    def take(self, note: dict[str, Any]) -> Iterator[Violation]:
        """Take a note of the history; yield what it shows to be broken."""
        if note["what"] == "prefix":
            self._prefixes[note["sequence"]] = note["digest"]
            self._acked = max(self._acked, note.get("acked", 0))
        elif note["what"] == "recovered":
            found = max(
                (n for n in self._prefixes if self._prefixes[n] == note["digest"]), default=-1
            )
            if found < self._acked:
                why = f"the state is that after none of the frames from {self._acked} on"
                yield Violation("I8", why if found < 0 else f"{why}, but of {found}")
            else:
                self._prefixes = {n: kept for n, kept in self._prefixes.items() if n <= found}
        elif note["what"] == "same" and note["left"] != note["right"]:
            yield Violation("I10", f"{note['of']} differ")


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


def violations(
    entries: Iterable[Entry], *, late_ms_max: float = FOREVER, loss_ms: float = 0
) -> list[Violation]:
    """Return every promise that was broken, in the order in which it showed.

    `loss_ms` is how much of what was acknowledged a power cut may take: 0 for `sync = always`, the
    interval, or infinity for `never`; a prefix must survive even then.
    """
    checker = Checker(late_ms_max, loss_ms)
    for entry in entries:
        checker.take(entry)
    return checker.violations


class Checker:
    """Takes a history entry by entry: knows jobs, and what is open."""

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

    def take(self, entry: Entry) -> None:
        """Take the next entry."""
        what, number, at_ms, rest = entry
        self._entries += 1
        if at_ms < self._now_ms:
            self._go_back()
        self._now_ms = at_ms
        if what == "note":
            self._note(at_ms, rest)
        elif what == "invoke":
            self._invoke(Operation(number, rest["kind"], rest["client"], at_ms, rest))
        else:
            operation = self._operations[number]
            operation.end, operation.ended_ms, operation.ended = what, at_ms, self._entries
            if what != "unknown":
                del self._operations[number]
            if what == "ok":
                self._ok(operation, at_ms, rest)
            elif what == "fail":
                self._fail(operation, at_ms, rest["why"])

    # --- Operations -----------------------------------------------------------------------------

    def _invoke(self, operation: Operation) -> None:
        operation.begun = self._entries
        self._operations[operation.number] = operation
        if operation.kind == "put":
            if (batch := operation.what.get("batch")) is not None:
                self._batches.setdefault(batch, []).append(operation)
            self._nameless[operation.body] = operation
        if operation.kind in SWEEPING:
            self._sweeps.append(operation)
        if operation.kind in WIDE or operation.text("key"):
            self._wide[operation.number] = operation
            for concerned in list(self._concerned(operation)):
                concerned.open[operation.number] = operation
        if operation.kind in {"policy", "pause"}:
            self._laws.invoke(operation)
        elif operation.kind == "reserve":
            # Those of one batch are one operation that happens to several jobs.
            first = self._batch_of(operation)
            self._reserves.setdefault(first.number, first)
            self._left[first.number] += 1
        elif operation.kind == "close":
            self._closes[operation.number] = operation
            for held in self._jobs.values():
                # Nobody is told that the jobs are back, so a stop may undo that.
                held.returned |= {each for each, _ in held.ways if each.holder == operation.client}
        elif operation.kind in BY_ID:
            job = self._jobs.get(operation.value("job_id"))
            if job:
                job.open[operation.number] = operation
                job.operations.append(operation.number)

    def _ok(self, operation: Operation, at_ms: float, rest: dict[str, Any]) -> None:
        job_id = rest.get("job_id", operation.value("job_id"))
        kind = operation.kind
        is_new = kind == "put" and rest.get("outcome") not in {"kept", "there"}
        if self._has_sync_failed and not self._loss_ms and (is_new or kind in BY_ID):
            why = f"{kind} was acknowledged after a sync had failed"
            self.violations.append(Violation("I9", why, (operation.number,)))
        if kind in {"policy", "pause"}:
            self._laws.ok(operation, at_ms)
        elif kind in BY_KEY or kind in WIDE:
            self._ok_of_many(operation, at_ms)
        elif operation.text("key"):
            self._put_by_key(operation, at_ms, job_id, rest.get("outcome", "created"))
        elif kind == "close":
            self._closed_for_good(operation, at_ms)
        elif kind == "reserve":
            self._reserved(operation, at_ms, job_id, rest.get("body", b""))
        elif kind == "put":
            known = self._jobs.get(job_id)
            if known and known.put is not operation:
                if known.may_be_lost:
                    del self._jobs[job_id]  # and its id was given anew
                else:
                    self._break("I3", f"job {job_id} was put twice", known, operation)
            known = self._job(job_id, operation.body, operation)
            if known:
                self._happened(known, operation, at_ms)
        elif kind in BY_ID and job_id not in self._broken:
            known = self._jobs.get(job_id)
            if known:
                self._happened(known, operation, at_ms)
            elif not self._nameless:
                self._break("I3", f"{kind} of job {job_id}, which nobody put", None, operation)

    def _reserved(self, operation: Operation, at_ms: float, job_id: int, body: bytes) -> None:
        operation, member = self._batch_of(operation), operation
        self._check_batch(member, job_id)
        job = self._job(job_id, body, member)
        if job is None:
            self._end_reserve(operation)
            return
        job.operations.append(operation.number)
        ready = [
            max(state.hi, self._laws.paused_until_ms(state.job.topic))
            for state, _ in self._reachable(job, at_ms)
            if state.kind in {"waiting", "held"} and state.lo <= at_ms
        ]
        if ready and at_ms - max(*ready, operation.at_ms, self._started_ms) > self._late_ms:
            self._break("I6", f"job {job_id} came late", job)
        else:
            self._happened(job, operation, at_ms, body)
        self._end_reserve(operation)

    def _batch_of(self, operation: Operation) -> Operation:
        batch = operation.what.get("batch")
        return operation if batch is None else self._first.setdefault(batch, operation)

    def _end_reserve(self, first: Operation) -> None:
        self._left[first.number] -= 1
        if not self._left[first.number]:
            self._reserves.pop(first.number, None)

    def _check_batch(self, operation: Operation, job_id: int) -> None:
        if (batch := operation.what.get("batch")) is None:
            return
        ids = self._handed.setdefault(batch, [])
        ids.append(job_id)
        batch_max = operation.value("batch_max")
        if len(ids) != len(set(ids)):
            self._break("I5", f"job {job_id} is in one batch twice", None, operation)
        elif batch_max and len(ids) > batch_max:
            self._break("I5", f"a batch of {batch_max} holds {len(ids)} jobs", None, operation)

    def _fail(self, operation: Operation, at_ms: float, why: str) -> None:
        if operation.kind == "put":
            self._nameless.pop(operation.body, None)
            self._refused[operation.body] = operation
        elif operation.kind == "reserve":
            self._end_reserve(self._batch_of(operation))
            if why == "TIMED_OUT":
                self._gave_up(operation, at_ms)
        elif operation.kind in {"policy", "pause"}:
            self._laws.fail(operation)
        if operation.number in self._wide:
            self._refused_to_many(operation, at_ms, why)
            return
        job = self._jobs.get(operation.value("job_id"))
        if job is None or operation.number not in job.open:
            return  # the job was not known when it was asked for
        number = operation.number
        ways = self._reachable(job, at_ms)
        untouched = {way for way in ways if number not in way[1]}
        if why == "NOT_FOUND":
            ways = {way for way in untouched if -number in way[1]}
            is_from_within = operation.kind in FROM_WITHIN
            self._show_reserves(job, untouched, ways, is_from_within=is_from_within)
        else:
            ways = untouched
        kept = {(state, done - {-number}) for state, done in ways}
        if kept:
            job.open.pop(number, None)
            self._keep(job, kept, at_ms, untouched)
        else:
            invariant = "I7" if operation.kind in BY_HOLDER else "I1"
            self._break(invariant, f"{operation.kind} of job {job.job_id} was refused", job)

    def _gave_up(self, operation: Operation, at_ms: float) -> None:
        """Look for a job that the reserve should have been given."""
        topics = operation.what.get("topics")
        if topics is None:
            return
        for job in list(self._jobs.values()):
            if job.topics <= set(topics) and self._is_overdue(job, at_ms):
                self._break("I6", f"job {job.job_id} was ready, and nobody got it", job, operation)

    def _is_overdue(self, job: Job, at_ms: float) -> bool:
        return all(
            state.kind == "waiting"
            and max(state.hi, self._started_ms, self._laws.paused_until_ms(state.job.topic))
            < at_ms - self._late_ms
            for state, _ in self._reachable(job, at_ms)
        )

    def _closed_for_good(self, close: Operation, now_ms: float) -> None:
        """A connection has gone: what it has asked for has happened by now, or never will."""
        client = close.client
        reserves = [each for each in self._reserves.values() if each.client == client]
        for job in self._jobs.values():
            mine = {number for number, each in job.open.items() if each.client == client}
            mine |= {each.number for each in reserves} | {close.number}
            both = mine | {-number for number in mine}
            is_concerned = (
                len(mine) > len(reserves) + 1
                or (reserves and job.open)
                or any(
                    state.holder == client or done & mine or (reserves and state.lo <= now_ms)
                    for state, done in job.ways
                )
            )
            if not is_concerned:
                continue
            ways = self._reachable(job, now_ms)
            job.returned |= {state for state, _ in ways if state.holder == client}
            for number in mine:
                job.open.pop(number, None)
            self._keep(
                job,
                {(state, done - both) for state, done in ways if state.holder != client},
                now_ms,
                ways,
            )
        for each in reserves:
            del self._reserves[each.number]
            self._gone.append(Gone(each, now_ms, self._entries))
        self._end_wide([each for each in self._wide.values() if each.client == client])
        del self._closes[close.number]

    def _end_wide(self, operations: list[Operation]) -> None:
        for operation in operations:
            del self._wide[operation.number]
            self._past.append((self._entries, operation))

    def _go_back(self) -> None:
        """Delayd time has gone back: what the clock had done was written down nowhere."""
        for job in self._jobs.values():
            job.ways |= {(state._replace(holder=None), frozenset()) for state in job.undone}

    # --- What befalls the daemon ----------------------------------------------------------------

    def _note(self, at_ms: float, rest: dict[str, Any]) -> None:
        what = rest["what"]
        if what == "stopped":
            self._stopped(at_ms, rest["how"], rest.get("ago_ms", 0))
        elif what == "started":
            self._started_ms = at_ms
            self._gone.clear()
            self._past.clear()
            for job in self._jobs.values():
                job.returned.clear()
                job.before.clear()
                job.undone_past.clear()
                job.past.clear()  # a start makes durable what it goes on from
        elif what == "closed":
            self._closed += 1
            number = NOTES_FROM + self._closed
            self._invoke(Operation(number, "close", rest["client"], at_ms, rest))
        elif what == "sync failed":
            self._has_sync_failed = True
        elif what == "fresh start":
            self._has_sync_failed = False
        elif what == "observed":
            self._observed(at_ms, jobs_seen(rest))
        elif what == "drained":
            for job in list(self._jobs.values()):
                if self._is_overdue(job, at_ms):
                    self._break("I6", f"job {job.job_id} never came", job)
        else:
            self.violations += self._digests.take(rest)

    def _stopped(self, at_ms: float, how: str, ago_ms: float) -> None:
        for job in self._jobs.values():
            states = {state for state, _ in self._reachable(job, at_ms)} | job.returned
            if how == "power":
                states |= job.before
                earliest_ms = at_ms - ago_ms - self._loss_ms
                for until_ms, ways in job.past:
                    states |= {state for state, _ in ways if until_ms >= earliest_ms}
                for until_ms, undone in job.undone_past:
                    job.undone |= undone if until_ms >= earliest_ms else set()
            elif how == "stop":
                states |= self._let_go(states, at_ms)
            job.ways = {(state._replace(holder=None), frozenset()) for state in states}
            job.open.clear()
        for put in self._nameless.values():
            others = [*self._reserves.values(), *self._closes.values()]
            self._ghosts.setdefault(put.number, ClearedJobs(at_ms, how, others))
        for operation in self._operations.values():
            operation.is_cut = True
        self._laws.stop(at_ms)
        self._end_wide(list(self._wide.values()))
        self._operations.clear()
        self._reserves.clear()
        self._first.clear()
        self._left.clear()
        self._closes.clear()
        self._has_sync_failed = False

    def _observed(self, at_ms: float, jobs: list[Seen]) -> None:
        for seen in jobs:
            job = self._job(seen.job_id, seen.body)
            if job is None:
                continue
            ways = self._reachable(job, at_ms)
            kept = {way for way in ways if self._may_be_seen(way[0], seen, at_ms)}
            if kept:
                self._show_reserves(job, ways, kept)
                if not any(state.kind == "held" for state, _ in kept):
                    job.undone |= {state for state, _ in ways if state.kind == "held"}
                self._keep(job, kept, at_ms)
                continue
            kinds = ", ".join(sorted({state.kind for state, _ in ways}))
            if seen.attempts is not None and self._went_back(seen, ways):
                why = f"job {seen.job_id} has {seen.attempts} attempts, and had more"
                self._break("I12", why, job)
                continue
            invariant = "I2" if kinds == "gone" else "I4" if job.open or len(ways) > 1 else "I8"
            self._break(invariant, f"job {seen.job_id} is {seen.state}, can be {kinds}", job)
        self._check_keys(jobs)
        self._check_missing(at_ms, {seen.job_id for seen in jobs})

    def _may_be_seen(self, state: State, seen: Seen, at_ms: float) -> bool:
        """Tell whether somebody may see this. Under a rule it shows that a ttr has run out."""
        if state.kind == "held" and seen.state == "ready":
            laws = self._laws.of(state.job.topic, state.lo)
            return not is_ruled(state, laws) and fits(state, seen, at_ms, self._late_ms)
        return fits(state, seen, at_ms, self._late_ms)

    @staticmethod
    def _went_back(seen: Seen, ways: Iterable[Way]) -> bool:
        same = [state.job.attempts for state, _ in ways if state.kind not in {"absent", "gone"}]
        return bool(same) and seen.attempts is not None and seen.attempts < min(same)

    def _check_keys(self, jobs: list[Seen]) -> None:
        """A key is held by one live job of its topic at most."""
        holders = Counter((seen.topic, seen.key) for seen in jobs if seen.key)
        for (topic, key), count in holders.items():
            if count > 1:
                self._break("I11", f"{count} jobs of {topic} have the key {key}", None)

    def _check_missing(self, at_ms: float, there: set[int]) -> None:
        lost = []
        for job in [job for job in self._jobs.values() if job.job_id not in there]:
            ways = self._reachable(job, at_ms)
            kept = {way for way in ways if way[0].kind in {"absent", "gone"}}
            if not kept:
                self._break("I1", f"job {job.job_id} was acknowledged and is missing", job)
                continue
            self._keep(job, kept, at_ms)
            if all(state == ABSENT for state, _ in kept):
                del self._jobs[job.job_id]
                if job.put.end == "ok":
                    lost.append(job)
        for body in [body for body, put in self._nameless.items() if put.is_cut]:
            del self._nameless[body]
        if lost:
            first = min(lost, key=lambda job: job.put.ended_ms)
            for job_id in there & self._jobs.keys():
                survivor = self._jobs[job_id].put
                if survivor.at_ms > first.put.ended_ms:
                    why = f"job {first.job_id} is lost, job {job_id} was put later and is not"
                    self._break("I8", why, None, first.put, survivor)
                    break
        known = {job.put.number for job in self._jobs.values()} | self._told
        for name, batch in list(self._batches.items()):
            self._check_prefix(list(self._present(batch, known)))
            if all(operation.end or operation.is_cut for operation in batch):
                del self._batches[name]

    def _present(self, batch: list[Operation], known: set[int]) -> Iterator[tuple[Operation, bool]]:
        """Yield the puts of a batch that can have happened, and whether they did.

        Of one that nobody knows of, and may have been swept away with its topic, nobody can say.
        """
        for operation in batch:
            is_there = operation.number in known or operation.end == "ok"
            if operation.end != "fail" and (is_there or not self._may_be_swept(operation)):
                yield operation, is_there

    def _may_be_swept(self, put: Operation) -> bool:
        """Tell whether somebody may have emptied its topic since the put was sent."""
        return any(
            sweep.topic == put.topic and (not sweep.end or sweep.ended >= put.begun)
            for sweep in self._sweeps
        )

    def _check_prefix(self, puts: list[tuple[Operation, bool]]) -> None:
        for (earlier, is_there), (later, is_next_there) in pairwise(puts):
            if is_next_there and not is_there:
                self._break(
                    "I5", "a put happened, the one sent before it not", None, earlier, later
                )
                return

    # --- What may be the case of a job ----------------------------------------------------------

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
            if topics is None or not places.isdisjoint(topics):
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

    # --- Operations by key, and on whole topics -------------------------------------------------
    #
    # An answer to one by key does not say which job it was about: the one that had the key. While
    # that is not known every job that may have it is a candidate, and the answer chooses; `-number`
    # among the operations done in a way says that it was about another.

    def _concerned(self, operation: Operation) -> Iterator[Job]:
        """Yield the jobs that an operation by key, or on a whole topic, may be about."""
        if operation.kind in WIDE:
            yield from (job for job in self._jobs.values() if operation.topic in job.topics)
            return
        for job_id in self._by_key.get((operation.topic, operation.text("key")), ()):
            if job_id in self._jobs:
                yield self._jobs[job_id]

    def _open_to(self, operation: Operation) -> list[Job]:
        """Return the jobs that it may have happened to."""
        return [job for job in self._jobs.values() if operation.number in job.open]

    def _ok_of_many(self, operation: Operation, at_ms: float) -> None:
        """Narrow what it was about: one job that had the key, or all that lay in the topic."""
        del self._wide[operation.number]
        if operation.kind in WIDE:
            self._past.append((self._entries, operation))
        number = operation.number
        chosen = []
        for job in self._open_to(operation):
            ways = self._reachable(job, at_ms)
            if operation.kind in SWEEPING:
                self._swept(job, operation, ways, at_ms)
            elif operation.kind in WIDE:
                self._end(job, operation, ways, {number, -number}, at_ms)
            elif any(number in done for _, done in ways):
                chosen.append((job, ways))
            else:
                self._end(job, operation, ways, {-number}, at_ms)
        if operation.kind in WIDE:
            return
        if not chosen and not self._nameless:
            why = f"{operation.kind} was acknowledged, and no job has the key"
            self._break("I11", why, None, operation)
        for job, ways in chosen:
            fates = {number} if len(chosen) == 1 and not self._nameless else {number, -number}
            if len(fates) == 1:
                self._is_written(job, at_ms)
            self._end(job, operation, ways, fates, at_ms)

    def _swept(self, job: Job, operation: Operation, ways: set[Way], at_ms: float) -> None:
        """A topic was emptied: a job that lay there is gone."""
        number = operation.number
        # A job that came, or was changed, while somebody went through the topic may be left out.
        put = job.put
        is_old = put.is_cut or (put.end == "ok" and put.ended < operation.begun)
        is_busy = job.changed >= operation.begun or any(other != number for other in job.open)
        is_sure = is_old and (operation.kind == "clear" or not is_busy)
        fates = {number, -number} if is_sure else None
        self._end(job, operation, ways, fates, at_ms)

    def _end(
        self, job: Job, operation: Operation, ways: set[Way], fates: set[int] | None, at_ms: float
    ) -> None:
        """Keep the ways in which one of these has become of the operation; None: any."""
        number = operation.number
        both = {number, -number}
        kept = {(state, done - both) for state, done in ways if fates is None or done & fates}
        if kept:
            before = {way for way in ways if number not in way[1]}
            if fates == {-number}:
                self._show_reserves(job, before, {way for way in ways if -number in way[1]})
            job.open.pop(number, None)
            job.changed = self._entries
            self._keep(job, kept, at_ms, before)
            return
        states = ", ".join(sorted({state.kind for state, _ in ways}))
        invariant = "I11" if operation.text("key") else "I4"
        why = f"{operation.kind} was acknowledged, and job {job.job_id} is {states}"
        self._break(invariant, why, job, operation)

    def _put_by_key(self, put: Operation, at_ms: float, job_id: int, outcome: str) -> None:
        """A put under a key has made a job, or something of the one that has the key."""
        del self._wide[put.number]
        self._nameless.pop(put.body, None)
        job = self._jobs.get(job_id)
        if job and outcome == "created" and put.number not in job.creators:
            if not job.may_be_lost:
                self._break("I3", f"job {job_id} was put twice", job, put)
                return
            del self._jobs[job_id]  # and its id was given anew
            job = None
        if job is None and job_id not in self._broken:
            if outcome != "created":
                why = f"job {job_id} is {outcome}, and nobody has put it"
                self._break("I3", why, None, put)
                return
            job = self._made(job_id, put)
        for other in self._open_to(put):
            ways = self._reachable(other, at_ms)
            is_it = other is job
            if is_it and outcome not in {"kept", "there"}:
                self._is_durable(other, put, at_ms)
            self._end(other, put, ways, {put.number if is_it else -put.number}, at_ms)

    def _refused_to_many(self, operation: Operation, at_ms: float, why: str) -> None:
        """What was by key, or on a whole topic, has not happened to any job."""
        number = operation.number
        del self._wide[number]
        for job in self._open_to(operation):
            ways = self._reachable(job, at_ms)
            if why == "NOT_FOUND" and operation.kind in BY_KEY:
                self._end(job, operation, ways, {-number}, at_ms)
            else:
                untouched = {way for way in ways if not {number, -number} & way[1]}
                job.open.pop(number, None)
                self._keep(job, untouched, at_ms)
