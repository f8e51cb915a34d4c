"""Transports of sinks: asyncio transports whose reading is bounded in time and in bytes.

    sockets ─► one epoll ─► turn: a piece of each ready connection ─► protocols
                             └─ until no data are left, or the time slice is used up

asyncio reads every ready socket in one pass, 256 KiB of each, and gives all of it to the protocols.
A server that sends without end would delay the daemon's clients for as long as that takes. Here all
connections of a sink share an epoll, which is one descriptor for asyncio. A turn serves them in the
kernel's order, in which a served connection comes last, and ends after `PUSH_READ_SLICE_US`:
handshakes, decryption and the protocol's work on a piece are included. Work that a protocol passes
to a task is not, so such protocols get small pieces, and few of them in a turn.

    transport.allow(bytes)     receive this many more bytes; with more the connection is lost

limits the memory that a server's data can take, whatever the library behind the transport reads and
keeps. Bytes of TLS itself are counted too, so endless keys and tickets reach the same limit.

A `BoundedTransport` serves any protocol of asyncio. Unlike asyncio's own transports it closes when
the peer has closed its sending side.
"""

import asyncio
import math
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar, final

from aiohappyeyeballs import start_connection

from delayd.clock import monotonic_ns
from delayd.limits import (
    PUSH_BEGUN_PER_PASS,
    PUSH_PIECE_BYTES,
    PUSH_READ_BYTES,
    PUSH_READ_SLICE_US,
    PUSH_RECEIVE_BUFFER_BYTES,
    PUSH_RECEIVED_BYTES_MAX,
    SINK_READ_BYTES,
    SINK_TURN_BYTES,
)
from delayd.net.tls import SecureSocket
from delayd.push.task_gate import Gate

if TYPE_CHECKING:
    from aiohappyeyeballs import AddrInfoType, SocketFactoryType

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)

ADDRESSES_DELAY_S: Final = 0.25
"""Until the next address of a host is tried beside the last one (RFC 8305)."""


class TooMuch(ConnectionAbortedError):
    """A server has sent more bytes than allowed."""

    def __init__(self) -> None:
        super().__init__("it sends more than an answer may have")


class Tls(NamedTuple):
    """The context of TLS, and the host for which the server's certificate must be."""

    context: ssl.SSLContext
    host: str


