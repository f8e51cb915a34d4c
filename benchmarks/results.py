r"""Results as JSON lines: a line that describes the machine, and a line for each reading after it.

    {"machine": {"commit": "49202dae21", "synced_append_ms": 0.2, …}, "effort": "full", …}
    {"case": {"operation": "put", "size": {"connections": 1}, …}, "values": {"rate": 4200.0, …}}
    {"case": {…}, "not_measured": "RabbitMQ has no key of its own for a message"}

A file holds one chapter. A run of the whole chapter begins the file anew; a run of some of its
cases is appended, and a case counts with the readings after the last machine line that has any.
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


def read(path: Path) -> list[Measured]:
    """Return the cases of a file, in the order in which they first appear."""
    found: dict[str, Measured] = {}
    machine: dict[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        value = json.loads(line)
        if "machine" in value:
            machine = value["machine"] | {"effort": value["effort"], "at": value["at"]}
            continue
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
    return list(found.values())


def chapters(folder: Path = FOLDER) -> Iterator[tuple[str, list[Measured]]]:
    """Yield each chapter that has a file in this folder, by name."""
    for path in sorted(folder.glob("*.jsonl")):
        yield path.stem, read(path)
