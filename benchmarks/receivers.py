"""Receivers of pushes that mean harm: `with hostile("answers", places=32) as receivers: …`.

Each answers a request with something that never ends, as fast as it is taken:

    answers     one small answer after the other
    hints       1xx before an answer that never comes
    chunks      an answer whose body comes in chunks of one byte
    headers     an answer with headers and no end of them
    line        an answer whose first line has no end
    body        an answer of 100 GB
    surplus     a whole answer, and answers to nothing once its connection is idle

The same for other sinks, `redis` and `amqp`:

    replies     one short reply after the other
    bulk        a reply of 100 GB
    array       a reply that is a list without end
    nested      a list in a list in a list …
    errors      errors of 3 KB without a space, which are hardly urls
    frames      the first frame of a broker, and heartbeats without end
    frame       a frame of 4 GB

They listen on loopback, in a process of their own, which ends by itself: after `seconds`, or when
whoever started it is gone. With a certificate they speak TLS. As a program: `python -m
benchmarks.receivers answers --places 32 --seconds 10` prints the ports and waits.
"""

import argparse
import contextlib
import multiprocessing
import selectors
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from types import MappingProxyType
from typing import Final, NamedTuple, final

from benchmarks.arguments import length, positive

ADDRESS: Final = "127.0.0.1"
BACKLOG: Final = 1_024
PIECE_BYTES: Final = 1 << 20
"""Written at once, as far as the socket takes it."""
TURN_BYTES: Final = 4 << 20
"""To one connection before the next one has its turn."""
IDLE_S: Final = 0.05
"""Until an answered connection is taken for idle."""
SECONDS_DEFAULT: Final = 60.0

_START: Final = b"\0\x0a\0\x0a\0\x09" + b"\0\0\0\0" + b"\0\0\0\5PLAIN" + b"\0\0\0\5en_US"
"""A broker's `connection.start`: its version, no properties, how to log in, its language."""
_FRAME: Final = b"\1\0\0" + len(_START).to_bytes(4) + _START + b"\xce"
_HEARTBEAT: Final = b"\x08\0\0\0\0\0\0\xce"
_OK: Final = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


class Kind(NamedTuple):
    """What is answered."""

    first: bytes
    """Sent once."""
    again: bytes
    """Sent after it without end."""
    pause_s: float = 0.0
    """Between the two."""


