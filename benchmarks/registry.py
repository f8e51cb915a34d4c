"""What can be measured: operation, size and policy, each a case in one table.

A *case* is one subject doing one operation of one size under one policy; a *chapter* is a module
that lists its cases. Cases that differ only in the subject and its policy are a *round*: they take
turns within one run (A B C A B C), so that a slow minute of the machine meets all of them.

    chapter    operation     size                            subject       policy
    servers    put           50 connections, 1 in flight     delayd        on disk before the answer
    servers    put           50 connections, 1 in flight     beanstalkd    on disk 50 ms later
    wheel      cancel        1,000,000 entries               heapq

A case measures itself once when it is called with a `Bench`, and returns values by name; `VALUES`
says what each name means. Nothing here knows how any of it is measured, printed or drawn.
"""

import enum
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NewType, TypeVar

Values = Mapping[str, float]
"""What one reading gives, by names of `VALUES`."""

RoundKey = NewType("RoundKey", tuple[Any, ...])
Kept = TypeVar("Kept")


class Durability(enum.StrEnum):
    """What an acknowledgement means; it stands on the label of every bar."""

    NOT_APPLICABLE = ""
    BEFORE_ANSWER = "on disk before the answer"
    WITHIN_50_MS = "on disk 50 ms later"
    WITHIN_1_S = "on disk up to 1 s later"
    UNSYNCED = "on disk when the system writes"
    IN_MEMORY = "in memory only"


class Better(enum.Enum):
    """Which way a value has to move."""

    HIGHER = "higher is better"
    LOWER = "lower is better"
    ZERO = "has to be 0"


@dataclass(frozen=True, slots=True)
class Value:
    """What a name in `Values` means."""

    words: str
    unit: str
    better: Better = Better.LOWER


VALUES: Final[Mapping[str, Value]] = MappingProxyType(
    {
        "rate": Value("rate", "/s", Better.HIGHER),
        "least_ms": Value("least", "ms"),
        "p50_ms": Value("p50", "ms"),
        "p90_ms": Value("p90", "ms"),
        "p99_ms": Value("p99", "ms"),
        "p999_ms": Value("p99.9", "ms"),
        "worst_ms": Value("longest", "ms"),
        "put_p99_ms": Value("p99 of another client's put", "ms"),
        "held_ms": Value("longest that another client waited", "ms"),
        "cpu_ms": Value("processor time", "ms"),
        "cpu_s_per_million": Value("processor time of a million", "s"),
        "generator_share": Value("generator's part of a processor", ""),
        "generator_worst_ms": Value("generator's longest turn", "ms"),
        "resident_bytes": Value("resident memory of a job", "B"),
        "log_bytes": Value("log of a job", "B"),
        "wake_ups": Value("wake-ups while idle", "/s"),
        "recovery_s": Value("recovery", "s"),
        "before_bytes": Value("resident memory before", "B"),
        "highest_bytes": Value("resident memory at its highest", "B"),
        "memory_bytes": Value("resident memory", "B"),
        "disk_bytes": Value("log and snapshots", "B"),
        "descriptors": Value("descriptors", ""),
        "jobs": Value("jobs", ""),
        "us": Value("time of an entry", "µs"),
        "entry_bytes": Value("memory of an entry", "B"),
        "seconds": Value("time", "s"),
        "again": Value("run again", ""),
        "lost": Value("lost", "", Better.ZERO),
        "doubled": Value("doubled", "", Better.ZERO),
        "early": Value("early", "", Better.ZERO),
        "troubles": Value("troubles", ""),
    }
)


class NotMeasuredError(Exception):
    """A case cannot be measured here; the message says why, and stands in the results."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of everything."""

    runs: int
    """Readings of each case."""
    seconds: float
    """How long a reading of a rate lasts."""
    entries_max: int
    """Jobs or entries; a case that is larger is left out, or made so small for `tiny`."""


EFFORTS: Final[Mapping[str, Effort]] = MappingProxyType(
    {
        "tiny": Effort(runs=1, seconds=0.02, entries_max=50),
        "short": Effort(runs=1, seconds=0.5, entries_max=100_000),
        "full": Effort(runs=3, seconds=2.0, entries_max=10_000_000),
    }
)


