"""The page for Prometheus: read from the daemon's counters at each scrape, in pieces.

    for piece in metrics.chunks(now_ms):     # text, each piece made within a millisecond
        await response.write(piece)          # other clients are served in between

First come the families about the whole daemon, while all topics are counted (`core.stats.totals`),
then those about topics: one family after the other, some topics in each piece. A topic is shown as
it is when its piece is made.

The text is written here and not by prometheus-client, which takes 5 µs a sample where this takes
0.5, and 60 ms to import; a test holds the page against that library's parser and writer. Names and
values of labels contain nothing that would have to be escaped.
"""

import contextlib
import gc
import os
import platform
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from delayd.core.engine import Engine
from delayd.core.errors import CapReached, GroupFull
from delayd.core.stats.counters import COUNTED_APART, Operation
from delayd.core.stats.figures import age_ms, daemon_operations, oldest_ready_ms, topic_operations
from delayd.core.stats.histogram import Histogram, count_of, sum_ms
from delayd.core.stats.refusals import Refusals
from delayd.core.stats.requests import RequestCounters
from delayd.core.stats.totals import StateTotals, TotalsScan
from delayd.core.topic import Topic
from delayd.limits import (
    LATENESS_BOUNDS_MS,
    METRICS_STEP_SCHEDULES,
    METRICS_STEP_TOPICS,
    SCHEDULES_SHOWN_MAX,
    TOTALS_STEP_TOPICS,
)
from delayd.log import LogOwnership

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

OTHER_TOPICS: Final = "other topics"
"""The label of topics that are not shown by name. No topic has this name, for it has a space."""

_NS_PER_S: Final = 1_000_000_000
_MS_PER_S: Final = 1_000

JOBS: Final = "delayd_jobs"
OLDEST: Final = "delayd_oldest_ready_age_seconds"
GROUPS: Final = "delayd_topic_groups"
TOPIC_OPERATIONS: Final = "delayd_topic_operations"
OVERDUE: Final = "delayd_due_to_ready_seconds"
WAITED: Final = "delayd_ready_to_reserved_seconds"
LAG: Final = "delayd_log_standby_lag_seconds"
LAG_FRAMES: Final = "delayd_log_standby_lag_frames"
REQUESTS: Final = "delayd_http_requests"
REQUEST_TOOK: Final = "delayd_http_request_seconds"
PUSHES: Final = "delayd_push_attempts"
PUSH_TOOK: Final = "delayd_push_seconds"
RUNS: Final = "delayd_schedule_runs"
NEXT_RUN: Final = "delayd_schedule_next_run_timestamp_seconds"
LAST_RUN: Final = "delayd_schedule_last_run"

