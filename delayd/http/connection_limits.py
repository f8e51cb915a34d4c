"""What the connections of HTTP share: their bounds, their deadlines, and the bytes they hold.

How many there may be is counted by `access.admission`. The bytes of requests that have been read
and not been answered are bounded over all connections: `held_bytes`.

The module refuses to know what a connection does.
"""

import asyncio
from collections.abc import Awaitable, Callable

from delayd import limits
from delayd.access.admission import Admission, Peer, Refused
from delayd.http.bounds import Bounds, Deadline
from delayd.http.connections import Connection, HttpRequest
from delayd.http.problems import Busy, TooMany, TooSlow
from delayd.http.responses import Reply, closing_reply
from delayd.net.deadlines import Deadlines


class HttpConnectionLimits:
    """Admits connections, and knows how many there are and what they hold."""

    def __init__(
        self,
        answer: Callable[[HttpRequest], Awaitable[Reply]],
        bounds: Bounds,
        now_ms: Callable[[], int],
        on_fault: Callable[[BaseException], object],
        admission: Admission,
    ) -> None:
        """Admit no connection yet; `answer` answers requests, on the running loop.

        `now_ms` is a clock that never stands. `on_fault` is told of exceptions that come out of a
        handler.
        """
        self.loop = asyncio.get_running_loop()
        self.bounds = bounds
        self.now_ms = now_ms
        self.on_fault = on_fault
        self.admission = admission
        self.deadlines = Deadlines[Connection](now_ms, Connection.look, self._set_alarm)
        self._timer: asyncio.TimerHandle | None = None
        self.body_grace_ms = min(limits.HTTP_BODY_GRACE_MS, bounds.body_ms)
        self.pause_bytes = min(limits.HTTP_REPLY_PAUSE_BYTES, bounds.write_buffer_bytes_max)
        self.held_bytes_max = bounds.held_bytes_max
        self.held_bytes = 0
        """Bytes of requests that have not been answered."""
        self.note: Callable[[str], object] = _ignore
        """Told of each refusal and each deadline that was missed, by name: for metrics."""
        self.refused = dict.fromkeys(Refused, 0)
        self.closed = dict.fromkeys(Deadline, 0)
        self.too_slow = closing_reply(TooSlow("the request did not arrive in time"))
        busy = closing_reply(Busy("there are too many connections, or too much is being sent"))
        too_many = closing_reply(TooMany("there are too many connections from this address"))
        self.replies = dict.fromkeys(Refused, busy) | {
            Refused.CONNECTIONS_PER_IP: too_many,
            Refused.STRANGERS_PER_IP: too_many,
        }
        self.answer = answer
        self._connections: dict[Connection, Peer] = {}

    @property
    def open_count(self) -> int:
        """How many connections there are."""
        return len(self._connections)

    def _set_alarm(self, alarm_ms: int | None) -> None:
        """Have the deadlines looked at then, and no longer when they were to be before."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if alarm_ms is not None:
            wait_ms = max(0, alarm_ms - self.now_ms())
            self._timer = self.loop.call_later(wait_ms / 1_000, self.deadlines.go)

    def admit(self, address: object, descriptor: int) -> Connection | Refused:
        """Return the protocol for a client that has connected, or why it may not stay.

        For a connection whose `connection_made` is never called, call `forget`.
        """
        peer = self.admission.admit(address, descriptor)
        if isinstance(peer, Refused):
            self.refused[peer] += 1
            self.note(peer.name)
            return peer
        connection = Connection(self, peer)
        self._connections[connection] = peer
        return connection

    def note_no_descriptor(self) -> None:
        """Count a client that was closed for lack of a descriptor."""
        self.refused[Refused.DESCRIPTORS] += 1

    def note_failed_handshake(self, connection: Connection, error: Exception) -> None:
        """Count a TLS handshake that failed, and have it logged."""
        self.note("TLS_HANDSHAKE")
        self.admission.note_failed_handshake(connection.peer, error)

    def forget(self, connection: Connection) -> None:
        """Count a connection no longer; twice is once."""
        peer = self._connections.pop(connection, None)
        if peer is None:
            return
        self.deadlines.forget(connection)
        self.held_bytes -= connection.held_bytes
        connection.held_bytes = 0
        self.admission.leave(peer)

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
        self.deadlines.close()

    def check(self) -> None:
        """Raise `AssertionError` unless every count is what counting says."""
        self.deadlines.check()
        assert (self._timer is not None) == (self.deadlines.alarm_ms is not None)
        assert self.held_bytes == sum(each.held_bytes for each in self._connections)
        self.admission.check(self._connections.values())


def _ignore(*_told: object) -> None:
    """Take no notice."""
