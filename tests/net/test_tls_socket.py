"""TLS on the line: the socket alone, over a pair, and in a server with real sockets."""

import contextlib
import random
import socket
import ssl
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest
import trustme

from delayd.access.authenticator import Authenticator
from delayd.access.connection_limits import ConnectionLimits
from delayd.access.scopes import Scope
from delayd.access.tokens import TOKEN_BYTES, Tokens, issue
from delayd.core.stats.refusals import Refusals
from delayd.limits import HANDSHAKES_PER_TURN, LINE_INCOMPLETE_S_MAX
from delayd.net import tls
from delayd.net.tls import SecureSocket
from tests.line.corpus import BODY_BYTES_MAX, EXCHANGES, Exchange
from tests.line.tls import CLIENT_NAME, NAME, TlsClient, client_context, server_context
from tests.rigs.line_sockets import ServerRig, heard, is_cut_off

PUT = b"put 0 0 60 2\r\nhi\r\n"
USED = b"list-tube-used\r\n"
USING = b"USING default\r\n"
BIG = 60_000
PUT_BIG = b"put 0 0 60 %d\r\n%b\r\n" % (BIG, b"x" * BIG)
SMALL_BUFFERS = 32_768
FOUND_BIG = b"FOUND 1 %d\r\n%b\r\n" % (BIG, b"x" * BIG)


@cache
def authority() -> trustme.CA:
    """Who has signed the certificate of every server here."""
    return trustme.CA()


@pytest.fixture
def reasons() -> Refusals:
    return Refusals()


@pytest.fixture(params=["TLS 1.3", "TLS 1.2"])
def context(request: pytest.FixtureRequest) -> ssl.SSLContext:
    return server_context(authority(), oldest=request.param == "TLS 1.2")


@pytest.fixture
def rig(context: ssl.SSLContext, reasons: Refusals) -> Iterator[ServerRig]:
    with ServerRig(tls=context, refusals=reasons) as rig:
        yield rig


def joins(rig: ServerRig, *, buffer_bytes: int = 0) -> TlsClient:
    """A client that has shaken hands."""
    client = TlsClient(rig.client(), client_context(authority()))
    if buffer_bytes:
        client.plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    before = set(rig.clients)
    client.shakes(partial(rig.turn_until_quiet, some=True))
    while set(rig.clients) == before:
        rig.turn_until_quiet(some=True)
    (served,) = set(rig.clients) - before
    if buffer_bytes:
        assert isinstance(served.sock, SecureSocket)
        served.sock.plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    return client


def asks(rig: ServerRig, client: TlsClient, said: bytes) -> bytes:
    client.says(said)
    rig.turn_until_quiet(some=True)
    return client.heard()


def hears(rig: ServerRig, client: TlsClient, count: int) -> bytes:
    """So many bytes, taken while the server writes."""
    data = b""
    while len(data) < count and not client.is_ended:
        data += client.heard(10_000)
        rig.turn_until_quiet()
    return data


# --- The socket alone ----------------------------------------------------------------------------