HELP: Final = MappingProxyType(
    {
        "delayd_build_info": "Version of the running daemon, and whether it is compiled.",
        "delayd_operations": "Operations on jobs since the start.",
        "delayd_refusals": (
            "Refused requests and connections since the start, by error word or reason."
        ),
        "delayd_connections": "Open connections.",
        "delayd_record_bytes": "Bytes of the records of all jobs.",
        "delayd_wheel_levels": "Most levels that a timing wheel has had since the start.",
        "delayd_wheel_cascades": "Timing wheel entries that were moved to a lower level.",
        "delayd_loop_lag_seconds": "How long the event loop was busy before it polled again.",
        "delayd_loop_lag_longest_seconds": (
            "The longest time that the event loop was busy in the last minute."
        ),
        "delayd_watchdog_repairs": (
            "Missed wake-ups that the watchdog repaired; more than 0 is a fault in delayd."
        ),
        "delayd_journal_commit_seconds": (
            "From the first append of a batch until its replies were released."
        ),
        "delayd_journal_fsync_seconds": "How long syncs of the journal, or commits, took.",
        "delayd_journal_batch_records": "Records that became durable with one sync.",
        "delayd_journal_bytes": "Bytes of log and snapshots on disk, or in the database.",
        "delayd_snapshot_age_seconds": "Age of the state in the newest snapshot.",
        "delayd_log_owner": "1 if the daemon owns the log in the database, 0 if it stands by.",
        "delayd_log_epoch": "How many times the log in the database has changed owner.",
        "delayd_log_lease_left_seconds": "How long the lease of the log's owner still lasts.",
        "delayd_log_reachable": "1 while the database of the log answers, else 0.",
        "delayd_log_standbys": "How many daemons follow the log, as its owner sees it.",
        LAG_FRAMES: "Frames that a standby has not read yet.",
        LAG: "How long ago a standby had last read every frame.",
        REQUESTS: "HTTP requests answered since the start, by call and status.",
        REQUEST_TOOK: "How long HTTP answers took, by call, waits for jobs included.",
        PUSHES: "Deliveries attempted since the start, by topic and result.",
        "delayd_push_in_flight": "Deliveries that are under way.",
        "delayd_push_breakers": "Circuit breakers, one for each topic and host, by state.",
        PUSH_TOOK: "How long deliveries took, by sink; url is for all urls, topic for all topics.",
        "delayd_schedules": "Number of schedules, by state.",
        "delayd_scheduled_runs": (
            "Runs of all schedules since the start: put as jobs, missed, skipped, refused, late."
        ),
        RUNS: (
            "Runs of a schedule since it was made, by the same words;"
            f" of the first {SCHEDULES_SHOWN_MAX} schedules by name."
        ),
        NEXT_RUN: "When the next run of a schedule is due, since unix epoch in seconds.",
        LAST_RUN: "1 for what became of the last run of a schedule.",
        "delayd_topics": "Number of topics.",
        JOBS: "Jobs, by topic and state.",
        OLDEST: "Age of the oldest ready job: a lower bound, exact to 0.128 s or 1/64.",
        GROUPS: "Groups of jobs, by topic; absent if its jobs have none.",
        TOPIC_OPERATIONS: (
            "Jobs put, reserved and deleted since the start, for topics that are shown by name."
        ),
        OVERDUE: "How long after their due time delayed jobs became ready.",
        WAITED: "How long jobs were ready until they were reserved.",
        # What prometheus-client says of the process, so that dashboards find it.
        "process_virtual_memory_bytes": "Virtual memory size in bytes.",
        "process_resident_memory_bytes": "Resident memory size in bytes.",
        "process_start_time_seconds": "Start time of the process since unix epoch in seconds.",
        "process_cpu_seconds": "Total user and system CPU time spent in seconds.",
        "process_open_fds": "Number of open file descriptors.",
        "process_max_fds": "Maximum number of open file descriptors.",
        "python_gc_objects_collected": "Objects collected during gc",
        "python_gc_objects_uncollectable": "Uncollectable objects found during GC",
        "python_gc_collections": "Number of times this generation was collected",
        "python_info": "Python platform information",
    }
)
"""What each family is; in the text a counter's name ends in `_total`."""

_STATES: Final = ("ready", "reserved", "delayed", "buried")
_TOPIC_WORDS: Final = tuple(operation.word for operation in Operation)[:COUNTED_APART]


class JournalFigures(NamedTuple):
    """Figures of the journal."""

    commit_ns: Histogram
    """From when the first records of a batch were appended until its replies were released."""
    sync_ns: Histogram
    batch_records: Histogram
    disk_bytes: int
    snapshot_age_ms: int | None  # of the newest; None when there is none


class TurnFigures(NamedTuple):
    """How long the loop was held in one go."""

    held_ns: Histogram
    longest_ns: int  # in the last minute


class PushFigures(NamedTuple):
    """What the sender of due jobs has counted; results and states by their words."""

    attempts: Mapping[str, Mapping[str, int]]
    """Topic → result → how many. The topics are bounded; the others are together."""
    in_flight: int
    breakers: Mapping[str, int]  # state → topics at hosts
    took_ms: Mapping[str, Histogram]  # sink → how long its attempts took


class ScheduleFigures(NamedTuple):
    """What has become of the runs of one schedule, or of all of them."""

    name: str
    counts: Mapping[str, int]
    """Of its runs, by what they count as."""
    next_s: float | None = None
    """When the next one is due, by the wall clock."""
    outcome: str = ""
    """What became of the last one; empty: there was none."""


