"""Schedules beside a slow reading of their rules, and with a crash at every record.

The model goes through all nominal times one by one. The daemon is stopped for a while now and then,
runs are done or not; what was put, missed, skipped and is waiting must be the same after each step.
"""

import random
from dataclasses import dataclass, field

import pytest

from delayd.core.dump import Dump
from delayd.core.log_records import Kind
from tests.schedules.rig import DAY, HOUR, MINUTE, START, ScheduleRig

GRACE = MINUTE
EVERY = 10 * MINUTE


@dataclass
class Model:
    """One schedule, by the letter of docs/schedules.md."""

    missed_rule: str
    overlap: str
    window: int | None
    looked_at: int = START
    """Every run up to then was put, skipped, missed or is waiting."""
    put: list[int] = field(default_factory=list)
    under_way: int = 0
    """The last run, while it is neither done nor dead."""
    waiting: int = 0
    missed: int = 0
    skipped: int = 0

    def look(self, wall: int) -> None:
        """Go through everything that is due by now."""
        due = [*range(self.looked_at + EVERY, wall + 1, EVERY)]
        if not due:
            return
        self.looked_at = due[-1]
        window = self.window
        if self.missed_rule == "none":
            window = GRACE if window is None else min(GRACE, window)
        runs = due[-100:] if self.missed_rule == "all" else due[-1:]
        runs = [nominal for nominal in runs if window is None or wall - nominal <= window]
        self.missed += len(due) - len(runs)
        for nominal in runs:
            self.run(nominal, wall)

    def run(self, nominal: int, wall: int) -> None:
        self.look_at_waiting(wall)
        if self.overlap == "allow" or not self.under_way:
            self.put.append(nominal)
            self.under_way = nominal
        elif self.overlap == "queue_one" and not self.waiting:
            self.waiting = nominal
        else:
            self.skipped += 1

    def look_at_waiting(self, wall: int) -> None:
        if self.waiting and self.window is not None and wall - self.waiting > self.window:
            self.waiting = 0
            self.missed += 1

    def end(self, nominal: int, wall: int) -> None:
        if nominal == self.under_way:
            self.under_way = 0
            self.look_at_waiting(wall)
            if self.waiting:
                nominal, self.waiting = self.waiting, 0
                self.run(nominal, wall)


@pytest.mark.walk(12, 10_000)
def test_runs_beside_the_model(number: int) -> None:
    rng = random.Random(number)
    rig = ScheduleRig()
    missed = rng.choice(["latest", "none", "all"])
    model = Model(
        missed_rule=missed,
        overlap=rng.choice(["allow", "skip", "queue_one"]),
        window=rng.choice([None, 30_000, GRACE if missed == "none" else 25 * MINUTE]),
    )
    window = None if model.window is None else model.window / 1_000
    rig.set(every="10m", missed=model.missed_rule, overlap=model.overlap, window=window)
    held: dict[int, int] = {}
    """Nominal time → its job, which the worker holds."""
    for _ in range(rng.randrange(5, 40)):
        wait_ms = rng.choice([1, 999, MINUTE, EVERY - 1, EVERY, 25 * MINUTE, 7 * HOUR])
        match rng.randrange(5):
            case 0 | 1:
                until = rig.time_ms + wait_ms
                while model.looked_at + EVERY <= until:
                    model.look(model.looked_at + EVERY)
                rig.pass_time(wait_ms)
            case 2:
                rig.restart(down_ms=rng.choice([0, wait_ms]))
                model.look(rig.time_ms)
                held.clear()  # it is under way until its ttr runs out
            case 3:
                held |= {rig.schedule_time(key): job_id for job_id, key in rig.take()}
            case _ if held:
                nominal = rng.choice([*held])
                rig.finish([(held.pop(nominal), "")])
                model.end(nominal, rig.time_ms)
        progress = rig.progress()
        seen = (progress.runs, progress.missed, progress.skipped, progress.queued_ms)
        assert seen == (len(model.put), model.missed, model.skipped, model.waiting)
    assert runs_in(rig) == model.put
    for _ in range(5):
        rig.set_wall_by(rng.choice([-DAY, -HOUR, -EVERY, EVERY, HOUR, DAY]))
        rig.pass_time(rng.choice([1, EVERY, 25 * MINUTE]))
        rig.work()
    runs = runs_in(rig)
    assert len(runs) == len({*runs}), "a run twice, after the wall clock was set"
    rig.agree_with_the_log()


def runs_in(rig: ScheduleRig) -> list[int]:
    """Return the nominal times of all runs whose job was ever put, by the log."""
    rig.take_log()
    dump = Dump()
    records = [record for payload in rig.log for record in dump.records(payload)]
    keys = [str(record.fields.get("key", "")) for record in records if record.kind is Kind.PUT]
    return [rig.schedule_time(key) for key in keys if "@" in key]


@pytest.mark.thorough
@pytest.mark.parametrize("missed", ["latest", "none", "all"])
@pytest.mark.parametrize("overlap", ["allow", "skip", "queue_one"])
def test_a_crash_at_any_record_loses_no_run_and_makes_none_twice(missed: str, overlap: str) -> None:
    def story(rig: ScheduleRig) -> None:
        """Set a schedule and do its runs, each a while after it is there, but for one."""
        rig.set(every="10m", missed=missed, overlap=overlap)
        rig.pass_time(EVERY + MINUTE)
        rig.work()
        rig.pass_time(2 * EVERY)
        rig.work()
        rig.pass_time(EVERY)

    whole = ScheduleRig()
    story(whole)
    whole.take_log()
    for records in range(1, len(whole.log) + 1):
        rig = ScheduleRig()
        story(rig)
        rig.restart(records=records)
        if "s" not in rig.schedules.book.index:
            rig.set(every="10m", missed=missed, overlap=overlap)
        for _ in range(6):
            rig.pass_time(EVERY)
            rig.work()
        rig.pass_time(HOUR)
        runs = runs_in(rig)
        assert len(runs) == len({*runs}), f"a run twice, after {records} records"
        progress = rig.progress()
        assert progress.runs == len(runs)
        due = (rig.time_ms - progress.created_ms) // EVERY
        handled = progress.runs + progress.missed + progress.skipped + bool(progress.queued_ms)
        assert handled == due, f"a run was lost, after {records} records"
        rig.agree_with_the_log()
