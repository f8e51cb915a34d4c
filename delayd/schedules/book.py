r"""The book of schedules: each is a job of the internal topic `$schedules`.

    key     the schedule's name
    due     its next run, by the wall clock; the calendar's end when there is none
    body    a line of JSON, the definition and the progress, and then the body of its runs

So schedules are kept, copied, followed by a standby, listed and counted as all jobs are, follow the
wall clock as all jobs with moments do, and stand on the wheel. Nobody but this package changes them
(`core.operations.checks`). The book also has an index by name, in memory.

>>> kept = pack(Definition(topic="mail", every_ms=1_000), RunProgress(created_ms=5), b"hi")
>>> kept
b'{"definition":{"topic":"mail","every_ms":1000},"progress":{"created_ms":5}}\nhi'
>>> unpack(kept)[2]
b'hi'
"""

from typing import Final, NamedTuple, final

import msgspec
from sortedcontainers import SortedDict

from delayd.core.engine import Engine
from delayd.core.errors import ScheduleNotFound
from delayd.core.job_parts import Own, body_of, key_of, pack_parts, with_parts
from delayd.core.job_record import State
from delayd.core.names import SCHEDULES_TOPIC
from delayd.core.operations.ack import delete
from delayd.core.operations.change import rewrite, when
from delayd.core.operations.checks import as_daemon
from delayd.core.operations.put import put_keyed
from delayd.core.operations.tick import caught_up
from delayd.core.scans.scan import ROW_ID_END, Scan, Wanted
from delayd.core.session import Session
from delayd.core.times import RequestMs
from delayd.core.transitions import amended
from delayd.limits import PRIORITY_DEFAULT, TASK_STEP_JOBS, TTR_MS_DEFAULT, WALL_MS_MAX
from delayd.schedules.definition import Definition
from delayd.schedules.progress import NEVER, RunProgress, ScheduleState
from delayd.schedules.recurrence import Recurrence, jitter_ms


class _Head(msgspec.Struct):
    """The first line of a schedule's job."""

    definition: Definition
    progress: RunProgress


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(_Head).decode


def pack(definition: Definition, progress: RunProgress, body: bytes) -> bytes:
    """Return the body of a schedule's job."""
    return _encode(_Head(definition, progress)) + b"\n" + body


def unpack(kept: bytes) -> tuple[Definition, RunProgress, bytes]:
    """Return what the body of a schedule's job says; `ValueError` if it is none."""
    line, _, body = kept.partition(b"\n")
    head = _decode(line)
    return head.definition, head.progress, body


class Totals(NamedTuple):
    """Sums over schedules."""

    schedules: int = 0
    paused: int = 0
    over: int = 0
    runs: int = 0
    """These, and what follows, since the daemon's start, with schedules that were removed."""
    missed: int = 0
    skipped: int = 0
    refused: int = 0
    late: int = 0

    @staticmethod
    def of(progress: RunProgress) -> "Totals":
        """Return what one schedule adds to them."""
        state = progress.state
        return Totals(
            *(1, state is ScheduleState.PAUSED, state is ScheduleState.OVER),
            *(progress.runs, progress.missed, progress.skipped, progress.refused, progress.late),
        )

    @property
    def by_state(self) -> dict[str, int]:
        """Return how many schedules are in which state."""
        active = self.schedules - self.paused - self.over
        return {"active": active, "paused": self.paused, "over": self.over}

    @property
    def by_event(self) -> dict[str, int]:
        """Return what runs count as: those that are late were put, or skipped."""
        return dict(zip(("put", "missed", "skipped", "refused", "late"), self[3:], strict=True))

    @property
    def states(self) -> "Totals":
        """Return the part that is of now."""
        return Totals(self.schedules, self.paused, self.over)

    def changed(self, former: "Totals", new: "Totals") -> "Totals":
        """Return the sums after a schedule has changed.

        >>> Totals(2, runs=9).changed(Totals(1, runs=4), Totals(1, 1, runs=5))
        Totals(schedules=2, paused=1, over=0, runs=10, missed=0, skipped=0, refused=0, late=0)
        """
        return Totals(*(a - b + c for a, b, c in zip(self, former, new, strict=True)))


@final
class Schedule(msgspec.Struct, eq=False):
    """One schedule, as read from the book: changes are kept by `Book.keep`."""

    name: str
    definition: Definition
    progress: RunProgress
    body: bytes
    job_id: int = 0
    """The job that keeps it; 0: it is not in the book yet."""
    counted: Totals = Totals()
    """What the totals of the book have of it."""

    def __post_init__(self) -> None:
        if self.job_id:
            self.counted = Totals.of(self.progress)

    @property
    def put_off_ms(self) -> int:
        """By how much its runs come after their nominal times."""
        return jitter_ms(self.name, self.definition.jitter_ms)

    def has_had_all(self) -> bool:
        """Tell whether there were as many runs as there may be."""
        limit = self.definition.limit
        return limit is not None and self.progress.runs >= limit

    def recurrence(self) -> Recurrence:
        """Return when its runs are due; `ScheduleInvalid` if its time zone is gone."""
        return self.definition.recurrence(self.progress.created_ms)


