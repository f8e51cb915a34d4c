"""The worlds that the facts are run over: one adapter for each way to the engine.

An adapter has a method for each act, under the engine's name, with times in seconds. A worker puts
and reserves, and says what becomes of the jobs that it holds; everything else comes from another
client, which holds nothing. What is refused raises `Told`, and what the wire cannot say `Beyond`:
then the fact is skipped there.

`truth` is what the engine holds. Each answer that tells of a job is compared with it, and `look`,
`topic` and `policy` return it as the wire shows it, under the same names. A new wire is one more
class here, and a row in `WORLDS`; then it sees every fact.
"""

# ruff: noqa: ANN401 - options go to the wires as they are; each act has its name

import asyncio
import datetime as dt
import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Generator, Iterable
from functools import partial, partialmethod
from typing import Any, Final
from urllib.parse import quote, urlencode

from delayd.client import AsyncClient, Client, NotOnThisProtocol
from delayd.client import Refused as ClientRefused
from delayd.client.addresses import Address
from delayd.client.beanstalk import LineWire
from delayd.client.line_calls import LineCalls
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.job_parts import (
    AttemptOutcome,
    Own,
    Reason,
    Retry,
    history_of,
    target_of,
    texts_of,
)
from delayd.core.job_record import State
from delayd.core.log_records import Kind
from delayd.core.names import INTERNAL_TOPICS, PREDECESSOR, checked_name
from delayd.core.operations import ack, attempts, change, put, sessions, topics
from delayd.core.operations import reserve as reserving
from delayd.core.operations.checks import topic_named, vetted_own
from delayd.core.operations.succeed import put_instead
from delayd.core.operations.tick import caught_up
from delayd.core.policy import Policy, parse_ladder
from delayd.core.reasons import reason_id
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.find import KeySearch
from delayd.core.scans.groups import GroupList, GroupOrder, group_named
from delayd.core.scans.list import Calendar, Search
from delayd.core.scans.reasons import DeadReasons
from delayd.core.scans.scan import Wanted
from delayd.core.targets import Target, own_target
from delayd.core.times import RequestMs
from delayd.core.views import peek
from delayd.durations import duration_text
from delayd.moments import moment_text, parse_moment_ms
from delayd.schedules.book import Book
from delayd.schedules.definition import Definition
from delayd.schedules.opening import ScheduleOpener
from delayd.schedules.recurrence import jitter_ms
from delayd.schedules.schedules import Change
from delayd.testing import FakeDelayd
from tests.client.worlds import Waiting
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.views import job_details, view_job, view_topic
from tests.rigs.engine import EngineRig, kick, kinds_of
from tests.rigs.http import Answer, HttpRig
from tests.rigs.line import LineRig

TTR: Final = 60
COUNTS: Final = ("urgent", "ready", "reserved", "delayed", "buried")
GROUP_NUMBERS: Final = ("jobs", "ready", "reserved", "retrying", "weight")
UNSAID: Final = {
    **dict.fromkeys(("key", "group", "error", "origin", "reason", "retry", "url", "method"), ""),
    **dict.fromkeys(("max_attempts", "jitter_percent"), 0),
}
"""What a wire leaves out of a job that does not have it."""
UNSAID_OF_HELD: Final = dict.fromkeys(
    ("key", "group", "error", "origin", "reason", "url", "method"), ""
)


class Told(Exception):
    """A refusal, as a world tells it; what it does not tell is empty."""

    def __init__(self, word: str, kind: str = "", text: str = "", status: int = 0) -> None:
        super().__init__(word, kind, text)
        self.word, self.kind, self.text, self.status = word, kind, text, status


class Beyond(Exception):
    """The wire has no way to say this."""


def everything(engine: Engine) -> list[object]:
    """Return the state; a put that is refused may take an id all the same, which is in no log."""
    return [each for each in canonical(engine) if each[0] != "last id"]


def truth(engine: Engine, job_id: int, now_ms: int) -> dict[str, Any]:
    """Return all that the engine knows of a job, with its times as moments."""
    now = RequestMs(now_ms)
    seen, more = view_job(engine, job_id, now), job_details(engine, job_id, now)
    record, _ = caught_up(engine, job_id, now)
    retry, failure = more.retry or Retry(), more.failure
    target = own_target(target_of(record)) if target_of(record) else Target()
    return {
        **dict(zip(("reserves", "timeouts", "releases", "buries", "kicks"), seen[8:], strict=True)),
        "id": job_id,
        "topic": seen.topic,
        "state": State(seen.state).name.lower(),
        "priority": seen.priority,
        "ttr": seen.ttr_ms / 1_000,
        "body": peek(engine, job_id)[1],
        "left": seen.left_ms / 1_000,
        "key": more.key,
        "attempts": more.attempts,
        "created": now_ms - seen.age_ms,
        "delay": seen.delay_ms / 1_000,
        "reason": Reason(failure.reason).name.lower() if failure else "",
        "error": more.error,
        "origin": more.origin,
        "url": target.url,
        "retry": " ".join(map(duration_text, retry.steps_ms)),
        "group": "",
        "max_attempts": retry.attempts_max,
        "jitter_percent": retry.jitter_percent,
        "method": target.method if target.url else "",
        "history": attempts_told(each._asdict() for each in history_of(record)),
        **texts_of(record),
    }


def attempts_told(history: Iterable[dict[str, Any]]) -> list[tuple[str, str, str, float]]:
    """Attempts of a job, with what every wire tells of them."""
    return [
        (
            each["reason"].replace("-", "_")
            if isinstance(each["reason"], str)
            else Reason(each["reason"]).name.lower(),
            each["outcome"]
            if isinstance(each["outcome"], str)
            else AttemptOutcome(each["outcome"]).name.lower(),
            each.get("error", ""),
            each["lasted_ms"] / 1_000 if "lasted_ms" in each else each.get("lasted") or 0,
        )
        for each in history
    ]


def counts(engine: Engine, name: str, now_ms: int) -> dict[str, Any]:
    """Return the counts of a topic."""
    seen = view_topic(engine, name, RequestMs(now_ms))
    return {**{each: getattr(seen, each) for each in COUNTS}, "paused": seen.pause_left_ms / 1_000}


def group_truth(engine: Engine, topic: str, name: str, now_ms: int) -> dict[str, Any]:
    """Return what the engine knows of a group; its times are seconds from now, or none."""
    row = group_named(topic_named(engine, topic), name.encode())
    since_ms, until_ms = row.ready_since_ms, row.paused_until_ms
    return {
        **{each: getattr(row, each) for each in GROUP_NUMBERS},
        "blocked": "none" if row.block is None else row.block.value,
        "ready_age": "none" if since_ms is None else (now_ms - since_ms) / 1_000,
        "paused": 0 if until_ms is None else (until_ms - now_ms) / 1_000,
    }


