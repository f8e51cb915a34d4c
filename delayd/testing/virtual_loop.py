"""An event loop in which nothing waits: for a daemon in memory, beside the loop of its user.

    loop = VirtualLoop(turn)
    with loop.running():
        api = Api(...)               # whatever asks for the running loop
    loop.run(protocol.data_received, data)

`run` calls a function, and then all callbacks that follow from it, until the loop would have to
wait. The loop has no descriptors, and its time moves only by `skip`. It may run inside a task of
another loop, which is not the running loop meanwhile.

>>> loop, calls = VirtualLoop(lambda: False), []
>>> _ = loop.call_later(60, calls.append, "late")
>>> loop.run(calls.append, "soon"); calls
['soon']
>>> loop.skip(); loop.run(bool); calls
['soon', 'late']
"""

import asyncio
import contextlib
import contextvars
import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Entry = tuple[asyncio.Handle, contextvars.Context, Callable[..., object], tuple[Any, ...]]


class VirtualLoop(asyncio.AbstractEventLoop):
    """A loop that runs until there is nothing to do, and never sleeps."""

    def __init__(self, turn: Callable[[], bool]) -> None:
        """`turn` is called whenever there is nothing else to do; tells whether it did anything."""
        self._turn = turn
        self._ready: deque[Entry] = deque()
        self._timers: list[tuple[float, int, Entry]] = []
        self._numbers: Final = count()
        self._now_s = 0.0

    # --- Called by its owner ---------------------------------------------------------------------

    def run(self, callback: Callable[..., object], *args: Any) -> None:  # noqa: ANN401 - any
        """Call this, and all callbacks that follow from it."""
        with self.running():
            callback(*args)
            while self._ready or self._turn():
                while self._ready:
                    handle, context, call, with_args = self._ready.popleft()
                    if not handle.cancelled():
                        context.run(call, *with_args)

    def skip(self) -> None:
        """Advance the time to the next timer, for `run`. Raises IndexError if there is none."""
        when_s, _, entry = heapq.heappop(self._timers)
        self._now_s = max(self._now_s, when_s)
        self._ready.append(entry)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Be the running loop."""
        before = asyncio._get_running_loop()  # noqa: SLF001 - documented for loops
        task = None if before is None else asyncio.current_task(before)
        if before is not None and task is not None:
            asyncio._leave_task(before, task)  # noqa: SLF001 - the same
        asyncio._set_running_loop(self)  # noqa: SLF001 - the same
        try:
            yield
        finally:
            asyncio._set_running_loop(before)  # noqa: SLF001 - the same
            if before is not None and task is not None:
                asyncio._enter_task(before, task)  # noqa: SLF001 - the same

    # --- Called by asyncio -----------------------------------------------------------------------

    def time(self) -> float:
        """Return how many seconds were skipped."""
        return self._now_s

    def call_soon(
        self,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        """Call this next."""
        entry = self._entry(asyncio.Handle(callback, args, self), context, callback, args)
        self._ready.append(entry)
        return entry[0]

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call this when so much was skipped."""
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call this at that time."""
        handle = asyncio.TimerHandle(when, callback, args, self)
        entry = self._entry(handle, context, callback, args)
        heapq.heappush(self._timers, (when, next(self._numbers), entry))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, T], **how: Any) -> asyncio.Task[T]:  # type: ignore[override]  # noqa: ANN401 - as asyncio's
        """Return a task of this loop."""
        return asyncio.Task(coro, loop=self, **how)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Raise an exception that no callback has handled: it is a fault."""
        raise context.get("exception") or RuntimeError(context["message"])

    def get_debug(self) -> bool:
        """Return False: there is no debug mode."""
        return False

    def is_running(self) -> bool:
        """Tell whether it runs now."""
        return asyncio._get_running_loop() is self  # noqa: SLF001 - documented for loops

    def is_closed(self) -> bool:
        """Return False: there is nothing to close."""
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing: `run` skips cancelled timers."""

    @staticmethod
    def _entry(
        handle: Any,  # noqa: ANN401 - either kind
        context: contextvars.Context | None,
        callback: Callable[..., object],
        args: tuple[Any, ...],
    ) -> Entry:
        return handle, context or contextvars.copy_context(), callback, args
