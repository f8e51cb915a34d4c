"""`delayd top`: topics, the worst first, with rates, lateness and what comes due, live.

    q quits    p pauses    s sorts by the next column    r reverses

A thread asks the daemon (`asking`). Each picture is drawn from values alone (`picture`).
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from delayd.cli.asking import LOOK_S, QUIT, asked_again, key_within, now_s
from delayd.cli.connect import with_patience
from delayd.cli.parameters import DURATION, command
from delayd.cli.tables import (
    Column,
    columns_here,
    cut,
    duration_shown,
    fitted,
    plain,
    print_json,
    print_rich,
    rows_here,
    table,
)
from delayd.cli.terminal import CommandFailed, print_lines
from delayd.client.values import seconds
from delayd.exits import Exit
from delayd.text import counted, visible

if TYPE_CHECKING:
    from rich.console import RenderableType

    from delayd.client.results import TopicInfo
    from delayd.client.sync import Client

COLUMNS: Final = (
    *("topic", "trouble", "ready", "oldest", "buried", "delayed", "reserved", "waiting", "groups"),
    *("put/s", "taken/s", "done/s", "failed/s", "late p50", "late p99"),
)
TROUBLES: Final = ("untaken", "buried", "paused", "behind", "failing")
"""What the daemon says is wrong with a topic, the worst first."""
LOUD: Final = frozenset(("untaken", "buried"))
"""Nothing will happen to these jobs until somebody does something."""
TOPIC_COLUMNS: Final = 40
TOPIC_LEAST: Final = 8
LEFT_OUT: Final = (
    *("late p50", "groups", "waiting", "delayed", "reserved", "done/s", "failed/s", "put/s"),
    *("late p99", "taken/s", "oldest", "buried", "ready", "trouble"),
)
"""In this order, where the terminal is too narrow; the column of the order stays."""
ROWS_BESIDE: Final = 5
"""Rows of the screen beside the topics: head, names, how many are left out, what is due, keys."""
TOLD_S: Final = 3.0
"""A standby tells how far it is once a second, and is read of once a second."""
HORIZON: Final = "1h"
BINS: Final = 12
BARS: Final = "▁▂▃▄▅▆▇█"


class TopicRow(NamedTuple):
    """One topic, in the order of `COLUMNS`; None: the daemon does not tell, as over the line."""

    topic: str
    trouble: str
    """One of `TROUBLES`; empty: nothing is wrong."""
    ready: int
    oldest_s: float | None
    """How long the oldest ready job has been ready."""
    buried: int
    delayed: int
    reserved: int
    waiting: int
    groups: int | None
    """How many its jobs have; None: none."""
    put_rate: float | None
    taken_rate: float | None
    done_rate: float | None
    failed_rate: float | None
    late_p50_ms: float | None
    late_p99_ms: float | None


class Picture(NamedTuple):
    """The figures of one picture."""

    head: str
    rows: tuple[TopicRow, ...]
    due: tuple[int, ...]
    """How many jobs come due in each twelfth of the next hour."""
    window_s: float | None = None
    """Of which time the rates are; None: there are none."""


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


@command("delayd top", "delayd top --every 5s", "delayd top --once --json")
@click.option("--every", type=DURATION, default="1s", help="How often it looks: 1s.")
@click.option("--once", is_flag=True, help="Print one picture, and end.")
@click.option("--json", "as_json", is_flag=True, help="Print one picture as JSON, and end.")
@with_patience(0.0)
def top(client: "Client", *, every: str, once: bool, as_json: bool) -> None:
    """Watch the topics, those with trouble first, and what comes due in the next hour.

    Keys: q quits, p pauses, s sorts by the next column, r reverses. Rates are jobs a second, and
    "late" is how late delays ended, both in the last minute; "oldest" is how long the oldest ready
    job has been ready.

    Trouble: "untaken" jobs have been ready for a minute and no worker takes any; "buried" jobs wait
    for a person; "paused" topics hand out nothing; "behind": jobs have been ready for a minute,
    although some are taken; "failing": attempts have failed in the last minute.
    """
    if as_json:
        seen = fetched(client)
        rows = [row._asdict() for row in ordered(seen.rows, View())]
        due = {"horizon": HORIZON, "counts": seen.due}
        print_json([{"topics": rows, "window": seen.window_s, "due": due}])
        return
    if once:
        seen, view = fetched(client), View()
        if sys.stdout.isatty():
            print_rich(lambda: picture(seen, view, columns_here(), rows_here()))
        else:
            cells = [cells_of(row) for row in ordered(seen.rows, view)]
            print_lines([seen.head, *plain(COLUMNS, cells), due_line(seen.due)])
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("TERM") == "dumb":
        raise CommandFailed(Exit.USAGE, "top needs a terminal; use --once, or --json")
    watch(client, max(0.1, seconds(every)))


# --- What the daemon says ------------------------------------------------------------------------


def fetched(client: "Client") -> Picture:
    """Return the figures of a picture, from the daemon. Only HTTP has rates and ages."""
    stats = client.stats()
    topics = client.topics()
    calendar = client.calendar(horizon=HORIZON, bins=BINS)
    due = tuple(map(sum, zip(*calendar.topics.values(), strict=True))) or (0,) * BINS
    rows = tuple(map(row_of, topics))
    jobs = sum(topic.jobs for topic in topics)
    # On the line `version` is that of beanstalkd.
    version = stats.get("delayd-version", stats.get("version", ""))
    head = f"delayd {visible(str(version))}: {jobs} jobs in {counted(len(topics), 'topic')}"
    if troubled := sum(bool(row.trouble) for row in rows):
        head += f", {troubled} with trouble"
    if stats.get("draining") in {True, "true"}:
        head += "; draining: new jobs are refused"
    window_s = figures(stats, "rates").get("window")
    return Picture(head + ownership(stats.get("ownership")), rows, due, window_s)


def row_of(topic: "TopicInfo") -> TopicRow:
    """Return what is shown of a topic."""
    rates, late = figures(topic.details, "rates"), figures(topic.details, "late")
    trouble = topic.trouble
    if "trouble" not in topic.details:  # over the line
        is_paused = bool(topic.details.get("pause-time-left"))
        trouble = "buried" if topic.buried else "paused" if is_paused else None
    return TopicRow(
        topic.name,
        trouble if trouble in TROUBLES else "",
        topic.ready,
        topic.oldest_ready_age,
        *(topic.buried, topic.delayed, topic.reserved, topic.waiting),
        topic.groups or None,
        *(rates.get(name) for name in ("put", "reserved", "deleted", "failed")),
        *(in_ms(late.get(name)) for name in ("p50", "p99")),
    )


def ownership(stats: object) -> str:
    """Return what a log in a database adds to the head; nothing without one.

    >>> ownership({"epoch": 3, "trouble": "", "standbys": [{"lag": 0.25}, {"lag": 7}]})
    '; epoch 3 of the log, 2 standbys, 7 s behind at most'
    >>> ownership({"epoch": 3, "trouble": "", "standbys": [{"lag": 1.36, "lag_frames": 0}]})
    '; epoch 3 of the log, 1 standby, up to date'
    >>> ownership({"epoch": 1, "trouble": "no answer", "standbys": []}), ownership(None)
    ('; epoch 1 of the log, no standby; the database cannot be reached', '')
    """
    if not isinstance(stats, dict):
        return ""
    standbys = stats.get("standbys")
    rows = standbys if isinstance(standbys, list) else []
    lags = [lag_of(figures({"standby": each}, "standby")) for each in rows]
    standbys = counted(len(lags), "standby") if lags else "no standby"
    behind = (f", {max(lags):g} s behind at most" if max(lags) else ", up to date") if lags else ""
    away = "; the database cannot be reached" if stats.get("trouble") else ""
    epoch = visible(str(stats.get("epoch", "")))
    return f"; epoch {epoch} of the log, {standbys}{behind}{away}"


def lag_of(standby: Mapping[str, Any]) -> float:
    """Return how many seconds a standby is behind.

    One that had read all frames when it told so, a moment ago, is not.
    """
    lag: float = standby.get("lag", 0)
    return 0 if standby.get("lag_frames") == 0 and lag < TOLD_S else lag


def figures(details: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a table of numbers of a topic; other values are left out.

    >>> figures({"rates": {"put": 0.5, "deleted": []}}, "rates"), figures({"rates": 1}, "rates")
    ({'put': 0.5}, {})
    """
    table = details.get(name)
    pairs = table.items() if isinstance(table, Mapping) else ()
    return {name: value for name, value in pairs if isinstance(value, int | float)}


