"""How fast something was done, and what part of a processor its doing took."""

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """What was done, in what time, and what the generator spent on it."""

    operations: int
    seconds: float
    generator_cpu_seconds: float

    @property
    def per_second(self) -> float:
        """Operations a second."""
        return self.operations / self.seconds

    @property
    def generator_share(self) -> float:
        """The part of one processor the generator used; near 1 it may be the bottleneck."""
        return self.generator_cpu_seconds / self.seconds


class Stopwatch:
    """Wall and processor time since its construction."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._wall = time.perf_counter()

    def pace(self, operations: int) -> Pace:
        """Return the pace of so many operations done since the start."""
        seconds = time.perf_counter() - self._wall
        return Pace(operations, seconds, time.process_time() - self._cpu)
