"""A copy of a directory that somebody goes on writing to: whole, or not there."""

import contextlib
import errno
import random
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from delayd.journal.backup import backup
from delayd.journal.errors import (
    ForeignFile,
    JournalCorrupt,
    JournalError,
    JournalFailed,
    JournalVersion,
    NotEmpty,
)
from delayd.journal.format import (
    BACKUP_MARKER,
    END_NAME,
    HEADER_BYTES,
    VIRTUAL_NAME,
    FrameKind,
    segment_name,
)
from delayd.journal.log_end import LogEnd, pack_log_end
from delayd.journal.recovery import Recovery
from delayd.limits import BACKUP_ATTEMPTS_MAX, SNAPSHOT_SYNC_BYTES
from tests.journal.clients import any_order
from tests.journal.journals import (
    DIRECTORY,
    IDENTITY,
    SEGMENT_BYTES,
    WatchedDisk,
    append_all,
    disk_of,
    disk_with,
    files_of,
    flipped,
    frame,
    header,
    numbered,
    opened,
    path_of,
    payload_whose_frame_ends_with_a_zero,
    payloads_in,
    put_all,
    segment_of,
    take_snapshot,
)
from tests.rigs.disk import Piece, PowerCut, SimulatedDisk

COPY: Final = "copy"
PAYLOADS: Final = numbered(5, 300)


@contextlib.contextmanager
def unwatched(_total_bytes: int) -> Iterator[Callable[[int], object]]:
    yield lambda _: None


def copied(disk: SimulatedDisk) -> list[bytes]:
    """Make a copy; return the payloads in it."""
    with backup(disk, DIRECTORY, COPY, unwatched) as made:
        recovery = Recovery(disk, COPY, made.names)
        payloads = [found.payload for found in recovery.frames() if found.payload]
        made.verify(recovery)
    return payloads


# --- While others write --------------------------------------------------------------------------


class Worker:
    """Appends, syncs and takes snapshots on a journal, by chance."""

    def __init__(self, disk: WatchedDisk, rng: random.Random) -> None:
        self.journal, _ = opened(disk)
        self.disk = disk
        self.rng = rng
        self.put: list[bytes] = []

    def work(self, _verb: str = "") -> None:
        choice = self.rng.random()
        if choice < 0.3:
            payloads = numbered(self.rng.randrange(1, 4), 900, len(self.put) + 1)
            append_all(self.journal, payloads)
            self.put += payloads
        elif choice < 0.5:
            self.journal.sync()
        elif choice < 0.6:
            self.journal.snapshot_is_due(self.rng.choice((0, 100_000)))
            take_snapshot(self.journal, self.put)


def test_a_copy_holds_all_that_was_there_when_it_began_whatever_is_written_and_removed_meanwhile(
    rng: random.Random, share: Callable[[range], range]
) -> None:
    grown = removed = listed_again = 0
    for _ in share(range(60)):
        disk = WatchedDisk()
        worker = Worker(disk, rng)
        append_all(worker.journal, numbered(1, 900))
        worker.put += numbered(1, 900)
        for _ in range(rng.randrange(40)):
            worker.work()
        before = len(worker.put)
        disk.meanwhile = worker.work
        lists = disk.verb_counts["list_directory"]
        found = copied(disk)
        disk.meanwhile = None
        lists = disk.verb_counts["list_directory"] - lists
        assert len(found) >= before
        assert found == worker.put[: len(found)]
        held = [name for name in disk.list_directory(COPY) if name != "lock"]
        assert payloads_in(disk, COPY) == found
        grown += len(found) > before
        removed += not set(held) <= set(disk.list_directory(DIRECTORY))
        listed_again += lists > 4
    assert min(grown, removed, listed_again) > 2


@pytest.mark.parametrize("torn", [b"", frame(4, 3, b"torn by a kill", number=2)[:-1]])
def test_files_are_whole_without_the_rest_though_a_checksum_ends_with_a_zero(torn: bytes) -> None:
    payloads = [b"payload", payload_whose_frame_ends_with_a_zero(2, 1), b"further"]
    full = segment_of(payloads[:2])
    last = header(2, 3, synced=2, previous_valid_bytes=len(full))
    last += frame(3, 2, payloads[2], number=2)
    for preallocated in (bytes(0), bytes(1_000), bytes(SEGMENT_BYTES)):
        disk = disk_with(full + preallocated, last + torn + preallocated)
        assert copied(disk) == payloads
        disk.crash()
        copies = [disk.file_bytes(f"{COPY}/{segment_name(number)}") for number in (1, 2)]
        assert copies == [full, last]
        assert payloads_in(disk, COPY) == payloads


