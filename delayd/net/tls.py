"""TLS of both front ends: contexts, sockets that never wait, and handshakes.

A context is created once, and a renewed certificate is loaded into it: existing connections keep
the old certificate, new ones get the new one. It is first loaded into a context of its own, so that
an error leaves the one in use unchanged.

TLS 1.2 is the oldest that is spoken. With authorities given, a client must show a certificate that
one of them has signed. The authorities themselves are read at the start: OpenSSL cannot remove one
from a context.

A `SecureSocket` has `recv`, `send`, `fileno` and `close` as a plain socket has them:

    socket ─► incoming ─► TLS ─► what the client sent
    socket ◄─ pending ◄─ outgoing ◄─ TLS ◄─ what is sent to it

TLS works on memory, so whatever it wants to write while it reads (a handshake, the answer to new
keys, an alert) is just more to send. Two things have to be right for the server to see a plain
socket. Everything that has arrived is decrypted at once: no data stays inside for which no event
would come. And bytes count as sent only when the kernel has taken the whole TLS record: until then
the caller must send the same bytes again first.

How long a handshake may take is in `net.deadlines` for the line and in `http.accept` for HTTP.

`ssl` takes 15 ms and 5 MB to load, so this module is imported only where TLS is spoken.
"""

import contextlib
import re
import select
import socket
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from delayd.bounded_files import must_be_file, read_file
from delayd.limits import HANDSHAKES_PER_TURN, PEM_FILE_BYTES_MAX, READ_BYTES
from delayd.moments import parse_time_s
from delayd.net.poller import Poller

# --- Contexts ------------------------------------------------------------------------------------

HTTP_PROTOCOLS: Final = ("http/1.1",)
"""The protocol offered to clients that negotiate one (ALPN)."""

CERTIFICATE_RULE: Final = "must hold a certificate, and then its chain, in PEM"
KEY_RULE: Final = "must hold the certificate's private key in PEM"
BOTH_RULE: Final = (
    "must hold a certificate and its private key in PEM, or tls.key name another file"
)
AUTHORITIES_RULE: Final = "must hold certificates of authorities in PEM"

_MISMATCHES: Final = frozenset({"KEY_VALUES_MISMATCH", "KEY_TYPE_MISMATCH"})


class CertificateInvalid(Exception):
    """The certificate, its key or the authorities of clients cannot be used.

    `errors` lists every problem.
    """

    def __init__(self, errors: Iterable[str]) -> None:
        self.errors = tuple(errors)
        super().__init__("\n".join(self.errors))


class CertificateFiles(NamedTuple):
    """PEM files by the settings that name them."""

    certificate: str
    key: str | None = None
    """None: it is in the file of the certificate."""
    client_ca: str | None = None


