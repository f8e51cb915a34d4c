"""What each call refuses, and the fields that it names; nothing of it is carried out."""

import json
from typing import Any, Final

import pytest

from delayd.limits import (
    CALENDAR_BINS_MAX,
    CAP_MAX,
    HTTP_BATCH_MAX,
    HTTP_CALENDAR_TOPICS_MAX,
    HTTP_TOPICS_MAX,
    HTTP_TOPICS_PAGE_MAX,
    HTTP_WAIT_MS_MAX,
    KEY_BYTES_MAX,
    SEARCH_JOBS_MAX,
)
from tests.core.canonical import canonical
from tests.rigs.http import HttpRig

HELD: Final = "1-18bcfe56800-1"
"""That of the job which is in hand."""
NO_TOKENS: Final[list[tuple[object, list[str]]]] = [
    *(({"token": token}, ["token"]) for token in ("", 7, "1-x-1", "0-0-1", "1-0-1 ", "2-0-1")),
    ({"token": HELD, "colour": 1}, ["colour"]),
]
WRONG: Final[dict[str, list[tuple[Any, list[str]]]]] = {
    "GET /v1/topics?": [
        ("limit=0", ["limit"]),
        (f"limit={HTTP_TOPICS_PAGE_MAX + 1}", ["limit"]),
        ("limit=x&after=-", ["limit", "after"]),
        ("limit=1&limit=2", ["limit"]),
        ("aftr=x", ["aftr"]),
    ],
    "POST /v1/topics/mail/pause": [
        ({}, ["duration"]),
        ({"duration": 0}, ["duration"]),
        ({"duration": "soon", "until": 1}, ["duration", "until"]),
        ({"duration": -1}, ["duration"]),
    ],
    "POST /v1/topics/mail/kick": [
        ({"max": 0}, ["max"]),
        ({"max": CAP_MAX + 1, "per_second": -1}, ["max", "per_second"]),
        ({"per_second": "fast"}, ["per_second"]),
        ({"per_second": 1e-20}, ["per_second"]),
        ({"maximum": 1}, ["maximum"]),
    ],
    "GET /v1/topics/mail/jobs?": [
        ("state=lost", ["state"]),
        ("state=", ["state"]),
        ("state=ready,", ["state"]),
        ("from=soon&to=2023-11-15", ["from", "to"]),
        ("from=2h&to=1h", ["to"]),
        ("from=1h&to=1h", ["to"]),
        ("from=2023-11-15T00:13:20Z&to=2023-11-14T00:13:20Z", ["to"]),
        ("from=2023-11-15T00:13:20", ["from"]),
        ("from=--1h", ["from"]),
        (f"prefix={'x' * (KEY_BYTES_MAX + 1)}", ["prefix"]),
        ("limit=0", ["limit"]),
        (f"limit={SEARCH_JOBS_MAX + 1}", ["limit"]),
        ("after=7", ["after"]),
        ("after=1a-7-7", ["after"]),
        ("bodies=perhaps", ["bodies"]),
        ("bodys=true&state=ready&state=ready", ["bodys", "state"]),
        ("dry_run=true", ["dry_run"]),
    ],
    "GET /v1/calendar?": [
        ("bins=0", ["bins"]),
        (f"bins={CALENDAR_BINS_MAX + 1}&horizon=soon", ["bins", "horizon"]),
        ("bins=100&horizon=0.05", ["horizon"]),
        ("horizon=0", ["horizon"]),
        ("from=noon", ["from"]),
        ("topic=-x&topic=mail", ["topic"]),
        ("topic=mail&after=mail", ["after"]),
        ("&".join(f"topic=t{number}" for number in range(HTTP_CALENDAR_TOPICS_MAX + 1)), ["topic"]),
    ],
    "PATCH /v1/jobs/1": [
        ({}, [""]),
        ({"delay": 1, "at": 2}, ["at"]),
        ({"body": 1, "body_base64": ""}, ["body_base64"]),
        ({"priority": -1, "ttr": "x", "delay": None}, ["delay", "priority", "ttr"]),
        ({"key": "b", "ttr": 1}, ["key"]),
        ({"max_attempts": 1}, ["", "max_attempts"]),
        ({"group": ""}, ["group"]),
    ],
    "POST /v1/topics/mail/jobs": [
        ({}, ["body"]),
        ([1], [""]),
        (7, [""]),
        ({"body": 1, "body_base64": "YQ=="}, ["body_base64"]),
        ({"body_base64": "YQ"}, ["body_base64"]),
        ({"body_base64": "%"}, ["body_base64"]),
        ({"body": 1, "delay": 1, "at": 2}, ["at"]),
        ({"body": 1, "delay": -1}, ["delay"]),
        ({"body": 1, "delay": None}, ["delay"]),
        ({"body": 1, "delay": True}, ["delay"]),
        ({"body": 1, "delay": "9999999d"}, ["delay"]),
        ({"body": 1, "at": "2023-11-14"}, ["at"]),
        ({"body": 1, "at": "2023-11-14T22:13:20"}, ["at"]),
        ({"body": 1, "at": "2023-11-14T22:13:20.500"}, ["at"]),
        ({"body": 1, "at": -1}, ["at"]),
        ({"body": 1, "at": 1e300}, ["at"]),
        ({"body": 1, "at": "0001-01-01T00:00:00Z"}, ["at"]),
        ({"body": 1, "priority": -1}, ["priority"]),
        ({"body": 1, "priority": 2**32}, ["priority"]),
        ({"body": 1, "priority": 1.5}, ["priority"]),
        ({"body": 1, "ttr": "x"}, ["ttr"]),
        ({"body": 1, "ttr": 0}, ["ttr"]),
        ({"body": 1, "ttr": "0s", "key": "a", "on_conflict": "keep"}, ["ttr"]),
        ({"jobs": [{"body": 1}, {"body": 1, "ttr": 0.0}]}, ["jobs[1].ttr"]),
        ({"body": 1, "retry": []}, ["retry"]),
        ({"body": 1, "retry": "15s x"}, ["retry"]),
        ({"body": 1, "retry": [1] * 256}, ["retry"]),
        ({"body": 1, "max_attempts": 0}, ["max_attempts"]),
        ({"body": 1, "jitter_percent": 5}, ["jitter_percent"]),
        ({"body": 1, "retry": "x", "jitter_percent": 5}, ["retry"]),
        ({"body": 1, "retry": "1s", "jitter_percent": 101}, ["jitter_percent"]),
        ({"body": 1, "on_conflict": "keep"}, ["on_conflict"]),
        ({"body": 1, "key": "a b", "on_conflict": "keep"}, ["key"]),
        ({"body": 1, "key": "a", "on_conflict": "fight"}, ["on_conflict"]),
        ({"body": 1, "url": "ftp://example.com"}, ["url"]),
        ({"body": 1, "url": 7, "method": "HEAD", "headers": []}, ["url", "method", "headers"]),
        ({"body": 1, "method": "POST", "headers": {}}, ["method", "headers"]),
        ({"body": 1, "url": "https://a.b", "headers": {"webhook-id": "1"}}, ["headers"]),
        ({"body": 1, "url": "https://a.b", "headers": {"X": "a\nb"}}, ["headers"]),
        ({"body": 1, "url": "https://a.b", "headers": {"X": 1}}, ["headers"]),
        ({"body": 1, "push": None}, ["push"]),
        ({"body": 1, "colour": "red"}, ["colour"]),
        (
            {"delay": "soon", "at": 1, "ttr": -1, "priority": "high", "colour": 1, "url": ""},
            ["delay", "ttr", "priority", "colour", "body", "at", "url"],
        ),
    ],
    "POST /v1/ack": [
        ({}, ["tokens"]),
        ({"tokens": []}, ["tokens"]),
        ({"tokens": ["1-0-1"] * (HTTP_BATCH_MAX + 1)}, ["tokens"]),
        ({"tokens": ["x"]}, ["tokens[0]"]),
    ],
    "POST /v1/nack": [
        ({"nacks": []}, ["nacks"]),
        ({"nacks": [{"token": "1-0-1"}] * (HTTP_BATCH_MAX + 1)}, ["nacks"]),
        (
            {"nacks": [{}, {"token": "x", "delay": "y"}]},
            ["nacks[0].token", "nacks[1].delay", "nacks[1].token"],
        ),
    ],
    "POST /v1/topics/mail/reserve": [
        ({"max": 0}, ["max"]),
        ({"max": HTTP_BATCH_MAX + 1}, ["max"]),
        ({"wait": HTTP_WAIT_MS_MAX / 1_000 + 0.001}, ["wait"]),
        ({"wait": "1m1ms", "max": "x"}, ["max", "wait"]),
        ({"wait": "soon", "bodies": "none"}, ["bodies", "wait"]),
        ({"topics": ["mail"]}, ["topics"]),
    ],
    "POST /v1/reserve": [
        ({}, ["topics"]),
        ({"topics": []}, ["topics"]),
        ({"topics": ["mail", "-sms"]}, ["topics[1]"]),
        ({"topics": ["mail"] * (HTTP_TOPICS_MAX + 1)}, ["topics"]),
        ({"topics": "mail"}, ["topics"]),
    ],
    "POST /v1/jobs/1/nack": [
        ({"token": HELD, "delay": -1, "priority": -1, "error": 7}, ["delay", "error", "priority"]),
        *NO_TOKENS,
    ],
    "POST /v1/jobs/1/bury": [
        (
            {"token": HELD, "priority": 2**32, "error": None, "delay": 1},
            ["delay", "error", "priority"],
        ),
        *NO_TOKENS,
    ],
    "POST /v1/jobs/1/touch": [
        ({"token": HELD, "delay": 1}, ["delay"]),
        *NO_TOKENS,
    ],
    "POST /v1/jobs/1/ack": [
        ({"token": HELD, "error": ""}, ["error"]),
        *NO_TOKENS,
    ],
    "POST /v1/topics/mail/jobs/reschedule": [
        ({}, ["delay"]),
        ({"delay": "soon"}, ["delay"]),
        ({"delay": 1, "at": 4_000_000_000}, ["at"]),
        ({"at": "soon"}, ["at"]),
    ],
    "POST /v1/topics/mail/jobs/reschedule?limit=3": [
        ({"delay": 1}, ["limit"]),
    ],
    "POST /v1/topics/mail/jobs/reschedule?dry_run=2": [
        ({"delay": 1}, ["dry_run"]),
    ],
}
"""By call, what is given to it, or its query, and the fields that are named."""


@pytest.mark.parametrize("call", WRONG)
def test_all_that_is_wrong_is_named_and_nothing_is_done(call: str) -> None:
    method, _, path = call.partition(" ")
    with HttpRig(is_virtual=True) as rig:
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1})
        (job,) = rig.ok("POST", "/v1/topics/mail/reserve")["jobs"]
        assert job["token"] == HELD
        rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1, "delay": 9})
        before = [*canonical(rig.engine)]
        for given, fields in WRONG[call]:
            where = path.replace("jobs/1", "jobs/2") if method == "PATCH" else path
            query, data = (given, None) if path.endswith("?") else ("", json.dumps(given).encode())
            answer = rig.call(method, where + query, data=data)
            assert (answer.status, answer.word) == (422, "BAD_FORMAT"), given
            assert sorted(answer.fields) == sorted(fields), given
        assert [*canonical(rig.engine)] == before
