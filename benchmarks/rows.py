"""The rows of the table: what each one does to a server, and the figure delayd must reach.

A row is a *session* on each of two servers: a generator that gives one reading whenever it is
asked, so that the caller can alternate between the two. Each reading gets a new server and an empty
directory.

`ROWS` is the table of the specification; which server a session is given is decided here too,
because a peer is only a peer with the right flags.
"""

import time
from collections.abc import Callable, Generator
from typing import Final

from benchmarks.load import (
    HOUR_S,
    Fleet,
    Pace,
    keyed_requests,
    prebuilt,
    put_request,
)
from benchmarks.peers import (
    DELAYD,
    NO_LOG,
    SYNC_50_MS,
    SYNC_EACH,
    Server,
)
from benchmarks.plan import Plan, Reading, Row, Session
from benchmarks.table import Bound, Measure, Target

CONNECTIONS: Final = 50
IN_FLIGHT: Final = 20
WARM_UP_PART: Final = 0.25
WEEK_S: Final = 7 * 24 * HOUR_S
SETTLE_S: Final = 3.0
"""Time for a server to finish what it does after a load, before it is called idle."""

WATCHDOG_S: Final = 60.0


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
        (Measure("idle wake-ups, standing jobs", "", at_most(1), max),),
        idle,
        NO_LOG,
        runs_max=1,
    ),
    Row(
        7,
        (Measure("puts with keys 50 x 20 / without", "/s", at_least(0.8)),),
        puts(CONNECTIONS, IN_FLIGHT, keyed_requests),
        DELAYD,
        peer_session=puts(CONNECTIONS, IN_FLIGHT),
    ),
    Row(
        8,
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
)
