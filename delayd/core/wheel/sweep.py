"""One pass over all buckets of a wheel that drops the dead entries, in small steps.

A cancelled entry stays in its bucket until it is swept. `Sweep` goes bucket by bucket, from
the last to come due to the first, since what comes due soon is dropped then anyway. `step(budget)`
examines about that many entries and can be followed by anything before the next step: inserts,
cancels, an advance that takes the bucket that is being swept.

A bucket is compacted in place, so that appends to it stay where they are. `read` is how far it has
been examined, `write` how many of those were kept, and what lies between is to be cut:

    examined, 2 dead of 5       kept kept kept  gap gap | new new new
                                             write      read

An entry is dead when it has no due time any more, or one outside the bucket. An entry that
was cancelled and inserted again into the same bucket is there twice and looks alive both times. An
ordinary sweep keeps both; one that `hunts_twins` keeps the first. That costs 150 ns a survivor and
is rarely needed, so the wheel asks for it only when an ordinary sweep freed too little.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator

from delayd.core.wheel.buckets import Bucket, BucketQueue
from delayd.limits import SWEEP_BUCKET_COST


class Sweep:
    """A pass that has not ended; `is_over` tells when it has."""

    __slots__ = (
        *("_alive", "_bucket", "_hunts_twins", "_key", "_queue", "_read", "_seen"),
        *("_write", "is_over"),
    )

    def __init__(
        self, queue: BucketQueue, alive: Callable[[Bucket, int], list[int]], *, hunts_twins: bool
    ) -> None:
        """Start after the last bucket; `alive` selects the live entries of a chunk under a key."""
        self._queue = queue
        self._alive = alive
        self._hunts_twins = hunts_twins
        self._bucket: Bucket | None = None
        self._key = queue.keys[-1] + 1 if queue.keys else 0
        self._read = self._write = 0
        self._seen: dict[int, int] = {}
        self.is_over = False

    def step(self, budget: int) -> int:
        """Examine about `budget` entries; return how many were dead and are gone."""
        removed = 0
        while budget > 0:
            bucket = self._bucket
            if bucket is None:
                bucket = self._next_bucket()
                if bucket is None:
                    self.is_over = True
                    break
            chunk = bucket[self._read : self._read + budget]
            alive: Iterable[int] = self._alive(chunk, self._key)
            if self._hunts_twins:
                alive = self._without_twins(alive)
            kept = array("Q", alive)
            # Same size on both sides: nothing after it moves.
            bucket[self._write : self._write + len(kept)] = kept
            self._read += len(chunk)
            self._write += len(kept)
            removed += len(chunk) - len(kept)
            budget -= len(chunk) + SWEEP_BUCKET_COST
            if self._read >= len(bucket):
                self.leave(self._key)
                if not bucket:
                    self._queue.drop(self._key)
        return removed

    def close_gap(self) -> None:
        """Cut what was examined and not kept, before the bucket is read. O(its entries)."""
        if self._bucket is not None:
            del self._bucket[self._write : self._read]
            self._read = self._write

    def leave(self, key: int) -> None:
        """Stop sweeping the bucket of that key, because it is about to be taken."""
        if key == self._key:
            self.close_gap()
            self._bucket = None
            self._seen = {}

    def _next_bucket(self) -> "Bucket | None":
        key = self._queue.key_before(self._key)
        if key is None:
            return None
        self._key = key
        self._read = self._write = 0
        bucket = self._bucket = self._queue.by_key[key]
        return bucket

    def _without_twins(self, entries: Iterable[int]) -> Iterator[int]:
        """Yield those that this bucket has not shown before; twins are each as good as the other.

        Not so across buckets: an entry that moved since may be alive only where it is seen again.
        They are remembered as 64-bit masks, since ids are dense: 2 bytes an entry where a set takes
        60, and no step is long because a set of a million grows.
        """
        seen = self._seen
        for entry in entries:
            page = entry >> 6
            mask = seen.get(page, 0)
            bit = 1 << (entry & 63)
            if not mask & bit:
                seen[page] = mask | bit
                yield entry
