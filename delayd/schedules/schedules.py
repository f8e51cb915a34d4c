"""What clients, and the configuration, do with schedules.

    set, remove, pause, resume     one record of the log each
    run_now, Backfill              jobs besides those that are due
    load, names_after, preview     looking

Who may do what is asked by the front ends: it goes by the topic of the schedule.
"""

import enum
from collections.abc import Iterator, Mapping
from typing import NamedTuple, final

import msgspec

from delayd.core.errors import (
    BodyTooBig,
    Refusal,
    ScheduleConfigured,
    ScheduleInvalid,
    ScheduleOver,
    SchedulesFull,
)
from delayd.core.job_ends import JobEnd
from delayd.core.job_parts import note_of
from delayd.core.operations.checks import check_own_target, vetted_target
from delayd.core.operations.put import Outcome
from delayd.core.times import RequestMs
from delayd.fields import Wrong, shown
from delayd.limits import (
    PASS_ACTION_COST,
    SCHEDULE_BACKFILL_MAX,
    SCHEDULE_NOTE_BYTES_MAX,
    SCHEDULES_LOGGED_MAX,
    SCHEDULES_MAX,
    WALL_MS_MAX,
)
from delayd.moments import moment_text
from delayd.schedules.book import Schedule
from delayd.schedules.definition import Definition, checked_schedule_name
from delayd.schedules.progress import NEVER, RunProgress
from delayd.schedules.runner import REFUSED, Runner, run_key
from delayd.text import some_of


class Change(enum.Enum):
    """What setting a schedule has done."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"


class Configured(NamedTuple):
    """What the configuration has done to schedules at a start: names, and what was refused."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    refused: list[str]
    """A sentence for each."""

    def sentence(self) -> str:
        """Write what it has done, for the log; empty: nothing.

        >>> Configured(["nightly", "pulse"], [], ["hourly"], []).sentence()
        'the configuration added schedules (nightly, pulse) and removed schedules (hourly)'
        """
        parts = [
            f"{verb} schedules ({some_of(names, SCHEDULES_LOGGED_MAX)})"
            for verb, names in zip(self._fields, self[:3], strict=False)
            if names
        ]
        return f"the configuration {' and '.join(parts)}" if parts else ""


