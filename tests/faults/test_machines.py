"""T-H9: several daemons and one database, whole runs from a seed, with every fault there is.

A seed that fails is printed, and played again by `--fault-seed N`. Every bug that was found this
way stays here as a fixed seed.
"""

from collections import Counter
from typing import Final

import pytest

from tests.faults.conftest import SIMULATED, Runs
from tests.faults.database import LEASE_MS
from tests.faults.planted_machines import FAULTS
from tests.faults.two_machines import MachinesPlan, played

PARTS: Final = 10
"""Tests that share the seeds, so that they are played side by side."""

SEEDS_MAX: Final = 300
"""So many may be played until a planted fault is found."""


@SIMULATED
@pytest.mark.parametrize("part", range(PARTS))
def test_every_seed_keeps_every_promise(runs: Runs, part: int) -> None:
    """T-H9, safety and liveness."""
    counts: Counter[str] = Counter()
    seeds = 0
    for seed in runs.seeds("T-H9", 20, 10_000, part, PARTS):
        counts += played(seed).ledger.counts
        seeds += 1
    for what in ("starts", "takeovers", "answered"):
        runs.count("T-H9", counts[what], what)
    if seeds > 1:
        assert counts["takeovers"] > seeds
        assert counts["answered"] > 10 * seeds


@SIMULATED
def test_a_run_without_faults_has_one_owner_who_answers_everything() -> None:
    """T-H9: the baseline."""
    run = played(1, MachinesPlan(machines=3, faults=frozenset({"nothing"})))
    counts = run.ledger.counts
    assert counts["takeovers"] == 1
    assert counts["asked"] - len(run.clients) <= counts["answered"] > 50


@SIMULATED
@pytest.mark.parametrize("faults", [{"kill"}, {"stop"}, {"kill", "pause", "slow"}])
def test_delayd_time_is_exact_to_the_gaps_whatever_the_clocks_of_the_machines_say(
    faults: set[str], runs: Runs
) -> None:
    """T-H6: a year before and behind; what an answer took makes it late, and nothing early."""
    gaps = 0
    for seed in runs.seeds("T-H6", 2, 400):
        run = played(seed, MachinesPlan(machines=3, faults=frozenset(faults)))
        takeovers = run.ledger.counts["takeovers"]
        gap_ms = 3 * LEASE_MS if "pause" in faults else 4
        assert 0 <= run.lag_ms() <= gap_ms * takeovers
        gaps += takeovers
    runs.count("T-H6", gaps, "takeovers")


@SIMULATED
def test_a_seed_is_played_the_same_way_twice() -> None:
    """T-H9: a failure can be reproduced."""
    first, second = played(7), played(7)
    assert first.ledger.counts == second.ledger.counts
    assert first.stage.now_ns == second.stage.now_ns
    assert [*first.database.all_frames()] == [*second.database.all_frames()]


@SIMULATED
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, runs: Runs) -> None:
    """The oracle is tested too."""
    patch, rules, plan, found_at = FAULTS[fault]
    first = 0 if runs.is_long else found_at

    def play_all() -> None:
        for seed in range(first, first + SEEDS_MAX):
            played(seed, plan, rules())

    # What cannot be played, or asserts something, is found by the daemon that meets it.
    with pytest.raises(AssertionError), patch():
        play_all()
    runs.count("planted", what=f"{fault}: found by T-H9")
