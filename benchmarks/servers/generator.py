"""The one load generator: every server is driven by it, each in its own dialect.

The load is a *closed loop*: each connection has so many commands in flight, and an answer makes
room for the next, so that a slower server sees fewer commands, never a longer queue. A reading runs
for a warm-up of a quarter of its time, then for its time, and then until all that was sent is
answered; nothing stops between, so that figures are those of a steady load.

The generator must be faster than what it measures, in the same language. Answers that arrive
together are counted together and make one request of as many commands. Every reading says which
part of a processor the generator took: near 1, the figure may be its limit and not the server's.
"""

import contextlib
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from benchmarks.line import HOST, PATIENCE_S, ServerSilentError, UnexpectedReplyError
from benchmarks.processes import seconds_between, thread_seconds
from benchmarks.servers.account import JobAccount
from benchmarks.servers.peer import Dialect, Loaded, Reached

RECEIVE_BYTES: Final = 262_144
WARM_UP_PART: Final = 0.25
RESUME_PART: Final = 0.05
UNANSWERED_S: Final = 0.5
"""For a server to carry out acknowledgements that it does not answer, before connections close."""
DRAIN_S_MAX: Final = 5.0
"""Jobs that are not taken so long after the end stand; the judge counts them."""

clock = time.perf_counter
Times = list[tuple[float, int]]
"""How long commands took in seconds, and how many took as long, having been answered together."""


@dataclass(frozen=True, slots=True)
class Load:
    """The size of a case."""

    connections: int
    in_flight: int
    """Commands that each connection has sent and not yet read the answer of."""
    body_bytes: int = 100


class Unanswered:
    """The commands of one kind that a connection waits for, the oldest first."""

    __slots__ = ("_sent",)

    def __init__(self) -> None:
        self._sent: deque[tuple[float, int]] = deque()

    def send(self, now: float, count: int) -> None:
        """Note that so many are sent."""
        self._sent.append((now, count))

    def hear(self, now: float, count: int, times: Times | None) -> None:
        """Note that so many are answered. Raises `UnexpectedReplyError` for more than were sent."""
        while count:
            if not self._sent:
                raise UnexpectedReplyError("more was answered than was asked")
            sent_at, together = self._sent.popleft()
            if together > count:
                self._sent.appendleft((sent_at, together - count))
                together = count
            count -= together
            if times is not None:
                times.append((now - sent_at, together))