KINDS: Final = MappingProxyType(
    {
        "answers": Kind(b"", _OK),
        "hints": Kind(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        "chunks": Kind(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        "headers": Kind(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        "line": Kind(b"HTTP/1.1 200 ", b"x"),
        "body": Kind(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000000\r\n\r\n", b"x"),
        "surplus": Kind(_OK, _OK, IDLE_S),
        "replies": Kind(b"", b":1\r\n"),
        "bulk": Kind(b"$100000000000\r\n", b"x"),
        "array": Kind(b"*100000000\r\n", b":1\r\n"),
        "nested": Kind(b"", b"*1\r\n"),
        "errors": Kind(b"", b"-ERR " + b"a" * 3_000 + b" ://\r\n"),
        "frames": Kind(_FRAME, _HEARTBEAT),
        "frame": Kind(_FRAME + b"\1\0\0\xff\xff\xff\xff", b"x"),
    }
)


class Certificate(NamedTuple):
    """Paths of what the receivers show."""

    certificate: str
    key: str


@contextlib.contextmanager
def loopback_certificate() -> Iterator[Certificate]:
    """Make a certificate for this machine; its files go with the block."""
    with tempfile.TemporaryDirectory(prefix="bench-tls-") as name:
        made = Certificate(f"{name}/certificate.pem", f"{name}/key.pem")
        subject = ("-subj", f"/CN={ADDRESS}", "-addext", f"subjectAltName=IP:{ADDRESS}")
        kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
        where = ("-out", made.certificate, "-keyout", made.key, "-days", "2")
        subprocess.run(
            ["openssl", "req", "-x509", *kind, *subject, *where], check=True, capture_output=True
        )
        yield made


def trusting(certificate: Certificate | None) -> dict[str, str]:
    """Return the environment of a daemon that trusts the certificate."""
    return {} if certificate is None else {"SSL_CERT_FILE": certificate.certificate}


class Receivers(NamedTuple):
    """Where they listen."""

    ports: list[int]
    """One for each place."""
    scheme: str

    def urls(self) -> list[str]:
        """Return a url for each place."""
        return [f"{self.scheme}://{ADDRESS}:{port}/" for port in self.ports]


@contextlib.contextmanager
def hostile(
    kind: str,
    *,
    places: int = 1,
    seconds: float = SECONDS_DEFAULT,
    certificate: Certificate | None = None,
) -> Iterator[Receivers]:
    """Let receivers of a kind of `KINDS` listen on so many ports while the block runs."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    arguments = (theirs, kind, places, seconds, certificate)
    process = context.Process(target=_serve, args=arguments, daemon=True)
    process.start()
    theirs.close()
    try:
        yield Receivers(ours.recv(), "http" if certificate is None else "https")
    finally:
        process.kill()
        process.join()
        ours.close()


# --- In their process ----------------------------------------------------------------------------


def _serve(
    pipe: Connection, kind: str, places: int, seconds: float, certificate: Certificate | None
) -> None:
    tls = None
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*certificate)
    _Crowd(KINDS[kind], tls).run(pipe, places, seconds)


@final
class _Peer:
    """A connection and what is left of what was last begun to be sent."""

    def __init__(self, sock: socket.socket, kind: Kind) -> None:
        self.sock = sock
        self.left = memoryview(kind.first)
        self.idle_until_s = 0.0
        self.is_secure = not isinstance(sock, ssl.SSLSocket)
        self.is_asked = False


@final
class _Crowd:
    """All connections of the process, in one loop."""

    def __init__(self, kind: Kind, tls: ssl.SSLContext | None) -> None:
        self._kind = kind
        self._tls = tls
        self._again = memoryview(kind.again * (PIECE_BYTES // len(kind.again)))
        self._selector = selectors.DefaultSelector()
        self._peers: set[_Peer] = set()

    def run(self, pipe: Connection, places: int, seconds: float) -> None:
        """Listen, tell the ports, and serve until the time is over or the pipe closed."""
        servers = [socket.create_server((ADDRESS, 0), backlog=BACKLOG) for _ in range(places)]
        for server in servers:
            server.setblocking(False)
            self._selector.register(server, selectors.EVENT_READ, server)
        self._selector.register(pipe, selectors.EVENT_READ, pipe)
        pipe.send([server.getsockname()[1] for server in servers])
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for key, _events in self._selector.select(IDLE_S):
                if isinstance(key.data, _Peer):
                    self._serve(key.data)
                elif key.data is pipe:
                    return
                else:
                    self._accept(key.data)
            self._wake()

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = server.accept()
                sock.setblocking(False)
                if self._tls is not None:
                    sock = self._tls.wrap_socket(
                        sock, server_side=True, do_handshake_on_connect=False
                    )
                peer = _Peer(sock, self._kind)
                self._peers.add(peer)
                self._selector.register(sock, selectors.EVENT_READ, peer)

    def _serve(self, peer: _Peer) -> None:
        """Read what there is, and send as much as is taken."""
        try:
            if not peer.is_secure:
                assert isinstance(peer.sock, ssl.SSLSocket)
                peer.sock.do_handshake()
                peer.is_secure = True
            self._read(peer)
            if peer.is_asked:
                self._send(peer)
        except (ssl.SSLWantReadError, BlockingIOError):
            pass
        except ssl.SSLWantWriteError:
            self._selector.modify(peer.sock, selectors.EVENT_WRITE, peer)
        except OSError:
            self._selector.unregister(peer.sock)
            self._peers.discard(peer)
            peer.sock.close()

    def _read(self, peer: _Peer) -> None:
        """Take the request; anything is one."""
        with contextlib.suppress(ssl.SSLWantReadError, BlockingIOError):
            while data := peer.sock.recv(1 << 16):
                peer.is_asked = peer.is_asked or bool(data)
            raise ConnectionResetError

    def _send(self, peer: _Peer) -> None:
        """Send up to a turn's bytes; the rest when the socket takes more."""
        self._selector.modify(peer.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
        sent = 0
        while sent < TURN_BYTES:
            if not peer.left:
                if self._kind.pause_s and not peer.idle_until_s:
                    peer.idle_until_s = time.monotonic() + self._kind.pause_s
                    self._selector.modify(peer.sock, selectors.EVENT_READ, peer)
                    return
                peer.left = self._again
            count = peer.sock.send(peer.left)
            peer.left = peer.left[count:]
            sent += count

    def _wake(self) -> None:
        """Go on with those whose pause is over."""
        if not self._kind.pause_s:
            return
        now_s = time.monotonic()
        for peer in list(self._peers):
            if 0 < peer.idle_until_s <= now_s:
                self._serve(peer)


def main() -> None:
    """Listen, print the ports, and wait for the end."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--places", type=positive, default=1, help="(%(default)s)")
    parser.add_argument("--seconds", type=length, default=SECONDS_DEFAULT, help="(%(default)s)")
    parser.add_argument("--certificate", default="", help="with --key: speak TLS")
    parser.add_argument("--key", default="")
    options = parser.parse_args()
    certificate = Certificate(options.certificate, options.key) if options.certificate else None
    with hostile(
        options.kind, places=options.places, seconds=options.seconds, certificate=certificate
    ) as receivers:
        print(*receivers.urls(), sep="\n", flush=True)
        time.sleep(options.seconds)


if __name__ == "__main__":
    main()
