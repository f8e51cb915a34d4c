"""The line protocol's sockets.

All of them sit in an epoll of their own, and that one descriptor is what the event loop watches. So
one wake-up serves every connection with input: read, execute, and then one append, one sync and one
send for each. With a transport and a protocol object for each connection (the usual way) the loop
iterates once for each of them, and a put of a single client costs 12 µs more.

    turn ─► epoll ─► client.sock ─► LineConnection.receive ─► engine
                                              out ─► group commit ─► client.send

A client that sends many commands together has a slice of time for them. Then the others have their
turn, and it continues in the next one.

Flow control: a client that waits for a job, or does not take its replies, is not read from. A
client whose replies exceed the limit, or that takes none of them for a minute, is closed.
"""

import contextlib
import select
import socket
from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, final

from delayd.access.connection_limits import ConnectionLimits, Peer, Rejection
from delayd.clock import monotonic_ns
from delayd.core.background import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.session import Handed, WaitEnd
from delayd.core.times import RequestMs
from delayd.core.virtual_clock import StandingClock
from delayd.limits import (
    ACCEPTS_PER_TURN,
    EVENTS_PER_TURN,
    JOB_ID_MAX,
    LINE_SLICE_MS,
    LINE_TURN_MS,
    READ_BYTES,
    STALLED_CLIENT_MS,
)
from delayd.line.commands import carry_out
from delayd.line.connection import LineConnection, LineContext
from delayd.line.stats import Stats
from delayd.net.accept import Acceptor, prepare
from delayd.net.deadlines import ReadTimeouts

if TYPE_CHECKING:
    import ssl

    from delayd.net.tls import Handshakes, SecureSocket

IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT
HANG_UP: Final = select.EPOLLRDHUP
NS_PER_MS: Final = 1_000_000
FD_SETSIZE: Final = 1_024
"""The first descriptor that select(2) cannot watch."""

PRECISE_WAIT_S: Final = 0.02
"""Waits shorter than this end on the microsecond; for longer ones this makes no difference."""

READS_AT_END: Final = 2
"""How often a client that has ended is read from in the turn: the rest, and the end behind it."""

BROKEN: Final = select.EPOLLERR | select.EPOLLHUP
ENDS: Final = HANG_UP | BROKEN

REFUSAL_WORDS: Final = MappingProxyType(
    {
        Rejection.CONNECTIONS: "TOO_MANY_CONNECTIONS",
        Rejection.CONNECTIONS_PER_IP: "TOO_MANY_OF_ADDRESS",
        Rejection.STRANGERS_PER_IP: "TOO_MANY_STRANGERS",
        Rejection.DESCRIPTORS: "NO_DESCRIPTORS",
        Rejection.PEER_NOT_ALLOWED: "PEER_NOT_ALLOWED",
    }
)
"""The word under which a refused connection is counted."""


def elapsed_ms() -> int:
    """Return a time for deadlines of connections; that of the jobs may stand still."""
    return monotonic_ns() // NS_PER_MS


