"""Since when the ready jobs of a topic have been ready: enough of it to know the oldest.

The ready jobs are sorted by priority, so the one that has waited longest may be anywhere among
them: after a million others, if its priority is low. A search takes too long, and a second
sorted list would cost as much as the first. Instead they are counted by the time at which they
became ready, in *slots*:

    slot    0 to 127 ms   128 to 255 ms   256 to 383 ms
    jobs         0              3               17          oldest: 255 ms at the latest

A job that becomes ready is one addition, one that leaves is one subtraction, many at once are no
more. When the slots are too many (`AGE_SLOTS_MAX`), neighbours are merged: what is reported of the
age of the oldest is exact to 128 ms or a 64th of it, and never too much.

>>> ages = ReadyAges()
>>> ages.add(1_000, jobs=2)
>>> ages.add(5_000)
>>> ages.oldest_ms()
1023
>>> ages.add(1_000, jobs=-2)
>>> ages.oldest_ms()
5119

A job is ready since it was due, as its record says; so the same follows from a journal. Not so for
a job whose reservation ran out or was given up, and for one that was kicked: they are ready since
then, which no record of a job says. `since` keeps it for them as long as they are ready, and a
replay of what happened finds it again. No snapshot has it, and above `AGES_KEPT_MAX` it is not
kept: these jobs seem to have been ready since they were due.
"""

from collections import Counter
from typing import TYPE_CHECKING

from delayd.limits import AGE_SLOT_BITS, AGE_SLOTS_MAX, AGES_KEPT_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable


class ReadyAges:
    """How many jobs became ready when, and still are.

    What is counted in the newest slot, which is nearly everything, is counted in `newest`: code
    that does it for one job at a time compares with its bounds and adds there, which takes 40 ns,
    where a call takes 150.
    """

    __slots__ = ("_jobs", "_sweep_at", "newest", "newest_end_ms", "newest_ms", "shift", "since")

    def __init__(self) -> None:
        self.shift = AGE_SLOT_BITS
        """A slot is that power of two, in milliseconds."""
        self.newest = 0
        """Jobs that became ready from `newest_ms` on and before `newest_end_ms`: a slot."""
        self.newest_ms = self.newest_end_ms = 0
        self.since: dict[int, int] | None = None
        """Job → since when it has been ready, where its record says otherwise; None for none."""
        self._jobs: dict[int, int] = {}
        """Number of a slot → jobs, none for some; without the newest slot."""
        self._sweep_at = AGE_SLOTS_MAX

    def add(self, since_ms: int, jobs: int = 1) -> None:
        """Count jobs that are ready since then; a negative number for some that are so no more."""
        if self.newest_ms <= since_ms < self.newest_end_ms:
            self.newest += jobs
            return
        if since_ms >= self.newest_end_ms:
            self._close_newest()
            self.newest = jobs + self._jobs.pop(since_ms >> self.shift, 0)
            self.newest_ms = since_ms >> self.shift << self.shift
            self.newest_end_ms = self.newest_ms + (1 << self.shift)
            return
        slot = since_ms >> self.shift
        self._jobs[slot] = self._jobs.get(slot, 0) + jobs

    def _close_newest(self) -> None:
        if self.newest:
            self._jobs[self.newest_ms >> self.shift] = self.newest
        self.newest = self.newest_ms = self.newest_end_ms = 0
        if len(self._jobs) > self._sweep_at:
            self._drop_empty()
            self._sweep_at = 2 * len(self._jobs) + AGE_SLOTS_MAX

    def keep(self, job_id: int, since_ms: int) -> bool:
        """Note since when a job has been ready that is about to be; False: there is no space."""
        if self.since is None:
            self.since = {}
        if len(self.since) >= AGES_KEPT_MAX:
            return False
        self.since[job_id] = since_ms
        return True

    def leave(self, job_id: int, due_ms: int) -> int:
        """Take out a job that is ready no more; return since when it was."""
        since_ms = self.since.pop(job_id, due_ms) if self.since else due_ms
        self.add(since_ms, -1)
        return since_ms

    def tidy(self) -> None:
        """Forget empty slots, and make them wider while there are too many. O(slots)."""
        self._drop_empty()
        if len(self._jobs) > AGE_SLOTS_MAX or not self._jobs:
            self._close_newest()
        while len(self._jobs) > AGE_SLOTS_MAX:
            wider: Counter[int] = Counter()
            for slot, jobs in self._jobs.items():
                wider[slot >> 1] += jobs
            self._jobs = dict(wider)
            self.shift += 1
        if not self._jobs:
            self.shift = AGE_SLOT_BITS
        self._sweep_at = AGE_SLOTS_MAX

    def _drop_empty(self) -> None:
        self._jobs = {slot: jobs for slot, jobs in self._jobs.items() if jobs}

    def oldest_ms(self) -> int | None:
        """Return when the oldest became ready, at the latest; None when no job is. O(slots)."""
        if len(self._jobs) > AGE_SLOTS_MAX:
            self.tidy()
        slot = min((slot for slot, jobs in self._jobs.items() if jobs), default=None)
        if slot is not None:
            return (slot + 1 << self.shift) - 1
        return self.newest_end_ms - 1 if self.newest else None

    def check(self, dues: "Iterable[tuple[int, int]]") -> None:
        """Assert that these are the ready jobs: (id, due time) of each."""
        since = self.since or {}
        jobs = dict(dues)
        if not (jobs or self._jobs or self.newest or since):
            return  # nearly always so: tests check after each step
        expected = Counter(since.get(job_id, jobs[job_id]) >> self.shift for job_id in jobs)
        counted = Counter(self._jobs)
        counted[self.newest_ms >> self.shift] += self.newest
        assert +counted == expected, "the ages are not those of the jobs that are ready"
        assert not -counted, "more jobs have left a slot than there were"
        assert since.keys() <= jobs.keys(), "a job that is not ready is kept in mind"
