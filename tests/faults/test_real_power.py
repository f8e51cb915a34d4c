"""T-P1: the power goes at any moment under a daemon at work."""

import random
import shutil
import time
from pathlib import Path
from typing import Final

import pytest

from tests.faults.conftest import Runs
from tests.faults.real_daemon import SMALL_SEGMENTS, now_ms, started
from tests.faults.real_disk import Cut, LoopDisk, loop_disk
from tests.faults.real_load import (
    PatientClient,
    Record,
    load,
    look,
    look_at_the_rest,
    put_and_note,
    wait_for_log_end,
)
from tests.journal.journals import frame_ends

CUTS: Final = (Cut.AT_ONCE, Cut.AT_ONCE, Cut.AT_ONCE, Cut.AFTER_LOG)
CUTS_PER_DIRECTORY: Final = 12
SOMETHING_MS: Final = 1
"""How much may be lost after the moment from which that is reckoned."""


def be_early(client: PatientClient, record: Record, home: Path) -> float:
    """Put jobs, see that they are durable by themselves, and return by when they had been put.

    What a sync covers is lost if the power goes before its end, however long that takes on a busy
    machine.
    """
    for number in range(20):
        put_and_note(client, record, b"early %d" % number)
    early_ms = now_ms()
    frames = len(frame_ends(max(home.glob("segment-*.log")).read_bytes())) - 1
    wait_for_log_end(client, home, frames)
    return early_ms


def cut_under_load(
    disk: LoopDisk,
    record: Record,
    rng: random.Random,
    policy: str,
    home: Path,
    *,
    some_are_early: bool = False,
) -> None:
    """Start, look, work, and lose the power; some work may be durable before the rest."""
    # What was early is in the log alone: nothing is synced that a snapshot is made of.
    segment_bytes = "16MiB" if some_are_early else SMALL_SEGMENTS
    kept_ms = None
    with started(home, "--sync", policy, segment_bytes=segment_bytes) as daemon:
        record.note("started")
        with PatientClient(daemon.address) as client:
            look(client, record)
            if some_are_early:
                kept_ms = be_early(client, record, home)
        record.check("by the cut before")
        with load(daemon.address, record, str(rng.random())):
            time.sleep(rng.uniform(0.0, 0.2))
            disk.scatter(rng, home)
            time.sleep(rng.choice((0.0, 0.003, 0.1)))
            record.hear_no_more()
            cut_ms = now_ms()
            disk.cut_power(rng.choice(CUTS))
            daemon.kill()
    record.note_power_cut(cut_ms if kept_ms is None else kept_ms + SOMETHING_MS)
    disk.power_off()
    disk.power_on()


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_p1_the_power_goes_under_a_daemon_that_syncs_always(
    tmp_path: Path, runs: Runs, kind: str
) -> None:
    """T-P1: with `sync = always` nothing that was acknowledged is lost."""
    cuts = CUTS_PER_DIRECTORY if runs.is_long else 3
    with loop_disk(tmp_path, kind) as disk:
        for rng in runs.rng(f"T-P1 always {kind}", 1, 40 if kind == "ext4" else 20):
            record = Record()
            home = disk.mount_point / str(rng.random())
            for _ in range(cuts):
                cut_under_load(disk, record, rng, "always", home)
            look_at_the_rest(home, record)
            runs.count(f"T-P1 always {kind}", cuts, "power cuts")


@pytest.mark.parametrize("policy", ["interval", "never"])
def test_p1_the_power_goes_under_a_daemon_that_syncs_later(
    tmp_path: Path, runs: Runs, policy: str
) -> None:
    """T-P1: `interval` soon makes all durable by itself, `never` leaves a consistent prefix.

    Ids of jobs that were lost are given again: each cut has a directory and a history of its own.
    """
    is_bounded = policy == "interval"
    loss_ms = SOMETHING_MS if is_bounded else float("inf")
    with loop_disk(tmp_path) as disk:
        for rng in runs.rng(f"T-P1 {policy} ext4", 1, 60):
            record = Record(loss_ms=loss_ms)
            home = disk.mount_point / str(rng.random())
            cut_under_load(disk, record, rng, policy, home, some_are_early=is_bounded)
            look_at_the_rest(home, record)
            shutil.rmtree(home)  # sixty logs are more than the disk holds
            runs.count(f"T-P1 {policy} ext4", 1, "power cuts")
