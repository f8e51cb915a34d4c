"""What a row of the table is: a session on each of two servers, and the readings it gives."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field

from benchmarks.peers import Stable
from benchmarks.table import Measure


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything: the flags of the command line."""

    stable: Stable
    jobs: int
    """Standing jobs of the rows that speak of a million."""
    seconds: float
    """How long one reading of a rate lasts; the other lengths follow from it."""


@dataclass(frozen=True, slots=True)
class Reading:
    """The values of a row's measures, in their order, and figures that explain them."""

    values: tuple[float, ...]
    notes: dict[str, float] = field(default_factory=dict)


Session = Callable[[Plan, str], Generator[Reading, None, None]]


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what is measured, how, and on which two servers."""

    number: int
    measures: tuple[Measure, ...]
    session: Session
    peer: str
    sync: str = "always"
    runs_max: int = 5
    peer_session: Session | None = None
    """What the peer does, if not the same."""
