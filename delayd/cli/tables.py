"""How results are shown: tables for people, one JSON object a line for programs.

On a terminal a table has colours and lines, and rich draws it. In a pipe or a file it is the same
words in columns, and rich is not imported. `--json` prints what the daemon said, one object a line.
"""

import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from delayd.cli.terminal import print_lines

if TYPE_CHECKING:
    import datetime as dt

    from rich.console import RenderableType

JSON_OPTION: Final = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, one object a line."
)

CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
"""No body may command the terminal that it is shown on."""


def print_json(values: Iterable[object]) -> bool:
    """Print one JSON object a line; tell whether all of them were."""
    return print_lines(json.dumps(value, ensure_ascii=False) for value in values)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows under the names of the columns: for a person, or for a pipe."""
    cells = [[shown(cell) for cell in row] for row in rows]
    if sys.stdout.isatty():
        print_rich(lambda: _rich_table(columns, cells))
    else:
        print_lines(plain(columns, cells))


def plain(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Iterable[str]:
    """Write a table as words in columns, without trailing spaces.

    >>> list(plain(["topic", "ready"], [["mail", "3"], ["orders", "12"]]))
    ['TOPIC   READY', 'mail    3', 'orders  12']
    """
    table = [[column.upper() for column in columns], *cells]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield line.rstrip()


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair a line; what says nothing is left out."""
    said = [(name, shown(value)) for name, value in fields if value is not None]
    said = [(name, text) for name, text in said if text]
    width = max((len(name) for name, _ in said), default=0)
    print_lines(f"{name:<{width}}  {text}" for name, text in said)


def shown(value: object) -> str:
    """Write one value for a person, on one line.

    >>> shown(None), shown(0.5), shown({"a": [1]}), shown(b"5 kg")
    ('', '0.5', '{"a": [1]}', '5 kg')
    """
    if value is None:
        return ""
    if hasattr(value, "isoformat"):
        return time_shown(value)
    if isinstance(value, bytes):
        value = value.decode(errors="replace")
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list) else str(value)
    return text.translate(CONTROLS)


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


def columns_here() -> int:
    """Return how wide the terminal is."""
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return 80


def print_rich(drawing: "Callable[[], RenderableType]") -> None:
    """Print what rich draws, in the colours of this terminal; NO_COLOR is obeyed."""
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


def _rich_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> "RenderableType":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for index, column in enumerate(columns):
        are_numbers = bool(cells) and all(row[index].replace(".", "").isdigit() for row in cells)
        table.add_column(column, justify="right" if are_numbers else "left", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))
    return table
