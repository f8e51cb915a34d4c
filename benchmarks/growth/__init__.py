"""The chapter `growth`: what one, three and ten million standing jobs cost.

    memory                    resident bytes of each standing job
    put                       the rate of 50 clients that wait for each answer; and, offered at half
                              of that rate, the time of a put
    restart                   kill -9, until it serves with all of them
    snapshot                  how long it takes, and the longest that others wait meanwhile
    restart from a snapshot   the same as `restart`, after one was taken

The jobs are put once for each server; then everything is done to it in this order. Ten million are
put into the compiled delayd and beanstalkd only: the interpreted one would take longer for it than
the rest of the chapter.
"""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from types import MappingProxyType
from typing import Final

from benchmarks.lateness import BEANSTALKD, COMPILED, INTERPRETED
from benchmarks.lateness.beside import Churn, Probe, SnapshotSpan
from benchmarks.lateness.measures import SNAPSHOT_S_MAX, LinePeer, a_week, looped
from benchmarks.lateness.open_loop import Offer, spread, steadily
from benchmarks.line import PATIENCE_S, ServerSilentError
from benchmarks.pace import Stopwatch
from benchmarks.processes import resident_bytes
from benchmarks.registry import Bench, Case, NotMeasuredError, Values
from benchmarks.servers.account import JobAccount
from benchmarks.servers.delayd import RunningDelayd
from benchmarks.servers.generator import Load
from benchmarks.servers.operations import FILL, LAST_SYNC_S, closed_puts, fill, serving
from benchmarks.servers.peer import Peer, Running, case_of
from benchmarks.servers.standing import Standing

MILLION: Final = 1_000_000
SIZES: Final[Mapping[int, tuple[LinePeer, ...]]] = MappingProxyType(
    {
        MILLION: (INTERPRETED, COMPILED, BEANSTALKD),
        3 * MILLION: (INTERPRETED, COMPILED, BEANSTALKD),
        10 * MILLION: (COMPILED, BEANSTALKD),
    }
)
CLIENTS: Final = Load(connections=50, in_flight=1)
RATE_S_MIN: Final = 0.3
"""For so long puts are counted at least: a busy machine answers none in a tiny reading."""
HALF: Final = 0.5
FILL_S_MAX: Final = 900.0
SETTLE_S: Final = 1.0
"""After the last put, before the memory is read."""
SERVES_S_MAX: Final = 120.0
LOOK_S: Final = 0.01


class Grown:
    """A server with standing jobs, and what it took to hold them."""

    def __init__(self, running: Running, jobs: int) -> None:
        empty = resident_bytes(running.processes())
        self.running = running
        self.account = JobAccount()
        fill(running, self.account, FILL, jobs, a_week, FILL_S_MAX)
        if self.account.jobs < jobs:
            raise NotMeasuredError(f"it took {self.account.jobs:,} jobs in {FILL_S_MAX:.0f} s")
        time.sleep(SETTLE_S)
        self.resident_bytes = (resident_bytes(running.processes()) - empty) / jobs
        self.log_bytes = running.log_bytes() / jobs

    def lost(self) -> Values:
        """Return what must be 0: jobs that it should have, and has not, or has more often."""
        return self.account.verdict(self.running.standing())


@contextmanager
def growing(bench: Bench, subject: Peer, jobs: int) -> Iterator[Grown]:
    """Run a server, and put so many jobs into it."""
    with serving(subject, bench) as running:
        yield Grown(running, jobs)


def memory(grown: Grown, bench: Bench) -> Values:
    """Read what each job takes, one second after the last was put and the clients have left."""
    del bench
    return {
        "resident_bytes": grown.resident_bytes,
        "log_bytes": grown.log_bytes,
        **grown.lost(),
    }


