"""T-L1: whole runs from a seed, with every fault there is, judged by the checker.

A seed that fails is printed, and played again by `--fault-seed N`. Every bug that was found this
way stays here as a fixed seed.
"""

import random
from collections import Counter
from typing import Final

import pytest

from delayd.config import SyncPolicy
from tests.faults.clients import DEAD, OUTCOMES
from tests.faults.conftest import SIMULATED, Runs
from tests.faults.history import jobs_seen
from tests.faults.parts import Plan
from tests.faults.pushes import OWN, PUSHED, with_pushes
from tests.faults.simulation import Run, played

FIXED: Final = (
    (48, "a job whose put and whose hand-out nobody was told of is held after a kill"),
    (1_042, "a power cut in the middle of a stop, when jobs are already given back"),
    (20_417, "the journal has failed in the thread of a snapshot, and nobody was told yet"),
    (21_501, "a sync fails that has nothing left to make durable"),
    (1_020_076, "a ttr runs out while what a connection held is given back in slices"),
)
"""Seeds that once failed, and what they had found. What a seed plays changes whenever clients learn
to say more: so what can be told as a history is in histories.txt instead."""

FIXED_WITH_PUSHES: Final = (
    (1_000_068, "an error makes a file count as lost, and no snapshot ends the hold"),
    (1_000_249, "what a holder left comes due in the turn that records it, and is handed out"),
)

PARTS: Final = 10
"""Tests of the long run that share the seeds, so that they are played side by side."""

ENOUGH: Final = 10
"""So many seeds have everything in them: the short run."""

ENOUGH_WITH_PUSHES: Final = 5

RARE_WITH_PUSHES: Final = 50
"""So many seeds have in them what every other seed has once."""


def happened(run: Run) -> Counter[str]:
    """Count what was acknowledged, by its outcome and its kind, and what was seen of jobs."""
    counts: Counter[str] = Counter()
    kinds: dict[int, str] = {}
    for what, number, _, rest in run.history.entries:
        if what == "invoke":
            is_push = str(rest["client"]).startswith("pushes")
            kinds[number] = f"{'pushes: ' if is_push else ''}{rest['kind']}"
        elif what == "ok":
            counts.update((str(rest.get("outcome")), kinds[number]))
        for job in jobs_seen(rest):
            whose = "pushed" if job.topic in {OWN, PUSHED} or b"pushed" in job.body else "jobs"
            has_failed = (job.attempts or 0) > 0
            counts[f"{whose}: dead letters"] += job.state == "buried" and has_failed
            counts[f"{whose}: climbing"] += job.state == "delayed" and has_failed
            counts[f"{whose}: moved"] += job.topic == DEAD
            counts[f"{whose}: with a key"] += bool(job.key)
    return counts


@SIMULATED
@pytest.mark.walk(1, PARTS)
def test_every_seed_keeps_every_promise(runs: Runs, number: int) -> None:
    """T-L1, safety and liveness; and every way with keys, ladders and topics happens."""
    counts: Counter[str] = Counter()
    for seed in runs.seeds("T-L1", ENOUGH, 10_000, number, PARTS if runs.is_long else 1):
        run = played(seed)
        counts += happened(run)
        counts.update(seeds=1, starts=run.lives, snapshots=run.snapshots)
    for what in ("starts", "snapshots"):
        runs.count("T-L1", counts[what], what)
    if (seeds := counts["seeds"]) >= ENOUGH:
        assert counts["starts"] > seeds
        assert counts["snapshots"] >= seeds // 10
        assert min(counts[outcome] for outcome in OUTCOMES.values()) > seeds // 2, counts
        ways = ("dead letters", "climbing", "moved", "with a key")
        assert min(counts[f"jobs: {way}"] for way in ways) > seeds // 5, counts


@SIMULATED
@pytest.mark.walk(1, PARTS)
def test_every_seed_with_pushes_keeps_every_promise(runs: Runs, number: int) -> None:
    """T-L1: jobs with targets, and a receiver that fails, hangs, answers late and counts.

    And every end of a call happens.
    """
    counts: Counter[str] = Counter()
    parts = PARTS if runs.is_long else 1
    for seed in runs.seeds("T-L1 pushes", ENOUGH_WITH_PUSHES, 2_000, number, parts):
        run = played(seed, plan=with_pushes(seed))
        assert run.pushes is not None
        counts += happened(run)
        counts.update(seeds=1, taken=len(run.pushes.taken))
    runs.count("T-L1 pushes", counts["taken"], "jobs taken")
    if (seeds := counts["seeds"]) >= ENOUGH_WITH_PUSHES:
        assert counts["taken"] > 10 * seeds
        asked = ["put", "policy", "reserve", "delete", "nack", "bury"]
        asked += ["spare"] if seeds >= RARE_WITH_PUSHES else []
        ends = ("pushed: moved", *(f"pushes: {kind}" for kind in asked))
        assert min(counts[end] for end in ends) > seeds // 10, counts


@SIMULATED
@pytest.mark.long
@pytest.mark.parametrize(("seed", "found"), [*FIXED, *FIXED_WITH_PUSHES])
def test_a_seed_that_once_failed_passes(seed: int, found: str) -> None:
    """T-L1."""
    played(seed, plan=with_pushes(seed) if (seed, found) in FIXED_WITH_PUSHES else None)


@SIMULATED
def test_a_run_without_faults_loses_nothing_under_any_policy(runs: Runs) -> None:
    """T-L1: the baseline."""
    for policy in SyncPolicy:
        for seed in runs.seeds(f"T-L1 no faults, {policy.value}", short=2, long=200):
            run = played(seed, plan=Plan(policy, faults=frozenset({"slow", "snapshots"})))
            assert run.lives == 1


@SIMULATED
def test_a_seed_is_played_the_same_way_twice() -> None:
    """T-L1: a failure can be reproduced."""
    first, second = played(7), played(7)
    assert first.history.entries == second.history.entries
    assert first.disk.call_count == second.disk.call_count


def test_the_faults_that_a_plan_names_happen() -> None:
    """T-L1: a simulation in which nothing happens proves nothing."""
    plans = [Plan.drawn(random.Random(seed)) for seed in range(40)]
    assert {name for plan in plans for name in plan.faults} == Plan().faults
    assert {plan.policy for plan in plans} == set(SyncPolicy)
