"""The daemon: opens, recovers, serves in turns, stops.

    recover   journal ─► replay ─► engine            (the sockets already listen; clients wait)
    turn      clock ─► advance ─► line.serve ─► engine ─► records, deliveries, replies
              └─ group commit: append, sync, release
    sleep     until the wheel's next deadline or until a client sends something
    stop      no more clients ─► last replies ─► reservations back ─► commit ─► close

This is the one place where clock, engine, journal and sockets meet: the parts of a daemon are made
here, and each is given what it needs of the others. A turn reads the clock once. It ends by arming
one timer for the engine's next deadline; with nothing due and silent clients the process sleeps.
Once a minute it is checked whether a wake-up was missed, which would be a fault of ours: that is
repaired, logged and counted.

Everything happens in one loop, our own until HTTP or deliveries need asyncio (`loop.py`).
"""

import contextlib
import gc
import os
import signal
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from delayd.access.connection_limits import ConnectionLimits
from delayd.access.errors import AccessInvalid
from delayd.access.rejections import Rejections
from delayd.access.reload import AccessControl
from delayd.clock import (
    NS_PER_MS,
    Clock,
    VirtualClock,
    monotonic_ns,
    open_set_watch,
    system_wall_ms,
)
from delayd.compat import Compat
from delayd.config import Config, ConfigErrors
from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.errors import OutOfSpace
from delayd.core.stats.refusals import Refusals
from delayd.exits import Exit
from delayd.fields import Wrong
from delayd.figures import DaemonFigures, log_figures
from delayd.limits import (
    BUSY_POLL_US,
    HANDOVER_LAG_MS_MAX,
    LOG_ID_BYTES,
    READY_BODY_BYTES,
    RETURNS_PER_STOP_TURN,
    SLOW_SYNC_MS,
    STOP_CLOSE_MS,
    STOP_MS_MAX,
    STOP_RETURNS_MS,
)
from delayd.line.server import LineServer
from delayd.line.stats import Stats
from delayd.log import LogError
from delayd.log_lines import Log, keep_libraries_quiet
from delayd.loop import MainLoop, end_waits_on_time
from delayd.net.addresses import CannotListen, Listeners, TcpAddress, is_local
from delayd.net.peers import is_own_fault, is_peer_error
from delayd.net.poller import Poller
from delayd.notices import Notices
from delayd.recover import recover, what_helps
from delayd.schedules.opening import ScheduleOpener
from delayd.systemd import Notifier, Watchdog
from delayd.turns import Turns, TurnSelector

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Coroutine, Iterator, Sequence

    from delayd.commit import GroupCommit
    from delayd.http.server import HttpServer
    from delayd.log import DurableLog, LogOwnership
    from delayd.push.opening import Deliveries, Push
    from delayd.snapshots import Snapshots

_STOP_STEP_MS: Final = 10
_WILDCARDS: Final = ("0.0.0.0", "::")  # noqa: S104 - compared with, not listened on
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)


