"""Clients of the line protocol who do random things and note what came of it.

A client is one connection. It says a command or several, in pieces, and takes the replies as they
come; each becomes an operation of the history. It does not know what the right answers are.
"""

# ruff: noqa: ANN401 - what is said of an operation goes to histories as it is

import contextlib
import json
import random
import socket
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from tests.faults.history import History

TUBES: Final = ("default", "a", "b")
READ_BYTES: Final = 1 << 16
CUT_SHARE: Final = 0.1
DELAYS_MS: Final = (0, 0, 0, 1, 7, 40, 300, 1_000, 3_600_000)
TTRS_MS: Final = (50, 400, 1_000, 60_000)
DEAD: Final = "dead"
"""Where exhausted jobs are moved to."""

RULED: Final = ("default", "b")
"""The tubes whose policies change."""
GROUPED: Final = "a"
"""The tube in which some jobs have groups; nothing is held back by them."""

WIDE_TUBES: Final = 30
KEYS: Final = ("k1", "k2", "k3", "k4", "k5", "k6")
KEYS_EACH: Final = 2
LADDERS: Final = (((40,), 0, 0), ((7, 300), 0, 20), ((), 1, 0), ((40, 1), 2, 0))
"""Steps in milliseconds, highest number of attempts, jitter in percent."""

GOOD_WORDS: Final = {
    b"DELETED": {"delete", "delete-key"},
    b"RELEASED": {"release"},
    b"BURIED": {"bury"},
    b"TOUCHED": {"touch"},
    b"KICKED": {"kick", "kick-key", "kick-tube"},
    b"RESCHEDULED": {"reschedule", "reschedule-key"},
    b"NACKED": {"nack"},
    b"CHANGED": {"change"},
    b"CLEARED": {"clear"},
    b"CANCELLED": {"cancel"},
    b"POLICY_SET": {"policy"},
    b"PAUSED": {"pause"},
}
OUTCOMES: Final = {
    b"INSERTED": "created",
    b"KEPT": "kept",
    b"REPLACED": "replaced",
    b"PRESERVED": "preserved",
    b"EXTENDED": "extended",
    b"JOB_ALREADY_EXISTS": "there",
}
REFUSALS: Final = {
    *(b"NOT_FOUND", b"TIMED_OUT", b"DEADLINE_SOON", b"OUT_OF_MEMORY", b"DRAINING"),
}
MODES: Final = ("reject", "keep", "replace", "preserve", "extend")


class Asked(NamedTuple):
    """A command without a reply."""

    numbers: list[int]
    """Of its operations in the history; none if it is not noted there."""

    kind: str
    job_id: int


class World(NamedTuple):
    """What the clients of one run share."""

    rng: random.Random
    history: History
    now_ms: Callable[[], int]
    known: dict[int, bytes]
    """Jobs whose put was acknowledged and whose delete was not; not empty: its ttr stays."""
    bodies: list[int]
    """How many puts there were, batches and policies; a number for each makes its name."""
    may_refuse: bool
    """A put may be refused among others that are not, so that a batch says nothing."""
    keys: list[str]
    """Those that nobody uses. Each is one client's, so that it knows what it has been told of it;
    the next one has it when the one before has been told everything."""


