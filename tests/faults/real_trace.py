"""What a tracer saw: which system calls a daemon made on its directory, and the number of each.

    19411 openat(AT_FDCWD, "/d/segment-0000000001.log", O_RDWR|O_CREAT|...) = 8</d/segment-...>
    19412 fdatasync(8</d/segment-0000000001.log> <unfinished ...>
    19412 <... fdatasync resumed>)          = 0

>>> calls = calls_in('7 openat(AT_FDCWD, "/a") = 3\\n7 openat(AT_FDCWD, "/d/x") = 4\\n')
>>> sites(calls, "/d")
{'openat': [2]}

The number is what a tracer counts when it is told to strike at the n-th: each call by itself, each
thread by itself. The module does not know what the calls mean.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from tests.faults.conftest import Runs

FILE_CALLS: Final = (
    *("openat", "pwrite64", "write", "fdatasync", "fsync", "rename", "renameat", "renameat2"),
    *("unlink", "unlinkat", "ftruncate", "fallocate", "mkdir", "io_submit"),
)
"""Whatever changes a directory, as Python's functions and C's make them."""

BEGUN: Final = re.compile(r"^(\d+) +(\w+)\((.*)$", re.MULTILINE)


class Call(NamedTuple):
    """A system call that was begun."""

    thread: int
    name: str
    number: int
    """From 1, among the calls of that name of that thread."""

    rest: str
    """What stands behind the bracket."""


def calls_in(said: str) -> Iterator[Call]:
    """Yield the calls in the order in which they were begun."""
    counts: Counter[tuple[str, str]] = Counter()
    for thread, name, rest in BEGUN.findall(said):
        counts[thread, name] += 1
        yield Call(int(thread), name, counts[thread, name], rest)


def sites(
    calls: Iterable[Call], directory: str, *, and_all_later: bool = False
) -> dict[str, list[int]]:
    """Return, for each call, the numbers that concern the directory in every thread.

    With `and_all_later`, those from which on nothing else is concerned. Calls that name no file are
    taken to concern it.
    """
    ours: defaultdict[str, set[int]] = defaultdict(set)
    others: defaultdict[str, set[int]] = defaultdict(set)
    for call in calls:
        is_ours = call.name in {"io_submit", "sendto"} or directory in call.rest
        (ours if is_ours else others)[call.name].add(call.number)
    found = {}
    for name, numbers in sorted(ours.items()):
        last = max(others[name], default=0) if and_all_later else 0
        if chosen := sorted(each for each in numbers - others[name] if each > last):
            found[name] = chosen
    return found


def sampled(
    found: dict[str, list[int]], runs: Runs, short: tuple[str, ...]
) -> Iterator[tuple[str, int]]:
    """Yield all calls and numbers in the long run, otherwise one of each of these calls."""
    for name, numbers in found.items():
        if runs.is_long:
            yield from ((name, number) for number in numbers)
        elif name in short:
            yield name, numbers[len(numbers) // 2]
