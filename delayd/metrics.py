"""What Prometheus is told: read from the counters of the daemon when it asks, a piece at a time.

    for piece in metrics.chunks(now_ms):     # of text, each made within a millisecond
        await response.write(piece)          # other clients have a turn

First comes what concerns the whole daemon, meanwhile all topics are counted (`core.stats.totals`),
then what concerns topics: one family of metrics after the other, some topics in each piece. A topic
is told of as it is when its piece is made.

The daemon's own families are collected and written by prometheus-client. Those of topics are
written here, in the same format, for ten times as many samples take longer than anybody may wait:
5 µs each there, 0.5 here. Names of topics hold nothing that would have to be escaped.

To import prometheus-client takes 60 ms, most of it for its own web server. So `Metrics` does it
when it is made, before the daemon serves, and not when the first scrape comes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from delayd.core.engine import Engine
from delayd.core.stats.figures import age_ms, daemon_operations, topic_operations
from delayd.core.stats.histogram import Histogram
from delayd.core.stats.latency import SUM_AT, count_of
from delayd.core.stats.operations import COUNTED_APART, Operation
from delayd.core.stats.refusals import Refusals
from delayd.core.stats.totals import StateTotals, TotalsScan
from delayd.core.topic import Topic
from delayd.core.views import usage
from delayd.limits import CENSUS_STEP_TOPICS, LATENESS_BOUNDS_MS, METRICS_STEP_TOPICS

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

OTHER_TOPICS: Final = "other topics"
"""The label of topics without one of their own. No topic can be called so, for it has a space."""

_NS_PER_S: Final = 1_000_000_000
_MS_PER_S: Final = 1_000

JOBS: Final = ("delayd_jobs", "Jobs, by topic and state.", "gauge")
OLDEST: Final = (
    "delayd_oldest_ready_age_seconds",
    "How long the oldest ready job has been ready, at least; exact to 0.128 s or a 64th.",
    "gauge",
)
TOPIC_OPERATIONS: Final = (
    "delayd_topic_operations",
    "Jobs put, reserved and deleted since the start, by topics with a name of their own.",
    "counter",
)
OVERDUE: Final = (
    "delayd_due_to_ready_seconds",
    "How late delays ended: from when a job was due until it was ready.",
    "histogram",
)
WAITED: Final = (
    "delayd_ready_to_reserved_seconds",
    "How long jobs were ready until they were reserved.",
    "histogram",
)
_TOPIC_WORDS: Final = tuple(operation.word for operation in Operation)[:COUNTED_APART]


class JournalFigures(NamedTuple):
    """What the journal's keepers know."""

    commit_ns: Histogram
    """From when the first records of a batch were appended until its replies were released."""
    sync_ns: Histogram
    batch_records: Histogram
    disk_bytes: int
    snapshot_age_ms: int | None
    """Of the newest; None when there is none."""


class TurnFigures(NamedTuple):
    """How long the loop was held in one go."""

    held_ns: Histogram
    longest_ns: int
    """In the last minute."""


class Sources(NamedTuple):
    """Where the figures come from that the engine does not know; asked at each scrape."""

    version: str
    journal: Callable[[], JournalFigures | None]
    turns: Callable[[], TurnFigures]
    connections: Callable[[], Mapping[str, int]]
    """Front end → open connections."""
    watchdog_repairs: Callable[[], int]


