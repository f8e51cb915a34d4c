"""T-S1: disks that take their time, and disks that do not answer."""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from tests.faults.conftest import Runs
from tests.faults.real_daemon import (
    Injection,
    Tracing,
    kill_with_its_tracer,
    notifying,
    said,
    systemd,
)
from tests.faults.real_disk import loop_disk
from tests.faults.real_load import Record, life, load, look_at_the_rest
from tests.line_client import Address, LineClient
from tests.rigs.waiting import until

SYNCS_MS: Final = (5_000, 300_000, pytest.param(200, marks=pytest.mark.long))
ANSWER_S_MAX: Final = 60.0
"""In which everybody hears something who does not wait for the disk, on a busy machine. A sync that
hangs takes five times as long."""

DEVICE_S_MAX: Final = 300.0
"""The same beside a slow device. What waits for it may take any number of its operations, the first
sync, which is in the turn, above all; and it stays slow until somebody has been answered."""

BESIDE_THE_LOOP: Final = {"DELAYD_JOURNAL_SYNC_IN_TURN": "false"}
HANG_S: Final = 5
"""How long each sync takes of a disk that begins to hang."""

ASKED_S: Final = 0.1
"""How often somebody asks meanwhile."""

QUICK_SYNCS: Final = 3
"""How many of each thread are quick before."""

WITHOUT_THE_KERNEL: Final = Injection("io_setup", "error=ENOSYS")
"""Then a thread syncs."""


@contextmanager
def watched(folder: Path, within_s: float = ANSWER_S_MAX) -> Iterator[Callable[[float], None]]:
    """Listen as systemd does to a daemon with the variables `notifying`.

    Gives out who waits for so many seconds and fails if the daemon is not alive in them.
    """
    with systemd(folder) as listener:

        def must_not_bark(for_s: float) -> None:
            listener.settimeout(0.0)
            with suppress(BlockingIOError):
                said(listener, "nothing")  # what was said before does not count
            listener.settimeout(within_s)
            until_s = time.monotonic() + for_s
            while time.monotonic() < until_s:
                said(listener, "WATCHDOG=1")

        yield must_not_bark


def ask_something_else(address: Address, within_s: float = ANSWER_S_MAX) -> None:
    """Ask, on another connection, what does not depend on the disk; it is answered in time."""
    with LineClient(address, within_s) as client:
        client.stats()
        assert client.ask("use elsewhere") == "USING elsewhere"
        assert client.ask("watch elsewhere") == "WATCHING 2"
        assert client.ask("ignore default") == "WATCHING 1"
        assert client.ask("reserve-with-timeout 0") == "TIMED_OUT"


@pytest.mark.parametrize("sync_ms", SYNCS_MS, ids=["5s", "hangs", "200ms"])
def test_s1_syncs_of_a_thread_take_long(quick_path: Path, runs: Runs, sync_ms: int) -> None:
    """T-S1: each fdatasync takes 200 ms, 5 s, or does not end: the loop is alive, all is kept.

    Statistics and waits that end are answered meanwhile.
    """
    slow = Injection("fdatasync", f"delay_enter={sync_ms * 1_000}", f"{QUICK_SYNCS + 1}+")
    tracing = Tracing(quick_path / "trace", "io_setup,fdatasync", [WITHOUT_THE_KERNEL, slow])
    record = Record()
    home = quick_path / "data"
    environment = {**notifying(quick_path), **BESIDE_THE_LOOP}
    with (
        watched(quick_path) as must_not_bark,
        life(home, record, tracing=tracing, environment=environment) as daemon,
        load(daemon.address, record, "slow"),
    ):
        time.sleep(0.5)
        try:
            must_not_bark(8.0 if runs.is_long else 1.5)
            ask_something_else(daemon.address)
        finally:  # who waits for a sync that does not end is freed by the kill
            kill_with_its_tracer(daemon)
    look_at_the_rest(home, record)
    runs.count("T-S1 thread", 1, f"syncs of {sync_ms} ms")


@pytest.mark.parametrize("operations_per_s", [1, pytest.param(20, marks=pytest.mark.long)])
def test_s1_the_device_is_slow(tmp_path: Path, runs: Runs, operations_per_s: int) -> None:
    """T-S1: a device that does 20 writes a second, or one; the kernel syncs, and the loop is alive.

    It goes on by itself when the device does, and nothing is lost when the power then goes.
    """
    with loop_disk(tmp_path) as disk:
        record = Record(late_ms_max=DEVICE_S_MAX * 1_000)
        with (
            watched(tmp_path, DEVICE_S_MAX) as must_not_bark,
            life(disk.home, record, how="power", environment=notifying(tmp_path)) as daemon,
            load(daemon.address, record, "slow"),
        ):
            time.sleep(0.1)
            disk.slow_down(operations_per_s)
            try:
                for _ in range(runs.times(5, 20)):
                    ask_something_else(daemon.address, DEVICE_S_MAX)
                must_not_bark(8.0 if runs.is_long else 1.5)
            finally:
                disk.slow_down(0)
            acknowledged = record.acknowledged
            until(lambda: record.acknowledged > acknowledged + 50, DEVICE_S_MAX)
            record.hear_no_more()
            disk.cut_power()
            daemon.kill()
        disk.power_off()
        disk.power_on()
        look_at_the_rest(disk.home, record)
    runs.count("T-S1 device", 1, f"{operations_per_s} writes a second")


def syncs_of(trace: Path) -> Counter[int]:
    """How many syncs each thread has ended, by its number."""
    ended = re.findall(r"^(\d+) .*fdatasync.*\) += ", trace.read_text(), re.MULTILINE)
    return Counter(map(int, ended))


def test_s1_a_disk_that_begins_to_hang_holds_the_loop_for_one_sync(
    quick_path: Path, runs: Runs
) -> None:
    """T-S1: the turn itself meets it. The syncs after it are elsewhere, and hold nobody.

    That is seen by their threads: how long an answer takes says little on a busy machine.
    """
    hangs = Injection("fdatasync", f"delay_enter={HANG_S * 1_000_000}", f"{QUICK_SYNCS + 1}+")
    tracing = Tracing(quick_path / "trace", "io_setup,fdatasync", [WITHOUT_THE_KERNEL, hangs])
    record = Record()
    home = quick_path / "data"
    with (
        life(home, record, segment_bytes="64MiB", tracing=tracing) as daemon,
        load(daemon.address, record, "hangs"),
    ):
        try:
            # A machine that stops during a quick one keeps syncs out of turns for a while.
            until(lambda: syncs_of(tracing.output)[daemon.pid] > QUICK_SYNCS, 300)
            while max(syncs_of(tracing.output).values()) < QUICK_SYNCS + 2:
                ask_something_else(daemon.address)
                time.sleep(ASKED_S)
            assert syncs_of(tracing.output)[daemon.pid] == QUICK_SYNCS + 1
        finally:
            kill_with_its_tracer(daemon)
    look_at_the_rest(home, record)
    runs.count("T-S1 turn", 1, f"a sync of {HANG_S} s")
