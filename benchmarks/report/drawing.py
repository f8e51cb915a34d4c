"""Draws a `Plot` as SVG, light or dark: the only module that imports matplotlib.

The colours are Okabe and Ito's ("Color Universal Design", 2008), which people with any kind of
colour vision tell apart, lighter in the dark theme. Of bars the hue says what an acknowledgement
means, and delayd's are in full colour; a curve has a colour and a mark of its own, and its name at
its end. Text stays text, in whatever sans-serif the reader has, and the same plot gives the same
bytes: no date, no version, and ids from a fixed salt.
"""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from benchmarks.registry import Durability
from benchmarks.report.plots import BarPanel, Curve, CurvePanel, Plot, is_ours
from benchmarks.report.words import figure_words, short_words

WIDTH: Final = 9.6
"""Of a picture, in inches of 72 points; about what a page of a Git host shows."""
ROW: Final = 0.235
"""Of a bar, in inches."""
FOOT: Final = 0.12
"""Below the bars, in inches."""
SMALL, MEDIUM, LARGE = 8.5, 9.5, 11.5
FONT: Final = re.compile(r"'DejaVu Sans', sans-serif")
MARKS: Final = "osD^vPX<>"
COMPILED: Final = ", compiled"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours on one ground."""

    ground: str
    ink: str
    faint: str
    """Axes and everything that is not data."""
    hues: Mapping[Durability, str]
    ours: str
    others: tuple[str, ...]
    """Of curves that are not delayd's."""


THEMES: Final[Mapping[str, Theme]] = MappingProxyType(
    {
        "light": Theme(
            ground="#ffffff",
            ink="#1f2328",
            faint="#6e7781",
            hues={
                Durability.NOT_APPLICABLE: "#0072b2",
                Durability.BEFORE_ANSWER: "#0072b2",
                Durability.WITHIN_50_MS: "#009e73",
                Durability.WITHIN_1_S: "#b86b00",
                Durability.UNSYNCED: "#7a6a53",
                Durability.IN_MEMORY: "#a8447f",
            },
            ours="#0072b2",
            others=(
                *("#d55e00", "#009e73", "#b3669a", "#b88700", "#2f2f2f"),
                *("#3f8fc0", "#8c510a", "#6e7781"),
            ),
        ),
        "dark": Theme(
            ground="#0d1117",
            ink="#e6edf3",
            faint="#8b949e",
            hues={
                Durability.NOT_APPLICABLE: "#56b4e9",
                Durability.BEFORE_ANSWER: "#56b4e9",
                Durability.WITHIN_50_MS: "#2fc79a",
                Durability.WITHIN_1_S: "#e69f00",
                Durability.UNSYNCED: "#b5a58c",
                Durability.IN_MEMORY: "#e08fc0",
            },
            ours="#56b4e9",
            others=(
                *("#ff8a4c", "#2fc79a", "#e08fc0", "#e6c34a", "#c9d1d9"),
                *("#8fd0f5", "#c99a5b", "#8b949e"),
            ),
        ),
    }
)
OTHERS_ALPHA: Final = 0.5
"""Of the bars of peers."""


def draw(plot: Plot, theme_name: str) -> str:
    """Return the SVG of a plot in a theme of `THEMES`."""
    theme = THEMES[theme_name]
    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "delayd",
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": SMALL,
        "text.color": theme.ink,
        "axes.edgecolor": theme.faint,
        "axes.labelcolor": theme.ink,
        "axes.labelsize": SMALL,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": MEDIUM,
        "xtick.color": theme.faint,
        "ytick.color": theme.faint,
        "xtick.labelcolor": theme.ink,
        "ytick.labelcolor": theme.ink,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
    }
    with mpl.rc_context(settings):
        figure = Figure(facecolor=theme.ground)
        FigureCanvasSVG(figure)
        if isinstance(plot.panels[0], BarPanel):
            bars(figure, plot, theme)
        else:
            curves(figure, plot, theme)
        file = io.StringIO()
        metadata: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        metadata |= {"Title": plot.title, "Identifier": plot.fingerprint}
        figure.savefig(file, format="svg", metadata=metadata)
    return FONT.sub("sans-serif", file.getvalue()).rstrip() + "\n"


def headings(figure: Figure, plot: Plot, theme: Theme, height: float) -> None:
    """Write what is compared, and below it in which unit."""
    x = 0.1 / WIDTH
    figure.text(x, 1 - 0.24 / height, plot.title, size=LARGE, weight="bold", va="center")
    figure.text(x, 1 - 0.5 / height, plot.axis, size=SMALL, color=theme.faint, va="center")


# --- Bars ----------------------------------------------------------------------------------------


