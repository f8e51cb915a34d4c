"""Where the metrics come from that the engine does not know: a row of the daemon's parts.

The one thing that knows both who counts and what `delayd.metrics` wants to be told. Nothing is read
before somebody asks.
"""

from collections.abc import Callable, Mapping

from delayd import __version__
from delayd.clock import monotonic_ns
from delayd.commit import GroupCommit
from delayd.core.engine import Engine
from delayd.journal.journal import Journal
from delayd.metrics import JournalFigures, Sources, TurnFigures
from delayd.turns import Turns


def sources_of(
    engine: Engine,
    turns: Turns,
    journal: Journal | None,
    commit: GroupCommit | None,
    *,
    connections: Callable[[], Mapping[str, int]],
    repairs: Callable[[], int],
) -> Sources:
    """Return where to ask; without a journal there is nothing to say of one.

    `connections` counts the open ones by front end, `repairs` what the watchdog has repaired.
    """

    def journal_figures() -> JournalFigures | None:
        if journal is None or commit is None:
            return None
        taken_ms = journal.snapshot_ms
        return JournalFigures(
            commit.commit_ns,
            commit.sync_ns,
            commit.batch_records,
            journal.disk_bytes,
            None if taken_ms is None else max(0, engine.store.time_ms - taken_ms),
        )

    def turn_figures() -> TurnFigures:
        return TurnFigures(turns.held_ns, turns.longest_held.within(monotonic_ns()))

    return Sources(__version__, journal_figures, turn_figures, connections, repairs)
