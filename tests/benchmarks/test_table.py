"""Percentiles and numbers: what a reader of a table relies on."""

import pytest

from benchmarks.table import number_words, percentile


@pytest.mark.parametrize(
    ("percent", "value"), [(0, 1), (1, 1), (50, 50), (50.5, 51), (99, 99), (100, 100)]
)
def test_a_percentile_is_the_value_of_the_nearest_rank(percent: float, value: float) -> None:
    assert percentile(list(range(100, 0, -1)), percent) == value
    assert percentile([], percent) == 0


@pytest.mark.parametrize(
    ("value", "words"),
    [
        *((0, "0"), (0.853, "0.85"), (1.0, "1"), (31.42, "31.4"), (212_345.6, "212,346")),
        (-0.78, "-0.78"),
    ],
)
def test_numbers_are_written_with_the_digits_that_matter(value: float, words: str) -> None:
    assert number_words(value) == words
