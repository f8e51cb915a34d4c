"""Sockets: one connection for each call under way, kept for the next one.

A call that was not sent, or that may be repeated, is asked again on a new connection, with pauses
that grow, as long as the client's patience lasts. All others end with `ConnectionLost`, which says
whether they may have been carried out. The first connection of all is not waited for: whoever
has the wrong url learns it at once.
"""

import socket
import threading
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from delayd.client.addresses import Address
from delayd.client.errors import ConnectionLost, Refused, Unreachable, reservation_lost
from delayd.client.trouble import Outage
from delayd.client.wires import (
    IDLE_CONNECTIONS_MAX,
    Ask,
    Reader,
    Wire,
    drawn,
    is_silent,
    may_ask_again,
    pauses,
)

if TYPE_CHECKING:
    import ssl  # which takes as long to import as all of this: only TLS needs it

T = TypeVar("T")
RECEIVE_BYTES: Final = 1 << 18


class Connection:
    """One connection. On the line it holds jobs, and has watched topics and shown its token."""

    def __init__(self, address: Address, tls: "ssl.SSLContext | None", timeout_s: float) -> None:
        self.held = 0
        self.watched = frozenset(("default",))
        self.used = ""
        self.is_greeted = False
        self.is_closed = False
        self.lock = threading.Lock()
        self._where = address.url
        self._timeout_s = timeout_s
        try:
            self._socket = _connected(address, tls, timeout_s)
        except (OSError, ValueError) as error:
            raise Unreachable(self._where, reason_of(error)) from error

    def exchange(self, wire: Wire, ask: Ask) -> Any:  # noqa: ANN401 - what is spoken tells
        """Send what is asked and return the reply. Raises ConnectionLost, and is closed then."""
        self.prepare(wire, ask)
        reader = wire.reader(ask, self)
        return self._exchange(wire.encode(ask), reader, ask.wait_s)

    def prepare(self, wire: Wire, ask: Ask) -> None:
        """Say what must be said on this connection before; a failure means that nothing was."""
        first = wire.before(ask, self)
        if first is None:
            return
        try:
            reply = self._exchange(wire.encode(first), wire.reader(first, self), first.wait_s)
            wire.check_before(ask, first, reply)
        except ConnectionLost as error:
            reason = str(error.__cause__)
            raise ConnectionLost(self._where, reason, may_have_happened=False) from error
        except Refused:
            self.close()
            raise

    def _exchange(self, data: bytes, reader: Reader, wait_s: float) -> Any:  # noqa: ANN401
        ends_s = time.monotonic() + self._timeout_s + wait_s
        try:
            self.send(data)
            while True:
                received = self._receive(max(0.001, ends_s - time.monotonic()))
                if (reply := reader.feed(received)) is not None:
                    return reply
                if not received:
                    raise self._lost(ConnectionResetError("the daemon closed it"))
        except BaseException:
            self.close()  # somewhere within a reply
            raise

    def send(self, data: bytes) -> None:
        """Send. Raises ConnectionLost, and is closed then."""
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(data)
        except OSError as error:
            raise self._lost(error) from error

    def receive(self) -> bytes:
        """Return what has come, one byte at least. Raises ConnectionLost, and is closed then."""
        if not (received := self._receive(self._timeout_s)):
            raise self._lost(ConnectionResetError("the daemon closed it"))
        return received

    def _receive(self, within_s: float) -> bytes:
        try:
            self._socket.settimeout(within_s)
            return self._socket.recv(RECEIVE_BYTES)
        except OSError as error:
            raise self._lost(error) from error

    def _lost(self, error: OSError) -> ConnectionLost:
        self.close()
        lost = ConnectionLost(self._where, reason_of(error), may_have_happened=True)
        lost.__cause__ = error
        return lost

    @property
    def is_usable(self) -> bool:
        """Whether it is open and silent, so that the next reply is that of the next call."""
        return not self.is_closed and is_silent(self._socket.fileno())

    def close(self) -> None:
        """Close it; what it holds on the line is ready again."""
        self.is_closed = True
        self._socket.close()


class Connections:
    """The connections of a client."""

    def __init__(
        self,
        address: Address,
        wire: Wire,
        *,
        tls: "ssl.SSLContext | None",
        timeout_s: float,
        patience_s: float,
        outage: Outage | None = None,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = drawn,
    ) -> None:
        self._address = address
        self._wire = wire
        self._tls = tls
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._outage = outage or Outage()
        self._sleep = sleep
        self._chance = chance
        self._was_reached = False
        self._is_closed = False
        self._lock = threading.Lock()
        self._idle: list[Connection] = []

    def run(self, steps: Generator[Any, Any, T]) -> T:
        """Carry out an operation."""
        try:
            ask = next(steps)
            while True:
                ask = steps.send(self.exchange(ask))
        except StopIteration as done:
            result: T = done.value
            return result

    def exchange(self, ask: Ask) -> Any:  # noqa: ANN401 - what is spoken tells
        """Return the reply, on a new connection if the first one fails and it does no harm."""
        ahead = pauses(self._patience_s, self._chance)
        era, is_away = self._outage.era, False
        while True:
            try:
                reply = self._try(ask)
            except (Unreachable, ConnectionLost) as error:
                pause_s = next(ahead, None) if self._was_reached else None
                if pause_s is None or not may_ask_again(ask, error):
                    raise
                self._outage.begin(error, era)
            else:
                if is_away:
                    self._outage.end(era)
                return reply
            self._sleep(pause_s)
            era, is_away = self._outage.era, True

    def borrow(self, ask: Ask) -> Connection:
        """Return a connection, ready for this, to somebody who gives it back or closes it."""
        connection = self._take(needs_free=False)
        connection.prepare(self._wire, ask)
        return connection

    def close(self) -> None:
        """Close the idle connections; the others are closed when their calls end."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _try(self, ask: Ask) -> Any:  # noqa: ANN401 - what is spoken tells
        if ask.link is not None:
            return self._exchange_on(ask.link, ask)
        connection = self._take(needs_free=ask.takes_jobs)
        with connection.lock:
            reply = connection.exchange(self._wire, ask)
        if not getattr(reply, "is_last", False):
            self.give_back(connection)
        else:
            connection.close()
        return reply

    def _exchange_on(self, link: Connection, ask: Ask) -> Any:  # noqa: ANN401 - the same
        with link.lock:
            if link.is_closed:
                raise reservation_lost()
            return link.exchange(self._wire, ask)

    def _take(self, *, needs_free: bool) -> Connection:
        """Return an idle connection, or a new one."""
        with self._lock:
            fits = [each for each in self._idle if not (needs_free and each.held)]
            for connection in reversed(fits):
                self._idle.remove(connection)
                if connection.is_usable:
                    return connection
                connection.close()
        connection = Connection(self._address, self._tls, self._timeout_s)
        self._was_reached = True
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next call, unless there are enough."""
        with self._lock:
            free = sum(not each.held for each in self._idle)
            if not self._is_closed and (connection.held or free < IDLE_CONNECTIONS_MAX):
                self._idle.append(connection)
                return
        connection.close()


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
    """Return what trusts the authorities of the system, and takes TLS 1.2 or newer."""
    import ssl  # noqa: PLC0415 - see above

    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def reason_of(error: Exception) -> str:
    """Return in a few words why a connection failed."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
