"""Figures in pages that are written by hand: README.md and some of docs/.

A part stands between two comments, which a reader of the page does not see, and is made anew by
each report. What is between them may be a figure in a sentence or a whole table:

    so this costs little: <!-- report: put rate -->338,000<!-- end --> puts a second

A part whose results are missing stays as it is, and the report says so; so it does if they were
measured with less than the full effort, because a figure that is quoted is one of a quiet machine.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias

from benchmarks.registry import Durability
from benchmarks.report.page import Results
from benchmarks.report.views import markdown
from benchmarks.report.words import figure_words
from benchmarks.results import Measured

PART: Final = re.compile(r"(<!-- report: ([a-z0-9 ]+) -->)(.*?)(<!-- end -->)", re.DOTALL)


class NoSuchResultError(Exception):
    """A figure of a part was not measured, or with less than full effort; it is named."""


@dataclass(frozen=True, slots=True)
class Figure:
    """Where a figure is in the results."""

    chapter: str
    operation: str
    subject: str
    policy: Durability
    value: str
    size: Mapping[str, int | str]

    def read(self, results: Results) -> float:
        """Return its median; raise `NoSuchResultError`. Only a full effort is quoted."""
        for case in results.get(self.chapter, ()):
            found = case.median(self.value)
            if self._is(case) and found and case.machine.get("effort") == "full":
                return found
        size = " ".join(f"{axis}={value}" for axis, value in self.size.items())
        names = (self.value, self.chapter, self.operation, size, self.subject, self.policy)
        raise NoSuchResultError(", ".join(names))

    def _is(self, case: Measured) -> bool:
        return (
            (case.operation, case.subject, case.policy)
            == (self.operation, self.subject, self.policy)
        ) and all(case.size.get(axis) == value for axis, value in self.size.items())


DISK, MEMORY = Durability.BEFORE_ANSWER, Durability.IN_MEMORY
LATER, SECOND = Durability.WITHIN_50_MS, Durability.WITHIN_1_S
Subjects: TypeAlias = tuple[Sequence[str], Durability]
"""The set-ups of one server, of which the better one is quoted, and what they promise."""
HOW: Final = ("vanilla", "tuned")
PIPELINED: Final = MappingProxyType({"connections": 50, "in flight": 20, "bytes": 100})
COMPILED: Final = "delayd, compiled"
MILLION: Final = 1_000_000


def server(
    operation: str,
    size: Mapping[str, int],
    subject: str = "delayd",
    policy: Durability = DISK,
    value: str = "rate",
) -> Figure:
    """Return where a figure of the servers is."""
    return Figure("servers", operation, subject, policy, value, size)


def alone(connections: int) -> Mapping[str, int]:
    """Return the size of one command in flight."""
    return {"connections": connections, "in flight": 1, "bytes": 100}


SIZES: Final = {
    tuple(alone(1).items()): "1 connection",
    tuple(alone(50).items()): "50 connections",
    tuple(PIPELINED.items()): "50 connections, 20 in flight",
}
"""Of the tables of README.md; one command in flight where nothing else is said."""


def http_put(jobs: int) -> Figure:
    """Return where the rate of puts over HTTP is, with so many jobs in a request."""
    size = {"connections": 50, "jobs in a request": jobs}
    return Figure("http", "put", COMPILED, DISK, "rate", size)


def put_rate(results: Results) -> str:
    """The sentence at the beginning of README.md."""
    ours = server("put", PIPELINED).read(results)
    others = server("put", PIPELINED, "beanstalkd", MEMORY).read(results)
    return (
        f"\n  {figure_words(ours)} puts a second from 50 clients with 20 commands in flight each,"
        f" {ours / others:.1f} times the rate of a beanstalkd\n  that keeps nothing on disk."
    )


def best(results: Results, operation: str, size: Mapping[str, int], of: Subjects) -> str:
    """Write the highest rate of these subjects."""
    subjects, policy = of
    found = [server(operation, size, subject, policy).read(results) for subject in subjects]
    return figure_words(max(found))


def beside(results: Results, heading: str, of: Mapping[str, Subjects]) -> str:
    """Write a table of README.md: puts and jobs taken, by connections and commands in flight."""
    rows = []
    for operation, words in (("put", "puts"), ("reserve + ack", "jobs taken and deleted")):
        for size, who in SIZES.items():
            cells = [best(results, operation, dict(size), subjects) for subjects in of.values()]
            rows.append((f"{words}, {who}", *cells))
    return "\n" + markdown((heading, *of), rows)


def on_disk(results: Results) -> str:
    """The first table of README.md."""
    of: dict[str, Subjects] = {
        "delayd": (("delayd",), DISK),
        "compiled": ((COMPILED,), DISK),
        "beanstalkd `-f 0`": (("beanstalkd",), DISK),
        "Redis": (("Redis, vanilla", "Redis, tuned"), DISK),
        "RabbitMQ": (("RabbitMQ, ttl and dead letters", "RabbitMQ, quorum queues"), DISK),
        "PostgreSQL": (tuple(f"PostgreSQL, SKIP LOCKED, {how}" for how in HOW), DISK),
    }
    return beside(results, "each on disk before its answer", of)


def on_disk_later(results: Results) -> str:
    """The second table of README.md."""
    of: dict[str, Subjects] = {
        "delayd, 50 ms": (("delayd",), LATER),
        "compiled, 50 ms": ((COMPILED,), LATER),
        "beanstalkd, 50 ms": (("beanstalkd",), LATER),
        "Redis, 1 s": (("Redis, vanilla", "Redis, tuned"), SECOND),
        "PostgreSQL, 1 s": (tuple(f"PostgreSQL, SKIP LOCKED, {how}" for how in HOW), SECOND),
        "beanstalkd without a log": (("beanstalkd",), MEMORY),
    }
    return beside(results, "on disk later, or never", of)


def memory(results: Results) -> str:
    """Return the MiB that a million jobs take."""
    where = Figure("growth", "memory", COMPILED, DISK, "resident_bytes", {"jobs": MILLION})
    return figure_words(where.read(results) * MILLION / 2**20)


def figure(where: Figure) -> Callable[[Results], str]:
    """Return what writes one figure."""
    return lambda results: figure_words(where.read(results))


# --- docs/client.md and docs/two-machines.md ------------------------------------------------------

CLIENTS: Final = ("delayd.client", "delayd.client, asyncio")
WORKERS: Final = ("delayd.client, Worker", "delayd.client, AsyncWorker")
CALLERS: Final = (1, 8)


def times_as_fast(
    results: Results, operation: str, size: Mapping[str, int | str], ours: Sequence[str], other: str
) -> str:
    """Write for each of ours how many times the other's rate it has."""
    rates = [
        Figure("client", operation, subject, DISK, "rate", size).read(results)
        for subject in (*ours, other)
    ]
    return " · ".join(figure_words(rate / rates[-1], 2) for rate in rates[:-1])