class LoadClient:
    """A connection of the generator: sends all that it is given, as the socket takes it."""

    def __init__(self, running: Reached, body_bytes: int, epoll: select.epoll) -> None:
        self.dialect: Dialect = running.dialect(body_bytes)
        self.sock = socket.create_connection((HOST, running.port), timeout=PATIENCE_S)
        self._epoll = epoll
        self._unsent = b""
        try:
            self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.dialect.greet(self.sock)
            self.sock.setblocking(False)
            epoll.register(self.sock, select.EPOLLIN)
        except BaseException:
            self.sock.close()
            raise

    def send(self, request: bytes) -> None:
        """Send it, or as much as there is room for, and the rest when there is more."""
        if self._unsent:
            self._unsent += request
            return
        try:
            sent = self.sock.send(request)
        except BlockingIOError:
            sent = 0
        if sent < len(request):
            self._unsent = request[sent:]
            self._epoll.modify(self.sock, select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """Send what there was no room for."""
        request, self._unsent = self._unsent, b""
        self._epoll.modify(self.sock, select.EPOLLIN)
        self.send(request)

    def receive(self) -> bytes:
        """Return what arrived. Raises `ServerSilentError` if the server closed the connection."""
        received = self.sock.recv(RECEIVE_BYTES)
        if not received:
            raise ServerSilentError("the server closed a connection")
        return received


@dataclass(slots=True)
class Tally:
    """What all connections of a load have done; they ask it whether they may go on."""

    account: JobAccount
    room_for_puts: Callable[[int], int] = lambda wanted: wanted
    """How many of so many puts may be sent."""
    room_for_takes: Callable[[int], int] = lambda wanted: wanted
    times: Times = field(default_factory=list)
    is_stopping: bool = False
    """Nothing is sent but what others wait for."""
    is_giving_up: bool = False
    """Not even that: jobs that were not taken by now stand."""
    puts: int = 0
    """Puts that were acknowledged."""
    asked: int = 0
    """Jobs that were asked for."""
    finished: int = 0
    """Jobs whose acknowledgement was answered."""

    @property
    def is_quiet(self) -> bool:
        """Whether all that was sent is answered."""
        return self.puts == self.account.jobs and self.finished == self.asked


class Putting:
    """What a connection does that puts."""

    def __init__(
        self, client: LoadClient, tally: Tally, delay_ms: Callable[[], int], *, keyed: bool = False
    ) -> None:
        self._client = client
        self._tally = tally
        self._delay_ms = delay_ms
        self._requests = client.dialect.keyed_puts if keyed else client.dialect.puts
        self._unanswered = Unanswered()
        self._idle = 0

    @property
    def is_idle(self) -> bool:
        """Whether there was no room for all that its window would hold."""
        return self._idle > 0

    def begin(self, count: int) -> None:
        """Fill the window."""
        self._idle = count
        self.go_on()

    def go_on(self) -> None:
        """Put as many as there is room for; the caller asks again after a turn if there is less."""
        count = self._tally.room_for_puts(self._idle)
        if count > 0:
            self._idle -= count
            delay_ms = self._delay_ms()
            now = clock()
            first = self._tally.account.put(count, now + delay_ms / 1_000)
            self._unanswered.send(now, count)
            self._client.send(self._requests(first, count, delay_ms))

    def hear(self, data: bytes) -> bool:
        """Note what was answered, and go on; return whether it has to be asked to go on."""
        heard = self._client.dialect.hear(data)
        if heard.follow:
            self._client.send(heard.follow)
        if heard.put:
            self._unanswered.hear(clock(), heard.put, self._tally.times)
            self._tally.puts += heard.put
            self._idle += heard.put
            self.go_on()
        return self.is_idle


class Taking:
    """What a connection does that takes jobs and acknowledges them."""

    def __init__(self, client: LoadClient, tally: Tally, *, times_takes: bool) -> None:
        self._client = client
        self._tally = tally
        self._takes_to = tally.times if times_takes else None
        self._takes, self._acknowledgements = Unanswered(), Unanswered()
        self._resting = 0

    def begin(self, count: int) -> None:
        """Fill the window."""
        self._ask(self._tally.room_for_takes(count))

    def _ask(self, count: int, *, again: bool = False) -> None:
        if count > 0:
            self._tally.asked += 0 if again else count
            self._takes.send(clock(), count)
            if request := self._client.dialect.takes(count):
                self._client.send(request)
            else:  # the server sends jobs by itself, and may have done so already
                self.hear(b"")

    def go_on(self) -> None:
        """Ask again after a pause for what there was no job for."""
        count, self._resting = self._resting, 0
        if self._tally.is_giving_up:
            self._tally.asked -= count
        else:
            self._ask(count, again=True)

    def hear(self, data: bytes) -> bool:
        """Note what was answered, and go on; return whether it has to be asked to, after a pause.

        A job that arrived is acknowledged, and an acknowledgement makes room for a take.
        """
        client, tally = self._client, self._tally
        heard = client.dialect.hear(data)
        if heard.follow:
            client.send(heard.follow)
        now = clock()
        finished = heard.acknowledged
        if finished:
            self._acknowledgements.hear(now, finished, tally.times)
        if heard.taken:
            count = len(heard.taken)
            self._takes.hear(now, count, self._takes_to)
            tally.account.take((number for number, _ in heard.taken), now)
            request = client.dialect.acknowledgements([handle for _, handle in heard.taken])
            if request:
                client.send(request)
            if client.dialect.answers_acknowledgements:
                self._acknowledgements.send(now, count)
            else:
                finished += count
        if heard.empty:
            self._takes.hear(now, heard.empty, None)
            self._resting += heard.empty
        if finished:
            tally.finished += finished
            self._ask(tally.room_for_takes(finished))
        return self._resting > 0


Doing = Putting | Taking


class Connections:
    """Connections to one server under one epoll, each with what it does."""

    def __init__(self, poll_pause_s: float) -> None:
        self._poll_pause_s = poll_pause_s
        self._epoll = select.epoll()
        self._clients: dict[int, LoadClient] = {}
        self._doing: dict[int, Doing] = {}
        self._waiting: set[Putting] = set()
        self._resting: deque[tuple[float, Taking]] = deque()

    def open(self, running: Reached, count: int, body_bytes: int) -> list[LoadClient]:
        """Connect so many, and return them."""
        opened = [LoadClient(running, body_bytes, self._epoll) for _ in range(count)]
        self._clients |= {client.sock.fileno(): client for client in opened}
        return opened

    @property
    def answers_acknowledgements(self) -> bool:
        """Whether the server does."""
        return all(c.dialect.answers_acknowledgements for c in self._clients.values())

    def begin(self, client: LoadClient, doing: Doing, in_flight: int) -> None:
        """Have a connection do something."""
        self._doing[client.sock.fileno()] = doing
        doing.begin(in_flight)

    def run(self, seconds: float, is_done: Callable[[], bool]) -> None:
        """Hear and answer for so long, or until it is done.

        Raises `ServerSilentError` if nothing arrives for `PATIENCE_S`.
        """
        now = heard_at = clock()
        until = now + seconds
        while now < until and not is_done():
            wake_at = min(until, self._resting[0][0] if self._resting else until)
            ready = self._epoll.poll(min(max(wake_at - now, 0), PATIENCE_S))
            for descriptor, events in ready:
                if events & select.EPOLLOUT:
                    self._clients[descriptor].flush()
                if events & ~select.EPOLLOUT:
                    self._hear(descriptor)
            now = clock()
            if ready:
                heard_at = now
            elif now - heard_at >= PATIENCE_S:
                raise ServerSilentError(f"no answer for {PATIENCE_S:.0f} s")
            self._go_on(now)

    def _hear(self, descriptor: int) -> None:
        doing = self._doing[descriptor]
        if doing.hear(self._clients[descriptor].receive()):
            if isinstance(doing, Putting):
                self._waiting.add(doing)
            else:
                self._resting.append((clock() + self._poll_pause_s, doing))

    def _go_on(self, now: float) -> None:
        waiting, self._waiting = self._waiting, set()
        for putting in waiting:
            putting.go_on()
            if putting.is_idle:
                self._waiting.add(putting)
        while self._resting and self._resting[0][0] <= now:
            self._resting.popleft()[1].go_on()

    def close(self) -> None:
        """Close all of them, when the server has read what was sent and has closed them too.

        To close a socket with unread data is a reset, at which a server may drop what it has not
        read: for RabbitMQ, acknowledgements.
        """
        for client in self._clients.values():
            with contextlib.suppress(OSError):  # the server was faster
                client.sock.shutdown(socket.SHUT_WR)
        for client in self._clients.values():
            client.sock.settimeout(PATIENCE_S)
            with client.sock, contextlib.suppress(OSError):
                while client.sock.recv(RECEIVE_BYTES):
                    pass
        self._epoll.close()


@contextlib.contextmanager
def connections(poll_pause_s: float) -> Iterator[Connections]:
    """Give an epoll whose connections are closed after the block."""
    made = Connections(poll_pause_s)
    try:
        yield made
    finally:
        made.close()


def paced(
    load: Connections,
    running: Loaded,
    tally: Tally,
    done: Callable[[], int],
    seconds: float,
    warm_up: tuple[float, Callable[[], bool]],
) -> dict[str, float]:
    """Run a load whose windows are full; return its rate, its times and what it took.

    `done()` counts operations; `warm_up` is how long to run before, and until what at most. Then
    the tally is told to stop, and all that was sent is answered.
    """
    load.run(*warm_up)
    spent, spent_from = thread_seconds(running.processes()), done()
    # Answers that arrived while that was read have waited for it, and count for no time.
    load.run(seconds * RESUME_PART, lambda: tally.is_quiet)
    tally.times.clear()
    operations, began, generator_s = done(), clock(), time.process_time()
    load.run(seconds, lambda: tally.is_quiet)
    took, generator_s = clock() - began, time.process_time() - generator_s
    operations = done() - operations
    server_s = seconds_between(spent, thread_seconds(running.processes()))
    spent_for = done() - spent_from
    times = list(tally.times)
    tally.is_stopping = True
    with contextlib.suppress(ServerSilentError):  # the judge says what is missing
        load.run(DRAIN_S_MAX, lambda: tally.is_quiet)
        tally.is_giving_up = True
        load.run(float("inf"), lambda: tally.is_quiet)
        if not load.answers_acknowledgements:
            load.run(UNANSWERED_S, lambda: False)
    return {
        "rate": operations / max(took, 1e-9),
        **percentiles(times),
        "cpu_s_per_million": server_s / max(spent_for, 1) * 1e6,
        "generator_share": generator_s / max(took, 1e-9),
    }


PERCENTS: Final = {"p50_ms": 50, "p90_ms": 90, "p99_ms": 99, "p999_ms": 99.9}


def percentiles(times: Times) -> dict[str, float]:
    """Return the times in milliseconds that so many percent of the commands did not exceed.

    >>> percentiles([(0.001, 90), (0.5, 10)])
    {'p50_ms': 1.0, 'p90_ms': 1.0, 'p99_ms': 500.0, 'p999_ms': 500.0}
    """
    found: dict[str, float] = {}
    total = sum(count for _, count in times)
    left = dict(PERCENTS)
    below = 0
    for seconds, count in sorted(times):
        below += count
        for name, percent in PERCENTS.items():
            if name in left and below * 100 >= total * percent:
                del left[name]
                found[name] = seconds * 1_000
    return found
