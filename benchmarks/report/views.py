"""What the report shows of some cases: plots, and tables in Markdown beside them.

A *view* takes the cases of a chapter and yields blocks of the page: text, or a `Plot`. What is laid
along an axis, in panels and in plots of its own is found in the cases, so that a chapter that grows
needs no change here: `Bars("rate", panels="connections")` of cases with the axes connections and
in flight makes a plot for each operation and number in flight, with a panel for each number of
connections.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from benchmarks.registry import VALUES, Better, Durability
from benchmarks.report.plots import Bar, BarPanel, Curve, CurvePanel, Plot, is_ours
from benchmarks.report.words import axis_words, figure_words, file_name, size_words, value_words
from benchmarks.results import Measured

Block: TypeAlias = str | Plot
View: TypeAlias = Callable[[Sequence[Measured]], Iterator[Block]]
Key: TypeAlias = str
"""`OPERATION`, `SUBJECT`, or an axis of size."""

NUMBER: Final = re.compile(r"\**[\d.,]+\**")
OPERATION: Final = "operation"
SUBJECT: Final = "subject"
STRENGTH: Final = {policy: at for at, policy in enumerate(Durability)}
"""By what an acknowledgement means, from the strongest promise on."""
PERCENTILES: Final = ("p50_ms", "p90_ms", "p99_ms", "p999_ms", "worst_ms")
LOGARITHMIC: Final = 20
"""An axis is logarithmic if its highest point is so many times its lowest."""
TICKS_MAX: Final = 5
"""Of points that are all marked on their axis."""
ROWS_MAX: Final = 20
"""Of a table of moments."""
MEGA: Final = 1e6


# --- Which cases ---------------------------------------------------------------------------------


def part(case: Measured, key: Key) -> int | str:
    """Return what a case is by this key; empty if it has no such axis."""
    if key == SUBJECT:
        return label_of(case)
    return case.operation if key == OPERATION else case.size.get(key, "")


def label_of(case: Measured) -> str:
    """Return the subject, and what its acknowledgement means."""
    return f"{case.subject}, {case.policy}" if case.policy else case.subject


def keys_of(cases: Iterable[Measured]) -> list[Key]:
    """Return the keys by which the cases differ."""
    return [OPERATION, *dict.fromkeys(axis for case in cases for axis in case.size)]


def split(
    cases: Iterable[Measured], keys: Sequence[Key]
) -> dict[tuple[int | str, ...], list[Measured]]:
    """Return the cases by what they are by these keys, in the order in which they appear."""
    found: dict[tuple[int | str, ...], list[Measured]] = {}
    for case in cases:
        found.setdefault(tuple(part(case, key) for key in keys), []).append(case)
    return found


def title_of(
    what: str, keys: Sequence[Key], parts: Sequence[int | str], of: Sequence[Measured]
) -> str:
    """Return the title of a plot: what, and of which operation and size, if there are several."""
    is_only = len(split(of, (OPERATION,))) == 1
    named = [(key, each) for key, each in zip(keys, parts, strict=True)]
    shown = [(key, each) for key, each in named if not (is_only and key == OPERATION)]
    words = words_of([key for key, _ in shown], [each for _, each in shown])
    return f"{what}: {words}" if words else what


def by_size(
    parts: Mapping[tuple[int | str, ...], list[Measured]],
) -> list[tuple[tuple[int | str, ...], list[Measured]]]:
    """Return the parts in ascending order if all are numbers, otherwise as they were."""
    found = list(parts.items())
    is_size = all(isinstance(place, int) for (place,), _ in found)
    return sorted(found, key=lambda one: int(one[0][0])) if is_size else found


def words_of(keys: Sequence[Key], parts: Sequence[int | str]) -> str:
    """Write what some cases have in common: `put, 20 in flight`."""
    return ", ".join(
        str(found) if key in {OPERATION, SUBJECT} else axis_words(key, found)
        for key, found in zip(keys, parts, strict=True)
        if found != ""
    )


def subjects_of(cases: Iterable[Measured]) -> list[tuple[str, Durability]]:
    """Return the subjects by durability, delayd first within each kind; otherwise as they were."""
    ordered = sorted(cases, key=lambda case: (STRENGTH[case.policy], not is_ours(case.subject)))
    return list(dict.fromkeys((case.subject, case.policy) for case in ordered))


def subject_words(subject: str) -> str:
    """Write a subject in a table; delayd is bold."""
    return f"**{subject}**" if is_ours(subject) else subject


@dataclass(frozen=True, slots=True)
class Which:
    """Which cases of a chapter a view shows."""

    operations: tuple[str, ...] = ()
    """Empty: all."""
    size: Mapping[Key, int | str] = field(default_factory=dict)
    """Only of this size, if they have these axes."""

    def has(self, case: Measured) -> bool:
        """Whether a case is shown."""
        return (not self.operations or case.operation in self.operations) and all(
            case.size.get(axis, value) == value for axis, value in self.size.items()
        )


ALL: Final = Which()


# --- Tables --------------------------------------------------------------------------------------


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    r"""Write a table; columns of numbers stand to the right.

    >>> markdown(("subject", "a second"), [("delayd", "4,240")])
    '| subject | a second |\n|---|--:|\n| delayd | 4,240 |\n'
    """
    lines = list(rows)
    rule = "|".join(
        "--:" if any(NUMBER.fullmatch(line[at]) for line in lines) else "---"
        for at in range(len(headings))
    )
    written = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join((f"| {' | '.join(headings)} |", f"|{rule}|", *written)) + "\n"


def cell(case: Measured | None, value: str) -> str:
    """Write the median of a value; the worst of one that has to be 0, bold if it is not."""
    if case is None:
        return ""
    if VALUES[value].better is Better.ZERO:
        worst = case.worst(value)
        return "" if worst is None else f"**{worst:,.0f}**" if worst else "0"
    figure = case.median(value)
    if figure is None:
        return "not measured" if case.not_measured else ""
    return figure_words(figure)


def values_of(cases: Iterable[Measured]) -> list[str]:
    """Return which values they have, in the order of `VALUES`."""
    had = {name for case in cases for reading in case.readings for name in reading}
    return [name for name in VALUES if name in had]


def everything(cases: Sequence[Measured], *more: Key) -> str:
    """Write all that is known of some cases, and these keys: a row for each."""
    axes = [*more, *keys_of(cases)[1:]]
    values = values_of(cases)
    has_policies = any(case.policy for case in cases)
    policy = ("an acknowledgement means",) if has_policies else ()
    headings = (*axes, "subject", *policy, *(value_words(VALUES[name]) for name in values))
    rows = [
        (
            *(f"{found:,}" if isinstance(found := part(case, a), int) else found for a in axes),
            subject_words(case.subject),
            *((str(case.policy),) if has_policies else ()),
            *(cell(case, value) for value in values),
        )
        for case in cases
    ]
    return markdown(headings, rows)


@dataclass(frozen=True, slots=True)
class Tables:
    """A table of everything for each operation."""

    which: Which = ALL

    def __call__(self, cases: Sequence[Measured]) -> Iterator[Block]:
        """Yield them, each below its operation."""
        shown = filter(self.which.has, cases)
        for (operation,), found in split(shown, (OPERATION,)).items():
            yield f"**{operation}**\n\n{everything(found)}"


class Whole:
    """One table of everything, with the operations below each other."""

    def __call__(self, cases: Sequence[Measured]) -> Iterator[Block]:
        """Yield it."""
        yield everything(cases, OPERATION)


# --- Bars ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars of one value, a panel for each size along an axis, and the same as a table."""

    value: str
    what: str
    """What is compared: the beginning of the title."""
    panels: Key = ""
    """The key along which there are panels; empty: one panel."""
    which: Which = ALL
    panels_min: int = 1
    """With fewer there is no plot."""

    def __call__(self, cases: Sequence[Measured]) -> Iterator[Block]:
        """Yield each plot and its table."""
        shown = [
            case
            for case in cases
            if self.which.has(case)
            and (case.median(self.value) is not None or (case.not_measured and not case.readings))
        ]
        keys = [key for key in keys_of(shown) if key != self.panels]
        for parts, found in split(shown, keys).items():
            several = len(split(found, (self.panels,))) >= self.panels_min
            if several and any(case.readings for case in found):
                title = title_of(self.what, keys, parts, shown)
                yield from self._one(found, words_of(keys, parts), title)

    def _one(self, cases: Sequence[Measured], words: str, title: str) -> Iterator[Block]:
        subjects = subjects_of(cases)
        by_place = split(cases, (self.panels,))
        places = [words_of((self.panels,), place) for place in by_place]
        columns = [
            {(case.subject, case.policy): case for case in found} for found in by_place.values()
        ]
        meant = VALUES[self.value]
        yield Plot(
            file_name(cases[0].chapter, self.value, words),
            title,
            f"{value_words(meant)}; {meant.better.value}"
            + ("; each panel has its own scale" if len(columns) > 1 else ""),
            tuple(
                BarPanel(
                    place,
                    tuple(self._bar(column.get(subject), *subject) for subject in subjects),
                )
                for place, column in zip(places, columns, strict=True)
            ),
        )
        has_policies = any(policy for _, policy in subjects)
        yield markdown(
            (
                "subject",
                *(("an acknowledgement means",) if has_policies else ()),
                *(place or value_words(meant) for place in places),
            ),
            [
                (
                    subject_words(subject),
                    *((str(policy),) if has_policies else ()),
                    *(cell(column.get((subject, policy)), self.value) for column in columns),
                )
                for subject, policy in subjects
            ],
        )

    def _bar(self, case: Measured | None, subject: str, policy: Durability) -> Bar:
        readings = case.readings if case else ()
        found = [reading[self.value] for reading in readings if self.value in reading]
        if case is None or not found:
            return Bar(subject, policy, None)
        return Bar(subject, policy, case.median(self.value), min(found), max(found))


