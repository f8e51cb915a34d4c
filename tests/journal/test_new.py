"""A journal that a command fills, cut off at every call to the disk."""

import contextlib

from delayd.journal.format import IMPORT_MARKER
from delayd.journal.new import new_journal
from tests.journal.journals import (
    DIRECTORY,
    SEGMENT_BYTES,
    append_all,
    contents_of,
    numbered,
    payloads_in,
)
from tests.rigs.disk import PowerCut, SimulatedDisk


def test_a_new_log_without_its_mark_is_whole_wherever_the_power_goes() -> None:
    payloads, number, is_over, whole = numbered(5, 100), 0, False, 0
    while not is_over:
        number += 1
        disk, has_begun = SimulatedDisk(), False
        disk.fail(number, PowerCut())
        with contextlib.suppress(PowerCut):
            with new_journal(disk, DIRECTORY, SEGMENT_BYTES, IMPORT_MARKER) as journal:
                has_begun = True
                append_all(journal, payloads)
            is_over = True
            disk.heal()
        disk.crash(lambda piece: piece.kind == "names")
        if has_begun and IMPORT_MARKER not in contents_of(disk):
            assert payloads_in(disk) == payloads, f"after call {number}"
            whole += 1
    assert whole > 1, "the last one, and at least one that was cut off"
