"""One fixed run of the daemon, stopped or hit by an error at every single call to the disk.

`tests/journal` does this with opaque payloads; here every byte comes from the engine, through group
commit and snapshots, and the checker judges what clients saw.
"""

import errno
from typing import Final

import pytest

from delayd.journal.journal import Journal
from tests.faults import power_cuts
from tests.faults.adapter import small_limits
from tests.faults.bytes_of_a_log import recovered
from tests.faults.conftest import SIMULATED, Runs
from tests.faults.disk import Survives
from tests.faults.parts import Plan, digest
from tests.faults.power_cuts import PLAN, QUICK_PLAN, SURVIVALS
from tests.faults.simulation import SEGMENT_BYTES, Run
from tests.journal.journals import DIRECTORY, contents_of, opened
from tests.rigs.disk import SimulatedDisk

VERBS: Final = (
    *("pwrite", "sync", "sync_directory", "rename", "unlink", "create", "allocate", "truncate"),
    *("open", "pread", "size", "list_directory", "close", "status", "make_directory"),
    *("lock_directory", "lock", "unique_bytes"),
)
ERRORS: Final = (errno.ENOSPC, errno.EINTR, errno.EAGAIN, errno.EFBIG, errno.EROFS)
"""Beside EIO, which every verb meets at each of its calls."""


def named(value: object) -> str:
    """What a case is called."""
    match value:
        case Plan():
            return "quick disk" if value is QUICK_PLAN else "disk"
        case int():
            return errno.errorcode[value]
    return str(getattr(value, "__name__", value))


@SIMULATED
def test_the_fixed_run_has_everything_in_it() -> None:
    """T-P2: windows that do not occur prove nothing."""
    run = power_cuts.Scripted(power_cuts.SEED, plan=PLAN)
    run.play()
    assert run.violations() == []
    assert run.lives > 2
    assert run.snapshots > 2
    assert run.disk.verb_counts["unlink"] > 3
    assert run.disk.verb_counts.keys() == set(VERBS)


@SIMULATED
@pytest.mark.parametrize(
    ("plan", "survives"),
    [*((PLAN, each) for each in SURVIVALS), (QUICK_PLAN, power_cuts.nothing_survives)],
    ids=named,
)
def test_a_power_cut_at_any_call_breaks_no_promise(
    plan: Plan, survives: Survives | None, runs: Runs
) -> None:
    """T-P2, T-P5, T-P6, T-K2 and T-K3 in simulation."""
    for number in runs.some(power_cuts.calls(plan=plan), 2):
        power_cuts.cut_at(number, survives, plan=plan)
        runs.count("T-P2", what="power cuts of the simulated daemon, at each call")
        if survives is not power_cuts.nothing_survives:
            runs.count("T-P6", what="of them after which names, bytes or any pieces had survived")


@SIMULATED
@pytest.mark.parametrize(
    ("verb", "error", "plan"),
    [
        *((verb, errno.EIO, PLAN) for verb in VERBS),
        ("sync", errno.EIO, QUICK_PLAN),
        *(("", error, PLAN) for error in ERRORS),
    ],
    ids=named,
)
def test_an_error_at_any_call_breaks_no_promise(
    verb: str, error: int, plan: Plan, runs: Runs
) -> None:
    """T-E1, T-E3 and T-N1 in simulation, followed by a power cut."""
    for number in runs.some(power_cuts.calls(verb, plan=plan), 1):
        power_cuts.fail_at(verb, number, error=error, plan=plan)
        test_id = "T-E1" if error == errno.EIO else "T-E3"
        runs.count(test_id, what=f"{errno.errorcode[error]} at the n-th {verb or 'call'}")


@SIMULATED
@pytest.mark.parametrize("verb", ["pread", "pwrite"])
def test_a_short_read_or_write_at_any_call_breaks_no_promise(verb: str, runs: Runs) -> None:
    """T-E3."""
    for number in runs.some(power_cuts.calls(verb), 2):
        power_cuts.shorten_at(verb, number, 1 + number % 60)
        runs.count("T-E3", what=f"short {verb}")


def test_a_log_never_tells_an_earlier_time_than_the_snapshot_before() -> None:
    """T-C3: what was found by seed 50284."""
    disk = SimulatedDisk()
    journal, _ = opened(disk, SEGMENT_BYTES)
    journal.append(b"", 1_000, 1_000)
    journal.begin_snapshot(journal.appended_sequence, 5_000, 5_000).finish(0)
    journal.close()
    journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=SEGMENT_BYTES)
    assert [frame.time_ms for frame in journal.replay()] == [5_000, 5_000]


def restarted(disk: SimulatedDisk, run: Run) -> tuple[str, dict[str, bytes]]:
    engine, journal = recovered(disk, SEGMENT_BYTES)
    state = digest(engine), contents_of(disk)
    disk.kill()
    # The power may have gone behind the write of a frame that the run has no note of.
    assert journal.synced_sequence - max(run.payloads) in {0, 1}
    return state


@SIMULATED
def test_replay_is_a_fixed_point(runs: Runs) -> None:
    """T-L1: a second start finds the same state and leaves the same bytes."""
    for seed in runs.seeds("replay twice", short=3, long=1_000):
        run = Run(seed)
        run.ends_with_a_crash = True
        run.play()
        if run.payloads:
            with small_limits(run.clock, run.rng):
                first, second = restarted(run.disk, run), restarted(run.disk, run)
            assert first == second, f"--fault-seed {seed}"
