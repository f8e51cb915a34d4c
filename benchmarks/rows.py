"""The rows of the table: what each one does to a server, and the figure delayd must reach.

A row is a *session* on each of two servers: a generator that gives one reading whenever it is
asked, so that the caller can alternate between the two. What is costly and may be shared by
readings (a million jobs in a log) happens once, before the first; everything else gets a new server
and an empty directory.

`ROWS` is the table of the specification; which server a session is given is decided here too,
because a peer is only a peer with the right flags.
"""

import math
import random
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

from benchmarks.lateness import beside_a_burst, beside_a_task, steady_stream, sustained
from benchmarks.load import (
    BODY_BYTES,
    HOUR_S,
    Fleet,
    Pace,
    ServerSilentError,
    UnexpectedReplyError,
    keyed_requests,
    prebuilt,
    put_request,
)
from benchmarks.peers import (
    DELAYD,
    NEVER_SYNC,
    NO_LOG,
    SYNC_50_MS,
    SYNC_DEFAULT,
    SYNC_EACH,
    Server,
    ask,
    statistic,
)
from benchmarks.plan import Plan, Reading, Row, Session
from benchmarks.table import Bound, Measure, Target, percentile

CONNECTIONS: Final = 50
IN_FLIGHT: Final = 20
WARM_UP_PART: Final = 0.25
WEEK_S: Final = 7 * 24 * HOUR_S
SETTLE_S: Final = 3.0
"""Time for a server to finish what it does after a load, before it is called idle."""

STREAM_PER_SECOND: Final = 10_000
LONE_WORKERS: Final = 8
LONE_PER_SECOND: Final = 2_000
WATCHDOG_S: Final = 60.0
BURST_TUBE: Final = b"burst"
BURST_SECONDS_MAX: Final = 60.0
SNAPSHOT_SECONDS_MAX: Final = 30.0
CHURNS_MAX: Final = 10
STREAM_FLOWS_S: Final = 3.0
"""How long before the burst its neighbours start, so that their jobs come due steadily."""


def rate_reading(pace: Pace, server: Server, cpu_before: float) -> Reading:
    """Return a rate, and who was busy while it was taken."""
    server_share = (server.cpu_seconds() - cpu_before) / pace.seconds
    return Reading(
        (pace.per_second,),
        {"generator cpu %": 100 * pace.generator_share, "server cpu %": 100 * server_share},
    )


Requests = Callable[[int], bytes]


def unkeyed(in_flight: int) -> Requests:
    """Return what gives so many puts, due in an hour."""
    return prebuilt(put_request(HOUR_S), in_flight)


def puts(connections: int, in_flight: int, kind: Callable[[int], Requests] = unkeyed) -> Session:
    """Return the session that puts jobs, `in_flight` at a time on each of `connections`."""

    def session(plan: Plan, command: str) -> Generator[Reading, None, None]:
        requests = kind(in_flight)
        while True:
            with plan.stable.server(command) as server, Fleet(server.port, connections) as fleet:
                fleet.put(requests, in_flight, seconds=plan.seconds * WARM_UP_PART)
                cpu = server.cpu_seconds()
                pace = fleet.put(requests, in_flight, seconds=plan.seconds)
                reading = rate_reading(pace, server, cpu)
            yield reading

    return session


def reserve_and_delete(plan: Plan, command: str) -> Generator[Reading, None, None]:
    """Put ready jobs, then take and delete them; as many as need about the time of a reading."""
    while True:
        with plan.stable.server(command) as server, Fleet(server.port, CONNECTIONS) as fleet:
            jobs = int(plan.seconds * 50_000)
            warm_up = int(jobs * WARM_UP_PART)
            spare = 2 * CONNECTIONS * IN_FLIGHT
            requests = prebuilt(put_request(0), IN_FLIGHT)
            fleet.put(requests, IN_FLIGHT, jobs=warm_up + jobs + spare)
            fleet.start_reserving(IN_FLIGHT)
            fleet.work(warm_up)
            cpu = server.cpu_seconds()
            pace = fleet.work(jobs)
            reading = rate_reading(pace, server, cpu)
        yield reading


