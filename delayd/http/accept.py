"""Takes connections off the listening sockets and hands them to the guard.

asyncio has a server of its own. It takes a whole backlog at once before anybody else has a turn,
learns where a client comes from only after the TLS handshake, and calls a lack of descriptors an
error of the program. This one takes a few at a time, asks the guard first, and when there are no
descriptors gives up a spare one to turn a client away: left in the backlog it would wake the loop
for ever. If not even that helps, it looks again a second later.

The module refuses to know what is spoken.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Sequence

from delayd.http.bounds import Refused
from delayd.http.connection_limits import HttpConnectionLimits
from delayd.http.connections import Connection
from delayd.limits import (
    ACCEPT_PAUSE_MS,
    ACCEPTS_PER_TURN,
    HANDSHAKES_PER_TURN,
    TLS_CLOSE_MS,
    TLS_HANDSHAKE_MS,
)
from delayd.net.peers import NO_DESCRIPTORS, prepare


class Acceptor:
    """Accepts from listening, non-blocking sockets, which stay their owner's."""

    def __init__(
        self,
        guard: HttpConnectionLimits,
        listeners: Sequence[socket.socket],
        tls: ssl.SSLContext | None,
    ) -> None:
        """Begin with `open`; with `tls` everybody has to shake hands first."""
        self._guard = guard
        self._listeners = tuple(listeners)
        self._tls = tls
        self._arriving: set[asyncio.Task[None]] = set()
        self._pauses: dict[socket.socket, asyncio.TimerHandle] = {}
        self._spare = socket.socket()
        """A descriptor to give up when there are no more."""

    def open(self) -> None:
        """Let clients in from now on."""
        for listener in self._listeners:
            self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        self._pauses.pop(listener, None)
        self._guard.loop.add_reader(listener.fileno(), self._accept, listener)

    def close(self) -> None:
        """Let nobody in any more, nor those who still shake hands."""
        for listener in self._listeners:
            self._guard.loop.remove_reader(listener.fileno())
        for pause in self._pauses.values():
            pause.cancel()
        for task in self._arriving:
            task.cancel()
        self._spare.close()

    def _accept(self, listener: socket.socket) -> None:
        # A handshake takes the processor a millisecond or two.
        for _ in range(ACCEPTS_PER_TURN if self._tls is None else HANDSHAKES_PER_TURN):
            try:
                sock, peer = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # What else accept(2) fails with is the trouble of a client that has gone again.
                if error.errno in NO_DESCRIPTORS:
                    self._turn_away(listener)
                return
            admitted = self._guard.admit(peer, sock.fileno())
            if isinstance(admitted, Refused):
                self._refuse(sock, admitted)
                continue
            task = self._guard.loop.create_task(self._let_in(sock, peer, admitted))
            self._arriving.add(task)
            task.add_done_callback(self._arriving.discard)

    def _refuse(self, sock: socket.socket, refused: Refused) -> None:
        """Say why, if that takes no waiting; whoever has to shake hands would not understand."""
        with sock, contextlib.suppress(OSError):
            if self._tls is None:
                sock.setblocking(False)
                sock.send(self._guard.replies[refused])

    def _turn_away(self, listener: socket.socket) -> None:
        self._guard.refused[Refused.DESCRIPTORS] += 1
        self._spare.close()
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            pass  # it has gone by itself
        except OSError:
            loop = self._guard.loop
            loop.remove_reader(listener.fileno())
            self._pauses[listener] = loop.call_later(
                ACCEPT_PAUSE_MS / 1_000, self._listen, listener
            )
        with contextlib.suppress(OSError):
            self._spare = socket.socket()

    async def _let_in(self, sock: socket.socket, peer: object, connection: Connection) -> None:
        handshake_s = close_s = None
        if self._tls is not None:
            handshake_s, close_s = TLS_HANDSHAKE_MS / 1_000, TLS_CLOSE_MS / 1_000
        try:
            prepare(sock)
        except OSError:
            self._guard.forget(connection)
            sock.close()
            return
        try:
            await self._guard.loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=handshake_s,
                ssl_shutdown_timeout=close_s,
            )
        except OSError as error:
            # It has gone, or its handshake came to nothing; the transport closes the socket.
            self._guard.forget(connection)
            if self._tls is not None:
                self._guard.note("TLS_HANDSHAKE")
                self._guard.on_unshaken(peer, error)
        except asyncio.CancelledError:
            self._guard.forget(connection)
            raise
