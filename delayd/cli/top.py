"""`delayd top`: topics, rates, lateness and what comes due, live.

    q quits    p pauses    s sorts by the next column    r reverses

Each picture is drawn from values alone (`picture`); requests and keys are handled in the loop.
"""

import os
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from delayd.cli.calendar import BAR_COLUMNS, bar
from delayd.cli.connect import with_client
from delayd.cli.parameters import DURATION
from delayd.cli.tables import (
    Column,
    columns_here,
    cut,
    fitted,
    plain,
    print_json,
    print_rich,
    table,
)
from delayd.cli.terminal import CommandFailed, examples, print_lines
from delayd.client.errors import ConnectionLost, TopicNotFound, Unreachable
from delayd.client.values import seconds
from delayd.exits import Exit
from delayd.text import counted, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from delayd.client.sync import Client

COLUMNS: Final = (
    *("topic", "ready", "delayed", "reserved", "buried", "waiting"),
    *("put/s", "taken/s", "done/s", "late p50", "late p99"),
)
TOPIC_COLUMNS: Final = 40
TOPIC_LEAST: Final = 8
CHART_GAPS: Final = 11
"""What stands beside the number and the bar of a row of the chart: its label, and two gaps."""
LEFT_OUT: Final = (
    *("late p50", "waiting", "taken/s", "reserved", "done/s", "put/s", "late p99"),
    *("buried", "delayed", "ready"),
)
"""In this order, where the terminal is too narrow; the column of the order stays."""
ROWS_MAX: Final = 40
"""Topics whose rates are requested: so many requests for each picture."""
HORIZON: Final = "1h"
BINS: Final = 12
QUIT: Final = "q"


class TopicRow(NamedTuple):
    """One topic, in the order of `COLUMNS`."""

    topic: str
    ready: int
    delayed: int
    reserved: int
    buried: int
    waiting: int
    put_rate: float
    taken_rate: float
    done_rate: float
    late_p50_ms: float | None
    late_p99_ms: float | None


class Picture(NamedTuple):
    """The figures of one picture."""

    head: str
    rows: tuple[TopicRow, ...]
    due: tuple[int, ...]
    """How many jobs come due in each twelfth of the next hour."""


class View(NamedTuple):
    """Order and pause of the pictures."""

    sorted_by: int = 1
    is_reversed: bool = False
    is_paused: bool = False

    def after(self, key: str) -> "View":
        """Return the view after a key.

        >>> View().after("s").after("r").after("p")
        View(sorted_by=2, is_reversed=True, is_paused=True)
        """
        if key == "s":
            return self._replace(sorted_by=(self.sorted_by + 1) % len(COLUMNS))
        if key == "r":
            return self._replace(is_reversed=not self.is_reversed)
        if key == "p":
            return self._replace(is_paused=not self.is_paused)
        return self


@click.command(epilog=examples("delayd top", "delayd top --every 5s", "delayd top --once --json"))
@click.option("--every", type=DURATION, default="1s", help="How often it looks: 1s.")
@click.option("--once", is_flag=True, help="Print one picture, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one picture as JSON, and end.")
@with_client
def top(client: "Client", *, every: str, once: bool, as_json: bool) -> int:
    """Watch topics by state, rates, lateness and what comes due in the next hour.

    Keys: q quits, p pauses, s sorts by the next column, r reverses. Rates are jobs a second in the
    last minute; lateness is how late delays ended in it, in milliseconds.
    """
    if as_json:
        seen = fetched(client)
        rows = [row._asdict() for row in ordered(seen.rows, View())]
        print_json([{"topics": rows, "due": {"horizon": HORIZON, "counts": seen.due}}])
        return Exit.OK
    if once:
        seen, view = fetched(client), View()
        if sys.stdout.isatty():
            print_rich(lambda: picture(seen, view, columns_here()))
        else:
            cells = [[figure(cell) for cell in row] for row in ordered(seen.rows, view)]
            print_lines([seen.head, *plain(COLUMNS, cells), due_line(seen.due)])
        return Exit.OK
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandFailed(Exit.USAGE, "top needs a terminal; use --once, or --json")
    watch(client, max(0.1, seconds(every)))
    return Exit.OK


def fetched(client: "Client") -> Picture:
    """Return the figures of a picture, from the daemon. Only HTTP has the rates."""
    stats = client.stats()
    topics = client.topics()
    # The topics with most jobs first, so that those with least are left out.
    topics.sort(key=lambda topic: topic.jobs, reverse=True)
    rows = []
    for topic in topics[:ROWS_MAX]:
        try:
            details = client.topic(topic.name).details
        except TopicNotFound:  # since it was listed
            continue
        rates, late = figures(details, "rates"), figures(details, "late")
        rows.append(
            TopicRow(
                *(topic.name, topic.ready, topic.delayed, topic.reserved, topic.buried),
                topic.waiting,
                *(rates.get(name, 0.0) for name in ("put", "reserved", "deleted")),
                *(in_ms(late.get(name)) for name in ("p50", "p99")),
            )
        )
    calendar = client.calendar(horizon=HORIZON, bins=BINS)
    due = tuple(map(sum, zip(*calendar.topics.values(), strict=True))) or (0,) * BINS
    jobs = sum(topic.jobs for topic in topics)
    # On the line `version` is that of beanstalkd.
    version = stats.get("delayd-version", stats.get("version", ""))
    head = f"delayd {visible(str(version))}: {jobs} jobs in {len(topics)} topics"
    return Picture(head + ownership(stats.get("ownership")), tuple(rows), due)


