"""One topic: its queues, keys, policy, waiting consumers, pause and counters.

A topic holds ids only; records are in the job table, and the rules are in the operations.
"""

import enum
from typing import TYPE_CHECKING

from delayd.core.names import DEFAULT_TOPIC, INTERNAL_TOPICS
from delayd.core.queues import Queues
from delayd.core.retry import Place

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from delayd.core.keys import KeyIndex
    from delayd.core.policy import Policy
    from delayd.core.stats.histogram import Counts
    from delayd.core.stats.last_minute import LastMinute
    from delayd.core.throttle import Throttle


class Source(enum.IntEnum):
    """The source of a topic's policy. Numbers never change."""

    CONFIGURATION = 0
    RUN_TIME = 1
    """A client; it replaces the configured policy."""


def head_key(topic: "Topic") -> int:
    """Return the key of the next ready job; there must be one."""
    return topic.queues.ready.head()


def place_of(topic: "Topic") -> Place:
    """Return where the jobs of a topic are when they fail."""
    return Place(topic.name, 0 if topic.target is None else topic.target.number)


class Topic:
    """The queues and counters of one topic."""

    __slots__ = (
        *("blocks", "bytes", "deletes", "feeders", "has_no_rules", "has_own_metrics"),
        *("is_internal", "is_pushed", "jobs", "jobs_put", "keys", "late", "name", "number"),
        *("old_held", "operations", "overdue", "pause_alarm", "pause_ms", "paused_until_ms"),
        *("pauses", "place", "policy", "policy_source", "queues", "rates", "recorded"),
        *("reserved", "reserves", "roll_ms", "target", "throttle", "users", "waited"),
        *("waiters", "watchers"),
    )

    def __init__(self, name: str, queues: Queues) -> None:
        self.name = name
        self.is_internal = name in INTERNAL_TOPICS
        """Only the daemon changes what is in it."""
        self.number = 0
        """Stands for the name in records; 0: none does yet."""
        self.queues = queues
        """Its jobs at rest."""
        self.keys: KeyIndex | None = None
        """The index of keys; None while no job has one."""
        self.waiters: dict[int, None] = {}
        """Numbers of waits for a job of it, the longest first; see `Engine.waits`."""
        self.blocks = 0
        """Why nothing is handed out, as bits of `throttle.Block`; 0: jobs are handed out."""
        self.paused_until_ms: int | None = None
        self.pause_ms = 0
        self.pause_alarm: int | None = None
        self.place = 0
        """Its position in the store's listing."""
        self.recorded = False
        """Whether the journal knows its number."""

        self.policy: Policy | None = None
        """The policy of its jobs."""
        self.policy_source = Source.CONFIGURATION
        self.is_pushed = False
        """Its policy has a target for its jobs, which is not the topic itself."""
        self.has_no_rules = not self.is_internal
        """Puts need no check: there is no policy and no cap on all topics, and it is not the
        internal topic."""
        self.throttle: Throttle | None = None
        """Its policy's limits on handing out."""
        self.target: Topic | None = None
        """Where its exhausted jobs are moved to, if they are not buried."""
        self.feeders = 0
        """Topics whose target this is."""

        self.jobs = 0
        """Live jobs in whatever state."""
        self.bytes = 0
        """The length of their records, without those reserved since before a clear."""
        self.reserved = 0
        self.old_held: dict[int, int] = {}
        """Number from before a clear → reserved jobs whose records still have it."""
        self.users = 0
        self.watchers = 0
        self.pauses = 0

        # Statistics since the start of the daemon.
        self.has_own_metrics = False
        """Its metrics have its name; otherwise they are part of the others'."""
        self.begin_figures()

    def begin_figures(self) -> None:
        """Count from zero, but for the ages of the jobs that are ready."""
        self.jobs_put = 0
        self.reserves = 0
        self.deletes = 0
        self.operations: list[int] = []
        """How often what happened, by `Operation`, without those three; empty before the first."""
        self.rates: LastMinute | None = None
        self.roll_ms = 0
        """When the next of what has rates begins a new cell of them; see `Counters.roll`."""
        self.overdue: Counts = []
        """How late delays ended; empty before the first."""
        self.late: LastMinute | None = None
        """The same, of the last minute."""
        self.waited: Counts = []
        """How long jobs were ready until they were reserved."""

    def let_go(self, key: bytes, job_id: int) -> None:
        """Free the key of a job."""
        assert self.keys is not None
        self.keys.remove(key, job_id)
        if len(self.keys) == 0:
            self.keys = None

    def let_go_run(self, keys: "Iterable[bytes]", first_id: int) -> None:
        """Take back the keys of jobs, with ids in sequence, that were refused after all."""
        for job_id, key in enumerate(keys, first_id):
            self.let_go(key, job_id)

    @property
    def is_limited(self) -> bool:
        """Tell whether a job that comes back may let others be handed out."""
        return self.throttle is not None or self.queues.ready.groups is not None

    @property
    def delayed(self) -> int:
        """Count the delayed jobs."""
        return len(self.queues.delays.wheel)

    @property
    def clients_watching(self) -> int:
        """Count the sessions that watch it, except the daemon's own."""
        return 0 if self.is_internal else self.watchers

    @property
    def clients_waiting(self) -> "Collection[int]":
        """The waits for a job of it, except the daemon's own."""
        return () if self.is_internal else self.waiters

    @property
    def is_wanted(self) -> bool:
        """Tell whether it is used, watched or has jobs; otherwise it may be removed."""
        return bool(
            self.jobs
            or self.users
            or self.watchers
            or self.name == DEFAULT_TOPIC
            or self.feeders
            or self.has_own_policy
        )

    @property
    def has_own_policy(self) -> bool:
        """Tell whether a client has set its policy."""
        return self.policy_source is Source.RUN_TIME and self.policy is not None