class SchedulesFigures(NamedTuple):
    """Figures of the schedules."""

    by_state: Mapping[str, int]
    counts: Mapping[str, int]
    """Of the runs of all, since the daemon's start."""
    shown: Iterable[ScheduleFigures]
    """The schedules that are shown by name, read one after the other."""


class Sources(NamedTuple):
    """Sources of the figures that are not the engine's, read at each scrape."""

    version: str
    is_compiled: bool
    journal: Callable[[], JournalFigures | None]
    turns: Callable[[], TurnFigures]
    connections: Callable[[], Mapping[str, int]]  # front end → open connections
    watchdog_repairs: Callable[[], int]
    push: Callable[[], PushFigures | None] = lambda: None  # None: nothing is delivered
    requests: Callable[[], Mapping[str, RequestCounters]] = dict  # by the name of the call
    ownership: Callable[[], LogOwnership | None] = lambda: None  # None: the log is in files
    schedules: Callable[[], SchedulesFigures | None] = lambda: None  # None: there were none yet


# --- The text format -----------------------------------------------------------------------------


def number_text(value: float) -> str:
    """Write a value as Prometheus does, with an exponent from a million on.

    >>> number_text(17), number_text(0.25), number_text(1_234_500)
    ('17.0', '0.25', '1.2345e+06')
    """
    text = repr(float(value))
    point = text.find(".")
    if value > 0 and point > 6:
        mantissa = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
        return f"{mantissa}e+{point - 1:02d}"
    return text


def head(kind: str, name: str) -> str:
    """Write the first lines of a family."""
    total = "_total" if kind == "counter" else ""
    return f"# HELP {name}{total} {HELP[name]}\n# TYPE {name}{total} {kind}\n"


def gauge(name: str, value: float) -> str:
    """Write a family of one gauge."""
    return f"{head('gauge', name)}{name} {number_text(value)}\n"


def counter(name: str, value: float) -> str:
    """Write a family of one counter."""
    return f"{head('counter', name)}{name}_total {number_text(value)}\n"


def labelled(kind: str, name: str, label: str, values: Mapping[str, float]) -> str:
    """Write a family with one label."""
    total = "_total" if kind == "counter" else ""
    lines = [
        f'{name}{total}{{{label}="{key}"}} {number_text(value)}\n' for key, value in values.items()
    ]
    return "".join([head(kind, name), *lines])


def build_info(version: str, *, is_compiled: bool) -> str:
    """Write the family that says which delayd runs."""
    name, compiled = "delayd_build_info", "true" if is_compiled else "false"
    return head("gauge", name) + f'{name}{{compiled="{compiled}",version="{version}"}} 1.0\n'


def histogram(name: str, counted: Histogram, unit: int = 1) -> str:
    """Write a family of one histogram."""
    return head("histogram", name) + _gathered(name, counted, unit)


def _gathered(name: str, counted: Histogram, unit: int, label: str = "") -> str:
    bounds = (*(number_text(bound / unit) for bound in counted.bounds), "+Inf")
    counts = counted.counts
    return _buckets(name, bounds, counts, counts[-1] / unit, label)


def _buckets(
    name: str, bounds: Sequence[str], counts: Sequence[int], total: float, label: str
) -> str:
    """Return the lines of a histogram, with a label beside the bounds if there is one."""
    alone = f"{{{label}}}" if label else ""
    lines = []
    below = 0
    for bound, count in zip(bounds, counts, strict=False):
        below += count
        labels = ",".join(sorted(filter(None, (f'le="{bound}"', label))))
        lines.append(f"{name}_bucket{{{labels}}} {number_text(below)}\n")
    lines.append(f"{name}_count{alone} {number_text(below)}\n")
    lines.append(f"{name}_sum{alone} {number_text(total)}\n")
    return "".join(lines)


def request_families(requests: Mapping[str, RequestCounters]) -> Iterator[str]:
    """Yield what was answered over HTTP, of the calls that were used."""
    used = {name: figures for name, figures in requests.items() if figures.by_status}
    lines = [
        f'{REQUESTS}_total{{call="{name}",status="{status}"}} {number_text(count)}\n'
        for name, figures in used.items()
        for status, count in sorted(figures.by_status.items())
    ]
    yield head("counter", REQUESTS) + "".join(lines)
    yield head("histogram", REQUEST_TOOK)
    for name, figures in used.items():
        yield _gathered(REQUEST_TOOK, figures.took_ns, _NS_PER_S, f'call="{name}"')


