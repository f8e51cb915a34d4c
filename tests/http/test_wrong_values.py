"""What each call refuses, and the fields that it names; nothing of it is carried out."""

import json
from pathlib import Path
from typing import Final

import pytest

from delayd import limits
from tests.core.canonical import canonical
from tests.rigs.http import HttpRig
from tests.rigs.written import Fact, facts_of

HELD: Final = "1-18bcfe56800-1"
"""The token of the job that is in hand."""
LONG: Final[list[tuple[str, object, str]]] = [  # of a list that is too long no item is looked at
    ("POST /v1/topics/mail/jobs", {"body": 1, "retry": [1] * 256}, "retry"),
    ("POST /v1/topics/mail/jobs", {"jobs": [1] * (limits.HTTP_BATCH_MAX + 1)}, "jobs"),
    ("POST /v1/ack", {"tokens": ["x"] * (limits.HTTP_BATCH_MAX + 1)}, "tokens"),
    ("POST /v1/nack", {"nacks": [1] * (limits.HTTP_BATCH_MAX + 1)}, "nacks"),
    ("POST /v1/reserve", {"topics": ["-x"] * (limits.HTTP_TOPICS_MAX + 1)}, "topics"),
    ("GET /v1/topics/mail/jobs?", f"prefix={'x' * (limits.KEY_BYTES_MAX + 1)}", "prefix"),
    (
        "GET /v1/calendar?",
        "&".join(f"topic=t{number}" for number in range(limits.HTTP_CALENDAR_TOPICS_MAX + 1)),
        "topic",
    ),
    (
        "GET /v1/dead?",
        "&".join(f"topic=t{number}" for number in range(limits.HTTP_DEAD_TOPICS_MAX + 1)),
        "topic",
    ),
]


def test_the_numbers_one_beyond_a_bound_are_those_of_the_limits() -> None:
    written = (Path(__file__).parent / "wrong_values.txt").read_text()
    assert (
        limits.HTTP_TOPICS_PAGE_MAX
        == limits.CALENDAR_BINS_MAX
        == limits.HTTP_BATCH_MAX
        == limits.SEARCH_JOBS_MAX
        == 1_000
    )
    assert f'{{"max": {limits.CAP_MAX + 1},' in written
    assert f'{{"wait": {limits.HTTP_WAIT_MS_MAX / 1_000 + 0.001}}}' in written


def refuse(rig: HttpRig, call: str, given: str, fields: list[str]) -> None:
    """Raise unless the call refuses that, and names these fields."""
    method, _, path = call.partition(" ")
    query, data = (given, None) if path.endswith("?") else ("", given.encode())
    answer = rig.call(method, path + query, data=data)
    assert (answer.status, answer.word) == (422, "BAD_FORMAT"), given
    assert sorted(answer.fields) == sorted(fields), given


def with_jobs() -> HttpRig:
    """Job 1 is in hand, and job 2 waits."""
    rig = HttpRig(is_virtual=True)
    rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1})
    (job,) = rig.ok("POST", "/v1/topics/mail/reserve")["jobs"]
    assert job["token"] == HELD
    rig.ok("POST", "/v1/topics/mail/jobs", {"body": 1, "delay": 9})
    return rig


@pytest.mark.parametrize("call", facts_of(Path(__file__).parent / "wrong_values.txt"), ids=str)
def test_all_that_is_wrong_is_named_and_nothing_is_done(call: Fact) -> None:
    with with_jobs() as rig:
        before = [*canonical(rig.engine)]
        for step in call.steps:
            given, _, fields = step.replace("$held", HELD).partition(" -> ")
            named = ["" if field == "()" else field for field in fields.split()]
            refuse(rig, call.name, given, named)
        assert [*canonical(rig.engine)] == before


def test_what_is_too_long_is_named_and_nothing_is_done() -> None:
    with with_jobs() as rig:
        before = [*canonical(rig.engine)]
        for call, given, field in LONG:
            text = given if isinstance(given, str) else json.dumps(given)
            refuse(rig, call, text, [field])
        assert [*canonical(rig.engine)] == before
