"""T-B5: payloads of any bytes are played, or refused.

Logs and snapshots that are cut off anywhere, have any bit flipped, or files that are swapped,
doubled, missing or foreign are in `tests/journal`: T-B1 to T-B4, T-P3 and T-P4.
"""

import contextlib
import errno
from typing import Final

import hypothesis
from hypothesis import strategies

from delayd.core.engine import Engine
from delayd.core.log_records import UnknownRecord
from delayd.core.replay import Replay
from delayd.journal.errors import JournalFailed
from delayd.journal.format import frame_mark
from tests.faults.bytes_of_a_log import payloads_of
from tests.faults.conftest import Runs
from tests.journal.journals import (
    IDENTITY,
    disk_with,
    frame,
    frame_ends,
    header,
    opened,
    segment_of,
)

ANY_BYTES: Final = hypothesis.settings(
    suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
"""`runs` is the same for all examples of a test: it counts them."""

TURNS: Final = 4


@ANY_BYTES
@hypothesis.given(payload=strategies.binary(max_size=300))
def test_a_payload_of_any_bytes_is_played_or_refused(runs: Runs, payload: bytes) -> None:
    runs.count("T-B5", what="payloads")
    with contextlib.suppress(UnknownRecord):
        Replay(Engine(start_ms=0)).play(payload)


@ANY_BYTES
@hypothesis.given(data=strategies.data())
def test_a_payload_that_was_tampered_with_is_played_or_refused(
    runs: Runs, data: strategies.DataObject
) -> None:
    """Lengths, numbers and kinds that pass the checksum and make no sense."""
    runs.count("T-B5", what="payloads")
    payloads = payloads_of(TURNS)
    index = data.draw(strategies.integers(0, len(payloads) - 1))
    payload = bytearray(payloads[index])
    for _ in range(data.draw(strategies.integers(1, 4))):
        place = data.draw(strategies.integers(0, len(payload) - 1))
        payload[place] = data.draw(strategies.integers(0, 255))
    replay = Replay(Engine(start_ms=0))
    for each in payloads[:index]:
        replay.play(each)
    with contextlib.suppress(UnknownRecord):
        replay.play(bytes(payload))


def test_frames_are_found_whatever_their_mark() -> None:
    """A mark is drawn by chance, and may begin with a zero, as what stands behind the frames."""
    number = next(number for number in range(1, 10_000) if not frame_mark(IDENTITY, number) & 0xFF)
    content = header(number) + frame(1, 0, b"payload", number=number) + bytes(100)
    assert frame_ends(content)[1:] == [len(content) - 100]


def test_a_sync_of_the_log_that_fails_in_a_start_ends_it() -> None:
    """A start that cuts a torn end tries again without space for the copy, but never after that."""
    ended = []
    for number in range(1, 4):
        disk = disk_with(segment_of([b"one", b"two"]) + b"torn")
        space = OSError(errno.ENOSPC, "No space left on device")
        disk.fail(disk.verb_counts["sync"] + number, space, "sync")
        try:
            opened(disk)[0].close()
        except JournalFailed:
            ended.append(number)
    # The first sync is of the copy.
    assert ended == [2, 3]
