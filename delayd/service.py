"""The daemon: opens, recovers, serves in turns, stops.

    recover   journal ─► replay ─► engine            (the sockets already listen; clients wait)
    turn      clock ─► advance ─► line.serve ─► engine ─► records, deliveries, replies
              └─ group commit: append, sync, release
    sleep     until the wheel's next deadline or until a client sends something
    stop      no more clients ─► last replies ─► reservations back ─► commit ─► close

This is the one place where clock, engine, journal and sockets meet. A turn reads the clock once. It
ends by arming one timer for the engine's next deadline; with nothing due and silent clients the
process sleeps. The watchdog comes round once a minute to find a wake-up that was missed, which
would be a fault of ours: it repairs it, logs it, and counts it in `repairs`.
"""

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from delayd import __version__
from delayd.access.connection_limits import ConnectionLimits
from delayd.access.control import AccessControl
from delayd.access.errors import AccessInvalid
from delayd.access.rejections import Rejections
from delayd.build import is_compiled
from delayd.clock import (
    NS_PER_MS,
    Clock,
    VirtualClock,
    monotonic_ns,
    open_set_watch,
    system_wall_ms,
)
from delayd.compat import Compat
from delayd.config import Config, ConfigError, ConfigErrors
from delayd.core.engine import Engine
from delayd.core.errors import OutOfSpace
from delayd.core.stats.refusals import Refusals
from delayd.core.throttle import PushBlock
from delayd.core.times import RequestMs
from delayd.exits import Exit
from delayd.limits import (
    BUSY_POLL_US,
    LOG_ID_BYTES,
    PUSH_TOPICS_TOLD,
    READY_BODY_BYTES,
    RETURNS_PER_STOP_TURN,
    SLOW_SYNC_MS,
    STOP_CLOSE_MS,
    STOP_MS_MAX,
    STOP_RETURNS_MS,
    WATCHDOG_MS,
)
from delayd.line.server import LineServer
from delayd.line.stats import LogFigures, Stats
from delayd.log import LogError
from delayd.logs import Log, Value, keep_libraries_quiet
from delayd.loop import PlainLoop
from delayd.net.addresses import Listeners, TcpAddress
from delayd.net.peers import RateLimited, is_own_fault, is_peer_error
from delayd.recover import recover, what_helps
from delayd.systemd import Notifier
from delayd.text import hide_in_urls
from delayd.turns import Turns, TurnSelector

if TYPE_CHECKING:
    import asyncio
    import threading

    from delayd.commit import GroupCommit
    from delayd.core.topic import Topic
    from delayd.http.api import Reports
    from delayd.http.request_counters import RequestCounters
    from delayd.http.server import HttpServer
    from delayd.log import DurableLog
    from delayd.metrics import PushFigures, Sources
    from delayd.push.opening import Push
    from delayd.push.sender import PushSender
    from delayd.snapshots import Snapshots

TRY_IT: Final = (
    "to put a job that comes in 5 seconds and is done then: "
    "bash -c 'exec 3<>/dev/tcp/{host}/{port}; "
    r'printf "use hello\r\nwatch hello\r\nignore default\r\n'
    r'put 0 5 60 5\r\nhello\r\nreserve\r\n" >&3; '
    "for i in 1 2 3 4; do read -r said id <&3; echo $said $id; done; "
    r'head -n 2 <&3; printf "delete $id\nquit\r\n" >&3; cat <&3'
    "'\n"
)
"""For a newcomer, to paste into a shell; `$id` ends in the CR of the reply it was read from.

It uses and watches a tube of its own: in `default` it would reserve a job that others wait for.
"""

