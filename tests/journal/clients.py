"""Who puts payloads through a journal on a disk that fails, and remembers what was promised."""

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Final

from delayd.journal.disk import Disk
from delayd.journal.journal import Journal
from tests.journal.journals import (
    CONFIGURED_BYTES,
    DIRECTORY,
    START_MS,
    append_all,
    opened,
    payloads_in,
)
from tests.rigs.disk import Piece, SimulatedDisk


class Client:
    """What was attempted, in order, and how much of it is promised to be there after a crash."""

    def __init__(self) -> None:
        self.attempted: list[bytes] = []
        self.acked: list[bytes] = []

    @contextlib.contextmanager
    def running(self, disk: Disk) -> Iterator[Journal]:
        """One run of the daemon: it finds what was promised, and stops in good order."""
        journal = Journal.open(DIRECTORY, disk=disk, segment_bytes=CONFIGURED_BYTES)
        try:
            found = [frame.payload for frame in journal.replay() if frame.payload]
            self.check_prefix(found)
            self.attempted = found
            yield journal
        finally:
            journal.close()
        self.acked = self.attempted.copy()

    def append(self, journal: Journal, payload: bytes) -> None:
        self.attempted.append(payload)
        journal.append(payload, START_MS, START_MS)

    def sync(self, journal: Journal) -> None:
        journal.sync()
        self.acked = self.attempted.copy()

    def check_prefix(self, survivors: list[bytes]) -> None:
        """The acknowledged is there, and nothing is invented."""
        assert survivors == self.attempted[: len(survivors)], "not a prefix of what was put"
        assert len(survivors) >= len(self.acked), "something acknowledged is gone"

    def survivors_on(self, disk: SimulatedDisk) -> list[bytes]:
        """What a start finds, which may be no less and no more than it should be."""
        survivors = payloads_in(disk)
        self.check_prefix(survivors)
        return survivors


WAYS: Final = ("kill", "nothing survives", "all survives", "any order")
"""How the machine stops."""


def stop(disk: SimulatedDisk, way: str, rng: random.Random) -> None:
    if way == "kill":
        disk.kill()
    elif way == "nothing survives":
        disk.crash()
    else:
        disk.crash(any_order(rng) if way == "any order" else lambda _piece: True)


def goes_on(disk: SimulatedDisk, survivors: list[bytes]) -> None:
    """See that a start finds these, and that the log can be gone on with."""
    journal, found = opened(disk)
    assert found == survivors
    append_all(journal, [b"afterwards"], sync_each=True)
    disk.crash()
    assert payloads_in(disk) == [*survivors, b"afterwards"]


def any_order(rng: random.Random) -> Callable[[Piece], bool]:
    """A power cut that some un-synced pieces survive, whichever they are."""
    share = rng.random()
    return lambda _piece: rng.random() < share
