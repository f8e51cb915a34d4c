"""Commands that show what changes: a thread asks the daemon, and keys are read meanwhile.

    with asked_again(client, fetch, every_s) as asking:
        while key_within(LOOK_S) != QUIT:
            draw(asking.seen, asking.trouble(now_s()))

So the screen can say that the daemon does not answer, and `q` ends the command then too.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from delayd.cli.tables import duration_shown
from delayd.client.errors import ConnectionLost, DelaydError, Unreachable
from delayd.client.signals import handled
from delayd.clock import monotonic_ns
from delayd.text import visible

if TYPE_CHECKING:
    from delayd.client.sync import Client

Seen = TypeVar("Seen")
QUIT: Final = "q"
ASK_S: Final = 1.0
"""The daemon is asked so often, if only whether it is there: it may be gone for 2 s unsaid."""
SILENT_S: Final = 0.7
"""A question without an answer for so long is told."""
LOOK_S: Final = 0.2
"""How often the screen looks whether there is an answer."""


class Asking(Generic[Seen]):
    """What the daemon has answered, and whether it does.

    >>> asking = Asking("a picture", now_s=10.0)
    >>> asking.begin(11.0); asking.trouble(11.2), asking.trouble(12.0)
    ('', 'the daemon has not answered for 2 s; what is shown is as old')
    >>> asking.end(12.5, why="Connection refused"); asking.trouble(15.0)
    'the daemon has not answered for 5 s (Connection refused); what is shown is as old'
    >>> asking.begin(16.0); asking.end(16.1, "a new one"); asking.trouble(16.2)
    ''
    """

    def __init__(self, seen: Seen, now_s: float) -> None:
        self.seen = seen
        """The last picture."""
        self._heard_s = now_s
        self._asked_s: float | None = None
        """When the question was sent that has no answer yet."""
        self._why = ""
        self.refusal: DelaydError | None = None
        """Why it is asked no more: the same would be answered again."""

    def begin(self, now_s: float) -> None:
        """Note that it is asked."""
        self._asked_s = now_s

    def end(self, now_s: float, seen: Seen | None = None, why: str = "") -> None:
        """Note what it answered: a picture, that it is there, or `why` it did not."""
        self._asked_s = None
        self._why = why
        if not why:
            self._heard_s = now_s
        if seen is not None:
            self.seen = seen

    def trouble(self, now_s: float) -> str:
        """Return that it does not answer; empty: it does."""
        asked_s = self._asked_s
        if not (self._why or (asked_s is not None and now_s - asked_s > SILENT_S)):
            return ""
        why = f" ({self._why})" if self._why else ""
        silent = duration_shown(int(now_s - self._heard_s))
        return f"the daemon has not answered for {silent}{why}; what is shown is as old"


def ask_again_and_again(
    client: "Client",
    fetch: Callable[[], Seen],
    asking: Asking[Seen],
    every_s: float,
    is_over: threading.Event,
) -> None:
    """Ask for a picture every so often, and between them whether the daemon is there."""
    wait_s = 0.0
    while not is_over.wait(min(every_s, ASK_S)):
        wait_s += min(every_s, ASK_S)
        asking.begin(now_s())
        seen: Seen | None = None
        why = ""
        try:
            if wait_s >= every_s:
                seen, wait_s = fetch(), 0.0
            else:
                client.health()
        except (Unreachable, ConnectionLost) as error:
            why = visible(error.reason if isinstance(error, Unreachable) else str(error))
            wait_s = every_s  # a picture as soon as it is back
        except DelaydError as error:
            asking.refusal = error
            return
        asking.end(now_s(), seen, why)


def now_s() -> float:
    """Return the seconds of a clock that nobody sets."""
    return monotonic_ns() / 1e9


@contextmanager
def asked_again(
    client: "Client", fetch: Callable[[], Seen], every_s: float
) -> Iterator[Asking[Seen]]:
    """Have a thread ask every so often, while keys are read; Ctrl-C and SIGTERM end it as `q` does.

    The client has no patience, so that an outage is told with its reason.
    """
    asking, is_over = Asking(fetch(), now_s()), threading.Event()
    asks = (client, fetch, asking, every_s, is_over)
    thread = threading.Thread(target=ask_again_and_again, args=asks, daemon=True)
    thread.start()
    interrupts = handled(signal.default_int_handler, signal.SIGTERM)
    with suppress(KeyboardInterrupt), interrupts, keys_one_by_one():
        yield asking
    is_over.set()
    thread.join(LOOK_S)


@contextmanager
def keys_one_by_one() -> Iterator[None]:
    """Read keys without the return key, and do not show them."""
    import termios
    import tty

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def key_within(wait_s: float) -> str:
    """Return the key that was pressed in this time; empty if none was."""
    if not select.select([sys.stdin], [], [], wait_s)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 1).decode(errors="replace") or QUIT
