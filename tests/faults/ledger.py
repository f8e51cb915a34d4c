"""What clients were told, and whether it was true: the oracle where several daemons share a log.

    put "x", delay 500 ─► ok, job 7            job 7 is there from now on, with every later owner
    reserve ─► job 7, attempt 1                nobody gets attempt 1 again, nobody attempt 2 early
    delete 7 ─► ok                             job 7 is never seen again

It knows one time, that of the world, by which nothing may come early, and no clock of any machine.
An operation that was not answered may have happened or not. It does not know how a log works.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

NS_PER_MS: Final = 1_000_000


class LiveJob(NamedTuple):
    """A job as it is in the state of a daemon."""

    body: bytes
    key: bytes
    reserves: int
    """How often it was handed out."""


class Job:
    """What is known of a job, from the moment at which it was to be put."""

    def __init__(self, body: bytes, due_ns: int) -> None:
        self.body = body
        self.job_id = 0
        self.due_ns = due_ns
        """Nobody may get it before."""
        self.attempt = 0
        """The last one that somebody was given."""
        self.was_told = False
        """Its put was acknowledged."""
        self.may_be_gone = self.is_gone = False
        """Somebody wanted it removed; that was acknowledged."""


class Ledger:
    """All jobs of a run."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.counts: Counter[str] = Counter()
        self.by_body: dict[bytes, Job] = {}
        self.by_id: dict[int, Job] = {}
        self.unanswered_reserves = 0
        """Those that may have counted an attempt of some job."""
        self.early_ns = 0
        """By how much something may come early: the database's clock was set by that."""

    def _break(self, why: str) -> None:
        self.violations.append(why)

    # --- Operations ------------------------------------------------------------------------------

    def putting(self, body: bytes, now_ns: int, delay_ms: int) -> None:
        """A put is sent."""
        self.by_body[body] = Job(body, now_ns + delay_ms * NS_PER_MS)

    def put(self, body: bytes, job_id: int) -> None:
        """It was acknowledged."""
        job = self.by_body[body]
        if self._named(job, job_id):
            job.was_told = True

    def _named(self, job: Job, job_id: int) -> bool:
        """Note the id of a job; tell whether that can be its id."""
        other = self.by_id.setdefault(job_id, job)
        if other is not job and not other.was_told and not other.attempt:
            self.by_id[job_id] = other = (
                job  # the put of the other one was lost, and with it its id
            )
        if other is not job or job.job_id not in {0, job_id}:
            self._break(f"I3: job {job_id} is {other.body!r} and {job.body!r}")
            return False
        job.job_id = job_id
        return True

    def handed(
        self, asked_ns: int, now_ns: int, given: tuple[int, bytes, int], ttr_ms: int
    ) -> None:
        """A job was handed out: its id, body, attempt."""
        job_id, body, attempt = given
        job = self.by_body.get(body)
        if job is None:
            self._break(f"I3: job {job_id} with body {body!r} was put by nobody")
            return
        if not self._named(job, job_id):
            return
        if job.is_gone:
            self._break(f"I2: job {job_id} was removed, and comes again as attempt {attempt}")
        if attempt <= job.attempt:
            self._break(f"I7: attempt {attempt} of job {job_id} was handed out twice")
        if now_ns < job.due_ns - self.early_ns:
            early_ms = (job.due_ns - now_ns) / NS_PER_MS
            self._break(f"I6: attempt {attempt} of job {job_id} comes {early_ms:.0f} ms early")
        job.attempt = attempt
        job.due_ns = asked_ns + ttr_ms * NS_PER_MS

    def letting_go(self, job_id: int, now_ns: int, delay_ms: int = 0) -> None:
        """The holder of a job may have given it back: a release is sent, or it leaves."""
        job = self.by_id[job_id]
        job.due_ns = min(job.due_ns, now_ns + delay_ms * NS_PER_MS)

    def let_go(self, job_id: int, attempt: int, asked_ns: int, delay_ms: int) -> None:
        """That was acknowledged."""
        job = self.by_id[job_id]
        if job.attempt == attempt:
            job.due_ns = asked_ns + delay_ms * NS_PER_MS

    def removing(self, job_id: int) -> None:
        """A job is to be removed."""
        self.by_id[job_id].may_be_gone = True

    def removed(self, job_id: int) -> None:
        """That was acknowledged."""
        self.by_id[job_id].is_gone = True

    # --- Looks -----------------------------------------------------------------------------------

    def look(self, jobs: Mapping[int, LiveJob], what: str) -> None:
        """Compare with all the jobs that there are, behind a takeover or at the end."""
        for body, job in self.by_body.items():
            there = jobs.get(job.job_id) if job.job_id else None
            is_there = there is not None and there.body == body
            if job.was_told and not job.may_be_gone and not is_there:
                self._break(f"I1: {what}: job {job.job_id} was acknowledged and is missing")
            elif job.is_gone and is_there:
                self._break(f"I2: {what}: job {job.job_id} was removed and is there")
            elif there is not None and is_there:
                self._count(job, there.reserves, what)
        for job_id, found in jobs.items():
            if found.body not in self.by_body:
                self._break(f"I3: {what}: job {job_id} was put by nobody")
        self._unique(jobs.values(), what)

    def _count(self, job: Job, reserves: int, what: str) -> None:
        most = job.attempt + self.unanswered_reserves
        if not job.attempt <= reserves <= most:
            why = f"was handed out {job.attempt} times, at most {most}, and says {reserves}"
            self._break(f"I12: {what}: job {job.job_id} {why}")

    def _unique(self, jobs: Iterable[LiveJob], what: str) -> None:
        for key, count in Counter(job.key for job in jobs if job.key).items():
            if count > 1:
                self._break(f"I11: {what}: {count} jobs have the key {key!r}")
