"""The benchmarks' command line: `python -m benchmarks list`, `run` and `report`."""

import contextlib
import dataclasses
import datetime as dt
import gc
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click

from benchmarks import machine, registry, results, runner
from benchmarks.registry import CHAPTERS, EFFORTS, Bench, Case, Selection
from benchmarks.report import files

DIRECTORY: Final = Path("/var/tmp")  # noqa: S108 - a real disk almost everywhere, unlike /tmp
COMPILED: Final = Path(__file__).parent.parent / "build/compiled"


@click.group()
def main() -> None:
    """Measure delayd, its timing wheel and its peers, and make docs/benchmarks.md of it."""


def wanted(chapters: Sequence[str], only: Sequence[str]) -> list[tuple[str, list[Case]]]:
    """Return the chapters and which of their cases are wanted; each `--only` must fit a case."""
    all_of = {chapter: registry.cases_of(chapter) for chapter in chapters or CHAPTERS}

    def fitting(words: Sequence[str]) -> list[tuple[str, list[Case]]]:
        selection = Selection.of(words)
        found = [(name, [*filter(selection.has, cases)]) for name, cases in all_of.items()]
        if not any(cases for _, cases in found):
            raise click.UsageError(f"no case fits {' '.join(words)!r}; `list` prints all of them")
        return [(name, cases) for name, cases in found if cases]

    for word in only:
        fitting([word])
    return fitting(only)


CHAPTER = click.argument("chapters", nargs=-1, type=click.Choice(list(CHAPTERS)))
ONLY = click.option(
    "--only",
    multiple=True,
    metavar="WORD",
    help="An operation, subject=PART or AXIS=VALUE; several of one kind add up.",
)


@main.command("list")
@CHAPTER
@ONLY
def list_cases(chapters: Sequence[str], only: Sequence[str]) -> None:
    """Print the cases, a line each."""
    for _, cases in wanted(chapters, only):
        for case in cases:
            click.echo(case.name)


@main.command()
@CHAPTER
@ONLY
@click.option("--effort", type=click.Choice(list(EFFORTS)), default="full", show_default=True)
@click.option("--runs", type=click.IntRange(min=1), help="Readings of each case.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Of a rate's reading.")
@click.option(
    "--results",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write CHAPTER.jsonl to this folder. The report is made of benchmarks/results.",
)
@click.option(
    "--dir",
    "directory",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=DIRECTORY,
    show_default=True,
    help="Where servers write their logs: a disk, and not memory.",
)
def run(
    chapters: Sequence[str],
    only: Sequence[str],
    effort: str,
    runs: int | None,
    seconds: float | None,
    folder: Path | None,
    directory: Path,
) -> None:
    """Measure CHAPTERS, or all of them, and print a table for each round.

    Leaves with 1 if a job was lost, doubled or early, or if a server failed.
    """
    turns = wanted(chapters, only)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the servers too
    gc.disable()  # a collection in the generator would look like a stall of the server
    amount = EFFORTS[effort]
    amount = dataclasses.replace(
        amount, runs=runs or amount.runs, seconds=seconds or amount.seconds
    )
    described = machine.describe(directory)
    click.echo("\n".join(f"{name}: {value}" for name, value in described.items()) + "\n")
    settings = {
        "at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "effort": effort,
        **dataclasses.asdict(amount),
    }
    wrong: list[str] = []
    for chapter, cases in turns:
        with contextlib.ExitStack() as stack:
            writer = None
            if folder:
                try:
                    file = stack.enter_context(results.opened(folder, chapter, anew=not only))
                except (OSError, results.BusyResultsError) as error:
                    raise click.ClickException(f"results cannot be written: {error}") from error
                writer = results.Writer(file, described, settings)
            scratch = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="bench-", dir=directory)
            )
            compiled = COMPILED if (COMPILED / ".compiled").exists() else None
            bench = Bench(amount, Path(scratch), compiled)
            stack.callback(bench.close)
            began = time.monotonic()
            wrong += runner.run(cases, bench, writer, click.echo)
            click.echo(f"{chapter} took {(time.monotonic() - began) / 60:.1f} minutes\n")
    for line in wrong:
        click.echo(f"WRONG: {line}", err=True)
    sys.exit(1 if wrong else 0)


def unmeasured(folder: Path) -> Iterator[str]:
    """Yield for each chapter how many cases its file has not, as after a run that was ended."""
    for chapter, measured in results.chapters(folder):
        if chapter not in CHAPTERS:
            continue
        found = {(one.operation, *one.size.items(), one.subject, one.policy) for one in measured}
        left = [
            case
            for case in registry.cases_of(chapter)
            if (case.operation, *case.size.items(), case.subject, case.policy) not in found
        ]
        if left:
            yield f"{chapter}: {len(left)} cases are not in its file, as {left[0].name}"


@main.command()
@click.option(
    "--check", is_flag=True, help="Write nothing; leave with 1 if a file is not up to date."
)
def report(*, check: bool) -> None:
    """Make docs/benchmarks.md, its plots and the figures of README.md of benchmarks/results."""
    try:
        made = files.Report()
    except results.DamagedResultsError as error:
        raise click.ClickException(f"{error}\nmeasure the chapter again, or remove it") from error
    for words in (*made.missing, *unmeasured(results.FOLDER)):
        click.echo(f"missing: {words}", err=True)
    if check:
        outdated = made.outdated()
        click.echo("".join(f"outdated: {path}\n" for path in outdated), nl=False, err=True)
        sys.exit(1 if outdated else 0)
    made.write()
    click.echo(f"{len(made.texts)} pages and {len(made.plots)} pictures are written")


if __name__ == "__main__":
    main()