@final
class Transports:
    """All connections of a sink; while there are any, they belong to the running loop."""

    def __init__(self, piece_bytes: int = PUSH_READ_BYTES, turn_bytes: float = math.inf) -> None:
        """Pass protocols at most `piece_bytes` at once, and `turn_bytes` in a turn."""
        self._piece_bytes: Final = piece_bytes
        self._turn_bytes: Final = turn_bytes
        self._transports: dict[int, BoundedTransport] = {}
        self._more: deque[BoundedTransport] = deque()
        """Those with received data that were not passed on: epoll reports no event for them."""
        self._soon: asyncio.Handle | None = None
        self._gate = Gate(PUSH_BEGUN_PER_PASS)
        self._epoll: select.epoll | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def connect(
        self,
        addresses: "Sequence[AddrInfoType]",
        make_protocol: Callable[[], ProtocolT],
        tls: Tls | None = None,
        make_socket: "SocketFactoryType | None" = None,
    ) -> "tuple[BoundedTransport, ProtocolT]":
        """Connect to one of the addresses. Raises `OSError`."""
        await self._gate.passed()
        sock = await start_connection(
            addresses,
            happy_eyeballs_delay=ADDRESSES_DELAY_S,
            loop=asyncio.get_running_loop(),
            socket_factory=make_socket,
        )
        return await self.opened(sock, make_protocol, tls)

    async def opened(
        self, sock: socket.socket, make_protocol: Callable[[], ProtocolT], tls: Tls | None = None
    ) -> "tuple[BoundedTransport, ProtocolT]":
        """Take over a connected socket; with TLS make the handshake. Raises `OSError`."""
        protocol = make_protocol()
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PUSH_RECEIVE_BUFFER_BYTES)
            if sock.family != socket.AF_UNIX:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            transport = BoundedTransport(self, sock, protocol, tls)
        except BaseException:
            sock.close()
            raise
        try:
            await transport.shaken
        except BaseException:
            transport.abort()
            del transport  # which holds the exception that holds this frame
            raise
        return transport, protocol

    # --- For transports ---------------------------------------------------------------------------

    def add(self, transport: "BoundedTransport", descriptor: int, mask: int) -> None:
        """Serve a new transport."""
        if self._epoll is None:
            self._loop = asyncio.get_running_loop()
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._be_woken)
        self._epoll.register(descriptor, mask)
        self._transports[descriptor] = transport

    def change(self, descriptor: int, mask: int) -> None:
        """Wait for other events of a transport."""
        assert self._epoll is not None, "it was added"
        self._epoll.modify(descriptor, mask)

    def remove(self, descriptor: int) -> None:
        """Stop serving a transport."""
        assert self._epoll is not None, "it was added"
        assert self._loop is not None, "it was added"
        del self._transports[descriptor]
        self._epoll.unregister(descriptor)
        if self._transports:
            return
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        self._more.clear()
        if not self._loop.is_closed():
            self._loop.remove_reader(self._epoll.fileno())
        self._epoll.close()
        self._epoll = self._loop = None

    def go_on(self, transport: "BoundedTransport") -> None:
        """Serve a transport that has more data to pass on, after the others."""
        self._more.append(transport)
        if self._soon is None and self._loop is not None:
            self._soon = self._loop.call_soon(self._take_turn)

    # --- A turn ----------------------------------------------------------------------------------

    def _be_woken(self) -> None:
        if self._soon is None:  # otherwise a turn is scheduled in this pass of the loop
            self._take_turn()

    def _take_turn(self) -> None:
        """Serve the ready connections until the time slice is used up."""
        self._soon = None
        ends_ns = monotonic_ns() + PUSH_READ_SLICE_US * 1_000
        left_bytes = self._turn_bytes
        again, self._more = self._more, deque()
        while self._epoll is not None and left_bytes > 0:
            events = self._epoll.poll(0, 1)
            if not events and not again:
                break
            for descriptor, event in events:
                left_bytes -= self._transports[descriptor].serve(event, self._piece_bytes)
            if again:
                left_bytes -= again.popleft().hand_on(self._piece_bytes, is_its_turn=True)
            if monotonic_ns() >= ends_ns:
                break
        if self._loop is None:
            self._more.clear()
            return
        self._more.extendleft(reversed(again))
        if self._more and self._soon is None:
            self._soon = self._loop.call_soon(self._take_turn)


