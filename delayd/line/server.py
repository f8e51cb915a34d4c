"""The line protocol's clients: accepted, read from and sent to.

    turn ─► poller ─► Client.read ─► LineConnection.receive ─► engine
                                              out ─► group commit ─► Client.send

The poller (`net/poller.py`) says which client is next; the connections execute commands.

Flow control: a client that waits for a job, or does not take its replies, is not read from. A
client whose replies exceed the limit, or that takes none of them for a minute, is closed.
"""

import contextlib
import socket
from collections.abc import Callable, Container, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, final

from delayd.access.connection_limits import ConnectionLimits, Peer, Rejection
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.session import Handed, WaitEnd
from delayd.core.times import RequestMs
from delayd.core.virtual_clock import StandingClock
from delayd.limits import (
    ACCEPTS_PER_TURN,
    LINE_LITTLE_LINES,
    LINE_SLICE_MS,
    READ_BYTES,
    STALLED_CLIENT_MS,
    TLS_LITTLE_BYTES,
)
from delayd.line.commands import carry_out
from delayd.line.connection import LineConnection, LineContext
from delayd.line.stats import Stats
from delayd.net.accept import Acceptor, prepare
from delayd.net.poller import BROKEN, HANG_UP, IN, OUT, Poller
from delayd.schedules.opening import ScheduleOpener

if TYPE_CHECKING:
    import ssl

    from delayd.net.tls import Handshakes, SecureSocket

READS_AT_END: Final = 2
"""How often a client that has ended is read from in the turn: the rest, and the end behind it."""

REFUSAL_WORDS: Final = MappingProxyType(
    {
        Rejection.CONNECTIONS: "TOO_MANY_CONNECTIONS",
        Rejection.CONNECTIONS_PER_IP: "TOO_MANY_OF_ADDRESS",
        Rejection.UNAUTHENTICATED_PER_IP: "TOO_MANY_UNAUTHENTICATED",
        Rejection.DESCRIPTORS: "NO_DESCRIPTORS",
        Rejection.PEER_NOT_ALLOWED: "PEER_NOT_ALLOWED",
        Rejection.DATABASE_AWAY: "DATABASE_AWAY",
    }
)
"""The word under which a refused connection is counted."""


class Durable(Protocol):
    """What is known of the jobs that are on disk, as far as they ever have to be."""

    @property
    def durable_id(self) -> int:
        """Jobs up to this id are."""

    @property
    def out_of_order_ids(self) -> Container[int]:
        """But not these."""

    @property
    def is_cut_off(self) -> bool:
        """Whether another daemon may own the log by now."""