def bars(figure: Figure, plot: Plot, theme: Theme) -> None:
    """Draw panels of horizontal bars side by side, with what they are on the left."""
    panels = [panel for panel in plot.panels if isinstance(panel, BarPanel)]
    first = panels[0].bars
    places = heights(first)
    rows = places[-1] + 1
    has_titles = any(panel.title for panel in panels)
    height = rows * ROW + (1.1 if has_titles else 0.85)
    figure.set_size_inches(WIDTH, height)
    subjects = 0.075 * max(len(bar.subject) for bar in first) + 0.15
    policies = 0.066 * max(len(bar.policy) for bar in first) + 0.15
    left = subjects + policies
    each = (WIDTH - left - 0.1) / len(panels)
    headings(figure, plot, theme, height)
    for column, panel in enumerate(panels):
        axes = figure.add_axes(
            (
                (left + column * each) / WIDTH,
                FOOT / height,
                (each - 0.12) / WIDTH,
                rows * ROW / height,
            )
        )
        if has_titles:
            axes.set_title(panel.title, color=theme.ink)
        one_panel_of_bars(axes, panel, places, theme)
        if column == 0:
            names_of_bars(figure, panel, places, theme, subjects, height)


def heights(shown: Sequence[Any]) -> list[float]:
    """Return where each bar stands, from the top; half a row between two kinds of durability."""
    places: list[float] = []
    at = 0.0
    for before, bar in zip((None, *shown), shown, strict=False):
        if before is not None:
            at += 1.0 if before.policy is bar.policy else 1.5
        places.append(at)
    return places


def names_of_bars(
    figure: Figure,
    panel: BarPanel,
    places: Sequence[float],
    theme: Theme,
    subjects: float,
    height: float,
) -> None:
    """Write the subject and the durability of each bar."""
    rows = places[-1] + 1
    for bar, place in zip(panel.bars, places, strict=True):
        y = (FOOT + (rows - place - 0.5) * ROW) / height
        weight = "bold" if is_ours(bar.subject) else "normal"
        figure.text(0.1 / WIDTH, y, bar.subject, size=SMALL, weight=weight, va="center")
        if bar.policy:
            figure.text(
                (0.1 + subjects) / WIDTH,
                y,
                str(bar.policy),
                size=SMALL,
                color=theme.hues[bar.policy],
                va="center",
            )


def one_panel_of_bars(axes: Axes, panel: BarPanel, places: Sequence[float], theme: Theme) -> None:
    """Draw the bars of a panel, each with its value behind it."""
    rows = places[-1] + 1
    longest = max(
        (max(bar.value, bar.high) for bar in panel.bars if bar.value is not None), default=1.0
    )
    inches = axes.get_position().width * WIDTH
    axes.set_xlim(0, (longest or 1.0) * inches / max(0.3, inches - 0.66))
    axes.set_ylim(rows - 0.5, -0.5)
    axes.xaxis.set_major_locator(NullLocator())
    axes.yaxis.set_major_locator(NullLocator())
    axes.spines["bottom"].set_visible(False)
    axes.set_facecolor(theme.ground)
    for bar, place in zip(panel.bars, places, strict=True):
        if bar.value is None:
            axes.text(0, place, " not measured", size=SMALL, color=theme.faint, va="center")
            continue
        ours = is_ours(bar.subject)
        axes.barh(
            place,
            bar.value,
            height=0.72,
            color=theme.hues[bar.policy],
            alpha=1.0 if ours else OTHERS_ALPHA,
        )
        if bar.high > bar.low:
            axes.plot([bar.low, bar.high], [place, place], color=theme.ink, linewidth=0.7)
        axes.text(
            max(bar.value, bar.high),
            place,
            " " + figure_words(bar.value),
            size=SMALL,
            weight="bold" if ours else "normal",
            va="center",
        )


# --- Curves --------------------------------------------------------------------------------------


def curves(figure: Figure, plot: Plot, theme: Theme) -> None:
    """Draw panels of curves, two beside each other, each curve with its name at its end."""
    panels = [panel for panel in plot.panels if isinstance(panel, CurvePanel)]
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)
    each = 3.3
    height = rows * each + 0.5
    figure.set_size_inches(WIDTH, height)
    headings(figure, plot, theme, height)
    looks = looks_of(panels, theme)
    width = WIDTH / columns
    lines = [line for panel in panels for c in panel.curves for line in name_lines(c)]
    beside = min(0.5 * width, 0.069 * max(map(len, lines), default=0) + 0.2)
    for at, panel in enumerate(panels):
        row, column = divmod(at, columns)
        axes = figure.add_axes(
            (
                (column * width + 0.75) / WIDTH,
                ((rows - row - 1) * each + 0.55) / height,
                (width - 0.75 - beside) / WIDTH,
                (each - 1.0) / height,
            )
        )
        axes.set_title(panel.title, color=theme.ink)
        one_panel_of_curves(axes, panel, theme, looks)


@dataclass(frozen=True, slots=True)
class Look:
    """How a curve is drawn."""

    colour: str
    mark: str
    is_dashed: bool


