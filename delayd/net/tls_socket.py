"""TLS on a socket that never waits: `recv`, `send`, `fileno` and `close` as a plain one has them.

    socket ─► incoming ─► TLS ─► what the client said
    socket ◄─ pending ◄─ outgoing ◄─ TLS ◄─ what it is told

TLS works on memory, so whatever it wants to write while it reads (a handshake, the answer to new
keys, an alert) is just more to send. Two things have to be right for the server to see a plain
socket. Everything that has arrived is decrypted at once: nothing is left inside that no event would
tell of. And bytes count as sent when the kernel has taken all that they became: what is encrypted
and not sent is still the caller's, who comes again with the same bytes first.

It refuses to know who may come in; the context says what versions, certificates and ciphers.
"""

import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Any, Final

from delayd.limits import READ_BYTES

RECORD_BYTES: Final = 16 << 10
"""What TLS encrypts in one piece at most."""


class SecureSocket:
    """A `Wire` over TLS, once `shake` has said that the handshake is over."""

    __slots__ = (
        "_incoming",
        "_is_ended",
        "_is_shaken",
        "_outgoing",
        "_owed_bytes",
        "_pending",
        "_tls",
        "plain",
    )

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        """Take over a connected, non-blocking socket whose client begins the handshake."""
        self.plain = plain
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._is_shaken = False
        self._is_ended = False
        self._pending: bytes | memoryview = b""
        """Encrypted, and not yet taken by the kernel."""
        self._owed_bytes = 0
        """The first so many bytes of what the caller will send next are in `_pending`."""

    @property
    def has_pending(self) -> bool:
        """Tell whether `shake` waits for room to send rather than for bytes to read."""
        return bool(self._pending)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What was checked of the client's certificate, if it was asked for one."""
        return self._tls.getpeercert()

    def shake(self) -> bool:
        """Go on with the handshake, as far as bytes have come; tell whether it is over.

        Raises `OSError` when it has failed or the client has gone; an alert says so to the client.
        """
        if not self._is_shaken:
            with contextlib.suppress(BlockingIOError):
                self._take_in()
            if self._is_ended:
                raise ConnectionError("the client left in the middle of the handshake")
            try:
                self._tls.do_handshake()
                self._is_shaken = True
            except ssl.SSLWantReadError:
                pass
            finally:
                self._flush()
        else:
            self._flush()
        return self._is_shaken and not self._pending

    def recv(self, size: int = READ_BYTES) -> bytes:
        """Return what the client has said, nothing at its end; `BlockingIOError` for nothing yet.

        `size` bounds what is read from the socket; half a record from before may come on top.
        """
        try:
            self._take_in(size)
        except BlockingIOError:
            if not self._incoming.pending:
                raise
        data = self._decrypt()
        self._flush()
        if data or self._is_ended:
            return data
        raise BlockingIOError

    def _take_in(self, size: int = READ_BYTES) -> None:
        chunk = self.plain.recv(size)
        if chunk:
            self._incoming.write(chunk)
        else:
            # Without a farewell: as over a plain socket. A half command is not carried out anyway.
            self._is_ended = True

    def _decrypt(self) -> bytes:
        pieces = []
        try:
            while piece := self._tls.read(RECORD_BYTES):
                pieces.append(piece)
            self._end()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._end()
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                self._flush()  # the alert that says why
            raise
        return b"".join(pieces)

    def _end(self) -> None:
        """Note that the client has said farewell, in a way that the socket's events will tell of.

        It may do so and keep the connection, to hear the last replies.
        """
        self._is_ended = True
        with contextlib.suppress(OSError):
            self.plain.shutdown(socket.SHUT_RD)

    def send(self, data: bytes | memoryview) -> int:
        """Send what there is room for; return how much of it has left."""
        self._flush()
        if self._pending:
            raise BlockingIOError
        sent, self._owed_bytes = self._owed_bytes, 0
        view = memoryview(data)
        while sent < len(view):
            taken = self._tls.write(view[sent : sent + RECORD_BYTES])
            self._flush()
            if self._pending:
                self._owed_bytes = taken
                break
            sent += taken
        return sent

    def _flush(self) -> None:
        """Send what is encrypted, as far as there is room."""
        if self._outgoing.pending:
            self._pending = b"".join((self._pending, self._outgoing.read()))
        if self._pending:
            with contextlib.suppress(BlockingIOError):
                sent = self.plain.send(self._pending)
                is_rest = sent < len(self._pending)
                self._pending = memoryview(self._pending)[sent:] if is_rest else b""

    def fileno(self) -> int:
        """Return the descriptor, -1 when closed."""
        return self.plain.fileno()

    def close(self) -> None:
        """Say farewell, if there is room for it, and close the socket."""
        # It does not wait for the client's farewell, so it always ends with a complaint.
        with contextlib.suppress(OSError):
            if self._is_shaken:
                self._tls.unwrap()
        with contextlib.suppress(OSError):
            self._flush()
        self.plain.close()
