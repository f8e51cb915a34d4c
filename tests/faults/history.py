"""What clients saw of a run, and whether it keeps the promises: the oracle of all fault tests.

Clients write down what they do. Every operation is an `invoke` followed by an end: `ok`, `fail`
(refused: nothing may have changed) or `unknown` (the connection or the machine went: it happened
whole or not at all). What befell the daemon is a `note`.

    log = History()
    number = log.invoke("put", now_ms, client="a", body=b"x", delay_ms=500, ttr_ms=60_000)
    log.ok(number, now_ms, job_id=7)
    log.note("stopped", now_ms, how="kill")              # "kill", "power", or "stop" in good order
    log.note("started", now_ms)
    log.observe(now_ms, [Seen(7, "delayed", b"x")])      # all jobs there are
    assert violations(log.entries) == []                 # tests.faults.checker

Times are milliseconds of one clock of one machine, whole or not. Bodies must differ: a put that
nobody heard the end of is known by its body.

Operations: put (topic, delay_ms, ttr_ms, priority) · reserve (topics, if its giving up is to be
checked; batch_max) · release (job_id, delay_ms, priority) · bury (job_id, priority) · touch ·
delete · kick, bury-waiting (one job, by its id) · reschedule (job_id, delay_ms) · nack (job_id,
delay_ms) · spare (job_id: ready again, the attempt does not count) ·
change (job_id, and what of delay_ms, priority, ttr_ms, body is to be new) ·
delete-key, kick-key, reschedule-key (topic, key) · clear, cancel, kick-tube (topic) · policy
(topic, retry, target, returns) · pause (topic, pause_ms) · anything else, which is passed over.

A put may have a `key` and say by `on` how a conflict ends; the `ok` has the `outcome` then:
created, kept, replaced, preserved, extended, or there (refused: the job has it). Whoever uses a key
is the only one, until everything has been answered. A put, and a policy, may have a retry rule:
`retry`, its steps in ms, highest number of attempts and jitter in percent; a put with `wall_ms` is
for a moment of the wall clock. The `ok` of a reserve names its job and body. A reserve-batch is as
many reserves as it asks for, invoked together with one `batch`; those that got nothing `fail` with
"UNUSED". Puts sent in one piece carry one `batch` too, unless one of them may be refused (a full
disk).

Notes: "stopped" (how; `ago_ms` if that was a while ago), "started", "closed" (client; `stops` if
the daemon stops) · "sync failed", "fresh start" (what was to be synced is durable elsewhere, R3) ·
"drained" (enough consumers have waited for all topics: what is due has come) · "prefix" (sequence,
digest: the state after that frame, whose `acked` is the frame up to which replies had left) ·
"recovered" (digest) · "same" (what, left, right).

    I1 acknowledged puts are there          I6 nothing comes early, or late by more than late_ms_max
    I2 what was deleted never returns       I7 one holder until its ttr is over
    I3 no job is invented, bodies are whole I8 the state is that after a prefix with all that was
    I4 an operation happens whole or not       acknowledged
    I5 of what was sent in one piece a      I9 nothing is acknowledged after a failed sync until R3
       prefix happens; batches keep to max  I10 snapshot and tail are the full log
    I11 a key is one live job's in its topic I12 attempts never go backwards
    I13 a job with a target is taken in the end, or is a dead letter (`pushes.unserved`)
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

Entry = tuple[str, int, float, dict[str, Any]]
"""What ("invoke", "ok", "fail", "unknown", "note"), operation's number, time, the rest."""


class Seen(NamedTuple):
    """A job as somebody looked at it. None: it was not looked at."""

    job_id: int
    state: str
    """"delayed", "ready", "reserved" or "buried"."""

    body: bytes
    due_ms: float | None = None
    """When the delay, or the reservation, ends."""

    priority: int | None = None
    topic: str | None = None
    key: str | None = None
    """"" for none."""

    attempts: int | None = None
    """How often it was handed out since it was put or revived, -1 if no attempt has failed."""


class History:
    """Takes down what happens."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._last = 0

    def _add(self, what: str, number: int, at_ms: float, rest: dict[str, Any]) -> None:
        self.entries.append((what, number, at_ms, rest))

    def invoke(self, kind: str, at_ms: float, *, client: str = "", **rest: object) -> int:
        """An operation is about to be sent; return its number."""
        self._last += 1
        self._add("invoke", self._last, at_ms, {"kind": kind, "client": client, **rest})
        return self._last

    def ok(self, number: int, at_ms: float, **rest: object) -> None:
        """Its good answer has come."""
        self._add("ok", number, at_ms, rest)

    def fail(self, number: int, at_ms: float, why: str) -> None:
        """It was refused, with this word."""
        self._add("fail", number, at_ms, {"why": why})

    def unknown(self, number: int, at_ms: float) -> None:
        """No answer will come. An invoke without any end means the same."""
        self._add("unknown", number, at_ms, {})

    def note(self, what: str, at_ms: float, **rest: object) -> None:
        """Something happened to the daemon."""
        self._add("note", 0, at_ms, {"what": what, **rest})

    def observe(self, at_ms: float, jobs: Iterable[Seen]) -> None:
        """Somebody looked at all the jobs that there are."""
        self.note("observed", at_ms, jobs=[*jobs])


def jobs_seen(note: dict[str, Any]) -> list[Seen]:
    """Return the jobs of an observation in a history; of anything else none."""
    jobs: list[Seen] = note.get("jobs", [])
    return jobs
