"""Connections of HTTP: accepted by `net.accept`, admitted, handed to asyncio with a protocol.

asyncio's own server accepts a whole backlog at once before anything else has a turn, learns the
client's address only after the TLS handshake, and reports a lack of descriptors as an error of the
program. Here a few are accepted at a time, and admitted first.

The module does not know the protocol.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence

from delayd.access.connection_limits import Rejection
from delayd.http.connection import HttpConnection
from delayd.http.connections import HttpConnections
from delayd.limits import ACCEPTS_PER_TURN, HANDSHAKES_PER_TURN, TLS_CLOSE_MS, TLS_HANDSHAKE_MS
from delayd.net.accept import Acceptor, prepare


class HttpAcceptor:
    """Accepts from listening, non-blocking sockets, which their owner closes."""

    def __init__(
        self,
        connections: HttpConnections,
        listeners: Sequence[socket.socket],
        tls: ssl.SSLContext | None,
    ) -> None:
        """`open` starts it; with `tls` each client has to begin with a handshake."""
        self._connections = connections
        self._tls = tls
        self._arriving: set[asyncio.Task[None]] = set()
        loop = connections.loop
        acceptor = Acceptor(
            listeners,
            self._accepted,
            # A handshake takes the processor a millisecond or two.
            per_turn=ACCEPTS_PER_TURN if tls is None else HANDSHAKES_PER_TURN,
            watch=lambda descriptor: loop.add_reader(descriptor, acceptor.accept, descriptor),
            unwatch=loop.remove_reader,
            call_later=lambda delay_ms, call: loop.call_later(delay_ms / 1_000, call),
            on_no_descriptor=lambda: connections.note(Rejection.DESCRIPTORS.name),
        )
        self.acceptor = acceptor

    def open(self) -> None:
        """Accept from now on."""
        self.acceptor.open()

    def close(self) -> None:
        """Accept no more, and drop connections in their handshakes."""
        self.acceptor.close()
        if self._tls is not None:
            for task in self._arriving:
                task.cancel()

    def _accepted(self, sock: socket.socket, peer: object) -> None:
        admitted = self._connections.admit(peer, sock.fileno())
        if isinstance(admitted, Rejection):
            # Send the reason, if possible at once; before a handshake it could not be read.
            with sock, contextlib.suppress(OSError):
                if self._tls is None:
                    sock.setblocking(False)
                    sock.send(self._connections.replies[admitted])
            return
        task = self._connections.loop.create_task(self._connect(sock, admitted))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    async def _connect(self, sock: socket.socket, connection: HttpConnection) -> None:
        has_tls = self._tls is not None
        try:
            prepare(sock)
        except OSError:
            self._connections.forget(connection)
            sock.close()
            return
        try:
            await self._connections.loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_MS / 1_000 if has_tls else None,
                ssl_shutdown_timeout=TLS_CLOSE_MS / 1_000 if has_tls else None,
            )
        except OSError as error:
            # It has disconnected, or its handshake failed; the transport closes the socket.
            self._connections.forget(connection)
            if has_tls:
                self._connections.note_failed_handshake(connection, error)
        except asyncio.CancelledError:
            self._connections.forget(connection)
            raise
