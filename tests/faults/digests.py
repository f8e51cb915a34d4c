"""The promises about whole states, by their digests: I8 and I10.

The state that a start finds is that after some frame, and no reply had left that depended on a
later one.
"""

from collections.abc import Iterator
from typing import NamedTuple


class Violation(NamedTuple):
    """A promise that was broken, and by what."""

    invariant: str
    why: str
    operations: tuple[int, ...] = ()


class Digests:
    """The states there were, by the frame after which they were the case."""

    def __init__(self) -> None:
        self._prefixes: dict[int, object] = {}
        self._acked = 0

    def take(self, note: dict[str, object]) -> Iterator[Violation]:
        """Take a note of the history; yield what it shows to be broken."""
        if note["what"] == "prefix":
            sequence, acked = note["sequence"], note.get("acked", 0)
            assert isinstance(sequence, int)
            assert isinstance(acked, int)
            self._prefixes[sequence] = note["digest"]
            self._acked = max(self._acked, acked)
        elif note["what"] == "recovered":
            found = max(
                (n for n in self._prefixes if self._prefixes[n] == note["digest"]), default=-1
            )
            if found < self._acked:
                why = f"the state is that after none of the frames from {self._acked} on"
                yield Violation("I8", why if found < 0 else f"{why}, but of {found}")
            else:
                self._prefixes = {n: kept for n, kept in self._prefixes.items() if n <= found}
        elif note["what"] == "same" and note["left"] != note["right"]:
            yield Violation("I10", f"{note['of']} differ")
