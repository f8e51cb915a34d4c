"""Who is let in: how many connections there are, from where, and what they hold together.

    accept ─► admit ─┬─► Connection ─► ... ─► forget
                     └─► Refused: too many in all, of one address, of those who have shown no token,
                         or too few descriptors left for the journal

Those of this machine count only in all. The bytes of requests that have been read and not been
answered are bounded over all connections: `held_bytes`.

The module refuses to know what a connection does.
"""

import asyncio
from collections.abc import Awaitable, Callable

from delayd import limits
from delayd.http.bounds import Bounds, Deadline, Refused, reply_of
from delayd.http.connections import Connection, Request
from delayd.http.problems import Busy, TooMany, TooSlow
from delayd.http.read_timeouts import DeadlineTimer
from delayd.http.responses import Reply
from delayd.net.peers import may_keep, origin_of


class HttpConnectionLimits:
    """Lets clients in, and knows how many there are and what they hold."""

    def __init__(
        self,
        answer: Callable[[Request], Awaitable[Reply]],
        bounds: Bounds,
        now_ms: Callable[[], int],
        on_fault: Callable[[BaseException], object],
        *,
        needs_token: bool = False,
    ) -> None:
        """Let nobody in yet; `answer` answers requests, on the running loop.

        `now_ms` is a clock that never stands. `on_fault` is told of exceptions that come out of a
        handler. Without `needs_token` nobody is a stranger.
        """
        self.loop = asyncio.get_running_loop()
        self.bounds = bounds
        self.now_ms = now_ms
        self.on_fault = on_fault
        self.rounds = DeadlineTimer(self.loop, now_ms)
        self.needs_token = needs_token
        self.body_grace_ms = min(limits.HTTP_BODY_GRACE_MS, bounds.body_ms)
        self.pause_bytes = min(limits.HTTP_REPLY_PAUSE_BYTES, bounds.write_buffer_bytes_max)
        self.held_bytes_max = bounds.held_bytes_max
        self.held_bytes = 0
        """Bytes of requests that have not been answered."""
        self.note: Callable[[str], object] = _ignore
        """Told of each refusal and each deadline that was missed, by name: for metrics."""
        self.on_unshaken: Callable[[object, Exception], object] = _ignore
        """Told of each TLS handshake that failed: what accept(2) said of the peer, and why."""
        self.refused = dict.fromkeys(Refused, 0)
        self.closed = dict.fromkeys(Deadline, 0)
        self.too_slow = reply_of(TooSlow("the request did not arrive in time"))
        busy = reply_of(Busy("there are too many connections, or too much is being sent"))
        too_many = reply_of(TooMany("there are too many connections from this address"))
        self.replies = dict.fromkeys(Refused, busy) | {
            Refused.CONNECTIONS_PER_IP: too_many,
            Refused.STRANGERS_PER_IP: too_many,
        }
        self.answer = answer
        self._connections: set[Connection] = set()
        self._by_origin: dict[str, int] = {}
        self._strangers: dict[str, int] = {}

    @property
    def open_count(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    def admit(self, peer: object, descriptor: int) -> Connection | Refused:
        """Return the protocol for a client that has come, or why it may not stay.

        Whoever gets a connection calls `forget` if its `connection_made` is never called.
        """
        origin = origin_of(peer)
        refused = self._why_not(origin, descriptor)
        if refused is not None:
            self.refused[refused] += 1
            self.note(refused.name)
            return refused
        connection = Connection(self, origin)
        self._connections.add(connection)
        if origin is not None:
            self._by_origin[origin] = self._by_origin.get(origin, 0) + 1
            if self.needs_token:
                self._strangers[origin] = self._strangers.get(origin, 0) + 1
                connection.stranger = True
        return connection

    def _why_not(self, origin: str | None, descriptor: int) -> Refused | None:
        if len(self._connections) >= self.bounds.connections_max:
            return Refused.CONNECTIONS
        if not may_keep(descriptor):
            return Refused.DESCRIPTORS
        if origin is None:
            return None
        if self._by_origin.get(origin, 0) >= self.bounds.connections_per_ip_max:
            return Refused.CONNECTIONS_PER_IP
        if self._strangers.get(origin, 0) >= self.bounds.strangers_per_ip_max:
            return Refused.STRANGERS_PER_IP
        return None

    def recognize(self, connection: Connection) -> None:
        """Count a stranger no longer."""
        assert connection.stranger
        assert connection.origin is not None, "those of this machine are never strangers"
        connection.stranger = False
        _count_down(self._strangers, connection.origin)

    def forget(self, connection: Connection) -> None:
        """Count a connection no longer; twice is once."""
        if connection not in self._connections:
            return
        self._connections.remove(connection)
        self.rounds.forget(connection)
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0
        if connection.stranger:
            self.recognize(connection)
        if connection.origin is not None:
            _count_down(self._by_origin, connection.origin)

    def finish(self) -> "list[asyncio.Task[None]]":
        """Close all connections, each behind its current answer; return what still answers."""
        answering = [connection.finish() for connection in list(self._connections)]
        return [task for task in answering if task is not None]

    def close(self) -> None:
        """Close whatever is still open, sent or not."""
        for connection in list(self._connections):
            if connection.transport is None:
                self.forget(connection)
            else:
                connection.transport.abort()
        self.rounds.close()

    def check(self) -> None:
        """Raise `AssertionError` unless every count is what counting says."""
        self.rounds.check()
        assert self.held_bytes == sum(each.held_bytes for each in self._connections)
        origins = [each.origin for each in self._connections if each.origin is not None]
        assert self._by_origin == {origin: origins.count(origin) for origin in origins}
        strangers = [str(each.origin) for each in self._connections if each.stranger]
        assert self._strangers == {origin: strangers.count(origin) for origin in strangers}


def _ignore(*_told: object) -> None:
    """Take no notice."""


def _count_down(counts: dict[str, int], origin: str) -> None:
    counts[origin] -= 1
    if not counts[origin]:
        del counts[origin]
