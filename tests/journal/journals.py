"""What the tests of the journal share: opening, filling and reading journals on any disk."""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from delayd.journal.disk import Disk
from delayd.journal.format import (
    CHECKSUM,
    END_NAME,
    FRAME,
    HEADER_BYTES,
    LOCK_NAME,
    FrameKind,
    SegmentHeader,
    frame_mark,
    pack_frame,
    pack_header,
    segment_name,
)
from delayd.journal.journal import Journal
from delayd.journal.log_end import unpack_log_end
from delayd.journal.snapshot import SnapshotInfo
from delayd.limits import JOURNAL_FILES_PER_SEGMENT
from tests.rigs.disk import SimulatedDisk, _Fault

DOCUMENT: Final = Path(__file__).parents[2] / "docs" / "internals" / "journal-format.md"
DIRECTORY: Final = "data"
SEGMENT_BYTES: Final = 4096
"""One file of the log."""
CONFIGURED_BYTES: Final = JOURNAL_FILES_PER_SEGMENT * SEGMENT_BYTES
"""What the configuration says for it."""
IDENTITY: Final = bytes(range(16))
START_MS: Final = 1_700_000_000_000


def path_of(number: int) -> str:
    return f"{DIRECTORY}/{segment_name(number)}"


def opened(
    disk: Disk,
    segment_bytes: int = CONFIGURED_BYTES,
    *,
    directory: str = DIRECTORY,
    is_virtual: bool = False,
) -> tuple[Journal, list[bytes]]:
    """A journal ready for appends, and the payloads that it held; closing frames left out."""
    journal = Journal.open(directory, disk=disk, segment_bytes=segment_bytes, is_virtual=is_virtual)
    try:
        return journal, [frame.payload for frame in journal.replay() if frame.payload]
    except BaseException:
        journal.close()
        raise


def payloads_in(disk: Disk, directory: str = DIRECTORY) -> list[bytes]:
    journal, payloads = opened(disk, directory=directory)
    journal.close()
    return payloads


def append_all(journal: Journal, payloads: Iterable[bytes], *, sync_each: bool = False) -> None:
    for payload in payloads:
        journal.append(payload, START_MS, START_MS)
        if sync_each:
            journal.sync()


def take_snapshot(journal: Journal, payloads: Sequence[bytes]) -> SnapshotInfo:
    """A snapshot that holds these payloads, one in each frame: all that were ever put, say.

    So what a replay yields is the same whether it begins with a snapshot or with the log.
    """
    writer = journal.begin_snapshot(journal.appended_sequence, START_MS, START_MS)
    for payload in payloads:
        writer.write(payload)
    return writer.finish(len(payloads))


def numbered(count: int, size: int = 40, first: int = 1) -> list[bytes]:
    """Payloads that differ, of roughly this size."""
    return [
        (b"payload %d " % number).ljust(size, b".") + b"!" for number in range(first, first + count)
    ]


def frame(
    sequence: int,
    synced: int,
    payload: bytes,
    *,
    number: int = 1,
    kind: int = FrameKind.RECORDS,
    identity: bytes = IDENTITY,
) -> bytes:
    mark = frame_mark(identity, number)
    return pack_frame(mark, kind, sequence, synced, START_MS, START_MS, payload)


def header(
    number: int = 1,
    first_sequence: int = 1,
    *,
    synced: int = 0,
    previous_valid_bytes: int = 0,
    identity: bytes = IDENTITY,
) -> bytes:
    return pack_header(
        SegmentHeader(
            identity, number, first_sequence, synced, previous_valid_bytes, START_MS, START_MS
        )
    )


def segment_of(payloads: Sequence[bytes], *, synced_each: bool = True) -> bytes:
    """A first segment with these payloads, each written after the one before was synced, or not."""
    return header() + b"".join(
        frame(sequence, sequence - 1 if synced_each else 0, payload)
        for sequence, payload in enumerate(payloads, 1)
    )


