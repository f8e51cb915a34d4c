"""What a start goes on from: the table, every combination out of real bytes, and damage."""

import itertools
from collections.abc import Callable
from typing import Final
from zlib import crc32

import pytest

from delayd.journal.errors import JournalCorrupt, JournalError, JournalVersion
from delayd.journal.format import CHECKSUM, HEADER_BYTES, Frame
from delayd.journal.recovery import BASES, Basis, LogStart, Recovery, SnapshotsFound
from delayd.journal.snapshot import SNAPSHOT_HEADER, snapshot_name
from tests.journal.journals import (
    DIRECTORY,
    DOCUMENT,
    PUT,
    append_all,
    contents_of,
    disk_of,
    files_of,
    flipped,
    header,
    numbered,
    opened,
    payloads_in,
    put_all,
    take_snapshot,
)
from tests.rigs.disk import SimulatedDisk

FILES: Final = files_of()
OLDER, NEWEST = snapshot_name(4), snapshot_name(8)
SEGMENTS: Final = sorted(name for name in FILES if name.startswith("segment"))


def rewritten(content: bytes, *, version: int = 1, identity: bytes | None = None) -> bytes:
    """The same snapshot with another header, intact."""
    fields = list(SNAPSHOT_HEADER.unpack_from(content))
    fields[1], fields[2] = version, identity or fields[2]
    head = SNAPSHOT_HEADER.pack(*fields)
    return head + CHECKSUM.pack(crc32(head)) + content[len(head) + 4 :]


DAMAGED: Final = FILES[NEWEST][:-1]
SNAPSHOTS: Final[dict[SnapshotsFound, dict[str, bytes]]] = {
    SnapshotsFound.NONE: {},
    SnapshotsFound.WHOLE: {OLDER: FILES[OLDER], NEWEST: FILES[NEWEST]},
    SnapshotsFound.PREVIOUS: {OLDER: FILES[OLDER], NEWEST: DAMAGED},
    SnapshotsFound.DAMAGED: {OLDER: FILES[OLDER][:50], NEWEST: DAMAGED},
    SnapshotsFound.NEWER: {OLDER: FILES[OLDER], NEWEST: rewritten(FILES[NEWEST], version=2)},
    SnapshotsFound.FOREIGN: {
        OLDER: rewritten(FILES[OLDER], identity=b"?" * 16),
        NEWEST: FILES[NEWEST],
    },
}
# The first segment of the log that is there: of a log that reaches, and of one that does not.
FIRST_KEPT: Final = {
    SnapshotsFound.NONE: (0, 1),
    SnapshotsFound.WHOLE: (1, 3),
    SnapshotsFound.PREVIOUS: (1, 2),
    SnapshotsFound.DAMAGED: (0, 1),
    SnapshotsFound.NEWER: (0, 1),
    SnapshotsFound.FOREIGN: (0, 1),
}
LEFTOVER: Final = {f"{snapshot_name(9)}.new": b"half a snapshot"}
COMBINATIONS: Final = list(itertools.product(SnapshotsFound, LogStart, [{}, LEFTOVER]))


def log_of(snapshots: SnapshotsFound, log_start: LogStart) -> dict[str, bytes]:
    reaching, gap = FIRST_KEPT[snapshots]
    if log_start is LogStart.NOTHING:
        return {}
    kept = reaching if log_start is LogStart.REACHES else gap
    log = {name: FILES[name] for name in SEGMENTS[kept:]}
    if not log:
        # The log began anew behind the newest snapshot, and its first frames are lost.
        disk = disk_of(FILES)
        journal, _ = opened(disk)
        append_all(journal, numbered(8, 900, first=100), sync_each=True)
        files = contents_of(disk)
        last = max(name for name in files if name.startswith("segment"))
        log = {last: files[last]}
    return log