def group_told(answer: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """What an answer says of a group, under the same names."""
    until = answer["paused_until"]
    return {
        **{each: answer[each] for each in GROUP_NUMBERS},
        "blocked": answer.get("blocked", "none"),
        "ready_age": "none" if answer["ready_age"] is None else answer["ready_age"],
        "paused": 0 if until is None else (parse_moment_ms(until) - now_ms) / 1_000,
    }


def group_of_line(told: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """What the line says of a group, under the same names."""
    return {
        **{each: told[each] for each in GROUP_NUMBERS},
        "blocked": told.get("blocked", "none"),
        "ready_age": told.get("ready-age", "none"),
        "paused": told.get("paused-until", now_ms / 1_000) - now_ms / 1_000,
    }


TICK: Final = dt.timedelta(milliseconds=1)


def grouped(jobs: Any, job_id: Any, reason: str, took_ms: float) -> str:
    """A group of dead letters as one word; several failed within so many seconds."""
    took = f"{took_ms / 1_000:g}s:" if took_ms else ""
    return f"{jobs}:{job_id}:{took}{reason.replace(': ', ':').replace(' ', ':')}"


def with_id(which: dict[str, str]) -> dict[str, Any]:
    """What a redrive selects: a reason by its id."""
    return {n: reason_id(each) if n == "reason" else each for n, each in which.items()}


def wall_ms(engine: Engine, now_ms: int) -> int:
    return now_ms + engine.store.wall_times.offset_ms


def moments_from(now_ms: int, *seconds: float) -> str:
    """Moments so many seconds from now, as words."""
    return " ".join(moment_text(now_ms + round(each * 1_000)) for each in seconds)


def from_now(moments: Iterable[str], now_ms: int) -> list[Any]:
    """How many seconds from now the moments are; whole numbers where they are."""
    seconds = [(parse_moment_ms(each) - now_ms) / 1_000 for each in moments]
    return [int(each) if each.is_integer() else each for each in seconds]


def in_base64(fields: dict[str, Any]) -> dict[str, Any]:
    """A definition with a body, in the topic mail if no other is said; null is left out."""
    given = said({"topic": "mail", "body": b"x", **fields})
    if "body" in given:
        given["body_base64"] = base64_of(given.pop("body"))
    return given


def schedule_told(answer: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """What an answer says of a schedule, with its times from now; none: there is none."""
    told = {**answer, **answer["definition"]}
    names = ("topic", "state", "runs", "missed", "skipped", "refused", "late")
    body = told.get("body_base64")
    return {
        **{name: told[name] for name in names},
        **{each: told[each] for each in ("every", "cron", "timezone", "url") if each in told},
        "note": told.get("note", ""),
        "body": json.dumps(told["body"]).encode() if body is None else b64decode(body),
        "outcome": told["last"]["outcome"] if told["last"] else "none",
        **{
            each: from_now([told[each]], now_ms)[0] if told[each] else "none"
            for each in ("next", "queued")
        },
    }


def schedule_truth(engine: Engine, name: str, now_ms: int) -> dict[str, Any]:
    """Return what the log has of a schedule; the end of a run is written down with the next."""
    (schedule,) = (each for each in Book(engine).read() if each.name == name)
    definition, progress = schedule.definition, schedule.progress
    names = ("runs", "missed", "skipped", "refused", "late", "note")
    planned_ms = 0 if progress.is_paused else progress.planned_ms
    planned_ms += jitter_ms(name, definition.jitter_ms) if planned_ms else 0
    times = {"next": planned_ms, "queued": progress.queued_ms}
    at_ms = wall_ms(engine, now_ms)
    return {
        **definition.to_fields(),
        **{each: getattr(progress, each) for each in names},
        "state": progress.state.value,
        "body": schedule.body,
        **{
            each: from_now([moment_text(ms)], at_ms)[0] if ms else "none"
            for each, ms in times.items()
        },
    }


class EngineWorld:
    """The operations themselves; in the end their log is played back, and makes the same state."""

    name = ""

    def __init__(self) -> None:
        self._rig = EngineRig(time_ms=1_000_000)
        self.engine = self._rig.engine
        self._worker, self._other = self._rig.client(), self._rig.client()
        tasks = BackgroundTasks(self.engine)
        self._schedules = ScheduleOpener(self.engine, tasks, lambda: None, print)

    def close(self) -> None:
        replayed = self._rig.replayed()
        check(replayed)
        assert everything(replayed) == everything(self.engine)

    @property
    def now_ms(self) -> int:
        return self._rig.now_ms

    def _do(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        for name in {"delay", "ttr"} & options.keys():
            options[f"{name}_ms"] = round(options.pop(name) * 1_000)
        self._rig.take_log()
        try:
            done = act(self.engine, *args, **options)
            payload, must_sync = self._rig.take_log()
            self.records = [kind.name for kind in kinds_of(payload) if kind is not Kind.TURN]
            assert must_sync or {*self.records} <= {"RESERVE"}
        except Refusal as refusal:
            assert self._rig.take_log() == (b"", False), "a refusal records nothing"
            raise Told(refusal.word, refusal.kind, str(refusal)) from refusal
        finally:
            check(self.engine)
        return done

    def _id(self, *which: Any) -> int:
        """Return a job's number, which is given, or that of a topic and key."""
        if len(which) == 1:
            return int(which[0])
        return int(self._do(put.find_key, which[0], which[1].encode()))

    def put(self, topic: str = "mail", body: bytes = b"x", **options: Any) -> str:
        if options.get("key") == "":
            raise Beyond  # the engine is given none, or one that was checked
        options["ttr"] = options.get("ttr", TTR) or 0
        return str(self._do(self._put, topic, body, **options))

    def _put(
        self, engine: Engine, topic: str, body: bytes, *, key: str = "", on: str = "reject",
        retry: str = "", max_attempts: int = 0, jitter_percent: int = 0, url: str = "",
        method: str = "POST", instead_of: str = "", group: str = "", **plain: Any,
    ) -> str:  # fmt: skip
        checked_name(topic)
        target = vetted_own(engine, Target(url=url, method=method), topic) if url else None
        rule = Retry(parse_ladder(retry) if retry else (), max_attempts, jitter_percent)
        there = engine.store.topic(topic)
        plain = {"priority": 0, "delay_ms": 0, **plain}
        last_id = engine.store.last_id
        now_ms = self._rig.now_ms
        try:
            if not key and rule == Retry() and not url and not instead_of and not group:
                return f"{put.put_one(engine, there, body=body, now_ms=now_ms, **plain)} created"
            what: Any = {**plain, "body": body, "now_ms": now_ms}
            own = Own(rule if rule != Retry() else None, target, group.encode())
            keyed = partial(
                put.put_keyed, engine, there, key.encode(), put.Conflict(on), own=own, **what
            )
            if instead_of:
                old = PREDECESSOR.read(instead_of)
                job_id, outcome = put_instead(engine, self._worker, old, there, keyed, now_ms)
            else:
                job_id, outcome = keyed()
        except Refusal:
            engine.store.drop_if_unwanted(there)
            assert not key or engine.store.last_id == last_id, "no id is used up"
            raise
        return f"{job_id} {outcome.value}"

    def reserve(self, *names: str, most: int = 1) -> list[int]:
        for name in set(names or ("mail",)) - {each.name for each in self._worker.watched}:
            self._do(sessions.watch, self._worker, name)
        jobs = []
        for _ in range(most):
            job = self._do(reserving.reserve, self._worker, self._rig.now_ms)
            jobs += [job[0]] if job else []
        return jobs

    def _held(self, act: Callable[..., Any], job_id: Any, *args: Any, **options: Any) -> None:
        number = int(str(job_id).partition(":")[0])
        self._do(act, self._worker, number, *args, now_ms=self._rig.now_ms, **options)

    ack = partialmethod(_held, ack.delete)
    nack = partialmethod(_held, attempts.nack)
    touch = partialmethod(_held, reserving.touch)

    def release(self, job_id: Any, delay: float = 0, priority: int = 0) -> None:
        self._held(attempts.release, job_id, priority, round(delay * 1_000))

    def bury(self, job_id: Any, priority: int = 0, error: str = "") -> None:
        self._held(attempts.bury, job_id, priority, error=error)

    def leave(self) -> None:
        self._do(sessions.close_session, self._worker, self._rig.now_ms)
        self._worker = self._rig.client()

    def cancel(self, *which: Any) -> None:
        self._do(ack.delete, self._other, self._id(*which), self._rig.now_ms)

    def kick(self, *which: Any) -> None:
        self._do(change.kick_job, self._id(*which), self._rig.now_ms)

    def reschedule(self, *which: Any, delay: float) -> None:
        self._do(change.reschedule, self._id(*which), round(delay * 1_000), self._rig.now_ms)

    def change(self, *which: Any, **what: Any) -> None:
        if "group" in what:
            what["own"] = Own(group=(what.pop("group") or "").encode())
        if "url" in what:
            url = what.pop("url")
            topic = truth(self.engine, self._id(*which), self.now_ms)["topic"]
            target = Target(url=url, method=what.pop("method", "POST"))
            kept = self._do(vetted_own, target, topic) if url else b""
            what["own"] = Own(target=kept)
        self._do(change.change, self._id(*which), self._rig.now_ms, **what)

    def shelve(self, *which: Any, **why: Any) -> None:
        self._do(change.bury_waiting, self._id(*which), self._rig.now_ms, **why)

    def look(self, *which: Any) -> dict[str, Any]:
        job_id = self._id(*which)
        self._do(peek, job_id)
        return truth(self.engine, job_id, self.now_ms)

    def _pass(self, work: Any) -> Any:
        while not work.step(100, self._rig.now_ms):
            pass
        if getattr(work, "refusal", None) is not None:
            raise work.refusal
        return work

    def _wanted(
        self,
        state: str = "",
        key_prefix: str = "",
        due_from: float = 0,
        due_to: float = 10**12,
        group: str = "",
        reason: str = "",
    ) -> Wanted:
        states = frozenset(each for each in State if each.name.lower() in state or not state)
        from_ms = self.now_ms + round(due_from * 1_000) if due_from else 0
        until_ms = self.now_ms + round(due_to * 1_000)
        return Wanted(states, from_ms, until_ms, key_prefix, group=group.encode(), reason=reason)

    def jobs(self, topic: str, limit: int = 100, **which: Any) -> list[int]:
        wanted = self._wanted(**which)
        search = self._do(lambda engine: self._pass(Search(engine, topic, wanted, limit)))
        return [row.job_id for row in search.page.rows]

    def find_key(self, key: str) -> list[str]:
        search = self._do(lambda engine: self._pass(KeySearch(engine, key.encode(), bool)))
        return [f"{name}:{row.job_id}:{row.state.name.lower()}" for name, row in search.found]

    def _bulk(self, topic: str, action: Any, *, dry_run: int = 0, **which: Any) -> int:
        wanted, is_dry = self._wanted(**which), bool(dry_run)
        bulk = partial(Bulk, name=topic, wanted=wanted, dry_run=is_dry)
        return int(self._do(lambda engine: self._pass(bulk(engine, action=action()))).done)

    kick_many = partialmethod(_bulk, action=Action.kick)
    cancel_many = partialmethod(_bulk, action=Action.cancel)

    def reschedule_many(self, topic: str, delay: float, **which: Any) -> int:
        return self._bulk(topic, lambda: Action.reschedule(round(delay * 1_000)), **which)

    def calendar(self, topic: str, horizon: int, bins: int) -> list[int]:
        span = {"from_ms": self.now_ms, "bin_ms": horizon * 1_000 // bins, "bins": bins}
        calendar = self._do(lambda engine: self._pass(Calendar(engine, topic, **span)))
        return list(calendar.counts)

    def topic(self, name: str) -> dict[str, Any]:
        self._do(topic_named, name)
        return counts(self.engine, name, self.now_ms)

    def topics(self) -> list[str]:
        return sorted(self.engine.store.topics.by_name.keys() - INTERNAL_TOPICS)

    def pause(self, topic: str, seconds: float) -> None:
        self._do(topics.pause, topic, round(seconds * 1_000), self._rig.now_ms)

    def pause_group(self, topic: str, group: str, seconds: float) -> None:
        pause_ms = round(seconds * 1_000)
        self._do(topics.pause_group, topic, group.encode(), pause_ms, self._rig.now_ms)

    def group(self, topic: str, name: str) -> dict[str, Any]:
        return group_truth(self.engine, topic, name, self.now_ms)

    def groups(self, topic: str, order: str = "name", limit: int = 100) -> list[str]:
        some = partial(GroupList, topic_name=topic, order=GroupOrder(order), limit=limit)
        return [row.name for row in self._do(lambda engine: self._pass(some(engine))).rows]

    def clear(self, topic: str) -> int:
        return int(self._do(lambda engine: self._pass(topics.Clear(engine, topic))).count)

    def dead_reasons(self, topic: str) -> list[str]:
        reasons = self._do(lambda engine: self._pass(DeadReasons(engine, topic)))
        return [
            grouped(each.jobs, each.job_id, each.reason, each.last_ms - each.first_ms)
            for each in reasons.groups()
        ]

    def redrive(self, topic: str, most: int = 1_000, **which: str) -> int:
        if which:
            return self._bulk(topic, Action.kick, state="buried", **with_id(which))
        kicks = lambda engine: kick(engine, topic_named(engine, topic), most, self.now_ms)  # noqa: E731
        return int(self._do(kicks))

    def set_policy(self, topic: str, **fields: Any) -> None:
        self._do(
            lambda engine: topics.set_policy(
                engine, topic, Policy.from_fields(fields), self._rig.now_ms
            )
        )

    def set_policy_if(self, topic: str, tag: str, **fields: Any) -> None:
        policy = Policy.from_fields(fields) if fields else None
        self._do(topics.set_policy, topic, policy, self._rig.now_ms, tag)

    def clear_policy(self, topic: str) -> None:
        self._do(topics.set_policy, topic, None, self._rig.now_ms)

    def policy(self, topic: str) -> dict[str, Any]:
        return dict(json.loads(topics.policy_of(self.engine, topic)[0].to_json()))

    def set_schedule(self, name: str, **fields: Any) -> str:
        def set_it(_engine: Engine) -> Change:
            definition, body = Definition.from_fields(in_base64(fields))
            return self._schedules().set(name, definition, body, self._rig.now_ms)[1]

        return str(self._do(set_it).value)

    def _of_schedule(self, act: str, name: str, *args: Any) -> Any:
        now_ms = self._rig.now_ms
        return self._do(lambda _engine: getattr(self._schedules(), act)(name, *args, now_ms))

    def schedule(self, name: str) -> dict[str, Any]:
        schedule = self._do(lambda _engine: self._schedules().load(name))
        outcome = schedule.progress.outcome or "none"
        return {**schedule_truth(self.engine, name, self.now_ms), "outcome": outcome}

    remove_schedule = partialmethod(_of_schedule, "remove")
    resume_schedule = partialmethod(_of_schedule, "resume")

    def pause_schedule(self, name: str, note: str = "") -> None:
        self._of_schedule("pause", name, note)

    def run_schedule(self, name: str) -> str:
        job_id, key, outcome = self._of_schedule("run_now", name)
        return f"{job_id} {key} {outcome.value}"

    def backfill_schedule(self, name: str, *bounds_s: float) -> str:
        begin_ms, *end_ms = [self.now_ms + round(each * 1_000) for each in bounds_s]
        span = begin_ms, end_ms[0] if end_ms else None
        work = self._do(lambda _engine: self._pass(self._schedules().backfill(name, *span)))
        return f"{work.put} {work.kept}"

    def preview_schedule(self, name: str, count: int) -> list[float]:
        schedules = self._schedules()
        schedule = self._do(lambda _engine: schedules.load(name))
        return from_now(map(moment_text, schedules.next_runs(schedule, count)), self.now_ms)

    def preview_new(self, count: int, **fields: Any) -> list[float]:
        def preview(_engine: Engine) -> list[int]:
            definition, _ = Definition.from_fields(in_base64(fields))
            return self._schedules().preview("", definition, count)

        return from_now(map(moment_text, self._do(preview)), self.now_ms)

    def schedules(self, topic: str = "", prefix: str = "") -> list[str]:
        found = self._schedules().names_after("", prefix)
        return [name for name, of in found if topic in {"", of}]

    def watch(self, *names: str) -> None:
        for name in names[:-1]:
            sessions.watch(self.engine, self._other, name)
        self._do(sessions.watch, self._other, names[-1])

    def ignore(self, name: str) -> None:
        self._do(sessions.ignore, self._other, name)

    def wait(self, seconds: float) -> None:
        self._rig.play(self._rig.time_ms + round(seconds * 1_000))
        check(self.engine)


class LineWorld:
    """Commands on two connections."""

    name = ""
    OUTCOMES: Final = {"INSERTED": "created"}
    WORDS: Final = {
        "max_attempts": "attempts",
        "jitter_percent": "jitter",
        "priority": "pri",
        "instead_of": "instead",
    }
    FILTER: Final = {"due_from": "from", "due_to": "to", "key_prefix": "prefix", "dry_run": "dry"}

    def __init__(self) -> None:
        self.rig = LineRig(is_virtual=True)
        self.engine = self.rig.engine
        self.worker, self.other = self.rig.client(), self.rig.client()
        self._watched = {"default"}

    def close(self) -> None:
        """Hold nothing."""

    @property
    def now_ms(self) -> int:
        return self.rig.now_ms

    def _say(self, done: str, line: str, body: bytes | None = None, by: Any = None) -> list[str]:
        """Send a command; return the words of its reply, which begins with `done`, and its body."""
        client = by or self.other
        client.says(line.encode() + b"\r\n" + (b"" if body is None else body + b"\r\n"))
        reply = client.in_full
        check(self.engine)
        head, _, rest = reply.partition(b"\r\n")
        word, *words = head.decode().split(" ")
        if word in done.split("|"):
            return [word, *words, rest.removesuffix(b"\r\n").decode("latin-1")]
        why = client.says(b"why\r\n").decode().split()
        assert why[0] == "WHY", (line, reply)
        raise Told(word, why[1], " ".join(words))

    def _options(self, options: dict[str, Any], words: dict[str, str] = WORDS) -> str:
        said = {name: "" if each is None else str(each) for name, each in options.items()}
        if "retry" in said:
            said["retry"] = said["retry"].replace(" ", ",")
        return "".join(f" {words.get(name, name)}={text}" for name, text in said.items())

    def put(self, topic: str = "mail", body: bytes = b"x", **options: Any) -> str:
        plain = {"priority": 0, "delay": 0, "ttr": TTR}
        plain = {name: options.pop(name, value) or 0 for name, value in plain.items()}
        numbers = " ".join(map(str, (*plain.values(), len(body))))
        line = f"put-in-tube {topic} {numbers}{self._options(options)}"
        done = "INSERTED|KEPT|REPLACED|PRESERVED|EXTENDED"
        word, job_id, *_ = self._say(done, line, body, self.worker)
        return f"{job_id} {self.OUTCOMES.get(word, word.lower())}"

    def reserve(self, *names: str, most: int = 1) -> list[int]:
        for name in set(names or ("mail",)) - self._watched:
            self._say("WATCHING", f"watch {name}", by=self.worker)
            self._watched.add(name)
        jobs = []
        for _ in range(most):
            done = "RESERVED|TIMED_OUT|DEADLINE_SOON"
            said = self._say(done, "reserve-with-timeout 0", by=self.worker)
            if said[0] == "RESERVED":
                jobs.append(int(said[1]))
                body = truth(self.engine, jobs[-1], self.now_ms)["body"]
                assert (int(said[2]), said[3].encode("latin-1")) == (len(body), body)
        return jobs

    def _held(self, done: str, word: str, job_id: Any, rest: str = "") -> None:
        number = str(job_id).partition(":")[0]
        self._say(done, f"{word} {number}{rest}", by=self.worker)

    ack = partialmethod(_held, "DELETED", "delete")
    touch = partialmethod(_held, "TOUCHED", "touch")

    def nack(self, job_id: Any, error: str = "", **delay: float) -> None:
        if "priority" in delay:
            raise Beyond
        self._held("NACKED", "nack", job_id, self._options(delay) + f" {error}" * bool(error))

    def release(self, job_id: Any, delay: float = 0, priority: int = 0) -> None:
        self._held("RELEASED", "release", job_id, f" {priority} {delay}")

    def bury(self, job_id: Any, priority: int = 0, error: str = "") -> None:
        self._held("BURIED", "bury", job_id, f" {priority}" + f" error={error}" * bool(error))

    def leave(self) -> None:
        self.worker.closes()
        self.worker, self._watched = self.rig.client(), {"default"}

    def _named(self, done: str, word: str, *which: Any, rest: str = "") -> list[str]:
        if len(which) > 1:
            word = {"kick-job": "kick-key"}.get(word, f"{word}-key")
        return self._say(done, " ".join(map(str, (word, *which))) + rest)

    cancel = partialmethod(_named, "DELETED", "delete")
    kick = partialmethod(_named, "KICKED", "kick-job")

    def reschedule(self, *which: Any, delay: float) -> None:
        self._named("RESCHEDULED", "reschedule", *which, rest=f" {delay}")

    def change(self, *which: Any, **what: Any) -> None:
        if len(which) > 1:
            raise Beyond
        body = what.pop("body", None)
        words = self._options(what) + ("" if body is None else f" bytes={len(body)}")
        self._say("CHANGED", f"change {which[0]}{words}", body)

    def look(self, *which: Any) -> dict[str, Any]:
        _, job_id, _, body = self._named("FOUND", "peek", *which)
        told = self._read(f"stats-job {job_id}")
        expected = truth(self.engine, int(job_id), self.now_ms)
        seconds = {"time-left": max(0, -(-expected["left"] // 1) - 1), "delay": expected["delay"]}
        seconds["age"] = (self.now_ms - expected["created"]) // 1_000
        assert {name: told.pop(name) for name in seconds} == {n: int(s) for n, s in seconds.items()}
        assert told.pop("file") == 0
        assert ("failure-age" in told) == ("failure" in told)
        told.pop("failure-age", 0)
        names = {"tube": "topic", "pri": "priority", "failure": "reason", "moved-from": "origin"}
        said = {names.get(n, n.replace("-", "_")): value for n, value in told.items()}
        said["reason"] = said.get("reason", "").replace("-", "_")
        unsaid = UNSAID if "attempts" in said else {**UNSAID, "attempts": expected["attempts"]}
        assert "history" not in said or said["reason"]
        told_attempts = attempts_told(said.get("history", []))
        said["history"] = told_attempts if said["reason"] else expected["history"]
        return {**unsaid, **said, "body": body.encode("latin-1")}

    def _read(self, line: str) -> dict[str, Any]:
        rows = self._say("OK", line)[-1].encode("latin-1").decode().splitlines()[1:]
        pairs = (row.partition(": ") for row in rows)
        return {n: v if v[:1].isalpha() else json.loads(v) for n, _, v in pairs}

    def jobs(self, topic: str, **which: Any) -> list[int]:
        text = self._say("OK", f"list-jobs {topic}{self._options(which, self.FILTER)}")[-1]
        jobs = []
        for row in text.encode("latin-1").decode().splitlines()[3:]:
            jobs.append(int(row.removeprefix("- {id: ").partition(",")[0]))
            seen = truth(self.engine, jobs[-1], self.now_ms)
            state, key = seen["state"], json.dumps(seen["key"], ensure_ascii=False)
            shown = f"- {{id: {jobs[-1]}, state: {state}, pri: {seen['priority']}, due: "
            assert row.startswith(shown)
            assert row.endswith(f", key: {key}}}")
            due_s = f"{(self.now_ms + round(seen['left'] * 1_000)) / 1_000:.3f}"
            assert state != "delayed" or row.removeprefix(shown).startswith(due_s)
        return jobs

    def find_key(self, key: str) -> list[str]:
        text = self._say("OK", f"find-key {key}")[-1]
        row = r'- {id: (\d+), tube: "(.*)", state: (\w+), pri: \d+, due: [\d.]+, key: ".*"}'
        found = [re.fullmatch(row, line) for line in text.splitlines()[3:]]
        return ["{1}:{0}:{2}".format(*each.groups()) for each in found if each]

    def _bulk(self, done: str, command: str, which: dict[str, Any]) -> int:
        return int(self._say(f"{done}|MATCHED", command + self._options(which, self.FILTER))[1])

    def kick_many(self, topic: str, **which: Any) -> int:
        return self._bulk("KICKED", f"kick-jobs {topic}", which)

    def cancel_many(self, topic: str, **which: Any) -> int:
        return self._bulk("CANCELLED", f"cancel-jobs {topic}", which)

    def reschedule_many(self, topic: str, delay: float, **which: Any) -> int:
        return self._bulk("RESCHEDULED", f"reschedule-jobs {topic} {delay}", which)

    def calendar(self, topic: str, horizon: int, bins: int) -> list[int]:
        return list(self._read(f"calendar {topic} {horizon // bins} {bins}").values())

    def topic(self, name: str) -> dict[str, Any]:
        told = self._read(f"stats-tube {name}")
        paused_s = counts(self.engine, name, self.now_ms)["paused"]
        assert told["pause-time-left"] == max(0, -(-paused_s // 1) - 1)
        return {each: told[f"current-jobs-{each}"] for each in COUNTS}

    def topics(self) -> list[str]:
        return sorted(row[2:] for row in self._say("OK", "list-tubes")[-1].splitlines()[1:])

    def pause(self, topic: str, seconds: float) -> None:
        self._say("PAUSED", f"pause-tube {topic} {seconds}")

    def pause_group(self, topic: str, group: str, seconds: float) -> None:
        self._say("PAUSED", f"pause-group {topic} {group} {seconds}")

    def group(self, topic: str, name: str) -> dict[str, Any]:
        told = self._read(f"stats-group {topic} {name}")
        assert told["name"] == name
        return group_of_line(told, self.now_ms)

    def groups(self, topic: str, **which: Any) -> list[str]:
        said = self._say("OK", f"list-groups {topic}{self._options(which)}")[-1]
        count, after, _, *rows = said.encode("latin-1").decode().splitlines()[1:]
        groups = [json.loads(row.removeprefix("- ")) for row in rows]
        assert int(count.removeprefix("count: ")) >= len(groups)
        has_more = which.get("limit") == len(groups) != int(count[7:])
        last = json.dumps(groups[-1]["name"] if has_more else "")
        assert after == f"after: {last}" or "order" in which
        for each in groups:
            told = group_of_line(each, self.now_ms)
            assert told == group_truth(self.engine, topic, each["name"], self.now_ms)
        return [each["name"] for each in groups]

    def clear(self, topic: str) -> int:
        return int(self._say("CLEARED", f"clear-tube {topic}")[1])

    def dead_reasons(self, topic: str) -> list[str]:
        text = self._say("OK", f"dead-reasons {topic}")[-1]
        row = r'- {id: ".*", jobs: (\d+), first: (\S+), last: (\S+), job: (\d+), reason: "(.*)"}'
        found = [re.fullmatch(row, line) for line in text.splitlines()[3:]]
        return [
            grouped(each[1], each[4], each[5], 1_000 * (float(each[3]) - float(each[2])))
            for each in found
            if each
        ]

    def redrive(self, topic: str, most: int = 1_000, **which: str) -> int:
        said = f"redrive {topic} {most}{self._options(with_id(which))}"
        return int(self._say("REDRIVEN", said)[1])

    def set_policy(self, topic: str, **fields: Any) -> None:
        text = json.dumps(fields).encode()
        self._say("POLICY_SET", f"set-policy {topic} {len(text)}", text)

    def set_policy_if(self, topic: str, tag: str, **fields: Any) -> None:
        text = json.dumps(fields).encode() if fields else b""
        self._say("POLICY_SET", f"set-policy {topic} {len(text)} if={tag}", text)

    def clear_policy(self, topic: str) -> None:
        self._say("POLICY_SET", f"set-policy {topic} 0", b"")

    def policy(self, topic: str) -> dict[str, Any]:
        return dict(json.loads(self._say("OK", f"get-policy {topic}")[-1]))

    def set_schedule(self, name: str, **fields: Any) -> str:
        text = json.dumps(in_base64(fields)).encode()
        return self._say("SCHEDULED", f"schedule-put {name} {len(text)}", text)[1]

    def schedule(self, name: str) -> dict[str, Any]:
        answer = json.loads(self._say("OK", f"schedule-get {name}")[-1])
        return schedule_told(answer, self.now_ms)

    def remove_schedule(self, name: str) -> None:
        self._say("DELETED", f"schedule-delete {name}")

    def pause_schedule(self, name: str, note: str = "") -> None:
        self._say("PAUSED", f"schedule-pause {name} {len(note)}", note.encode())

    def resume_schedule(self, name: str) -> None:
        self._say("RESUMED", f"schedule-resume {name}")

    def run_schedule(self, name: str) -> str:
        return " ".join([*self._say("RAN", f"schedule-run {name}"), "created"][1:4])

    def backfill_schedule(self, name: str, *bounds_s: float) -> str:
        span = moments_from(self.now_ms, *bounds_s)
        return " ".join(self._say("BACKFILLED", f"schedule-backfill {name} {span}")[1:3])

    def preview_schedule(self, name: str, count: int) -> list[float]:
        answer = json.loads(self._say("OK", f"schedule-preview {name} count={count}")[-1])
        return from_now(answer["runs"], self.now_ms)

    def schedules(self, **which: Any) -> list[str]:
        answer = json.loads(self._say("OK", f"schedules{self._options(which)}")[-1])
        assert answer["after"] is None
        for each in answer["schedules"]:
            assert each == json.loads(self._say("OK", f"schedule-get {each['name']}")[-1])
        return [each["name"] for each in answer["schedules"]]

    def watch(self, *names: str) -> None:
        self.other.says("".join(f"watch {name}\r\n" for name in names[:-1]).encode())
        self._say("WATCHING", f"watch {names[-1]}")

    def ignore(self, name: str) -> None:
        self._say("WATCHING", f"ignore {name}")

    def wait(self, seconds: float) -> None:
        self._say("ADVANCED", f"advance-clock {seconds}")


def said(options: dict[str, Any]) -> dict[str, Any]:
    """Leave out what has the daemon's default."""
    return {name: value for name, value in options.items() if value is not None}


def base64_of(body: bytes) -> str:
    return b64encode(body).decode()


class HttpWorld:
    """Calls of HTTP; each answer is compared as a whole."""

    name = ""
    FILTER: Final = {"due_from": "from", "due_to": "to", "key_prefix": "prefix"}

    def __init__(self) -> None:
        self._rig = HttpRig(is_virtual=True)
        self.engine = self._rig.engine
        self._tokens: dict[int, list[str]] = {}

    def close(self) -> None:
        self._rig.__exit__(None, None, None)

    @property
    def now_ms(self) -> int:
        return self._rig.clock.request_ms()

    def _ask(
        self, method: str, path: str, given: object = None, headers: dict[str, str] | None = None
    ) -> Answer:
        answer = self._rig.call(method, f"/v1{path}", given, headers=headers)
        if answer.status < 400:
            return answer
        told = answer.json
        if answer.word in {"JOB_ALREADY_EXISTS", "NOT_RESERVED", "RESERVED", "WRONG_STATE"}:
            assert f"job {told['job_id']} " in f"{told['detail']} "
        assert ("retry-after" in answer.headers) == (answer.status in {503, 507})
        text = " ".join((told["detail"], *(str(each) for each in told.get("errors", ()))))
        raise Told(answer.word, told["kind"], text, answer.status)

    def _moments(self, job_id: int, is_held: bool = False) -> dict[str, str]:
        seen = truth(self.engine, job_id, self.now_ms)
        ends = moment_text(self.now_ms + round(seen["left"] * 1_000))
        return {"expires": ends} if is_held else {"due": ends} if seen["state"] == "delayed" else {}

    def put(self, topic: str = "mail", body: bytes = b"x", **options: Any) -> str:
        if "on" in options:
            options["on_conflict"] = options.pop("on")
        ask = ("POST", f"/topics/{topic}/jobs")
        if options.get("on_conflict") in {"replace", "extend"}:
            ask = ("PUT", f"/topics/{topic}/keys/{quote(options.pop('key'), safe='')}")
        given = said({"body_base64": base64_of(body), "ttr": TTR, "priority": 0, **options})
        answer = self._ask(*ask, given)
        told = answer.json
        due = self._moments(told["id"]) or {"due": told["due"]}
        assert told == {"id": told["id"], "outcome": told["outcome"], **due}
        assert answer.status == (201 if told["outcome"] == "created" else 200)
        assert answer.headers["location"] == f"/v1/jobs/{told['id']}"
        return f"{told['id']} {told['outcome']}"

    def reserve(self, *names: str, most: int = 1) -> list[int]:
        where, given = f"/topics/{(names or ('mail',))[0]}", dict[str, Any]()
        if len(names) > 1:
            where, given = "", {"topics": [*names]}
        given["max"] = most
        answer = self._ask("POST", f"{where}/reserve", given)
        jobs = [] if answer.status == 204 else answer.json["jobs"]
        for job in jobs:
            self._tokens.setdefault(job["id"], []).append(job.pop("token"))
            seen = self._seen({**job, "state": "reserved"}, UNSAID_OF_HELD)
            expected = truth(self.engine, job["id"], self.now_ms)
            expected["attempt"] = expected["attempts"]
            assert seen.pop("lateness") >= 0
            same(seen, expected)
        return [job["id"] for job in jobs]

    def _held(self, act: str, job_id: Any, **fields: Any) -> dict[str, Any]:
        number, _, which = str(job_id).partition(":")
        token = self._tokens[int(number)][int(which or -1)]
        try:
            told = dict(self._ask("POST", f"/jobs/{number}/{act}", {"token": token, **fields}).json)
        except Told as lost:
            self._many(token, lost.word)
            raise
        assert told.pop("id") == int(number)
        return told

    def _many(self, token: str, word: str) -> None:
        """See that the calls for many jobs refuse it with the same word."""
        one = {"ack": {"tokens": [token]}, "nack": {"nacks": [{"token": token}]}}
        for act, given in one.items():
            answer = self._rig.call("POST", f"/v1/{act}", given)
            (result,) = answer.json["results"]
            assert (answer.status, result["problem"]["word"]) == (207, word)

    def ack(self, job_id: Any) -> None:
        assert self._held("ack", job_id) == {}

    def _became(self, job_id: Any, told: dict[str, Any]) -> None:
        seen = truth(self.engine, int(str(job_id).partition(":")[0]), self.now_ms)
        due = self._moments(seen["id"])
        assert told == {"topic": seen["topic"], "state": seen["state"], **due}

    def nack(self, job_id: Any, **options: Any) -> None:
        if "dead" in options:
            options["dead"] = bool(options["dead"])
        self._became(job_id, self._held("nack", job_id, **options))

    def bury(self, job_id: Any, **options: Any) -> None:
        self._became(job_id, self._held("bury", job_id, **options))

    def touch(self, job_id: Any) -> None:
        told = self._held("touch", job_id)
        assert told == self._moments(int(str(job_id).partition(":")[0]), is_held=True)

    def _of(self, which: tuple[Any, ...]) -> str:
        if len(which) == 1:
            return f"/jobs/{which[0]}"
        return f"/topics/{which[0]}/keys/{quote(which[1], safe='')}"

    def _named(self, method: str, which: tuple[Any, ...], act: str = "", given: Any = None) -> Any:
        told = dict(self._ask(method, self._of(which) + act, given).json)
        job_id = which[0] if len(which) == 1 else told["id"]
        assert told.pop("id") == job_id
        return told

    def cancel(self, *which: Any) -> None:
        assert self._named("DELETE", which) == {}

    def kick(self, *which: Any) -> None:
        assert self._named("POST", which, "/kick") == {}

    def change(self, *which: Any, **what: Any) -> None:
        if "body" in what:
            what["body_base64"] = base64_of(what.pop("body"))
        told = self._named("PATCH", which, "", what)
        assert told.keys() == {"due"}
        assert told == (self._moments(self.look(*which)["id"]) or told)

    def shelve(self, *which: Any, **why: Any) -> None:
        told = self._named("POST", which, "/bury", why)
        assert told == {"state": "buried", "topic": self.look(*which)["topic"]}

    def _seen(self, told: dict[str, Any], unsaid: dict[str, Any] = UNSAID) -> dict[str, Any]:
        """Return what an answer says of a job, under the names of `truth`."""
        failure = told.pop("failure", {})
        body = (
            json.dumps(told["body"]).encode()
            if "body" in told
            else b64decode(told.pop("body_base64"))
        )
        due_ms = parse_moment_ms(told.pop("due"))
        ends_ms = parse_moment_ms(told.pop("expires")) if "expires" in told else due_ms
        if told["state"] in {"delayed", "reserved"}:
            told["left"] = (ends_ms - self.now_ms) / 1_000
        if failure:
            assert parse_moment_ms(failure.pop("at")) <= self.now_ms
        if "created" in told:
            told["created"] = parse_moment_ms(told["created"])
        if "retry" in told:
            told["retry"] = " ".join(told["retry"])
        if unsaid is UNSAID:
            told["history"] = attempts_told(told.get("history", []))
        return {**unsaid, **told, **failure, "body": body}

    def look(self, *which: Any) -> dict[str, Any]:
        told = self._ask("GET", self._of(which)).json
        if len(which) == 1 and "key" in told:
            assert self._ask("GET", self._of((told["topic"], told["key"]))).json == told
        return self._seen(told)

    def jobs(self, topic: str, **which: Any) -> list[int]:
        query = urlencode({self.FILTER.get(name, name): value for name, value in which.items()})
        rows = self._ask("GET", f"/topics/{topic}/jobs?{query}").json["jobs"]
        for row in rows:
            whole = self._ask("GET", f"/jobs/{row['id']}").json
            names = {"id", "state", "due", "priority", "key", "url", "method", "group", "failure"}
            names |= {"attempts"} if "failure" in whole else set()
            assert row == {name: whole[name] for name in names & whole.keys()}
        return [row["id"] for row in rows]

    def find_key(self, key: str) -> list[str]:
        rows = self._ask("GET", f"/keys/{quote(key, safe='')}").json["jobs"]
        for row in rows:
            whole = self._ask("GET", f"/jobs/{row['id']}").json
            assert row.items() <= whole.items()
        return [f"{row['topic']}:{row['id']}:{row['state']}" for row in rows]

    def _bulk(self, method: str, path: str, which: dict[str, Any], given: Any = None) -> int:
        which = {self.FILTER.get(name, name): value for name, value in which.items()}
        if "dry_run" in which:
            which["dry_run"] = "true"
        if not which and method == "DELETE":
            which["all"] = "true"
        told = self._ask(method, f"/topics/{path}?{urlencode(which)}", given).json
        (done,) = (value for value in told.values() if value is not None)
        return int(done)

    def kick_many(self, topic: str, **which: Any) -> int:
        return self._bulk("POST", f"{topic}/jobs/kick", which)

    def cancel_many(self, topic: str, **which: Any) -> int:
        return self._bulk("DELETE", f"{topic}/jobs", which)

    def reschedule_many(self, topic: str, delay: float, **which: Any) -> int:
        return self._bulk("POST", f"{topic}/jobs/reschedule", which, {"delay": delay})

    def calendar(self, topic: str, horizon: int, bins: int) -> list[int]:
        query = urlencode({"topic": topic, "horizon": horizon, "bins": bins})
        (row,) = self._ask("GET", f"/calendar?{query}").json["topics"]
        assert row["name"] == topic
        return list(row["counts"])

    def topic(self, name: str) -> dict[str, Any]:
        told = self._ask("GET", f"/topics/{name}").json
        until = told["paused_until"]
        left_ms = 0 if until is None else parse_moment_ms(until) - self.now_ms
        assert told["jobs"] == sum(told[each] for each in COUNTS[1:])
        return {**{each: told[each] for each in COUNTS}, "paused": left_ms / 1_000}

    def topics(self) -> list[str]:
        rows = self._ask("GET", "/topics").json["topics"]
        for row in rows:
            same(
                {each: row[each] for each in COUNTS}, counts(self.engine, row["name"], self.now_ms)
            )
        return [row["name"] for row in rows]

    def pause(self, topic: str, seconds: float) -> None:
        self._pause(f"/topics/{topic}", seconds)

    def pause_group(self, topic: str, group: str, seconds: float) -> None:
        self._pause(self._group(topic, group), seconds)

    def _pause(self, path: str, seconds: float) -> None:
        act, given = ("pause", {"duration": seconds}) if seconds else ("resume", None)
        told = self._ask("POST", f"{path}/{act}", given).json
        assert told == {"paused_until": self._ask("GET", path).json["paused_until"]}

    def _group(self, topic: str, name: str) -> str:
        return f"/topics/{topic}/groups/{quote(name, safe='')}"

    def group(self, topic: str, name: str) -> dict[str, Any]:
        return group_told(self._ask("GET", self._group(topic, name)).json, self._wall_ms)

    def groups(self, topic: str, **which: Any) -> list[str]:
        told = self._ask("GET", f"/topics/{topic}/groups?{urlencode(which)}").json
        assert told["count"] >= len(told["groups"])
        for row in told["groups"]:
            assert row == self._ask("GET", self._group(topic, row["name"])).json
        return [row["name"] for row in told["groups"]]

    def clear(self, topic: str) -> int:
        return int(self._ask("POST", f"/topics/{topic}/clear", {}).json["cleared"])

    def dead_reasons(self, topic: str) -> list[str]:
        (told,) = self._ask("GET", f"/dead?topic={topic}").json["topics"]
        return [
            grouped(
                each["jobs"],
                each["job"],
                each["reason"],
                parse_moment_ms(each["last"]) - parse_moment_ms(each["first"]),
            )
            for each in told["reasons"]
        ]

    def redrive(self, topic: str, most: int = 1_000, **which: str) -> int:
        given = with_id(which) or {"max": most}
        return int(self._ask("POST", f"/topics/{topic}/kick", given).json["kicked"])

    def set_policy(self, topic: str, **fields: Any) -> None:
        told = self._ask("PUT", f"/topics/{topic}/policy", fields).json
        assert told == self._ask("GET", f"/topics/{topic}/policy").json
        assert (told["policy"], told["source"]) == (self.policy(topic), "run_time")
        assert told.items() <= self._ask("GET", f"/topics/{topic}").json.items()

    def set_policy_if(self, topic: str, tag: str, **fields: Any) -> None:
        method, body = ("PUT", fields) if fields else ("DELETE", None)
        self._ask(method, f"/topics/{topic}/policy", body, headers={"If-Match": f'"{tag}"'})

    def clear_policy(self, topic: str) -> None:
        told = self._ask("DELETE", f"/topics/{topic}/policy").json
        assert (told["policy"], told["source"]) == ({}, "configuration")

    def policy(self, topic: str) -> dict[str, Any]:
        return dict(self._ask("GET", f"/topics/{topic}/policy").json["policy"])

    def set_schedule(self, name: str, **fields: Any) -> str:
        answer = self._ask("PUT", f"/schedules/{quote(name, safe='')}", in_base64(fields))
        change = str(answer.json["change"])
        shown = self._ask("GET", f"/schedules/{name}").json
        assert answer.json == {**shown, "change": change}
        assert answer.status == (201 if change == "created" else 200)
        return change

    def schedule(self, name: str) -> dict[str, Any]:
        return schedule_told(self._ask("GET", f"/schedules/{name}").json, self._wall_ms)

    @property
    def _wall_ms(self) -> int:
        return wall_ms(self.engine, self.now_ms)

    def remove_schedule(self, name: str) -> None:
        assert self._ask("DELETE", f"/schedules/{name}").status == 204

    def _of_schedule(self, name: str, act: str, given: dict[str, Any]) -> None:
        told = self._ask("POST", f"/schedules/{name}/{act}", given).json
        assert told == self._ask("GET", f"/schedules/{name}").json

    def pause_schedule(self, name: str, note: str = "") -> None:
        self._of_schedule(name, "pause", {"note": note})

    def resume_schedule(self, name: str) -> None:
        self._of_schedule(name, "resume", {})

    def run_schedule(self, name: str) -> str:
        told = self._ask("POST", f"/schedules/{name}/run", {}).json
        return f"{told['id']} {told['key']} {told['outcome']}"

    def backfill_schedule(self, name: str, *bounds_s: float) -> str:
        moments = moments_from(self._wall_ms, *bounds_s).split()
        span = dict(zip(("from", "until"), moments, strict=False))
        told = self._ask("POST", f"/schedules/{name}/backfill", span).json
        return f"{told['put']} {told['kept']}"

    def preview_schedule(self, name: str, count: int) -> list[float]:
        told = self._ask("GET", f"/schedules/{name}/preview?count={count}").json
        return from_now(told["runs"], self._wall_ms)

    def preview_new(self, count: int, **fields: Any) -> list[float]:
        given = in_base64(fields)
        told = self._ask("POST", f"/schedules/preview?count={count}", given).json
        return from_now(told["runs"], self._wall_ms)

    def schedules(self, **which: Any) -> list[str]:
        told = self._ask("GET", f"/schedules?{urlencode(which)}").json
        assert told["after"] is None
        for each in told["schedules"]:
            assert each == self._ask("GET", f"/schedules/{each['name']}").json
        return [each["name"] for each in told["schedules"]]

    def wait(self, seconds: float) -> None:
        self._ask("POST", "/clock/advance", {"by": seconds})


class ClientWorld:
    """A client, and one more for the worker on the line, where a connection holds its jobs."""

    name = ""

    def __init__(self, engine: Engine, client: Any, now_ms: Callable[[], int], close: Any) -> None:
        self.engine, self._client, self._now_ms, self.close = engine, client, now_ms, close
        self._jobs: dict[int, list[Any]] = {}

    @property
    def now_ms(self) -> int:
        return self._now_ms()

    def _do(self, act: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            return act(*args, **options)
        except ClientRefused as refused:
            plain = " was answered " in str(refused) or str(refused) == "nothing was done"
            text = "" if plain else f"{refused} {refused.problems}"
            raise Told(refused.word, refused.kind, text) from refused
        except NotOnThisProtocol as error:
            raise Beyond from error
        finally:
            check(self.engine)

    def __getattr__(self, act: str) -> Any:
        """Return the client's own method; it has those names but for a few."""
        if act in {"ack", "nack", "bury", "touch"}:
            return partial(self._held, act)
        act = {"shelve": "bury", "wait": "advance_clock"}.get(act, act)
        return partial(self._do, getattr(self._client, act))

    def put(self, topic: str = "mail", body: bytes = b"x", **options: Any) -> str:
        if "on" in options:
            options["on_conflict"] = options.pop("on")
        options = said({"ttr": TTR, "priority": 0, **options})
        told = self._do(self._client.put, topic, body, **options)
        return f"{told.id} {told.outcome}"

    def reserve(self, *names: str, most: int = 1) -> list[int]:
        wanted = names if len(names) > 1 else (names or ("mail",))[0]
        jobs = self._do(self._client.reserve_many, wanted, limit=most, timeout=0)
        for job in jobs:
            self._jobs.setdefault(job.id, []).append(job)
            seen = truth(self.engine, job.id, self.now_ms)
            assert (job.id, job.topic, job.body) == (seen["id"], seen["topic"], seen["body"])
            assert (job.attempt, job.reservation.ttr) == (seen["attempts"], seen["ttr"])
            assert job.key == seen["key"]
            told = bool(job.token)  # over HTTP
            assert job.group == ((seen["group"] or None) if told else None)
        return [job.id for job in jobs]

    def _held(self, act: str, job_id: Any, **options: Any) -> Any:
        number, _, which = str(job_id).partition(":")
        return self._do(getattr(self._jobs[int(number)][int(which or -1)], act), **options)

    def release(self, job_id: Any, delay: float = 0, priority: int = 0) -> None:
        self._held("release", job_id, delay=delay, priority=priority)

    def change(self, *which: Any, **what: Any) -> None:
        act = self._client.reschedule if what.keys() == {"delay"} else self._client.change
        self._do(act, *which, **what)

    def look(self, *which: Any) -> dict[str, Any]:
        job = self._do(self._client.get if len(which) == 1 else self._client.find, *which)
        failure = job.failure._asdict() if job.failure else {}
        failure.pop("at", None)
        names = ("id", "topic", "state", "priority", "ttr", "key", "group", "attempts", "body")
        said = {name: getattr(job, name) for name in names}
        said["history"] = attempts_told(each._asdict() for each in job.history)
        if "attempts" not in job.details:  # without a failure or rule the line does not tell
            del said["attempts"], said["history"]
        return {"reason": "", "error": "", "origin": "", **said, **failure}

    def jobs(self, topic: str, **which: Any) -> list[int]:
        if "state" in which:
            which["state"] = which["state"].split(",")
        return [job.id for job in self._do(lambda: list(self._client.jobs(topic, **which)))]

    def find_key(self, key: str) -> list[str]:
        jobs = self._do(lambda: list(self._client.find_key(key)))
        return [f"{job.topic}:{job.id}:{job.state}" for job in jobs]

    def dead_reasons(self, topic: str) -> list[str]:
        groups = self._do(self._client.dead_reasons, topic)
        return [
            grouped(each.jobs, each.job, each.reason, (each.last - each.first) / TICK)
            for each in groups
        ]

    def redrive(self, topic: str, most: int = 1_000, **which: str) -> int:
        return int(self._do(self._client.redrive, topic, most, **with_id(which)))

    def reschedule_many(self, topic: str, delay: float, **which: Any) -> int:
        return int(self._do(self._client.reschedule_many, topic, {"delay": delay}, **which))

    def calendar(self, topic: str, horizon: int, bins: int) -> list[int]:
        told = self._do(self._client.calendar, topic, horizon=horizon, bins=bins)
        return list(told.topics[topic])

    def topic(self, name: str) -> dict[str, Any]:
        told = self._do(self._client.topic, name)
        return {each: getattr(told, each) for each in COUNTS}

    def topics(self) -> list[str]:
        return [topic.name for topic in self._do(self._client.topics)]

    def pause(self, topic: str, seconds: float) -> None:
        if seconds:
            self._do(self._client.pause, topic, seconds)
        else:
            self._do(self._client.resume, topic)

    def pause_group(self, topic: str, group: str, seconds: float) -> None:
        if seconds:
            self._do(self._client.pause_group, topic, group, seconds)
        else:
            self._do(self._client.resume_group, topic, group)

    def group(self, topic: str, name: str) -> dict[str, Any]:
        told = self._do(self._client.group, topic, name)
        until = told.paused_until
        return {
            **{each: getattr(told, each) for each in GROUP_NUMBERS},
            "blocked": told.blocked or "none",
            "ready_age": "none" if told.ready_age is None else told.ready_age,
            "paused": until.timestamp() - self._wall_ms / 1_000 if until else 0,
        }

    def groups(self, topic: str, **which: Any) -> list[str]:
        page = self._do(self._client.groups, topic, **which)
        assert page.total >= len(page.groups)
        for each in page.groups:
            assert each == self._do(self._client.group, topic, each.name)
        return [each.name for each in page.groups]

    def set_policy(self, topic: str, **fields: Any) -> None:
        self._do(self._client.set_policy, topic, fields)

    def set_policy_if(self, topic: str, tag: str, **fields: Any) -> None:
        if fields:
            self._do(self._client.set_policy, topic, fields, if_tag=tag)
        else:
            self._do(self._client.clear_policy, topic, if_tag=tag)

    def policy(self, topic: str) -> dict[str, Any]:
        told = self._do(self._client.policy, topic)
        assert len(told.policy_tag) == 16
        return dict(told.policy)

    @property
    def _wall_ms(self) -> int:
        return wall_ms(self.engine, self.now_ms)

    def set_schedule(
        self, name: str, topic: str = "mail", body: bytes = b"x", **fields: Any
    ) -> str:
        put = partial(self._client.put_schedule, name, topic, body)
        told = self._do(put, **fields)
        self._looked_at(name, told)
        return str(told.change)

    def _looked_at(self, name: str, told: Any) -> None:
        shown = self._do(self._client.schedule, name)
        told_details = {key: value for key, value in told.details.items() if key != "change"}
        assert told._replace(change="", details=told_details) == shown

    def schedule(self, name: str) -> dict[str, Any]:
        told = self._do(self._client.schedule, name)
        last = told.last and {"outcome": told.last.outcome}
        moments = {
            each: getattr(told, each) and getattr(told, each).isoformat()
            for each in ("next", "queued")
        }
        definition = {**told.definition, "body_base64": base64_of(told.body)}
        answer = {**told._asdict(), **moments, "last": last, "definition": definition}
        return schedule_told(answer, self._wall_ms)

    def pause_schedule(self, name: str, note: str = "") -> None:
        self._looked_at(name, self._do(self._client.pause_schedule, name, note))

    def resume_schedule(self, name: str) -> None:
        self._looked_at(name, self._do(self._client.resume_schedule, name))

    def run_schedule(self, name: str) -> str:
        told = self._do(self._client.run_schedule, name)
        return f"{told.id} {told.key} {told.outcome}"

    def backfill_schedule(self, name: str, *bounds_s: float) -> str:
        span = moments_from(self._wall_ms, *bounds_s).split()
        told = self._do(self._client.backfill_schedule, name, *span)
        return f"{told.put} {told.kept}"

    def preview_schedule(self, name: str | dict[str, Any], count: int) -> list[float]:
        told = self._do(self._client.preview_schedule, name, count)
        return from_now([run.isoformat() for run in told.runs], self._wall_ms)

    def preview_new(self, count: int, **fields: Any) -> list[float]:
        return self.preview_schedule({"topic": "mail", **fields}, count)

    def schedules(self, topic: str = "", prefix: str = "") -> list[str]:
        found = self._do(lambda: list(self._client.schedules(topic, prefix=prefix)))
        return [each.name for each in found]


def same(seen: dict[str, Any], expected: dict[str, Any]) -> None:
    """Compare what a wire says of a job with the truth; what it does not say is left out."""
    assert seen == {name: expected[name] for name in seen}


class Link:
    """What the client knows of a connection."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.held: set[int] = set()
        self.watched, self.used = frozenset(("default",)), ""
        self.is_greeted = self.is_closed = False
        self.is_proven = True


class LineRuns:
    """Carries out the client's operations on two connections of a rig."""

    def __init__(self, line: LineWorld) -> None:
        self._wire = LineWire(Address("line", "127.0.0.1", 11300), "")
        self._worker, self._other = Link(line.worker), Link(line.other)

    def run(self, steps: Generator[Any, Any, Any]) -> Any:
        try:
            ask = next(steps)
            while True:
                link: Any = ask.link or (self._other if ask.watched is None else self._worker)
                if (first := self._wire.before(ask, link)) is not None:
                    self._wire.check_before(ask, first, self._exchange(first, link))
                ask = steps.send(self._exchange(ask, link))
        except StopIteration as done:
            return done.value

    def _exchange(self, ask: Any, link: Any) -> Any:
        link.connection.says(self._wire.encode(ask))
        return self._wire.reader(ask, link).feed(link.connection.in_full)

    def close(self) -> None:
        """Hold nothing."""


class AsyncLineRuns:
    """The same with asyncio."""

    def __init__(self, line: LineWorld) -> None:
        self._runs = LineRuns(line)

    async def run(self, steps: Generator[Any, Any, Any]) -> Any:
        await asyncio.sleep(0)
        return self._runs.run(steps)

    async def close(self) -> None:
        """Hold nothing."""


def client_world(wire: str, *, is_async: bool = False) -> ClientWorld:
    """Return the world of a client over HTTP, to the double, or over the line."""
    loop = asyncio.new_event_loop() if is_async else None
    client: Any
    now_ms: Callable[[], int]
    fake = FakeDelayd() if wire == "http" else None
    if fake is not None:
        client = fake.async_client() if is_async else fake.client()
        engine, now_ms = fake._daemon.engine, fake._daemon.clock.request_ms
        engine.vet_target = None
    else:
        line, calls = LineWorld(), LineCalls("http://127.0.0.1:11301")
        runs: Any = AsyncLineRuns(line) if is_async else LineRuns(line)
        client = (AsyncClient if is_async else Client).over(runs, calls)
        engine, now_ms = line.engine, lambda: line.now_ms

    def close() -> None:
        if fake is not None:
            fake.close()
        if loop is not None:
            loop.close()

    return ClientWorld(engine, Waiting(loop, client) if loop else client, now_ms, close)


World = EngineWorld | LineWorld | HttpWorld | ClientWorld
WORLDS: Final[dict[str, Callable[[], Any]]] = {
    "engine": EngineWorld,
    "line": LineWorld,
    "http": HttpWorld,
    "client-http": lambda: client_world("http"),
    "client-line": lambda: client_world("line"),
    "async-http": lambda: client_world("http", is_async=True),
    "async-line": lambda: client_world("line", is_async=True),
}
"""`line` and `http`: the wires; the clients speak them too, and tell what they understood."""
