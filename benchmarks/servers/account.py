"""What became of each job: the judge of a reading.

    >>> account = JobAccount()
    >>> account.put(3, due_at=10.0)  # jobs 0, 1 and 2
    0
    >>> account.take([0, 1, 1], now=10.5)
    >>> account.verdict(standing=0)  # job 1 arrived twice, and job 2 is nowhere
    {'lost': 1, 'doubled': 1, 'early': 0}

All that a generator puts is acknowledged, and all that it takes is acknowledged by it, before it
asks for the verdict. So a job that was not taken stands, and none that was taken does.
"""

from array import array
from collections.abc import Iterable

from benchmarks.line import UnexpectedReplyError


class JobAccount:
    """The jobs of a reading, by number; times are in seconds of the generator's clock."""

    def __init__(self, first: int = 0) -> None:
        """Number jobs from `first` on: a server that keeps jobs of another account has those."""
        self._first = first
        self._due_at = array("d")
        self._taken = bytearray()
        self._again = 0
        self._early = 0
        self.taken = 0
        """How many different jobs were taken."""

    @property
    def jobs(self) -> int:
        """How many were put."""
        return len(self._taken)

    def put(self, count: int, due_at: float) -> int:
        """Give numbers to jobs that are put now; return the first."""
        first = self._first + len(self._taken)
        if count == 1:
            self._due_at.append(due_at)
            self._taken.append(0)
        else:
            self._due_at.extend([due_at] * count)
            self._taken.extend(bytes(count))
        return first

    def take(self, numbers: Iterable[int], now: float) -> None:
        """Note that jobs arrived. Raises `UnexpectedReplyError` for a job that nobody has put."""
        for number in numbers:
            place = number - self._first
            if not 0 <= place < len(self._taken):
                raise UnexpectedReplyError(f"job {number} arrived, and was never put")
            if now < self._due_at[place]:
                self._early += 1
            if self._taken[place]:
                self._again += 1
            else:
                self._taken[place] = 1
                self.taken += 1

    def verdict(self, standing: int) -> dict[str, float]:
        """Return what must be 0; `standing` is how many of these jobs the server has."""
        missing = self.jobs - self.taken - standing
        return {
            "lost": max(missing, 0),
            "doubled": self._again + max(-missing, 0),
            "early": self._early,
        }
