"""A table of facts: `name | set-up | act | outcome | act | outcome`, a row each.

A row goes on in lines that are indented; a line that begins with # says what follows. What steps
and outcomes mean is a matter of those who run them: `facts/rows.py` and `journal/test_facts.py`.
"""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Fact(NamedTuple):
    """A row of the table."""

    given: str
    then: list[tuple[str, str]]


def rows(path: Path) -> Iterator[tuple[str, Fact]]:
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"\n +", " ", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE))
    for line in filter(None, text.splitlines()):
        name, given, *then = (column.strip() for column in line.split("|"))
        yield name, Fact(given, list(zip(then[::2], then[1::2], strict=True)))


def taken(
    fact: Fact, take: Callable[[str], object], begin: Callable[[], object] = bool
) -> Iterator[tuple[object, str]]:
    """Take all steps; yield what the last one of each act returned, and the outcome of the row.

    After the set-up comes `begin`.
    """
    for step in filter(None, fact.given.split("; ")):
        take(step)
    begin()
    for steps, outcome in fact.then:
        *others, last = steps.split("; ")
        for step in others:
            take(step)
        yield take(last), outcome
