"""Which connections are kept for the next calls, and their state.

The same with and without asyncio; `connection` and `aio_connection` have the parts that wait.
"""

import contextlib
import os
import select
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

from delayd.client.attempts import Ask, Place, Way
from delayd.client.errors import (
    ClientClosed,
    ConnectionLost,
    NotUnderstood,
)
from delayd.client.steps import Steps

T = TypeVar("T")
IDLE_CONNECTIONS_MAX: Final = 16
"""So many are kept for the next calls; calls at the same time may have more."""


class Runs(Protocol):
    """Carries out operations: connections, or a daemon in memory."""

    def run(self, steps: Steps[T]) -> T:
        """Carry out an operation."""

    def close(self) -> None:
        """Close all connections."""


class AsyncRuns(Protocol):
    """The same with asyncio."""

    def run(self, steps: Steps[T]) -> Coroutine[Any, Any, T]:
        """Carry out an operation."""

    async def close(self) -> None:
        """Close all connections."""


class Link(Protocol):
    """A connection of either kind. On the line it holds jobs, watches topics, and is logged in."""

    way: Way
    place: Place
    """Of the addresses, the one that it was made to."""
    held: set[int]
    """The numbers of the jobs that it holds; then it is used for them alone."""
    watched: frozenset[str]
    used: str
    is_greeted: bool
    is_proven: bool
    """Whether something was answered over it, or need not be. One to one of several addresses, or
    after one that was lost, is asked something harmless first. The kernel of a daemon that hangs
    accepts connections, and so does a proxy without a daemon; what is sent there may be done."""
    is_closed: bool
    _poll: "select.poll | None"
    _pid: int

    def __init__(self, way: Way) -> None:
        self.way = way
        self.place = way.place
        self.held = set()
        self.watched = frozenset(("default",))
        self.used = ""
        self.is_greeted = self.is_closed = False
        self.is_proven = not way.is_in_doubt and len(way.places) == 1
        self._poll = None
        self._pid = os.getpid()

    @property
    def is_ours(self) -> bool:
        """Whether this process made it. One that was forked leaves it to its parent.

        Two that share a connection would get each other's answers.
        """
        return self._pid == os.getpid()

    @property
    def descriptor(self) -> int:
        """Of its socket."""

    @property
    def is_usable(self) -> bool:
        """Whether it is open and silent, so that the next reply is that of the next call.

        Bytes that arrive without a request, or the end, are no answer.
        """
        if self.is_closed or not self.is_ours:
            return False
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self.descriptor, select.POLLIN)
        return not self._poll.poll(0)

    def prove(self) -> None:
        """Note that something was answered over it."""
        self.is_proven, self.way.is_in_doubt = True, False

    @contextlib.contextmanager
    def closing(self, *, may_have_happened: bool = True) -> Iterator[None]:
        """Close it when the block fails, as `fail` does."""
        try:
            yield
        except BaseException as error:
            self.fail(error, may_have_happened=may_have_happened)
            raise

    def fail(self, error: BaseException, *, may_have_happened: bool = True) -> None:
        """Close it after an error: it may be in the middle of a reply. Raises ConnectionLost."""
        if isinstance(error, OSError):
            self.close()
            self.way.is_in_doubt = True
            where = self.place.address.url
            lost = ConnectionLost(where, reason_of(error), may_have_happened=may_have_happened)
            raise lost from error
        if isinstance(error, NotUnderstood):
            self.misunderstood(error, may_have_happened=may_have_happened)
        else:
            self.close()

    def misunderstood(self, error: NotUnderstood, *, may_have_happened: bool = True) -> None:
        """Close it, since its next bytes cannot be trusted; set its url in the error."""
        self.close()
        error.where = self.place.address.url
        error.may_have_happened = may_have_happened

    def close(self) -> None:
        """Close it; on the line its jobs are ready again."""


L = TypeVar("L", bound=Link)


class Pool(Generic[L]):
    """The connections that no call is using; the one used last is taken first."""

    def __init__(self) -> None:
        self._is_closed = False
        self._idle: list[L] = []
        self._own_lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def _lock(self) -> threading.Lock:
        """The lock of this process: in a fork, a thread of the parent may hold the other."""
        if self._pid != os.getpid():
            self._own_lock, self._pid = threading.Lock(), os.getpid()
        return self._own_lock

    def take(self, place: Place) -> L | None:
        """Return a connection to this address that holds no jobs, if there is one.

        Raises ClientClosed.
        """
        while (connection := self._pop()) is not None:
            if connection.place is place and connection.is_usable:
                return connection
            connection.close()
        return None

    def _pop(self) -> L | None:
        """Return the first one that may be taken; whether it is usable is asked without the lock.

        To ask lets other threads run, and each that wanted the lock meanwhile would have to sleep.
        """
        with self._lock:
            if self._is_closed:
                raise ClientClosed
            idle = self._idle
            for at in range(len(idle) - 1, -1, -1):
                if not idle[at].held or idle[at].is_closed:
                    return idle.pop(at)
        return None

    def give_back(self, connection: L, *, is_last: bool = False) -> None:
        """Keep a connection for the next call, unless there are enough, or it is to be closed."""
        with self._lock:
            has_place = connection.held or len(self._idle) < IDLE_CONNECTIONS_MAX
            if not has_place:
                has_place = sum([not each.held for each in self._idle]) < IDLE_CONNECTIONS_MAX
            if has_place and not (is_last or self._is_closed or connection.is_closed):
                self._idle.append(connection)
                return
        connection.close()

    def resumed(self, steps: Steps[Any], ask: Ask, answer: tuple[L, Any]) -> Ask:
        """Send a reply to its operation, and take the connection back; return the next request.

        Raises StopIteration with the result of the operation.
        """
        connection, reply = answer
        try:
            following: Ask = steps.send(reply)
        except NotUnderstood as error:
            connection.misunderstood(error)
            raise
        finally:
            if ask.link is None:
                self.give_back(connection, is_last=reply.is_last)
        return following

    def close(self) -> None:
        """Close the idle connections; the others are closed when their calls end."""
        with self._lock:
            self._is_closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def reason_of(error: Exception) -> str:
    """Return in a few words why a connection failed."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):  # asyncio has a sentence of its own
        return "Connection refused"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
