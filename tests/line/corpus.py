"""What clients say on the line and what they get: the facts of corpus.txt, which says how.

A `LinePlay` reads the steps of stories.txt and sockets.txt, which use the same notation.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from tests.rigs.written import facts_of

BODY_BYTES_MAX: Final = 20


class Exchange(NamedTuple):
    fact: str
    is_ours: bool
    """Debian's beanstalkd answers something else."""
    sent: tuple[bytes, ...]
    replies: tuple[bytes, ...]

    def __str__(self) -> str:
        return self.fact

    @property
    def request(self) -> bytes:
        return whole(self.sent)

    @property
    def response(self) -> bytes:
        return whole(self.replies)


def lines_in(text: str) -> Iterator[bytes]:
    """Yield the lines that are written with | between them."""
    for part in text.split(" | ") if text else ():
        match = re.fullmatch(r"(?:(\d+)x )?(.*)", part)
        assert match is not None, part
        times, line = match.groups()
        line = re.sub(r"(.)<(\d+)>", lambda many: many[1] * int(many[2]), line)
        data = b"" if line == "\\" else line.encode().decode("unicode_escape").encode("latin-1")
        yield from [data] * int(times or 1)


def whole(lines: Iterable[bytes]) -> bytes:
    return b"".join(line + b"\r\n" for line in lines)


def exchanges() -> Iterator[Exchange]:
    for fact in facts_of(Path(__file__).parent / "corpus.txt", separator=""):
        assert {*fact.options} <= {"ours"}, fact
        said, answered = (
            tuple(line for step in fact.steps if step[0] == mark for line in lines_in(step[2:]))
            for mark in "><"
        )
        yield Exchange(fact.name, bool(fact.options), said, answered)


EXCHANGES: Final = tuple(exchanges())


Connected = TypeVar("Connected")


class LinePlay(ABC, Generic[Connected]):
    """A story of several clients on its way: `a> LINES`, `a~ DATA`, `a< LINES`, `a< ~ DATA`."""

    def __init__(self, connect: Callable[[], Connected]) -> None:
        self._connect = connect
        self.clients: dict[str, Connected] = {}

    def client(self, name: str) -> Connected:
        if name not in self.clients:
            self.clients[name] = self._connect()
        return self.clients[name]

    def step(self, step: str) -> None:
        name, mark, told = step[:1], step[1:2], step[3:]
        if mark == "<" and told.startswith("~ "):
            (part,) = self.lines(told[2:])
            found = self.heard(name)
            assert part in found, found
        elif mark == "<":
            assert self.heard(name) == whole(self.lines(told))
        elif mark == "~":  # as it is, without CRLF
            self.says(name, b"".join(self.lines(told)))
        elif mark == ">":
            self.says(name, whole(self.lines(told)))
        else:
            self.arrange(*step.split())

    def lines(self, told: str) -> Iterator[bytes]:
        return lines_in(told)

    @abstractmethod
    def says(self, name: str, data: bytes) -> None:
        """Have a client say this, and everything happen that follows."""

    @abstractmethod
    def heard(self, name: str) -> bytes:
        """Return what it has been answered since the last call."""

    @abstractmethod
    def arrange(self, word: str, *words: str) -> None:
        """Take any other step."""
