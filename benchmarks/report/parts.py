"""Figures in pages that are written by hand: README.md and docs/sizing.md.

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
from typing import Final

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


DISK, MEMORY, LATER = Durability.BEFORE_ANSWER, Durability.IN_MEMORY, Durability.WITHIN_50_MS
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


def http_put(jobs: int) -> Figure:
    """Return where the rate of puts over HTTP is, with so many jobs in a request."""
    size = {"connections": 50, "jobs in a request": jobs}
    return Figure("http", "put", COMPILED, DISK, "rate", size)


def put_rate(results: Results) -> str:
    """The sentence at the beginning of README.md."""
    ours = server("put", PIPELINED).read(results)
    others = server("put", PIPELINED, "beanstalkd", MEMORY).read(results)
    return (
        f"\n  {figure_words(ours)} puts a second, {ours / others:.1f} times the rate of a"
        " beanstalkd that keeps nothing on disk."
    )


def rows(
    results: Results,
    names: Mapping[str, tuple[str, Mapping[str, int]]],
    of: Sequence[tuple[str, Durability]],
) -> list[tuple[str, ...]]:
    """Return a row for each name, with the rates of these subjects."""
    return [
        (name, *(figure_words(server(*where, *subject).read(results)) for subject in of))
        for name, where in names.items()
    ]


def many_in_flight(results: Results) -> str:
    """The first table of README.md."""
    headings = ("50 connections with 20 commands in flight each", "delayd", "compiled")
    names = {
        "puts": ("put", PIPELINED),
        "jobs taken and deleted": ("reserve + ack", PIPELINED),
    }
    of = (("delayd", DISK), (COMPILED, DISK), ("beanstalkd", DISK), ("beanstalkd", MEMORY))
    others = ("beanstalkd `-f 0`, on disk too", "beanstalkd without a log")
    return "\n" + markdown((*headings, *others), rows(results, names, of))


def one_in_flight(results: Results) -> str:
    """The second table of README.md."""
    headings = ("one command in flight, each on disk", "delayd", "compiled", "beanstalkd `-f 0`")
    later = ("delayd, 50 ms later", "compiled", "beanstalkd, 50 ms later")
    names = {
        f"{words}, {count} connection{'s' * (count > 1)}": (operation, alone(count))
        for operation, words in (("put", "puts"), ("reserve + ack", "jobs taken and deleted"))
        for count in (1, 50)
    }
    of = [(subject, DISK) for subject in ("delayd", COMPILED, "beanstalkd")]
    of += [(subject, LATER) for subject in ("delayd", COMPILED, "beanstalkd")]
    return "\n" + markdown((*headings, *later), rows(results, names, of))


def memory(results: Results) -> str:
    """Return the MiB that a million jobs take."""
    where = Figure("growth", "memory", COMPILED, DISK, "resident_bytes", {"jobs": MILLION})
    return figure_words(where.read(results) * MILLION / 2**20)


def figure(where: Figure) -> Callable[[Results], str]:
    """Return what writes one figure."""
    return lambda results: figure_words(where.read(results))


PARTS: Final[Mapping[str, Callable[[Results], str]]] = MappingProxyType(
    {
        "put rate": put_rate,
        "many in flight": many_in_flight,
        "one in flight": one_in_flight,
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
