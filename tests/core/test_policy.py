"""Policies: read with all errors at once, written in one spelling, judged the same for ever."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from delayd.core.errors import PolicyInvalid
from delayd.core.policy import FIELDS, NO_POLICY, PATTERN, Patterns, Policy, parse_ladder
from delayd.core.targets import Target, read_target
from delayd.durations import duration_text
from delayd.limits import (
    ATTEMPTS_MAX,
    CAP_MAX,
    DURATION_MS_MAX,
    POLICY_JSON_BYTES_MAX,
    RETRY_STEPS_MAX,
)
from tests.rigs.written import tables_of

HOUR_MS = 3_600_000
LADDER = "15s 3m 10m 30m 30m 1h 2h 6h 15h"
LADDER_MS = (
    *(15_000, 180_000, 600_000, HOUR_MS // 2, HOUR_MS // 2),
    *(HOUR_MS, 2 * HOUR_MS, 6 * HOUR_MS, 15 * HOUR_MS),
)

EVERYTHING = Policy(
    ttr_ms=120_000,
    delay_ms=1_500,
    retry_ms=LADDER_MS,
    jitter_percent=10,
    attempts_max=7,
    exhausted="mail.dead",
    returns_on_close=True,
    history=9,
    jobs_max=1_000,
    bytes_max=1 << 20,
    body_bytes_max=100,
    delay_ms_max=30 * 24 * HOUR_MS,
    reserved_max=20,
    rate_per_s=0.5,
    push=Target(topic="mail.out", concurrency=3),
    group_reserved_max=1,
    group_rate_per_s=10,
    group_jobs_max=500,
    is_group_by_put=True,
    group_waits=True,
    fair=True,
    group_weights=((b"acme", 5),),
    group_from="body:customer",
    is_group_required=True,
)

TABLES = tables_of(Path(__file__).parent / "policies.txt")


# --- Reading and writing -------------------------------------------------------------------------


def test_a_policy_is_read_as_people_write_it() -> None:
    text = f"""{{
        "ttr": "2m", "delay": 1.5, "retry": "{LADDER}", "jitter_percent": 10, "max_attempts": 7,
        "exhausted": "mail.dead", "on_close": "return", "history": 9, "jobs_max": 1000,
        "bytes_max": "1MiB", "body_bytes_max": 100, "delay_max": "30d", "reserved_max": 20,
        "rate_per_s": 0.5,
        "push": {{"topic": "mail.out", "concurrency": 3}},
        "group_reserved_max": 1, "group_rate_per_s": 10, "group_jobs_max": 500,
        "group_order": "put", "group_on_retry": "wait", "fair": true,
        "group_weights": {{"acme": 5}}, "group_from": "body:customer", "group_required": true
    }}"""
    assert Policy.from_json(text) == Policy.from_json(text.encode()) == EVERYTHING


def test_a_policy_has_one_spelling_with_sorted_keys() -> None:
    text = EVERYTHING.to_json()
    assert [*json.loads(text)] == sorted(row.name for row in FIELDS)
    assert json.loads(text)["retry"] == LADDER.split()
    assert Policy.from_json(text) == EVERYTHING


@pytest.mark.parametrize(
    "text", ["{}", '{"exhausted": "bury"}', '{"on_close": "failure"}', '{"retry": null}']
)
def test_what_says_nothing_is_not_written(text: str) -> None:
    policy = Policy.from_json(text)
    assert policy.to_json() == "{}"
    assert policy == NO_POLICY
    assert policy.rule is None


def test_a_policy_that_says_anything_is_not_the_one_that_says_nothing() -> None:
    for row in FIELDS:
        assert Policy(**{row.inside: getattr(EVERYTHING, row.inside)}) != NO_POLICY, row.name
    assert Policy(delay_ms=0) != NO_POLICY


LEAST = {
    **dict.fromkeys(("ttr_ms", "attempts_max", "jobs_max", "bytes_max", "body_bytes_max"), 1),
    **dict.fromkeys(("reserved_max", "group_reserved_max", "group_jobs_max"), 1),
    **dict.fromkeys(("delay_ms", "delay_ms_max", "jitter_percent", "history"), 0),
    **dict.fromkeys(("rate_per_s", "group_rate_per_s"), 0.001),
}
MOST = {
    **dict.fromkeys(("ttr_ms", "delay_ms", "delay_ms_max"), DURATION_MS_MAX),
    **dict.fromkeys(("jobs_max", "bytes_max", "reserved_max", "group_reserved_max"), CAP_MAX),
    "attempts_max": ATTEMPTS_MAX,
    "jitter_percent": 100,
    "body_bytes_max": 1 << 30,
    **dict.fromkeys(("rate_per_s", "group_rate_per_s"), 1_000_000),
}
PUSHED = Target(
    *("https://example.com/a?b=c", "", ""), "PUT", (("Accept", ""), ("X-Team", "a b")), 700,
    ("first", "second"), 256, 0.001,
)  # fmt: skip


@pytest.mark.parametrize("fields", [LEAST, MOST, {"push": PUSHED, "group_from": "key:/"}])
def test_every_policy_is_read_as_it_was_written(fields: dict[str, Any]) -> None:
    policy = Policy(**fields)
    assert Policy.from_json(policy.to_json()) == policy
    assert Policy.from_json(policy.to_json()).to_json() == policy.to_json()


def test_every_field_has_one_row() -> None:
    assert sorted(row.inside for row in FIELDS) == sorted(Policy._fields)


def errors_of(text: str) -> tuple[str, ...]:
    with pytest.raises(PolicyInvalid) as caught:
        Policy.from_json(text)
    errors = tuple(map(str, caught.value.errors))
    assert str(caught.value) == "the policy is not valid: " + "; ".join(errors)
    return errors


def test_all_that_is_wrong_is_named_at_once() -> None:
    text = '{"ttr": 0, "max_atempts": 3, "retry": ["15s", 0], "jobs_max": "many", "qqq": 1}'
    assert errors_of(text) == (
        "ttr = 0: must be more than 0, up to 4294967295 s",
        "max_atempts: there is no such field; did you mean max_attempts?",
        'retry = ["15s", 0]: step 2, 0, must be more than 0: what failed would fail again at once',
        f'jobs_max = "many": must be a whole number from 1 to {CAP_MAX}',
        "qqq: there is no such field",
    )


def test_the_former_name_of_a_field_is_read_but_not_written() -> None:
    """Journals that were written before say it."""
    policy = Policy.from_json('{"attempts_max": 3}')
    assert policy == Policy(attempts_max=3)
    assert policy.to_json() == '{"max_attempts": 3}'
    for text in (
        '{"attempts_max": 3, "max_attempts": 3}',
        '{"max_attempts": 3, "attempts_max": 3}',
    ):
        assert errors_of(text) == ("attempts_max: means max_attempts, which is given too",)
    assert errors_of('{"attempts_max": 0}')[0].startswith("attempts_max = 0: must be a whole")


@pytest.mark.parametrize(("name", "error", "value"), TABLES["values"])
def test_a_wrong_value_is_named_with_the_rule(name: str, value: str, error: str) -> None:
    (only,) = errors_of(f'{{"{name}": {value}}}')
    said, _, rule = only.partition(": ")
    assert said.startswith(f"{name} = ")
    assert rule.startswith(error)
    assert len(said) < 220


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "it is not JSON: "),
        ("{" * 10_000, "it is not JSON: "),
        ("[]", "it is not a JSON object"),
        ('"15s"', "it is not a JSON object"),
        (" " * (POLICY_JSON_BYTES_MAX + 1), "it is longer than 16384 bytes"),
        ('{"jobs_max": 1, "jobs_max": 1}', "jobs_max: is given twice"),
        ('{"jobs_max": null, "jobs_max": 1, "jobs_max": 2}', "jobs_max: is given twice"),
    ],
)
def test_what_is_no_policy_at_all_is_one_error(text: str, error: str) -> None:
    (only,) = errors_of(text)
    assert only.startswith(error)


@pytest.mark.thorough
def test_a_policy_that_is_nested_deeply_is_refused_however_deeply() -> None:
    for depth in range(700, 1_000):
        with pytest.raises(PolicyInvalid):
            Policy.from_json('{"ttr": ' + "[" * depth + "]" * depth + "}")


def test_of_a_ladder_that_is_all_wrong_the_first_steps_are_named() -> None:
    with pytest.raises(ValueError, match=r"step 1, .*; step 10, [^;]*$"):
        parse_ladder("x " * RETRY_STEPS_MAX)
    for text in (" " * 1_000_000 + "15s", "1s " * (RETRY_STEPS_MAX + 1)):
        with pytest.raises(ValueError, match="must be 1 to"):
            parse_ladder(text)


def test_the_longest_ladder_fits_its_limit() -> None:
    steps_ms = [DURATION_MS_MAX - n for n in range(RETRY_STEPS_MAX)]
    text = Policy(retry_ms=parse_ladder([*map(duration_text, steps_ms)])).to_json()
    assert len(text) <= POLICY_JSON_BYTES_MAX
    assert Policy.from_json(text).retry_ms == tuple(steps_ms)


def test_a_policy_that_could_not_be_read_again_is_refused_wherever_it_comes_from() -> None:
    headers = {f"X-{n}": '"' * 120 for n in range(32)}
    push = {"url": "https://example.com/" + "ä" * 1_000, "headers": headers}
    assert Policy.from_fields({"push": push}).push == read_target(push)
    with pytest.raises(PolicyInvalid, match="is longer than 16384 bytes"):
        Policy.from_fields({"push": push, "retry": ["999d1ms"] * RETRY_STEPS_MAX})


@pytest.mark.parametrize("text", [LADDER, LADDER.replace(" ", ","), f" {LADDER.split()} "])
def test_a_ladder_is_separated_by_spaces_or_commas(text: str) -> None:
    plain = text.strip().strip("[]").replace("'", "")
    assert parse_ladder(plain) == LADDER_MS


# --- Patterns ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "pattern"), TABLES["patterns"])
def test_the_most_specific_pattern_counts(name: str, pattern: str) -> None:
    every = ("*", "mail.*", "mail.?", "mail.*.urgent", "order?", "orders", "?.b", "a.?")
    patterns = Patterns({each: Policy(jobs_max=n) for n, each in enumerate(every, 1)})
    assert patterns.of(name) is patterns.by_pattern[pattern]


def test_of_patterns_that_are_as_specific_the_first_counts() -> None:
    first, second = Policy(jobs_max=1), Policy(jobs_max=2)
    assert Patterns({"a*": first, "*b": second}).of("ab") is first
    assert Patterns({"*b": second, "a*": first}).of("ab") is second


def test_patterns_are_made_of_what_names_are_made_of() -> None:
    assert PATTERN.read("mail.*")
    assert PATTERN.read("-")
    for wrong in ("", "a b", "x" * 201, "[a]", "é"):
        with pytest.raises(ValueError, match="must be 1 to 200 of"):
            PATTERN.read(wrong)


def test_without_patterns_no_topic_has_a_policy() -> None:
    assert Patterns().of("mail") is None
    assert Patterns() == Patterns({})
    assert hash(Patterns()) == hash(Patterns({}))
    assert Patterns({"a": Policy(jobs_max=1)}) != Patterns({"a": Policy(jobs_max=2)})


# --- The page ------------------------------------------------------------------------------------

PAGE = (Path(__file__).parent.parent.parent / "docs" / "policies.md").read_text()


def test_the_examples_of_the_page_are_valid() -> None:
    toml, *more = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    (text,) = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    for example in more:
        for fields in tomllib.loads(example)["topics"].values():
            assert Policy.from_fields(fields)
    ((pattern, fields),) = tomllib.loads(toml)["topics"].items()
    assert PATTERN.read(pattern)
    assert Policy.from_fields(fields).retry_ms == LADDER_MS
    assert Policy.from_json(text).exhausted == "mail.failed"
