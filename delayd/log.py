"""What a log is: all that commit, snapshots, recovery and service know of where jobs are kept.

    follow ─► take_over ─► append ─► settle ─► settled ─► … ─► close
    read      become the    the records   ask      it is durable:
    frames    owner         of a turn     for it   replies may leave

A log is a sequence of frames, each with the records of one turn, numbered from 1. `journal/` keeps
it in files. Whether a sync is made at once, by the kernel or in a thread, what a full disk means,
and how it is noticed that a file has vanished: all of that is the log's own affair.

A daemon has one role after the other, and each only once:

    standby   `follow` yields what the owner appends, for hours; over when nobody owns the log. It
              tells the owner how far it is
    owner     from the `take_over` that succeeds; only now clients are served
    ended     by `close`, or by an append that was fenced: another daemon is the owner

The log in files has one owner by its lock, and so no standbys. A log that is shared (`is_shared`)
may get another owner while this one is paused. So each append proves again who owns it, everything
that was done waits for its append, a job that was handed out too; and where that proof is too old,
`is_whole` is false.

An append has one of five ends:

    durable   it will survive what the log promises to survive: `settled` is called with its number
    full      nothing was appended, all is as before: `LogError` with `may_be_tried_again`
    failed    nothing can be appended any more: `LogError`, raised, or given to `failed`
    fenced    another daemon owns the log: the same, with the exit code that says so
    unknown   it cannot be told whether it is durable: nothing is called until it can be told

`settled` is called in the order of the numbers, in the loop; the frames before are durable too.
Between two of its calls a log may find that frames of before are lost, or that it may no longer be
its owner's (`is_whole`): nothing may be acknowledged then, and nothing is settled, until a snapshot
has replaced them, or the owner has been confirmed.

It is called a few times a turn, so that a protocol costs nothing; nothing here runs for each job.
The log does not know of replies and clients, and what a record means.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple, Protocol

from delayd.exits import Exit

OnSpaceChange = Callable[[bool], object]
"""Called with True when no space is left, and with False when there is some again."""


class LogError(Exception):
    """Whatever a log may raise at its user: the place, and what is wrong there."""

    exit_code: ClassVar[Exit] = Exit.JOURNAL_FAILED
    """How the process ends when it cannot go on without the log."""
    may_be_tried_again: ClassVar[bool] = False
    """Nothing was changed, and nothing that was accepted is lost."""
    is_damage: ClassVar[bool] = False
    """`delayd journal check` says more about it."""


class LogFrame(Protocol):
    """One durable frame, as a start reads it."""

    @property
    def sequence(self) -> int:
        """Its number."""

    @property
    def time_ms(self) -> int:
        """Delayd time of its turn."""

    @property
    def wall_ms(self) -> int:
        """What the wall clock said at that time, at most."""

    @property
    def payload(self) -> bytes:
        """Records, one after the other; empty in a frame that only notes the time."""


class LogFinding(NamedTuple):
    """Something about the log that a start found and people should know; the start goes on."""

    sentence: str
    fields: Mapping[str, str]


class LogSize(NamedTuple):
    """What a log takes, for those who watch it."""

    disk_bytes: int = 0
    oldest: int = 0  # the number of its first part, and of its last one
    newest: int = 0
    jobs_copied: int = 0  # into snapshots, since the start


class LogStandby(NamedTuple):
    """A daemon that follows the log, as it was seen last."""

    address: str
    lag_frames: int  # that it had not read by then
    lag_ms: int  # how long ago it had read all that there was


class LogOwnership(NamedTuple):
    """Who owns a log that may get another owner, as far as this daemon knows."""

    is_owner: bool  # this daemon is, or was the last time it heard of the log
    owner: str  # the address of the owner, for people
    epoch: int  # raised by each takeover
    lease_left_ms: int  # for how long the owner's lease goes on; 0: it is over
    place: str  # where the log is, for people
    trouble: str  # why the log cannot be reached now; empty: it can
    standbys: Sequence[LogStandby]  # the owner's; of a standby itself alone


class Loop(Protocol):
    """What is needed of the event loop."""

    def call_later(self, delay: float, callback: Callable[[], object]) -> object:
        """Call back in so many seconds."""

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        """Call back from another thread."""


class LogUser(Protocol):
    """Who is told how appends end."""

    def settled(self, sequence: int, took_ns: int) -> None:
        """Take note that all frames up to this one are durable; the last sync took so long."""

    def lost(self, what: str) -> None:
        """Take note that frames that were durable are missing: a snapshot has to replace them."""

    def restored(self) -> None:
        """Take note that the log is whole again: settle what waits."""

    def failed(self, error: LogError) -> None:
        """Take note that the log cannot continue."""


class SnapshotSink(Protocol):
    """A snapshot that is being written, by a thread of its own."""

    is_wanted: bool
    """Any thread may set this to False: the writing then fails at the next piece."""

    @property
    def is_over(self) -> bool:
        """Whether it is finished or given up."""

    def write(self, payload: bytes) -> None:
        """Write one piece; it may block. Raises LogError."""

    def finish(self, jobs: int) -> "SnapshotTaken":
        """Make it durable, and what it replaces obsolete; it may block. Raises LogError."""

    def abandon(self) -> None:
        """Remove what was written."""


class SnapshotTaken(Protocol):
    """A finished snapshot; as a string it says where it is and how large."""

    @property
    def sequence(self) -> int:
        """It is of the state after this frame."""


class LogSnapshots(Protocol):
    """The part of a log that snapshots are taken with."""

    @property
    def appended_sequence(self) -> int:
        """The number of the last frame."""

    @property
    def step_bytes(self) -> int:
        """After so many bytes of new records it should be asked whether one is due."""

    @property
    def grown_bytes(self) -> int:
        """How much log there is since the last snapshot."""

    @property
    def is_whole(self) -> bool:
        """Whether replies may leave: nothing is missing, and no other daemon can own it by now.

        What durable frames are missing, the next snapshot has to replace.
        """

    @property
    def free_bytes(self) -> int:
        """How many bytes can be appended without asking for more space."""

    @property
    def is_full(self) -> bool:
        """Whether puts are refused because there is no space left: a shorter log would help."""

    def snapshot_is_due(self, live_bytes: int) -> bool:
        """Tell whether to begin one; `live_bytes` is about what it would hold."""

    def is_mostly_garbage(self, live_bytes: int) -> bool:
        """Tell whether the log is much longer than what it says; see `shrink`."""

    def shrink(self, free_bytes: int, time_ms: int, wall_ms: int) -> bool:
        """Continue where only so many bytes are free; the rest goes with the snapshots to come.

        Tell whether that was done, or is so. Raises LogError.
        """

    def begin_snapshot(self, time_ms: int, wall_ms: int) -> SnapshotSink:
        """Begin one of the state after the last frame, between two appends. Raises LogError."""

    def end_snapshot(self) -> None:
        """Take note, in the loop, that the one begun last was finished."""


class Space(Protocol):
    """How much can be appended for sure."""

    on_change: OnSpaceChange

    @property
    def is_stale(self) -> bool:
        """Whether there is less than `beyond` said last."""

    @property
    def trouble(self) -> str:
        """Why there is no more, where that is not a lack of it; empty if it is."""

    def figures(self) -> "dict[str, str | int]":
        """Return where space is short, how much there is, and how much a put needs at least."""

    def beyond(self, set_aside_bytes: int) -> int:
        """Return the space for the next turn, without what is set aside for removals."""

    def more(self, missing_bytes: int, body_bytes: int, places: int) -> int:
        """Get more, and places for records with long bodies; -1 when that cannot be had."""


class DurableLog(LogSnapshots, Protocol):
    """A log, owned by this daemon from `take_over` to `close`."""

    # --- A start ---------------------------------------------------------------------------------

    def follow(self) -> Iterator[LogFrame | None]:
        """Yield the frames that there are, in order, after those yielded before.

        While another daemon owns the log it goes on, and yields None when nothing has come for a
        moment. A frame with the number 0 says that all before it are void: the log is read anew,
        since the owner has removed frames that were not read yet. Raises LogError.
        """

    @property
    def owner(self) -> str:
        """Where the daemon is that owns the log, for people; empty if there is none."""

    @property
    def ownership(self) -> LogOwnership | None:
        """Who owns the log, for any thread; None: it is never another daemon's."""

    @property
    def followed_percent(self) -> int:
        """About how much of them was yielded."""

    def unreadable(self, why: str) -> LogError:
        """Return what to raise over a durable frame that holds what nobody can play."""

    def take_over(self) -> bool:
        """Own the log, all of whose frames were yielded: it takes appends. Raises LogError.

        False: another daemon was faster; `follow` goes on.
        """

    @property
    def findings(self) -> Sequence[LogFinding]:
        """What people should know about what was found."""

    @property
    def identity(self) -> bytes:
        """Sixteen bytes that no other log has."""

    @property
    def is_shared(self) -> bool:
        """Whether another daemon may become the owner meanwhile: all replies wait for appends."""

    @property
    def keeper(self) -> str:
        """What keeps it, for people: "disk", or "database"."""

    @property
    def wall_ns(self) -> Callable[[], int] | None:
        """Reads the log's own wall clock, the same for every owner; None: the machine's is it."""

    def serve(self, loop: Loop, user: LogUser) -> None:
        """Tell this user from now on how appends end."""

    def watch_standbys(self) -> None:
        """Know from now on which daemons follow; `ownership` says it."""

    # --- Appends ---------------------------------------------------------------------------------

    @property
    def wall_offset_ms(self) -> int:
        """How far the wall clock was ahead of delayd time in the last frame."""

    def append(self, records: Sequence[bytes], time_ms: int, wall_ms: int) -> int:
        """Append the records of a turn; return the number of the frame, the last if several.

        A record is never divided. Raises LogError.
        """

    @property
    def appended_bytes(self) -> int:
        """How many bytes of records were appended since the start."""

    def settle(self, *, in_turn: bool) -> None:
        """Have all that was appended become durable; `settled` or `failed` is called.

        With `in_turn` perhaps at once, before this returns, when that does not take long.
        """

    @property
    def is_settling(self) -> bool:
        """Whether that goes on; what is appended meanwhile needs another `settle`."""

    @property
    def settling_ms(self) -> int:
        """For how long it has gone on; 0 when it does not."""

    @property
    def is_behind(self) -> bool:
        """Whether so much waits for it that no more should be appended."""

    def in_turn_ns(self, now_ns: int) -> int:
        """Return how long a `settle` in the turn would take; 0: it would not be made there."""

    @property
    def last_in_turn_ns(self) -> tuple[int, int]:
        """When the last one in a turn began, and how long it took."""

    def fileno(self) -> int | None:
        """Return the descriptor that is readable when `reap` has something to do, if any."""

    def reap(self) -> None:
        """See whether what goes on has ended."""

    def find_lost(self) -> str:
        """See whether all is still there; return what is missing, empty for nothing."""

    @property
    def space(self) -> Space:
        """How much can be appended for sure."""

    def size(self) -> LogSize:
        """Return what it takes."""

    @property
    def snapshot_ms(self) -> int | None:
        """Delayd time of the newest snapshot; None when there is none."""

    # --- The end ---------------------------------------------------------------------------------

    def stop(self) -> None:
        """End what goes on elsewhere; its user is told nothing any more. It may block."""

    def settle_all(self) -> bool:
        """Make all durable; it may block. Tell whether replies may leave. Raises LogError."""

    def close(self) -> None:
        """Mark the end, and give the log up. Does nothing twice. Raises LogError."""
