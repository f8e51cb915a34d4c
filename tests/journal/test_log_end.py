"""The file that says how far the log went: a log that ends earlier is refused."""

from pathlib import Path

import pytest

from delayd.journal.errors import JournalCorrupt
from delayd.journal.format import END_NAME
from delayd.journal.journal import Journal
from delayd.journal.log_end import LogEnd, pack_log_end, read_log_end, unpack_log_end
from delayd.journal.repair import prepared
from tests.journal.journals import (
    DIRECTORY,
    IDENTITY,
    append_all,
    documented,
    flipped,
    numbered,
    opened,
    path_of,
    payloads_in,
)
from tests.rigs.disk import SimulatedDisk

GOLDEN = Path(__file__).parent / "golden" / "log-end-version-1"
PATH = f"{DIRECTORY}/{END_NAME}"


def stopped(payloads: list[bytes]) -> tuple[SimulatedDisk, bytes]:
    """A directory after a clean stop, and its newest segment as it was in the middle."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    append_all(journal, payloads[: len(payloads) // 2], sync_each=True)
    older = disk.file_bytes(path_of(1))
    append_all(journal, payloads[len(payloads) // 2 :], sync_each=True)
    journal.close()
    return disk, older


def refusal(disk: SimulatedDisk) -> JournalCorrupt:
    """What a start says; nothing is changed by it."""
    names = sorted(disk.list_directory(DIRECTORY))
    with pytest.raises(JournalCorrupt) as caught:
        opened(disk)
    assert sorted(disk.list_directory(DIRECTORY)) == names
    return caught.value


# --- The bytes -----------------------------------------------------------------------------------


def test_the_documents_example_and_the_golden_file_are_what_the_code_writes() -> None:
    end = LogEnd(IDENTITY, sequence=1, file_number=0)
    text, example = documented("The end of the log")
    assert example == pack_log_end(end) == GOLDEN.read_bytes()
    assert f"{len(pack_log_end(end))} bytes" in text


def test_what_is_short_flipped_or_of_another_version_proves_nothing() -> None:
    data = pack_log_end(LogEnd(IDENTITY, 2, 0))
    assert unpack_log_end(data) == LogEnd(IDENTITY, 2, 0)
    for length in range(len(data)):
        assert unpack_log_end(data[:length]) is None
    for bit in range(8 * len(data)):
        assert unpack_log_end(flipped(data, bit)) is None


# --- After a clean stop --------------------------------------------------------------------------


def test_the_loss_is_accepted_with_a_cut_or_where_no_log_is_left_by_removing_the_file() -> None:
    disk, older = stopped(numbered(6))
    disk.put_file(path_of(1), older)
    place = refusal(disk).offset
    with prepared(disk, DIRECTORY, 1, place) as operation:
        operation.cut()
    assert payloads_in(disk) == numbered(6)[:3]
    disk.unlink(path_of(1))
    assert "remove this one to begin without them" in str(refusal(disk))
    disk.unlink(PATH)
    assert payloads_in(disk) == []


def test_the_end_of_another_journal_is_refused() -> None:
    disk, _ = stopped(numbered(6))
    disk.put_file(PATH, pack_log_end(LogEnd(IDENTITY, 1, 0)))
    assert "belongs to another journal" in refusal(disk).why


# --- After a crash -------------------------------------------------------------------------------


def test_what_was_not_durable_is_not_missed() -> None:
    disk, payloads = SimulatedDisk(), numbered(6)
    journal, _ = opened(disk)
    append_all(journal, payloads[:3], sync_each=True)
    append_all(journal, payloads[3:])
    journal.find_lost()
    end = read_log_end(disk, PATH)
    assert end is not None
    assert end.sequence == 3
    disk.crash(lambda piece: piece.name == END_NAME or piece.kind == "names")
    assert read_log_end(disk, PATH) == end
    assert payloads_in(disk) == payloads[:3]


def test_a_copy_of_the_file_counts_only_after_a_clean_stop(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, numbered(3), sync_each=True)
    older = disk.file_bytes(path_of(1))
    append_all(journal, numbered(3), sync_each=True)
    journal.find_lost()
    moved = SimulatedDisk()
    for name in "ab":  # so that files get other numbers
        moved.put_file(f"elsewhere/{name}", b"")
    moved.put_file(PATH, disk.file_bytes(PATH))
    moved.put_file(path_of(1), older)
    assert payloads_in(moved) == numbered(3)


def test_it_is_told_once_that_the_file_cannot_be_written(
    disk: SimulatedDisk, journal: Journal
) -> None:
    told: list[str] = []
    journal.on_unproved = told.append

    def look_behind_one_more(error: OSError | None = None) -> None:
        append_all(journal, numbered(1), sync_each=True)
        if error is not None:
            disk.fail(disk.verb_counts["pwrite"] + 1, error, "pwrite")
        journal.find_lost()

    look_behind_one_more()
    for _ in range(3):
        look_behind_one_more(OSError(5, "EIO"))
    assert told == [f"{PATH}: EIO"]
    look_behind_one_more(OSError(28, "ENOSPC"))
    assert told == [f"{PATH}: EIO"], "a full disk is told of elsewhere"
    look_behind_one_more(OSError(5, "EIO"))
    look_behind_one_more()
    look_behind_one_more(OSError(5, "EIO"))
    assert told == [f"{PATH}: EIO"] * 3
    journal.close()
