"""Continuing after a write or a sync has failed: a fresh segment in the place of untrusted files.

    synced ─┐
    ████████│░░░░░   ░░░░░░   ░░░░        what is not synced (░), in files that are not trusted now
            └─► fresh segment: ████████████   the same frames again, from memory

It continues the log where the last sync had left it: its header says where the file before ends,
and whatever follows in it is void. It takes the place of the first file that holds nothing
durable; later ones are removed first, and durably, so that a crash in between leaves a log that
merely ends earlier. None of what is written here is synced: that is the caller's next step.

This module refuses to decide whether the journal may continue.
"""

from collections.abc import Sequence

from delayd.journal.disk import Disk
from delayd.journal.format import (
    FIRST_SEGMENT,
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    FrameKind,
    SegmentHeader,
)
from delayd.journal.pending import Pending
from delayd.journal.reserve import Reserve
from delayd.journal.segment import Segment, segment_bytes_for


def begin_segment(
    disk: Disk,
    directory: str,
    reserve: Reserve,
    header: SegmentHeader,
    frame_bytes: int,
    usual: int,
) -> Segment:
    """Make a segment that is not under its name yet, out of the reserve if that has one.

    It takes `frame_bytes` of payload and is of the `usual` length if that is more. Raises OSError.
    """
    spare = reserve.take(frame_bytes)
    capacity = segment_bytes_for(frame_bytes, usual)
    return Segment.begin(disk, directory, header, capacity, spare)


def next_header(
    previous: Segment | None,
    identity: bytes,
    sequences: tuple[int, int],
    times: tuple[int, int],
) -> SegmentHeader:
    """Return the header of the segment that continues another, or of the first one.

    `sequences` are the last frame appended and the last synced.
    """
    return SegmentHeader(
        identity=identity,
        number=previous.number + 1 if previous else FIRST_SEGMENT,
        first_sequence=sequences[0] + 1,
        synced_sequence=sequences[1],
        previous_valid_bytes=previous.end if previous else 0,
        created_ms=times[0],
        created_wall_ms=times[1],
    )


def fresh_header(
    untrusted: Sequence[Segment], identity: bytes, synced: int, times: tuple[int, int]
) -> SegmentHeader:
    """Return the header of the segment that continues after the last synced frame."""
    first = untrusted[0]
    if first.synced_end > HEADER_BYTES:
        number, previous_valid_bytes = first.number + 1, first.synced_end
    else:
        number, previous_valid_bytes = first.number, first.header.previous_valid_bytes
    return SegmentHeader(
        identity=identity,
        number=number,
        first_sequence=synced + 1,
        synced_sequence=synced,
        previous_valid_bytes=previous_valid_bytes,
        created_ms=times[0],
        created_wall_ms=times[1],
    )


def written_again_bytes(pending: Pending, more_bytes: int) -> int:
    """Return how long a segment must be for the pending frames and one more payload."""
    overhead_bytes = FRAME_OVERHEAD_BYTES * (len(pending.frames) + 1)
    return pending.frame_bytes + overhead_bytes + more_bytes


def replace(
    disk: Disk,
    directory: str,
    untrusted: Sequence[Segment],
    fresh: Segment,
    pending: Pending,
) -> None:
    """Write the pending frames into the fresh segment, then let it take its place. Raises OSError.

    The segments that are given up stay open.
    """
    synced = fresh.header.synced_sequence
    for sequence, time_ms, wall_ms, payload in pending.frames:
        fresh.append(FrameKind.RECORDS, sequence, synced, time_ms, wall_ms, payload)
    behind = [segment for segment in untrusted if segment.number > fresh.number]
    for segment in reversed(behind):
        disk.unlink(segment.path)
    if behind:
        disk.sync_directory(directory)
    fresh.publish(directory)
