"""Runs: what is due is put as jobs, and each schedule goes on to its next run.

    the wheel wakes a schedule's job ──► `wake` ──► ring: `next_due` decides
        put the job of the run, under the key name@time      ┐ one item of the log
        write the schedule down, with its next run           ┘

Both are one item of the log, so no crash and no takeover comes between them: there is exactly one
job for each run. Of several runs that are made up for, each is an item, the oldest first.

The ends of the last runs are told by the store (`core.job_ends`). They are looked at in the same
turn: a run that waits for the one before is put then.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

from delayd.core.background_tasks import BackgroundTask, BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import (
    Draining,
    JobNotFound,
    OutOfSpace,
    Refusal,
    ScheduleInvalid,
)
from delayd.core.job_ends import JobEnd
from delayd.core.job_parts import Own, key_of
from delayd.core.job_record import State
from delayd.core.names import SCHEDULES_TOPIC
from delayd.core.operations.change import bury_waiting
from delayd.core.operations.checks import as_daemon, vetted_own
from delayd.core.operations.put import Conflict, Outcome, default_ttr_ms, put_keyed
from delayd.core.operations.tick import caught_up
from delayd.core.ready_queue import job_id_of
from delayd.core.reminder import Reminder
from delayd.core.times import RequestMs
from delayd.limits import (
    PASS_ACTION_COST,
    SCHEDULE_LATE_MS,
    SCHEDULE_RETRY_MS,
    SCHEDULE_SLICE_RUNS,
    SCHEDULE_STEP_MS,
)
from delayd.moments import moment_text
from delayd.schedules.book import Book, Schedule
from delayd.schedules.definition import Overlap
from delayd.schedules.progress import NEVER, next_due
from delayd.schedules.recurrence import Recurrence
from delayd.schedules.zones import tzdata_version

REFUSED: Final = "refused"
_HEAD_BYTES: Final = 1_024
"""More than the line of JSON, key and head of a schedule's record take beside the definition."""


def run_key(name: str, nominal_ms: int) -> bytes:
    """Return the key of the job of a run.

    >>> run_key("nightly", 1_795_287_600_000), run_key("often", 1_795_287_600_250)
    (b'nightly@2026-11-21T19:00:00Z', b'often@2026-11-21T19:00:00.250Z')
    """
    return f"{name}@{moment_text(nominal_ms).replace('.000Z', 'Z')}".encode()


