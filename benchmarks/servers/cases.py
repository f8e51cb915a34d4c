"""The chapter `servers`: each server does each operation, in several sizes."""

import functools
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.registry import Case
from benchmarks.servers import beanstalkd, delayd, head_of_line, postgres, rabbitmq, redis
from benchmarks.servers.generator import Load
from benchmarks.servers.operations import FILL, IDLE_JOBS, OPERATIONS, RECOVERY_JOBS, measure
from benchmarks.servers.peer import Peer, case_of

ONE, EIGHT, FIFTY, MANY = Load(1, 1), Load(8, 1), Load(50, 1), Load(500, 1)
PIPELINED: Final = Load(50, 20)
LOADS: Final = (
    *(ONE, EIGHT, FIFTY, MANY, Load(1, 20), PIPELINED),
    *(Load(50, 1, 1_024), Load(50, 1, 16_384)),
)
SIZES: Final = {
    "put": LOADS,
    "keyed put": (FIFTY, PIPELINED),
    "reserve + ack": LOADS,
    "mixed": (EIGHT, FIFTY, MANY, PIPELINED),
}
REPEATED: Final = {("put", ONE), ("put", FIFTY), ("put", PIPELINED), ("reserve + ack", FIFTY)}
"""What is read as often as the effort says; all else is read once."""


def peers() -> Sequence[Peer]:
    """Return all servers, in the order in which they take turns."""
    return [
        *delayd.peers(),
        *beanstalkd.peers(),
        *redis.peers(),
        *rabbitmq.peers(),
        *postgres.peers(),
    ]


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [*load_cases(), *head_of_line.cases(), *standing_cases()]


def load_cases() -> Iterator[Case]:
    """Yield what is measured under load."""
    for operation, loads in SIZES.items():
        for load in loads:
            for peer in peers():
                size = {
                    "connections": load.connections,
                    "in flight": load.in_flight,
                    "bytes": load.body_bytes,
                }
                taken = functools.partial(measure, peer, OPERATIONS[operation], load)
                runs_max = None if (operation, load) in REPEATED else 1
                yield case_of(peer, "servers", operation, size, taken, runs_max)


def standing_cases() -> Iterator[Case]:
    """Yield what is measured with jobs that wait: idle servers, and starts after kill -9."""
    for operation, jobs in (("idle", IDLE_JOBS), ("recovery", RECOVERY_JOBS)):
        for peer in peers():
            taken = functools.partial(measure, peer, OPERATIONS[operation], FILL)
            yield case_of(peer, "servers", operation, {"jobs": jobs}, taken, 1)