def fill(server: Server, jobs: int, delay_s: float) -> Pace:
    """Put standing jobs as fast as the server takes them."""
    with Fleet(server.port, CONNECTIONS) as fleet:
        return fleet.put(prebuilt(put_request(delay_s), IN_FLIGHT), IN_FLIGHT, jobs=jobs)


def resident_memory(plan: Plan, command: str) -> Generator[Reading, None, None]:
    """Read the memory of a server that holds the standing jobs, and nothing else any more."""
    while True:
        with plan.stable.server(command) as server:
            empty = server.resident_bytes()
            fill(server, plan.jobs, HOUR_S)
            time.sleep(1)
            resident = server.resident_bytes()
        yield Reading(
            (resident / 2**20,),
            {"bytes a job": (resident - empty) / plan.jobs, "empty MiB": empty / 2**20},
        )


def bytes_a_job(kind: Callable[[int], Requests]) -> Session:
    """Return the session that reads how much memory each standing job takes."""

    def session(plan: Plan, command: str) -> Generator[Reading, None, None]:
        while True:
            with plan.stable.server(command) as server:
                empty = server.resident_bytes()
                with Fleet(server.port, CONNECTIONS) as fleet:
                    fleet.put(kind(IN_FLIGHT), IN_FLIGHT, jobs=plan.jobs)
                time.sleep(1)
                resident = server.resident_bytes()
            yield Reading(((resident - empty) / plan.jobs,), {"MiB": resident / 2**20})

    return session


def recovery(plan: Plan, command: str) -> Generator[Reading, None, None]:
    """Fill a log, kill -9, then start on it, each time to the first `stats` with all the jobs."""
    with plan.stable.directory() as directory:
        with plan.stable.server_on(command, directory) as server:
            fill(server, plan.jobs, HOUR_S)
        log_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())

        def all_there(stats: bytes) -> bool:
            return statistic(stats, b"current-jobs-delayed") == plan.jobs

        while True:
            with plan.stable.server_on(command, directory, all_there) as server:
                seconds = time.perf_counter() - server.started
            yield Reading((seconds,), {"log MiB": log_bytes / 2**20})


def churn(server: Server, plan: Plan) -> None:
    """Put, reserve and delete jobs: the log grows by 5 % of the standing jobs, nothing else."""
    jobs = plan.jobs // 20
    with Fleet(server.port, CONNECTIONS) as fleet:
        spare = 2 * CONNECTIONS * IN_FLIGHT
        fleet.put(prebuilt(put_request(0), IN_FLIGHT), IN_FLIGHT, jobs=jobs + spare)
        fleet.start_reserving(IN_FLIGHT)
        fleet.work(jobs)


def snapshots_in(directory: Path, pattern: str = "snapshot-*.snap") -> int:
    """Count the snapshots of a data directory; a stock server has none."""
    return len(list(directory.glob(pattern)))


def recovery_from_a_snapshot(plan: Plan, command: str) -> Generator[Reading, None, None]:
    """Fill a log, churn until there is a snapshot, kill -9, then start, as in `recovery`."""
    with plan.stable.directory() as directory:
        with plan.stable.server_on(command, directory) as server:
            fill(server, plan.jobs, HOUR_S)
            for _ in range(CHURNS_MAX):
                if snapshots_in(directory) or not list(directory.glob("segment-*")):
                    break
                churn(server, plan)
                time.sleep(SETTLE_S)
            else:
                raise ServerSilentError("no snapshot was taken")

        def all_there(stats: bytes) -> bool:
            return statistic(stats, b"current-jobs-delayed") == plan.jobs

        while True:
            with plan.stable.server_on(command, directory, all_there) as server:
                seconds = time.perf_counter() - server.started
            yield Reading((seconds,), {"snapshots": snapshots_in(directory)})


