"""Puts that are refused: everything that is wrong with one is named, and nothing has changed."""

import pytest

from delayd.limits import (
    HTTP_BODY_BYTES_DEFAULT,
    HTTP_DEPTH_READ,
)
from tests.rigs.http import JOBS, HttpRig, put

# --- What is wrong --------------------------------------------------------------------------------


def test_a_step_is_wrong_in_its_type_also_after_an_equal_one_that_is_right() -> None:
    with HttpRig() as rig:
        for steps, status in (
            ([1], 201),
            ([True], 422),
            (["1s"], 201),
            ("1s", 201),
            ([["1s"]], 422),
        ):
            assert rig.call("POST", JOBS, {"body": 1, "retry": steps}).status == status


def test_a_key_in_the_path_is_none_in_the_body() -> None:
    with HttpRig() as rig:
        answer = rig.call("PUT", "/v1/topics/mail/keys/a", {"body": 1, "key": "b"})
        assert (answer.status, answer.fields) == (422, ["key"])
        answer = rig.call("PUT", "/v1/topics/mail/keys/a%20b", {"body": 1})
        assert (answer.status, answer.word) == (422, "BAD_FORMAT")


def test_a_field_that_is_nearly_right_is_proposed() -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", JOBS, {"body": 1, "dealy": 5, "x" * 10_000: 1})
        near, far = answer.json["errors"]
        assert near["detail"].endswith("did you mean delay?")
        assert far["detail"] == "there is no such field"


@pytest.mark.parametrize("topic", ["-mail", "a%20b", "%C3%A9", "x" * 201, "a%2Fb%00"])
def test_a_name_that_no_topic_can_have_is_refused(topic: str) -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", f"/v1/topics/{topic}/jobs", {"body": 1})
        assert (answer.status, answer.word) == (422, "BAD_FORMAT")


# --- What the engine refuses ----------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"key": "a"}, {"max_attempts": 2}])
def test_a_moment_beyond_what_the_policy_allows_is_blamed_and_no_delay(
    more: dict[str, object],
) -> None:
    with HttpRig(is_virtual=True) as rig:
        rig.ok("PUT", "/v1/topics/mail/policy", {"delay_max": "1h"})
        job = {"body": 1, "at": "2023-11-15T22:13:21Z", **more}
        answer = rig.call("POST", JOBS, job)
        assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", ["at"])
        assert answer.json["detail"] == "delay_max of topic 'mail' is 1h, and this would be 1d1s"
        (result,) = rig.call("POST", JOBS, {"jobs": [job]}).json["results"]
        assert result["problem"]["errors"][0]["field"] == "at"
        assert not rig.engine.log_space.jobs


def test_a_ttr_of_0_is_refused_wherever_one_is_said() -> None:
    with HttpRig() as rig:
        put(rig, key="a")
        before = rig.ok("GET", "/v1/jobs/1")
        by_key = "/v1/topics/mail/keys/a"
        for method, path in (("PUT", by_key), ("PATCH", by_key), ("PATCH", "/v1/jobs/1")):
            job = {"body": 1, "ttr": 0}
            answer = rig.call(method, path, job)
            assert (answer.status, answer.word, answer.fields) == (422, "BAD_FORMAT", ["ttr"])
            assert answer.json["errors"][0]["detail"] == "must be more than 0, up to 4294967295 s"
        assert rig.ok("GET", "/v1/jobs/1") == before
        put(rig, ttr=1e-9)
        assert rig.ok("GET", "/v1/jobs/2")["ttr"] == 0.001, "more than 0 is rounded up"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"body":NaN}',
        b'{"body":1e999}',
        b'{"body":"\xff"}',
        rb'{"body":"\ud800"}',
        b'{"body":1}x',
        b'\xef\xbb\xbf{"body":1}',
        b"{'body':1}",
        b'{"body":%b}' % (b"[" * 200_000),
        b'{"body":%b}' % (b"[" * 1_010 + b"]" * 1_010),
    ],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", JOBS, data=data)
        assert (answer.status, answer.word) == (400, "BAD_JSON")
        assert rig.engine.log_space.jobs == 0


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b'{"body": "\xff"}', "the byte 0xff at offset 10 is not UTF-8"),
        (b'{"body": 1, "key": "a\xc3"}', "the byte 0xc3 at offset 21 is not UTF-8"),
        (
            b'{"body": %b}' % (b"[" * 1_100 + b"]" * 1_100),
            f"arrays and objects are nested too deeply; {HTTP_DEPTH_READ} levels are read",
        ),
    ],
)
def test_why_a_body_is_no_json_is_told_in_our_own_words(data: bytes, told: str) -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", JOBS, data=data)
        assert (answer.status, answer.word) == (400, "BAD_JSON")
        assert answer.json["detail"] == f"the body is not a JSON text: {told}"


def test_a_body_as_deep_as_the_limit_is_read() -> None:
    depth = HTTP_DEPTH_READ - 1  # the object around it is one more
    with HttpRig() as rig:
        body = b"[" * depth + b"]" * depth
        assert rig.call("POST", JOBS, data=b'{"body": %b}' % body).status == 201


@pytest.mark.parametrize("text", ["aa", "YQ", "%", "YQ==="])
def test_a_body_that_is_no_base64_is_told_its_rule(text: str) -> None:
    with HttpRig() as rig:
        (error,) = rig.call("POST", JOBS, {"body_base64": text}).json["errors"]
        rule = "must be base64, with its padding: the length a multiple of 4"
        assert error == {"field": "body_base64", "detail": rule}


@pytest.mark.parametrize("depth", [900, 1_000, 1_010, 1_020, 2_000, 100_000])
@pytest.mark.parametrize(
    "data", [b'{"priority":"x","body":%b}', b'{"colour":%b}', b'{"jobs":[{"key":7,"body":%b}]}']
)
def test_a_mistake_beside_a_deep_body_is_refused_like_any_other(data: bytes, depth: int) -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", JOBS, data=data % (b"[" * depth + b"]" * depth))
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
def test_a_mistake_as_long_as_a_request_may_be_is_not_said_again(path: str, data: bytes) -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", path, data=data % (b"\xee\x80\x80" * 1_000_000))
        assert (answer.status, answer.word) == (422, "BAD_FORMAT")
        assert len(answer.body) < 20_000


def test_a_request_that_is_too_long_is_refused_by_its_length() -> None:
    with HttpRig() as rig:
        answer = rig.call("POST", JOBS, data=b" " * (HTTP_BODY_BYTES_DEFAULT + 1))
        assert (answer.status, answer.word) == (413, "JOB_TOO_BIG")
        assert (
            rig.call("POST", JOBS, data=b'{"body":1}'.ljust(HTTP_BODY_BYTES_DEFAULT)).status == 201
        )
