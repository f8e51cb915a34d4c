"""The line protocol's sockets.

All of them sit in an epoll of their own, and that one descriptor is what the event loop watches. So
one wake-up serves every connection that has something to say: read, carry out, and then one append,
one sync and one send for each. With a transport and a protocol object for each connection (the
usual way) the loop comes round once for each of them, and a put of one client in turn costs 12 µs
more.

    turn ─► epoll ─► client.sock ─► Connection.receive ─► engine
                                              out ─► group commit ─► client.send

Flow: a client that waits for a job, or does not take its replies, is not read from. A client whose
replies pile up beyond the limit, or who takes none of them for a minute, is closed.
"""

import contextlib
import select
import socket
from collections.abc import Callable, Container, Sequence
from typing import Final

from delayd.clock import monotonic_ns
from delayd.core.background import BackgroundTask, BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.timekeeper import Handed, WaitEnd
from delayd.core.virtual_clock import StandingClock
from delayd.limits import EVENTS_PER_TURN, JOB_ID_MAX, READ_BYTES, STALLED_CLIENT_MS
from delayd.line.accept import LineAcceptor
from delayd.line.admission import Door, LinePeer
from delayd.line.client import Client, Wire
from delayd.line.connection import Connection
from delayd.line.guarded import GuardedConnection
from delayd.line.read_timeouts import ReadTimeouts, Speaker
from delayd.line.stats import Stats
from delayd.line.tasks import LineTasks

IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT
HANG_UP: Final = select.EPOLLRDHUP
NS_PER_MS: Final = 1_000_000
FD_SETSIZE: Final = 1_024
"""The first descriptor that select(2) cannot watch."""

PRECISE_WAIT_S: Final = 0.02
"""Waits shorter than this end on the microsecond; beyond it nobody knows the difference yet."""

BROKEN: Final = select.EPOLLERR | select.EPOLLHUP


def elapsed_ms() -> int:
    """Return a time for deadlines of connections; that of the jobs may stand still."""
    return monotonic_ns() // NS_PER_MS


