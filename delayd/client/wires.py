"""What connections with and without asyncio share: what is spoken, and when to try again.

>>> [round(pause_s, 2) for pause_s in pauses(1.0, lambda: 1.0)]
[0.05, 0.1, 0.2, 0.4, 0.25]
"""

import os
import select
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Protocol, TypeVar

from delayd.client.errors import ConnectionLost, Unreachable

T = TypeVar("T")
FIRST_PAUSE_S: Final = 0.05
LONGEST_PAUSE_S: Final = 5.0
IDLE_CONNECTIONS_MAX: Final = 16
"""So many are kept for the next calls; calls at the same time may have more."""


class Ask(Protocol):
    """What an operation asks for."""

    @property
    def wait_s(self) -> float:
        """How long the daemon may take by intent, besides the time of an answer."""

    @property
    def may_repeat(self) -> bool:
        """Whether doing it twice is as good as doing it once."""

    @property
    def link(self) -> Any:  # noqa: ANN401 - a connection of either kind
        """On which connection; None: on any."""

    @property
    def takes_jobs(self) -> bool:
        """Whether it may take long, so that no job in hand should need the same connection."""


class Runs(Protocol):
    """What carries out operations: connections, or a double of a daemon."""

    def run(self, steps: Generator[Any, Any, T]) -> T:
        """Carry out an operation."""

    def close(self) -> None:
        """Let go of what is open."""


class AsyncRuns(Protocol):
    """The same with asyncio."""

    async def run(self, steps: Generator[Any, Any, T]) -> T:
        """Carry out an operation."""

    async def close(self) -> None:
        """Let go of what is open."""


class Reader(Protocol):
    """Reads one reply."""

    def feed(self, data: bytes) -> Any:  # noqa: ANN401 - a reply of what is spoken
        """Take what was received, nothing for the end; return the reply once it is whole."""


class Wire(Protocol):
    """What is spoken."""

    def encode(self, ask: Any) -> bytes:  # noqa: ANN401 - an `Ask` of what is spoken
        """Write what is asked."""

    def reader(self, ask: Any, link: Any) -> Reader:  # noqa: ANN401 - the same, and a connection
        """Return what reads the reply that comes over this connection."""

    def before(self, ask: Any, link: Any) -> Ask | None:  # noqa: ANN401 - the same
        """Return what must be said on this connection before; None: nothing."""

    def check_before(self, ask: Any, said: Any, reply: Any) -> None:  # noqa: ANN401 - the same
        """Note what was said. Raises what the daemon refuses of it."""


def drawn() -> float:
    """Return a number from 0 up to 1 by chance; `random` takes as long to import as json."""
    return int.from_bytes(os.urandom(4)) / (1 << 32)


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


def may_ask_again(ask: Ask, error: Unreachable | ConnectionLost) -> bool:
    """Tell whether asking again does no harm: it was not done, or doing it twice is as good."""
    if ask.link is not None:
        return False  # what that connection held is gone with it
    return ask.may_repeat or not getattr(error, "may_have_happened", False)


def is_silent(descriptor: int) -> bool:
    """Tell whether nothing has come over a socket, its end included: then it can be used again."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return not poll.poll(0)