@pytest.fixture
def pair(context: ssl.SSLContext) -> Iterator[tuple[SecureSocket, TlsClient]]:
    """Both ends of a connection that has been secured."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        for end in (ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
        secure = SecureSocket(ours, context)
        client = TlsClient(theirs, client_context(authority()))
        client.shakes(secure.shake)
        while not secure.shake():
            client.take_in()
        client.heard()
        yield secure, client


def test_what_is_sent_in_pieces_arrives_whole_however_little_is_taken(
    pair: tuple[SecureSocket, TlsClient], rng: random.Random
) -> None:
    secure, client = pair
    said = rng.randbytes(300_000)
    arrived = b""
    unsent: bytes | memoryview = b""
    rest = said
    sends = 0
    while len(arrived) < len(said):
        if rest and rng.random() < 0.5:
            size = rng.choice((0, 1, 100, 5_000, 40_000))
            unsent, rest = b"".join((unsent, rest[:size])), rest[size:]
        try:
            sent = secure.send(unsent)
            sends += 1
        except BlockingIOError:
            sent = 0
        # What is counted as sent has left, or nobody would come back for it.
        assert sent < len(unsent) or not secure.has_pending
        unsent = unsent[sent:]
        if rng.random() < 0.7:
            client.take_in(rng.choice((1, 50, 1_000, 20_000)))
            if rng.random() < 0.1:
                arrived += client.heard(1)
            else:
                with contextlib.suppress(ssl.SSLWantReadError):
                    arrived += client.tls.read(1 << 16)
    assert arrived == said
    assert not unsent
    assert sends


def test_what_is_received_is_decrypted_at_once_and_nothing_is_left_inside(
    pair: tuple[SecureSocket, TlsClient], rng: random.Random
) -> None:
    secure, client = pair
    for size in (1, 100, 3_000):
        data = rng.randbytes(size)
        client.tls.write(data[: size // 2])
        client.tls.write(data[size // 2 :] or b"!")
        client.flush()
        arrived = b""
        while len(arrived) < size:
            arrived += secure.recv()
        assert arrived.startswith(data)
        with pytest.raises(BlockingIOError):
            secure.recv()


def test_half_a_record_is_nothing_yet(pair: tuple[SecureSocket, TlsClient]) -> None:
    secure, client = pair
    client.tls.write(b"hello")
    record = client.outgoing.read()
    for byte in record[:-1]:
        client.plain.send(bytes([byte]))
        with pytest.raises(BlockingIOError):
            secure.recv()
    client.plain.send(record[-1:])
    assert secure.recv() == b"hello"


def test_the_farewell_is_the_end_and_the_socket_says_so(
    pair: tuple[SecureSocket, TlsClient],
) -> None:
    secure, client = pair
    client.tls.write(b"last words")
    client.says_farewell()
    assert secure.recv() == b"last words"
    assert secure.plain.recv(1, socket.MSG_PEEK) == b""
    assert secure.recv() == b""


def test_a_closed_socket_has_said_farewell(pair: tuple[SecureSocket, TlsClient]) -> None:
    secure, client = pair
    assert secure.send(b"bye") == 3
    secure.close()
    assert client.heard() == b"bye"
    assert client.is_ended
    assert secure.fileno() == -1


def test_bytes_that_are_no_record_are_an_error(pair: tuple[SecureSocket, TlsClient]) -> None:
    secure, client = pair
    client.plain.send(b"\x17\x03\x03\x00\x20" + b"x" * 32)
    with pytest.raises(OSError, match=r"(?i)mac|record"):
        secure.recv()


# --- In a server ---------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", EXCHANGES[:40], ids=str)
def test_every_exchange_goes_as_without_tls(exchange: Exchange) -> None:
    with ServerRig(tls=server_context(authority()), body_bytes_max=BODY_BYTES_MAX) as rig:
        client = joins(rig)
        assert asks(rig, client, exchange.request) == exchange.response


def test_replies_longer_than_the_socket_takes_arrive_whole(rig: ServerRig) -> None:
    client = joins(rig, buffer_bytes=SMALL_BUFFERS)
    client.says(PUT_BIG + b"peek 1\r\n" * 10 + USED)
    rig.turn_until_quiet(some=True)
    assert [bool(served.unsent) for served in rig.clients] == [True]
    expected = b"INSERTED 1\r\n" + FOUND_BIG * 10 + USING
    assert hears(rig, client, len(expected)) == expected
    assert not any(served.unsent for served in rig.clients)
    assert asks(rig, client, USED) == USING


def test_a_client_that_takes_nothing_is_not_read_from() -> None:
    context = server_context(authority())
    with ServerRig(out_bytes_max=100_000, tls=context) as rig:
        client = joins(rig, buffer_bytes=SMALL_BUFFERS)
        client.says(PUT_BIG + b"peek 1\r\n" * 20)
        rig.turn_until_quiet(some=True)
        (served,) = rig.clients
        assert len(served.unsent) <= 100_000 + 2 * len(FOUND_BIG)
        expected = b"INSERTED 1\r\n" + FOUND_BIG * 20
        assert hears(rig, client, len(expected)) == expected


def test_who_says_farewell_gets_its_replies_and_then_the_end(rig: ServerRig) -> None:
    client = joins(rig)
    client.tls.write(PUT + b"reserve\r\nreserve\r\n" + USED + b"list-")
    client.says_farewell()
    rig.turn_until_quiet(some=True)
    assert client.heard() == b"INSERTED 1\r\nRESERVED 1 2\r\nhi\r\nTIMED_OUT\r\n" + USING
    assert client.is_ended
    assert not rig.clients


@pytest.mark.parametrize("rubbish", [b"", b"quit\r\n" * 20])
def test_who_goes_without_a_farewell_or_sends_rubbish_gives_back_what_it_held(
    rig: ServerRig, rubbish: bytes
) -> None:
    client, other = joins(rig), joins(rig)
    asks(rig, client, PUT + b"reserve\r\n")
    asks(rig, other, b"reserve\r\n")
    if rubbish:
        client.plain.send(rubbish)
    else:
        client.plain.close()
    rig.turn_until_quiet(some=True)
    assert other.heard() == b"RESERVED 1 2\r\nhi\r\n"
    assert len(rig.clients) == 1


@pytest.mark.parametrize("piece_bytes", [1, 1 << 20])
def test_a_handshake_and_a_command_at_its_end_are_heard_in_whatever_pieces_they_come(
    rig: ServerRig, piece_bytes: int
) -> None:
    client = TlsClient(rig.client(), client_context(authority()))
    said = b""
    while USING not in said:
        with contextlib.suppress(ssl.SSLWantReadError):
            client.tls.do_handshake()
            client.tls.write(USED)
        data = client.outgoing.read()
        for at in range(0, len(data), piece_bytes):
            client.plain.send(data[at : at + piece_bytes])
            rig.turn_until_quiet(some=True)
        client.take_in()
        if rig.clients:
            said += client.heard()
    assert said == USING


# --- Handshakes ----------------------------------------------------------------------------------


def test_a_handshake_has_ten_seconds(rig: ServerRig, reasons: Refusals) -> None:
    silent, begun = rig.client(), rig.client()
    TlsClient(begun, client_context(authority()))
    begun.send(b"\x16\x03\x01")
    rig.turn_until_quiet(some=True)
    rig.elapses(LINE_INCOMPLETE_S_MAX)
    assert not reasons.by_reason
    rig.elapses(1)
    assert reasons.by_reason == {"TLS_HANDSHAKE": 2}
    assert is_cut_off(silent)
    assert is_cut_off(begun)
    assert rig.poller.timeouts.alarm_ms is None
    assert asks(rig, joins(rig), USED) == USING


@pytest.mark.parametrize(
    "said", [PUT, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"quit\r\n", b"\x16\x03\x01\x00\x05hello"]
)
def test_who_does_not_speak_tls_is_cut_off(rig: ServerRig, reasons: Refusals, said: bytes) -> None:
    client = rig.client()
    rig.says(client, said)
    assert is_cut_off(client)
    assert reasons.by_reason == {"TLS_HANDSHAKE": 1}
    assert not rig.engine.store.jobs


def test_who_leaves_in_the_middle_of_a_handshake_is_forgotten(rig: ServerRig) -> None:
    client = rig.client()
    client.send(b"\x16\x03\x01")
    client.close()
    rig.turn_until_quiet(some=True)
    assert rig.poller.timeouts.alarm_ms is None


def test_a_turn_goes_on_with_a_few_handshakes_only(rig: ServerRig) -> None:
    clients = [TlsClient(rig.client(), client_context(authority())) for _ in range(20)]
    for client in clients:
        with pytest.raises(ssl.SSLWantReadError):
            client.tls.do_handshake()
        client.flush()
    answered = 0
    while answered < len(clients):
        rig.turn()
        now = sum(client.take_in() > 0 for client in clients)
        assert 0 < now <= HANDSHAKES_PER_TURN
        answered += now
    for client in clients:
        client.shakes(partial(rig.turn_until_quiet, some=True))
        assert asks(rig, client, USED) == USING


def test_handshakes_count_among_the_connections() -> None:
    with ServerRig(connections_max=2, tls=server_context(authority())) as rig:
        joins(rig)
        rig.client()
        assert is_cut_off(rig.client())


def test_whoever_stops_the_server_closes_handshakes_too(rig: ServerRig) -> None:
    client = rig.client()
    rig.server.stop_accepting()
    assert is_cut_off(client)


def test_a_unix_socket_is_spoken_to_in_clear(tmp_path: Path) -> None:
    context = server_context(authority())
    with ServerRig(path=tmp_path / "line.sock", tls=context) as rig:
        client = rig.client()
        rig.says(client, USED)
        assert heard(client) == USING


# --- Who it is -----------------------------------------------------------------------------------


def shows(rig: ServerRig, certificate: trustme.LeafCert | None) -> TlsClient:
    """A client that has shaken hands with that certificate."""
    client = TlsClient(rig.client(), client_context(authority(), certificate=certificate))
    client.shakes(partial(rig.turn_until_quiet, some=True))
    return client


def test_only_a_certificate_of_the_authority_lets_in_and_allows_everything() -> None:
    theirs, reasons = trustme.CA(), Refusals()
    context = server_context(authority(), clients_of=theirs)
    with ServerRig(tls=context, refusals=reasons) as rig:
        for certificate in (None, authority().issue_cert(CLIENT_NAME)):
            client = shows(rig, certificate)
            rig.turn_until_quiet(some=True)
            with pytest.raises(ssl.SSLError):
                client.heard()
        assert reasons.by_reason == {"TLS_HANDSHAKE": 2}
        assert not rig.clients
        client = shows(rig, theirs.issue_cert(CLIENT_NAME))
        assert asks(rig, client, PUT) == b"INSERTED 1\r\n"
        (served,) = rig.clients
        assert served.peer.principal is not None
        assert served.peer.principal.name == f"certificate {CLIENT_NAME}"


def test_with_tokens_a_certificate_is_not_enough() -> None:
    theirs = trustme.CA()
    context = server_context(authority(), clients_of=theirs)
    text, entry = issue(bytes(TOKEN_BYTES), "a", {Scope.PUT}, ["*"], created_s=0)
    with ServerRig(admission=ConnectionLimits(Authenticator(Tokens([entry]))), tls=context) as rig:
        client = shows(rig, theirs.issue_cert(CLIENT_NAME))
        assert asks(rig, client, PUT) == b"UNAUTHORIZED\r\n"
        said = b"auth %b\r\n" % text.encode() + PUT
        assert asks(rig, client, said) == b"OK\r\nINSERTED 1\r\n"


# --- Whatever clients do -------------------------------------------------------------------------


@pytest.mark.thorough
def test_when_all_have_gone_however_they_went_nothing_is_left_of_them(
    monkeypatch: pytest.MonkeyPatch, rng: random.Random
) -> None:
    monkeypatch.setattr("delayd.access.connection_limits.origin_of", lambda address: address[0])
    text, entry = issue(bytes(TOKEN_BYTES), "a", set(Scope), ["*"], created_s=0)
    admission = ConnectionLimits(Authenticator(Tokens([entry])))
    context = server_context(authority())
    said = (b"auth %b\r\n" % text.encode(), b"auth x\r\n", PUT, b"reserve\r\n", b"put 0 0", USED)
    with ServerRig(admission=admission, tls=context) as rig:
        clients: list[TlsClient] = []
        for _ in range(300):
            if not clients or rng.random() < 0.2:
                clients.append(TlsClient(rig.client(), client_context(authority())))
            client = rng.choice(clients)
            match rng.randrange(5):
                case 0 | 1:
                    does(client, rng.choice(said))
                case 2:
                    rig.elapses(rng.choice((0, 1, 4)))
                case 3 if rng.random() < 0.2:
                    with contextlib.suppress(OSError):
                        client.plain.send(rng.randbytes(5))
                case 4:
                    clients.remove(client)
                    client.plain.close()
            rig.turn_until_quiet()
        for client in clients:
            client.plain.close()
        rig.turn_until_quiet(some=True)
        rig.elapses(12)
        assert not rig.clients
        assert rig.server._handshakes is None or not rig.server._handshakes._by_descriptor
        assert not admission._by_origin
        assert not admission._unauthenticated
        assert rig.poller.timeouts.alarm_ms is None


def does(client: TlsClient, said: bytes) -> None:
    """The next step of a handshake, or a command when it is over."""
    with contextlib.suppress(OSError):  # the server may have cut it off
        client.take_in()
        try:
            client.tls.do_handshake()
            client.tls.write(said)
        finally:
            client.flush()


# --- The context ---------------------------------------------------------------------------------


def test_the_daemons_own_context_allows_no_renegotiation(tmp_path: Path) -> None:
    path = tmp_path / "certificate.pem"
    authority().issue_cert(NAME).private_key_and_cert_chain_pem.write_to_path(str(path))
    context = tls.server_context(tls.CertificateFiles(str(path)))
    assert context.options & ssl.OP_NO_RENEGOTIATION
