"""How late a job is, seen by the worker that gets it, under a load with a fixed pace.

The load is *open loop*: a job is put at its moment whether or not the server has answered the last
one, so a server that stalls cannot slow the load down and hide its stall. One thread does it all
under one epoll: the steady stream of puts, the workers that wait in `reserve`, and the probe.

Each body begins with the job's number, by which the worker finds the moment just *before* its put
was sent.

    early     received before (put sent + delay): whatever happened on the way, it came too soon
    lateness  received - (put sent + delay): with the ways of put and job, and the wait for a worker

Example: put sent at 10.000 s with a delay of 2 s, body received at 12.0013 s: 1.3 ms late. Received
at 11.9995 s: early.

The generator shares the machine, so it also keeps a record of its own worst turn (`own_lag_s`): a
stall that is not longer than this may have been the generator's.
"""

import re
import select
import socket
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.load import (
    BODY_BYTES,
    RECEIVE_BYTES,
    TTR_S,
    Pace,
    ServerSilentError,
    Stopwatch,
    UnexpectedReplyError,
    check_inserted,
    connect,
    send,
    whole_replies,
)

TURN_S: Final = 0.001
STRAGGLERS_S: Final = 10.0
"""How long jobs may be behind; the longest delay of a stream must be well below."""

MORE_THAN_TAKEN: Final = 100_000
"""Jobs on their way: more than eight workers take in the second for which one is delayed."""
UNANSWERED_MAX: Final = 200
"""Puts of those that keep as many standing: so many fit any socket buffer."""

NUMBER_DIGITS: Final = 10
FILLER: Final = b"x" * (BODY_BYTES - NUMBER_DIGITS)
ARRIVED: Final = re.compile(
    rb"RESERVED (\d+) %d\r\n(\d{%d})%b\r\n" % (BODY_BYTES, NUMBER_DIGITS, FILLER)
)
PROBE: Final = b"list-tube-used\r\n"
"""Any server answers it from memory: its round trip is how long the loop was held."""


