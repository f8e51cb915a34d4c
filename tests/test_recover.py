"""A start reads the journal: what it says of its progress."""

import io
import itertools
import re
from pathlib import Path
from typing import TextIO

import pytest

from delayd import recover as recover_module
from delayd.clock import NS_PER_S
from delayd.config import Config
from delayd.core.engine import Engine
from delayd.core.operations.put import put_alike
from delayd.core.times import RequestMs
from delayd.journal.disk import RealDisk
from delayd.journal.journal import Journal
from delayd.log_lines import Log
from delayd.recover import recover
from delayd.systemd import Notifier
from tests.rigs.clock import START_MS, FakeClock

JOBS = 200


def after_puts(home: str, jobs: int) -> None:
    """Leave the log of a daemon that was killed at START_MS after so many puts."""
    journal = Journal.open(home, disk=RealDisk(), segment_bytes=4 << 20)
    assert not list(journal.replay())
    engine = Engine(start_ms=START_MS)
    for _ in range(jobs):
        put_alike(engine, engine.store.topic("default"), 0, 0, 9, (b"x",), RequestMs(START_MS))
        journal.append(b"".join(engine.take_log()[0]), START_MS, START_MS)
    journal.sync()
    journal.close()
    with max(Path(home).glob("segment-*")).open("r+b") as segment:
        segment.truncate(4 << 20)  # as a daemon leaves it that is killed


def recovered(home: str, clock: FakeClock, said: TextIO) -> Engine:
    engine, journal = recover(
        Config(data_dir=home), clock, Log(said, clock.wall_ms), Notifier({}, 1)
    )
    assert journal is not None
    journal.close()
    return engine


def test_of_a_stop_as_much_delayd_time_passes_as_the_wall_clock_says(tmp_path: Path) -> None:
    home = str(tmp_path / "data")
    after_puts(home, 1)
    clock = FakeClock(START_MS + 5_000)
    clock.step_wall(-3_000)
    engine = recovered(home, clock, io.StringIO())
    assert engine.store.time_ms == clock.now_ms() == START_MS + 2_000


@pytest.mark.thorough
def test_the_progress_of_a_start_ends_near_the_end_though_files_are_preallocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(tmp_path / "data")
    after_puts(home, JOBS)
    said = io.StringIO()
    each_takes_a_second = itertools.count(0, NS_PER_S).__next__
    monkeypatch.setattr(recover_module, "monotonic_ns", each_takes_a_second)
    engine = recovered(home, FakeClock(START_MS), said)
    assert engine.log_space.jobs == len(engine.store.jobs) == JOBS
    percents = [int(percent) for percent in re.findall("percent=([0-9]+)", said.getvalue())]
    assert percents == sorted(percents)
    assert len(percents) > JOBS // 2
    assert percents[-1] == 99
    assert percents[len(percents) // 2] in range(45, 56)
