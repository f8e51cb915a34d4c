"""Clients that speak TLS, on sockets that do not wait; certificates from trustme.

authority = trustme.CA()
client = TlsClient(rig.client(), client_context(authority))
client.shakes(rig)
client.says(b"list-tube-used\\r\\n"); rig.turn_until_quiet(some=True)
assert client.heard() == b"USING default\\r\\n"
"""

import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import Final

import trustme

NAME: Final = "jobs.example.net"
CLIENT_NAME: Final = "worker-7.example.net"


def server_context(
    authority: trustme.CA, *, clients_of: trustme.CA | None = None, oldest: bool = False
) -> ssl.SSLContext:
    """As `net.tls` makes it; `oldest` speaks TLS 1.2 only."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    if oldest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    authority.issue_cert(NAME).configure_cert(context)
    if clients_of is not None:
        clients_of.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    authority: trustme.CA, *, certificate: trustme.LeafCert | None = None
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # the default one reads the system's too
    authority.configure_trust(context)
    if certificate is not None:
        certificate.configure_cert(context)
    return context


class TlsClient:
    """A client's side of a connection."""

    def __init__(self, plain: socket.socket, context: ssl.SSLContext) -> None:
        plain.setblocking(False)
        self.plain = plain
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=NAME)
        self.is_ended = False
        """The server has said farewell."""

    def shakes(self, turn: Callable[[], object]) -> None:
        """Shake hands while the server takes turns."""
        for _ in range(100):
            with contextlib.suppress(ssl.SSLWantReadError):
                self.tls.do_handshake()
                self.flush()
                return
            self.flush()
            turn()
            self.take_in()
        raise AssertionError("the handshake comes to no end")

    def says(self, data: bytes) -> None:
        """Encrypt and send."""
        self.tls.write(data)
        self.flush()

    def flush(self) -> None:
        if data := self.outgoing.read():
            self.plain.setblocking(True)
            self.plain.sendall(data)
            self.plain.setblocking(False)

    def take_in(self, size: int = 1 << 20) -> int:
        """Take what has arrived; return how much."""
        with contextlib.suppress(BlockingIOError):
            data = self.plain.recv(size)
            self.incoming.write(data)
            return len(data)
        return 0

    def heard(self, size: int = 1 << 20) -> bytes:
        """What has arrived by now, decrypted."""
        data = b""
        with contextlib.suppress(ConnectionResetError):
            while self.take_in(size):
                pass
        try:
            while more := self.tls.read(1 << 16):
                data += more
            self.is_ended = True
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self.is_ended = True
        return data

    def says_farewell(self) -> None:
        """Say that nothing will follow, and keep the socket."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        self.flush()