_STOP_STEP_MS: Final = 10
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

    Clients of the line get the answers of the beanstalkd that `compat` names. If it `prints`, a
    line on standard output says when it is ready and where.
    """
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
        engine, durable = recover(config, clock, log, notifier)
    except LogError as error:
        listeners.close()
        log.error("the journal cannot be used", reason=str(error), **what_helps(error, config))  # noqa: TRY400 (our own log)
        return error.exit_code
    service = Service(
        *(config, listeners, clock, log, notifier, engine, durable, access, compat, push),
        prints=prints,
    )
    return service.run()


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
    aimed = [pattern for pattern, policy in policies.items() if policy.push is not None]
    if aimed:
        rule = "needs push.enabled = true"
        raise ConfigErrors([ConfigError("", f'topics."{name}".push', rule) for name in aimed])
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
        self._config = config
        self._listeners = listeners
        self._clock = clock
        self._log = log
        self._notifier = notifier
        self._engine = engine
        self._durable = durable
        self._access = access
        self._prints = prints
        self._push = push
        self._sender: PushSender | None = None
        if push is not None:
            engine.vet_target = push.vet
            engine.vet_use = push.vet_use
        self._commit: GroupCommit | None = None
        self._snapshots: Snapshots | None = None
        self._exit = Exit.OK
        self._stop_ends_ns = 0
        self._sparingly = RateLimited(lambda: monotonic_ns() // NS_PER_MS)
        self.repairs = 0
        """Wake-ups that the watchdog found missing; always 0, or there is a fault in here."""
        self._refusals = Refusals()
        stats = Stats(engine, clock.now_ms(), self._log_figures, self._refusals, compat=compat)
        self._line = LineServer(
            engine,
            stats,
            [listener.socket for listener in listeners.line],
            clock.request_ms,
            out_bytes_max=config.line_write_buffer_bytes_max,
            clock=clock if isinstance(clock, VirtualClock) else None,
            admission=ConnectionLimits(
                access.authenticator, connections_max=config.line_connections_max
            ),
            tls=access.line_tls,
        )
        self._http: HttpServer | None = None
        self._loop: asyncio.AbstractEventLoop | PlainLoop
        self._end_loop: Callable[[], object]
        self._is_ending = False
        """Told to stop, by a signal or a failure."""
        self._importer: threading.Thread | None = None

    # --- From start to stop ----------------------------------------------------------------------

    def run(self) -> int:
        """Serve until a signal or a failure says stop; return the exit code."""
        push = self._push
        if self._listeners.http or (push is not None and push.has_targets):
            return self._run_with_asyncio(None)
        loop = self._loop = PlainLoop()
        self._end_loop = loop.stop
        try:
            self._begin(loop.fileno())
            loop.run(self._sleep)
            if self._is_ending:
                self._stop_alone(loop)
            else:
                self._run_with_asyncio(loop)
        except Exception as fault:  # noqa: BLE001 (whatever it is, memory cannot be trusted now)
            self._crash(loop, {"exception": fault})
        if self._importer is not None:
            self._importer.join()  # it would wake the loop
        loop.close()
        return self._exit

    def _stop_alone(self, loop: PlainLoop) -> None:
        """Stop without asyncio."""
        if self._stop_accepting():
            self._turns.turn()
            for _ in self._last_replies():
                self._sleep(_STOP_STEP_MS / 1_000)
                loop.call_due()
            self._give_back()
        self._close()

    def _run_with_asyncio(self, before: PlainLoop | None) -> int:
        """Serve in asyncio's loop; `before` is the one in which the daemon has served so far."""
        import asyncio  # noqa: PLC0415 - takes as long as all of the line, which does not need it

        keep_libraries_quiet()
        selector = TurnSelector()

        def new_loop() -> asyncio.AbstractEventLoop:
            return asyncio.SelectorEventLoop(selector)

        with asyncio.Runner(loop_factory=new_loop) as runner:
            return runner.run(self._serve(selector, before))

    async def _serve(self, selector: TurnSelector, before: PlainLoop | None) -> int:
        import asyncio  # noqa: PLC0415

        loop = self._loop = asyncio.get_running_loop()
        stopping = asyncio.Event()
        self._end_loop = stopping.set
        loop.set_exception_handler(self._complain)
        selector.sleep = self._sleep
        if before is None:
            self._begin(selector.fileno())
        else:
            before.hand_over(loop)
            self._line.listen_to(selector.fileno(), self._turns.nudge)
            assert self._push is not None
            self._open_push(self._push)
            self._turns.ask()
        await stopping.wait()
        http, sender = self._http, self._sender
        if self._stop_accepting():
            self._turns.turn()
            ends = [] if http is None else [http.stop()]
            if sender is not None:
                ends.append(sender.stop(self._config.push_stop_grace_ms))
            await asyncio.gather(*ends)
            for _ in self._last_replies():
                await asyncio.sleep(_STOP_STEP_MS / 1_000)
            self._give_back()
        else:
            if http is not None:
                http.abort()
            if sender is not None:
                sender.abort()
        self._close()
        selector.sleep = None
        if sender is not None and sender.has_strays:
            self._log.warning("a sink goes on although it was told to end: leaving it behind")
            os._exit(self._exit)  # asyncio would wait for it
        return self._exit

    def _begin(self, loop_fd: int) -> None:
        """Take the first turns; `loop_fd` is readable when the loop has something to do."""
        self._begin_turns()
        if self._push is not None:
            if isinstance(self._clock, VirtualClock):
                self._engine.is_calling = self._is_calling
            if isinstance(self._loop, PlainLoop):
                self._turns.on_push = self._prepare_push
            else:
                self._open_push(self._push)
        self._line.listen_to(loop_fd, self._turns.nudge)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._ask_to_stop)
        self._loop.add_signal_handler(signal.SIGUSR1, self._drain)
        self._loop.add_signal_handler(signal.SIGHUP, self._reload)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)  # what came before is handled now
        self._turns.turn()
        if self._listeners.http:
            self._open_http()
            self._turns.turn()  # that took a while, in which no client had to be woken
        self._watchdog()
        if not self._turns.is_over:  # the journal may have failed in the first turn
            self._announce()

    def _begin_turns(self) -> None:
        """Set up how turns are committed, and what takes them."""
        space = None
        if self._durable is not None:
            from delayd.commit import GroupCommit  # noqa: PLC0415 - only where jobs are kept
            from delayd.snapshots import Snapshots  # noqa: PLC0415

            self._commit = GroupCommit(
                self._durable,
                self._config.sync,
                self._config.sync_interval_ms,
                self,
                self._fail,
            )
            self._commit.on_slow_sync = self._tell_of_slow_sync
            self._commit.on_lost = self._tell_of_loss
            space = self._durable.space
            space.on_change = self._tell_of_space
            self._engine.log_space.jobs = len(self._engine.store.jobs)
            if (descriptor := self._commit.fileno()) is not None:
                self._line.listen_to(descriptor, self._commit.reap, each_time=False)
            self._snapshots = Snapshots(
                self._engine,
                self._durable,
                self._log,
                wall_at=self._clock.wall_at,
                tell=self.call_soon_threadsafe,
                on_failure=self._fail,
            )
        self._turns = Turns(self._engine, self._clock, self._line, self._commit, space)
        if self._snapshots is not None:
            self._turns.chore = self._snapshots.chore
            self._turns.chore_bytes = self._snapshots.step_bytes
        if self._config.busy_poll and len(os.sched_getaffinity(0)) > 1:
            self._turns.busy_poll_ns = BUSY_POLL_US * 1_000
        self._turns.limit_room()
        self._look_at_space()
        self._turns.on_wall_step = self._tell_of_wall_step
        self._turns.on_long_hold = self._tell_of_long_hold
        gc.callbacks.append(self._turns.note_collection)
        self._turns.look_at_wall_clock()
        self._set_watch = open_set_watch()
        if self._set_watch is not None:
            self._line.listen_to(self._set_watch.fileno(), self._wall_clock_set, each_time=False)

    def _prepare_push(self, _now_ms: RequestMs) -> None:
        """Have asyncio take over, because a job is to be delivered; it stays ready until then.

        What asyncio and the sender need is imported in a thread meanwhile; where there can be none,
        clients wait for it.
        """
        import threading  # noqa: PLC0415 - without a journal there is no thread before

        from delayd.push.opening import import_sender  # noqa: PLC0415

        self._turns.on_push = None

        def work() -> None:
            # They are the loop's, and this thread may outlive their handlers for a moment.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                import_sender()
            finally:
                self.call_soon_threadsafe(self._end_loop)

        importer = threading.Thread(target=work, name="import")
        try:
            importer.start()
        except RuntimeError:  # the system allows no more threads
            self.call_soon_threadsafe(self._end_loop)
        else:
            self._importer = importer

    def _open_push(self, push: "Push") -> None:
        """Deliver due jobs."""
        durable = self._durable
        identity = os.urandom(LOG_ID_BYTES) if durable is None else durable.identity
        self._sender = push.sender(self._engine, self._turns, self._clock, self._log, identity)
        self._turns.on_push = self._sender.on_push

    def _is_calling(self) -> bool:
        """Tell whether jobs are pushed now, or wait for asyncio."""
        if self._sender is not None:
            return self._sender.is_busy()
        return bool(self._engine.store.push_lanes.fresh) and not self._is_ending

    def _open_http(self) -> None:
        """Serve the API."""
        from delayd.http import server  # noqa: PLC0415 - aiohttp takes 250 ms
        from delayd.http.api import Api  # noqa: PLC0415
        from delayd.http.connections import bounds_of  # noqa: PLC0415

        clock = self._clock
        api = Api(
            self._engine,
            self._turns,
            clock,
            self._line.tasks,
            standing=clock if isinstance(clock, VirtualClock) else None,
            refusals=self._refusals,
            reports=self._reports(),
            idempotency_keys_max=self._config.http_idempotency_keys_max,
        )
        self._http = server.HttpServer(
            api,
            self._access,
            bounds_of(self._config),
            self._config.http_hosts,
            [listener.socket for listener in self._listeners.http],
            lambda fault: self._crash(self._loop, {"exception": fault}),
            serves_ui=self._config.http_ui,
        )
        self._http.start()

    def _reports(self) -> "Reports":
        """Return where the API asks about the daemon itself."""
        from delayd.http.api import Reports  # noqa: PLC0415
        from delayd.metrics import CONTENT_TYPE, Metrics  # noqa: PLC0415

        sources = sources_of(
            self._engine,
            self._turns,
            self._durable,
            self._commit,
            connections=self._connections,
            repairs=lambda: self.repairs,
            push=self._push_figures,
            requests=lambda: {} if self._http is None else self._http.requests,
        )
        durable = self._durable
        return Reports(
            self._beside_jobs,
            metrics=Metrics(self._engine, self._refusals, sources).chunks,
            metrics_type=CONTENT_TYPE,
            sync_going_on_ms=lambda: durable.settling_ms if durable else 0,
            missing_files=lambda: durable.look() if durable else "",
            room_trouble=lambda: durable.space.trouble if durable else "",
            push_blocks=self._push_blocks,
        )

    def _push_blocks(self, topic: "Topic") -> list[PushBlock]:
        """Return why jobs of the topic that are ready are not pushed."""
        if self._sender is not None:
            return self._sender.blocks_of(topic)
        return [PushBlock.OFF] if topic.is_pushed or topic.queues.lanes else []

    def _beside_jobs(self, now_ms: int) -> dict[str, object]:
        """Return the daemon's figures except those of jobs, as plain values."""
        figures = self._line.stats.beside_jobs(now_ms)
        if self._sender is not None:
            figures["push"] = self._sender.stats()
        space = self._space_figures()
        if "free_bytes" in space:
            figures["disk"] = {name: space[name] for name in ("free_bytes", "needed_bytes")}
        return figures

    def _push_figures(self) -> "PushFigures | None":
        """Return what was delivered; None: nothing is."""
        from delayd.metrics import OTHER_TOPICS, PushFigures  # noqa: PLC0415 - HTTP alone

        return None if self._sender is None else PushFigures(*self._sender.figures(OTHER_TOPICS))

    def _connections(self) -> dict[str, int]:
        """Count the open connections by protocol."""
        counts = {"line": self._line.stats.connections}
        if self._http is not None:
            counts["http"] = self._http.connections.open_count
        return counts

    def _sleep(self, timeout_s: float | None) -> None:
        """Take turns; a fault in one of them ends the process."""
        try:
            self._turns.sleep(timeout_s)
        except Exception as fault:  # noqa: BLE001 (whatever it is, memory cannot be trusted now)
            self._crash(self._loop, {"exception": fault})

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> object:
        """Have something called in so many seconds, in a turn as well as out of one."""
        self._turns.nudge()
        return self._loop.call_later(delay_s, callback)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object:
        """Have something called by another thread."""
        return self._loop.call_soon_threadsafe(callback)

    def _announce(self) -> None:
        self._tell_of_targets()
        addresses = [listener.address for listener in self._listeners.line]
        spoken = [f"line {address}" for address in addresses]
        spoken += [f"http {listener.address}" for listener in self._listeners.http]
        where = ", ".join(spoken)
        said = f"delayd {__version__} ready: {where}\n"
        for address in addresses[:1]:
            if isinstance(address, TcpAddress) and self._access.is_open:
                said += TRY_IT.format(host=address.host, port=address.port)
        if self._prints and sys.stdout is not None:  # a closed output is no reason to stop
            with contextlib.suppress(OSError):
                sys.stdout.write(said)
                sys.stdout.flush()
        # On a terminal both are seen, so what the line above says is not said again.
        told: dict[str, Value] = {} if self._prints else {"on": where}
        data_dir = self._config.data_dir
        if data_dir is not None:  # a relative one depends on where the daemon was started
            data_dir = os.path.abspath(data_dir)
        jobs = len(self._engine.store.jobs)
        self._log.info("serving", **told, data_dir=data_dir, jobs=jobs, compiled=is_compiled())
        self._notifier.ready(f"serving on {where}")

    def _tell_of_targets(self) -> None:
        """Warn of topics whose jobs the configuration does not let be delivered. O(topics)."""
        from delayd.core.operations.push import undeliverable  # noqa: PLC0415 - see `push_of`

        untold = 0
        for number, (topic, reason) in enumerate(undeliverable(self._engine), 1):
            if number <= PUSH_TOPICS_TOLD:
                said = "jobs of this topic cannot be delivered: they wait, or fail"
                self._log.warning(said, topic=topic, reason=reason)
            else:
                untold += 1
        if untold:
            self._log.warning("jobs of more topics cannot be delivered", topics=untold)

    def _drain(self) -> None:
        if self._engine.draining:
            self._log.info("draining already")
        else:
            self._engine.draining = True
            self._log.info("draining: new jobs are refused")

    def _reload(self) -> None:
        self._access.reload(self._log)
        self._close_unauthorized()
        self._tell_of_targets()

    def _close_unauthorized(self) -> None:
        """Close clients of the line whose tokens were revoked, or are past their time."""
        if closed := self._line.close_unauthorized(self._clock.request_ms()):
            self._log.warning("closed clients whose tokens expired or were revoked", clients=closed)
        self._turns.ask()

    def _ask_to_stop(self) -> None:
        self._is_ending = True
        self._end_loop()

    def _stop_accepting(self) -> bool:
        """Begin to stop: no more clients. Return whether those that are here get their replies.

        The order is: no more clients, last replies, reservations back, commit, close.
        """
        self._stop_ends_ns = monotonic_ns() + (STOP_MS_MAX - STOP_CLOSE_MS) * NS_PER_MS
        self._notifier.stopping("stopping")
        self._line.stop_accepting()
        if self._http is not None:
            self._http.stop_accepting()
        self._listeners.close()
        return self._exit is Exit.OK

    def _last_replies(self) -> Iterator[None]:
        """Let clients take what was promised to them, for a bounded time: a step for each item."""
        returns = len(self._engine.store.leases.sessions) > RETURNS_PER_STOP_TURN
        ends_ns = self._stop_ends_ns - returns * STOP_RETURNS_MS * NS_PER_MS
        while self._line.has_unsent and monotonic_ns() < ends_ns:
            yield

    def _give_back(self) -> None:
        """Close the clients: what they held is ready again, as far as there is time for it."""
        self._engine.is_stopping = True
        self._line.close_clients(self._clock.request_ms())
        ends_ns = max(self._stop_ends_ns, monotonic_ns() + STOP_RETURNS_MS * NS_PER_MS // 2)
        while self._turns.return_some(self._clock.request_ms()) and monotonic_ns() < ends_ns:
            pass
        if held := sum(len(session.deadlines) for session, _ in self._engine.leavers):
            self._log.warning("jobs stay reserved until their ttr runs out", jobs=held)

    def _close(self) -> None:
        """Write what is to be written and let go of everything."""
        self._turns.is_over = True
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._turns.note_collection)
        if self._commit is not None:
            self._commit.close()
        self._line.close()
        if self._set_watch is not None:
            self._set_watch.close()
        if self._snapshots is not None:
            self._snapshots.close()
        self._access.keep_days(self._log)
        if self._durable is not None:
            try:
                self._durable.close()
            except LogError as error:
                self._fail(error)
        # The process takes some more milliseconds to end, and must do so with this code.
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        self._log.info("stopped", exit=int(self._exit))

    def _complain(self, loop: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
        """Log what happened to a connection, now and then; anything else is a fault of ours."""
        if not is_peer_error(context):
            if self._sender is None or is_own_fault(context):
                self._crash(loop, context)
            elif self._sparingly.may_log("sink"):
                reason = hide_in_urls(str(context.get("exception") or ""))
                self._log.warning("a sink left this behind", what=context["message"], reason=reason)
        elif self._sparingly.may_log(type(context["exception"]).__name__):
            reason = f"{context['message']}: {context['exception']}"
            self._log.warning("a connection failed", reason=reason)

    def _crash(
        self, _loop: "asyncio.AbstractEventLoop | PlainLoop", context: dict[str, Any]
    ) -> None:
        """End the process at once, after a fault of our own.

        What is in memory can no longer be trusted, so nothing of it may be acknowledged. What was
        acknowledged is in the journal.
        """
        import traceback  # noqa: PLC0415 - takes 3 ms

        fault = context.get("exception")
        trace = "".join(traceback.format_exception(fault)) if fault else context["message"]
        self._log.error("a fault in delayd: stopping at once", trace=trace)
        os._exit(Exit.OUR_FAULT)

    def _fail(self, error: LogError) -> None:
        """Stop at once: nothing more may be acknowledged."""
        self._exit = error.exit_code
        self._log.error("the journal failed", reason=str(error))
        self._turns.is_over = True
        self._turns.nudge()
        self._ask_to_stop()

    # --- The log ---------------------------------------------------------------------------------

    def _log_figures(self) -> LogFigures:
        max_bytes = self._config.segment_bytes
        if self._durable is None:
            return LogFigures(max_bytes=max_bytes)
        size = self._durable.size()
        return LogFigures(
            size.oldest, size.newest, size.jobs_copied, self._turns.records, max_bytes
        )

    def _tell_of_space(self, is_full: bool) -> None:  # noqa: FBT001 (a callback with one argument)
        if not is_full:
            self._log.info("there is space again: puts are accepted")
            return
        figures = self._space_figures()
        if self._durable is not None and (why := self._durable.space.trouble):
            said = "no file can be made for the log: puts are refused"
            self._log.error(said, directory=figures["directory"], reason=why)
            return
        said = "no space is left beyond what is kept for removals and snapshots: puts are refused"
        if (body_bytes_max := self._engine.log_space.body_bytes_max()) >= 0:
            said = "no space is left for long bodies: only puts of short bodies are accepted"
            figures["body_bytes_max"] = body_bytes_max
        self._log.warning(said, **figures)

    def _look_at_space(self) -> None:
        """Say at the start that the disk is full, and not at the first put."""
        figures = self._space_figures()
        free, needed = figures.get("free_bytes"), figures.get("needed_bytes")
        if isinstance(free, int) and isinstance(needed, int) and free < needed:
            with contextlib.suppress(OutOfSpace):
                self._engine.log_space.require_for_put(READY_BODY_BYTES)

    def _space_figures(self) -> dict[str, str | int]:
        """Return where space is short, how much there is, and how much a put needs at least."""
        return {} if self._durable is None else self._durable.space.figures()

    def _tell_of_slow_sync(self, sync_ms: int) -> None:
        self._log.warning("the disk was slow to sync", ms=sync_ms)

    def _tell_of_loss(self, what: str) -> None:
        """Have what is missing on the disk written again, from memory."""
        said = "the journal is not whole: nothing is acknowledged until a snapshot replaces it"
        self._log.error(said, missing=what)
        if self._snapshots is not None:
            self._snapshots.hurry()
        self._turns.nudge()

    def _wall_clock_set(self) -> None:
        """Look at the wall clock at once: it was set."""
        if self._set_watch is not None:
            self._set_watch.arm()
        self._turns.note_wall_clock(is_set=True)
        self._turns.ask()

    def _tell_of_wall_step(self, step_ms: int) -> None:
        self._log.info("the wall clock was set: jobs with absolute times follow", by_ms=step_ms)

    def _tell_of_long_hold(self, held_ns: int, parts: dict[str, int]) -> None:
        """Say what kept all clients waiting, once a minute at most."""
        if self._sparingly.may_log("long hold"):
            figures = {f"{part}_ms": took_ns // NS_PER_MS for part, took_ns in parts.items()}
            self._log.warning("no client was heard for long", ms=held_ns // NS_PER_MS, **figures)

    def _watchdog(self) -> None:
        """Look for a wake-up that was missed, for stalled clients, and come back in a minute.

        The first time is at the start, on a wall clock that may have gone back since the stop.
        """
        if late_ms := self._turns.overslept_ms():
            self.repairs += 1
            self._log.error("a wake-up was missed and is repaired", late_ms=late_ms)
        closed = self._line.close_stalled(self._clock.request_ms(), monotonic_ns() // NS_PER_MS)
        if closed:
            self._log.warning("closed clients that do not read", clients=closed)
        self._close_unauthorized()
        if self._durable is not None:
            if self._durable.settling_ms > SLOW_SYNC_MS:
                self._log.error("the disk does not answer", ms=self._durable.settling_ms)
            self._durable.look()
        self._access.keep_days(self._log)
        self._turns.note_wall_clock()
        self._turns.ask()
        self._notifier.watchdog()
        wait_ms = min(WATCHDOG_MS, (self._notifier.watchdog_ms or 2 * WATCHDOG_MS) // 2)
        self._loop.call_later(wait_ms / 1_000, self._watchdog)


def sources_of(
    engine: Engine,
    turns: Turns,
    durable: "DurableLog | None",
    commit: "GroupCommit | None",
    *,
    connections: Callable[[], Mapping[str, int]],
    repairs: Callable[[], int],
    push: "Callable[[], PushFigures | None]" = lambda: None,
    requests: "Callable[[], Mapping[str, RequestCounters]]" = dict,
) -> "Sources":
    """Return where to ask; without a journal there is nothing to say of one.

    `connections` counts the open ones by front end, `repairs` what the watchdog has repaired.
    """
    from delayd.metrics import JournalFigures, Sources, TurnFigures  # noqa: PLC0415 - HTTP alone

    def journal_figures() -> JournalFigures | None:
        if durable is None or commit is None:
            return None
        taken_ms = durable.snapshot_ms
        return JournalFigures(
            commit.commit_ns,
            commit.sync_ns,
            commit.batch_records,
            durable.size().disk_bytes,
            None if taken_ms is None else max(0, engine.store.time_ms - taken_ms),
        )

    def turn_figures() -> TurnFigures:
        return TurnFigures(turns.held_ns, turns.longest_held.within(monotonic_ns()))

    return Sources(
        *(__version__, is_compiled(), journal_figures, turn_figures),
        *(connections, repairs, push, requests),
    )
