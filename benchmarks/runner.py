"""Takes the readings: round by round, the cases of a round in turn, as often as there are runs."""

import gc
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from benchmarks.registry import VALUES, Bench, Better, Case, NotMeasuredError, Values, rounds
from benchmarks.report.words import axis_words
from benchmarks.results import Writer
from benchmarks.table import number_words, render

NEVER: Final = tuple(name for name, value in VALUES.items() if value.better is Better.ZERO)


def run(
    cases: Iterable[Case], bench: Bench, writer: Writer | None, say: Callable[[str], None]
) -> list[str]:
    """Measure the cases and say each round's table when it is done; return what was wrong.

    Wrong is a job that was lost, doubled or early, and a subject that failed, a line each. A case
    that cannot be measured is not wrong: its reason stands in the table and in the results.
    """
    wrong: list[str] = []
    for turns in rounds(cases):
        taken: dict[str, list[Values]] = {case.name: [] for case in turns}
        reasons: dict[str, str] = {}
        for taken_before in range(bench.effort.runs):
            for case in turns:
                if case.name in reasons or taken_before == case.runs_max:
                    continue
                gc.collect()
                try:
                    values = case.measure(bench)
                except NotMeasuredError as error:
                    reasons[case.name] = str(error)
                except Exception as error:  # noqa: BLE001 - the other cases are measured all the same
                    reasons[case.name] = f"failed: {type(error).__name__}: {error}"
                    wrong.append(f"{case.name}: {reasons[case.name]}")
                else:
                    taken[case.name].append(values)
                    wrong += (f"{case.name}: {fault}" for fault in faults(values))
                    if writer:
                        writer.reading(case, values)
        for case in turns:
            if writer and case.name in reasons:
                writer.not_measured(case, reasons[case.name])
        say(table(turns, taken, reasons))
    return wrong


def faults(values: Values) -> list[str]:
    """Return what a reading has of that which must not be: `3 early`."""
    assert values.keys() <= VALUES.keys(), f"no such values: {values.keys() - VALUES.keys()}"
    return [f"{values[name]:g} {VALUES[name].words}" for name in NEVER if values.get(name)]


def table(
    turns: Sequence[Case], taken: Mapping[str, Sequence[Values]], reasons: Mapping[str, str]
) -> str:
    """Lay out the medians of a round, a line for each case."""
    names = [name for name in VALUES if any(name in v for vs in taken.values() for v in vs)]
    first = turns[0]
    size = ", ".join(axis_words(axis, value) for axis, value in first.size.items())
    heading = ", ".join(filter(None, (f"{first.chapter}: {first.operation}", size)))
    lines = []
    for case in turns:
        found = [
            number_words(statistics.median(v[name] for v in taken[case.name] if name in v))
            if any(name in v for v in taken[case.name])
            else ""
            for name in names
        ]
        lines.append((case.label, *found, reasons.get(case.name, "")))
    headings = [f"{VALUES[name].words} {VALUES[name].unit}".rstrip() for name in names]
    return render(lines, (heading, *headings, "")) + "\n"
