"""A group commit with a scripted journal, a loop cranked by hand, and a list of what happened.

    scene = Scene(SyncPolicy.ALWAYS)
    assert scene.turn("put", (scene.a, "INSERTED")) == ["append put"]
    assert scene.thread_syncs() == ["synced 1", "a gets INSERTED"]

The thread that syncs is the real one. In each of its syncs it waits at a gate until the test opens
it, so nothing here depends on who is faster.
"""

import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from delayd.commit import GroupCommit
from delayd.config import SyncPolicy
from delayd.journal.errors import JournalError, JournalFull

if TYPE_CHECKING:
    from delayd.journal.journal import Journal

HANG_S_MAX: Final = 20.0
QUICK_NS: Final = 1_000
INTERVAL_MS: Final = 50


class ScriptedJournal:
    """Notes every call. A failed sync or write fails for ever after, as the real journal's does."""

    def __init__(self, events: list[str]) -> None:
        self.events = events
        self.appended: list[bytes] = []
        self.synced = 0
        self.now_ns = 0
        self.sync_ns = QUICK_NS
        self.append_error: JournalError | None = None
        self.frame_bytes_max = 1 << 40
        """No frame longer than this finds room."""
        self.sync_error: JournalError | None = None
        self.gate = threading.Semaphore(0)
        self.sync_begun = threading.Semaphore(0)
        self._main = threading.current_thread()
        self.thread_syncs = 0

    is_behind = False

    def append(self, payload: bytes, time_ms: int, wall_ms: int) -> int:
        if self.append_error is not None:
            raise self.append_error
        if len(payload) > self.frame_bytes_max:
            raise JournalFull("directory", "no room")
        self.appended.append(payload)
        self.events.append(f"append {payload.decode()}")
        return len(self.appended)

    def sync(self) -> int:
        target = len(self.appended)
        if threading.current_thread() is not self._main:
            self.thread_syncs += 1
            self.sync_begun.release()
            assert self.gate.acquire(timeout=HANG_S_MAX)
        if self.sync_error is not None:
            self.events.append("sync fails")
            raise self.sync_error
        self.now_ns += self.sync_ns
        self.synced = target
        self.events.append(f"synced {target}")
        return target


class CrankedLoop:
    """Calls nothing back until it is told to."""

    def __init__(self) -> None:
        self.timers: list[tuple[float, Callable[[], object]]] = []
        self._soon: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        self.timers.append((delay, callback))
        return None

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        self._soon.put(callback)
        return None

    def crank(self) -> None:
        """Run one callback of another thread, when it comes."""
        self._soon.get(timeout=HANG_S_MAX)()

    def ring(self) -> None:
        """Let the timers that are set run out."""
        timers, self.timers = self.timers, []
        for _, callback in timers:
            callback()


class Sink:
    def __init__(self, name: str, events: list[str]) -> None:
        self.name = name
        self.events = events

    def send(self, data: bytes) -> None:
        self.events.append(f"{self.name} gets {data.decode()}")


class Scene:
    """A group commit with everything around it."""

    def __init__(self, policy: SyncPolicy) -> None:
        self.events: list[str] = []
        self.failures: list[JournalError] = []
        self.journal = ScriptedJournal(self.events)
        self.loop = CrankedLoop()
        self.a = Sink("a", self.events)
        self.b = Sink("b", self.events)
        self.commit = GroupCommit(
            cast("Journal", self.journal),
            policy,
            INTERVAL_MS,
            self.loop,
            self.failures.append,
        )

    def turn(
        self,
        record: str,
        *replies: tuple[Sink, str],
        must_sync: bool | None = None,
    ) -> list[str]:
        """Commit a turn; what has happened since the last look."""
        self.commit.commit(
            [record.encode()] if record else [],
            [(sink, text.encode()) for sink, text in replies],
            must_sync=bool(record) if must_sync is None else must_sync,
            time_ms=1,
            wall_ms=2,
        )
        return self.look()

    def look(self) -> list[str]:
        events, self.events[:] = list(self.events), []
        return events

    def thread_syncs(self) -> list[str]:
        """Let the sync that runs in the thread end, and its callback run."""
        assert self.journal.sync_begun.acquire(timeout=HANG_S_MAX)
        self.journal.gate.release()
        self.loop.crank()
        return self.look()
