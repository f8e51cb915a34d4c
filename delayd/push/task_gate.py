"""Limits how many tasks continue in each pass of asyncio; first come, first served.

    256 calls begin ─► gate ─► 8 in this pass, 8 in the next …

asyncio runs all ready tasks in one pass, and between passes the daemon's clients have a turn. If
256 tasks began in one pass, all clients would wait for it, so they pass a gate first. With few
tasks, one in so many waits for a pass.
"""

import asyncio
from collections import deque
from typing import Final, final


@final
class Gate:
    """A gate for tasks of the loop that is running."""

    def __init__(self, per_pass: int) -> None:
        self._per_pass: Final = per_pass
        self._left = per_pass
        """How many need not wait; reset after a pass in which one did."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def passed(self) -> None:
        """Wait for this task's turn."""
        if self._left:
            self._left -= 1
            return
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._open, loop)
        place = loop.create_future()
        self._waiting.append(place)
        await place

    def _open(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let the next tasks continue, in the next pass."""
        left = self._per_pass
        while left and self._waiting:
            place = self._waiting.popleft()
            if not place.done():  # or it was cancelled
                place.set_result(None)
                left -= 1
        if self._waiting:
            loop.call_soon(self._open, loop)
        else:
            self._left = left
