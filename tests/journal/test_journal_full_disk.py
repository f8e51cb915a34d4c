"""A disk with no space left: what was taken ahead of need is there when it is needed."""

import random
from typing import Final

import pytest

from delayd.journal.journal import Journal
from delayd.journal.segment import SpareFiles, usable_bytes
from delayd.limits import JOURNAL_FILES_PER_SEGMENT, SPARE_BYTES_MIN
from tests.journal.journals import (
    DIRECTORY,
    START_MS,
    append_all,
    contents_of,
    frame,
    numbered,
    opened,
    path_of,
    payloads_in,
    segment_of,
)
from tests.rigs.disk import SimulatedDisk

FILE: Final = 256 << 10
SEGMENT: Final = JOURNAL_FILES_PER_SEGMENT * FILE


def full(disk: SimulatedDisk) -> None:
    """From now on there is no byte left."""
    disk.capacity_bytes = sum(map(len, contents_of(disk).values()))


def with_space(disk: SimulatedDisk, space_bytes: int) -> Journal:
    journal, _ = opened(disk, SEGMENT)
    assert journal.make_space(space_bytes)
    return journal


def spares_in(disk: SimulatedDisk) -> list[str]:
    return [name for name in contents_of(disk) if name.startswith("spare")]


@pytest.mark.thorough
@pytest.mark.parametrize("payload_bytes", [9, 500, 5_000, 60_000])
def test_as_much_as_there_is_space_for_can_be_appended_on_a_full_disk(
    disk: SimulatedDisk, payload_bytes: int
) -> None:
    journal = with_space(disk, 1_000_000)
    full(disk)
    appended = 0
    # A frame that does not fit the end of a file wastes less than its own length.
    while journal.space_bytes >= 2 * (payload_bytes + 45):
        journal.append(bytes(payload_bytes), START_MS, START_MS)
        appended += 1
    assert appended * payload_bytes > 500_000 * payload_bytes // (payload_bytes + 45)
    journal.sync()
    disk.crash()
    assert payloads_in(disk) == [bytes(payload_bytes)] * appended


def test_a_disk_nearly_full_gives_what_it_has_in_smaller_files() -> None:
    disk = SimulatedDisk(capacity_bytes=(128 + 256 + 20) << 10)
    journal, _ = opened(disk, 1 << 20)
    assert not journal.make_space(1 << 20)
    assert journal.space_bytes == usable_bytes(128 << 10) + usable_bytes(256 << 10)


