"""Targets: their shape, read with all errors at once and written in one spelling."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayd.core.errors import PolicyInvalid
from delayd.core.policy import Policy
from delayd.core.targets import (
    METHODS,
    SENT_BY_DELAYD,
    Target,
    ambiguous_headers,
    is_taken,
    origin_of,
    own_target,
    pack_own,
    read_target,
    target_fields,
)
from delayd.limits import (
    TARGET_CONCURRENCY_MAX,
    TARGET_HEADERS_BYTES_MAX,
    TARGET_HEADERS_MAX,
    TARGET_URL_BYTES_MAX,
)
from tests.rigs.written import tables_of

URL = "https://example.com/jobs?a=b"
EVERYTHING = {
    "url": URL,
    "method": "PUT",
    "headers": {"X-Team": "mail and post", "Accept": "", "Content-Type": "text/plain"},
    "timeout": "20s",
    "secrets": ["first", "second"],
    "concurrency": 3,
    "rate_per_s": 0.5,
}


def rule_of(value: object) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        read_target(value)
    return str(caught.value)


def test_a_target_is_read_as_people_write_it() -> None:
    assert read_target(EVERYTHING) == Target(
        url=URL,
        method="PUT",
        headers=(("Accept", ""), ("Content-Type", "text/plain"), ("X-Team", "mail and post")),
        timeout_ms=20_000,
        secrets=("first", "second"),
        concurrency=3,
        rate_per_s=0.5,
    )
    assert read_target({"topic": "mail.out", "url": None}) == Target(topic="mail.out")
    assert read_target({"sink": "orders", "timeout": 1}) == Target(sink="orders", timeout_ms=1_000)


def test_a_target_has_one_spelling() -> None:
    assert target_fields(read_target(EVERYTHING)) == EVERYTHING
    assert [*target_fields(read_target(EVERYTHING))] == sorted(EVERYTHING)
    assert target_fields(read_target({"url": URL, "method": "POST"})) == {"url": URL}


@pytest.mark.parametrize(
    "value",
    [{}, {"url": URL, "topic": "a"}, {"topic": "a", "sink": "b"}, {"url": None}, {"method": "PUT"}],
)
def test_a_target_is_exactly_one_of_three(value: object) -> None:
    assert "must have exactly one of url, topic and sink" in rule_of(value)


def test_what_is_for_a_url_is_for_nothing_else() -> None:
    for name in ("method", "headers", "secrets"):
        assert rule_of({"topic": "a", name: EVERYTHING[name]}) == f"{name}: is for a url only"
        assert rule_of({"sink": "a", name: EVERYTHING[name]}) == f"{name}: is for a url only"


def test_all_that_is_wrong_is_named_at_once() -> None:
    wrong = {"url": "mailto:a", "methd": "PUT", "timeout": 0, "concurrency": 0}
    assert rule_of(wrong) == (
        'url = "mailto:a": must begin with https:// or http:// and name a host; '
        "methd: there is no such field; did you mean method?; "
        'timeout = 0: must be from "100ms" to "10m"; '
        f"concurrency = 0: must be a whole number from 1 to {TARGET_CONCURRENCY_MAX}"
    )
    assert rule_of([]) == rule_of("x") == rule_of(None)
    assert "must be an object" in rule_of(7)


def test_values_of_headers_are_not_repeated_they_may_be_credentials() -> None:
    said = rule_of({"url": URL, "headers": {"Authorization": "Bearer 4711", "Host": "x"}})
    assert said == 'headers: "Host" belongs to the connection'
    with pytest.raises(PolicyInvalid) as refused:
        Policy.from_fields({"push": {"url": URL, "headers": {"A": "4711", "Host": "x"}}})
    assert "4711" not in str(refused.value)


def refused() -> Iterator[tuple[object, str]]:
    """What targets.txt refuses, and what only a program can say."""
    for field, rule, *values in tables_of(Path(__file__).parent / "targets.txt")["refused"]:
        for value in values:
            whole = re.sub(r"(.)\{(\d+)\}", lambda times: times[1] * int(times[2]), value)
            yield {**({} if field in KINDS else {"url": URL}), field: json.loads(whole)}, rule
    headers = [(dict.fromkeys((name,), "a"), f'"{name}" is sent by delayd') for name in OF_DELAYD]
    many = {f"X-{n}": "" for n in range(TARGET_HEADERS_MAX + 1)}
    for wrong, rule in (*headers, (many, "must be an object of at most 32"), ({7: ""}, "7 is no")):
        yield {"url": URL, "headers": wrong}, rule


OF_DELAYD = (*sorted(SENT_BY_DELAYD), "Delayd-Topic", "Webhook-Id")
KINDS = ("url", "topic", "sink")


@pytest.mark.parametrize(("value", "rule"), [*refused()])
def test_what_cannot_be_a_target_is_refused_with_the_rule(value: object, rule: str) -> None:
    assert rule in rule_of(value)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "HTTPS://Example.COM:8443/a@b?c@d",
        "http://[2001:db8::1]/",
        "https://bücher.example/ä?ö",
        "https://example.com?a",
        "https://example.com/".ljust(TARGET_URL_BYTES_MAX, "a"),
    ],
)
def test_a_url_of_the_right_shape_is_kept_as_it_is(url: str) -> None:
    assert read_target({"url": url}).url == url


AT_CGI = """Delayd_Topic Delayd_Due Webhook_Id webhook_signature Content_Length Transfer_Encoding
    Idempotency_Key Content_Type Delayd.Topic Content|Length"""


@pytest.mark.parametrize("name", AT_CGI.split())
def test_a_header_that_some_receivers_take_for_one_of_delayds_own_is_ambiguous(name: str) -> None:
    assert is_taken(name)
    assert f'"{name}" is' in ambiguous_headers([(name, "a")])
    # A policy of an older log may have it.
    assert read_target({"url": URL, "headers": {name: "a"}}).headers == ((name, "a"),)


def test_other_headers_with_underscores_are_not_ambiguous_unless_two_become_one() -> None:
    assert not ambiguous_headers([("X_Team", "a"), ("Content-Type", "a/b"), ("x-team2", "a")])
    assert "X_Team" in ambiguous_headers([("X-Team", "a"), ("X_Team", "b")])


def test_headers_up_to_their_limits_are_taken() -> None:
    many = {f"X-{n}": "a" for n in range(TARGET_HEADERS_MAX)}
    assert len(read_target({"url": URL, "headers": many}).headers) == TARGET_HEADERS_MAX
    long = {"X": "a" * (TARGET_HEADERS_BYTES_MAX - 1)}
    assert read_target({"url": URL, "headers": long}).headers == (("X", long["X"]),)


# --- A job's own target --------------------------------------------------------------------------


@pytest.mark.parametrize("url", [URL, "https://bücher.example/", "http://[::1]:80/?a"])
def test_a_jobs_own_target_is_read_as_it_was_written(url: str) -> None:
    for headers in ({}, {"X-A": "", "X-b": 'a:b, c; "\\{='}):
        for method in METHODS:
            target = read_target({"url": url, "method": method, "headers": headers})
            assert own_target(pack_own(target.method, target.url, target.headers)) == target


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        (URL, b"https://example.com"),
        ("https://example.com:8443/a//b", b"https://example.com:8443"),
        ("http://[::1]:80/", b"http://[::1]:80"),
        ("https://example.com", b"https://example.com"),
        ("https://example.com?a=//b/", b"https://example.com"),
    ],
)
def test_the_origin_of_a_target_is_all_before_its_path(url: str, origin: bytes) -> None:
    assert origin_of(pack_own("POST", url, ())) == origin
    assert origin_of(pack_own("DELETE", url, (("X-A", "https://other.example/"),))) == origin


def test_what_is_no_target_has_no_origin() -> None:
    assert [origin_of(data) for data in (b"", b"POST", b"POST a")] == [b"", b"", b""]
