"""Clients that do everything at once and write down what they saw, while the daemon is killed.

    record = Record()
    with life(home, record) as daemon, load(daemon.address, record, seed=7):
        time.sleep(0.1)                         # one connection and thread for each worker
        daemon.kill()
    with life(home, record) as daemon:          # its start and its end are in the record
        look_at_all(daemon, record, "after a kill")
        daemon.kill()

What a worker does follows from its seed and from what it was answered. `Worker.turn` alone, called
so many times, is a workload whose system calls come in the same order each time. The module refuses
to know what becomes of the disks of daemons.
"""

# ruff: noqa: ANN401 - what is said of an operation goes to histories as it is

import contextlib
import copy
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from delayd.limits import LOOK_MS
from delayd.testing.daemon import Daemon
from tests.faults.checker import Checker, Violation
from tests.faults.clients import MODES, OUTCOMES
from tests.faults.history import Entry, History, Seen
from tests.faults.real_daemon import now_ms, started
from tests.journal.journals import durable_in
from tests.line_client import Address, LineClient
from tests.rigs.waiting import until

TOPICS: Final = ("default", "mail", "push")
KEYED: Final = "mail"
"""The topic of jobs with keys."""

WORKERS: Final = 4
LATE_MS_MAX: Final = 60_000.0
"""Beyond this a job is late even on a busy machine."""

DELAYS_MS: Final = (0, 0, 0, 10, 50, 250, 3_600_000)
SIZES: Final = (0, 10, 100, 100, 900)
"""Of bodies, in bytes, before they are made readable, which doubles them."""

TTRS_S: Final = (1, 2, 60, 600)
GONE: Final = (OSError, EOFError)
"""What a client meets when its daemon has died."""

PEEKS_BEYOND: Final = 64
"""Ids looked at beyond those that anybody was told, at least."""

REFUSED_MAX: Final = 20_000
"""A put that is refused for want of space has taken an id too: so many may come one after another,
and then one that there was space for and nobody was told of."""

PEEKS_AT_ONCE: Final = 32
"""Who asks for more than the daemon keeps for one client, and reads nothing, is closed."""

HELD_MAX: Final = 12
BREATH_S: Final = 0.003
"""Between what a client says and what it says next: else most of a test is to judge all of it."""

PATIENCE_S: Final = 120.0


class Unheard(EOFError):
    """An answer came when none counted any more: for its client, the daemon is gone."""


