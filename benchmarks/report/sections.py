"""What the report says of each chapter: its heading, what was measured, and what is shown of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.report.steadiness import steadiness
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
    """What was measured, and what its values mean; an empty line begins a paragraph."""
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
MILLION: Final = Which(("recovery",))

CHAPTERS: Final = (
    Chapter(
        "servers",
        "Servers",
        """delayd beside beanstalkd, Redis, RabbitMQ and PostgreSQL, all driven by one load
        generator that speaks the protocol of each. A job that is taken and acknowledged counts
        once. *Mixed* puts jobs that are due within a second on half of the connections, and takes
        them on the others; its rate is that of the jobs that came out.

**Redis, vanilla** is the sorted set of most articles: workers race for the earliest job, and one
        that dies loses the job in its hand. **Redis, tuned** is three scripts with leases.
        **PostgreSQL, vanilla** is as Debian installs it, **tuned** has the settings that guides
        advise and prepared statements; nothing takes back the job of a worker that died. Both are
        polled: a worker that got nothing waits for 10 ms. **RabbitMQ** holds a job in a queue with
        a ttl, and as a dead letter it comes to the work queue.

What is not the same for all: RabbitMQ answers no acknowledgement, so a job counts when that
        is sent, whatever is on disk by then; that favours RabbitMQ. delayd stays awake for 0.1 ms
        behind a client that answers at once, the others sleep; that favours delayd with one
        connection ([why](internals/decisions/busy-poll.md); `busy_poll = false` turns it off).
        RabbitMQ and PostgreSQL use several processors if there are more than the two of this
        machine; delayd, beanstalkd and Redis use one. The memory of PostgreSQL does not grow with
        the jobs that wait, so it has no figure there.""",
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
            Bars("resident_bytes", "Memory of a job that waits", which=MILLION),
            Bars("log_bytes", "Log of a job that waits", which=MILLION),
            Bars("recovery_s", "From start to serving, after kill -9", which=MILLION),
        ),
    ),
    Chapter(
        "wheel",
        "The timing wheel",
        """The wheel that holds all delayed jobs, beside other ways to keep timers in Python. Time
        is processor time of one entry. A pause is one call of `expire`, or 32 inserts or cancels in
        a row. A heap does nothing at a cancel, and pays in `cancel, cleaned up`. The wheels with
        rounds have 4,096 slots where their size is not what is varied, delayd's levels 256. This
        is a part of the daemon in a process of its own: what a job costs is in the chapters with
        servers.""",
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
        """How long after its time a worker has a job, from just before its put was sent, with the
        ways of put and job and the commit in it. Jobs are offered at moments that are fixed before,
        whatever the server answers: while it stalls, what would have come meanwhile waits, and its
        wait counts.

delayd rounds a time up to its tick of 1 ms, so that nothing is early: on average half a
        millisecond is that. A worker of Redis asks every 100 ms, each at a moment of its own, so
        how late a job is follows from the number of workers; asking more often costs more.""",
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
        """What standing jobs cost. The rate of puts is that of 50 clients that wait for each
        answer. The times of a put are taken at half of that rate, from the moment when each was
        offered, so they are not those of the chapter Servers. beanstalkd takes no snapshots, and
        promises less than delayd does here: with a sync for each put it would not have a million
        jobs within a minute.""",
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
        keeps nothing: what aiohttp leaves for a job. Then a hundred jobs in a request, where the
        rate is that of the jobs and the times are those of a request; and what an API that is not
        used costs the clients of the line.""",
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
        """One daemon in plain Python for an hour. Most of the load is a stream of jobs that are due
        a second later, offered by an open loop at half of what eight workers come to beside all the
        others. These are workers over both protocols that delete, release, nack, bury and let ttrs
        run out; keyed puts, reschedules and cancels; batches; idempotency keys; lists and bulk
        cancels; readers that are slow; pushes to a receiver that takes them and to one that refuses
        them. A point is the median of the samples of a minute.""",
        (
            steadiness,
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
        "client",
        "The Python client",
        """delayd's client beside others on the same daemon: many puts at once beside the load
        generator, which reads no answer; calls that wait for their answers beside greenstalk and
        aiohttp; and workers beside a loop of one greenstalk.""",
        (
            Tables(Which(("put many",))),
            Bars("rate", "Calls a second", "callers", Which(("put", "reserve + ack"))),
            Bars("rate", "Jobs a second", "at once", Which(("work",))),
        ),
    ),
    Chapter(
        "push",
        "Deliveries",
        """Due jobs that are delivered to an endpoint, beside a bare loop of aiohttp's client; how
        late good jobs are beside a host that hangs and beside a topic that fails; and what the line
        does while 200 jobs a second are delivered.""",
        (
            Bars("rate", "Deliveries a second", "calls at once", Which(("deliver",))),
            Tables(Which(("a host that hangs", "a topic that fails"))),
            Tables(Which(("deliver steadily", "put", "reserve + ack"))),
        ),
    ),
    Chapter(
        "two_machines",
        "The log in PostgreSQL",
        """The log in a PostgreSQL with a synchronous standby beside the log in files, and beside
        tables of jobs: in SQL, by pgbench, and of procrastinate. All run on one machine. Each
        command of a connection with one in flight waits for a commit, whose time `one INSERT`
        has.""",
        (
            Bars("rate", "Operations a second", "in flight", Which(("put", "reserve + ack"))),
            Tables(Which(("one INSERT", "log of a job", "takeover"))),
        ),
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
        "neighbours",
        "One client that does something big",
        """What a client waits that puts a job after the other, while another does something big or
        means harm, and what memory the daemon takes for that. A row without a time was not done
        after 40 seconds.""",
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
        """How long everybody else waits while two million jobs are looked at, moved or removed, a
        turn at a time. The 99th percentile and the longest are of the turns, with whatever else the
        machine did meanwhile. Processor time is that of the turn with the most work: what remains
        of the longest where nothing else runs. Time is how long it takes until all is done.""",
        (Whole(),),
    ),
    Chapter(
        "scrape",
        "A scrape of the metrics",
        """How long everybody else waits while the metrics of many topics are written, piece by
        piece, beside the same page by prometheus-client in one piece. The median is of the time of
        a whole page. The longest is of a piece, between which delayd turns to others, and processor
        time is that of the piece with the most work.""",
    ),
)
"""In the order of the page. A file of results that has no chapter here is shown as tables."""