# --- Curves --------------------------------------------------------------------------------------


def curve_of(case: Measured, label: str, points: Iterable[tuple[float, float]]) -> Curve:
    """Return the curve of a subject."""
    return Curve(label, tuple(sorted(points)), is_ours(case.subject), case.policy)


def is_wide(values: Iterable[float]) -> bool:
    """Whether a logarithmic axis shows these values better."""
    found = list(values)
    return min(found) > 0 and max(found) >= LOGARITHMIC * min(found)


def panel_of(
    title: str, x_axis: str, y_axis: str, curves: Sequence[Curve], *, y_is_log: bool = False
) -> CurvePanel:
    """Return a panel, with logarithmic axes where they show more, and marks at a few points."""
    ys = [y for curve in curves for _, y in curve.points]
    xs = sorted({x for curve in curves for x, _ in curve.points})
    return CurvePanel(
        title,
        x_axis,
        y_axis,
        tuple(curves),
        x_is_log=is_wide(xs),
        y_is_log=is_wide(ys) or (y_is_log and min(ys) > 0),
        ticks=tuple((x, size_words(x)) for x in xs) if len(xs) <= TICKS_MAX else (),
    )


def by_subject(cases: Iterable[Measured]) -> dict[tuple[str, Durability], list[Measured]]:
    """Return the cases by subject, in the order of `subjects_of`."""
    shown = list(cases)
    return {
        subject: [case for case in shown if (case.subject, case.policy) == subject]
        for subject in subjects_of(shown)
    }