def in_ms(late_s: float | None) -> float | None:
    """Return seconds as milliseconds."""
    return None if late_s is None else late_s * 1_000


# --- Drawing -------------------------------------------------------------------------------------


def ordered(rows: Sequence[TopicRow], view: View) -> list[TopicRow]:
    """Return the rows in the order of the view: numbers from the highest, names from A.

    By trouble: the worst first, and the same by age, and then by how many jobs there are.
    """

    def key(row: TopicRow) -> Any:
        if COLUMNS[view.sorted_by] == "trouble":
            rank = TROUBLES.index(row.trouble) if row.trouble else len(TROUBLES)
            return rank, -(row.oldest_s or 0.0), -row.buried, -(row.ready + row.delayed)
        value = row[view.sorted_by]
        return value if isinstance(value, str) else -(value or 0.0)

    return sorted(rows, key=key, reverse=view.is_reversed)


def cells_of(row: TopicRow) -> list[str]:
    """Write the cells of a row, durations with their units.

    >>> cells_of(TopicRow("a", "", 3, 80.5, 0, 1, 0, 2, 5, 1.5, 1234.5, None, 0.0, 0.51, None))
    ['a', '', '3', '1m 20s', '0', '1', '0', '2', '5', '1.50', '1234', '', '0', '0.51 ms', '']
    """
    cells = [visible(row.topic), row.trouble]
    for name, value in zip(COLUMNS[2:], row[2:], strict=True):
        if value is None:
            cells.append("")
        elif name.startswith("late"):
            cells.append(duration_shown(value / 1_000))
        elif name == "oldest":
            cells.append(duration_shown(value))
        else:
            is_small_rate = name.endswith("/s") and 0 < value < 100
            cells.append(f"{value:.2f}" if is_small_rate else f"{value:.0f}")
    return cells


