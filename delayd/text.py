r"""Durations, sizes, times and whole numbers as people write them: one reader and one writer each.

A duration is a number of seconds, or units from the largest to the smallest: `"1h30m"`, `"50ms"`,
`"1.5s"`. A size is a number of bytes or one number with a unit: `"64MiB"`. Whatever is finer than a
millisecond is rounded *up*, so that no deadline that follows from it is early. What was written is
what is meant: 1.1 s is 1,100 ms, not the 1,101 that the nearest float would round up to. A time is
RFC 3339 with its offset.

>>> parse_duration_ms("1h30m"), parse_duration_ms(0.05), parse_duration_ms("1.1")
(5400000, 50, 1100)
>>> duration_text(5_400_000), duration_text(1_500), duration_text(0)
('1h30m', '1s500ms', '0s')
>>> parse_size_bytes("64MiB"), parse_size_bytes("1.5 kB"), parse_size_bytes(65535)
(67108864, 1500, 65535)
>>> size_text(67_108_864), size_text(1_500)
('64MiB', '1500B')
>>> parse_moment_ms("2026-11-21T20:00:00.25+01:00"), moment_text(1_795_287_600_250)
(1795287600250, '2026-11-21T19:00:00.250Z')
>>> parse_whole("0080"), parse_whole("8e1")
(80, None)
>>> shown_url("amqp://ada:s3cret@host:5672/v?key=s3cret")
'amqp://***@host:5672/v?***'

And how a text of others is shown to people, on a terminal or in a log: what cannot be seen as
itself is written as an escape, so that it neither commands the terminal nor looks like another.

>>> print(visible("caf\u00e9 \x1b[2J \u202eexe.fdp"))
café \x1b[2J \u202eexe.fdp

The module knows the bounds of what can be written. Bounds of what a value is for are the caller's.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from delayd.limits import (
    DURATION_MS_MAX,
    MARKS_SHOWN_MAX,
    QUANTITY_CHARACTERS_MAX,
    SECONDS_MAX,
    SECONDS_WRITTEN_MAX,
    WALL_MS_MAX,
)

DURATION_RULE: Final = 'must be seconds, or a duration such as "50ms", "15s" or "1h30m"'
DURATION_BOUNDS: Final = f"must be from 0 to {DURATION_MS_MAX // 1000} s"
SIZE_RULE: Final = 'must be bytes, or a size such as "64KiB", "10MB" or "1GiB"'
TIME_RULE: Final = "must be a time with an offset, such as 2026-11-21T10:15:00Z"
MOMENT_RULE: Final = (
    'must be a moment such as "2026-11-21T19:00:00Z", with its offset, or seconds since 1970'
)
MOMENT_BOUNDS: Final = "must be from 1970 to the year 9999"

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

# `re` compiles these at their first use, and keeps them.
_NUMBER: Final = r"([0-9]+)(?:\.([0-9]+))?"
_DURATION: Final = "".join(rf"(?:{_NUMBER}{unit}\s*)?" for unit in DURATION_UNITS_MS)
_SIZE: Final = _NUMBER + r"\s*([A-Za-z]*)"
# Python's own reader takes more: dates alone, dates by weeks, times without an offset.
_RFC_3339: Final = r"(?a:\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d))"
_LEAST_S: Final = -62_135_596_800
"""The first second of the year 1, with which Python's calendar begins."""


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
    text = text.strip()
    if not text or len(text) > QUANTITY_CHARACTERS_MAX:
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


