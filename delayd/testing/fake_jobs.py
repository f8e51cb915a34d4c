"""The jobs of the fake daemon: a model that can be read in a few minutes, and looks at all of them.

>>> jobs = FakeJobs(now_ms=0)
>>> job = jobs.put("mail", b"hello", delay_ms=5_000)
>>> jobs.reserve(["mail"], 1)
[]
>>> jobs.advance(5_000)
>>> [taken.id for taken in jobs.reserve(["mail"], 1)]
[1]
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, NamedTuple

PRIORITY: Final = 65_536
TTR_MS: Final = 60_000


REFUSALS: Final = MappingProxyType(
    {
        "body_too_big": (
            *(413, "JOB_TOO_BIG", "The body is longer than this daemon, or the topic, accepts."),
        ),
        "cap_reached": (
            *(507, "OUT_OF_MEMORY", "A cap of the topic or of the daemon is reached."),
        ),
        "delay_too_long": (422, "BAD_FORMAT", "The delay is longer than the topic allows."),
        "idempotency_key_reused": (
            *(422, "IDEMPOTENCY_KEY_REUSED"),
            "The Idempotency-Key was used for another request.",
        ),
        "job_already_exists": (
            *(409, "JOB_ALREADY_EXISTS"),
            "A live job of the topic has the key; it can be kept, replaced, preserved or extended.",
        ),
        "job_not_found": (
            *(404, "NOT_FOUND"),
            "The job does not exist, or its state or holder does not allow the operation.",
        ),
        "job_reserved": (409, "RESERVED", "The job is reserved by a worker."),
        "key_not_found": (404, "NOT_FOUND", "No live job of the topic has the key."),
        "no_such_call": (404, "UNKNOWN_COMMAND", "There is no such path."),
        "policy_invalid": (422, "BAD_FORMAT", "The policy is invalid."),
        "request_invalid": (
            *(422, "BAD_FORMAT", "The request is invalid; `errors` lists every problem."),
        ),
        "reservation_lost": (
            *(409, "NOT_RESERVED"),
            "The reservation has ended: its ttr ran out, or the job went to another worker.",
        ),
        "topic_not_found": (
            *(404, "NOT_FOUND", "The topic does not exist: it is unused and has no jobs."),
        ),
        "wrong_state": (409, "WRONG_STATE", "The state of the job does not allow this."),
    }
)
"""Each kind that the fake has: status, word and title, as the daemon answers them."""


class FakeRefusal(Exception):
    """An operation that was not carried out."""

    def __init__(self, kind: str, detail: str, *, job_id: int | None = None) -> None:
        super().__init__(detail)
        self.kind = kind
        self.status, self.word, self.title = REFUSALS[kind]
        self.job_id = job_id


class FakeRule(NamedTuple):
    """A retry rule."""

    steps_ms: tuple[int, ...] = ()
    attempts_max: int = 0


class FakeFailure(NamedTuple):
    """Why the last attempt failed."""

    reason: str
    at_ms: int
    attempts_before: int
    """How often the job had come back when its ladder began."""
    error: str = ""
    origin: str = ""


@dataclass(slots=True)
class FakeJob:
    """A job."""

    id: int
    topic: str
    body: bytes
    due_ms: int
    ttr_ms: int
    created_ms: int
    priority: int = PRIORITY
    key: str = ""
    rule: FakeRule | None = None
    state: str = "delayed"
    expires_ms: int = 0
    buried_at: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(
            ("reserves", "timeouts", "releases", "buries", "kicks"), 0
        )
    )
    failure: FakeFailure | None = None
    target: dict[str, Any] = field(default_factory=dict)

    @property
    def came_back(self) -> int:
        """How often its worker was done with it, or too slow."""
        return self.counts["reserves"] - (self.state == "reserved")

    @property
    def attempts(self) -> int:
        """Since its ladder began, with the one that is under way."""
        before = 0 if self.failure is None else self.failure.attempts_before
        return self.counts["reserves"] - before

    @property
    def token(self) -> str:
        """Names its present reservation."""
        return f"{self.id}-{self.created_ms:x}-{self.counts['reserves']}"


@dataclass(slots=True)
class FakeTopic:
    """What holds for a topic."""

    policy: dict[str, Any] = field(default_factory=dict)
    is_set: bool = False
    paused_until_ms: int = 0


class FakeJobs:
    """All jobs and topics, at a time."""

    def __init__(self, now_ms: int) -> None:
        self.now_ms = now_ms
        self.jobs: dict[int, FakeJob] = {}
        self.topics: dict[str, FakeTopic] = {}
        self._last_id = 0
        self._burials = 0

    # --- Time ------------------------------------------------------------------------------------

    def advance(self, by_ms: int) -> None:
        """Let time pass; what is due by then happens in its order."""
        end_ms = self.now_ms + by_ms
        while (at_ms := self.next_ms()) is not None and at_ms <= end_ms:
            self.now_ms = max(self.now_ms, at_ms)
            for job in sorted(self.jobs.values(), key=lambda job: (job.due_ms, job.id)):
                if job.state == "delayed" and job.due_ms <= self.now_ms:
                    job.state = "ready"
                elif job.state == "reserved" and job.expires_ms <= self.now_ms:
                    job.counts["timeouts"] += 1
                    self._fail(job, "ttr_ran_out")
        self.now_ms = end_ms

    def next_ms(self) -> int | None:
        """Return when something happens by itself; None: never."""
        times = [job.due_ms for job in self.jobs.values() if job.state == "delayed"]
        times += [job.expires_ms for job in self.jobs.values() if job.state == "reserved"]
        return min(times, default=None)

    def next_ready_ms(self, topics: Sequence[str]) -> int | None:
        """Return when the next job of these topics may be handed out; None: never by itself."""
        times = [
            max(job.due_ms, self._paused_until_ms(job.topic))
            for job in self.jobs.values()
            if job.topic in topics and job.state in {"delayed", "ready"}
        ]
        return min((at_ms for at_ms in times if at_ms > self.now_ms), default=None)

    @property
    def has_jobs_in_hand(self) -> bool:
        """Whether somebody is working."""
        return any(job.state == "reserved" for job in self.jobs.values())

    # --- Producers -------------------------------------------------------------------------------

    def put(
        self,
        topic: str,
        body: bytes,
        *,
        delay_ms: int | None = None,
        ttr_ms: int | None = None,
        priority: int = PRIORITY,
        key: str = "",
        on_conflict: str = "reject",
        rule: FakeRule | None = None,
        target: dict[str, Any] | None = None,
    ) -> tuple[FakeJob, str]:
        """Put a job; return it and what was done."""
        policy = self.policy(topic)
        self._check_body(topic, body)
        if delay_ms is None:
            delay_ms = policy.get("delay_ms", 0)
        if ttr_ms is None:
            ttr_ms = policy.get("ttr_ms", TTR_MS)
        other = self.keyed(topic, key) if key else None
        if other is None or on_conflict not in {"keep", "preserve"}:
            self._check_delay(topic, delay_ms)
        if other is not None and (other.state != "reserved" or on_conflict in {"reject", "keep"}):
            return self._conflict(other, on_conflict, body, delay_ms, ttr_ms, priority, rule)
        jobs_max = policy.get("jobs_max")
        if jobs_max is not None and len(self.of(topic)) >= jobs_max:
            detail = f"jobs_max of topic {topic!r} is {jobs_max} and {jobs_max} are in use"
            raise FakeRefusal("cap_reached", detail)
        if other is not None:
            other.key = ""
        self._last_id += 1
        self.topics.setdefault(topic, FakeTopic())
        due_ms = self.now_ms + delay_ms
        job = FakeJob(self._last_id, topic, body, due_ms, ttr_ms, self.now_ms, priority, key, rule)
        job.state = "delayed" if delay_ms > 0 else "ready"
        job.target = target or {}
        self.jobs[job.id] = job
        return job, "created"

    def _conflict(
        self,
        job: FakeJob,
        on_conflict: str,
        body: bytes,
        delay_ms: int,
        ttr_ms: int,
        priority: int,
        rule: FakeRule | None,
    ) -> tuple[FakeJob, str]:
        """Do to the job that has the key what the put says."""
        if on_conflict == "reject":
            raise FakeRefusal(
                "job_already_exists",
                f"job {job.id} has the key {job.key!r} already",
                job_id=job.id,
            )
        if on_conflict == "keep":
            return job, "kept"
        if on_conflict in {"replace", "preserve"}:
            job.body, job.ttr_ms, job.priority, job.rule = body, ttr_ms, priority, rule
        if on_conflict == "replace":
            job.counts = dict.fromkeys(job.counts, 0)
            job.failure, job.created_ms = None, self.now_ms
        if on_conflict in {"replace", "extend"}:
            self.schedule(job, delay_ms)
        return job, {"replace": "replaced", "preserve": "preserved", "extend": "extended"}[
            on_conflict
        ]

    def schedule(self, job: FakeJob, delay_ms: int) -> None:
        """Give a waiting or buried job another time."""
        self._check_delay(job.topic, delay_ms)
        self._revive(job)
        job.due_ms = self.now_ms + delay_ms
        job.state = "delayed" if delay_ms > 0 else "ready"

    def change_body(self, job: FakeJob, body: bytes) -> None:
        """Give a job another body."""
        self._check_body(job.topic, body)
        job.body = body

    def _check_body(self, topic: str, body: bytes) -> None:
        longest = self.policy(topic).get("body_bytes_max", 65_535)
        if len(body) > longest:
            detail = f"the body has {len(body)} bytes, at most {longest} are accepted"
            raise FakeRefusal("body_too_big", detail)

    def _check_delay(self, topic: str, delay_ms: int) -> None:
        longest_ms = self.policy(topic).get("delay_max_ms")
        if longest_ms is not None and delay_ms > longest_ms:
            detail = f"delay_max of topic {topic!r} is {longest_ms / 1_000:g}s"
            raise FakeRefusal("delay_too_long", detail)

    # --- Workers ---------------------------------------------------------------------------------

    def reserve(self, topics: Sequence[str], limit: int) -> list[FakeJob]:
        """Reserve ready jobs, the most urgent first."""
        taken: list[FakeJob] = []
        ready = [job for job in self.jobs.values() if job.state == "ready" and job.topic in topics]
        for job in sorted(ready, key=lambda job: (job.priority, job.id)):
            reserved_max = self.policy(job.topic).get("reserved_max")
            if self._paused_until_ms(job.topic) > self.now_ms or len(taken) == limit:
                continue
            if reserved_max is not None and self._reserved(job.topic) >= reserved_max:
                continue
            job.state = "reserved"
            job.expires_ms = self.now_ms + job.ttr_ms
            job.counts["reserves"] += 1
            taken.append(job)
        return taken

    def held(self, token: str) -> FakeJob:
        """Return the job of a reservation."""
        job = self.get(int(token.partition("-")[0]))
        if job.state != "reserved" or job.token != token:
            raise FakeRefusal(
                "reservation_lost",
                f"job {job.id} is not reserved under this token, or no longer",
                job_id=job.id,
            )
        return job

    def nack(self, job: FakeJob, delay_ms: int, error: str, priority: int | None) -> None:
        """Report that an attempt failed."""
        job.counts["releases"] += 1
        if priority is not None:
            job.priority = priority
        self._fail(job, "nacked", error, delay_ms)

    def _fail(self, job: FakeJob, reason: str, error: str = "", delay_ms: int = 0) -> None:
        """Do what the rule says after a failed attempt."""
        rule = self._rule(job)
        if rule is None and reason == "ttr_ran_out":
            job.state = "ready"
            return
        steps_ms, attempts_max = rule or FakeRule()
        attempt = 1 if job.failure is None else job.attempts
        self._note(job, reason, error)
        if (attempts_max and attempt >= attempts_max) or (steps_ms and attempt > len(steps_ms)):
            self._exhaust(job)
            return
        step_ms = delay_ms or (steps_ms[attempt - 1] if steps_ms else 0)
        job.due_ms = self.now_ms + step_ms if step_ms else job.due_ms
        job.state = "delayed" if step_ms else "ready"

    def _note(self, job: FakeJob, reason: str, error: str) -> None:
        """Note why the attempt failed; of an error that is not known the last one stays."""
        old = job.failure or FakeFailure("", 0, job.came_back)
        job.failure = FakeFailure(
            reason, self.now_ms, old.attempts_before, error or old.error, old.origin
        )

    def _exhaust(self, job: FakeJob) -> None:
        """Bury a job, or move it, once."""
        assert job.failure is not None
        target = self.policy(job.topic).get("exhausted", "bury")
        if target in {"bury", job.topic} or job.failure.origin:
            self.bury(job)
            return
        before = job.counts["reserves"]
        job.failure = job.failure._replace(origin=job.topic, attempts_before=before)
        job.topic, job.key, job.state = target, "", "ready"
        self.topics.setdefault(target, FakeTopic())

    def _rule(self, job: FakeJob) -> FakeRule | None:
        policy = self.policy(job.topic)
        topics = FakeRule(policy.get("steps_ms", ()), policy.get("max_attempts", 0))
        if job.rule is None:
            return topics if any(topics) else None
        return (
            job.rule if job.rule.steps_ms else topics._replace(attempts_max=job.rule.attempts_max)
        )

    def bury(self, job: FakeJob, error: str | None = None, priority: int | None = None) -> None:
        """Set a job aside; with an error, which may be empty, its worker did."""
        if error is not None and (error or self._rule(job) is not None):
            self._note(job, "buried", error)
        if priority is not None:
            job.priority = priority
        self._burials += 1
        job.state, job.buried_at = "buried", self._burials
        job.counts["buries"] += 1

    # --- Jobs and topics -------------------------------------------------------------------------

    def get(self, job_id: int) -> FakeJob:
        """Return a job."""
        job = self.jobs.get(job_id)
        if job is None:
            detail = f"there is no job {job_id}, or its state does not allow this"
            raise FakeRefusal("job_not_found", detail)
        return job

    def find(self, topic: str, key: str) -> FakeJob:
        """Return the job that has the key."""
        self.known(topic)
        job = self.keyed(topic, key)
        if job is None:
            raise FakeRefusal("key_not_found", f"topic {topic!r} has no job with the key {key!r}")
        return job

    def keyed(self, topic: str, key: str) -> FakeJob | None:
        """Return the job that has the key; None if there is none."""
        named = (job for job in self.jobs.values() if job.key == key and job.topic == topic)
        return next(named, None)

    def of(self, topic: str) -> list[FakeJob]:
        """Return the jobs of a topic, in due order."""
        jobs = [job for job in self.jobs.values() if job.topic == topic]
        return sorted(jobs, key=lambda job: (job.due_ms, job.id))

    def kick(self, job: FakeJob) -> None:
        """Make a delayed or buried job ready."""
        self._revive(job)
        job.state = "ready"
        job.counts["kicks"] += 1

    @staticmethod
    def _revive(job: FakeJob) -> None:
        """Let the ladder of a buried job begin again."""
        if job.state == "buried" and job.failure is not None:
            job.failure = job.failure._replace(attempts_before=job.came_back)

    def matching(
        self, topic: str, is_wanted: Callable[[FakeJob], bool], states: Sequence[str]
    ) -> Iterator[FakeJob]:
        """Yield the jobs of a topic that are meant, in due order."""
        for job in self.of(self.known(topic)):
            if job.state in states and is_wanted(job):
                yield job

    def remove(self, job: FakeJob) -> None:
        """Forget a job."""
        del self.jobs[job.id]

    def known(self, topic: str) -> str:
        """Return the name of a topic that exists."""
        held = self.topics.get(topic)
        if not self.of(topic) and (held is None or not held.is_set):
            raise FakeRefusal("topic_not_found", f"there is no topic {topic!r}")
        return topic

    def policy(self, topic: str) -> dict[str, Any]:
        """Return the policy in force, with its readable and its reckoned values."""
        held = self.topics.get(topic)
        return {} if held is None else held.policy

    def _reserved(self, topic: str) -> int:
        return sum(job.state == "reserved" for job in self.jobs.values() if job.topic == topic)

    def _paused_until_ms(self, topic: str) -> int:
        held = self.topics.get(topic)
        return 0 if held is None else held.paused_until_ms
