"""Which connections are kept, their state, and when a call is tried again.

The same with and without asyncio; `connection` and `aio_connection` have the parts that wait.

>>> [round(pause_s, 2) for pause_s in pauses(1.0, lambda: 1.0)]
[0.05, 0.1, 0.2, 0.4, 0.25]
"""

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Protocol, TypeVar

from delayd.client.addresses import Address
from delayd.client.errors import (
    ClientClosed,
    ConnectionLost,
    DelaydError,
    NotReady,
    NotUnderstood,
    Unreachable,
)
from delayd.client.steps import Steps

if TYPE_CHECKING:
    import ssl  # which takes as long to import as all of this: only TLS needs it

T = TypeVar("T")
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
CONNECT_S_MAX: Final = 5.0
"""How long one of several addresses is waited for: a machine that is off does not refuse, and a
daemon that hangs does not answer."""
IDLE_CONNECTIONS_MAX: Final = 16
"""So many are kept for the next calls; calls at the same time may have more."""


class Ask(Protocol):
    """A request of an operation, in either protocol."""

    @property
    def wait_s(self) -> float:
        """How long the daemon may wait for a job, besides the time of an answer."""

    @property
    def may_repeat(self) -> bool:
        """Whether a repetition does no harm."""

    @property
    def link(self) -> Any:  # noqa: ANN401 - a connection of either kind
        """The connection to use; None: any without reserved jobs."""


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


class Reader(Protocol):
    """Reads one reply."""

    def feed(self, data: bytes) -> Any:  # noqa: ANN401 - a reply of the protocol
        """Read bytes, none at the end; return the reply once it is whole."""


class Wire(Protocol):
    """A protocol."""

    def encode(self, ask: Any) -> bytes:  # noqa: ANN401 - an `Ask` of the protocol
        """Return a request as bytes."""

    def reader(self, ask: Any, link: Any) -> Reader:  # noqa: ANN401 - the same, and a connection
        """Return the reader of the reply on this connection."""

    def whole(self, ask: Any, link: Any, data: bytes) -> Any:  # noqa: ANN401 - the same
        """Return the reply if its first bytes are all of it, as most often; None: use a reader."""

    def before(self, ask: Any, link: Any) -> Ask | None:  # noqa: ANN401 - the same
        """Return the request that this connection needs first; None: none."""

    def check_before(self, ask: Any, first: Any, reply: Any) -> None:  # noqa: ANN401 - the same
        """Note the reply to that request. Raises its refusals, and OSError."""

    def why_elsewhere(self, reply: Any) -> str:  # noqa: ANN401 - the same
        """Return why another daemon may do it, where this one has refused it; empty: it may not."""


def drawn() -> float:
    """Return a number from 0 up to 1 by chance; `random` takes as long to import as json."""
    return int.from_bytes(os.urandom(4)) / (1 << 32)


class Outage:
    """Whether the daemon is away; `tell` gets the error when it goes, None when it is back.

    A client's threads and connections share one, so that an outage is reported once. Each notes the
    `era` before it sends a request: an outcome of a former era is ignored.
    """

    def __init__(self) -> None:
        self.tell: Callable[[DelaydError | None], object] = str
        self.era = 0
        """Odd while the daemon is away."""
        self._lock = threading.Lock()

    def begin(self, error: DelaydError, era: int) -> None:
        """Note that a request of that era failed: no answer, or a refusal for the moment."""
        self._turn(error, era)

    def end(self, era: int) -> None:
        """Note that a request of that era was answered."""
        self._turn(None, era)

    def _turn(self, error: DelaydError | None, era: int) -> None:
        is_news = bool(era % 2) != (error is not None)
        if not is_news:
            return
        with self._lock:
            if era == self.era:
                self.era += 1
                self.tell(error)


class Place(NamedTuple):
    """An address, and its protocol."""

    address: Address
    wire: Wire


class Way:
    """A client's addresses, protocol and patience.

    Of several addresses one is used, until it fails. No answer of a server adds one.
    """

    def __init__(
        self,
        places: Sequence[Place],
        tls: "ssl.SSLContext | None",
        timeout_s: float,
        patience_s: float,
    ) -> None:
        self.places = tuple(places)
        self.place = self.places[0]
        """Where new connections are made: the one that answered last."""
        self._lock = threading.Lock()
        self.is_in_doubt = False
        """Whether the connection used last was lost."""
        self.tls = tls
        self.timeout_s = timeout_s
        self.patience_s = patience_s
        self.outage = Outage()
        self.chance: Callable[[], float] = drawn

    @property
    def connect_s(self) -> float:
        """How long a connection may take, and again what is asked before a request over it.

        All addresses together have the time of an answer.
        """
        count = len(self.places)
        return self.timeout_s if count == 1 else min(CONNECT_S_MAX, self.timeout_s / count)

    @property
    def shown(self) -> str:
        """All addresses, for people."""
        return ", ".join(each.address.url for each in self.places)

    def leave(self, place: Place) -> None:
        """Use the next address, unless another call has left this one already."""
        with self._lock:
            if self.place is place:
                at = self.places.index(place) + 1
                self.place = self.places[at % len(self.places)]


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
        self.was_reached = False
        """Whether a connection was ever made."""
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


