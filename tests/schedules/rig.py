"""An `EngineRig` with schedules: a worker that does runs at once or later, crashes, wall clocks."""

from collections.abc import Sequence

from delayd.core.background_tasks import BackgroundTasks
from delayd.core.errors import Refusal
from delayd.core.job_parts import key_of
from delayd.core.operations import ack
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.tick import advance, next_deadline
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.times import PlayedMs
from delayd.moments import moment_text, parse_moment_ms
from delayd.schedules.definition import Definition
from delayd.schedules.opening import ScheduleOpener
from delayd.schedules.progress import RunProgress
from delayd.schedules.schedules import Change, Schedules
from tests.rigs.engine import EngineRig

START: int = parse_moment_ms("2026-11-21T19:00:00Z")
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


class ScheduleRig(EngineRig):
    """Delayd time and the wall clock are the same, but for `wall_ahead_ms`."""

    def __init__(self, time_ms: int = START) -> None:
        super().__init__(time_ms=time_ms)
        self.wall_ahead_ms = 0
        self.lines: list[str] = []
        """What people are told."""
        self.done: list[str] = []
        """The keys of runs whose job was done, in the order of their ends."""
        self._open()

    def _open(self) -> None:
        self.tasks = BackgroundTasks(self.engine)
        self.opener = ScheduleOpener(self.engine, self.tasks, self._follow_wall, self.lines.append)
        self.worker = self.client("mail")

    def _follow_wall(self) -> None:
        follow_wall(self.engine, self.wall_ahead_ms)

    @property
    def schedules(self) -> Schedules:
        return self.opener()

    def set(self, name: str = "s", **fields: object) -> Change:
        """Set a schedule for the topic mail."""
        definition, body = Definition.from_fields(
            {"topic": "mail", "body": 1, "ttr": "900d", **fields}
        )
        return self.schedules.set(name, definition, body, self.now_ms)[1]

    def progress(self, name: str = "s") -> RunProgress:
        return self.schedules.load(name).progress

    def next(self, name: str = "s", count: int = 1) -> list[str]:
        schedule = self.schedules.load(name)
        return [*map(moment_text, self.schedules.next_runs(schedule, count))]

    # --- Time ------------------------------------------------------------------------------------

    def pass_time(self, by_ms: int) -> None:
        """Let time pass, with a wake-up at each deadline and for each background task."""
        until_ms = self.time_ms + by_ms
        while True:
            while self.tasks.has_more:
                self.tasks.step(self.now_ms)
            deadline_ms = next_deadline(self.engine)
            if deadline_ms is None or deadline_ms > until_ms:
                break
            advance(self.engine, PlayedMs(max(deadline_ms, self.time_ms)))
        self.engine.store.reach(PlayedMs(until_ms))

    def set_wall_by(self, by_ms: int) -> None:
        """Set the wall clock, as `Turns.look_at_wall_clock` would notice."""
        self.wall_ahead_ms += by_ms
        self._follow_wall()
        self.opener.wall_stepped(by_ms)
        self.pass_time(0)

    # --- Runs ------------------------------------------------------------------------------------

    def take(self) -> list[tuple[int, str]]:
        """Reserve all runs that are ready; return id and key of each."""
        jobs = reserve_batch(self.engine, self.worker, 1_000, 1 << 30, self.now_ms)
        return [(job_id, key_of(self.record(job_id)).decode()) for job_id, _ in jobs]

    def finish(self, jobs: Sequence[tuple[int, str]]) -> None:
        for job_id, key in jobs:
            ack.delete(self.engine, self.worker, job_id, self.now_ms)
            self.done.append(key)
        self.pass_time(0)

    def work(self) -> list[str]:
        """Do all runs that are ready; return their keys."""
        jobs = self.take()
        self.finish(jobs)
        return [key for _, key in jobs]

    def schedule_time(self, key: str) -> int:
        """Return the nominal time of a run."""
        return parse_moment_ms(key.partition("@")[2])

    # --- Crashes ---------------------------------------------------------------------------------

    def take_log(self) -> tuple[bytes, bool]:
        """Take what was recorded; the log has each record for itself, to crash between them."""
        pieces, must_sync = self.engine.take_log()
        self.log += pieces
        return b"".join(pieces), must_sync

    def restart(self, down_ms: int = 0, *, records: int | None = None) -> None:
        """Crash, and start again `down_ms` later, with so many of the log's records."""
        self.take_log()
        self.log = self.log[:records]
        self.engine = self.replayed(self.time_ms + down_ms)
        self._open()
        self._follow_wall()
        self.opener.begin(None, self.now_ms)
        self.pass_time(0)


def refusal_of(act: object) -> str:
    """Return the sentence of the refusal that a call raises; empty: it raises none."""
    assert callable(act)
    try:
        act()
    except Refusal as refusal:
        return str(refusal)
    return ""
