"""The load generator: many connections, so many commands in flight on each, as fast as it goes.

The generator must be much faster than what it measures, in the same language. So requests are built
before the clock starts and sent as one piece; replies are counted, not parsed: a put is answered by
exactly one line, so `n` line ends in what arrived mean `n` places free in the window, and one send
fills them. Only at the end are the collected replies looked through for anything but `INSERTED`.

What the load does is *closed loop*: a reply makes room for the next command, so a slower server
sees fewer commands, never a longer queue. When the generator falls behind, several replies wait at
each connection and one turn answers them all: its cost for a command falls and it catches up. Every
`Pace` says how much processor the generator took, so that a reader sees who was the bottleneck.
"""

import re
import select
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

BODY_BYTES: Final = 100
BODY: Final = b"x" * BODY_BYTES
HOUR_S: Final = 3_600
TTR_S: Final = 600
"""Far from the last second of a reservation, in which a server answers DEADLINE_SOON."""

RECEIVE_BYTES: Final = 65_536
PATIENCE_S: Final = 30.0
"""A server that says nothing for so long has failed the measurement."""

RESERVED: Final = re.compile(rb"RESERVED (\d+) %d\r\n" % BODY_BYTES)


class UnexpectedReplyError(Exception):
    """The server answered something that the load cannot have asked for."""