@final
class Client:
    """One connection with its socket."""

    __slots__ = (
        *("at_end", "connection", "is_begun", "is_dirty", "is_gone", "mask", "peer", "promised"),
        *("server", "sock", "stalled_since_ms", "unsent"),
    )

    def __init__(
        self, server: "LineServer", sock: "socket.socket | SecureSocket", peer: Peer
    ) -> None:
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

    # --- Reading ---------------------------------------------------------------------------------

    def read(self) -> None:
        connection = self.connection
        # What `is_listening` says, whose call would cost 1 % of a put.
        is_deaf = connection.is_waiting and not connection.ends_on_input
        is_deaf = is_deaf or connection.is_choked or connection.is_closing
        if is_deaf or connection.has_yielded:
            self._watch(self.mask & ~IN)
            return
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.close()
            return
        server = self.server
        if data:
            if connection.receive(data, server.request_ms()) or self.is_begun:
                self.is_begun = server.timeouts.note(self, has_moved=bool(connection.out))
            if connection.is_closing:
                self._end()
            elif connection.out and not self.is_dirty:
                self.is_dirty = True
                server.dirty.append(self)
        else:
            self.at_end = True
            connection.half_close(server.request_ms())
            self._watch(self.mask & ~(IN | HANG_UP))
            self._end()

    def has_sent_little(self) -> bool:
        """Tell whether what there is to read is a few commands at most; 2 µs."""
        sock = self.sock
        try:
            if isinstance(sock, socket.socket):
                data = sock.recv(READ_BYTES, socket.MSG_PEEK)
                return data.count(b"\r\n") <= LINE_LITTLE_LINES
            return len(sock.plain.recv(READ_BYTES, socket.MSG_PEEK)) <= TLS_LITTLE_BYTES
        except OSError:
            return True  # reading it will show what this is

    def handle(self, event: int) -> None:
        if event & BROKEN:
            self.connection.is_unheard = True
            if not self.connection.has_yielded:  # or its next slice ends it, not this event
                self._end_broken()
            return
        if event & OUT:
            self._send_rest()
        if event & HANG_UP:
            # It would be reported for ever. Reading finds the end of the input again.
            self._watch(self.mask & ~HANG_UP)
            self.connection.half_close(self.server.request_ms())
            self.listen_again()
            for _ in range(READS_AT_END):
                if self.is_read and self.connection.is_listening:
                    self.read()
        elif event & IN:
            self.read()

    def resume(self) -> None:
        connection = self.connection
        if self.is_gone:
            return
        connection.has_yielded = False
        connection.resume(self.server.request_ms())
        if connection.is_unheard:
            connection.take_out()
            self._end_broken()
        elif connection.has_yielded:
            self._note()
        else:
            self.listen_again()

    def go_on(self) -> None:
        connection = self.connection
        if self.is_gone:
            return
        if connection.is_closing:
            self.close()
        elif connection.is_choked:
            connection.is_choked = False
            connection.resume(self.server.request_ms())
            self.listen_again()
        elif self.at_end:
            self.close()

    def time_out(self) -> None:
        """Close it, unless the rest is there: under heavy load it may not have been read yet."""
        self.read()
        if self.server.timeouts.is_too_slow(self):
            self.server.close_refused(self, "TOO_SLOW")

    def _end(self) -> None:
        """Let the end of its input take effect, before what others have sent after it.

        Its jobs are given back now; its socket stays open until its replies have been sent.
        """
        connection = self.connection
        if connection.is_listening or connection.is_closing:
            connection.close(self.server.request_ms())
        if connection.out or self.promised or self.unsent or not connection.is_closing:
            self._note()
        else:
            self.close()

    def _end_broken(self) -> None:
        """Close it when what it has sent is executed: it takes no replies."""
        self._read_rest()
        if not self.connection.has_yielded:
            self.close()

    def _read_rest(self) -> None:
        """Execute what it sent before it closed, which a unix socket still holds.

        Without what only reads: its replies reach no client. The kernel may hold megabytes of that,
        so a turn reads for a slice of time.
        """
        connection, request_ms = self.connection, self.server.request_ms
        connection.half_close(request_ms())
        clock = self.server.poller.elapsed_ms
        ends_ms = clock() + LINE_SLICE_MS
        with contextlib.suppress(OSError):
            while connection.is_listening and (data := self.sock.recv(READ_BYTES)):
                connection.receive(data, request_ms())
                connection.take_out()
                if clock() >= ends_ms and connection.is_listening:
                    connection.yield_turn()

    def _watch(self, mask: int) -> None:
        if mask != self.mask:
            self.mask = mask
            self.server.poller.modify(self.sock.fileno(), mask)

    # --- For its connection, and deadlines -------------------------------------------------------

    @property
    def incomplete_bytes(self) -> int | None:
        return self.connection.incomplete_bytes

    @property
    def is_read(self) -> bool:
        """Whether it is read from: not while it takes no replies, nor when it has ended."""
        return not (self.unsent or self.at_end)

    def postpone(self, by_ms: int, answer: Callable[[int], object]) -> None:
        self.server.timeouts.postpone(by_ms, partial(self._call_late, answer))

    def _call_late(self, answer: Callable[[int], object]) -> None:
        if not self.is_gone:
            answer(self.server.request_ms())
            self.listen_again()

    def listen_again(self) -> None:
        """Read from it again, now that it no longer waits; have its replies taken."""
        if not (self.at_end or self.unsent):
            self._watch(self.mask | IN)
        if self.is_begun or self.connection.incomplete_bytes is not None:
            self.is_begun = self.server.timeouts.note(self, has_moved=True)
        self._note()

    def go_on_later(self) -> None:
        self.server.poller.go_on_later(self)

    # --- Sending ---------------------------------------------------------------------------------

    def deliver(self, outcome: Handed | WaitEnd, now_ms: RequestMs) -> None:
        if self.is_gone:
            return  # it closed after it got the job, which the close has given back
        durable = self.server.durable
        is_durable = (
            isinstance(outcome, WaitEnd)
            or durable is None
            or (outcome[0] <= durable.durable_id and outcome[0] not in durable.out_of_order_ids)
        )
        self.connection.deliver(outcome, now_ms, is_durable=is_durable)
        self.listen_again()

    def _note(self) -> None:
        """Have its replies taken; an empty one shows when all before it has been sent."""
        if not self.is_dirty:
            self.is_dirty = True
            self.server.dirty.append(self)

    def send(self, data: bytes) -> None:
        """Send replies that are free to leave; each that was taken, in that order.

        In one piece; what the socket does not take is kept.
        """
        self.promised -= 1
        if self.is_gone:
            return
        if self.unsent:
            self.unsent = b"".join((self.unsent, data))
        elif data:
            sent = self._send_some(data)
            if sent < len(data):
                self.unsent = memoryview(data)[sent:]
        if self.unsent:
            self._keep_unsent()
        elif not self.promised:
            connection = self.connection
            if connection.is_closing or connection.is_choked or self.at_end:
                self.server.poller.go_on_when_sent(self)

    def _send_some(self, data: bytes | memoryview) -> int:
        """Send what the socket takes; return how much that was."""
        try:
            return self.sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            if self.connection.has_yielded:
                self.connection.is_unheard = True
            else:
                self._give_up()
            return len(data)

    def _keep_unsent(self) -> None:
        """Wait until it takes more, unless that is too much already."""
        if len(self.unsent) > self.server.context.out_bytes_max and self.promised:
            self._give_up()
        else:
            self._watch(OUT | self.mask & HANG_UP)

    def _send_rest(self) -> None:
        sent = self._send_some(self.unsent)
        if sent:
            self.stalled_since_ms = None
            self.unsent = self.unsent[sent:]
        if not self.unsent:
            self._watch(self.mask & ~OUT if self.at_end else IN | HANG_UP)
            connection = self.connection
            if not self.promised and (connection.is_closing or connection.is_choked or self.at_end):
                self.server.poller.go_on_when_sent(self)

    def _give_up(self) -> None:
        """Close it in the next turn, where what it holds can be given back."""
        self.connection.is_closing = True
        self.unsent = b""
        self.server.poller.go_on_when_sent(self)

    # --- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Close it; what it held is ready again."""
        fd = self.sock.fileno()
        if fd < 0:
            return
        server = self.server
        self.is_gone = True
        server.timeouts.forget(self)
        server.admission.leave(self.peer)
        self.connection.close(server.request_ms())
        server.poller.remove(fd)
        del server.clients[fd]
        self.sock.close()


