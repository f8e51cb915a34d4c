"""The file that says how far the log went: a log that ends earlier is refused."""

from pathlib import Path

import pytest

from delayd.journal.errors import JournalCorrupt
from delayd.journal.format import END_NAME
from delayd.journal.journal import Journal
from delayd.journal.log_end import LogEnd, pack_log_end, read_log_end, unpack_log_end
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


def test_the_end_of_another_journal_is_refused(disk: SimulatedDisk, journal: Journal) -> None:
    append_all(journal, numbered(6), sync_each=True)
    journal.close()
    disk.put_file(PATH, pack_log_end(LogEnd(IDENTITY, 1, 0)))
    with pytest.raises(JournalCorrupt, match="belongs to another journal"):
        opened(disk)


def test_what_was_not_durable_is_not_missed(disk: SimulatedDisk, journal: Journal) -> None:
    append_all(journal, numbered(3), sync_each=True)
    append_all(journal, numbered(3, first=4))
    journal.find_lost()
    end = read_log_end(disk, PATH)
    assert end is not None
    assert end.sequence == 3
    disk.crash(lambda piece: piece.name == END_NAME or piece.kind == "names")
    assert read_log_end(disk, PATH) == end
    assert payloads_in(disk) == numbered(3)


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
