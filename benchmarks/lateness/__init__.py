"""The chapter `lateness`: how late jobs are, under load, in bursts and beside snapshots.

`benchmarks.lateness.open_loop` says what late and early mean, and why a server that stalls cannot
hide it; `benchmarks.lateness.measures` what each case does.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from benchmarks.lateness.measures import (
    LinePeer,
    burst,
    due_one_by_one,
    during_a_snapshot,
    steady_load,
)
from benchmarks.registry import Bench, Case, Durability, Values
from benchmarks.servers.beanstalkd import BeanstalkdPeer
from benchmarks.servers.delayd import DelaydPeer
from benchmarks.servers.peer import Peer, case_of
from benchmarks.servers.redis import RedisPeer, Way

INTERPRETED: Final = DelaydPeer("always", is_compiled=False)
COMPILED: Final = DelaydPeer("always", is_compiled=True)
BEANSTALKD: Final = BeanstalkdPeer(Durability.WITHIN_50_MS, ("-f", "50"))
POLLED: Final = RedisPeer(Durability.WITHIN_1_S, Way.TUNED, poll_pause_s=0.1)
"""As articles about queues in Redis poll it: ten times a second for each worker."""
LINE: Final[tuple[LinePeer, ...]] = (INTERPRETED, COMPILED, BEANSTALKD)
EVERYBODY: Final[tuple[Peer, ...]] = (
    *LINE,
    DelaydPeer("interval", is_compiled=False),
    DelaydPeer("interval", is_compiled=True),
    BeanstalkdPeer(Durability.BEFORE_ANSWER, ("-f", "0")),
    POLLED,
)
MILLION: Final = 1_000_000
STANDING: Final[Mapping[int, tuple[Peer, ...]]] = {
    0: EVERYBODY,
    MILLION: (*LINE, POLLED),
    5 * MILLION: LINE,
}
PERCENT: Final = (25, 50, 75, 90)
WORKERS: Final = (1, 8, 50)
BURSTS: Final = (10_000, 100_000, MILLION)
RUNS_MAX: Final = 2
LARGE_RUNS_MAX: Final = 1
"""Of a case with a million jobs."""


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [*one_by_one(), *loads(), *bursts(), *snapshots()]


def case(
    operation: str,
    size: Mapping[str, int | str],
    subject: Peer,
    measure: Callable[[Bench], Values],
    runs_max: int | None = None,
) -> Case:
    """Return a case of this chapter."""
    return case_of(subject, "lateness", operation, size, measure, runs_max)


def one_by_one() -> Iterator[Case]:
    """Yield the cases of workers that wait."""
    for workers in WORKERS:
        for subject in EVERYBODY:
            measure = functools.partial(due_one_by_one, subject, workers)
            yield case("due one by one", {"workers": workers}, subject, measure, RUNS_MAX)


def loads() -> Iterator[Case]:
    """Yield the cases of a share of the peak, those with as many standing jobs in a row."""
    for standing, subjects in STANDING.items():
        for percent in PERCENT:
            size: dict[str, int | str] = {"standing jobs": standing, "load": f"{percent} %"}
            for subject in subjects:
                measure = functools.partial(steady_load, subject, standing, percent)
                runs_max = LARGE_RUNS_MAX if standing else RUNS_MAX
                yield case("steady load", size, subject, measure, runs_max)


def bursts() -> Iterator[Case]:
    """Yield the cases of jobs that are due at one instant."""
    for jobs in BURSTS:
        for subject in LINE:
            measure = functools.partial(burst, subject, jobs)
            runs_max = LARGE_RUNS_MAX if jobs >= MILLION else None
            yield case("burst", {"jobs": jobs}, subject, measure, runs_max)


def snapshots() -> Iterator[Case]:
    """Yield the cases beside a snapshot; beanstalkd takes none."""
    for subject in (INTERPRETED, COMPILED):
        measure = functools.partial(during_a_snapshot, subject, MILLION)
        size = {"standing jobs": MILLION}
        yield case("during a snapshot", size, subject, measure, LARGE_RUNS_MAX)
