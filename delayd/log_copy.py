"""A log is copied: from a directory to a database, or back, or between two of a kind.

    source ─► frames ─► engine ─► its state as records ─► target, unfinished ─► read again
                          └────────────── compared, byte for byte ◄────────────────┘
                                              └─► counts

What is copied is the state after the last frame, in the records that a snapshot has: jobs with
their ids, keys, attempts and due times, dead letters, policies and pauses. The log keeps its
identity, so that receivers of pushes see the ids that they know. Nothing changes at the source, and
nobody may use it meanwhile; of the target there is all or nothing.

Delayd time goes on from the source's last frame. The two places may have different wall clocks: the
difference is taken at this moment, and what is in doubt makes jobs late and not early.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing
from typing import NamedTuple, Protocol
from zlib import crc32

from delayd.clock import NS_PER_MS
from delayd.core.engine import Engine
from delayd.core.log_records import UnknownRecord
from delayd.core.replay import Replay
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.times import PlayedMs
from delayd.journal.snapshot import SnapshotHeader
from delayd.limits import SNAPSHOT_PAYLOAD_BYTES, SNAPSHOT_SLICE_BYTES, SNAPSHOT_SLICE_JOBS
from delayd.log import LogError, LogFrame


class CopySource(Protocol):
    """A log that is read, and not owned by anybody meanwhile."""

    @property
    def shown(self) -> str:
        """Where it is, for people."""

    @property
    def identity(self) -> bytes:
        """The log's; known when its frames were read."""

    @property
    def wall_ahead_ns(self) -> tuple[int, int]:
        """How far its wall clock is ahead of this machine's: at least, and at most."""

    def frames(self) -> Iterator[LogFrame]:
        """Yield all frames. Raises LogError, also if a daemon owns the log."""

    def confirm(self) -> None:
        """See that no daemon has owned the log since. Raises LogError."""

    def close(self) -> None:
        """Let daemons use it again."""


class CopyTarget(Protocol):
    """A place without a log."""

    @property
    def shown(self) -> str:
        """Where it is, for people."""

    @property
    def wall_ahead_ns(self) -> tuple[int, int]:
        """How far its wall clock is ahead of this machine's: at least, and at most."""

    def filled(
        self, header: SnapshotHeader, payloads: Iterator[bytes], jobs: Callable[[], int]
    ) -> AbstractContextManager[Iterator[LogFrame]]:
        """Write records, and give out what is read again; it counts when the block has ended.

        `header` has the last frame of the source and its times, and the identity.
        `jobs` tells how many there were, once all records are written. Raises LogError.
        """


class Copied(NamedTuple):
    """What there is at the target now."""

    jobs: int
    sequence: int


def copy_log(source: CopySource, target: CopyTarget) -> Copied:
    """Copy the log, and compare. Raises LogError; then there is nothing at the target."""
    with closing(source):
        return _copied(source, target)


def _copied(source: CopySource, target: CopyTarget) -> Copied:
    engine, last = _played(source.frames(), source.shown)
    ahead_ns = target.wall_ahead_ns[1] - source.wall_ahead_ns[0]
    wall_ms = last.wall_ms - (-ahead_ns // NS_PER_MS)
    header = SnapshotHeader(source.identity, last.sequence, last.time_ms, wall_ms)
    written = _State(engine)
    with target.filled(header, written.payloads(), lambda: written.jobs) as frames:
        again = _State(_played(frames, target.shown)[0])
        for _ in again.payloads():
            pass
        if (again.jobs, again.checksum) != (written.jobs, written.checksum):
            raise LogError(f"{target.shown} does not hold what was written to it")
        source.confirm()
    return Copied(written.jobs, last.sequence)


class _State:
    """The state of an engine, as records."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.jobs = 0
        """How many have been yielded."""
        self.checksum = 0

    def payloads(self) -> Iterator[bytes]:
        """Yield the records, in pieces of about the length of a snapshot's."""
        copy = SnapshotCopy(self._engine.store)
        pieces: list[bytes] = []
        gathered_bytes = 0
        is_over = False
        while not is_over:
            piece = copy.take(SNAPSHOT_SLICE_JOBS, SNAPSHOT_SLICE_BYTES)
            is_over, self.jobs = copy.is_over, copy.jobs
            self.checksum = crc32(piece, self.checksum)
            pieces.append(piece)
            gathered_bytes += len(piece)
            if is_over or gathered_bytes + SNAPSHOT_SLICE_BYTES > SNAPSHOT_PAYLOAD_BYTES:
                yield b"".join(pieces)
                pieces, gathered_bytes = [], 0


def _played(frames: Iterator[LogFrame], place: str) -> tuple[Engine, LogFrame]:
    """Return the engine to which these frames lead, and the last of them."""
    replay: Replay | None = None
    last: LogFrame | None = None
    for frame in frames:
        if replay is None:
            replay = Replay(Engine(start_ms=frame.time_ms))
        try:
            replay.play(frame.payload)
        except UnknownRecord as error:
            raise LogError(f"{place}: frame {frame.sequence} holds {error}") from error
        last = frame
    if replay is None or last is None:
        raise LogError(f"there is no log in {place}")
    replay.finish(PlayedMs(last.time_ms))
    return replay.engine, last