class Record:
    """A history that several threads write, and the checker that reads it along."""

    def __init__(
        self, *, loss_ms: float = 0, late_ms_max: float = LATE_MS_MAX, has_space: bool = True
    ) -> None:
        self.history = History()
        self.checker = Checker(late_ms_max, loss_ms)
        self.last_id = 0
        """The highest id that anybody was told."""
        self.acknowledged = 0
        """How many operations had a good answer."""
        self.handed = Counter[int]()
        """By job: how often clients were given it."""
        self.reserves: dict[int, int] = {}
        """By job: how often it was handed out, by its own count, when it was looked at last."""
        self.restarted: set[int] = set()
        """Jobs whose count may have begun again: they were put under a key."""
        self.is_deaf = False
        """What is answered does not count any more; see `hear_no_more`."""
        self.has_space = has_space
        """False: a put may be refused for want of space, and the next in the same piece may not,
        which is shorter. So what was sent in one piece says nothing where answers are missing."""
        self._lock = threading.Lock()
        self._taken = 0
        self._changes: dict[int, int] = {}
        """By job: how many entries there were when an operation on it was last acknowledged."""
        self._begun: dict[int, int] = {}
        """By operation without an end: how many entries there were when it was begun."""

    def fork(self) -> "Record":
        """Return a record of the same past, for a directory that was copied."""
        self.violations()
        fork = Record()
        fork.history.entries = self.history.entries.copy()
        fork.history._last = self.history._last
        fork.checker = copy.deepcopy(self.checker)
        fork.last_id, fork.acknowledged, fork._taken = self.last_id, self.acknowledged, self._taken
        return fork

    def invoke(self, kind: str, *, client: str, **rest: object) -> int:
        with self._lock:
            number = self.history.invoke(kind, now_ms(), client=client, **rest)
            self._begun[number] = len(self.history.entries)
            return number

    def hear_no_more(self) -> None:
        """Take every answer for none until the daemon is started again: the power is going.

        A real power cut has no witnesses. In a simulated one a sync that is under way when the
        file system is shut down may succeed (ext4 forgets an extent's conversion without a word),
        and its reply arrives: after the cut, as nothing that was acknowledged ever can. Whoever is
        given such an answer does nothing any more: nobody may delete a job that no history has as
        handed out, or give back one by leaving.
        """
        with self._lock:
            self.is_deaf = True

    def ok(self, number: int, job_id: int = 0, **rest: object) -> None:
        """It was acknowledged, of this job if the answer says which. Raises `Unheard`."""
        with self._lock:
            if self.is_deaf:
                self.last_id = max(self.last_id, job_id)
                self._unheard(number)
            self.last_id = max(self.last_id, job_id)
            self.acknowledged += 1
            self.history.ok(number, now_ms(), job_id=job_id, **rest)
            if job_id:
                self._changes[job_id] = len(self.history.entries)
            del self._begun[number]

    def fail(self, number: int, why: str, job_id: int = 0) -> None:
        """It was refused; what somebody else did to the job meanwhile may be the reason.

        Raises `Unheard`.
        """
        with self._lock:
            if self.is_deaf:
                self._unheard(number)
            if self._changes.get(job_id, 0) > self._begun.pop(number):
                why = "raced"
            self.history.fail(number, now_ms(), why)

    def unknown(self, number: int) -> None:
        """No answer will come, unless it has."""
        with self._lock:
            if self._begun.pop(number, None) is not None:
                self.history.unknown(number, now_ms())

    def _unheard(self, number: int) -> NoReturn:
        del self._begun[number]
        self.history.unknown(number, now_ms())
        raise Unheard

    def note_power_cut(self, cut_ms: float) -> None:
        """Note that the power went then: what may be lost is reckoned from that moment."""
        with self._lock:
            at_ms = now_ms()
            self.history.note("stopped", at_ms, how="power", ago_ms=at_ms - cut_ms)

    def note(self, what: str, **rest: object) -> None:
        with self._lock:
            self.is_deaf = self.is_deaf and what != "started"
            self.history.note(what, now_ms(), **rest)

    def observe(self, jobs: Iterable[Seen]) -> None:
        with self._lock:
            self.history.observe(now_ms(), jobs)

    def violations(self) -> list[Violation]:
        """Check what was written since the last call; return all that was ever broken."""
        with self._lock:
            entries = self.history.entries
            for entry in entries[self._taken :]:
                self.checker.take(entry)
            self._taken = len(entries)
        return self.checker.violations

    def handed_out_twice(self) -> list[int]:
        """Return jobs that clients were given more often than they were handed out: one attempt
        went to two of them. For logs in which a job's attempt is durable before a client has it.
        """
        counted = self.reserves.keys() - self.restarted
        return [job_id for job_id in counted if self.handed[job_id] > self.reserves[job_id]]

    def check(self, about: str = "") -> None:
        """Fail if a promise was broken, with all that was written about the job."""
        if broken := self.violations():
            first = broken[0]
            raise AssertionError(
                f"{len(broken)} promises broken {about}: {broken[:5]}\n"
                + "\n".join(map(str, entries_about(self.history.entries, first.operations)))
            )


def entries_about(entries: list[Entry], operations: Iterable[int]) -> list[Entry]:
    """Return the entries of some operations, and what befell the daemon meanwhile."""
    wanted = set(operations)
    events = {"stopped", "started", "closed", "sync failed", "fresh start"}
    return [
        entry
        for entry in entries
        if entry[1] in wanted or (entry[0] == "note" and entry[3]["what"] in events)
    ]


class PatientClient(LineClient):
    """A client for busy machines, and for daemons that were stopped for a while."""

    def __init__(self, address: Address) -> None:
        super().__init__(address, PATIENCE_S)


class Said(NamedTuple):
    """A command that was sent: its operations, its kind, the job or the key that it is about."""

    numbers: list[int]
    kind: str
    job_id: int
    has_key: bool


