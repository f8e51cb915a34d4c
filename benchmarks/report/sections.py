"""What the report says of each chapter: its heading, what was measured, and what is shown of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.report.views import (
    OPERATION,
    SUBJECT,
    Bars,
    Curves,
    Grid,
    PanelOf,
    Percentiles,
    Tables,
    View,
    Which,
    Whole,
)


@dataclass(frozen=True, slots=True)
class Chapter:
    """A chapter of the report; its results are in a file of its name."""

    name: str
    heading: str
    text: str
    """What was measured."""
    views: Sequence[View] = (Tables(),)
    command: str = ""
    """What makes its results, if that is not `python -m benchmarks run NAME`."""

    @property
    def made_by(self) -> str:
        """The command that makes its results."""
        return self.command or f"python -m benchmarks run {self.name} --results benchmarks/results"


LOADS: Final = ("put", "keyed put", "reserve + ack", "mixed")
ONE_BODY: Final = Which(LOADS, {"bytes": 100})
FIFTY: Final = Which(LOADS, {"connections": 50, "in flight": 1})
WAITING: Final = Which(("put", "reserve + ack"), {"bytes": 100, "in flight": 1})
PIPELINED_PUT: Final = Which(("put",), {"bytes": 100, "in flight": 20, "connections": 50})

CHAPTERS: Final = (
    Chapter(
        "servers",
        "Servers",
        """delayd beside beanstalkd, Redis, RabbitMQ and PostgreSQL, all driven by one load
        generator. Bars of one colour promise the same: what an acknowledgement means stands beside
        each of them. A job that is taken and acknowledged counts once.""",
        (
            Bars("rate", "Operations a second", "connections", ONE_BODY),
            Bars("rate", "Operations a second", "bytes", FIFTY, panels_min=2),
            Bars(
                "p999_ms", "One of a thousand operations took longer than", "connections", WAITING
            ),
            Bars("cpu_s_per_million", "Processor time of the server", "connections", WAITING),
            Tables(
                Which(("put", "reserve + ack"), {"connections": 50, "in flight": 1, "bytes": 100})
            ),
            Tables(Which(("idle", "a short delay behind long ones"))),
            Bars("resident_bytes", "Memory of a job that waits", which=PIPELINED_PUT),
            Bars("log_bytes", "Log of a job that waits", which=PIPELINED_PUT),
            Bars("recovery_s", "From start to serving, after kill -9", which=Which(("recovery",))),
        ),
    ),
    Chapter(
        "wheel",
        "The timing wheel",
        """The wheel that holds all delayed jobs, beside other ways to keep timers in Python. Time
        is processor time of one entry. A pause is one call of `expire`, or 32 inserts or cancels in
        a row. A heap does nothing at a cancel, and pays in `cancel, cleaned up`. The wheels with
        rounds have 4,096 slots where their size is not what is varied, delayd's levels 256.""",
        (
            Curves("us", "Time of one entry by the number of entries", "entries", y_is_log=True),
            Bars("entry_bytes", "Memory of one entry"),
            Curves("worst_ms", "Longest pause by the number of entries", "entries", y_is_log=True),
            Curves("us", "Time of one entry by the size of the wheel", "wheel size", y_is_log=True),
        ),
    ),
    Chapter(
        "lateness",
        "Lateness",
        """How long after its time a worker has a job. Jobs are offered at moments that are fixed
        before, whatever the server answers: while it stalls, what would have come meanwhile waits,
        and its wait counts.""",
        (
            Percentiles("Lateness at a part of the peak", "load", SUBJECT, Which(("steady load",))),
            Percentiles(
                "Lateness for workers that wait", SUBJECT, "workers", Which(("due one by one",))
            ),
            Bars("held_ms", "Longest wait of another client", "jobs", Which(("burst",))),
            Tables(Which(("burst", "during a snapshot"))),
        ),
    ),
    Chapter(
        "growth",
        "Growth",
        "What one, three and ten million standing jobs cost.",
        (
            Grid(
                "Standing jobs and their cost",
                "jobs",
                (
                    PanelOf("memory of a job", ("resident_bytes",), "memory"),
                    PanelOf("puts a second", ("rate",), "put"),
                    PanelOf("99th percentile of a put", ("p99_ms",), "put"),
                    PanelOf("from kill -9 to serving", ("recovery_s",), "restart"),
                    PanelOf("a snapshot", ("seconds",), "snapshot"),
                    PanelOf("longest wait of others meanwhile", ("held_ms",), "snapshot"),
                ),
            ),
        ),
    ),
    Chapter(
        "http",
        "HTTP",
        """The HTTP API beside a bare aiohttp handler, which parses the same JSON, echoes it and
        keeps nothing; a hundred jobs in a request; and what an API that is not used costs the
        clients of the line.""",
        (
            Bars(
                "rate",
                "Puts a second",
                "connections",
                Which(("put",), {"jobs in a request": 1}),
            ),
            Tables(Which(("put", "reserve + ack"), {"jobs in a request": 100})),
            Tables(Which(("put over the line",))),
        ),
    ),
    Chapter(
        "soak",
        "An hour of everything",
        "A mix of everything, and jobs that are due a second later at half of their peak.",
        (
            Grid(
                "Half of the peak, minute by minute",
                "minute",
                (
                    PanelOf("lateness", ("p99_ms", "p50_ms")),
                    PanelOf("resident memory", ("memory_bytes",)),
                    PanelOf("log and snapshots", ("disk_bytes",)),
                    PanelOf("descriptors", ("descriptors",)),
                ),
            ),
        ),
        "make bench-soak",
    ),
    Chapter(
        "start",
        "The first reply",
        """How long after exec a server answers its first command, and the processor time until
        then. The floor is a Python that imports sockets and a selector, and ends.""",
        (Bars("p50_ms", "Time from exec to the first reply"), Bars("cpu_ms", "Processor time")),
    ),
    Chapter(
        "celery",
        "Celery",
        """Celery on delayd, on Redis and on RabbitMQ with quorum queues and native delayed
        delivery. Two worker processes run tasks that do nothing; in the last table one of two
        workers is killed, and what it had in hand may be run again.""",
        (
            Bars("rate", "Tasks a second", OPERATION),
            Bars("p99_ms", "Lateness of tasks on an idle worker, 99th percentile"),
            Tables(Which(("due", "wait", "worker killed"))),
        ),
    ),
    Chapter(
        "outbox",
        "The outbox",
        """Rows of a table that the relay puts, and rows that are committed alone. PostgreSQL has a
        synchronous standby, SQLite is looked at ten times a second. The client that puts the same
        jobs without a table shows what the relay could do at most.""",
    ),
    Chapter(
        "groups",
        "Groups",
        """Processor time of the engine for a job that has a group of its own, beside jobs with
        another part and bare ones; the longest time for which it is busy without a break; and how
        soon fifty customers are served beside one with 100,000 slow webhooks.""",
        (Curves("us", "A put and a reserve", "ready jobs"), Tables()),
    ),
    Chapter(
        "keys",
        "Keys",
        """Processor time and memory of jobs with a key beside jobs without, in the engine: put in
        runs of 20 and one by one; what a job takes more when each was replaced five times; and what
        is left of each when all were cancelled.""",
    ),
    Chapter(
        "passes",
        "Listing and bulk operations",
        """How long everybody else waits, at the longest, while two million jobs are looked at,
        moved or removed, a turn at a time; and how long it takes until it is done.""",
        (Whole(),),
    ),
    Chapter(
        "scrape",
        "A scrape of the metrics",
        """How long everybody else waits while the metrics of many topics are written, piece by
        piece, beside the same page by prometheus-client in one piece.""",
    ),
)
"""In the order of the page. A file of results that has no chapter here is shown as tables."""
