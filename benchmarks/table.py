"""Numbers, percentiles and tables, as all benchmarks print them.

>>> print(render([("put", number_words(212_345.6))], ("operation", "rate")))
| operation | rate    |
|-----------|---------|
| put       | 212,346 |
"""

import math
from collections.abc import Sequence


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that at least `percent` of the values do not exceed (nearest rank).

    Costs a sort; 0.0 for no values, which callers report as a count beside it.
    """
    if not values:
        return 0.0
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


def number_words(value: float) -> str:
    """Write a number with three digits that matter, thousands apart: 212,345 or 0.85."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"


def render(lines: Sequence[Sequence[str]], headings: Sequence[str]) -> str:
    """Lay the lines out below the headings as a table that is also Markdown."""
    table = [headings, *lines]
    widths = [max(len(line[column]) for line in table) for column in range(len(headings))]
    rows = [
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in table
    ]
    rows.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(rows)
