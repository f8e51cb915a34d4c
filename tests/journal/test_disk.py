"""The conformance suite: what `Disk` promises, kept by the real disk and by the simulated one."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from delayd.journal.disk import Disk, LockHeldError, RealDisk, used_bytes
from delayd.limits import JOURNAL_WINDOW_BYTES
from tests.rigs.disk import SimulatedDisk


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return RealDisk() if request.param == "real" else SimulatedDisk()


@pytest.fixture
def home(disk: Disk, tmp_path: Path) -> str:
    path = f"{tmp_path}/journal"
    disk.make_directory(path)
    return path


@pytest.fixture
def file(disk: Disk, home: str) -> Iterator[int]:
    handle = disk.create(f"{home}/a")
    yield handle
    disk.close(handle)


def read_back(disk: Disk, path: str) -> bytes:
    handle = disk.open(path)
    try:
        return disk.pread(handle, 1_000_000, 0)
    finally:
        disk.close(handle)


def make_file(disk: Disk, path: str, content: bytes) -> None:
    handle = disk.create(path)
    assert disk.pwrite(handle, content, 0) == len(content)
    disk.sync(handle)
    disk.close(handle)


def test_a_new_directory_is_empty_can_be_synced_and_is_not_made_again(
    disk: Disk, home: str
) -> None:
    assert disk.list_directory(home) == []
    disk.sync_directory(home)
    make_file(disk, f"{home}/a", b"1")
    disk.make_directory(home)
    assert disk.list_directory(home) == ["a"]


def test_what_is_written_is_read_at_once_and_up_to_the_end(
    disk: Disk, home: str, file: int
) -> None:
    assert disk.pwrite(file, b"hello", 0) == 5
    assert disk.pwrite(file, b"J", 0) == 1
    assert disk.pread(file, 100, 0) == read_back(disk, f"{home}/a") == b"Jello"
    assert disk.pread(file, 2, 3) == b"lo"
    assert [disk.pread(file, 10, offset) for offset in (4, 5, 99)] == [b"o", b"", b""]


def test_a_file_is_extended_with_zeros_and_cut_by_truncating_alone(disk: Disk, file: int) -> None:
    disk.pwrite(file, b"x", 4)
    assert disk.size(file) == 5
    disk.allocate(file, 7)
    disk.allocate(file, 2)
    assert disk.size(file) == 7
    assert disk.pread(file, 10, 0) == b"\0\0\0\0x\0\0"
    disk.pwrite(file, b"hello", 0)
    disk.truncate(file, 2)
    assert disk.size(file) == 2
    disk.truncate(file, 4)
    assert disk.pread(file, 10, 0) == b"he\0\0"


@pytest.mark.parametrize("used", [0, 1, 5, JOURNAL_WINDOW_BYTES, 2 * JOURNAL_WINDOW_BYTES + 7])
def test_what_of_a_file_is_used_ends_with_the_last_byte_that_is_not_zero(
    disk: Disk, file: int, used: int
) -> None:
    for size in (used, 4 * JOURNAL_WINDOW_BYTES + 100):
        if used:
            disk.pwrite(file, b"x", used - 1)
        if size:
            disk.allocate(file, size)
        assert used_bytes(disk, file) == used


def test_creating_over_a_file_empties_it_and_renaming_replaces_what_had_the_name(
    disk: Disk, home: str
) -> None:
    make_file(disk, f"{home}/a", b"new")
    make_file(disk, f"{home}/b", b"old")
    disk.rename(f"{home}/a", f"{home}/b")
    assert disk.list_directory(home) == ["b"]
    assert read_back(disk, f"{home}/b") == b"new"
    disk.close(disk.create(f"{home}/b"))
    assert read_back(disk, f"{home}/b") == b""


def test_a_handle_outlives_the_name_of_its_file_and_one_for_reading_cannot_write(
    disk: Disk, home: str, file: int
) -> None:
    disk.pwrite(file, b"x", 0)
    handle = disk.open(f"{home}/a")
    disk.unlink(f"{home}/a")
    assert disk.list_directory(home) == []
    assert disk.pread(file, 1, 0) == b"x"
    with pytest.raises(OSError) as caught:
        disk.pwrite(handle, b"y", 0)
    assert caught.value.errno == errno.EBADF
    disk.close(handle)


@pytest.mark.parametrize(
    "verb", ["open", "unlink", "list_directory", "sync_directory", "share_lock", "lock_directory"]
)
def test_what_is_not_there_is_an_enoent(disk: Disk, home: str, verb: str) -> None:
    with pytest.raises(OSError) as caught:
        getattr(disk, verb)(f"{home}/nothing")
    assert caught.value.errno == errno.ENOENT


def test_a_lock_file_that_was_deleted_keeps_nobody_out(disk: Disk, home: str) -> None:
    """The reason why a directory can be locked itself."""
    handle = disk.lock(f"{home}/lock")
    disk.unlink(f"{home}/lock")
    second = disk.lock(f"{home}/lock")
    disk.close(handle)
    with pytest.raises(LockHeldError):
        disk.lock(f"{home}/lock")
    disk.close(second)


@pytest.mark.parametrize("is_file", [False, True])
def test_a_lock_is_of_one_who_may_be_named_or_shared_by_several(
    disk: Disk, home: str, *, is_file: bool
) -> None:
    take = partial(disk.lock, f"{home}/lock") if is_file else partial(disk.lock_directory, home)
    share = partial(disk.share_lock, f"{home}/lock") if is_file else partial(take, is_shared=True)
    handle = take()
    assert disk.list_directory(home) == ["lock"] * is_file
    for refused in (take, share):
        with pytest.raises(LockHeldError) as caught:
            refused()
        assert bool(caught.value.holder_pid) is is_file
    disk.sync_directory(home)
    if not is_file:  # it keeps nobody from its files
        disk.close(disk.lock(f"{home}/lock"))
    disk.close(handle)
    for handle in [share(), share()]:
        with pytest.raises(LockHeldError):
            take()
        disk.close(handle)
    disk.close(take())


def test_unique_bytes_never_repeat(disk: Disk) -> None:
    drawn = {disk.unique_bytes(16) for _ in range(100)}
    assert len(drawn) == 100
    assert {len(one) for one in drawn} == {16}


def test_a_real_lock_file_with_nonsense_in_it_has_an_unknown_holder(tmp_path: Path) -> None:
    disk = RealDisk()
    path = f"{tmp_path}/lock"
    handle = disk.lock(path)
    disk.pwrite(handle, b"nonsense", 0)
    with pytest.raises(LockHeldError) as caught:
        disk.lock(path)
    assert caught.value.holder_pid is None
    disk.close(handle)


def test_a_real_lock_of_either_kind_is_found(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holds = f"import fcntl; f = open({str(path)!r}, 'w'); fcntl.lockf(f, fcntl.LOCK_EX); "
    talks = "print(flush=True); input()"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", holds + talks], stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(LockHeldError) as caught:
            RealDisk().share_lock(str(path))
        other.communicate(b"\n")
    assert caught.value.holder_pid is None
    RealDisk().close(RealDisk().share_lock(str(path)))


def test_real_files_belong_to_their_owner_alone(tmp_path: Path) -> None:
    disk, home = RealDisk(), tmp_path / "journal"
    disk.make_directory(str(home))
    disk.close(disk.create(f"{home}/a"))
    disk.close(disk.lock(f"{home}/lock"))
    modes = [path.stat().st_mode & 0o777 for path in (home, home / "a", home / "lock")]
    assert modes == [0o700, 0o600, 0o600]


@pytest.mark.parametrize("ending", ["", "/"])
def test_a_new_directory_is_made_durable_where_its_name_is(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def noted(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(os, "fsync", noted)
    RealDisk().make_directory(f"{tmp_path}/journal{ending}")
    assert synced == [str(tmp_path)]


def failing_with(number: int) -> Callable[[int, int], None]:
    def fail(_handle: int, _operation: int) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_lock_that_cannot_be_taken_is_left_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, home, path = RealDisk(), str(tmp_path), f"{tmp_path}/lock"
    handles = [disk.lock(path), disk.lock_directory(home)]
    before = set(os.listdir("/proc/self/fd"))
    takes = ((disk.lock, path), (disk.share_lock, path), (disk.lock_directory, home))
    for take, what in takes:
        with pytest.raises(LockHeldError):
            take(what)
    monkeypatch.setattr(fcntl, "flock", failing_with(errno.EIO))
    for take, what in takes:
        with pytest.raises(OSError, match="Input/output"):
            take(what)
    assert set(os.listdir("/proc/self/fd")) <= before, "others may have closed some"
    for handle in handles:
        disk.close(handle)


def test_a_file_system_without_locks_for_directories_is_used_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as NFS, where the file has a lock and a directory has none."""
    monkeypatch.setattr(fcntl, "flock", failing_with(errno.EBADF))
    RealDisk().close(RealDisk().lock_directory(str(tmp_path)))