def ownership(stats: object) -> str:
    """Return what a log in a database adds to the head; nothing without one.

    >>> ownership({"epoch": 3, "trouble": "", "standbys": [{"lag": 0.25}, {"lag": 7}]})
    '; epoch 3 of the log, 2 standbys, 7 s behind at most'
    >>> ownership({"epoch": 1, "trouble": "no answer", "standbys": []}), ownership(None)
    ('; epoch 1 of the log, no standby; the database cannot be reached', '')
    """
    if not isinstance(stats, dict):
        return ""
    told = stats.get("standbys")
    rows = told if isinstance(told, list) else []
    lags = [figures({"standby": each}, "standby").get("lag", 0) for each in rows]
    standbys = counted(len(lags), "standby") if lags else "no standby"
    behind = f", {max(lags):g} s behind at most" if lags else ""
    away = "; the database cannot be reached" if stats.get("trouble") else ""
    epoch = visible(str(stats.get("epoch", "")))
    return f"; epoch {epoch} of the log, {standbys}{behind}{away}"


def figures(details: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of numbers of a topic; other values are left out.

    >>> figures({"rates": {"put": 0.5, "deleted": []}}, "rates"), figures({"rates": 1}, "rates")
    ({'put': 0.5}, {})
    """
    table = details.get(name)
    pairs = table.items() if isinstance(table, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, int | float)}


def in_ms(late_s: float | None) -> float | None:
    """Return seconds as milliseconds."""
    return None if late_s is None else late_s * 1_000


def ordered(rows: Sequence[TopicRow], view: View) -> list[TopicRow]:
    """Return the rows in the order of the view: numbers from the highest, names from A."""

    def key(row: TopicRow) -> Any:
        value = row[view.sorted_by]
        return value if isinstance(value, str) else -(value or 0.0)

    return sorted(rows, key=key, reverse=view.is_reversed)


def figure(value: object) -> str:
    """Write a cell.

    >>> figure(12), figure(0.256), figure(1234.5), figure(None), figure("mail")
    ('12', '0.26', '1234', '', 'mail')
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, float):
        return f"{value:.2f}" if value < 100 else f"{value:.0f}"
    return str(value)


def due_line(due: Sequence[int]) -> str:
    """Write the counts of jobs that come due as one line of text."""
    return f"due in the next {HORIZON}, by 5 minutes: {' '.join(map(str, due))}"


def picture(seen: Picture, view: View, width: int) -> "RenderableType":
    """Draw a picture, as wide as the terminal is."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    rows = ordered(seen.rows, view)
    cells = [[cut(row.topic, TOPIC_COLUMNS), *map(figure, row[1:])] for row in rows]
    topics = table(*fitted(columns_of(view), cells, width))
    for drawn, row in zip(topics.rows, rows, strict=True):
        drawn.style = "red" if row.buried else None
    most = max(*seen.due, 1)
    counts = [str(count or "") for count in seen.due]
    bar_columns = min(BAR_COLUMNS, width - CHART_GAPS - max(map(len, counts)))
    chart = Table.grid(padding=(0, 2))
    for index, (count, text) in enumerate(zip(seen.due, counts, strict=True)):
        label = f"in {index * 60 // BINS:2d} m"
        drawn_bar = bar(count, most, max(1, bar_columns))
        chart.add_row(Text(label, "dim"), Text(text), Text(drawn_bar, "cyan"))
    paused = "  [paused]" if view.is_paused else ""
    keys = Text(f"q quits  p pauses  s sorts  r reverses{paused}", "dim")
    due = Text("due in the next hour", "bold")
    return Group(Text(seen.head, "bold"), topics, Text(), due, chart, keys)


def columns_of(view: View) -> list[Column]:
    """Return the columns; the one of the order is marked.

    >>> [column.name for column in columns_of(View())][:3]
    ['topic', 'ready ▼', 'delayed']
    """
    columns = []
    for index, name in enumerate(COLUMNS):
        if index == view.sorted_by:
            mark = "▲" if view.is_reversed else "▼"
            columns.append(Column(f"{name} {mark}", text_least=0 if index else TOPIC_LEAST))
        elif index == 0:
            columns.append(Column(name, text_least=TOPIC_LEAST))
        else:
            columns.append(Column(name, rank=len(LEFT_OUT) - LEFT_OUT.index(name)))
    return columns


# --- Watching ------------------------------------------------------------------------------------


def watch(client: "Client", every_s: float) -> None:
    """Draw a picture every so often until a key or Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    view, seen = View(), fetched(client)
    with (
        keys_one_by_one(),
        Live(console=Console(), screen=True, auto_refresh=False, transient=True) as live,
    ):
        try:
            while True:
                live.update(picture(seen, view, live.console.width), refresh=True)
                key = key_within(every_s)
                if key == QUIT:
                    return
                view = view.after(key)
                if not (key or view.is_paused):
                    seen = fetched_again(client, seen)
        except KeyboardInterrupt:
            return


def fetched_again(client: "Client", seen: Picture) -> Picture:
    """Return the next picture; while the daemon is away the last one, with the error."""
    try:
        return fetched(client)
    except (Unreachable, ConnectionLost) as error:
        return seen._replace(head=visible(str(error)))


@contextmanager
def keys_one_by_one() -> Iterator[None]:
    """Read keys without the return key, and do not show them."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def key_within(wait_s: float) -> str:
    """Return the key that was pressed in this time; empty if none was."""
    if not select.select([sys.stdin], [], [], wait_s)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") or QUIT
