"""What clients saw of a run, and whether it keeps the promises: the oracle of all fault tests.

Clients write down what they do, on a disk that is not under test. Every operation is an `invoke`
followed by an end: `ok`, `fail` (refused: nothing may have changed) or `unknown` (the connection or
the machine went: it happened whole or not at all). What befell the daemon is a `note`. An entry is
a line of JSON, so that a killed client leaves all but its last line (`read_entries` forgives that).

    log = History(open(path, "w"))                       # or History() in one process
    number = log.invoke("put", now_ms, client="a", body=b"x", delay_ms=500, ttr_ms=60_000)
    log.ok(number, now_ms, job_id=7)
    log.note("stopped", now_ms, how="kill")              # "kill", "power", or "stop" in good order
    log.note("started", now_ms)
    log.observe(now_ms, [Seen(7, "delayed", b"x")])      # all jobs there are
    assert violations(log.entries) == []                 # tests.faults.checker

Times are milliseconds of one clock of one machine, whole or not; `merged` puts the logs of several
processes together. Bodies must differ: a put that nobody heard the end of is known by its body.

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

import json
from collections.abc import Iterable
from typing import NamedTuple, TextIO

Entry = tuple[str, int, float, dict[str, object]]
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
    """Takes down what happens; one for each process."""

    def __init__(self, sink: TextIO | None = None) -> None:
        """Write each entry to `sink` as well, if there is one, before going on."""
        self.entries: list[Entry] = []
        self._sink = sink
        self._last = 0

    def _add(self, what: str, number: int, at_ms: float, rest: dict[str, object]) -> None:
        self.entries.append((what, number, at_ms, rest))
        if self._sink is not None:
            self._sink.write(json.dumps((what, number, at_ms, rest), default=_text) + "\n")
            self._sink.flush()

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

    def observe(self, at_ms: float, jobs: Iterable[Seen], *, is_complete: bool = True) -> None:
        """Somebody looked at the jobs; with `is_complete` there are no others."""
        self.note("observed", at_ms, jobs=[list(job) for job in jobs], complete=is_complete)


def _text(value: object) -> str:
    assert isinstance(value, bytes)
    return value.decode("latin-1")


def read_entries(lines: Iterable[str]) -> list[Entry]:
    """Return the entries of a log; a last line that was cut short is left out."""
    entries: list[Entry] = []
    for line in lines:
        if line.endswith("\n"):
            what, number, at_ms, rest = json.loads(line)
            entries.append((what, number, at_ms, rest))
    return entries


def merged(*logs: Iterable[Entry]) -> list[Entry]:
    """Return one log, in the order of time; at equal times invokes first, so that they overlap."""
    tagged = [
        (what, number and number * len(logs) + index, at_ms, rest)
        for index, log in enumerate(logs)
        for what, number, at_ms, rest in log
    ]
    return sorted(tagged, key=lambda entry: (entry[2], entry[0] != "invoke"))


def as_bytes(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode("latin-1")
    assert isinstance(value, bytes)
    return value


def jobs_seen(note: dict[str, object]) -> list[Seen]:
    """Return the jobs of an observation in a history; of anything else none."""
    jobs = note.get("jobs", [])
    assert isinstance(jobs, list)
    return [Seen(job_id, state, as_bytes(body), *rest) for job_id, state, body, *rest in jobs]
