"""Pictures as values: what is drawn, without how.

A `Plot` says which bars or curves stand in which panels; `drawing.py` makes an SVG of it for each
theme. Its `fingerprint` stands in that SVG, so that it can be told without drawing whether a
picture is the one of today's results.
"""

import hashlib
from dataclasses import dataclass
from typing import Final

from benchmarks.registry import Durability

OURS: Final = "delayd"


def is_ours(subject: str) -> bool:
    """Whether a subject is delayd, set up in whatever way."""
    return subject.startswith(OURS)


@dataclass(frozen=True, slots=True)
class Bar:
    """A subject's value in one panel."""

    subject: str
    policy: Durability
    value: float | None
    """None: not measured, and the place of the bar stays empty."""
    low: float = 0.0
    high: float = 0.0
    """The lowest and the highest reading."""


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Bars of one size; every panel of a plot has the same subjects in the same order."""

    title: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one subject, from left to right."""

    label: str
    """Empty if the panel has no other curve and its title says it."""
    points: tuple[tuple[float, float], ...]
    is_ours: bool = False
    policy: Durability = Durability.NOT_APPLICABLE

    @property
    def name(self) -> str:
        """The label, and what an acknowledgement means."""
        return f"{self.label}, {self.policy}" if self.policy else self.label


@dataclass(frozen=True, slots=True)
class CurvePanel:
    """Curves over one axis; points on a logarithmic axis are above 0."""

    title: str
    x_axis: str
    y_axis: str
    curves: tuple[Curve, ...]
    x_is_log: bool = False
    y_is_log: bool = False
    ticks: tuple[tuple[float, str], ...] = ()
    """The marks of the x axis, if they are not any round numbers."""
    y_range: tuple[float, float] | None = None
    """The lowest and the highest value of all panels, if they have one scale."""


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture: panels of bars, or panels of curves."""

    name: str
    """Of its files: `servers-put` is in `servers-put-light.svg` and `servers-put-dark.svg`."""
    title: str
    """What is compared."""
    axis: str
    """What is measured, with the unit, and which way is better; empty if each panel says it."""
    panels: tuple[BarPanel, ...] | tuple[CurvePanel, ...]

    @property
    def fingerprint(self) -> str:
        """What tells this plot from any other."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]