def beside_a_snapshot(plan: Plan, command: str) -> Generator[Reading, None, None]:
    """Send a steady stream through a server while it takes a snapshot of the standing jobs.

    The standing jobs' bodies are random digits, which compress as badly as any text does.
    """
    while True:
        with (
            plan.stable.directory() as directory,
            plan.stable.server_on(command, directory) as (server),
        ):
            with Fleet(server.port, CONNECTIONS) as fleet:
                fleet.put(random_puts, IN_FLIGHT, jobs=plan.jobs)
            cpu = server.cpu_seconds()
            beside = beside_a_task(
                server.port,
                per_second=STREAM_PER_SECOND // 2,
                workers=2 * CONNECTIONS,
                seconds_max=SNAPSHOT_SECONDS_MAX,
                is_going_on=lambda: snapshots_in(directory, "snapshot-*.new") > 0,
            )
            cpu = server.cpu_seconds() - cpu
        late = beside.arrivals.lateness_s
        yield Reading(
            (beside.held_s * 1e3, percentile(late, 99) * 1e3),
            {
                "snapshot s": beside.took_s,
                "jobs": len(late),
                "early": beside.arrivals.early,
                "p50 ms": percentile(late, 50) * 1e3,
                "max ms": percentile(late, 100) * 1e3,
                "generator's worst turn ms": beside.own_lag_s * 1e3,
                "server cpu s": cpu,
            },
        )


def random_puts(count: int) -> bytes:
    """Return so many puts with bodies of random digits, due in an hour."""
    digits = b"%0*x" % (BODY_BYTES * count, random.getrandbits(4 * BODY_BYTES * count))
    return b"".join(
        put_request(HOUR_S, digits[at : at + BODY_BYTES])
        for at in range(0, BODY_BYTES * count, BODY_BYTES)
    )


def lateness(per_second: int, workers: int, *, one_in_flight: bool = False) -> Session:
    """Return the session that sends short delays through a server with the standing jobs.

    Its values: early jobs, p99 and p50 of the lateness in ms.
    """

    def session(plan: Plan, command: str) -> Generator[Reading, None, None]:
        while True:
            with plan.stable.server(command) as server:
                fill(server, plan.jobs, HOUR_S)
                cpu = server.cpu_seconds()
                began = time.perf_counter()
                steady = steady_stream(
                    server.port,
                    per_second=per_second,
                    workers=workers,
                    seconds=5 * plan.seconds,
                    one_in_flight=one_in_flight,
                )
                share = (server.cpu_seconds() - cpu) / (time.perf_counter() - began)
            late = steady.arrivals.lateness_s
            p50_ms, p99_ms = (percentile(late, percent) * 1e3 for percent in (50, 99))
            yield Reading(
                (float(steady.arrivals.early), p99_ms, p50_ms),
                {
                    "jobs": len(late),
                    "min ms": min(late, default=0.0) * 1e3,
                    "p50 ms": p50_ms,
                    "max ms": percentile(late, 100) * 1e3,
                    "generator cpu %": 100 * steady.generator_share,
                    "generator's worst turn ms": steady.own_lag_s * 1e3,
                    "server cpu %": 100 * share,
                },
            )

    return session


def taken_by_lone_workers(plan: Plan, command: str) -> Generator[Reading, None, None]:
    """Have workers with one command in flight take what they can, beside the standing jobs."""
    while True:
        with plan.stable.server(command) as server:
            fill(server, plan.jobs, HOUR_S)
            cpu = server.cpu_seconds()
            began = time.perf_counter()
            pace = sustained(server.port, workers=LONE_WORKERS, seconds=plan.seconds)
            share = (server.cpu_seconds() - cpu) / (time.perf_counter() - began)
        yield Reading(
            (pace.per_second,),
            {"generator cpu %": 100 * pace.generator_share, "server cpu %": 100 * share},
        )


