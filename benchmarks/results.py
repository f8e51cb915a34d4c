r"""Results as JSON lines: a line that describes the machine, and a line for each reading after it.

    {"machine": {"commit": "49202dae21", "synced_append_ms": 0.2, …}, "effort": "full", …}
    {"case": {"operation": "put", "size": {"connections": 1}, …}, "values": {"rate": 4200.0, …}}
    {"case": {…}, "not_measured": "RabbitMQ has no key of its own for a message"}

A file holds one chapter. A run of the whole chapter begins the file anew; a run of some of its
cases is appended, and a case counts with the readings after the last machine line that has any.
A line that is damaged, as the last one of a run that was killed may be, is an error that names it.
"""

import fcntl
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.registry import VALUES, Case, Durability, Values

FOLDER: Final = Path(__file__).parent / "results"
IDENTITY: Final = ("operation", "size", "subject", "policy")
"""What tells the cases of a file apart."""


@dataclass(slots=True)
class Measured:
    """A case of a file, with all readings that count."""

    chapter: str
    operation: str
    size: Mapping[str, int | str]
    subject: str
    policy: Durability
    settings: str
    machine: Mapping[str, Any]
    readings: list[Values] = field(default_factory=list)
    not_measured: str = ""

    def median(self, value: str) -> float | None:
        """Return the median of a value of its readings; None if none of them has it."""
        found = [reading[value] for reading in self.readings if value in reading]
        return statistics.median(found) if found else None

    def worst(self, value: str) -> float | None:
        """Return the highest of a value of its readings; None if none of them has it."""
        return max((reading[value] for reading in self.readings if value in reading), default=None)


class Writer:
    """Writes the results of a run to a file, line by line."""

    def __init__(
        self, file: IO[str], machine: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> None:
        self._file = file
        self._line({"machine": machine, **settings})

    def reading(self, case: Case, values: Values) -> None:
        """Write a reading."""
        self._line({"case": case_words(case), "values": values})

    def not_measured(self, case: Case, reason: str) -> None:
        """Write why a case has none."""
        self._line({"case": case_words(case), "not_measured": reason})

    def _line(self, value: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(value, ensure_ascii=False) + "\n")
        self._file.flush()


class BusyResultsError(Exception):
    """Another run writes the file; the message names it."""


@contextmanager
def opened(folder: Path, chapter: str, *, anew: bool) -> Iterator[IO[str]]:
    """Open the file of a chapter to add lines, for one run at a time; raise `BusyResultsError`.

    What it has is removed if it begins anew, but not while another run writes it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{chapter}.jsonl"
    with path.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyResultsError(f"{path}: another run writes it") from error
        if anew:
            file.truncate(0)
        yield file


def case_words(case: Case) -> dict[str, Any]:
    """Return what identifies a case, and how its subject was set up."""
    return {
        "chapter": case.chapter,
        "operation": case.operation,
        "size": dict(case.size),
        "subject": case.subject,
        "policy": case.policy,
        "settings": case.settings,
    }


class DamagedResultsError(Exception):
    """A line of a file of results cannot be read; the message says file, line and why."""


def read(path: Path) -> list[Measured]:
    """Return the cases of a file, in the order in which they first appear.

    Raises `DamagedResultsError`.
    """
    found: dict[str, Measured] = {}
    machine: Mapping[str, Any] | None = None
    number = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                machine = take_line(line, found, machine)
            except ValueError as error:
                raise DamagedResultsError(f"{path}, line {number}: {error}") from error
    if not number:
        raise DamagedResultsError(f"{path}, line 1: the file is empty")
    return list(found.values())


def take_line(
    line: bytes, found: dict[str, Measured], machine: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Add what a line says to what was found so far; return the machine of the lines after it."""
    if not line.endswith(b"\n"):
        raise ValueError("the line has no end: it was not written whole")
    try:
        value = object_of(json.loads(line.decode()), "the line")
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error.msg}, column {error.colno}") from error
    if "machine" in value:
        return object_of(value.pop("machine"), "machine") | value
    if machine is None:
        raise ValueError("no line that describes the machine stands before it")
    words = checked_case(value.get("case"))
    key = json.dumps([words[name] for name in IDENTITY])
    case = found.get(key)
    if case is None or case.machine is not machine:
        words["policy"] = Durability(words["policy"])
        # An entry that is there keeps its place.
        case = found[key] = Measured(machine=machine, **words)
    if "values" in value:
        case.readings.append(checked_values(value["values"]))
    elif "not_measured" in value:
        case.not_measured = str(value["not_measured"])
    else:
        raise ValueError("the line has neither 'values' nor 'not_measured'")
    return machine


def object_of(value: Any, name: str) -> dict[str, Any]:  # noqa: ANN401 - whatever a line says
    """Return a JSON object; raise ValueError if it is none."""
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not a JSON object: {value!r}")  # noqa: TRY004 - one kind
    return value


def checked_case(value: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a line says
    """Return what identifies a case; raise ValueError if it is not what `case_words` writes."""
    words = object_of(value, "case")
    names = ("chapter", *IDENTITY, "settings")
    for name in names:
        if name not in words:
            raise ValueError(f"the case has no {name!r}")
    for name in words:
        if name not in names:
            raise ValueError(f"a case has no {name!r}")
    for axis, place in object_of(words["size"], "size").items():
        if type(place) not in {int, str}:
            raise ValueError(f"size: {axis!r} is neither a whole number nor a name: {place!r}")
    return words


def checked_values(value: Any) -> Values:  # noqa: ANN401 - whatever a line says
    """Return the values of a reading; raise ValueError if one has no meaning or is no number."""
    for name, number in object_of(value, "values").items():
        if name not in VALUES:
            raise ValueError(f"there is no value {name!r}")
        if not isinstance(number, int | float) or not math.isfinite(number):
            raise ValueError(f"{name} is not a number: {number!r}")
    found: Values = value
    return found


def chapters(folder: Path = FOLDER) -> Iterator[tuple[str, list[Measured]]]:
    """Yield each chapter that has a file in this folder, by name; raise `DamagedResultsError`."""
    for path in sorted(folder.glob("*.jsonl")):
        yield path.stem, read(path)