def curves_over(cases: Iterable[Measured], x: Key, value: str) -> Iterator[Curve]:
    """Yield the curve of each subject that has this value."""
    for (subject, _), found in by_subject(cases).items():
        read = [(part(case, x), case.median(value)) for case in found]
        points = [(float(at), y) for at, y in read if y is not None and isinstance(at, int)]
        if points:
            yield curve_of(found[0], subject, points)


@dataclass(frozen=True, slots=True)
class Curves:
    """A value along an axis of size, a curve for each subject; a panel for each part by a key."""

    value: str
    what: str
    x: Key
    panels: Key = OPERATION
    which: Which = ALL
    y_is_log: bool = False
    """Also where the values are near each other: how a cost grows is the slope then."""

    def __call__(self, cases: Sequence[Measured]) -> Iterator[Block]:
        """Yield each plot and its table."""
        shown = [
            case
            for case in cases
            if self.which.has(case)
            and case.median(self.value) is not None
            and isinstance(part(case, self.x), int)
        ]
        keys = [key for key in keys_of(shown) if key not in {self.x, self.panels}]
        for parts, found in split(shown, keys).items():
            if len(split(found, (self.x,))) > 1:
                title = title_of(self.what, keys, parts, shown)
                yield from self._one(found, words_of(keys, parts), title)

    def _one(self, cases: Sequence[Measured], words: str, title: str) -> Iterator[Block]:
        unit = value_words(VALUES[self.value])
        panels = [
            panel_of(
                words_of((self.panels,), place),
                self.x,
                unit,
                [*curves_over(found, self.x, self.value)],
                y_is_log=self.y_is_log,
            )
            for place, found in split(cases, (self.panels,)).items()
        ]
        scales = f"{VALUES[self.value].better.value}; each panel has its own scale"
        name = file_name(cases[0].chapter, self.value, words or self.x)
        yield Plot(name, title, f"{unit}; {scales}", (*panels,))
        xs = sorted({x for panel in panels for c in panel.curves for x, _ in c.points})
        yield markdown(
            ("", f"{unit}, by {self.x}", *(f"{x:,.0f}" for x in xs)),
            [
                (panel.title, curve.name, *(point_words(curve, x) for x in xs))
                for panel in panels
                for curve in panel.curves
            ],
        )


