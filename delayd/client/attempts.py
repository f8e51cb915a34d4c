"""The attempts at one call: at which address, how often, and for how long.

The same with and without asyncio; `connection` and `aio_connection` have the parts that wait.

>>> [round(pause_s, 2) for pause_s in pauses(1.0, lambda: 1.0)]
[0.05, 0.1, 0.2, 0.4, 0.25]
"""

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

from delayd.client.addresses import Address
from delayd.client.errors import ConnectionLost, DelaydError, NotReady, Unreachable
from delayd.client.steps import Steps

if TYPE_CHECKING:
    import ssl  # which takes as long to import as all of this: only TLS needs it

FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
CONNECT_S_MAX: Final = 5.0
"""How long one of several addresses is waited for: a machine that is off does not refuse, and a
daemon that hangs does not answer."""


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
        self.was_reached = False
        """Whether a connection was ever made."""
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

    def __init__(self, ask: Ask, way: Way) -> None:
        self.pause_s = 0.0
        """How long to wait before the next one."""
        self._ask = ask
        self._way = way
        self._place = way.place
        self._tried = 0
        """How many addresses have failed since the last pause."""
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
        if not self._way.was_reached and len(self._way.places) == 1:
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
    attempt: Callable[[Ask], Any],
    sleep: Callable[[float], Any],
    failed: Failed | None = None,
) -> Steps[Any]:
    """Attempt an exchange, again while that does no harm, until one does not fail.

    The first attempt of most exchanges does not fail, so it is made without all this; if it has
    `failed` after all, this goes on from there.
    """
    attempts = Attempts(ask, way)
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
