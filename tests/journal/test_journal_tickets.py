"""A sync that somebody else carries out: what a ticket covers, and what may happen while it is out.

`carry_out` stands for the kernel: it syncs the file, or fails to, and says how that went.
"""

import errno
import random
from typing import Final

import pytest

from delayd.journal.errors import JournalFailed
from delayd.journal.journal import Journal, SyncTicket
from delayd.limits import JOURNAL_UNSYNCED_SEGMENTS_MAX, JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC
from tests.journal.journals import START_MS, append_all, opened, payloads_in
from tests.rigs.disk import SimulatedDisk

FILLS_A_FILE: Final = bytes(3_950)


def carry_out(disk: SimulatedDisk, ticket: SyncTicket) -> OSError | None:
    try:
        disk.sync(ticket.segment.handle)
    except OSError as error:
        return error
    return None


def test_many_files_gather_without_anybody_waiting_for_the_ticket(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, [b"first"], sync_each=True)
    ticket = journal.begin_sync()
    assert ticket is not None
    syncs = disk.verb_counts["sync"]
    files = JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC + 3
    for number in range(1, files + 1):
        append_all(journal, [FILLS_A_FILE])
        unsynced = number + 1  # with the one that the ticket is for
        assert journal.is_behind == (unsynced > JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC)
    assert disk.verb_counts["sync"] == syncs
    assert journal.end_sync(ticket, carry_out(disk, ticket))
    append_all(journal, [FILLS_A_FILE])
    assert not journal.is_behind
    assert journal.synced_sequence > files - JOURNAL_UNSYNCED_SEGMENTS_MAX


@pytest.mark.thorough
def test_what_was_reported_durable_survives_whatever_happens_in_between(rng: random.Random) -> None:
    """Random appends, syncs elsewhere and here, errors of every kind; then the power goes."""
    fates = {"kept": 0, "failed": 0}
    for _ in range(150):
        disk = SimulatedDisk()
        journal, _ = opened(disk)
        fate = "kept"
        appended: list[bytes] = []
        try:
            work(journal, disk, rng, appended)
        except JournalFailed:
            fate = "failed"
        fates[fate] += 1
        acknowledged = journal.synced_sequence
        disk.heal()
        disk.crash()
        survivors = payloads_in(disk)
        assert survivors == appended[: len(survivors)]
        assert len(survivors) >= acknowledged
    assert min(fates.values()) > 5, fates


def work(journal: Journal, disk: SimulatedDisk, rng: random.Random, appended: list[bytes]) -> None:
    """Use the journal as the loop does; `appended` is what was written, in order."""
    ticket: SyncTicket | None = None
    error: OSError | None = None
    is_carried_out = False
    fault_share = rng.choice((0.0, 0.02, 0.1))
    for number in range(60):
        if rng.random() < fault_share:
            verb = rng.choice(("pwrite", "sync", "sync", "create", "sync_directory"))
            disk.fail(disk.verb_counts[verb] + 1, OSError(errno.EIO, "EIO"), verb)
        what = rng.randrange(4)
        if what == 0 and ticket is None:
            ticket, is_carried_out = journal.begin_sync(), False
        elif what == 1 and ticket is not None and is_carried_out:
            done, ticket = ticket, None
            if not journal.end_sync(done, error):
                journal.sync()
        elif what == 2 and ticket is not None and not is_carried_out:
            is_carried_out, error = True, carry_out(disk, ticket)
        elif what == 3 and ticket is None and rng.random() < 0.3:
            journal.sync()
        else:
            payload = (b"%d " % number).ljust(rng.choice((10, 900, 3_000)), b".")
            appended.append(payload)
            journal.append(payload, START_MS, START_MS)
