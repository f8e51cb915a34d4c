"""Sockets: one connection for each call under way, kept for the next one.

`connection_pool` decides which are kept, and `attempts` whether a failed call is tried again.
"""

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from delayd.client.addresses import Address
from delayd.client.attempts import Ask, Failed, Way, exchanging
from delayd.client.connection_pool import Link, Pool, reason_of
from delayd.client.errors import ConnectionLost, Unreachable, reservation_lost
from delayd.client.steps import Steps, answered_by, carried_out

if TYPE_CHECKING:
    import ssl  # see `attempts`

T = TypeVar("T")
RECEIVE_BYTES: Final = 1 << 16
"""As much memory is taken for each answer; longer ones come in parts."""
FOR_EVER_S: Final = float("inf")
KERNEL_SHARE: Final = 0.9
KERNEL_S_MIN: Final = 0.01
KERNEL_S_MAX: Final = 86_400.0


class Connection(Link):
    """One connection."""

    def __init__(self, way: Way) -> None:
        super().__init__(way)
        self.lock = threading.Lock()
        try:
            self._socket = _connected(self.place.address, way.tls, way.connect_s)
        except (OSError, ValueError) as error:
            raise Unreachable(self.place.address.url, reason_of(error)) from error
        is_tls = self.place.address.is_tls
        self._kernel_s = FOR_EVER_S if is_tls else _kernel_limit(self._socket, way)
        """How long the socket waits by itself, in the kernel. TLS knows no such limit."""

    def exchange(self, ask: Ask) -> Any:  # noqa: ANN401 - the wire tells
        """Send a request and return the reply. Raises ConnectionLost, and is closed then."""
        self.prepare(ask)
        try:
            return self._exchange(ask, self.way.timeout_s)
        except BaseException as error:
            self.fail(error)
            raise

    def prepare(self, ask: Ask) -> None:
        """Log in, watch and use topics as the request needs; after a failure nothing was done.

        Of several addresses the next one is tried where that is not answered within `connect_s`.
        """
        if (first := self.place.wire.before(ask, self)) is not None:
            with self.closing(may_have_happened=False):
                reply = self._exchange(first, self.way.connect_s)
                self.place.wire.check_before(ask, first, reply)
                self.prove()

    def _exchange(self, ask: Ask, within_s: float) -> Any:  # noqa: ANN401 - the same
        wire = self.place.wire
        ends_s = time.monotonic() + within_s
        self._send(wire.encode(ask), ends_s)
        ends_s += ask.wait_s
        received = self._receive(ends_s)
        if (reply := wire.whole(ask, self, received)) is not None:
            return reply
        reader = wire.reader(ask, self)
        while (reply := reader.feed(received)) is None:
            if not received:
                raise ConnectionResetError("the daemon closed it")
            received = self._receive(ends_s)
        return reply

    def send(self, data: bytes) -> None:
        """Send. Raises ConnectionLost, and is closed then."""
        with self.closing():
            self._send(data, time.monotonic() + self.way.timeout_s)

    def receive_until(self, is_enough: Callable[[bytes], bool]) -> None:
        """Receive, all of it within the time of an answer, until this has enough.

        Raises ConnectionLost and errors of `is_enough`, and is closed then.
        """
        ends_s = time.monotonic() + self.way.timeout_s
        with self.closing():
            while True:
                if not (received := self._receive(ends_s)):
                    raise ConnectionResetError("the daemon closed it")
                if is_enough(received):
                    return

    def take(self) -> bytes:
        """Return what has arrived, without waiting; nothing if that is nothing.

        Raises ConnectionLost, and is closed then.
        """
        with self.closing():
            try:
                self._socket.settimeout(0)  # sockets of TLS and of gevent heed no flag
                received = self._socket.recv(RECEIVE_BYTES)
            except OSError as error:  # of TLS without importing it: see `attempts`
                if isinstance(error, BlockingIOError) or type(error).__name__ == "SSLWantReadError":
                    return b""
                raise
            if not received:
                raise ConnectionResetError("the daemon closed it")
            return received

    def _send(self, data: bytes, ends_s: float) -> None:
        sent = 0
        while True:  # `sendall` of TLS has all the time again for each 16 KiB
            if not self._waits_in_kernel(ends_s):
                self._socket.settimeout(_left_s(ends_s))
            try:
                sent += self._socket.send(memoryview(data)[sent:] if sent else data)
            except BlockingIOError:
                continue  # the kernel's limit, which leaves some time
            if sent >= len(data):
                return

    def _receive(self, ends_s: float) -> bytes:
        if self._waits_in_kernel(ends_s):
            try:
                return self._socket.recv(RECEIVE_BYTES)
            except BlockingIOError:
                pass  # the same
        self._socket.settimeout(_left_s(ends_s))
        return self._socket.recv(RECEIVE_BYTES)

    def _waits_in_kernel(self, ends_s: float) -> bool:
        """Have the socket wait by its own limit, as long as that is within the time left.

        This saves two of three system calls, and as many hand-overs between threads.
        """
        if ends_s - time.monotonic() < self._kernel_s:
            return False
        if self._socket.gettimeout() is not None:
            self._socket.settimeout(None)
        return True

    @property
    def descriptor(self) -> int:
        """Of its socket."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close it; on the line its jobs are ready again."""
        self.is_closed = True
        self._socket.close()