def test_no_file_of_the_reserve_is_too_small(disk: SimulatedDisk) -> None:
    disk.make_directory(DIRECTORY)
    reserve = SpareFiles(disk, DIRECTORY)
    reserve.grow(1, 0, 0, usual=4_096)
    assert reserve.space_bytes == usable_bytes(SPARE_BYTES_MIN)


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_start_on_a_full_disk_finds_the_space_again(
    disk: SimulatedDisk, *, ends_well: bool
) -> None:
    journal = with_space(disk, 500_000)
    append_all(journal, numbered(100, 1_000), sync_each=True)
    full(disk)
    assert not journal.make_space(5_000_000), "from here on the journal knows that it is full"
    space_bytes = journal.space_bytes
    journal.close() if ends_well else disk.kill()
    full(disk)
    journal, payloads = opened(disk, SEGMENT)
    assert payloads == numbered(100, 1_000)
    assert journal.space_bytes >= space_bytes - 200
    append_all(journal, [bytes(1_000)] * (journal.space_bytes // 2_090), sync_each=True)


def test_a_start_with_too_little_space_for_a_whole_file_takes_none_of_it() -> None:
    """An allocation that fails may have taken all the space: it is given back."""
    disk = SimulatedDisk(capacity_bytes=FILE - 1_000)
    payloads: list[bytes] = []
    for _run in range(3):
        journal, found = opened(disk, SEGMENT)
        assert found == payloads
        names = disk.list_directory(DIRECTORY)
        used_bytes = sum(len(disk.file_bytes(f"{DIRECTORY}/{name}")) for name in names)
        assert used_bytes < 2_000
        assert disk.free_bytes(DIRECTORY) == FILE - 1_000 - used_bytes
        assert journal.make_space(1_000), "in a smaller file"
        payloads += numbered(1, 100, first=len(payloads))
        append_all(journal, payloads[-1:])
        journal.close()


def test_a_spare_file_that_does_not_fit_leaves_no_space_taken_even_where_it_cannot_be_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The system says that there is space, and then somebody else has taken it."""
    disk = SimulatedDisk(capacity_bytes=FILE - 1_000)
    disk.make_directory(DIRECTORY)
    monkeypatch.setattr(disk, "free_bytes", lambda _path: FILE)
    disk.fail(1, OSError(5, "EIO"), "unlink")
    with pytest.raises(OSError, match="ENOSPC"):
        SpareFiles(disk, DIRECTORY).add(FILE)
    assert list(contents_of(disk).values()) == [b""]


def test_only_spare_files_of_zeros_are_taken_over(disk: SimulatedDisk) -> None:
    # A segment that got its old name back in a power cut: its frames carry the mark of the next.
    disk.put_file(path_of(1), segment_of(numbered(2)))
    stale = frame(4, 3, b"stale", number=2)
    disk.put_file(f"{DIRECTORY}/spare-0000000007.log", bytes(50_000) + stale + bytes(200_000))
    disk.put_file(f"{DIRECTORY}/spare-0000000008.log", bytes(FILE))
    disk.put_file(f"{DIRECTORY}/spare-0000000009.log", b"")
    journal, _ = opened(disk, SEGMENT)
    assert spares_in(disk) == ["spare-0000000008.log"]
    assert journal.make_space(5 * FILE)
    assert "spare-0000000010.log" in spares_in(disk), "numbers go on"


def test_a_torn_tail_is_cut_on_a_full_disk_at_the_cost_of_the_reserve(disk: SimulatedDisk) -> None:
    torn = segment_of(numbered(2)) + frame(3, 2, bytes(300))[:-9] + b"torn"
    disk.put_file(path_of(1), torn)
    disk.put_file(f"{DIRECTORY}/spare-0000000001.log", bytes(FILE))
    full(disk)
    journal, payloads = opened(disk, SEGMENT)
    assert payloads == numbered(2)
    assert journal.torn_tails
    assert not spares_in(disk)


@pytest.mark.thorough
def test_power_cuts_around_the_reserve_lose_nothing_and_leave_no_stale_bytes(
    rng: random.Random,
) -> None:
    for _ in range(150):
        disk = SimulatedDisk()
        attempted: list[bytes] = []
        for _run in range(3):
            journal, found = opened(disk, SEGMENT)
            assert found == attempted[: len(found)]
            attempted = found
            synced = len(attempted)
            for number in range(rng.randrange(1, 8)):
                if rng.random() < 0.7:
                    journal.make_space(rng.randrange(3 * FILE))
                payload = b"%d " % number * rng.randrange(1, 40_000)
                journal.append(payload, START_MS, START_MS)
                attempted.append(payload)
                if rng.random() < 0.4:
                    journal.sync()
                    synced = len(attempted)
                if rng.random() < 0.2:
                    journal.shrink_space(0)
            share = rng.random()
            disk.crash(lambda _piece, share=share: rng.random() < share)  # type: ignore[misc]
            survivors = payloads_in(disk)
            assert survivors == attempted[: len(survivors)]
            assert len(survivors) >= synced
            attempted = survivors


def test_the_reserve_forgets_nothing_it_has_taken(disk: SimulatedDisk) -> None:
    disk.make_directory(DIRECTORY)
    reserve = SpareFiles(disk, DIRECTORY)
    for capacity in (FILE, 2 * FILE, FILE):
        reserve.add(capacity)
    assert reserve.space_bytes == 2 * usable_bytes(FILE) + usable_bytes(2 * FILE)
    assert reserve.places(usable_bytes(FILE)) == 3
    assert reserve.places(usable_bytes(FILE) + 1) == 1
    spare = reserve.take(100)
    assert spare is not None
    assert spare.capacity == FILE, "the smallest that is long enough"
    assert reserve.take(usable_bytes(2 * FILE) + 1) is None
    reserve.shrink(0)
    assert reserve.space_bytes == 0
    assert spares_in(disk) == ["spare-0000000001.log"], "what was taken is no longer its own"
