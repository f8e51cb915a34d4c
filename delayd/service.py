"""The daemon: opens, recovers, serves in turns, stops.

    recover   journal ─► replay ─► engine            (the sockets already listen; clients wait)
    turn      clock ─► advance ─► line.serve ─► engine ─► records, deliveries, replies
              └─ group commit: append, sync, release
    sleep     until the wheel's next deadline or until somebody speaks
    stop      no more clients ─► last replies ─► reservations back ─► commit ─► close

This is the one place where clock, engine, journal and sockets meet. A turn reads the clock once. It
ends by arming one timer for the engine's next deadline; with nothing due and nobody speaking the
process sleeps. The watchdog comes round once a minute to find a wake-up that was missed, which
would be a fault of ours: it repairs it, logs it, and counts it in `repairs`.
"""

import asyncio
import contextlib
import gc
import os
import signal
import sys
import traceback
from typing import Any, Final

from delayd import __version__
from delayd.clock import Clock, monotonic_ns
from delayd.commit import GroupCommit, Space
from delayd.config import Config
from delayd.core.engine import Engine
from delayd.core.errors import OutOfSpace
from delayd.core.limits import (
    ADVANCE_SLICE_MS,
    GC_YOUNG_OBJECTS,
    MISSED_WAKE_UP_MS,
    RECOVERY_REPORT_MS,
    SLOW_SYNC_MS,
    STOP_MS_MAX,
    WATCHDOG_MS,
)
from delayd.core.replay import Replay, UnknownRecord
from delayd.core.room import RESERVE_COST_BYTES
from delayd.exits import Exit
from delayd.journal.disk import RealDisk
from delayd.journal.errors import (
    DamageError,
    DirectoryLocked,
    JournalCorrupt,
    JournalError,
)
from delayd.journal.journal import Journal
from delayd.line.server import LineServer
from delayd.line.stats import Stats
from delayd.logs import Log
from delayd.sockets import Listeners, TcpAddress
from delayd.systemd import Notifier

NS_PER_MS: Final = 1_000_000

TRY_IT: Final = (
    "to put a job that comes back in 5 seconds: bash -c 'exec 3<>/dev/tcp/{host}/{port}; "
    r'printf "put 0 5 60 5\r\nhello\r\nreserve\r\nquit\r\n" >&3; cat <&3'
    "'\n"
)
"""For a newcomer, to paste into a shell."""

_STOP_STEP_MS: Final = 10


def run(config: Config, listeners: Listeners, clock: Clock, notifier: Notifier) -> int:
    """Serve until told to stop; return the exit code. Takes over the listeners."""
    log = Log(sys.stderr, clock.wall_ms, log_format=config.log_format, level=config.log_level)
    try:
        engine, journal = recover(config, clock, log, notifier)
    except JournalError as error:
        listeners.close()
        log.error("the journal cannot be used", reason=str(error))  # noqa: TRY400 (our own log)
        return exit_code_of(error)
    service = Service(config, listeners, clock, log, notifier, engine, journal)
    return asyncio.run(service.serve())


def exit_code_of(error: JournalError) -> Exit:
    """Return how the process ends after such an error."""
    if isinstance(error, DirectoryLocked):
        return Exit.DIRECTORY_LOCKED
    if isinstance(error, DamageError):
        return Exit.CORRUPT_JOURNAL
    return Exit.JOURNAL_FAILED


def recover(
    config: Config, clock: Clock, log: Log, notifier: Notifier
) -> tuple[Engine, Journal | None]:
    """Bring the engine to where the journal says it was. Raises `JournalError`.

    The garbage collector is off meanwhile and what was loaded is then taken out of its sight: jobs
    are bytes, but the tables that hold them would be walked again and again.
    """
    gc.disable()
    if config.data_dir is None:
        engine = _new_engine(config, clock.now_ms())
        journal = None
    else:
        journal = Journal.open(config.data_dir, disk=RealDisk(), segment_bytes=config.segment_bytes)
        engine = _replayed(config, journal, clock, log, notifier)
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)
    gc.enable()
    return engine, journal


