"""A suite that finds nothing may be blind: journals that are broken on purpose must be found.

`FAULTS` is the table: planted fault → the tests that must find it. What a test looks through has
numbers; the everyday run begins where the fault is known to be found, the long run with the first.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Final
from unittest import mock

import pytest

from delayd.core.log_records import UnknownRecord
from delayd.journal import journal
from tests.faults import planted, power_cuts
from tests.faults.conftest import SIMULATED, Runs
from tests.faults.parts import Parts, Plan
from tests.faults.planted import Patch
from tests.faults.pushes import with_pushes
from tests.faults.simulation import played
from tests.journal import test_recovery_damage as damage

SEEDS_MAX: Final = 300
SNAPSHOTS: Final = Plan(operations=300, faults=frozenset({"power", "kill", "snapshots", "short"}))


Finder = Callable[[Parts, int], None]


def simulated(parts: Parts, first: int) -> None:
    """T-L1: test_simulation.test_every_seed_keeps_every_promise."""
    for seed in turned(range(SEEDS_MAX), first):
        played(seed, parts)


def simulated_with_snapshots(parts: Parts, first: int) -> None:
    """T-L1: test_simulation.test_every_seed_keeps_every_promise."""
    for seed in turned(range(SEEDS_MAX), first):
        played(seed, parts, SNAPSHOTS)


def simulated_with_pushes(parts: Parts, first: int) -> None:
    """T-L1: test_simulation.test_every_seed_with_pushes_keeps_every_promise."""
    for seed in turned(range(SEEDS_MAX), first):
        played(seed, parts, with_pushes(seed))


def boundaries(parts: Parts, first: int) -> None:
    """T-P2: test_power.test_a_power_cut_at_any_call_breaks_no_promise."""
    for number in turned(power_cuts.calls(parts=parts), first):
        power_cuts.cut_at(number, power_cuts.nothing_survives, parts)


def boundaries_of_snapshots(parts: Parts, first: int) -> None:
    """T-P2: test_power.test_a_power_cut_at_any_call_breaks_no_promise."""
    # Files are removed when a snapshot has replaced them: in some runs even the snapshot before.
    for seed in turned(range(power_cuts.SEED, power_cuts.SEED + 20), first):
        for number in reversed(power_cuts.calls("unlink", parts, seed=seed)):
            power_cuts.cut_at(number, power_cuts.names_survive, parts, verb="unlink", seed=seed)


def failures(parts: Parts, first: int) -> None:
    """T-E1: test_power.test_an_error_at_any_call_breaks_no_promise."""
    for number in turned(power_cuts.calls("sync", parts), first):
        power_cuts.fail_at("sync", number, parts)


def flipped(_parts: Parts, first: int) -> None:
    """T-B2: tests/journal/test_recovery_damage.py, which is played itself."""
    damage.test_any_flipped_bit_of_a_synced_log_is_found_or_in_the_last_frame(
        lambda bits: bits[first::3], 4 << 10
    )


def turned(numbers: range, first: int) -> Iterable[int]:
    """Return all of them, beginning with this one if it is among them."""
    place = numbers.index(first) if first in numbers else 0
    return (*numbers[place:], *numbers[:place])


FAULTS: Final[dict[str, tuple[Parts | Callable[[], Patch], dict[Finder, int]]]] = {
    "acknowledges before the sync": (
        Parts(commit=planted.AcknowledgingEarly),
        {simulated: 36, boundaries: 22},
    ),
    "never syncs the directory": (
        Parts(disk=planted.SyncingNoDirectory),
        {simulated: 18, boundaries: 23},
    ),
    "tries a failed sync again": (Parts(disk=planted.Retrying), {simulated: 15, failures: 0}),
    "names a snapshot before it is synced": (
        Parts(disk=planted.SyncingNoSnapshot),
        {simulated_with_snapshots: 25, boundaries_of_snapshots: 45},
    ),
    "checks no checksum": (planted.no_checksums, {simulated: 11, flipped: 0}),
    "forgets keys in a replay": (
        partial(planted.finishing_with, planted.forget_keys),
        {simulated: 0},
    ),
    "forgets in a replay that a ttr ran out under a ladder": (
        planted.lapses_forgotten,
        {simulated: 19},
    ),
    "forgets in a replay the ladder of jobs that are pushed": (
        planted.push_ladder_forgotten,
        {simulated_with_pushes: 17},
    ),
    "hears of no job to be pushed that was ready before a start": (
        partial(planted.finishing_with, lambda engine: engine.store.push_lanes.take()),
        {simulated_with_pushes: 0},
    ),
    "removes a job whose call has failed": (
        planted.failures_believed,
        {simulated_with_pushes: 13},
    ),
    "records no slice of what a closed connection held": (
        planted.returns_forgotten,
        {simulated: 0},
    ),
    "removes old segments before the snapshot is durable": (
        partial(mock.patch.object, journal, "SnapshotWriter", planted.RemovingEarly),
        {simulated_with_snapshots: 0, boundaries_of_snapshots: 0},
    ),
}
"""How each is planted, and who finds it: the number that does so soon changes as clients do."""

CASES: Final = [(fault, *found) for fault, (_, by) in FAULTS.items() for found in by.items()]


@SIMULATED
@pytest.mark.parametrize(
    ("fault", "finder", "number"),
    CASES,
    ids=[f"{fault}-{finder.__name__}" for fault, finder, _ in CASES],
)
def test_a_planted_fault_is_found(fault: str, finder: Finder, number: int, runs: Runs) -> None:
    """The oracle is tested too."""
    plant, _ = FAULTS[fault]
    parts, patch = (plant, nullcontext) if isinstance(plant, Parts) else (Parts(), plant)
    # A log that cannot be played is found by whoever plays it.
    with pytest.raises((AssertionError, UnknownRecord)), patch():
        finder(parts, 0 if runs.is_long else number)
    assert finder.__doc__ is not None
    runs.count("planted", what=f"{fault}: found by {finder.__doc__.rstrip('.')}")