@pytest.mark.thorough
def test_a_frame_that_is_being_written_is_left_out_or_whole_in_whatever_order_its_bytes_come(
    rng: random.Random,
) -> None:
    content = segment_of(numbered(8, 2_500))
    payloads = numbered(8, 2_500)
    lengths = set()
    for _ in range(100):
        disk = WatchedDisk()
        disk.put_file(path_of(1), bytes(len(content) + 1_000))
        # A page at a time, as a reader may see a single write; but frame after frame.
        writes = [(0, HEADER_BYTES)]
        for number in range(8):
            start = len(segment_of(payloads[:number]))
            end = len(segment_of(payloads[: number + 1]))
            pages = [(at, min(at + 500, end)) for at in range(start, end, 500)]
            rng.shuffle(pages)
            writes += pages
        handle = disk.open(path_of(1), write=True)

        def write(
            _verb: str = "",
            disk: WatchedDisk = disk,
            writes: list[tuple[int, int]] = writes,
            handle: int = handle,
        ) -> None:
            for start, end in writes[: rng.randrange(4)]:
                disk.pwrite(handle, content[start:end], start)
                writes.pop(0)

        for _ in range(rng.randrange(1, 15)):
            write()
        disk.pwrite(handle, content[:HEADER_BYTES], 0)
        disk.meanwhile = write
        found = copied(disk)
        assert found == payloads[: len(found)]
        lengths.add(len(found))
    assert len(lengths) > 3


def test_a_file_that_is_removed_whenever_it_is_opened_ends_the_backup_at_last() -> None:
    disk = WatchedDisk()
    content = segment_of(PAYLOADS)
    disk.put_file(path_of(1), content)

    def meanwhile(verb: str) -> None:
        if verb == "open":
            disk.unlink(path_of(1))
        elif verb == "list_directory":
            disk.put_file(path_of(1), content)

    disk.meanwhile = meanwhile
    with pytest.raises(JournalFailed, match="removed faster than they can be opened"):
        copied(disk)
    disk.meanwhile = None
    assert disk.verb_counts["open"] == 1 + BACKUP_ATTEMPTS_MAX  # that of the log's end is first


def test_a_snapshot_that_comes_while_names_are_listed_brings_the_log_before_it() -> None:
    """A list of many names may have a late one and lack an early one."""
    files = files_of()
    late = max(name for name in files if name.startswith("segment-"))
    newest = max(name for name in files if name.startswith("snapshot-"))
    disk = disk_of(files)
    assert copied(disk)
    listings = iter(([name for name in files if name != late], list(files)))

    class Torn(SimulatedDisk):
        def list_directory(self, path: str) -> list[str]:
            names = super().list_directory(path)
            return next(listings, names) if path == DIRECTORY else names

    torn = Torn()
    put_all(torn, files)
    whole = copied(torn)
    assert {late, newest} <= set(torn.list_directory(COPY))
    assert whole == copied(disk_of(files))


def test_a_file_that_becomes_shorter_ends_the_backup() -> None:
    disk = WatchedDisk()
    disk.put_file(path_of(1), segment_of(PAYLOADS))

    def cut(verb: str) -> None:
        if verb == "create" and BACKUP_MARKER in disk.list_directory(COPY):
            handle = disk.open(path_of(1), write=True)
            disk.truncate(handle, HEADER_BYTES)
            disk.close(handle)

    disk.meanwhile = cut
    with pytest.raises(JournalFailed, match="became shorter"):
        copied(disk)
    disk.meanwhile = None
    assert disk.list_directory(COPY) == ["lock"]


# --- What is copied ------------------------------------------------------------------------------


def test_only_what_a_start_reads_is_copied() -> None:
    extra = {
        "spare-0000000001.log": bytes(1_000),
        "segment-0000000001.log.torn-80": b"torn",
        "segment-0000000009.log.new": b"new",
        "lock": b"12\n",
        VIRTUAL_NAME: b"",
    }
    files = files_of()
    needed = {name for name in files if name.startswith(("segment", "snapshot"))}
    disk = disk_of({name: files[name] for name in needed} | extra)
    copied(disk)
    assert set(disk.list_directory(COPY)) == {*needed, VIRTUAL_NAME, END_NAME, "lock"}
    assert set(disk.list_directory(DIRECTORY)) == needed | extra.keys()


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_backup_that_is_cut_off_anywhere_later_is_refused(is_closed: bool) -> None:
    content = segment_of(PAYLOADS)
    if is_closed:
        content += frame(6, 5, b"", kind=FrameKind.CLOSED)
    disk = disk_with(content)
    assert copied(disk) == PAYLOADS
    path = f"{COPY}/{segment_name(1)}"
    for length in range(len(content)):
        disk.put_file(path, content[:length])
        with pytest.raises(JournalCorrupt):
            payloads_in(disk, COPY)
    disk.unlink(f"{COPY}/{END_NAME}")  # as in those of earlier versions
    disk.put_file(path, segment_of(PAYLOADS[:4]))
    assert payloads_in(disk, COPY) == PAYLOADS[:4]


