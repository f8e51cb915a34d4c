"""The daemon's turns, taken where the event loop sleeps.

    asyncio ─► select(timeout) ─► sleep ─┬─► poll: clients, syncs, asyncio's own descriptors
                                         ├─► turn: fire what is due ─► read and carry out ─► commit
                                         └─► … until asyncio has something to do, or the timeout

asyncio asks its selector what has happened. Ours takes turns while it waits: whatever concerns the
line protocol, the wheel and the journal is done right there, and asyncio gets to work only when one
of *its* descriptors or timers is ready. A pass of asyncio for every turn would cost a third of what
a lone client's put takes.

A turn reads the clock once. It does a bounded part of what is due, so that a million jobs of one
instant delay no client, and a bounded part of what clients have sent. With nothing due and nothing
to read the process sleeps, but for a tenth of a millisecond behind clients that answer at once, and
before a job is due: for so long it looks for events again and again (`busy_poll_ns`), since being
woken would take longer.
"""

import contextlib
import gc
import selectors
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from delayd.clock import NEVER_NS, NS_PER_MS, NS_PER_S, Clock, monotonic_ns
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import OutOfSpace
from delayd.core.log_space import RESERVE_COST_BYTES
from delayd.core.operations.sessions import give_back_some
from delayd.core.operations.tick import advance, next_deadline, record_time
from delayd.core.operations.waiting import serve_waiting
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.stats.histogram import Histogram, Longest
from delayd.core.times import PlayedMs, RequestMs
from delayd.limits import (
    ADVANCE_SLICE_US,
    GC_ALL,
    GC_LONG_NS,
    HELD_BOUNDS_NS,
    HELD_LOGGED_NS,
    HELD_NOTED_NS,
    INTERRUPTED_PAUSE_MS,
    INTERRUPTED_US,
    MISSED_WAKE_UP_MS,
    PASSES_US,
    RETURNS_PER_STOP_TURN,
    SPACE_PLENTY_BYTES,
    SPACE_TURNS_MAX,
    SYNC_BREATHER_MS,
    TASK_SLICE_US,
    TURN_OVERHEAD_BYTES,
    WALL_BRACKET_NS,
    WALL_STEP_MS,
)
from delayd.line.server import LineServer
from delayd.net.poller import EPOLL_STEP_S, PRECISE_WAIT_S, Poller

if TYPE_CHECKING:
    from delayd.commit import GroupCommit, Replies, ReplyReceiver
    from delayd.log import Space

_NEVER_MS: Final = 1 << 62


class Wakeable(Protocol):
    """The event loop, which goes on when a sleep ends."""

    is_woken: bool
    """It has something to call: the sleep ends after its turn."""


class SnapshotSteps(Protocol):
    """Snapshots, which are taken a step at a time."""

    step_bytes: int
    """After so many bytes of new records a step is taken before its time."""

    def step(self) -> float | None:
        """Take a step; return in how many seconds the next one is wanted at the latest.

        None when none is needed before the log has grown.
        """


class Callbacks:
    """Everything that waits for one turn, in the place of a client."""

    __slots__ = ("_callbacks", "_loop")

    def __init__(self, callbacks: list[Callable[[], object]], loop: Wakeable) -> None:
        """`loop` is asyncio's, which has more to call then."""
        self._callbacks = callbacks
        self._loop = loop

    def send(self, _data: bytes) -> None:
        """Call them."""
        for callback in self._callbacks:
            callback()
        self._loop.is_woken = True


class TurnSelector(selectors.EpollSelector):
    """The selector of an event loop that does other things while it waits.

    With something to call asyncio goes on without them, for a moment. What a delivery needs of it
    takes four passes, and turns between these would commit nothing, or one thing at a time.
    """

    def __init__(self, now_ns: Callable[[], int] = monotonic_ns) -> None:
        """`now_ns` measures how long asyncio has gone on."""
        super().__init__()
        self._now_ns = now_ns
        self._slept_ns = 0
        self.sleep: Callable[[float | None], object] | None = None
        """Waits until a descriptor of this selector is ready, or so many seconds (None: for ever);
        returns early whenever it likes. None while no turns are taken."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return which descriptors are ready, after a sleep."""
        if self.sleep is not None:
            if timeout != 0 or self._now_ns() - self._slept_ns >= PASSES_US * 1_000:
                self.sleep(timeout)
                self._slept_ns = self._now_ns()
            timeout = 0
        return super().select(timeout)


