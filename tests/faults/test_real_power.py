"""T-P1: the power goes at any moment, under the journal alone and under the whole daemon."""

import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final, Self

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
ANSWER_S_MAX: Final = 60.0
SOMETHING_MS: Final = 1
"""How much may be lost after the moment from which that is reckoned."""


# --- The journal alone --------------------------------------------------------------------------


class Harness:
    """The process of `real_journal`, and what it says."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.faults.real_journal"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._said = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(ANSWER_S_MAX)

    def tell(self, *words: object) -> None:
        pipe = self._pipe(self.process.stdin)
        os.write(pipe, " ".join(map(str, words)).encode() + b"\n")

    def lines(self, until: str = "", within_s: float = 0.0) -> Iterator[list[str]]:
        """Yield what has been said, or what is until a line begins with a word."""
        pipe = self._pipe(self.process.stdout)
        deadline_s = time.monotonic() + within_s
        while True:
            while b"\n" in self._said:
                line, _, self._said = self._said.partition(b"\n")
                words = line.decode().split()
                assert until != "found" or words[0] != "failed", line
                yield words
                if words[0] == until:
                    return
            left_s = max(0.0, deadline_s - time.monotonic())
            if not select.select([pipe], [], [], left_s)[0]:
                assert not until, f"{until!r} was not said in {within_s} s"
                return
            data = os.read(pipe, 1 << 16)
            assert data, "the harness has ended"
            self._said += data

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> int:
        assert pipe is not None
        return pipe.fileno()


class Expected:
    """The payloads that may be there, and how many of them must."""

    def __init__(self) -> None:
        self.payloads: list[str] = []
        self.acked = 0

    def compare(self, found: list[str], run: int) -> None:
        """Take what was found after a cut of the last run; the new run is this."""
        assert len(found) >= self.acked, f"{len(found)} found, {self.acked} acknowledged"
        kept = self.payloads[: len(found)]
        written = [f"{number}/{run - 1}" for number in range(len(kept), len(found))]
        assert found == kept + written
        self.payloads = found
        self.acked = max(self.acked, len(found))


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_p1_the_power_goes_under_the_journal(tmp_path: Path, runs: Runs, kind: str) -> None:
    """T-P1: nothing that `sync` returned for is lost, and what is there is a prefix."""
    is_ext4 = kind == "ext4"
    with loop_disk(tmp_path, kind) as disk, Harness() as harness:
        for rng in runs.rng(f"T-P1 journal {kind}", 1, 84 if is_ext4 else 17):
            expected = Expected()
            directory = disk.mount_point / str(rng.random())
            for run in range(CUTS_PER_DIRECTORY):
                cut_one_run(disk, harness, directory, expected, rng, run)
            runs.count(f"T-P1 journal {kind}", CUTS_PER_DIRECTORY, "power cuts")


def cut_one_run(
    disk: LoopDisk,
    harness: Harness,
    directory: Path,
    expected: Expected,
    rng: random.Random,
    run: int,
) -> None:
    harness.tell("go", run, directory, rng.random())
    *_, said = harness.lines("found", ANSWER_S_MAX)
    expected.compare(said[1:], run)
    time.sleep(rng.uniform(0.0, 0.03))
    disk.scatter(rng, directory)
    time.sleep(rng.choice((0.0, 0.0, 0.003, 0.02)))
    for words in harness.lines():
        assert words[0] == "acked", words
        expected.acked = int(words[1])
    # What is acknowledged from here on may be so after the cut: it counts for nothing.
    disk.cut_power(rng.choice(CUTS))
    harness.tell("stop")
    for _ in harness.lines("stopped", ANSWER_S_MAX):
        pass
    disk.power_off()
    disk.power_on()


# --- The whole daemon ---------------------------------------------------------------------------


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


@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("kind", ["ext4", pytest.param("xfs", marks=pytest.mark.long)])
def test_p1_the_power_goes_under_a_daemon_that_syncs_always(
    tmp_path: Path, runs: Runs, kind: str
) -> None:
    """T-P1: with `sync = always` nothing that was acknowledged is lost."""
    cuts = CUTS_PER_DIRECTORY if runs.is_long else 3
    with loop_disk(tmp_path, kind) as disk:
        for rng in runs.rng(f"T-P1 always {kind}", 1, 10 if kind == "ext4" else 3):
            record = Record()
            home = disk.mount_point / str(rng.random())
            for _ in range(cuts):
                cut_under_load(disk, record, rng, "always", home)
            look_at_the_rest(home, record)
            runs.count(f"T-P1 always {kind}", cuts, "power cuts")


@pytest.mark.timeout(3_600)
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