def clients(results: Results) -> str:
    """The table of docs/client.md."""
    rows = []
    for protocol, words, other in (
        ("line", "over the line", "greenstalk"),
        ("HTTP", "over HTTP", "aiohttp.ClientSession"),
    ):
        for operation, what in (("put", "`put`"), ("reserve + ack", "reserve and acknowledge")):
            sizes = [{"protocol": protocol, "callers": callers} for callers in CALLERS]
            cells = [times_as_fast(results, operation, size, CLIENTS, other) for size in sizes]
            rows.append((f"{what} {words}, `Client` · `AsyncClient`", *cells))
    for at_once in (8, 64):
        size = {"at once": at_once}
        cell = times_as_fast(results, "work", size, WORKERS, "greenstalk, one by one")
        rows.append((f"`Worker` · `AsyncWorker` with `concurrency` {at_once}", "", cell))
    return "\n" + markdown(("", "1 thread or task", "8 of them"), rows)


IN_POSTGRES, IN_FILES = "delayd, the log in PostgreSQL", "delayd, the log in files"
IN_SQL: Final = "a table in SQL, by pgbench"
MACHINES: Final = MappingProxyType(
    {
        "PostgreSQL": IN_POSTGRES,
        "log in files": IN_FILES,
        "table with `SKIP LOCKED`": IN_SQL,
        "procrastinate": "procrastinate",
    }
)
"""The subjects of the table of rates of docs/two-machines.md, by their headings."""


