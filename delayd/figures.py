"""The daemon's figures: for `stats`, the HTTP API and the page for Prometheus.

They are read from the parts when they are needed; nothing is counted here. Figures of jobs and
topics are the engine's own (`core/stats/figures.py`). What people read in the log is in
`notices.py`.
"""

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from delayd import __version__
from delayd.build_kind import is_compiled
from delayd.clock import monotonic_ns
from delayd.core.engine import Engine
from delayd.core.throttle import PushBlock
from delayd.limits import SCHEDULES_SHOWN_MAX, SLOW_SYNC_MS
from delayd.line.stats import LogFigures, Stats
from delayd.turns import Turns

if TYPE_CHECKING:
    from delayd.commit import GroupCommit
    from delayd.core.stats.refusals import Refusals
    from delayd.core.topic import Topic
    from delayd.http.api import Reports
    from delayd.http.server import HttpServer
    from delayd.log import DurableLog, LogOwnership
    from delayd.metrics import PushFigures, ScheduleFigures, SchedulesFigures, Sources
    from delayd.push.opening import Deliveries
    from delayd.schedules.opening import ScheduleOpener
    from delayd.schedules.schedules import Schedules


def log_figures(
    durable: "DurableLog | None", commit: "GroupCommit | None", segment_bytes: int
) -> LogFigures:
    """Return what `stats` says of the log."""
    if durable is None or commit is None:
        return LogFigures(max_bytes=segment_bytes)
    size = durable.size()
    return LogFigures(size.oldest, size.newest, size.jobs_copied, commit.records, segment_bytes)


def log_trouble(durable: "DurableLog") -> str:
    """Return why nothing becomes durable now; empty: it does, or soon.

    The owner of a lease is the daemon to wait at, however slow the database is: if it said
    otherwise, a proxy would close its clients' connections, with the jobs that they hold.
    """
    ownership, settling_ms = durable.ownership, durable.settling_ms
    keeper = durable.keeper if ownership is None else f"{durable.keeper} {ownership.place}"
    silent = f"the {keeper} has not answered for {settling_ms // 1_000} s"
    if ownership is not None and not durable.is_whole:
        trouble = ownership.trouble  # which names the place
        why = f"the {durable.keeper} cannot be used: {trouble}" if trouble else silent
        return f"the lease of the log is over, another daemon may own it by now; {why}"
    if settling_ms > SLOW_SYNC_MS and ownership is None:
        return silent
    if missing := durable.find_lost():
        return f"{missing}: nothing is acknowledged until a snapshot replaces it"
    return ""


def _shown(ownership: "LogOwnership") -> dict[str, object]:
    """Return who owns the log as `stats` has it, in seconds."""
    return {
        "owner": ownership.is_owner,
        "address": ownership.owner,
        "epoch": ownership.epoch,
        "lease_left": ownership.lease_left_ms / 1_000,
        "database": ownership.place,
        "trouble": ownership.trouble,
        "standbys": [
            {
                "address": each.address,
                "lag_frames": each.lag_frames,
                "lag": each.lag_ms / 1_000,
            }
            for each in ownership.standbys
        ],
    }


def _of_schedule(schedules: "Schedules", name: str) -> "ScheduleFigures":
    """Return what has become of the runs of a schedule."""
    from delayd.metrics import ScheduleFigures  # noqa: PLC0415

    schedule = schedules.load(name)
    next_ms = next(iter(schedules.next_runs(schedule, 1)), None)
    return ScheduleFigures(
        name,
        schedule.counted.by_event,
        None if next_ms is None else next_ms / 1_000,
        schedule.progress.outcome,
    )


class DaemonFigures(NamedTuple):
    """The daemon's figures for the HTTP API; without a journal there are none of one."""

    engine: Engine
    stats: Stats
    turns: Turns
    durable: "DurableLog | None"
    commit: "GroupCommit | None"
    deliveries: "Deliveries | None" = None
    schedules: "ScheduleOpener | None" = None

    def reports(
        self,
        refusals: "Refusals",
        http: "Callable[[], HttpServer]",
        hand_over: "Callable[[], tuple[str, str]]",
    ) -> "Reports":
        """Return what the API of that server reads; `http` is called when it exists."""
        from delayd.http.api import Reports  # noqa: PLC0415 - HTTP alone
        from delayd.metrics import CONTENT_TYPE, Metrics  # noqa: PLC0415

        durable, commit = self.durable, self.commit
        return Reports(
            self._beside_jobs,
            metrics=Metrics(self.engine, refusals, self.sources(http)).chunks,
            metrics_type=CONTENT_TYPE,
            log_trouble=lambda: log_trouble(durable) if durable else "",
            space_trouble=lambda: durable.space.trouble if durable else "",
            push_blocks=self._push_blocks,
            cut_off=lambda: (
                log_trouble(durable) if commit and durable and commit.is_cut_off else ""
            ),
            hand_over=hand_over,
        )

    def _push_blocks(self, topic: "Topic") -> list[PushBlock]:
        """Return why jobs of the topic that are ready are not pushed."""
        if self.deliveries is not None:
            return self.deliveries.blocks_of(topic)
        return [PushBlock.OFF] if topic.is_pushed or topic.queues.ready.lanes else []

    def _beside_jobs(self, now_ms: int) -> dict[str, object]:
        """Return the daemon's figures except those of jobs, as plain values."""
        figures = self.stats.beside_jobs(now_ms)
        if self.deliveries is not None and self.deliveries.sender is not None:
            figures["push"] = self.deliveries.sender.stats()
        space = {} if self.durable is None else self.durable.space.figures()
        if "free_bytes" in space:
            figures["disk"] = {name: space[name] for name in ("free_bytes", "needed_bytes")}
        if self.durable is not None and (ownership := self.durable.ownership) is not None:
            figures["ownership"] = _shown(ownership)
        return figures

    # --- For Prometheus --------------------------------------------------------------------------

    def sources(self, http: "Callable[[], HttpServer]") -> "Sources":
        """Return what the page for Prometheus reads."""
        from delayd.metrics import JournalFigures, Sources, TurnFigures  # noqa: PLC0415

        engine, turns, durable, commit = self.engine, self.turns, self.durable, self.commit

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

        def connections() -> Mapping[str, int]:
            open_count = http().connections.open_count
            return {"line": self.stats.connections, "http": open_count}

        return Sources(
            __version__,
            is_compiled(),
            journal_figures,
            lambda: TurnFigures(turns.held_ns, turns.longest_held.within(monotonic_ns())),
            connections,
            lambda: turns.repairs,
            self._push_figures,
            lambda: http().requests,
            lambda: None if durable is None else durable.ownership,
            self._schedule_figures,
        )

    def _schedule_figures(self) -> "SchedulesFigures | None":
        """Return what has become of the runs of schedules; None: there were none yet."""
        opened = None if self.schedules is None else self.schedules.opened
        if opened is None:
            return None
        from delayd.metrics import SchedulesFigures  # noqa: PLC0415

        totals = opened.book.totals
        names = [name for name, _ in islice(opened.names_after(""), SCHEDULES_SHOWN_MAX)]
        return SchedulesFigures(
            totals.by_state,
            totals.by_event,
            (_of_schedule(opened, name) for name in names if name in opened.book.index),
        )

    def _push_figures(self) -> "PushFigures | None":
        """Return what was delivered; None: nothing is."""
        from delayd.metrics import OTHER_TOPICS, PushFigures  # noqa: PLC0415

        sender = None if self.deliveries is None else self.deliveries.sender
        return None if sender is None else PushFigures(*sender.figures(OTHER_TOPICS))
