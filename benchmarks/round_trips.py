"""One command in flight on each connection: what clients that wait for each answer get.

Clients put and wait, reserve and wait, delete and wait. For each operation and number of
connections every server of `CONTESTANTS` gives one reading in turn (A B C D E A B …), with a new
process and an empty directory, so that a slow minute of the machine meets all of them.

A reading has the rate, the time from sending a command to its reply, and the processor time that
the server's threads took by the kernel's scheduler. An operation "reserve + delete" is two
commands; its rate and its processor time count jobs, its times count commands.
"""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.load import RESERVED, Fleet, UnexpectedReplyError, prebuilt, put_request
from benchmarks.peers import DELAYD, NO_LOG, SYNC_DEFAULT, SYNC_EACH
from benchmarks.plan import Plan
from benchmarks.table import (
    Bound,
    Measure,
    Outcome,
    Target,
    number_words,
    percentile,
    ratio_words,
    render,
)

CONNECTIONS: Final = (1, 8, 50, 200)
WARM_UP_PART: Final = 0.25
FILL_CONNECTIONS: Final = 50
FILL_IN_FLIGHT: Final = 20


@dataclass(frozen=True, slots=True)
class Contestant:
    """A server that takes part; `sync` is delayd's policy, and empty for beanstalkd."""

    name: str
    command: str
    sync: str = ""
    jobs_per_second_max: int = 60_000
    """More than it can hand out; so many jobs are there for it before the clock starts."""


ALWAYS: Final = Contestant("always", DELAYD, "always")
INTERVAL: Final = Contestant("interval", DELAYD, "interval")
BINLOG: Final = Contestant("b", SYNC_DEFAULT)
SYNCED: Final = Contestant("f0", SYNC_EACH, jobs_per_second_max=10_000)
CONTESTANTS: Final = (ALWAYS, INTERVAL, BINLOG, SYNCED, Contestant("no log", NO_LOG))


@dataclass(frozen=True, slots=True)
class RoundTrips:
    """One reading."""

    per_second: float
    p50_ms: float
    p99_ms: float
    user_us: float
    """Processor time of the server for each operation, in user mode; `system_us` in the kernel."""
    system_us: float
    generator_share: float


def after_put(reply: bytes) -> bytes:
    """Return the put that follows the reply to one; empty while the reply is not whole."""
    if not reply.startswith(b"INSERTED "):
        raise UnexpectedReplyError(f"a put was answered {reply[:80]!r}")
    return PUT if reply.endswith(b"\n") else b""


def after_work(reply: bytes) -> bytes:
    r"""Return what follows a reply to reserve or delete; empty while the reply is not whole.

    >>> after_work(b"DELETED\r\n")
    b'reserve\r\n'
    """
    if reply == b"DELETED\r\n":
        return RESERVE
    reserved = RESERVED.match(reply)
    if reserved is None:
        raise UnexpectedReplyError(f"reserve or delete was answered {reply[:80]!r}")
    return b"delete %b\r\n" % reserved[1] if reply.count(b"\n") == 2 else b""


PUT: Final = put_request(3_600)
RESERVE: Final = b"reserve\r\n"


@dataclass(frozen=True, slots=True)
class Operation:
    """What clients do: the first command, what follows a reply, commands in one operation."""

    name: str
    first: bytes
    following: Callable[[bytes], bytes]
    commands: int
    needs_jobs: bool


OPERATIONS: Final = (
    Operation("put", PUT, after_put, 1, needs_jobs=False),
    Operation("reserve + delete", RESERVE, after_work, 2, needs_jobs=True),
)


def reading(plan: Plan, command: str, who: Contestant, what: Operation, clients: int) -> RoundTrips:
    """Measure one server once, with so many clients."""
    with plan.stable.server(command) as server:
        operations_max = int(who.jobs_per_second_max * plan.seconds * (1 + WARM_UP_PART))
        if what.needs_jobs:
            with Fleet(server.port, FILL_CONNECTIONS) as fleet:
                requests = prebuilt(put_request(0), FILL_IN_FLIGHT)
                fleet.put(requests, FILL_IN_FLIGHT, jobs=operations_max + 4 * clients)
        with Fleet(server.port, clients) as fleet:
            warm_up = plan.seconds * WARM_UP_PART
            budget = operations_max * what.commands
            budget -= len(fleet.wait_for_each(what.first, what.following, warm_up, budget)[1])
            cpu_s, ticks = server.scheduled_seconds(), server.cpu_ticks()
            pace, times_s = fleet.wait_for_each(what.first, what.following, plan.seconds, budget)
            cpu_s = server.scheduled_seconds() - cpu_s
            user, system = (
                after - before for after, before in zip(server.cpu_ticks(), ticks, strict=True)
            )
    operations = len(times_s) / what.commands
    cpu_us = cpu_s / operations * 1e6
    # The scheduler counts nanoseconds; the ticks of the clock only divide its sum.
    user_part = user / (user + system) if user + system else 1.0
    return RoundTrips(
        per_second=operations / pace.seconds,
        p50_ms=percentile(times_s, 50) * 1e3,
        p99_ms=percentile(times_s, 99) * 1e3,
        user_us=cpu_us * user_part,
        system_us=cpu_us * (1 - user_part),
        generator_share=pace.generator_share,
    )