def server_context(files: CertificateFiles, protocols: tuple[str, ...] = ()) -> ssl.SSLContext:
    """Make the context of a server. Raises `CertificateInvalid` with everything that is wrong."""
    errors = [
        f"tls.{name} = {path}: cannot be read: {reason}"
        for name, path in files._asdict().items()
        if path is not None and (reason := _unreadable(path))
    ]
    if errors:
        raise CertificateInvalid(errors)
    context = _restricted(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
    if protocols:
        context.set_alpn_protocols(list(protocols))
    try:
        _load(context, files)
    except CertificateInvalid as invalid:
        errors += invalid.errors
    if files.client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        try:
            context.load_verify_locations(files.client_ca)
        except (OSError, ValueError) as error:
            reason = _reason(error, AUTHORITIES_RULE)
            errors.append(f"tls.client_ca = {files.client_ca}: {reason}")
    if errors:
        raise CertificateInvalid(errors)
    return context


def client_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Make a context that trusts the authorities in a file, or those that the system trusts."""
    return _restricted(ssl.create_default_context(cafile=ca_file))


def _restricted(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2  # Debian leaves it to a file of the system
    # The default of OpenSSL 3 only: each would cost us a handshake, and a peer a message.
    context.options |= ssl.OP_NO_RENEGOTIATION
    return context


def renew(context: ssl.SSLContext, files: CertificateFiles) -> None:
    """Load what the files hold now into a living context.

    Raises `CertificateInvalid`, and then the context is as it was.
    """
    server_context(files._replace(client_ca=None))
    _load(context, files)


def _load(context: ssl.SSLContext, files: CertificateFiles) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key, password=no_passphrase)
    except (OSError, ValueError) as error:
        setting, rule = f"tls.certificate = {files.certificate}", CERTIFICATE_RULE
        if files.key is None:
            rule = BOTH_RULE
        elif _is_about_the_key(error, files.certificate):
            setting, rule = f"tls.key = {files.key}", KEY_RULE
        raise CertificateInvalid([f"{setting}: {_reason(error, rule)}"]) from None


def no_passphrase() -> str:
    """Raise ValueError where OpenSSL would ask at the terminal, and wait."""
    raise ValueError("must hold a private key without a passphrase")


def _is_about_the_key(error: Exception, certificate: str) -> bool:
    """Tell whether the key is wrong, and not the certificate: OpenSSL does not always say."""
    if getattr(error, "reason", None) in _MISMATCHES or not isinstance(error, ssl.SSLError):
        return True
    try:
        # What has certificates can be read as authorities.
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_verify_locations(certificate)
    except ssl.SSLError:
        return False
    return True


class Validity(NamedTuple):
    """From when until when a certificate and its chain are valid, in seconds since 1970."""

    from_s: int
    until_s: int


def validity(path: str) -> Validity | None:
    """Return when all certificates in a PEM file are valid; None if that cannot be read."""
    try:
        text = read_file(path, PEM_FILE_BYTES_MAX).decode("ascii", "replace")
        blocks = _CERTIFICATE.findall(text)
        spans = [_validity(ssl.PEM_cert_to_DER_cert(block)) for block in blocks]
        return Validity(max(span.from_s for span in spans), min(span.until_s for span in spans))
    except (OSError, ValueError, IndexError, StopIteration):  # of which OpenSSL complains
        return None


_CERTIFICATE: Final = re.compile(
    "-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL
)
_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17


def _validity(der: bytes) -> Validity:
    """Read the third field of a certificate's first part, not counting version and serial.

    Raises ValueError and IndexError. The `ssl` module tells these times to clients only.
    """
    _, certificate = next(_elements(der))
    _, content = next(_elements(certificate))
    fields = [field for tag, field in _elements(content) if tag != _VERSION]
    times = [_time_s(tag, text.decode("ascii")) for tag, text in _elements(fields[3])]
    return Validity(times[0], times[1])


def _elements(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each element of a sequence (X.690)."""
    at = 0
    while at < len(der):
        tag, length = der[at], der[at + 1]
        at += 2
        if length & 0x80:
            more = length & 0x7F
            length = int.from_bytes(der[at : at + more], "big")
            at += more
        yield tag, der[at : at + length]
        at += length


def _time_s(tag: int, text: str) -> int:
    """Read `YYYYMMDDHHMMSSZ`, with a year of two digits in a UTCTime (RFC 5280, 4.1.2.5)."""
    if tag == _UTC_TIME:
        text = ("19" if text >= "5" else "20") + text
    year, month, day, hour, minute, second = text[:4], *(text[i : i + 2] for i in range(4, 14, 2))
    return parse_time_s(f"{year}-{month}-{day}T{hour}:{minute}:{second}Z")


def _unreadable(path: str) -> str:
    try:
        must_be_file(path)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return ""


def _reason(error: Exception, rule: str) -> str:
    """Return the rule, and what OpenSSL calls it where that says more."""
    if isinstance(error, ssl.SSLError):
        return f"{rule} ({error.reason})" if error.reason else rule
    return getattr(error, "strerror", None) or str(error)


# --- Sockets -------------------------------------------------------------------------------------

RECORD_BYTES: Final = 16 << 10
"""What TLS encrypts in one piece at most."""


@final
class SecureSocket:
    """A socket over TLS, once `shake` has said that the handshake is over."""

    __slots__ = (
        *("_incoming", "_is_ended", "_is_open", "_outgoing", "_owed_bytes", "_pending", "_tls"),
        *("plain", "taken_bytes"),
    )

    def __init__(
        self, plain: socket.socket, context: ssl.SSLContext, server_name: str | None = None
    ) -> None:
        """Take over a connected, non-blocking socket.

        With a `server_name` this end is the client, and the server's certificate must be for that.
        """
        self.plain = plain
        self.taken_bytes = 0
        """Read from the socket so far."""
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_name is None,
            server_hostname=server_name,
        )
        self._is_open = False
        self._is_ended = False
        self._pending: bytes | memoryview = b""
        """Encrypted, and not yet taken by the kernel."""
        self._owed_bytes = 0
        """How many of the next bytes of the caller are in `_pending` already."""

    @property
    def has_pending(self) -> bool:
        """Tell whether `shake` waits for space to send rather than for bytes to read."""
        return bool(self._pending)

    @property
    def certificate(self) -> Mapping[str, Any] | None:
        """What was checked of the client's certificate, if it was asked for one."""
        return self._tls.getpeercert()

    def shake(self, size: int = READ_BYTES) -> bool:
        """Continue the handshake, as far as bytes have arrived; tell whether it is over.

        Raises `OSError` when it has failed or the client has gone; an alert says so to the client.
        `size` bounds what is read from the socket.
        """
        if not self._is_open:
            with contextlib.suppress(BlockingIOError):
                self._take_in(size)
            if self._is_ended:
                raise ConnectionError("the peer left in the middle of the handshake")
            try:
                self._tls.do_handshake()
                self._is_open = True
            except ssl.SSLWantReadError:
                pass
            finally:
                self._flush()
        else:
            self._flush()
        return self._is_open and not self._pending

    def recv(self, size: int = READ_BYTES) -> bytes:
        """Return what the client has sent, nothing at its end; `BlockingIOError` for nothing yet.

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
        self.taken_bytes += len(chunk)
        if chunk:
            self._incoming.write(chunk)
        else:
            # Closed without a TLS close: as over a plain socket. A partial command is not executed.
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
        """Note the client's TLS close, in a way that the socket's events will report.

        It may keep the connection, to receive the last replies.
        """
        self._is_ended = True
        with contextlib.suppress(OSError):
            self.plain.shutdown(socket.SHUT_RD)

    def send(self, data: bytes | memoryview) -> int:
        """Send what there is space for; return how much of it has left."""
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
        """Send what is encrypted, as far as there is space."""
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
        """Send a TLS close, if there is space for it, and close the socket."""
        # It does not wait for the client's TLS close, so it always ends with an error.
        with contextlib.suppress(OSError):
            if self._is_open:
                self._tls.unwrap()
        with contextlib.suppress(OSError):
            self._flush()
        self.plain.close()


# --- Handshakes ----------------------------------------------------------------------------------

PeerT = TypeVar("PeerT")


@final
@dataclass(slots=True, eq=False)
class Handshake(Generic[PeerT]):
    """A connection whose TLS handshake is not over. It is incomplete, and its length unknown."""

    sock: SecureSocket
    peer: PeerT
    on_late: "Callable[[Handshake[PeerT]], object]"
    mask: int = select.EPOLLIN
    incomplete_bytes: int = 0
    is_read: bool = True

    def time_out(self) -> None:
        """Give it up."""
        self.on_late(self)


@final
@dataclass(slots=True, eq=False)
class Handshakes(Generic[PeerT]):
    """The handshakes under way, each of a connection that was admitted as a peer.

    They are the most expensive thing that an unauthenticated client can cause, so a turn continues
    only a few of them, and each has as much time as a command line.
    """

    context: ssl.SSLContext
    poller: Poller
    on_done: Callable[[SecureSocket, PeerT, Mapping[str, Any] | None], object]
    """Gets the socket with the client's certificate: it may have sent something already."""
    on_failed: Callable[[PeerT, Exception], object]
    _by_descriptor: dict[int, Handshake[PeerT]] = field(default_factory=dict, init=False)
    _turn: int = field(default=0, init=False)
    _left: int = field(default=0, init=False)
    """How many steps may still be taken in that turn."""

    def begin(self, sock: socket.socket, peer: PeerT) -> None:
        """Begin the handshake of a client on a non-blocking socket."""
        handshake = Handshake(SecureSocket(sock, self.context), peer, self._give_up)
        self._by_descriptor[sock.fileno()] = handshake
        self.poller.watch(sock.fileno(), partial(self._go_on, handshake), handshake.mask)
        self.poller.timeouts.note(handshake)

    def _go_on(self, handshake: Handshake[PeerT]) -> None:
        """Take a step of the handshake, whose descriptor has an event."""
        if self._turn != self.poller.turn:
            self._turn, self._left = self.poller.turn, HANDSHAKES_PER_TURN
        if not self._left:
            return
        self._left -= 1
        sock = handshake.sock
        try:
            if not sock.shake():
                mask = select.EPOLLOUT if sock.has_pending else select.EPOLLIN
                if mask != handshake.mask:
                    handshake.mask = mask
                    self.poller.modify(sock.fileno(), mask)
                return
            certificate = sock.certificate
        except OSError as error:
            self._fail(handshake, error)
        except ValueError:  # what ssl raises for a peer that was never there
            self._fail(handshake, ConnectionError())
        else:
            self._forget(handshake)
            self.on_done(sock, handshake.peer, certificate)

    def _give_up(self, handshake: Handshake[PeerT]) -> None:
        """Close one that takes too long."""
        self._fail(handshake, ConnectionAbortedError("the handshake took too long"))

    def close(self) -> list[PeerT]:
        """Close all of them; return their peers."""
        handshakes = list(self._by_descriptor.values())
        for handshake in handshakes:
            self._drop(handshake)
        return [handshake.peer for handshake in handshakes]

    def _fail(self, handshake: Handshake[PeerT], error: Exception) -> None:
        self._drop(handshake)
        self.on_failed(handshake.peer, error)

    def _drop(self, handshake: Handshake[PeerT]) -> None:
        self._forget(handshake)
        handshake.sock.close()

    def _forget(self, handshake: Handshake[PeerT]) -> None:
        del self._by_descriptor[handshake.sock.fileno()]
        self.poller.unwatch(handshake.sock.fileno())
        self.poller.timeouts.forget(handshake)
