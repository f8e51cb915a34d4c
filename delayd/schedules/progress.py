"""What has become of a schedule's runs so far, and which of them is next: plain values, no clock.

Runs are known by their *nominal time*, the time of the wall clock at which they are due. Which of
them are *handled* (put, skipped or missed for good) must not depend on the wall clock alone, which
may be set back: a run that was handled is never handled again, and one that was passed over while
the clock was wrong can still come. So two stretches are remembered: everything up to `before_ms`,
and everything from `from_ms` to `last_ms`.

    … ████████████████ ············ ███████ ─────────────► nominal times
                     before_ms    from_ms last_ms

`next_due` decides what is to be done now, as a function of the definition, of these times and of
the wall clock.

>>> hourly = Recurrence(every_ms=3_600_000, start_ms=0)
>>> progress = RunProgress(created_ms=1)
>>> progress.plan(hourly, 1); progress.planned_ms
3600000
>>> definition = Definition(topic="mail", every_ms=3_600_000)
>>> next_due(definition, hourly, progress, wall_ms=4 * 3_600_000 + 5)
DueRun(run_ms=14400000, missed=3, handled_ms=14400000)
"""

import enum
from typing import Final, NamedTuple

import msgspec

from delayd.limits import SCHEDULE_COUNTED_MS, SCHEDULE_GRACE_MS, SCHEDULE_MADE_UP_MAX
from delayd.schedules.definition import Definition, Missed
from delayd.schedules.recurrence import Recurrence

NEVER: Final = 0


class ScheduleState(enum.Enum):
    """Whether there will be runs."""

    ACTIVE = "active"
    PAUSED = "paused"
    OVER = "over"
    """No more, and none waits: the end has passed, or there were as many as there may be."""


class RunProgress(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The history of a schedule; times are of the wall clock, in ms since 1970."""

    created_ms: int
    changed_ms: int = 0
    """When it was given another definition last; 0: never."""
    is_configured: bool = False
    """It belongs to the configuration."""
    is_paused: bool = False
    note: str = ""
    """Why it is paused, for people."""

    planned_ms: int = NEVER
    """The nominal time of the next run; 0: there is none."""
    before_ms: int = 0
    from_ms: int = 0
    last_ms: int = 0
    tzdata: str = ""
    """The version of the time zones by which it was planned; empty: it needs none."""

    runs: int = 0
    """Jobs that were put."""
    missed: int = 0
    """Runs that were due while nobody ran them, or waited for too long, and are not put."""
    missed_ms: int = 0
    """When that was noticed last; 0: never."""
    skipped: int = 0
    """Runs that were due while the one before was under way, and are not put after it."""
    refused: int = 0
    """Runs whose job was refused, by a cap of the topic for example."""
    late: int = 0
    """Runs that were put more than `SCHEDULE_LATE_MS` after they were due."""

    run_id: int = 0
    """The job of the last run; 0: there was none."""
    run_ms: int = 0
    """Its nominal time."""
    outcome: str = ""
    """What became of it, as far as is written down: a value of `JobEnd`, or "refused"."""
    error: str = ""
    """Why it was refused."""
    refused_ms: int = 0
    """The nominal time of the run that was refused."""
    queued_ms: int = 0
    """The nominal time of a run that waits for the end of that job; 0: none does."""

    @property
    def state(self) -> ScheduleState:
        """Whether there will be runs."""
        if self.is_paused:
            return ScheduleState.PAUSED
        is_over = self.planned_ms == NEVER and not self.queued_ms
        return ScheduleState.OVER if is_over else ScheduleState.ACTIVE

    def miss(self, count: int, wall_ms: int) -> None:
        """Note that so many runs, which may be none, are not made up for."""
        if count:
            self.missed += count
            self.missed_ms = wall_ms

    def begin(self, wall_ms: int) -> None:
        """Have everything up to now handled: what is due comes after it."""
        self.last_ms = max(self.last_ms, wall_ms)
        self.before_ms = max(self.before_ms, min(wall_ms, self.last_ms))
        self.from_ms = max(self.from_ms, self.before_ms)

    def handle(self, nominal_ms: int) -> None:
        """Note that runs up to this one are handled; if there were others before it, as missed."""
        if nominal_ms <= self.last_ms:  # in the gap, after the clock was set back
            self.before_ms = max(self.before_ms, nominal_ms)
        else:
            if nominal_ms > self.planned_ms:  # these may come again if the clock was wrong
                self.before_ms = self.last_ms
                self.from_ms = nominal_ms
            self.last_ms = nominal_ms

    def next_after(self, recurrence: Recurrence, after_ms: int) -> int | None:
        """Return the first run after that time which is not handled; None: there is none."""
        nominal_ms = recurrence.next_after(max(after_ms, self.before_ms))
        if nominal_ms is not None and self.from_ms <= nominal_ms <= self.last_ms:
            return recurrence.next_after(self.last_ms)
        return nominal_ms

    def plan(self, recurrence: Recurrence, after_ms: int) -> None:
        """Plan the first run after that time which is not handled."""
        self.planned_ms = self.next_after(recurrence, after_ms) or NEVER


class DueRun(NamedTuple):
    """What is to be done of what is due."""

    run_ms: int | None
    """The nominal time of the run to be made; None: none is made up for."""
    missed: int
    """How many that were due before it, or up to `handled_ms`, are not made up for."""
    handled_ms: int
    """The newest nominal time that is handled by this; later ones may be due too."""


def next_due(
    definition: Definition, recurrence: Recurrence, progress: RunProgress, wall_ms: int
) -> DueRun:
    """Return the oldest run to be made of those that are due, from the planned one on.

    `wall_ms` is the wall clock without the schedule's jitter: the planned run is due by then.
    """
    after_ms, until_ms = progress.planned_ms - 1, wall_ms
    if after_ms < progress.from_ms <= until_ms and progress.last_ms > after_ms:
        until_ms = progress.from_ms - 1  # what follows is handled
    window_ms = definition.window_ms
    if definition.missed is Missed.NONE:
        window_ms = min(SCHEDULE_GRACE_MS, window_ms or SCHEDULE_GRACE_MS)
    oldest_ms = 0 if window_ms is None else wall_ms - window_ms
    most = SCHEDULE_MADE_UP_MAX if definition.missed is Missed.ALL else 1
    newest = recurrence.latest(after_ms, until_ms, most) or [progress.planned_ms]
    run_ms = next((nominal_ms for nominal_ms in newest if nominal_ms >= oldest_ms), None)
    handled_ms = newest[-1] if run_ms is None else run_ms
    if handled_ms == progress.planned_ms:  # as nearly always
        return DueRun(run_ms, int(run_ms is None), handled_ms)
    counted_after_ms = max(after_ms, handled_ms - SCHEDULE_COUNTED_MS)
    missed = recurrence.count(counted_after_ms, handled_ms) - (run_ms is not None)
    return DueRun(run_ms, missed, handled_ms)
