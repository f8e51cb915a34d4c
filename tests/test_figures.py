"""Figures are those of the results: docs/benchmarks.md, and what other pages quote."""

import re
from pathlib import Path
from typing import Final

import pytest

from benchmarks.report.files import BY_HAND, DOCS, Report
from benchmarks.report.parts import PART, PARTS

HOMES: Final = ("benchmarks.md", "client.md", "two-machines.md")
"""Pages with tables of their own, of different things."""
RATE: Final = re.compile(r"\b\d{1,3}(?:,\d{3})+(?:/s|(?: \w+){0,2} a second)")


def test_the_pages_are_what_the_report_makes_of_the_results() -> None:
    assert not Report().outdated(), "`make report` writes them anew"


def test_pages_quote_each_figure_that_there_is_a_part_for() -> None:
    named = [name for page in BY_HAND for _, name, *_ in PART.findall(page.read_text("utf-8"))]
    assert sorted(named) == sorted(PARTS)


@pytest.mark.parametrize("page", [*sorted(DOCS.glob("*.md")), *BY_HAND], ids=lambda page: page.name)
def test_a_rate_stands_in_the_report_alone(page: Path) -> None:
    if page.name not in HOMES:
        assert not RATE.findall(PART.sub("", page.read_text(encoding="utf-8")))
