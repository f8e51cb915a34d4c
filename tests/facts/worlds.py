"""The worlds that the facts are run over: one adapter for each way to the engine.

A world has the engine's words for methods, seconds for times, and one engine behind it, which facts
may set up and every act is followed by a check of. `put`, `reserve` and what is said of a held job
come from a producer and worker; everything else from another client, which holds nothing. What is
refused raises `Told`. A new wire is one more class here, and a row in `WORLDS`; what it
cannot say raises `Beyond`, and the fact is skipped there.
"""

# ruff: noqa: ANN401 - options go to the wires as they are

from collections.abc import Callable, Generator
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec

from delayd.client import Client as DelaydClient
from delayd.client import NotOnThisProtocol, TimedOut
from delayd.client import Refused as ClientRefused
from delayd.client.addresses import Address
from delayd.client.beanstalk import Commands, LineWire
from delayd.client.line_calls import LineCalls
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.job_parts import Own, Retry, key_of, note_of
from delayd.core.job_record import State
from delayd.core.names import checked_name
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import bury, nack, release
from delayd.core.operations.change import bury_waiting, change, kick_job, reschedule
from delayd.core.operations.checks import topic_named, vetted_own
from delayd.core.operations.put import Conflict, find_key, put_keyed, put_one
from delayd.core.operations.reserve import reserve, touch
from delayd.core.operations.sessions import ignore, watch
from delayd.core.operations.topics import clear, pause, set_policy
from delayd.core.policy import Policy, parse_ladder
from delayd.core.targets import Target
from delayd.core.views import peek
from delayd.testing import FakeDelayd
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.rig import EngineRig, kick
from tests.core.views import view_job
from tests.http.rig import Answer, HttpRig
from tests.line.rig import LineRig

TTR: Final = 60
OUTCOMES: Final = {"INSERTED": "created"}


class Told(Exception):
    """A refusal, as a world tells it; what it does not tell is empty."""

    def __init__(self, word: str, kind: str = "", text: str = "") -> None:
        super().__init__(word, kind, text)
        self.word, self.kind, self.text = word, kind, text


class Beyond(Exception):
    """The wire has no way to say this."""


class Held(NamedTuple):
    """A job in hand."""

    id: int
    body: bytes
    handle: Any


class Seen(NamedTuple):
    """A job, looked at."""

    topic: str
    state: str
    priority: int
    body: bytes
    key: str = ""
    error: str = ""


def everything(engine: Engine) -> list[object]:
    """Return the state; a put that is refused may take an id all the same, which is in no log."""
    return [each for each in canonical(engine) if each[0] != "last id"]


