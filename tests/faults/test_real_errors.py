"""T-E: real daemons on disks that fail: at one call, for good, and behind the system's back."""

import time
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from delayd.exits import Exit
from delayd.testing.daemon import Daemon
from tests.faults.conftest import Runs
from tests.faults.real_daemon import Injection, Tracing, standing_still, wait_for_tracer
from tests.faults.real_disk import LoopDisk, loop_disk
from tests.faults.real_load import Record, life, load, look_at_the_rest
from tests.faults.real_workload import FILE_CALLS, Trials, recover_and_check, sampled, work
from tests.journal.journals import frame_ends
from tests.rigs.waiting import until

CALLS: Final = (*(set(FILE_CALLS) - {"write"}), "pread64", "getdents64")
SPACE_CALLS: Final = ("fallocate", "openat")
"""An error of these may mean that there is no space for a put."""

FILLING: Final = (*SPACE_CALLS, "fdatasync", "fsync", "ftruncate", "pwrite64", "rename")
"""Those that may find no space."""

SOLID_BYTES: Final = 24 << 20
HONEST: Final = (
    "the disk failed",
    "the journal failed",
    "the journal cannot be used",
    "a snapshot failed, the log continues without it",
)
"""What a log says of an error that mattered."""

LOUD: Final = ("fdatasync", "pwrite64")
"""An error of these may leave nothing as it was, unless it is said."""

QUIET: Final = ("fsync", "io_submit")


def is_honest(log: str) -> bool:
    return any(words in log for words in HONEST)


@pytest.mark.parametrize(
    ("error", "how_long"),
    [
        ("EIO", "once"),
        ("EIO", "for good"),
        ("ENOSPC", "once"),
        pytest.param("ENOSPC", "for good", marks=pytest.mark.long),
    ],
)
def test_e1_an_error_at_each_system_call(
    quick_path: Path, runs: Runs, error: str, how_long: str
) -> None:
    """T-E1, T-N1: EIO at the n-th write, sync, rename, open, ... of a fixed workload, for all n.

    And ENOSPC at those that can say so. Never silent: the daemon goes on in a fresh segment and
    says so, or it exits with 74 and what was acknowledged is there after a start on a whole disk.
    """
    trials = Trials(quick_path)
    for_good, is_full = how_long == "for good", error == "ENOSPC"
    found = trials.sites(FILLING if is_full else CALLS, and_all_later=for_good)
    short = ("fallocate", "pwrite64") if is_full else LOUD
    for name, number in sampled(found, runs, short if for_good or is_full else (*LOUD, *QUIET)):
        when = f"{number}+" if for_good else str(number)
        tracing = Tracing(trials.trace, name, [Injection(name, f"error={error}", when)])
        with trials.trial() as (directory, record):
            record.has_space = not is_full and name not in SPACE_CALLS
            code, log = work(directory, record, "second", tracing)
            about = f"{error} at {name} {when}: exit {code}\n{log}"
            assert code in {Exit.OK, Exit.JOURNAL_FAILED}, about
            # Threads may share the work differently from run to run: some numbers are not reached.
            is_struck = "(INJECTED)" in wait_for_tracer(tracing.output)
            if not is_full and (code != Exit.OK or (is_struck and name in LOUD)):
                assert is_honest(log), about
            recover_and_check(directory, record, about)
        runs.count(f"T-{'N1' if is_full else 'E1'} {error} {how_long}", 1, name)


def has_said_so(daemon: Daemon) -> bool:
    return is_honest(daemon.log())


def lose_what_comes(disk: LoopDisk, daemon: Daemon) -> bool:
    """Let the disk lose what is written behind the log's last frame from now on.

    False where that stands in the last page of its file: then another moment must do.
    """
    with standing_still(daemon):
        active = max(disk.home.glob("segment-*"))
        return disk.lose(active, frame_ends(active.read_bytes())[-1] + 1) > 0


def test_e2_the_disk_loses_what_it_had_taken(tmp_path: Path, runs: Runs) -> None:
    """T-E2: the write back of some pages fails; a sync says so once, and the next would not.

    Nothing of it is acknowledged before it is durable in a fresh segment; and the power cut that
    follows shows whether it was.
    """
    for rng in runs.rng("T-E2", 1, 25):
        with loop_disk(tmp_path, solid_bytes=SOLID_BYTES) as disk:
            record = Record()
            with life(disk.home, record, how="power", segment_bytes="1MiB") as daemon:
                with load(daemon.address, record, str(rng.random()), workers=2):
                    time.sleep(rng.uniform(0.05, 0.2))
                    while not lose_what_comes(disk, daemon):
                        time.sleep(rng.uniform(0.005, 0.05))
                    until(partial(has_said_so, daemon))
                    time.sleep(rng.uniform(0.0, 0.2))
                    record.hear_no_more()
                    disk.cut_power()
                    daemon.kill()
                went_on = "the log goes on" in daemon.log()
            disk.power_off()
            disk.find_again()
            disk.power_on()
            look_at_the_rest(disk.home, record)
            runs.count("T-E2", 1, "gone on in a fresh segment" if went_on else "exits")
