"""A log in memory: the second one, which shows what a log has to do, and what it need not.

    place = Place()                      # outlives the log, as a disk outlives a process
    log = MemoryLog(place)
    for frame in log.follow(): ...       # what is durable there
    log.take_over()
    log.serve(loop, user)
    log.append([b"records"], time_ms, wall_ms)
    log.settle(in_turn=True)             # ... user.settled(1, took_ns)

Nothing is durable before `settle`, and what is not is gone with the log. The next appends end as
the test says (`ends`), in each of the five ways; `tell` lets one end that was unknown. A place that
`is_owned` is followed until it is not; who takes it over then fences the owner before.

    disk = HeldDisk(loop)                # a group commit over such a log, which a test may stop
    disk.hold(); disk.release()          # nothing becomes durable; all of it does
"""

import enum
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from delayd.commit import GroupCommit
from delayd.config import SyncPolicy
from delayd.exits import Exit
from delayd.log import LogError, LogFinding, LogOwnership, LogSize, LogUser, Loop, OnSpaceChange

STEP_BYTES = 1 << 16


class End(enum.Enum):
    """How an append ends, or the settle of it."""

    DURABLE = "durable"
    ELSEWHERE = "elsewhere"  # durable as well, when `tell` is called
    FULL = "full"
    FAILED = "failed"
    FENCED = "fenced"
    UNKNOWN = "unknown"  # until `tell` says what came of it


class Full(LogError):
    may_be_tried_again = True


class Broken(LogError):
    pass


class Fenced(LogError):
    exit_code = Exit.FENCED


ERRORS = {End.FULL: Full("full"), End.FAILED: Broken("failed"), End.FENCED: Fenced("fenced")}


class MemoryFrame(NamedTuple):
    sequence: int
    time_ms: int
    wall_ms: int
    payload: bytes


class Place:
    """What is durable: frames, and the newest snapshot with the number of the frame it is after."""

    def __init__(self) -> None:
        self.frames: list[MemoryFrame] = []
        self.snapshot: list[MemoryFrame] = []
        self.owners = 0
        self.is_owned = False


class MemorySpace:
    """Boundless until the test says otherwise."""

    def __init__(self) -> None:
        self.free_bytes = 1 << 40
        self.is_stale = False
        self.trouble = ""
        self.on_change: OnSpaceChange = bool

    def beyond(self, set_aside_bytes: int) -> int:
        self.is_stale = False
        return self.free_bytes - set_aside_bytes

    def more(self, missing_bytes: int, body_bytes: int, places: int) -> int:
        del missing_bytes, body_bytes, places
        return -1

    def figures(self) -> dict[str, str | int]:
        return {}


class MemorySnapshot:
    def __init__(self, place: Place, sequence: int, time_ms: int, wall_ms: int) -> None:
        self._place = place
        self._pieces: list[bytes] = []
        self.sequence = sequence
        self.time_ms = time_ms
        self._wall_ms = wall_ms
        self.is_wanted = True
        self.is_over = False

    def write(self, payload: bytes) -> None:
        assert self.is_wanted
        self._pieces.append(payload)

    def finish(self, jobs: int) -> "MemorySnapshot":
        del jobs
        frame = (self.sequence, self.time_ms, self._wall_ms)
        self._place.snapshot = [MemoryFrame(*frame, piece) for piece in self._pieces]
        self._place.frames = [each for each in self._place.frames if each.sequence > self.sequence]
        self.is_over = True
        return self

    def abandon(self) -> None:
        self.is_over = True


