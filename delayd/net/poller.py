"""The poller: what wakes the daemon, and in which order its clients are served.

Sockets of the line protocol sit in an epoll of their own, and that one descriptor is what asyncio
watches, if it runs. So one wake-up serves every client with input: read, execute, and then one
append, one sync and one send for each. With a transport and a protocol object for each connection
(the usual way) the loop iterates once for each of them, and a put of a single client costs 12 µs
more. Whatever else wakes the daemon is here too, with a function to call.

    poll ─► serve ─┬─► clients to whom everything has been sent: they go on, or are closed
                   ├─► timeouts, and calls that were postponed
                   ├─► clients that yielded in the turn before: their input goes on
                   └─► events: clients that have closed, then the others, for a bounded time

A client that sends many commands together has a slice of time for them; then it yields, and
continues in the next turn. A client that had to wait comes before the others in the next turn,
those that have sent little first: so a crowd of clients that send thousands of commands together
delays only itself. One at least of each kind is served in a turn.
"""

import select
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final, Protocol, final

from delayd.clock import monotonic_ns
from delayd.limits import EVENTS_PER_TURN, LINE_TURN_MS
from delayd.net.deadlines import ReadTimeouts, Sender

IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT
HANG_UP: Final = select.EPOLLRDHUP
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP
ENDS: Final = HANG_UP | BROKEN

NS_PER_MS: Final = 1_000_000
FD_SETSIZE: Final = 1_024
"""The first descriptor that select(2) cannot watch."""

_ENDED: Final = 1
_SHORT: Final = 2
_LONG: Final = 4
"""Kinds of clients, in the order in which they are served; bits of a set."""

PRECISE_WAIT_S: Final = 0.02
"""Waits shorter than this end on the microsecond, longer ones up to `EPOLL_STEP_S` late."""

EPOLL_STEP_S: Final = 0.001
"""In this unit epoll counts, rounded up."""


def elapsed_ms() -> int:
    """Return a time for deadlines of connections; that of the jobs may stand still."""
    return monotonic_ns() // NS_PER_MS


class PolledClient(Sender, Protocol):
    """A client whose input is executed in turns."""

    def read(self) -> None:
        """Read from its socket, and execute what came."""

    def has_sent_little(self) -> bool:
        """Tell whether what there is to read is a few commands at most."""

    def handle(self, event: int) -> None:
        """Deal with an event that is not plain input."""

    def resume(self) -> None:
        """Execute more of the input that it has yielded with; it may yield again."""

    def go_on(self) -> None:
        """Go on, or be closed: everything has been sent to it."""


