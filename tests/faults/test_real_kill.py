"""T-K: real daemons killed at any moment, and what is there afterwards."""

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from delayd.exits import Exit
from tests.faults.conftest import Runs
from tests.faults.real_daemon import Injection, Tracing, refused
from tests.faults.real_load import Record, life, load, look_at_all, look_at_the_rest
from tests.faults.real_workload import FILE_CALLS, Trials, recover_and_check, sampled, work
from tests.rigs.waiting import until

OFTEN = ("fallocate", "fsync", "io_submit", "pwrite64", "rename", "sendto")
"""The calls that are struck in the short run."""

LOOPS_PER_DIRECTORY = 8
"""Then a new one: looking at all that has gathered takes longer than the loop itself."""


@pytest.mark.parametrize(
    "policy", ["always", "never", pytest.param("interval", marks=pytest.mark.long)]
)
def test_k1_killed_at_any_time_under_load(quick_path: Path, runs: Runs, policy: str) -> None:
    """T-K1: kill -9 at random times under load; I1 to I8 hold whatever the sync policy is."""
    is_default = policy == "always"
    kills = (LOOPS_PER_DIRECTORY if is_default else 2) if runs.is_long else 2
    for rng in runs.rng(f"T-K1 {policy}", 1, 64 if is_default else 16):
        kill_and_look(quick_path / str(rng.random()), policy, rng, kills)
        runs.count(f"T-K1 {policy}", kills, "kills")


def kill_and_look(directory: Path, policy: str, rng: random.Random, kills: int) -> None:
    record = Record()
    for number in range(kills):
        with life(directory, record, "--sync", policy) as daemon:
            look_at_all(daemon, record, f"after kill {number}")
            with load(daemon.address, record, f"{number} {rng.random()}"):
                time.sleep(rng.uniform(0.0, 0.25))
                if number == kills - 1:
                    until(lambda: record.acknowledged > kills)
                daemon.kill()
    look_at_the_rest(directory, record)


# --- At every system call -----------------------------------------------------------------------


def test_k2_killed_at_each_system_call(quick_path: Path, runs: Runs) -> None:
    """T-K2: killed at the n-th write, sync, rename, ... of a fixed workload, for all n.

    The workload begins with a recovery and ends with a graceful stop.
    """
    trials = Trials(quick_path)
    found = trials.sites((*FILE_CALLS, "sendto"))
    assert {"fallocate", "fsync", "ftruncate", "openat", "pwrite64", "sendto"} <= found.keys()
    tried = Counter[str]()
    for name, number in sampled(found, runs, OFTEN):
        with trials.trial() as (directory, record):
            kill = Injection(name, "signal=KILL", str(number))
            ended, _ = work(directory, record, "second", Tracing(trials.trace, name, [kill]))
            recover_and_check(directory, record, f"killed at {name} {number}")
        tried[name] += ended == -signal.SIGKILL
        runs.count(f"T-K2 {name}", ended == -signal.SIGKILL, "kills")
    # Threads may share the work differently from run to run: some numbers are not reached.
    share = 0.8 if runs.is_long else 0.5
    assert tried.total() >= share * len(list(sampled(found, runs, OFTEN))), tried


# --- Where it hurts -----------------------------------------------------------------------------


def test_k4_started_twice_on_one_directory(quick_path: Path, runs: Runs) -> None:
    """T-K4: the second exits with 75 and changes nothing; the first does not notice."""
    record = Record()
    with life(quick_path, record) as daemon:
        with load(daemon.address, record, "twice", workers=1):
            for _ in range(runs.times(2, 10)):
                assert str(daemon.pid) in refused(quick_path, Exit.DIRECTORY_LOCKED)
                runs.count("T-K4", 1, "second starts")
        look_at_all(daemon, record, "while it runs")
        daemon.kill()
    look_at_the_rest(quick_path, record)
