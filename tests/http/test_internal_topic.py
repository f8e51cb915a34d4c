"""The topic of the memos, over HTTP: looked at by whoever may, changed by nobody, 403."""

from typing import Final

import pytest

from delayd.access.scopes import Scope
from delayd.core.names import IDEMPOTENCY_TOPIC
from delayd.http.routes import ROUTES
from delayd.http.routing import Route
from delayd.limits import IDEMPOTENCY_MS
from tests.http.test_every_call import every, form_name, given_to
from tests.rigs.http import Answer, HttpRig

LOOKING: Final = {None, Scope.PEEK, Scope.STATS}
JOB, MEMO = 1, 2
HELD: Final = {"token": f"{MEMO}-0-1"}
GIVEN: Final = {"Held": HELD, "Nack": HELD, "Bury": HELD}


def is_about_it(route: Route) -> bool:
    return "{topic}" in route.path or "{id}" in route.path


def put(rig: HttpRig, token: str = "") -> int:
    """Put the order; the second time it is the same one."""
    given, headers = {"body": 1, "delay": "7d"}, {"Idempotency-Key": "a"}
    path = "/v1/topics/mail/jobs"
    answer = rig.call("POST", path, given, headers=headers, token=token)
    assert answer.status == 201
    return int(answer.json["id"])


def ask(rig: HttpRig, route: Route, token: str = "") -> Answer:
    """Ask what the route is for, of the memo or its topic."""
    key = rig.ok("GET", f"/v1/jobs/{MEMO}", token=token)["key"]
    path = route.path.format(topic=IDEMPOTENCY_TOPIC, id=MEMO, key=key, group="a")
    path += "?state=delayed" if route.name == "cancel_jobs" else ""  # which refuses to take all
    form = "" if route.form is None else form_name(route)
    return rig.call(route.method, path, GIVEN.get(form, given_to(route)), token=token)


def is_refused(answer: Answer) -> None:
    assert (answer.status, answer.word) == (403, "FORBIDDEN")
    assert answer.json["detail"].startswith("topic '$idempotency' is reserved: ")


@pytest.mark.parametrize("needs_token", [False, True])
@every(lambda route: is_about_it(route) and route.scope not in LOOKING)
def test_whatever_would_change_it_is_refused(route: Route, needs_token: bool) -> None:
    with HttpRig(needs_token=needs_token) as rig:
        token = rig.token() if needs_token else ""
        assert put(rig, token) == JOB
        memo = rig.engine.store.jobs.get(MEMO)
        is_refused(ask(rig, route, token))
        assert rig.engine.store.jobs.get(MEMO) == memo
        rig.pass_ms(IDEMPOTENCY_MS - 1_000)
        assert put(rig, token) == JOB


@every(lambda route: is_about_it(route) and route.scope in LOOKING)
def test_it_can_be_looked_at(rig: HttpRig, route: Route) -> None:
    put(rig)
    assert ask(rig, route).status == 200


def test_the_daemon_itself_counts_as_no_consumer_of_it(rig: HttpRig) -> None:
    put(rig)
    assert rig.engine.store.topics.by_name[IDEMPOTENCY_TOPIC].waiters
    assert rig.ok("GET", f"/v1/topics/{IDEMPOTENCY_TOPIC}")["waiting"] == 0
    assert rig.line.stats.report(rig.api.now_ms())["current-waiting"] == 0


def test_each_call_that_is_refused_says_so_in_the_document() -> None:
    with HttpRig() as rig:
        document = rig.ok("GET", "/openapi.json")
    told = {name for name in document["components"]["responses"] if "TopicIsOwn" in name}
    for route in ROUTES:
        refs = document["paths"][route.path][route.method.lower()]["responses"]
        says = refs["403"]["$ref"].rpartition("/")[2] in told
        assert says == (
            (is_about_it(route) and route.scope not in LOOKING) or route.path == "/v1/reserve"
        )