def point_words(curve: Curve, x: float) -> str:
    """Write where a curve is; nothing where it has no point."""
    return next((figure_words(y) for at, y in curve.points if at == x), "")


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Percentiles of times, a curve for each part by a key, and the same as a table."""

    what: str
    curves: Key
    """`SUBJECT`, or what differs between the cases of one subject."""
    panels: Key = OPERATION
    which: Which = ALL

    def __call__(self, cases: Sequence[Measured]) -> Iterator[Block]:
        """Yield each plot and its table."""
        shown = [
            case
            for case in cases
            if self.which.has(case)
            and case.median("p50_ms") is not None
            and case.median("p99_ms") is not None
        ]
        keys = [key for key in keys_of(shown) if key not in {self.curves, self.panels}]
        for parts, found in split(shown, keys).items():
            title = title_of(self.what, keys, parts, shown)
            yield from self._one(found, words_of(keys, parts), title)

    def _one(self, cases: Sequence[Measured], words: str, title: str) -> Iterator[Block]:
        names = [name for name in PERCENTILES if name in values_of(cases)]
        ticks = tuple((float(at), VALUES[name].words) for at, name in enumerate(names))
        ordered = [case for found in by_subject(cases).values() for case in found]
        medians = {
            id(case): [
                (float(at), y)
                for at, name in enumerate(names)
                if (y := case.median(name)) is not None
            ]
            for case in ordered
        }
        every = [y for points in medians.values() for _, y in points]
        panels, rows = [], []
        for place, found in by_size(split(ordered, (self.panels,))):
            where = words_of((self.panels,), place)
            curves = []
            for case in found:
                if self.curves == SUBJECT:
                    curve = curve_of(case, case.subject, medians[id(case)])
                else:
                    label = words_of((self.curves,), (part(case, self.curves),))
                    curve = Curve(label, tuple(medians[id(case)]))
                curves.append(curve)
                rows.append((where, curve.name, *(cell(case, name) for name in names)))
            panels.append(
                CurvePanel(
                    *(where, "", "ms", (*curves,)),
                    y_is_log=is_wide(every),
                    ticks=ticks,
                    y_range=(min(every), max(every)),
                )
            )
        axis = "ms; lower is better" + ("; logarithmic" if is_wide(every) else "")
        yield Plot(file_name(cases[0].chapter, "times", words), title, axis, (*panels,))
        yield markdown(("", "ms", *(VALUES[name].words for name in names)), rows)


# --- Several values ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PanelOf:
    """What one panel of a `Grid` shows."""

    title: str
    values: tuple[str, ...]
    """Of one unit; a curve for each."""
    operation: str = ""
    """Empty: whichever has them."""


@dataclass(frozen=True, slots=True)
class Grid:
    """Several values along an axis, as time or size, a panel for each kind; and tables of them."""

    what: str
    x: Key
    panels: tuple[PanelOf, ...]

    def __call__(self, cases: Sequence[Measured]) -> Iterator[Block]:
        """Yield the plot and a table for each operation, of some moments if there are many."""
        panels = [panel for shown in self.panels for panel in self._panel(cases, shown)]
        if panels:
            yield Plot(file_name(cases[0].chapter, "by", self.x), self.what, "", (*panels,))
        for (operation,), found in split(cases, (OPERATION,)).items():
            if any(case.readings for case in found):
                step = max(1, len(found) // ROWS_MAX)
                yield f"**{operation}**\n\n{everything(found[::step])}"

    def _panel(self, cases: Sequence[Measured], shown: PanelOf) -> Iterator[CurvePanel]:
        of = [case for case in cases if shown.operation in {"", case.operation}]
        drawn = [
            (value, curve) for value in shown.values for curve in curves_over(of, self.x, value)
        ]
        if not drawn:
            return
        unit = VALUES[shown.values[0]].unit
        scale = 1.0
        if unit == "B" and max(y for _, c in drawn for _, y in c.points) >= MEGA:
            unit, scale = "MB", MEGA
        several = len({(curve.label, curve.policy) for _, curve in drawn}) > 1
        curves = []
        for value, curve in drawn:
            words = VALUES[value].words if len(shown.values) > 1 else ""
            points = tuple((x, y / scale) for x, y in curve.points)
            if several:
                label = ", ".join(filter(None, (curve.label, words)))
                curves.append(Curve(label, points, curve.is_ours, curve.policy))
            else:
                curves.append(Curve(words, points, value == shown.values[0]))
        words = unit.removeprefix("/s") or value_words(VALUES[shown.values[0]])
        yield panel_of(shown.title, self.x, words, curves)
