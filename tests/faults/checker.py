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
from typing import Final

from tests.faults.digests import Violation
from tests.faults.history import Entry, Seen, as_bytes, as_seen
from tests.faults.judge import ClearedJobs, Gone
from tests.faults.several import Several
from tests.faults.states import (
    ABSENT,
    BY_HOLDER,
    BY_ID,
    BY_KEY,
    FOREVER,
    FROM_WITHIN,
    SWEEPING,
    WIDE,
    Job,
    Operation,
    State,
    Way,
    fits,
    is_ruled,
)

NOTES_FROM: Final = 1 << 40
"""Numbers for operations that the history has none for."""


__all__ = ["Checker", "Violation", "violations"]


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


class Checker(Several):
    """Takes a history entry by entry."""

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
            kind, client = str(rest["kind"]), str(rest["client"])
            self._invoke(Operation(number, kind, client, at_ms, rest))
        else:
            operation = self._operations[number]
            operation.end, operation.ended_ms, operation.ended = what, at_ms, self._entries
            if what != "unknown":
                del self._operations[number]
            if what == "ok":
                self._ok(operation, at_ms, rest)
            elif what == "fail":
                self._fail(operation, at_ms, str(rest["why"]))

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

    def _ok(self, operation: Operation, at_ms: float, rest: dict[str, object]) -> None:
        job_id = rest.get("job_id", operation.what.get("job_id", 0))
        assert isinstance(job_id, int)
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
            self._put_by_key(operation, at_ms, job_id, str(rest.get("outcome", "created")))
        elif kind == "close":
            self._closed_for_good(operation, at_ms)
        elif kind == "reserve":
            self._reserved(operation, at_ms, job_id, as_bytes(rest.get("body", b"")))
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
        if not isinstance(topics, list | tuple):
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

    def _note(self, at_ms: float, rest: dict[str, object]) -> None:
        what = rest["what"]
        if what == "stopped":
            self._stopped(at_ms, str(rest["how"]), float(str(rest.get("ago_ms", 0))))
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
            self._invoke(Operation(number, "close", str(rest["client"]), at_ms, rest))
        elif what == "sync failed":
            self._has_sync_failed = True
        elif what == "fresh start":
            self._has_sync_failed = False
        elif what == "observed":
            jobs = rest["jobs"]
            assert isinstance(jobs, list)
            self._observed(at_ms, list(map(as_seen, jobs)), is_complete=bool(rest["complete"]))
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

    def _observed(self, at_ms: float, jobs: list[Seen], *, is_complete: bool) -> None:
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
        if is_complete:
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