class Worker(threading.Thread):
    """A client that puts, reserves and says something of every job it knows."""

    def __init__(
        self,
        address: Address,
        name: str,
        record: Record,
        rng: random.Random,
        sizes: Sequence[int] = SIZES,
        *,
        has_keys: bool = False,
    ) -> None:
        """`has_keys`: it also puts jobs under keys of its own, and deletes them by key."""
        super().__init__(name=name, daemon=True)
        self._sizes = sizes
        self._has_keys = has_keys
        self.client = PatientClient(address)
        self.record = record
        self.rng = rng
        self.may_go_on = True
        self.has_lost_it = False
        """The daemon went away."""
        self.turns = 0
        self.refused: Counter[str] = Counter()
        """By kind, what there was no space for."""
        self._count = 0
        self._held: list[int] = []
        self._known: list[int] = []
        self._pieces: list[bytes] = []
        self._said: list[Said] = []

    def run(self) -> None:
        while self.may_go_on and not self.has_lost_it:
            self.turn()
            time.sleep(BREATH_S)

    def turn(self) -> bool:
        """Say a few things in one piece and take the answers; False when the daemon is gone."""
        if self.turns == 0:
            self._pieces += [b"watch %b\r\n" % topic.encode() for topic in TOPICS[1:]]
        self.turns += 1
        self._say_something()
        heard = 0
        """How many answers have been taken."""
        try:
            self.client.send(b"".join(self._pieces))
            for _ in TOPICS[1:] if self.turns == 1 else ():
                self._reply()
            for said in self._said:
                self._take(said)
                heard += 1
        except GONE:
            self.has_lost_it = True
            for said in self._said[heard:]:
                for number in said.numbers:
                    self.record.unknown(number)
            if not self.record.is_deaf:
                self.client.close()
        self._pieces.clear()
        self._said.clear()
        return not self.has_lost_it

    def leave(self) -> None:
        """Close the connection in the middle of a run; what it holds is for others."""
        if not self.has_lost_it:
            self.record.note("closed", client=self.name)
        self.client.close()
        self.has_lost_it = True

    # --- What is said ---------------------------------------------------------------------------

    def _say_something(self) -> None:
        rng = self.rng
        what = rng.random()
        if what < 0.4:
            self._put(rng.choice((1, 1, 2, 5, 12)))
        elif what < 0.65 or not self._held:
            self._reserve(rng.choice((0, 0, 0, 0.02)), rng.choice((1, 1, 1, 4)))
        else:
            for _ in range(rng.randint(1, min(4, len(self._held)))):
                self._say_of_held(self._held.pop(rng.randrange(len(self._held))))
        if self._known and rng.random() < 0.4:
            self._say_of_any(rng.choice(self._known))
        if self._has_keys and rng.random() < 0.4:
            self._say_of_key(f"{self.name.replace(' ', '-')}-{rng.randrange(3)}")
        if len(self._held) > HELD_MAX:
            job_id = self._held.pop(0)
            self._say("delete", f"delete {job_id}", job_id=job_id)

    def _put(self, count: int) -> None:
        rng = self.rng
        batch = f"{self.name} {self.turns}" if self.record.has_space else None
        for _ in range(count):
            body = self._body() + b" " + rng.randbytes(rng.choice(self._sizes)).hex().encode()
            topic, delay_ms, ttr_s = rng.choice(TOPICS), rng.choice(DELAYS_MS), rng.choice(TTRS_S)
            what = dict[str, Any](topic=topic, delay_ms=delay_ms, ttr_ms=ttr_s * 1_000)
            line = f"put-in-tube {topic} 0 {delay_ms / 1_000} {ttr_s} {len(body)}"
            self._say("put", line, body=body, priority=0, batch=batch, **what)

    def _body(self) -> bytes:
        self._count += 1
        return f"{self.name} {self._count}".encode()

    def _reserve(self, wait_s: float, count: int) -> None:
        if count == 1:
            self._say("reserve", f"reserve-with-timeout {wait_s}", topics=TOPICS)
        else:
            batch = f"batch {self.name} {self.turns}"
            line = f"reserve-batch {count} {wait_s}"
            self._say("reserve", line, times=count, batch=batch, batch_max=count)

    def _say_of_held(self, job_id: int) -> None:
        kind = self.rng.choice(("delete", "delete", "delete", "release", "bury", "touch"))
        if kind == "release":
            delay_ms = self.rng.choice(DELAYS_MS[:-1])
            line = f"release {job_id} 0 {delay_ms / 1_000}"
            self._say(kind, line, job_id=job_id, delay_ms=delay_ms, priority=0)
        elif kind == "bury":
            self._say(kind, f"bury {job_id} 0", job_id=job_id, priority=0)
        else:
            self._say(kind, f"{kind} {job_id}", job_id=job_id)
            self._held += [job_id] if kind == "touch" else []

    def _say_of_any(self, job_id: int) -> None:
        kind = self.rng.choice(("delete", "delete", "kick", "reschedule", "reschedule"))
        if kind == "reschedule":
            delay_ms = self.rng.choice(DELAYS_MS)
            line = f"reschedule {job_id} {delay_ms / 1_000}"
            self._say(kind, line, job_id=job_id, delay_ms=delay_ms)
        else:
            word = "kick-job" if kind == "kick" else kind
            self._say(kind, f"{word} {job_id}", job_id=job_id)

    def _say_of_key(self, key: str) -> None:
        """Say one thing of a key, which is answered before another is said."""
        rng = self.rng
        if rng.random() < 0.3:
            self._say("delete-key", f"delete-key {KEYED} {key}", topic=KEYED, key=key)
            return
        body, mode, delay_ms = self._body(), rng.choice(MODES), rng.choice(DELAYS_MS)
        what = dict[str, Any](topic=KEYED, delay_ms=delay_ms, ttr_ms=60_000, key=key, on=mode)
        line = f"put-in-tube {KEYED} 0 {delay_ms / 1_000} 60 {len(body)} key={key} on={mode}"
        self._say("put", line, body=body, priority=0, **what)

    def _say(self, kind: str, line: str, *, times: int = 1, **what: Any) -> None:
        """Say a command, with the body that it puts, and note it as so many operations."""
        invoke = self.record.invoke
        numbers = [invoke(kind, client=self.name, **what) for _ in range(times)]
        body = b"%b\r\n" % what["body"] if "body" in what else b""
        self._pieces.append(line.encode() + b"\r\n" + body)
        self._said.append(Said(numbers, kind, what.get("job_id", 0), "key" in what))

    # --- What is answered -----------------------------------------------------------------------

    def _reply(self) -> bytes:
        reply = self.client.reply()
        if not reply:
            raise EOFError
        return reply

    def _take(self, said: Said) -> None:
        """Take the answer to one command; raises what a dead daemon leaves."""
        reply = self._reply()
        word, _, rest = reply.partition(b"\r\n")[0].partition(b" ")
        number, *more = said.numbers
        if word == b"RESERVED_BATCH":
            count = int(rest)
            for each in said.numbers[:count]:
                self._reserved(each, self._reply())
            for each in said.numbers[count:]:
                self.record.fail(each, "no more")
        elif word == b"RESERVED":
            self._reserved(number, reply)
        elif said.kind == "put" and word in OUTCOMES:
            self.record.ok(number, int(rest), outcome=OUTCOMES[word])
            if said.has_key:
                self.record.restarted.add(int(rest))
            else:
                self._known.append(int(rest))
        elif word in {b"DELETED", b"RELEASED", b"BURIED", b"KICKED", b"TOUCHED", b"RESCHEDULED"}:
            self.record.ok(number, said.job_id)
            if word == b"DELETED" and said.job_id in self._known:
                self._known.remove(said.job_id)
        elif word in {b"NOT_FOUND", b"TIMED_OUT", b"DEADLINE_SOON", b"OUT_OF_MEMORY", b"DRAINING"}:
            self.refused[said.kind] += word == b"OUT_OF_MEMORY"
            for each in said.numbers:
                self.record.fail(each, word.decode(), said.job_id)
        else:
            raise AssertionError(f"{said.kind} was answered {reply!r}, {more}")

    def _reserved(self, number: int, reply: bytes) -> None:
        head, _, rest = reply.partition(b"\r\n")
        job_id = int(head.split()[1])
        self.record.ok(number, job_id, body=rest[:-2])
        self.record.handed[job_id] += 1
        self._held.append(job_id)


