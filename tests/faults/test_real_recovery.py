"""T-K3 and T-B: kills while a start or a repair puts things right, and directories in disorder."""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import pytest

from delayd.exits import Exit
from delayd.journal.format import HEADER_BYTES, unpack_header
from delayd.testing.daemon import DaemonNotStarted
from tests.faults.conftest import Runs
from tests.faults.real_daemon import (
    Injection,
    Tracing,
    refused,
    standing_still,
    started,
)
from tests.faults.real_load import PatientClient, Record, drain, life, load, look, put_and_note
from tests.faults.real_workload import FILE_CALLS, Scene, recover_and_check, sampled
from tests.journal.journals import frame_ends
from tests.line_client import Address
from tests.rigs.waiting import until

LAST_FRAMES: Final = 4
NOBODY: Final = ("setpriv", "--reuid=65534", "--clear-groups")


def segments_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("segment-*.log"))


def snapshots_of(directory: Path) -> list[Path]:
    return sorted(directory.glob("snapshot-*.snap"))


def needs_the_last_two(directory: Path) -> bool:
    """Whether there are more files of the log, and no snapshot speaks for one of the last two."""
    segments, snapshots = segments_of(directory), snapshots_of(directory)
    if len(segments) <= 2:
        return False
    header = unpack_header(segments[-2].read_bytes()[:HEADER_BYTES])
    assert header is not None
    return int(snapshots[-1].stem.partition("-")[2]) < header.first_sequence


def contents(directory: Path) -> dict[str, bytes | None]:
    """Every file but the lock; None for one that cannot be read."""
    names = [path for path in sorted(directory.iterdir()) if path.name != "lock"]
    return {path.name: path.read_bytes() if path.is_file() else None for path in names}


@pytest.fixture(scope="module")
def killed(quick_disk: Path) -> tuple[Path, Record]:
    """What a killed daemon leaves that had snapshots and several files of log."""
    directory = Path(tempfile.mkdtemp(dir=quick_disk)) / "data"
    record = Record()
    with life(directory, record) as daemon:
        for number in itertools.count():
            with load(daemon.address, record, f"killed {number}", workers=2):
                until(lambda: len(snapshots_of(directory)) == 2)
                until(lambda: len(segments_of(directory)) > 2)
            put_the_last(daemon.address, directory, record)
            with standing_still(daemon):
                # Meanwhile a snapshot may have taken the place of all files but the last.
                if len(snapshots_of(directory)) == 2 and needs_the_last_two(directory):
                    daemon.kill()
                    break
    record.check("before anything was done to it")
    return directory, record


def put_the_last(address: Address, directory: Path, record: Record) -> None:
    """Put jobs until the last file of the log ends in so many puts, each a frame."""
    with PatientClient(address) as client:
        puts, last = 0, segments_of(directory)[-1]
        while puts < LAST_FRAMES:
            put_and_note(client, record, b"last %d" % record.last_id)
            before, last = last, segments_of(directory)[-1]
            puts = puts + 1 if last == before else 0


@pytest.fixture
def scene(killed: tuple[Path, Record], quick_path: Path) -> Scene:
    return Scene(quick_path, *killed)


# --- T-K3 ---------------------------------------------------------------------------------------


def tear(directory: Path) -> None:
    """Do to the end of the log what a power cut does: garbage stands behind the last frame."""
    path = segments_of(directory)[-1]
    end = frame_ends(path.read_bytes())[-1]
    with path.open("r+b") as file:
        file.seek(end)
        file.write(random.Random(end).randbytes(300))


def test_k3_killed_while_it_recovers(scene: Scene, runs: Runs) -> None:
    """T-K3: a start that cuts a torn tail is killed at its n-th call, for all n; the next is not.

    What is recovered in the end is what would have been without the kill.
    """
    with scene.trial() as (directory, record):
        tear(directory)
        with started(directory, tracing=scene.looking_at(FILE_CALLS)) as daemon:
            assert "torn end" in daemon.log()
            daemon.stop()
        found = scene.sites_in(directory)
    assert {"ftruncate", "fsync", "openat", "pwrite64"} <= found.keys()
    for name, number in sampled(found, runs, ("fsync", "pwrite64", "ftruncate", "rename")):
        with scene.trial() as (directory, record):
            tear(directory)
            kill = Tracing(scene.trace, name, [Injection(name, "signal=KILL", str(number))])
            try:
                with started(directory, tracing=kill) as daemon:
                    daemon.kill()
            except DaemonNotStarted as error:
                assert error.exit_code == -signal.SIGKILL  # noqa: PT017 - not every call is met
            recover_and_check(directory, record, f"killed at {name} {number}")
        runs.count("T-K3 recovery", 1, "kills")