@dataclass(slots=True)
class Bench:
    """Where and how much a case measures, and what several readings share.

    Example: a server that takes ten seconds to start is started once for a chapter, and each
    reading uses a queue of its own in it:

        server = bench.kept("rabbitmq", lambda: rabbitmq(bench.directory))
    """

    effort: Effort
    directory: Path
    """On a real disk; a reading makes a folder of its own there, and removes it."""
    compiled: Path | None = None
    """A compiled copy of delayd to put on PYTHONPATH, None if there is none."""
    _kept: dict[str, Any] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack)

    @property
    def seconds(self) -> float:
        """How long a reading of a rate lasts."""
        return self.effort.seconds

    def entries(self, count: int) -> int:
        """Return how many of so many jobs or entries are used."""
        return min(count, self.effort.entries_max)

    def python_path(self, *, compiled: bool) -> dict[str, str]:
        """Return what the environment of a delayd has in addition; raise `NotMeasuredError`."""
        if not compiled:
            return {}
        if self.compiled is None:
            raise NotMeasuredError("there is no compiled copy; make compiled makes one")
        return {"PYTHONPATH": str(self.compiled)}

    def kept(self, name: str, make: Callable[[], AbstractContextManager[Kept]]) -> Kept:
        """Return what was made under this name in this chapter, or enter what `make` returns."""
        if name not in self._kept:
            self._kept[name] = self._stack.enter_context(make())
        found: Kept = self._kept[name]
        return found

    def close(self) -> None:
        """Leave all that was kept."""
        self._kept.clear()
        self._stack.close()


@dataclass(frozen=True, slots=True)
class Case:
    """One subject doing one operation of one size under one policy."""

    chapter: str
    operation: str
    size: Mapping[str, int | str]
    """By axis, in the order in which they are printed: `{"connections": 50, "in flight": 1}`."""
    subject: str
    measure: Callable[[Bench], Values]
    """Take one reading; raise `NotMeasuredError` if it cannot be taken."""
    policy: Durability = Durability.NOT_APPLICABLE
    settings: str = ""
    """The command, script or settings of the subject that decide the figure."""
    runs_max: int | None = None
    """Readings at most, of a case that would make its chapter too long."""

    @property
    def round(self) -> RoundKey:
        """What the cases that take turns have in common."""
        return RoundKey((self.chapter, self.operation, *self.size.items()))

    @property
    def label(self) -> str:
        """The subject, and what its acknowledgement means."""
        return f"{self.subject}, {self.policy}" if self.policy else self.subject

    @property
    def name(self) -> str:
        """All of it in one line: `servers, put, connections=50, delayd, in memory only`."""
        size = " ".join(f"{axis}={value}" for axis, value in self.size.items())
        return ", ".join(filter(None, (self.chapter, self.operation, size, self.label)))


CHAPTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "start": "benchmarks.start",
        "servers": "benchmarks.servers.cases",
        "lateness": "benchmarks.lateness",
        "growth": "benchmarks.growth",
        "http": "benchmarks.http",
        "wheel": "benchmarks.wheel.cases",
        "client": "benchmarks.client",
        "push": "benchmarks.push",
        "two_machines": "benchmarks.two_machines",
        "celery": "benchmarks.celery",
        "outbox": "benchmarks.outbox",
        "neighbours": "benchmarks.neighbours",
        "groups": "benchmarks.groups",
        "keys": "benchmarks.keys",
        "passes": "benchmarks.passes",
        "scrape": "benchmarks.scrape",
    }
)
"""The module of each chapter, which has `cases() -> Sequence[Case]`; in the order of the report."""


def cases_of(chapter: str) -> Sequence[Case]:
    """Import a chapter and return its cases; each name is there once."""
    found: Sequence[Case] = importlib.import_module(CHAPTERS[chapter]).cases()
    names = [case.name for case in found]
    assert len(set(names)) == len(names), f"a case of {chapter} is there twice"
    assert all(case.chapter == chapter for case in found)
    return found


def rounds(cases: Iterable[Case]) -> Iterator[Sequence[Case]]:
    """Yield the cases round by round, in the order in which rounds first appear."""
    found: dict[RoundKey, list[Case]] = {}
    for case in cases:
        found.setdefault(case.round, []).append(case)
    yield from found.values()


@dataclass(frozen=True, slots=True)
class Selection:
    """Which cases are wanted: of each kind of word, those that agree with one of them.

    >>> wanted = Selection.of(["put", "subject=redis", "connections=8", "connections=50"])
    >>> wanted.operations, wanted.subjects, dict(wanted.sizes)
    (('put',), ('redis',), {'connections': ('8', '50')})
    """

    operations: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()
    """A part of the label, upper or lower case."""
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By axis."""

    @classmethod
    def of(cls, words: Iterable[str]) -> "Selection":
        """Read `OPERATION`, `subject=PART` and `AXIS=VALUE`."""
        operations, subjects = [], []
        sizes: dict[str, tuple[str, ...]] = {}
        for word in words:
            name, equals, value = word.partition("=")
            if not equals:
                operations.append(word)
            elif name == "subject":
                subjects.append(value.lower())
            else:
                sizes[name] = (*sizes.get(name, ()), value)
        return cls(tuple(operations), tuple(subjects), sizes)

    def __bool__(self) -> bool:
        """Whether anything is left out."""
        return bool(self.operations or self.subjects or self.sizes)

    def has(self, case: Case) -> bool:
        """Whether this case is wanted."""
        return (
            (not self.operations or case.operation in self.operations)
            and (not self.subjects or any(part in case.label.lower() for part in self.subjects))
            and all(str(case.size.get(axis)) in values for axis, values in self.sizes.items())
        )
