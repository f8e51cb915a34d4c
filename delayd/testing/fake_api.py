"""The HTTP API of the fake daemon: requests in, answers out, as docs/http.md describes them.

>>> api = FakeApi(FakeJobs(now_ms=0))
>>> api.answer("POST", "/v1/topics/mail/jobs", {"body": 1}, {})[0]
201
"""

import base64
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

from delayd.client.values import seconds
from delayd.testing.fake_jobs import FakeJob, FakeJobs, FakeRefusal, FakeRule, FakeTopic

Answer = tuple[int, Any]
WAITS: Final[Answer] = (0, None)
"""A reserve that found nothing, while somebody has a job in hand."""
WAITING: Final = ("delayed", "ready", "buried")
STATES: Final = (*WAITING, "reserved")
_TOPIC: Final = re.compile(r"[A-Za-z0-9+/;.$_()][A-Za-z0-9+/;.$_()-]{0,199}")
_JOB: Final = frozenset(
    (
        *("body", "body_base64", "delay", "at", "priority", "ttr", "key", "on_conflict", "retry"),
        *("max_attempts", "jitter_percent", "url", "method", "headers"),
    )
)
_WHOLE: Final = (
    *("jitter_percent", "max_attempts", "jobs_max", "bytes_max", "body_bytes_max", "reserved_max"),
)
_POLICY: Final = frozenset(
    (*_WHOLE, "ttr", "delay", "delay_max", "retry", "exhausted", "on_close", "rate_per_s", "push")
)