@dataclass(frozen=True, slots=True)
class Group:
    """The readings of all servers for one operation and number of clients, by contestant."""

    operation: Operation
    clients: int
    readings: dict[str, list[RoundTrips]]

    @property
    def name(self) -> str:
        """The first cell of its lines."""
        return f"{self.operation.name}, {self.clients} x 1"

    def median(self, who: Contestant, value: Callable[[RoundTrips], float]) -> float:
        """Return the median of one value of a server's readings."""
        return statistics.median(map(value, self.readings[who.name]))

    def rates(self, who: Contestant) -> list[float]:
        """Return a server's rates, reading by reading."""
        return [reading.per_second for reading in self.readings[who.name]]

    def ratios(self, who: Contestant, peer: Contestant) -> list[float]:
        """Return a server's rates over those of a peer that were taken beside them."""
        return [
            ours / theirs for ours, theirs in zip(self.rates(who), self.rates(peer), strict=True)
        ]


RATIOS: Final = ((ALWAYS, BINLOG), (INTERVAL, BINLOG), (ALWAYS, SYNCED))
GOALS: Final = {
    ("put", 50): ((ALWAYS, BINLOG, 1.0), (INTERVAL, BINLOG, 1.3)),
    ("reserve + delete", 50): ((ALWAYS, BINLOG, 1.0), (INTERVAL, BINLOG, 1.3)),
    ("put", 8): ((ALWAYS, SYNCED, 4.0),),
    ("reserve + delete", 8): ((ALWAYS, SYNCED, 3.0),),
    ("put", 1): ((ALWAYS, SYNCED, 1.0),),
    ("reserve + delete", 1): ((ALWAYS, SYNCED, 1.0),),
}
"""The ratio that delayd, compiled, has to reach."""


def measure(
    plan: Plan,
    runs: int,
    connections: Sequence[int],
    command_of: Callable[[Contestant], str],
) -> Iterable[Group]:
    """Measure every operation with every number of clients; yield each group when it is done."""
    for what in OPERATIONS:
        for clients in connections:
            group = Group(what, clients, {who.name: [] for who in CONTESTANTS})
            for _ in range(runs):
                for who in CONTESTANTS:
                    taken = reading(plan, command_of(who), who, what, clients)
                    group.readings[who.name].append(taken)
                    time.sleep(0.1)  # the processors' and the disk's queues run empty
            yield group


def tables(groups: Sequence[Group]) -> str:
    """Write rates and ratios, times, processor time, and which goals are met."""
    names = [f"delayd {who.name}" if who.sync else who.name for who in CONTESTANTS]
    rates = [
        (
            group.name,
            *(
                f"{number_words(group.median(who, lambda r: r.per_second))}/s"
                for who in CONTESTANTS
            ),
            *(ratio_words(group.ratios(*pair)) for pair in RATIOS),
        )
        for group in groups
    ]
    times = [
        (
            group.name,
            *(
                f"{group.median(who, lambda r: r.p50_ms):.2f} / "
                f"{group.median(who, lambda r: r.p99_ms):.2f}"
                for who in CONTESTANTS
            ),
        )
        for group in groups
    ]
    processor = [
        (
            group.name,
            *(
                f"{group.median(who, lambda r: r.user_us):.0f} + "
                f"{group.median(who, lambda r: r.system_us):.0f}"
                for who in CONTESTANTS
            ),
            f"{max(group.median(who, lambda r: r.generator_share) for who in CONTESTANTS):.0%}",
        )
        for group in groups
    ]
    parts = [
        render(rates, ("rate", *names, *(f"{ours.name} / {peer.name}" for ours, peer in RATIOS))),
        render(times, ("p50 / p99, ms", *names)),
        render(processor, ("user + system, µs", *names, "generator, at most")),
    ]
    if goals := goals_of(groups):
        parts.append(render(goals))
    return "\n\n".join(parts)


def goals_of(groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """Return a line of the table for each goal of the groups."""
    lines: list[tuple[str, ...]] = []
    for group in groups:
        for ours, peer, goal in GOALS.get((group.operation.name, group.clients), ()):
            measure = Measure(
                f"{group.name}, {ours.name} / {peer.name}",
                "/s",
                Target(Bound.RATIO_AT_LEAST, goal),
            )
            outcome = Outcome(measure, group.rates(ours), group.rates(peer))
            lines.append(outcome.cells(len(lines) + 1))
    return lines


def as_json(group: Group) -> dict[str, object]:
    """Return everything about a group."""
    return {
        "operation": group.operation.name,
        "clients": group.clients,
        "readings": {
            name: [
                {field: getattr(taken, field) for field in RoundTrips.__slots__} for taken in all_of
            ]
            for name, all_of in group.readings.items()
        },
    }
