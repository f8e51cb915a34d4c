"""Cron expressions: which minutes of a clock they name.

cronsim reads them, so what it takes is taken: lists, ranges, steps, names of months and days, `L`
for the last day of a month, `LW` for its last weekday, `5L` and `5#2` for the last and the second
Friday. Days follow Debian's cron: where both the day of the month and the day of the week are
given, one of them has to fit; both have to where one of the two begins with a star.

`CronTimes` counts and lists the minutes that an expression names, on a clock that shows seconds
since 1970 and is never set. It goes by months, whose days are the bits of a number, and never looks
at minutes that are not named.

>>> times = cron_times("*/20 9,17 * * MON-FRI")
>>> thursday = 20_783 * 86_400  # 2026-11-26
>>> found = times.clock_times(thursday + 61_300, thursday + 120_000)
>>> [divmod(at_s - thursday, 3_600) for at_s in found]
[(17, 1200), (17, 2400), (33, 0)]
>>> times.count(thursday, thursday + 7 * 86_400)
30

Not known here: time zones (`zones`), and what becomes of a time that a clock shows twice or never
(`recurrence`).
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Final, final

from delayd.fields import ValueKind, shown, text_schema
from delayd.limits import CRON_CHARACTERS_MAX, CRONS_KEPT_MAX
from delayd.text import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from cronsim import CronSim

CRON_RULE: Final = (
    "must be five fields (minute, hour, day of month, month, day of week) or a name such as @daily"
)
SIX_FIELDS: Final = 'has six fields, and cron knows no seconds: for those use "every"'
REBOOT: Final = "names no time: let a unit of systemd put the job when the machine starts"
NOT_CRON: Final = 'is no cron expression: give the time as "every"'
NEVER: Final = "never fires: no month has such a day"
BLANKS: Final = "must have spaces or tabs between its fields, and stand on one line"
LONGER: Final = 'a longer interval is given as "every"'
NO_MARK: Final = "cron has no ?, write *"
LONG: Final = f"must have at most {CRON_CHARACTERS_MAX} characters"

NAMED: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# Each field by the name that cronsim gives it where it is wrong: what people call it, what it may
# be, and how many values it has.
_FIELDS: Final = {
    "minute": ("minute", "0 to 59", 60),
    "hour": ("hour", "0 to 23", 24),
    "day-of-month": ("day of month", "1 to 31, L or LW", 31),
    "month": ("month", "1 to 12 or JAN to DEC", 12),
    "day-of-week": ("day of week", "0 to 7 or SUN to SAT, 5L or 5#2", 7),
}
_FIELD: Final = "[0-9A-Za-z*/,#-]+"
_FIVE: Final = rf"[ \t]*{_FIELD}(?:[ \t]+{_FIELD}){{4}}[ \t]*"

_MINUTE_S: Final = 60
_DAY_MINUTES: Final = 1_440
_DAY_BEFORE_1970: Final = 719_163
"""1970-01-01 counted in days from the year 1, as Python's calendar does."""
_DAY_LAST: Final = 2_932_896
"""9999-12-31 in days since 1970: the end of Python's calendar."""
_WEEKS: Final = sum(1 << day for day in range(0, 35, 7))
_SATURDAY: Final = 6
_MONTH_DAYS: Final = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

# --- The kind ------------------------------------------------------------------------------------


def read_cron(value: object) -> str:
    """Return a cron expression as it is. Raises `ValueError`, whose message is the rule."""
    if not isinstance(value, str):
        raise ValueError(CRON_RULE)  # noqa: TRY004 - as for all that is wrong
    cron_times(str(value))
    return str(value)


CRON: Final = ValueKind(
    read_cron,
    schema=text_schema(f"{_FIVE}|{'|'.join(NAMED)}", 1, CRON_CHARACTERS_MAX),
).described(
    "A cron expression of five fields, or one of the names " + ", ".join(NAMED) + ".",
    "30 2 * * *",
    "*/15 9-17 * * MON-FRI",
    "@daily",
)


@lru_cache(maxsize=CRONS_KEPT_MAX)
def cron_times(text: str) -> "CronTimes":
    """Return the times that an expression names. Raises `ValueError`, whose message is the rule."""
    if len(text) > CRON_CHARACTERS_MAX:
        raise ValueError(LONG)
    expression = NAMED.get(text, text)
    if re.fullmatch(_FIVE, expression) is None:
        raise ValueError(_no_five_fields(text))
    times = CronTimes(expression.split())
    if not times.ever():
        raise ValueError(NEVER)
    return times