def push_families(push: PushFigures) -> Iterator[str]:
    """Yield what the sender of due jobs has counted."""
    lines = [
        f'{PUSHES}_total{{result="{result}",topic="{topic}"}} {number_text(count)}\n'
        for topic, counts in push.attempts.items()
        for result, count in counts.items()
    ]
    yield head("counter", PUSHES) + "".join(lines)
    yield gauge("delayd_push_in_flight", push.in_flight)
    yield labelled("gauge", "delayd_push_breakers", "state", push.breakers)
    yield head("histogram", PUSH_TOOK) + "".join(
        _gathered(PUSH_TOOK, took_ms, _MS_PER_S, f'sink="{sink}"')
        for sink, took_ms in push.took_ms.items()
    )


def schedule_families(schedules: SchedulesFigures) -> Iterator[str]:
    """Yield what has become of runs, for all schedules together and for each; some are empty."""
    yield labelled("gauge", "delayd_schedules", "state", schedules.by_state)
    yield labelled("counter", "delayd_scheduled_runs", "event", schedules.counts)
    shown: list[ScheduleFigures] = []
    for each in schedules.shown:
        shown.append(each)
        if len(shown) % METRICS_STEP_SCHEDULES == 0:
            yield ""
    for beginning, lines in (
        (head("counter", RUNS), _run_counts),
        (head("gauge", NEXT_RUN), _next_run),
        (head("gauge", LAST_RUN), _last_run),
    ):
        yield beginning
        for start in range(0, len(shown), METRICS_STEP_SCHEDULES):
            yield "".join(map(lines, shown[start : start + METRICS_STEP_SCHEDULES]))


def _run_counts(schedule: ScheduleFigures) -> str:
    lines = [
        f'{RUNS}_total{{event="{event}",schedule="{schedule.name}"}} {number_text(count)}\n'
        for event, count in schedule.counts.items()
    ]
    return "".join(lines)


def _next_run(schedule: ScheduleFigures) -> str:
    if schedule.next_s is None:
        return ""
    return f'{NEXT_RUN}{{schedule="{schedule.name}"}} {number_text(schedule.next_s)}\n'


def _last_run(schedule: ScheduleFigures) -> str:
    if not schedule.outcome:
        return ""
    return f'{LAST_RUN}{{outcome="{schedule.outcome}",schedule="{schedule.name}"}} 1.0\n'


def log_families(ownership: LogOwnership) -> Iterator[str]:
    """Yield who owns a log in a database, and how far the others have followed it."""
    yield gauge("delayd_log_owner", ownership.is_owner)
    yield gauge("delayd_log_epoch", ownership.epoch)
    yield gauge("delayd_log_lease_left_seconds", ownership.lease_left_ms / _MS_PER_S)
    yield gauge("delayd_log_reachable", not ownership.trouble)
    if ownership.is_owner:
        yield gauge("delayd_log_standbys", len(ownership.standbys))
    by_address = {_escaped(each.address): each for each in ownership.standbys}
    frames = {address: each.lag_frames for address, each in by_address.items()}
    yield labelled("gauge", LAG_FRAMES, "standby", frames)
    lags = {address: each.lag_ms / _MS_PER_S for address, each in by_address.items()}
    yield labelled("gauge", LAG, "standby", lags)


def _escaped(value: str) -> str:
    """Return the value of a label that may have any characters but line breaks."""
    return value.replace("\\", r"\\").replace('"', r"\"")


# --- The process, with the names that prometheus-client has made usual ----------------------------


def booted_s() -> float:
    """When the machine was booted, by the wall clock; 0: the kernel does not say."""
    with contextlib.suppress(OSError), open("/proc/stat", "rb") as stat:
        return next(float(line.split()[1]) for line in stat if line.startswith(b"btime "))
    return 0.0


