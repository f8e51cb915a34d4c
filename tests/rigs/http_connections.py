"""A guard on a fake clock, and clients in memory: bytes in, bytes out, no socket.

    with_guard(scenario): runs `await scenario(rig)` on a loop, and checks the books after it

    client = rig.connect()
    await client.send(b"GET /quick HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
    assert client.status() == 200

A `Client` is the transport that the connection writes to. It takes what it is given at once, or
nothing at all (`takes = False`). Time passes by `rig.pass_ms`, which also makes the rounds.
"""

import asyncio
import json
import re
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import Signature, signature
from typing import Any, Final

from delayd.access.authenticator import Authenticator
from delayd.access.connection_limits import ConnectionLimits, Rejection
from delayd.access.tokens import Tokens
from delayd.http.bounds import Bounds
from delayd.http.connection import HttpConnection, HttpRequest
from delayd.http.connections import HttpConnections
from delayd.http.responses import Reply

FAR: Final = ("192.0.2.1", 50_000)
HERE: Final = ("127.0.0.1", 50_000)
START_MS: Final = 1_000_000

REPLY: Final = re.compile(rb"HTTP/1\.[01] (\d{3}) [^\r\n]*\r\n(.*?)\r\n\r\n", re.DOTALL)


class Client(asyncio.Transport):
    """The network side of one connection."""

    def __init__(
        self,
        connection: HttpConnection,
        peer: object,
        sock: socket.socket | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.extra: dict[str, object] = {"peername": peer, "socket": sock}
        super().__init__(self.extra)
        self.connection = connection
        self._loop = loop or asyncio.get_running_loop()
        self.received = bytearray()
        self.unsent = 0
        self.takes = True
        self._reads = True
        self.is_closed = False
        """The connection has ended."""
        self.was_aborted = False
        self._closing = False
        self._high = 0
        self._is_paused = False

    # --- What the connection calls ---------------------------------------------------------------

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None
        self._high = high
        self._pause_if_full()

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: Any) -> None:  # noqa: ANN401 (asyncio's signature)
        assert not self.is_closed, "nothing is written to a closed transport"
        self.received += data
        if not self.takes:
            self.unsent += len(data)
            self._pause_if_full()

    def _pause_if_full(self) -> None:
        if self.unsent > self._high and not self._is_paused:
            self._is_paused = True
            self.connection.pause_writing()

    def writelines(self, list_of_data: Any) -> None:  # noqa: ANN401
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self.unsent:
                self._loop.call_soon(self._lose, None)

    def abort(self) -> None:
        if not self.is_closed:
            self._closing = True
            self.was_aborted = True
            self.unsent = 0
            self._loop.call_soon(self._lose, None)

    def _lose(self, exc: Exception | None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.connection.connection_lost(exc)

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    # --- What a test does ------------------------------------------------------------------------

    async def send(self, data: bytes) -> None:
        """Let the connection have some bytes, and everything happen that follows from them."""
        if not self._closing:
            self.connection.data_received(data)
        await settle()

    async def take(self, count: int) -> None:
        """Take some of what waits."""
        self.take_some(count)
        await settle()

    def take_some(self, count: int) -> None:
        """The same, outside of a loop: what follows comes when that runs."""
        self.unsent -= min(count, self.unsent)
        if self._is_paused and self.unsent <= self._high // 4:
            self._is_paused = False
            self.connection.resume_writing()
        if self._closing and not self.unsent:
            self._loop.call_soon(self._lose, None)

    def is_read_from(self) -> bool:
        """Whether the connection wants more."""
        return self._reads

    async def send_no_more(self) -> None:
        """Close the sending side."""
        if not self.connection.eof_received():
            self.close()
        await settle()

    async def break_off(self) -> None:
        """Go without a word."""
        self._closing = True
        self._lose(ConnectionResetError())
        await settle()

    def statuses(self) -> list[int]:
        """The replies so far; their bodies must not look like heads."""
        return [int(reply[1]) for reply in REPLY.finditer(self.received)]

    def status(self) -> int:
        """The only reply so far."""
        (only,) = self.statuses()
        return only

    def problem(self) -> dict[str, Any]:
        """The body of the only reply."""
        assert b"content-type: application/problem+json" in self.received.lower()
        problem: dict[str, Any] = json.loads(self.received.partition(b"\r\n\r\n")[2])
        assert problem["status"] == self.status()
        return problem


async def settle() -> None:
    """Let everything happen that waits for nothing but its turn."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object]) -> None:
    """Let things happen until they have; real sockets take more turns than one can count."""
    while not condition():  # noqa: ASYNC110 (what it waits for tells nobody)
        await asyncio.sleep(0)


class HeldTurns:
    """Turns that make something durable when a test says so (`ConnectionRig.sync`)."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def when_durable(self, callback: Callable[[], object]) -> None:
        self.waiting.append(callback)

    def reply_when_durable(self, client: HttpConnection, data: bytes) -> None:
        self.waiting.append(partial(client.send, data))

    def wake_loop(self) -> None:
        """It goes on."""

    async def sync(self) -> None:
        """Make all so far durable."""
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()
        await settle()


class ConnectionRig:
    """A guard before a small application."""

    def __init__(self, bounds: Bounds, *, needs_token: bool) -> None:
        self.clock_ms = START_MS
        self.faults: list[BaseException] = []
        self.done: list[str] = []
        """Paths of the requests that were carried out, when they were answered."""
        self.go = asyncio.Event()
        """What /slow waits for."""
        self.noted: Counter[str] = Counter()
        """Refusals and missed deadlines, by name."""
        self.turns = HeldTurns()
        self.connections = HttpConnections(
            _application(self),
            self.turns,
            bounds,
            lambda: self.clock_ms,
            self.faults.append,
            ConnectionLimits(
                Authenticator(Tokens([]) if needs_token else None),
                connections_max=bounds.connections_max,
                per_address_max=bounds.connections_per_ip_max,
                unauthenticated_per_address_max=bounds.unauthenticated_per_ip_max,
            ),
            self._note,
        )

    def _note(self, word: str) -> None:
        self.noted[word] += 1

    def connect(
        self, peer: object = FAR, descriptor: int = 10, sock: socket.socket | None = None
    ) -> Client:
        """Let a client in; the connection may look at its end of a socket."""
        admitted = self.try_to_connect(peer, descriptor)
        assert isinstance(admitted, HttpConnection), admitted
        client = Client(admitted, peer, sock)
        admitted.connection_made(client)
        return client

    def try_to_connect(
        self, peer: object = FAR, descriptor: int = 10
    ) -> HttpConnection | Rejection:
        return self.connections.admit(peer, descriptor)

    async def pass_ms(self, ms: int, steps: int = 1) -> None:
        """Let time pass, and whatever it brings."""
        await settle()
        for step in range(steps):
            self.clock_ms += ms * (step + 1) // steps - ms * step // steps
            self.connections.deadlines.go()
            await settle()
            self.connections.check()


def with_guard(
    scenario: Callable[[ConnectionRig], Awaitable[None]],
    bounds: Bounds | None = None,
    *,
    needs_token: bool = False,
    has_faults: bool = False,
) -> None:
    """Play a scenario."""

    async def play() -> None:
        rig = ConnectionRig(bounds or Bounds(), needs_token=needs_token)
        await scenario(rig)
        rig.connections.check()
        rig.connections.close()
        await settle()
        assert rig.connections.open_count == 0
        assert rig.connections.held_bytes == 0
        rig.connections.check()
        assert bool(rig.faults) == has_faults, rig.faults

    asyncio.run(play())


def _application(rig: ConnectionRig) -> Callable[[HttpRequest], Awaitable[Reply]]:
    """/quick answers at once, /slow when told to, /body its body's length, /early without it,
    /logged when that is durable, /long with so many bytes, /told as well and learns whether they
    left, /broken never; "held" in the query: when told to."""

    async def answer(request: HttpRequest) -> Reply:
        path = request.target.partition("?")[0]
        text = ""
        if path in {"/quick", "/body"}:
            body = bytearray()
            while chunk := await request.body.readany():
                body += chunk
            text = str(len(body)) if path == "/body" else ""
        elif path == "/slow":
            await rig.go.wait()
        elif path == "/logged":
            rig.done.append(path)
            text = "x" * int(dict(request.query).get("bytes", "0"))
            return Reply(200, text.encode(), "text/plain", waits_for_log=True)
        elif path in {"/long", "/told"}:
            query = dict(request.query)
            text = "x" * int(query["bytes"])
            if "held" in query:
                await rig.go.wait()
        elif path == "/broken":
            raise KeyError("a fault of ours")
        elif path != "/early":
            return Reply(404)
        reply = Reply(200, text.encode(), "text/plain")
        if path == "/told":
            request.connection.ends_half_closed = True
            try:
                await request.connection.deliver(reply, request)
            except (asyncio.CancelledError, ConnectionError):
                rig.done.append("not told")
                raise
            finally:
                request.connection.ends_half_closed = False
            path = "told"
        rig.done.append(path)
        return reply

    return answer


def get(path: str, *headers: str) -> bytes:
    """A request without a body."""
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: here", *headers, "", "")).encode()


def post(path: str, body: bytes, *headers: str) -> bytes:
    """A request with a body."""
    lines = (f"POST {path} HTTP/1.1", "Host: here", f"Content-Length: {len(body)}", *headers)
    return "\r\n".join((*lines, "", "")).encode() + body


def head_of_post(path: str, body_bytes: int) -> bytes:
    """The same without the body."""
    return post(path, b"").replace(b"Content-Length: 0", b"Content-Length: %d" % body_bytes)


def scenario(
    bounds: Bounds | None = None,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a test of an async function that takes a rig, and what else pytest gives it."""

    def decorate(play: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @wraps(play)
        def test(**given: Any) -> None:  # noqa: ANN401 (fixtures)
            with_guard(lambda rig: play(rig, **given), bounds)

        _, *parameters = signature(play).parameters.values()
        test.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        return test

    return decorate
