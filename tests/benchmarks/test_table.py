"""Medians, ratios and their words: what a reader of the table relies on."""

import doctest
import statistics

import pytest

from benchmarks import table
from benchmarks.table import Bound, Measure, Outcome, Target, number_words, percentile, render

FASTER = Measure("puts", "/s", Target(Bound.RATIO_AT_LEAST, 1.5))
SMALLER = Measure("memory", "MiB", Target(Bound.RATIO_AT_MOST, 1.0))
NEVER = Measure("early", "jobs", Target(Bound.VALUE_AT_MOST, 0), max)
SLIGHTLY_MORE = Measure("memory", "bytes", Target(Bound.MORE_AT_MOST, 120))
PROMPT = Measure("p99", "ms", Target(Bound.VALUE_AT_MOST, 2))


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(table).failed == 0
    assert doctest.testmod(table).attempted > 0


def test_a_ratio_is_the_median_of_the_pairs_not_of_the_sides() -> None:
    outcome = Outcome(FASTER, [10, 40, 90], [10, 20, 30])
    assert outcome.ratios == [1, 2, 3]
    assert outcome.ratio == 2
    slow_machine_in_the_second_pair = Outcome(FASTER, [30, 3, 30], [10, 1, 10])
    assert slow_machine_in_the_second_pair.ratios == [3, 3, 3]


def test_a_peer_of_zero_has_no_ratio() -> None:
    outcome = Outcome(FASTER, [5], [0])
    assert outcome.ratio is None
    assert outcome.verdict is None
    assert outcome.cells(1)[4:] == ("-", "≥ 1.5 x", "-")


@pytest.mark.parametrize(
    ("measure", "ours", "peers", "met"),
    [
        (FASTER, [15], [10], True),
        (FASTER, [14.9], [10], False),
        (SMALLER, [10], [10], True),
        (SMALLER, [10.1], [10], False),
        (SLIGHTLY_MORE, [370], [250], True),
        (SLIGHTLY_MORE, [371], [250], False),
        (PROMPT, [2, 2, 9], [1, 1, 1], True),
        (PROMPT, [1, 2.1, 9], [1, 1, 1], False),
        (NEVER, [0, 0, 0], [0, 0, 0], True),
        (NEVER, [0, 0, 1], [0, 0, 0], False),
    ],
)
def test_a_target_is_met_at_its_figure_and_missed_beyond(
    measure: Measure, ours: list[float], peers: list[float], met: bool
) -> None:
    assert Outcome(measure, ours, peers).verdict is met


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1), (1, 1), (50, 50), (50.5, 51), (99, 99), (100, 100)]
)
def test_a_percentile_is_the_value_of_the_nearest_rank(percent: float, value: float) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value


def test_a_percentile_of_nothing_is_zero() -> None:
    assert percentile([], 99) == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.853, "0.85"),
        (1.0, "1"),
        (31.42, "31.4"),
        (212_345.6, "212,346"),
        (-0.78, "-0.78"),
    ],
)
def test_numbers_are_written_with_the_digits_that_matter(value: float, words: str) -> None:
    assert number_words(value) == words


def test_a_line_shows_medians_spreads_ratio_target_and_verdict() -> None:
    ours = [190.0, 200.0, 210.0]
    assert Outcome(FASTER, ours, [100.0, 100.0, 100.0]).cells(1) == (
        "1",
        "puts",
        "200 /s ±5 %",
        "100 /s ±0 %",
        "2.00 (1.90 to 2.10)",
        "≥ 1.5 x",
        "yes",
    )
    assert statistics.median(ours) == 200


def test_a_single_run_has_no_spread() -> None:
    cells = Outcome(PROMPT, [3], [4]).cells(8)
    assert cells == ("8", "p99", "3 ms", "4 ms", "0.75", "≤ 2 ms", "NO")


def test_the_table_is_aligned_markdown() -> None:
    lines = render([Outcome(PROMPT, [3], [4]).cells(8)]).splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert set(lines[1]) == {"|", "-"}