def put(grown: Grown, bench: Bench) -> Values:
    """Put jobs beside the standing ones: as many as 50 clients can that wait, then half as many.

    The rate is of the first, the times are of the second, which does not wait for answers: a put
    that the server was slow to take counts from when it was offered.
    """
    running, account = grown.running, grown.account
    seconds = max(bench.seconds, RATE_S_MIN)
    rate = closed_puts(running, account, CLIENTS, seconds, running.standing, a_week)["rate"]
    with looped() as loop:
        producers = CLIENTS.connections
        offer = Offer(*(loop, running), workers=0, delay_ms=a_week(), producers=producers)
        offer.start(steadily(HALF * rate))
        watch = Stopwatch()
        loop.run_for(bench.seconds)
        share, own_lag_s = watch.pace(1).generator_share, loop.own_lag_s
        offer.stop()
        gives_up = loop.clock() + PATIENCE_S
        loop.run(lambda now: offer.is_answered() or now >= gives_up)
        account.put(offer.offered, float("inf"))
    times_s = [time_s for time_s, count in offer.answers for _ in range(count)]
    return {
        "rate": rate,
        **spread(times_s),
        "generator_share": share,
        "generator_worst_ms": own_lag_s * 1e3,
        **grown.lost(),
    }


def restart(grown: Grown, bench: Bench) -> Values:
    """Kill it with signal 9, and start it on what it wrote, until it serves with all jobs."""
    del bench
    time.sleep(LAST_SYNC_S)
    before = grown.running.standing()
    began = time.perf_counter()
    served_s = grown.running.restart()
    while grown.running.standing() < before and time.perf_counter() < began + SERVES_S_MAX:
        time.sleep(LOOK_S)
        served_s = time.perf_counter() - began
    return {"recovery_s": served_s, **grown.lost()}


def snapshot(grown: Grown, bench: Bench) -> Values:
    """Have a snapshot taken, and ask something cheap every millisecond meanwhile.

    Long jobs that are put and deleted make it due; they stop when it begins.
    """
    del bench
    if not isinstance(grown.running, RunningDelayd):
        raise NotMeasuredError("it takes no snapshots")
    with looped() as loop:
        probe, churn = Probe(loop, grown.running.port), Churn(loop, grown.running.port)

        def begins() -> None:
            churn.stop()
            loop.own_lag_s = probe.longest_s = 0.0

        span = SnapshotSpan(loop, grown.running.data, begins)
        gives_up = loop.clock() + SNAPSHOT_S_MAX
        loop.run(lambda now: span.ended_at is not None or now >= gives_up)
        if span.began_at is None or span.ended_at is None:
            raise ServerSilentError(f"no snapshot was taken in {SNAPSHOT_S_MAX:.0f} s")
        held_s, own_lag_s = probe.held_s(), loop.own_lag_s
        loop.run(lambda now: churn.is_done or now >= gives_up)
    return {
        "seconds": span.ended_at - span.began_at,
        "held_ms": held_s * 1e3,
        "generator_worst_ms": own_lag_s * 1e3,
        **grown.lost(),
    }


def restart_from_a_snapshot(grown: Grown, bench: Bench) -> Values:
    """Do as `restart` does, after `snapshot`."""
    if not isinstance(grown.running, RunningDelayd):
        raise NotMeasuredError("it takes no snapshots")
    return restart(grown, bench)


OPERATIONS: Final[Mapping[str, Callable[[Grown, Bench], Values]]] = MappingProxyType(
    {
        "memory": memory,
        "put": put,
        "restart": restart,
        "snapshot": snapshot,
        "restart from a snapshot": restart_from_a_snapshot,
    }
)


def measured(
    subject: LinePeer, jobs: int, operation: Callable[[Grown, Bench], Values], bench: Bench
) -> Values:
    """Take a reading of a server with so many standing jobs."""
    make = functools.partial(growing, bench)
    growths = bench.kept("growths", lambda: closing(Standing(make)))
    return operation(growths.at(subject, bench.entries(jobs)), bench)


def cases() -> Sequence[Case]:
    """Return the chapter, those with as many standing jobs in a row."""
    return [
        case_of(
            *(subject, "growth", name, {"jobs": jobs}),
            measure=functools.partial(measured, subject, jobs, operation),
            runs_max=1,
        )
        for jobs, subjects in SIZES.items()
        for name, operation in OPERATIONS.items()
        for subject in subjects
    ]
