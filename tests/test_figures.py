"""Figures stand once, in docs/figures.md; what other pages quote of them is the same there."""

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
FIGURES: Final = (DOCS / "figures.md").read_text(encoding="utf-8")
HOMES: Final = ("figures.md", "client.md", "two-machines.md")
"""Pages with tables of their own, of different things."""
RATE: Final = re.compile(r"\b\d{1,3}(?:,\d{3})+(?:/s|(?: \w+){0,2} a second)")


def rows_of(text: str) -> list[str]:
    """The rows of tables that have a figure."""
    return [line for line in text.splitlines() if re.match(r"\| .*\| [\d.,]+", line)]


def cells_of(name: str) -> list[float]:
    """The figures of a row, by its first cell."""
    (row,) = (row for row in rows_of(FIGURES) if row.startswith(f"| {name} |"))
    return [float(cell.replace(",", "")) for cell in re.findall(r"\| ([\d.,]+)", row)]


def test_the_readme_has_rows_of_the_page_of_figures_and_says_the_same_at_its_beginning() -> None:
    rows = rows_of(README)
    assert len(rows) >= 5
    assert set(rows) <= set(rows_of(FIGURES))
    delayd, _compiled, beanstalkd = cells_of("puts, each on disk")
    said = f"{delayd:,.0f} puts a second, {delayd / beanstalkd:.1f} times the rate of"
    assert said in " ".join(README.split())
    prose = "\n".join(line for line in README.splitlines() if line not in rows)
    assert RATE.findall(prose) == [f"{delayd:,.0f} puts a second"]


@pytest.mark.parametrize("page", sorted(page.name for page in DOCS.glob("*.md")))
def test_a_rate_stands_on_the_page_of_figures_alone(page: str) -> None:
    if page not in HOMES:
        assert not RATE.findall((DOCS / page).read_text(encoding="utf-8"))
