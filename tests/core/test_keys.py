"""The index of keys against a dict, with fair hashes and with the worst there are."""

import random
from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import pytest

from delayd.core import keys
from delayd.core.keys import KeyIndex
from delayd.core.limits import KEY_SEGMENT_SLOTS, KEY_SEGMENT_SLOTS_MIN

HASHES: Final[MappingProxyType[str, Callable[[bytes], int]]] = MappingProxyType(
    {
        "fair": hash,
        "all the same": lambda _: 5,
        "zero, which stands for an empty slot": lambda _: 0,
        "few that differ": lambda key: hash(key) & 0x300003,
        "low bits the same": lambda key: hash(key) << 22,
        "high bits the same": lambda key: hash(key) & 0xFFFFF,
        "in sequence": lambda key: int(key.split(b"-")[1]),
    }
)


class Keyed:
    """An index and what it ought to hold."""

    def __init__(self, hash_of: Callable[[bytes], int] = hash) -> None:
        self.key_of: dict[int, bytes] = {}
        self.jobs: dict[bytes, int] = {}
        self.index = KeyIndex(self.key_of.__getitem__, hash_of)
        self.last_id = 0

    def name(self, wanted: list[bytes]) -> int:
        first_id = self.last_id + 1
        self.key_of.update(enumerate(wanted, first_id))
        self.last_id += len(wanted)
        return first_id

    def add(self, key: bytes) -> None:
        self.jobs[key] = self.name([key])
        self.index.add(key, self.last_id)

    def claim(self, wanted: list[bytes]) -> None:
        are_free = len(set(wanted)) == len(wanted) and not self.jobs.keys() & set(wanted)
        first_id = self.name(wanted)
        assert self.index.claim_run(wanted, first_id) == are_free
        if are_free:
            self.jobs.update({key: job_id for job_id, key in enumerate(wanted, first_id)})

    def remove(self, key: bytes) -> None:
        self.index.remove(key, self.jobs.pop(key))


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEY_SEGMENT_SLOTS", 16)
    monkeypatch.setattr(keys, "KEY_SEGMENT_SLOTS_MIN", 4)


def named(number: int) -> bytes:
    return b"order-%d" % number


@pytest.mark.parametrize("hash_of", HASHES.values(), ids=HASHES)
@pytest.mark.parametrize("is_small", [True, False])
def test_it_is_a_dict(
    hash_of: Callable[[bytes], int],
    is_small: bool,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Growing and shrinking by turns, down to nothing each time."""
    if is_small:
        small(monkeypatch)
    keyed = Keyed(hash_of)
    space = 300 if is_small else 4_000
    for step in range(600):
        is_growing = step // 100 % 2 == 0
        if is_growing:
            keyed.claim([named(rng.randrange(space)) for _ in range(rng.randrange(1, 9))])
        key = named(rng.randrange(space))
        assert keyed.index.find(key) == keyed.jobs.get(key, 0)
        if is_growing and key not in keyed.jobs:
            keyed.add(key)
        for _ in range(1 if is_growing else 12):
            if keyed.jobs:
                keyed.remove(rng.choice(list(keyed.jobs)))
        if step % 20 == 19:
            keyed.index.check(keyed.jobs)
    while keyed.jobs:
        keyed.remove(next(iter(keyed.jobs)))
    keyed.index.check({})
    assert not keyed.index
    assert keyed.index.slots == (4 if is_small else KEY_SEGMENT_SLOTS_MIN)


def test_a_run_that_meets_a_taken_key_leaves_nothing_behind() -> None:
    keyed = Keyed()
    keyed.claim([named(number) for number in range(2_000)])
    for at in (0, 7, 18):
        wanted = [named(number) for number in range(5_000, 5_020)]
        keyed.claim([*wanted[:at], named(1_000), *wanted[at + 1 :]])
        keyed.claim([*wanted[:19], wanted[at]])
    keyed.index.check(keyed.jobs)
    assert len(keyed.index) == 2_000


def test_memory_follows_the_number_of_keys_both_ways() -> None:
    """100,000 keys take 13 to 70 % of the slots; what is left of them takes as much again."""
    keyed = Keyed()
    for start in range(0, 100_000, 100):
        keyed.claim([named(number) for number in range(start, start + 100)])
        assert keyed.index.slots <= max(KEY_SEGMENT_SLOTS_MIN, 8 * len(keyed.index))
    assert keyed.index.slots >= 1.4 * len(keyed.index)
    for number in range(100_000):
        keyed.remove(named(number))
        if number % 10_000 == 9_999 or number > 99_900:
            left = len(keyed.index)
            assert keyed.index.slots <= max(4 * KEY_SEGMENT_SLOTS, 20 * left)
    keyed.index.check({})
    assert keyed.index.slots == KEY_SEGMENT_SLOTS_MIN


def test_no_put_waits_for_more_than_one_segment() -> None:
    """However many keys there are: what is moved at once is bounded."""
    keyed = Keyed()
    moved = 0

    for number in range(30_000):
        before = keyed.index.slots
        keyed.claim([named(number)])
        moved = max(moved, keyed.index.slots - before)
    assert moved == 3 * KEY_SEGMENT_SLOTS


def test_keys_whose_hashes_are_all_alike_are_found_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No client can choose such keys; they wait in a crowd, and the directory stays small."""
    small(monkeypatch)
    keyed = Keyed(lambda _: 5)
    for number in range(60):
        keyed.add(named(number))
    assert len(keyed.index._crowd) > 40
    assert len(keyed.index._segments) <= 64 * 64
    keyed.claim([named(60), named(61)])
    keyed.claim([named(62), named(3)])
    keyed.claim([named(63), named(63)])
    keyed.index.check(keyed.jobs)
    for number in range(62):
        keyed.remove(named(number))
    keyed.index.check({})
