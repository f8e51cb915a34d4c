"""Connections of sinks over pairs of sockets: how much is read of each, and when."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from delayd.limits import PUSH_PIECE_BYTES, PUSH_READ_SLICE_US, PUSH_RECEIVED_BYTES_MAX
from delayd.net import tls
from delayd.push import transports as transports_module
from delayd.push.transports import (
    BoundedTransport,
    Tls,
    TooMuch,
    Transports,
    open_stream,
    stream_transports,
)
from tests.access.handshakes import Authority

PIECE = 512


class Heard(asyncio.Protocol):
    """Notes what it is told; several may share one list of pieces."""

    def __init__(self, pieces: list[tuple["Heard", bytes]] | None = None) -> None:
        self.pieces = [] if pieces is None else pieces
        self.loss: Exception | None = None
        self.is_lost = self.is_ended = self.is_waiting = False

    def data_received(self, data: bytes) -> None:
        self.pieces.append((self, data))

    def eof_received(self) -> None:
        self.is_ended = True

    def connection_lost(self, exc: Exception | None) -> None:
        assert not self.is_lost
        self.is_lost, self.loss = True, exc

    def pause_writing(self) -> None:
        assert not self.is_waiting
        self.is_waiting = True

    def resume_writing(self) -> None:
        assert self.is_waiting
        self.is_waiting = False

    @property
    def data(self) -> bytes:
        return b"".join(data for who, data in self.pieces if who is self)


def is_watching(transports: Transports) -> bool:
    return transports._epoll is not None


async def until(said: Callable[[], bool]) -> None:
    while not said():  # noqa: ASYNC110 - what is awaited happens in a pass
        await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def connected(
    transports: Transports, heard: Heard | None = None
) -> AsyncIterator[tuple[BoundedTransport, Heard, socket.socket]]:
    """A transport, its protocol, and the other end of its socket, which does not block."""
    ours, theirs = socket.socketpair()
    with theirs:
        for sock in (ours, theirs):
            sock.setblocking(False)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        transport, protocol = await transports.opened(ours, lambda: heard or Heard())
        try:
            yield transport, protocol, theirs
        finally:
            transport.abort()
            await until(lambda: protocol.is_lost)


# --- Reading -------------------------------------------------------------------------------------


async def test_connections_share_the_bytes_of_a_turn_and_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transports = Transports(PIECE, 4 * PIECE)
    pieces: list[tuple[Heard, bytes]] = []
    turns: list[Transports] = []
    take = Transports._take_turn

    def noted(self: Transports) -> None:
        turns.append(self)
        take(self)

    monkeypatch.setattr(Transports, "_take_turn", noted)
    async with contextlib.AsyncExitStack() as stack:
        ends = [
            await stack.enter_async_context(connected(transports, Heard(pieces))) for _ in range(8)
        ]
        for transport, _, theirs in ends:
            transport.allow(1 << 20)
            theirs.send(bytes(16 * PIECE))
        turns.clear()
        await until(lambda: len(pieces) == 8 * 16)
        assert len(turns) >= 8 * 16 / 4
        assert {len(data) for _, data in pieces} == {PIECE}
        # All are served before any is served again.
        for first in range(0, len(pieces), 8):
            assert len({id(who) for who, _ in pieces[first : first + 8]}) == 8


async def test_a_turn_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = [0]

    class Slow(Heard):
        """Makes so much of a piece that a turn is over."""

        def data_received(self, data: bytes) -> None:
            now_ns[0] += PUSH_READ_SLICE_US * 1_000
            super().data_received(data)

    monkeypatch.setattr(transports_module, "monotonic_ns", lambda: now_ns[0])
    transports = Transports()
    pieces: list[tuple[Heard, bytes]] = []
    async with contextlib.AsyncExitStack() as stack:
        ends = [
            await stack.enter_async_context(connected(transports, Slow(pieces))) for _ in range(20)
        ]
        for _, _, theirs in ends:
            theirs.send(b"x")
        passes = []
        while len(pieces) < 20:
            before = len(pieces)
            await asyncio.sleep(0)
            passes.append(len(pieces) - before)
        assert set(passes) <= {0, 1}
        assert len({id(who) for who, _ in pieces}) == 20


async def test_a_server_that_sends_more_than_it_may_is_cut_off() -> None:
    async with connected(Transports(PIECE, PIECE)) as (transport, heard, theirs):
        transport.allow(2 * PIECE)
        theirs.send(bytes(2 * PIECE))
        await until(lambda: len(heard.data) == 2 * PIECE)
        assert not transport.is_closing()
        transport.allow(1)  # anew, and not on top
        theirs.send(b"xx")
        await until(lambda: heard.is_lost)
        assert isinstance(heard.loss, TooMuch)
        assert len(heard.data) == 2 * PIECE
    async with connected(Transports()) as (
        _,
        heard,
        theirs,
    ):  # who says nothing of it has a bound
        theirs.setblocking(True)
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            await loop.run_in_executor(None, theirs.sendall, bytes(PUSH_RECEIVED_BYTES_MAX + 1))
        await until(lambda: heard.is_lost)
        assert isinstance(heard.loss, TooMuch)
        assert len(heard.data) <= PUSH_RECEIVED_BYTES_MAX


async def test_a_protocol_that_pauses_is_told_nothing_until_it_goes_on() -> None:
    async with connected(Transports(PIECE, 4 * PIECE)) as (transport, heard, theirs):
        transport.pause_reading()
        theirs.send(b"later")
        for _ in range(10):
            await asyncio.sleep(0)
        assert heard.data == b""
        transport.resume_reading()
        await until(lambda: heard.data == b"later")
        transport.pause_reading()
        transport.resume_reading()
        theirs.send(b" on")
        await until(lambda: heard.data == b"later on")


async def test_what_was_said_before_the_end_is_heard_before_it() -> None:
    async with connected(Transports(PIECE, PIECE)) as (transport, heard, theirs):
        theirs.send(bytes(5 * PIECE))
        theirs.shutdown(socket.SHUT_WR)
        await until(lambda: heard.is_lost)
        assert (len(heard.data), heard.is_ended, heard.loss) == (5 * PIECE, True, None)
        assert transport.is_closing()
        transport.write(b"nobody hears it")
        transport.close()


# --- Writing -------------------------------------------------------------------------------------


async def test_what_is_written_arrives_and_a_writer_who_is_too_fast_waits() -> None:
    loop = asyncio.get_running_loop()
    async with connected(Transports()) as (transport, heard, theirs):
        body = bytes(range(256)) * 8_192
        for first in range(0, len(body), PUSH_PIECE_BYTES):
            transport.write(body[first : first + PUSH_PIECE_BYTES])
        assert heard.is_waiting
        assert transport.get_write_buffer_size() > PUSH_PIECE_BYTES
        transport.close()  # once everything is sent
        got = b""
        while data := await loop.sock_recv(theirs, 1 << 16):
            got += data
        assert got == body
        await until(lambda: heard.is_lost)
        assert (heard.loss, heard.is_waiting) == (None, False)


async def test_a_peer_that_is_gone_loses_the_connection() -> None:
    async with connected(Transports()) as (transport, heard, theirs):
        transport.pause_reading()
        transport.write(bytes(8 << 20))
        theirs.close()
        await until(lambda: heard.is_lost)
        assert isinstance(heard.loss, OSError)


async def test_without_connections_nothing_is_left_in_the_loop() -> None:
    transports = Transports()
    for _ in range(2):
        async with connected(transports):
            assert is_watching(transports)
        assert not is_watching(transports)
        assert not transports._more


# --- TLS -----------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def encrypted(
    authority: Authority, transports: Transports, name: str = "localhost"
) -> AsyncIterator[tuple[BoundedTransport, Heard, ssl.SSLSocket]]:
    """The same over TLS; the other end blocks, so it works in a thread."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    loop = asyncio.get_running_loop()
    context = tls.server_context(authority.files("localhost"))
    with contextlib.ExitStack() as stack:
        stack.callback(theirs.close)
        shaking = loop.run_in_executor(None, lambda: context.wrap_socket(theirs, server_side=True))
        try:
            transport, heard = await transports.opened(ours, Heard, Tls(authority.client(), name))
        except BaseException:
            with contextlib.suppress(OSError):
                await shaking
            raise
        other = stack.enter_context(await shaking)
        try:
            yield transport, heard, other
        finally:
            transport.abort()
            await until(lambda: heard.is_lost)


