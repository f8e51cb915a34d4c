"""Whatever the API answers is described: in the structs, member by member, and in the document.

A client asks thousands of sensible things in an order drawn by chance: most of them succeed, the
others are refused for all the reasons that a job's state can give. Each answer is read back into
the struct of its status, which refuses members that are not described, and is held against the
OpenAPI document. In the end every answer that a call may give has been given.
"""

import base64
import json
import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import pytest

from delayd.access.scopes import Scope
from delayd.http.problems import CONTENT_TYPE, ProblemAnswer
from delayd.http.routes import ROUTES
from delayd.http.routing import Route
from delayd.http.values import Answer as Described
from tests.rigs.http import Answer, HttpRig
from tests.rigs.openapi import validator, whole_document

TOPICS: Final = ("mail", "orders", "a/b;c")
KEYS: Final = ("order-17", "käse", "a/b")
GROUPS: Final = ("acme", "größe", "a/b")
SCHEDULES: Final = ("nightly", "a/b", "preview")
STEPS_MIN: Final = 1_000
STEPS_MAX: Final = 5_000
"""Until every answer has been given."""
INTERNAL: Final = re.compile(rb"[a-z]_ms\b")
"""How the daemon calls a length of time where nobody sees it."""
NOT_SENSIBLE: Final = frozenset((400, 401, 403, 405, 413, 415, 500))
"""What nobody is answered here: all requests are well-formed."""


class Ask(NamedTuple):
    """What a request says."""

    body: object = None
    query: str = ""
    headers: dict[str, str] | None = None


