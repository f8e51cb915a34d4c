"""What other clients of a line server see while it is busy: a probe, and one that looks on.

The probe asks something cheap, one question at a time, and keeps only the longest round trip. That
is the one figure which a client that waits cannot get wrong: while it waits it asks nothing, so its
percentiles would leave out what a stall did to all the questions that were not asked, but the
longest wait is the longest.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from benchmarks.lateness.open_loop import TURN_S, Loop, say_nothing
from benchmarks.line import is_whole

PROBE: Final = b"list-tube-used\r\n"
"""Any server answers it from memory: its round trip is how long the loop was held."""


CHURNED: Final = 16
CHURNED_BYTES: Final = 60_000
CHURNED_PUT: Final = b"put 0 3600 600 %d\r\n%b\r\n" % (CHURNED_BYTES, b"x" * CHURNED_BYTES)
INSERTED: Final = re.compile(rb"INSERTED (\d+)\r\n")


def snapshots_in(data: Path) -> set[str]:
    """Return the names of the snapshots of a data directory that are whole."""
    return {path.name for path in data.glob("snapshot-*.snap")}


class Probe:
    """Asks something cheap once a millisecond, one at a time; keeps the longest round trip."""

    def __init__(self, loop: Loop, port: int) -> None:
        self.longest_s = 0.0
        self._clock = loop.clock
        self._asked: float | None = None
        self._next = 0.0
        self._wire = loop.connect(port, say_nothing, self._answered)
        loop.each_turn(self._ask)

    def held_s(self) -> float:
        """Return the longest round trip, that of the question under way included."""
        waiting_s = 0.0 if self._asked is None else self._clock() - self._asked
        return max(self.longest_s, waiting_s)

    def _ask(self, now: float) -> None:
        if self._asked is None and now >= self._next:
            self._next = now + TURN_S
            self._asked = self._clock()
            self._wire.send(PROBE)

    def _answered(self, _: bytes) -> None:
        self.longest_s = self.held_s()
        self._asked = None


class Watcher:
    """Asks for the statistics of a tube from time to time, until they say what one waits for."""

    def __init__(
        self,
        loop: Loop,
        port: int,
        tube: bytes,
        *,
        pause_s: float,
        satisfied: Callable[[bytes], bool],
    ) -> None:
        self.satisfied_at: float | None = None
        self._clock = loop.clock
        self._question = b"stats-tube %b\r\n" % tube
        self._pause_s = pause_s
        self._satisfied = satisfied
        self._next = 0.0
        self._reply = b""
        self._wire = loop.connect(port, say_nothing, self._answered)
        loop.each_turn(self._ask)

    def _ask(self, now: float) -> None:
        if self.satisfied_at is None and now >= self._next:
            self._next = float("inf")
            self._wire.send(self._question)

    def _answered(self, data: bytes) -> None:
        self._reply += data
        if not is_whole(self._reply):
            return
        now = self._clock()
        if self._satisfied(self._reply):
            self.satisfied_at = now
        self._reply = b""
        self._next = now + self._pause_s


class Churn:
    """Puts and deletes long jobs, so that the log grows and a snapshot comes to be due."""

    def __init__(self, loop: Loop, port: int) -> None:
        self._goes_on = True
        self.is_done = False
        """Whether it has deleted all that it put."""
        self._reply = b""
        self._wire = loop.connect(port, say_nothing, self._answered)
        self._wire.send(CHURNED_PUT * CHURNED)

    def stop(self) -> None:
        """Delete what is there, and put no more."""
        self._goes_on = False

    def _answered(self, data: bytes) -> None:
        self._reply += data
        if self._reply.count(b"\n") < CHURNED:
            return
        reply, self._reply = self._reply, b""
        if inserted := INSERTED.findall(reply):
            self._wire.send(b"".join(b"delete %b\r\n" % job_id for job_id in inserted))
        elif self._goes_on:
            self._wire.send(CHURNED_PUT * CHURNED)
        else:
            self.is_done = True


class SnapshotSpan:
    """Looks every millisecond whether a snapshot is being written; notes when the first was.

    `begins` is called when it begins. One that is quicker than a look has a span of nothing.
    """

    def __init__(self, loop: Loop, data: Path, begins: Callable[[], None]) -> None:
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self._data = data
        self._begins = begins
        self._before = snapshots_in(data)
        loop.each_turn(self._look)

    def _look(self, now: float) -> None:
        if self.ended_at is not None:
            return
        is_on = any(self._data.glob("snapshot-*.new"))
        if self.began_at is None:
            if not is_on and snapshots_in(self._data) == self._before:
                return
            self.began_at = now
            self._begins()
        if not is_on:
            self.ended_at = now