class Client:
    """One connection, and whoever uses it."""

    def __init__(self, name: str, world: World, address: str) -> None:
        self.name = name
        self.world = world
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(address)
        self.sock.setblocking(False)
        self.outbox: list[bytes] = []
        """Pieces of what it says."""
        self.asked: deque[Asked] = deque()
        self.held: list[int] = []
        self.watched = ["default"]
        self.is_patient = False
        self.is_wide = False
        """It watches many tubes."""
        self.keys = [world.keys.pop() for _ in range(min(KEYS_EACH, len(world.keys)))]
        self._heard = b""

    def speak(self) -> None:
        """Send the next piece."""
        if self.outbox:
            # To a daemon that has just died nobody can say anything.
            with contextlib.suppress(OSError):
                self.sock.sendall(self.outbox.pop(0))

    def listen(self) -> None:
        """Take the replies that are there."""
        with contextlib.suppress(BlockingIOError, ConnectionResetError):
            while data := self.sock.recv(READ_BYTES):
                self._heard += data
        data, at = self._heard, 0
        while (end := data.find(b"\r\n", at)) >= 0:
            words = data[at:end].split()
            if words[0] == b"RESERVED":
                at = end + 2 + int(words[2]) + 2
                self._was_given(int(words[1]), data[end + 2 : at - 2])
            elif words[0] == b"RESERVED_BATCH":
                at = self._take_batch(data, end + 2, int(words[1]))
            else:
                at = end + 2
                self._was_told(words)
        self._heard = data[at:]

    def close(self) -> None:
        """Go away."""
        self.sock.close()
        if not self.asked:
            self.world.keys.extend(self.keys)

    # --- Replies --------------------------------------------------------------------------------

    def _was_given(self, job_id: int, body: bytes) -> None:
        asked = self.asked.popleft()
        assert asked.kind == "reserve", asked
        self.world.history.ok(asked.numbers[0], self.world.now_ms(), job_id=job_id, body=body)
        self.held.append(job_id)

    def _take_batch(self, data: bytes, at: int, jobs: int) -> int:
        numbers = self.asked.popleft().numbers
        history, now_ms = self.world.history, self.world.now_ms()
        for number in numbers[:jobs]:
            end = data.index(b"\r\n", at)
            _, job_id, body_bytes = data[at:end].split()
            at = end + 2 + int(body_bytes) + 2
            history.ok(number, now_ms, job_id=int(job_id), body=data[end + 2 : at - 2])
            self.held.append(int(job_id))
        for number in numbers[jobs:]:
            history.fail(number, now_ms, "UNUSED")
        return at

    def _was_told(self, words: list[bytes]) -> None:
        asked = self.asked.popleft()
        history, now_ms = self.world.history, self.world.now_ms()
        word = words[0]
        if word in OUTCOMES:
            job_id = int(words[1])
            history.ok(asked.numbers[0], now_ms, job_id=job_id, outcome=OUTCOMES[word])
            self.world.known[job_id] = b""
        elif asked.kind in GOOD_WORDS.get(word, ()):
            history.ok(asked.numbers[0], now_ms)
            if asked.kind == "delete":
                self.world.known.pop(asked.job_id, None)
            is_out_of_hand = asked.kind in {"delete", "release", "bury", "nack"}
            if is_out_of_hand and asked.job_id in self.held:
                self.held.remove(asked.job_id)
        elif asked.kind == "watch":
            assert word in {b"WATCHING", b"OUT_OF_MEMORY"}, word
        else:
            assert word in REFUSALS, (word, asked)
            for number in asked.numbers:
                is_first = number == asked.numbers[0]
                history.fail(number, now_ms, word.decode() if is_first else "UNUSED")
            if asked.job_id in self.held and word == b"NOT_FOUND":
                self.held.remove(asked.job_id)

    # --- Commands -------------------------------------------------------------------------------

    def say(self, line: str, kind: str, job_id: int = 0, *, times: int = 1, **what: Any) -> None:
        """Send a command, with the body that it puts, and note it as so many operations."""
        invoke, now_ms = self.world.history.invoke, self.world.now_ms()
        if job_id:
            what["job_id"] = job_id
        numbers = []
        if kind != "watch":
            numbers = [invoke(kind, now_ms, client=self.name, **what) for _ in range(times)]
        self.asked.append(Asked(numbers, kind, job_id))
        body = b"%b\r\n" % what["body"] if "body" in what else b""
        self._send(line.encode() + b"\r\n" + body)

    @property
    def is_free(self) -> bool:
        """Tell whether it may say something: a reserve that waits is waited for."""
        return not self.asked

    def act(self) -> None:
        """Do something."""
        roll = self.world.rng.random()
        if self.world.bodies[2] < len(RULED) and roll < 0.2:
            self._set_policy()  # so that it holds for most of the run
        elif len(self.watched) == 1 and roll > 0.7:
            self.watch()
        elif roll < 0.35:
            self.put()
        elif roll < 0.6:
            self.reserve()
        elif roll < 0.85 and self.held:
            self.work(self.world.rng.choice(self.held))
        elif roll < 0.96 and self.world.known:
            self.interfere(self.world.rng.choice(list(self.world.known)))
        elif roll < 0.985:
            self.rule()
        elif roll < 0.99:
            self.watch()
        else:
            self.put()

    def watch(self) -> None:
        """Ask for jobs of one more tube, and sometimes of many in which there are none."""
        tube = self.world.rng.choice((*TUBES, DEAD))
        if tube not in self.watched:
            self.watched.append(tube)
        elif not self.is_wide:
            self.is_wide = True
            self.asked.extend([Asked([], "watch", 0)] * WIDE_TUBES)
            self._send(b"".join(b"watch wide-%d\r\n" % number for number in range(WIDE_TUBES)))
        self.say(f"watch {tube}", "watch")

    def put(self) -> None:
        """Put a job, or several in one piece."""
        rng, bodies = self.world.rng, self.world.bodies
        delay_ms, ttr_ms, priority = rng.choice(DELAYS_MS), rng.choice(TTRS_MS), rng.choice((0, 9))
        tube, words, said = self._words()
        jobs = rng.choice((1, 1, 1, 2, 5))
        length = rng.choice((0, 0, 30, 200, 900, 4_000)) if rng.random() < 0.5 else 20
        batch = None if self.world.may_refuse or jobs == 1 or words else f"put {bodies[0]}"
        for _ in range(jobs):
            bodies[0] += 1
            body = b"body %d" % bodies[0] + b"." * length
            times = f"{seconds(delay_ms)} {seconds(ttr_ms)}"
            line = f"put-in-tube {tube} {priority} {times} {len(body)}{words}"
            what = {"topic": tube, "delay_ms": delay_ms, "ttr_ms": ttr_ms, "priority": priority}
            self.say(line, "put", body=body, batch=batch, **(said | what))

    def _tube_of(self, key: str) -> str:
        """Draw a tube, mostly the same: so that somebody has the key there."""
        rng = self.world.rng
        return TUBES[KEYS.index(key) % len(TUBES)] if rng.random() < 0.8 else rng.choice(TUBES)

    def _words(self) -> tuple[str, str, dict[str, Any]]:
        """Draw a tube and what stands behind a put: a key, a ladder of its own; and its note."""
        rng = self.world.rng
        tube = rng.choice(TUBES)
        words, said = "", dict[str, Any]()
        if self.keys and rng.random() < 0.4:
            key, mode = rng.choice(self.keys), rng.choice(MODES)
            tube = self._tube_of(key)
            words += f" key={key} on={mode}"
            said |= {"key": key, "on": mode}
        if rng.random() < 0.2:
            steps_ms, attempts_max, jitter = rule = rng.choice(LADDERS)
            if steps_ms:
                words += " retry=" + ",".join(f"{step_ms}ms" for step_ms in steps_ms)
                words += f" jitter={jitter}"
            if attempts_max:
                words += f" attempts={attempts_max}"
            said["retry"] = rule
        if tube == GROUPED and self.world.bodies[0] % 2:
            words += f" group=g{self.world.bodies[0] % 3}"
        return tube, words, said

    def rule(self) -> None:
        """Do something to a whole tube."""
        rng = self.world.rng
        kind = rng.choice((*["policy"] * 5, "pause", "clear", "cancel"))
        tube = rng.choice(TUBES)
        if kind == "pause":
            pause_ms = rng.choice((50, 300))
            line = f"pause-tube {tube} {seconds(pause_ms)}"
            self.say(line, kind, topic=tube, pause_ms=pause_ms)
        elif kind == "policy":
            self._set_policy()
        else:
            word = "clear-tube" if kind == "clear" else "cancel-jobs"
            self.say(f"{word} {tube}", kind, topic=tube)

    def _set_policy(self) -> None:
        rng = self.world.rng
        self.world.bodies[2] += 1
        tube = rng.choice(RULED)
        what: dict[str, Any] = {"topic": tube}
        fields: dict[str, object] = {}
        if rng.random() < 0.8:
            steps_ms, attempts_max, jitter = what["retry"] = rng.choice(LADDERS)
            what["target"] = rng.choice(("", DEAD, DEAD))
            what["returns"] = rng.random() < 0.3
            fields |= {"exhausted": what["target"]} if what["target"] else {}
            fields |= {"on_close": "return"} if what["returns"] else {}
            fields |= {"retry": [step_ms / 1_000 for step_ms in steps_ms]} if steps_ms else {}
            fields |= {"max_attempts": attempts_max} if attempts_max else {}
            fields |= {"jitter_percent": jitter} if jitter else {}
        text = json.dumps(fields) if fields else ""
        self.say(f"set-policy {tube} {len(text)}\r\n{text}", "policy", **what)

    def reserve(self) -> None:
        """Ask for a job, or for several."""
        rng = self.world.rng
        roll = rng.random()
        wait_ms = rng.choice((0, 0, 5, 50, 1_000))
        topics = tuple(self.watched)
        if roll < 0.2:
            jobs = rng.randrange(1, 5)
            self.world.bodies[1] += 1
            batch = f"reserve {self.world.bodies[1]}"
            line = f"reserve-batch {jobs} {seconds(wait_ms)}"
            self.say(line, "reserve", times=jobs, batch=batch, topics=topics)
        elif roll < 0.35 and self.is_patient:
            self.say("reserve", "reserve", topics=topics)
        else:
            self.say(f"reserve-with-timeout {seconds(wait_ms)}", "reserve", topics=topics)

    def work(self, job_id: int) -> None:
        """Say something of a job in hand."""
        rng = self.world.rng
        kind = rng.choice(("delete", "delete", "release", "release", "bury", "touch", "nack"))
        priority, delay_ms = rng.choice((0, 9)), rng.choice(DELAYS_MS)
        if kind == "release":
            line = f"release {job_id} {priority} {seconds(delay_ms)}"
            self.say(line, kind, job_id, priority=priority, delay_ms=delay_ms)
        elif kind == "bury":
            self.say(f"bury {job_id} {priority}", kind, job_id, priority=priority)
        elif kind == "nack":
            delay = f" delay={seconds(delay_ms)}" if delay_ms else ""
            error = rng.choice(("", " no route to host", " " + "x" * 700))
            self.say(f"nack {job_id}{delay}{error}", kind, job_id, delay_ms=delay_ms)
        else:
            self.say(f"{kind} {job_id}", kind, job_id)

    def interfere(self, job_id: int) -> None:
        """Do something to any job."""
        rng = self.world.rng
        kind = rng.choice(
            ("delete", "kick", "kick-tube", "reschedule", "touch", "change", "by key")
        )
        delay_ms = rng.choice(DELAYS_MS)
        if kind == "by key":
            self._interfere_by_key(delay_ms)
        elif kind == "change":
            self._change(job_id, delay_ms)
        elif kind == "kick-tube":
            self.say(f"kick {rng.choice((1, 3, 100))}", kind, topic="default")
        elif kind == "reschedule":
            line = f"reschedule {job_id} {seconds(delay_ms)}"
            self.say(line, kind, job_id, delay_ms=delay_ms)
        else:
            self.say(f"{'kick-job' if kind == 'kick' else kind} {job_id}", kind, job_id)

    def _interfere_by_key(self, delay_ms: int) -> None:
        rng = self.world.rng
        if not self.keys:
            return
        kind = rng.choice(("delete-key", "kick-key", "reschedule-key"))
        key = rng.choice(self.keys)
        tube = self._tube_of(key)
        line, what = f"{kind} {tube} {key}", dict[str, Any](topic=tube, key=key)
        if kind == "reschedule-key":
            line += f" {seconds(delay_ms)}"
            what["delay_ms"] = delay_ms
        self.say(line, kind, **what)

    def _change(self, job_id: int, delay_ms: int) -> None:
        rng, bodies = self.world.rng, self.world.bodies
        line, what = f"change {job_id} pri=3", dict[str, Any](priority=3)
        if rng.random() < 0.5:
            line += f" delay={seconds(delay_ms)}"
            what["delay_ms"] = delay_ms
        if rng.random() < 0.3 and not self.world.known.get(job_id):
            ttr_ms = rng.choice(TTRS_MS)
            line += f" ttr={seconds(ttr_ms)}"
            what["ttr_ms"] = ttr_ms
        if rng.random() < 0.4:
            bodies[0] += 1
            body = b"body %d" % bodies[0] + b"!" * rng.choice((0, 30, 900))
            what["body"] = body
            line += f" bytes={len(body)}"
        self.say(line, "change", job_id, **what)

    def _send(self, line: bytes) -> None:
        """Have it sent with what is to be sent already, cut where a network may cut it."""
        if self.outbox:
            self.outbox[-1] += line
        elif self.world.rng.random() < CUT_SHARE:
            cut = self.world.rng.randrange(len(line) + 1)
            self.outbox += [line[:cut], line[cut:]]
        else:
            self.outbox.append(line)


def seconds(duration_ms: int) -> str:
    """Return it as the line protocol has it.

    >>> seconds(1_500), seconds(7_000)
    ('1.500', '7')
    """
    whole, rest = divmod(duration_ms, 1_000)
    return f"{whole}.{rest:03}" if rest else f"{whole}"
