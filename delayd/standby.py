"""A start that may last for hours: in a thread, while its health is answered over HTTP.

    main thread    healthz, readyz, metrics ◄─ reads ─┐          SIGTERM ─► not wanted ─► over
    "follow"       open ─► follow ─► replay ─► … ─► Progress ─► take_over ─► engine ─► over

A log that other daemons share is followed until this daemon owns it. That waits for the database,
and replays what may be a million jobs, so it has a thread of its own. The interpreter gives the two
threads turns of 5 ms, so health is answered in time whatever is replayed. When the daemon owns the
log, the thread is over, and the service takes the same listening sockets: who connects in between
waits there, and is not refused.
"""

import asyncio
import contextlib
import os
import signal
import threading
from typing import TYPE_CHECKING, Any, Final, final

from delayd import __version__
from delayd.access.reload import AccessControl
from delayd.build_kind import is_compiled
from delayd.clock import Clock
from delayd.config import Config
from delayd.exits import Exit
from delayd.limits import STANDBY_END_MS, STANDBY_LINGER_MS
from delayd.log_lines import Log, keep_libraries_quiet
from delayd.net.addresses import Listeners
from delayd.net.peers import is_peer_error
from delayd.notices import trace_of
from delayd.recover import GivenUp, Progress, recover
from delayd.systemd import Notifier

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from delayd.core.engine import Engine
    from delayd.http.server import HttpServer
    from delayd.log import DurableLog

_ENDING: Final = (signal.SIGTERM, signal.SIGINT)
_SIGNALS: Final = (*_ENDING, signal.SIGUSR1, signal.SIGHUP)


@final
class Standby:
    """One start, and who answers for it meanwhile."""

    def __init__(
        self,
        config: Config,
        clock: Clock,
        news: Log,
        notifier: Notifier,
        access: AccessControl,
        listeners: Listeners,
        address: str,
        warm_up: "Callable[[], object]",
    ) -> None:
        """`address` is where people find this daemon when it serves.

        `warm_up` is called when it stands by: it imports what serving needs.
        """
        self._config = config
        self._clock = clock
        self._news = news
        self._notifier = notifier
        self._access = access
        self._listeners = listeners
        self._address = address
        self._progress = Progress(warm_up)
        self._recovered: tuple[Engine, DurableLog | None] | None = None
        self._error: BaseException | None = None

    def recovered(self) -> "tuple[Engine, DurableLog | None] | None":
        """Return the engine and its log, owned by this daemon; None: a signal has ended it.

        Raises LogError. Signals are held back when it returns: what comes next handles them.
        """
        with asyncio.Runner() as runner:
            runner.run(self._answer())
            if self._error is not None and not isinstance(self._error, GivenUp):
                raise self._error
        if not self._progress.is_wanted:
            self._notifier.stopping("stopping")
            if self._recovered is not None and self._recovered[1] is not None:
                self._recovered[1].close()
            return None
        return self._recovered

    def _recover(self, over: "Callable[[], object]") -> None:
        """Bring the engine to the state in the log; the thread."""
        try:
            self._recovered = recover(
                *(self._config, self._clock, self._news, self._notifier),
                address=self._address,
                progress=self._progress,
            )
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            self._error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed: a signal has ended it
            over()

    async def _answer(self) -> None:
        keep_libraries_quiet()
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.set_exception_handler(self._complain)

        def end() -> None:
            self._progress.is_wanted = False
            over.set()

        for number in _ENDING:
            loop.add_signal_handler(number, end)
        loop.add_signal_handler(signal.SIGHUP, self._access.reload, self._news)
        loop.add_signal_handler(signal.SIGUSR1, self._news.info, "standing by: nothing to drain")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        http = self._server() if self._listeners.http else None
        if http is not None:
            http.start()
        # Only now: what the server imports would wait for the replay as well, and has to come first
        # in a daemon that serves too.
        thread = threading.Thread(
            target=self._recover,
            args=(lambda: loop.call_soon_threadsafe(over.set),),
            name="follow",
            daemon=True,
        )
        thread.start()
        await over.wait()
        signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        if http is not None:
            http.stop_accepting()
            await asyncio.sleep(STANDBY_LINGER_MS / 1_000)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(http.stop(), STANDBY_END_MS / 1_000)
            http.abort()
        if not self._progress.is_wanted:
            thread.join(STANDBY_END_MS / 1_000)  # it may wait for the database

    def _server(self) -> "HttpServer":
        from delayd.http.bounds import bounds_of  # noqa: PLC0415 - aiohttp takes 250 ms
        from delayd.http.standby import standby_server  # noqa: PLC0415
        from delayd.metrics import CONTENT_TYPE, standby_page  # noqa: PLC0415

        return standby_server(
            *(self._clock, self._access, bounds_of(self._config), self._config.http_hosts),
            [listener.socket for listener in self._listeners.http],
            lambda fault: self._crash({"exception": fault}),
            state=self._state,
            metrics=lambda _now_ms: standby_page(
                __version__,
                None if (log := self._progress.log) is None else log.ownership,
                is_compiled=is_compiled(),
            ),
            metrics_type=CONTENT_TYPE,
        )

    def _complain(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Leave what clients did to their connections; anything else is a fault of ours."""
        if not is_peer_error(context):
            self._crash(context)

    def _crash(self, context: "Mapping[str, Any]") -> None:
        self._news.error("a fault in delayd: stopping at once", trace=trace_of(context))
        os._exit(Exit.OUR_FAULT)

    def _state(self) -> tuple[str, str]:
        """Return the owner's address, or else why this daemon does not serve yet."""
        log = self._progress.log
        if log is None:
            return "", "the log is being opened"
        if self._progress.is_standing_by:
            return log.owner, "this daemon takes the log over"
        return "", f"recovering: about {log.followed_percent} % of the log was read"
