"""What a running daemon tells people: the lines of its log, and the one on standard output.

Each outcome is told once, here, in words that say what happened, to what, and what to do. What may
happen again and again (a client that breaks its connection, a loop that is held) is told once a
minute at most. Figures for programs are in `figures.py`.
"""

import contextlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from delayd import __version__
from delayd.build_kind import is_compiled
from delayd.clock import NS_PER_MS, monotonic_ns
from delayd.core.engine import Engine
from delayd.exits import Exit
from delayd.limits import PUSH_TOPICS_LOGGED_MAX
from delayd.log_lines import Log, Value
from delayd.net.addresses import Listeners, TcpAddress
from delayd.net.peers import RateLimited
from delayd.text import hide_in_urls

if TYPE_CHECKING:
    from delayd.log import LogError, Space

TRY_IT: Final = (
    "to put a job that comes in 5 seconds and is done then: "
    "delayd put hello 'hello' --delay 5s --line {address} && "
    "delayd reserve hello --wait 30s --ack --line {address}\n"
)
"""For a newcomer, to paste into a shell."""


_SLOW: Final = {
    "disk": "the disk was slow to sync",
    "database": "the database was slow to commit",
}
_SILENT: Final = {
    "disk": "the disk does not answer",
    "database": "the database does not answer",
}
_FAILED: Final = {
    "disk": "the journal failed",
    "database": "the log in the database failed",
}
"""By what keeps the log."""


def trace_of(context: Mapping[str, Any]) -> str:
    """Return where a fault is, as asyncio tells its exception handler of one."""
    import traceback  # noqa: PLC0415 - takes 3 ms

    fault = context.get("exception")
    return "".join(traceback.format_exception(fault)) if fault else str(context["message"])