def due_line(due: Sequence[int]) -> str:
    """Write the counts of jobs that come due as one line of text."""
    return f"due in the next {HORIZON}, by 5 minutes: {' '.join(map(str, due))}"


def due_drawn(due: Sequence[int]) -> str:
    """Draw the counts of jobs that come due as one line.

    >>> due_drawn((0, 40, 10, *[0] * 9))
    'due in the next hour  .█▂.........  50 jobs; most, 40, in 5 to 10 minutes'
    >>> due_drawn((0,) * 12)
    'due in the next hour  ............  no job'
    """
    most = max(due)
    bars = "".join(BARS[(len(BARS) * each - 1) // most] if each else "." for each in due)
    words = "no job"
    if most:
        begins = due.index(most) * 60 // BINS
        when = f"in {begins} to {begins + 60 // BINS} minutes"
        words = f"{counted(sum(due), 'job')}; most, {most}, {when}"
    return f"due in the next hour  {bars}  {words}"


def picture(
    seen: Picture, view: View, width: int, height: int, trouble: str = ""
) -> "RenderableType":
    """Draw a picture that fits the terminal; `trouble`: why it is old."""
    from rich.console import Group
    from rich.text import Text

    rows = ordered(seen.rows, view)
    left_out = len(rows) - max(1, height - ROWS_BESIDE)
    if left_out > 0:
        rows = rows[:-left_out]
    cells = [[cut(row.topic, TOPIC_COLUMNS), *cells_of(row)[1:]] for row in rows]
    topics = table(*fitted(columns_of(view), cells, width))
    for drawn, row in zip(topics.rows, rows, strict=True):
        loud = "red" if row.trouble in LOUD else "yellow" if row.trouble else None
        drawn.style = "dim" if trouble else loud
    more = f"and {counted(left_out, 'more topic')}" if left_out > 0 else ""
    keys = "q quits  p pauses  s sorts  r reverses"
    if view.is_paused:
        keys = f"[paused]  {keys}"
    if seen.window_s is not None:
        keys += f"  |  /s, late: last {window_shown(seen.window_s)}"
    lines = ((more, "dim"), (due_drawn(seen.due), ""), (keys, "dim"))
    head = (trouble, "bold red") if trouble else (seen.head, "bold")
    first, *others = (Text(cut(text, width), style) for text, style in (head, *lines))
    return Group(first, topics, *others)


def window_shown(window_s: float) -> str:
    """Write of which time the rates are.

    >>> window_shown(60.0), window_shown(27.4)
    ('minute', '27 s')
    """
    return "minute" if window_s >= 60 else duration_shown(int(window_s))


def columns_of(view: View) -> list[Column]:
    """Return the columns; the one of the order is marked.

    >>> [column.name for column in columns_of(View())][:3]
    ['topic', 'trouble ▼', 'ready']
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
    """Draw pictures until a key or Ctrl-C ends it."""
    from rich.console import Console
    from rich.live import Live

    with (
        asked_again(client, lambda: fetched(client), every_s) as asking,
        Live(console=Console(), screen=True, auto_refresh=False, transient=True) as live,
    ):
        view, seen = View(), asking.seen
        while (key := key_within(LOOK_S)) != QUIT:
            view = view.after(key)
            seen = seen if view.is_paused else asking.seen
            size, trouble = live.console.size, asking.trouble(now_s())
            live.update(picture(seen, view, size.width, size.height, trouble), refresh=True)
            if asking.refusal is not None:
                raise asking.refusal