class Connections:
    """The connections of a client."""

    def __init__(self, way: Way, sleep: Callable[[float], None] = time.sleep) -> None:
        self.way = way
        self._sleep = sleep
        self._pool: Pool[Connection] = Pool()

    def run(self, steps: Steps[T]) -> T:
        """Carry out an operation."""
        return carried_out(answered_by(steps, self.exchange, self._pool.resumed))

    def exchange(self, ask: Ask) -> tuple[Connection, Any]:
        """Return the reply and its connection, to be given back when the reply was understood.

        If the connection fails, and a repetition does no harm, a new one is used.
        """
        way, failed = self.way, None
        era = way.outage.era
        if len(way.places) == 1:
            try:
                return self._try(ask)
            except (Unreachable, ConnectionLost) as error:
                failed = Failed(error, era)
        steps = exchanging(ask, way, self._try, self._sleep, failed)
        answered: tuple[Connection, Any] = carried_out(steps)
        return answered

    def borrow(self, ask: Ask) -> Connection:
        """Return a connection ready for the request; the caller gives it back or closes it."""
        steps = exchanging(ask, self.way, self._prepared, self._sleep)
        lent: tuple[Connection, None] = carried_out(steps)
        return lent[0]

    def give_back(self, connection: Connection) -> None:
        """Take back a borrowed connection."""
        self._pool.give_back(connection)

    def close(self) -> None:
        """Close the idle connections; the others are closed when their calls end."""
        self._pool.close()

    def _try(self, ask: Ask) -> tuple[Connection, Any]:
        if ask.link is not None:
            return ask.link, self._exchange_on(ask.link, ask)
        connection = self._take()
        return connection, connection.exchange(ask)

    def _prepared(self, ask: Ask) -> tuple[Connection, None]:
        connection = self._take()
        connection.prepare(ask)
        return connection, None

    def _exchange_on(self, link: Connection, ask: Ask) -> Any:  # noqa: ANN401 - the same
        with link.lock:
            if link.is_closed or not link.is_ours:
                raise reservation_lost()
            return link.exchange(ask)

    def _take(self) -> Connection:
        """Return an idle connection, or a new one."""
        if (connection := self._pool.take(self.way.place)) is None:
            connection = Connection(self.way)
            self.way.was_reached = True
        return connection


def _kernel_limit(connection: socket.socket, way: Way) -> float:
    """Bound each wait of the socket itself, a little below the time of an answer; return it."""
    limit_s = min(KERNEL_SHARE * way.timeout_s, KERNEL_S_MAX)
    if limit_s < KERNEL_S_MIN:  # as good as none, and 0 would be none
        return FOR_EVER_S
    connection.settimeout(None)
    if not os.get_blocking(connection.fileno()):  # one of gevent, which never waits there
        return FOR_EVER_S
    limit = struct.pack("@ll", int(limit_s), int(limit_s % 1 * 1_000_000))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
    return limit_s


def _left_s(ends_s: float) -> float:
    """Return how much time is left. Raises TimeoutError when it is over."""
    if (left_s := ends_s - time.monotonic()) <= 0:
        raise TimeoutError
    return left_s


def _connected(address: Address, tls: "ssl.SSLContext | None", timeout_s: float) -> socket.socket:
    if address.path:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(address.path)
        except OSError:
            connection.close()
            raise
        return connection
    # As bytes an ASCII name needs no codec for IDNA, whose tables take as long to load as `socket`.
    host = address.host.encode() if address.host.isascii() else address.host
    where: Any = (host, address.port)
    connection = socket.create_connection(where, timeout_s)
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if address.is_tls:
            context = tls or verified_tls()
            return context.wrap_socket(connection, server_hostname=address.host)
    except BaseException:
        connection.close()
        raise
    return connection


def verified_tls() -> "ssl.SSLContext":
    """Return a context that trusts the system's authorities, with TLS 1.2 or newer."""
    import ssl  # noqa: PLC0415 - see above

    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