def _new_engine(config: Config, start_ms: int) -> Engine:
    return Engine(
        start_ms=start_ms,
        tick_ms=config.tick_ms,
        wheel_size=config.wheel_size,
        body_bytes_max=config.body_bytes_max,
    )


def _replayed(
    config: Config, journal: Journal, clock: Clock, log: Log, notifier: Notifier
) -> Engine:
    replay = None
    last = None
    report_ns = monotonic_ns() + RECOVERY_REPORT_MS * NS_PER_MS
    for frame in journal.replay():
        if replay is None:
            replay = Replay(_new_engine(config, frame.time_ms))
        try:
            replay.play(frame.payload)
        except UnknownRecord as error:
            where = f"frame {frame.sequence} holds {error}"
            raise JournalCorrupt(config.data_dir or "", 0, where) from error
        last = frame
        if monotonic_ns() > report_ns:
            report_ns += RECOVERY_REPORT_MS * NS_PER_MS
            jobs = len(replay.engine.store.jobs)
            log.info("recovering", jobs=jobs, frame=frame.sequence)
            notifier.extend_start_ms(10 * RECOVERY_REPORT_MS, f"recovering: {jobs} jobs so far")
    for tail in journal.torn_tails:
        log.warning("the torn end of the last write was cut off", tail=str(tail))
    if last is not None:
        clock.resume(last.time_ms, last.wall_ms)
    if replay is None:
        return _new_engine(config, clock.now_ms())
    replay.finish(clock.now_ms())
    return replay.engine


