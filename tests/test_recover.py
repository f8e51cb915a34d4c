"""A start reads the journal: what it says of its progress."""

import io
import re
from pathlib import Path

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

JOBS = 400


class SlowWatch:
    """A clock by which each frame takes a second to read."""

    def __init__(self) -> None:
        self._now_ns = 0

    def __call__(self) -> int:
        self._now_ns += NS_PER_S
        return self._now_ns


def test_the_progress_of_a_start_ends_near_the_end_though_files_are_preallocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(tmp_path / "data")
    journal = Journal.open(home, disk=RealDisk(), segment_bytes=4 << 20)
    assert not list(journal.replay())
    engine = Engine(start_ms=START_MS)
    for _ in range(JOBS):
        put_alike(engine, engine.store.topic("default"), 0, 0, 9, (b"x",), RequestMs(START_MS))
        journal.append(b"".join(engine.take_log()[0]), START_MS, START_MS)
    journal.sync()
    journal.close()
    with max(Path(home).glob("segment-*")).open("r+b") as segment:
        segment.truncate(4 << 20)  # as a daemon leaves it that is killed
    said = io.StringIO()
    monkeypatch.setattr(recover_module, "monotonic_ns", SlowWatch())
    clock = FakeClock(START_MS)
    log = Log(said, clock.wall_ms)
    recovered, again = recover(Config(data_dir=home), clock, log, Notifier({}, 1))
    assert again is not None
    again.close()
    assert recovered.log_space.jobs == len(recovered.store.jobs) == JOBS
    percents = [int(percent) for percent in re.findall("percent=([0-9]+)", said.getvalue())]
    assert percents == sorted(percents)
    assert len(percents) > JOBS // 2
    assert percents[-1] == 99
    assert percents[len(percents) // 2] in range(45, 56)