@final
class BoundedTransport(asyncio.Transport):
    """One connection of `Transports`."""

    def __init__(
        self,
        transports: Transports,
        sock: socket.socket,
        protocol: asyncio.Protocol,
        tls: Tls | None,
    ) -> None:
        """Take over a connected, non-blocking socket."""
        super().__init__()
        loop = asyncio.get_running_loop()
        self._transports = transports
        self._protocol: Any = protocol
        self._plain = sock
        self._context = None if tls is None else tls.context
        self._secure = None if tls is None else SecureSocket(sock, tls.context, tls.host)
        self._sock = self._secure or sock
        self._descriptor = sock.fileno()
        self._unread = memoryview(b"")
        """Bytes that were received and not yet passed on."""
        self._unsent: deque[memoryview] = deque()
        self._unsent_bytes = 0
        self._allowed_bytes = PUSH_RECEIVED_BYTES_MAX
        self._taken_bytes = 0
        self._is_reading = True
        self._is_queued = False
        self._is_closing = False
        self._is_gone = False
        self._is_writer_paused = False
        self._high_bytes, self._low_bytes = PUSH_PIECE_BYTES, PUSH_PIECE_BYTES // 4
        self._mask = select.EPOLLIN
        self.shaken: asyncio.Future[None] = loop.create_future()
        """Done when data may be sent."""
        self._loop = loop
        transports.add(self, self._descriptor, self._mask)
        if self._secure is None:
            self._begin()
        else:
            self._is_queued = True
            transports.go_on(self)  # a handshake is made within turns, as reading is

    def allow(self, count: int) -> None:
        """Receive this many more bytes before the connection is lost."""
        self._allowed_bytes = count

    def _begin(self) -> None:
        self._protocol.connection_made(self)
        self.shaken.set_result(None)

    # --- Events ----------------------------------------------------------------------------------

    def serve(self, event: int, piece_bytes: int) -> int:
        """Handle an event; return how many bytes were passed on."""
        if self._secure is not None and not self.shaken.done():
            self._shake(self._secure, piece_bytes)
            return piece_bytes
        if event & ~select.EPOLLOUT:
            if self._mask & select.EPOLLIN:
                return self._read(piece_bytes)
            self._lose(ConnectionResetError("the connection is gone"))
        elif event & select.EPOLLOUT:
            self._send()
        return 0

    def _shake(self, secure: SecureSocket, piece_bytes: int) -> None:
        try:
            is_over = secure.shake(max(piece_bytes, PUSH_READ_BYTES))
            self._count(0)
        except OSError as error:
            self._lose(error)
            return
        if is_over:
            self._begin()
        self._set_mask()
        if is_over and not self._is_closing:
            self._read(piece_bytes)  # data after the handshake, for which there is no event

    def _count(self, received: int) -> None:
        """Count received bytes against the allowance. Raises `TooMuch`."""
        if self._secure is not None:
            received = self._secure.taken_bytes - self._taken_bytes
            self._taken_bytes += received
        self._allowed_bytes -= received
        if self._allowed_bytes < 0:
            raise TooMuch

    def _read(self, piece_bytes: int) -> int:
        """Read a piece and pass it on."""
        if self._unread:
            return self.hand_on(piece_bytes)
        try:
            try:
                data = self._sock.recv(piece_bytes)
            finally:
                self._count(0)
            if self._secure is None:
                self._count(len(data))
        except BlockingIOError:
            return 0
        except OSError as error:
            self._lose(error)
            return 0
        if not data:
            self._protocol.eof_received()
            self._lose(None)
            return 0
        self._unread = memoryview(data)
        return self.hand_on(piece_bytes)

    def hand_on(self, piece_bytes: int, *, is_its_turn: bool = False) -> int:
        """Pass on a piece of the received data; return its length."""
        if is_its_turn:
            self._is_queued = False
            if self._secure is not None and not self.shaken.done():
                self._shake(self._secure, piece_bytes)
                return piece_bytes
        if not self._unread or not self.is_reading():
            return 0
        piece, self._unread = self._unread[:piece_bytes], self._unread[piece_bytes:]
        self._protocol.data_received(bytes(piece))
        self._queue()
        return len(piece)

    def _queue(self) -> None:
        """Queue the transport for the next turn if data are left."""
        if self._unread and not self._is_queued and self.is_reading():
            self._is_queued = True
            self._transports.go_on(self)

    def _lose(self, error: Exception | None) -> None:
        """Close at once and call the protocol's `connection_lost`."""
        if self._is_gone:
            return
        self._is_gone = self._is_closing = True
        self._unread = memoryview(b"")
        self._unsent.clear()
        self._transports.remove(self._descriptor)
        self._sock.close()
        if not self.shaken.done():
            error = error or ConnectionAbortedError("closed")
            self.shaken.set_exception(error.with_traceback(None))
            self.shaken.exception()  # or asyncio would log it if it is not awaited
        else:
            self._loop.call_soon(self._protocol.connection_lost, error)
        self._protocol = None

    def _set_mask(self) -> None:
        """Have epoll report only the events that this transport can handle."""
        if self._is_gone:
            return
        mask = 0
        if self._secure is not None and not self.shaken.done():
            mask = select.EPOLLOUT if self._secure.has_pending else select.EPOLLIN
        else:
            if self._is_reading and not self._is_closing:
                mask |= select.EPOLLIN
            if self._unsent:
                mask |= select.EPOLLOUT
        if mask != self._mask:
            self._mask = mask
            self._transports.change(self._descriptor, mask)

    # --- Reading, for protocols ------------------------------------------------------------------

    def is_reading(self) -> bool:
        """Tell whether data are passed on."""
        return self._is_reading and not self._is_closing

    def pause_reading(self) -> None:
        """Stop passing on data."""
        self._is_reading = False
        self._set_mask()

    def resume_reading(self) -> None:
        """Pass on data again."""
        if self._is_reading or self._is_gone:
            return
        self._is_reading = True
        self._queue()
        self._set_mask()

    # --- Writing ---------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send, now or as soon as the peer takes it."""
        if self._is_closing or not data:
            return
        is_first = not self._unsent
        self._unsent.append(memoryview(bytes(data)))
        self._unsent_bytes += len(data)
        if is_first:
            self._send()
        else:
            self._steer_writer()

    def _send(self) -> None:
        """Send a piece of the unsent data."""
        try:
            first = self._unsent[0]
            try:
                sent = self._sock.send(first[:PUSH_PIECE_BYTES])
            except BlockingIOError:
                sent = 0
        except OSError as error:
            self._lose(error)
            return
        self._unsent_bytes -= sent
        if sent < len(first):
            self._unsent[0] = first[sent:]
        else:
            self._unsent.popleft()
        self._steer_writer()
        if not self._unsent and self._is_closing:
            self._lose(None)
        else:
            self._set_mask()

    def _steer_writer(self) -> None:
        """Pause or resume the protocol's writing, by how much is unsent."""
        if not self._is_writer_paused and self._unsent_bytes > self._high_bytes:
            self._is_writer_paused = True
            self._protocol.pause_writing()
        elif self._is_writer_paused and self._unsent_bytes <= self._low_bytes:
            self._is_writer_paused = False
            self._protocol.resume_writing()

    def can_write_eof(self) -> bool:
        """Return False: a transport cannot close only its sending side."""
        return False

    def get_write_buffer_size(self) -> int:
        """Return how many bytes are unsent."""
        return self._unsent_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Pause the protocol's writing above `high` unsent bytes, and resume it at `low`."""
        self._high_bytes = PUSH_PIECE_BYTES if high is None else high
        self._low_bytes = self._high_bytes // 4 if low is None else low

    # --- The end ---------------------------------------------------------------------------------

    def is_closing(self) -> bool:
        """Tell whether nothing more can be sent."""
        return self._is_closing

    def close(self) -> None:
        """Close once everything is sent."""
        if not self._is_closing:
            self._is_closing = True
            if self._unsent:
                self._set_mask()
            else:
                self._lose(None)

    def abort(self) -> None:
        """Close now."""
        self._lose(None)

    # --- Required by asyncio ---------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 - asyncio's
        """Return the `socket` or the `sslcontext`."""
        return {"socket": self._plain, "sslcontext": self._context}.get(name) or default

    def get_protocol(self) -> asyncio.BaseProtocol:
        """Return the protocol that the data are passed to."""
        return self._protocol  # type: ignore[no-any-return]

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        """Pass data to another protocol from now on."""
        self._protocol = protocol


# --- Streams, for libraries ----------------------------------------------------------------------


def stream_transports() -> Transports:
    """Return transports for a library whose tasks read streams."""
    return Transports(SINK_READ_BYTES, SINK_TURN_BYTES)


async def open_stream(
    transports: Transports,
    place: "tuple[str, int] | str",
    tls: Tls | None = None,
    make_reader: Callable[[int], asyncio.StreamReader] = asyncio.StreamReader,
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, BoundedTransport]:
    """Connect to host and port, or to a path; as `asyncio.open_connection`. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    reader = make_reader(SINK_TURN_BYTES)

    def make_protocol() -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(reader, loop=loop)

    if isinstance(place, str):
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, place)
        except BaseException:
            sock.close()
            raise
        transport, protocol = await transports.opened(sock, make_protocol, tls)
    else:
        addresses: list[Any] = await loop.getaddrinfo(*place, type=socket.SOCK_STREAM)
        transport, protocol = await transports.connect(addresses, make_protocol, tls)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop), transport
