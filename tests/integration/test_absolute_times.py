"""A real daemon whose wall clock is set while jobs with absolute times wait.

No protocol offers absolute times yet, so the jobs are put into its journal before it starts.
"""

import re
import time
from pathlib import Path

from delayd.core.engine import Engine
from delayd.journal.disk import RealDisk
from delayd.journal.journal import Journal
from tests.faults.real_daemon import started
from tests.faults.real_load import PatientClient
from tests.faults.test_real_clock import WallClock
from tests.rigs.engine import put

HOUR_MS = 3_600_000


def journal_with(home: Path, *due_wall_ms: int) -> None:
    """A journal as a daemon leaves it that has accepted these jobs a moment ago."""
    now_ms = time.time_ns() // 1_000_000
    engine = Engine(start_ms=now_ms)
    topic = engine.store.topic("default")
    for wall_ms in due_wall_ms:
        body = str(wall_ms).encode()
        put(engine, topic, priority=0, due_wall_ms=wall_ms, ttr_ms=60_000, body=body, now_ms=now_ms)
    journal = Journal.open(str(home), disk=RealDisk(), segment_bytes=1 << 20)
    assert not list(journal.replay())
    journal.append(b"".join(engine.take_log()[0]), now_ms, now_ms)
    journal.sync()
    journal.close()


def test_a_job_follows_the_wall_clock_of_the_daemon(tmp_path: Path) -> None:
    wall = WallClock(tmp_path)
    now_ms = time.time_ns() // 1_000_000
    home = tmp_path / "data"
    journal_with(home, now_ms + 1_500, now_ms + HOUR_MS, now_ms + 3 * HOUR_MS)
    with started(home, environment=wall.environment) as daemon:
        with PatientClient(daemon.address) as client:
            assert client.ask("reserve-with-timeout 60").startswith("RESERVED 1 ")
            assert time.time_ns() // 1_000_000 >= now_ms + 1_500
            wall.set("+3600")
            assert client.ask("reserve-with-timeout 60").startswith("RESERVED 2 ")
            left_s = int(client.stats("stats-job 3")["time-left"])
            assert 2 * 3_600 - 300 <= left_s <= 2 * 3_600
            wall.set("-3600")
            client.ask("reserve-with-timeout 0")
            left_s = int(client.stats("stats-job 3")["time-left"])
            assert 4 * 3_600 - 300 <= left_s <= 4 * 3_600
        # Milliseconds may go by between its first readings of two clocks, which it puts right too.
        told = re.findall(r"the wall clock was set.* by_ms=(-?\d+)", daemon.log())
        steps = [round(int(step_ms) / HOUR_MS) for step_ms in told]
        assert [step for step in steps if step] == [1, -2]
        daemon.kill()
    wall.set("+7200")
    with started(home, environment=wall.environment) as daemon:
        with PatientClient(daemon.address) as client:
            left_s = int(client.stats("stats-job 3")["time-left"])
            assert 3_600 - 300 <= left_s <= 3_600
        daemon.kill()