class Notices:
    """Tells what happens to this engine's daemon; `space` is that of its log, on this `keeper`."""

    def __init__(
        self, log: Log, engine: Engine, space: "Space | None", keeper: str = "disk"
    ) -> None:
        self._keeper = keeper
        self.log = log
        self._engine = engine
        self._space = space
        self._sparingly = RateLimited(lambda: monotonic_ns() // NS_PER_MS)

    # --- The start -------------------------------------------------------------------------------

    def serving(
        self, listeners: Listeners, data_dir: str | None, *, prints: bool, is_open: bool
    ) -> str:
        """Say that clients are served, and return where.

        If it `prints`, standard output gets that too, with something to try if `is_open`.
        """
        addresses = [listener.address for listener in listeners.line]
        places = [f"line {address}" for address in addresses]
        places += [f"http {listener.address}" for listener in listeners.http]
        where = ", ".join(places)
        text = f"delayd {__version__} ready: {where}\n"
        for address in addresses[:1]:
            if isinstance(address, TcpAddress) and is_open:
                text += TRY_IT.format(address=address)
        if prints and sys.stdout is not None:  # a closed output is no reason to stop
            with contextlib.suppress(OSError):
                sys.stdout.write(text)
                sys.stdout.flush()
        # On a terminal both are seen, so what the line above says is not said again.
        on: dict[str, Value] = {} if prints else {"on": where}
        if data_dir is not None:  # a relative one depends on where the daemon was started
            data_dir = os.path.abspath(data_dir)
        store = self._engine.store
        jobs = len(store.jobs) - sum(topic.jobs for topic in store.topics.internal.values())
        self.log.info("serving", **on, data_dir=data_dir, jobs=jobs, compiled=is_compiled())
        return where

    def undeliverable(self) -> None:
        """Warn of topics whose jobs the configuration does not let be delivered. O(topics)."""
        from delayd.core.operations.push import undeliverable  # noqa: PLC0415 - not before it serves

        left_out = 0
        for number, (topic, reason) in enumerate(undeliverable(self._engine), 1):
            if number <= PUSH_TOPICS_LOGGED_MAX:
                sentence = "jobs of this topic cannot be delivered: they wait, or fail"
                self.log.warning(sentence, topic=topic, reason=reason)
            else:
                left_out += 1
        if left_out:
            self.log.warning("jobs of more topics cannot be delivered", topics=left_out)

    # --- The log ---------------------------------------------------------------------------------

    def space_changed(self, is_full: bool) -> None:  # noqa: FBT001 (a callback with one argument)
        space = self._space
        assert space is not None, "only a log has space"
        if not is_full:
            self.log.info("there is space again: puts are accepted")
            return
        figures = space.figures()
        if why := space.trouble:
            sentence = "no file can be made for the log: puts are refused"
            self.log.error(sentence, directory=figures["directory"], reason=why)
            return
        sentence = (
            "no space is left beyond what is kept for removals and snapshots: puts are refused"
        )
        engine = self._engine
        # Of a log that does not know how much is free, this is not known either.
        if 0 <= (body_bytes_max := engine.log_space.body_bytes_max()) < engine.body_bytes_max:
            sentence = "no space is left for long bodies: only puts of short bodies are accepted"
            figures["body_bytes_max"] = body_bytes_max
        self.log.warning(sentence, **figures)

    def slow_sync(self, sync_ms: int) -> None:
        self.log.warning(_SLOW[self._keeper], ms=sync_ms)

    def log_hangs(self, settling_ms: int) -> None:
        self.log.error(_SILENT[self._keeper], ms=settling_ms)

    def handing_over(self, standby: str) -> None:
        self.log.info("handing the log over, as requested", standby=standby)

    def lost(self, missing: str) -> None:
        sentence = "the journal is not whole: nothing is acknowledged until a snapshot replaces it"
        self.log.error(sentence, missing=missing)

    def failed(self, error: "LogError") -> None:
        self.log.error(_FAILED[self._keeper], reason=str(error))

    # --- The loop --------------------------------------------------------------------------------

    def wall_step(self, step_ms: int) -> None:
        sentence = "the wall clock was set or corrected: jobs with absolute times follow"
        self.log.info(sentence, by_ms=step_ms)

    def long_hold(self, held_ns: int, parts: dict[str, int]) -> None:
        """Say what kept all clients waiting, once a minute at most."""
        if self._sparingly.may_log("long hold"):
            figures = {f"{part}_ms": took_ns // NS_PER_MS for part, took_ns in parts.items()}
            self.log.warning(
                "clients had to wait: the daemon was busy", ms=held_ns // NS_PER_MS, **figures
            )

    def overslept(self, late_ms: int) -> None:
        self.log.error("a wake-up was missed and is repaired", late_ms=late_ms)

    def connection_failed(self, context: Mapping[str, Any]) -> None:
        if self._sparingly.may_log(type(context["exception"]).__name__):
            reason = f"{context['message']}: {context['exception']}"
            self.log.warning("a connection failed", reason=reason)

    def sink_left_behind(self, context: Mapping[str, Any]) -> None:
        if self._sparingly.may_log("sink"):
            reason = hide_in_urls(str(context.get("exception") or ""))
            self.log.warning("a sink left an error behind", what=context["message"], reason=reason)

    def stray_sink(self) -> None:
        self.log.warning("a sink did not end when it was told to: stopping without it")

    def fault(self, context: Mapping[str, Any]) -> None:
        """Say where a fault of our own is."""
        self.log.error("a fault in delayd: stopping at once", trace=trace_of(context))

    # --- Clients, and the end --------------------------------------------------------------------

    def closed(self, clients: int, sentence: str) -> None:
        """Say how many clients were closed and why, if any were."""
        if clients:
            self.log.warning(sentence, clients=clients)

    def draining(self, *, is_new: bool) -> None:
        self.log.info("draining: new jobs are refused" if is_new else "already draining")

    def still_reserved(self, jobs: int) -> None:
        """Say how many jobs there was no time to give back, if there are any."""
        if jobs:
            self.log.warning("jobs stay reserved until their ttr runs out", jobs=jobs)

    def stopped(self, code: Exit) -> None:
        self.log.info("stopped", exit=int(code))
