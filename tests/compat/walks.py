"""Walks: one stream of random steps through a lockstep, a function of its seed and of replies."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import pytest

from tests.compat.lockstep import Act, Difference, Distortion, Lockstep, Step
from tests.compat.streams import JOB_BYTES_MAX, Commands
from tests.servers import Server

CONNECTIONS: Final = 4
STEPS: Final = 60
POURS: Final = 6
# With a ttr of 1 a reservation ends after a second: until then the walk must be over, or whether it
# did depends on the machine.
WALK_S_MAX: Final = 0.8
TRIES: Final = 10
Starter = Callable[[], Server]
Scan = Callable[[Lockstep, random.Random], None]


class Pair:
    """Two servers in lockstep, started when first needed and anew after they have disagreed."""

    def __init__(
        self,
        reference: Starter,
        candidate: Starter,
        distortion: Distortion | None = None,
    ) -> None:
        self._starters = (reference, candidate)
        self._distortion = distortion
        self._stack = ExitStack()
        self._lockstep: Lockstep | None = None
        self.servers: tuple[Server, ...] = ()

    @property
    def lockstep(self) -> Lockstep:
        if self._lockstep is None:
            self.servers = tuple(self._stack.enter_context(start()) for start in self._starters)
            reference, candidate = self.servers
            self._lockstep = self._stack.enter_context(
                Lockstep(reference.address, candidate.address, self._distortion)
            )
        return self._lockstep

    def stop(self) -> None:
        self._stack.close()
        self._stack = ExitStack()
        self._lockstep = None

    @contextmanager
    def running(self) -> Iterator["Pair"]:
        try:
            yield self
        finally:
            self.stop()


def random_step(lockstep: Lockstep, rng: random.Random, commands: Commands) -> Step:
    connection = rng.randrange(CONNECTIONS)
    commands.own = lockstep.jobs_of(connection)
    kind = rng.random()
    if kind < 0.03:
        return Step(connection, Act.CLOSE)
    if kind < 0.05:
        return Step(connection, Act.HALF_CLOSE)
    if kind < 0.06:
        return Step(connection, units=(rng.choice((b"quit\r\n", b"quitfoo\r\n")),))
    units = tuple(commands.unit() for _ in range(rng.choice((1, 1, 1, 1, 2, 3, 5))))
    return Step(connection, units=units, cuts=random_cuts(rng))


def random_cuts(rng: random.Random) -> tuple[int, ...]:
    return tuple(rng.randrange(2**20) for _ in range(rng.choice((0, 0, 0, 1, 2, 4))))


def walk(lockstep: Lockstep, rng: random.Random, body_bytes_max: int = JOB_BYTES_MAX) -> None:
    """Commands on several connections, each with one reply or waiting."""
    commands = Commands(rng, lambda: lockstep.jobs, body_bytes_max)
    with lockstep.stream():
        for _ in range(STEPS):
            lockstep.take(random_step(lockstep, rng, commands))


def pour_noise(lockstep: Lockstep, rng: random.Random) -> None:
    """Commands amid bytes that end lines too late or never, on one connection after the other."""
    commands = Commands(rng, lambda: lockstep.jobs)
    with lockstep.stream():
        for number in range(POURS):
            pieces = tuple(
                commands.framing_noise() if rng.random() < 0.3 else commands.unit()
                for _ in range(rng.randrange(1, 12))
            )
            lockstep.take(Step(number, Act.POUR, (*pieces, b"\r\n"), random_cuts(rng)))


def check(pair: Pair, seed: str, walk: Scan) -> None:
    """Take a walk; raise the first `Difference` with its seed.

    One that took long is taken again: its jobs may have timed out at different commands. Where each
    takes long nothing can be told. So is one, once, that differs in nothing but how many have
    connected: the system gives a server the port of one that is gone, for which a client of another
    test may still ask.
    """
    __tracebackhide__ = True  # the transcript tells; how we came to compare does not
    strangers = 0
    for _ in range(TRIES):
        lockstep = pair.lockstep  # starts the servers before the clock
        started = time.monotonic()
        try:
            walk(lockstep, random.Random(seed))
        except Difference as difference:
            seconds = time.monotonic() - started - lockstep.in_vain_s
            pair.stop()
            if seconds > WALK_S_MAX:
                continue
            strangers += difference.is_of_connections
            if difference.is_of_connections and strangers == 1:
                continue
            difference.add_note(f"This walk again: seed {seed!r}. It took {seconds:.1f} s.")
            raise
        else:
            return
    pytest.skip(f"this machine takes more than {WALK_S_MAX} s for a walk, each of {TRIES} times")
