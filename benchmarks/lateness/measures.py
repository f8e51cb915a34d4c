"""What each case of the chapter `lateness` does to a server.

    steady load         jobs at a share of the peak, beside standing jobs
    due one by one      a few jobs at random moments, for 1, 8 or 50 workers that wait
    burst               what others see while 10,000 to a million jobs come due at one instant
    during a snapshot   what others see while the standing jobs are written

Everything is offered by an open loop (`benchmarks.lateness.open_loop`). A ground is a server with
its standing jobs; it is kept while cases ask for as many standing jobs, so that they are put once.
"""

import contextlib
import math
import random
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Final

from benchmarks.lateness.beside import Churn, Probe, SnapshotSpan, Watcher
from benchmarks.lateness.open_loop import (
    Loop,
    Offer,
    at_random,
    steadily,
)
from benchmarks.line import PATIENCE_S, ServerSilentError, ask, statistic
from benchmarks.pace import Stopwatch
from benchmarks.registry import Bench, NotMeasuredError, Values
from benchmarks.servers.account import JobAccount
from benchmarks.servers.beanstalk import Reachable
from benchmarks.servers.beanstalkd import BeanstalkdPeer
from benchmarks.servers.delayd import DelaydPeer, RunningDelayd
from benchmarks.servers.operations import FILL, fill, serving
from benchmarks.servers.peer import Peer, Reached, Running
from benchmarks.servers.standing import Standing

LinePeer = DelaydPeer | BeanstalkdPeer
WEEK_MS: Final = 7 * 24 * 3_600_000
FILL_S_MAX: Final = 600.0
STEADY_WORKERS: Final = 50
LONE_PER_SECOND: Final = 100
LONE_SHARE: Final = 2.0
"""A reading of jobs due one by one lasts so many readings of a rate: they are few."""
DELAY_MS: Final = 1_000
DELAY_SHARE_MS: Final = 500
"""Of a second that a reading lasts: a short reading has shorter delays, where they can be."""
SETTLE_SHARE: Final = 0.25
"""Of a delay: after the first jobs came due, before anything is judged."""
BRIDGE: Final = 1.25
"""How many delays long jobs are put before the peak is looked for."""
NEIGHBOURS: Final = 50
"""So many wait for their syncs together that they are far from their own peak."""
NEIGHBOURS_PER_SECOND: Final = 1_000
NEIGHBOURS_TUBE: Final = b"neighbours"
EARLIER_S: Final = 0.05
"""Neighbours are judged from so long before the instant, and until so long after it at least."""
BURST_TUBE: Final = b"burst"
BURST_PUTS: Final = 1.6
"""So many times what the puts of a burst should take is allowed for them, and a second."""
BURST_ROOM_S: Final = 1.0
BURST_S_MAX: Final = 120.0
SNAPSHOT_S_MAX: Final = 300.0
"""Until it has ended."""


def delay_ms(subject: Peer, bench: Bench) -> int:
    """Return the delay of the jobs that are judged: a second, or less in short readings."""
    return max(subject.delay_unit_ms, min(DELAY_MS, int(DELAY_SHARE_MS * bench.seconds)))


@contextlib.contextmanager
def looped() -> Iterator[Loop]:
    """Give a loop, and close its connections."""
    with closing(Loop()) as loop:
        yield loop


def a_week() -> int:
    """Return the delay of standing jobs."""
    return WEEK_MS


