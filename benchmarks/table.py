"""Medians, ratios and the table: what the readings of two servers amount to.

Both servers are read in turn, A B A B, so that reading number i of one stands beside reading number
i of the other and whatever the machine was doing then. A ratio is therefore the median of the
ratios of the pairs, not the ratio of the medians: a minute in which the whole machine was slow
cancels out.

>>> puts = Measure("puts", "/s", Target(Bound.RATIO_AT_LEAST, 1.5))
>>> outcome = Outcome(puts, [30, 20, 31], [10, 10, 10])
>>> outcome.ratio, outcome.verdict
(3.0, True)

Nothing here measures, and nothing here knows what is measured.
"""

import enum
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

HEADINGS: Final = ("#", "measure", "delayd", "peer", "ratio", "target", "met")
NOTHING: Final = "-"


class Bound(enum.Enum):
    """What a target bounds, and from which side."""

    RATIO_AT_LEAST = "≥ {} x"
    RATIO_AT_MOST = "≤ {} x"
    VALUE_AT_MOST = "≤ {}"
    MORE_AT_MOST = "≤ peer + {}"


@dataclass(frozen=True, slots=True)
class Target:
    """The figure that a measure must reach."""

    bound: Bound
    figure: float

    def met(self, value: float, ratio: float | None, peer: float = 0.0) -> bool | None:
        """Judge delayd's value, its ratio to the peer's, or how much more it is; None: no ratio."""
        if self.bound is Bound.VALUE_AT_MOST:
            return value <= self.figure
        if self.bound is Bound.MORE_AT_MOST:
            return value - peer <= self.figure
        if ratio is None:
            return None
        if self.bound is Bound.RATIO_AT_LEAST:
            return ratio >= self.figure
        return ratio <= self.figure


@dataclass(frozen=True, slots=True)
class Measure:
    """One line of the table; `typical` is the median of the runs, or `max` for a "never"."""

    name: str
    unit: str
    target: Target
    typical: Callable[[Sequence[float]], float] = statistics.median


@dataclass(frozen=True, slots=True)
class Outcome:
    """The readings of one measure; `ours[i]` and `peers[i]` were taken one after the other."""

    measure: Measure
    ours: Sequence[float]
    peers: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        """The ratios of the pairs; pairs with a peer of zero have none."""
        return [ours / peer for ours, peer in zip(self.ours, self.peers, strict=True) if peer]

    @property
    def ratio(self) -> float | None:
        """The median of the pairs' ratios."""
        return statistics.median(self.ratios) if self.ratios else None

    @property
    def verdict(self) -> bool | None:
        """Whether the target was met; None: not to be told."""
        typical = self.measure.typical
        return self.measure.target.met(typical(self.ours), self.ratio, typical(self.peers))

    def cells(self, number: int) -> tuple[str, ...]:
        """Return the line of the table, in the order of `HEADINGS`."""
        verdict = self.verdict
        return (
            str(number),
            self.measure.name,
            with_spread(self.ours, self.measure),
            with_spread(self.peers, self.measure),
            ratio_words(self.ratios),
            target_words(self.measure),
            NOTHING if verdict is None else "yes" if verdict else "NO",
        )


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


def with_spread(values: Sequence[float], measure: Measure) -> str:
    """Write the typical value and how far the runs lie apart: `212,345 /s ±3 %`."""
    if not values:
        return NOTHING
    words = f"{number_words(measure.typical(values))} {measure.unit}".rstrip()
    middle = statistics.median(values)
    if len(values) == 1 or not middle:
        return words
    return f"{words} ±{(max(values) - min(values)) / 2 / middle:.0%}".replace("%", " %")


def ratio_words(ratios: Sequence[float]) -> str:
    """Write the median ratio and the extremes: `1.62 (1.55 to 1.70)`."""
    if not ratios:
        return NOTHING
    middle = f"{statistics.median(ratios):.2f}"
    if len(ratios) == 1:
        return middle
    return f"{middle} ({min(ratios):.2f} to {max(ratios):.2f})"


def target_words(measure: Measure) -> str:
    """Write the target: `≥ 1.5 x`, or `≤ 10 ms`."""
    words = measure.target.bound.value.format(f"{measure.target.figure:g}")
    is_figure = measure.target.bound in {Bound.VALUE_AT_MOST, Bound.MORE_AT_MOST}
    return f"{words} {measure.unit}" if is_figure else words


def render(lines: Sequence[Sequence[str]], headings: Sequence[str] = HEADINGS) -> str:
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
