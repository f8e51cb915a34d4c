"""Moments and times as people and programs write them: RFC 3339 with an offset.

>>> parse_moment_ms("2026-11-21T20:00:00.25+01:00"), moment_text(1_795_287_600_250)
(1795287600250, '2026-11-21T19:00:00.250Z')
"""

import re
from functools import lru_cache
from typing import Final

from delayd.durations import US_PER_MS
from delayd.limits import SECONDS_WRITTEN_MAX, WALL_MS_MAX

TIME_RULE: Final = "must be a time with an offset, such as 2026-11-21T10:15:00Z"
MOMENT_RULE: Final = (
    'must be a moment such as "2026-11-21T19:00:00Z", with its offset, or seconds since 1970'
)
MOMENT_BOUNDS: Final = "must be from 1970 to the year 9999"

_HOUR: Final = "(?:[01][0-9]|2[0-3])"
_MINUTE: Final = "[0-5][0-9]"


def _rfc_3339(year: str, between: str, utc: str) -> str:
    """Return the pattern. Python's own reader takes more: dates alone, times without an offset."""
    date = f"{year}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
    time = rf"{_HOUR}:{_MINUTE}:{_MINUTE}(?:\.[0-9]{{1,9}})?"
    return f"{date}{between}{time}(?:{utc}|[+-]{_HOUR}:{_MINUTE})"


_RFC_3339: Final = _rfc_3339("[0-9]{4}", "[Tt ]", "[Zz]")
MOMENT_PATTERN: Final = _rfc_3339("(?:19[7-9][0-9]|[2-9][0-9]{3})", "T", "Z")
"""As most write them, within the bounds but for their offsets and the days that a month has."""
_LEAST_S: Final = -62_135_596_800
"""The first second of the year 1, with which Python's calendar begins."""


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