@contextlib.contextmanager
def load(
    address: Address,
    record: Record,
    seed: str,
    *,
    workers: int = WORKERS,
    has_keys: bool = False,
) -> Iterator[list[Worker]]:
    """Let workers work until the block ends or the daemon does. They are gone afterwards."""
    crew = [
        Worker(
            *(address, f"{seed}/{number}", record, random.Random(f"{seed} {number}")),
            has_keys=has_keys,
        )
        for number in range(workers)
    ]
    for worker in crew:
        worker.start()
    try:
        yield crew
    finally:
        for worker in crew:
            worker.may_go_on = False
        for worker in crew:
            worker.join(PATIENCE_S + 10)
            assert not worker.is_alive(), "a client was not answered for two minutes"
        for worker in crew:
            worker.leave()


def put_and_note(client: LineClient, record: Record, body: bytes) -> None:
    """Put a job that nothing happens to any more."""
    what = {"body": body, "delay_ms": 3_600_000, "ttr_ms": 60_000, "priority": 0}
    number = record.invoke("put", client="beside", **what)
    record.ok(number, client.put(body, delay=3_600))


def wait_for_log_end(client: LineClient, home: Path, frames: int) -> None:
    """Wait until `log-end` tells that so many frames are durable.

    It is written a second after a put; what was not synced by then, with a command after that.
    """
    begun_ms = now_ms()

    def is_told() -> bool:
        if now_ms() > begun_ms + 2 * LOOK_MS:
            client.ask("list-tube-used")
        return durable_in(home) >= frames

    until(is_told)


