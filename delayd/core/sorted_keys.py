"""Distinct numbers in ascending order: ready jobs, buried ones, the turns of groups.

They lie in *runs*, lists of at most RUN_KEYS_MAX numbers, one run after the other, and the last
number of each run is in a list of its own. What is looked for is found by two bisections, the first
one in that list; what moves in memory is one run.

    lasts  [  41,          97,          230 ]
    runs   [ [3, 8, 41], [50, 97], [99, 120, 230] ]

Jobs mostly become ready in the order of their keys, and leave in it: then a number is added behind
the last one, and taken from the first run, without a bisection. A run that is full is parted in
two, and one that has become short joins a neighbour where both fit into one.

The numbers of a job take 66 bits and more, for which Python has no array. That is the only reason
for lists; and since this is carried out twice for each job, it is compiled, unlike
`sortedcontainers.SortedList`, which has the same structure.

>>> keys = SortedKeys()
>>> for key in (8, 3, 1 << 70, 5):
...     keys.add(key)
>>> keys.first(), keys.after(3, 2), len(keys)
(3, [5, 8], 4)
>>> keys.remove(5)
>>> keys.pop_first(), keys.take_last(9)
(3, [8, 1180591620717411303424])
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from typing import Final, final

RUN_KEYS_MAX: Final = 512
RUN_KEYS_FEW: Final = RUN_KEYS_MAX // 4
"""A shorter run joins a neighbour if it can."""


@final
class SortedKeys:
    """The numbers; none of them is in it twice."""

    __slots__ = ("_count", "_lasts", "_runs")

    def __init__(self) -> None:
        self._runs: list[list[int]] = []
        self._lasts: list[int] = []
        self._count = 0

    # --- Changes ---------------------------------------------------------------------------------

    def add(self, key: int) -> None:
        """Take in a number. O(log n), and O(1) if it is the greatest."""
        self._count += 1
        runs, lasts = self._runs, self._lasts
        if not lasts or key > lasts[-1]:
            if lasts and len(runs[-1]) < RUN_KEYS_MAX:
                runs[-1].append(key)
                lasts[-1] = key
            else:
                runs.append([key])
                lasts.append(key)
            return
        place = bisect_left(lasts, key)
        run = runs[place]
        insort(run, key)
        if len(run) > RUN_KEYS_MAX:
            half = RUN_KEYS_MAX // 2
            runs.insert(place, run[:half])
            lasts.insert(place, run[half - 1])
            del run[:half]

    def add_run(self, keys: Sequence[int]) -> None:
        """Take in numbers; O(1) for each if they ascend and are the greatest."""
        for key in keys:
            self.add(key)

    def remove(self, key: int) -> None:
        """Take out this number; it must be there. O(log n)."""
        runs, lasts = self._runs, self._lasts
        place = bisect_left(lasts, key)
        run = runs[place]
        at = bisect_left(run, key)
        assert run[at] == key, f"there is no {key} among the keys"
        del run[at]
        if at == len(run) and run:
            lasts[place] = run[-1]
        self._count -= 1
        if len(run) < RUN_KEYS_FEW:
            self._shorten(place)

    def pop_first(self) -> int:
        """Take out the least number; there must be one. O(1)."""
        run = self._runs[0]
        key = run[0]
        del run[0]
        self._count -= 1
        if not run:
            del self._runs[0], self._lasts[0]
        return key

    def take_last(self, count: int) -> list[int]:
        """Take out so many of the greatest numbers, or all that there are; they ascend."""
        taken: list[int] = []
        while self._runs and len(taken) < count:
            run = self._runs[-1]
            cut = max(0, len(run) - (count - len(taken)))
            taken = run[cut:] + taken
            del run[cut:]
            if run:
                self._lasts[-1] = run[-1]
            else:
                del self._runs[-1], self._lasts[-1]
        self._count -= len(taken)
        return taken

    def _shorten(self, place: int) -> None:
        """Drop a run that is empty, or have it join a neighbour that has space for it."""
        runs, lasts = self._runs, self._lasts
        run = runs[place]
        if not run:
            del runs[place], lasts[place]
        elif place + 1 < len(runs) and len(run) + len(runs[place + 1]) <= RUN_KEYS_MAX:
            run += runs[place + 1]
            del runs[place + 1], lasts[place]
        elif place and len(runs[place - 1]) + len(run) <= RUN_KEYS_MAX:
            runs[place - 1] += run
            del runs[place], lasts[place - 1]

    # --- Looks -----------------------------------------------------------------------------------

    def first(self) -> int:
        """Return the least number; there must be one."""
        return self._runs[0][0]

    def last(self) -> int:
        """Return the greatest number; there must be one."""
        return self._lasts[-1]

    def at(self, index: int) -> int:
        """Return the number that has so many before it; there must be one. O(n / RUN_KEYS_MAX)."""
        for run in self._runs:
            if index < len(run):
                return run[index]
            index -= len(run)
        raise IndexError(index)

    def after(self, key: int, count: int) -> list[int]:
        """Return so many numbers that follow this one, or fewer at the end. O(log n + count)."""
        found: list[int] = []
        place = bisect_right(self._lasts, key)
        while place < len(self._runs) and len(found) < count:
            run = self._runs[place]
            begin = 0 if found else bisect_right(run, key)
            found += run[begin : begin + count - len(found)]
            place += 1
        return found

    def following(self, key: int) -> int:
        """Return the least number above this one; -1: there is none."""
        place = bisect_right(self._lasts, key)
        if place == len(self._lasts):
            return -1
        run = self._runs[place]
        return run[bisect_right(run, key)]

    def __contains__(self, key: int) -> bool:
        place = bisect_left(self._lasts, key)
        if place == len(self._lasts):
            return False
        run = self._runs[place]
        return run[bisect_left(run, key)] == key

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        """Tell whether there is one: compiled code does not ask for the length."""
        return self._count > 0

    def __iter__(self) -> Iterator[int]:
        for run in self._runs:
            yield from run

    def check(self) -> None:
        """Assert that the numbers ascend, and that no run is empty or too long. O(n)."""
        keys = [*self]
        assert keys == sorted(set(keys)), "the keys do not ascend"
        assert self._lasts == [run[-1] for run in self._runs]
        assert all(len(run) <= RUN_KEYS_MAX for run in self._runs), "a run is too long"
        assert self._count == len(keys)
