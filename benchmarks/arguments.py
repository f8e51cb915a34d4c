"""Values of the command lines of the benchmarks; a wrong one is named in one sentence.

>>> names_of(("put", "kick"))("put,kick"), positive("3")
(['put', 'kick'], 3)
>>> names_of(("put", "kick"))("putt")
Traceback (most recent call last):
argparse.ArgumentTypeError: there is no 'putt'; choose from: put, kick
"""

from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable


def positive(word: str) -> int:
    """Read a whole number of at least 1."""
    if not word.isdecimal() or int(word) < 1:
        raise ArgumentTypeError(f"{word!r} is not a whole number above 0")
    return int(word)


def length(word: str) -> float:
    """Read a time in seconds or minutes, above 0."""
    try:
        value = float(word)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{word!r} is not a length of time above 0")
    return value


def names_of(known: Iterable[str]) -> Callable[[str], list[str]]:
    """Return what reads names with commas between them, each of which is one of these."""
    names = list(known)

    def read(words: str) -> list[str]:
        found = words.split(",")
        if unknown := [word for word in found if word not in names]:
            raise ArgumentTypeError(f"there is no {unknown[0]!r}; choose from: {', '.join(names)}")
        return found

    return read
