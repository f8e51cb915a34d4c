"""A client of the line protocol as its server sees it: socket, connection, and what is on the way.

    Client.sock ─► Connection.receive          (the server reads)
    Client.send ◄─ group commit ◄─ Connection.take_out

What is said is the connection's business, when to read and to close the server's.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from delayd.core.timekeeper import Handed, WaitEnd
from delayd.line.admission import LinePeer

if TYPE_CHECKING:
    from delayd.line.server import LineServer


class Wire(Protocol):
    """What the server needs of a socket."""

    def recv(self, size: int, /) -> bytes:
        """Return what has arrived, nothing at the end; `BlockingIOError` when there is nothing."""
        ...

    def send(self, data: bytes | memoryview, /) -> int:
        """Send what there is room for, and return how much; or `BlockingIOError`."""
        ...

    def fileno(self) -> int:
        """Return the descriptor, -1 when closed."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class Client:
    """One connection with its socket."""

    __slots__ = (
        "at_end",
        "caller",
        "connection",
        "is_begun",
        "is_dirty",
        "is_gone",
        "mask",
        "promised",
        "server",
        "sock",
        "stalled_since_ms",
        "unsent",
    )

    def __init__(self, server: "LineServer", sock: Wire, caller: LinePeer, mask: int) -> None:
        """Serve somebody who has come in, for whose events of this mask the server watches."""
        self.server = server
        self.sock = sock
        self.caller = caller
        self.connection = server.connection_for(self)
        self.mask = mask
        self.at_end = False
        """The last byte of its input has been read."""
        self.is_begun = False
        """It is in the middle of something, for which the server's patience is not endless."""
        self.is_gone = False
        """Its socket is closed."""
        self.is_dirty = False
        """It is on the server's list of those with replies to send."""
        self.promised = 0
        """Sends that are still to come, from turns whose records are not durable yet."""
        self.unsent: bytes | memoryview = b""
        self.stalled_since_ms: int | None = None

    @property
    def incomplete_bytes(self) -> int | None:
        """How many bytes of a body are missing, 0 if it is a line; None: in the middle of none."""
        return self.connection.incomplete_bytes

    @property
    def is_heard(self) -> bool:
        """Whether what it says is read: not while it takes no replies, nor when it has ended."""
        return not (self.unsent or self.at_end)

    def postpone(self, by_ms: int, answer: Callable[[int], object]) -> None:
        """Have its connection answer so much later, if it is still there, and then listen to it."""
        self.server.patience.postpone(by_ms, partial(self._answer, answer))

    def _answer(self, answer: Callable[[int], object]) -> None:
        if not self.is_gone:
            answer(self.server.time_ms)
            self.server.listen_again(self)

    def deliver(self, outcome: Handed | WaitEnd, now_ms: int) -> None:
        """Answer the reserve that waited."""
        self.server.deliver(self, outcome, now_ms)

    def send(self, data: bytes) -> None:
        """Send replies that are free to leave; each that was taken, in that order.

        In one piece; what the socket does not take is kept.
        """
        server = self.server
        self.promised -= 1
        if self.is_gone:
            return
        if self.unsent:
            self.unsent = b"".join((self.unsent, data))
        elif data:
            sent = server.send_some(self, data)
            if sent < len(data):
                self.unsent = memoryview(data)[sent:]
        if self.unsent:
            server.keep_unsent(self)
        elif not self.promised:
            connection = self.connection
            if connection.is_closing or connection.is_choked or self.at_end:
                server.settle(self)