def look(client: LineClient, record: Record) -> list[Seen]:
    """Look at every job there is, and write that down."""
    last_id = record.last_id + PEEKS_BEYOND + WORKERS * 12
    record.reserves.clear()
    seen = list(_found(client, range(1, last_id + 1), record.reserves))
    stats = client.stats()
    kinds = ("ready", "reserved", "delayed", "buried")
    there = sum(int(stats[f"current-jobs-{kind}"]) for kind in kinds)
    while len(seen) < there and last_id < record.last_id + REFUSED_MAX:
        more = range(last_id + 1, last_id + 1 + PEEKS_AT_ONCE)
        seen += _found(client, more, record.reserves)
        last_id += PEEKS_AT_ONCE
    assert there == len(seen), f"{there} jobs are there, {len(seen)} were found up to {last_id}"
    record.observe(seen)
    return seen


def _found(client: LineClient, job_ids: range, reserves: dict[int, int]) -> Iterator[Seen]:
    """Yield what there is of these jobs, and note how often they were handed out."""
    for at, job_id in enumerate(job_ids):
        if at % PEEKS_AT_ONCE == 0:
            some = job_ids[at : at + PEEKS_AT_ONCE]
            client.send(b"".join(b"peek %d\r\nstats-job %d\r\n" % (n, n) for n in some))
        peeked, told = client.reply(), client.reply()
        if not peeked or not told:
            raise EOFError
        if peeked != b"NOT_FOUND\r\n":
            fields = dict(line.split(b": ", 1) for line in told.split(b"\n")[2:-1] if b": " in line)
            body = peeked.partition(b"\r\n")[2][:-2]
            state = fields[b"state"].decode()
            if b"key" not in fields:
                reserves[job_id] = int(fields[b"reserves"])
            yield Seen(job_id, state, body, None, int(fields[b"pri"]))


def drain(client: LineClient, record: Record) -> int:
    """Delete whatever is ready, as one more client; return how many jobs that were."""
    worker = f"drain {now_ms()}"
    for topic in TOPICS[1:]:
        client.ask(f"watch {topic}")
    drained = 0
    while True:
        number = record.invoke("reserve", client=worker, topics=TOPICS)
        client.send(b"reserve-with-timeout 0\r\n")
        reply = client.reply()
        head, _, rest = reply.partition(b"\r\n")
        if not head.startswith(b"RESERVED"):
            record.fail(number, head.decode())
            return drained
        job_id = int(head.split()[1])
        record.ok(number, job_id, body=rest[:-2])
        number = record.invoke("delete", client=worker, job_id=job_id)
        reply_to_delete = client.ask(f"delete {job_id}")
        assert reply_to_delete == "DELETED", reply_to_delete
        record.ok(number, job_id)
        drained += 1


@contextlib.contextmanager
def life(
    home: Path,
    record: Record,
    *flags: str,
    how: str = "kill",
    **options: Any,
) -> Iterator[Daemon]:
    """Start a daemon as `started` does, which the block ends, and note both."""
    with started(home, *flags, **options) as daemon:
        record.note("started")
        yield daemon
    record.note("stopped", how=how)


def look_at_all(daemon: Daemon, record: Record, about: str) -> None:
    """Look at every job there is, and see that no promise was broken."""
    with PatientClient(daemon.address) as client:
        look(client, record)
    record.check(about)


def look_at_the_rest(
    directory: Path, record: Record, environment: Mapping[str, str] | None = None
) -> None:
    """Start once more, look at everything, and take what is due."""
    with (
        life(directory, record, "--sync", "never", environment=environment) as daemon,
        PatientClient(daemon.address) as client,
    ):
        look(client, record)
        time.sleep(0.3)  # longer than all delays but those of an hour
        drain(client, record)
        record.note("drained")
        daemon.kill()
    record.check("in the end")
