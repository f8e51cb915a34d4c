"""What is so of every call there is: tokens, hosts, media types, methods. Walks the table."""

import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from delayd.access.scopes import Scope
from delayd.http.routes import ROUTES
from delayd.http.routing import Route
from tests.core.canonical import canonical
from tests.rigs.http import Answer, HttpRig

JOBS = "/v1/topics/mail/jobs"
GIVEN: Final[dict[str, Any]] = {
    "PutJob": {"body": 1},
    "PutKeyed": {"body": 1},
    "ChangeJob": {"priority": 1},
    "Reserve": {},
    "ReserveAny": {"topics": ["mail"]},
    "Held": {"token": "1-0-1"},
    "Nack": {"token": "1-0-1"},
    "Bury": {"token": "1-0-1"},
    "BuryWaiting": {"error": "wrong amount"},
    "HeldMany": {"tokens": ["1-0-1"]},
    "NackMany": {"nacks": [{"token": "1-0-1"}]},
    "Reschedule": {"delay": 5},
    "PolicyBody": {"ttr": "5s"},
    "Pause": {"duration": 5},
    "Nothing": {},
    "Kick": {},
    "Advance": {"by": 1},
    "ScheduleBody": {"topic": "mail", "cron": "@daily", "body": 1},
    "Note": {"note": "holidays"},
    "Backfill": {"from": "2023-11-13T00:00:00Z", "until": "2023-11-14T00:00:00Z"},
}
"""Something that each form takes."""
HIDDEN: Final = ("/v1/jobs/", "/v1/schedules/{name}")
"""What does not exist for clients that may not look at it."""


def path_of(route: Route) -> str:
    return route.path.format(topic="mail", id="1", key="a", group="a", name="preview")


def form_name(route: Route) -> str:
    if route.form is None:
        return ""
    return route.form.__name__.removesuffix("Form")


def given_to(route: Route) -> object:
    return None if route.form is None else GIVEN[form_name(route)]


def named(route: Route) -> str:
    return f"{route.method} {route.path}"


def every(pick: Callable[[Route], object] = bool) -> pytest.MarkDecorator:
    """One test for each route that is picked."""
    return pytest.mark.parametrize("route", [*filter(pick, ROUTES)], ids=named)


def begin(rig: HttpRig, token: str = "") -> None:
    """Put job 1, which has the key a, and make a schedule."""
    rig.ok("POST", JOBS, {"body": 1, "key": "a", "delay": 9}, token=token)
    make_schedule(rig, token)


def make_schedule(rig: HttpRig, token: str = "") -> None:
    start = {"start": "2023-11-01T00:00:00Z"}
    rig.ok("PUT", "/v1/schedules/preview", GIVEN["ScheduleBody"] | start, token=token)


def ask(rig: HttpRig, route: Route, **how: Any) -> Answer:  # noqa: ANN401 (as `HttpRig.call`)
    """Ask what the route is for, of what `begin` has made."""
    how.setdefault("json", given_to(route))
    query = "?prefix=a" if route.name == "cancel_jobs" else ""  # which refuses to take all
    return rig.call(route.method, path_of(route) + query, **how)


def test_every_form_has_something_that_it_takes() -> None:
    assert {form_name(route) for route in ROUTES if route.form is not None} == {*GIVEN}


@every()
def test_a_call_is_answered_in_json_by_delayd(route: Route) -> None:
    with HttpRig(is_virtual=True) as rig:
        begin(rig)
        answer = ask(rig, route)
        assert answer.status in {200, 201, 204, 207, 409}
        if answer.status != 204 and route.path != "/metrics":
            assert answer.headers["content-type"] in {
                "application/json",
                "application/problem+json",
            }
        assert answer.headers["server"].startswith("delayd/")


