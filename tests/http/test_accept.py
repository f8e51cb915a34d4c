"""Connections taken off real sockets on loopback."""

import asyncio
import errno
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

import pytest
import trustme

from delayd.access.rejections import reason_of
from delayd.http.accept import HttpAcceptor
from delayd.http.bounds import Bounds
from delayd.http.connection import HttpConnection
from tests.net.listener import Listener
from tests.rigs.http_connections import ConnectionRig, get, scenario, settle, until

LINGER = struct.pack("ii", 1, 0)
"""A close that is a reset."""
Tls = tuple[ssl.SSLContext, ssl.SSLContext]


class Open(NamedTuple):
    """A listener whose clients are let in."""

    acceptor: HttpAcceptor
    rig: ConnectionRig
    address: tuple[str, int]

    async def until_all_are_gone(self) -> None:
        await until(lambda: not self.rig.connections.open_count)


@contextmanager
def accepting(rig: ConnectionRig, context: ssl.SSLContext | None = None) -> Iterator[Open]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with closing(HttpAcceptor(rig.connections, [listener], context)) as acceptor:
            acceptor.open()
            yield Open(acceptor, rig, listener.getsockname())


async def talk(address: tuple[str, int], data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """What is answered until the connection closes."""
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection(*address, ssl=tls, server_hostname=name)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


@pytest.fixture(scope="module")
def tls() -> Tls:
    """Contexts of a server and of clients that trust it."""
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


@scenario()
async def test_a_client_is_answered_and_its_socket_prepared(rig: ConnectionRig) -> None:
    with accepting(rig) as served:
        talking = asyncio.create_task(talk(served.address, get("/slow", "Connection: close")))
        await until(lambda: rig.connections.open_count)
        (connection,) = rig.connections._connections
        await until(lambda: connection.transport)
        assert connection.transport is not None
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        rig.go.set()
        assert (await talking).startswith(b"HTTP/1.1 200 OK")
        await served.until_all_are_gone()
        served.acceptor.close()
        with socket.create_connection(served.address):
            await settle()
            assert rig.connections.open_count == 0, "after the close nobody is let in"


@scenario(Bounds(connections_max=1))
async def test_one_too_many_is_told_so(rig: ConnectionRig) -> None:
    with accepting(rig) as served:
        with socket.create_connection(served.address):
            await until(lambda: rig.connections.open_count)
            said = await talk(served.address, b"")
            assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            for line in (b"Retry-After: 1", b"Connection: close", b"Content-Type: application/pro"):
                assert b"\r\n" + line in said
            assert rig.noted["CONNECTIONS"] == 1
            assert rig.connections.open_count == 1
        await served.until_all_are_gone()


@scenario()
async def test_a_client_that_is_turned_away_for_want_of_a_descriptor_is_noted(
    rig: ConnectionRig,
) -> None:
    listener = Listener([errno.EMFILE, None])
    with listener, closing(HttpAcceptor(rig.connections, [listener], None)) as accepting:
        accepting.acceptor.accept(listener.fileno())
        assert (rig.noted["DESCRIPTORS"], rig.connections.open_count) == (1, 0)


@scenario()
async def test_a_client_that_resets_at_once_is_forgotten(rig: ConnectionRig) -> None:
    with accepting(rig) as served:
        for _ in range(5):
            with socket.create_connection(served.address) as client:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        await served.until_all_are_gone()


# --- TLS, and clients that die before they are told ----------------------------------------------


@scenario()
async def test_tls_is_spoken(rig: ConnectionRig, tls: Tls) -> None:
    with accepting(rig, tls[0]) as served:
        said = await talk(served.address, get("/quick", "Connection: close"), tls[1])
        assert said.startswith(b"HTTP/1.1 200 OK")
        await served.until_all_are_gone()


@pytest.mark.parametrize("has_tls", [False, True])
@pytest.mark.parametrize("path", ["/told?bytes=10&held", "/told?bytes=16000000"])
@scenario()
async def test_an_answer_has_not_left_that_its_client_did_not_read(
    rig: ConnectionRig, tls: Tls, path: str, *, has_tls: bool
) -> None:
    """The write finds it gone, or it reads nothing of a long one, and dies without a word."""
    with accepting(rig, tls[0] if has_tls else None) as served:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.connect(served.address)
        _, writer = await asyncio.open_connection(
            sock=sock,
            ssl=tls[1] if has_tls else None,
            server_hostname="localhost" if has_tls else None,
            limit=1_024,
        )
        writer.write(get(path))
        is_held = path.endswith("held")
        await until(
            lambda: any(
                each.task if is_held else each.writing_paused
                for each in rig.connections._connections
            )
        )
        assert not rig.done
        real = writer.get_extra_info("socket")
        real.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
        writer.transport.abort()
        # The answer is written before the loop has a look at what its sockets say.
        rig.connections.loop.call_soon(rig.go.set)
        await served.until_all_are_gone()
        await until(lambda: rig.done)
        assert rig.done == ["not told"]


@scenario()
async def test_a_handshake_that_comes_to_nothing_is_forgotten(rig: ConnectionRig, tls: Tls) -> None:
    complaints: list[object] = []
    counted: list[str] = []
    told: list[tuple[str, str]] = []
    rig.connections.loop.set_exception_handler(lambda _, context: complaints.append(context))
    rig.connections.note = counted.append
    rig.connections.admission.authenticator.on_failed_handshake = lambda address, error: (
        told.append((address, reason_of(error)))
    )
    with accepting(rig, tls[0]) as served:
        assert not (await talk(served.address, get("/quick"))).startswith(b"HTTP")
        await served.until_all_are_gone()
        with socket.create_connection(served.address):
            await until(lambda: rig.connections.open_count)
        await served.until_all_are_gone()
        await until(lambda: len(told) == 2)
    assert not complaints, "it is no fault of ours"
    assert counted == ["TLS_HANDSHAKE"] * 2
    assert told[0] == ("127.0.0.1", "http request")


@scenario(Bounds(connections_max=1))
async def test_clients_that_shake_hands_count_and_are_cut_off_at_the_close(
    rig: ConnectionRig, tls: Tls
) -> None:
    with accepting(rig, tls[0]) as served, socket.create_connection(served.address) as silent:
        silent.setblocking(False)
        await until(lambda: rig.connections.open_count)
        (connection,) = rig.connections._connections
        assert isinstance(connection, HttpConnection)
        assert await talk(served.address, b"") == b""
        assert rig.noted["CONNECTIONS"] == 1
        served.acceptor.close()
        await settle()
        assert rig.connections.open_count == 0
        assert await rig.connections.loop.sock_recv(silent, 1) == b""
