"""Durations and sizes as people write them: one reader and one writer each.

A duration is a number of seconds, or units from the largest to the smallest: `"1h30m"`, `"50ms"`,
`"1.5s"`. A size is a number of bytes or one number with a unit: `"64MiB"`. Whatever is finer than a
millisecond is rounded *up*, so that no deadline that follows from it is early. What was written is
what is meant: 1.1 s is 1,100 ms, not the 1,101 that the nearest float would round up to.

>>> parse_duration_ms("1h30m"), parse_duration_ms(0.05), parse_duration_ms("1.1")
(5400000, 50, 1100)
>>> duration_text(5_400_000), duration_text(1_500), duration_text(0)
('1h30m', '1s500ms', '0s')
>>> parse_size_bytes("64MiB"), parse_size_bytes("1.5 kB"), parse_size_bytes(65535)
(67108864, 1500, 65535)
>>> size_text(67_108_864), size_text(1_500)
('64MiB', '1500B')

The module knows the bounds of what can be written. Bounds of what a value is for are the caller's.
"""

import re
from collections.abc import Callable
from typing import Final

from delayd.limits import DURATION_MS_MAX, QUANTITY_CHARACTERS_MAX, SECONDS_MAX

DURATION_RULE: Final = 'must be seconds, or a duration such as "50ms", "15s" or "1h30m"'
INTERVAL_RULE: Final = 'must be seconds, or a duration such as "15m", "12h", "30d" or "1w"'
"""The same rule, where durations are long: it shows other units."""
DURATION_BOUNDS: Final = f"must be from 0 to {DURATION_MS_MAX // 1000} s"
SIZE_RULE: Final = 'must be bytes, or a size such as "64KiB", "10MB" or "1GiB"'

US_PER_MS: Final = 1_000

# From the largest to the smallest: a duration names them in this order, each at most once.
DURATION_UNITS_MS: Final = {
    "w": 604_800_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
SIZE_UNITS_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
    "tib": 1 << 40,
}


def any_case(word: str) -> str:
    """Return the pattern of a word in small letters or capitals: `(?i:...)` is Python's alone.

    >>> any_case("kb")
    '[kK][bB]'
    """
    return "".join(f"[{letter}{letter.upper()}]" for letter in word)


def _units(number: Callable[[int], str], gap: str) -> str:
    """Return the pattern of numbers with units; `number` is that of one in so many ms."""
    parts = (f"(?:{number(ms)}{unit}{gap})?" for unit, ms in DURATION_UNITS_MS.items())
    return "".join(parts)


# `re` compiles these at their first use, and keeps them.
_NUMBER: Final = r"([0-9]+)(?:\.([0-9]+))?"
_DURATION: Final = _units(lambda _: _NUMBER, r"\s*")
_SIZE: Final = _NUMBER + r"\s*([A-Za-z]*)"


def duration_pattern(longest_ms: int, gap: str = " *") -> str:
    """Return the pattern of durations as text; no number has more digits than the longest has.

    That a sum is not longer than the longest, no pattern can say.
    """

    def number(unit_ms: int) -> str:
        return _number_up_to(longest_ms // unit_ms)

    return f"(?:{number(1_000)}|{_units(number, gap)})"


def size_pattern(largest_bytes: int) -> str:
    """Return the pattern of sizes as text; the number has no more digits than the largest has."""
    units = "|".join(any_case(unit) for unit in SIZE_UNITS_BYTES)
    return f"{_number_up_to(largest_bytes)} *(?:{units})"


def _number_up_to(highest: int) -> str:
    return rf"[0-9]{{1,{len(str(highest))}}}(?:\.[0-9]+)?"


def parse_duration_ms(value: object) -> int:
    """Turn seconds or a text such as `1h30m` into milliseconds, rounded up.

    Raises `ValueError`, whose message is the rule, for anything else, for negative and for endless
    durations.
    """
    duration_ms = _duration_text_ms(value) if isinstance(value, str) else _seconds_ms(value)
    if duration_ms > DURATION_MS_MAX:
        raise ValueError(DURATION_BOUNDS)
    return duration_ms


def parse_duration_us(value: object) -> int:
    """Turn the same into microseconds, rounded up: for bounds that rounding must not hide.

    >>> parse_duration_us("0.1ms"), parse_duration_us(0.0001), parse_duration_ms("0.1ms")
    (100, 100, 1)
    """
    if isinstance(value, str):
        return _duration_text_ms(value, US_PER_MS)
    duration_ms = _seconds_ms(value)
    return round(value * 1_000_000) if isinstance(value, float) else duration_ms * US_PER_MS


def _seconds_ms(value: object) -> int:
    if type(value) is int and 0 <= value <= SECONDS_MAX:
        return value * 1_000  # as most are
    if isinstance(value, int | float) and not isinstance(value, bool):
        if 0 <= value <= DURATION_MS_MAX // 1000:  # false for NaN too
            # By way of microseconds, which takes off the error of the nearest float.
            return -(-round(value * 1_000_000) // 1000) or int(value > 0)
        raise ValueError(DURATION_BOUNDS)
    raise ValueError(DURATION_RULE)


def _duration_text_ms(text: str, per_ms: int = 1) -> int:
    """Read a text as milliseconds, or as parts of which there are so many in one."""
    if len(text) > QUANTITY_CHARACTERS_MAX or not (text := text.strip()):
        raise ValueError(DURATION_RULE)
    number = re.fullmatch(_NUMBER, text)
    if number:
        return _scaled(number[1], number[2], 1000 * per_ms)
    match = re.fullmatch(_DURATION, text)
    if not match:
        raise ValueError(DURATION_RULE)
    groups = iter(match.groups())
    return sum(
        _scaled(whole, fraction, unit_ms * per_ms)
        for whole, fraction, unit_ms in zip(groups, groups, DURATION_UNITS_MS.values(), strict=True)
        if whole is not None
    )


def duration_text(duration_ms: int) -> str:
    """Write a duration so that `parse_duration_ms` reads the same."""
    parts = []
    for unit, unit_ms in DURATION_UNITS_MS.items():
        count, duration_ms = divmod(duration_ms, unit_ms)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def parse_size_bytes(value: object) -> int:
    """Turn a number of bytes or a text such as `64MiB` into bytes, rounded up.

    `kB`, `MB`, `GB` count in thousands, `KiB`, `MiB`, `GiB` in 1,024s; case does not matter. Raises
    `ValueError`, whose message is the rule, for anything else.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    if isinstance(value, str) and len(value) <= QUANTITY_CHARACTERS_MAX:
        match = re.fullmatch(_SIZE, value.strip())
        if match and match[3].lower() in SIZE_UNITS_BYTES:
            return _scaled(match[1], match[2], SIZE_UNITS_BYTES[match[3].lower()])
    raise ValueError(SIZE_RULE)


def size_text(size_bytes: int) -> str:
    """Write a size so that `parse_size_bytes` reads the same."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        count, rest = divmod(size_bytes, SIZE_UNITS_BYTES[unit.lower()])
        if count and not rest:
            return f"{count}{unit}"
    return f"{size_bytes}B"


def _scaled(whole: str, fraction: str | None, unit: int) -> int:
    """`whole.fraction` times `unit`, exactly, rounded up to a whole number."""
    fraction = fraction or ""
    scale: int = 10 ** len(fraction)
    return -(-int(whole + fraction) * unit // scale)
