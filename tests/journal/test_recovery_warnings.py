"""What may be a loss is refused where the disk proves it, and told where nothing can."""

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Final

import pytest

from delayd.journal.errors import JournalCorrupt
from delayd.journal.format import END_NAME, HEADER_BYTES, segment_name, unpack_header
from delayd.journal.log_end import LogEnd, pack_log_end
from delayd.journal.recovery import BAD_END, NO_HEADER, NO_LOG, StartWarning
from tests.journal.journals import (
    DIRECTORY,
    PUT,
    append_all,
    disk_of,
    disk_with,
    files_of,
    frame,
    header,
    opened,
    path_of,
    segment_of,
)
from tests.rigs.disk import SimulatedDisk

LOG: Final = segment_of([b"first", b"second"])


def warnings_of(disk: SimulatedDisk, *, is_virtual: bool = False) -> list[StartWarning]:
    journal, _ = opened(disk, is_virtual=is_virtual)
    journal.close()
    return journal.warnings


# --- Nothing is left to prove a loss with --------------------------------------------------------


@pytest.mark.parametrize("names", [(), ("lost+found",), ("lock",), ("lock", "virtual-clock")])
def test_a_directory_in_which_no_log_was_begun_is_beyond_warning(names: tuple[str, ...]) -> None:
    for disk in (disk_of(dict.fromkeys(names, b"")), SimulatedDisk()):
        assert warnings_of(disk, is_virtual="virtual-clock" in names) == []


@pytest.mark.parametrize(
    "name", ["spare-0000000001.log", f"{segment_name(1)}.torn-80", f"{segment_name(1)}.new"]
)
def test_a_log_of_which_only_leavings_are_there_is_told_with_what_is_there(name: str) -> None:
    found = warnings_of(disk_of({"lock": b"", name: b""}))
    assert found == [StartWarning(NO_LOG, f"{DIRECTORY} holds {name}")]


@pytest.mark.parametrize("content", [b"", bytes(5_000), header()[: HEADER_BYTES - 1]])
def test_a_file_without_a_header_is_told_once_with_its_length(content: bytes) -> None:
    disk = disk_with(content)
    journal, _ = opened(disk)
    assert journal.warnings == [
        StartWarning(NO_HEADER, f"{path_of(1)}: {len(content)} bytes"),
        StartWarning(NO_LOG, f"{DIRECTORY} holds {segment_name(1)}"),
    ]
    append_all(journal, [b"first"])
    journal.close()
    assert warnings_of(disk) == [], "a log with a single frame is beyond warning"
    assert [found.sentence for found in warnings_of(disk_with(header() + bytes(100)))] == [NO_LOG]
    journal, payloads = opened(disk_with(LOG, content))
    assert payloads == [b"first", b"second"]
    assert journal.warnings == [StartWarning(NO_HEADER, f"{path_of(2)}: {len(content)} bytes")]


def test_of_many_names_a_few_are_told() -> None:
    spares = {f"spare-000000000{number}.log": b"" for number in range(1, 6)}
    (warning,) = warnings_of(disk_of({"lock": b"", **spares}))
    assert warning.found.endswith("spare-0000000002.log, spare-0000000003.log and 2 more")


@pytest.mark.parametrize("content", [b"", bytes(48), b"delayen\n", bytes(range(60))])
def test_an_end_that_cannot_be_read_is_told_once(content: bytes) -> None:
    disk = disk_of({segment_name(1): LOG, END_NAME: content})
    assert warnings_of(disk) == [StartWarning(BAD_END, f"{DIRECTORY}/{END_NAME}")]
    assert warnings_of(disk) == [], "a clean stop has written it anew"


# --- Something is left ---------------------------------------------------------------------------


LOSSES: Final[dict[str, Callable[[bytes], bytes | None]]] = {
    "removed": lambda _: None,
    "emptied": lambda _: b"",
    "zeroed": lambda content: bytes(len(content)),
    "cut to its header": lambda content: content[:HEADER_BYTES],
}


def disk_after(loss: str, lost: Collection[str], files: Mapping[str, bytes]) -> SimulatedDisk:
    """A disk with these files, to some of which something has happened."""
    left = {name: LOSSES[loss](data) if name in lost else data for name, data in files.items()}
    return disk_of({"lock": b""} | {name: data for name, data in left.items() if data is not None})


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("is_closed", [False, True])
@pytest.mark.parametrize("with_snapshots", [False, True])
def test_whichever_files_are_lost_a_start_never_begins_anew_without_a_word(
    loss: str, *, is_closed: bool, with_snapshots: bool
) -> None:
    """Of every set of files; with the end of the log, as after a clean stop, it has all or refuses.

    Without it, left out is a log that ends early: a daemon killed at that moment leaves the very
    same files. So does one that never had a job, where none is left.
    """
    files = files_of(with_snapshots=with_snapshots, is_closed=is_closed)
    first = unpack_header(files[segment_name(1)][:HEADER_BYTES])
    assert first is not None
    end = {END_NAME: pack_log_end(LogEnd(first.identity, len(PUT), 0))}
    assert len(files) == (5 if with_snapshots else 3)
    refused = told = 0
    for count in range(1, len(files) + 1):
        for lost in itertools.combinations(files, count):
            with contextlib.suppress(JournalCorrupt):
                assert opened(disk_after(loss, lost, files | end))[1] == PUT, f"{lost} {loss}"
            try:
                journal, payloads = opened(disk_after(loss, lost, files))
            except JournalCorrupt:
                refused += 1
                continue
            assert payloads == PUT[: len(payloads)]
            if journal.warnings or journal.torn_tails:
                told += 1
            elif payloads != PUT:
                is_all = loss == "removed" and set(lost) == set(files)
                assert payloads or is_all, f"{lost} {loss}: an empty queue, without a word"
                assert loss not in {"emptied", "zeroed"}, f"{lost} {loss}: lost without a word"
    if loss in {"emptied", "zeroed"}:
        assert told, "some losses leave nothing that could prove them"
    assert refused, "others do"


def test_a_file_without_a_header_is_refused_where_a_later_one_or_a_snapshot_speaks_for_it() -> None:
    second = header(2, 3, synced=2, previous_valid_bytes=len(LOG)) + frame(3, 2, b"3", number=2)
    with pytest.raises(JournalCorrupt, match="shows that it had been durable"):
        opened(disk_with(b"", second))
    files = files_of(with_snapshots=True, is_closed=False)
    segments = [name for name in files if name.startswith("segment")]
    with pytest.raises(JournalCorrupt):
        opened(disk_after("emptied", segments, files))