class MemoryLog:
    """A log that is a list; see `delayd.log.DurableLog` for what each method promises."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.volatile: list[MemoryFrame] = []
        """What is not durable."""
        self._user: LogUser | None = None
        self.ends: deque[End] = deque()
        """Of the next appends: the append meets FULL, its settle the others; then DURABLE."""
        self.is_held = False
        """Each settle goes on until it is told how it ends."""
        self.space = MemorySpace()
        self.findings: list[LogFinding] = []
        self.identity = b"memory".ljust(16)
        self.followed_percent = 99
        self.appended_sequence = self.appended_bytes = self.grown_bytes = 0
        self.wall_offset_ms = 0
        self.is_settling = False
        self.is_whole = True
        self.is_shared = False
        self.owner = ""
        self.ownership: LogOwnership | None = None
        self.keeper = "disk"
        self.missing = ""
        self.wall_ns: Callable[[], int] | None = None
        self._followed_owners = 0
        self.is_behind = False
        self.settling_ms = 0
        self.last_in_turn_ns = (0, 0)
        self.step_bytes = STEP_BYTES
        self.free_bytes = 1 << 40
        self.snapshot_ms: int | None = None
        self._sink: MemorySnapshot | None = None
        self._reach = 0  # what the settle that goes on covers
        self._failure: LogError | None = None
        self.is_closed = False

    # --- A start ---------------------------------------------------------------------------------

    def follow(self) -> Iterator[MemoryFrame | None]:
        while True:
            owners = self._place.owners
            frames = self._place.frames
            if not self.appended_sequence:
                frames = [*self._place.snapshot, *frames]
            for frame in [each for each in frames if each.sequence > self.appended_sequence]:
                self.wall_offset_ms = frame.wall_ms - frame.time_ms
                yield frame
            self.appended_sequence = max([self.appended_sequence, *(f.sequence for f in frames)])
            if not self._place.is_owned:
                self._followed_owners = owners
                return
            self.owner = "elsewhere"
            yield None

    def take_over(self) -> bool:
        if self._place.owners != self._followed_owners:
            return False
        self._place.owners += 1
        self._place.is_owned = True
        self._epoch = self._place.owners
        return True

    def unreadable(self, why: str) -> LogError:
        return Broken(why)

    def serve(self, loop: Loop, user: LogUser) -> None:
        del loop
        self._user = user

    def watch_standbys(self) -> None:
        """There are none."""

    # --- Appending and settling ------------------------------------------------------------------

    def append(self, records: Sequence[bytes], time_ms: int, wall_ms: int) -> int:
        if self._failure is not None:
            raise self._failure
        if self.ends and self.ends[0] is End.FULL:
            raise ERRORS[self.ends.popleft()]
        payload = b"".join(records)
        self.appended_sequence += 1
        self.appended_bytes += len(payload)
        self.grown_bytes += len(payload)
        self.wall_offset_ms = wall_ms - time_ms
        self.volatile.append(MemoryFrame(self.appended_sequence, time_ms, wall_ms, payload))
        return self.appended_sequence

    def settle(self, *, in_turn: bool) -> None:
        self._reach = self.appended_sequence
        end = self.ends.popleft() if self.ends else End.DURABLE
        if self._place.owners != self._epoch:
            end = End.FENCED
        self.is_settling = True
        if end in ERRORS:
            self._fail(ERRORS[end])
        elif end is End.DURABLE and in_turn and not self.is_held:
            self.tell(End.DURABLE)

    def tell(self, end: End = End.DURABLE) -> None:
        """Let the settle end that goes on; FENCED: what it was about is not there."""
        assert self._user is not None
        assert self.is_settling
        self.is_settling = False
        if end in ERRORS:
            self._fail(ERRORS[end])
            return
        self._keep()
        self._user.settled(self._reach, 1_000)

    def _keep(self) -> None:
        kept = [frame for frame in self.volatile if frame.sequence <= self._reach]
        self._place.frames += kept
        del self.volatile[: len(kept)]

    def _fail(self, error: LogError) -> None:
        assert self._user is not None
        self._failure = error
        self._user.failed(error)

    def in_turn_ns(self, now_ns: int) -> int:
        del now_ns
        return 0

    def fileno(self) -> int | None:
        return None

    def reap(self) -> None:
        pass

    def find_lost(self) -> str:
        return self.missing

    # --- Snapshots -------------------------------------------------------------------------------

    is_full = False

    def snapshot_is_due(self, live_bytes: int) -> bool:
        return self.grown_bytes > STEP_BYTES + live_bytes

    def is_mostly_garbage(self, live_bytes: int) -> bool:
        del live_bytes
        return False

    def shrink(self, free_bytes: int, time_ms: int, wall_ms: int) -> bool:
        del free_bytes, time_ms, wall_ms
        return True

    def begin_snapshot(self, time_ms: int, wall_ms: int) -> MemorySnapshot:
        self.settle_all()
        self._sink = MemorySnapshot(self._place, self.appended_sequence, time_ms, wall_ms)
        self.grown_bytes = 0
        return self._sink

    def end_snapshot(self) -> None:
        assert self._sink is not None
        self.snapshot_ms = self._sink.time_ms

    def size(self) -> LogSize:
        return LogSize(sum(len(frame.payload) for frame in self._place.frames))

    # --- The end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        self.is_settling = False
        self._place.is_owned = False

    def settle_all(self) -> bool:
        if self._failure is not None:
            raise self._failure
        self._reach = self.appended_sequence
        self._keep()
        return True

    def close(self) -> None:
        self.is_closed = True


class User:
    """Who is told by a log, and notes it."""

    def __init__(self) -> None:
        self.settled_to: list[int] = []
        self.restorations = 0
        self.failures: list[LogError] = []

    def settled(self, sequence: int, took_ns: int) -> None:
        assert took_ns >= 0
        self.settled_to.append(sequence)

    def lost(self, what: str) -> None:
        raise AssertionError(what)

    def restored(self) -> None:
        self.restorations += 1

    def failed(self, error: LogError) -> None:
        self.failures.append(error)


class HeldDisk:
    """A group commit over a log in memory, in which nothing becomes durable while it is held."""

    def __init__(self, loop: Loop) -> None:
        self.trouble = self.space_trouble = ""
        self._place = Place()
        self._log = MemoryLog(self._place)
        list(self._log.follow())
        self._log.take_over()
        self.commit = GroupCommit(self._log, SyncPolicy.ALWAYS, 0, loop, self._fail)

    def _fail(self, error: LogError) -> None:
        raise AssertionError(f"the log failed: {error}")

    def hold(self) -> None:
        self._log.is_held = True

    def release(self) -> None:
        self._log.is_held = False
        while self._log.is_settling:
            self._log.tell()

    @property
    def durable_frames(self) -> list[bytes]:
        """What a daemon that is started again would find."""
        return [frame.payload for frame in self._place.frames]

    @property
    def frames(self) -> list[bytes]:
        """All that turns have committed."""
        return [*self.durable_frames, *(frame.payload for frame in self._log.volatile)]