class ServerSilentError(Exception):
    """The server closed the connection or stopped answering."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What was done, in what time, and what the generator spent on it."""

    operations: int
    seconds: float
    generator_cpu_seconds: float

    @property
    def per_second(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds

    @property
    def generator_share(self) -> float:
        """The part of one processor the generator used; near 1 it may be the bottleneck."""
        return self.generator_cpu_seconds / self.seconds


class Stopwatch:
    """Wall and processor time since its construction."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def pace(self, operations: int) -> Pace:
        """Return the pace of so many operations done since the start."""
        seconds = time.perf_counter() - self._wall
        return Pace(operations, seconds, time.process_time() - self._cpu)


def connect(port: int) -> socket.socket:
    """Return a non-blocking connection to a server on this machine."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


def put_request(delay_s: float, body: bytes = BODY) -> bytes:
    """Return the bytes of one put; whole seconds are written as such, for stock servers."""
    delay = b"%d" % delay_s if delay_s == int(delay_s) else b"%.3f" % delay_s
    return b"put 0 %b %d %d\r\n%b\r\n" % (delay, TTR_S, len(body), body)


def prebuilt(request: bytes, count_max: int) -> Callable[[int], bytes]:
    """Return a function that gives `count` repetitions of the request without building anything."""
    return tuple(request * count for count in range(count_max + 1)).__getitem__


def check_inserted(replies: bytes) -> None:
    """Raise `UnexpectedReplyError` unless every line is INSERTED; quotes the first that is not."""
    if replies.count(b"INSERTED ") == replies.count(b"\n"):
        return
    odd = next(line for line in replies.splitlines() if not line.startswith(b"INSERTED "))
    raise UnexpectedReplyError(f"a put was answered {odd[:80]!r}")


def whole_replies(received: bytes) -> int:
    r"""Return where the last complete reply ends; RESERVED is complete with its body line.

    >>> whole_replies(b"DELETED\r\nRESERVED 7 1\r\nx")
    9
    """
    end = received.rfind(b"\n") + 1
    last_line = received.rfind(b"\n", 0, max(end - 1, 0)) + 1
    return last_line if received.startswith(b"RESERVED ", last_line, end) else end


def next_commands(replies: bytes) -> tuple[bytes, int]:
    r"""Return what answers complete replies, and how many jobs they say are deleted.

    A job that arrived is deleted, a deletion is followed by a reserve: the window stays full.

    >>> next_commands(b"DELETED\r\nDELETED\r\n")
    (b'reserve\r\nreserve\r\n', 2)
    """
    ids = RESERVED.findall(replies)
    deleted = replies.count(b"DELETED\r\n")
    if 2 * len(ids) + deleted != replies.count(b"\n"):
        raise UnexpectedReplyError(f"reserve or delete was answered {replies[:80]!r}")
    commands = b"reserve\r\n" * deleted
    if ids:
        commands += b"delete " + b"\r\ndelete ".join(ids) + b"\r\n"
    return commands, deleted


class Fleet:
    """Connections to one server under one epoll."""

    def __init__(self, port: int, connections: int) -> None:
        self._epoll = select.epoll()
        self._sockets = {
            sock.fileno(): sock for sock in (connect(port) for _ in range(connections))
        }
        for descriptor in self._sockets:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._tails = dict.fromkeys(self._sockets, b"")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._epoll.close()
        for sock in self._sockets.values():
            sock.close()

    def converse(self, command: bytes, answer: bytes) -> None:
        """Send a one-line command on every connection and expect the same answer from each."""
        for sock in self._sockets.values():
            sock.setblocking(True)
            sock.sendall(command)
            reply = sock.recv(RECEIVE_BYTES)
            sock.setblocking(False)
            if reply != answer:
                raise UnexpectedReplyError(f"{command!r} was answered {reply[:80]!r}")

    def _arrivals(self) -> Iterable[tuple[int, socket.socket, bytes]]:
        """Wait for replies; yield each connection's in one piece."""
        ready = self._epoll.poll(PATIENCE_S)
        if not ready:
            raise ServerSilentError(f"no reply for {PATIENCE_S:.0f} s")
        for descriptor, _ in ready:
            sock = self._sockets[descriptor]
            received = sock.recv(RECEIVE_BYTES)
            if not received:
                raise ServerSilentError("the server closed a connection")
            yield descriptor, sock, received

    def put(
        self,
        requests: Callable[[int], bytes],
        in_flight: int,
        *,
        jobs: int | None = None,
        seconds: float | None = None,
    ) -> Pace:
        """Put `jobs` jobs, or as many as go in `seconds`; the clock stops at the last reply.

        `requests(count)` gives the bytes of so many puts. Raises `UnexpectedReplyError` after the
        run if a single put was refused.
        """
        watch = Stopwatch()
        deadline = time.perf_counter() + (float("inf") if seconds is None else seconds)
        budget = float("inf") if jobs is None else jobs
        replies: dict[int, list[bytes]] = {descriptor: [] for descriptor in self._sockets}
        sent = done = 0
        for sock in self._sockets.values():
            count = int(min(in_flight, budget - sent))
            send(sock, requests(count))
            sent += count
        while done < sent:
            for descriptor, sock, received in self._arrivals():
                replies[descriptor].append(received)
                count = received.count(b"\n")
                done += count
                if sent + count > budget:
                    count = int(budget) - sent
                if count:
                    send(sock, requests(count))
                    sent += count
            if time.perf_counter() > deadline:
                budget = sent
        pace = watch.pace(done)
        for pieces in replies.values():
            check_inserted(b"".join(pieces))
        return pace

    def start_reserving(self, in_flight: int) -> None:
        """Fill every connection's window with reserves; `work` goes on from there."""
        for sock in self._sockets.values():
            send(sock, b"reserve\r\n" * in_flight)

    def work(self, jobs: int) -> Pace:
        """Reserve and delete ready jobs until so many more are deleted.

        The server must hold a window more than that on each connection, or the end waits for jobs
        that never come. Windows stay full, so that a warm-up is a first call, and reservations stay
        held: close the connections afterwards.
        """
        watch = Stopwatch()
        done = 0
        while done < jobs:
            for descriptor, sock, received in self._arrivals():
                pending = self._tails[descriptor] + received
                end = whole_replies(pending)
                self._tails[descriptor] = pending[end:]
                commands, deleted = next_commands(pending[:end])
                done += deleted
                if commands:
                    send(sock, commands)
        return watch.pace(done)


def send(sock: socket.socket, request: bytes) -> None:
    """Send all of it at once: a window's worth of commands fits any socket buffer."""
    if sock.send(request) != len(request):
        raise ServerSilentError("the server does not read: a socket buffer is full")
