"""The index of keys against a dict, with fair hashes and with the worst there are."""

import random
from collections.abc import Callable
from hashlib import blake2b
from types import MappingProxyType
from typing import Final

import pytest

from delayd.core import keys
from delayd.core.keys import KeyIndex
from delayd.limits import KEY_ANCHOR_IDS, KEY_BYTES_SPARSE, KEY_PARTS, KEYS_UNDIVIDED


def fair(key: bytes) -> int:
    """A hash as good as the interpreter's, signed like that, and the same in every run."""
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big", signed=True)


HASHES: Final[MappingProxyType[str, Callable[[bytes], int]]] = MappingProxyType(
    {
        "fair": fair,
        "all the same": lambda _: 5,
        "few that differ": lambda key: fair(key) & 0x300003,
        "low bits the same": lambda key: fair(key) << 22,
        "high bits the same": lambda key: fair(key) & 0xFFFFF,
        "in sequence": lambda key: int(key.split(b"-")[1]),
    }
)
EMPTY_BYTES: Final = {}.__sizeof__()


class Keyed:
    """An index and what it ought to hold."""

    def __init__(self, hash_of: Callable[[bytes], int] = fair) -> None:
        self.key_of: dict[int, bytes] = {}
        self.jobs: dict[bytes, int] = {}
        self.index = KeyIndex(self.named_among, hash_of)
        self.is_fair = hash_of is fair
        self.last_id = 0

    def named_among(self, anchor: int, key: bytes) -> int:
        job_id = self.jobs.get(key, 0)
        return job_id if anchor <= job_id < anchor + KEY_ANCHOR_IDS else 0

    def name(self, wanted: list[bytes]) -> int:
        first_id = self.last_id + 1
        self.last_id += len(wanted)
        return first_id

    def add(self, key: bytes) -> None:
        self.jobs[key] = self.name([key])
        self.index.add(key, self.last_id)

    def claim(self, wanted: list[bytes]) -> None:
        """A run of free keys is taken in, but perhaps not one whose hashes others have."""
        are_free = len(set(wanted)) == len(wanted) and not self.jobs.keys() & set(wanted)
        first_id = self.name(wanted)
        is_done = self.index.claim_run(wanted, first_id)
        assert is_done == are_free if self.is_fair else is_done <= are_free
        if is_done:
            self.jobs.update({key: job_id for job_id, key in enumerate(wanted, first_id)})

    def remove(self, key: bytes) -> None:
        self.index.remove(key, self.jobs.pop(key))


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "KEYS_UNDIVIDED", 40)
    monkeypatch.setattr(keys, "KEY_PARTS", 4)
    monkeypatch.setattr(keys, "KEY_BYTES_SPARSE", 64)
    monkeypatch.setattr(keys, "LOOK_EVERY", 2)


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
            keyed.claim([named(rng.randrange(space)) for _ in range(rng.randrange(1, 19))])
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
    assert keyed.index.table_bytes == EMPTY_BYTES


@pytest.mark.thorough
def test_memory_follows_the_number_of_keys_both_ways() -> None:
    keyed = Keyed()
    for start in range(0, 100_000, 100):
        keyed.claim([named(number) for number in range(start, start + 100)])
    full_bytes = keyed.index.table_bytes
    assert 24 * 100_000 < full_bytes < 54 * 100_000
    for number in range(100_000):
        keyed.remove(named(number))
        if number % 10_000 == 9_999 or number > 99_900:
            slack = keys.LOOK_EVERY * len(keyed.index._parts)
            assert keyed.index.table_bytes <= KEY_BYTES_SPARSE * (len(keyed.index) + 2 * slack)
    keyed.index.check({})
    assert keyed.index.table_bytes == EMPTY_BYTES


@pytest.mark.thorough
def test_no_put_waits_for_more_than_one_part_to_grow() -> None:
    """Many keys are divided once, while they are few; from then on each part is for itself."""
    keyed = Keyed()
    numbers = iter(range(100_000))
    keyed.claim([named(next(numbers)) for _ in range(KEYS_UNDIVIDED)])
    assert len(keyed.index._parts) == 1
    keyed.claim([named(next(numbers))])
    assert len(keyed.index._parts) == KEY_PARTS
    keyed.claim([named(number) for number in numbers])
    assert max(map(len, keyed.index._parts)) < 1.5 * 100_000 / KEY_PARTS


def test_few_that_are_left_of_many_are_in_one_part_again() -> None:
    keyed = Keyed()
    keyed.claim([named(number) for number in range(KEYS_UNDIVIDED + 1)])
    for number in range(KEYS_UNDIVIDED // 2):
        keyed.remove(named(number))
    assert len(keyed.index._parts) == KEY_PARTS
    for number in range(KEYS_UNDIVIDED // 2, KEYS_UNDIVIDED):
        keyed.remove(named(number))
    assert len(keyed.index._parts) == 1
    keyed.index.check({named(KEYS_UNDIVIDED): KEYS_UNDIVIDED + 1})


def test_neighbours_share_an_anchor() -> None:
    """It is one number object for eight jobs, put one by one or in a run."""
    for is_run in (False, True):
        keyed = Keyed()
        wanted = [named(number) for number in range(100)]
        if is_run:
            keyed.claim(wanted)
        else:
            for key in wanted:
                keyed.add(key)
        anchors = keyed.index._parts[0].values()
        assert len({id(anchor) for anchor in anchors}) == -(-100 // KEY_ANCHOR_IDS)
