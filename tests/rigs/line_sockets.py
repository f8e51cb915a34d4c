"""A `LineServer` with real sockets, turned by hand.

    rig = ServerRig()
    client = rig.client()
    client.sendall(b"list-tube-used\\r\\n")
    rig.turn_until_quiet()
    assert heard(client) == b"USING default\\r\\n"

It stands for the service: it takes deliveries and replies at the end of each turn and sends
them at once, or, while `holds` is set, when `release` is called, as a slow disk would. A server
that is woken again and again without being asked anything fails every test here, in
`turn_until_quiet`.
"""

import contextlib
import select
import socket
import ssl
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from delayd.access.connection_limits import ConnectionLimits
from delayd.clock import VirtualClock
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.operations.tick import advance
from delayd.core.stats.refusals import Refusals
from delayd.core.times import PlayedMs, RequestMs
from delayd.limits import JOB_ID_MAX
from delayd.line.server import Client, LineServer
from delayd.line.stats import Stats
from delayd.net.poller import Poller
from delayd.net.tls import SecureSocket
from delayd.schedules.opening import ScheduleOpener
from tests.core.check import check

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from _typeshed import ReadableBuffer

START_MS: Final = 1_000_000
TURNS_MAX: Final = 2_000
ARRIVAL_S_MAX: Final = 60.0


class Connection(socket.socket):
    """A socket of the server that notes each send."""

    sends: "list[Connection]"

    def send(self, data: "ReadableBuffer", flags: int = 0, /) -> int:
        self.sends.append(self)
        return super().send(data, flags)


class Listener(socket.socket):
    """Accepts connections that note their sends in one list."""

    def __init__(self, family: int = socket.AF_INET) -> None:
        super().__init__(family)
        self.sends: list[Connection] = []

    def accept(self) -> tuple[socket.socket, object]:
        plain, address = super().accept()
        connection = Connection(fileno=plain.detach())
        connection.sends = self.sends
        return connection, address


class DurableUpTo:
    """Which jobs are on disk: all, until a test says something else."""

    def __init__(self) -> None:
        self.durable_id = JOB_ID_MAX
        self.out_of_order_ids: Container[int] = ()
        self.is_cut_off = False