def repair(directory: Path, place: str, tracing: Tracing | None = None) -> int:
    command = [sys.executable, "-m", "delayd", "journal", "repair", str(directory)]
    before = tracing.command() if tracing else []
    done = subprocess.run(
        [*before, *command, "--truncate-at", place, "--yes"], capture_output=True, check=False
    )
    return done.returncode


def recovered(directory: Path) -> set[tuple[int, str, bytes]]:
    """What a start makes of it: ids, states and bodies."""
    record = Record()
    record.last_id = 5_000
    with started(directory) as daemon, PatientClient(daemon.address) as client:
        seen = look(client, record)
        daemon.kill()
    return {(job.job_id, job.state, job.body) for job in seen}


def test_k3_killed_while_it_repairs(scene: Scene, quick_path: Path, runs: Runs) -> None:
    """T-K3: `delayd journal repair` is killed at its n-th call, for all n.

    Then either nothing has been given up, or all that was to be; and once repeated it is done.
    """
    path = segments_of(scene.home)[-1]
    place = f"{int(path.stem.partition('-')[2])}:{frame_ends(path.read_bytes())[-LAST_FRAMES]}"
    with scene.trial() as (directory, _):
        before = recovered(directory)
    with scene.trial() as (directory, _):
        assert repair(directory, place, scene.looking_at(FILE_CALLS)) == Exit.OK
        found = scene.sites_in(directory)
        after = recovered(directory)
    assert before != after
    for name, number in sampled(found, runs, ("fsync", "pwrite64", "ftruncate", "rename")):
        with scene.trial() as (directory, _):
            kill = Tracing(scene.trace, name, [Injection(name, "signal=KILL", str(number))])
            assert repair(directory, place, kill) == -signal.SIGKILL
            shutil.copytree(directory, quick_path / "again")
            assert recovered(quick_path / "again") in (before, after)
            shutil.rmtree(quick_path / "again")
            assert repair(directory, place) == Exit.OK
            assert recovered(directory) == after
        runs.count("T-K3 repair", 1, "kills")


# --- T-B3, T-B4 ---------------------------------------------------------------------------------


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is taken on, which needs root")
@pytest.mark.parametrize("of_whom", ["the directory", "a file"])
def test_b3_what_belongs_to_another_is_refused(
    scene: Scene, quick_path: Path, runs: Runs, of_whom: str
) -> None:
    """T-B3: a daemon without the rights says so, and nothing is written.

    Whatever else is refused is in `tests/journal/test_recovery.py`, and by which exit code in
    `tests/integration/test_refusals.py`.
    """
    if subprocess.run([*NOBODY, sys.executable, "-c", "import delayd"], check=False).returncode:
        pytest.skip("another user may not read this checkout or its .venv")
    for folder in (quick_path, *quick_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    with scene.trial() as (directory, _):
        if of_whom == "a file":
            for path in (directory, *directory.iterdir()):
                os.chown(path, 65_534, 65_534)
            segments_of(directory)[-1].chmod(0o600)
            os.chown(segments_of(directory)[-1], 0, 0)
        before = contents(directory)
        assert "Permission denied" in refused(directory, Exit.JOURNAL_FAILED, before=NOBODY)
        assert contents(directory) == before
    runs.count("T-B3", 1, "directories")


def test_b4_the_newest_snapshot_is_damaged(scene: Scene, runs: Runs) -> None:
    """T-B4: any bit of it: the previous snapshot and the longer log give the same jobs."""
    size = snapshots_of(scene.home)[-1].stat().st_size
    for rng in runs.rng("T-B4", 1, 60):
        with scene.trial() as (directory, record):
            path = snapshots_of(directory)[-1]
            content = bytearray(path.read_bytes())
            content[rng.randrange(size)] ^= 1 << rng.randrange(8)
            path.write_bytes(content)
            with life(directory, record) as daemon, PatientClient(daemon.address) as client:
                assert "a damaged snapshot was skipped" in daemon.log()
                look(client, record)
                drain(client, record)
                daemon.kill()
            recover_and_check(directory, record, "with a damaged snapshot")