def looks_of(panels: Sequence[CurvePanel], theme: Theme) -> Mapping[str, Look]:
    """Return how each curve is drawn, by name; compiled ones as their like, dashed."""
    every = [curve for panel in panels for curve in panel.curves]
    colours: dict[str, tuple[str, str]] = {}
    others = iter(range(len(every)))
    for curve in sorted(every, key=lambda curve: not curve.is_ours):
        base = curve.name.replace(COMPILED, "")
        if not base or (base not in colours and curve.is_ours and not colours):
            colours[base] = (theme.ours, MARKS[0])
        elif base not in colours:
            at = next(others)
            colours[base] = (theme.others[at % len(theme.others)], MARKS[1:][at % 8])
    return {
        curve.name: Look(*colours[curve.name.replace(COMPILED, "")], COMPILED in curve.name)
        for curve in every
    }


def name_lines(curve: Curve) -> list[str]:
    """Return what is written at the end of a curve."""
    return [line for line in (curve.label, str(curve.policy)) if line]


def one_panel_of_curves(
    axes: Axes, panel: CurvePanel, theme: Theme, looks: Mapping[str, Look]
) -> None:
    """Draw the curves of a panel."""
    axes.set_facecolor(theme.ground)
    axes.set_xlabel(panel.x_axis)
    axes.set_ylabel(panel.y_axis)
    axes.grid(visible=True, axis="y", color=theme.faint, alpha=0.25, linewidth=0.6)
    for curve in panel.curves:
        look = looks[curve.name]
        axes.plot(
            [x for x, _ in curve.points],
            [y for _, y in curve.points],
            color=look.colour,
            marker=look.mark if len(curve.points) <= 12 else "",
            markersize=4,
            linewidth=2.2 if curve.is_ours else 1.2,
            linestyle="--" if look.is_dashed else "-",
            zorder=3 if curve.is_ours else 2,
        )
    scales(axes, panel)
    for curve, y in ends(axes, panel):
        axes.annotate(
            "\n".join(name_lines(curve)),
            (1.0, y),
            xycoords="axes fraction",
            xytext=(6, 0),
            textcoords="offset points",
            color=looks[curve.name].colour,
            size=SMALL,
            weight="bold" if curve.is_ours else "normal",
            va="center",
            linespacing=1.0,
            annotation_clip=False,
        )


def scales(axes: Axes, panel: CurvePanel) -> None:
    """Set the scales of both axes, and what is written at them."""
    plain = FuncFormatter(lambda value, _: short_words(value))
    for log, axis, scale in (
        (panel.x_is_log, axes.xaxis, axes.set_xscale),
        (panel.y_is_log, axes.yaxis, axes.set_yscale),
    ):
        if log:
            scale("log")
            low, high = axis.get_view_interval()
            subs = (1.0, 2.0, 5.0) if high < 300 * low and axis is axes.yaxis else (1.0,)
            axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=9))
            axis.set_minor_formatter(NullFormatter())
            axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(plain)
    lowest, highest = panel.y_range or (0.0, max(y for c in panel.curves for _, y in c.points))
    if not panel.y_is_log:
        axes.set_ylim(0, 1.08 * highest or 1)
    elif panel.y_range:
        axes.set_ylim(lowest / 1.3, highest * 1.3)
    if panel.ticks:
        axes.set_xticks([at for at, _ in panel.ticks], [words for _, words in panel.ticks])
        axes.xaxis.set_minor_locator(NullLocator())


def ends(axes: Axes, panel: CurvePanel) -> Iterator[tuple[Curve, float]]:
    """Yield each curve with the height of its name, as a part of the axes: none on another."""
    low, high = axes.get_ylim()
    if panel.y_is_log:
        low, high = math.log10(low), math.log10(high)
    found: list[tuple[float, Curve]] = []
    for curve in panel.curves:
        if curve.points and curve.label:
            y = curve.points[-1][1]
            found.append((((math.log10(y) if panel.y_is_log else y) - low) / (high - low), curve))
    found.sort(key=lambda one: one[0])
    apart = 0.062 * max((len(name_lines(curve)) for _, curve in found), default=1) * 1.05
    heights_of = spread([y for y, _ in found], apart)
    yield from zip((curve for _, curve in found), heights_of, strict=True)


def spread(wanted: Sequence[float], apart: float) -> list[float]:
    """Move ascending heights so far that they are `apart`, each group about where it was, in 0..1.

    >>> [round(y, 2) for y in spread([0.5, 0.5, 0.9, 1.0], 0.2)]
    [0.4, 0.6, 0.8, 1.0]
    """
    groups: list[tuple[float, int]] = []  # each a centre, and how many
    for y in wanted:
        groups.append((y, 1))
        while len(groups) > 1:
            (before, count), (after, more) = groups[-2], groups[-1]
            if after - before >= apart * (count + more) / 2 - 1e-9:
                break
            both = count + more
            half = apart * (both - 1) / 2
            centre = (before * count + after * more) / both
            groups[-2:] = [(max(half, min(1 - half, centre)), both)]
    return [
        centre + (at - (count - 1) / 2) * apart for centre, count in groups for at in range(count)
    ]
