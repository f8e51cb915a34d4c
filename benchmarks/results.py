r"""Results as JSON lines: a line that describes the machine, and a line for each reading after it.

    {"machine": {"commit": "49202dae21", "synced_append_ms": 0.2, …}, "effort": "full", …}
    {"case": {"operation": "put", "size": {"connections": 1}, …}, "values": {"rate": 4200.0, …}}
    {"case": {…}, "not_measured": "RabbitMQ has no key of its own for a message"}

A file holds one chapter. A run of the whole chapter begins the file anew; a run of some of its
cases is appended, and a case counts with the readings after the last machine line that has any.
A line that is damaged, as the last one of a run that was killed may be, is an error that names it.
"""

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.registry import Case, Durability, Values

FOLDER: Final = Path(__file__).parent / "results"


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
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                machine = take_line(line, found, machine)
            except (ValueError, KeyError, TypeError) as error:
                reason = f"{type(error).__name__}: {error}"
                raise DamagedResultsError(f"{path}, line {number}: {reason}") from error
    if not number:
        raise DamagedResultsError(f"{path}, line 1: the file is empty")
    return list(found.values())


def take_line(
    line: str, found: dict[str, Measured], machine: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Add what a line says to what was found so far; return the machine of the lines after it."""
    if not line.endswith("\n"):
        raise ValueError("the line has no end: it was not written whole")
    value = json.loads(line)
    if "machine" in value:
        described: dict[str, Any] = value.pop("machine") | value
        return described
    if machine is None:
        raise ValueError("no line that describes the machine stands before it")
    words = value["case"]
    key = json.dumps([words[name] for name in ("operation", "size", "subject", "policy")])
    case = found.get(key)
    if case is None or case.machine is not machine:
        words["policy"] = Durability(words["policy"])
        # An entry that is there keeps its place.
        case = found[key] = Measured(machine=machine, **words)
    if "values" in value:
        case.readings.append(value["values"])
    else:
        case.not_measured = value["not_measured"]
    return machine


def chapters(folder: Path = FOLDER) -> Iterator[tuple[str, list[Measured]]]:
    """Yield each chapter that has a file in this folder, by name; raise `DamagedResultsError`."""
    for path in sorted(folder.glob("*.jsonl")):
        yield path.stem, read(path)