async def test_over_tls_data_come_in_small_pieces_too(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    async with encrypted(Authority(tmp_path), Transports(PIECE, PIECE)) as (
        transport,
        heard,
        theirs,
    ):
        transport.allow(1 << 20)
        await loop.run_in_executor(None, theirs.sendall, b"x" * 20_000)  # two records
        await until(lambda: len(heard.data) == 20_000)
        assert max(len(data) for _, data in heard.pieces) == PIECE
        transport.write(b"y" * 100_000)
        got = b""
        while len(got) < 100_000:
            got += await loop.run_in_executor(None, theirs.recv, 1 << 16)
        assert got == b"y" * 100_000


async def test_what_tls_adds_counts_as_sent(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()

    def drip(sock: ssl.SSLSocket) -> None:
        with contextlib.suppress(OSError):
            for _ in range(1_000):
                sock.send(b"x")  # a record of 23 bytes

    async with encrypted(Authority(tmp_path), Transports()) as (transport, heard, theirs):
        transport.allow(2_000)
        await loop.run_in_executor(None, drip, theirs)
        await until(lambda: heard.is_lost)
        assert isinstance(heard.loss, TooMuch)
        assert len(heard.data) < 2_000 / 22


async def test_a_handshake_that_is_never_answered_can_be_given_up(tmp_path: Path) -> None:
    transports = Transports()
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with theirs:
        context = Authority(tmp_path).client()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await transports.opened(ours, Heard, Tls(context, "localhost"))
    assert ours.fileno() == -1
    assert not is_watching(transports)


# --- Streams -------------------------------------------------------------------------------------


async def test_a_stream_reads_and_writes_as_asyncios(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    transports = stream_transports()
    path = str(tmp_path / "s")
    by_path = await asyncio.start_unix_server(echo, path)
    by_port = await asyncio.start_server(echo, "127.0.0.1", 0)
    places: list[tuple[str, int] | str] = [path, by_port.sockets[0].getsockname()[:2]]
    for place in places:
        reader, writer, _ = await open_stream(transports, place)
        writer.writelines([b"hello", b"\n"])
        await writer.drain()
        assert await reader.readline() == b"hello\n"
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
    by_path.close()
    by_port.close()
    with pytest.raises(FileNotFoundError):
        await open_stream(transports, str(tmp_path / "none"))
