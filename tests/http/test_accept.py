"""Connections taken off real sockets on loopback."""

import asyncio
import contextlib
import errno
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from typing import NamedTuple, Self

import pytest
import trustme

from delayd import limits
from delayd.access.rejections import reason_of
from delayd.http.accept import HttpAcceptor
from delayd.http.connection import Bounds, HttpConnection
from tests.net.listener import Listener
from tests.rigs.http_connections import ConnectionRig, get, scenario, settle, until


def listening() -> socket.socket:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    return listener


async def talk(where: socket.socket, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """What is answered until the connection closes."""
    name = "localhost" if tls else None
    reader, writer = await asyncio.open_connection(
        *where.getsockname(), ssl=tls, server_hostname=name
    )
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()


class Ending(NamedTuple):
    """A client that asks, reads nothing, and dies without a word."""

    writer: asyncio.StreamWriter

    @classmethod
    async def ask(cls, where: socket.socket, path: str, tls: ssl.SSLContext | None) -> Self:
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        sock.connect(where.getsockname())
        name = "localhost" if tls else None
        _, writer = await asyncio.open_connection(
            sock=sock, ssl=tls, server_hostname=name, limit=1_024
        )
        writer.write(get(path))
        return cls(writer)

    def die(self) -> None:
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


async def until_all_are_gone(rig: ConnectionRig) -> None:
    await until(lambda: not rig.connections.open_count)


@pytest.fixture(scope="module")
def tls() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Contexts of a server and of clients that trust it."""
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("localhost").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return server, client


@scenario()
async def test_a_client_is_answered_and_its_socket_prepared(rig: ConnectionRig) -> None:
    listener = listening()
    acceptor = HttpAcceptor(rig.connections, [listener], None)
    acceptor.open()
    talking = asyncio.create_task(talk(listener, get("/slow", "Connection: close")))
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
    await until_all_are_gone(rig)
    acceptor.close()
    listener.close()


@scenario(Bounds(connections_max=1))
async def test_one_too_many_is_told_so(rig: ConnectionRig) -> None:
    listener = listening()
    acceptor = HttpAcceptor(rig.connections, [listener], None)
    acceptor.open()
    _, first = await asyncio.open_connection(*listener.getsockname())
    reader, second = await asyncio.open_connection(*listener.getsockname())
    said = await reader.read()
    assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"application/problem+json" in said
    assert rig.noted["CONNECTIONS"] == 1
    assert rig.connections.open_count == 1
    for writer in (first, second):
        writer.close()
        await writer.wait_closed()
    await until_all_are_gone(rig)
    acceptor.close()
    listener.close()


@scenario()
async def test_after_the_close_nobody_is_let_in(rig: ConnectionRig) -> None:
    listener = listening()
    acceptor = HttpAcceptor(rig.connections, [listener], None)
    acceptor.open()
    acceptor.close()
    with socket.create_connection(listener.getsockname()):
        await settle()
        assert rig.connections.open_count == 0
    listener.close()


# --- Listeners that misbehave --------------------------------------------------------------------


@scenario()
async def test_without_descriptors_a_client_is_turned_away_by_a_spare_one(
    rig: ConnectionRig,
) -> None:
    listener = Listener([errno.EMFILE, None, None])
    acceptor = HttpAcceptor(rig.connections, [listener], None)
    acceptor.acceptor.accept(listener.fileno())
    assert listener.peers[0].recv(1) == b"", "closed, and no longer in the backlog"
    assert rig.noted["DESCRIPTORS"] == 1
    assert rig.connections.open_count == 0
    acceptor.acceptor.accept(listener.fileno())
    assert rig.connections.open_count == 1
    await settle()
    acceptor.close()
    listener.close()


@pytest.mark.parametrize("error", [errno.ECONNABORTED, errno.EPROTO, errno.ENETDOWN, errno.EPERM])
def test_a_client_that_is_gone_before_it_is_accepted_troubles_nobody(error: int) -> None:
    @scenario()
    async def play(rig: ConnectionRig) -> None:
        listener = Listener([error, None])
        acceptor = HttpAcceptor(rig.connections, [listener], None)
        acceptor.acceptor.accept(listener.fileno())
        acceptor.acceptor.accept(listener.fileno())
        assert rig.connections.open_count == 1
        await settle()
        acceptor.close()
        listener.close()

    play()


@scenario()
async def test_a_storm_of_connections_is_taken_a_few_at_a_time(rig: ConnectionRig) -> None:
    listener = Listener([None] * (limits.ACCEPTS_PER_TURN + 7))
    acceptor = HttpAcceptor(rig.connections, [listener], None)
    acceptor.acceptor.accept(listener.fileno())
    assert rig.connections.open_count == limits.ACCEPTS_PER_TURN
    acceptor.acceptor.accept(listener.fileno())
    assert rig.connections.open_count == limits.ACCEPTS_PER_TURN + 7
    await settle()
    acceptor.close()
    listener.close()


@scenario()
async def test_a_client_that_resets_at_once_is_forgotten(rig: ConnectionRig) -> None:
    listener = listening()
    acceptor = HttpAcceptor(rig.connections, [listener], None)
    for _ in range(5):
        with socket.create_connection(listener.getsockname()) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    acceptor.acceptor.accept(listener.fileno())
    await until_all_are_gone(rig)
    acceptor.close()
    listener.close()


# --- TLS -----------------------------------------------------------------------------------------


def test_tls_is_spoken(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    @scenario()
    async def play(rig: ConnectionRig) -> None:
        listener = listening()
        acceptor = HttpAcceptor(rig.connections, [listener], tls[0])
        acceptor.open()
        said = await talk(listener, get("/quick", "Connection: close"), tls[1])
        assert said.startswith(b"HTTP/1.1 200 OK")
        await until_all_are_gone(rig)
        acceptor.close()
        listener.close()

    play()


@contextlib.asynccontextmanager
async def untold(
    rig: ConnectionRig, path: str, tls: tuple[ssl.SSLContext, ssl.SSLContext] | None
) -> AsyncIterator[Ending]:
    """A client that has asked, and dies in the end without having been told."""
    listener = listening()
    acceptor = HttpAcceptor(rig.connections, [listener], tls[0] if tls else None)
    acceptor.open()
    yield await Ending.ask(listener, path, tls[1] if tls else None)
    await until_all_are_gone(rig)
    await until(lambda: rig.done)
    assert rig.done == ["not told"]
    acceptor.close()
    listener.close()


@pytest.mark.parametrize("has_tls", [False, True])
def test_an_answer_has_not_left_if_its_write_finds_the_client_gone(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], *, has_tls: bool
) -> None:
    @scenario()
    async def play(rig: ConnectionRig) -> None:
        async with untold(rig, "/told?bytes=10&held", tls if has_tls else None) as client:
            await until(lambda: any(each.task for each in rig.connections._connections))
            client.die()
            # The answer is written before the loop has a look at what its sockets say.
            rig.connections.loop.call_soon(rig.go.set)

    play()


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_long_answer_has_not_left_while_its_client_reads_nothing(
    tls: tuple[ssl.SSLContext, ssl.SSLContext], *, has_tls: bool
) -> None:
    @scenario()
    async def play(rig: ConnectionRig) -> None:
        async with untold(rig, "/told?bytes=16000000", tls if has_tls else None) as client:
            await until(lambda: any(each.writing_paused for each in rig.connections._connections))
            assert not rig.done
            client.die()

    play()


def test_a_handshake_that_comes_to_nothing_is_forgotten(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    complaints: list[object] = []
    counted: list[str] = []
    told: list[tuple[str, str]] = []

    def note(address: str, error: Exception) -> None:
        told.append((address, reason_of(error)))

    @scenario()
    async def play(rig: ConnectionRig) -> None:
        rig.connections.loop.set_exception_handler(lambda _, context: complaints.append(context))
        rig.connections.note = counted.append
        rig.connections.admission.authenticator.on_failed_handshake = lambda address, error: (
            told.append((address, reason_of(error)))
        )
        listener = listening()
        acceptor = HttpAcceptor(rig.connections, [listener], tls[0])
        acceptor.open()
        said = await talk(listener, get("/quick"))
        assert not said.startswith(b"HTTP")
        await until_all_are_gone(rig)
        with socket.create_connection(listener.getsockname()):
            await until(lambda: rig.connections.open_count)
        await until_all_are_gone(rig)
        await until(lambda: len(told) == 2)
        acceptor.close()
        listener.close()

    play()
    assert not complaints, "it is no fault of ours"
    assert counted == ["TLS_HANDSHAKE"] * 2
    assert told[0] == ("127.0.0.1", "http request")


def test_those_who_shake_hands_count_and_are_cut_off_at_the_close(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    @scenario(Bounds(connections_max=1))
    async def play(rig: ConnectionRig) -> None:
        listener = listening()
        acceptor = HttpAcceptor(rig.connections, [listener], tls[0])
        acceptor.open()
        with socket.create_connection(listener.getsockname()) as silent:
            silent.setblocking(False)
            await until(lambda: rig.connections.open_count)
            (connection,) = rig.connections._connections
            assert isinstance(connection, HttpConnection)
            assert await talk(listener, b"") == b""
            assert rig.noted["CONNECTIONS"] == 1
            acceptor.close()
            await settle()
            assert rig.connections.open_count == 0
            assert await rig.connections.loop.sock_recv(silent, 1) == b""
        listener.close()

    play()