class Attempts:
    """The attempts at one call: `with attempts: return ...`, and after a failure a pause.

    A call that was not sent, or that may be repeated, is tried again on a new connection, with
    pauses that grow, as long as the client's patience lasts. All others end with their error;
    `ConnectionLost` says whether they may have been carried out. The first connection of all is not
    waited for: a wrong url is an error at once. Patience counts from the first failure, so that a
    slow server does not get the whole time again with each attempt.

    Of several addresses all are tried before a pause, from the one that answered last. A refusal
    of one that may be done elsewhere counts as a failure, as long as there is patience. Their first
    connection is waited for too, since the log may be without an owner for a moment.
    """

    def __init__(self, ask: Ask, way: Way, pool: Pool[Any]) -> None:
        self.pause_s = 0.0
        """How long to wait before the next one."""
        self._ask = ask
        self._way = way
        self._place = way.place
        self._tried = 0
        """How many addresses have failed since the last pause."""
        self._pool = pool
        self._outage = way.outage
        self.era = 0
        self._pauses = pauses(way.patience_s, way.chance)
        self._patience_s = way.patience_s
        self._failed_s: float | None = None
        """When the first attempt failed."""

    def __enter__(self) -> None:
        self.era = self._outage.era
        self._place = self._way.place if self._ask.link is None else self._ask.link.place

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        """Return whether to try again; otherwise the error is raised."""
        if error is None and self.pause_s:
            self._outage.end(self.era)
        if not isinstance(error, Unreachable | ConnectionLost):
            return False
        self._way.leave(self._place)
        if not self._pool.was_reached and len(self._way.places) == 1:
            return False
        if self._ask.link is not None:
            return False  # the jobs of that connection are gone with it
        if getattr(error, "may_have_happened", False) and not self._ask.may_repeat:
            return False
        raised = error
        if isinstance(error, Unreachable) and len(self._way.places) > 1:
            raised = Unreachable(self._way.shown, error.reason)
        if self._go_on(raised):
            return True
        if raised is not error:
            raise raised from error
        return False

    def is_elsewhere(self, place: Place, reply: Any) -> bool:  # noqa: ANN401 - the wire tells
        """Whether to ask at the next address instead of taking this reply."""
        if len(self._way.places) == 1 or self._ask.link is not None:
            return False
        why = place.wire.why_elsewhere(reply)
        if not why:
            return False
        self._way.leave(place)
        return self._go_on(NotReady(f"{place.address.url}: {why}"))

    def _go_on(self, error: DelaydError) -> bool:
        """Tell whether there is patience for another attempt, and set the pause before it."""
        now_s = time.monotonic()
        self._failed_s = now_s if self._failed_s is None else self._failed_s
        if now_s - self._failed_s > self._patience_s:
            return False
        self._tried += 1
        if self._tried < len(self._way.places):
            self.pause_s = 0.0
            return True
        pause_s = next(self._pauses, None)
        if pause_s is None:
            return False
        self._outage.begin(error, self.era)
        self.pause_s, self._tried = pause_s, 0
        return True


class Failed(NamedTuple):
    """A first attempt that has failed, and the era in which it began."""

    error: Exception
    era: int


def exchanging(
    ask: Ask,
    way: Way,
    pool: Pool[Any],
    attempt: Callable[[Ask], Any],
    sleep: Callable[[float], Any],
    failed: Failed | None = None,
) -> Steps[Any]:
    """Attempt an exchange, again while that does no harm, until one does not fail.

    The first attempt of most exchanges does not fail, so it is made without all this; if it has
    `failed` after all, this goes on from there.
    """
    attempts = Attempts(ask, way, pool)
    while True:
        with attempts:
            if failed is not None:
                error, attempts.era = failed
                failed = None
                raise error
            connection, reply = yield attempt(ask)
            if not attempts.is_elsewhere(connection.place, reply):
                return connection, reply
            connection.close()
        if attempts.pause_s:
            yield sleep(attempts.pause_s)


def pauses(patience_s: float, random: Callable[[], float]) -> Iterator[float]:
    """Yield how long to wait before each further attempt, until patience is over.

    Each pause is up to twice as long as the one before, and by chance down to half of that, so that
    the clients of a daemon that comes back do not come all at once.
    """
    longest_s, spent_s = FIRST_PAUSE_S, 0.0
    while spent_s < patience_s:
        pause_s = longest_s * (0.5 + random() / 2)
        yield min(pause_s, patience_s - spent_s)
        spent_s += pause_s
        longest_s = min(2 * longest_s, LONGEST_PAUSE_S)


def reason_of(error: Exception) -> str:
    """Return in a few words why a connection failed."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, ConnectionRefusedError):  # asyncio has a sentence of its own
        return "Connection refused"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
