"""What the simulated disk does beyond the protocol: it forgets, reorders, tears and fails."""

import errno

import pytest

from tests.rigs.disk import SECTOR_BYTES, Piece, PowerCut, SimulatedDisk

EIO = OSError(errno.EIO, "EIO")


def disk_with_file(content: bytes) -> tuple[SimulatedDisk, int]:
    disk = SimulatedDisk()
    disk.put_file("d/a", content)
    return disk, disk.open("d/a", write=True)


@pytest.mark.parametrize("synced", [False, True])
def test_bytes_lengths_and_names_survive_a_crash_only_once_they_are_synced(synced: bool) -> None:
    disk, handle = disk_with_file(b"old")
    disk.put_file("d/gone", b"gone")
    disk.pwrite(handle, b"newer", 0)
    disk.truncate(handle, 4)
    disk.sync(disk.create("d/new"))
    disk.rename("d/a", "d/b")
    disk.unlink("d/gone")
    if synced:
        disk.sync(handle)
        disk.sync_directory("d")
    disk.crash()
    assert sorted(disk.list_directory("d")) == (["b", "new"] if synced else ["a", "gone"])
    assert disk.file_bytes("d/b" if synced else "d/a") == (b"newe" if synced else b"old")


def test_a_kill_keeps_the_page_cache_and_drops_handles_and_locks() -> None:
    disk, handle = disk_with_file(b"old")
    disk.lock("d/lock")
    disk.pwrite(handle, b"new", 0)
    disk.kill()
    assert disk.file_bytes("d/a") == b"new"
    disk.lock("d/lock")
    with pytest.raises(OSError, match="EBADF"):
        disk.sync(handle)


def test_each_sector_of_an_unsynced_write_and_each_name_survives_by_itself() -> None:
    disk, handle = disk_with_file(bytes(3 * SECTOR_BYTES))
    disk.create("d/first")
    disk.create("d/second")
    disk.pwrite(handle, b"x" * 3 * SECTOR_BYTES, 0)
    asked: list[Piece] = []

    def survives(piece: Piece) -> bool:
        asked.append(piece)
        return piece.offset == (1 if piece.kind == "names" else SECTOR_BYTES)

    disk.crash(survives)
    assert [piece.offset for piece in asked] == [0, SECTOR_BYTES, 2 * SECTOR_BYTES, 0, 1]
    assert {(piece.kind, piece.name) for piece in asked} == {("bytes", "a"), ("names", "d")}
    assert disk.file_bytes("d/a") == bytes(SECTOR_BYTES) + b"x" * SECTOR_BYTES + bytes(SECTOR_BYTES)
    assert sorted(disk.list_directory("d")) == ["a", "second"]


def test_a_failed_sync_loses_the_bytes_and_the_next_one_reports_success() -> None:
    disk, handle = disk_with_file(b"old")
    disk.pwrite(handle, b"new", 0)
    disk.fail(1, EIO, "sync")
    with pytest.raises(OSError, match="EIO"):
        disk.sync(handle)
    disk.sync(handle)
    assert disk.file_bytes("d/a") == b"new"
    disk.crash()
    assert disk.file_bytes("d/a") == b"old"


def test_the_nth_call_fails_counted_over_all_verbs_or_one_or_is_cut_short() -> None:
    disk, handle = disk_with_file(b"")
    disk.fail(disk.call_count + 2, PowerCut())
    disk.size(handle)
    for _ in range(2):
        with pytest.raises(PowerCut):
            disk.size(handle)
    disk.crash()
    handle = disk.open("d/a", write=True)
    disk.fail(2, EIO, "pwrite")
    disk.shorten(1, "pwrite", 2)
    disk.shorten(1, "pread", 1)
    assert disk.pwrite(handle, b"hello", 0) == 2
    disk.size(handle)
    with pytest.raises(OSError, match="EIO"):
        disk.pwrite(handle, b"b", 1)
    assert disk.pread(handle, 2, 0) == b"h"
    assert disk.file_bytes("d/a") == b"he"


def test_a_full_disk_takes_what_fits_and_an_allocation_all_there_is_before_it_fails() -> None:
    """As ext4 does."""
    disk, handle = disk_with_file(b"")
    disk.capacity_bytes = 4
    assert disk.pwrite(handle, b"hello", 0) == 4
    with pytest.raises(OSError, match="ENOSPC"):
        disk.pwrite(handle, b"o", 4)
    assert disk.pwrite(handle, b"J", 0) == 1
    disk.capacity_bytes = 10
    with pytest.raises(OSError, match="ENOSPC"):
        disk.allocate(handle, 11)
    assert (disk.file_bytes("d/a"), disk.free_bytes("d")) == (b"Jell" + bytes(6), 0)
    disk.truncate(handle, 1)
    assert disk.free_bytes("d") == 9
    disk.capacity_bytes = None
    disk.allocate(handle, 11)