def parse_moment_ms(value: object) -> int:
    """Turn RFC 3339 or seconds since 1970 into milliseconds, rounded up.

    Raises `ValueError`, whose message is the rule, for anything else.
    """
    if isinstance(value, str):
        return -(-_moment_us(value, MOMENT_RULE) // US_PER_MS)
    if isinstance(value, int | float) and not isinstance(value, bool):
        if 0 <= value <= WALL_MS_MAX / 1_000:  # false for NaN too
            return min(WALL_MS_MAX, -(-round(value * 1_000_000) // US_PER_MS))
        raise ValueError(MOMENT_BOUNDS)
    raise ValueError(MOMENT_RULE)


def parse_time_s(value: object) -> int:
    """Turn RFC 3339 into seconds since 1970, rounded down: for the end of what is valid.

    Raises `ValueError`, whose message is the rule, for anything else.
    """
    if not isinstance(value, str):
        raise ValueError(TIME_RULE)  # noqa: TRY004 - as for all that is wrong
    return _moment_us(value, TIME_RULE) // 1_000_000


def _moment_us(text: str, rule: str) -> int:
    import datetime as dt  # noqa: PLC0415 - delayd-beanstalkd listens before it is needed

    if not re.fullmatch(_RFC_3339, text):
        raise ValueError(rule)
    try:
        since = dt.datetime.fromisoformat(text.upper()) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    except ValueError:  # the 30th of February
        raise ValueError(rule) from None
    except OverflowError:
        raise ValueError(MOMENT_BOUNDS) from None
    moment_us = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    if not 0 <= moment_us <= WALL_MS_MAX * US_PER_MS:
        raise ValueError(MOMENT_BOUNDS)
    return moment_us


def moment_text(wall_ms: int) -> str:
    """Write a moment as RFC 3339, in UTC with milliseconds; the calendar's end if beyond."""
    second, ms = divmod(wall_ms, 1_000)
    return f"{_second_text(second)}.{ms:03d}Z"


def time_text(epoch_s: int) -> str:
    """Write a time as RFC 3339, in UTC with whole seconds.

    >>> time_text(parse_time_s("2026-11-21T11:15:00+01:00"))
    '2026-11-21T10:15:00Z'
    """
    return f"{_second_text(epoch_s)}Z"


@lru_cache(maxsize=SECONDS_WRITTEN_MAX)
def _second_text(second: int) -> str:
    """Write a second. Cached: times that are written together mostly share few seconds."""
    import datetime as dt  # noqa: PLC0415 - delayd-beanstalkd listens before it is needed

    second = max(_LEAST_S, min(second, WALL_MS_MAX // 1_000))
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    return (epoch + dt.timedelta(seconds=second)).isoformat()[:-6]  # a third of a strftime's time


def parse_whole(text: str, digits_max: int = 20) -> int | None:
    """Read a whole number in ASCII digits, as many as the largest u64 has; None if it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits_max else None


def counted(count: int, noun: str) -> str:
    """Write a number with its noun, in the plural unless it is one.

    >>> counted(1, "job"), counted(0, "job"), counted(2, "intact frame")
    ('1 job', '0 jobs', '2 intact frames')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def did_you_mean(name: str, known: Iterable[str], prefix: str = "", *, cutoff: float = 0.5) -> str:
    """Return a hint at the known name that is nearest, to be added to a sentence; or nothing.

    A prefix that all names share makes nothing nearer. Nothing is as near as 1.

    >>> "no such field" + did_you_mean("prioritty", ["ttr", "priority"])
    'no such field; did you mean priority?'
    >>> did_you_mean("colour", ["ttr", "priority"])
    ''
    """
    import difflib  # noqa: PLC0415 - only after a mistake

    if len(name) > QUANTITY_CHARACTERS_MAX:
        return ""
    endings = [each.removeprefix(prefix) for each in known]
    close = difflib.get_close_matches(name.removeprefix(prefix), endings, n=1, cutoff=cutoff)
    return f"; did you mean {prefix}{close[0]}?" if close else ""


# --- Texts of others -----------------------------------------------------------------------------


def in_python(character: str) -> str:
    """Write a character as Python, and most people, would escape it."""
    return character.encode("unicode_escape").decode("ascii")


def in_json(character: str) -> str:
    r"""Write a character as it can stand in a string of JSON.

    >>> print(in_json("\U000e0001"))
    \udb40\udc01
    """
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def in_toml(character: str) -> str:
    """Write a character as it can stand in a string of TOML."""
    code = ord(character)
    return f"\\u{code:04x}" if code < 1 << 16 else f"\\U{code:08x}"


def visible(text: str, keeps: str = "", write: Callable[[str], str] = in_python) -> str:
    r"""Return a text in which everything can be seen as what it is; what cannot is `write`n.

    That is what Unicode counts among controls, formats, surrogates, private and unassigned
    characters, and separators but for the space (Cc, Cf, Cs, Co, Cn, Zl, Zp, Zs), but for those of
    `keeps`; and marks (Mn, Me) without a character that they stand on, or beyond
    `MARKS_SHOWN_MAX` on one. O(characters), and hardly more than a look at them where all are
    printable.

    >>> print(visible("a\u0301"), visible("\u0301a"), visible("=\u0301"))
    a\u0301 \u0301a =\u0301
    """
    if text.isascii() and text.isprintable():
        return text
    hidden = {c for c in set(text) if not (c.isprintable() or c in keeps)}
    if hidden:
        text = text.translate({ord(c): write(c) for c in hidden})
    if text.isascii():
        return text
    import unicodedata  # noqa: PLC0415 - few texts need it

    marks = "".join(c for c in set(text) if unicodedata.category(c) in {"Mn", "Me"})
    if not marks:
        return text

    def limited(run: re.Match[str]) -> str:
        base, above = run[1], run[2]
        held = MARKS_SHOWN_MAX if base.isalnum() or not base.isascii() else 0
        return base + above[:held] + "".join(map(write, above[held:]))

    return re.sub(f"([^{marks}]?)([{marks}]+)", limited, text, flags=re.DOTALL)


# --- Urls ----------------------------------------------------------------------------------------

MASK: Final = "***"
"""Takes the place of what may be secret."""

# `re` compiles these at their first use, and keeps them.
_URL: Final = r"([A-Za-z][A-Za-z0-9+.-]*://)([^/?#]*)([^?#]*)(.*)"
_PLACE: Final = r"(\[[0-9A-Fa-f:.]*\]|[\w.~*-]*)(:[0-9]*)?"
# It begins at the first letter of a run and nowhere else in it, since texts of others are read.
_IN_TEXT: Final = r"(?<![A-Za-z0-9+.-])([0-9+.-]*)([A-Za-z][A-Za-z0-9+.-]*://[^\s\"'<>]*)"


def shown_url(url: str) -> str:
    """Write a url for people: without user, password, query and fragment.

    It may be one that was refused, so it need not have the form of any. Where it is in doubt what
    is a password, all but the scheme is hidden: one may have been written with a / or ? in it.

    >>> shown_url("https://example.com/a?b"), shown_url("https://ada:pa/ss@host/"), shown_url("a@b")
    ('https://example.com/a?***', 'https://***', '***')
    """
    match = re.fullmatch(_URL, url, re.DOTALL)
    if match is None:
        return MASK if any(mark in url for mark in "@?#") else url
    scheme, authority, path, rest = match.groups()
    _, at, place = authority.rpartition("@")
    found = re.fullmatch(_PLACE, place)
    is_doubtful = found is None or "\\" in url or not url.isprintable()
    if is_doubtful or ("@" in path + rest and (at or (found and found[2]))):
        return f"{scheme}{MASK}"
    return f"{scheme}{f'{MASK}@' if at else ''}{place}{path}{f'{rest[0]}{MASK}' if rest else ''}"


def with_shown_urls(value: object) -> object:
    """Return a value of JSON or TOML with its urls as people may see them.

    >>> with_shown_urls({"url": "redis://:s3cret@host/0", "list": ["due", 7]})
    {'url': 'redis://***@host/0', 'list': ['due', 7]}
    """
    try:
        if isinstance(value, str):
            return shown_url(value) if "://" in value else value
        if isinstance(value, dict):
            return {name: with_shown_urls(inner) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [with_shown_urls(inner) for inner in value]
    except RecursionError:  # it goes as deep as can just be read
        return "..."
    return value


def hide_in_urls(text: str) -> str:
    """Return a text of another program with the urls in it as people may see them.

    >>> hide_in_urls("no answer of https://a.example/b?key=s3cret: timed out")
    'no answer of https://a.example/b?*** timed out'
    """
    if "://" not in text:
        return text
    return re.sub(_IN_TEXT, lambda match: match[1] + shown_url(match[2]), text)