@final
class Poller:
    """Waits for events and serves them; `elapsed_ms` is a clock that never goes back."""

    def __init__(self, elapsed_ms: Callable[[], int] = elapsed_ms) -> None:
        self.elapsed_ms = elapsed_ms
        self.timeouts = ReadTimeouts(elapsed_ms)
        self.turn = 0
        """The number of the turn."""
        self.has_more = False
        """`serve` has something to do even without events."""
        self.yielded: deque[PolledClient] = deque()
        """Clients whose input has taken its time; the longest without a turn first."""
        self._epoll = select.epoll()
        self._others_epoll = select.epoll()  # for the times when clients are not heard
        self._hears_clients = True
        self._clients: dict[int, PolledClient] = {}
        self._others: dict[int, Callable[[], object]] = {}
        self._late: dict[int, int] = {}  # clients that wait for their turn → about since when
        self._long: set[int] = set()  # those of them that have sent much
        self._to_go_on: list[PolledClient] = []  # clients to whom everything has been sent

    def fileno(self) -> int:
        """Return the descriptor that is readable when `poll` would return something."""
        return self._epoll.fileno()

    # --- Clients and other descriptors -----------------------------------------------------------

    def add(self, fd: int, client: PolledClient, mask: int) -> None:
        """Serve a client with this descriptor."""
        self._clients[fd] = client
        self._epoll.register(fd, mask)

    def modify(self, fd: int, mask: int) -> None:
        """Wait for other events of a descriptor."""
        self._epoll.modify(fd, mask)

    def remove(self, fd: int) -> None:
        """Serve the client no more, whose descriptor is still open."""
        self._epoll.unregister(fd)
        self._late.pop(fd, 0)
        self._long.discard(fd)
        del self._clients[fd]

    def watch(self, fd: int, callback: Callable[[], object], mask: int = IN) -> None:
        """Call back for each event of a descriptor that is about to be a client's, or listens."""
        self._others[fd] = callback
        self._epoll.register(fd, mask)

    def unwatch(self, fd: int) -> None:
        """Call back no more."""
        self._epoll.unregister(fd)
        del self._others[fd]

    def listen_to(self, fd: int, callback: Callable[[], object], *, each_time: bool = True) -> None:
        """Call back when a descriptor is readable, also while clients are not heard.

        As long as it is, or else once for each time it becomes so.
        """
        self._others[fd] = callback
        for epoll in (self._epoll, self._others_epoll):
            epoll.register(fd, IN if each_time else IN | select.EPOLLET)

    def go_on_later(self, client: PolledClient) -> None:
        """Resume a client that has yielded, in the next turn."""
        self.yielded.append(client)
        self.has_more = True

    def go_on_when_sent(self, client: PolledClient) -> None:
        """Have a client go on in the next turn: everything has been sent to it."""
        self._to_go_on.append(client)
        self.has_more = True

    # --- A turn ----------------------------------------------------------------------------------

    def poll(self, wait_s: float | None, *, hears_clients: bool = True) -> list[tuple[int, int]]:
        """Wait for events, at most this long (None: for ever), and return them for `serve`."""
        epoll = self._epoll if hears_clients else self._others_epoll
        self._hears_clients = hears_clients
        if self.timeouts.alarm_ms is not None:
            wait_s = self.timeouts.wait_s(wait_s)
        if wait_s and wait_s < PRECISE_WAIT_S and epoll.fileno() < FD_SETSIZE:
            # epoll counts in milliseconds, which would make every job half of one late.
            if not select.select((epoll,), (), (), wait_s)[0]:
                return []
            wait_s = 0
        return epoll.poll(wait_s, EVENTS_PER_TURN)

    def serve(self, events: Sequence[tuple[int, int]]) -> None:
        """Serve the clients that have events, and those that yielded in the turn before."""
        self.turn += 1
        if self.has_more:
            self.has_more = False
            to_go_on, self._to_go_on = self._to_go_on, []
            for waiting in to_go_on:
                waiting.go_on()
        if self.timeouts.alarm_ms is not None and self.timeouts.is_due:
            self._serve_timeouts()
        if len(events) > 1 or self.yielded:
            self._serve_many(events)
        else:
            for fd, event in events:
                client = self._clients.get(fd)
                if client is None:
                    self._serve_other(fd)
                elif event == IN:
                    client.read()
                else:
                    client.handle(event)

    def _serve_many(self, events: Sequence[tuple[int, int]]) -> None:
        """Serve clients for a bounded time: of those that yielded, and of each kind, one at least.

        A client that has to wait is reported again, and comes before the others then.
        """
        clock, late, long, clients = self.elapsed_ms, self._late, self._long, self._clients
        ends_ms = clock() + LINE_TURN_MS
        before = len(self.yielded)
        if before:
            before -= 1
            self.yielded.popleft().resume()
        is_over, served = False, 0
        for fd, event in _in_order(events, late, long):
            client = clients.get(fd)
            if client is None:
                self._serve_other(fd)
                continue
            kind = _kind(fd, event, long)
            is_over = is_over or (served != 0 and clock() >= ends_ms)
            if is_over and served & kind:
                if fd not in late:
                    late[fd] = ends_ms
                    if kind != _ENDED and not client.has_sent_little():
                        long.add(fd)
                continue
            served |= kind
            if fd in late:
                del late[fd]
                long.discard(fd)
            if event == IN:
                client.read()
            else:
                client.handle(event)
        while before and clock() < ends_ms:
            before -= 1
            self.yielded.popleft().resume()
        self.has_more |= len(self.yielded) > 0

    def _serve_other(self, fd: int) -> None:
        callback = self._others.get(fd)
        if callback is not None:  # or it has been closed in this turn
            callback()

    def _serve_timeouts(self) -> None:
        """Make the calls that were postponed, and time out clients that take too long."""
        for call in self.timeouts.due_calls():
            call()
        for sender in self.timeouts.too_slow(counts=self._hears_clients):
            sender.time_out()

    def close(self) -> None:
        """Wait for nothing any more; the sockets stay open."""
        self._clients.clear()
        self._others.clear()
        self._epoll.close()
        self._others_epoll.close()


def _kind(fd: int, event: int, long: Container[int]) -> int:
    if event & ENDS:
        return _ENDED
    return _LONG if fd in long else _SHORT


def _in_order(
    events: Sequence[tuple[int, int]], late: Mapping[int, int], long: Container[int]
) -> Sequence[tuple[int, int]]:
    """Return the events with those of clients that have closed before the others, the late first.

    Last are those that have sent much.

    The kernel does not report in the order of arrival: it keeps a client that it has just reported
    in its list, and so before one that closes next. A client that sends something after it has seen
    another close counts on that order.
    """
    if not late and not any(event & ENDS for _, event in events):
        return events
    others = 1 << 62
    return sorted(
        events, key=lambda each: (_kind(each[0], each[1], long), late.get(each[0], others))
    )