def run(
    config: Config,
    listeners: Listeners,
    clock: Clock,
    notifier: Notifier,
    *,
    compat: Compat = Compat.V1_13,
    prints: bool = True,
) -> int:
    """Serve until told to stop; return the exit code. Takes over the listeners.

    Those of the line begin to listen when this daemon owns the log, if they do not yet: clients
    find the owner by its open port. Clients of the line get the answers of the beanstalkd that
    `compat` names. If it `prints`, a line on standard output says when it is ready and where.
    """
    end_waits_on_time()
    log = Log(sys.stderr, system_wall_ms, log_format=config.log_format, level=config.log_level)
    try:
        access = AccessControl.open(config)
    except AccessInvalid as error:
        listeners.close()
        for problem in error.errors:
            log.error("tokens, secrets or certificates cannot be used", reason=problem)  # noqa: TRY400 (our own log)
        return Exit.BAD_CONFIGURATION
    access.warn(listeners, log)
    Rejections(log, lambda: monotonic_ns() // NS_PER_MS).listen_to(access.authenticator)
    try:
        config, push = push_of(config, access, listeners)
    except ConfigErrors as wrong:
        listeners.close()
        for mistake in wrong.errors:
            log.error("the configuration cannot be used", reason=str(mistake))  # noqa: TRY400 (our own log)
        return Exit.BAD_CONFIGURATION
    try:
        recovered = _recovered(config, clock, log, notifier, access, listeners)
    except LogError as error:
        listeners.close()
        log.error("the journal cannot be used", reason=str(error), **what_helps(error, config))  # noqa: TRY400 (our own log)
        return error.exit_code
    except CannotListen as error:
        log.error("this daemon cannot serve", reason=str(error))  # noqa: TRY400 (our own log)
        return Exit.CANNOT_LISTEN
    if recovered is None:
        listeners.close()
        log.info("stopped", exit=int(Exit.OK))
        return Exit.OK
    engine, durable = recovered
    service = Service(
        *(config, listeners, clock, log, notifier, engine, durable, access, compat, push),
        prints=prints,
    )
    return service.run()


def _recovered(
    config: Config,
    clock: Clock,
    log: Log,
    notifier: Notifier,
    access: AccessControl,
    listeners: Listeners,
) -> "tuple[Engine, DurableLog | None] | None":
    """Return the engine and its log, which this daemon owns; None: a signal came before.

    Raises LogError, and CannotListen with everything closed.
    """
    if config.postgres_url is None:
        return recover(config, clock, log, notifier)
    from delayd.standby import Standby  # noqa: PLC0415 - asyncio

    address = announced(config, listeners)
    standby = Standby(
        *(config, clock, log, notifier, access, listeners, address),
        partial(_import_what_serves, config),
    )
    recovered = standby.recovered()
    if recovered is None:
        return None
    _, durable = recovered
    has_stood_by = durable is not None and durable.owner
    if has_stood_by and (config.auth_tokens or config.push_secrets or config.tls_certificate):
        access.reload(log)  # it was maybe long
    try:
        for listener in listeners.line:
            listener.listen()
    except CannotListen:
        listeners.close()
        if durable is not None:
            durable.close()
        raise
    return recovered


def successor(ownership: "LogOwnership | None") -> tuple[str, str]:
    """Return the address of the standby that can take the log over, or else why none can."""
    if ownership is None:
        return "", "the log is not in a database, so no other daemon can follow it"
    if not ownership.standbys:
        return "", "no other daemon follows the log: start one with the same configuration"
    best = min(ownership.standbys, key=lambda each: each.lag_ms)
    if best.lag_ms > HANDOVER_LAG_MS_MAX:
        lag = f"{best.lag_ms / 1_000:.1f} s behind"
        return "", f"the standby {best.address} is {lag}: try again when it has caught up"
    return best.address, ""


def _import_what_serves(config: Config) -> None:
    """Import what a daemon imports when it begins to serve, so that a standby takes over sooner."""
    import delayd.commit  # noqa: PLC0415
    import delayd.snapshots  # noqa: F401, PLC0415

    if config.push_enabled:
        from delayd.push.opening import import_sender  # noqa: PLC0415

        import_sender()


def announced(config: Config, listeners: Listeners) -> str:
    """Return where other machines find this daemon: by the name of `postgres.address`.

    Without one it is where it listens, or the machine's name where that is every address.
    """
    nodename = os.uname().nodename
    places = []
    is_here = False
    for name, opened in listeners._asdict().items():
        for address in (listener.address for listener in opened):
            is_here |= config.postgres_address is None and is_local(address)
            shown = address
            if isinstance(address, TcpAddress):
                host = config.postgres_address
                if host is None and address.host in _WILDCARDS:
                    host = nodename
                shown = address._replace(host=host or address.host)
            places.append(f"{name} {shown}")
    return ", ".join(places) + f" on {nodename}" * is_here


def push_of(
    config: Config, access: AccessControl, listeners: Listeners
) -> "tuple[Config, Push | None]":
    """Return what delivers, None if push is off, and the configuration with targets as kept.

    Raises `ConfigErrors` with each sink and target that cannot be used.
    """
    if config.push_enabled:
        from delayd.push.opening import open_push  # noqa: PLC0415 - not if push is off

        return open_push(config, access.secrets, listeners)
    policies = {} if config.topics is None else config.topics.by_pattern
    aimed = [
        f'topics."{name}".push' for name, policy in policies.items() if policy.push is not None
    ]
    schedules = {} if config.schedules is None else config.schedules
    aimed += [f"schedules.{name}.url" for name, (each, _) in schedules.items() if each.url]
    if aimed:
        raise ConfigErrors(Wrong(place, "needs push.enabled = true") for place in aimed)
    return config, None


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
        durable: "DurableLog | None",
        access: AccessControl,
        compat: Compat,
        push: "Push | None" = None,
        *,
        prints: bool,
    ) -> None:
        """Make the parts, from the ground upwards, and join them."""
        self._config = config
        self._listeners = listeners
        self._clock = clock
        self._notifier = notifier
        self._engine = engine
        self._durable = durable
        self._access = access
        self._prints = prints
        self._exit = Exit.OK
        self._is_ending = False
        """A signal or a failure has begun the stop."""
        self._loop = loop = MainLoop()
        space = None if durable is None else durable.space
        keeper = "disk" if durable is None else durable.keeper
        self._notices = notices = Notices(log, engine, space, keeper)
        self._snapshots: Snapshots | None = None
        self._commit: GroupCommit | None = None
        if durable is not None:
            self._snapshots, self._commit = self._keeping(durable, log)
        self._deliveries: Deliveries | None = None
        if push is not None:
            self._deliveries = self._delivering(push, log)
        self._refusals = Refusals()
        self._poller = poller = Poller()
        self._tasks = BackgroundTasks(engine)
        self._schedules = ScheduleOpener(engine, self._tasks, self._follow_wall, log.warning)
        self._line = self._new_line(compat)
        self._turns = Turns(
            *(engine, clock, poller, self._line, self._tasks, loop),
            *(self._commit, space, self._snapshots),
            busy_poll_ns=BUSY_POLL_US * 1_000 * _is_worth_polling(config),
            on_push=None if self._deliveries is None else self._deliveries.on_push,
            on_wall_step=self._wall_stepped,
            on_long_hold=notices.long_hold,
        )
        self._http: HttpServer | None = None
        self._set_watch = open_set_watch()
        self._watchdog = Watchdog(notifier, self._check, loop.call_later)
        self._poller.listen_to(loop.fileno(), self._turns.wake_loop)
        if self._commit is not None and (descriptor := self._commit.fileno()) is not None:
            self._poller.listen_to(descriptor, self._commit.reap, each_time=False)
        if self._set_watch is not None:
            self._poller.listen_to(self._set_watch.fileno(), self._wall_clock_set, each_time=False)

    def _keeping(self, durable: "DurableLog", log: Log) -> "tuple[Snapshots, GroupCommit]":
        """Return what keeps jobs in the log."""
        from delayd.commit import GroupCommit  # noqa: PLC0415 - only where jobs are kept
        from delayd.snapshots import Snapshots  # noqa: PLC0415

        config, engine, loop, notices = self._config, self._engine, self._loop, self._notices
        snapshots = Snapshots(
            *(engine, durable, log),
            wall_at=self._clock.wall_at,
            tell=loop.call_soon_threadsafe,
            on_failure=self._fail,
        )
        commit = GroupCommit(
            *(durable, config.sync, config.sync_interval_ms, loop, self._fail),
            on_lost=self._replace_lost,
            on_slow_sync=notices.slow_sync,
        )
        durable.space.on_change = self._space_changed
        durable.watch_standbys()
        engine.log_space.jobs = len(engine.store.jobs)
        return snapshots, commit

    def _delivering(self, push: "Push", log: Log) -> "Deliveries":
        """Return what delivers jobs that are to be pushed."""
        from delayd.push.opening import Deliveries  # noqa: PLC0415 - see `push_of`

        identity = os.urandom(LOG_ID_BYTES) if self._durable is None else self._durable.identity
        return Deliveries(push, self._config, self._engine, self._clock, log, self._loop, identity)

    def _new_line(self, compat: Compat) -> LineServer:
        config, engine, clock = self._config, self._engine, self._clock
        read_log = partial(log_figures, self._durable, self._commit, config.segment_bytes)
        return LineServer(
            engine,
            Stats(engine, clock.now_ms(), read_log, self._refusals, compat=compat),
            [listener.socket for listener in self._listeners.line],
            clock.request_ms,
            self._poller,
            self._tasks,
            self._schedules,
            out_bytes_max=config.line_write_buffer_bytes_max,
            clock=clock if isinstance(clock, VirtualClock) else None,
            admission=ConnectionLimits(
                self._access.authenticator, connections_max=config.line_connections_max
            ),
            tls=self._access.line_tls,
            durable=self._commit,
        )

    # --- The loop --------------------------------------------------------------------------------

    def run(self) -> int:
        """Serve until a signal or a failure says stop; return the exit code."""
        deliveries = self._deliveries
        needs_asyncio = bool(self._listeners.http) or (
            deliveries is not None and deliveries.has_targets
        )
        try:
            if not needs_asyncio:
                self._begin()
                self._loop.run(self._sleep)
            if self._is_ending:
                for _ in self._stop():  # there are only steps to wait for without asyncio
                    self._sleep(_STOP_STEP_MS / 1_000)
                    self._loop.call_due()
            else:
                self._run_with_asyncio(has_begun=not needs_asyncio)
        except Exception as fault:  # noqa: BLE001 (whatever it is, memory cannot be trusted now)
            self._crash({"exception": fault})
        if deliveries is not None:
            deliveries.close()
        self._loop.close()
        return self._exit

    def _run_with_asyncio(self, *, has_begun: bool) -> None:
        """Serve in asyncio's loop, from the start or from now on."""
        import asyncio  # noqa: PLC0415 - takes as long as all of the line, which does not need it

        keep_libraries_quiet()
        selector = TurnSelector()

        def new_loop() -> asyncio.AbstractEventLoop:
            return asyncio.SelectorEventLoop(selector)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(self._serve(selector, has_begun=has_begun))

    async def _serve(self, selector: TurnSelector, *, has_begun: bool) -> None:
        import asyncio  # noqa: PLC0415

        loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        loop.set_exception_handler(self._complain)
        self._loop.hand_over(loop, stopping.set)
        selector.sleep = self._sleep
        self._poller.listen_to(selector.fileno(), self._turns.wake_loop)
        self._turns.loop_fd = selector.fileno()
        deliveries = self._deliveries
        if deliveries is not None:
            deliveries.open(self._turns)
        if has_begun:
            self._turns.ask()
        else:
            self._begin()
        await stopping.wait()
        for ends in self._stop():
            if ends:
                await asyncio.gather(*ends)
            else:
                await asyncio.sleep(_STOP_STEP_MS / 1_000)
        selector.sleep = None
        if deliveries is not None and deliveries.has_strays:
            self._notices.stray_sink()
            os._exit(self._exit)  # asyncio would wait for it

    def _begin(self) -> None:
        """Take the first turns."""
        self._ask_for_space()
        gc.callbacks.append(self._turns.note_collection)
        self._turns.look_at_wall_clock()
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ask_to_stop)
        self._loop.add_signal_handler(signal.SIGUSR1, self._drain)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # what came before is handled now
        self._turns.turn()
        if done := self._schedules.begin(self._config.schedules, self._clock.request_ms()):
            self._notices.log.info(done)
        if self._listeners.http:
            self._open_http()
            self._turns.turn()  # that took a while, in which no client had to be woken
        self._watchdog.go()
        if not self._turns.is_over:  # the journal may have failed in the first turn
            self._notices.undeliverable()
            where = self._notices.serving(
                *(self._listeners, self._where()),
                prints=self._prints,
                is_open=self._access.is_open,
            )
            self._notifier.ready(f"serving on {where}")

    def _where(self) -> str | None:
        """Return the directory of the jobs; None when there is none, or a database."""
        return self._config.data_dir if self._config.postgres_url is None else None

    def _open_http(self) -> None:
        """Serve the API."""
        from delayd.http import server  # noqa: PLC0415 - aiohttp takes 250 ms
        from delayd.http.api import Api  # noqa: PLC0415
        from delayd.http.bounds import bounds_of  # noqa: PLC0415

        clock, engine, turns = self._clock, self._engine, self._turns
        figures = DaemonFigures(
            *(engine, self._line.stats, turns, self._durable, self._commit, self._deliveries),
            self._schedules,
        )
        api = Api(
            *(engine, turns, clock, self._tasks, self._schedules),
            standing=clock if isinstance(clock, VirtualClock) else None,
            refusals=self._refusals,
            reports=figures.reports(self._refusals, lambda: http, self._hand_over),
            idempotency_keys_max=self._config.http_idempotency_keys_max,
        )
        self._http = http = server.HttpServer(
            api,
            self._access,
            bounds_of(self._config),
            self._config.http_hosts,
            [listener.socket for listener in self._listeners.http],
            lambda fault: self._crash({"exception": fault}),
            serves_ui=self._config.http_ui,
        )
        http.start()

    def _sleep(self, timeout_s: float | None) -> None:
        """Take turns; a fault in one of them ends the process."""
        try:
            self._turns.sleep(timeout_s)
        except Exception as fault:  # noqa: BLE001 (whatever it is, memory cannot be trusted now)
            self._crash({"exception": fault})

    # --- While it serves -------------------------------------------------------------------------

    def _drain(self) -> None:
        self._notices.draining(is_new=not self._engine.draining)
        self._engine.draining = True

    def _reload(self) -> None:
        self._access.reload(self._notices.log)
        self._close_unauthorized()
        self._notices.undeliverable()

    def _close_unauthorized(self) -> None:
        """Close clients of the line whose tokens were revoked, or are past their time."""
        closed = self._line.close_unauthorized()
        self._notices.closed(closed, "closed clients whose tokens expired or were revoked")
        self._turns.ask()

    def _wall_clock_set(self) -> None:
        """Look at the wall clock at once: it was set."""
        if self._set_watch is not None:
            self._set_watch.arm()
        self._turns.note_wall_clock(is_set=True)
        self._turns.ask()

    def _follow_wall(self) -> None:
        self._turns.look_at_wall_clock()

    def _wall_stepped(self, step_ms: int) -> None:
        self._notices.wall_step(step_ms)
        self._schedules.wall_stepped(step_ms)

    def _ask_for_space(self) -> None:
        """Say at the start that the disk is full, and not at the first put."""
        figures = {} if self._durable is None else self._durable.space.figures()
        free, needed = figures.get("free_bytes"), figures.get("needed_bytes")
        if isinstance(free, int) and isinstance(needed, int) and free < needed:
            with contextlib.suppress(OutOfSpace):
                self._engine.log_space.require_for_put(READY_BODY_BYTES)

    def _replace_lost(self, missing: str) -> None:
        """Have what is missing on the disk written again, from memory."""
        self._notices.lost(missing)
        self._ask_for_snapshot()

    def _space_changed(self, is_full: bool) -> None:  # noqa: FBT001 - a callback with one argument
        """Tell of it, and see whether a snapshot makes space."""
        self._notices.space_changed(is_full)
        self._ask_for_snapshot()

    def _ask_for_snapshot(self) -> None:
        if self._snapshots is not None:  # or it looks for itself soon after the start
            self._snapshots.ask_soon()
        self._loop.is_woken = True

    def _check(self) -> None:
        """Look for a wake-up that was missed, for stalled clients, and for a disk that hangs.

        The first time is at the start, on a wall clock that may have gone back since the stop.
        """
        if late_ms := self._turns.overslept_ms():
            self._notices.overslept(late_ms)
        stalled = self._line.close_stalled()
        self._notices.closed(stalled, "closed clients that do not read")
        self._close_unauthorized()
        if self._durable is not None:
            if self._durable.settling_ms > SLOW_SYNC_MS:
                self._notices.log_hangs(self._durable.settling_ms)
            self._durable.find_lost()
        self._access.keep_days(self._notices.log)
        self._turns.note_wall_clock()

    # --- The end ---------------------------------------------------------------------------------

    def _ask_to_stop(self) -> None:
        self._is_ending = True
        self._loop.stop()

    def _hand_over(self) -> tuple[str, str]:
        """Stop if a standby can take over; return its address, or else why that cannot be."""
        standby, why = successor(None if self._durable is None else self._durable.ownership)
        if not why:
            self._notices.handing_over(standby)
            self._exit = Exit.HANDED_OVER
            self._ask_to_stop()
        return standby, why

    def _fail(self, error: LogError) -> None:
        """Stop at once: nothing more may be acknowledged."""
        self._exit = error.exit_code
        self._notices.failed(error)
        self._turns.is_over = True
        self._turns.wake_loop()
        self._ask_to_stop()

    def _stop(self) -> "Iterator[Sequence[Coroutine[Any, Any, None]]]":
        """Stop, step by step. Yields what has to end before the next one; nothing: wait a moment.

        After a failure of the log nothing is answered any more, and no job given back.
        """
        deadline_ns = monotonic_ns() + (STOP_MS_MAX - STOP_CLOSE_MS) * NS_PER_MS
        self._stop_accepting()
        http, deliveries = self._http, self._deliveries
        if self._exit in {Exit.OK, Exit.HANDED_OVER}:
            self._turns.turn()
            ends = [] if http is None else [http.stop()]
            ends += [] if deliveries is None else deliveries.stop()
            if ends:
                yield ends
            returns = len(self._engine.store.leases.sessions) > RETURNS_PER_STOP_TURN
            ends_ns = deadline_ns - returns * STOP_RETURNS_MS * NS_PER_MS
            while self._line.has_unsent and monotonic_ns() < ends_ns:
                yield ()
            self._give_back(deadline_ns)
        else:
            if http is not None:
                http.abort()
            if deliveries is not None:
                deliveries.abort()
        self._close()

    def _stop_accepting(self) -> None:
        self._notifier.stopping("stopping")
        self._line.stop_accepting()
        if self._http is not None:
            self._http.stop_accepting()
        self._listeners.close()

    def _give_back(self, deadline_ns: int) -> None:
        """Close the clients: what they held is ready again, as far as there is time for it."""
        self._engine.is_stopping = True
        self._line.close_clients()
        ends_ns = max(deadline_ns, monotonic_ns() + STOP_RETURNS_MS * NS_PER_MS // 2)
        while self._turns.return_some(self._clock.request_ms()) and monotonic_ns() < ends_ns:
            pass
        self._notices.still_reserved(
            sum(len(session.deadlines) for session, _ in self._engine.ended_sessions)
        )

    def _close(self) -> None:
        """Write what is to be written and let go of everything."""
        self._turns.is_over = True
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._turns.note_collection)
        if self._commit is not None:
            self._commit.close()
        self._line.close()
        self._poller.close()
        if self._set_watch is not None:
            self._set_watch.close()
        if self._snapshots is not None:
            self._snapshots.close()
        self._access.keep_days(self._notices.log)
        if self._durable is not None:
            try:
                self._durable.close()
            except LogError as error:
                self._fail(error)
        # The process takes some more milliseconds to end, and must do so with this code.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._notices.stopped(self._exit)

    def _complain(self, _loop: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
        """Log what happened to a connection; anything else is a fault of ours."""
        if is_peer_error(context):
            self._notices.connection_failed(context)
        elif self._deliveries is None or is_own_fault(context):
            self._crash(context)
        else:
            self._notices.sink_left_behind(context)

    def _crash(self, context: dict[str, Any]) -> None:
        """End the process at once, after a fault of our own.

        What is in memory can no longer be trusted, so nothing of it may be acknowledged. What was
        acknowledged is in the journal.
        """
        self._notices.fault(context)
        os._exit(Exit.OUR_FAULT)


def _is_worth_polling(config: Config) -> bool:
    """Tell whether to stay awake for the next commands: there is another processor for clients."""
    return config.busy_poll and len(os.sched_getaffinity(0)) > 1
