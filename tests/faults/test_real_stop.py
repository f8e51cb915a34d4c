"""T-D1: daemons that are told to stop, and those that systemd kills because they are stuck."""

import random
import signal
import time
from pathlib import Path

import pytest

from delayd.exits import Exit
from tests.faults.conftest import Runs
from tests.faults.real_daemon import WATCHDOG_S, notifying, said, systemd, wait_for_exit
from tests.faults.real_load import Record, life, load, look_at_all, look_at_the_rest


def stop_under_load(directory: Path, record: Record, rng: random.Random, policy: str) -> None:
    """Start, work, and send SIGTERM: it ends, within the minute of `wait_for_exit`."""
    with life(directory, record, "--sync", policy, how="stop") as daemon:
        look_at_all(daemon, record, "after the stop before")
        with load(daemon.address, record, str(rng.random())):
            time.sleep(rng.uniform(0.02, 0.3))
            daemon.process.send_signal(rng.choice((signal.SIGTERM, signal.SIGINT)))
            code = wait_for_exit(daemon)
        assert code == Exit.OK, daemon.log()


@pytest.mark.parametrize(
    "policy",
    [
        "always",
        pytest.param("never", marks=pytest.mark.long),
        pytest.param("interval", marks=pytest.mark.long),
    ],
)
def test_d1_stopped_under_load(quick_path: Path, runs: Runs, policy: str) -> None:
    """T-D1: SIGTERM under load: all that was acknowledged is there; the stop ends in time."""
    for rng in runs.rng(f"T-D1 {policy}", 1, 10):
        record = Record()
        directory = quick_path / str(rng.random())
        for _ in range(2):
            stop_under_load(directory, record, rng, policy)
            runs.count(f"T-D1 {policy}", 1, "stops")
        look_at_the_rest(directory, record)


def test_d1_systemd_kills_a_daemon_that_hangs(quick_path: Path, runs: Runs) -> None:
    """T-D1: it says that it is alive as long as it is; killed when it is not, it loses nothing."""
    record = Record()
    directory = quick_path / "data"
    with systemd(quick_path) as listener:
        watched = notifying(quick_path)
        with life(directory, record, environment=watched) as daemon:
            said(listener, "READY=1")
            with load(daemon.address, record, "hangs", workers=1):
                for _ in range(3):
                    said(listener, "WATCHDOG=1")
                daemon.process.send_signal(signal.SIGSTOP)
                listener.settimeout(WATCHDOG_S)
                with pytest.raises(TimeoutError):
                    said(listener, "READY=1")  # passes over what was said before
                daemon.process.send_signal(signal.SIGABRT)
                daemon.process.send_signal(signal.SIGCONT)
                assert wait_for_exit(daemon) == -signal.SIGABRT
    look_at_the_rest(directory, record)
    runs.count("T-D1 watchdog", 1, "kills")
