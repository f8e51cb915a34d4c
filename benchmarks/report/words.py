"""Numbers and names as the report writes them."""

import math
import textwrap
from collections.abc import Sequence
from typing import Final

from benchmarks.registry import Value

COLUMNS: Final = 120
"""Of a line of a page."""


def figure_words(value: float, digits: int = 3) -> str:
    """Write a number with so many digits that matter, thousands apart.

    >>> [figure_words(value) for value in (338_421, 4_237, 85.04, 0.8512, 0.0021, 0)]
    ['338,000', '4,240', '85', '0.851', '0.0021', '0']
    """
    if not value:
        return "0"
    places = digits - 1 - math.floor(math.log10(abs(value)))
    rounded = round(value, places)
    if places <= 0 or rounded == int(rounded):
        return f"{rounded:,.0f}"
    return f"{rounded:,.{places}f}".rstrip("0").rstrip(".")


def short_words(value: float) -> str:
    """Write a number at a mark of an axis.

    >>> [short_words(value) for value in (10_000, 2_000_000, 500, 0.05)]
    ['10 k', '2 M', '500', '0.05']
    """
    for unit, letter in ((1e6, " M"), (1e3, " k")):
        if value >= unit and (unit > 1e3 or value >= 1e4):
            return figure_words(value / unit) + letter
    return figure_words(value)


def size_words(value: float) -> str:
    """Write a size at the mark of an axis, which is exact.

    >>> [size_words(value) for value in (1_024, 10_000, 16_384, 3_000_000)]
    ['1,024', '10 k', '16,384', '3 M']
    """
    for unit, letter in ((1e6, " M"), (1e4, "0 k")):
        if value >= unit and value % unit == 0:
            return f"{value / unit:,.0f}{letter}"
    return f"{value:,.0f}"


def axis_words(axis: str, value: int | str) -> str:
    """Write where on an axis of size something is.

    >>> [axis_words("connections", 50), axis_words("connections", 1), axis_words("due", "at once")]
    ['50 connections', '1 connection', 'due: at once']
    >>> axis_words("jobs in a request", 1)
    '1 job in a request'
    """
    if not axis or value == "":
        return ""
    if isinstance(value, str):
        return f"{axis}: {value}"
    counted, *rest = axis.split(" ")
    return " ".join((f"{value:,}", counted.removesuffix("s") if value == 1 else counted, *rest))


def value_words(value: Value) -> str:
    """Write what a value means, with its unit.

    >>> [value_words(Value(*each)) for each in (("p99", "ms"), ("rate", "/s"), ("lost", ""))]
    ['p99, ms', 'a second', 'lost']
    """
    if value.unit == "/s":
        return "a second"
    return f"{value.words}, {value.unit}" if value.unit else value.words


def paragraphs(text: str) -> str:
    """Wrap a text whose paragraphs have an empty line between them."""
    return "\n\n".join(paragraph(each) for each in text.strip().split("\n\n"))


def list_words(words: Sequence[str]) -> str:
    """Write some things in a sentence.

    >>> list_words(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def file_name(*words: str) -> str:
    """Return a name for files.

    >>> file_name("servers", "rate", "reserve + ack, 20 in flight")
    'servers-rate-reserve-ack-20-in-flight'
    """
    text = "".join(c if c.isalnum() else " " for c in " ".join(words).lower())
    return "-".join(text.split())


def paragraph(text: str, indent: str = "") -> str:
    """Wrap a text to the columns of a page."""
    return textwrap.fill(
        " ".join(text.split()),
        COLUMNS,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