def process_families(booted_s: float) -> Iterator[str]:
    """Yield what the kernel counts of this process."""
    if not booted_s:
        return
    with contextlib.suppress(OSError):
        with open("/proc/self/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
        ticks_per_s = os.sysconf("SC_CLK_TCK")
        used_s = int(fields[11]) / ticks_per_s + int(fields[12]) / ticks_per_s
        begun_s = int(fields[19]) / ticks_per_s + booted_s
        yield gauge("process_virtual_memory_bytes", int(fields[20]))
        yield gauge("process_resident_memory_bytes", int(fields[21]) * resource.getpagesize())
        yield gauge("process_start_time_seconds", begun_s)
        yield counter("process_cpu_seconds", used_s)
        yield gauge("process_open_fds", len(os.listdir("/proc/self/fd")))
        yield gauge("process_max_fds", resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def collector_families() -> Iterator[str]:
    """Yield what Python's garbage collector counts, by generation."""
    stats = gc.get_stats()
    for name, field in (
        ("python_gc_objects_collected", "collected"),
        ("python_gc_objects_uncollectable", "uncollectable"),
        ("python_gc_collections", "collections"),
    ):
        counts = {str(generation): stat[field] for generation, stat in enumerate(stats)}
        yield labelled("counter", name, "generation", counts)


def python_info() -> str:
    """Return which Python this is."""
    major, minor, patch = platform.python_version_tuple()
    return (
        f"{head('gauge', 'python_info')}"
        f'python_info{{implementation="{platform.python_implementation()}",major="{major}",'
        f'minor="{minor}",patchlevel="{patch}",version="{platform.python_version()}"}} 1.0\n'
    )


# --- The page ------------------------------------------------------------------------------------


def standby_page(
    version: str, ownership: LogOwnership | None, *, is_compiled: bool
) -> Iterator[bytes]:
    """Yield the page of a daemon that does not serve; `ownership` once the log is open."""
    yield build_info(version, is_compiled=is_compiled).encode()
    if ownership is not None:
        yield "".join(log_families(ownership)).encode()
    yield python_info().encode()
    yield "".join(process_families(booted_s())).encode()
    yield "".join(collector_families()).encode()


class Metrics:
    """All metrics of one daemon."""

    def __init__(self, engine: Engine, refusals: Refusals, sources: Sources) -> None:
        self._engine = engine
        self._refusals = refusals
        self._sources = sources
        self._booted_s = booted_s()
        bounds = [number_text(bound / _MS_PER_S) for bound in LATENESS_BOUNDS_MS]
        self._bounds = (*bounds, "+Inf")

    def chunks(self, now_ms: int) -> Iterator[bytes]:
        """Yield a page of metrics in pieces, some empty; other clients may be served in between."""
        scan = TotalsScan(self._engine.store)
        for family in self._families():
            scan.step(TOTALS_STEP_TOPICS)
            yield family.encode()
        while not scan.step(TOTALS_STEP_TOPICS):
            yield b""
        yield gauge("delayd_topics", scan.all.topics).encode()
        for beginning, lines in self._topic_families(scan.others, now_ms):
            yield beginning.encode()
            for start in range(0, len(scan.shown), METRICS_STEP_TOPICS):
                topics = scan.shown[start : start + METRICS_STEP_TOPICS]
                yield "".join(map(lines, topics)).encode()

    def _families(self) -> Iterator[str]:
        """Yield what does not concern single topics."""
        engine, sources = self._engine, self._sources
        yield build_info(sources.version, is_compiled=sources.is_compiled)
        yield labelled("counter", "delayd_operations", "operation", daemon_operations(engine))
        # Alerts see a counter grow only from a value that was scraped before.
        refusals = {CapReached.word: 0, GroupFull.word: 0, **self._refusals.by_reason}
        yield labelled("counter", "delayd_refusals", "reason", refusals)
        yield labelled("gauge", "delayd_connections", "front_end", sources.connections())
        yield gauge("delayd_record_bytes", engine.record_bytes)
        yield gauge("delayd_wheel_levels", engine.store.wheel_counts.levels)
        yield counter("delayd_wheel_cascades", engine.store.wheel_counts.cascaded)
        turns = sources.turns()
        yield histogram("delayd_loop_lag_seconds", turns.held_ns, _NS_PER_S)
        yield gauge("delayd_loop_lag_longest_seconds", turns.longest_ns / _NS_PER_S)
        yield counter("delayd_watchdog_repairs", sources.watchdog_repairs())
        if (journal := sources.journal()) is not None:
            yield histogram("delayd_journal_commit_seconds", journal.commit_ns, _NS_PER_S)
            yield histogram("delayd_journal_fsync_seconds", journal.sync_ns, _NS_PER_S)
            yield histogram("delayd_journal_batch_records", journal.batch_records)
            yield gauge("delayd_journal_bytes", journal.disk_bytes)
            if journal.snapshot_age_ms is not None:
                yield gauge("delayd_snapshot_age_seconds", journal.snapshot_age_ms / _MS_PER_S)
        if (ownership := sources.ownership()) is not None:
            yield from log_families(ownership)
        yield from request_families(sources.requests())
        if (push := sources.push()) is not None:
            yield from push_families(push)
        if (schedules := sources.schedules()) is not None:
            yield from schedule_families(schedules)
        yield python_info()
        yield from process_families(self._booted_s)
        yield from collector_families()

    def _topic_families(
        self, others: StateTotals, now_ms: int
    ) -> Iterator[tuple[str, Callable[[Topic], str]]]:
        """Yield families about topics: how each begins, and what writes the lines of a topic.

        They begin with the lines about all topics that are not shown by name.
        """
        counters = self._engine.store.counters
        text = head("gauge", JOBS)
        if others.topics:
            states = (others.ready, others.reserved, others.delayed, others.buried)
            text += _states(OTHER_TOPICS, states)
        yield (
            text,
            lambda topic: _states(
                topic.name,
                (len(topic.queues.ready), topic.reserved, topic.delayed, len(topic.queues.buried)),
            ),
        )
        yield (
            head("gauge", OLDEST) + _age(OTHER_TOPICS, others.oldest_ms, now_ms),
            lambda topic: _age(topic.name, oldest_ready_ms(topic), now_ms),
        )
        yield (
            head("gauge", GROUPS) + _groups(OTHER_TOPICS, others.groups),
            lambda topic: _groups(topic.name, topic.queues.ready.group_count),
        )
        yield head("counter", TOPIC_OPERATIONS), _operations
        yield (
            head("histogram", OVERDUE)
            + self._lateness(OVERDUE, OTHER_TOPICS, counters.others_overdue),
            lambda topic: self._lateness(OVERDUE, topic.name, topic.overdue),
        )
        yield (
            head("histogram", WAITED)
            + self._lateness(WAITED, OTHER_TOPICS, counters.others_waited),
            lambda topic: self._lateness(WAITED, topic.name, topic.waited),
        )

    def _lateness(self, name: str, topic: str, histogram: Sequence[int]) -> str:
        """Return the lines of one histogram; none when it has counted nothing."""
        if not count_of(histogram):
            return ""
        total_s = sum_ms(histogram) / _MS_PER_S
        return _buckets(name, self._bounds, histogram, total_s, f'topic="{topic}"')


def _states(name: str, counts: Sequence[int]) -> str:
    lines = [
        f'{JOBS}{{state="{state}",topic="{name}"}} {number_text(count)}\n'
        for state, count in zip(_STATES, counts, strict=True)
    ]
    return "".join(lines)


def _age(name: str, oldest_ms: int | None, now_ms: int) -> str:
    age = age_ms(oldest_ms, now_ms)
    if age is None:
        return ""
    return f'{OLDEST}{{topic="{name}"}} {number_text(age / _MS_PER_S)}\n'


def _groups(name: str, count: int) -> str:
    return f'{GROUPS}{{topic="{name}"}} {number_text(count)}\n' if count else ""


def _operations(topic: Topic) -> str:
    counts = topic_operations(topic)
    lines = [
        f'{TOPIC_OPERATIONS}_total{{operation="{word}",topic="{topic.name}"}}'
        f" {number_text(counts[word])}\n"
        for word in _TOPIC_WORDS
    ]
    return "".join(lines)