@final
class Client:
    """One connection with its socket."""

    __slots__ = (
        "at_end",
        "connection",
        "is_begun",
        "is_dirty",
        "is_gone",
        "mask",
        "peer",
        "promised",
        "server",
        "sock",
        "stalled_since_ms",
        "unsent",
    )

    def __init__(
        self, server: "LineServer", sock: "socket.socket | SecureSocket", peer: Peer
    ) -> None:
        """Serve an admitted client; the server watches for input and its end."""
        self.server = server
        self.sock = sock
        self.peer = peer
        self.connection = LineConnection(server.context, self, peer)
        self.mask = IN | HANG_UP
        self.at_end = False
        """The last byte of its input has been read."""
        self.is_begun = False
        """It is in the middle of something, for which there is a time limit."""
        self.is_gone = False
        """Its socket is closed."""
        self.is_dirty = False
        """It is on the server's list of those with replies to send."""
        self.promised = 0
        """Sends that are still to come, from turns whose records are not durable yet."""
        self.unsent: bytes | memoryview = b""
        self.stalled_since_ms: int | None = None

    @property
    def incomplete_bytes(self) -> int | None:
        """How many bytes of a body are missing, 0 if it is a line; None: in the middle of none."""
        return self.connection.incomplete_bytes

    @property
    def is_read(self) -> bool:
        """Whether it is read from: not while it takes no replies, nor when it has ended."""
        return not (self.unsent or self.at_end)

    def postpone(self, by_ms: int, answer: Callable[[int], object]) -> None:
        """Let its connection answer after a delay, if it is still there, and then read from it."""
        self.server.timeouts.postpone(by_ms, partial(self._call_late, answer))

    def _call_late(self, answer: Callable[[int], object]) -> None:
        if not self.is_gone:
            answer(self.server.time_ms)
            self.server.listen_again(self)

    def listen_again(self) -> None:
        """Read from it again: its connection no longer waits."""
        self.server.listen_again(self)

    def go_on_later(self) -> None:
        """Execute what is left of its input in the next turn."""
        self.server.yielded.append(self)
        self.server.has_more = True

    def deliver(self, outcome: Handed | WaitEnd, now_ms: RequestMs) -> None:
        """Answer the reserve that waited."""
        if self.is_gone:
            return  # it closed after it got the job, which the close has given back
        server = self.server
        is_durable = isinstance(outcome, WaitEnd) or (
            outcome[0] <= server.durable_id and outcome[0] not in server.out_of_order_ids
        )
        self.connection.deliver(outcome, now_ms, is_durable=is_durable)
        server.listen_again(self)

    def send(self, data: bytes) -> None:
        """Send replies that are free to leave; each that was taken, in that order.

        In one piece; what the socket does not take is kept.
        """
        server = self.server
        self.promised -= 1
        if self.is_gone:
            return
        if self.unsent:
            self.unsent = b"".join((self.unsent, data))
        elif data:
            sent = server.send_some(self, data)
            if sent < len(data):
                self.unsent = memoryview(data)[sent:]
        if self.unsent:
            server.keep_unsent(self)
        elif not self.promised:
            connection = self.connection
            if connection.is_closing or connection.is_choked or self.at_end:
                server.settle(self)


