"""Who puts payloads through a journal on a disk that fails, and remembers what was promised."""

import random
from collections.abc import Callable
from typing import Final

from delayd.journal.disk import Disk
from delayd.journal.errors import SnapshotFailed
from delayd.journal.journal import Journal
from delayd.journal.snapshot import SnapshotWriter
from tests.journal.journals import START_MS, append_all, contents_of, opened, payloads_in
from tests.journal.journals import take_snapshot as snapshot_of
from tests.rigs.disk import Piece, SimulatedDisk

LIVE_BYTES: Final = 20_000
"""So much is live that the bound on disk use demands nothing."""


class Client:
    """What was attempted, in order, and how much of it is promised to be there after a crash.

    It syncs after every third payload. Where bytes are live it takes snapshots, each of all that
    was put, and goes on putting while one is written.
    """

    def __init__(self, live_bytes: int = 0) -> None:
        self.live_bytes = live_bytes
        self.attempted: list[bytes] = []
        self.acked: list[bytes] = []
        self._writer: SnapshotWriter | None = None

    def start(self, disk: Disk) -> Journal:
        """Begin a run of the daemon, which finds what was promised."""
        self.journal, found = opened(disk)
        self._check_prefix(found)
        self.attempted = found
        return self.journal

    def put(self, payloads: list[bytes]) -> None:
        for number, payload in enumerate(payloads):
            self.attempted.append(payload)
            self.journal.append(payload, START_MS, START_MS)
            if number % 3 == 0:
                self.journal.sync()
                self.acked = self.attempted.copy()
            if self.live_bytes and number % 4 == 1:
                self._begin_snapshot()
            elif self._writer is not None and number % 4 == 3:
                self._finish_snapshot(self._writer)

    def use(self, disk: Disk, payloads: list[bytes]) -> None:
        """Put these in a run of the daemon that stops in good order."""
        self._writer = None
        self.start(disk)
        try:
            self.put(payloads)
        finally:
            self.journal.close()
        self.acked = self.attempted.copy()

    def work(self, disk: Disk, payloads: list[bytes]) -> None:
        """Put these in three runs."""
        for run in (payloads[:12], payloads[12:13], payloads[13:]):
            self.use(disk, run)

    def _begin_snapshot(self) -> None:
        self.journal.snapshot_is_due(self.live_bytes)
        last = self.journal.appended_sequence
        self._writer = self.journal.begin_snapshot(last, START_MS, START_MS)
        self._covered = len(self.attempted)
        try:
            for payload in self.attempted:
                self._writer.write(payload)
        except SnapshotFailed:
            self._writer = None

    def _finish_snapshot(self, writer: SnapshotWriter) -> None:
        self._writer = None
        try:
            writer.finish(self._covered)
        except SnapshotFailed:
            assert writer.is_over

    def _check_prefix(self, survivors: list[bytes]) -> None:
        """The acknowledged is there, and nothing is invented."""
        assert survivors == self.attempted[: len(survivors)], "not a prefix of what was put"
        assert len(survivors) >= len(self.acked), "something acknowledged is gone"

    def check(self, disk: SimulatedDisk) -> None:
        """See that a start finds no less and no more than it should, and that all can go on."""
        survivors = payloads_in(disk)
        self._check_prefix(survivors)
        snapshots = [name for name in contents_of(disk) if "snap" in name]
        journal, again = opened(disk)
        assert again == survivors
        assert [name for name in contents_of(disk) if "snap" in name] == snapshots
        append_all(journal, [b"afterwards"], sync_each=True)
        journal.snapshot_is_due(LIVE_BYTES)
        snapshot_of(journal, [*survivors, b"afterwards"])
        disk.crash()
        assert payloads_in(disk) == [*survivors, b"afterwards"]


WAYS: Final = ("kill", "nothing survives", "all survives", "any order", "all but the rename")
"""How the machine stops."""


def stop(disk: SimulatedDisk, way: str, rng: random.Random) -> None:
    if way == "kill":
        disk.kill()
    elif way == "nothing survives":
        disk.crash()
    elif way == "any order":
        disk.crash(any_order(rng))
    else:
        # A rename that was not synced is lost, and the removals after it are not.
        lost = ("names", 1) if way == "all but the rename" else None
        disk.crash(lambda piece: (piece.kind, piece.offset) != lost)


def any_order(rng: random.Random) -> Callable[[Piece], bool]:
    """A power cut that some un-synced pieces survive, whichever they are."""
    share = rng.random()
    return lambda _piece: rng.random() < share