class ServerRig:
    def __init__(
        self,
        *,
        path: Path | None = None,
        listener: Listener | None = None,
        connections_max: int = 100,
        out_bytes_max: int = 1 << 20,
        body_bytes_max: int = 65_535,
        admission: ConnectionLimits | None = None,
        tls: ssl.SSLContext | None = None,
        refusals: Refusals | None = None,
        clock: VirtualClock | None = None,
    ) -> None:
        self.engine = Engine(start_ms=START_MS, body_bytes_max=body_bytes_max)
        self.now_ms = RequestMs(START_MS)
        self.elapsed_ms = 0
        """The time of deadlines; see `elapses`."""
        self.holds = False
        self.free_sends = 0
        """Replies that did not wait, so far."""
        self._held: list[tuple[Client, bytes]] = []
        self._sockets = contextlib.ExitStack()
        self._listener = self._sockets.enter_context(listener or listening(path))
        self.durable = DurableUpTo()
        self.read_elapsed_ms: Callable[[], int] = lambda: self.elapsed_ms
        self.poller = Poller(self._read_elapsed_ms)
        self.tasks = BackgroundTasks(self.engine)
        self.server = LineServer(
            self.engine,
            Stats(self.engine, START_MS, refusals=refusals),
            [self._listener],
            clock.request_ms if clock else lambda: self.now_ms,
            self.poller,
            self.tasks,
            ScheduleOpener(self.engine, self.tasks, lambda: None, print),
            out_bytes_max=out_bytes_max,
            admission=admission or ConnectionLimits(connections_max=connections_max),
            tls=tls,
            durable=self.durable,
            clock=clock,
        )
        self.take_replies = self.server.take_replies

    def _read_elapsed_ms(self) -> int:
        return self.read_elapsed_ms()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.server.close()
        self.poller.close()
        self._sockets.close()

    @property
    def clients(self) -> list[Client]:
        return list(self.server.clients.values())

    @property
    def sends(self) -> list[Connection]:
        """To whom the server has sent something; once for each send."""
        return self._listener.sends

    def client(self, *, buffer_bytes: int = 0) -> socket.socket:
        """A connection, accepted if the server accepts it; with small buffers if asked for."""
        client = socket.socket(self._listener.family, socket.SOCK_STREAM)
        self._sockets.enter_context(client)
        client.settimeout(ARRIVAL_S_MAX)
        if buffer_bytes:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        before = set(self.clients)
        client.connect(self._listener.getsockname())
        self.turn_until_quiet(some=True)
        for accepted in set(self.clients) - before:
            if buffer_bytes:
                plain(accepted).setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        return client

    def elapses(self, seconds: float) -> None:
        """Let the time of deadlines go on; wake whenever the server asks to be woken."""
        ends_ms = self.elapsed_ms + round(seconds * 1_000)
        while (alarm_ms := self.poller.timeouts.alarm_ms) is not None and alarm_ms <= ends_ms:
            self.elapsed_ms = max(self.elapsed_ms, alarm_ms)
            assert self.poller.poll(None) is not None, "it does not sleep beyond its alarm"
            self.turn()
            self.turn_until_quiet()
        self.elapsed_ms = ends_ms

    def pass_ms(self, ms: int) -> None:
        """Let time pass, what is due happen, and a turn end."""
        self.now_ms = RequestMs(self.now_ms + ms)
        while advance(self.engine, PlayedMs(self.now_ms - 1), self.now_ms):
            pass
        self.end_turn()
        self.turn_until_quiet()

    def turn(self) -> None:
        self.poller.serve(self.poller.poll(0))
        self.end_turn()

    def end_turn(self) -> None:
        while deliveries := self.engine.take_deliveries():
            for session, outcome in deliveries:
                assert session.owner is not None
                session.owner.deliver(outcome, self.now_ms)
        self.engine.take_log()
        replies = self.take_replies()
        assert len({client for client, _ in replies}) == len(replies), "one reply to each in a turn"
        self._held += replies
        if not self.holds:
            self.release()
        for client, data in self.server.take_free_replies():
            self.free_sends += 1
            client.send(data)

    def release(self, count: int | None = None) -> None:
        """Send what was held, or only the oldest few replies of it."""
        held, self._held = self._held[:count], self._held[len(self._held[:count]) :]
        for client, data in held:
            client.send(data)

    def is_quiet(self, within_s: float = 0.0) -> bool:
        """Whether nothing asks for a turn."""
        return not (self.poller.has_more or select.select([self.poller], [], [], within_s)[0])

    def turn_until_quiet(self, *, some: bool = False) -> None:
        """Take turns until nothing is left to do; `some`: something is on its way."""
        if some and not self.poller.has_more:
            assert select.select([self.poller], [], [], ARRIVAL_S_MAX)[0], "nothing was on its way"
        for _ in range(TURNS_MAX):
            if self.is_quiet():
                check(self.engine)
                return
            self.turn()
        raise AssertionError("the server is woken again and again")

    def says(self, client: socket.socket, data: bytes) -> None:
        client.sendall(data)
        self.turn_until_quiet(some=True)


def listening(path: Path | None) -> Listener:
    if path is None:
        listener = Listener()
        listener.bind(("127.0.0.1", 0))
    else:
        listener = Listener(socket.AF_UNIX)
        listener.bind(str(path))
    listener.listen()
    listener.setblocking(False)
    return listener


def plain(client: Client) -> socket.socket:
    """The socket that the kernel knows."""
    sock = client.sock.plain if isinstance(client.sock, SecureSocket) else client.sock
    assert isinstance(sock, socket.socket)
    return sock


def heard(client: socket.socket) -> bytes:
    """What has arrived by now."""
    client.setblocking(False)
    data = b""
    with contextlib.suppress(BlockingIOError, ConnectionResetError):
        while more := client.recv(1 << 20):
            data += more
    client.settimeout(ARRIVAL_S_MAX)
    return data


def reset(client: socket.socket) -> None:
    """Close without a word, so that the other side sees an error."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def is_cut_off(client: socket.socket) -> bool:
    """Whether the server has closed the connection; what was sent before is thrown away."""
    try:
        while client.recv(1 << 20):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True
