"""Operations that may be about more than one job: by key, and on whole topics.

An answer to one by key does not say which job it was about: the one that had the key. While that is
not known every job that may have it is a candidate, and the answer chooses; `-number` among the
operations done in a way says that it was about another.
"""

from collections.abc import Iterator

from tests.faults.judge import Judge
from tests.faults.states import BY_KEY, SWEEPING, WIDE, Job, Operation, Way


class Several(Judge):
    """Judges those."""

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
