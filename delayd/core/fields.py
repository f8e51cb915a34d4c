"""Fields of what people write, in JSON or TOML: one reader for each kind of value.

A reader turns what was written into a value, or raises `ValueError` whose message is the rule that
it breaks. A `Field` is a row of the table that a policy or a target is read and written by.

>>> whole(1, 9)(5), duration(1)("1m"), Field("ttr", "ttr_ms", duration(1)).name
(5, 60000, 'ttr')
>>> whole(1, 9)(10)
Traceback (most recent call last):
ValueError: must be a whole number from 1 to 9
>>> shown({"a": "b" * 100})[-8:], no_such_field("prioritty", ["ttr", "priority"])
('bbbbb...', 'there is no such field; did you mean priority?')
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from delayd.limits import DURATION_MS_MAX, RATE_PER_S_MAX, RATE_PER_S_MIN
from delayd.text import (
    DURATION_BOUNDS,
    did_you_mean,
    duration_text,
    parse_duration_ms,
    parse_size_bytes,
    with_shown_urls,
)

Rate = int | float
"""Written as it was given, 1 or 1.0: compiled code would make a float of an int told to be one."""
Reader = Callable[[object], Any]
"""Turns what JSON or TOML holds into a field's value; `ValueError`, whose message is the rule."""

SHOWN_CHARACTERS: Final = 80


class Field(NamedTuple):
    """One row of a table: its name outside, the field inside, how it is read, written."""

    name: str
    field: str
    read: Reader
    write: Callable[[Any], object] = lambda value: value


def duration(lowest_ms: int, highest_ms: int = DURATION_MS_MAX) -> Reader:
    """Return the reader of durations from the one to the other."""

    def read(value: object) -> int:
        duration_ms = parse_duration_ms(value)
        if highest_ms < DURATION_MS_MAX and not lowest_ms <= duration_ms <= highest_ms:
            bounds = f'"{duration_text(lowest_ms)}" to "{duration_text(highest_ms)}"'
            raise ValueError(f"must be from {bounds}")
        if duration_ms < lowest_ms:
            raise ValueError(DURATION_BOUNDS.replace("from 0", "more than 0, up"))
        return duration_ms

    return read


def whole(lowest: int, highest: int) -> Reader:
    """Return the reader of whole numbers between these, both included."""

    def read(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}")
        return value

    return read


def size(highest_bytes: int) -> Reader:
    """Return the reader of sizes up to this one."""

    def read(value: object) -> int:
        size_bytes = parse_size_bytes(value)
        if not 1 <= size_bytes <= highest_bytes:
            raise ValueError(f"must be from 1 to {highest_bytes} bytes")
        return size_bytes

    return read


def rate(value: object) -> Rate:
    """Read how many a second."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not RATE_PER_S_MIN <= value <= RATE_PER_S_MAX:  # type: ignore[operator]
        raise ValueError(f"must be a number from {RATE_PER_S_MIN} to {RATE_PER_S_MAX}")
    return value  # type: ignore[return-value]


def shown(value: object) -> str:
    """Return a value as it can stand in a sentence: of a long one the beginning, no secret urls."""
    import json  # noqa: PLC0415 - takes 1 ms, and is for mistakes only

    try:
        text = json.dumps(with_shown_urls(value), default=str)
    except RecursionError:  # it goes as deep as can just be read
        return "..."
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def no_such_field(name: str, known: Iterable[str]) -> str:
    """Return what is said of a field that there is not."""
    return "there is no such field" + did_you_mean(name, known)
