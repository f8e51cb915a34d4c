"""All connections of HTTP: their bounds, their deadlines, and the bytes that they hold."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

from delayd import limits
from delayd.access.connection_limits import ConnectionLimits, Peer, Rejection
from delayd.http import problems
from delayd.http.bounds import Bounds
from delayd.http.connection import AnswerTurns, HttpConnection, HttpRequest
from delayd.http.responses import Reply, closing_reply
from delayd.net.deadlines import Deadlines


class HttpConnections:
    """All connections: their bounds, their deadlines, and the bytes they hold."""

    def __init__(
        self,
        handle: Callable[[HttpRequest], Awaitable[Reply]],
        turns: AnswerTurns,
        bounds: Bounds,
        now_ms: Callable[[], int],
        on_fault: Callable[[BaseException], object],
        admission: ConnectionLimits,
        note: Callable[[str], object],
    ) -> None:
        """Admit no connection yet; `handle` answers requests, on the running loop.

        `now_ms` is a clock that never stops. `on_fault` is called with exceptions of a handler,
        `note` with the name of each refusal and missed deadline, for metrics.
        """
        self.loop = asyncio.get_running_loop()
        self.turns = turns
        self.bounds = bounds
        self.now_ms = now_ms
        self.on_fault = on_fault
        self.admission = admission
        self.deadlines = Deadlines[HttpConnection](now_ms, HttpConnection.expire, self._set_alarm)
        self._timer: asyncio.TimerHandle | None = None
        self.body_grace_ms = min(limits.HTTP_BODY_GRACE_MS, bounds.body_ms)
        self.pause_bytes = min(limits.HTTP_REPLY_PAUSE_BYTES, bounds.write_buffer_bytes_max)
        self.held_bytes_max = bounds.held_bytes_max
        self.held_bytes = 0
        """Bytes of requests that have not been answered."""
        self.note = note
        self.too_slow = closing_reply(problems.TooSlow("the request did not arrive in time"))
        busy = closing_reply(
            problems.Busy("there are too many connections, or too much is being sent")
        )
        too_many = closing_reply(
            problems.TooMany("there are too many connections from this address")
        )
        self.replies = dict.fromkeys(Rejection, busy) | {
            Rejection.CONNECTIONS_PER_IP: too_many,
            Rejection.UNAUTHENTICATED_PER_IP: too_many,
        }
        self.handle = handle
        self._making_piece = asyncio.Lock()
        self._connections: dict[HttpConnection, Peer] = {}

    @property
    def open_count(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    async def next_piece(self, pieces: Iterator[bytes]) -> bytes | None:
        """Return the next piece of an answer, None at its end: one between two turns, of all."""
        async with self._making_piece:
            await asyncio.sleep(0)
            return next(pieces, None)

    def _set_alarm(self, alarm_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if alarm_ms is not None:
            wait_ms = max(0, alarm_ms - self.now_ms())
            self._timer = self.loop.call_later(wait_ms / 1_000, self.deadlines.go)

    def admit(self, address: object, descriptor: int) -> HttpConnection | Rejection:
        """Return the protocol for a client that has connected, or why the client is refused.

        For a connection whose `connection_made` is never called, call `forget`.
        """
        peer = self.admission.admit(address, descriptor)
        if isinstance(peer, Rejection):
            self.note(peer.name)
            return peer
        connection = HttpConnection(self, peer)
        self._connections[connection] = peer
        return connection

    def note_failed_handshake(self, connection: HttpConnection, error: Exception) -> None:
        """Count and log a TLS handshake that failed."""
        self.note("TLS_HANDSHAKE")
        self.admission.note_failed_handshake(connection.peer, error)

    def forget(self, connection: HttpConnection) -> None:
        """Stop counting a connection; a second call does nothing."""
        peer = self._connections.pop(connection, None)
        if peer is None:
            return
        self.deadlines.forget(connection)
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0
        self.admission.leave(peer)

    def finish(self) -> "list[asyncio.Task[None]]":
        """Close all connections, each after its current answer; return the tasks left.

        Answers that wait for the log have none: they are sent when it is durable.
        """
        answering = [connection.finish() for connection in list(self._connections)]
        return [task for task in answering if task is not None]

    def unsent(self) -> list[HttpConnection]:
        """Return the connections with answers that the clients have not taken."""
        return [connection for connection in self._connections if connection.has_unsent]

    def close(self) -> None:
        """Close all connections at once, also those with unsent answers."""
        for connection in list(self._connections):
            if connection.transport is None:
                self.forget(connection)
            else:
                connection.transport.abort()
        self.deadlines.close()

    def check(self) -> None:
        """Count everything anew; raise `AssertionError` where a figure differs."""
        self.deadlines.check()
        assert (self._timer is not None) == (self.deadlines.alarm_ms is not None)
        assert self.held_bytes == sum(each.held_bytes for each in self._connections)
        self.admission.check(self._connections.values())
