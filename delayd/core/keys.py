"""Which job of a topic has which key: an index that never stops the world to grow.

It keeps neither key nor id of its own. A key is hashed to 60 bits, and a dict leads from the hash
to an *anchor*, an id near that of the job: the job is this one or one of the next seven. Neighbours
share the number object, so an entry costs one of them, for the hash. The records of the eight tell
which of them has the key (`named_among`):

    b"order-9" ─► hash 0x2a5…03 ─► part 3 of 256: {0x2a5…03: 72, …} ─► which of 72 … 79 is it?

A dict with a million entries takes 30 ms to grow. So from 8,192 keys on there are 256 dicts, chosen
by the low bits, and the longest that a put waits is that division, or one of the dicts as it grows:
1 ms, up to ten million keys. A key takes 60 to 90 bytes; as a dict from key to id it would be 150.

>>> jobs = {7: b"order-7", 9: b"order-9"}
>>> def named_among(anchor, key):
...     return next((i for i in range(anchor, anchor + 8) if jobs.get(i) == key), 0)
>>> index = KeyIndex(named_among)
>>> index.add(b"order-7", 7); index.claim_run([b"order-9"], 9), index.claim_run([b"order-7"], 10)
(True, False)
>>> index.find(b"order-9"), index.find(b"order-8"), len(index)
(9, 0, 2)
>>> index.remove(b"order-7", 7); index.find(b"order-7")
0

Clients choose the keys, so the hash is the interpreter's own, SipHash with a secret of the process:
no client can make keys meet, and they do so by chance once in a million times a million keys. The
hash never leaves the process.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from delayd.limits import KEY_ANCHOR_IDS, KEY_BYTES_SPARSE, KEY_PARTS, KEYS_UNDIVIDED

HASH_MASK: Final = (1 << 60) - 1
"""Two digits of Python's integers, as many as 32 bytes have space for."""
LOOK_EVERY: Final = 16
"""Removals from a part between two looks at whether it has become too large for what is left."""

Part: TypeAlias = dict[int, int]
"""Anchors by hash."""


class KeyIndex:
    """Job ids by key; every operation is O(1)."""

    __slots__ = ("_anchor", "_count", "_crowd", "_hash_of", "_mask", "_named_among", "_parts")

    def __init__(
        self, named_among: Callable[[int, bytes], int], hash_of: Callable[[bytes], int] = hash
    ) -> None:
        """Start empty.

        `named_among(anchor, key)` returns which of the `KEY_ANCHOR_IDS` jobs from that id on has
        been added with the key; 0 when none has.
        """
        self._named_among = named_among
        self._hash_of = hash_of
        self._start()

    def _start(self) -> None:
        """Forget everything, and be small."""
        self._count = 0
        self._parts: list[Part] = [{}]
        self._mask = 0
        """What bits of a hash choose its part."""
        self._anchor = 0
        """The last one given to a single key."""
        self._crowd: dict[bytes, int] = {}
        """Keys whose hash another one had already: with a fair hash there is none."""

    def __len__(self) -> int:
        return self._count

    def find(self, key: bytes) -> int:
        """Return the job that has the key; 0 when none has."""
        hashed = self._hash_of(key) & HASH_MASK
        anchor = self._parts[hashed & self._mask].get(hashed)
        job_id = 0 if anchor is None else self._named_among(anchor, key)
        return self._crowd.get(key, 0) if self._crowd and not job_id else job_id

    # --- Adding ----------------------------------------------------------------------------------

    def add(self, key: bytes, job_id: int) -> None:
        """Add a key that is not in it."""
        if not 0 <= job_id - self._anchor < KEY_ANCHOR_IDS:
            self._anchor = job_id
        hashed = self._hash_of(key) & HASH_MASK
        part = self._parts[hashed & self._mask]
        if hashed in part:
            self._crowd[key] = job_id
        else:
            part[hashed] = self._anchor
        self._have(self._count + 1)

    def claim_run(self, keys: Sequence[bytes], first_id: int) -> bool:
        """Add the keys of jobs with ids in sequence, newer than all; tell whether that was done.

        It is not, and nothing has changed, if one is taken or there twice, or has a hash that was
        another's. A third of the cost of `find` and `add` for each.
        """
        if self._crowd and not self._crowd.keys().isdisjoint(keys):
            return False
        parts, mask = self._parts, self._mask
        for at in range(0, len(keys), KEY_ANCHOR_IDS):
            anchor = first_id + at
            for hashed in map(self._hash_of, keys[at : at + KEY_ANCHOR_IDS]):
                hashed &= HASH_MASK  # noqa: PLW2901
                part = parts[hashed & mask]
                if hashed in part:
                    self._disown(keys, first_id)
                    return False
                part[hashed] = anchor
        self._have(self._count + len(keys))
        return True

    def _disown(self, keys: Sequence[bytes], first_id: int) -> None:
        """Take out what a run has added: whatever has an anchor of its own."""
        for key in keys:
            hashed = self._hash_of(key) & HASH_MASK
            part = self._parts[hashed & self._mask]
            if part.get(hashed, 0) >= first_id:
                del part[hashed]

    def _have(self, count: int) -> None:
        """Count so many keys from now on, and divide them when they have become many."""
        self._count = count
        if count > KEYS_UNDIVIDED and not self._mask:
            self._divide_by(KEY_PARTS)

    # --- Removing --------------------------------------------------------------------------------

    def remove(self, key: bytes, job_id: int) -> None:
        """Take out a key that is in it, with this job."""
        self._count -= 1
        if not self._count:
            self._start()
            return
        if self._crowd and self._crowd.get(key) == job_id:
            del self._crowd[key]
            return
        hashed = self._hash_of(key) & HASH_MASK
        number = hashed & self._mask
        part = self._parts[number]
        del part[hashed]
        if not len(part) % LOOK_EVERY:
            self._shrink(number)

    def _shrink(self, number: int) -> None:
        """Give memory back if few keys are left: a dict keeps its size when entries go."""
        part = self._parts[number]
        if self._mask and self._count < KEYS_UNDIVIDED // 4:
            self._divide_by(1)
        elif part.__sizeof__() > KEY_BYTES_SPARSE * (len(part) + LOOK_EVERY):
            self._parts[number] = dict(part)

    def _divide_by(self, number: int) -> None:
        """Have so many parts from now on, a power of two."""
        parts: list[Part] = [{} for _ in range(number)]
        self._mask = number - 1
        for former in self._parts:
            for hashed, anchor in former.items():
                parts[hashed & self._mask][hashed] = anchor
        self._parts = parts

    # --- For tests -------------------------------------------------------------------------------

    @property
    def table_bytes(self) -> int:
        """Return how large the dicts are, without the numbers in them."""
        return sum(part.__sizeof__() for part in self._parts)

    def check(self, jobs: dict[bytes, int]) -> None:
        """Assert that it leads to these jobs and to no other. O(keys)."""
        assert len(self) == len(jobs), "the keys are not those counted"
        assert {key: self.find(key) for key in jobs} == jobs
        assert len(self._parts) == self._mask + 1
        held = sum(map(len, self._parts)) + len(self._crowd)
        assert held == len(jobs), "a job is in it twice, or one that is gone"
        for number, part in enumerate(self._parts):
            assert all(hashed & self._mask == number for hashed in part)
