"""Long work of requests, in slices of the loop's time with turns between them.

Work on up to a thousand items of a request is done so: reading, carrying out, answering. All such
requests share one slice between two turns, however many there are: a request that comes when the
slice is over waits for the next. Requests with long work go one after the other, and between two of
them those with short work.

>>> import asyncio
>>> looks = iter(range(0, 10 * HTTP_SLICE_NS, HTTP_SLICE_NS))
>>> async def work():
...     async with Slices(LoopTime(now_ns=lambda: next(looks))) as slices:
...         return slices.is_over, await slices.rest()
>>> asyncio.run(work())
(True, None)
"""

import asyncio
from collections.abc import Callable
from typing import Final, Self

from delayd.limits import HTTP_SLICE_NS


class LoopTime:
    """The time between two turns that all requests share."""

    __slots__ = ("_ends_ns", "few_waiting", "has_gone_to_many", "lock", "now_ns")

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.now_ns = now_ns
        self.lock: Final = asyncio.Lock()
        """Held by the request with long work that has the slice, or will have the next."""
        self.few_waiting: dict[Slices, None] = {}
        """Requests with short work that wait for the next slice, in the order of their arrival."""
        self.has_gone_to_many = False
        """A request with long work was the last to begin: short ones go first now."""
        self._ends_ns: int | None = None
        """When the current slice is over; None: none has begun since the last turn."""

    @property
    def is_over(self) -> bool:
        """Whether the current slice is over; begins one if there is none."""
        now_ns = self.now_ns()
        if self._ends_ns is None:
            self._ends_ns = now_ns + HTTP_SLICE_NS
            # Called first after the next turn.
            asyncio.get_running_loop().call_soon(self._renew)
        return now_ns >= self._ends_ns

    def _renew(self) -> None:
        self._ends_ns = None


class Slices:
    """One request's share of the loop: a slice, then a rest while others have their turns."""

    __slots__ = ("_is_few", "_is_mine", "_time")

    def __init__(self, time: LoopTime, *, is_few: bool = False) -> None:
        """Share this time with all others; `is_few`: its work is short, and waits for no lock."""
        self._time = time
        self._is_few = is_few
        self._is_mine = False
        """Whether this request has the lock."""

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    async def _begin(self) -> None:
        time = self._time
        if self._is_few:
            await self._begin_few(time.few_waiting)
            time.has_gone_to_many = False
            return
        await time.lock.acquire()
        self._is_mine = True
        try:
            while (time.few_waiting and time.has_gone_to_many) or time.is_over:  # noqa: ASYNC110
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self._end()
            raise
        time.has_gone_to_many = True

    async def _begin_few(self, waiting: "dict[Slices, None]") -> None:
        """Wait for a slice, after requests that wait already."""
        if not waiting and not self._time.is_over:
            return
        waiting[self] = None
        try:
            while next(iter(waiting)) is not self or self._time.is_over:  # noqa: ASYNC110 (no event)
                await asyncio.sleep(0)
        finally:
            del waiting[self]

    def _end(self) -> None:
        if self._is_mine:
            self._is_mine = False
            self._time.lock.release()

    @property
    def is_over(self) -> bool:
        """Whether this slice is over: then `rest`."""
        return self._time.is_over

    async def rest_if_over(self) -> None:
        """Let other clients have their turns if this slice is over."""
        if self._time.is_over:
            await self.rest()

    async def rest(self) -> None:
        """Let other clients have their turns."""
        self._end()
        await self._begin()
