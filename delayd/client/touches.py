"""When which job in hand is to be touched: a third of its ttr after it was the last time.

>>> touches = Touches()
>>> touches.add("a", ttr_s=60.0, now_s=100.0)
>>> touches.next_s(), touches.take_due(119.0), touches.take_due(120.0), touches.next_s()
(120.0, [], ['a'], 140.0)
>>> touches.discard("a")
>>> touches.next_s()
"""

from typing import Generic, TypeVar

J = TypeVar("J")


class Touches(Generic[J]):
    """The jobs in hand, by when their reservations are extended. Few: each look is at all."""

    def __init__(self) -> None:
        self._jobs: dict[int, tuple[J, float, float]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: J, ttr_s: float, now_s: float) -> None:
        """Begin to touch a job."""
        every_s = ttr_s / 3
        self._jobs[id(job)] = (job, every_s, now_s + every_s)

    def discard(self, job: J) -> None:
        """Touch it no more."""
        self._jobs.pop(id(job), None)

    def next_s(self) -> float | None:
        """Return when the next one is to be touched; None if there is none."""
        return min((at_s for _job, _every_s, at_s in self._jobs.values()), default=None)

    def take_due(self, now_s: float) -> list[J]:
        """Return the jobs to be touched now, each to be touched again a third of a ttr later."""
        due = [entry for entry in self._jobs.values() if entry[2] <= now_s]
        for job, every_s, _at_s in due:
            self._jobs[id(job)] = (job, every_s, now_s + every_s)
        return [job for job, _every_s, _at_s in due]