def test_a_long_file_is_synced_in_pieces() -> None:
    payloads = numbered(3, SNAPSHOT_SYNC_BYTES)
    disk = disk_with(segment_of(payloads))
    told: list[int] = []

    @contextlib.contextmanager
    def watch(total_bytes: int) -> Iterator[Callable[[int], object]]:
        yield told.append
        assert sum(told) == total_bytes

    syncs = disk.verb_counts["sync"]
    with backup(disk, DIRECTORY, COPY, watch) as made:
        assert made.copied_bytes == len(segment_of(payloads))
    assert max(told) == SNAPSHOT_SYNC_BYTES
    assert disk.verb_counts["sync"] - syncs == len(told) + 2  # and the end of the log


# --- What is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (flipped(segment_of(PAYLOADS), 8 * (len(segment_of(PAYLOADS[:2])) + 60)), JournalCorrupt),
        (segment_of(PAYLOADS) + frame(6, 5, b"", kind=9), JournalVersion),
        (flipped(segment_of(PAYLOADS), 8 * 30), JournalCorrupt),
        (b"", JournalFailed),
    ],
    ids=("a frame that was durable", "a kind of the future", "the header", "an empty file"),
)
def test_what_no_start_takes_or_what_is_torn_for_good_is_no_backup(
    content: bytes, error: type[JournalError]
) -> None:
    disk = disk_with(content)
    with pytest.raises(error):
        copied(disk)
    assert set(disk.list_directory(COPY)) <= {"lock"}
    assert disk.file_bytes(path_of(1)) == content


def test_damage_in_an_earlier_file_is_found_in_the_copy() -> None:
    files = files_of(with_snapshots=False)
    first = min(name for name in files if name.startswith("segment-"))
    disk = disk_of(files | {first: flipped(files[first], 8 * 300)})
    with pytest.raises(JournalCorrupt, match=f"{COPY}/{first}"):
        copied(disk)
    assert disk.list_directory(COPY) == ["lock"]


def test_a_log_that_a_power_cut_tore_over_several_files_has_to_be_started_once() -> None:
    first = segment_of(PAYLOADS[:2], synced_each=False)
    second = header(2, 3, previous_valid_bytes=len(first)) + frame(3, 0, PAYLOADS[2], number=2)
    disk = disk_with(flipped(first, 8 * (len(first) - 8)), second)
    with pytest.raises(JournalFailed, match="start the daemon on it once"):
        copied(disk)
    journal, payloads = opened(disk)
    assert copied(disk) == payloads == PAYLOADS[:1]
    journal.close()


@pytest.mark.parametrize(
    "end", [LogEnd(IDENTITY, 6, 0), LogEnd(bytes(16), 1, 0)], ids=("frames are missing", "other")
)
def test_a_log_that_is_not_the_one_which_its_log_end_tells_is_not_backed_up(end: LogEnd) -> None:
    disk = disk_with(segment_of(PAYLOADS))
    disk.put_file(f"{DIRECTORY}/{END_NAME}", pack_log_end(end))
    with pytest.raises(JournalCorrupt, match=f"another one, or ends before frame {end.sequence}"):
        copied(disk)
    assert disk.list_directory(COPY) == ["lock"]


def test_a_copy_that_ends_too_early_is_no_backup() -> None:
    disk = disk_with(segment_of(PAYLOADS))
    path = f"{COPY}/{path_of(1)[5:]}"
    with backup(disk, DIRECTORY, COPY, unwatched) as made:
        disk.put_file(path, disk.file_bytes(path)[: len(segment_of(PAYLOADS[:4]))])
        recovery = Recovery(disk, COPY, made.names)
        assert len(list(recovery.frames())) == 4
        with pytest.raises(JournalFailed, match="ends with 4, the log went up to frame 5"):
            made.verify(recovery)


@pytest.mark.parametrize(
    ("files", "error", "why"),
    [
        ({"lock": b"", "spare-0000000001.log": b"x"}, JournalFailed, "there is no log in it"),
        ({"notes.txt": b"", **files_of()}, ForeignFile, r"notes\.txt"),
    ],
)
def test_a_directory_without_a_log_or_not_delayds_is_not_backed_up(
    files: dict[str, bytes], error: type[JournalError], why: str
) -> None:
    disk = disk_of(files)
    with pytest.raises(error, match=why):
        copied(disk)
    with pytest.raises(FileNotFoundError):
        disk.list_directory(COPY)