@final
class Schedules:
    """The schedules of one daemon."""

    def __init__(self, runner: Runner) -> None:
        """Go on with the schedules in the log."""
        self.runner = runner
        self.book = runner.book
        kept = self.book.read()
        self._configured = {each.name for each in kept if each.progress.is_configured}
        """Those of the configuration; without this a start would read all schedules twice."""
        self.runner.begin(kept)

    # --- Changes ---------------------------------------------------------------------------------

    def set(
        self,
        name: str,
        definition: Definition,
        body: bytes,
        now_ms: RequestMs,
        *,
        is_configured: bool = False,
    ) -> tuple[Schedule, Change]:
        """Make a schedule, or give it another definition; the same twice changes nothing.

        Its history stays. Raises `ScheduleInvalid`, `ScheduleConfigured`, `SchedulesFull`,
        `BodyTooBig`, `TargetRefused`, `PushIsOff`, `Draining`, `CapReached`, `OutOfSpace`.
        """
        checked_schedule_name(name)
        self._vet(definition, body)
        self.runner.follow_wall()
        wall_ms = self.runner.wall_ms
        if name in self.book.index:
            schedule = self.book.load(name)
            self._check_owner(schedule, is_configured=is_configured)
            if (schedule.definition, schedule.body) == (definition, body):
                return schedule, Change.UNCHANGED
            put_off_ms = schedule.put_off_ms
            schedule.definition, schedule.body = definition, body
            schedule.progress.changed_ms = wall_ms
            change = Change.CHANGED
        else:
            if len(self.book.index) >= SCHEDULES_MAX:
                raise SchedulesFull(name, SCHEDULES_MAX)
            progress = RunProgress(created_ms=wall_ms, is_configured=is_configured)
            schedule = Schedule(name, definition, progress, body)
            put_off_ms = 0
            change = Change.CREATED
        self._plan_from_now(schedule, put_off_ms)
        if schedule.progress.planned_ms == NEVER:
            raise ScheduleInvalid([_why_over(schedule, wall_ms)])
        self._keep(schedule, now_ms)
        if is_configured:
            self._configured.add(name)
        return schedule, change

    def remove(self, name: str, now_ms: RequestMs, *, is_configured: bool = False) -> None:
        """Remove a schedule, not its jobs; `ScheduleNotFound`, `ScheduleConfigured`."""
        schedule = self.book.load(name)
        self._check_owner(schedule, is_configured=is_configured)
        self.runner.forget(schedule)
        self.book.drop(name, now_ms)
        self._configured.discard(name)

    def pause(self, name: str, note: str, now_ms: RequestMs) -> Schedule:
        """Have no runs until `resume`; without a note it keeps the one that it has.

        Raises `ScheduleNotFound`, `ScheduleInvalid`, `OutOfSpace`.
        """
        schedule = self.book.load(name)
        if len(note.encode("utf-8", "surrogatepass")) > SCHEDULE_NOTE_BYTES_MAX:
            rule = f"must have at most {SCHEDULE_NOTE_BYTES_MAX} bytes"
            raise ScheduleInvalid([Wrong("note", rule, shown(note))])
        progress = schedule.progress
        note = note or progress.note
        if not progress.is_paused or progress.note != note:
            progress.is_paused, progress.note = True, note
            self._keep(schedule, now_ms)
        return schedule

    def resume(self, name: str, now_ms: RequestMs) -> Schedule:
        """Go on with the next run from now; `ScheduleNotFound`, `OutOfSpace`, `Draining`."""
        schedule = self.book.load(name)
        if schedule.progress.is_paused:
            self._plan_from_now(schedule)
            schedule.progress.is_paused, schedule.progress.note = False, ""
            if schedule.progress.queued_ms and not self.runner.is_under_way(schedule):
                self.runner.put_queued(schedule, now_ms)  # which keeps it: both or none
            else:
                self._keep(schedule, now_ms)
        return schedule

    def run_now(self, name: str, now_ms: RequestMs) -> tuple[int, str, Outcome]:
        """Put the job of a run besides those that are due; return its id and its key.

        Its nominal time is now: a run of this millisecond whose job is there is left alone, `KEPT`.
        Else it is the last run then, whatever was under way, and counts for the limit. Raises
        `ScheduleNotFound`, `ScheduleOver`, and what a put raises.
        """
        schedule = self.book.load(name)
        if schedule.has_had_all():
            raise ScheduleOver(name)
        self.runner.follow_wall()
        nominal_ms = self.runner.wall_ms
        with self.runner.engine.one_item():
            job_id, outcome = self.runner.put_job(schedule, nominal_ms, now_ms)
            if outcome is Outcome.CREATED:
                self.runner.note_run(schedule, job_id, nominal_ms)
                self._keep(schedule, now_ms)
        return job_id, run_key(name, nominal_ms).decode(), outcome

    def configure(
        self, wanted: Mapping[str, tuple[Definition, bytes]], now_ms: RequestMs
    ) -> Configured:
        """Have these schedules of the configuration, and no others of it.

        What is wrong with one keeps no other from being set.
        """
        done = Configured([], [], sorted(self._configured - wanted.keys()), [])
        for name in done.removed:
            self.remove(name, now_ms, is_configured=True)
        for name, (definition, body) in wanted.items():
            try:
                _, change = self.set(name, definition, body, now_ms, is_configured=True)
            except Refusal as refusal:
                done.refused.append(f"the schedule {name!r} of the configuration: {refusal}")
            else:
                if change is Change.CREATED:
                    done.added.append(name)
                elif change is Change.CHANGED:
                    done.changed.append(name)
        return done

    def _check_owner(self, schedule: Schedule, *, is_configured: bool) -> None:
        if schedule.progress.is_configured and not is_configured:
            raise ScheduleConfigured(schedule.name)
        if is_configured and not schedule.progress.is_configured:
            rule = "is that of a schedule set at run time, which stays: remove it, and restart"
            raise ScheduleInvalid([Wrong("name", rule, shown(schedule.name))])

    def _vet(self, definition: Definition, body: bytes) -> None:
        """Refuse what every run would be refused for."""
        engine = self.runner.engine
        if len(body) > engine.body_bytes_max:
            raise BodyTooBig(len(body), engine.body_bytes_max)
        if definition.target is not None:
            vetted_target(engine, definition.target, definition.topic)
            topic = engine.store.topics.by_name.get(definition.topic)
            if topic is not None:
                check_own_target(topic, b"url")

    def _plan_from_now(self, schedule: Schedule, put_off_ms: int = 0) -> None:
        """Plan the next run from now; `put_off_ms` is by how much the planned one is put off.

        If that has been due for long, it is missed: the log had no space, for example.
        """
        progress = schedule.progress
        wall_ms = self.runner.wall_ms
        if NEVER < progress.planned_ms <= wall_ms and not progress.is_paused:
            if wall_ms < progress.planned_ms + put_off_ms:
                wall_ms = progress.planned_ms - 1
            else:
                progress.miss(1, wall_ms)
        progress.begin(wall_ms)
        self.runner.plan_next(schedule, progress.last_ms)

    def _keep(self, schedule: Schedule, now_ms: RequestMs) -> None:
        self.book.keep(schedule, now_ms)
        self.runner.wake()

    # --- Looking ---------------------------------------------------------------------------------

    def load(self, name: str) -> Schedule:
        """Return a schedule, with the end of its last run; `ScheduleNotFound`."""
        schedule = self.book.load(name)
        progress = schedule.progress
        if progress.outcome == REFUSED or not progress.run_id:
            return schedule
        outcome = self.book.index[name].outcome or progress.outcome
        if outcome in {"", JobEnd.DEAD.value}:  # a dead job may have been kicked
            is_under_way = self.runner.is_under_way(schedule)
            outcome = "running" if is_under_way else outcome or self._end(schedule)
        progress.outcome = outcome
        return schedule

    def _end(self, schedule: Schedule) -> str:
        """Return how the last run has ended of which no end was told: before a restart."""
        is_there = self.runner.engine.store.jobs.get(schedule.progress.run_id) is not None
        return "dead" if is_there else "ended"

    def error_of_last(self, schedule: Schedule) -> str:
        """Return why the last run was refused or is dead, in one line; empty: it is neither."""
        progress = schedule.progress
        if progress.outcome != JobEnd.DEAD.value:
            return progress.error
        record = self.runner.engine.store.jobs.get(progress.run_id)
        note = None if record is None else note_of(record)
        return "" if note is None else note.error.partition("\n")[0]

    def names_after(self, after: str, prefix: str = "") -> Iterator[tuple[str, str]]:
        """Yield name and topic of the schedules that follow a name and begin so, by name."""
        index = self.book.index
        for name in index.irange(max(after, prefix), inclusive=(max(after, prefix) != after, True)):
            if not name.startswith(prefix):
                return
            yield name, index[name].topic

    def next_runs(self, schedule: Schedule, count: int) -> list[int]:
        """Return when the next runs are due, by the wall clock, if all goes well."""
        progress, definition = schedule.progress, schedule.definition
        if progress.is_paused or progress.planned_ms == NEVER:
            return []
        if definition.limit is not None:
            count = min(count, definition.limit - progress.runs)
        runs = [progress.planned_ms]
        if count > 1:
            runs += schedule.recurrence().first(progress.planned_ms, WALL_MS_MAX, count - 1)
        put_off_ms = schedule.put_off_ms
        return [nominal_ms + put_off_ms for nominal_ms in runs]

    def preview(self, name: str, definition: Definition, count: int) -> list[int]:
        """Return when the runs would be due of a schedule that is made now, or changed."""
        self.runner.follow_wall()
        put_off_ms = 0
        if name in self.book.index:
            schedule = self.book.load(name)
            put_off_ms = schedule.put_off_ms
            schedule.definition, schedule.progress.is_paused = definition, False
        else:
            schedule = Schedule(name, definition, RunProgress(created_ms=self.runner.wall_ms), b"")
        self._plan_from_now(schedule, put_off_ms)
        return self.next_runs(schedule, count)

    def backfill(self, name: str, from_ms: int, until_ms: int | None) -> "Backfill":
        """Return the work that puts the runs of a past range, both ends included; None: up to now.

        Runs that are there under their keys are left alone. `ScheduleNotFound`, `ScheduleInvalid`.
        """
        schedule = self.book.load(name)
        definition, recurrence = schedule.definition, schedule.recurrence()
        self.runner.follow_wall()
        if until_ms is None:
            until_ms = self.runner.wall_ms
        if definition.every_ms is not None and definition.start_ms is None:
            # No run was due when it was made.
            from_ms = max(from_ms, min(until_ms, schedule.progress.created_ms + 1))
        rule, count = "", 0
        if until_ms > self.runner.wall_ms:
            rule = f"must not be after now, {moment_text(self.runner.wall_ms)}"
        elif until_ms < from_ms:
            rule = f"must not be before from, {moment_text(from_ms)}"
        elif (count := recurrence.count(from_ms - 1, until_ms)) > SCHEDULE_BACKFILL_MAX:
            rule = f"leaves {count} runs since from, more than {SCHEDULE_BACKFILL_MAX} at once"
        if rule:
            raise ScheduleInvalid([Wrong("until", rule, shown(moment_text(until_ms)))])
        nominal = recurrence.first(from_ms - 1, until_ms, SCHEDULE_BACKFILL_MAX) if count else []
        return Backfill(self, name, nominal)


