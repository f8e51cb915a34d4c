"""A sync that somebody else carries out: what a ticket covers, and what may happen while it is out.

`carry_out` stands for the kernel: it syncs the file, or fails to, and says how that went.
"""

import errno
import random
import threading
from typing import Final, cast

import pytest

from delayd.journal.errors import JournalFailed
from delayd.journal.journal import Journal, SyncTicket
from delayd.limits import (
    JOURNAL_UNSYNCED_SEGMENTS_MAX,
    JOURNAL_UNSYNCED_SEGMENTS_WITHIN_SYNC,
)
from tests.journal.journals import (
    START_MS,
    append_all,
    opened,
    payloads_in,
)
from tests.rigs.disk import SimulatedDisk

EIO: Final = OSError(errno.EIO, "EIO")
HANG_S_MAX: Final = 60.0
FILLS_A_FILE: Final = bytes(3_950)


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def journal(disk: SimulatedDisk) -> Journal:
    """A journal whose one file is durably named and has one durable frame."""
    made, _ = opened(disk)
    append_all(made, [b"first"], sync_each=True)
    return made


def begun(journal: Journal, *payloads: bytes) -> SyncTicket:
    """Append these and begin a sync that covers them."""
    append_all(journal, payloads)
    ticket = journal.begin_sync()
    assert ticket is not None
    return ticket


def carry_out(disk: SimulatedDisk, ticket: SyncTicket) -> OSError | None:
    try:
        disk.sync(ticket.segment.handle)
    except OSError as error:
        return error
    return None


def fail_next(disk: SimulatedDisk, verb: str) -> None:
    disk.fail(disk.verb_counts[verb] + 1, EIO, verb)


def left_after_a_power_cut(disk: SimulatedDisk) -> list[bytes]:
    disk.heal()
    disk.crash()
    return payloads_in(disk)


# --- When there is one ---------------------------------------------------------------------------


def test_a_sync_carried_out_elsewhere_makes_its_frames_durable(
    disk: SimulatedDisk, journal: Journal
) -> None:
    ticket = begun(journal, b"second", b"third")
    assert journal.synced_sequence == 1
    assert journal.end_sync(ticket, carry_out(disk, ticket))
    assert journal.synced_sequence == journal.appended_sequence == 3
    assert left_after_a_power_cut(disk) == [b"first", b"second", b"third"]


def test_there_is_none_before_the_first_frame(disk: SimulatedDisk) -> None:
    journal, _ = opened(disk)
    assert journal.begin_sync() is None


def test_there_is_one_for_the_first_file_whose_name_is_durable_from_its_making(
    disk: SimulatedDisk,
) -> None:
    journal, _ = opened(disk)
    ticket = begun(journal, b"first")
    assert journal.end_sync(ticket, carry_out(disk, ticket))
    assert left_after_a_power_cut(disk) == [b"first"]


def test_there_is_none_for_several_files(journal: Journal) -> None:
    append_all(journal, [FILLS_A_FILE, b"in the next file"])
    assert journal.begin_sync() is None
    journal.sync()
    assert journal.begin_sync() is not None


def test_there_is_none_for_a_fresh_file_whose_name_is_not_durable(
    disk: SimulatedDisk, journal: Journal
) -> None:
    fail_next(disk, "pwrite")
    append_all(journal, [b"second"])
    assert journal.fresh_starts == 1
    assert journal.begin_sync() is None
    journal.sync()
    assert journal.begin_sync() is not None


def test_there_is_none_while_another_is_out(disk: SimulatedDisk, journal: Journal) -> None:
    ticket = begun(journal)
    assert journal.begin_sync() is None
    assert journal.end_sync(ticket, carry_out(disk, ticket))
    assert journal.begin_sync() is not None


def test_there_is_none_after_a_failure(disk: SimulatedDisk, journal: Journal) -> None:
    append_all(journal, [b"second"])
    fail_next(disk, "pwrite")
    fail_next(disk, "create")
    with pytest.raises(JournalFailed):
        append_all(journal, [b"third"])
    with pytest.raises(JournalFailed):
        journal.begin_sync()


