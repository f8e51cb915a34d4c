"""Whatever the API answers is described: in the structs, member by member, and in the document.

The stories ask sensible things and others. Each answer is read back into the struct of its status,
which refuses members that are not described, and is held against the OpenAPI document. In the end
every answer that a call may give has been given.
"""

import json
import re
from functools import cache
from typing import Any, Final, Unpack

import msgspec
import pytest

from delayd.http.problems import CONTENT_TYPE, ProblemAnswer
from delayd.http.routes import ROUTES
from delayd.http.routing import Route
from delayd.http.values import Answer as Described
from tests.http.test_every_call import ask, begin
from tests.http.test_stories import STORIES, play
from tests.rigs.http import Answer, HttpRig, Said
from tests.rigs.openapi import validator, whole_document

INTERNAL: Final = re.compile(rb"[a-z]_ms\b")
"""How the daemon calls a length of time where nobody sees it."""
PATHS: Final = [(re.compile(re.sub(r"\{\w+\}", "[^/]+", route.path)), route) for route in ROUTES]


class JudgedRig(HttpRig):
    """A daemon whose every answer to a call has to be described."""

    seen: Final[set[tuple[str, int]]] = set()

    def call(self, method: str, path: str, json: object = None, **more: Unpack[Said]) -> Answer:
        answer = super().call(method, path, json, **more)
        for pattern, route in PATHS:
            if route.method == method and pattern.fullmatch(path.partition("?")[0]):
                self.seen.add((route.name, answer.status))
                check(route, answer)
                break
        return answer


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


@pytest.mark.thorough
def test_every_answer_is_described_and_every_description_is_answered() -> None:
    for story in STORIES:
        play(story, JudgedRig)
    for route in ROUTES:
        with JudgedRig(is_virtual=True) as rig:
            begin(rig)
            ask(rig, route)
    described = {(route.name, status) for route in ROUTES for status in route.responses}
    assert described <= JudgedRig.seen


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
