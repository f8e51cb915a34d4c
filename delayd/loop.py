"""The event loop: timers, calls of threads, signals. It is our own until there is work for asyncio.

Without HTTP and deliveries a daemon spends its life in the turns, and needs asyncio for three small
things only, which are here. asyncio takes as long to import as all of delayd does, and clients'
test suites start a server for each test.

    run ─► sleep: turns, until woken or until the first timer ─► timers that are due ─► calls ─► …
                    ▲
    signal, thread ─┘ a byte in the pipe, whose other end `fileno` is

A signal wakes the loop by the same pipe, because Python carries its handler out only when the
interpreter goes on.

With HTTP, or when there is something to deliver, asyncio takes over (`hand_over`): calls go on to
its loop, so that the parts of the daemon are the same with either.
"""

import contextlib
import heapq
import os
import signal
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import Final, Protocol

from delayd.clock import NS_PER_S, monotonic_ns

_READ_BYTES: Final = 4_096


def end_waits_on_time() -> None:
    """Have the kernel end the waits of this thread when they are over, not up to 50 µs later.

    It may do so to wake the processor for several at once, which is no use to one loop.
    """
    with contextlib.suppress(OSError), open("/proc/self/timerslack_ns", "w") as slack:
        slack.write("1")


class Successor(Protocol):
    """The methods of asyncio's loop that are used when it takes over."""

    def add_reader(self, fd: int, callback: Callable[[], object], /) -> object:
        """Call back whenever the descriptor is readable."""

    def call_later(self, delay: float, callback: Callable[[], object], /) -> object:
        """Call back in so many seconds."""

    def call_soon_threadsafe(self, callback: Callable[[], object], /) -> object:
        """Call back from another thread."""


class MainLoop:
    """Timers, calls and signals; `elapsed_ns` reads a clock that never goes back."""

    __slots__ = (
        *("_calls", "_elapsed_ns", "_is_over", "_numbers", "_on_stop", "_pipe", "_signals"),
        *("_successor", "_timers", "is_woken"),
    )

    def __init__(self, elapsed_ns: Callable[[], int] = monotonic_ns) -> None:
        self.is_woken = False
        """There is something to call: a sleep ends after its turn. `sleep` sets it back."""
        self._elapsed_ns = elapsed_ns
        self._timers: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = count()  # so that timers of one instant are called in their order
        self._calls: deque[Callable[[], object]] = deque()
        self._pipe = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._signals: list[int] = []
        self._is_over = False
        self._successor: Successor | None = None
        self._on_stop: Callable[[], object] | None = None

    def fileno(self) -> int:
        """Return the descriptor that is readable when `run` has something to do."""
        return self._pipe[0]

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> None:
        """Have something called in so many seconds, in a turn as well as out of one."""
        self.is_woken = True
        if self._successor is not None:
            self._successor.call_later(delay_s, callback)
            return
        due_ns = self._elapsed_ns() + int(delay_s * NS_PER_S)
        heapq.heappush(self._timers, (due_ns, next(self._numbers), callback))

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        """Have something called by another thread, or in the middle of anything."""
        if self._successor is not None:
            self._successor.call_soon_threadsafe(callback)
            return
        self._calls.append(callback)
        with contextlib.suppress(BlockingIOError):  # full: it wakes up in any case
            os.write(self._pipe[1], b"\0")

    def add_signal_handler(self, number: int, callback: Callable[[], object]) -> None:
        """Have something called for each signal of this number."""
        signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        signal.signal(number, lambda *_: self.call_soon_threadsafe(callback))
        self._signals.append(number)

    def stop(self) -> None:
        """Let `run` return, or have asyncio stop if it has taken over."""
        self._is_over = True
        if self._on_stop is not None:
            self._on_stop()

    def run(self, sleep: Callable[[float | None], object]) -> None:
        """Call what is due until `stop`. In between, `sleep` for at most so many seconds."""
        while not self._is_over:
            sleep(self.wait_s())
            self.call_due()

    def wait_s(self) -> float | None:
        """Return how long until the next call; None: there is none."""
        if self._calls:
            return 0.0
        if not self._timers:
            return None
        return max(0, self._timers[0][0] - self._elapsed_ns()) / NS_PER_S

    def call_due(self) -> None:
        """Make the calls that are due. What these add comes the next time."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe[0], _READ_BYTES)
        now_ns = self._elapsed_ns()
        due = [self._calls.popleft() for _ in range(len(self._calls))]
        while self._timers and self._timers[0][0] <= now_ns:
            due.append(heapq.heappop(self._timers)[2])
        for callback in due:
            callback()

    def hand_over(self, loop: Successor, on_stop: Callable[[], object]) -> None:
        """Have asyncio make all calls from now on, those for signals and of threads included.

        `on_stop` is called by `stop`.
        """
        loop.add_reader(self.fileno(), self.call_due)
        now_ns = self._elapsed_ns()
        for due_ns, _, callback in sorted(self._timers):
            loop.call_later(max(0, due_ns - now_ns) / NS_PER_S, callback)
        self._timers.clear()
        self._successor = loop
        self._on_stop = on_stop

    def close(self) -> None:
        """Give the signals their default effects back, and close the pipe."""
        if self._signals:
            signal.set_wakeup_fd(-1)
        for number in self._signals:
            signal.signal(number, signal.SIG_DFL)
        for descriptor in self._pipe:
            os.close(descriptor)
