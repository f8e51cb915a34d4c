"""The pages of the report, made of results: docs/benchmarks.md, and a page for each chapter.

The main page has the plots, each with its table, and what is true of all chapters; the page of a
chapter has everything that was measured, and how each subject was set up.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.registry import EFFORTS, VALUES, Better, Durability, Values
from benchmarks.report.losses import all_losses, comparisons, losses_in_short
from benchmarks.report.plots import Plot
from benchmarks.report.sections import CHAPTERS, Chapter
from benchmarks.report.views import (
    OPERATION,
    everything,
    keys_of,
    label_of,
    markdown,
    part,
    split,
    subjects_of,
    words_of,
)
from benchmarks.report.words import COLUMNS, figure_words, list_words, paragraph, paragraphs
from benchmarks.results import Measured

Results = Mapping[str, Sequence[Measured]]
"""The cases of each chapter that has a file, by its name."""

MADE: Final = "<!-- Made by `make report` of benchmarks/results: change nothing here by hand. -->\n"
NEVER: Final = tuple(name for name, value in VALUES.items() if value.better is Better.ZERO)
FACTS: Final = {
    "processor": "processor",
    "processors": "processors",
    "memory_bytes": "memory",
    "disk": "file system",
    "synced_append_ms": "a synced append of 4 KiB",
    "system": "system",
    "python": "Python",
    "peers": "others, as Debian packs them",
}
"""What is said of the machine, by the name in the results."""

INTRODUCTION: Final = """
What delayd does beside its rivals, measured on one machine with one load generator. Machines differ
by a factor of three and more, so measure yours: with two processors or more, nothing else running,
and what Debian calls beanstalkd, redis-server, rabbitmq-server and postgresql installed,
`make bench` in a clone compiles delayd and measures, and `make report` makes this page of it.
[benchmarks/README.md](../benchmarks/README.md#servers) says how each operation is carried out, and
what is fair about it.
"""
PROMISES: Final = """
A rate without its promise says little. What an acknowledgement means stands beside each figure, and
those that promise the same have one colour:
"""
PROMISE_HEADINGS: Final = (
    *("an acknowledgement means", "lost at worst"),
    *("delayd `--sync`", "beanstalkd", "Redis `appendfsync`", "PostgreSQL"),
)
PROMISED: Final[Mapping[Durability, Sequence[str]]] = {
    Durability.BEFORE_ANSWER: (
        *("nothing that was answered", "`always`, the default", "`-f 0`", "`always`"),
        "`synchronous_commit` on",
    ),
    Durability.WITHIN_50_MS: (
        *("in a power cut, 50 ms and the sync under way", "`interval`", "`-f 50`", "", ""),
    ),
    Durability.WITHIN_1_S: (
        *("in a power cut, a second and the sync under way", "", "", "`everysec`"),
        "`synchronous_commit` off",
    ),
    Durability.UNSYNCED: (
        *("in a power cut, what the system has not written: half a minute and more", "`never`"),
        *("", "", ""),
    ),
    Durability.IN_MEMORY: ("everything, by a kill -9 too", "", "without `-b`", "none", ""),
}
"""What is lost at worst, and which setting of whom promises that."""
READING: Final = """
*Compiled* is the same source, compiled by mypyc (`make compiled`); *delayd* alone is plain Python.
*In flight* is how many commands a connection sends before it waits for an answer. *Reserve + ack*
takes a ready job and deletes it. A ratio compares what delayd does with what the other does, and is
above 1 where delayd is better. An empty cell is one for which there was no figure: the memory and
the log of a job need 10,000 jobs, which a slow server did not put, and what keeps nothing has no
log.
"""
NOISE: Final = (
    """Subjects that are compared take turns, A B C A B C, so that a slow minute of the machine
    meets all of them. A figure is the median of its readings; in a picture a thin line shows the
    lowest and the highest. A ratio is the median of the ratios of readings that were taken one
    after the other. Figures have three digits: the fourth is noise.""",
    """The generator has one of the processors, so no server has the whole machine. Processes are
    not pinned, and nothing else runs. Each reading begins with a warm-up. Job, body and client are
    the same for all; what a subject needs to be set up so is on the page of its chapter.""",
    """What must never happen is not judged by medians: one job that is lost, doubled or early in
    any reading is shown in bold.""",
)
SLOWER: Final = """
Every ratio below 1, with values of delayd and of the other. delayd is compared with those that
promise the same or more; who promises less than any delayd beside it is compared with the one that
promises least. Less memory and a shorter time are better, so 0.5 means half the rate, or twice the
memory.
"""
IN_SHORT: Final = """
A row is an operation, a value and a delayd: at how many of the sizes another that promises the same
is ahead, and the worst of all, with its size and who it was.
"""
PLOTS: Final = """
The plots, the machine, what the words mean and the command that made it are in
[benchmarks.md](../benchmarks.md).
"""
MEANINGLESS: Final = (("resident_bytes", "PostgreSQL"),)
"""Values that say nothing of a subject: PostgreSQL's buffers have one size, whatever waits."""
MANY: Final = 5
"""Subjects from here on are counted, not named."""
NOT_RUN: Final = """
What `python -m benchmarks list` prints and no table here has, was not run: `make report` says how
much that is of each chapter. The others have a reason.
"""
NONE_SLOWER: Final = "There is none in these results."


@dataclass(slots=True)
class Pages:
    """What the report consists of."""

    texts: dict[str, str] = field(default_factory=dict)
    """By path below docs/."""
    plots: list[Plot] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Chapters without results."""


def pages_of(measured: Results) -> Pages:
    """Make all pages."""
    results = {name: [*map(with_meaning, cases)] for name, cases in measured.items()}
    pages = Pages()
    known = {chapter.name for chapter in CHAPTERS}
    others = [Chapter(name, name.capitalize(), "") for name in results if name not in known]
    chapters = (*CHAPTERS, *others)
    pages.missing = [chapter.name for chapter in chapters if not results.get(chapter.name)]
    found = [one for cases in results.values() for one in comparisons(cases)]
    blocks = [
        f"# How fast it is\n\n{MADE}\n{paragraph(INTRODUCTION)}\n",
        f"## How to read it\n\n{paragraph(PROMISES)}\n\n{promised()}\n{paragraph(READING)}\n",
        f"## What was measured, and on what\n\n{measured_on(chapters, results)}",
        "## How noise is handled\n\n"
        + "\n\n".join(map(paragraph, (readings_words(results), *NOISE)))
        + "\n",
        f"## Lost, doubled, early\n\n{never(chapters, results)}",
        f"## Where delayd is slower or larger\n\n{paragraph(SLOWER + IN_SHORT)}\n\n"
        + (losses_in_short(found) or NONE_SLOWER + "\n")
        + "\n[All of them](benchmarks/slower.md), with every percentile, the worst first.\n",
    ]
    for chapter in chapters:
        blocks += section(chapter, results.get(chapter.name, ()), pages)
    reasons = not_measured(results)
    if reasons:
        blocks.append(f"## Not measured\n\n{paragraph(NOT_RUN)}\n\n{reasons}")
    pages.texts["benchmarks.md"] = "\n".join(blocks)
    pages.texts["benchmarks/slower.md"] = (
        f"# Where delayd is slower or larger\n\n{MADE}\n{paragraph(SLOWER)}\n\n{all_losses(found)}"
    )
    return pages


def with_meaning(case: Measured) -> Measured:
    """Return a case without the values that say nothing of its subject."""
    without = {name for name, subject in MEANINGLESS if case.subject.startswith(subject)}
    if not without:
        return case
    readings: list[Values] = [
        {name: value for name, value in reading.items() if name not in without}
        for reading in case.readings
    ]
    return dataclasses.replace(case, readings=readings)


def promised() -> str:
    """Write what each acknowledgement means."""
    return markdown(PROMISE_HEADINGS, [(policy, *cells) for policy, cells in PROMISED.items()])


def readings_words(results: Results) -> str:
    """Write how many readings the figures are of."""
    cases = [case for found in results.values() for case in found if case.readings]
    once = sum(len(case.readings) == 1 for case in cases)
    if not once:
        return f"Each of the {len(cases):,} cases here was read twice or more."
    return (
        f"**{once:,} of the {len(cases):,} cases here were read once**, and one reading does not"
        " say how far the next one would be: do not read a difference of some per cent out of them."
    )


def section(chapter: Chapter, cases: Sequence[Measured], pages: Pages) -> Iterator[str]:
    """Yield the blocks of a chapter; add its plots and its page to the others."""
    yield f"## {chapter.heading}\n"
    if chapter.text:
        yield paragraphs(chapter.text) + "\n"
    if not cases:
        yield paragraph(f"Not measured yet: `{chapter.made_by}` does it.") + "\n"
        return
    for view in chapter.views:
        for block in view(cases):
            if isinstance(block, Plot):
                pages.plots.append(block)
                yield picture(block)
            else:
                yield block
    path = f"benchmarks/{chapter.name}.md"
    yield f"[Everything measured]({path}), and how each was set up.\n"
    pages.texts[path] = "\n".join(page_of(chapter, cases))


def picture(plot: Plot) -> str:
    """Write a plot, which is light or dark as its reader's page is."""
    path = f"benchmarks/{plot.name}"
    axis = f" ({plot.axis})" if plot.axis else ""
    return (
        f"{paragraph(f'**{plot.title}**{axis}')}\n\n<picture>\n"
        f'  <source media="(prefers-color-scheme: dark)"\n    srcset="{path}-dark.svg">\n'
        f'  <img alt="{plot.title}"\n    src="{path}-light.svg">\n'
        "</picture>\n"
    )


def page_of(chapter: Chapter, cases: Sequence[Measured]) -> Iterator[str]:
    """Yield the blocks of a chapter's own page."""
    yield f"# {chapter.heading}: everything measured\n\n{MADE}"
    yield paragraph(PLOTS) + "\n"
    for (operation,), found in split(cases, (OPERATION,)).items():
        yield f"## {str(operation).capitalize()}\n\n{everything(found)}"
    settings = {(case.subject, case.policy): case.settings for case in cases if case.settings}
    if settings:
        yield "## How each was set up\n"
        for subject, policy in subjects_of(cases):
            if (subject, policy) in settings:
                name = f"{subject}, {policy}" if policy else subject
                lines = settings[subject, policy].strip().splitlines()
                text = "\n".join(paragraph(one) if len(one) > COLUMNS else one for one in lines)
                yield f"**{name}**\n\n```text\n{text}\n```\n"


def measured_on(chapters: Sequence[Chapter], results: Results) -> str:
    """Write which command made which chapter, of which commit, and the machine."""
    rows = []
    machines: dict[str, dict[str, list[str]]] = {name: {} for name in FACTS}
    for chapter in chapters:
        cases = results.get(chapter.name, ())
        described: list[Mapping[str, Any]] = []
        for case in cases:
            if case.machine not in described:
                described.append(case.machine)
        for machine in described:
            for name, known in machines.items():
                known.setdefault(fact_words(name, machine.get(name)), []).append(chapter.name)
            rows.append(run_cells(chapter, machine))
    if not rows:
        return "Nothing has been measured yet: `make bench` does it.\n"
    headings = ("chapter", "made by", "delayd", "on", "effort, readings of a case")
    table = markdown(headings, dict.fromkeys(rows))
    facts = []
    for name, known in machines.items():
        words = (
            next(iter(known))
            if len(known) == 1
            else "; ".join(
                f"{value} ({list_words(list(dict.fromkeys(of)))})" for value, of in known.items()
            )
        )
        facts.append((FACTS[name], words))
    short = any("**" in row[-1] for row in rows)
    warning = """Chapters that were measured with less than the full effort show what is measured,
    and have no figures to quote: readings are few and short, jobs fewer than the sizes say, and
    the machine was not quiet."""
    return (
        table
        + (f"\n{paragraph(warning)}\n" if short else "")
        + f"\n{markdown(('machine', ''), facts)}"
    )


def run_cells(chapter: Chapter, machine: Mapping[str, Any]) -> tuple[str, ...]:
    """Write which command a run was, of which commit, and how much it measured."""
    effort = str(machine.get("effort", "unknown"))
    usual = EFFORTS.get(effort)
    runs = machine.get("runs", 1)
    flags = "" if effort == "full" else f" --effort {effort}"
    if usual is not None and runs != usual.runs:
        flags += f" --runs {runs}"
    if usual is not None and machine.get("seconds", usual.seconds) != usual.seconds:
        flags += f" --seconds {machine['seconds']:g}"
    return (
        f"[{chapter.name}](#{anchor(chapter.heading)})",
        f"`{chapter.made_by}{flags * (not chapter.command)}`",
        f"`{machine.get('commit', 'unknown')}`, {machine.get('delayd', 'unknown')}",
        str(machine.get("at", "")).partition("T")[0],
        f"{'' if effort == 'full' else f'**{effort}**, '}{runs}",
    )


def fact_words(name: str, value: Any) -> str:  # noqa: ANN401 - whatever the results say
    """Write a fact of the machine."""
    if value is None:
        return "unknown"
    if name == "memory_bytes":
        return f"{value / 2**30:.0f} GiB"
    if name == "synced_append_ms":
        return f"{figure_words(value, 1)} ms"
    return ", ".join(value) if isinstance(value, list) else str(value)


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return "".join(c for c in heading.lower() if c.isalnum() or c in "- _").replace(" ", "-")


def never(chapters: Sequence[Chapter], results: Results) -> str:
    """Write how many jobs were lost, doubled and early in all readings."""
    rows = []
    for chapter in chapters:
        for (operation,), cases in split(results.get(chapter.name, ()), (OPERATION,)).items():
            readings = [reading for case in cases for reading in case.readings]
            counted = [r for r in readings if any(name in r for name in NEVER)]
            if counted:
                counts = [
                    sum(r.get(name, 0) for r in counted)
                    if any(name in r for r in counted)
                    else None
                    for name in NEVER
                ]
                cells = ["" if c is None else f"**{c:,.0f}**" if c else "0" for c in counts]
                rows.append((f"{chapter.name}: {operation}", f"{len(counted):,}", *cells))
    if not rows:
        return "No chapter that counts them has been measured yet.\n"
    text = (
        "Of the jobs of all readings, of all subjects; who lost one is on the page of the chapter."
    )
    headings = ("what", "readings", *(VALUES[name].words for name in NEVER))
    return f"{paragraph(text)}\n\n{markdown(headings, rows)}"


def not_measured(results: Results) -> str:
    """Write what was not measured, with its reason: what has one reason in a line."""
    found: dict[tuple[str, str], list[tuple[Measured, str]]] = {}
    for name, cases in results.items():
        keys = keys_of(cases)
        for case in cases:
            if case.not_measured:
                size = words_of(keys[1:], [part(case, axis) for axis in keys[1:]])
                key = (f"{name}: {case.operation}", case.not_measured)
                found.setdefault(key, []).append((case, size))
    rows = []
    for (what, reason), several in found.items():
        labels = list(dict.fromkeys(label_of(case) for case, _ in several))
        subjects = list(dict.fromkeys(case.subject for case, _ in several))
        sizes = list(dict.fromkeys(size for _, size in several))
        who = labels if len(labels) == 1 else subjects
        of = list_words(who) if len(who) < MANY else f"{len(who)} subjects"
        size = sizes[0] if len(sizes) == 1 else f"{len(sizes)} sizes"
        rows.append((what, of, size, reason.replace("\n", " ").replace("|", "\\|")))
    return markdown(("what", "subject", "size", "reason"), rows) if rows else ""