def payload_whose_frame_ends_with_a_zero(sequence: int, synced: int) -> bytes:
    """For the first segment: one in 256 checksums does, and behind a frame there may be zeros."""
    payloads = (b"payload %d" % number for number in itertools.count())
    return next(each for each in payloads if frame(sequence, synced, each).endswith(b"\0"))


def disk_with(*segments: bytes | None) -> SimulatedDisk:
    """A disk with these files as segments 1, 2, ...; None for one that is not there."""
    found = {segment_name(number): content for number, content in enumerate(segments, 1)}
    return disk_of({name: content for name, content in found.items() if content is not None})


def disk_of(files: Mapping[str, bytes]) -> SimulatedDisk:
    """A disk with these files in the directory, which is there."""
    disk = SimulatedDisk()
    disk.make_directory(DIRECTORY)
    put_all(disk, files)
    return disk


def put_all(disk: SimulatedDisk, files: Mapping[str, bytes], directory: str = DIRECTORY) -> None:
    for name, content in files.items():
        disk.put_file(f"{directory}/{name}", content)


class BesideDisk(SimulatedDisk):
    """During its next sync others act: the loop beside a thread that syncs."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        super().__init__(capacity_bytes)
        self.beside: list[Callable[[], object]] = []

    def sync(self, handle: int, /) -> None:
        super().sync(handle)
        acts, self.beside = self.beside, []
        for act in acts:
            act()


class WatchedDisk(SimulatedDisk):
    """Lets somebody else work before each call, whose own calls are not watched."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[str], object] | None = None

    def _call(self, verb: str) -> _Fault | None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile(verb)
            self.meanwhile = meanwhile
        return super()._call(verb)


def flipped(content: bytes, bit: int) -> bytes:
    """The same with one bit changed, counted from the first."""
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def documented(section: str) -> tuple[str, bytes]:
    """A section of the document of the format, and the bytes of the example in it."""
    text = DOCUMENT.read_text(encoding="utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    (block,) = re.findall(r"```hex\n(.*?)```", text, re.DOTALL)
    return text, bytes.fromhex(re.sub(r"#.*", "", block))


def contents_of(disk: SimulatedDisk) -> dict[str, bytes]:
    """Every file but the lock and the end of the log."""
    names = sorted({*disk.list_directory(DIRECTORY)} - {LOCK_NAME, END_NAME})
    return {name: disk.file_bytes(f"{DIRECTORY}/{name}") for name in names}


PUT: Final = numbered(12, 900)
"""What `files_of` puts."""


def files_of(
    payloads: Sequence[bytes] = PUT, *, with_snapshots: bool = True, is_closed: bool = False
) -> dict[str, bytes]:
    """The whole log from frame 1 to 12 in three files, and snapshots up to frames 4 and 8."""
    return dict(_files_of(tuple(payloads), with_snapshots=with_snapshots, is_closed=is_closed))


@functools.cache
def _files_of(
    payloads: tuple[bytes, ...], *, with_snapshots: bool, is_closed: bool
) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    for number in range(0, 12, 4):
        append_all(journal, payloads[number : number + 4], sync_each=True)
        files |= contents_of(disk)
        if with_snapshots and number < 8:
            journal.snapshot_is_due(100_000)
            take_snapshot(journal, payloads[: number + 4])
    if is_closed:
        journal.close()
    return files | contents_of(disk)


def durable_in(home: Path) -> int:
    """Return up to which frame `log-end` says that all is durable; 0 where it says nothing."""
    try:
        end = unpack_log_end((home / END_NAME).read_bytes())
    except FileNotFoundError:
        return 0
    return end.sequence if end is not None else 0


def frame_ends(content: bytes) -> list[int]:
    """Where the header and then each frame of an undamaged segment ends.

    Behind the last one are zeros. The mark of a journal is drawn by chance, and one in 256 begins
    with a zero: so the whole head is looked at.
    """
    ends = [HEADER_BYTES]
    while any(content[ends[-1] : ends[-1] + FRAME.size]):
        payload_bytes = FRAME.unpack_from(content, ends[-1])[1]
        ends.append(ends[-1] + FRAME.size + payload_bytes + CHECKSUM.size)
    return ends
