"""How the values of settings are read: what TOML, a variable or a flag holds becomes a value.

A reader takes the one and returns the other, or raises ValueError with the rule that was broken as
its message; a value of several parts raises `WrongInside`, which names each part that is wrong.
A variable and a flag hold nothing but text, which is `Said`: numbers, lists and true are read from
that as well. In a TOML file, which has numbers, lists and true, the same text is a mistake.

>>> whole(1, 10)(Said("7")), or_off(size(1, 2**40))("64KiB"), or_off(size(1, 2**40))("off")
(7, 65536, None)
>>> sorted(ids(Said("1000,33"))), ids([0])
([33, 1000], frozenset({0}))
>>> whole(1, 10)("7")
Traceback (most recent call last):
  ...
ValueError: must be a whole number from 1 to 10

The module refuses to know which settings there are.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from delayd import limits
from delayd.net.addresses import Address, parse_address
from delayd.text import (
    US_PER_MS,
    duration_text,
    parse_duration_ms,
    parse_duration_us,
    parse_size_bytes,
    parse_whole,
    size_text,
)

if TYPE_CHECKING:
    from delayd.core.policy import Patterns

OFF: Final = "off"
_HOST: Final = re.compile(r"[A-Za-z0-9._-]+")


class Said(str):
    """Text of a variable or a flag, where nothing but text can be said."""

    __slots__ = ()


class WrongInside(ValueError):
    """A value of several parts, some of which are wrong."""

    def __init__(self, errors: Iterable[tuple[str, str]]) -> None:
        """Name each: what was said, beginning with where in the value, and the rule."""
        super().__init__("has parts that are wrong")
        self.errors = tuple(errors)


# A reader turns what TOML, a variable or a flag holds into the value of a field, or raises
# ValueError with the rule as its message.
Reader = Callable[[object], Any]


def text(rule: str) -> Reader:
    """Read a text that is not empty; `rule` says of what."""

    def read(value: object) -> str:
        if not isinstance(value, str) or not value or "\0" in value:
            raise ValueError(rule)
        return value

    return read


def flag(value: object) -> bool:
    """Read true or false."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Said) and value in {"true", "false"}:
        return value == "true"
    raise ValueError("must be true or false")


def one_of(choices: Mapping[str, object]) -> Reader:
    """Read one of the words."""

    def read(value: object) -> object:
        if isinstance(value, str) and value in choices:
            return choices[value]
        raise ValueError("must be one of " + ", ".join(choices))

    return read


def whole(lowest: int, highest: int) -> Reader:
    """Read a whole number within the bounds."""

    def read(value: object) -> int:
        if isinstance(value, Said):
            value = parse_whole(value)
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ValueError(f"must be a whole number from {lowest} to {highest}")
        return value

    return read


def duration(lowest_ms: int, highest_ms: int) -> Reader:
    """Read seconds or a text such as `50ms`, as milliseconds."""

    def read(value: object) -> int:
        duration_ms = parse_duration_ms(value)
        # Not by the milliseconds, which are rounded up: 0.1 ms is less than 1 ms.
        if not lowest_ms * US_PER_MS <= parse_duration_us(value) <= highest_ms * US_PER_MS:
            bounds = f'"{duration_text(lowest_ms)}" to "{duration_text(highest_ms)}"'
            raise ValueError(f"must be from {bounds}")
        return duration_ms

    return read


def size(lowest_bytes: int, highest_bytes: int) -> Reader:
    """Read bytes or a text such as `64KiB`, as bytes."""

    def read(value: object) -> int:
        size_bytes = parse_size_bytes(value)
        if not lowest_bytes <= size_bytes <= highest_bytes:
            bounds = f"{lowest_bytes} to {highest_bytes} bytes"
            if not str(value).isdigit():  # who writes units is answered in units
                bounds = f'"{size_text(lowest_bytes)}" to "{size_text(highest_bytes)}"'
            raise ValueError(f"must be from {bounds}")
        return size_bytes

    return read


