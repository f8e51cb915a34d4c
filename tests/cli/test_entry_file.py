import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from delayd.access.errors import TokensInvalid
from delayd.access.token_entries import TOKENS_FILE, Entry
from delayd.cli.entry_file import change, read
from delayd.journal.disk import RealDisk
from delayd.limits import TOKENS_FILE_BYTES_MAX, TOKENS_MAX
from tests.access.samples import made
from tests.rigs.disk import PowerCut, SimulatedDisk

PATH = "etc/tokens.json"
OLD, NEW = made(1)[1], made(2)[1]


def add(entry: Entry) -> Callable[[tuple[Entry, ...]], list[Entry]]:
    return lambda entries: [*entries, entry]


def disk_with(*entries: Entry) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.make_directory("etc")
    disk.put_file(PATH, TOKENS_FILE.to_bytes(entries))
    return disk


def test_a_file_is_replaced_by_one_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens.json"
    path.write_bytes(TOKENS_FILE.to_bytes([OLD]))
    path.chmod(0o666)
    draft = tmp_path / "tokens.json.new"
    draft.write_text("of somebody who was interrupted")
    draft.chmod(0o666)
    change(TOKENS_FILE, RealDisk(), str(path), add(NEW))
    assert TOKENS_FILE.from_bytes(path.read_bytes(), "t") == (OLD, NEW)
    assert path.stat().st_mode & 0o777 == 0o600
    assert not draft.exists()


def calls_of_a_change() -> range:
    disk = disk_with(OLD)
    first = disk.call_count + 1
    change(TOKENS_FILE, disk, PATH, add(NEW))
    return range(first, disk.call_count + 1)


@pytest.mark.parametrize("survives", [True, False])
def test_after_a_power_cut_at_any_call_the_file_is_the_old_or_the_new_one(survives: bool) -> None:
    outcomes = []
    for number in calls_of_a_change():
        disk = disk_with(OLD)
        disk.fail(number, PowerCut())
        with pytest.raises(PowerCut):
            change(TOKENS_FILE, disk, PATH, add(NEW))
        disk.crash(lambda _piece: survives)
        outcomes.append(len(TOKENS_FILE.from_bytes(disk.file_bytes(PATH), "t")))
        change(TOKENS_FILE, disk, PATH, add(made(3)[1]))  # what is left over is in nobody's way
        disk.crash()
        assert made(3)[1] in TOKENS_FILE.from_bytes(disk.file_bytes(PATH), "t"), "it is durable"
    assert set(outcomes) == {1, 2}
    assert outcomes == sorted(outcomes)


def test_whatever_fails_leaves_the_old_file_or_the_new_one_and_no_lock() -> None:
    for number in calls_of_a_change():
        disk = disk_with(OLD)
        disk.fail(number, OSError(errno.EIO, "Input/output error"))
        with contextlib.suppress(OSError):
            change(TOKENS_FILE, disk, PATH, add(NEW))
        assert TOKENS_FILE.from_bytes(disk.file_bytes(PATH), "t") in {(OLD,), (OLD, NEW)}
        disk.close(disk.lock(f"{PATH}.lock"))


def test_a_write_that_fails_is_told_and_leaves_no_draft() -> None:
    for verb in ("create", "pwrite", "sync", "rename"):
        disk = disk_with(OLD)
        disk.fail(1, OSError(errno.ENOSPC, "No space left on device"), verb)
        with pytest.raises(OSError, match="No space left"):
            change(TOKENS_FILE, disk, PATH, add(NEW))
        assert set(disk.list_directory("etc")) == {"tokens.json", "tokens.json.lock"}
        assert TOKENS_FILE.from_bytes(disk.file_bytes(PATH), "t") == (OLD,)


def test_short_reads_and_writes_are_continued() -> None:
    disk = disk_with(OLD)
    for number in range(1, 6):
        disk.shorten(number, "pread", 50)
        disk.shorten(number, "pwrite", 50)
    change(TOKENS_FILE, disk, PATH, add(NEW))
    assert TOKENS_FILE.from_bytes(disk.file_bytes(PATH), "t") == (OLD, NEW)


def test_what_nobody_would_read_is_not_written() -> None:
    disk = disk_with(OLD)
    with pytest.raises(TokensInvalid, match="and no more fit"):
        change(TOKENS_FILE, disk, PATH, lambda entries: [*entries] * (TOKENS_MAX + 1))
    form = TOKENS_FILE._replace(bytes_max=len(TOKENS_FILE.to_bytes([OLD])))
    with pytest.raises(TokensInvalid, match="would be longer than"):
        change(form, disk, PATH, add(NEW))
    assert read(form, disk, PATH) == (OLD,)
    disk.put_file(PATH, b" " * (TOKENS_FILE_BYTES_MAX + 1))
    with pytest.raises(TokensInvalid, match="is longer than"):
        change(TOKENS_FILE, disk, PATH, add(NEW))
    assert len(disk.file_bytes(PATH)) > TOKENS_FILE_BYTES_MAX


def test_a_new_file_that_cannot_be_given_away_does_not_replace_the_old_one() -> None:
    disk = disk_with(OLD)

    def own(handle: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with pytest.raises(PermissionError):
        change(TOKENS_FILE, disk, PATH, add(NEW), own)
    assert TOKENS_FILE.from_bytes(disk.file_bytes(PATH), "t") == (OLD,)
    assert "tokens.json.new" not in disk.list_directory("etc")