class LineServer:
    """Accepts clients, and knows those that there are."""

    def __init__(
        self,
        engine: Engine,
        stats: Stats,
        listeners: list[socket.socket],
        request_ms: Callable[[], RequestMs],
        poller: Poller,
        tasks: BackgroundTasks,
        schedules: ScheduleOpener,
        *,
        out_bytes_max: int,
        clock: StandingClock | None = None,
        admission: ConnectionLimits | None = None,
        tls: "ssl.SSLContext | None" = None,
        durable: Durable | None = None,
    ) -> None:
        """Serve these listening, non-blocking sockets.

        `request_ms` reads the time again for each client, since its input may have been sent after
        the turn began, and its delays count from there. Clients may advance the `clock`, if there
        is one. With `tls` every client that does not come by a unix socket has to speak it.
        `durable` says which jobs are on disk; None: none has to be.
        """
        self.stats = stats
        self.request_ms = request_ms
        self.poller = poller
        self.timeouts = poller.timeouts
        self.admission = ConnectionLimits() if admission is None else admission
        self.durable = durable
        self.context = LineContext(
            engine=engine,
            stats=stats,
            tasks=tasks,
            admission=self.admission,
            carry_out=carry_out,
            elapsed_ms=poller.elapsed_ms,
            out_bytes_max=out_bytes_max,
            clock=clock,
            schedules=schedules,
        )
        self.clients: dict[int, Client] = {}
        """Those that are connected, by the descriptor."""
        self.dirty: list[Client] = []
        """Those with replies that `take_replies` has not taken."""
        self._free: list[tuple[Client, bytes]] = []
        self._handshakes: Handshakes[Peer] | None = None
        if tls is not None:
            self._handshakes = self._new_handshakes(tls)
        self._acceptor = self._new_acceptor(listeners)
        self._acceptor.open()

    def _new_acceptor(self, listeners: list[socket.socket]) -> Acceptor:
        return Acceptor(
            listeners,
            self._accepted,
            per_turn=ACCEPTS_PER_TURN,
            watch=lambda fd: self.poller.watch(fd, partial(self._acceptor.accept, fd)),
            unwatch=self.poller.unwatch,
            call_later=self.timeouts.postpone,
            on_no_descriptor=partial(self.stats.note_refusal, REFUSAL_WORDS[Rejection.DESCRIPTORS]),
        )

    def _new_handshakes(self, tls: "ssl.SSLContext") -> "Handshakes[Peer]":
        from delayd.net.tls import Handshakes  # noqa: PLC0415 (ssl takes 15 ms to load)

        return Handshakes(tls, self.poller, self._shaken, self._not_shaken)

    # --- Replies ---------------------------------------------------------------------------------

    def take_replies(self) -> list[tuple[Client, bytes]]:
        """Return what the connections have answered since the last call, to be given to `send`.

        Without those that need not wait for the disk; see `take_free_replies`.
        """
        dirty = self.dirty
        if not dirty:
            return []
        self.dirty = []
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

    # --- Accepting -------------------------------------------------------------------------------

    def _accepted(self, sock: socket.socket, address: object) -> None:
        """Admit a connection, or close it: also where another daemon may own the log by now."""
        if self.durable is not None and self.durable.is_cut_off:
            self._refuse(sock, Rejection.DATABASE_AWAY)
            return
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
            self._add(sock, peer)

    def _add(self, sock: "socket.socket | SecureSocket", peer: Peer) -> Client:
        client = Client(self, sock, peer)
        self.clients[sock.fileno()] = client
        self.poller.add(sock.fileno(), client, client.mask)
        return client

    def _refuse(self, sock: socket.socket, refused: Rejection) -> None:
        self.stats.note_refusal(REFUSAL_WORDS[refused])
        sock.close()

    def _shaken(
        self, sock: "SecureSocket", peer: Peer, certificate: Mapping[str, Any] | None
    ) -> None:
        """Serve a client whose handshake is over; it may have sent something already."""
        if certificate:
            self.admission.identify(peer, sock.plain, certificate)
        self._add(sock, peer).read()

    def _not_shaken(self, peer: Peer, error: Exception) -> None:
        self.stats.note_refusal("TLS_HANDSHAKE")
        self.admission.note_failed_handshake(peer, error)
        self.admission.leave(peer)

    # --- Closing ---------------------------------------------------------------------------------

    def close_refused(self, client: Client, word: str) -> None:
        """Close a client, and count why."""
        self.stats.note_refusal(word)
        client.close()

    def close_stalled(self) -> int:
        """Close clients that have taken none of their replies for a minute; count them.

        The minute is one of real time, which runs even when the time of the jobs stands still.
        """
        closed, elapsed_ms = 0, self.poller.elapsed_ms()
        for client in list(self.clients.values()):
            if not client.unsent:
                continue
            if client.stalled_since_ms is None:
                client.stalled_since_ms = elapsed_ms
            elif elapsed_ms - client.stalled_since_ms >= STALLED_CLIENT_MS:
                self.close_refused(client, "TAKES_NO_REPLIES")
                closed += 1
        return closed

    def close_unauthorized(self) -> int:
        """Close clients whose tokens expired or were revoked; count them.

        The jobs that such a client held are ready again.
        """
        gone = [client for client in self.clients.values() if not client.connection.may_stay]
        for client in gone:
            self.close_refused(client, "UNAUTHORIZED")
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
        return any(client.unsent or client.promised for client in self.clients.values())

    def close_clients(self) -> None:
        """Close every connection; what they held is ready again."""
        for client in list(self.clients.values()):
            client.close()

    def close(self) -> None:
        """Close what is left when the journal cannot be written: no job is given back."""
        self.stop_accepting()
        for client in self.clients.values():
            client.is_gone = True
            client.sock.close()
        self.clients.clear()
