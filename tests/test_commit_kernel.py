"""Group commit with a kernel that syncs: which replies leave when, and what an error leads to.

    rig = new_rig(SyncPolicy.ALWAYS)
    assert rig.turn("put", (rig.a, "INSERTED")) == ["append put", "begin"]
    assert rig.kernel_syncs() == ["durable 1", "a gets INSERTED"]

The journal is a real one on a simulated disk; the kernel does what it is told when it is told. The
thread that syncs where the kernel does not is the real one, and the test waits for its callback.
"""

import errno
import random
import threading
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from delayd.config import SyncPolicy
from tests.journal.journals import CONFIGURED_BYTES, payloads_in
from tests.rigs.commit import DESCRIPTOR, CommitRig, GatedDisk

EIO: Final = OSError(errno.EIO, "EIO")
HALF_A_FILE: Final = "x" * 2_500
"""Two of them do not fit one file of the log."""


def begin_sync(rig: CommitRig) -> None:
    """See that the kernel is at it, whatever the policy."""
    rig.loop.ring()
    if not rig.commit.is_syncing:
        rig.commit._settle(in_turn=False)
    rig.look()


def fail_next(rig: CommitRig, verb: str, later: int = 1) -> None:
    rig.disk.fail(rig.disk.verb_counts[verb] + later, EIO, verb)


def new_rig(policy: SyncPolicy) -> CommitRig:
    rig = CommitRig(policy, disk=GatedDisk(), segment_bytes=CONFIGURED_BYTES, kernel=True)
    rig.journal.append(b"made", 0, 0)
    rig.journal.sync()
    return rig


def gate(rig: CommitRig) -> threading.Event:
    assert isinstance(rig.disk, GatedDisk)
    return rig.disk.may_go_on


Make = Callable[[SyncPolicy], CommitRig]


@pytest.fixture
def make() -> Iterator[Make]:
    rigs: list[CommitRig] = []

    def make_rig(policy: SyncPolicy) -> CommitRig:
        rigs.append(new_rig(policy))
        return rigs[-1]

    yield make_rig
    for rig in rigs:
        gate(rig).set()
        rig.commit.close()
        assert not rig.log._worker.is_alive()
        assert rig.kernel.is_closed


@pytest.fixture
def always(make: Make) -> CommitRig:
    return make(SyncPolicy.ALWAYS)


# --- Which replies leave when --------------------------------------------------------------------


def test_a_reply_leaves_when_the_end_of_its_sync_was_seen(always: CommitRig) -> None:
    assert always.turn("put", (always.a, "INSERTED")) == ["append put", "begin"]
    assert always.reaps() == []
    always.kernel.carry_out()
    assert always.look() == []
    assert always.reaps() == ["durable 1", "a gets INSERTED"]
    assert always.reaps() == []
    assert not always.commit.is_syncing


def test_the_descriptor_to_be_watched_is_the_kernels(always: CommitRig) -> None:
    assert always.commit.fileno() == DESCRIPTOR


def test_looking_without_a_sync_going_on_changes_nothing(always: CommitRig) -> None:
    assert always.reaps() == []
    assert always.turn("", (always.a, "FOUND")) == ["a gets FOUND"]


def test_what_arrives_during_a_sync_shares_the_next_one(always: CommitRig) -> None:
    always.turn("one", (always.a, "1"))
    assert always.turn("two", (always.b, "2")) == ["append two"]
    assert always.turn("three", (always.b, "3"), (always.a, "4")) == ["append three"]
    assert always.kernel_syncs() == ["durable 1", "begin", "a gets 1"]
    assert always.kernel_syncs() == ["durable 3", "b gets 2", "b gets 3", "a gets 4"]
    assert sum(always.commit.sync_ns.counts[:-1]) == 2


def test_what_arrives_between_the_end_of_a_sync_and_its_reaping_waits_for_the_next(
    always: CommitRig,
) -> None:
    always.turn("one", (always.a, "1"))
    always.kernel.carry_out()
    assert always.turn("two", (always.b, "2")) == ["append two"]
    assert always.reaps() == ["durable 1", "begin", "a gets 1"]
    assert always.kernel_syncs() == ["durable 2", "b gets 2"]