def test_the_documents_table_is_the_codes() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").split("What a start goes on from")[1]
    rows = [row.split("|")[2:-1] for row in text.splitlines() if row.startswith("| ")][1:7]
    words = {
        "a new journal": Basis.LOG,
        "the log from frame 1": Basis.LOG,
        "the newest": Basis.NEWEST,
        "the older one and the longer log": Basis.PREVIOUS,
        "refuse": None,
    }
    refusals = {Basis.CORRUPT, Basis.NEWER}
    for row, found in zip(rows, SnapshotsFound, strict=True):
        bases = [BASES[found, start] for start in LogStart]
        assert [words[cell.strip()] for cell in row] == [
            None if basis in refusals else basis for basis in bases
        ]


@pytest.mark.parametrize(("snapshots", "log_start", "leftover"), COMBINATIONS)
def test_each_situation_gets_what_the_table_says(
    snapshots: SnapshotsFound, log_start: LogStart, leftover: dict[str, bytes]
) -> None:
    disk = disk_of(SNAPSHOTS[snapshots] | log_of(snapshots, log_start) | leftover)
    before = contents_of(disk)
    basis = BASES[snapshots, log_start]
    recovery = Recovery(disk, DIRECTORY, disk.list_directory(DIRECTORY))
    read: list[Frame] = []
    try:
        read.extend(recovery.frames())
    except JournalError:
        assert basis in {Basis.CORRUPT, Basis.NEWER}
    base = recovery.base
    assert (base.snapshots, base.log_start, base.basis) == (snapshots, log_start, basis)
    assert contents_of(disk) == before, "deciding changes nothing"
    if basis in {Basis.CORRUPT, Basis.NEWER}:
        assert not read
        with pytest.raises(JournalVersion if basis is Basis.NEWER else JournalCorrupt):
            opened(disk)
        assert contents_of(disk) == before, "a refusal touches nothing"
        return
    expected = [] if log_start is LogStart.NOTHING else PUT
    assert [frame.payload for frame in read] == expected
    journal, found = opened(disk)
    assert found == expected
    assert len(journal.damaged_snapshots) == {Basis.NEWEST: 0, Basis.PREVIOUS: 1}.get(
        basis, 2 if snapshots is SnapshotsFound.DAMAGED else 0
    )
    assert not set(leftover) & set(contents_of(disk))
    append_all(journal, [b"afterwards"], sync_each=True)
    disk.crash()
    once = payloads_in(disk)
    assert once == [*expected, b"afterwards"]
    files = contents_of(disk)
    assert payloads_in(disk) == once
    assert snapshots_of(contents_of(disk)) == snapshots_of(files)


def snapshots_of(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name.startswith("snapshot")}


def whole_or_refused(files: dict[str, bytes]) -> bool:
    """Whether a start succeeds; the payloads are then all there."""
    disk = disk_of(files)
    try:
        assert payloads_in(disk) == PUT
    except JournalCorrupt:
        return False
    return True


PAIR: Final = SNAPSHOTS[SnapshotsFound.WHOLE] | {name: FILES[name] for name in SEGMENTS}
NEWEST_ALONE: Final = {NEWEST: FILES[NEWEST]} | {name: FILES[name] for name in SEGMENTS[1:]}


@pytest.mark.thorough
def test_a_newest_snapshot_cut_off_at_any_byte_is_replaced_by_the_one_before() -> None:
    assert whole_or_refused(NEWEST_ALONE)
    for length in range(len(FILES[NEWEST])):
        cut = {NEWEST: FILES[NEWEST][:length]}
        assert whole_or_refused(PAIR | cut), length
        assert not whole_or_refused(NEWEST_ALONE | cut), length


def test_a_newest_snapshot_with_any_bit_flipped_is_replaced_by_the_one_before(
    share: Callable[[range], range],
) -> None:
    for bit in share(range(8 * len(FILES[NEWEST]))):
        wrong = {NEWEST: flipped(FILES[NEWEST], bit)}
        assert whole_or_refused(PAIR | wrong), bit
        if bit % 7 == 0:
            assert not whole_or_refused(NEWEST_ALONE | wrong), bit