class Grounds:
    """Servers with standing jobs, and how many jobs a second each takes at most."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._servers = Standing(self._filled)
        self._peaks: dict[tuple[str, str, int], float] = {}
        self.at = self._servers.at
        self.close = self._servers.close

    @contextlib.contextmanager
    def _filled(self, subject: Peer, standing: int) -> Iterator[Running]:
        with serving(subject, self._bench) as server:
            if standing:
                fill(server, JobAccount(), FILL, standing, a_week, FILL_S_MAX)
            yield server

    def peak(self, subject: Peer, standing: int) -> float:
        """Return how many jobs a second this server takes; measured once."""
        key = (subject.subject, subject.policy, standing)
        if key not in self._peaks:
            self._peaks[key] = peak(
                self.at(subject, standing),
                delay_ms(subject, self._bench),
                self._bench.seconds,
                poll_s=subject.poll_pause_s,
                first=standing,
            )
        return self._peaks[key]


def peak(
    server: Reached,
    wait_ms: int,
    seconds: float,
    *,
    workers: int = STEADY_WORKERS,
    poll_s: float = 0.0,
    first: int = 0,
) -> float:
    """Return how many jobs a second are put, come due, are taken and acknowledged at most.

    There are always more that are due, so the workers set the pace, and as many are put. Raises
    `ServerSilentError` if none comes.
    """
    with looped() as loop:
        offer = Offer(
            *(loop, server),
            workers=workers,
            delay_ms=wait_ms,
            poll_s=poll_s,
            first=first,
        )
        offer.saturate(BRIDGE * wait_ms / 1e3)
        loop.run_for((BRIDGE + SETTLE_SHARE) * wait_ms / 1e3)
        before, watch = offer.arrived, Stopwatch()
        loop.run_for(seconds)
        gives_up = loop.clock() + PATIENCE_S
        loop.run(lambda now: offer.arrived > before or now >= gives_up)
        pace = watch.pace(offer.arrived - before)
        if not pace.operations:
            raise ServerSilentError(f"no job came in {PATIENCE_S:.0f} s")
        offer.drain()
    return pace.per_second


def steady_load(subject: Peer, standing: int, percent: int, bench: Bench) -> Values:
    """Offer a share of the peak to workers with one command in flight each."""
    grounds = bench.kept("grounds", lambda: closing(Grounds(bench)))
    jobs = bench.entries(standing)
    per_second = grounds.peak(subject, jobs) * percent / 100
    server = grounds.at(subject, jobs)
    with looped() as loop:
        offer = Offer(
            *(loop, server),
            workers=STEADY_WORKERS,
            delay_ms=delay_ms(subject, bench),
            poll_s=subject.poll_pause_s,
            first=jobs,
        )
        offer.start(steadily(per_second))
        found = judged(loop, offer, delay_ms(subject, bench) / 1e3, bench.seconds)
    return {"rate": per_second, **found}


def due_one_by_one(subject: Peer, workers: int, bench: Bench) -> Values:
    """Offer a few jobs at random moments, so at any phase of a millisecond, to workers who wait."""
    grounds = bench.kept("grounds", lambda: closing(Grounds(bench)))
    with looped() as loop:
        offer = Offer(
            *(loop, grounds.at(subject, 0)),
            workers=workers,
            delay_ms=delay_ms(subject, bench),
            poll_s=subject.poll_pause_s,
        )
        offer.start(at_random(LONE_PER_SECOND, random.Random(workers)))
        found = judged(loop, offer, delay_ms(subject, bench) / 1e3, LONE_SHARE * bench.seconds)
    return {"rate": LONE_PER_SECOND, **found}


def judged(loop: Loop, offer: Offer, delay_s: float, seconds: float) -> Values:
    """Wait until jobs come due steadily, and judge those that are due in so many seconds."""
    loop.run_for((1 + SETTLE_SHARE) * delay_s)
    loop.own_lag_s = 0.0
    first, watch = loop.clock(), Stopwatch()
    loop.run_for(seconds)
    last, pace, own_lag_s = loop.clock(), watch.pace(1), loop.own_lag_s
    offer.drain()
    return {
        **offer.verdict(first, last).values(),
        "generator_share": pace.generator_share,
        "generator_worst_ms": own_lag_s * 1e3,
    }


# --- Bursts --------------------------------------------------------------------------------------


def burst(subject: LinePeer, count: int, bench: Bench) -> Values:
    """Let jobs come due at one instant, and look at what others see of it.

    Nothing works on the jobs: it is measured what moving them from delayed to ready costs others.
    """
    jobs = bench.entries(count)
    delay_s = delay_ms(subject, bench) / 1e3
    flows_s = (1 + SETTLE_SHARE) * delay_s + EARLIER_S
    with serving(subject, bench) as server, looped() as loop:
        port = server.port
        instant = put_for_instant(port, subject, jobs, flows_s)
        time.sleep(max(0.0, instant - flows_s - loop.clock()))
        too_soon = ready_jobs(ask(port, b"stats-tube %b\r\n" % BURST_TUBE))
        offer = neighbours(loop, server, int(delay_s * 1e3))
        offer.start(steadily(NEIGHBOURS_PER_SECOND))
        loop.run(lambda now: now >= instant - EARLIER_S)
        probe = Probe(loop, port)
        watcher = Watcher(
            *(loop, port, BURST_TUBE),
            pause_s=EARLIER_S,
            satisfied=lambda reply: ready_jobs(reply) == jobs,
        )
        loop.own_lag_s = 0.0
        loop.run(lambda now: watcher.satisfied_at is not None or now >= instant + BURST_S_MAX)
        if watcher.satisfied_at is None:
            raise ServerSilentError(f"not all were ready {BURST_S_MAX:.0f} s after the instant")
        ended = max(watcher.satisfied_at, instant + EARLIER_S)
        held_s, own_lag_s = probe.held_s(), loop.own_lag_s
        offer.drain()
        found = offer.verdict(instant - EARLIER_S, ended).values()
    return {
        **found,
        "early": found["early"] + too_soon,
        "seconds": max(0.0, watcher.satisfied_at - instant),
        "held_ms": held_s * 1e3,
        "generator_worst_ms": own_lag_s * 1e3,
    }


def neighbours(loop: Loop, server: Running, wait_ms: int) -> Offer:
    """Return an offer of jobs in a tube of their own, which has begun or is about to."""
    reached = Reachable(server.port, NEIGHBOURS_TUBE)
    return Offer(loop, reached, workers=NEIGHBOURS, delay_ms=wait_ms)


def ready_jobs(stats: bytes) -> int:
    """Return how many jobs are ready by the statistics of a tube."""
    return statistic(stats, b"current-jobs-ready") or 0


def put_for_instant(port: int, subject: LinePeer, jobs: int, flows_s: float) -> float:
    """Put jobs that are all due at one instant; return it, by `time.perf_counter`.

    It is `flows_s` after the last put at least. A server that knows whole seconds gets them due
    within one second after it. Raises `NotMeasuredError` if the puts took too long for that.
    """
    trial, burst = JobAccount(), JobAccount()
    watch = Stopwatch()
    fill(Reachable(port), trial, FILL, max(jobs // 20, FILL.connections), a_week)
    puts_s = BURST_PUTS * jobs / watch.pace(trial.jobs).per_second + min(BURST_ROOM_S, flows_s)
    until = Until(time.perf_counter() + flows_s + EARLIER_S + puts_s, subject.delay_unit_ms)
    fill(Reachable(port, BURST_TUBE), burst, FILL, jobs, until)
    if time.perf_counter() > until.instant - flows_s:
        late = f"{until.late:,} requests were made after the instant"
        raise NotMeasuredError(f"{jobs:,} puts took longer than {puts_s:.1f} s: {late}")
    return until.instant


class Until:
    """The delay of a job that is due at one instant, in units of the server.

    >>> until = Until(instant=0.0, unit_ms=1)
    >>> until(), until.late  # the machine is far behind: no job has a negative delay
    (0, 1)
    """

    def __init__(self, instant: float, unit_ms: int) -> None:
        self.instant = instant
        self.late = 0
        """How often it was asked for after the instant."""
        self._unit_ms = unit_ms

    def __call__(self) -> int:
        """Return it, rounded up; 0 after the instant."""
        left_ms = (self.instant - time.perf_counter()) * 1_000
        self.late += left_ms < 0
        return max(0, math.ceil(left_ms / self._unit_ms)) * self._unit_ms


# --- Snapshots -----------------------------------------------------------------------------------


def during_a_snapshot(subject: DelaydPeer, standing: int, bench: Bench) -> Values:
    """Keep jobs coming due while the server writes a snapshot of the standing jobs.

    Their bodies are random digits, which compress as badly as any text does. Long jobs that are put
    and deleted make a snapshot due; they stop when it begins.
    """
    with serving(subject, bench) as server:
        assert isinstance(server, RunningDelayd)
        drawn = Reachable(server.port, draw=random_digits)
        fill(drawn, JobAccount(), FILL, bench.entries(standing), a_week)
        return beside_a_snapshot(server, delay_ms(subject, bench))


def beside_a_snapshot(server: RunningDelayd, wait_ms: int) -> Values:
    """Have a snapshot taken; return its time, and what others saw meanwhile."""
    with looped() as loop:
        offer = neighbours(loop, server, wait_ms)
        offer.start(steadily(NEIGHBOURS_PER_SECOND))
        loop.run_for((1 + SETTLE_SHARE) * wait_ms / 1e3)
        probe, churn = Probe(loop, server.port), Churn(loop, server.port)

        def begins() -> None:
            churn.stop()
            loop.own_lag_s = probe.longest_s = 0.0

        span = SnapshotSpan(loop, server.data, begins)
        gives_up = loop.clock() + SNAPSHOT_S_MAX
        loop.run(lambda now: span.ended_at is not None or now >= gives_up)
        if span.began_at is None or span.ended_at is None:
            raise ServerSilentError(f"no snapshot was taken in {SNAPSHOT_S_MAX:.0f} s")
        held_s, own_lag_s = probe.held_s(), loop.own_lag_s
        offer.drain()
        return {
            **offer.verdict(span.began_at, span.ended_at).values(),
            "seconds": span.ended_at - span.began_at,
            "held_ms": held_s * 1e3,
            "generator_worst_ms": own_lag_s * 1e3,
        }


def random_digits(count: int) -> bytes:
    """Return so many digits."""
    return b"%0*x" % (count, random.getrandbits(4 * count))