def test_the_thread_syncs_what_fills_several_files_and_the_kernel_goes_on_after_it(
    always: CommitRig,
) -> None:
    always.turn(HALF_A_FILE, (always.a, "1"))
    always.kernel_syncs()
    assert always.turn(HALF_A_FILE, (always.a, "2")) == [f"append {HALF_A_FILE}"]
    assert always.thread_syncs() == ["durable 2", "a gets 2"]
    assert always.turn("put", (always.a, "3")) == ["append put", "begin"]
    assert always.kernel_syncs() == ["durable 3", "a gets 3"]


def test_a_full_file_during_a_sync_leaves_the_next_sync_to_the_thread(
    always: CommitRig,
) -> None:
    always.turn("put", (always.a, "1"))
    always.turn(HALF_A_FILE, (always.b, "2"))
    always.turn(HALF_A_FILE, (always.b, "3"))
    assert always.kernel_syncs() == ["durable 1", "a gets 1"]
    assert always.thread_syncs() == ["durable 3", "b gets 2", "b gets 3"]


def test_nothing_promised_is_lost_whenever_the_power_goes(rng: random.Random) -> None:
    """Random turns and syncs: each reply that left names a record that survives."""
    for _ in range(40):
        rig = new_rig(SyncPolicy.ALWAYS)
        for number in range(rng.randrange(1, 40)):
            rig.events.extend(rig.turn(f"{number}", (rig.a, f"{number}")))
            if rig.log._ticket is not None and rng.random() < 0.3:
                rig.kernel.carry_out()
            if rng.random() < 0.5:
                rig.commit.reap()
        replied = [event.split()[-1] for event in rig.events if "gets" in event]
        assert replied == [str(number) for number in range(len(replied))]
        rig.disk.crash()
        survivors = [payload.decode() for payload in payloads_in(rig.disk)]
        assert survivors[1 : len(replied) + 1] == replied
        rig.log._jobs.put(False)
        rig.log._worker.join()


# --- Errors --------------------------------------------------------------------------------------


def test_a_kernel_that_refuses_leaves_the_sync_to_the_thread(always: CommitRig) -> None:
    always.kernel.refusal = OSError(errno.EAGAIN, "EAGAIN")
    assert always.turn("put", (always.a, "1"))[:2] == ["append put", "refused"]
    assert always.thread_syncs() == ["durable 1", "a gets 1"]
    always.kernel.refusal = None
    assert always.turn("put", (always.a, "2")) == ["append put", "begin"]
    assert always.kernel_syncs() == ["durable 2", "a gets 2"]


def test_no_reply_leaves_between_an_error_and_the_sync_of_the_fresh_file(
    always: CommitRig,
) -> None:
    always.turn("one", (always.a, "1"), last_id=3)
    always.turn("two", (always.b, "2"), last_id=3)
    fail_next(always, "sync")
    assert always.kernel_syncs() == []
    assert always.journal.fresh_starts == 1
    assert (always.reaps(), always.commit.durable_id) == ([], 0)
    assert always.thread_syncs() == ["durable 2", "a gets 1", "b gets 2"]
    assert (always.commit.is_syncing, always.commit.durable_id) == (False, 3)
    assert always.failures == []
    always.disk.crash()
    assert payloads_in(always.disk) == [b"made", b"one", b"two"]


def test_a_write_that_fails_during_the_sync_leaves_its_replies_to_the_thread(
    always: CommitRig,
) -> None:
    always.turn("one", (always.a, "1"))
    fail_next(always, "pwrite")
    always.turn("two", (always.b, "2"))
    assert always.kernel_syncs() == []
    assert always.thread_syncs() == ["durable 2", "a gets 1", "b gets 2"]
    assert not always.commit.is_syncing
    always.disk.crash()
    assert payloads_in(always.disk) == [b"made", b"one", b"two"]


@pytest.mark.parametrize("policy", list(SyncPolicy))
def test_a_second_failure_is_told_once_and_nothing_leaves_after_it(
    make: Make, policy: SyncPolicy
) -> None:
    rig = make(policy)
    rig.turn("one", (rig.a, "1"))
    begin_sync(rig)
    fail_next(rig, "sync")
    fail_next(rig, "create")
    assert rig.kernel_syncs() == []
    assert len(rig.failures) == 1
    assert rig.turn("two", (rig.b, "2")) == ["append two"]
    assert rig.turn("", (rig.b, "3")) == []
    rig.commit.close()
    assert rig.look() == []
    assert len(rig.failures) == 1