class LineServer:
    """Accepts, reads and sends; the connections execute commands."""

    def __init__(
        self,
        engine: Engine,
        stats: Stats,
        listeners: list[socket.socket],
        request_ms: Callable[[], RequestMs],
        *,
        out_bytes_max: int,
        clock: StandingClock | None = None,
        admission: ConnectionLimits | None = None,
        tls: "ssl.SSLContext | None" = None,
        elapsed_ms: Callable[[], int] = elapsed_ms,
    ) -> None:
        """Serve these listening, non-blocking sockets.

        `request_ms` reads the time again for each client, since its input may have been sent after
        the turn began, and its delays count from there. Clients may advance the
        `clock`, if there is one. With `tls` every client that does not come by a unix socket has
        to speak it.
        """
        self.engine = engine
        self.stats = stats
        self._request_ms = request_ms
        self.admission = ConnectionLimits() if admission is None else admission
        self.tasks = BackgroundTasks(engine)
        """Those of this front end and of others."""
        self.context = LineContext(
            engine=engine,
            stats=stats,
            tasks=self.tasks,
            admission=self.admission,
            carry_out=carry_out,
            elapsed_ms=elapsed_ms,
            out_bytes_max=out_bytes_max,
            clock=clock,
        )
        self._epoll = select.epoll()
        self._clients: dict[int, Client] = {}
        self.timeouts = ReadTimeouts(elapsed_ms)
        self._hears_clients = True
        self.time_ms = 0  # what time it was when a late answer was last given
        self._handshakes: Handshakes[Peer] | None = None
        if tls is not None:
            self._handshakes = self._new_handshakes(tls)
        self._acceptor = self._new_acceptor(listeners)
        self._acceptor.open()
        self._dirty: list[Client] = []
        self._free: list[tuple[Client, bytes]] = []
        self.durable_id = JOB_ID_MAX
        """Jobs up to this id are on disk, as far as they ever have to be."""
        self.out_of_order_ids: Container[int] = ()
        """But not these."""
        self._settled: list[Client] = []
        """Clients that can continue, or be closed, because everything has been sent to them."""
        self.yielded: deque[Client] = deque()
        """Clients whose input has taken its time; the longest without a turn first."""
        self._late: dict[int, int] = {}  # clients that wait for their turn → about since when
        self.has_more = False  # of the settled and the yielded: `serve` needs no event
        self._others: dict[int, Callable[[], object]] = {}
        self._others_epoll = select.epoll()  # for the times when clients are not read from

    def _new_acceptor(self, listeners: list[socket.socket]) -> Acceptor:
        return Acceptor(
            listeners,
            self._accepted,
            per_turn=ACCEPTS_PER_TURN,
            watch=partial(self._epoll.register, eventmask=IN),
            unwatch=self._epoll.unregister,
            call_later=self.timeouts.postpone,
            on_no_descriptor=partial(self.stats.note_refusal, REFUSAL_WORDS[Rejection.DESCRIPTORS]),
        )

    def _new_handshakes(self, tls: "ssl.SSLContext") -> "Handshakes[Peer]":
        from delayd.net.tls import Handshakes  # noqa: PLC0415 (ssl takes 15 ms to load)

        return Handshakes(tls, self._epoll, self.timeouts, self._shaken, self._not_shaken)

    def fileno(self) -> int:
        """Return the descriptor that is readable when `poll` would return something."""
        return self._epoll.fileno()

    def listen_to(self, fd: int, callback: Callable[[], object], *, each_time: bool = True) -> None:
        """Call back from `serve` when a descriptor that is not a client's is readable.

        As long as it is, or else once for each time it becomes so.
        """
        self._others[fd] = callback
        for epoll in (self._epoll, self._others_epoll):
            epoll.register(fd, IN if each_time else IN | select.EPOLLET)

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

    def serve(self, events: Sequence[tuple[int, int]], now_ms: RequestMs) -> None:
        """Read from every client with input and execute its commands."""
        if self.has_more:
            self.has_more = False
            self._go_on(now_ms)
        if self.timeouts.alarm_ms is not None:
            self._look_at_time(now_ms)
        if len(events) > 1 or self.yielded:
            self._serve_many(events, now_ms)
        else:
            for fd, event in events:
                client = self._clients.get(fd)
                if client is not None and event == IN:
                    self._read(client, now_ms)
                else:
                    self._serve_one(fd, event, now_ms)

    def _serve_many(self, events: Sequence[tuple[int, int]], now_ms: RequestMs) -> None:
        """Serve clients for a bounded time: of those that yielded, closed, and stay, one at least.

        Who has to wait is reported again, and comes before the others then.
        """
        clock, late, clients = self.context.elapsed_ms, self._late, self._clients
        ends_ms = clock() + LINE_TURN_MS
        before = len(self.yielded)
        if before:
            before -= 1
            self._go_on_yielded(now_ms)
        is_over = has_ended = has_read = False
        for fd, event in _in_order(events, late):
            if fd not in clients:
                self._serve_one(fd, event, now_ms)
                continue
            is_end = event & ENDS != 0
            is_over = is_over or ((has_ended or has_read) and clock() >= ends_ms)
            if is_over and (has_ended if is_end else has_read):
                late.setdefault(fd, ends_ms)
                continue
            if is_end:
                has_ended = True
            else:
                has_read = True
            late.pop(fd, 0)
            self._serve_one(fd, event, now_ms)
        while before and clock() < ends_ms:
            before -= 1
            self._go_on_yielded(now_ms)
        self.has_more |= len(self.yielded) > 0

    def _serve_one(self, fd: int, event: int, now_ms: RequestMs) -> None:
        client = self._clients.get(fd)
        if client is None:
            if fd in self._others:
                self._others[fd]()
            elif not self._acceptor.accept(fd) and self._handshakes is not None:
                self._handshakes.go_on(fd, now_ms)
        elif event == IN:
            self._read(client, now_ms)
        else:
            self._handle(client, event, now_ms)

    def _go_on_yielded(self, now_ms: RequestMs) -> None:
        """Have the client resume that yielded first; if it yields again it goes to the end."""
        client = self.yielded.popleft()
        connection = client.connection
        if client.is_gone:
            return
        connection.has_yielded = False
        connection.resume(self._request_ms())
        if connection.is_unheard:
            connection.take_out()
            self._end_broken(client, now_ms)
        elif connection.has_yielded:
            self._note(client)
        else:
            self.listen_again(client)

    def _look_at_time(self, now_ms: RequestMs) -> None:
        """Make the calls that were postponed, and close clients that take too long."""
        handshakes = self._handshakes
        if handshakes is not None:
            handshakes.begin_turn()
        if not self.timeouts.is_due:
            return
        self.time_ms = now_ms
        for call in self.timeouts.due_calls():
            call()
        for sender in self.timeouts.too_slow(counts=self._hears_clients):
            if not isinstance(sender, Client):
                assert handshakes is not None
                handshakes.give_up(sender)
                continue
            # Under heavy load the rest may be there and not have been read yet.
            self._read(sender, now_ms)
            if self.timeouts.is_too_slow(sender):
                self._close_refused(sender, "TOO_SLOW", now_ms)

    def take_replies(self) -> list[tuple[Client, bytes]]:
        """Return what the connections have answered since the last call, to be given to `send`.

        Without those that need not wait for the disk; see `take_free_replies`.
        """
        dirty = self._dirty
        if not dirty:
            return []
        self._dirty = []
        replies: list[tuple[Client, bytes]] = []
        for client in dirty:
            connection = client.connection
            is_free = not (connection.is_bound or client.promised)
            client.is_dirty = False
            client.promised += 1
            (self._free if is_free else replies).append((client, connection.take_out()))
        return replies

    def take_free_replies(self) -> list[tuple[Client, bytes]]:
        """Return those that need not wait for the disk, for `send` when their turn is recorded."""
        free = self._free
        if free:
            self._free = []
        return free

    def _note(self, client: Client) -> None:
        """Have the client's replies taken; an empty one shows when all before it has been sent."""
        if not client.is_dirty:
            client.is_dirty = True
            self._dirty.append(client)

    def _go_on(self, now_ms: RequestMs) -> None:
        settled, self._settled = self._settled, []
        for client in settled:
            connection = client.connection
            if client.is_gone:
                continue
            if connection.is_closing:
                self._close(client, now_ms)
            elif connection.is_choked:
                connection.is_choked = False
                connection.resume(self._request_ms())
                self.listen_again(client)
            elif client.at_end:
                self._close(client, now_ms)

    # --- Reading ---------------------------------------------------------------------------------

    def _read(self, client: Client, now_ms: RequestMs) -> None:
        connection = client.connection
        # What `is_listening` says, whose call would cost 1 % of a put.
        is_deaf = connection.is_waiting or connection.is_choked or connection.is_closing
        if is_deaf or connection.has_yielded:
            self._watch(client, client.mask & ~IN)
            return
        try:
            data = client.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._close(client, now_ms)
            return
        if data:
            if connection.receive(data, self._request_ms()) or client.is_begun:
                client.is_begun = self.timeouts.note(client, has_moved=bool(connection.out))
            if connection.is_closing:
                self._end(client, now_ms)
            elif connection.out:
                self._note(client)
        else:
            client.at_end = True
            connection.half_close(self._request_ms())
            self._watch(client, client.mask & ~(IN | HANG_UP))
            self._end(client, now_ms)

    def _end(self, client: Client, now_ms: RequestMs) -> None:
        """Let the end of a client's input take effect, before what others have sent after it.

        Its jobs are given back now; its socket stays open until its replies have been sent.
        """
        connection = client.connection
        if connection.is_listening or connection.is_closing:
            connection.close(now_ms)
        if connection.out or client.promised or client.unsent or not connection.is_closing:
            self._note(client)
        else:
            self._close(client, now_ms)

    def _handle(self, client: Client, event: int, now_ms: RequestMs) -> None:
        """Deal with everything but plain input."""
        if event & BROKEN:
            client.connection.is_unheard = True
            if not client.connection.has_yielded:  # or its next slice ends it, not this event
                self._end_broken(client, now_ms)
            return
        if event & OUT:
            self._send_rest(client)
        if event & HANG_UP:
            # It would be reported for ever. Reading finds the end of the input again.
            self._watch(client, client.mask & ~HANG_UP)
            client.connection.half_close(self._request_ms())
            self.listen_again(client)
            for _ in range(READS_AT_END):
                if client.is_read and client.connection.is_listening:
                    self._read(client, now_ms)
        elif event & IN:
            self._read(client, now_ms)

    def _end_broken(self, client: Client, now_ms: RequestMs) -> None:
        """Close a client that takes no replies when what it has sent is executed."""
        self._read_rest(client)
        if not client.connection.has_yielded:
            self._close(client, now_ms)

    def _read_rest(self, client: Client) -> None:
        """Execute what a client sent before it closed, which a unix socket still holds.

        Without what only reads: its replies reach nobody. The kernel may hold megabytes of that,
        so a turn reads for a slice of time.
        """
        connection, clock = client.connection, self.context.elapsed_ms
        connection.half_close(self._request_ms())
        ends_ms = clock() + LINE_SLICE_MS
        with contextlib.suppress(OSError):
            while connection.is_listening and (data := client.sock.recv(READ_BYTES)):
                connection.receive(data, self._request_ms())
                connection.take_out()
                if clock() >= ends_ms and connection.is_listening:
                    connection.yield_turn()

    def listen_again(self, client: Client) -> None:
        """Read from the client again, now that it no longer waits; have its replies taken."""
        if not (client.at_end or client.unsent):
            self._watch(client, client.mask | IN)
        if client.is_begun or client.connection.incomplete_bytes is not None:
            client.is_begun = self.timeouts.note(client, has_moved=True)
        self._note(client)

    def _watch(self, client: Client, mask: int) -> None:
        if mask != client.mask:
            client.mask = mask
            self._epoll.modify(client.sock.fileno(), mask)

    # --- Sending ---------------------------------------------------------------------------------

    def keep_unsent(self, client: Client) -> None:
        """Wait until the client takes more, unless that is too much already."""
        if len(client.unsent) > self.context.out_bytes_max and client.promised:
            self._give_up(client)
        else:
            self._watch(client, OUT | client.mask & HANG_UP)

    def send_some(self, client: Client, data: bytes | memoryview) -> int:
        """Send what the socket takes; return how much that was."""
        try:
            return client.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            if client.connection.has_yielded:
                client.connection.is_unheard = True
            else:
                self._give_up(client)
            return len(data)

    def _send_rest(self, client: Client) -> None:
        sent = self.send_some(client, client.unsent)
        if sent:
            client.stalled_since_ms = None
            client.unsent = client.unsent[sent:]
        if not client.unsent:
            self._watch(client, client.mask & ~OUT if client.at_end else IN | HANG_UP)
            self.settle(client)

    def settle(self, client: Client) -> None:
        """Continue or close the client in the next turn, if everything was sent to it."""
        connection = client.connection
        if not client.promised and (connection.is_closing or connection.is_choked or client.at_end):
            self._settled.append(client)
            self.has_more = True

    def _give_up(self, client: Client) -> None:
        """Close the client in the next turn, where what it holds can be given back."""
        client.connection.is_closing = True
        client.unsent = b""
        self._settled.append(client)
        self.has_more = True

    # --- Coming and going ------------------------------------------------------------------------

    def _accepted(self, sock: socket.socket, address: object) -> None:
        """Admit a connection, or close it."""
        peer = self.admission.admit(address, sock.fileno())
        if isinstance(peer, Rejection):
            self._refuse(sock, peer)
            return
        try:
            prepare(sock)
            may_stay = self.admission.identify(peer, sock)
        except OSError:  # it has disconnected
            self.admission.leave(peer)
            sock.close()
            return
        if not may_stay:
            self.admission.leave(peer)
            self._refuse(sock, Rejection.PEER_NOT_ALLOWED)
        elif self._handshakes is not None and sock.family != socket.AF_UNIX:
            self._handshakes.begin(sock, peer)
        else:
            self._epoll.register(sock.fileno(), IN | HANG_UP)
            self._clients[sock.fileno()] = Client(self, sock, peer)

    def _refuse(self, sock: socket.socket, refused: Rejection) -> None:
        self.stats.note_refusal(REFUSAL_WORDS[refused])
        sock.close()

    def _shaken(
        self, sock: "SecureSocket", peer: Peer, certificate: Mapping[str, Any] | None, now_ms: int
    ) -> None:
        """Serve a client whose handshake is over; it may have sent something already."""
        if certificate:
            self.admission.identify(peer, sock.plain, certificate)
        self._epoll.modify(sock.fileno(), IN | HANG_UP)
        client = self._clients[sock.fileno()] = Client(self, sock, peer)
        self._read(client, RequestMs(now_ms))

    def _not_shaken(self, peer: Peer, error: Exception) -> None:
        self.stats.note_refusal("TLS_HANDSHAKE")
        self.admission.note_failed_handshake(peer, error)
        self.admission.leave(peer)

    def _close(self, client: Client, now_ms: RequestMs) -> None:
        fd = client.sock.fileno()
        if fd < 0:
            return
        client.is_gone = True
        self.timeouts.forget(client)
        self.admission.leave(client.peer)
        client.connection.close(now_ms)
        self._epoll.unregister(fd)
        self._late.pop(fd, 0)
        del self._clients[fd]
        client.sock.close()

    def _close_refused(self, client: Client, word: str, now_ms: RequestMs) -> None:
        self.stats.note_refusal(word)
        self._close(client, now_ms)

    def close_stalled(self, now_ms: RequestMs, elapsed_ms: int) -> int:
        """Close clients that have taken none of their replies for a minute; count them.

        The minute is one of `elapsed_ms`, which runs even when the time of the jobs stands still.
        """
        closed = 0
        for client in list(self._clients.values()):
            if not client.unsent:
                continue
            if client.stalled_since_ms is None:
                client.stalled_since_ms = elapsed_ms
            elif elapsed_ms - client.stalled_since_ms >= STALLED_CLIENT_MS:
                self._close_refused(client, "TAKES_NO_REPLIES", now_ms)
                closed += 1
        return closed

    def close_unauthorized(self, now_ms: RequestMs) -> int:
        """Close clients whose tokens expired or were revoked; count them.

        The jobs that such a client held are ready again.
        """
        gone = [client for client in self._clients.values() if not client.connection.may_stay]
        for client in gone:
            self._close_refused(client, "UNAUTHORIZED", now_ms)
        return len(gone)

    def stop_accepting(self) -> None:
        """Let go of the listening sockets, which their owner then closes."""
        self._acceptor.close()
        if self._handshakes is not None:
            for peer in self._handshakes.close():
                self.admission.leave(peer)

    @property
    def has_unsent(self) -> bool:
        """Tell whether a client has unread replies."""
        return any(client.unsent or client.promised for client in self._clients.values())

    def close_clients(self, now_ms: RequestMs) -> None:
        """Close every connection; what they held is ready again."""
        for client in list(self._clients.values()):
            self._close(client, now_ms)

    def close(self) -> None:
        """Close what is left when the journal cannot be written: no job is given back."""
        self.stop_accepting()
        for client in self._clients.values():
            client.is_gone = True
            client.sock.close()
        self._clients.clear()
        self._epoll.close()
        self._others_epoll.close()


def _in_order(
    events: Sequence[tuple[int, int]], late: Mapping[int, int]
) -> Sequence[tuple[int, int]]:
    """Return the events with those of clients that have closed before the others, the late first.

    The kernel does not report in the order of arrival: it keeps a client that it has just reported
    in its list, and so before one that closes next. Who sent something after it had seen another
    close counts on the order; who did not wait for that has no order to count on.
    """
    if not late and not any(event & ENDS for _, event in events):
        return events
    others = 1 << 62
    return sorted(events, key=lambda each: (not each[1] & ENDS, late.get(each[0], others)))
