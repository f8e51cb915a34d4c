"""A cut by hand: wherever it is accepted, over damage at many places, the next start goes on."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import pytest

from delayd.journal.errors import DamageError
from delayd.journal.format import HEADER_BYTES, SEGMENT_NAME, SNAPSHOT_NAME
from delayd.journal.repair import NoSuchPlace, prepared
from tests.journal.journals import (
    DIRECTORY,
    append_all,
    contents_of,
    disk_of,
    disk_with,
    flipped,
    frame_ends,
    numbered,
    opened,
    payload_whose_frame_ends_with_a_zero,
    payloads_in,
    segment_of,
    take_snapshot,
)
from tests.rigs.disk import SimulatedDisk

FRAMES: Final = 8

Files = dict[str, bytes]


def files_with(snapshots: tuple[int, ...]) -> Files:
    """A journal of two frames to a file, with snapshots of what these frames say."""
    disk = SimulatedDisk()
    journal, _ = opened(disk)
    payloads = numbered(FRAMES, 1_900)
    for number in range(1, FRAMES + 1):
        append_all(journal, payloads[number - 1 : number], sync_each=True)
        journal.snapshot_is_due(1 << 20)  # enough is live for nothing to be given up
        if number in snapshots:
            take_snapshot(journal, payloads[:number])
    journal.close()
    return contents_of(disk)


def damaged(files: Files) -> Iterator[Files]:
    """The directory as it was, with each file damaged in turn, and without its first files."""
    yield files
    for name, content in files.items():
        for offset in (20, 90, 2_500):
            if offset < len(content):
                yield files | {name: flipped(content, 8 * offset)}
    segments = sorted(filter(SEGMENT_NAME.fullmatch, files))
    for count in range(1, len(segments)):
        yield {name: files[name] for name in files if name not in segments[:count]}


def test_a_last_frame_whose_checksum_ends_with_a_zero_is_counted_and_copied_whole() -> None:
    content = segment_of([b"payload", payload_whose_frame_ends_with_a_zero(2, 1)])
    second = frame_ends(content)[1]
    disk = disk_with(content + bytes(1_000))
    with prepared(disk, DIRECTORY, 1, second) as operation:
        assert str(operation.rest) == (
            f"{len(content) - second} bytes in 1 file, with 1 intact frame (2 to 2)"
        )
        (tail,) = operation.cut()
    assert disk.file_bytes(tail.copy) == content[second:]


def places_in(files: Files) -> Iterator[tuple[int, int]]:
    for name, content in files.items():
        if match := SEGMENT_NAME.fullmatch(name):
            for offset in (0, HEADER_BYTES, *frame_ends(content)):
                yield int(match[1]), offset


@pytest.mark.thorough
@pytest.mark.parametrize("snapshots", [(), (3,), (3, 5), (5, 6), (8,)])
def test_where_a_cut_is_accepted_the_next_start_goes_on(snapshots: tuple[int, ...]) -> None:
    whole = files_with(snapshots)
    assert len(list(filter(SNAPSHOT_NAME.fullmatch, whole))) == len(snapshots)
    cuts = 0
    for files in damaged(whole):
        for place in set(places_in(files)):
            disk = disk_of(files)
            with suppress(NoSuchPlace, DamageError), prepared(disk, DIRECTORY, *place) as operation:
                operation.cut()
                cuts += 1
            if contents_of(disk) != files:
                payloads_in(disk)
    assert cuts >= 20


def test_the_file_behind_a_snapshot_can_be_emptied_but_not_given_up() -> None:
    """The one before it may be damaged, and is not read as long as there is this one."""
    disk = disk_of(files_with((5, 6)))
    with (
        pytest.raises(NoSuchPlace, match="4:80 gives up every frame in it"),
        prepared(disk, DIRECTORY, 4, 0),
    ):
        pass
    with prepared(disk, DIRECTORY, 4, HEADER_BYTES) as operation:
        operation.cut()
    assert payloads_in(disk)
