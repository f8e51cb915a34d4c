"""Group commit: replies leave when what they promise is as durable as the policy says.

    turn 1: records ─► append, 1 ─┐               ┌─► settled, 1: replies of turn 1
    turn 2: records ─► append, 2 ─┤ (settle) ─────┘
    turn 3: records ─► append, 3 ─┴─ (settle) ──────► settled, 3: replies of turns 2 and 3

Replies wait in one queue, each for the number of the last frame that it depends on. Those that
depend on nothing unsettled leave at once, unless another daemon may own the log by now: then a job
is handed out when its reservation is settled, or two would hand it out. How the log makes its
frames durable, and whether it has done so before `settle` returns, is its own affair (`log.py`);
what is appended while it is at it shares the next time.

Clients whose replies left together send their next commands one after the other. So that the first
of these has no sync to itself, on which all others would wait before their own, a turn with fewer
replies than the last sync released keeps them for as long as a sync takes, for more to come.

A slow log costs memory up to a limit: `is_backed_up` then says that no more should be read. With
the policies under which no reply waits, enough unsettled records begin a sync before its time.

After a failure nothing leaves any more: clients see their connections close, the honest answer when
the outcome is not known.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from delayd.clock import NS_PER_MS, monotonic_ns
from delayd.config import SyncPolicy
from delayd.core.stats.histogram import Histogram
from delayd.limits import BATCH_BOUNDS_RECORDS, SLOW_SYNC_MS, SYNC_BOUNDS_NS, UNSYNCED_BYTES_MAX
from delayd.log import DurableLog, LogError, Loop


class ReplyReceiver(Protocol):
    """Where replies go: one client."""

    def send(self, data: bytes) -> None:
        """Send them, in one piece."""


Replies = Sequence[tuple[ReplyReceiver, bytes]]

_NEXT_FRAME = 1 << 62
"""In place of the number of the frame that is about to be appended."""


class GroupCommit:
    """Appends the records of each turn, has them settled by the policy, releases the replies."""

    def __init__(
        self,
        log: DurableLog,
        policy: SyncPolicy,
        interval_ms: int,
        loop: Loop,
        on_failure: Callable[[LogError], None],
        *,
        on_lost: Callable[[str], object] | None = None,
        on_slow_sync: Callable[[int], object] | None = None,
    ) -> None:
        """Commit to this log. `on_failure` is called once, and nothing is released after it.

        `on_lost` is called with what is missing in the log: a snapshot has to be taken.
        `on_slow_sync` is called with the milliseconds of each sync that took longer than
        SLOW_SYNC_MS.
        """
        self._log = log
        self._policy = policy
        self._replies_wait = policy is SyncPolicy.ALWAYS
        self._all_wait = self._replies_wait and log.is_shared
        self._interval_s = interval_ms / 1_000
        self._loop = loop
        self._on_failure = on_failure
        self.on_lost = on_lost
        self.on_slow_sync = on_slow_sync
        self._queue: deque[tuple[int, Replies]] = deque()
        """The frame that must be settled → the replies which wait for it; oldest first."""
        self._waiting = self._waiting_bytes = 0  # replies in the queue; what waits for a settle
        self._needed_sequence = log.appended_sequence  # on which what is said now depends
        self._settled_sequence = log.appended_sequence
        self._timer_is_set = False
        self.durable_id = 0
        """Jobs up to this id are settled, `out_of_order_ids` aside, or the policy does not wait."""
        self.out_of_order_ids: dict[int, int] = {}
        """Jobs with earlier ids whose put ended late → the frame that they are in."""
        self._late_ids: Sequence[int] = ()  # those that are in the next frame
        self._last_id = self._settling_id = 0
        self._released = 0  # how many replies the last settle in a turn has released
        self.gathers_until_ns = 0
        """Until when replies wait for others to share a sync: call `commit` then. 0: none do."""
        self._in_turn = Histogram(SYNC_BOUNDS_NS)  # of those in the turn for which none had waited
        self.sync_ns = Histogram(SYNC_BOUNDS_NS, self._in_turn)  # how long syncs took
        self.commit_ns = Histogram(SYNC_BOUNDS_NS, self._in_turn)
        """For each sync, how long the first turn it covers has waited, or else the sync took."""
        self.batch_records = Histogram(BATCH_BOUNDS_RECORDS)  # how many each sync has covered
        self.records = 0  # appended so far
        self._unsettled_records = 0  # since the last settle was begun
        # Since when the first turn has waited for the next one, and for the current one; 0: none.
        self._waits_since_ns = self._batch_since_ns = 0
        self._is_in_turn = False  # the log is asked to settle before the turn goes on
        self._has_failed = False
        self._is_over = False  # nothing is settled or released any more; late callbacks do nothing
        log.serve(loop, self)

    @property
    def is_backed_up(self) -> bool:
        """Tell whether so much waits for the log that no more should be read from clients."""
        return self._waiting_bytes > UNSYNCED_BYTES_MAX or self._log.is_behind

    @property
    def is_cut_off(self) -> bool:
        """Tell whether another daemon may own the log by now: until that is known none answers.

        New clients should look for that daemon.
        """
        return self._log.is_shared and not self._log.is_whole

    # --- Each turn -------------------------------------------------------------------------------

    def commit(
        self,
        records: list[bytes],
        replies: Replies,
        *,
        must_sync: bool,
        time_ms: int,
        wall_ms: int,
        last_id: int = 0,
        free: Replies = (),
    ) -> None:
        """Append the records of a turn and send its replies as soon as they may leave.

        No job has an id above `last_id`. `free` are replies that depend on nothing unsettled, in a
        log that is not shared.
        """
        if self._is_over:
            return
        log = self._log
        if records:
            try:
                sequence = log.append(records, time_ms, wall_ms)
            except LogError as error:
                self.failed(error)
                return
            self.records += len(records)
            self._unsettled_records += len(records)
            if (must_sync and self._replies_wait) or self._all_wait:
                self._needed_sequence = sequence
            if self._late_ids:
                self.out_of_order_ids.update(dict.fromkeys(self._late_ids, sequence))
                self._late_ids = ()
        self._last_id = last_id
        if free:
            if self._all_wait:
                replies = (*free, *replies)
            else:
                _release(free)
        if not log.is_whole:
            self.gathers_until_ns = 0
            self._wait(records, replies)
        elif not self._replies_wait:
            self.durable_id = last_id
            _release(replies)
            if records:
                self._settle_some_time(records)
        elif self._needed_sequence <= self._settled_sequence:
            _release(replies)
        elif log.is_settling or (self._waiting + len(replies) < self._released and self._gathers()):
            self._wait(records, replies)
        else:
            self._queue.append((self._needed_sequence, replies))
            self._waiting += len(replies)
            self._settle(in_turn=True)

    def _wait(self, records: Sequence[bytes], replies: Replies) -> None:
        """Keep replies for a settle that comes later."""
        if not self._waits_since_ns:
            self._waits_since_ns = monotonic_ns()
        self._queue.append((self._needed_sequence, replies))
        self._waiting += len(replies)
        self._waiting_bytes += sum(map(len, records)) + sum(len(data) for _, data in replies)

    def note_late(self, job_ids: Sequence[int]) -> None:
        """Take note that these jobs are in the frame to come, though their ids are older."""
        if self._replies_wait:
            self.out_of_order_ids.update(dict.fromkeys(job_ids, _NEXT_FRAME))
            self._late_ids = [*self._late_ids, *job_ids]

    def _gathers(self) -> bool:
        """Tell whether there is time for more replies before the sync; it begins with the first."""
        now_ns = monotonic_ns()
        if not self.gathers_until_ns:
            self.gathers_until_ns = now_ns + self._log.in_turn_ns(now_ns)
        return now_ns < self.gathers_until_ns

    # --- Settling --------------------------------------------------------------------------------

    def _settle(self, *, in_turn: bool) -> None:
        """Have the log settle what was appended so far."""
        self.gathers_until_ns = self._waiting_bytes = 0
        self._settling_id = self._last_id
        self._batch_since_ns, self._waits_since_ns = self._waits_since_ns, 0
        self.batch_records.note(self._unsettled_records)
        self._unsettled_records = 0
        self._is_in_turn = in_turn
        self._log.settle(in_turn=in_turn)
        self._is_in_turn = False
        if self._log.is_settling and not self._batch_since_ns:
            self._batch_since_ns = monotonic_ns()

    def settled(self, sequence: int, took_ns: int) -> None:
        """Release what waited for the frames up to this one, and settle again if more waits."""
        if self._is_over:
            return
        self._settled_sequence = sequence
        self.durable_id = max(self.durable_id, self._settling_id)
        if self.out_of_order_ids:
            self._forget_late(sequence)
        if self._is_in_turn and not self._batch_since_ns:
            self._in_turn.note(took_ns)
        else:
            self.sync_ns.note(took_ns)
            self.commit_ns.note(monotonic_ns() - self._batch_since_ns)
        if took_ns > SLOW_SYNC_MS * NS_PER_MS and self.on_slow_sync is not None:
            self.on_slow_sync(took_ns // NS_PER_MS)
        waiting, due = self._queue, []
        while waiting and waiting[0][0] <= sequence:
            due.append(waiting.popleft()[1])
        released = sum(map(len, due))
        self._waiting -= released
        if self._is_in_turn:
            self._released = released
        if self._needed_sequence > sequence:
            self._settle(in_turn=False)  # before the replies: the disk need not wait for them
        else:
            self._waiting_bytes = self._waits_since_ns = 0
        for replies in due:
            _release(replies)

    def _forget_late(self, sequence: int) -> None:
        """Forget late jobs that are durable now."""
        late = self.out_of_order_ids
        for job_id in [job_id for job_id, frame in late.items() if frame <= sequence]:
            del late[job_id]

    def _settle_some_time(self, records: Sequence[bytes]) -> None:
        """See that what was appended is settled when the policy says, or when it gets too much."""
        self._waiting_bytes += sum(map(len, records))
        if self._waiting_bytes > UNSYNCED_BYTES_MAX // 2 and not self._log.is_settling:
            self._settle(in_turn=False)
        if self._policy is SyncPolicy.INTERVAL and not self._timer_is_set:
            self._timer_is_set = True
            self._loop.call_later(self._interval_s, self._interval_is_over)

    def _interval_is_over(self) -> None:
        self._timer_is_set = False
        self._settle_all_so_far()

    def _settle_all_so_far(self) -> None:
        """Settle, also what was appended while the log is at it already."""
        if self._is_over:
            return
        if self._log.is_settling:
            self._needed_sequence = self._log.appended_sequence
        else:
            self._settle(in_turn=False)

    # --- Trouble ---------------------------------------------------------------------------------

    def lost(self, what: str) -> None:
        """Hold all replies: frames that were durable are missing."""
        self.gathers_until_ns = 0
        if self.on_lost is not None:
            self.on_lost(what)

    def restored(self) -> None:
        """Release replies again: a snapshot holds all that was missing."""
        self._settle_all_so_far()

    def failed(self, error: LogError) -> None:
        """Release nothing any more."""
        if not self._has_failed:
            self._has_failed = self._is_over = True
            self.gathers_until_ns = 0
            self._on_failure(error)

    # --- The end ---------------------------------------------------------------------------------

    def close(self) -> None:
        """Settle what is left and release its replies. Blocks while the log does."""
        self._is_over = True
        self._log.stop()
        if self._has_failed:
            return
        try:
            may_leave = self._log.settle_all()
        except LogError as error:
            self.failed(error)
            return
        if may_leave:
            for _, replies in self._queue:
                _release(replies)
        self._queue.clear()

    # --- For turns -------------------------------------------------------------------------------

    @property
    def is_syncing(self) -> bool:
        """Whether the log is at it, elsewhere."""
        return self._log.is_settling

    @property
    def in_turn_sync_ns(self) -> tuple[int, int]:
        """When the last sync in a turn began, and how long it took."""
        return self._log.last_in_turn_ns

    @property
    def log_bytes(self) -> int:
        """How many bytes of records were appended."""
        return self._log.appended_bytes

    @property
    def wall_offset_ms(self) -> int:
        """How far the wall clock is ahead of delayd time, as the log has it."""
        return self._log.wall_offset_ms

    def fileno(self) -> int | None:
        """Return the descriptor that is readable when `reap` has something to do, if there is."""
        return self._log.fileno()

    def reap(self) -> None:
        """See whether the log has ended what it does elsewhere."""
        self._log.reap()


def _release(replies: Replies) -> None:
    for sink, data in replies:
        sink.send(data)