def test_a_snapshot_that_cannot_be_read_is_replaced_by_the_one_before() -> None:
    class BadSector(SimulatedDisk):
        def open(self, path: str, *, write: bool = False) -> int:
            if path.endswith(NEWEST):
                raise OSError(5, "EIO")
            return super().open(path, write=write)

    disk = BadSector()
    put_all(disk, PAIR)
    recovery = Recovery(disk, DIRECTORY, disk.list_directory(DIRECTORY))
    assert [frame.payload for frame in recovery.frames()] == PUT
    assert recovery.base.basis is Basis.PREVIOUS


def test_the_damaged_snapshot_stays_until_the_next_one_takes_its_place() -> None:
    disk = disk_of(PAIR | {NEWEST: DAMAGED})
    journal, _ = opened(disk)
    (damage,) = journal.damaged_snapshots
    assert damage.path == f"{DIRECTORY}/{NEWEST}"
    assert contents_of(disk)[NEWEST] == DAMAGED
    journal.snapshot_is_due(100_000)
    take_snapshot(journal, PUT)
    assert list(snapshots_of(contents_of(disk))) == [OLDER, snapshot_name(12)]
    journal.close()
    assert payloads_in(disk) == PUT


def test_a_log_that_ends_before_its_snapshot_is_refused() -> None:
    # The snapshot got its name after its frames had been durable: they were, and so may more.
    for newest in (FILES[NEWEST], DAMAGED):
        short = PAIR | {NEWEST: newest}
        del short[SEGMENTS[2]]
        assert payloads_in(disk_of(short)) == PUT[:8]
        short[SEGMENTS[1]] = short[SEGMENTS[1]][:2_000]
        with pytest.raises(JournalCorrupt, match="had been durable"):
            opened(disk_of(short))


def test_damage_in_front_of_the_snapshot_does_no_harm() -> None:
    first = FILES[SEGMENTS[0]]
    assert whole_or_refused(PAIR | {SEGMENTS[0]: first[:100]})
    assert whole_or_refused({name: PAIR[name] for name in PAIR if name != SEGMENTS[0]})


OTHERS: Final = header(2, 5, identity=b"?" * 16) + FILES[SEGMENTS[1]][HEADER_BYTES:]
REFUSED: Final = [
    (SEGMENTS[0], PAIR | {SEGMENTS[0]: b"x" + FILES[SEGMENTS[0]][1:]}, "not a segment"),
    (SEGMENTS[0], PAIR | {SEGMENTS[0]: FILES[SEGMENTS[1]]}, "says that this is segment 2"),
    (SEGMENTS[1], PAIR | {SEGMENTS[1]: OTHERS}, "the segment belongs to another journal"),
    (snapshot_name(9), PAIR | {snapshot_name(9): FILES[NEWEST]}, "says that this is snapshot 8"),
    (NEWEST, NEWEST_ALONE | {NEWEST: DAMAGED}, "and the log begins with frame 5, wanted is 1"),
    (OLDER, PAIR | {OLDER: rewritten(FILES[OLDER], version=2)}, "version is 2, this program reads"),
]


@pytest.mark.parametrize(("name", "files", "why"), REFUSED)
def test_a_refusal_names_the_file_and_what_is_wrong_or_missing(
    name: str, files: dict[str, bytes], why: str
) -> None:
    with pytest.raises(JournalVersion if name == OLDER else JournalCorrupt, match=why) as it:
        opened(disk_of(files))
    assert it.value.file == f"{DIRECTORY}/{name}"


def test_a_torn_tail_behind_a_snapshot_is_cut() -> None:
    disk = disk_of(PAIR)
    last = FILES[SEGMENTS[2]].rstrip(b"\0")
    disk.put_file(f"{DIRECTORY}/{SEGMENTS[2]}", last[:-10] + bytes(500))
    journal, found = opened(disk)
    assert found == PUT[:11]
    assert len(journal.torn_tails) == 1
