"""What clients say on the line and what they get: the facts of corpus.txt, which says how."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

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
        return b"".join(line + b"\r\n" for line in self.sent)

    @property
    def response(self) -> bytes:
        return b"".join(line + b"\r\n" for line in self.replies)


def lines_in(text: str) -> Iterator[bytes]:
    """Yield the lines that are written with | between them."""
    for part in text.split(" | ") if text else ():
        match = re.fullmatch(r"(?:(\d+)x )?(.*)", part)
        assert match is not None, part
        times, line = match.groups()
        line = re.sub(r"(.)<(\d+)>", lambda many: many[1] * int(many[2]), line)
        data = b"" if line == "\\" else line.encode().decode("unicode_escape").encode("latin-1")
        yield from [data] * int(times or 1)


def exchanges() -> Iterator[Exchange]:
    text = (Path(__file__).parent / "corpus.txt").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\n    ", " ")
    for part in text.split("== ")[1:]:
        head, *told = part.strip("\n").split("\n")
        fact, _, ours = head.partition(" | ")
        assert ours in {"", "ours"}, head
        sides: dict[str, tuple[bytes, ...]] = {">": (), "<": ()}
        for line in told:
            sides[line[0]] += tuple(lines_in(line[2:]))
        yield Exchange(fact, bool(ours), sides[">"], sides["<"])


EXCHANGES: Final = tuple(exchanges())