class EngineWorld:
    """The operations themselves; in the end their log is played back, and makes the same state."""

    name = ""

    def __init__(self) -> None:
        self._rig = EngineRig(time_ms=1_000_000)
        self.engine = self._rig.engine
        self._worker, self._other = self._rig.client(), self._rig.client()

    def close(self) -> None:
        assert everything(self._rig.replayed()) == everything(self.engine)

    def _do(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return act(self.engine, *args, **options)
        except Refusal as refusal:
            raise Told(refusal.word, refusal.kind, str(refusal)) from refusal
        finally:
            check(self.engine)

    def _ms(self, options: dict[str, Any]) -> dict[str, Any]:
        return {
            name + "_ms" * (name in {"delay", "ttr"}): value * 1_000
            if name in {"delay", "ttr"}
            else value
            for name, value in options.items()
        }

    def put(self, topic: str = "mail", body: bytes = b"x", **options: Any) -> tuple[int, str]:
        if options.get("key") == "":
            raise Beyond  # here it means that the job has none
        put: tuple[int, str] = self._do(self._put, topic, body, **self._ms({"ttr": TTR, **options}))
        return put

    def _put(
        self,
        engine: Engine,
        topic: str,
        body: bytes,
        *,
        key: str = "",
        on: str = "reject",
        retry: str = "",
        url: str = "",
        priority: int = 0,
        delay_ms: int = 0,
        ttr_ms: int,
    ) -> tuple[int, str]:
        now_ms = self._rig.now_ms
        checked_name(topic)
        target = vetted_own(engine, Target(url=url, method="POST"), topic) if url else None
        there = engine.store.topic(topic)
        try:
            if not key and not retry and not url:
                return put_one(engine, there, priority, delay_ms, ttr_ms, body, now_ms), "created"
            job_id, outcome = put_keyed(
                *(engine, there, key.encode(), Conflict(on)),
                priority=priority,
                delay_ms=delay_ms,
                ttr_ms=ttr_ms,
                body=body,
                now_ms=now_ms,
                own=Own(Retry(parse_ladder(retry)) if retry else None, target),
            )
        except Refusal:
            engine.store.drop_if_unwanted(there)
            raise
        return job_id, outcome.value

    def reserve(self, topic: str = "mail") -> Held | None:
        if topic not in [each.name for each in self._worker.watched]:
            watch(self.engine, self._worker, topic)
        job = self._do(reserve, self._worker, self._rig.now_ms)
        return job and Held(job[0], job[1], None)

    def ack(self, held: Held) -> None:
        self._do(delete, self._worker, held.id, self._rig.now_ms)

    def nack(self, held: Held, error: str = "", **delay: int) -> None:
        self._do(nack, self._worker, held.id, self._rig.now_ms, error=error, **self._ms(delay))

    def release(self, held: Held, delay: int = 0) -> None:
        self._do(release, self._worker, held.id, 0, delay * 1_000, self._rig.now_ms)

    def bury(self, held: Held) -> None:
        self._do(bury, self._worker, held.id, 0, self._rig.now_ms)

    def touch(self, held: Held) -> None:
        self._do(touch, self._worker, held.id, self._rig.now_ms)

    def cancel(self, job_id: int) -> None:
        self._do(delete, self._other, job_id, self._rig.now_ms)

    def kick(self, job_id: int) -> None:
        self._do(kick_job, job_id, self._rig.now_ms)

    def reschedule(self, job_id: int, delay: int) -> None:
        self._do(reschedule, job_id, delay * 1_000, self._rig.now_ms)

    def change(self, job_id: int, **what: Any) -> None:
        self._do(change, job_id, self._rig.now_ms, **self._ms(what))

    def bury_waiting(self, job_id: int) -> None:
        self._do(bury_waiting, job_id, self._rig.now_ms)

    def look(self, job_id: int) -> Seen:
        _, body = self._do(peek, job_id)
        seen = view_job(self.engine, job_id, self._rig.now_ms)
        record = self.engine.store.jobs.get(job_id)
        assert record is not None
        note, state = note_of(record), State(seen.state).name.lower()
        key = key_of(record).decode()
        return Seen(seen.topic, state, seen.priority, body, key, note.error if note else "")

    def find(self, topic: str, key: str) -> int:
        return int(self._do(find_key, topic, key.encode()))

    def pause(self, topic: str, seconds: int) -> None:
        self._do(pause, topic, seconds * 1_000, self._rig.now_ms)

    def clear(self, topic: str) -> int:
        return int(self._do(lambda engine: clear(engine, topic_named(engine, topic))))

    def redrive(self, topic: str, most: int) -> int:
        return int(
            self._do(
                lambda engine: kick(engine, topic_named(engine, topic), most, self._rig.now_ms)
            )
        )

    def policy(self, topic: str, **fields: Any) -> None:
        self._do(
            lambda engine: set_policy(engine, topic, Policy.from_fields(fields), self._rig.now_ms)
        )

    def watch(self, *topics: str) -> None:
        for topic in topics[:-1]:
            watch(self.engine, self._other, topic)
        self._do(watch, self._other, topics[-1])

    def ignore(self, topic: str) -> None:
        self._do(ignore, self._other, topic)

    def advance(self, seconds: float) -> None:
        self._rig.play(self._rig.time_ms + round(seconds * 1_000))
        check(self.engine)


class LineWorld:
    """Commands on two connections."""

    name = ""

    def __init__(self) -> None:
        self.rig = LineRig(is_virtual=True)
        self.engine = self.rig.engine
        self.worker, self.other = self.rig.client(), self.rig.client()
        self._watched = {"default"}

    def _say(self, done: str, line: str, body: bytes | None = None, *, by: Any = None) -> list[str]:
        """Send a command; return the words of its reply, which begins with `done`, and its body."""
        client = by or self.other
        sent = line.encode() + b"\r\n" + (b"" if body is None else body + b"\r\n")
        client.says(sent)
        reply = client.in_full
        check(self.engine)
        head, _, rest = reply.partition(b"\r\n")
        word, *words = head.decode().split(" ")
        if word in done.split("|"):
            return [word, *words, rest.removesuffix(b"\r\n").decode("latin-1")]
        why = client.says(b"why\r\n").decode().split()
        assert why[0] == "WHY", (line, reply)
        raise Told(word, why[1], " ".join(words))

    def put(self, topic: str = "mail", body: bytes = b"x", **options: Any) -> tuple[int, str]:
        key, on, url = (options.get(name, "") for name in ("key", "on", "url"))
        words = f" key={key}" * ("key" in options) + f" on={on}" * bool(on)
        words += f" url={url}" * bool(url)
        words += f" retry={options['retry'].replace(' ', ',')}" if "retry" in options else ""
        plain = (options.get("priority", 0), options.get("delay", 0), options.get("ttr", TTR))
        line = "put-in-tube {} {} {} {} {}{}".format(topic, *plain, len(body), words)
        done = "INSERTED|KEPT|REPLACED|PRESERVED|EXTENDED"
        word, job_id, *_ = self._say(done, line, body, by=self.worker)
        return int(job_id), OUTCOMES.get(word, word.lower())

    def reserve(self, topic: str = "mail") -> Held | None:
        if topic not in self._watched:
            self._say("WATCHING", f"watch {topic}", by=self.worker)
            self._watched.add(topic)
        said = self._say(
            "RESERVED|TIMED_OUT|DEADLINE_SOON", "reserve-with-timeout 0", by=self.worker
        )
        return Held(int(said[1]), said[3].encode("latin-1"), None) if len(said) == 4 else None

    def ack(self, held: Held) -> None:
        self._say("DELETED", f"delete {held.id}", by=self.worker)

    def nack(self, held: Held, error: str = "", **delay: int) -> None:
        words = [f"{name}={value}" for name, value in delay.items()] + [error] * bool(error)
        self._say("NACKED", " ".join((f"nack {held.id}", *words)), by=self.worker)

    def release(self, held: Held, delay: int = 0) -> None:
        self._say("RELEASED", f"release {held.id} 0 {delay}", by=self.worker)

    def bury(self, held: Held) -> None:
        self._say("BURIED", f"bury {held.id} 0", by=self.worker)

    def touch(self, held: Held) -> None:
        self._say("TOUCHED", f"touch {held.id}", by=self.worker)

    def cancel(self, job_id: int) -> None:
        self._say("DELETED", f"delete {job_id}")

    def kick(self, job_id: int) -> None:
        self._say("KICKED", f"kick-job {job_id}")

    def reschedule(self, job_id: int, delay: int) -> None:
        self._say("RESCHEDULED", f"reschedule {job_id} {delay}")

    def change(self, job_id: int, **what: Any) -> None:
        body = what.pop("body", None)
        words = [f"{'pri' if name == 'priority' else name}={what[name]}" for name in what]
        words += [] if body is None else [f"bytes={len(body)}"]
        self._say("CHANGED", " ".join((f"change {job_id}", *words)), body)

    def bury_waiting(self, job_id: int) -> None:
        raise Beyond

    def look(self, job_id: int) -> Seen:
        body = self._say("FOUND", f"peek {job_id}")[-1].encode("latin-1")
        text = self._say("OK", f"stats-job {job_id}")[-1]
        told = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        key, error = (told.get(name, '""')[1:-1] for name in ("key", "error"))
        return Seen(told["tube"].strip('"'), told["state"], int(told["pri"]), body, key, error)

    def find(self, topic: str, key: str) -> int:
        return int(self._say("FOUND", f"peek-key {topic} {key}")[1])

    def pause(self, topic: str, seconds: int) -> None:
        self._say("PAUSED", f"pause-tube {topic} {seconds}")

    def clear(self, topic: str) -> int:
        return int(self._say("CLEARED", f"clear-tube {topic}")[1])

    def redrive(self, topic: str, most: int) -> int:
        return int(self._say("REDRIVEN", f"redrive {topic} {most}")[1])

    def policy(self, topic: str, **fields: Any) -> None:
        text = msgspec.json.encode(fields)
        self._say("POLICY_SET", f"set-policy {topic} {len(text)}", text)

    def watch(self, *topics: str) -> None:
        *others, last = topics
        self.other.says("".join(f"watch {topic}\r\n" for topic in others).encode())
        self._say("WATCHING", f"watch {last}")

    def ignore(self, topic: str) -> None:
        self._say("WATCHING", f"ignore {topic}")

    def advance(self, seconds: float) -> None:
        self._say("ADVANCED", f"advance-clock {seconds}")


class HttpWorld:
    """Calls of HTTP."""

    name = ""

    def __init__(self) -> None:
        self._rig = HttpRig(is_virtual=True)
        self.engine = self._rig.engine

    def close(self) -> None:
        self._rig.__exit__(None)

    def _ask(self, method: str, path: str, json: object = None, **options: Any) -> Answer:
        answer = self._rig.call(method, f"/v1{path}", json, **options)
        if answer.status >= 400:
            told = answer.json
            text = " ".join((told["detail"], *(str(each) for each in told.get("errors", ()))))
            raise Told(answer.word, told["kind"], text)
        return answer

    def put(self, topic: str = "mail", body: bytes = b"x", **options: Any) -> tuple[int, str]:
        if "on" in options:
            options["on_conflict"] = options.pop("on")
        given = {"body": body.decode(), "ttr": TTR, "priority": 0, **options}
        told = self._ask("POST", f"/topics/{topic}/jobs", given).json
        return told["id"], told["outcome"]

    def reserve(self, topic: str = "mail") -> Held | None:
        answer = self._ask("POST", f"/topics/{topic}/reserve", {})
        if answer.status == 204:
            return None
        (job,) = answer.json["jobs"]
        return Held(job["id"], job["body"].encode(), job["token"])

    def _say(self, act: str, held: Held, **fields: Any) -> None:
        self._ask("POST", f"/jobs/{held.id}/{act}", {"token": held.handle, **fields})

    def ack(self, held: Held) -> None:
        self._say("ack", held)

    def nack(self, held: Held, error: str = "", **delay: int) -> None:
        self._say("nack", held, error=error, **delay)

    def release(self, held: Held, delay: int = 0) -> None:
        raise Beyond

    def bury(self, held: Held) -> None:
        self._say("bury", held)

    def touch(self, held: Held) -> None:
        self._say("touch", held)

    def cancel(self, job_id: int) -> None:
        self._ask("DELETE", f"/jobs/{job_id}")

    def kick(self, job_id: int) -> None:
        self._ask("POST", f"/jobs/{job_id}/kick")

    def reschedule(self, job_id: int, delay: int) -> None:
        raise Beyond

    def change(self, job_id: int, **what: Any) -> None:
        if "body" in what:
            what["body"] = what["body"].decode()
        self._ask("PATCH", f"/jobs/{job_id}", what)

    def bury_waiting(self, job_id: int) -> None:
        self._ask("POST", f"/jobs/{job_id}/bury", {})

    def look(self, job_id: int) -> Seen:
        told = self._ask("GET", f"/jobs/{job_id}").json
        error = (told.get("failure") or {}).get("error", "")
        seen = (told["topic"], told["state"], told["priority"], told["body"].encode())
        return Seen(*seen, told.get("key") or "", error)

    def find(self, topic: str, key: str) -> int:
        return int(self._ask("GET", f"/topics/{topic}/keys/{quote(key)}").json["id"])

    def pause(self, topic: str, seconds: int) -> None:
        self._ask("POST", f"/topics/{topic}/pause", {"duration": seconds})

    def clear(self, topic: str) -> int:
        return int(self._ask("POST", f"/topics/{topic}/clear", {}).json["cleared"])

    def redrive(self, topic: str, most: int) -> int:
        return int(self._ask("POST", f"/topics/{topic}/kick", {"max": most}).json["kicked"])

    def policy(self, topic: str, **fields: Any) -> None:
        self._ask("PUT", f"/topics/{topic}/policy", fields)

    def watch(self, *topics: str) -> None:
        raise Beyond

    def ignore(self, topic: str) -> None:
        raise Beyond

    def advance(self, seconds: float) -> None:
        self._rig.pass_ms(round(seconds * 1_000))


class ClientWorld:
    """The client; over HTTP it speaks to the double."""

    name = ""

    def __init__(self) -> None:
        self._fake = FakeDelayd()
        self._start(self._fake._daemon.engine, self._fake.client())
        self.engine.vet_target = None

    def close(self) -> None:
        self._fake.close()

    def _start(self, engine: Engine, client: DelaydClient) -> None:
        self.engine, self._client = engine, client

    def _do(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return act(*args, **options)
        except ClientRefused as refused:
            text = "" if " was answered " in str(refused) else f"{refused} {refused.problems}"
            raise Told(refused.word, refused.kind, text) from refused
        except NotOnThisProtocol as error:
            raise Beyond from error
        finally:
            check(self.engine)

    def put(self, topic: str = "mail", body: bytes = b"x", **options: Any) -> tuple[int, str]:
        if "on" in options:
            options["on_conflict"] = options.pop("on")
        options = {"ttr": TTR, "priority": 0, **options}
        put = self._do(self._client.put, topic, body, **options)
        return put.id, put.outcome

    def reserve(self, topic: str = "mail") -> Held | None:
        try:
            job = self._do(self._client.reserve, topic, timeout=0)
        except TimedOut:
            return None
        return Held(job.id, job.body, job)

    def ack(self, held: Held) -> None:
        self._do(held.handle.ack)

    def nack(self, held: Held, error: str = "", **delay: int) -> None:
        self._do(held.handle.nack, error=error, **delay)

    def release(self, held: Held, delay: int = 0) -> None:
        self._do(held.handle.release, delay=delay)

    def bury(self, held: Held) -> None:
        self._do(held.handle.bury)

    def touch(self, held: Held) -> None:
        self._do(held.handle.touch)

    def cancel(self, job_id: int) -> None:
        self._do(self._client.cancel, job_id)

    def kick(self, job_id: int) -> None:
        self._do(self._client.kick, job_id)

    def reschedule(self, job_id: int, delay: int) -> None:
        raise Beyond

    def change(self, job_id: int, **what: Any) -> None:
        act = self._client.reschedule if what.keys() == {"delay"} else self._client.change
        self._do(act, job_id, **what)

    def bury_waiting(self, job_id: int) -> None:
        self._do(self._client.bury, job_id)

    def look(self, job_id: int) -> Seen:
        job = self._do(self._client.get, job_id)
        error = job.failure.error if job.failure else ""
        return Seen(job.topic, job.state, job.priority, job.body, job.key, error)

    def find(self, topic: str, key: str) -> int:
        return int(self._do(self._client.find, topic, key).id)

    def pause(self, topic: str, seconds: int) -> None:
        self._do(self._client.pause, topic, seconds)

    def clear(self, topic: str) -> int:
        return int(self._do(self._client.clear, topic))

    def redrive(self, topic: str, most: int) -> int:
        return int(self._do(self._client.redrive, topic, most))

    def policy(self, topic: str, **fields: Any) -> None:
        self._do(self._client.set_policy, topic, fields)

    def watch(self, *topics: str) -> None:
        raise Beyond

    def ignore(self, topic: str) -> None:
        raise Beyond

    def advance(self, seconds: float) -> None:
        self._do(self._client.advance_clock, seconds)


class MemoryLink:
    """What the client knows of a connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.held: set[int] = set()
        self.watched, self.used = frozenset(("default",)), ""
        self.is_greeted = self.is_closed = False


class LineRuns:
    """Carries out the client's operations on two connections of a rig."""

    def __init__(self, line: LineWorld) -> None:
        self._wire = LineWire(Address("line", "127.0.0.1", 11300), "")
        self._worker, self._other = MemoryLink(line.worker), MemoryLink(line.other)

    def run(self, steps: Generator[Any, Any, Any]) -> Any:
        try:
            ask = next(steps)
            while True:
                is_workers = ask.watched is not None
                link: Any = ask.link or (self._worker if is_workers else self._other)
                if (first := self._wire.before(ask, link)) is not None:
                    self._wire.check_before(ask, first, self._exchange(first, link))
                ask = steps.send(self._exchange(ask, link))
        except StopIteration as done:
            return done.value

    def _exchange(self, ask: Commands, link: Any) -> Any:
        link.connection.says(self._wire.encode(ask))
        return self._wire.reader(ask, link).feed(link.connection.in_full)

    def close(self) -> None:
        """Hold nothing."""


class LineClientWorld(ClientWorld):
    """The same client over the line."""

    def __init__(self) -> None:
        line = LineWorld()
        client = DelaydClient.over(LineRuns(line), LineCalls("http://127.0.0.1:11301"))
        self._start(line.engine, client)

    def close(self) -> None:
        """Hold nothing."""


World = EngineWorld | LineWorld | HttpWorld | ClientWorld
WORLDS: Final[dict[str, Callable[[], Any]]] = {
    "engine": EngineWorld,
    "line": LineWorld,
    "http": HttpWorld,
    "client": ClientWorld,
    "line-client": LineClientWorld,
}
"""`line` and `http`: the wires; the clients speak them too, and tell what they understood."""
