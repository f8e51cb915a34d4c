"""The queue of a wheel's non-empty buckets, in the order in which they come due.

A bucket is an `array('Q')` of entries: 8 bytes each, and nothing for the garbage collector to walk.
It has one number for a name, its *key*, made of its expiration and its level, so that the order of
the keys is the order of work: the earlier expiration first and, at equal expirations, the higher
level first, whose entries may belong into the lower one.

    expiration 400, level 3  →  key 400 * 128 + (127 - 3) = 51,324
    expiration 400, level 1  →  key 400 * 128 + (127 - 1) = 51,326

A wheel of the default size seldom has more than a thousand buckets. There a dict and a sorted list
take 0.4 µs for a new bucket, where `sortedcontainers.SortedDict` takes 0.8 µs and 1.6 kB more for
each wheel, and there may be 100,000 wheels. It wins from 5,000 buckets on; at 200,000 a new bucket
costs us 20 µs, but a wheel gains at most one bucket a tick.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

Bucket: TypeAlias = "array[int]"  # as text: Python 3.11 cannot subscript it

LEVEL_BITS: Final = 7
"""Of a key. A wheel of size 2 needs 64 levels to span 64-bit milliseconds."""

LEVELS_MAX: Final = (1 << LEVEL_BITS) - 1


class WheelCounts:
    """What is counted over all wheels of a store."""

    __slots__ = ("cascaded", "levels")

    def __init__(self) -> None:
        self.cascaded = 0
        """Entries of a higher level that were placed again, on a lower one."""
        self.levels = 1
        """The most that any wheel has had."""


class Level(NamedTuple):
    """One wheel of the hierarchy: `wheel_size` buckets of `tick_ms`, together `interval_ms`."""

    number: int
    tick_ms: int
    interval_ms: int

    @property
    def rank(self) -> int:
        """The level's part of a key."""
        return LEVELS_MAX - self.number


def expiration_of(key: int) -> int:
    """Return when the bucket of that key comes due."""
    return key >> LEVEL_BITS


def level_of(key: int) -> int:
    """Return the number of the level that the bucket of that key belongs to."""
    return LEVELS_MAX - (key & LEVELS_MAX)


class Mark:
    """How far a scan of a wheel has come, while the wheel keeps turning.

    A bucket is looked at from its last entry to its first. Whatever is done to it meanwhile, what
    has not been scanned stays before `end`: new entries come after it, and a sweep moves entries
    towards the beginning.
    """

    __slots__ = ("bucket", "end", "place")

    def __init__(self) -> None:
        self.place = -1
        """Twice the key of the bucket, and one more unless it was pending when it was entered."""
        self.bucket: Bucket | None = None
        self.end = 0
        """How many of its entries have not been scanned; 0: continue with the next bucket."""


class BucketQueue:
    """A sorted map from key to bucket. No bucket in it is ever empty when its owner is done."""

    __slots__ = ("by_key", "keys")

    def __init__(self) -> None:
        self.by_key: dict[int, Bucket] = {}
        self.keys: list[int] = []

    def open(self, key: int) -> tuple[Bucket, bool]:
        """Make the bucket of that key; tell too whether it is now the first. The key is new."""
        bucket = self.by_key[key] = array("Q")
        keys = self.keys
        place = bisect_left(keys, key)
        keys.insert(place, key)
        return bucket, place == 0

    def open_for(self, rows: Iterable[tuple[int, int]]) -> None:
        """Add entries under their keys; buckets that there are none of are made, 0.3 µs each."""
        by_key, keys = self.by_key, self.keys
        for key, entry in rows:
            bucket = by_key.get(key)
            if bucket is None:
                bucket = by_key[key] = array("Q")
                keys.append(key)
            bucket.append(entry)
        keys.sort()

    def take(self, place: int) -> tuple[int, Bucket]:
        """Take the bucket at that place of the order out; return its key too."""
        key = self.keys.pop(place)
        return key, self.by_key.pop(key)

    def drop(self, key: int) -> None:
        """Remove the bucket of that key."""
        self.take(bisect_left(self.keys, key))

    def key_before(self, key: int) -> int | None:
        """Return the last key that is smaller; None when there is none."""
        place = bisect_left(self.keys, key)
        return self.keys[place - 1] if place else None

    def check(self) -> None:
        """Assert that the keys are sorted and complete, and that no bucket is empty."""
        assert self.keys == sorted(self.by_key), "the keys and the buckets do not match"
        assert all(self.by_key.values()), "a bucket is empty"
