"""What the simulated disk does beyond the protocol: it forgets, reorders, tears and fails."""

import errno

import pytest

from tests.rigs.disk import SECTOR_BYTES, Piece, PowerCut, SimulatedDisk


def disk_with_file(content: bytes) -> tuple[SimulatedDisk, int]:
    disk = SimulatedDisk()
    disk.put_file("d/a", content)
    return disk, disk.open("d/a", write=True)


def test_a_crash_forgets_bytes_and_lengths_that_were_not_synced() -> None:
    disk, handle = disk_with_file(b"old")
    disk.pwrite(handle, b"newer", 0)
    disk.truncate(handle, 1)
    disk.crash()
    assert disk.file_bytes("d/a") == b"old"


def test_a_crash_keeps_what_was_synced() -> None:
    disk, handle = disk_with_file(b"old")
    disk.pwrite(handle, b"newer", 0)
    disk.truncate(handle, 4)
    disk.sync(handle)
    disk.crash()
    assert disk.file_bytes("d/a") == b"newe"


@pytest.mark.parametrize("synced", [False, True])
def test_names_survive_a_crash_only_once_their_directory_is_synced(synced: bool) -> None:
    disk, _ = disk_with_file(b"a")
    disk.put_file("d/gone", b"gone")
    disk.sync(disk.create("d/new"))
    disk.rename("d/a", "d/b")
    disk.unlink("d/gone")
    if synced:
        disk.sync_directory("d")
    disk.crash()
    assert sorted(disk.list_directory("d")) == (["b", "new"] if synced else ["a", "gone"])


def test_syncing_a_file_does_not_make_its_name_durable(disk: SimulatedDisk) -> None:
    disk.make_directory("d")
    handle = disk.create("d/a")
    disk.pwrite(handle, b"x", 0)
    disk.sync(handle)
    disk.crash()
    assert disk.list_directory("d") == []


def test_a_kill_keeps_the_page_cache_and_drops_handles_and_locks() -> None:
    disk, handle = disk_with_file(b"old")
    disk.lock("d/lock")
    disk.pwrite(handle, b"new", 0)
    disk.kill()
    assert disk.file_bytes("d/a") == b"new"
    disk.lock("d/lock")
    with pytest.raises(OSError, match="EBADF"):
        disk.sync(handle)


def test_each_sector_of_an_unsynced_write_survives_by_itself() -> None:
    disk, handle = disk_with_file(bytes(3 * SECTOR_BYTES))
    disk.pwrite(handle, b"x" * 3 * SECTOR_BYTES, 0)
    asked: list[Piece] = []

    def survives(piece: Piece) -> bool:
        asked.append(piece)
        return piece.offset == SECTOR_BYTES

    disk.crash(survives)
    assert [piece.offset for piece in asked] == [0, SECTOR_BYTES, 2 * SECTOR_BYTES]
    assert {(piece.kind, piece.name) for piece in asked} == {("bytes", "a")}
    assert disk.file_bytes("d/a") == bytes(SECTOR_BYTES) + b"x" * SECTOR_BYTES + bytes(SECTOR_BYTES)


def test_a_later_name_may_survive_where_an_earlier_one_is_lost() -> None:
    disk, _ = disk_with_file(b"")
    disk.create("d/first")
    disk.create("d/second")
    disk.crash(lambda piece: piece.kind == "names" and piece.offset == 1)
    assert sorted(disk.list_directory("d")) == ["a", "second"]


def test_a_failed_sync_loses_the_bytes_and_the_next_one_reports_success() -> None:
    disk, handle = disk_with_file(b"old")
    disk.pwrite(handle, b"new", 0)
    disk.fail(1, OSError(errno.EIO, "EIO"), "sync")
    with pytest.raises(OSError, match="EIO"):
        disk.sync(handle)
    disk.sync(handle)
    assert disk.file_bytes("d/a") == b"new"
    disk.crash()
    assert disk.file_bytes("d/a") == b"old"


def test_the_nth_call_fails_counted_over_all_verbs_or_one() -> None:
    disk, handle = disk_with_file(b"")
    disk.fail(disk.call_count + 2, PowerCut())
    disk.size(handle)
    with pytest.raises(PowerCut):
        disk.size(handle)
    with pytest.raises(PowerCut):
        disk.pwrite(handle, b"the machine is off", 0)
    disk.crash()
    handle = disk.open("d/a", write=True)
    disk.fail(2, OSError(errno.EIO, "EIO"), "pwrite")
    disk.pwrite(handle, b"a", 0)
    disk.size(handle)
    with pytest.raises(OSError, match="EIO"):
        disk.pwrite(handle, b"b", 1)
    assert disk.file_bytes("d/a") == b"a"


def test_a_call_can_be_cut_short() -> None:
    disk, handle = disk_with_file(b"")
    disk.shorten(1, "pwrite", 2)
    assert disk.pwrite(handle, b"hello", 0) == 2
    disk.shorten(1, "pread", 1)
    assert disk.pread(handle, 2, 0) == b"h"


def test_a_full_disk_takes_what_fits_and_then_nothing() -> None:
    disk, handle = disk_with_file(b"")
    disk.capacity_bytes = 4
    assert disk.pwrite(handle, b"hello", 0) == 4
    with pytest.raises(OSError, match="ENOSPC"):
        disk.pwrite(handle, b"o", 4)
    assert disk.pwrite(handle, b"J", 0) == 1
    with pytest.raises(OSError, match="ENOSPC"):
        disk.allocate(handle, 5)
    disk.unlink("d/a")
    disk.capacity_bytes = None
    disk.allocate(handle, 5)


def test_an_allocation_that_does_not_fit_takes_all_there_is_and_fails() -> None:
    """As on ext4."""
    disk, handle = disk_with_file(b"x")
    disk.capacity_bytes = 10
    with pytest.raises(OSError, match="ENOSPC"):
        disk.allocate(handle, 11)
    assert disk.file_bytes("d/a") == b"x" + bytes(9)
    assert disk.free_bytes("d") == 0
    disk.truncate(handle, 1)
    assert disk.free_bytes("d") == 9
