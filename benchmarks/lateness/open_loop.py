"""Jobs offered at moments that were fixed before, and how late each is when a worker has it.

The load is *open loop*: a job is put at its moment whether or not the server has answered the last
one. A server that stalls therefore cannot slow the load down and hide its stall: what would have
come meanwhile comes, and waits, and its wait counts (a load that waits with the server leaves that
out: Gil Tene calls it coordinated omission). What a full socket does not take is kept here, and
counts from when it was offered. One thread does it all under one epoll.

    due       just before the put was sent (or offered to a full socket) + its delay
    lateness  received - due: with the ways of put and job, and the wait for a free worker
    early     lateness < 0: whatever happened on the way, it came too soon

Example: put sent at 10.000 s with a delay of 1 s, body received at 11.0013 s: 1.3 ms late. Received
at 10.9995 s: early. The server stalls from 11.1 to 11.5 s: the job due at 11.2 s is 300 ms late,
and the one due at 11.3 s, put before the stall like the other, 200 ms.

A job that never comes is lost; it counts as late until it is given up. The generator shares the
machine, so it keeps a record of its own longest turn as well (`own_lag_s`): lateness that is not
more than this may have been the generator's.
"""

import contextlib
import select
import socket
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from benchmarks.line import (
    PATIENCE_S,
    RECEIVE_BYTES,
    ServerSilentError,
    UnexpectedReplyError,
    connect,
)
from benchmarks.registry import Values
from benchmarks.servers.generator import Times, Unanswered
from benchmarks.servers.peer import Heard, Reached
from benchmarks.table import percentile

BODY_BYTES: Final = 100
TURN_S: Final = 0.001
STRAGGLERS_S: Final = 10.0
"""Jobs that are on their way when none has come for so long are lost."""
UNANSWERED_MAX: Final = 200
"""Of a saturated offer: so many fit any socket buffer, and one sync serves them all."""
PERCENTILES: Final = {"p50_ms": 50.0, "p90_ms": 90.0, "p99_ms": 99.0, "p999_ms": 99.9}

Clock = Callable[[], float]
"""Seconds, from any moment on."""
Greeting = Callable[[socket.socket], None]
"""What is said at first, on a socket that blocks."""


def say_nothing(_: socket.socket) -> None:
    """Stay in the queue in which connections begin."""


class Wire:
    """A connection that takes all that it is given at once, and sends it as the kernel lets it."""

    def __init__(self, sock: socket.socket, received: Callable[[bytes], None]) -> None:
        self.sock = sock
        self.received = received
        self._unsent = bytearray()

    def send(self, request: bytes) -> None:
        """Send it after what has not been sent yet."""
        if not self._unsent:
            with contextlib.suppress(BlockingIOError):  # the server does not read: keep it
                request = request[self.sock.send(request) :]
            if not request:
                return
        self._unsent += request

    def flush(self) -> None:
        """Try again with what a full socket did not take."""
        if self._unsent:
            with contextlib.suppress(BlockingIOError):
                del self._unsent[: self.sock.send(self._unsent)]


class Loop:
    """An epoll whose turns come at least every millisecond."""

    def __init__(self, clock: Clock = time.perf_counter, turn_s: float = TURN_S) -> None:
        self.clock = clock
        self.own_lag_s = 0.0
        self._turn_s = turn_s
        self._epoll = select.epoll()
        self._wires: dict[int, Wire] = {}
        self._each_turn: list[Callable[[float], None]] = []

    def connect(
        self,
        port: int,
        greet: Greeting,
        received: Callable[[bytes], None],
    ) -> Wire:
        """Open a connection, let `greet` speak on it, and hand over what arrives later."""
        sock = connect(port)
        sock.settimeout(PATIENCE_S)
        greet(sock)
        sock.setblocking(False)
        wire = Wire(sock, received)
        self._wires[sock.fileno()] = wire
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        return wire

    def each_turn(self, action: Callable[[float], None]) -> None:
        """Call `action(now)` in every turn from now on."""
        self._each_turn.append(action)

    def run(self, until: Callable[[float], bool]) -> None:
        """Turn until `until(now)`; raise `ServerSilentError` if a connection is closed."""
        last = self.clock()
        while not until(last):
            for action in self._each_turn:
                action(last)
            for descriptor, _ in self._epoll.poll(self._turn_s):
                wire = self._wires[descriptor]
                data = wire.sock.recv(RECEIVE_BYTES)
                if not data:
                    raise ServerSilentError("the server closed a connection")
                wire.received(data)
            for wire in self._wires.values():
                wire.flush()
            now = self.clock()
            self.own_lag_s = max(self.own_lag_s, now - last - self._turn_s)
            last = now

    def run_for(self, seconds: float) -> None:
        """Turn for so long."""
        ends = self.clock() + seconds
        self.run(lambda now: now >= ends)

    def close(self) -> None:
        """Close all connections."""
        self._epoll.close()
        for wire in self._wires.values():
            wire.sock.close()


