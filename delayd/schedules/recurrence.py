"""When the runs of a schedule are due: a pure function of its definition.

>>> from delayd.moments import moment_text, parse_moment_ms
>>> start_ms = parse_moment_ms("2026-03-01T00:00:00Z")
>>> nightly = Recurrence(cron="30 2 * * *", timezone="America/New_York", start_ms=start_ms)
>>> after_ms = parse_moment_ms("2026-03-07T00:00:00Z")
>>> [moment_text(at_ms) for at_ms in nightly.first(after_ms, after_ms + 3 * 86_400_000, 3)]
['2026-03-07T07:30:00.000Z', '2026-03-08T07:00:00.000Z', '2026-03-09T06:30:00.000Z']

On March 8 the clocks of New York go from 2:00 to 3:00, which is 7:00 in UTC. The rules are those of
Debian's cron:

- Where minute and hour are given, the run of a time that the clock skips follows at once when it
  goes on, and several such runs are one; of a time that it shows twice the first counts.
- Where the minute or the hour begins with a star, the times follow real time: one that is skipped
  does not come, and one that is shown twice comes twice.

Debian's cron takes a change by more than three hours for a clock that was wrong. Here the rules
hold for any, such as for the day that Samoa left out in 2011.

`every` counts real time from the start of the schedule, whatever clocks show and however long runs
take. Nominal times are moments in milliseconds since 1970; there are none beyond the year 9999.

Not known here: what a run does, which runs were missed, and what time it is.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final, final

from delayd.durations import DURATION_RULE, INTERVAL_RULE, duration_text
from delayd.fields import ValueKind, duration
from delayd.limits import EVERY_MS_MAX, EVERY_MS_MIN, WALL_MS_MAX
from delayd.schedules.cron import CronTimes, cron_times
from delayd.schedules.zones import Period, period_at, zone_named

_BOUNDED: Final = duration(EVERY_MS_MIN, EVERY_MS_MAX)


def _read_every(value: object) -> int:
    """Read an interval; the examples of its rule have the units that are common here."""
    try:
        every_ms: int = _BOUNDED.read(value)
    except ValueError as broken:
        raise ValueError(str(broken).replace(DURATION_RULE, INTERVAL_RULE)) from None
    return every_ms


EVERY: Final[ValueKind] = _BOUNDED._replace(read=_read_every).described(
    "The time from one run to the next, counted from the start of the schedule.", "15m", 3600
)
_DAY_S: Final = 86_400
_AROUND_S: Final = 2 * _DAY_S
"""More than the day by which an offset, and the day that a change skips, can move a time."""


@final
class Recurrence:
    """The nominal times of a schedule, by a cron expression or by an interval.

    Raises `ValueError`, whose message is the rule, for what `CRON`, `TIME_ZONE` and `EVERY` refuse,
    and where not exactly one of `cron` and `every_ms` is given.
    """

    __slots__ = ("_end_ms", "_every_ms", "_start_ms", "_times", "_zone")

    def __init__(
        self,
        *,
        cron: str | None = None,
        every_ms: int | None = None,
        timezone: str = "UTC",
        start_ms: int,
        end_ms: int | None = None,
    ) -> None:
        if (cron is None) is (every_ms is None):
            raise ValueError("must have either cron or every")
        if every_ms is not None and not EVERY_MS_MIN <= every_ms <= EVERY_MS_MAX:
            lowest, highest = duration_text(EVERY_MS_MIN), duration_text(EVERY_MS_MAX)
            raise ValueError(f'must be from "{lowest}" to "{highest}"')
        zone_named(timezone)
        self._zone = timezone
        self._times: CronTimes | None = None if cron is None else cron_times(cron)
        self._every_ms = every_ms or 0
        self._start_ms = start_ms
        self._end_ms = WALL_MS_MAX if end_ms is None else min(end_ms, WALL_MS_MAX)

    def next_after(self, wall_ms: int) -> int | None:
        """Return the first nominal time after this moment; None if there are no more."""
        return next(self._nominal(wall_ms, self._end_ms), None)

    def first(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """Return the oldest nominal times after the one moment and up to the other, ascending."""
        return [*islice(self._nominal(after_ms, until_ms), max(limit, 0))]

    def latest(self, after_ms: int, until_ms: int, limit: int) -> list[int]:
        """Return the newest nominal times after the one moment and up to the other, ascending."""
        return [*islice(self._nominal(after_ms, until_ms, is_back=True), max(limit, 0))][::-1]

    def _nominal(self, after_ms: int, until_ms: int, *, is_back: bool = False) -> Iterator[int]:
        """List those times from the first to the last, or from the last to the first."""
        if self._times is None:
            numbers = self._numbers(after_ms, until_ms)[:: -1 if is_back else 1]
            return (self._start_ms + number * self._every_ms for number in numbers)
        listed = self._back if is_back else self._forward
        seconds = listed(self._times, *self._seconds(after_ms, until_ms))
        return (at_s * 1_000 for at_s in seconds)

    def count(self, after_ms: int, until_ms: int) -> int:
        """Return how many nominal times there are after the one moment and up to the other.

        O(months), whatever the expression: ten years take 1 ms, and 3 ms for a new time zone.
        """
        if self._times is None:
            return len(self._numbers(after_ms, until_ms))
        low_s, last_s = self._seconds(after_ms, until_ms)
        count = 0
        while low_s <= last_s:
            period = period_at(self._zone, low_s)
            landing_s, begin_s, end_s = self._clock(self._times, period, low_s, last_s)
            count += (landing_s is not None) + self._times.count(begin_s, end_s)
            low_s = period.end_s
        return count

    def _numbers(self, after_ms: int, until_ms: int) -> range:
        """Return the numbers of the times of `every`, beginning with 0."""
        low = max(0, (after_ms - self._start_ms) // self._every_ms + 1)
        end = (min(until_ms, self._end_ms) - self._start_ms) // self._every_ms + 1
        return range(low, max(low, end))

    def _seconds(self, after_ms: int, until_ms: int) -> tuple[int, int]:
        """Return the first and the last second that may be a nominal time of cron."""
        low_s = max(after_ms // 1_000 + 1, -(-self._start_ms // 1_000))
        return low_s, min(until_ms, self._end_ms) // 1_000

    def _forward(self, times: CronTimes, low_s: int, last_s: int) -> Iterator[int]:
        """List the nominal times between these seconds, both included."""
        while low_s <= last_s:
            period = period_at(self._zone, low_s)
            landing_s, begin_s, end_s = self._clock(times, period, low_s, last_s)
            if landing_s is not None:
                yield landing_s
            for clock_s in times.clock_times(begin_s, end_s):
                yield clock_s - period.offset_s
            low_s = period.end_s
            if low_s <= last_s:
                day = times.day_from((low_s - _AROUND_S) // _DAY_S)
                if day is None:
                    return
                low_s = max(low_s, day * _DAY_S - _AROUND_S)

    def _back(self, times: CronTimes, low_s: int, last_s: int) -> Iterator[int]:
        """List the same from the last to the first."""
        low_day = (low_s - _AROUND_S) // _DAY_S
        while low_s <= last_s:
            period = period_at(self._zone, last_s)
            landing_s, begin_s, end_s = self._clock(times, period, low_s, last_s)
            for clock_s in times.clock_times(begin_s, end_s, is_back=True):
                yield clock_s - period.offset_s
            if landing_s is not None:
                yield landing_s
            last_s = period.begin_s - 1
            if low_s <= last_s:
                day = times.day_until((last_s + _AROUND_S) // _DAY_S, low_day)
                if day is None:
                    return
                last_s = min(last_s, (day + 1) * _DAY_S + _AROUND_S)

    @staticmethod
    def _clock(
        times: CronTimes, period: Period, low_s: int, last_s: int
    ) -> tuple[int | None, int, int]:
        """Return what counts of a period, between these moments.

        The moment at which the clock goes on, if runs of skipped times follow there; and from where
        to where on the clock (the end is not included) times are nominal times.
        """
        low_s = max(low_s, period.begin_s)
        end_s = min(last_s + 1, period.end_s)
        begin_clock_s = period.begin_s + period.offset_s
        landing_s = None
        if times.is_fixed and period.before_s != period.offset_s:
            shown_s = period.begin_s + period.before_s  # what the clock would show next
            # A whole minute: one zone, until 1972, had an offset with seconds.
            landing_clock_s = -(-begin_clock_s // 60) * 60
            if shown_s > begin_clock_s:
                begin_clock_s = shown_s
            elif times.count(shown_s, landing_clock_s + 1):
                landing_s = landing_clock_s - period.offset_s
                begin_clock_s = landing_clock_s + 1
        if landing_s is not None and not low_s <= landing_s < end_s:
            landing_s = None
        offset_s = period.offset_s
        return landing_s, max(low_s + offset_s, begin_clock_s), end_s + offset_s


def jitter_ms(name: str, jitter_ms: int) -> int:
    """Return how much later the runs of this name begin: from 0 to below `jitter_ms`.

    The same name has the same share of it for ever, on every machine.

    >>> jitter_ms("nightly", 60_000), jitter_ms("hourly", 60_000), jitter_ms("nightly", 0)
    (57594, 1551, 0)
    """
    import hashlib  # noqa: PLC0415 - takes 2 ms; not all have schedules

    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") * jitter_ms >> 64
