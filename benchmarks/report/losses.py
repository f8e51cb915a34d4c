"""Where delayd is behind: every ratio that is below 1 with two digits, computed from the results.

A delayd is compared with each peer of its round that promises the same, or more. A peer that
promises less than any delayd of the round is compared with those that promise least. A ratio is the
median of the ratios of readings that were taken one after the other, above 1 where delayd is
better, so that 0.5 is half as fast and also twice the memory.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.registry import VALUES, Better
from benchmarks.report.plots import is_ours
from benchmarks.report.views import STRENGTH, cell, keys_of, label_of, markdown, split, words_of
from benchmarks.report.words import figure_words, value_words
from benchmarks.results import Measured

NOT_COMPARED: Final = frozenset(
    (
        *("jobs", "descriptors", "generator_share", "generator_worst_ms"),
        *("before_bytes", "highest_bytes", "troubles"),
    )
)
OF_A_JOB: Final = frozenset(("resident_bytes", "log_bytes"))
HOLDING: Final = frozenset(("recovery", "memory", "log of a job"))
"""Operations that measure what a job takes. Elsewhere it is noted, and buffers weigh as much."""
COMPARED: Final = tuple(
    name
    for name, value in VALUES.items()
    if value.better is not Better.ZERO and name not in NOT_COMPARED
)
IN_SHORT: Final = tuple(
    name for name in COMPARED if name not in {"least_ms", "p50_ms", "p90_ms", "p999_ms", "worst_ms"}
)
"""Of times the short table has the 99th percentile."""
BEHIND: Final = 0.995
"""A ratio from here on is 1 with the digits that are shown."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One value of a delayd beside that of a peer."""

    ours: Measured
    peer: Measured
    value: str
    ratio: float
    size: str

    @property
    def group(self) -> tuple[str, ...]:
        """What comparisons of different sizes, with peers of one promise, have in common."""
        names = (self.ours.chapter, self.ours.operation, self.value, label_of(self.ours))
        return (*names, self.peer.policy)

    @property
    def is_even(self) -> bool:
        """Whether the peer promises no more than the delayd."""
        return STRENGTH[self.peer.policy] >= STRENGTH[self.ours.policy]

    def cells(self) -> tuple[str, ...]:
        """Write both values and the ratio."""
        found = (cell(self.ours, self.value), cell(self.peer, self.value))
        return (*found, figure_words(self.ratio, 2))


def ratio_of(ours: Measured, peer: Measured, value: str) -> float | None:
    """Return the median of the ratios of neighbouring readings; None if there are none.

    Memory for each job can be below 0: a server gave back more than the jobs took.
    """
    pairs = [
        (mine[value], its[value])
        for mine, its in zip(ours.readings, peer.readings, strict=False)
        if mine.get(value, 0) > 0 and its.get(value, 0) > 0
    ]
    if VALUES[value].better is Better.LOWER:
        pairs = [(its, mine) for mine, its in pairs]
    return statistics.median(a / b for a, b in pairs) if pairs else None


def opponents(cases: Sequence[Measured]) -> Iterator[tuple[Measured, Measured]]:
    """Yield each delayd of a round with each peer that it is compared with."""
    ours = [case for case in cases if is_ours(case.subject)]
    for peer in cases:
        if is_ours(peer.subject):
            continue
        promised = STRENGTH[peer.policy]
        weakest = max((STRENGTH[case.policy] for case in ours), default=0)
        for case in ours:
            strength = STRENGTH[case.policy]
            if promised <= strength or (promised > weakest and strength == weakest):
                yield case, peer


def comparisons(cases: Iterable[Measured]) -> Iterator[Comparison]:
    """Yield all comparisons of the rounds of a chapter."""
    found = list(cases)
    keys = keys_of(found)
    for parts, turns in split(found, keys).items():
        size = words_of(keys[1:], parts[1:])
        for ours, peer in opponents(turns):
            for value in COMPARED:
                if value in OF_A_JOB and ours.operation not in HOLDING:
                    continue
                ratio = ratio_of(ours, peer, value)
                if ratio is not None:
                    yield Comparison(ours, peer, value, ratio, size)


def losses_in_short(found: Iterable[Comparison]) -> str:
    """Write for each operation, value and delayd at how many sizes, and the worst ratio.

    A delayd stands there beside those that promise as much, and of times the 99th percentile.
    """
    rows = []
    groups: dict[tuple[str, ...], list[Comparison]] = {}
    for one in found:
        if one.is_even and (one.value in IN_SHORT or not has_p99(one)):
            groups.setdefault(one.group, []).append(one)
    for all_of in groups.values():
        worst = min(all_of, key=lambda one: one.ratio)
        sizes = {one.size for one in all_of}
        behind = {one.size for one in all_of if one.ratio < BEHIND}
        if behind:
            often = f"{len(behind)} of {len(sizes)}: {worst.size}"
            ours, theirs = (cell(case, worst.value) for case in (worst.ours, worst.peer))
            rows.append(
                (
                    f"{worst.ours.chapter}: {worst.ours.operation}",
                    value_words(VALUES[worst.value]),
                    promises(worst),
                    worst.size if len(sizes) == 1 else often,
                    f"{worst.ours.subject}: {ours}",
                    f"{worst.peer.subject}: {theirs}",
                    figure_words(worst.ratio, 2),
                )
            )
    headings = ("what", "value", "an acknowledgement means", "at how many sizes: the worst")
    return markdown((*headings, "delayd", "the other", "ratio"), rows) if rows else ""


def promises(one: Comparison) -> str:
    """Write what an acknowledgement of both means."""
    ours, peer = one.ours.policy, one.peer.policy
    return str(ours) if ours is peer else f"{ours}, of the other {peer}"


def has_p99(one: Comparison) -> bool:
    """Whether its times have a 99th percentile."""
    return one.ours.median("p99_ms") is not None


def all_losses(found: Iterable[Comparison]) -> str:
    """Write every ratio below 1, the worst first."""
    behind = sorted((one for one in found if one.ratio < BEHIND), key=lambda one: one.ratio)
    rows = [
        (
            f"{one.ours.chapter}: {one.ours.operation}",
            one.size,
            value_words(VALUES[one.value]),
            label_of(one.ours),
            label_of(one.peer),
            *one.cells(),
        )
        for one in behind
    ]
    headings = ("what", "size", "value", "delayd", "the other", "delayd", "the other", "ratio")
    return markdown(headings, rows)