class FakeApi:
    """Answers requests."""

    def __init__(self, jobs: FakeJobs) -> None:
        self._jobs = jobs
        self._idempotent: dict[str, tuple[object, Any]] = {}
        topic, job = r"/v1/topics/(?P<topic>[^/]+)", r"/v1/jobs/(?P<id>\d+)"
        keyed = rf"{topic}/keys/(?P<key>[^/]+)"
        one = rf"(?:{job}|{keyed})"
        self._routes: list[tuple[str, re.Pattern[str], Callable[..., Answer]]] = [
            (method, re.compile(path), call)
            for method, path, call in (
                ("POST", rf"{topic}/jobs", self._put),
                ("POST", rf"{topic}/reserve", self._reserve),
                ("POST", "/v1/reserve", self._reserve),
                ("POST", "/v1/ack", self._ack_many),
                ("POST", rf"{job}/(?P<verb>ack|nack|touch)", self._finish),
                ("GET", one, self._get),
                ("PATCH", one, self._change),
                ("DELETE", one, self._cancel),
                ("POST", rf"{one}/kick", self._kick),
                ("POST", rf"{one}/bury", self._bury),
                ("GET", rf"{topic}/jobs", self._list),
                ("DELETE", rf"{topic}/jobs", self._cancel_many),
                ("POST", rf"{topic}/jobs/kick", self._kick_many),
                ("POST", rf"{topic}/jobs/reschedule", self._reschedule_many),
                ("GET", "/v1/calendar", self._calendar),
                ("GET", "/v1/topics", self._topics),
                ("GET", topic, self._topic),
                ("GET", rf"{topic}/policy", self._policy),
                ("PUT", rf"{topic}/policy", self._set_policy),
                ("DELETE", rf"{topic}/policy", self._set_policy),
                ("POST", rf"{topic}/pause", self._pause),
                ("POST", rf"{topic}/resume", self._pause),
                ("POST", rf"{topic}/kick", self._redrive),
                ("POST", rf"{topic}/clear", self._clear),
                ("GET", "/v1/stats", self._stats),
                ("GET", "/readyz", self._ready),
                ("GET", "/metrics", self._metrics),
                ("POST", "/v1/clock/advance", self._advance),
            )
        ]

    def answer(
        self,
        method: str,
        target: str,
        said: Any,  # noqa: ANN401 - JSON
        headers: Mapping[str, str],
        *,
        may_wait: bool = False,
    ) -> Answer:
        """Answer a request; `may_wait`: a reserve may ask again while jobs are in hand."""
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        for wanted, path, call in self._routes:
            if method == wanted and (found := path.fullmatch(parts.path)):
                names = {name: unquote(text) for name, text in found.groupdict().items() if text}
                self._said, self._query, self._headers = said or {}, query, headers
                self._may_wait = may_wait
                self._named = parse_qs(parts.query).get("topic", [])
                try:
                    if "topic" in names and not _TOPIC.fullmatch(names["topic"]):
                        raise invalid("topic", f"topic name {names['topic']!r} is not a name")
                    return call(**names)
                except FakeRefusal as refusal:
                    return refusal.status, problem(refusal)
                except (ValueError, TypeError) as error:
                    return 422, problem(invalid("", str(error)))
        return 404, problem(FakeRefusal("no_such_call", target))

    # --- Producers -------------------------------------------------------------------------------

    def _put(self, topic: str) -> Answer:
        if "jobs" in self._said:
            for job in self._said["jobs"]:
                self._checked(job)
            results = [self._put_one_of_many(topic, job) for job in self._said["jobs"]]
            return (201 if all(each["status"] == 201 for each in results) else 207), {
                "results": results
            }
        name = self._headers.get("Idempotency-Key")
        request = (topic, json.dumps(self._said, sort_keys=True))
        if name is not None and name in self._idempotent:
            before, answer = self._idempotent[name]
            if before != request:
                raise FakeRefusal("idempotency_key_reused", "another request before")
            return 201, answer
        status, answer = self._put_one(topic, self._said)
        if name is not None:
            self._idempotent[name] = (request, answer)
        return status, answer

    def _put_one_of_many(self, topic: str, said: Mapping[str, Any]) -> dict[str, Any]:
        try:
            status, answer = self._put_one(topic, said)
        except FakeRefusal as refusal:
            return {"status": refusal.status, "problem": problem(refusal)}
        return {"status": status, **answer}

    def _checked(self, said: Mapping[str, Any]) -> None:
        """Raise what is wrong with a job whatever there is."""
        if unknown := said.keys() - _JOB:
            raise invalid(min(unknown), "there is no such field")
        key = said.get("key")
        if key is not None and (not key or not key.isprintable() or " " in key or len(key) > 200):
            raise invalid("key", f"the key {key!r} is not 1 to 200 bytes of printable UTF-8")
        if not 0 <= said.get("priority", 0) < 1 << 32:
            raise invalid("priority", "must be from 0 to 4294967295")
        for name in ("delay", "ttr"):
            if name in said:
                length_ms(said[name], name)
        rule_of(said)

    def _put_one(self, topic: str, said: Mapping[str, Any]) -> Answer:
        self._checked(said)
        job, outcome = self._jobs.put(
            topic,
            body_of(said),
            delay_ms=self._delay_ms(said),
            ttr_ms=length_ms(said["ttr"], "ttr") if "ttr" in said else None,
            priority=said.get("priority", 65_536),
            key=said.get("key", ""),
            on_conflict=said.get("on_conflict", "reject"),
            rule=rule_of(said),
            target=target_of(said),
        )
        answer = {"id": job.id, "outcome": outcome, "due": text_of(job.due_ms)}
        return (201 if outcome == "created" else 200), answer

    def _delay_ms(self, said: Mapping[str, Any]) -> int | None:
        if "at" in said:
            at = dt.datetime.fromisoformat(said["at"])
            return max(0, -int(-at.timestamp() * 1_000 // 1) - self._jobs.now_ms)
        return length_ms(said["delay"], "delay") if "delay" in said else None

    # --- Workers ---------------------------------------------------------------------------------

    def _reserve(self, topic: str = "") -> Answer:
        topics = [topic] if topic else self._said["topics"]
        limit = self._said.get("max", 1)
        end_ms = self._jobs.now_ms + length_ms(self._said.get("wait", 0), "wait")
        while not (taken := self._jobs.reserve(topics, limit)):
            if self._jobs.now_ms >= end_ms:
                return 204, None
            if self._may_wait and self._jobs.has_jobs_in_hand:
                return WAITS
            next_ms = self._jobs.next_ready_ms(topics)
            ends_ms = end_ms if next_ms is None else min(end_ms, next_ms)
            self._jobs.advance(ends_ms - self._jobs.now_ms)
        return 200, {"jobs": [self._reserved(job) for job in taken]}

    def _reserved(self, job: FakeJob) -> dict[str, Any]:
        return {
            "id": job.id,
            "topic": job.topic,
            "token": job.token,
            "attempt": job.attempts,
            "priority": job.priority,
            "due": text_of(job.due_ms),
            "lateness": max(0, self._jobs.now_ms - job.due_ms) / 1_000,
            "ttr": job.ttr_ms / 1_000,
            "expires": text_of(job.expires_ms),
            **({"key": job.key} if job.key else {}),
            **failure_of(job),
            "body_base64": base64.b64encode(job.body).decode(),
        }

    def _finish(self, id: str, verb: str) -> Answer:  # noqa: A002 - named as in the path
        job = self._jobs.held(self._said["token"])
        error, priority = self._said.get("error", ""), self._said.get("priority")
        if verb == "ack":
            self._jobs.remove(job)
            return 200, {"id": int(id)}
        if verb == "touch":
            job.expires_ms = self._jobs.now_ms + job.ttr_ms
            return 200, {"id": job.id, "expires": text_of(job.expires_ms)}
        self._jobs.nack(job, length_ms(self._said.get("delay", 0), "delay"), error, priority)
        answer = {"id": job.id, "state": job.state, "topic": job.topic}
        return 200, answer | ({"due": text_of(job.due_ms)} if job.state == "delayed" else {})

    def _ack_many(self) -> Answer:
        results: list[dict[str, Any]] = []
        for token in self._said["tokens"]:
            job_id = int(token.partition("-")[0])
            try:
                self._jobs.remove(self._jobs.held(token))
                results.append({"id": job_id, "status": 200})
            except FakeRefusal as refusal:
                said = {"id": job_id, "status": refusal.status, "problem": problem(refusal)}
                results.append(said)
        return 200, {"results": results}

    # --- Jobs ------------------------------------------------------------------------------------

    def _one(self, names: Mapping[str, str]) -> FakeJob:
        if "id" in names:
            return self._jobs.get(int(names["id"]))
        return self._jobs.find(names["topic"], names["key"])

    def _unreserved(self, names: Mapping[str, str]) -> FakeJob:
        job = self._one(names)
        if job.state == "reserved":
            detail = f"job {job.id} is reserved: only its holder can say what becomes of it"
            raise FakeRefusal("job_reserved", detail, job_id=job.id)
        return job

    def _get(self, **names: str) -> Answer:
        return 200, whole(self._one(names))

    def _change(self, **names: str) -> Answer:
        job = self._unreserved(names)
        said = self._said
        if not said:
            raise invalid("", "must say what is to be changed: one field at least")
        if "body" in said or "body_base64" in said:
            self._jobs.change_body(job, body_of(said))
        if (delay_ms := self._delay_ms(said)) is not None:
            self._jobs.schedule(job, delay_ms)
        if "url" in said:
            job.target = target_of(said)
        job.priority = said.get("priority", job.priority)
        job.ttr_ms = length_ms(said["ttr"], "ttr") if "ttr" in said else job.ttr_ms
        return 200, {"id": job.id, "due": text_of(job.due_ms)}

    def _cancel(self, **names: str) -> Answer:
        job = self._unreserved(names)
        self._jobs.remove(job)
        return 200, {"id": job.id}

    def _kick(self, **names: str) -> Answer:
        job = self._unreserved(names)
        if job.state == "ready":
            raise wrong_state(job, "kick")
        self._jobs.kick(job)
        return 200, {"id": job.id}

    def _bury(self, **names: str) -> Answer:
        error, priority = self._said.get("error", ""), self._said.get("priority")
        if "token" in self._said:
            job = self._jobs.held(self._said["token"])
            self._jobs.bury(job, error, priority)
        else:
            job = self._unreserved(names)
            if job.state == "buried":
                raise wrong_state(job, "bury")
            self._jobs.bury(job, error or "by hand", priority)
        return 200, {"id": job.id, "state": "buried", "topic": job.topic}

    def _is_wanted(self, job: FakeJob) -> bool:
        query = self._query
        states = query["state"].split(",") if "state" in query else STATES
        return (
            job.state in states
            and job.key.startswith(query.get("prefix", ""))
            and job.due_ms >= self._bound_ms(query.get("from"), 0)
            and job.due_ms < self._bound_ms(query.get("to"), 1 << 62)
        )

    def _bound_ms(self, text: str | None, otherwise_ms: int) -> int:
        if text is None:
            return otherwise_ms
        if "T" in text:
            return round(dt.datetime.fromisoformat(text).timestamp() * 1_000)
        return self._jobs.now_ms + round(seconds(text) * 1_000)

    def _list(self, topic: str) -> Answer:
        if (limit := int(self._query.get("limit", 100))) < 1:
            raise invalid("limit", "must be at least 1")
        first = tuple(map(int, self._query.get("after", "-1-0").rsplit("-", 1)))
        jobs = [
            job
            for job in self._jobs.matching(topic, self._is_wanted, STATES)
            if (job.due_ms, job.id) > first
        ]
        page = [page_job(job, self._query.get("bodies") == "true") for job in jobs[:limit]]
        after = f"{jobs[limit - 1].due_ms}-{jobs[limit - 1].id}" if len(jobs) > limit else None
        return 200, {"jobs": page, "after": after}

    def _many(
        self, topic: str, states: tuple[str, ...], done: str, do: Callable[[FakeJob], None]
    ) -> Answer:
        jobs = list(self._jobs.matching(topic, self._is_wanted, states))
        if self._query.get("dry_run") == "true":
            return 200, {"matched": len(jobs)}
        for job in jobs:
            do(job)
        return 200, {done: len(jobs)}

    def _cancel_many(self, topic: str) -> Answer:
        return self._many(topic, WAITING, "cancelled", self._jobs.remove)

    def _kick_many(self, topic: str) -> Answer:
        return self._many(topic, ("delayed", "buried"), "kicked", self._jobs.kick)

    def _reschedule_many(self, topic: str) -> Answer:
        delay_ms = self._delay_ms(self._said) or 0
        states = ("delayed", "ready")
        return self._many(
            topic, states, "rescheduled", lambda job: self._jobs.schedule(job, delay_ms)
        )

    # --- Topics ----------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        names = {job.topic for job in self._jobs.jobs.values()}
        return sorted(names | {name for name, held in self._jobs.topics.items() if held.is_set})

    def _calendar(self) -> Answer:
        horizon_ms = length_ms(self._query.get("horizon", "1d"), "horizon")
        bins = int(self._query.get("bins", 24))
        from_ms = self._bound_ms(self._query.get("from"), self._jobs.now_ms)
        topics = []
        for name in self._named or self._names():
            counts = [0] * bins
            for job in self._jobs.of(name):
                place = (job.due_ms - from_ms) * bins // horizon_ms
                if job.state == "delayed" and 0 <= place < bins:
                    counts[place] += 1
            topics.append({"name": name, "counts": counts})
        begin = text_of(from_ms)
        return 200, {
            "from": begin,
            "bin": horizon_ms / bins / 1_000,
            "topics": topics,
            "after": None,
        }

    def _topics(self) -> Answer:
        return 200, {"topics": [self._counts(name) for name in self._names()], "after": None}

    def _counts(self, name: str) -> dict[str, Any]:
        jobs = self._jobs.of(name)
        until_ms = self._jobs.topics.get(name, FakeTopic()).paused_until_ms
        return {
            "name": name,
            "jobs": len(jobs),
            **{state: sum(job.state == state for job in jobs) for state in STATES},
            "urgent": sum(job.state == "ready" and job.priority < 1_024 for job in jobs),
            "waiting": 0,
            "paused_until": text_of(until_ms) if until_ms > self._jobs.now_ms else None,
        }

    def _topic(self, topic: str) -> Answer:
        return 200, self._counts(self._jobs.known(topic)) | self._policy(topic)[1]

    def _policy(self, topic: str) -> Answer:
        held = self._jobs.topics.get(topic, FakeTopic())
        policy = {name: value for name, value in held.policy.items() if name in _POLICY}
        return 200, {"policy": policy, "source": "run_time" if held.is_set else "configuration"}

    def _set_policy(self, topic: str) -> Answer:
        held = self._jobs.topics.setdefault(topic, FakeTopic())
        held.policy = read_policy(self._said)
        held.is_set = bool(held.policy)
        return self._policy(topic)

    def _pause(self, topic: str) -> Answer:
        held = self._jobs.topics.setdefault(topic, FakeTopic())
        held.paused_until_ms = self._jobs.now_ms + length_ms(self._said.get("duration", 0), "")
        return 200, {"paused_until": self._counts(topic)["paused_until"]}

    def _redrive(self, topic: str) -> Answer:
        buried = [job for job in self._jobs.of(self._jobs.known(topic)) if job.state == "buried"]
        buried = sorted(buried, key=lambda job: job.buried_at)[: self._said.get("max")]
        for job in buried:
            self._jobs.kick(job)
        return 200, {"kicked": len(buried)}

    def _clear(self, topic: str) -> Answer:
        return 200, {"cleared": self._cancel_many(topic)[1]["cancelled"]}

    # --- The daemon ------------------------------------------------------------------------------

    def _stats(self) -> Answer:
        jobs = self._jobs.jobs.values()
        counts = {state: sum(job.state == state for job in jobs) for state in STATES}
        return 200, {"version": "fake", "topics": len(self._names()), "jobs": counts}

    def _ready(self) -> Answer:
        return 200, {"status": "ready"}

    def _metrics(self) -> Answer:
        return 200, None

    def _advance(self) -> Answer:
        self._jobs.advance(length_ms(self._said["by"], "by"))
        return 200, {"now": text_of(self._jobs.now_ms)}


# --- Reading -------------------------------------------------------------------------------------


def wrong_state(job: FakeJob, verb: str) -> FakeRefusal:
    """Return the refusal of what the state of a job does not allow."""
    detail = f"job {job.id} is {job.state}, which does not allow to {verb} it"
    return FakeRefusal("wrong_state", detail, job_id=job.id)


def invalid(field: str, detail: str) -> FakeRefusal:
    """Return the refusal of a request with a mistake in a field."""
    refusal = FakeRefusal("request_invalid", detail)
    refusal.add_note(field)
    return refusal


def problem(refusal: FakeRefusal) -> dict[str, Any]:
    """Return what the API answers for a refusal."""
    fields = getattr(refusal, "__notes__", ())
    errors = [{"field": field, "detail": str(refusal)} for field in fields]
    return {
        "type": f"urn:delayd:{refusal.word}",
        "title": refusal.title,
        "status": refusal.status,
        "detail": str(refusal),
        "word": refusal.word,
        "kind": refusal.kind,
        **({"errors": errors} if errors else {}),
        **({} if refusal.job_id is None else {"job_id": refusal.job_id}),
    }


def length_ms(value: Any, field: str) -> int:  # noqa: ANN401 - JSON
    """Read a duration."""
    try:
        length_s = seconds(value)
    except (ValueError, AttributeError) as error:
        raise invalid(field, str(error)) from None
    if not 0 <= length_s < 1 << 32:
        raise invalid(field, "must be from 0 to 4294967295 s")
    return -int(-length_s * 1_000 // 1)


def body_of(said: Mapping[str, Any]) -> bytes:
    """Return the body of a request."""
    if "body_base64" in said:
        return base64.b64decode(said["body_base64"])
    return json.dumps(said["body"], ensure_ascii=False, separators=(",", ":")).encode()


def target_of(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return where the daemon would deliver a job."""
    names = ("url", "method", "headers")
    return {name: said[name] for name in names if said.get(name) is not None}


def steps_ms(value: Any) -> tuple[int, ...]:  # noqa: ANN401 - JSON
    """Read a ladder."""
    steps = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(steps, list) or not 1 <= len(steps) <= 255:
        raise ValueError(f"retry = {value}: must be 1 to 255 durations")
    return tuple(length_ms(step, "retry") for step in steps)


def rule_of(said: Mapping[str, Any]) -> FakeRule | None:
    """Return a job's own rule."""
    if "retry" not in said and "max_attempts" not in said:
        return None
    return FakeRule(steps_ms(said["retry"]) if "retry" in said else (), said.get("max_attempts", 0))


def read_policy(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return a policy with its values as they are reckoned with."""
    policy = {name: value for name, value in said.items() if value is not None}
    try:
        for name in policy:
            if name not in _POLICY:
                raise ValueError(f"{name}: there is no such field")
        for name in {"ttr", "delay", "delay_max"} & policy.keys():
            policy[f"{name}_ms"] = length_ms(policy[name], name)
        for name in set(_WHOLE) & policy.keys():
            if not isinstance(policy[name], int):
                raise ValueError(f"{name} = {policy[name]}: must be a number")  # noqa: TRY004
        if "retry" in policy:
            policy["steps_ms"] = steps_ms(policy["retry"])
    except (ValueError, FakeRefusal) as error:
        detail = f"the policy is not valid: {error}"
        raise FakeRefusal("policy_invalid", detail) from None
    return policy


# --- Writing -------------------------------------------------------------------------------------


def text_of(time_ms: int) -> str:
    """Write a time."""
    time = dt.datetime.fromtimestamp(time_ms // 1_000, dt.UTC)
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time_ms % 1_000:03d}Z"


def failure_of(job: FakeJob) -> dict[str, Any]:
    """Return the member that says why the last attempt failed."""
    if job.failure is None:
        return {}
    reason, at_ms, _before, error, origin = job.failure
    said = {"reason": reason, "at": text_of(at_ms)}
    said |= ({"error": error} if error else {}) | ({"origin": origin} if origin else {})
    return {"failure": said}


def page_job(job: FakeJob, bodies: bool) -> dict[str, Any]:  # noqa: FBT001 - a field of the query
    """Return a job as a page tells it."""
    return {
        "id": job.id,
        "state": job.state,
        "due": text_of(job.due_ms),
        "priority": job.priority,
        **({"key": job.key} if job.key else {}),
        **({"attempts": job.attempts, **failure_of(job)} if job.failure else {}),
        **{name: said for name, said in job.target.items() if name != "headers"},
        **({"body_base64": base64.b64encode(job.body).decode()} if bodies else {}),
    }


def whole(job: FakeJob) -> dict[str, Any]:
    """Return everything about a job."""
    return {
        **page_job(job, bodies=True),
        "topic": job.topic,
        "created": text_of(job.created_ms),
        "ttr": job.ttr_ms / 1_000,
        "attempts": job.attempts,
        **job.counts,
        **({"expires": text_of(job.expires_ms)} if job.state == "reserved" else {}),
        **job.target,
    }