class HeldUpDisk(SimulatedDisk):
    """In its next sync it waits until it may go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held_up = threading.Event()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def sync(self, handle: int, /) -> None:
        self.is_held_up.set()
        assert self.may_go_on.wait(HANG_S_MAX)
        super().sync(handle)


def test_there_is_none_while_a_thread_syncs() -> None:
    disk = HeldUpDisk()
    journal, _ = opened(disk)
    append_all(journal, [b"first"], sync_each=True)
    append_all(journal, [b"second"])
    disk.may_go_on.clear()
    disk.is_held_up.clear()
    thread = threading.Thread(target=journal.sync, daemon=True)
    thread.start()
    try:
        assert disk.is_held_up.wait(HANG_S_MAX)
        assert journal.begin_sync() is None
    finally:
        disk.may_go_on.set()
        thread.join(HANG_S_MAX)
    assert not thread.is_alive()
    assert journal.synced_sequence == 2
    assert journal.begin_sync() is not None


class TellingLock:
    """A lock that tells when somebody has come to wait for it."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.is_wanted = threading.Event()
        self.locked = lock.locked
        self.acquire = lock.acquire
        self.release = lock.release

    def __enter__(self) -> None:
        self.is_wanted.set()
        assert self._lock.acquire(timeout=HANG_S_MAX)

    def __exit__(self, *_exception: object) -> None:
        self._lock.release()


def test_a_thread_that_wants_to_sync_waits_for_the_ticket(
    disk: SimulatedDisk, journal: Journal
) -> None:
    ticket = begun(journal, b"second")
    append_all(journal, [b"third"])
    synced: list[int] = []
    turn = TellingLock(journal._sync_turn)
    journal._sync_turn = cast("threading.Lock", turn)
    thread = threading.Thread(target=lambda: synced.append(journal.sync()), daemon=True)
    syncs = disk.verb_counts["sync"]
    thread.start()
    assert turn.is_wanted.wait(HANG_S_MAX)
    assert (synced, disk.verb_counts["sync"]) == ([], syncs)
    assert journal.end_sync(ticket, carry_out(disk, ticket))
    thread.join(HANG_S_MAX)
    assert synced == [3]
    assert left_after_a_power_cut(disk) == [b"first", b"second", b"third"]


# --- While it is out -----------------------------------------------------------------------------


def test_what_is_appended_after_the_ticket_does_not_count(
    disk: SimulatedDisk, journal: Journal
) -> None:
    ticket = begun(journal, b"second")
    error = carry_out(disk, ticket)
    append_all(journal, [b"third"])
    assert journal.end_sync(ticket, error)
    assert (journal.synced_sequence, journal.appended_sequence) == (2, 3)
    assert left_after_a_power_cut(disk) == [b"first", b"second"]


def test_what_is_appended_after_the_ticket_is_written_again_when_its_own_sync_fails(
    disk: SimulatedDisk, journal: Journal
) -> None:
    ticket = begun(journal, b"second")
    error = carry_out(disk, ticket)
    append_all(journal, [b"third"])
    assert journal.end_sync(ticket, error)
    fail_next(disk, "sync")
    assert journal.sync() == 3
    assert left_after_a_power_cut(disk) == [b"first", b"second", b"third"]


def test_the_log_goes_on_in_further_files(disk: SimulatedDisk, journal: Journal) -> None:
    ticket = begun(journal, b"second")
    append_all(journal, [FILLS_A_FILE, b"in the next file"])
    assert journal.end_sync(ticket, carry_out(disk, ticket))
    assert journal.synced_sequence == 2
    assert journal.begin_sync() is None
    assert journal.sync() == 4
    assert left_after_a_power_cut(disk) == [
        *(b"first", b"second"),
        *(FILLS_A_FILE, b"in the next file"),
    ]


def test_a_write_that_fails_meanwhile_voids_the_ticket(
    disk: SimulatedDisk, journal: Journal
) -> None:
    ticket = begun(journal, b"second")
    error = carry_out(disk, ticket)
    fail_next(disk, "pwrite")
    append_all(journal, [b"third"])
    assert not journal.end_sync(ticket, error)
    assert journal.synced_sequence == 1
    assert journal.fresh_starts == 1
    assert journal.sync() == 3
    assert left_after_a_power_cut(disk) == [b"first", b"second", b"third"]


def test_an_error_of_a_file_given_up_meanwhile_changes_nothing(
    disk: SimulatedDisk, journal: Journal
) -> None:
    ticket = begun(journal, b"second")
    fail_next(disk, "pwrite")
    append_all(journal, [b"third"])
    assert not journal.end_sync(ticket, EIO)
    assert journal.fresh_starts == 1
    assert journal.sync() == 3


def test_many_files_gather_without_anybody_waiting_for_the_ticket(
    disk: SimulatedDisk, journal: Journal
) -> None:
    ticket = begun(journal)
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


# --- When it goes wrong --------------------------------------------------------------------------


def test_after_an_error_the_log_begins_anew_and_a_sync_makes_it_durable(
    disk: SimulatedDisk, journal: Journal
) -> None:
    troubles: list[str] = []
    journal.on_trouble = troubles.append
    ticket = begun(journal, b"second")
    append_all(journal, [b"third"])
    fail_next(disk, "sync")
    error = carry_out(disk, ticket)
    assert error is EIO
    assert not journal.end_sync(ticket, error)
    assert journal.synced_sequence == 1, "nothing is durable that the failed sync was for"
    assert (journal.fresh_starts, len(troubles)) == (1, 1)
    assert journal.sync() == 3
    assert left_after_a_power_cut(disk) == [b"first", b"second", b"third"]