def _no_five_fields(text: str) -> str:
    first, *others = text.split() or [""]
    if first == "@reboot":
        return REBOOT
    if first == "@every":
        return NOT_CRON
    if first.startswith("@"):
        return CRON_RULE + did_you_mean(first, NAMED, "@")
    if len(others) == 5:
        return SIX_FIELDS
    if len(others) != 4:
        return CRON_RULE
    for wrong, field in zip(_FIELDS, (first, *others), strict=True):
        if re.fullmatch(_FIELD, field) is None:
            return _wrong_field(wrong, field)
    return BLANKS


def _wrong_field(wrong: str, field: str) -> str:
    name, allowed, _ = _FIELDS[wrong]
    rule = f"the {name} {shown(field)} must be * or {allowed}, also as 1,2 or 1-5 or */2"
    return f"{rule}; {NO_MARK}" if "?" in field else rule


def _check_steps(fields: list[str]) -> None:
    """Refuse a step that is longer than its field: `*/90` would silently be each full hour.

    Debian's cron takes it. A step that is longer than its range, `9-17/20`, is taken here too.
    """
    for field, (name, _, values) in zip(fields, _FIELDS.values(), strict=True):
        for step in re.findall("/([0-9]+)", field):
            if int(step) > values:
                rule = f"must have a step of at most {values}: {LONGER}"
                raise ValueError(f"the {name} {shown(field)} {rule}")


def _read_fields(fields: list[str]) -> "CronSim":
    """Have cronsim read the fields. Raises `ValueError`, whose message is the rule."""
    import datetime as dt  # noqa: PLC0415 - delayd-beanstalkd listens before it is needed

    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - takes 4 ms; not all have schedules

    unused = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - where it would begin to look for a time
    try:
        read = CronSim(" ".join(fields), unused)
    except CronSimError as error:
        wrong = str(error).removeprefix("Bad ")
    else:
        _check_steps(fields)
        return read
    if wrong == "day-of-month":
        try:
            CronSim(" ".join((*fields[:3], "* *")), unused)
        except CronSimError:
            pass
        else:
            raise ValueError(NEVER)
    raise ValueError(_wrong_field(wrong, fields[[*_FIELDS].index(wrong)]))


# --- The times -----------------------------------------------------------------------------------


