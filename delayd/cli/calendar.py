"""`delayd calendar`: how many jobs come due when, as a histogram."""

import datetime as dt
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from delayd.cli.connect import known_topics, with_client
from delayd.cli.parameters import BOUND, DURATION, command
from delayd.cli.tables import JSON_OPTION, columns_here, print_json, print_rich, shown
from delayd.cli.terminal import complain, print_lines
from delayd.client.values import seconds
from delayd.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from delayd.client.results import Calendar
    from delayd.client.sync import Client

BINS_MAX: Final = 1_000
BLOCKS: Final = " ▏▎▍▌▋▊▉█"
BAR_COLUMNS: Final = 40
BINS_DEFAULT: Final = 24
DAY_S: Final = 86_400.0


@command(
    "delayd calendar",
    "delayd calendar orders mail --to 7d --bucket 6h",
    "delayd calendar --from 2h --to 3h --bucket 1m    # closer",
    "delayd calendar --from 2030-01-01T00:00:00Z",
    "delayd calendar --json",
)
@click.argument("topics", nargs=-1, metavar="[TOPIC]...", shell_complete=known_topics)
@click.option(
    "--from", "begin", type=BOUND, default="0", help="Where it begins: 2h, a time; by default now."
)
@click.option("--to", "end", type=BOUND, help="Where it ends; by default a day after --from.")
@click.option("--bucket", type=DURATION, help="How long each row is; by default 24 rows.")
@JSON_OPTION
@with_client
def calendar(
    client: "Client",
    topics: tuple[str, ...],
    *,
    begin: str,
    end: str | None,
    bucket: str | None,
    as_json: bool,
) -> None:
    """Show how many delayed jobs come due when, of the TOPICs or of all."""
    now = None
    if "T" in begin or (end is not None and "T" in end):
        now = client.calendar(*topics, bins=1).start  # the daemon's clock may be a virtual one
    now = now or dt.datetime.now(dt.UTC)
    if moment_of(begin, now) < now:
        complain("nothing is due in the past: the calendar begins now, not at --from")
        begin = "0"
    span_s = DAY_S if end is None else (moment_of(end, now) - moment_of(begin, now)).total_seconds()
    if span_s <= 0:
        raise click.UsageError("--to must be after --from, and after now")
    bucket_s = seconds(bucket) if bucket else span_s / BINS_DEFAULT
    if bucket_s <= 0:
        raise click.UsageError("--bucket must be above 0")
    bins = math.ceil(round(span_s / bucket_s, 6))
    if bins > BINS_MAX:
        least = span_s / BINS_MAX
        raise click.UsageError(f"--bucket must be {least:g}s or more for so long a time")
    due_from = 0 if begin == "0" else begin
    found = client.calendar(*topics, due_from=due_from, horizon=bins * bucket_s, bins=bins)
    if as_json:
        print_json(
            {"topic": name, "from": found.start, "bucket": found.bin_s, "counts": counts}
            for name, counts in found.topics.items()
        )
        return
    labelled = rows(found)
    if sys.stdout.isatty():
        print_rich(lambda: chart(labelled))
    else:
        print_lines(f"{label}  {count}" for label, count in labelled)
    jobs = sum(count for _, count in labelled)
    complain(f"coming due in these {len(labelled)} rows: {counted(jobs, 'job')}")


def moment_of(bound: str, now: dt.datetime) -> dt.datetime:
    """Return the time of a bound, which may be so far from now."""
    if "T" in bound:
        return dt.datetime.fromisoformat(bound)
    ahead = dt.timedelta(seconds=seconds(bound.removeprefix("-")))
    return now - ahead if bound.startswith("-") else now + ahead


def rows(found: "Calendar") -> list[tuple[str, int]]:
    """Return when each row begins, and how many jobs of all topics are in it."""
    bins = len(next(iter(found.topics.values()), ()))
    labelled = []
    for index in range(bins):
        at_s = index * found.bin_s
        if found.start is None:
            label = f"+{dt.timedelta(seconds=at_s)}"
        else:
            label = shown(found.start + dt.timedelta(seconds=at_s), has_ms=False)
        labelled.append((label, sum(counts[index] for counts in found.topics.values())))
    return labelled


def bar(count: int, most: int, columns: int = BAR_COLUMNS) -> str:
    """Draw a number as a bar; any number above 0 is visible.

    >>> bar(8, 16, 4), bar(1, 10_000, 4), bar(0, 5, 4)
    ('██', '▏', '')
    """
    if not count:
        return ""
    eighths = max(1, round(8 * columns * count / most))
    return "█" * (eighths // 8) + BLOCKS[eighths % 8].strip()


def chart(labelled: Sequence[tuple[str, int]]) -> "RenderableType":
    """Draw the rows for a terminal."""
    from rich.table import Table

    most = max((count for _, count in labelled), default=0)
    columns = max(10, columns_here() - 32)
    table = Table.grid(padding=(0, 2))
    for label, count in labelled:
        table.add_row(
            f"[dim]{label}[/]",
            f"[bold]{count}[/]" if count else "",
            f"[cyan]{bar(count, most, columns)}[/]",
        )
    return table
