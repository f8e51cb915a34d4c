"""T-C: real daemons while clocks jump, while they stand still, and across restarts."""

import os
import select
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from delayd.clock import open_set_watch
from delayd.limits import WATCHDOG_MS
from delayd.testing.daemon import Daemon
from tests.faults.conftest import Runs
from tests.faults.real_daemon import need, need_root, now_ms, started
from tests.faults.real_load import PatientClient, Record, life, load, look_at_all, look_at_the_rest
from tests.rigs.waiting import until

LIBRARIES: Final = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")
HOUR_S: Final = 3_600
JUMPS: Final = ("+3600", "-3600", "@1970-01-01 00:10:00", "@2106-02-07 06:28:20", "-1", "+1")
AT_ONCE_S_MAX: Final = 60.0
"""On a busy machine."""

LATE_MS_MAX: Final = 60_000


class WallClock:
    """A wall clock of the daemon's own, which the test sets."""

    def __init__(self, folder: Path) -> None:
        libraries = [path for each in LIBRARIES for path in Path("/").glob(each[1:])]
        if not libraries:
            pytest.skip("libfaketime is not installed: `make test` installs it where it can")
        self._file = folder / "faketime"
        self.set("+0")
        self.environment = {
            "LD_PRELOAD": str(libraries[0]),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, to: str) -> None:
        """An offset in seconds (`+3600`), or the moment that it shall be (`@1970-01-01 ...`)."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{to}\n")
        new.rename(self._file)


def have_a_frame_written(daemon: Daemon) -> None:
    """See that the log has the wall clock of now; nobody else gets the job.

    A wall clock that is set is noted in the log as soon as the kernel reports it. It does not know
    of this one, so that the next frame could be long in coming on a busy machine, and what the
    daemon is killed before cannot be told from a stop that took as long.
    """
    with PatientClient(daemon.address) as client:
        reply = client.ask("put-in-tube clock 0 3600 60 0\r\n").split()
        assert reply[0] == "INSERTED"
        assert client.ask(f"delete {reply[1]}") == "DELETED"


def test_c1_the_wall_clock_jumps(quick_path: Path, runs: Runs) -> None:
    """T-C1: ±1 h, to 1970, to 2106, a leap second: nothing is early, late, lost or doubled.

    Delays and ttrs are on delayd time. It goes on through a kill and a start on the wall clock that
    the last frame was written by: see `have_a_frame_written`.
    """
    for rng in runs.rng("T-C1", 1, 20):
        home = quick_path / str(rng.random())
        wall = WallClock(quick_path)
        record = Record(late_ms_max=LATE_MS_MAX)
        jumps = [*JUMPS]
        rng.shuffle(jumps)
        with (
            life(home, record, environment=wall.environment) as daemon,
            load(daemon.address, record, str(rng.random()), workers=1),
        ):
            for to in jumps:
                wall.set(to)
                time.sleep(rng.uniform(0.05, 0.3))
            assert daemon.process.poll() is None, daemon.log()
            have_a_frame_written(daemon)
            daemon.kill()
        look_at_the_rest(home, record, environment=wall.environment)
        runs.count("T-C1", len(jumps), "jumps")


@pytest.mark.long
def test_c1_the_kernel_tells_of_a_wall_clock_that_was_set(runs: Runs) -> None:
    """T-C1: each time. It is set to what it says already, which harms nobody else here."""
    need_root()
    watch = open_set_watch()
    assert watch is not None
    try:
        for _ in range(runs.times(1, 20)):
            assert not select.select([watch.fileno()], [], [], 0)[0]
            time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))
            assert select.select([watch.fileno()], [], [], 30)[0]
            watch.arm()
            runs.count("T-C1", 1, "sets heard of")
    finally:
        watch.close()


@pytest.mark.long
@pytest.mark.parametrize("to", ["+3600", "-3600"])
def test_c1_a_wall_clock_that_was_set_before_a_kill_is_no_longer_stop(
    quick_path: Path, runs: Runs, to: str
) -> None:
    """T-C1: though no client had anything written since. The kernel tells, as above."""
    need_root()
    for rng in runs.rng(f"T-C1 {to}", 1, 5):
        home = quick_path / str(rng.random())
        wall = WallClock(quick_path)
        with started(home, environment=wall.environment) as daemon:
            with PatientClient(daemon.address) as client:
                assert client.ask("put 0 7200 60 0\r\n") == "INSERTED 1"
                put_s = time.monotonic()
                written = records_written(client)
                wall.set(to)
                time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME))
                noted = partial(has_written_more, client, written)
                until(noted, within_s=WATCHDOG_MS / 2_000)  # after a minute it looks unasked
                time.sleep(rng.uniform(1.0, 3.0))
            daemon.kill()
        with started(home, environment=wall.environment) as daemon:
            with PatientClient(daemon.address) as client:
                left_s = int(client.stats("stats-job 1")["time-left"])
                passed_s = time.monotonic() - put_s
                assert abs(left_s - (2 * HOUR_S - passed_s)) <= 2
            daemon.kill()


def records_written(client: PatientClient) -> int:
    return int(client.stats()["binlog-records-written"])


def has_written_more(client: PatientClient, records: int) -> bool:
    return records_written(client) > records


def test_c2_the_process_is_stopped_and_goes_on(quick_path: Path, runs: Runs) -> None:
    """T-C2: what comes due meanwhile comes at once, ttrs are over, and everything goes on."""
    for rng in runs.rng("T-C2 stopped", 1, 3):
        stop_s = 60 if runs.is_long else 3
        record = Record(late_ms_max=stop_s * 1_000 + LATE_MS_MAX)
        home = quick_path / str(rng.random())
        with life(home, record) as daemon, PatientClient(daemon.address) as client:
            assert client.put(b"held", ttr=2, priority=2) == 1
            assert client.ask("reserve") == "RESERVED 1 4\r\nheld"
            assert client.put(b"to come", delay=1, priority=1) == 2
            os.kill(daemon.pid, signal.SIGSTOP)
            time.sleep(stop_s)
            os.kill(daemon.pid, signal.SIGCONT)
            begun_s = time.monotonic()
            assert client.ask("touch 1") == "NOT_FOUND"
            # The one with the short ttr comes last: another stop must not bring it back between.
            assert client.ask("reserve-with-timeout 0") == "RESERVED 2 7\r\nto come"
            assert client.ask("reserve-with-timeout 0") == "RESERVED 1 4\r\nheld"
            assert client.ask("delete 1") == client.ask("delete 2") == "DELETED"
            assert time.monotonic() - begun_s < AT_ONCE_S_MAX
            record.last_id = 2
            with load(daemon.address, record, str(rng.random()), workers=2):
                time.sleep(0.2)
                os.kill(daemon.pid, signal.SIGSTOP)
                time.sleep(stop_s / 3)
                os.kill(daemon.pid, signal.SIGCONT)
                time.sleep(0.2)
                daemon.kill()
        look_at_the_rest(home, record)


def test_c2_the_machine_was_started_anew(quick_path: Path, runs: Runs) -> None:
    """T-C2: the boot clock is another after a restart, forward or back: only what passed counts."""
    need_root()
    for rng in runs.rng("T-C2 boot clock", 1, 15):
        record = Record(late_ms_max=LATE_MS_MAX)
        home = quick_path / str(rng.random())
        for offset_s in (0, rng.randrange(1, 10**6), -rng.randrange(1, int(now_ms()) // 1_000)):
            before = (need("unshare"), "--time", f"--boottime={offset_s}")
            with life(home, record, before=before) as daemon:
                look_at_all(daemon, record, f"with a boot clock that is {offset_s} s ahead")
                with load(daemon.address, record, str(rng.random()), workers=2):
                    time.sleep(rng.uniform(0.1, 0.3))
                    daemon.kill()
            runs.count("T-C2 boot clock", 1, "starts")
        look_at_the_rest(home, record)


@pytest.mark.parametrize(
    "to", ["-3600", "+3600", pytest.param("@1970-01-01 00:10:00", marks=pytest.mark.long)]
)
def test_c3_the_wall_clock_was_set_while_nobody_ran(quick_path: Path, runs: Runs, to: str) -> None:
    """T-C3: set back, delayd time goes on where it stopped; set forward, the hour has passed.

    Time in the journal never decreases.
    """
    for rng in runs.rng(f"T-C3 {to}", 1, 5):
        home = quick_path / str(rng.random())
        wall = WallClock(quick_path)
        with started(home, environment=wall.environment) as daemon:
            with PatientClient(daemon.address) as client:
                put_s = time.monotonic()
                client.send(b"put 0 1.5 60 4\r\nsoon\r\nput 0 3700 60 5\r\nlater\r\n")
                assert client.reply() + client.reply() == b"INSERTED 1\r\nINSERTED 2\r\n"
                time.sleep(rng.uniform(0.0, 1.0))
            daemon.kill()
        wall.set(to)
        with started(home, environment=wall.environment) as daemon:
            with PatientClient(daemon.address) as client:
                assert client.ask("reserve-with-timeout 30") == "RESERVED 1 4\r\nsoon"
                took_s = time.monotonic() - put_s
                if not to.startswith("+"):
                    assert took_s >= 1.5
                left_s = int(client.stats("stats-job 2")["time-left"])
                expected_s = 3_700 - (HOUR_S if to.startswith("+") else 0)
                assert expected_s - 300 <= left_s <= expected_s
            daemon.kill()
        times = [line.split()[1] for line in dumped(home)]
        assert len(times) > 2
        assert times == sorted(times)


def test_c3_after_a_wall_clock_was_set_back_only_that_stop_is_missing(quick_path: Path) -> None:
    """T-C3: the start notes it; else the time until the next frame would be missing as well."""
    wall = WallClock(quick_path)
    with started(quick_path / "data", environment=wall.environment) as daemon:
        with PatientClient(daemon.address) as client:
            assert client.ask("put 0 3600 60 0\r\n") == "INSERTED 1"
        daemon.kill()
    wall.set("-3600")
    with started(quick_path / "data", environment=wall.environment) as daemon:
        time.sleep(2.5)
        daemon.kill()
    with started(quick_path / "data", environment=wall.environment) as daemon:
        with PatientClient(daemon.address) as client:
            assert int(client.stats("stats-job 1")["time-left"]) <= HOUR_S - 2
        daemon.kill()


def dumped(home: Path) -> list[str]:
    command = [sys.executable, "-m", "delayd", "journal", "dump", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