@final
class CronTimes:
    """The minutes of a clock that the five fields name."""

    __slots__ = (
        *("is_fixed", "_minutes", "_hours", "_months", "_days", "_days_last", "_weekday_last"),
        *("_weekdays", "_nth", "_last", "_takes_both"),
    )

    def __init__(self, fields: list[str]) -> None:
        """Read the fields. Raises `ValueError`, whose message is the rule."""
        from cronsim import CronSim  # noqa: PLC0415 - takes 4 ms; not all have schedules

        read = _read_fields(fields)
        self.is_fixed = not fields[0].startswith("*") and not fields[1].startswith("*")
        """Whether minute and hour are given, as Debian's cron has it: its times run once a day,
        whatever is done to the clock."""
        self._minutes = tuple(sorted(read.minutes))
        self._hours = tuple(sorted(read.hours))
        self._months = _bits(read.months)
        self._days = _bits(day for day in read.days if day > 0)
        self._days_last = CronSim.LAST in read.days
        self._weekday_last = CronSim.LAST_WEEKDAY in read.days
        weekdays: AbstractSet[int | tuple[int, int]] = read.weekdays
        self._weekdays = _bits(day % 7 for day in weekdays if isinstance(day, int))
        pairs = [day for day in weekdays if isinstance(day, tuple)]
        self._nth = tuple((day % 7, nth) for day, nth in pairs if nth > 0)
        self._last = tuple(day % 7 for day, nth in pairs if nth == CronSim.LAST)
        self._takes_both = bool(read.day_and)

    def ever(self) -> bool:
        """Whether there is such a minute at all: a month begins on any day of the week."""
        lengths = {
            _month_length(2000, month) for month in range(1, 13) if self._months >> month & 1
        }
        return any(self._days_of(first, length) for length in lengths for first in range(7))

    def clock_times(self, low_s: int, end_s: int, *, is_back: bool = False) -> Iterator[int]:
        """List the times from `low_s` on, before `end_s`, as seconds since 1970."""
        for day, begin, end in self._parts(low_s, end_s, is_back=is_back):
            numbers = range(begin, end)[:: -1 if is_back else 1]
            yield from (self._time(day, at) for at in numbers)

    def count(self, low_s: int, end_s: int) -> int:
        """Return how many there are from `low_s` on, before `end_s`. O(months)."""
        low_day, low_minute = divmod(-(-low_s // _MINUTE_S), _DAY_MINUTES)
        end_day, end_minute = divmod(-(-end_s // _MINUTE_S), _DAY_MINUTES)
        if low_s >= end_s:
            return 0
        count = 0
        per_day = len(self._hours) * len(self._minutes)
        for first, days in self._months_of(low_day, end_day):
            count += days.bit_count() * per_day
            if low_day >= first and days >> (low_day - first) & 1:
                count -= self._before(low_minute)
            if end_day >= first and days >> (end_day - first) & 1:
                count -= per_day - self._before(end_minute)
        return count

    def day_from(self, day: int) -> int | None:
        """Return the first day with such times from this one on, in days since 1970."""
        for first, days in self._months_of(day, _DAY_LAST):
            if days:
                return first + _lowest(days)
        return None

    def day_until(self, day: int, low_day: int) -> int | None:
        """Return the last day with such times up to this one, but none before `low_day`."""
        for first, days in self._months_of(low_day, day, is_back=True):
            if days:
                return first + days.bit_length() - 1
        return None

    # The times of a day are numbered from 0, in their order.

    def _time(self, day: int, number: int) -> int:
        hour, minute = divmod(number, len(self._minutes))
        return (day * 24 + self._hours[hour]) * 3_600 + self._minutes[minute] * _MINUTE_S

    def _before(self, minute: int) -> int:
        """Return how many times of a day are before this minute of it."""
        hour, minute = divmod(minute, 60)
        at = bisect_left(self._hours, hour)
        count = at * len(self._minutes)
        if at < len(self._hours) and self._hours[at] == hour:
            count += bisect_left(self._minutes, minute)
        return count

    def _parts(
        self, low_s: int, end_s: int, *, is_back: bool = False
    ) -> Iterator[tuple[int, int, int]]:
        """List the days with such times: the day, the number of its first time, and of the end."""
        low_day, low_minute = divmod(-(-low_s // _MINUTE_S), _DAY_MINUTES)
        end_day, end_minute = divmod(-(-end_s // _MINUTE_S), _DAY_MINUTES)
        per_day = len(self._hours) * len(self._minutes)
        for first, days in self._months_of(low_day, end_day, is_back=is_back):
            while days:
                bit = days.bit_length() - 1 if is_back else _lowest(days)
                days ^= 1 << bit  # noqa: PLW2901 - what is left of them
                day = first + bit
                begin = self._before(low_minute) if day == low_day else 0
                end = self._before(end_minute) if day == end_day else per_day
                if begin < end:
                    yield day, begin, end

    # Days are counted from 1970-01-01; those of a month are the bits of a number.

    def _months_of(
        self, low_day: int, last_day: int, *, is_back: bool = False
    ) -> Iterator[tuple[int, int]]:
        """List months that have such days between these: the first of the month, and the days."""
        import datetime as dt  # noqa: PLC0415 - see _read_fields

        last_day = min(last_day, _DAY_LAST)
        if low_day > last_day:
            return
        date = dt.date.fromordinal((last_day if is_back else low_day) + _DAY_BEFORE_1970)
        year, month = date.year, date.month
        first = date.toordinal() - _DAY_BEFORE_1970 - date.day + 1
        while low_day - 31 < first <= last_day:
            length = _month_length(year, month)
            if self._months >> month & 1:
                days = self._days_of((first + 4) % 7, length)
                if first < low_day:
                    days = days >> (low_day - first) << (low_day - first)
                if first + length > last_day:
                    days &= (1 << (last_day - first + 1)) - 1
                yield first, days
            if is_back:
                year, month = (year, month - 1) if month > 1 else (year - 1, 12)
                first -= _month_length(year, month)
            else:
                year, month = (year, month + 1) if month < 12 else (year + 1, 1)
                first += length

    def _days_of(self, first_weekday: int, length: int) -> int:
        """Return the days of a month of so many days that begins on this day of the week."""
        whole = (1 << length) - 1
        days = self._days >> 1
        if self._days_last:
            days |= 1 << (length - 1)
        if self._weekday_last:
            last = (first_weekday + length - 1) % 7
            days |= 1 << (length - 1 - {_SATURDAY: 1, 0: 2}.get(last, 0))
        shifted = (self._weekdays >> first_weekday | self._weekdays << (7 - first_weekday)) & 127
        weekdays = shifted * _WEEKS
        for weekday, nth in self._nth:
            weekdays |= 1 << ((weekday - first_weekday) % 7 + 7 * (nth - 1))
        for weekday in self._last:
            day = (weekday - first_weekday) % 7 + 28
            weekdays |= 1 << (day if day < length else day - 7)
        return (days & weekdays if self._takes_both else days | weekdays) & whole


def _bits(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _month_length(year: int, month: int) -> int:
    is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    return 29 if month == 2 and is_leap else _MONTH_DAYS[month - 1]