def steadily(per_second: float) -> Iterator[float]:
    """Yield moments at a fixed rate, in seconds from the start."""
    number = 0
    while True:
        yield number / per_second
        number += 1


def at_random(per_second: float, random: Random) -> Iterator[float]:
    """Yield moments that have nothing to do with each other, as those of people (Poisson's)."""
    moment = 0.0
    while True:
        moment += random.expovariate(per_second)
        yield moment


def never() -> Iterator[float]:
    """Yield the moment of a job that does not come."""
    while True:
        yield float("inf")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of the jobs of an offer."""

    lateness_s: Sequence[float]
    """Of those due in a span, in the order of their puts."""
    early: int
    """Of all jobs, as the others: handed out before they were due."""
    lost: int
    doubled: int
    """Handed out again."""

    def values(self) -> Values:
        """Return the percentiles, and what has to be 0."""
        return {
            **spread(self.lateness_s),
            "early": self.early,
            "lost": self.lost,
            "doubled": self.doubled,
        }


def spread(times_s: Sequence[float]) -> Values:
    """Return the shortest, the longest and the percentiles; not a percentile that one alone sets.

    >>> sorted(spread([0.001] * 9 + [0.002]))
    ['least_ms', 'p50_ms', 'p90_ms', 'worst_ms']
    """
    times_ms = sorted(time_s * 1e3 for time_s in times_s)
    if not times_ms:
        return {}
    found = {
        name: percentile(times_ms, percent)
        for name, percent in PERCENTILES.items()
        if len(times_ms) * (100 - percent) >= 99.9  # 1,000 for p99.9, less what a float is off
    }
    return {"least_ms": times_ms[0], **found, "worst_ms": times_ms[-1]}


class Offer:
    """Jobs that are put at their moments, and workers with one command in flight each."""

    def __init__(
        self,
        loop: Loop,
        server: Reached,
        *,
        workers: int,
        delay_ms: int,
        producers: int = 1,
        poll_s: float = 0.0,
        first: int = 0,
    ) -> None:
        """Connect. Producers take turns with the jobs.

        The numbers of the jobs begin with `first`; smaller ones are of jobs that stand there.

        A worker that is told there is no job asks again after `poll_s`; they begin one after the
        other, spread over that time.
        """
        self.clock = loop.clock
        self.arrived = 0
        self.answered = 0
        self.answers: Times = []
        """The times of puts, from when they were offered to their acknowledgements."""
        self._loop = loop
        self._delay_ms = delay_ms
        self._first = first
        self._moments = never()
        self._next = float("inf")
        self._began = 0.0
        self._is_saturated = False
        self._fills_until = 0.0
        self._due = array("d")
        self._received = array("d")
        self._fresh = array("d")
        self._doubled = 0
        self._last_arrival = loop.clock()
        self._producers = [Producer(self, Spoken(loop, server)) for _ in range(producers)]
        self._workers = [
            Worker(self, Spoken(loop, server), poll_s, loop.clock() + poll_s * number / workers)
            for number in range(workers)
        ]
        loop.each_turn(self._turn)

    def start(self, moments: Iterator[float]) -> None:
        """Put a job at each of these moments, from now on."""
        self._began = self.clock()
        self._moments = moments
        self._next = self._began + next(moments)

    def saturate(self, seconds: float) -> None:
        """Put as fast as answers come for so long, then one for each that arrives.

        That is a closed loop, which finds the peak and no lateness. If `seconds` are more than the
        delay, more jobs are always due than are taken: a put is no slower than all of a job.
        """
        self._is_saturated = True
        self._fills_until = self.clock() + seconds

    def stop(self) -> None:
        """Put no more."""
        self._is_saturated, self._fills_until = False, 0.0
        self._moments, self._next = never(), float("inf")

    def drain(self) -> None:
        """Put no more, and wait until every job has arrived, or until none has for long."""
        self.stop()
        self._last_arrival = self.clock()
        self._loop.run(lambda now: self._is_through() or now >= self._last_arrival + STRAGGLERS_S)

    @property
    def offered(self) -> int:
        """How many jobs have been put."""
        return len(self._due)

    def is_answered(self) -> bool:
        """Whether each put has been acknowledged."""
        return self.answered == len(self._due)

    def _is_through(self) -> bool:
        return (
            self.arrived == len(self._due)
            and self.is_answered()
            and all(worker.is_free for worker in self._workers)
        )

    def verdict(self, first: float, last: float) -> Verdict:
        """Judge the jobs due from `first` until before `last`, by the loop's clock.

        A job that has not come is lost, and late until now.
        """
        now = self.clock()
        jobs = list(zip(self._due, self._received, strict=True))
        return Verdict(
            [(received or now) - due for due, received in jobs if first <= due < last],
            early=sum(0.0 < received < due for due, received in jobs),
            lost=len(self._due) - self.arrived,
            doubled=self._doubled,
        )

    def take_fresh(self) -> Sequence[float]:
        """Return how late those were that arrived since this was called last."""
        fresh, self._fresh = self._fresh, array("d")
        return fresh

    def note_arrival(self, number: int) -> None:
        """Note that a job is there; one that was there before is doubled.

        Raises `UnexpectedReplyError` for one of another number: it is not due, or was never put.
        """
        place = number - self._first
        if not 0 <= place < len(self._due):
            raise UnexpectedReplyError(f"job {number} arrived, and nobody has offered it")
        if self._received[place]:
            self._doubled += 1
            return
        self._received[place] = self._last_arrival = now = self.clock()
        self._fresh.append(now - self._due[place])
        self.arrived += 1
        if self._is_saturated and not self._fills_until:
            self._put(1)

    def _turn(self, now: float) -> None:
        for worker in self._workers:
            worker.turn(now)
        count = 0
        if self._fills_until:
            count = UNANSWERED_MAX - (len(self._due) - self.answered)
            self._fills_until = self._fills_until if now < self._fills_until else 0.0
        while self._next <= now:
            count += 1
            self._next = self._began + next(self._moments)
        if count:
            self._put(count)

    def _put(self, count: int) -> None:
        first, shares = len(self._due), len(self._producers)
        offered = self.clock()
        self._due.extend([offered + self._delay_ms / 1e3] * count)
        self._received.extend([0.0] * count)
        if shares == 1:
            self._producers[0].put(self._first + first, count, self._delay_ms)
            return
        for number in range(self._first + first, self._first + first + count):
            self._producers[number % shares].put(number, 1, self._delay_ms)


class Spoken:
    """A connection on which the dialect of its server is spoken."""

    def __init__(self, loop: Loop, server: Reached) -> None:
        self.dialect = server.dialect(BODY_BYTES)
        self.heard: Callable[[Heard], None] = lambda _: None
        self._wire = loop.connect(server.port, self.dialect.greet, self._received)

    def say(self, request: bytes) -> None:
        """Send a request."""
        self._wire.send(request)

    def _received(self, data: bytes) -> None:
        heard = self.dialect.hear(data)
        if heard.follow:
            self.say(heard.follow)
        self.heard(heard)


class Producer:
    """A connection that puts, and never waits for an answer before it puts again."""

    def __init__(self, offer: Offer, spoken: Spoken) -> None:
        self._offer = offer
        self._spoken = spoken
        self._unanswered = Unanswered()
        spoken.heard = self._heard

    def put(self, first: int, count: int, delay_ms: int) -> None:
        """Put the jobs with the numbers from `first` on."""
        self._unanswered.send(self._offer.clock(), count)
        self._spoken.say(self._spoken.dialect.puts(first, count, delay_ms))

    def _heard(self, heard: Heard) -> None:
        self._unanswered.hear(self._offer.clock(), heard.put, self._offer.answers)
        self._offer.answered += heard.put


class Worker:
    """A connection that asks for a job, waits, acknowledges it, waits, and asks again."""

    def __init__(self, offer: Offer, spoken: Spoken, poll_s: float, asks_at: float) -> None:
        self._offer = offer
        self._spoken = spoken
        self._poll_s = poll_s
        self._asks_at = asks_at
        self.is_free = True
        """Whether it has acknowledged all that it was given."""
        spoken.heard = self._heard

    def turn(self, now: float) -> None:
        """Ask if it is time."""
        if now >= self._asks_at:
            self._ask()

    def _ask(self) -> None:
        self._asks_at = float("inf")
        self._spoken.say(self._spoken.dialect.takes(1))

    def _heard(self, heard: Heard) -> None:
        dialect = self._spoken.dialect
        for number, handle in heard.taken:
            self._offer.note_arrival(number)
            self._spoken.say(dialect.acknowledgements([handle]))
            self.is_free = not dialect.answers_acknowledgements
        if heard.acknowledged:
            self.is_free = True
        if heard.empty:
            self._asks_at = self._offer.clock() + self._poll_s
        elif self.is_free and (heard.taken or heard.acknowledged):
            self._ask()