def test_an_append_that_fails_for_good_stops_the_replies_of_the_sync_going_on(
    always: CommitRig,
) -> None:
    always.turn("one", (always.a, "1"))
    fail_next(always, "pwrite")
    fail_next(always, "create")
    always.turn("two", (always.b, "2"))
    assert len(always.failures) == 1
    assert [event for event in always.kernel_syncs() if "gets" in event] == []
    always.commit.close()
    assert always.look() == []


def test_a_journal_found_broken_at_the_beginning_of_a_sync_is_told_of_by_the_thread(
    always: CommitRig,
) -> None:
    always.turn("one", (always.a, "1"))
    always.turn("two", (always.a, "2"))
    fail_next(always, "sync")
    assert always.kernel_syncs() == []
    for later in (1, 2):
        fail_next(always, "sync", later)
    gate(always).set()
    always.loop.crank()
    assert always.look() == []
    assert len(always.failures) == 1


# --- The end -------------------------------------------------------------------------------------


def test_closing_waits_for_the_sync_going_on_and_releases_everything(always: CommitRig) -> None:
    always.turn("one", (always.a, "1"))
    always.turn("two", (always.b, "2"))
    always.commit.close()
    assert always.look() == ["a gets 1", "b gets 2"]
    assert always.kernel.is_closed
    always.disk.crash()
    assert payloads_in(always.disk) == [b"made", b"one", b"two"]


def test_closing_survives_an_error_of_the_sync_going_on(always: CommitRig) -> None:
    always.turn("one", (always.a, "1"))
    always.turn("two", (always.b, "2"))
    fail_next(always, "sync")
    always.commit.close()
    assert always.look() == ["a gets 1", "b gets 2"]
    assert always.failures == []
    always.disk.crash()
    assert payloads_in(always.disk) == [b"made", b"one", b"two"]


def test_closing_after_a_second_error_releases_nothing(always: CommitRig) -> None:
    always.turn("one", (always.a, "1"))
    fail_next(always, "sync")
    fail_next(always, "create")
    always.commit.close()
    assert always.look() == []
    assert len(always.failures) == 1


# --- Up to which id jobs are durable -------------------------------------------------------------


def test_jobs_are_durable_when_the_sync_that_covers_them_has_ended(always: CommitRig) -> None:
    assert always.commit.durable_id == 0
    always.turn("one", last_id=3)
    always.turn("two", last_id=5)
    assert always.commit.durable_id == 0
    always.kernel.carry_out()
    assert always.commit.durable_id == 0
    always.reaps()
    assert always.commit.durable_id == 3
    always.turn("", (always.a, "FOUND"), last_id=5)
    assert always.commit.durable_id == 3
    always.kernel_syncs()
    assert always.commit.durable_id == 5


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_where_no_reply_waits_no_job_has_to_either(make: Make, policy: SyncPolicy) -> None:
    rig = make(policy)
    assert rig.turn("one", (rig.a, "1"), last_id=3) == ["append one", "a gets 1"]
    assert rig.commit.durable_id == 3
    begin_sync(rig)
    rig.turn("two", last_id=5)
    rig.commit.note_late([4])
    assert rig.commit.durable_id == 5
    assert not rig.commit.out_of_order_ids


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_the_end_of_a_sync_makes_no_job_less_durable_than_it_had_to_be(
    make: Make, policy: SyncPolicy
) -> None:
    rig = make(policy)
    rig.turn("one", last_id=3)
    begin_sync(rig)
    rig.turn("two", last_id=5)
    rig.kernel_syncs()
    assert rig.commit.durable_id == 5


def test_an_interval_hands_its_sync_to_the_kernel(make: Make) -> None:
    rig = make(SyncPolicy.INTERVAL)
    rig.turn("one", (rig.a, "1"))
    rig.turn("two", (rig.a, "2"))
    rig.loop.ring()
    assert rig.look() == ["begin"]
    assert rig.kernel_syncs() == ["durable 2"]


def test_a_job_whose_put_ended_late_is_durable_when_the_sync_that_covers_it_has_ended(
    always: CommitRig,
) -> None:
    always.turn("put 2", last_id=2)
    always.commit.note_late([1])
    always.turn("put 1", last_id=2)
    always.kernel_syncs()
    assert always.commit.durable_id == 2
    assert list(always.commit.out_of_order_ids) == [1], "it was appended after this sync had begun"
    always.kernel_syncs()
    assert not always.commit.out_of_order_ids