def _why_over(schedule: Schedule, wall_ms: int) -> Wrong:
    """Return why a schedule has no run any more."""
    if schedule.has_had_all():
        rule = f"leaves no run: there were {schedule.progress.runs}"
        return Wrong("limit", rule, str(schedule.definition.limit))
    end = shown(schedule.definition.to_fields().get("end"))
    return Wrong("end", f"leaves no run: it is {moment_text(wall_ms)} now", end)


@final
class Backfill(msgspec.Struct, eq=False):
    """Runs of a past range, put in slices; a refusal ends it."""

    schedules: Schedules
    name: str
    nominal: list[int]
    put: int = 0
    """Jobs that were put."""
    kept: int = 0
    """Runs whose job was there."""
    refusal: Refusal | None = None

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Put some more; tell whether those were the last."""
        try:
            schedule = self.schedules.book.load(self.name)
            for _ in range(1 + budget // PASS_ACTION_COST):
                if self.put + self.kept == len(self.nominal):
                    return True
                nominal_ms = self.nominal[self.put + self.kept]
                _, outcome = self.schedules.runner.put_job(schedule, nominal_ms, now_ms)
                if outcome is Outcome.CREATED:
                    self.put += 1
                else:
                    self.kept += 1
        except Refusal as refusal:
            self.refusal = refusal
            return True
        return False