def takes_fractions(port: int) -> bool:
    """Whether the server knows delays of less than a second; a stock one calls them BAD_FORMAT."""
    with Fleet(port, 1) as fleet:
        fleet.converse(b"use fractions\r\n", b"USING fractions\r\n")
        try:
            fleet.put(prebuilt(put_request(3600.5), 1), 1, jobs=1)
        except UnexpectedReplyError:
            return False
        return True


def fill_for_instant(server: Server, plan: Plan) -> tuple[float, Pace]:
    """Put all standing jobs on `BURST_TUBE` with one due time; return it and the pace.

    A server that only knows whole seconds gets them due within one second after the instant.
    """
    fractions = takes_fractions(server.port)
    with Fleet(server.port, CONNECTIONS) as fleet:
        trial = fleet.put(prebuilt(put_request(WEEK_S), IN_FLIGHT), IN_FLIGHT, seconds=0.5)
        fleet.converse(b"use %b\r\n" % BURST_TUBE, b"USING %b\r\n" % BURST_TUBE)
        instant = time.perf_counter() + STREAM_FLOWS_S + 1 + 1.5 * plan.jobs / trial.per_second

        def requests(count: int) -> bytes:
            delay_s = instant - time.perf_counter()
            return put_request(delay_s if fractions else math.ceil(delay_s)) * count

        pace = fleet.put(requests, IN_FLIGHT, jobs=plan.jobs)
    if time.perf_counter() > instant - STREAM_FLOWS_S:
        raise ServerSilentError("the jobs came due while they were being put; take fewer --jobs")
    return instant, pace


def one_instant(plan: Plan, command: str) -> Generator[Reading, None, None]:
    """Let all standing jobs come due at once, and look at what others see of it."""

    def fired(stats_tube: bytes) -> bool:
        ready = statistic(stats_tube, b"current-jobs-ready")
        return ready == plan.jobs

    while True:
        with plan.stable.server(command) as server:
            instant, _ = fill_for_instant(server, plan)
            time.sleep(max(0.0, instant - STREAM_FLOWS_S - time.perf_counter()))
            if statistic(ask(server.port, b"stats-tube burst\r\n"), b"current-jobs-ready"):
                raise UnexpectedReplyError("jobs of the burst were ready before its instant")
            burst = beside_a_burst(
                server.port,
                tube=BURST_TUBE,
                instant=instant,
                seconds_max=BURST_SECONDS_MAX,
                fired=fired,
            )
        late = burst.arrivals.lateness_s
        yield Reading(
            (burst.held_s * 1e3, percentile(late, 99) * 1e3),
            {
                "seconds until all were ready": burst.took_s,
                "neighbours' jobs": len(late),
                "neighbours early": burst.arrivals.early,
                "neighbours' max ms": percentile(late, 100) * 1e3,
                "probes": burst.probes,
                "generator's worst turn ms": burst.own_lag_s * 1e3,
            },
        )


def idle(plan: Plan, command: str) -> Generator[Reading, None, None]:
    """Count how often a server that has nothing to do for a week goes back to sleep."""
    while True:
        with plan.stable.server(command) as server:
            fill(server, plan.jobs, WEEK_S)
            time.sleep(SETTLE_S)
            wake_ups, cpu = server.wake_ups(), server.cpu_seconds()
            window_s = min(10 * plan.seconds, WATCHDOG_S)
            time.sleep(window_s)
            reading = Reading(
                (float(server.wake_ups() - wake_ups),),
                {"window s": window_s, "server cpu s": server.cpu_seconds() - cpu},
            )
        yield reading


def at_least(ratio: float) -> Target:
    """Return the target of so many times the peer's figure, or more."""
    return Target(Bound.RATIO_AT_LEAST, ratio)


def at_most(value: float) -> Target:
    """Return the target of this figure or less, whatever the peer does."""
    return Target(Bound.VALUE_AT_MOST, value)


NO_MORE_THAN_THE_PEER: Final = Target(Bound.RATIO_AT_MOST, 1.0)

