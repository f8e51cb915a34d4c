"""Time zones: their names, the database they come from, and when their clocks are set.

zoneinfo reads the system's database or, where there is none, the package tzdata. It tells the
offset of one moment. `period_at` cuts time into periods of one offset, in which a clock is as
simple as in UTC: whatever is special about a change happens where a period begins.

>>> spring = 1_772_953_200  # 2026-03-08 07:00 UTC: the clocks of New York skip an hour
>>> period = period_at("America/New_York", spring + 1)
>>> period.begin_s == spring, period.before_s // 3_600, period.offset_s // 3_600
(True, -5, -4)

Not known here: what runs when (`recurrence`).
"""

import os
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from delayd.bounded_files import open_file
from delayd.fields import ValueKind, text_schema
from delayd.limits import (
    WALL_MS_MAX,
    ZONE_CHARACTERS_MAX,
    ZONE_PROBE_S,
    ZONE_WINDOW_S,
    ZONE_WINDOWS_KEPT_MAX,
    ZONES_KEPT_MAX,
)
from delayd.text import did_you_mean

if TYPE_CHECKING:
    from datetime import timedelta
    from zoneinfo import ZoneInfo

ZONE_RULE: Final = "must be the name of a time zone, such as Europe/Berlin or UTC"
# Files beside the zones, or other forms of them: with leap seconds, or what this machine is set to.
_NO_ZONES: Final = ("localtime", "posixrules", "Factory")
_NAME: Final = r"(?!(?:posix|right)/)[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*"
# Nearest by their pairs of letters, and then compared in full, which takes 0.1 ms each.
_NEAR_COMPARED: Final = 16
_LAST_PROBE_S: Final = WALL_MS_MAX // 1_000 - 2 * 86_400
"""Python's calendar ends with the year 9999, in any zone: the last offset is taken before that."""

# --- Names ---------------------------------------------------------------------------------------


def read_zone(value: object) -> str:
    """Return the name of a time zone as it is. Raises `ValueError`, whose message is the rule."""
    if not isinstance(value, str):
        raise ValueError(ZONE_RULE)  # noqa: TRY004 - as for all that is wrong
    zone_named(str(value))
    return str(value)


TIME_ZONE: Final = ValueKind(
    read_zone, schema=text_schema(_NAME, 1, ZONE_CHARACTERS_MAX)
).described(
    "A time zone of the IANA database, by its name: cron expressions are for its clock.",
    "UTC",
    "Europe/Berlin",
)


@lru_cache(maxsize=ZONES_KEPT_MAX)
def zone_named(name: str) -> "ZoneInfo":
    """Return the time zone. Raises `ValueError`, whose message names a near one."""
    import zoneinfo  # noqa: PLC0415 - takes 3 ms; not all have schedules

    if not name or len(name) > ZONE_CHARACTERS_MAX:
        raise ValueError(ZONE_RULE)
    if name in _NO_ZONES:  # what their names are like is no hint
        raise ValueError(ZONE_RULE)
    if re.fullmatch(_NAME, name) is None:
        raise ValueError(ZONE_RULE + _near(name))
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # none, another file, or a folder
        raise ValueError(f"there is no such time zone{_near(name)}") from None


def _near(name: str) -> str:
    """Return a hint at the zone with the nearest name. Takes 2 ms."""
    import heapq  # noqa: PLC0415 - only after a mistake
    from itertools import pairwise  # noqa: PLC0415

    folded = name.casefold()
    pairs = {*map("".join, pairwise(folded))}
    near = heapq.nlargest(
        _NEAR_COMPARED, _names(), key=lambda known: sum(pair in known.casefold() for pair in pairs)
    )
    same = [known for known in near if known.casefold() == folded]
    hints = (did_you_mean(each, near) for each in (*same, name, name.title()))
    return next(filter(None, hints), "")


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    """Return the names of the package tzdata, all of which zoneinfo finds; none without it.

    zoneinfo's own list takes 30 ms: it opens every file.
    """
    import pkgutil  # noqa: PLC0415 - only after a mistake

    try:
        data = pkgutil.get_data("tzdata", "zones") or b""
    except (ImportError, OSError):
        return ()
    return tuple(data.decode().split())


def tzdata_version() -> str:
    """Return the version of the database that zoneinfo reads, such as 2026a; or `unknown`.

    zoneinfo looks in the folders of its TZPATH first, and then in the package tzdata.
    """
    import zoneinfo  # noqa: PLC0415 - as above

    for folder in zoneinfo.TZPATH:
        for name, before in (("tzdata.zi", b"# version "), ("+VERSION", b"")):
            found = re.match(before + rb"([\w.+-]{1,32})\s", _beginning(os.path.join(folder, name)))
            if found:
                return found[1].decode()
        if os.path.exists(os.path.join(folder, "UTC")):
            return "unknown"  # zoneinfo reads this one, and it does not say
    try:
        import tzdata  # type: ignore[import-untyped]  # noqa: PLC0415 - as above
    except ImportError:
        return "unknown"
    return str(tzdata.IANA_VERSION)


def _beginning(path: str) -> bytes:
    """Return the first bytes of a file; nothing if it cannot be read."""
    try:
        handle = open_file(path)
    except OSError:
        return b""
    try:
        return os.read(handle, 64)
    finally:
        os.close(handle)


# --- Periods -------------------------------------------------------------------------------------


class Period(NamedTuple):
    """Seconds since 1970 in which a zone has one offset, or some of those."""

    begin_s: int
    end_s: int
    """The first second that is not in it."""
    offset_s: int
    """What is added to UTC to get what the clock shows."""
    before_s: int
    """The offset before it, which may be the same."""


def period_at(name: str, at_s: int) -> Period:
    """Return the period that a moment is in; of a zone that exists."""
    always = zone_named(name).utcoffset(None)
    if always is not None:
        return Period(0, WALL_MS_MAX, _seconds(always), _seconds(always))
    for period in _periods(name, at_s // ZONE_WINDOW_S):
        if at_s < period.end_s:
            return period
    raise AssertionError(f"{at_s} is in no period of {name}")


@lru_cache(maxsize=ZONE_WINDOWS_KEPT_MAX)
def _periods(name: str, window: int) -> tuple[Period, ...]:
    """Return the periods of a window, which are cut off where it begins and ends.

    No zone changes its clock twice within `ZONE_PROBE_S`, so an offset that is the same after that
    time was the same meanwhile.
    """
    begin, end = window * ZONE_WINDOW_S, (window + 1) * ZONE_WINDOW_S
    zone = zone_named(name)
    before = offset = _offset_s(zone, begin - 1)
    last = begin - 1
    periods = []
    for probe in range(begin - 1 + ZONE_PROBE_S, end, ZONE_PROBE_S):
        after = _offset_s(zone, probe)
        if after != offset:
            change = _change(zone, last, probe)
            if change > begin:
                periods.append(Period(begin, change, offset, before))
            begin, before, offset = change, offset, after
        last = probe
    periods.append(Period(begin, end, offset, before))
    return tuple(periods)


def _change(zone: "ZoneInfo", low: int, high: int) -> int:
    """Return the second between these that is the first with another offset than `low`."""
    offset = _offset_s(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset_s(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _offset_s(zone: "ZoneInfo", at_s: int) -> int:
    import datetime as dt  # noqa: PLC0415 - delayd-beanstalkd listens before it is needed

    shown = dt.datetime.fromtimestamp(min(at_s, _LAST_PROBE_S), zone)
    return _seconds(shown.utcoffset() or dt.timedelta())


def _seconds(offset: "timedelta") -> int:
    return offset.days * 86_400 + offset.seconds
