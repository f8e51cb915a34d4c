"""Long work of requests, in slices of the loop's time with turns between them.

Everything that a request may have a thousand of is done so: read, carried out, answered. All such
requests take turns, a slice each: the loop does one slice between two turns, however many clients
send long requests.

>>> import asyncio
>>> looks = iter(range(0, 10 * HTTP_SLICE_NS, HTTP_SLICE_NS))
>>> async def work():
...     async with Slices(asyncio.Lock(), now_ns=lambda: next(looks)) as slices:
...         return slices.is_over, await slices.rest()
>>> asyncio.run(work())
(True, None)
"""

import asyncio
from collections.abc import Callable
from typing import Self

from delayd.limits import HTTP_SLICE_NS


class Slices:
    """One long request's share of the loop: a slice, then a rest while others have their turns."""

    def __init__(self, lock: asyncio.Lock, now_ns: Callable[[], int]) -> None:
        """Share the lock with all other long requests; `now_ns` measures slices."""
        self._lock = lock
        self._now_ns = now_ns
        self._ends_ns = 0
        self._is_mine = False
        """Whether this request has the lock."""

    async def __aenter__(self) -> Self:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    async def _begin(self) -> None:
        await self._lock.acquire()
        self._is_mine = True
        self._ends_ns = self._now_ns() + HTTP_SLICE_NS

    def _end(self) -> None:
        if self._is_mine:
            self._is_mine = False
            self._lock.release()

    @property
    def is_over(self) -> bool:
        """Whether this slice has lasted long enough: then `rest`."""
        return self._now_ns() >= self._ends_ns

    async def rest(self) -> None:
        """Let others have their turns."""
        self._end()
        await asyncio.sleep(0)
        await self._begin()