class Loop:
    """An epoll whose turns come at least every millisecond, with one clock reading a turn."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, tuple[socket.socket, Callable[[socket.socket, bytes], None]]] = {}
        self._each_turn: list[Callable[[float], None]] = []
        self.own_lag_s = 0.0

    def connect(
        self, port: int, greeting: bytes, received: Callable[[socket.socket, bytes], None]
    ) -> socket.socket:
        """Open a connection, say `greeting`, skip its replies, and hand over what arrives later."""
        sock = connect(port)
        sock.setblocking(True)
        for line in greeting.splitlines(keepends=True):
            sock.sendall(line)
            sock.recv(RECEIVE_BYTES)
        sock.setblocking(False)
        self._handlers[sock.fileno()] = (sock, received)
        self._epoll.register(sock.fileno(), select.EPOLLIN)
        return sock

    def each_turn(self, action: Callable[[float], None]) -> None:
        """Call `action(now)` in every turn from now on."""
        self._each_turn.append(action)

    def run(self, until: Callable[[float], bool]) -> None:
        """Turn until `until(now)`."""
        last = time.perf_counter()
        while not until(last):
            for action in self._each_turn:
                action(last)
            for descriptor, _ in self._epoll.poll(TURN_S):
                sock, received = self._handlers[descriptor]
                data = sock.recv(RECEIVE_BYTES)
                if not data:
                    raise ServerSilentError("the server closed a connection")
                received(sock, data)
            now = time.perf_counter()
            self.own_lag_s = max(self.own_lag_s, now - last - TURN_S)
            last = now

    def close(self) -> None:
        """Close all connections."""
        self._epoll.close()
        for sock, _ in self._handlers.values():
            sock.close()


@dataclass(frozen=True, slots=True)
class LineAcceptor:
    """The jobs due in a span: how late each was, and how many came early."""

    lateness_s: Sequence[float]
    early: int


class Stream:
    """Puts jobs on one tube at a fixed pace, and works on them with connections of its own."""

    def __init__(
        self,
        loop: Loop,
        port: int,
        tube: bytes,
        *,
        workers: int,
        delays_s: Sequence[int],
        one_in_flight: bool = False,
    ) -> None:
        """With `one_in_flight` a worker waits for the reply to its delete before it reserves."""
        self._one_in_flight = one_in_flight
        self._standing = 0
        self._answers = 0
        self._delays_s = delays_s
        self._heads = [b"put 0 %d %d %d\r\n" % (delay, TTR_S, BODY_BYTES) for delay in delays_s]
        self._per_second = 0.0
        self._began = 0.0
        self._due = array("d")
        self._received = array("d")
        self.arrived = 0
        self._replies: list[bytes] = []
        self._tails: dict[int, bytes] = {}
        self._producer = loop.connect(port, b"use %b\r\n" % tube, self._answered)
        for _ in range(workers):
            greeting = b"watch %b\r\n" % tube + (
                b"" if tube == b"default" else b"ignore default\r\n"
            )
            worker = loop.connect(port, greeting, self._handed_out)
            self._tails[worker.fileno()] = b""
            send(worker, b"reserve\r\n")
        loop.each_turn(self._put)

    def start(self, per_second: float) -> None:
        """Begin to put so many jobs a second."""
        self._per_second = per_second
        self._began = time.perf_counter() - len(self._due) / per_second

    def keep_standing(self, jobs: int) -> None:
        """Put a job for each that arrives, so that so many are always on their way."""
        self._standing = jobs

    def stop(self) -> None:
        """Put no more jobs."""
        self._per_second = 0.0

    def finished(self) -> bool:
        """Whether every job that was put has arrived."""
        return self.arrived >= len(self._due)

    def _put(self, now: float) -> None:
        first = len(self._due)
        if self._per_second:
            target = int((now - self._began) * self._per_second)
        else:
            target = min(self.arrived + self._standing, self._answers + UNANSWERED_MAX)
        if target <= first:
            return
        kinds = len(self._heads)
        request = b"".join(
            b"%b%010d%b\r\n" % (self._heads[number % kinds], number, FILLER)
            for number in range(first, target)
        )
        sent = time.perf_counter()
        self._due.extend(sent + self._delays_s[number % kinds] for number in range(first, target))
        self._received.extend([0.0] * (target - first))
        send(self._producer, request)

    def _answered(self, _: socket.socket, data: bytes) -> None:
        self._replies.append(data)
        self._answers += data.count(b"\n")

    def _handed_out(self, sock: socket.socket, data: bytes) -> None:
        now = time.perf_counter()
        pending = self._tails[sock.fileno()] + data
        end = whole_replies(pending)
        self._tails[sock.fileno()] = pending[end:]
        replies = pending[:end]
        jobs = ARRIVED.findall(replies)
        if 2 * len(jobs) + replies.count(b"DELETED\r\n") != replies.count(b"\n"):
            raise UnexpectedReplyError(f"a worker was answered {replies[:80]!r}")
        self.arrived += len(jobs)
        following = b"" if self._one_in_flight else b"reserve\r\n"
        for job_id, number in jobs:
            self._received[int(number)] = now
            send(sock, b"delete %b\r\n%b" % (job_id, following))
        if self._one_in_flight and not jobs and replies:  # the one reply is to the delete
            send(sock, b"reserve\r\n")

    def arrivals(self, first_due: float, last_due: float) -> LineAcceptor:
        """Judge the jobs due in this span; all must have been accepted and have arrived."""
        check_inserted(b"".join(self._replies))
        if not self.finished():
            missing = len(self._due) - self.arrived
            raise ServerSilentError(f"{missing} jobs did not come within {STRAGGLERS_S:.0f} s")
        lateness = [
            received - due
            for due, received in zip(self._due, self._received, strict=True)
            if first_due <= due < last_due
        ]
        return LineAcceptor(lateness, sum(late < 0 for late in lateness))


class Probe:
    """Asks something cheap once a millisecond, one at a time; keeps the worst round trip."""

    def __init__(self, loop: Loop, port: int) -> None:
        self.worst_s = 0.0
        self.count = 0
        self._asked: float | None = None
        self._next = 0.0
        self._sock = loop.connect(port, b"", self._answered)
        loop.each_turn(self._ask)

    def waiting_s(self, now: float) -> float:
        """Return how long the question under way has been unanswered."""
        return 0.0 if self._asked is None else now - self._asked

    def _ask(self, now: float) -> None:
        if self._asked is None and now >= self._next:
            self._next = now + TURN_S
            self._asked = time.perf_counter()
            send(self._sock, PROBE)

    def _answered(self, _: socket.socket, __: bytes) -> None:
        assert self._asked is not None
        self.worst_s = max(self.worst_s, time.perf_counter() - self._asked)
        self.count += 1
        self._asked = None


class Watcher:
    """Asks for the statistics of a tube from time to time, until they say what one waits for."""

    def __init__(
        self,
        loop: Loop,
        port: int,
        tube: bytes,
        *,
        pause_s: float,
        satisfied: Callable[[bytes], bool],
    ) -> None:
        self.satisfied_at: float | None = None
        self._question = b"stats-tube %b\r\n" % tube
        self._pause_s = pause_s
        self._satisfied = satisfied
        self._next = 0.0
        self._reply = b""
        self._sock = loop.connect(port, b"", self._answered)
        loop.each_turn(self._ask)

    def _ask(self, now: float) -> None:
        if self.satisfied_at is None and now >= self._next:
            self._next = float("inf")
            send(self._sock, self._question)

    def _answered(self, _: socket.socket, data: bytes) -> None:
        self._reply += data
        if not self._reply.endswith(b"\n\r\n"):
            return
        now = time.perf_counter()
        if self._satisfied(self._reply):
            self.satisfied_at = now
        self._reply = b""
        self._next = now + self._pause_s


@dataclass(frozen=True, slots=True)
class Steady:
    """What a steady stream saw."""

    arrivals: LineAcceptor
    generator_share: float
    own_lag_s: float


def steady_stream(
    port: int, *, per_second: int, workers: int, seconds: float, one_in_flight: bool = False
) -> Steady:
    """Run jobs with delays of 1 to 3 s through the server; judge those due in the last `seconds`.

    The first second in which all three delays come due is the warm-up.
    """
    loop = Loop()
    try:
        stream = Stream(
            *(loop, port, b"default"),
            workers=workers,
            delays_s=(1, 2, 3),
            one_in_flight=one_in_flight,
        )
        stream.start(per_second)
        began = time.perf_counter() + 4
        loop.run(lambda now: now >= began)
        loop.own_lag_s = 0.0
        watch = Stopwatch()
        ends = time.perf_counter() + seconds
        loop.run(lambda now: now >= ends)
        pace = watch.pace(1)
        own_lag_s = loop.own_lag_s
        stream.stop()
        loop.run(lambda now: stream.finished() or now >= ends + STRAGGLERS_S)
        return Steady(stream.arrivals(began, ends), pace.generator_share, own_lag_s)
    finally:
        loop.close()


def sustained(port: int, *, workers: int, seconds: float) -> Pace:
    """Return how many jobs with a delay of 1 s such workers take who have one command in flight.

    There are always more that are due, so they set the pace, and jobs are put at the same pace.
    """
    loop = Loop()
    try:
        stream = Stream(loop, port, b"default", workers=workers, delays_s=(1,), one_in_flight=True)
        stream.keep_standing(MORE_THAN_TAKEN)
        began = time.perf_counter() + 4
        loop.run(lambda now: now >= began)
        before, watch = stream.arrived, Stopwatch()
        ends = time.perf_counter() + seconds
        loop.run(lambda now: now >= ends)
        return watch.pace(stream.arrived - before)
    finally:
        loop.close()


@dataclass(frozen=True, slots=True)
class Burst:
    """What others saw while a great many jobs came due at one instant."""

    arrivals: LineAcceptor
    held_s: float
    took_s: float
    probes: int
    own_lag_s: float


def beside_a_burst(
    port: int, *, tube: bytes, instant: float, seconds_max: float, fired: Callable[[bytes], bool]
) -> Burst:
    """Keep a small stream and a probe going on while the jobs of `tube` come due at `instant`.

    It ends when the statistics of `tube` say that all have `fired`.
    """
    loop = Loop()
    try:
        stream = Stream(loop, port, b"other", workers=8, delays_s=(1,))
        stream.start(per_second=1_000)
        loop.run(lambda now: now >= instant - 0.05)
        probe = Probe(loop, port)
        watcher = Watcher(loop, port, tube, pause_s=0.05, satisfied=fired)
        loop.own_lag_s = 0.0
        loop.run(
            lambda now: watcher.satisfied_at is not None or now >= instant + seconds_max,
        )
        if watcher.satisfied_at is None:
            raise ServerSilentError(
                f"the jobs had not come due {seconds_max:.0f} s after their time"
            )
        ends = watcher.satisfied_at
        held_s = max(probe.worst_s, probe.waiting_s(ends))
        own_lag_s = loop.own_lag_s
        stream.stop()
        loop.run(lambda now: stream.finished() or now >= ends + STRAGGLERS_S)
        return Burst(
            stream.arrivals(instant - 0.05, max(ends, instant + 0.1)),
            held_s,
            ends - instant,
            probe.count,
            own_lag_s,
        )
    finally:
        loop.close()


@dataclass(frozen=True, slots=True)
class Beside:
    """What a steady stream and a probe saw while something else went on in the server."""

    arrivals: LineAcceptor
    held_s: float
    took_s: float
    own_lag_s: float


def beside_a_task(
    port: int, *, per_second: int, workers: int, seconds_max: float, is_going_on: Callable[[], bool]
) -> Beside:
    """Keep a steady stream and a probe going until the task has begun and ended once.

    `is_going_on()` is asked every millisecond. When nothing begins the last `seconds_max` are
    judged: a server that has no such task.
    """
    loop = Loop()
    span = [0.0, 0.0]

    def look(now: float) -> None:
        is_on = is_going_on()
        if is_on and not span[0]:
            span[0] = now
            loop.own_lag_s = probe.worst_s = 0.0
        elif span[0] and not is_on and not span[1]:
            span[1] = now

    try:
        stream = Stream(loop, port, b"default", workers=workers, delays_s=(1, 2, 3))
        probe = Probe(loop, port)
        stream.start(per_second)
        began = time.perf_counter() + 4
        loop.run(lambda now: now >= began)
        loop.own_lag_s = probe.worst_s = 0.0
        loop.each_turn(look)
        loop.run(lambda now: span[1] > 0 or (not span[0] and now >= began + seconds_max))
        first, last = span if span[1] else (began, time.perf_counter())
        held_s, own_lag_s = max(probe.worst_s, probe.waiting_s(last)), loop.own_lag_s
        stream.stop()
        ends = time.perf_counter() + STRAGGLERS_S
        loop.run(lambda now: stream.finished() or now >= ends)
        return Beside(stream.arrivals(first, last), held_s, last - first, own_lag_s)
    finally:
        loop.close()