@pytest.mark.parametrize(
    "names",
    [
        ["notes.txt"],
        ["segment-0000000001.log"],
        [VIRTUAL_NAME],
        [BACKUP_MARKER, "segment-0000000001.log", "notes.txt"],
    ],
)
def test_a_target_that_holds_more_than_an_unfinished_backup_is_refused_and_left_as_it_is(
    names: list[str],
) -> None:
    disk = disk_with(segment_of(PAYLOADS))
    for name in names:
        disk.put_file(f"{COPY}/{name}", b"precious")
    with pytest.raises(NotEmpty, match=f"{COPY} holds {names[-1]}"):
        copied(disk)
    assert disk.list_directory(COPY) == names


# --- When it fails -------------------------------------------------------------------------------


def calls_of_a_backup() -> range:
    """The numbers of its calls of the disk, beginning with the first."""
    disk = disk_of(files_of())
    before = disk.call_count
    assert len(copied(disk)) >= len(PAYLOADS)
    return range(before + 1, disk.call_count + 1)


def judged(disk: SimulatedDisk, whole: list[bytes]) -> str:
    """What a target is after a failure; and nothing that is neither is allowed."""
    try:
        names = set(disk.list_directory(COPY)) - {"lock"}
    except FileNotFoundError:
        return "nothing"
    if BACKUP_MARKER in names:
        with pytest.raises(ForeignFile, match="unfinished backup"):
            payloads_in(disk, COPY)
        return "marked"
    if not names:
        return "nothing"
    assert payloads_in(disk, COPY) == whole
    return "whole"


@pytest.mark.thorough
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
def test_a_backup_that_fails_anywhere_leaves_nothing_that_looks_whole_and_can_be_begun_again(
    number: int,
) -> None:
    whole = copied(disk_of(files_of()))
    outcomes = set()
    for call in calls_of_a_backup():
        disk = disk_of(files_of())
        disk.fail(call, OSError(number, "broken"))
        # Giving back locks fails without harm.
        with contextlib.suppress(JournalError):
            copied(disk)
        outcome = judged(disk, whole)
        outcomes.add(outcome)
        if outcome != "whole":
            assert copied(disk) == whole
        assert payloads_in(disk, COPY) == whole
    # The last sync of the directory may fail when the marker is gone: then everything is there.
    assert outcomes == {"nothing", "whole"}


def test_a_full_disk_is_named_with_what_could_not_be_written() -> None:
    disk = disk_with(segment_of(PAYLOADS))
    disk.capacity_bytes = 2 * len(segment_of(PAYLOADS)) - 1
    with pytest.raises(JournalFailed, match=f"segment-0000000001.log: cannot be copied to {COPY}"):
        copied(disk)
    assert disk.list_directory(COPY) == ["lock"]


def names_from(number: int) -> Callable[[Piece], bool]:
    """Of the names made or removed since the last sync, these survive, earlier ones do not."""
    return lambda piece: piece.kind != "names" or piece.offset >= number


@pytest.mark.thorough
def test_a_power_cut_anywhere_leaves_nothing_that_looks_whole(rng: random.Random) -> None:
    whole = copied(disk_of(files_of()))
    outcomes = set()
    for call in calls_of_a_backup():
        for survives in (None, lambda _: True, names_from(3), any_order(rng)):
            disk = disk_of(files_of())
            disk.fail(call, PowerCut())
            with pytest.raises(PowerCut):
                copied(disk)
            disk.crash(survives)
            outcome = judged(disk, whole)
            outcomes.add(outcome)
            if outcome == "marked":
                assert copied(disk) == whole
    assert outcomes == {"nothing", "marked", "whole"}


def test_nothing_of_an_unfinished_backup_remains_in_the_next_one() -> None:
    disk = disk_with(segment_of(PAYLOADS))
    for name in (BACKUP_MARKER, "segment-0000000009.log", VIRTUAL_NAME):
        disk.put_file(f"{COPY}/{name}", b"old")
    assert copied(disk) == PAYLOADS
    assert set(disk.list_directory(COPY)) == {"lock", END_NAME, "segment-0000000001.log"}


@pytest.mark.thorough
def test_a_power_cut_while_an_unfinished_backup_is_removed_leaves_its_marker_or_nothing() -> None:
    whole = copied(disk_of(files_of()))
    for call in calls_of_a_backup():
        for late in (1, 2, 3):
            disk = disk_of(files_of())
            for name in ("segment-0000000008.log", "segment-0000000009.log", BACKUP_MARKER):
                disk.put_file(f"{COPY}/{name}", b"")
            disk.fail(call, PowerCut())
            with pytest.raises(PowerCut):
                copied(disk)
            disk.crash(names_from(late))
            judged(disk, whole)