@every()
def test_a_call_needs_a_token_unless_it_is_anybodys(route: Route) -> None:
    with HttpRig(needs_token=True) as rig:
        begin(rig, rig.token())
        for token in ("", "dlyd_00000001_" + "x" * 43):
            answer = ask(rig, route, token=token)
            if not route.is_guarded:
                assert answer.status == 200
            else:
                assert (answer.status, answer.word) == (401, "UNAUTHORIZED")
                assert answer.headers["www-authenticate"].startswith("Bearer")
        assert ask(rig, route, token=rig.token()).status in {200, 201, 204, 207, 409}


@every(lambda route: route.scope is not None)
def test_a_call_needs_a_token_that_is_good_for_it(route: Route) -> None:
    with HttpRig(needs_token=True, is_virtual=True) as rig:
        begin(rig, rig.token())
        assert route.scope is not None
        good = ask(rig, route, token=rig.token(route.scope)).status
        assert good in {200, 201, 204, 207, 409}
    with HttpRig(needs_token=True, is_virtual=True) as rig:
        begin(rig, rig.token())
        token = rig.token(*({*Scope} - {route.scope}))
        answer = ask(rig, route, token=token)
        if answer.status == 207:  # what is said of many jobs is said of each
            (result,) = answer.json["results"]
            assert result["status"] == 403
            return
        is_hidden = route.scope is Scope.PEEK and route.path.startswith(HIDDEN)
        assert answer.status == (404 if is_hidden else 403)
        assert answer.word == ("NOT_FOUND" if is_hidden else "FORBIDDEN")


@every(lambda route: "{topic}" in route.path and route.scope is not None)
def test_a_call_about_a_topic_needs_a_token_for_that_topic(route: Route) -> None:
    with HttpRig(needs_token=True) as rig:
        begin(rig, rig.token())
        frames = len(rig.disk.frames)
        answer = ask(rig, route, token=rig.token(topics=("sms", "mail.*")))
        assert (answer.status, answer.word) == (403, "FORBIDDEN")
        assert len(rig.disk.frames) == frames, "nothing has changed"


@every(lambda route: "{id}" in route.path or form_name(route).endswith("Many"))
@pytest.mark.parametrize("lacks", ["topic", "scopes"])
def test_a_call_about_a_job_does_not_tell_whether_it_exists(route: Route, lacks: str) -> None:
    """Job 2 has a token that was never given to anybody; of job 999 there is nothing."""
    with HttpRig(needs_token=True) as rig:
        for _ in range(2):
            rig.ok("POST", JOBS, {"body": 1}, token=rig.token())
        rig.ok("POST", "/v1/topics/mail/reserve", {}, token=rig.token())
        assert route.scope is not None
        others = {*Scope} - {route.scope, Scope.PEEK}
        token = rig.token(topics=("sms",)) if lacks == "topic" else rig.token(*others)
        frames = len(rig.disk.frames)
        told = []
        for job_id in (1, 2, 999):
            given = json.dumps(given_to(route)).replace('"1-0-1"', f'"{job_id}-0-1"').encode()
            path = route.path.format(id=job_id)
            data = given if route.form is not None else b""
            answer = rig.call(route.method, path, data=data, token=token)
            told.append(answer.body.replace(b"%d" % job_id, b"N"))
            assert b'"status":404' in answer.body
        assert {*told} == {told[0]}
        assert len(rig.disk.frames) == frames, "nothing has changed"


LOOKING = {None, Scope.PEEK, Scope.STATS}