@final
class Runner:
    """Runs what is due of a book of schedules."""

    def __init__(
        self,
        engine: Engine,
        tasks: BackgroundTasks,
        follow_wall: Callable[[], None],
        log: Callable[[str], None],
    ) -> None:
        """Take over what is due and what ends; `follow_wall` looks at the wall clock."""
        self.engine = engine
        self.book = Book(engine)
        self._tasks = tasks
        self.follow_wall = follow_wall
        self._log = log
        self.tzdata = tzdata_version()
        """The version of the time zones by which runs are planned."""
        self._runs: dict[int, str] = {}
        """The job of the last run → its schedule."""
        self._ended: deque[tuple[str, int, JobEnd | None]] = deque()
        """Ends of the jobs of schedules that were not looked at yet; None: before the start."""
        self._reminder = Reminder(self._ring)
        engine.on_own_job_due = self.wake
        engine.store.ends.tell = self._note_end

    @property
    def wall_ms(self) -> int:
        """The wall clock, rounded down, by the time that was played."""
        store = self.engine.store
        return store.time_ms + store.wall_times.offset_ms

    def begin(self, schedules: Sequence[Schedule]) -> None:
        """Go on with what was in the log."""
        for schedule in schedules:
            progress = schedule.progress
            if progress.run_id:
                self._watch(schedule)
                is_settled = schedule.has_had_all() or not self.is_under_way(schedule)
                if progress.queued_ms and is_settled:
                    self._ended.append((schedule.name, progress.run_id, None))
        old = [
            schedule.name
            for schedule in schedules
            if schedule.progress.tzdata and schedule.progress.tzdata != self.tzdata
        ]
        if old:
            zones = f"the time zones are those of {self.tzdata} now"
            self._log(f"{len(old)} schedules are planned anew: {zones}")
            self.plan_anew(old)
        self.wake()

    def wake(self) -> None:
        """Look at what is due, as soon as this turn or the next is at it."""
        self.engine.remind(self._reminder, self.engine.store.time_ms)

    def _ring(self, now_ms: RequestMs) -> None:
        if self.engine.draining:
            self.engine.remind(self._reminder, now_ms + SCHEDULE_RETRY_MS)
            return
        self.follow_wall()
        try:
            self._hear_ends(now_ms)
            has_more = self._run_some(now_ms)
        except OutOfSpace:
            self.engine.remind(self._reminder, now_ms + SCHEDULE_RETRY_MS)
        else:
            if has_more:
                self.wake()

    def _run_some(self, now_ms: RequestMs) -> bool:
        """Run some of the schedules that are due; tell whether there are more."""
        topic = self.engine.store.topics.by_name.get(SCHEDULES_TOPIC)
        if topic is None:
            return False
        for _ in range(SCHEDULE_SLICE_RUNS):
            if not topic.queues.ready.count:
                return False
            with self.engine.one_item():
                self._run(job_id_of(topic.queues.ready.head()), now_ms)
        return bool(topic.queues.ready.count)

    # --- One schedule that is due ----------------------------------------------------------------

    def _run(self, job_id: int, now_ms: RequestMs) -> None:
        """Make the next run of a schedule that is due, and plan the one after it; `OutOfSpace`."""
        try:
            schedule = self.book.schedule_of(job_id)
        except ValueError:
            with as_daemon(self.engine):  # put by a client when that was no topic of ours
                bury_waiting(self.engine, job_id, now_ms, error="this is no schedule")
            return
        progress = schedule.progress
        wall_ms = self.wall_ms - schedule.put_off_ms
        if NEVER < progress.planned_ms <= wall_ms and not progress.is_paused:
            self._require_space(schedule)
            try:
                self._make_next(schedule, wall_ms, now_ms)
            except ScheduleInvalid as refusal:
                self._end_for(schedule, refusal)
        self.book.keep(schedule, now_ms)

    def _require_space(self, schedule: Schedule) -> None:
        """See that the job of a run and the schedule can both be written down; `OutOfSpace`."""
        engine = self.engine
        record = engine.store.jobs.get(schedule.job_id)
        assert record is not None
        engine.log_space.require_for_put(2 * len(schedule.body) + len(record) + _HEAD_BYTES)

    def _make_next(self, schedule: Schedule, wall_ms: int, now_ms: RequestMs) -> None:
        """Make the run that is due, and plan the next; `ScheduleInvalid`, `OutOfSpace`."""
        progress, recurrence = schedule.progress, schedule.recurrence()
        due = next_due(schedule.definition, recurrence, progress, wall_ms)
        progress.miss(due.missed, self.wall_ms)
        progress.handle(due.handled_ms)
        if due.run_ms is not None:
            self._make(schedule, due.run_ms, now_ms)
        self.plan_next(schedule, due.handled_ms, recurrence)

    def _end_for(self, schedule: Schedule, refusal: ScheduleInvalid) -> None:
        """Have no more runs of a schedule whose time zone is gone, before that is back."""
        progress = schedule.progress
        self._note_refusal(schedule, progress.planned_ms, refusal)
        progress.planned_ms, progress.tzdata = NEVER, self.tzdata
        self._log(f"the schedule {schedule.name!r} has no more runs: {refusal}")

    def _note_refusal(self, schedule: Schedule, nominal_ms: int, refusal: Refusal) -> None:
        """Note that a run was refused: it is the last one now."""
        progress = schedule.progress
        progress.refused += 1
        progress.outcome, progress.error = REFUSED, str(refusal)
        progress.refused_ms = nominal_ms
        self._outcome(schedule.name, "")

    def plan_next(
        self, schedule: Schedule, after_ms: int, recurrence: Recurrence | None = None
    ) -> None:
        """Plan the run after that time, unless there were as many as there may be.

        Raises `ScheduleInvalid` if its time zone is gone. A `recurrence` is that of the schedule.
        """
        definition, progress = schedule.definition, schedule.progress
        if schedule.has_had_all():
            progress.planned_ms = NEVER
        else:
            progress.plan(recurrence or schedule.recurrence(), after_ms)
        is_zoned = definition.cron is not None and definition.timezone != "UTC"
        progress.tzdata = self.tzdata if is_zoned else ""

    def _make(self, schedule: Schedule, nominal_ms: int, now_ms: RequestMs) -> None:
        """Make a run that is due, unless it overlaps, or there were as many as there may be."""
        definition, progress = schedule.definition, schedule.progress
        if schedule.has_had_all():
            return
        self._give_up_queued(schedule)
        if definition.overlap is not Overlap.ALLOW and self.is_under_way(schedule):
            if definition.overlap is Overlap.QUEUE_ONE and not progress.queued_ms:
                progress.queued_ms = nominal_ms
            else:
                progress.skipped += 1
            return
        self._put(schedule, nominal_ms, now_ms)

    def _put(self, schedule: Schedule, nominal_ms: int, now_ms: RequestMs) -> None:
        """Put the job of a run; note if it was refused. Raises `OutOfSpace`, `Draining`."""
        try:
            job_id, _ = self.put_job(schedule, nominal_ms, now_ms)
        except (OutOfSpace, Draining):
            raise
        except Refusal as refusal:
            self._note_refusal(schedule, nominal_ms, refusal)
            self._log(f"a run of the schedule {schedule.name!r} was refused: {refusal}")
        else:
            self.note_run(schedule, job_id, nominal_ms)

    def note_run(self, schedule: Schedule, job_id: int, nominal_ms: int) -> None:
        """Note that the job of a run was put: it is the last one now."""
        progress = schedule.progress
        progress.runs += 1
        progress.late += self.wall_ms - nominal_ms - schedule.put_off_ms > SCHEDULE_LATE_MS
        self.forget(schedule)
        progress.run_id, progress.run_ms = job_id, nominal_ms
        progress.outcome = progress.error = ""
        progress.refused_ms = 0
        self._outcome(schedule.name, "")
        self._watch(schedule)
        if schedule.has_had_all():
            progress.planned_ms = NEVER
            self._give_up_queued(schedule)

    def put_job(
        self, schedule: Schedule, nominal_ms: int, now_ms: RequestMs
    ) -> tuple[int, Outcome]:
        """Put the job of a run, unless it is there; return its id. Raises what a put raises."""
        engine, definition = self.engine, schedule.definition
        topic = engine.store.topic(definition.topic)
        ttr_ms = default_ttr_ms(topic) if definition.ttr_ms is None else definition.ttr_ms
        try:
            own, target = definition.own, definition.target
            if target is not None:
                own = (own or Own())._replace(target=vetted_own(engine, target, topic.name))
            return put_keyed(
                engine,
                topic,
                run_key(schedule.name, nominal_ms),
                Conflict.KEEP,
                priority=definition.priority,
                ttr_ms=ttr_ms,
                body=schedule.body,
                now_ms=now_ms,
                own=own,
                at_once=True,
            )
        finally:
            engine.store.drop_if_unwanted(topic)

    def is_under_way(self, schedule: Schedule) -> bool:
        """Tell whether the job of the last run is neither done nor dead.

        Moved to another topic, because its attempts were exhausted, it has lost its key.
        """
        engine, progress = self.engine, schedule.progress
        try:
            record, state = caught_up(engine, progress.run_id, RequestMs(engine.store.time_ms))
        except JobNotFound:
            return False
        key = run_key(schedule.name, progress.run_ms)
        return state is not State.BURIED and key_of(record) == key

    # --- Ends of runs ----------------------------------------------------------------------------

    def _watch(self, schedule: Schedule) -> None:
        """Have the end of the last run told."""
        job_id = schedule.progress.run_id
        if self.engine.store.jobs.get(job_id) is not None:
            self.engine.store.ends.wanted.add(job_id)
            self._runs[job_id] = schedule.name

    def forget(self, schedule: Schedule) -> None:
        """Have the end of the last run told no more."""
        self._runs.pop(schedule.progress.run_id, None)
        self.engine.store.ends.wanted.discard(schedule.progress.run_id)

    def _note_end(self, job_id: int, end: JobEnd) -> None:
        name = self._runs.get(job_id)
        if name is not None:
            if end is not JobEnd.DEAD:
                del self._runs[job_id]
            self._ended.append((name, job_id, end))
            self.wake()

    def _outcome(self, name: str, outcome: str) -> None:
        if (entry := self.book.index.get(name)) is not None:
            entry.outcome = outcome

    def _hear_ends(self, now_ms: RequestMs) -> None:
        """Look at the runs that have ended; put those that have waited for it. `OutOfSpace`."""
        while self._ended:
            name, job_id, end = self._ended[0]
            if name in self.book.index:
                schedule = self.book.load(name)
                if schedule.progress.run_id == job_id:
                    if end is not None:
                        self._outcome(name, end.value)
                    self.put_queued(schedule, now_ms)
            self._ended.popleft()

    def put_queued(self, schedule: Schedule, now_ms: RequestMs) -> None:
        """Put the run that has waited for the end of the one before, if it still may be put.

        While the schedule is paused it goes on waiting. Raises `OutOfSpace`.
        """
        progress = schedule.progress
        if not progress.queued_ms or progress.is_paused:
            return
        self._require_space(schedule)
        self._give_up_queued(schedule)
        nominal_ms, progress.queued_ms = progress.queued_ms, 0
        with self.engine.one_item():
            if nominal_ms:
                self._put(schedule, nominal_ms, now_ms)
            self.book.keep(schedule, now_ms)

    def _give_up_queued(self, schedule: Schedule) -> None:
        """Let the run that waits be skipped at the limit, and missed when its window is over."""
        progress, window_ms = schedule.progress, schedule.definition.window_ms
        if not progress.queued_ms:
            return
        late_ms = self.wall_ms - schedule.put_off_ms - progress.queued_ms
        if schedule.has_had_all():
            progress.queued_ms = 0
            progress.skipped += 1
        elif window_ms is not None and late_ms > window_ms:
            progress.queued_ms = 0
            progress.miss(1, self.wall_ms)

    # --- Planned anew ----------------------------------------------------------------------------

    def wall_stepped(self, step_ms: int) -> None:
        """Plan all schedules anew if the wall clock was set back: runs may come again before."""
        if step_ms <= -SCHEDULE_STEP_MS and self.book.index:
            self.plan_anew([*self.book.index])

    def plan_anew(self, names: Sequence[str]) -> None:
        """Plan these schedules anew, in slices."""
        self._tasks.add(BackgroundTask(PlanAnew(self, names), _done, to_the_end=True))

    def plan_one_anew(self, name: str, now_ms: RequestMs) -> None:
        """Plan a schedule by the clock and the time zones of now; `OutOfSpace`."""
        if name not in self.book.index:
            return
        schedule = self.book.load(name)
        progress = schedule.progress
        if progress.is_paused:
            return
        former = progress.planned_ms, progress.tzdata
        after_ms = min(progress.last_ms, self.wall_ms - schedule.put_off_ms)
        try:
            self.plan_next(schedule, after_ms)
        except ScheduleInvalid as refusal:
            self._end_for(schedule, refusal)
        if (progress.planned_ms, progress.tzdata) != former:
            self.book.keep(schedule, now_ms)
            self.wake()


def _done(_refusal: Refusal | None, _now_ms: RequestMs) -> None:
    """Tell nobody."""


@final
class PlanAnew:
    """Plans schedules anew, in slices."""

    def __init__(self, runner: Runner, names: Sequence[str]) -> None:
        self._runner = runner
        self._left = iter(names)

    def step(self, budget: int, now_ms: RequestMs) -> bool:
        """Plan some more; tell whether those were the last."""
        for _ in range(1 + budget // (4 * PASS_ACTION_COST)):
            name = next(self._left, None)
            if name is None:
                return True
            self._runner.plan_one_anew(name, now_ms)
        return False