def of_machines(operation: str, size: Mapping[str, int | str], subject: str, value: str) -> Figure:
    """Return where a figure of `two_machines` is."""
    return Figure("two_machines", operation, subject, DISK, value, size)


def machine_rates(results: Results) -> str:
    """The table of rates of docs/two-machines.md."""
    rows = []
    for words, operation, in_flight, subjects in (
        ("puts", "put", 20, (IN_POSTGRES, IN_FILES)),
        ("puts", "put", 1, tuple(MACHINES.values())),
        ("jobs reserved and deleted", "reserve + ack", 1, tuple(MACHINES.values())),
    ):
        size = {"connections": 50, "in flight": in_flight}
        rates = [of_machines(operation, size, each, "rate").read(results) for each in subjects]
        others = [""] * (len(MACHINES) - len(subjects))
        what = f"{words} a second, 50 connections, {in_flight} in flight"
        rows.append((what, *map(figure_words, rates), *others))
    return "\n" + markdown(("", *MACHINES), rows)


def machine_log(results: Results) -> str:
    """The table of bytes of docs/two-machines.md."""
    rows = []
    for body, words in (
        ("JSON", "JSON"),
        ("random letters", "random letters, which do not shrink"),
    ):
        of_both = (IN_POSTGRES, IN_SQL)
        wheres = [of_machines("log of a job", {"body": body}, one, "log_bytes") for one in of_both]
        sizes = (figure_words(where.read(results)) for where in wheres)
        rows.append((f"100 bytes of {words}", *sizes))
    return "\n" + markdown(("a job of", "delayd", "a table"), rows)


def commits(results: Results) -> float:
    """Return how many commits a second a lone client of the database has."""
    return of_machines("one INSERT", {"connections": 1}, IN_SQL, "rate").read(results)


PARTS: Final[Mapping[str, Callable[[Results], str]]] = MappingProxyType(
    {
        "put rate": put_rate,
        "on disk": on_disk,
        "on disk later": on_disk_later,
        "memory": memory,
        "start": figure(
            Figure("growth", "restart", COMPILED, DISK, "recovery_s", {"jobs": MILLION})
        ),
        "http put": figure(http_put(1)),
        "http batch": figure(http_put(100)),
        "put 1": figure(server("put", alone(1))),
        "put 50": figure(server("put", alone(50))),
        "put many": figure(server("put", PIPELINED)),
        "take 50": figure(server("reserve + ack", alone(50))),
        "take 50 compiled": figure(server("reserve + ack", alone(50), COMPILED)),
        "clients": clients,
        "machine rates": machine_rates,
        "machine log": machine_log,
        "commit": lambda results: figure_words(1_000 / commits(results), 2),
        "commits of 50": lambda results: figure_words(50 * commits(results)),
        "takeover": figure(
            of_machines("takeover", {"standing jobs": MILLION}, IN_POSTGRES, "seconds")
        ),
    }
)
"""By the name in the comment."""


def filled(text: str, results: Results) -> tuple[str, list[str]]:
    """Return a page with its parts made anew, and what is missing for those that stay as they are.

    Raises KeyError if there is no part of that name.
    """
    missing: list[str] = []

    def made(match: re.Match[str]) -> str:
        begin, name, old, end = match.groups()
        try:
            return f"{begin}{PARTS[name](results)}{end}"
        except NoSuchResultError as error:
            missing.append(f"{name}: {error}")
            return f"{begin}{old}{end}"

    return PART.sub(made, text), missing