def test_a_sync_that_never_began_leaves_everything_as_it_was(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, [b"second"])
    assert not journal.end_sync(begun(journal), is_done=False)
    assert (journal.synced_sequence, journal.fresh_starts) == (1, 0)
    ticket = begun(journal)
    assert journal.end_sync(ticket, carry_out(disk, ticket))
    assert journal.synced_sequence == 2


def test_a_second_failure_is_the_end_and_nobody_waits_for_ever(
    disk: SimulatedDisk, journal: Journal
) -> None:
    ticket = begun(journal, b"second")
    fail_next(disk, "create")
    with pytest.raises(JournalFailed):
        journal.end_sync(ticket, EIO)
    for last_try in (journal.sync, journal.begin_sync):
        with pytest.raises(JournalFailed):
            last_try()
    assert left_after_a_power_cut(disk) == [b"first"]


def test_the_fresh_file_is_given_up_once_more_and_no_further(
    disk: SimulatedDisk, journal: Journal
) -> None:
    append_all(journal, [b"second"])
    assert not journal.end_sync(begun(journal), EIO)
    fail_next(disk, "sync")
    assert journal.sync() == 2
    assert journal.fresh_starts == 2
    append_all(journal, [b"third"])
    assert not journal.end_sync(begun(journal), EIO)
    for number in (1, 2):
        disk.fail(disk.verb_counts["sync"] + number, EIO, "sync")
    with pytest.raises(JournalFailed):
        journal.sync()
    assert left_after_a_power_cut(disk)[:2] == [b"first", b"second"]


# --- Whatever happens in between -----------------------------------------------------------------


def test_what_was_reported_durable_survives_whatever_happens_in_between(
    rng: random.Random,
) -> None:
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
        survivors = left_after_a_power_cut(disk)
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
            fail_next(disk, rng.choice(("pwrite", "sync", "sync", "create", "sync_directory")))
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


# --- In the thread that appends ------------------------------------------------------------------


def test_a_sync_at_once_covers_all_that_was_appended(journal: Journal, disk: SimulatedDisk) -> None:
    append_all(journal, [b"one", b"two"])
    assert journal.sync_at_once()
    assert journal.synced_sequence == journal.appended_sequence
    assert not journal._pending.frames
    disk.crash()
    assert payloads_in(disk) == [b"first", b"one", b"two"]


def test_a_sync_at_once_is_refused_where_more_was_appended_than_it_may_cover(
    journal: Journal,
) -> None:
    journal.sync()
    append_all(journal, [b"four"])
    assert not journal.sync_at_once(bytes_max=3)
    assert journal.synced_sequence < journal.appended_sequence
    assert journal.sync_at_once(bytes_max=4)


def test_a_sync_at_once_is_refused_while_another_is_going_on(journal: Journal) -> None:
    ticket = begun(journal, b"one")
    append_all(journal, [b"two"])
    assert not journal.sync_at_once()
    journal.end_sync(ticket, is_done=False)
    assert journal.sync_at_once()


def test_a_sync_at_once_is_refused_where_files_are_full_or_not_named(disk: SimulatedDisk) -> None:
    journal, _ = opened(disk)
    assert not journal.sync_at_once()
    append_all(journal, [b"first"])
    assert journal.sync_at_once()
    append_all(journal, [FILLS_A_FILE, FILLS_A_FILE])
    assert not journal.sync_at_once()
    journal.sync()
    assert journal.sync_at_once()


def test_an_error_of_a_sync_at_once_leaves_the_fresh_file_to_sync(
    journal: Journal, disk: SimulatedDisk
) -> None:
    append_all(journal, [b"one"])
    disk.fail(disk.verb_counts["sync"] + 1, EIO, "sync")
    assert not journal.sync_at_once()
    assert journal.fresh_starts == 1
    assert not journal.sync_at_once()
    journal.sync()
    disk.crash()
    assert payloads_in(disk) == [b"first", b"one"]


def test_a_second_error_of_a_sync_at_once_is_the_end(journal: Journal, disk: SimulatedDisk) -> None:
    append_all(journal, [b"one"])
    disk.fail(disk.verb_counts["sync"] + 1, EIO, "sync")
    disk.fail(disk.verb_counts["create"] + 1, EIO, "create")
    for _ in range(2):
        with pytest.raises(JournalFailed):
            journal.sync_at_once()