class LineServer:
    """Accepts, reads and sends; what is said is the connections' business."""

    def __init__(
        self,
        engine: Engine,
        stats: Stats,
        listeners: list[socket.socket],
        now_ms: Callable[[], int],
        *,
        connections_max: int,
        out_bytes_max: int,
        up_ms: int = 1,
        clock: StandingClock | None = None,
        passes: BackgroundTasks[BackgroundTask] | None = None,
        door: Door | None = None,
        elapsed_ms: Callable[[], int] = elapsed_ms,
    ) -> None:
        """Serve these listening, non-blocking sockets.

        `now_ms` tells the time, rounded down: read anew for each client, since what it said may
        have been sent after the turn began, and its delays count from there. It is at most `up_ms`
        later. Clients may advance the `clock`, if there is one. The `door` says who comes in as
        whom; None: everybody may do everything.
        """
        self.engine = engine
        self.stats = stats
        self.out_bytes_max = out_bytes_max
        self._now_ms = now_ms
        self._up_ms = up_ms
        self.passes: BackgroundTasks[BackgroundTask] = (
            BackgroundTasks(engine) if passes is None else passes
        )
        """What takes long, of this front end and of others."""
        self.long_commands = LineTasks(self.passes, clock, self._answered)
        self._epoll = select.epoll()
        self._clients: dict[int, Client] = {}
        self.door = Door() if door is None else door
        self._elapsed_ms = elapsed_ms
        self.patience = ReadTimeouts(elapsed_ms)
        self._hears_clients = True
        self.time_ms = 0
        """What time it was when a late answer was last given."""
        self._arrivals = LineAcceptor(
            listeners,
            self._epoll,
            self.door,
            self.patience,
            stats,
            self._welcome,
            has_room=lambda shaking: shaking + len(self._clients) < connections_max,
        )
        self._dirty: list[Client] = []
        self._free: list[tuple[Client, bytes]] = []
        self.durable_id = JOB_ID_MAX
        """Jobs up to this id are on disk, as far as they ever have to be."""
        self.out_of_order_ids: Container[int] = ()
        """But not these."""
        self._settled: list[Client] = []
        """Clients that can go on, or be closed, now that everything has been sent to them."""
        self._others: dict[int, Callable[[], object]] = {}
        self._others_epoll = select.epoll()
        """Watches only them, for the times when clients are not listened to."""

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

    @property
    def has_more(self) -> bool:
        """Tell whether `serve` has something to do without any event."""
        return bool(self._settled)

    def poll(self, wait_s: float | None, *, hears_clients: bool = True) -> list[tuple[int, int]]:
        """Wait for events, so long at most (None: for ever), and return them for `serve`."""
        epoll = self._epoll if hears_clients else self._others_epoll
        self._hears_clients = hears_clients
        if self.patience.alarm_ms is not None:
            wait_s = self.patience.wait_s(wait_s)
        if wait_s and wait_s < PRECISE_WAIT_S and epoll.fileno() < FD_SETSIZE:
            # epoll counts in milliseconds, which would make every job half of one late.
            if not select.select((epoll,), (), (), wait_s)[0]:
                return []
            wait_s = 0
        return epoll.poll(wait_s, EVENTS_PER_TURN)

    def serve(self, events: Sequence[tuple[int, int]], now_ms: int) -> None:
        """Read from every client that has said something and carry it out."""
        if self._settled:
            self._go_on(now_ms)
        if self.patience.alarm_ms is not None:
            self._look_at_time(now_ms)
        clients = self._clients
        for fd, event in events:
            client = clients.get(fd)
            if client is None:
                if fd in self._others:
                    self._others[fd]()
                else:
                    self._arrivals.handle(fd, now_ms)
            elif event == IN:
                self._read(client, now_ms)
            else:
                self._handle(client, event, now_ms)

    def _look_at_time(self, now_ms: int) -> None:
        """Give answers that were to come later, and close who takes too long over something."""
        self._arrivals.begin_turn()
        if not self.patience.is_due:
            return
        self.time_ms = now_ms
        for answer in self.patience.answers():
            answer()
        for speaker in self.patience.too_slow(counts=self._hears_clients):
            self._lose_patience(speaker, now_ms)

    def _lose_patience(self, speaker: Speaker, now_ms: int) -> None:
        if not isinstance(speaker, Client):
            self._arrivals.lose_patience(speaker)
            return
        # Under heavy load the rest may be there, and nobody has come to read it yet.
        self._read(speaker, now_ms)
        if self.patience.is_too_slow(speaker):
            self.stats.note_refusal("TOO_SLOW")
            self._close(speaker, now_ms)

    def _answered(self, connection: Connection) -> None:
        """Go on with a client whose command took long."""
        client = connection.session.owner
        assert isinstance(client, Client), "whoever began it is a client of this server"
        self.listen_again(client)

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

    def deliver(self, client: Client, outcome: Handed | WaitEnd, now_ms: int) -> None:
        """Answer a reserve that waited."""
        if client.is_gone:
            return  # it went after the job was its own, which closing has given back
        is_durable = isinstance(outcome, WaitEnd) or (
            outcome[0] <= self.durable_id and outcome[0] not in self.out_of_order_ids
        )
        client.connection.deliver(outcome, now_ms, is_durable=is_durable)
        self.listen_again(client)

    def _note(self, client: Client) -> None:
        """Have the client's replies taken; an empty one shows when all before it has been sent."""
        if not client.is_dirty:
            client.is_dirty = True
            self._dirty.append(client)

    def _go_on(self, now_ms: int) -> None:
        settled, self._settled = self._settled, []
        for client in settled:
            connection = client.connection
            if client.is_gone:
                continue
            if connection.is_closing:
                self._close(client, now_ms)
            elif connection.is_choked:
                connection.is_choked = False
                connection.resume(now_ms)
                self.listen_again(client)
            elif client.at_end:
                self._close(client, now_ms)

    # --- Reading ---------------------------------------------------------------------------------

    def _read(self, client: Client, now_ms: int) -> None:
        connection = client.connection
        if connection.is_waiting or connection.is_choked or connection.is_closing:
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
            if connection.receive(data, self._now_ms() + self._up_ms) or client.is_begun:
                self._mind(client, has_moved=bool(connection.out))
            if connection.out or connection.is_closing:
                self._note(client)
        else:
            client.at_end = True
            connection.half_close(now_ms)
            self._watch(client, client.mask & ~(IN | HANG_UP))
            self._note(client)

    def _handle(self, client: Client, event: int, now_ms: int) -> None:
        """Deal with everything but plain input."""
        if event & BROKEN:
            self._read_rest(client, now_ms)
            self._close(client, now_ms)
            return
        if event & OUT:
            self._send_rest(client)
        if event & HANG_UP:
            # It would be reported for ever. The end of the input is found again by reading to it.
            self._watch(client, client.mask & ~HANG_UP)
            client.connection.half_close(now_ms)
            self.listen_again(client)
        elif event & IN:
            self._read(client, now_ms)

    def _read_rest(self, client: Client, now_ms: int) -> None:
        """Carry out what a client said before it went, which a unix socket still holds.

        Nobody is left to read the replies. The loop ends: nobody is left to say more either.
        """
        connection = client.connection
        connection.half_close(now_ms)
        with contextlib.suppress(OSError):
            while connection.is_listening and (data := client.sock.recv(READ_BYTES)):
                connection.receive(data, self._now_ms() + self._up_ms)
                connection.take_out()

    def listen_again(self, client: Client) -> None:
        """Read from the client again, now that it no longer waits; have its replies taken."""
        if not (client.at_end or client.unsent):
            self._watch(client, client.mask | IN)
        if client.is_begun or client.connection.incomplete_bytes is not None:
            self._mind(client, has_moved=True)
        self._note(client)

    def _mind(self, client: Client, *, has_moved: bool) -> None:
        """Have an eye on the client while it is in the middle of something."""
        client.is_begun = self.patience.note(client, has_moved=has_moved)

    def _watch(self, client: Client, mask: int) -> None:
        if mask != client.mask:
            client.mask = mask
            self._epoll.modify(client.sock.fileno(), mask)

    # --- Sending ---------------------------------------------------------------------------------

    def keep_unsent(self, client: Client) -> None:
        """Wait until the client takes more, unless that is too much already."""
        if len(client.unsent) > self.out_bytes_max and client.promised:
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
            self._give_up(client)
            return len(data)

    def _send_rest(self, client: Client) -> None:
        sent = self.send_some(client, client.unsent)
        if sent:
            client.stalled_since_ms = None
            client.unsent = client.unsent[sent:]
        if not client.unsent:
            self._watch(client, client.mask & ~OUT if client.at_end else IN | HANG_UP)
            connection = client.connection
            if not client.promised and (
                connection.is_closing or connection.is_choked or client.at_end
            ):
                self.settle(client)

    def settle(self, client: Client) -> None:
        """Let the client go on, or close, in the next turn: everything was sent to it."""
        self._settled.append(client)

    def _give_up(self, client: Client) -> None:
        """Close the client in the next turn, where what it holds can be given back."""
        client.connection.is_closing = True
        client.unsent = b""
        self._settled.append(client)

    # --- Coming and going ------------------------------------------------------------------------

    def connection_for(self, client: Client) -> Connection:
        """Return the protocol state for a client who has come in."""
        engine, stats, commands = self.engine, self.stats, self.long_commands
        if not self.door.asks:
            return Connection(engine, stats, self.out_bytes_max, client, commands)
        return GuardedConnection(
            engine, stats, self.out_bytes_max, client, commands, self.door, self._elapsed_ms
        )

    def _welcome(self, sock: Wire, caller: LinePeer, now_ms: int | None) -> None:
        """Serve somebody who has come in; with a time: something may have been said already."""
        client = Client(self, sock, caller, IN | HANG_UP)
        self._clients[sock.fileno()] = client
        if now_ms is not None:
            self._read(client, now_ms)

    def _close(self, client: Client, now_ms: int) -> None:
        fd = client.sock.fileno()
        if fd < 0:
            return
        client.is_gone = True
        self.patience.forget(client)
        self.door.leave(client.caller)
        client.connection.close(now_ms)
        self._epoll.unregister(fd)
        del self._clients[fd]
        client.sock.close()

    def close_stalled(self, now_ms: int, elapsed_ms: int) -> int:
        """Close clients that have taken none of their replies for a minute; count them.

        The minute is one of `elapsed_ms`, which goes on even when the time of the jobs stands.
        """
        closed = 0
        for client in list(self._clients.values()):
            if not client.unsent:
                continue
            if client.stalled_since_ms is None:
                client.stalled_since_ms = elapsed_ms
            elif elapsed_ms - client.stalled_since_ms >= STALLED_CLIENT_MS:
                self.stats.note_refusal("TAKES_NO_REPLIES")
                self._close(client, now_ms)
                closed += 1
        return closed

    def close_unwelcome(self, now_ms: int) -> int:
        """Close clients whose tokens are no longer good; count them.

        A token may have been revoked, or its time is past. What such a client held is ready again.
        """
        gone = [client for client in self._clients.values() if not client.connection.is_welcome]
        for client in gone:
            self.stats.note_refusal("UNAUTHORIZED")
            self._close(client, now_ms)
        return len(gone)

    def stop_accepting(self) -> None:
        """Let go of the listening sockets, which their owner then closes."""
        self._arrivals.stop()

    @property
    def has_unsent(self) -> bool:
        """Tell whether a client still has to take replies."""
        return any(client.unsent or client.promised for client in self._clients.values())

    def close_clients(self, now_ms: int) -> None:
        """Close every connection; what they held is ready again."""
        for client in list(self._clients.values()):
            self._close(client, now_ms)

    def close(self) -> None:
        """Close what is left, the journal being beyond reach: nothing is given back."""
        self.stop_accepting()
        for client in self._clients.values():
            client.is_gone = True
            client.sock.close()
        self._clients.clear()
        self._epoll.close()
        self._others_epoll.close()
