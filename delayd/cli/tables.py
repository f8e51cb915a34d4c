"""How results are shown: tables for people, one JSON object a line for programs.

On a terminal rich draws a table, as wide as the terminal: ids, times and numbers are whole, texts
are cut, and columns without space or without values are left out. Into a pipe or a file all columns
are written as words, whole, and rich is not imported. `--json` prints the daemon's answer, one
object a line.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from delayd.cli.terminal import print_lines
from delayd.text import in_json, visible

if TYPE_CHECKING:
    import datetime as dt

    from rich.console import RenderableType
    from rich.table import Table

T = TypeVar("T")
JSON_OPTION: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object a line."
)

GAP_COLUMNS: Final = 2
"""Between the columns of a table."""


def print_json(values: Iterable[object]) -> bool:
    """Print one JSON object a line; tell whether all of them were."""
    return print_lines(map(json_text, values))


def print_answer(fields: object, line: str, *, as_json: bool) -> None:
    """Print what was done: its fields as JSON, or a line for people."""
    print_lines([json_text(fields) if as_json else line])


def json_text(value: object) -> str:
    """Write a value as JSON, times as elsewhere, with invisible characters escaped."""
    return visible(json.dumps(value, ensure_ascii=False, default=time_shown), write=in_json)


class Column(NamedTuple):
    """A column of a table, and how it fits a narrow terminal."""

    name: str
    rank: int = 0
    """Where there is no space the column of the highest rank is left out first; 0: never."""
    text_least: int = 0
    """Texts may be cut to so many characters; 0: they are whole."""
    default: str = ""
    """If all rows have this or nothing, the column is left out."""
    cell: Callable[[Any], object] | None = None
    """What it shows of each thing; None: the attribute of the column's name."""

    def of(self, thing: object) -> object:
        """Return what it shows of a thing."""
        if self.cell is not None:
            return self.cell(thing)
        return getattr(thing, self.name.replace(" ", "_"))


def print_found(
    found: Iterable[T],
    columns: Sequence[Column],
    fields: Callable[[T], object],
    *,
    as_json: bool,
) -> None:
    """Print what was found: a table of it, or its fields as JSON, one object a line."""
    if as_json:
        print_json(map(fields, found))
    else:
        print_table(columns, found)


def print_table(columns: Sequence[Column], found: Iterable[object]) -> None:
    """Print things under the names of the columns: for a person, or for a pipe; none: nothing."""
    on_terminal = sys.stdout.isatty()
    cells = [[shown(each.of(thing), has_ms=not on_terminal) for each in columns] for thing in found]
    if cells and on_terminal:
        print_rich(lambda: table(*fitted(columns, cells, columns_here())))
    elif cells:
        print_lines(plain([each.name for each in columns], cells))


def fitted(
    columns: Sequence[Column], cells: Sequence[Sequence[str]], width: int
) -> tuple[list[str], list[list[str]]]:
    """Return the names and cells of the columns that fit a width.

    >>> columns = [Column("id"), Column("key", 1, text_least=4), Column("body", 2, text_least=4)]
    >>> fitted(columns, [["17", "order-17", "close"]], 18)
    (['id', 'key', 'body'], [['17', 'order-…', 'close']])
    >>> fitted(columns, [["17", "order-17", "close"]], 12)
    (['id', 'key'], [['17', 'order-17']])
    """
    from rich.cells import cell_len

    used = [
        index
        for index, column in enumerate(columns)
        if not column.rank or any(row[index] not in {"", column.default} for row in cells)
    ]
    names = [column.name for column in columns]
    wide = [max(map(cell_len, texts)) for texts in zip(names, *cells, strict=True)]
    least = [
        min(width, max(column.text_least, len(column.name))) if column.text_least else width
        for column, width in zip(columns, wide, strict=True)
    ]

    def space_left(widths: Sequence[int]) -> int:
        return width - sum(widths[index] + GAP_COLUMNS for index in used) + GAP_COLUMNS

    while space_left(least) < 0 and (droppable := [index for index in used if columns[index].rank]):
        used.remove(max(droppable, key=lambda index: columns[index].rank))
    while space_left(wide) < 0 and (
        long := [index for index in used if wide[index] > least[index]]
    ):
        wide[max(long, key=wide.__getitem__)] -= 1
    rows = [[_cut_cells(row[index], wide[index]) for index in used] for row in cells]
    return [names[index] for index in used], rows


def _cut_cells(text: str, width: int) -> str:
    """Cut a text, in which some characters take two places, to so many."""
    from rich.cells import cell_len, set_cell_size

    return text if cell_len(text) <= width else f"{set_cell_size(text, width - 1)}…"


