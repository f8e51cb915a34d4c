"""A table of facts: `name | set-up | act | outcome | act | outcome`, a row each.

A row goes on in lines that are indented; a line that begins with # says what follows. What steps
and outcomes mean is a matter of those who run them: `facts/rows.py` and `journal/test_facts.py`.
"""

import re
from collections.abc import Iterator
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