class Metrics:
    """All metrics of one daemon."""

    def __init__(self, engine: Engine, refusals: Refusals, sources: Sources) -> None:
        """Read these when asked. Takes 60 ms: it imports prometheus-client."""
        from prometheus_client import (  # noqa: PLC0415
            metrics_core,
            registry,
            utils,
        )
        from prometheus_client.exposition import generate_latest  # noqa: PLC0415
        from prometheus_client.gc_collector import GCCollector  # noqa: PLC0415
        from prometheus_client.platform_collector import PlatformCollector  # noqa: PLC0415
        from prometheus_client.process_collector import ProcessCollector  # noqa: PLC0415

        self._engine = engine
        self._refusals = refusals
        self._sources = sources
        self._make = metrics_core
        self._generate_latest = generate_latest
        # Not typed there.
        self._number: Callable[[float], str] = getattr(utils, "floatToGoString")  # noqa: B009
        none = registry.CollectorRegistry()
        self._collectors: tuple[Collector, ...] = (
            PlatformCollector(registry=none),
            ProcessCollector(registry=none),
            GCCollector(registry=none),
        )
        bounds = [self._number(bound / _MS_PER_S) for bound in LATENESS_BOUNDS_MS]
        self._bounds = (*bounds, "+Inf")

    def chunks(self, now_ms: int) -> Iterator[bytes]:
        """Yield a page of metrics in pieces, some of them empty; others may have turns between."""
        census = TotalsScan(self._engine.store)
        for family in self._families():
            census.step(CENSUS_STEP_TOPICS)
            yield self._text(family)
        while not census.step(CENSUS_STEP_TOPICS):
            yield b""
        yield self._text(self._gauge("delayd_topics", "Topics that there are.", census.all.topics))
        for about, lines in (
            (JOBS, self._jobs),
            (OLDEST, self._oldest),
            (TOPIC_OPERATIONS, self._topic_operations),
            (OVERDUE, self._overdue),
            (WAITED, self._waited),
        ):
            yield self._text(self._make.Metric(*about))
            yield self._others(about, census.others, now_ms)
            for start in range(0, len(census.shown), METRICS_STEP_TOPICS):
                topics = census.shown[start : start + METRICS_STEP_TOPICS]
                yield "".join([lines(topic, now_ms) for topic in topics]).encode()

    def _text(self, family: "Metric") -> bytes:
        return self._generate_latest(_One(family))

    # --- The daemon as a whole -------------------------------------------------------------------

    def _families(self) -> "Iterator[Metric]":
        """Yield what does not concern single topics."""
        sources = self._sources
        yield self._labelled("delayd_build_info", "gauge", "What runs.", "version", sources.version)
        yield self._counts(
            "delayd_operations",
            "What happened to jobs since the start.",
            "operation",
            daemon_operations(self._engine),
        )
        yield self._counts(
            "delayd_refusals",
            "What was refused since the start, by the word of the answer or by why.",
            "reason",
            self._refusals.by_reason,
        )
        connections = self._make.GaugeMetricFamily(
            "delayd_connections", "Open connections.", labels=["front_end"]
        )
        for front_end, count in sources.connections().items():
            connections.add_metric([front_end], count)
        yield connections
        in_use = usage(self._engine)
        yield self._gauge(
            "delayd_record_bytes", "Bytes of the records of all jobs.", in_use.record_bytes
        )
        yield from self._wheel_families()
        yield from self._loop_families()
        journal = sources.journal()
        if journal is not None:
            yield from self._journal_families(journal)
        for collector in self._collectors:
            yield from collector.collect()

    def _wheel_families(self) -> "Iterator[Metric]":
        counts = self._engine.store.wheel_counts
        yield self._gauge(
            "delayd_wheel_levels", "Levels of the highest timing wheel so far.", counts.levels
        )
        yield self._counter(
            "delayd_wheel_cascades",
            "Entries of timing wheels that were placed again on a lower level.",
            counts.cascaded,
        )

    def _loop_families(self) -> "Iterator[Metric]":
        turns = self._sources.turns()
        yield self._histogram(
            "delayd_loop_lag_seconds",
            "For how long the loop was held before it looked again for what is new.",
            turns.held_ns,
            _NS_PER_S,
        )
        yield self._gauge(
            "delayd_loop_lag_longest_seconds",
            "The longest of these in the last minute.",
            turns.longest_ns / _NS_PER_S,
        )
        yield self._counter(
            "delayd_watchdog_repairs",
            "Wake-ups that were missed and repaired; more than none is a fault in delayd.",
            self._sources.watchdog_repairs(),
        )

    def _journal_families(self, journal: JournalFigures) -> "Iterator[Metric]":
        yield self._histogram(
            "delayd_journal_commit_seconds",
            "From the first append of a batch until its replies were released.",
            journal.commit_ns,
            _NS_PER_S,
        )
        yield self._histogram(
            "delayd_journal_fsync_seconds", "Syncs of the journal.", journal.sync_ns, _NS_PER_S
        )
        yield self._histogram(
            "delayd_journal_batch_records",
            "Records that became durable with one sync.",
            journal.batch_records,
        )
        yield self._gauge(
            "delayd_journal_bytes", "Bytes of log and snapshots on disk.", journal.disk_bytes
        )
        if journal.snapshot_age_ms is not None:
            yield self._gauge(
                "delayd_snapshot_age_seconds",
                "How old the state is that the newest snapshot holds.",
                journal.snapshot_age_ms / _MS_PER_S,
            )

    def _gauge(self, name: str, about: str, value: float) -> "Metric":
        return self._make.GaugeMetricFamily(name, about, value=value)

    def _counter(self, name: str, about: str, value: int) -> "Metric":
        return self._make.CounterMetricFamily(name, about, value=value)

    def _labelled(self, name: str, kind: str, about: str, label: str, value: str) -> "Metric":
        family = self._make.Metric(name, about, kind)
        family.add_sample(name, {label: value}, 1)
        return family

    def _counts(self, name: str, about: str, label: str, counts: Mapping[str, int]) -> "Metric":
        family = self._make.CounterMetricFamily(name, about, labels=[label])
        for word, count in counts.items():
            family.add_metric([word], count)
        return family

    def _histogram(self, name: str, about: str, counted: Histogram, unit: int = 1) -> "Metric":
        buckets = []
        below = 0
        for bound, count in zip((*counted.bounds, None), counted.counts, strict=True):
            below += count
            buckets.append(("+Inf" if bound is None else self._number(bound / unit), below))
        return self._make.HistogramMetricFamily(name, about, buckets, counted.sum / unit)

    # --- Topics ----------------------------------------------------------------------------------

    def _others(self, family: tuple[str, str, str], others: StateTotals, now_ms: int) -> bytes:
        """Return the lines of a family about the topics without a name of their own."""
        counters = self._engine.store.counters
        text = ""
        if family is OVERDUE:
            text = self._lateness(OVERDUE[0], OTHER_TOPICS, counters.others_overdue)
        elif family is WAITED:
            text = self._lateness(WAITED[0], OTHER_TOPICS, counters.others_waited)
        elif family is JOBS and others.topics:
            states = (others.ready, others.reserved, others.delayed, others.buried)
            text = self._states(OTHER_TOPICS, states)
        elif family is OLDEST:
            text = self._age(OTHER_TOPICS, others.oldest_ms, now_ms)
        return text.encode()

    def _states(self, name: str, counts: Sequence[int]) -> str:
        states = zip(("ready", "reserved", "delayed", "buried"), counts, strict=True)
        return "".join(
            [
                f'{JOBS[0]}{{state="{state}",topic="{name}"}} {self._number(count)}\n'
                for state, count in states
            ]
        )

    def _jobs(self, topic: Topic, _now_ms: int) -> str:
        counts = (len(topic.queues.ready), topic.reserved, topic.delayed, len(topic.queues.buried))
        return self._states(topic.name, counts)

    def _age(self, name: str, oldest_ms: int | None, now_ms: int) -> str:
        age = age_ms(oldest_ms, now_ms)
        if age is None:
            return ""
        return f'{OLDEST[0]}{{topic="{name}"}} {self._number(age / _MS_PER_S)}\n'

    def _oldest(self, topic: Topic, now_ms: int) -> str:
        return self._age(
            topic.name, topic.queues.ages.oldest_ms() if topic.queues.ready else None, now_ms
        )

    def _topic_operations(self, topic: Topic, _now_ms: int) -> str:
        counts = topic_operations(topic)
        head = f"{TOPIC_OPERATIONS[0]}_total"
        return "".join(
            [
                f'{head}{{operation="{word}",topic="{topic.name}"}} {self._number(counts[word])}\n'
                for word in _TOPIC_WORDS
            ]
        )

    def _overdue(self, topic: Topic, _now_ms: int) -> str:
        return self._lateness(OVERDUE[0], topic.name, topic.overdue)

    def _waited(self, topic: Topic, _now_ms: int) -> str:
        return self._lateness(WAITED[0], topic.name, topic.waited)

    def _lateness(self, name: str, topic: str, histogram: Sequence[int]) -> str:
        """Return the lines of one histogram; none when it has counted nothing."""
        jobs = count_of([*histogram])
        if not jobs:
            return ""
        label = f'topic="{topic}"'
        lines = []
        below = 0
        for bound, count in zip(self._bounds, histogram, strict=False):
            below += count
            lines.append(f'{name}_bucket{{le="{bound}",{label}}} {self._number(below)}\n')
        lines.append(f"{name}_count{{{label}}} {self._number(jobs)}\n")
        sum_s = histogram[SUM_AT] / _MS_PER_S
        lines.append(f"{name}_sum{{{label}}} {self._number(sum_s)}\n")
        return "".join(lines)


class _One:
    """A registry of one family, for who writes registries."""

    __slots__ = ("_family",)

    def __init__(self, family: "Metric") -> None:
        """Hold it."""
        self._family = family

    def collect(self) -> "Iterator[Metric]":
        """Yield it."""
        yield self._family
