"""Which job of a topic has which key: an index that never stops the world to grow.

It is *extendible hashing* (Fagin et al. 1979). Keys are hashed to 30 bits. The low bits choose a
segment, by way of a directory; the high bits choose a slot in it, and who finds it taken goes to
the next one. A slot is two numbers, hash and job id; 0 is an empty one:

    hash 0x2a5_00003 = 10 bits of slot, 20 bits of segment       directory of 4: low bits 11
    directory[3] ─► segment: … 0x2a5_00003 id 7 | 0x2a5_00007 id 9 | 0 0 | …
                               slot 0x2a5, its home    displaced by one

When a key would come to lie too far from its home, its segment is divided in four, by two more
bits, and the directory doubled for bits that are new to it. So the longest that a put ever waits is
one segment (a thousand slots: 0.3 ms) and a copy of the directory (a pointer for each 180 keys or
more). Removing keys merges segments again. 1 M keys of whatever length take 22 to 72 bytes each,
and one place in memory is touched for each; as a dict from key to id they would take 150.

>>> keys = {7: b"order-7", 9: b"order-9"}
>>> index = KeyIndex(keys.__getitem__)
>>> index.add(b"order-7", 7); index.claim_run([b"order-9"], 9), index.claim_run([b"order-7"], 10)
(True, False)
>>> index.find(b"order-9"), index.find(b"order-8"), len(index)
(9, 0, 2)
>>> index.remove(b"order-7", 7); index.find(b"order-7")
0

It keeps no key: where a hash fits, the job's record is asked (`key_of`). Clients choose the keys,
so the hash is the interpreter's own, SipHash with a secret of the process: nobody can make many
keys meet. What the hash is can be seen nowhere outside. The index refuses to know what a job is.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import compress
from typing import TYPE_CHECKING, Final, TypeAlias

from delayd.core.limits import KEY_SEGMENT_SLOTS, KEY_SEGMENT_SLOTS_MIN, KEY_STRAY_SLOTS_MAX

if TYPE_CHECKING:
    Segment: TypeAlias = array[int]
else:
    Segment = array  # Python 3.11 cannot subscript it

HASH_BITS: Final = 30
"""One digit of Python's integers: arithmetic with more costs twice as much."""
HASH_MASK: Final = (1 << HASH_BITS) - 1
DEPTH_MAX: Final = HASH_BITS - (KEY_SEGMENT_SLOTS.bit_length() - 1)
"""Low bits that may choose a segment: all that do not choose the slot."""
SKEW_MAX: Final = 64
"""Places of the directory for each segment; a fair hash needs 16 at most."""
SPARSE: Final = 8
"""Below one key in so many slots segments are merged."""
MERGE_EVERY: Final = 16
"""Removals between two looks at whether two segments can be merged: each costs 30 µs."""