@every(lambda route: route.scope not in LOOKING and route.name != "hand_over")
def test_what_changes_something_is_answered_when_it_is_durable(route: Route) -> None:
    """Jobs 1 and 2 wait, 3 is buried, and 4 is in hand."""
    with HttpRig(is_virtual=True) as rig:
        rig.ok("PUT", "/v1/topics/mail/policy", {"exhausted": "dead", "max_attempts": 9})
        for number in range(4):
            delay = {"delay": 9} if number < 1 else {}
            rig.ok(
                "POST", JOBS, {"body": 1, "priority": 9 - number, "key": "abcd"[number], **delay}
            )
        held, buried = rig.ok("POST", "/v1/topics/mail/reserve", {"max": 2})["jobs"]
        rig.ok("POST", f"/v1/jobs/{buried['id']}/bury", {"token": buried["token"]})
        make_schedule(rig)
        if route.name == "resume":
            rig.ok("POST", "/v1/topics/mail/pause", {"duration": 9})
        if route.name == "resume_schedule":
            rig.ok("POST", "/v1/schedules/preview/pause")
        given = json.dumps(given_to(route)).replace("1-0-1", held["token"]).encode()
        is_holders = b"token" in given and "{id}" in route.path
        path = path_of(route)
        if is_holders:
            path = path.replace("/jobs/1/", f"/jobs/{held['id']}/")
        query = "?prefix=a" if route.name == "cancel_jobs" else ""
        rig.disk.hold()
        client = rig.send(route.method, path + query, data=given if route.form else None)
        assert client.answer is None
        rig.disk.release()
        rig.settle()
        assert client.the_answer.status in {200, 201, 204}
        assert [*canonical(rig.after_restart())] == [*canonical(rig.engine)]


@every()
def test_a_call_is_not_for_web_pages_and_other_hosts(rig: HttpRig, route: Route) -> None:
    for headers in ({"Host": "evil.example"}, {"Origin": "http://localhost"}):
        answer = ask(rig, route, headers=headers)
        assert (answer.status, answer.word) == (403, "FORBIDDEN")
    assert not rig.disk.frames


@every()
def test_a_call_takes_what_it_says_and_nothing_else(rig: HttpRig, route: Route) -> None:
    if route.query is None:
        for query in ("?", "?x=1"):
            answer = rig.call(route.method, path_of(route) + query, given_to(route))
            assert (answer.status, answer.word) == (400, "BAD_FORMAT")
            assert "has a query" in answer.json["title"]
    else:
        answer = rig.call(route.method, path_of(route) + "?colour=1&colour=2&%ff=3")
        assert answer.status in {400, 422}
    if route.form is None:
        answer = ask(rig, route, json={})
        assert (answer.status, answer.word) == (400, "BAD_FORMAT")
        return
    for headers in ({"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}):
        answer = ask(rig, route, headers=headers)
        assert (answer.status, answer.word) == (415, "UNSUPPORTED_MEDIA_TYPE")
    answer = rig.call(route.method, path_of(route), data=b"{")
    assert (answer.status, answer.word) == (400, "BAD_JSON")
    answer = rig.call(route.method, path_of(route), data=b"[]")
    assert (answer.status, answer.word) == (422, "BAD_FORMAT")
    answer = ask(rig, route, json={**GIVEN[form_name(route)], "colour": 1})
    assert (answer.status, answer.fields) == (422, ["colour"])
    answer = rig.call(route.method, path_of(route))
    assert (answer.status == 400) == (not route.may_be_empty)
    assert not rig.disk.frames or route.may_be_empty


@every()
def test_a_path_has_its_methods_and_says_them(rig: HttpRig, route: Route) -> None:
    allowed = {other.method for other in ROUTES if path_of(other) == path_of(route)}
    if "GET" in allowed:
        allowed.add("HEAD")
    for method in {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - allowed:
        answer = rig.call(method, path_of(route))
        assert answer.status == 405
        assert answer.headers["allow"] == ", ".join(sorted(allowed))
        if method != "HEAD":
            assert answer.word == "METHOD_NOT_ALLOWED"


@every(lambda route: route.method == "GET")
def test_a_head_is_a_get_without_the_body(rig: HttpRig, route: Route) -> None:
    begin(rig)
    get, head = (rig.call(method, path_of(route)) for method in ("GET", "HEAD"))
    assert (head.status, head.body) == (200, b"")
    for name in ("content-type", "content-length", "server"):
        assert get.headers.get(name) == head.headers.get(name)
    assert rig.call("GET", "/healthz").status == 200, "the connection goes on"


@every()
def test_a_daemon_that_stops_says_so_to_every_call(rig: HttpRig, route: Route) -> None:
    rig.server.stop_accepting()
    answer = ask(rig, route)
    assert (answer.status, answer.word) == (503, "STOPPING")
    assert answer.headers["retry-after"] == "1"