class Service:
    """A recovered daemon that serves in turns."""

    def __init__(
        self,
        config: Config,
        listeners: Listeners,
        clock: Clock,
        log: Log,
        notifier: Notifier,
        engine: Engine,
        journal: Journal | None,
    ) -> None:
        """Put the parts together; `serve` starts them."""
        self._config = config
        self._listeners = listeners
        self._clock = clock
        self._log = log
        self._notifier = notifier
        self._engine = engine
        self._journal = journal
        self._commit: GroupCommit | None = None
        self._space: Space | None = None
        self._exit = Exit.OK
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms: int | None = None
        self._wake_is_asked = False
        self.repairs = 0
        """Wake-ups that the watchdog found missing; always 0, or there is a fault in here."""
        stats = Stats(engine, clock.now_ms())
        self._line = LineServer(
            engine,
            stats,
            [listener.socket for listener in listeners.line],
            self.wake,
            self._request_ms,
            connections_max=config.line_connections_max,
            out_bytes_max=config.line_write_buffer_bytes_max,
        )

    # --- From start to stop ----------------------------------------------------------------------

    async def serve(self) -> int:
        """Serve until a signal or a failure says stop; return the exit code."""
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self._line_is_watched = False
        if self._journal is not None:
            self._commit = GroupCommit(
                self._journal,
                self._config.sync,
                self._config.sync_interval_ms,
                self._loop,
                self._fail,
                self._watch_line,
            )
            self._commit.on_slow_sync = self._tell_of_slow_sync
            self._journal.on_trouble = self._disk_trouble
            self._space = Space(self._journal, self._tell_of_space)
            self._engine.room.jobs = len(self._engine.store.jobs)
            self._limit_room()
        self._loop.set_exception_handler(self._crash)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stopping.set)
        self._loop.add_signal_handler(signal.SIGUSR1, self._drain)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._watch_line()
        self._turn()
        self._watchdog()
        self._announce()
        await self._stopping.wait()
        await self._stop()
        return self._exit

    def _announce(self) -> None:
        addresses = [listener.address for listener in self._listeners.line]
        where = ", ".join(f"line {address}" for address in addresses)
        said = f"delayd {__version__} ready: {where}\n"
        for address in addresses[:1]:
            if isinstance(address, TcpAddress):
                said += TRY_IT.format(host=address.host, port=address.port)
        if sys.stdout is not None:  # that nobody wants to hear it is no reason to stop
            with contextlib.suppress(OSError):
                sys.stdout.write(said)
                sys.stdout.flush()
        self._log.info("ready", line=where, jobs=len(self._engine.store.jobs))
        self._notifier.ready(f"serving on {where}")

    def _drain(self) -> None:
        self._engine.draining = True
        self._log.info("draining: new jobs are refused")

    def _reload(self) -> None:
        self._log.info("nothing to reload: the configuration is read at the start")

    async def _stop(self) -> None:
        """Stop in order: no more clients, last replies, reservations back, commit, close."""
        self._notifier.stopping("stopping")
        self._line.stop_accepting()
        self._listeners.close()
        if self._exit is Exit.OK:
            self._turn()
            await self._last_replies()
            self._line.close_clients(self._clock.now_ms() + 1)
            self._end_turn(self._clock.now_ms())
        self._unwatch_line()
        if self._timer is not None:
            self._timer.cancel()
        if self._commit is not None:
            self._commit.close()
        self._line.close()
        if self._journal is not None:
            try:
                self._journal.close()
            except JournalError as error:
                self._fail(error)
        self._log.info("stopped", exit=int(self._exit))

    async def _last_replies(self) -> None:
        """Let clients take what was promised to them, for a bounded time."""
        for _ in range(STOP_MS_MAX // _STOP_STEP_MS):
            if not self._line.has_unsent:
                return
            await asyncio.sleep(_STOP_STEP_MS / 1_000)

    def _crash(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """End the process at once, after a fault of our own.

        What is in memory can no longer be trusted, so nothing of it may be acknowledged. What was
        acknowledged is in the journal.
        """
        fault = context.get("exception")
        trace = "".join(traceback.format_exception(fault)) if fault else context["message"]
        self._log.error("a fault in delayd: stopping at once", trace=trace)
        os._exit(Exit.OUR_FAULT)

    def _fail(self, error: JournalError) -> None:
        """Stop at once: nothing more may be acknowledged."""
        self._exit = exit_code_of(error)
        self._log.error("the journal failed", reason=str(error))
        self._stopping.set()

    # --- The disk --------------------------------------------------------------------------------

    def _limit_room(self) -> None:
        """Tell the engine how much the log can take in the next turn."""
        if self._space is None:
            return
        engine = self._engine
        room = engine.room
        set_aside_bytes = room.set_aside_bytes(len(engine.store.holders))
        room.limit(self._space.beyond(set_aside_bytes), self._space.more)
        if room.is_short and room.free_bytes >= RESERVE_COST_BYTES:
            self.wake()

    def _serve_short(self, now_ms: int) -> None:
        """Hand out what there was no room for, if there is some now."""
        try:
            self._engine.room.require(RESERVE_COST_BYTES)
        except OutOfSpace:
            return
        self._engine.serve_waiting(now_ms)

    def _tell_of_space(self, is_full: bool) -> None:  # noqa: FBT001 (a callback with one argument)
        if is_full:
            self._log.warning("the disk is full: puts are refused, removals go on")
        else:
            self._log.info("there is space again: puts are accepted")

    def _tell_of_slow_sync(self, sync_ms: int) -> None:
        self._log.warning("the disk was slow to sync", ms=sync_ms)

    def _disk_trouble(self, what: str) -> None:
        """Log what the journal tells, in whichever thread that happens."""
        self._log.error("the disk failed, and the log goes on", what=what)

    # --- Turns -----------------------------------------------------------------------------------

    def _request_ms(self) -> int:
        """Return delayd time as requests see it: rounded up."""
        return self._clock.now_ms() + 1

    def wake(self) -> None:
        """Ask for a turn soon."""
        if not self._wake_is_asked:
            self._wake_is_asked = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Let happen what is due, carry out what clients have said, commit, arm the timer."""
        self._wake_is_asked = False
        if self._exit is not Exit.OK:
            return
        due_by_ms = self._clock.now_ms()
        if self._engine.room.is_short:
            self._serve_short(due_by_ms + 1)
        self._advance(due_by_ms)
        if self._line_is_watched:
            self._line.serve(due_by_ms + 1)
        self._end_turn(due_by_ms)

    def _advance(self, due_by_ms: int) -> None:
        """Fire what is due, for a bounded time; what is left has its turn after everybody else."""
        advance = self._engine.advance
        now_ms = due_by_ms + 1
        if advance(due_by_ms, now_ms):
            until_ns = monotonic_ns() + ADVANCE_SLICE_MS * NS_PER_MS
            while advance(due_by_ms, now_ms):
                if monotonic_ns() > until_ns:
                    break

    def _end_turn(self, time_ms: int) -> None:
        engine = self._engine
        while deliveries := engine.take_deliveries():
            for session, outcome in deliveries:
                assert session.owner is not None, "who waits has somebody to tell"
                session.owner.deliver(outcome, time_ms + 1)
        log, must_sync = engine.take_log()
        replies = self._line.take_replies()
        deadline_ms = engine.next_deadline()
        if self._commit is not None:
            if log or replies:
                self._commit.commit(
                    log,
                    replies,
                    must_sync=must_sync,
                    time_ms=engine.store.time_ms,
                    wall_ms=self._clock.wall_ms(),
                    idle_ms=WATCHDOG_MS if deadline_ms is None else deadline_ms - time_ms,
                )
                if self._commit.is_backed_up:
                    self._unwatch_line()
        else:
            for client, data in replies:
                client.send(data)
        self._limit_room()
        self._arm(deadline_ms, time_ms)

    def _arm(self, deadline_ms: int | None, time_ms: int) -> None:
        """Set the timer to the engine's next deadline."""
        if deadline_ms == self._timer_ms:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_ms = deadline_ms
        if deadline_ms is not None:
            if deadline_ms <= time_ms:
                self._timer_ms = None
                self.wake()
            else:
                delay_s = self._clock.seconds_until(deadline_ms)
                self._timer = self._loop.call_later(delay_s, self._timer_rings)

    def _timer_rings(self) -> None:
        self._timer = self._timer_ms = None
        self._turn()

    def _watchdog(self) -> None:
        """Look for a wake-up that was missed, for stalled clients, and come back in a minute."""
        now_ms = self._clock.now_ms()
        deadline_ms = self._engine.next_deadline()
        if deadline_ms is not None and deadline_ms + MISSED_WAKE_UP_MS < now_ms:
            self.repairs += 1
            self._log.error("a wake-up was missed and is repaired", late_ms=now_ms - deadline_ms)
        closed = self._line.close_stalled(now_ms + 1)
        if closed:
            self._log.warning("clients that do not read were closed", clients=closed)
        if self._commit is not None and self._commit.sync_going_on_ms > SLOW_SYNC_MS:
            self._log.error("the disk does not answer", ms=self._commit.sync_going_on_ms)
        # The loop's clock stands still while the machine sleeps: the timer is always set anew.
        self._timer_ms = None
        self._turn()
        self._notifier.watchdog()
        wait_ms = min(WATCHDOG_MS, (self._notifier.watchdog_ms or 2 * WATCHDOG_MS) // 2)
        self._loop.call_later(wait_ms / 1_000, self._watchdog)

    # --- Reading from the line or not ------------------------------------------------------------

    def _watch_line(self) -> None:
        if not self._line_is_watched:
            self._line_is_watched = True
            self._loop.add_reader(self._line.fileno(), self._turn)

    def _unwatch_line(self) -> None:
        """Leave what clients say in their sockets: enough is waiting for the disk already."""
        if self._line_is_watched:
            self._line_is_watched = False
            self._loop.remove_reader(self._line.fileno())