class KeyIndex:
    """Job ids by key; every operation is O(1)."""

    __slots__ = (
        "_count",
        "_crowd",
        "_cursor",
        "_deepest",
        "_depths",
        "_hash_of",
        "_key_of",
        "_mask",
        "_pieces",
        "_segments",
        "_shift",
        "_slots",
        "_stray",
    )

    def __init__(
        self, key_of: Callable[[int], bytes], hash_of: Callable[[bytes], int] = hash
    ) -> None:
        """Start empty; `key_of(job_id)` returns the key of any job that has been added."""
        self._key_of = key_of
        self._hash_of = hash_of
        self._cursor = 0
        self._start()

    def _start(self) -> None:
        """Forget everything, and be small."""
        self._count = 0
        self._crowd: dict[bytes, int] = {}
        """Keys that found no place where their hash wants them: with a fair hash there is none."""
        self._set_slots(KEY_SEGMENT_SLOTS_MIN)
        self._segments = [self._empty()]
        """The directory. Segments with fewer bits than it has are in it several times."""
        self._depths = [0]
        """How many low bits the keys of the segment there have in common."""
        self._mask = 0
        self._pieces = 1
        """How many segments there are."""
        self._deepest = 1
        """How many segments are as deep as the directory."""

    def _set_slots(self, slots: int) -> None:
        self._slots = slots
        self._shift = HASH_BITS - (slots.bit_length() - 1)
        # In numbers, of which a slot has two.
        self._stray = 2 * min(KEY_STRAY_SLOTS_MAX, slots // 2)

    def _empty(self) -> Segment:
        """Return a segment without keys; behind what strays from the last slot it ends with a 0."""
        return array("Q", bytes(8 * (2 * self._slots + self._stray + 2)))

    def __len__(self) -> int:
        """Count the keys."""
        return self._count

    # --- Finding and adding ----------------------------------------------------------------------

    def find(self, key: bytes) -> int:
        """Return the job that has the key; 0 when none has."""
        hashed = self._hash_of(key) & HASH_MASK or 1
        segment = self._segments[hashed & self._mask]
        at = hashed >> self._shift << 1
        while found := segment[at]:
            if found == hashed and self._key_of(segment[at + 1]) == key:
                return segment[at + 1]
            at += 2
        return self._crowd.get(key, 0) if self._crowd else 0

    def add(self, key: bytes, job_id: int) -> None:
        """Add a key that is not in it."""
        self._place(self._hash_of(key) & HASH_MASK or 1, job_id, key)
        self._count += 1

    def claim_run(self, keys: Sequence[bytes], first_id: int) -> bool:
        """Add the keys of jobs with ids in sequence, if all are free and different; tell whether.

        Half the cost of `find` and `add` for each.
        """
        if self._crowd:
            return self._claim_slowly(keys, first_id)
        segments, mask, shift, stray = self._segments, self._mask, self._shift, self._stray
        for job_id, hashed in enumerate(map(self._hash_of, keys), first_id):
            hashed = hashed & HASH_MASK or 1  # noqa: PLW2901
            segment = segments[hashed & mask]
            at = home = hashed >> shift << 1
            while found := segment[at]:
                if found == hashed and self._is_of(segment[at + 1], keys, job_id, first_id):
                    self._disown(keys[: job_id - first_id], first_id)
                    return False
                at += 2
            if at - home < stray:
                segment[at] = hashed
                segment[at + 1] = job_id
            else:
                self._place(hashed, job_id, keys[job_id - first_id])
                if self._crowd:
                    self._disown(keys[: job_id + 1 - first_id], first_id)
                    return self._claim_slowly(keys, first_id)
                segments, mask, shift, stray = self._segments, self._mask, self._shift, self._stray
        self._count += len(keys)
        return True

    def _is_of(self, other: int, keys: Sequence[bytes], job_id: int, first_id: int) -> bool:
        """Tell whether another job, perhaps of the same run, has the key that this one wants."""
        key = keys[other - first_id] if other >= first_id else self._key_of(other)
        return key == keys[job_id - first_id]

    def _claim_slowly(self, keys: Sequence[bytes], first_id: int) -> bool:
        if len(set(keys)) < len(keys) or any(map(self.find, keys)):
            return False
        for job_id, key in enumerate(keys, first_id):
            self.add(key, job_id)
        return True

    def _disown(self, keys: Sequence[bytes], first_id: int) -> None:
        """Take back what a run has added and not yet counted."""
        self._count += len(keys)
        for job_id, key in enumerate(keys, first_id):
            self.remove(key, job_id)

    def _place(self, hashed: int, job_id: int, key: bytes | None = None) -> None:
        """Put a job where its hash wants it, and make room there if it would stray too far."""
        while True:
            segment = self._segments[hashed & self._mask]
            at = home = hashed >> self._shift << 1
            while segment[at]:
                at += 2
            if at - home < self._stray:
                segment[at] = hashed
                segment[at + 1] = job_id
                return
            if not self._grow(hashed & self._mask):
                self._crowd[self._key_of(job_id) if key is None else key] = job_id
                return

    # --- Growing ---------------------------------------------------------------------------------

    def _grow(self, number: int) -> bool:
        """Make room in a segment; tell whether that could be done."""
        if self._slots < KEY_SEGMENT_SLOTS:
            self._resize(2 * self._slots)
            return True
        is_skewed = len(self._segments) > SKEW_MAX * self._pieces
        if is_skewed or self._depths[number] == DEPTH_MAX:
            return False
        self._divide(number)
        return True

    def _resize(self, slots: int) -> None:
        """Let the only segment have so many slots."""
        rows = _rows(self._segments[0])
        self._set_slots(slots)
        self._segments[0] = self._empty()
        for hashed, job_id in rows:
            self._place(hashed, job_id)

    def _divide(self, number: int) -> None:
        """Divide the segment of that place in the directory in four, by two more bits.

        In two, each key would be moved three times as often, and searches would be longer.
        """
        depth = self._depths[number]
        bits = min(2, DEPTH_MAX - depth)
        while depth + bits > self._mask.bit_length():
            self._segments = self._segments * 2
            self._depths = self._depths * 2
            self._mask = 2 * self._mask + 1
            self._deepest = 0
        parts = [self._empty() for _ in range(1 << bits)]
        shift, last = self._shift, len(parts) - 1
        for hashed, job_id in _rows(self._segments[number]):
            # In the order of their slots nobody strays farther than before.
            part = parts[hashed >> depth & last]
            at = hashed >> shift << 1
            while part[at]:
                at += 2
            part[at] = hashed
            part[at + 1] = job_id
        self._pieces += last
        for upper, part in enumerate(parts):
            self._install(number & (1 << depth) - 1 | upper << depth, part, depth + bits)

    def _install(self, number: int, segment: Segment, depth: int) -> None:
        """Let the directory lead to the segment wherever the low `depth` bits are the number's."""
        step = 1 << depth
        for place in range(number, len(self._segments), step):
            self._segments[place] = segment
            self._depths[place] = depth
        self._deepest += step > self._mask

    # --- Removing and shrinking ------------------------------------------------------------------

    def remove(self, key: bytes, job_id: int) -> None:
        """Take out a key that is in it, with this job."""
        self._count -= 1
        hashed = self._hash_of(key) & HASH_MASK or 1
        segment = self._segments[hashed & self._mask]
        at = hashed >> self._shift << 1
        while found := segment[at]:
            if found == hashed and segment[at + 1] == job_id:
                self._close(segment, at)
                break
            at += 2
        else:
            assert self._crowd.pop(key) == job_id
        if not self._count:
            self._start()
        elif not self._count % MERGE_EVERY and SPARSE * self._count < self.slots:
            self._shrink()

    def _close(self, segment: Segment, hole: int) -> None:
        """Empty a slot, and let those behind it that strayed past it move up."""
        shift = self._shift
        at = hole + 2
        while hashed := segment[at]:
            if hashed >> shift << 1 <= hole:
                segment[hole] = hashed
                segment[hole + 1] = segment[at + 1]
                hole = at
            at += 2
        segment[hole] = segment[hole + 1] = 0

    def _shrink(self) -> None:
        """Merge two segments, or halve the only one, now that few slots are in use."""
        if not self._mask:
            if self._slots > KEY_SEGMENT_SLOTS_MIN:
                self._resize(self._slots // 2)
            return
        # Each place of the directory has its turn: whatever remains is found sooner or later.
        number = self._cursor = self._cursor + 1 & self._mask
        depth = self._depths[number]
        other = number ^ 1 << depth - 1
        if depth != self._depths[other]:
            return
        rows = [*_rows(self._segments[number]), *_rows(self._segments[other])]
        if SPARSE * len(rows) < 2 * self._slots:
            self._merge(number & (1 << depth - 1) - 1, depth, rows)

    def _merge(self, number: int, depth: int, rows: list[tuple[int, int]]) -> None:
        """Put one segment in the place of two that differ in the last of their `depth` bits."""
        self._pieces -= 1
        self._deepest -= 2 * ((1 << depth) > self._mask)
        self._install(number, self._empty(), depth - 1)
        while not self._deepest:
            half = len(self._segments) // 2
            del self._segments[half:]
            del self._depths[half:]
            self._mask >>= 1
            self._deepest = self._depths.count(half.bit_length() - 1)
        for hashed, job_id in rows:
            self._place(hashed, job_id)

    @property
    def slots(self) -> int:
        """Count the slots of all segments, without what only keys that stray can take."""
        return self._pieces * self._slots

    # --- For tests -------------------------------------------------------------------------------

    def check(self, jobs: dict[bytes, int]) -> None:
        """Assert that it leads to these jobs and to no other. O(keys)."""
        assert len(self) == len(jobs), "the keys are not those counted"
        assert {key: self.find(key) for key in jobs} == jobs
        assert len({id(segment) for segment in self._segments}) == self._pieces
        assert len(self._segments) == len(self._depths) == self._mask + 1
        deepest = (self._mask + 1).bit_length() - 1
        assert self._depths.count(deepest) == self._deepest > 0
        held = len(self._crowd)
        for number, segment in enumerate(self._segments):
            depth = self._depths[number]
            assert segment is self._segments[number & (1 << depth) - 1]
            if number < 1 << depth:
                rows = list(_rows(segment))
                held += len(rows)
                assert all(hashed & (1 << depth) - 1 == number for hashed, _ in rows)
            assert segment[-2] == 0, "nothing ends a search"
        assert held == len(jobs), "a job is in it twice, or one that is gone"


def _rows(segment: Segment) -> Iterable[tuple[int, int]]:
    """Return hash and job id of each slot in use, in the order of the slots."""
    hashes = segment[::2]
    return list(zip(compress(hashes, hashes), compress(segment[1::2], hashes), strict=True))
