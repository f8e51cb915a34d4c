"""What a soak has come to: whether its figures are flat, by the rule of `benchmarks.accounts`."""

from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.accounts import FLAT
from benchmarks.registry import VALUES
from benchmarks.report.views import Block, markdown
from benchmarks.report.words import figure_words, paragraph
from benchmarks.results import Measured

NAMES: Final = {"p99_ms": "lateness, p99"}
COUNTED: Final = ("lost", "doubled", "early", "troubles")


def steadiness(cases: Sequence[Measured]) -> Iterator[Block]:
    """Yield what ran and what is flat; nothing for no samples."""
    every = [reading for case in cases for reading in case.readings]
    samples = [reading for reading in every if "memory_bytes" in reading]
    if not samples:
        return
    minutes = len({case.size.get("minute") for case in cases})
    rate = samples[-1].get("rate", 0.0)
    offered = f", {figure_words(rate)} jobs of the stream offered a second" if rate else ""
    yield paragraph(f"{minutes} minutes, {len(samples):,} samples{offered}. The verdict:") + "\n"
    rows = []
    for name, flatness in FLAT.items():
        known = [reading[name] for reading in samples if name in reading]
        if not known:
            continue
        trend = flatness.trend(known, len(samples))
        said = "flat" if trend.is_flat else "**not flat**"
        said += f", {trend.missing} samples have none" * bool(trend.missing)
        unit, scale = ("MB", 1e6) if VALUES[name].unit == "B" else (VALUES[name].unit, 1.0)
        figures = (trend.rose / scale, trend.at_most / scale)
        words = NAMES.get(name, VALUES[name].words)
        rows.append((", ".join(filter(None, (words, unit))), *map(figure_words, figures), said))
    for name in COUNTED:
        counted = [reading[name] for reading in every if name in reading]
        if counted:
            found = f"{max(counted):,.0f}"
            rows.append((VALUES[name].words, found, "0", "none" if found == "0" else "**some**"))
    yield markdown(("", "rose by, or how many", "at most", "verdict"), rows)
