from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.core.name_patterns import Matcher
from delayd.limits import TOPIC_NAME_BYTES_MAX

NAME_MAX = TOPIC_NAME_BYTES_MAX


def fits(pattern: str, name: str) -> bool:
    """Compare as slowly and as plainly as possible."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return fits(pattern[1:], name) or (bool(name) and fits(pattern, name[1:]))
    return bool(name) and pattern[0] in {"?", name[0]} and fits(pattern[1:], name[1:])


@given(
    patterns=st.lists(st.text("ab.*?(", max_size=7), max_size=5),
    names=st.lists(st.text("ab.(", max_size=7), min_size=1, max_size=5),
)
def test_the_first_pattern_that_fits_counts(patterns: list[str], names: list[str]) -> None:
    matcher = Matcher(patterns, known_max=2)
    for name in (*names, *names):
        fitting = [number for number, pattern in enumerate(patterns) if fits(pattern, name)]
        assert matcher.first(name) == (fitting[0] if fitting else -1)


def test_patterns_do_not_run_into_each_other(rng: Random) -> None:
    patterns = ["a" * rng.randrange(1, 40) for _ in range(100)]
    matcher = Matcher(patterns, known_max=0)
    for count in range(1, 80):
        name = "a" * count
        assert matcher.first(name) == (patterns.index(name) if name in patterns else -1)


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        # One start after the other, each would take longer than the universe has existed.
        ("*a" * 100, "a" * 99 + "b" * 101),
        ("*-" * 99 + "dead", "-" * NAME_MAX),
        ("*?" * 99 + "x", "a" * NAME_MAX),
        ("*" * 199 + "x", "a" * NAME_MAX),
    ],
)
def test_many_wildcards_take_no_time(pattern: str, name: str) -> None:
    assert Matcher([pattern] * 100, known_max=0).first(name) == -1


def known(matcher: Matcher) -> int:
    return len(matcher._known)


def test_what_was_found_is_remembered_for_some_names() -> None:
    matcher = Matcher(["a*"], known_max=10)
    for number in range(35):
        assert matcher.first(f"a{number}") == 0
        assert matcher.first(f"b{number}") == -1
        assert 0 < known(matcher) <= 10
    matcher.first("a" * (NAME_MAX + 1))
    assert "a" * (NAME_MAX + 1) not in matcher._known, "no topic has that name"


def test_what_a_name_costs_follows_the_patterns() -> None:
    one = Matcher(["mail.*"], known_max=0).cost_us
    many = Matcher(["x" * NAME_MAX] * 100, known_max=0).cost_us
    assert 1 < one < 10
    assert 90 < many < 200
