"""What Recurrence is compared with: a clock that is looked at in every minute of real time."""

import datetime as dt
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from zoneinfo import ZoneInfo

from delayd.schedules.cron import cron_times

MINUTE = dt.timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Expression:
    """A cron expression, and what it means."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int | str]
    months: frozenset[int]
    weekdays: frozenset[int | str]

    def names_day(self, day: dt.date) -> bool:
        if day.month not in self.months:
            return False
        next_month = (day.replace(day=1) + dt.timedelta(days=32)).replace(day=1)
        last = next_month - dt.timedelta(days=1)
        work = last - dt.timedelta(days=max(0, last.weekday() - 4))
        weekday, nth = day.isoweekday() % 7, (day.day + 6) // 7
        is_last = day + dt.timedelta(days=7) > last
        of_month = bool({day.day, "L" * (day == last), "LW" * (day == work)} & self.days)
        of_week = bool({weekday, f"{weekday}#{nth}", f"{weekday}L" * is_last} & self.weekdays)
        fields = self.text.split()
        if fields[2].startswith("*") or fields[4].startswith("*"):
            return of_month and of_week
        return of_month or of_week

    @property
    def is_fixed(self) -> bool:
        minute, hour, *_ = self.text.split()
        return not minute.startswith("*") and not hour.startswith("*")


Looks = list[tuple[int, dt.datetime]]


def looks(zone: str, begin_s: int, end_s: int) -> Looks:
    """Look at the clock at every full minute that it shows: when, and what it shows."""
    seen = []
    at_s = begin_s
    while at_s < end_s:
        shown = dt.datetime.fromtimestamp(at_s, ZoneInfo(zone)).replace(tzinfo=None)
        if shown.second == 0:
            seen.append((at_s, shown))
        at_s += 60 - shown.second
    return seen


def due(expression: Expression, seen: Looks) -> Iterator[int]:
    """The rules: what is due, in milliseconds, while somebody looks at a clock."""
    is_fixed = expression.is_fixed
    names_day = cache(expression.names_day)

    def names(shown: dt.datetime) -> bool:
        is_time = shown.minute in expression.minutes and shown.hour in expression.hours
        return is_time and names_day(shown.date())

    reached = seen[0][1] - MINUTE  # the latest that the clock has shown
    for at_s, shown in seen:
        # None while the clock shows them again.
        new = minutes(reached + MINUTE, shown) if is_fixed else [shown]
        if any(map(names, new)):
            yield at_s * 1_000
        reached = max(reached, shown)


def minutes(first: dt.datetime, last: dt.datetime) -> Iterable[dt.datetime]:
    return (first + MINUTE * number for number in range((last - first) // MINUTE + 1))


def refusal_of(text: str) -> str:
    """What is said of an expression that is refused; nothing of others."""
    try:
        cron_times(text)
    except ValueError as refusal:
        return str(refusal) or "nothing"
    return ""


# --- Random expressions --------------------------------------------------------------------------

WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")


def field(
    rng: random.Random, low: int, high: int, star: float, names: tuple[str, ...] = ()
) -> tuple[str, set[int]]:
    """A field of numbers from `low` to `high`: its text, and the numbers that it means."""
    if rng.random() < star:
        return "*", {*range(low, high + 1)}
    kind = rng.choice(("number", "number", "range", "step", "part", "from", "list"))
    one, other = sorted((rng.randint(low, high), rng.randint(low, high)))
    step = rng.randint(1, 1 + (high - low) // 2)
    word = names[one - low] if names else str(one)
    match kind:
        case "number":
            return rng.choice((word, word.lower(), str(one))), {one}
        case "range":
            return f"{word}-{other}", {*range(one, other + 1)}
        case "step":
            return f"*/{step}", {*range(low, high + 1, step)}
        case "part" if one < other:
            return f"{one}-{other}/{step}", {*range(one, other + 1, step)}
        case "from":
            return f"{one}/{step}", {*range(one, high + 1, step)}
        case _:
            numbers = [rng.randint(low, high) for _ in range(3)]
            return ",".join(map(str, numbers)), {*numbers}


def expression(rng: random.Random, star: float = 0.5) -> Expression:
    """An expression; `star` is how likely a field is to be one."""
    minute, minutes_meant = field(rng, 0, 59, star / 2)
    hour, hours = field(rng, 0, rng.choice((3, 23)), star / 2)
    if hour == "*" or "/" in hour:
        hour, hours = rng.choice((("*", {*range(24)}), ("*/2", {*range(0, 24, 2)})))
    day, days = field(rng, 1, 31, star)
    month, months = field(rng, 1, 12, star, MONTHS)
    weekday, weekdays = field(rng, 0, 7, star)
    meant_days: set[int | str] = {*days}
    meant_weekdays: set[int | str] = {number % 7 for number in weekdays}
    if rng.random() < 0.1:
        day = rng.choice(("L", "LW", "LW,15"))
        meant_days = {int(part) if part.isdigit() else part for part in day.split(",")}
    if rng.random() < 0.2:
        number, nth = rng.randrange(7), rng.choice(("L", "#1", "#2", "#5"))
        weekday, meant_weekdays = f"{number}{nth}", {f"{number}{nth}"}
    elif rng.random() < 0.2:
        number = rng.randrange(7)
        weekday, meant_weekdays = WEEKDAYS[number], {number}
    text = f"{minute} {hour} {day} {month} {weekday}"
    return Expression(
        text,
        frozenset(minutes_meant),
        frozenset(hours),
        frozenset(meant_days),
        frozenset(months),
        frozenset(meant_weekdays),
    )
