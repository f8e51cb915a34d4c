"""Facts that are written in a text file: how such a file is read, and an answer compared.

A fact begins with `== its name | options`. Its steps follow, one below the other or with ` | `
between them; what is indented goes on with the line before. `<a|b|c>` in a step makes three of it.
Lines with # are comments.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

ABSENT: Final = "-"


class Fact(NamedTuple):
    """What a file says below one name."""

    name: str
    options: tuple[str, ...]
    steps: list[str]

    def __str__(self) -> str:
        return self.name

    def play(self, act: Callable[[str], object]) -> None:
        """Take its steps; a failure says in which it was."""
        for step in self.steps:
            try:
                act(step)
            except Exception as error:
                error.add_note(f"in the step: {step}")
                raise


def facts_of(path: Path, separator: str = " | ") -> list[Fact]:
    """Return what the file says, in its order; without a separator each line is a step as it is."""
    found = []
    for part in path.read_text().split("\n== ")[1:]:
        head, *lines = part.splitlines()
        name, _, options = head.partition(" | ")
        found.append(Fact(name, tuple(options.split()), [*_steps(lines, separator)]))
    assert len({fact.name for fact in found}) == len(found), "a fact is there twice"
    return found


def tables_of(path: Path) -> dict[str, list[list[str]]]:
    """Return what the file has below each name as rows of cells, which stand between ` | `."""
    return {fact.name: [row.split(" | ") for row in fact.steps] for fact in facts_of(path, "")}


def _steps(lines: list[str], separator: str) -> Iterator[str]:
    whole: list[str] = []
    for line in lines:
        if line.startswith(" "):
            whole[-1] += f" {line.strip()}"
        elif line and not line.startswith("#"):
            whole.append(line)
    if not separator:
        yield from whole
        return
    for line in whole:
        for step in line.split(separator):
            yield from _spread(step)


def _spread(step: str) -> Iterator[str]:
    before, opening, rest = step.partition("<")
    alternatives, closing, after = rest.partition(">")
    if "|" not in alternatives or not closing:
        yield step
        return
    for alternative in alternatives.split("|") if opening else [""]:
        yield f"{before}{alternative.strip()}{after}"


def covers(found: Any, expected: object, names: dict[str, str], at: str = "") -> None:  # noqa: ANN401
    """Raise unless the answer has all that is expected; of a list each item, in its order.

    "~x" is a text with x in it, "-" stands for what is absent, "$x" for whatever is there, which
    is put into `names`; floats may differ by 2 %.
    """
    if isinstance(expected, dict):
        for name, value in expected.items():
            if value == ABSENT:
                assert name not in found, f"{at}.{name}: {found}"
            else:
                assert name in found, f"{at}.{name} is missing: {found}"
                covers(found[name], value, names, f"{at}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), f"{at}: {found}"
        for number, (each, value) in enumerate(zip(found, expected, strict=True)):
            covers(each, value, names, f"{at}[{number}]")
    elif isinstance(expected, str) and expected.startswith("$"):
        names[expected] = str(found)
    elif isinstance(expected, str) and expected.startswith("~"):
        assert expected[1:] in found, f"{at}: {found}"
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=0.02), at
    else:
        assert found == expected, f"{at}: {found!r}"