ROWS: Final = (
    Row(
        1,
        (Measure("puts 50 x 20, always / no log", "/s", at_least(1.5)),),
        puts(CONNECTIONS, IN_FLIGHT),
        NO_LOG,
    ),
    Row(
        2,
        (Measure("puts 50 x 20, always / -f 0", "/s", at_least(15)),),
        puts(CONNECTIONS, IN_FLIGHT),
        SYNC_EACH,
    ),
    Row(
        3,
        (Measure("reserve + delete 50 x 20, always / no log", "/s", at_least(3)),),
        reserve_and_delete,
        NO_LOG,
    ),
    Row(
        4,
        (Measure("puts 1 x 1, always / -f 0", "/s", at_least(0.85)),),
        puts(1, 1),
        SYNC_EACH,
    ),
    Row(
        5,
        (Measure("puts 50 x 1, interval / -f 50", "/s", at_least(1.0)),),
        puts(CONNECTIONS, 1),
        SYNC_50_MS,
        sync="interval",
    ),
    Row(
        6,
        (Measure("resident memory, standing jobs", "MiB", NO_MORE_THAN_THE_PEER),),
        resident_memory,
        NO_LOG,
        runs_max=3,
    ),
    Row(
        7,
        (Measure("exec to serving after kill -9", "s", NO_MORE_THAN_THE_PEER),),
        recovery,
        NEVER_SYNC,
    ),
    Row(
        8,
        (
            Measure("early at 10,000 jobs/s", "jobs", at_most(0), max),
            Measure("p99 lateness at 10,000 jobs/s", "ms", at_most(2)),
        ),
        lateness(STREAM_PER_SECOND, CONNECTIONS),
        NO_LOG,
        runs_max=3,
    ),
    Row(
        9,
        (
            Measure("one instant: loop held", "ms", at_most(10), max),
            Measure("one instant: neighbours' p99 lateness", "ms", at_most(10)),
        ),
        one_instant,
        NO_LOG,
        runs_max=3,
    ),
    Row(
        10,
        (Measure("idle wake-ups, standing jobs", "", at_most(1), max),),
        idle,
        NO_LOG,
        runs_max=1,
    ),
    Row(
        11,
        (Measure("exec to serving from a snapshot", "s", NO_MORE_THAN_THE_PEER),),
        recovery_from_a_snapshot,
        NEVER_SYNC,
    ),
    Row(
        12,
        (
            Measure("beside a snapshot: loop held", "ms", at_most(5), max),
            Measure("beside a snapshot: p99 lateness", "ms", at_most(5)),
        ),
        beside_a_snapshot,
        NO_LOG,
        runs_max=3,
    ),
    Row(
        13,
        (Measure("puts with keys 50 x 20 / without", "/s", at_least(0.8)),),
        puts(CONNECTIONS, IN_FLIGHT, keyed_requests),
        DELAYD,
        peer_session=puts(CONNECTIONS, IN_FLIGHT),
    ),
    Row(
        14,
        (
            Measure(
                "memory of a job with a key / without", "bytes", Target(Bound.MORE_AT_MOST, 120)
            ),
        ),
        bytes_a_job(keyed_requests),
        DELAYD,
        runs_max=3,
        peer_session=bytes_a_job(unkeyed),
    ),
    Row(
        15,
        (
            Measure("eight lone workers, 2,000 jobs/s: early", "jobs", at_most(0), max),
            Measure("eight lone workers, 2,000 jobs/s: p99 lateness", "ms", NO_MORE_THAN_THE_PEER),
            Measure(
                "eight lone workers, 2,000 jobs/s: p50 lateness",
                "ms",
                Target(Bound.RATIO_AT_MOST, 2.0),
            ),
        ),
        lateness(LONE_PER_SECOND, LONE_WORKERS, one_in_flight=True),
        SYNC_DEFAULT,
        runs_max=3,
    ),
    Row(
        16,
        (Measure("due jobs that eight lone workers take", "/s", at_least(0.9)),),
        taken_by_lone_workers,
        SYNC_DEFAULT,
        runs_max=3,
    ),
)
