"""One fixed run of the whole daemon, interrupted or hit by an error at any one call to the disk.

The run puts, hands out, releases, buries, deletes, restarts and takes snapshots: so the calls are
those of appends, rotations, syncs, snapshots, removals, closing and recovery.
"""

import errno
import functools
from collections import Counter
from dataclasses import replace
from typing import Final

from delayd.config import SyncPolicy
from tests.faults.disk import Survives
from tests.faults.parts import Parts, Plan, judge
from tests.faults.simulation import Run
from tests.rigs.disk import Piece, PowerCut

SEED: Final = 37
PLAN: Final = Plan(SyncPolicy.ALWAYS, 3, 100, frozenset({"stop", "slow", "snapshots"}))

QUICK_PLAN: Final = replace(PLAN, quick_share=1.0)
"""The turns themselves sync."""

STEPS_TO_CUT: Final = 4


def nothing_survives(_piece: Piece) -> bool:
    """Lose all that was not synced."""
    return False


def names_survive(piece: Piece) -> bool:
    """Lose all bytes that were not synced; new names and removals reach the disk."""
    return piece.kind == "names"


def bytes_survive(piece: Piece) -> bool:
    """Lose all names that were not synced."""
    return piece.kind != "names"


SURVIVALS: Final[tuple[Survives | None, ...]] = (
    nothing_survives,
    names_survive,
    bytes_survive,
    None,
)
"""What a power cut leaves of the un-synced; None: what chance leaves."""


class Scripted(Run):
    """The fixed run; what survives a power cut is said by who plays it."""

    eager_share = 1.0
    survives: Survives | None = None
    steps_to_cut: int | None = None
    """How long after the planned fault the power is cut."""

    def _step(self, *, is_nested: bool = False) -> None:
        if self.steps_to_cut is not None and not is_nested and not self.disk.has_plans:
            self.steps_to_cut -= 1
            if self.steps_to_cut < 0:
                self.steps_to_cut = None
                raise PowerCut
        super()._step(is_nested=is_nested)

    def _survivors(self) -> Survives:
        return self.survives or super()._survivors()


def _counts(parts: Parts | None = None, plan: Plan = PLAN, seed: int = SEED) -> Counter[str]:
    run = Scripted(seed, parts, plan)
    run.play()
    return run.disk.verb_counts


_known_counts: Final = functools.cache(_counts)
"""The same of a run with nothing exchanged, which many tests ask for."""


def calls(verb: str = "", parts: Parts | None = None, plan: Plan = PLAN, seed: int = SEED) -> range:
    """Return the numbers of the calls to the disk that the run makes (of the verb)."""
    counts = (_counts if parts else _known_counts)(parts, plan, seed)
    return range(1, 1 + (counts[verb] if verb else counts.total()))


def cut_at(
    number: int,
    survives: Survives | None,
    parts: Parts | None = None,
    plan: Plan = PLAN,
    *,
    verb: str = "",
    seed: int = SEED,
) -> None:
    """Cut the power at the n-th call (of the verb), and see that the run keeps every promise."""
    run = Scripted(seed, parts, plan)
    run.survives = survives
    run.disk.fail(number, PowerCut(), verb)
    judge(run, f"power cut at {verb or 'call'} {number}")


def fail_at(
    verb: str,
    number: int,
    parts: Parts | None = None,
    error: int = errno.EIO,
    plan: Plan = PLAN,
) -> None:
    """Let the n-th call of the verb fail ("" for any), then cut the power some calls later."""
    run = Scripted(SEED, parts, plan)
    # Without space a put may be refused, and a shorter one behind it may not.
    run.world = run.world._replace(may_refuse=True)
    run.disk.fail(number, OSError(error, errno.errorcode[error]), verb)
    run.survives, run.steps_to_cut = nothing_survives, STEPS_TO_CUT
    judge(run, f"{errno.errorcode[error]} at {verb or 'call'} {number}")


def shorten_at(verb: str, number: int, short_bytes: int) -> None:
    """Let the n-th read or write handle only some bytes."""
    run = Scripted(SEED, plan=PLAN)
    run.disk.shorten(number, verb, short_bytes)
    judge(run, f"{verb} {number} of {short_bytes} bytes")