class Life:
    """What the client knows, and what it may ask next."""

    def __init__(self, rig: HttpRig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.ids: list[int] = [1]
        self.tokens: list[str] = ["1-0-1"]
        self.seen: set[tuple[str, int]] = set()

    def path(self, route: Route, token: str) -> str:
        """A path of the route; of a call with a token that job's, as a rule."""
        job_id = token.partition("-")[0] if token else str(self.rng.choice(self.ids[-20:]))
        return route.path.format(
            topic=quote(self.rng.choice(TOPICS), safe=""),
            key=quote(self.rng.choice(KEYS), safe=""),
            name=quote(self.rng.choice(SCHEDULES), safe=""),
            group=quote(self.rng.choice(GROUPS), safe=""),
            id=job_id,
        )

    def job(self, *, has_key: bool = True) -> dict[str, Any]:
        draw = self.rng.random
        text = self.rng.choice(('"hello"', '{"a": 1.0}', "null", "plain", "\xff"))
        said: dict[str, Any] = {"body_base64": base64.b64encode(text.encode("latin-1")).decode()}
        if draw() < 0.4:
            said |= self.rng.choice(({"delay": 0.01}, {"delay": "1h"}, {"delay": "2d"}, {"at": 1}))
        if draw() < 0.2:
            said |= {"retry": "1s 2s", "jitter_percent": 50}
        if draw() < 0.2:
            said |= {"max_attempts": 2, "ttr": 1}
        if draw() < 0.2:
            said["group"] = self.rng.choice(GROUPS)
        if has_key and draw() < 0.3:
            said["key"] = self.rng.choice(KEYS)
            if draw() < 0.6:
                said["on_conflict"] = self.rng.choice(("keep", "replace", "preserve", "extend"))
        return said

    def put(self) -> Ask:
        if self.rng.random() < 0.2:
            return Ask({"jobs": [self.job() for _ in range(3)]})
        job = self.job()
        if "key" not in job and self.rng.random() < 0.2:
            return Ask({"body": 1}, headers={"Idempotency-Key": str(self.rng.randrange(3))})
        return Ask(job)

    def nack(self, token: str) -> dict[str, Any]:
        said: dict[str, Any] = {"token": token}
        if self.rng.random() < 0.5:
            said["error"] = "no route to hóst"
        if self.rng.random() < 0.3:
            said["delay"] = "1s"
        return said

    def some_tokens(self) -> list[str]:
        return self.rng.sample(self.tokens[-20:], min(3, len(self.tokens)))

    def which(self) -> str:
        """A query that says which jobs."""
        return self.rng.choice(
            ("", "state=delayed,ready", "prefix=order-", "from=1s&to=2h", "dry_run=true")
        )

    def policy(self) -> dict[str, Any]:
        return self.rng.choice(
            (
                {},
                {"retry": "1s 5s", "jitter_percent": 10, "max_attempts": 3, "exhausted": "mail"},
                {"ttr": "2s", "delay": "10ms", "on_close": "return", "delay_max": "1d"},
                {"jobs_max": 10, "bytes_max": "4KiB", "body_bytes_max": 1000, "delay_max": "1d"},
                {"reserved_max": 2, "rate_per_s": 0.5},
                {"group_reserved_max": 1, "fair": True, "group_weights": {"acme": 5}}
                | {"group_order": "put", "group_on_retry": "wait", "retry": "1s 5s"},
                {"group_jobs_max": 2, "group_from": "key:-", "group_rate_per_s": 0.5},
                {"group_required": True},
            )
        )

    def schedule(self) -> dict[str, Any]:
        said: dict[str, Any] = self.rng.choice(
            (
                {"cron": "30 2 * * *", "timezone": "Europe/Berlin", "body": {"a": 1.0}},
                {"every": "2s", "body_base64": "/w==", "overlap": "skip", "ttr": "1s"},
                {"every": 1, "body": None, "limit": 3, "window": "1m", "missed": "all"},
                {"every": "10s", "jitter": "1s", "body": 1, "priority": 5, "group": "g"}
                | {"start": 5, "end": "2030-01-01T00:00:00Z", "overlap": "queue_one"},
                {"every": "1s", "body": 1, "retry": "1s", "max_attempts": 1, "jitter_percent": 5},
                {"cron": "0 0 31 2 *", "timezone": "Europe/Berln", "body": 1},
            )
        )
        return {"topic": self.rng.choice(TOPICS), **said}

    def asks(self, name: str, token: str) -> Ask:
        """What the call of this name says."""
        rng = self.rng
        makers: dict[str, Callable[[], Ask]] = {
            "put_job": self.put,
            "put_job_by_key": lambda: Ask(self.job(has_key=False)),
            "reserve": lambda: Ask({"max": rng.choice((1, 3)), "bodies": "auto"}),
            "reserve_any": lambda: Ask({"topics": [*TOPICS], "max": 5}),
            "ack": lambda: Ask({"token": token}),
            "nack": lambda: Ask(self.nack(token)),
            "touch": lambda: Ask({"token": token}),
            "bury": lambda: Ask({"token": token, "error": "why"}),
            "ack_many": lambda: Ask({"tokens": self.some_tokens()}),
            "nack_many": lambda: Ask({"nacks": [*map(self.nack, self.some_tokens())]}),
            "change_job": lambda: Ask({"delay": "5s", "body": {"b": 2}}),
            "change_job_by_key": lambda: Ask({"priority": 1, "ttr": "3s"}),
            "list_jobs": lambda: Ask(query="limit=2&bodies=true&" + self.which()[:13]),
            "cancel_jobs": lambda: Ask(query=rng.choice(("prefix=order-", "dry_run=true"))),
            "kick_jobs": lambda: Ask(query=self.which()),
            "reschedule_jobs": lambda: Ask({"delay": "2s"}, self.which()),
            "get_calendar": lambda: Ask(query=rng.choice(("", "topic=mail", "horizon=1h&bins=2"))),
            "list_topics": lambda: Ask(query=rng.choice(("", "limit=1", "limit=1&after=mail"))),
            "set_policy": lambda: Ask(self.policy()),
            "pause": lambda: Ask({"duration": "1s"}),
            "list_groups": lambda: Ask(query=rng.choice(("", "limit=1", "order=oldest"))),
            "pause_group": lambda: Ask({"duration": "1s"}),
            "kick": lambda: Ask({"max": 2, "per_second": 100}),
            "set_schedule": lambda: Ask(self.schedule()),
            "preview_definition": lambda: Ask(self.schedule(), "count=3"),
            "backfill_schedule": lambda: Ask({"from": 1_699_990_000, "until": 1_699_990_010}),
            "pause_schedule": lambda: Ask({"note": rng.choice(("", "why"))}),
            "list_schedules": lambda: Ask(query=rng.choice(("", "limit=1", "topic=mail"))),
            "advance_clock": lambda: Ask({"by": rng.choice((0.01, "1s", "30s"))}),
        }
        return makers[name]() if name in makers else Ask()

    def step(self) -> None:
        """Ask something, and check what is answered."""
        route = self.rng.choices(ROUTES, WEIGHTS)[0]
        self.rig.handover = self.rng.choice((("line b:11300", ""), ("", "the log is in files")))
        token = self.rng.choice(self.tokens[-8:]) if "token" in FIELDS[route.name] else ""
        ask = self.asks(route.name, token)
        path = self.path(route, token) + (f"?{ask.query}" if ask.query else "")
        answer = self.rig.call(route.method, path, ask.body, headers=ask.headers)
        self.seen.add((route.name, answer.status))
        check(route, answer)
        if route.name in OFTEN:
            self.ids += map(int, re.findall(rb'"id":(\d+)', answer.body))
            self.tokens += map(bytes.decode, re.findall(rb'"token":"([^"]+)"', answer.body))


FIELDS: Final = {
    route.name: () if route.form is None else route.form.__struct_fields__ for route in ROUTES
}
RARE: Final = frozenset(("clear", "pause", "set_policy", "advance_clock", "cancel_jobs", "readyz"))
OFTEN: Final = frozenset(("put_job", "put_job_by_key", "reserve", "reserve_any"))
WEIGHTS: Final = [1 if route.name in RARE else 12 if route.name in OFTEN else 3 for route in ROUTES]


def response_of(path: str, method: str, status: int) -> dict[str, Any]:
    response = whole_document()["paths"][path][method]["responses"][str(status)]
    name = response.get("$ref", "").removeprefix("#/components/responses/")
    return dict(whole_document()["components"]["responses"][name] if name else response)


@cache
def validator_of(path: str, method: str, status: int, media: str) -> Any:  # noqa: ANN401
    schema = response_of(path, method, status)["content"][media]["schema"]
    return validator({**schema, "components": whole_document()["components"]})


def check(route: Route, answer: Answer) -> None:
    """Raise unless the answer is described."""
    where = f"{route.method} {route.path}: {answer}"
    assert answer.status not in NOT_SENSIBLE, where
    assert "json" not in answer.headers.get("content-type", "") or not INTERNAL.search(
        answer.body
    ), where
    response = response_of(route.path, route.method.lower(), answer.status)
    if answer.status >= 400:
        assert_is(answer, (ProblemAnswer,), where)
        assert answer.headers["content-type"] == CONTENT_TYPE
    else:
        assert_is(answer, route.responses[answer.status].structs, where)
    for name, header in response.get("headers", {}).items():
        assert name.lower() in answer.headers or not header["required"], where
    for media in response.get("content", {}):
        assert answer.headers["content-type"].startswith(media), where
        if media != "text/plain":
            validator = validator_of(route.path, route.method.lower(), answer.status, media)
            errors = [*validator.iter_errors(answer.json)]
            assert not errors, f"{where}\n{errors}"
    assert answer.body or not response.get("content") or "text/plain" in response["content"], where


def assert_is(answer: Answer, kinds: tuple[type[Described], ...], where: str) -> None:
    """One of these structs describes it; without any nothing is known of it."""
    errors = []
    for kind in kinds:
        try:
            msgspec.json.decode(answer.body, type=kind)
        except msgspec.ValidationError as error:
            errors.append(f"{kind.__name__}: {error}")
    assert len(errors) < len(kinds) or not kinds, f"{where}\n{errors}"


def described() -> Iterator[tuple[str, int]]:
    """Every call with every status of an answer that is no refusal."""
    for route in ROUTES:
        yield from ((route.name, status) for status in route.responses)


@pytest.mark.thorough
def test_every_answer_is_described_and_every_description_is_answered(rng: random.Random) -> None:
    with HttpRig(is_virtual=True, is_checked=False) as rig:
        life = Life(rig, rng)
        left = {*described()} | {("refused", status) for status in (404, 409, 422, 507)}
        for step in range(STEPS_MAX):
            life.step()
            left -= life.seen
            left -= {("refused", status) for _, status in life.seen}
            if not left and step >= STEPS_MIN:
                break
        assert not left


def test_what_a_token_that_may_not_look_is_told_of_a_change_is_described() -> None:
    said = {"topic": "mail", "every": "1h", "body": 1}
    given = {"set_schedule": said, "pause_schedule": {"note": "why"}, "resume_schedule": {}}
    routes = {route.name: route for route in ROUTES}
    with HttpRig(needs_token=True) as rig:
        token = rig.token(Scope.PUT)
        for name, json_body in given.items():
            route = routes[name]
            answer = rig.call(route.method, route.path.format(name="a"), json_body, token=token)
            assert {*answer.json} <= {"name", "topic", "state", "next", "note", "change"}
            check(route, answer)


@pytest.mark.parametrize(
    "body",
    [b'{"id":1,"due":"x","colour":1}', b'{"due":"2026-11-21T19:00:00.000Z"}', b'{"id":"1"}'],
)
def test_an_answer_that_is_not_described_is_noticed(body: bytes) -> None:
    (route,) = (
        route for route in ROUTES if route.path == "/v1/jobs/{id}" and route.method == "PATCH"
    )
    with pytest.raises(AssertionError):
        check(route, Answer(200, {"content-type": "application/json"}, body))
    good = json.dumps({"id": 1, "due": "2026-11-21T19:00:00.000Z"}).encode()
    check(route, Answer(200, {"content-type": "application/json"}, good))