def plain(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterable[str]:
    """Write a table as words in columns, without trailing spaces.

    >>> list(plain(["topic", "ready"], [["mail", "3"], ["orders", "12"]]))
    ['TOPIC   READY', 'mail    3', 'orders  12']
    """
    table = [[column.upper() for column in columns], *cells]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        *padded, last = row  # the last may be a body of a MiB
        cells_here = [cell.ljust(width) for cell, width in zip(padded, widths, strict=False)]
        yield "  ".join((*cells_here, last)).rstrip()


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line; empty values are left out."""
    texts = [(name, shown(value)) for name, value in fields if value is not None]
    texts = [(name, text) for name, text in texts if text]
    width = max((len(name) for name, _ in texts), default=0)
    print_lines(f"{name:<{width}}  {text}" for name, text in texts)


def shown(value: object, *, has_ms: bool = True) -> str:
    """Write one value for a person, on one line; of times the milliseconds may be left out.

    >>> shown(None), shown(0.5), shown(True), shown({"a": [1]}), shown(b"5 kg")
    ('', '0.5', 'true', '{"a": [1]}', '5 kg')
    """
    if value is None:
        return ""
    if hasattr(value, "isoformat"):
        return time_shown(value if has_ms else value.replace(microsecond=0))  # type: ignore[attr-defined]
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    is_json = isinstance(value, dict | list | bool)
    return visible(json.dumps(value, ensure_ascii=False) if is_json else str(value))


def duration_shown(duration_s: float) -> str:
    """Write a duration with its unit, or its two largest.

    >>> duration_shown(0.00051), duration_shown(0.25), duration_shown(1.5), duration_shown(59.8)
    ('0.51 ms', '250 ms', '1.5 s', '59 s')
    >>> duration_shown(80), duration_shown(7_200), duration_shown(90_061)
    ('1m 20s', '2h', '1d 1h')
    """
    if duration_s < 1:
        duration_ms = 1_000 * duration_s
        return f"{duration_ms:.2g} ms" if duration_ms < 1 else f"{duration_ms:.0f} ms"
    if duration_s < 60:
        text = f"{duration_s:.1f}".removesuffix(".0") if duration_s < 10 else f"{int(duration_s)}"
        return f"{text} s"
    left_s, parts = int(duration_s), []
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left_s = divmod(left_s, unit_s)
        parts.append(f"{count}{unit}" if count else "")
    first = next(place for place, part in enumerate(parts) if part)
    return " ".join(filter(None, parts[first : first + 2]))


def time_shown(time: "dt.datetime | Any") -> str:
    """Write a time in UTC, with milliseconds only where there are any."""
    text: str = time.isoformat(timespec="milliseconds").removesuffix("+00:00")
    return text.removesuffix(".000") + "Z"


def cut(text: str, columns: int) -> str:
    """Cut a text that is too long to be one cell of a table.

    >>> cut("a long text", 7), cut("short", 7)
    ('a long…', 'short')
    """
    return text if len(text) <= columns else text[: columns - 1] + "…"


def cut_here(text: str, columns: int) -> str:
    """Cut a text that is too long to be one cell, on a terminal; programs read it whole."""
    return cut(text, columns) if sys.stdout.isatty() else text


def columns_here() -> int:
    """Return how wide the terminal is."""
    return _size_here().columns


def rows_here() -> int:
    """Return how high the terminal is."""
    return _size_here().lines


def _size_here() -> os.terminal_size:
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except (OSError, ValueError):
        size = os.terminal_size((0, 0))
    return os.terminal_size((size.columns or 80, size.lines or 24))  # 0: it does not say


def print_rich(drawing: "Callable[[], RenderableType]") -> None:
    """Print a drawing of rich, in the colours of this terminal; NO_COLOR is obeyed."""
    import io

    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        force_terminal=sys.stdout.isatty(),
        width=columns_here(),
        highlight=False,
    )
    console.print(drawing())
    written = console.file.getvalue()  # type: ignore[attr-defined]
    print_lines(written.rstrip("\n").split("\n"))


def table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> "Table":
    """Draw a table whose cells fit."""
    from rich.table import Table
    from rich.text import Text

    drawn = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        are_numbers = all(row[index].replace(".", "").isdigit() for row in cells if row[index])
        drawn.add_column(column, justify="right" if are_numbers else "left", no_wrap=True)
    for row in cells:
        drawn.add_row(*map(Text, row))
    return drawn