class Turns:
    """Takes one turn after the other: clock, engine, line, commit."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        poller: Poller,
        line: LineServer,
        tasks: BackgroundTasks,
        loop: Wakeable,
        commit: "GroupCommit | None" = None,
        space: "Space | None" = None,
        snapshots: SnapshotSteps | None = None,
        *,
        busy_poll_ns: int = 0,
        on_push: Callable[[RequestMs], object] | None = None,
        on_wall_step: Callable[[int], object] | None = None,
        on_long_hold: Callable[[int, dict[str, int]], object] | None = None,
    ) -> None:
        """Bring them together; without a `commit` replies leave at once, nothing is kept.

        `tasks` are of all front ends. `busy_poll_ns` is how long to look for events again and again
        before sleeping. `on_push` is called before the commit of a turn in which jobs have become
        ready that are to be pushed, if push is on. `on_wall_step` gets by how many milliseconds the
        wall clock was set when jobs are placed anew, `on_long_hold` how many ns no client was
        heard and what they were made of, if that was very long.
        """
        self._engine = engine
        self._clock = clock
        self._poller = poller
        self._line = line
        self._tasks = tasks
        self._loop = loop
        self._commit = commit
        self._space = space
        self.snapshots = snapshots
        self.busy_poll_ns = busy_poll_ns
        self.on_push = on_push
        self.on_wall_step = on_wall_step
        self.on_long_hold = on_long_hold
        self._next_ms = 0  # not known yet: the first turn looks for what came due during the stop
        self._seen_changes = 0  # of the timers, when `_next_ms` was computed
        self._sync_fd = None if commit is None else commit.fileno()
        self._has_more = True
        self._space_turns = self._turned_ms = 0  # since the space was looked at; the last turn
        self._callbacks: list[Callable[[], object]] = []
        self._replies: list[tuple[ReplyReceiver, bytes]] = []  # of work outside of turns
        self.held_ns = Histogram(HELD_BOUNDS_NS)
        """How long it took from each poll to the next, with all that asyncio did in between."""
        self.longest_held = Longest()
        self.repairs = 0
        """Wake-ups that were found missing; always 0, or there is a fault in here."""
        self._polled_ns = self._collecting_ns = self._slept_ns = 0
        # The last events came so soon that the next may as well; the next turn may be left out.
        self._is_lively = self._may_pass = False
        self._sleeps_until_ns = 0  # until then it does not stay awake
        self.loop_fd = -1  # of asyncio's selector; -1: it does not run
        self._took_ns: dict[str, int] = {}  # since the last poll, of what is measured
        self.is_over = False
        """No turn changes anything any more: the journal has failed, or the daemon has stopped."""
        self._step_ns = self._step_log_bytes = 0  # when the next step of a snapshot is due
        self.limit_space()

    # --- Sleeping --------------------------------------------------------------------------------

    def wake_loop(self) -> None:
        """Let the event loop look at its timers and callbacks: a turn has given it some."""
        self._loop.is_woken = True

    def ask(self) -> None:
        """Have the next turn come at once."""
        self._has_more = True

    def when_durable(self, callback: Callable[[], object]) -> None:
        """Call back when all that was done so far is as durable as the policy promises.

        For work outside of turns: what it did is committed by the next one, which comes at once.
        """
        self._callbacks.append(callback)
        self._has_more = True

    def reply_when_durable(self, client: "ReplyReceiver", data: bytes) -> None:
        """Send a client a reply when all that was done so far is as durable as the policy promises.

        As `when_durable`, but the event loop goes on only if the client wakes it.
        """
        self._replies.append((client, data))
        self._has_more = True

    def sleep(self, timeout_s: float | None) -> None:
        """Take turns until the loop is woken, or so many seconds have passed (None: for ever)."""
        now_ns = monotonic_ns()
        if self._slept_ns:
            self._took_ns["http"] = now_ns - self._slept_ns
        ends_ns = NEVER_NS if timeout_s is None else now_ns + int(timeout_s * NS_PER_S)
        poller, commit, loop = self._poller, self._commit, self._loop
        loop.is_woken = False
        # What asyncio has just called may have made work for it.
        wakes_ns = self._step_snapshot(now_ns, ends_ns)
        if self.snapshots is not None:
            now_ns = monotonic_ns()
        while True:
            wait_s = self._wait_s(now_ns, wakes_ns)
            hears_clients = commit is None or not commit.is_backed_up
            if self._polled_ns:
                held_ns = now_ns - self._polled_ns  # no client could be heard
                self.held_ns.note(held_ns)
                if held_ns > HELD_NOTED_NS:
                    self.longest_held.note(held_ns, now_ns)
                    if held_ns > HELD_LOGGED_NS and self.on_long_hold is not None:
                        self.on_long_hold(held_ns, self._parts_of(held_ns))
            if self._took_ns:
                self._took_ns.clear()
            # The kernel may want this processor for a sync.
            is_awake = hears_clients and (commit is None or not commit.is_syncing)
            if is_awake and self.busy_poll_ns and now_ns >= self._sleeps_until_ns and wait_s != 0.0:
                events = self._poll_awake(wait_s, now_ns)
            else:
                events = poller.poll(wait_s, hears_clients=hears_clients)
            self._polled_ns = monotonic_ns()
            if events or wait_s != 0.0:  # a look without a wait says nothing of the next events
                is_soon = self._polled_ns - now_ns < 2 * self.busy_poll_ns
                self._is_lively = len(events) > 0 and is_soon
            if len(events) == 1 and events[0][0] == self._sync_fd and commit is not None:
                # Replies that waited for the disk leave. Nothing is read, fired or recorded.
                commit.reap()
            elif wait_s != 0.0 and self._may_pass and self._is_for_loop(events):
                # Nothing was due: what asyncio does now is in the next turn.
                self._may_pass = False
                loop.is_woken = True
            else:
                self._may_pass = True
                self.turn(events)
                if self._polled_ns >= self._step_ns:
                    wakes_ns = self._step_snapshot(self._polled_ns, ends_ns)
            now_ns = monotonic_ns()
            if loop.is_woken or now_ns >= ends_ns:
                self._slept_ns = now_ns
                return

    def _is_for_loop(self, events: Sequence[tuple[int, int]]) -> bool:
        """Tell whether only asyncio has something to do."""
        return len(events) == 1 and events[0][0] == self.loop_fd

    def _poll_awake(self, wait_s: float | None, now_ns: int) -> list[tuple[int, int]]:
        """Wait for events, but awake for those moments in which being woken would take too long.

        They are the first one behind clients that answer at once, and the last one before a job is
        due: a wait for that is a short one.
        """
        poller, awake_ns = self._poller, self.busy_poll_ns
        ends_ns = NEVER_NS if wait_s is None else now_ns + int(wait_s * NS_PER_S)
        if self._is_lively:
            begins_ns = min(now_ns + awake_ns, ends_ns)
            if events := self._look_until(begins_ns):
                return events
            now_ns = begins_ns
        if wait_s is None:
            return poller.poll(None)
        last_ns = awake_ns if wait_s < PRECISE_WAIT_S else 0
        asleep_ns = max(0, ends_ns - now_ns - last_ns)
        events = poller.poll(asleep_ns / NS_PER_S)
        if events or not last_ns:
            return events
        return self._look_until(min(ends_ns, monotonic_ns() + last_ns))  # a timeout may end a poll

    def _look_until(self, ends_ns: int) -> list[tuple[int, int]]:
        """Look for events again and again until then.

        A look that takes long was interrupted: others want the processor. A process that has taken
        more than its share of it is woken late, so for a while it is better to sleep.
        """
        now_ns = monotonic_ns()
        while now_ns < ends_ns:
            looked_ns = now_ns
            events = self._poller.poll(0.0)
            now_ns = monotonic_ns()
            if now_ns - looked_ns > INTERRUPTED_US * 1_000:
                self._sleeps_until_ns = now_ns + INTERRUPTED_PAUSE_MS * NS_PER_MS
            if events:
                return events
        return []

    def _step_snapshot(self, now_ns: int, ends_ns: int) -> int:
        """Take a step of a snapshot; return when to wake for the next one, or at `ends_ns`."""
        next_s, snapshots = None, self.snapshots
        if snapshots is not None and not self.is_over:
            begun_ns = monotonic_ns()
            next_s = snapshots.step()
            self._note_phase("snapshot", begun_ns)
        log_bytes = 0 if self._commit is None else self._commit.log_bytes
        if snapshots is None or next_s is None:
            self._step_ns = NEVER_NS
            self._step_log_bytes = log_bytes + 1
        else:
            self._step_ns = now_ns + int(next_s * NS_PER_S)
            self._step_log_bytes = log_bytes + snapshots.step_bytes
        return min(ends_ns, self._step_ns)

    def _parts_of(self, held_ns: int) -> dict[str, int]:
        """Return what the time since the last poll was made of, in ns.

        `gc` is within the others; `commands` is what is left: input, its commands, and the log.
        """
        parts = dict(self._took_ns)
        commit = self._commit
        if commit is not None:
            begun_ns, sync_ns = commit.in_turn_sync_ns
            if begun_ns >= self._polled_ns:
                parts["sync"] = sync_ns
        gc_ns = parts.pop("gc", 0)
        return {"commands": held_ns - sum(parts.values()), **parts, "gc": gc_ns}

    def _note_phase(self, phase: str, begun_ns: int) -> None:
        """Count time since then for the phase, in case that a turn takes long."""
        self._took_ns[phase] = self._took_ns.get(phase, 0) + monotonic_ns() - begun_ns

    def note_collection(self, phase: str, figures: dict[str, int]) -> None:
        """Measure garbage collections; for `gc.callbacks`.

        What has survived a long one is never traversed again: with 100,000 topics each took 0.6 s,
        with two million ready jobs 30 ms. Cycles that begin to be garbage later stay for ever, so
        connections leave none (`tests/test_garbage.py`).
        """
        if phase == "start":
            self._collecting_ns = monotonic_ns()
            return
        self._note_phase("gc", self._collecting_ns)
        if monotonic_ns() - self._collecting_ns >= GC_LONG_NS and figures["generation"] == GC_ALL:
            gc.freeze()

    def _wait_s(self, now_ns: int, wakes_ns: int) -> float | None:
        """Return how long the next poll may take; None: until something happens."""
        wait_s = None
        commit = self._commit
        if commit is not None and commit.gathers_until_ns:
            wakes_ns = min(wakes_ns, commit.gathers_until_ns)
        if wakes_ns != NEVER_NS:
            wait_s = (wakes_ns - now_ns) / NS_PER_S if wakes_ns > now_ns else 0.0
        if self._has_more or self._poller.has_more:
            due_s = 0.0
        elif self._next_ms == _NEVER_MS:
            return wait_s
        else:
            due_s = self._clock.seconds_until(self._next_ms)
            if due_s >= PRECISE_WAIT_S:
                # A long wait would be up to a step too long: the last step is one of its own.
                due_s -= EPOLL_STEP_S
        if due_s <= 0.0:
            # On a busy machine the sync needs the processor that this loop would not leave, and so
            # does a receiver for which the virtual clock waits.
            is_syncing = commit is not None and commit.is_syncing
            is_idle = is_syncing or self._engine.awaits_calls
            due_s = SYNC_BREATHER_MS / 1_000 if is_idle else 0.0
        return due_s if wait_s is None or due_s < wait_s else wait_s

    # --- A turn ----------------------------------------------------------------------------------

    def turn(self, events: Sequence[tuple[int, int]] = ()) -> None:
        """Fire what is due, carry out the commands of clients, commit."""
        if self.is_over:
            return
        self._has_more = False
        played_ms, request_ms = self._clock.read()
        self._turned_ms = played_ms
        engine = self._engine
        if engine.log_space.is_short:
            self._serve_short(request_ms)
        if engine.store.wall_times.count:
            self.look_at_wall_clock()
        if self._next_ms <= played_ms:
            self._next_ms = 0
            self._advance(played_ms, request_ms)
        elif played_ms > engine.store.time_ms:
            engine.store.reach(played_ms)
        self._poller.serve(events)
        if self._tasks.has_more:
            self._step_tasks()
            request_ms = self._clock.request_ms()
        if self.on_push is not None and engine.store.push_lanes.fresh:
            self.on_push(request_ms)
        self.end_turn()

    def overslept_ms(self) -> int:
        """Return and count how long ago a waiter should have been woken; 0, or we have a fault.

        After a turn just now nothing was missed, however much is due: that comes in slices.
        """
        deadline_ms = next_deadline(self._engine)
        if deadline_ms is None:
            return 0
        late_ms = self._clock.now_ms() - max(deadline_ms, self._turned_ms)
        if late_ms <= MISSED_WAKE_UP_MS:
            return 0
        self.repairs += 1
        return late_ms

    def look_at_wall_clock(self) -> None:
        """See whether it was set. Done in each turn in which a job waits for a moment of it.

        Call before the first absolute-time put: the offset is not tracked while no such job exists.
        """
        absolute = self._engine.store.wall_times
        at_least_ns, _ = self._clock.wall_offset_ns()
        offset_ns = absolute.offset_ms * NS_PER_MS
        # Sooner would be early; later is looked at in whole steps.
        if at_least_ns < offset_ns or at_least_ns >= offset_ns + WALL_STEP_MS * NS_PER_MS:
            offset_ms = at_least_ns // NS_PER_MS
            step_ms = offset_ms - absolute.offset_ms
            follow_wall(self._engine, offset_ms)
            if absolute.layers:
                self._next_ms = 0
                if self.on_wall_step is not None:
                    self.on_wall_step(step_ms)

    def note_wall_clock(self, *, is_set: bool = False) -> None:
        """Have the log say how far both clocks are apart, unless its last frame does.

        A start takes the length of the stop from the wall clock. If it was set since the last
        frame, an hour by which it was set would be taken for an hour that has passed. With hardly
        any space in the log that risk is smaller than the other, that a job cannot be removed.

        `is_set`: it was, and each nanosecond counts. Else what a start loses between its readings
        of the two clocks is no reason to write: nothing takes space before a client needs it.
        """
        if self._commit is None:
            return
        at_least_ns, at_most_ns = self._clock.wall_offset_ns()
        noted_ns = self._commit.wall_offset_ms * NS_PER_MS
        is_behind = at_most_ns <= noted_ns - WALL_STEP_MS * NS_PER_MS
        is_ahead = at_least_ns > noted_ns + WALL_BRACKET_NS or (is_set and at_most_ns > noted_ns)
        if is_behind or is_ahead:
            with contextlib.suppress(OutOfSpace):
                self._engine.log_space.take(TURN_OVERHEAD_BYTES)
                record_time(self._engine)
                self._has_more = True

    def _advance(self, played_ms: PlayedMs, request_ms: RequestMs) -> None:
        """Fire what is due, for a bounded time; what is left comes after all clients."""
        if self._commit is not None:
            self._commit.reap()
        engine = self._engine
        if advance(engine, played_ms, request_ms):
            until_ns = monotonic_ns() + ADVANCE_SLICE_US * 1_000
            while not engine.is_crowded and advance(engine, played_ms, request_ms):
                if monotonic_ns() > until_ns:
                    break
            self._note_phase("due", self._polled_ns)

    def _step_tasks(self) -> None:
        """Take steps of background tasks, for a bounded time.

        One of them may have moved the clock. It stops where a waiter gets a job, and reports it
        before time goes on.
        """
        clock, engine, tasks = self._clock, self._engine, self._tasks
        begun_ns = monotonic_ns()
        until_ns = begun_ns + TASK_SLICE_US * 1_000
        self._has_more = True
        if self._commit is None or not self._commit.is_backed_up:
            while True:
                now_ms = clock.request_ms()
                if (task := tasks.step(now_ms)) is not None:
                    task.conclude(now_ms)
                if engine.deliveries or not tasks.has_more or monotonic_ns() > until_ns:
                    break
                if engine.awaits_calls:
                    break
        self._note_phase("tasks", begun_ns)

    def return_some(self, request_ms: RequestMs) -> bool:
        """Take back a slice of what closed clients held, and commit; tell whether there is more."""
        give_back_some(self._engine, RETURNS_PER_STOP_TURN, request_ms)
        self.end_turn()
        return bool(self._engine.ended_sessions)

    def end_turn(self) -> None:
        """Answer clients whose wait has ended, commit, and see when the next turn is due."""
        engine, line, commit = self._engine, self._line, self._commit
        if engine.out_of_order_ids and commit is not None:
            commit.note_late(engine.take_out_of_order_ids())
        if engine.deliveries:
            self._deliver()
        log, must_sync = engine.take_log()
        replies: Replies = line.take_replies()
        free: Replies = line.take_free_replies()
        if self._callbacks or self._replies:
            # It is not known which of the records they depend on, so it is all of them.
            replies = [*replies, *self._replies]
            self._replies = []
            if self._callbacks:
                replies.append((Callbacks(self._callbacks, self._loop), b""))
                self._callbacks = []
            must_sync = bool(log)
        timers = engine.store.timer_queue
        if timers.changes != self._seen_changes or not self._next_ms:
            self._seen_changes = timers.changes
            next_ms = next_deadline(engine)
            self._next_ms = _NEVER_MS if next_ms is None else next_ms
        if commit is None:
            for client, data in (*free, *replies):
                client.send(data)
        elif log or replies or free or commit.gathers_until_ns:
            self._commit_turn(commit, log, replies, free, must_sync=must_sync)
        elif engine.log_space.is_short:
            self.limit_space()

    def _deliver(self) -> None:
        """Answer clients whose wait has ended.

        What they have sent meanwhile is carried out now: no delay counts from before it came.
        """
        engine, request_ms = self._engine, self._clock.request_ms()
        while engine.deliveries:
            for session, outcome in engine.take_deliveries():
                assert session.owner is not None, "a session that waits has an owner"
                session.owner.deliver(outcome, request_ms)

    def _commit_turn(
        self,
        commit: "GroupCommit",
        log: list[bytes],
        replies: "Replies",
        free: "Replies",
        *,
        must_sync: bool,
    ) -> None:
        """Have records and replies committed."""
        engine = self._engine
        store = engine.store
        commit.commit(
            log,
            replies,
            must_sync=must_sync,
            time_ms=store.time_ms,
            # Of the same instant, or a start would lose what the turn took.
            wall_ms=self._clock.wall_at(store.time_ms),
            last_id=store.last_id,
            free=free,
        )
        if log:
            # How much space there is, unless there is plenty and it was looked at lately.
            space = engine.log_space
            self._space_turns += 1
            is_low = space.free_bytes < SPACE_PLENTY_BYTES or self._space_turns > SPACE_TURNS_MAX
            if is_low or (self._space is not None and self._space.is_stale):
                self.limit_space()
            else:
                space.free_bytes -= TURN_OVERHEAD_BYTES
            if commit.log_bytes >= self._step_log_bytes:
                self._step_ns = 0

    # --- Space for records -----------------------------------------------------------------------

    def limit_space(self) -> None:
        """Tell the engine how much the log can take in the turns to come."""
        if self._space is None:
            return
        self._space_turns = 0
        engine = self._engine
        space = engine.log_space
        set_aside_bytes = space.set_aside_bytes(len(engine.store.leases.sessions))
        space.limit(self._space.beyond(set_aside_bytes), self._space.more)
        if space.is_short and space.free_bytes >= RESERVE_COST_BYTES:
            self._has_more = True

    def _serve_short(self, now_ms: RequestMs) -> None:
        """Hand out what there was no space for, if there is some now."""
        try:
            self._engine.log_space.require(RESERVE_COST_BYTES)
        except OutOfSpace:
            return
        serve_waiting(self._engine, now_ms)