def or_off(read: Reader) -> Reader:
    """Read what `read` does, or off, which is None."""

    def read_unless_off(value: object) -> object:
        if value == OFF:
            return None
        try:
            return read(value)
        except ValueError as error:
            raise ValueError(f"{error}, or off") from None

    return read_unless_off


def topics(value: object) -> "Patterns | None":
    """Read the policies of topics: a table of tables, or the same as JSON in a variable."""
    from delayd.core.errors import PolicyInvalid  # noqa: PLC0415 - few have any, and it takes time
    from delayd.core.policy import PATTERN_RULE, Patterns, Policy, is_pattern  # noqa: PLC0415
    from delayd.core.topic import INTERNAL_TOPIC  # noqa: PLC0415

    rule, inner_rule = 'must be sections such as [topics."mail.*"]', "must be a section"
    if isinstance(value, Said):
        inner_rule = 'must be an object such as {"retry": "15s 3m"}'
        rule = 'must be JSON such as {"mail.*": {"retry": "15s 3m"}}'
        try:
            value = json.loads(value, object_pairs_hook=_without_repeats)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{rule}: {error}") from None
    rows = value.items() if isinstance(value, dict) else None
    if rows is None:
        raise ValueError(rule)
    by_pattern: dict[str, Policy] = {}
    errors = []
    for pattern, given in rows:
        where = f".{shown(pattern)}"
        if not is_pattern(pattern):
            errors.append((where, PATTERN_RULE))
        if not isinstance(given, dict):
            errors.append((f"{where} = {shown(given)}", inner_rule))
        else:
            try:
                policy = by_pattern[pattern] = Policy.from_fields(given)
            except PolicyInvalid as refusal:
                errors += [(f"{where}.{error}", "") for error in refusal.errors]
            else:
                if policy.exhausted == INTERNAL_TOPIC:
                    there = f"{where}.exhausted = {shown(INTERNAL_TOPIC)}"
                    errors.append((there, "must be another topic: this one is the daemon's own"))
    if errors:
        raise WrongInside(errors)
    return Patterns(by_pattern) if by_pattern else None


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; TOML refuses names that are given twice, and so do we."""
    fields: dict[str, object] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"{shown(name)} is given twice")
        fields[name] = value
    return fields


def address(value: object) -> Address | None:
    """Read an address to listen on; off is None."""
    if value == OFF:
        return None
    if isinstance(value, str):
        return parse_address(value)
    raise ValueError("must be HOST:PORT, unix:PATH or off")


def ids(value: object) -> frozenset[int]:
    """Read the numbers of users or groups: a list, or in a variable `1000,1001`."""
    given = [Said(part) for part in value.split(",")] if isinstance(value, Said) else value
    rule = f"must be a list of whole numbers from 0 to {limits.UNIX_ID_MAX}"
    if not isinstance(given, list) or not given:
        raise ValueError(rule)
    try:
        return frozenset(map(whole(0, limits.UNIX_ID_MAX), given))
    except ValueError:
        raise ValueError(rule) from None


def unix_mode(value: object) -> int:
    """Read a file mode in octal digits."""
    if isinstance(value, str) and len(value) <= 4 and value and set(value) <= set("01234567"):
        mode = int(value, 8)
        if mode <= 0o777:
            return mode
    raise ValueError('must be a file mode in octal digits, such as "0660"')


def shown(value: object) -> str:
    """Write a value on one line, control characters escaped, as it would be in the file."""
    return json.dumps(value, default=str)


def host_names(value: object) -> tuple[str, ...]:
    """Read names of hosts: a list, or a text with commas in a variable."""
    names = value.replace(",", " ").split() if isinstance(value, Said) else value
    if not isinstance(names, list) or not all(
        isinstance(name, str) and _HOST.fullmatch(name) for name in names
    ):
        raise ValueError('must be names of hosts, such as ["jobs.example.com"], without ports')
    return tuple(name.lower() for name in names)