@final
class IndexEntry(msgspec.Struct, eq=False):
    """What the index knows of a schedule."""

    job_id: int
    topic: str
    outcome: str = ""
    """How its last run has ended since, which is not written down before the next one."""


@final
class Book:
    """All schedules of one daemon."""

    def __init__(self, engine: Engine) -> None:
        """Start without any; `read` makes the index."""
        self._engine = engine
        self._session = Session()
        self.index: SortedDict[str, IndexEntry] = SortedDict()
        self.totals = Totals()

    def read(self) -> list[Schedule]:
        """Make the index, 10 us for each; return all schedules. What is none is left as it is."""
        engine = self._engine
        topic = engine.store.topics.by_name.get(SCHEDULES_TOPIC)
        if topic is None:
            return []
        found: list[Schedule] = []
        scan = Scan(engine, topic, Wanted(frozenset({State.DELAYED, State.READY})))
        while (rows := scan.take(TASK_STEP_JOBS, RequestMs(engine.store.time_ms))) is not None:
            for job_id in (row % ROW_ID_END for row in rows):
                try:
                    schedule = self.schedule_of(job_id)
                except ValueError:
                    continue
                if schedule.name in self.index:  # a scan may find a job twice
                    continue
                self.index[schedule.name] = IndexEntry(job_id, schedule.definition.topic)
                self.totals = self.totals.changed(Totals(), schedule.counted.states)
                found.append(schedule)
        return found

    def load(self, name: str) -> Schedule:
        """Return the schedule of that name; `ScheduleNotFound`."""
        entry = self.index.get(name)
        if entry is None:
            raise ScheduleNotFound(name)
        return self.schedule_of(entry.job_id)

    def schedule_of(self, job_id: int) -> Schedule:
        """Return the schedule that a job keeps; `ValueError` if it keeps none."""
        record = self._engine.store.jobs.get(job_id)
        assert record is not None
        definition, progress, body = unpack(body_of(record))
        return Schedule(key_of(record).decode(), definition, progress, body, job_id)

    def keep(self, schedule: Schedule, now_ms: RequestMs) -> None:
        """Write a schedule down, to come due with its planned run; `OutOfSpace`, `CapReached`.

        The caller has looked at the wall clock.
        """
        engine, progress = self._engine, schedule.progress
        due_wall_ms = WALL_MS_MAX
        if progress.planned_ms != NEVER and not progress.is_paused:
            due_wall_ms = min(WALL_MS_MAX, progress.planned_ms + schedule.put_off_ms)
        body = pack(schedule.definition, progress, schedule.body)
        with as_daemon(engine):
            if schedule.job_id:
                record, _ = caught_up(engine, schedule.job_id, now_ms)
                new = when(engine, 0, due_wall_ms, now_ms)
                rewrite(
                    engine,
                    amended(
                        with_parts(record, pack_parts(Own()), body),
                        *(new.due_ms, new.delay_ms, due_wall_ms, TTR_MS_DEFAULT),
                        *(PRIORITY_DEFAULT, int(new.state)),
                    ),
                    now_ms,
                )
            else:
                topic = engine.store.topic(SCHEDULES_TOPIC)
                try:
                    schedule.job_id, _ = put_keyed(
                        engine,
                        topic,
                        schedule.name.encode(),
                        priority=PRIORITY_DEFAULT,
                        due_wall_ms=due_wall_ms,
                        ttr_ms=TTR_MS_DEFAULT,
                        body=body,
                        now_ms=now_ms,
                    )
                finally:
                    engine.store.drop_if_unwanted(topic)
        counted = Totals.of(progress)
        self.totals = self.totals.changed(schedule.counted, counted)
        schedule.counted = counted
        entry = self.index.get(schedule.name)
        if entry is None:
            self.index[schedule.name] = IndexEntry(schedule.job_id, schedule.definition.topic)
        else:
            entry.topic = schedule.definition.topic

    def drop(self, name: str, now_ms: RequestMs) -> None:
        """Remove a schedule; `ScheduleNotFound`."""
        schedule = self.load(name)
        with as_daemon(self._engine):
            delete(self._engine, self._session, schedule.job_id, now_ms)
        del self.index[name]
        self.totals = self.totals.changed(schedule.counted.states, Totals())
