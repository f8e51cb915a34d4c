"""Files that vanish under a running journal: noticed, said, and written again from memory."""

from functools import partial

import pytest

from delayd.journal.errors import JournalFailed
from delayd.journal.journal import Journal
from delayd.journal.snapshot import snapshot_name
from delayd.limits import SPARE_BYTES_MIN
from tests.journal.journals import (
    DIRECTORY,
    SEGMENT_BYTES,
    append_all,
    numbered,
    opened,
    path_of,
    payloads_in,
    take_snapshot,
)
from tests.rigs.disk import SimulatedDisk

LOSSES = {
    "removed": "was removed",
    "replaced": "was replaced by another file",
    "cut": "was cut to 100 bytes",
    "overwritten": "was overwritten",
}


def lose(disk: SimulatedDisk, path: str, how: str) -> None:
    """Do what somebody beside the daemon may do to a file."""
    if how == "removed":
        disk.unlink(path)
    elif how == "replaced":
        disk.put_file(path, disk.file_bytes(path))
    else:
        handle = disk.open(path, write=True)
        if how == "cut":
            disk.truncate(handle, 100)
        else:  # by a copy of an earlier time
            disk.pwrite(handle, bytes(SEGMENT_BYTES - 200), 200)
        disk.close(handle)


def heal(journal: Journal, payloads: list[bytes]) -> None:
    journal.sync()
    assert journal.lost
    take_snapshot(journal, payloads)
    assert not journal.lost


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("unsynced", [0, 2])
def test_what_was_in_the_file_that_vanished_is_kept_by_a_snapshot(how: str, unsynced: int) -> None:
    disk, payloads = SimulatedDisk(), numbered(7)
    journal, _ = opened(disk)
    append_all(journal, payloads[:3], sync_each=True)
    journal.find_lost()
    assert not journal.lost
    append_all(journal, payloads[3 : 3 + unsynced])
    lose(disk, path_of(1), how)
    journal.find_lost()
    assert journal.lost == f"{path_of(1)} {LOSSES[how]}"
    heal(journal, payloads[: 3 + unsynced])
    append_all(journal, payloads[3 + unsynced :], sync_each=True)
    journal.find_lost()
    assert not journal.lost
    disk.crash()
    assert payloads_in(disk) == payloads


def test_an_older_file_of_the_log_and_a_snapshot_are_missed_as_well() -> None:
    disk, payloads = SimulatedDisk(), numbered(200)
    journal, _ = opened(disk)
    append_all(journal, payloads[:100], sync_each=True)
    info = take_snapshot(journal, payloads[:100])
    append_all(journal, payloads[100:], sync_each=True)
    journal.find_lost()
    lost = (path_of(2), f"{DIRECTORY}/{snapshot_name(info.sequence)}")
    assert lost[0] in {f"{DIRECTORY}/{name}" for name in disk.list_directory(DIRECTORY)}
    for path in lost:
        disk.unlink(path)
    journal.find_lost()
    assert journal.lost == ", ".join(f"{path} was removed" for path in lost)
    assert journal.fresh_starts == 0, "the file that is written to is as it was"
    heal(journal, payloads)
    disk.crash()
    assert payloads_in(disk) == payloads


def test_files_that_the_journal_itself_removes_are_not_missed() -> None:
    looks: list[str] = []

    class LookingDisk(SimulatedDisk):
        """Lets the other thread look just after a file was removed."""

        def unlink(self, path: str, /) -> None:
            super().unlink(path)
            journal.find_lost()
            looks.append(journal.lost)

    disk, payloads = LookingDisk(), numbered(300)
    journal, _ = opened(disk)
    for end in (100, 200, 300):
        append_all(journal, payloads[end - 100 : end], sync_each=True)
        take_snapshot(journal, payloads[:end])
    journal.find_lost()
    assert len(looks) > 3
    assert not any((*looks, journal.lost))


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("looks", [False, True])
def test_without_its_directory_a_journal_fails_at_a_look_and_at_the_next_file(
    disk: SimulatedDisk, journal: Journal, is_replaced: bool, looks: bool
) -> None:
    append_all(journal, numbered(3), sync_each=True)
    disk.move_directory(DIRECTORY, "elsewhere")
    if is_replaced:
        disk.make_directory(DIRECTORY)
    what = "is another directory than it was" if is_replaced else "was removed"
    meets_it = journal.find_lost if looks else partial(append_all, journal, numbered(200))
    with pytest.raises(JournalFailed, match=f"^{DIRECTORY}: {what}$"):
        meets_it()
    with pytest.raises(JournalFailed, match=what):
        journal.append(b"more", 1, 1)
    assert not is_replaced or disk.list_directory(DIRECTORY) == []


@pytest.mark.parametrize("how", ["removed", "replaced", "cut"])
@pytest.mark.parametrize("is_looked_for", [False, True])
def test_a_spare_file_that_vanished_is_named_and_counts_for_no_space(
    how: str, *, is_looked_for: bool
) -> None:
    disk, payloads = SimulatedDisk(), numbered(200, 3_000)
    journal, _ = opened(disk)
    named: list[str] = []
    journal.on_space_lost = named.append
    append_all(journal, payloads[:1])
    assert journal.make_space(3 * SPARE_BYTES_MIN)
    spares = [f"{DIRECTORY}/{name}" for name in sorted(disk.list_directory(DIRECTORY))]
    spares = [path for path in spares if "spare" in path]
    assert len(spares) > 2
    before_bytes = journal.space_bytes
    for path in spares[:2]:
        lose(disk, path, how)
    if is_looked_for:
        journal.find_lost()
        assert named == [", ".join(spares[:2])]
        assert journal.space_bytes < before_bytes - SPARE_BYTES_MIN
    append_all(journal, payloads[1:], sync_each=True)
    assert named == [", ".join(spares[:2])]
    assert (journal.fresh_starts, journal.lost) == (0, "")
    journal.close()
    assert payloads_in(disk) == payloads
