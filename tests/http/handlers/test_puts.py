"""Puts whose bodies and mistakes no text file could hold; nothing refused is kept."""

from typing import Any

import pytest

from delayd.core.errors import TargetRefused
from delayd.core.job_parts import body_of
from delayd.core.targets import Target
from delayd.limits import HTTP_BODY_BYTES_DEFAULT, HTTP_DEPTH_READ
from tests.rigs.http import JOBS, RESERVE, HttpRig


def deep(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.parametrize(
    "body",
    [
        *(b'{ "a" :  1.0,\n"b":[ ]\t}', b"1.0", b"-0", b"1e2", b'{"a":1,"a":2}', b"null", b'""'),
        *(b"1234567890" * 6, rb'"\u00e9\/\u0041"', '"käse ✓"'.encode(), b"false", deep(900)),
    ],
)
def test_a_json_body_comes_back_as_the_very_text(rig: HttpRig, body: bytes) -> None:
    for data in (b'{"body":%b}', b'{"body" : %b }', b'{"jobs":[{"body": %b}]}'):
        assert rig.call("POST", JOBS, data=data % body).status == 201
        assert rig.call("POST", RESERVE).body.endswith(b'"body":%b}]}' % body)
    record = rig.engine.store.jobs.get(1)
    assert record is not None
    assert body_of(record) == body
    assert b'"body":%b}' % body in rig.call("GET", "/v1/jobs/1").body


def test_a_body_as_deep_as_the_limit_is_read_and_a_deeper_one_told_so(rig: HttpRig) -> None:
    depth = HTTP_DEPTH_READ - 1  # the object around it is one more
    told = f"arrays and objects are nested too deeply; {HTTP_DEPTH_READ} levels are read"
    for data in (b'{"body": %b}', b'{"jobs": [{"body": %b}]}'):
        for inner in (1_010, 1_100, 100_000):
            answer = rig.call("POST", JOBS, data=data % deep(inner))
            assert (answer.status, answer.word) == (400, "BAD_JSON")
            assert answer.json["detail"] == f"the body is not JSON: {told}"
    assert rig.call("POST", JOBS, data=b'{"body": %b}' % (b"[" * 200_000)).status == 400
    assert rig.engine.log_space.jobs == 0
    assert rig.call("POST", JOBS, data=b'{"body": %b}' % deep(depth)).status == 201


@pytest.mark.parametrize("depth", [900, 1_000, 1_010, 1_020, 2_000, 100_000])
def test_a_mistake_beside_a_deep_body_is_refused_like_any_other(rig: HttpRig, depth: int) -> None:
    beside = (b'{"priority":"x","body":%b}', b'{"colour":%b}', b'{"jobs":[{"key":7,"body":%b}]}')
    for data in beside:
        answer = rig.call("POST", JOBS, data=data % deep(depth))
        assert (answer.status, answer.word) in {(400, "BAD_JSON"), (422, "BAD_FORMAT")}


@pytest.mark.parametrize(
    ("path", "data"),
    [
        (JOBS, b'{"body":1,"%b":1}'),
        (JOBS, b'{"body":1,"key":"%b"}'),
        (JOBS, b'{"jobs":[{"body":1,"%b":1}]}'),
        ("/v1/reserve", b'{"topics":["%b-"]}'),
    ],
)
def test_a_mistake_as_long_as_a_request_may_be_is_not_said_again(
    rig: HttpRig, path: str, data: bytes
) -> None:
    answer = rig.call("POST", path, data=data % (b"\xee\x80\x80" * 1_000_000))
    assert (answer.status, answer.word) == (422, "BAD_FORMAT")
    assert len(answer.body) < 20_000


def test_a_request_as_long_as_may_be_is_taken_and_a_long_name_cut_short(rig: HttpRig) -> None:
    (error,) = rig.call("POST", JOBS, {"body": 1, "x" * 10_000: 1}).json["errors"]
    assert error["detail"] == "there is no such field"
    assert len(error["field"]) < 1_100
    data = b'{"body":1}'.ljust(HTTP_BODY_BYTES_DEFAULT)
    assert rig.call("POST", JOBS, data=data).status == 201


def test_a_long_request_keeps_the_target_and_refuses_headers_that_are_too_many(
    rig: HttpRig,
) -> None:
    hook: dict[str, Any] = {"url": "https://example.com/due", "headers": {"X-Team": "mail"}}

    def vet(target: Target) -> Target:
        if not target.url.startswith("https:"):
            raise TargetRefused(f"url {target.url!r}", "must be https")
        return target

    rig.engine.vet_target = vet
    rig.ok("POST", JOBS, {"body": "x" * 20_000, **hook})
    assert hook.items() <= rig.ok("GET", "/v1/jobs/1").items()
    many = {"body": 1, **hook, "headers": {f"X-{n}": "x" * 100 for n in range(500)}}
    for given in (many, {"jobs": [many]}):
        refused = rig.call("POST", JOBS, given)
        assert (refused.status, refused.fields[0].endswith("headers")) == (422, True)
    assert len(rig.engine.store.jobs) == 1
