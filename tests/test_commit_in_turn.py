"""Group commit on a quick disk: the turn itself syncs, and replies leave in it.

    rig = new_rig(watch)
    assert rig.turn("put", (rig.a, "INSERTED")) == ["append put", "a gets INSERTED"]

The journal is a real one on a simulated disk, where a sync takes as long as the test says.
"""

import errno
import random
from collections.abc import Iterator
from typing import Final

import pytest

from delayd import commit as commit_module
from delayd.clock import NS_PER_MS
from delayd.config import SyncPolicy
from delayd.journal import file_log as file_log_module
from delayd.limits import (
    QUICK_SYNC_NS,
    QUICK_SYNCS_AVERAGED,
    SLOW_SYNC_MS,
    SLOW_SYNC_PAUSE_TIMES,
    SYNC_IN_TURN_BYTES_MAX,
)
from tests.journal.journals import CONFIGURED_BYTES, payloads_in
from tests.rigs.commit import CommitRig, GatedDisk, Watch, set_watch

EIO: Final = OSError(errno.EIO, "EIO")
QUICK_NS: Final = QUICK_SYNC_NS // 4
SLOW_NS: Final = 20_000 * NS_PER_MS
HALF_A_FILE: Final = "x" * 2_500
"""Two of them do not fit one file of the log."""


class TimedDisk(GatedDisk):
    """A disk whose syncs take time on the watch."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self.sync_takes_ns = QUICK_NS

    def sync(self, handle: int, /) -> None:
        self._watch.now_ns += self.sync_takes_ns
        super().sync(handle)


class Departures:
    """A client for whom it is noted when each reply leaves."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.times_ns: dict[bytes, int] = {}

    def send(self, data: bytes) -> None:
        self.times_ns[data] = self._watch.now_ns


def new_rig(watch: Watch, segment_bytes: int = CONFIGURED_BYTES) -> CommitRig:
    disk = TimedDisk(watch)
    rig = CommitRig(
        SyncPolicy.ALWAYS, disk=disk, segment_bytes=segment_bytes, kernel=True, syncs_in_turn=True
    )
    rig.journal.append(b"made", 0, 0)
    rig.journal.sync()
    return rig


def disk_of(rig: CommitRig) -> TimedDisk:
    assert isinstance(rig.disk, TimedDisk)
    return rig.disk


def is_in_turn(rig: CommitRig) -> bool:
    """Whether the next sync is; one elsewhere is brought to its end."""
    said = rig.turn("probe", (rig.a, "reply"))
    if said == ["append probe", "a gets reply"]:
        return True
    assert said == ["append probe", "begin"]
    assert rig.kernel_syncs()[-1] == "a gets reply"
    return False


def meet_a_slow_sync(rig: CommitRig) -> None:
    """One in the turn, after which the next ones are elsewhere."""
    disk_of(rig).sync_takes_ns = SLOW_NS
    assert rig.turn("slow", (rig.a, "0")) == ["append slow", "a gets 0"]
    disk_of(rig).sync_takes_ns = QUICK_NS


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return set_watch(monkeypatch, commit_module, file_log_module)


@pytest.fixture
def rig(watch: Watch) -> Iterator[CommitRig]:
    yield from open_until_end(new_rig(watch))


@pytest.fixture
def roomy(watch: Watch) -> Iterator[CommitRig]:
    """A rig whose log stays in one file."""
    yield from open_until_end(new_rig(watch, segment_bytes=8 << 20))


def open_until_end(rig: CommitRig) -> Iterator[CommitRig]:
    yield rig
    disk_of(rig).may_go_on.set()
    rig.commit.close()
    assert not rig.log._worker.is_alive()


# --- A quick disk --------------------------------------------------------------------------------


def test_a_client_has_its_reply_in_the_turn(rig: CommitRig) -> None:
    assert rig.turn("put", (rig.a, "1"), last_id=7) == ["append put", "a gets 1"]
    assert rig.journal.synced_sequence == rig.journal.appended_sequence
    assert rig.commit.durable_id == 7
    assert not rig.commit.is_syncing
    rig.disk.crash()
    assert payloads_in(rig.disk) == [b"made", b"put"]


def test_replies_that_need_no_sync_leave_before_it(rig: CommitRig, watch: Watch) -> None:
    begun_ns = watch.now_ns
    left = Departures(watch)
    replies, free = [(left, b"INSERTED")], [(left, b"OK")]
    rig.commit.commit([b"put"], replies, must_sync=True, time_ms=1, wall_ms=2, free=free)
    assert left.times_ns == {b"OK": begun_ns, b"INSERTED": begun_ns + QUICK_NS}


def test_many_bytes_are_synced_elsewhere(roomy: CommitRig) -> None:
    record = "x" * (SYNC_IN_TURN_BYTES_MAX + 1)
    assert roomy.turn(record, (roomy.a, "1")) == [f"append {record}", "begin"]
    assert roomy.kernel_syncs() == ["durable 1", "a gets 1"]
    assert is_in_turn(roomy)


def test_a_sync_going_on_elsewhere_is_waited_for(rig: CommitRig, watch: Watch) -> None:
    meet_a_slow_sync(rig)
    rig.turn("one", (rig.b, "1"))
    watch.now_ns += SLOW_SYNC_PAUSE_TIMES * SLOW_NS  # the turn would sync again
    assert rig.turn("two", (rig.a, "2")) == ["append two"]
    assert rig.kernel_syncs() == ["durable 2", "begin", "b gets 1"]
    assert rig.kernel_syncs() == ["durable 3", "a gets 2"]


def test_what_was_recorded_before_without_a_sync_is_covered(rig: CommitRig) -> None:
    assert rig.turn("reserve", (rig.a, "RESERVED"), must_sync=False) == [
        "append reserve",
        "a gets RESERVED",
    ]
    assert rig.turn("delete", (rig.a, "DELETED")) == ["append delete", "a gets DELETED"]
    rig.disk.crash()
    assert payloads_in(rig.disk) == [b"made", b"reserve", b"delete"]


def test_what_fills_several_files_is_left_to_the_thread(rig: CommitRig) -> None:
    rig.turn(HALF_A_FILE, must_sync=False)
    assert rig.turn(HALF_A_FILE, (rig.a, "2")) == [f"append {HALF_A_FILE}"]
    assert rig.thread_syncs() == ["durable 2", "a gets 2"]
    assert is_in_turn(rig)


def test_it_is_counted_as_other_syncs_are(rig: CommitRig) -> None:
    rig.turn("one", (rig.a, "1"))
    rig.turn("two", (rig.a, "2"))
    assert sum(rig.commit.sync_ns.counts[:-1]) == sum(rig.commit.commit_ns.counts[:-1]) == 2
    assert rig.commit.sync_ns.counts[-1] == rig.commit.commit_ns.counts[-1] == 2 * QUICK_NS
    assert rig.commit.batch_records.counts[-1] == 2


def test_a_job_whose_put_ended_late_is_durable_with_it(rig: CommitRig) -> None:
    rig.commit.note_late([3])
    assert 3 in rig.commit.out_of_order_ids
    rig.turn("put", (rig.a, "1"))
    assert 3 not in rig.commit.out_of_order_ids


# --- Sharing a sync ------------------------------------------------------------------------------


def release_two(rig: CommitRig) -> None:
    """Two clients are answered by one sync."""
    assert rig.turn("two", (rig.a, "1"), (rig.b, "1")) == ["append two", "a gets 1", "b gets 1"]


def average_sync_ns(rig: CommitRig, watch: Watch) -> int:
    """How long a reply waits for another one."""
    assert rig.commit.gathers_until_ns
    return rig.commit.gathers_until_ns - watch.now_ns


def test_those_who_were_answered_together_share_the_next_sync(rig: CommitRig) -> None:
    release_two(rig)
    syncs = rig.disk.verb_counts["sync"]
    assert rig.turn("first", (rig.a, "2")) == ["append first"]
    assert rig.turn("second", (rig.b, "2")) == ["append second", "a gets 2", "b gets 2"]
    assert rig.disk.verb_counts["sync"] == syncs + 1
    assert rig.commit.gathers_until_ns == 0
    rig.disk.crash()
    assert payloads_in(rig.disk) == [b"made", b"two", b"first", b"second"]


def test_who_comes_alone_waits_as_long_as_a_sync_takes(rig: CommitRig, watch: Watch) -> None:
    for _ in range(4 * QUICK_SYNCS_AVERAGED):
        release_two(rig)
    assert rig.turn("first", (rig.a, "2")) == ["append first"]
    wait_ns = average_sync_ns(rig, watch)
    assert QUICK_NS * 9 // 10 < wait_ns <= QUICK_NS
    watch.now_ns += wait_ns - 1
    assert rig.turn("") == []
    watch.now_ns += 1
    assert rig.turn("") == ["a gets 2"]
    assert rig.commit.gathers_until_ns == 0
    assert rig.turn("next", (rig.a, "3")) == ["append next", "a gets 3"], "alone, as the last time"


def test_what_needs_no_sync_waits_for_nobody(rig: CommitRig) -> None:
    release_two(rig)
    said = rig.turn("reserve", must_sync=False, free=[(rig.b, "RESERVED")])
    assert said == ["append reserve", "b gets RESERVED"]
    rig.turn("delete", (rig.a, "2"))
    said = rig.turn("reserve", must_sync=False, free=[(rig.b, "RESERVED")])
    assert said == ["append reserve", "b gets RESERVED"]
    assert rig.commit.gathers_until_ns


def test_a_record_without_a_reply_is_synced_with_those_that_have_one(rig: CommitRig) -> None:
    release_two(rig)
    assert rig.turn("expired") == ["append expired"]
    assert rig.turn("put", (rig.a, "2"), (rig.b, "2")) == ["append put", "a gets 2", "b gets 2"]
    assert rig.journal.synced_sequence == rig.journal.appended_sequence


def test_what_was_gathered_counts_with_its_wait(rig: CommitRig, watch: Watch) -> None:
    release_two(rig)
    rig.turn("first", (rig.a, "2"))
    waited_ns = average_sync_ns(rig, watch)
    watch.now_ns += waited_ns
    rig.turn("")
    assert rig.commit.sync_ns.counts[-1] == 2 * QUICK_NS
    assert rig.commit.commit_ns.counts[-1] == 2 * QUICK_NS + waited_ns
    assert sum(rig.commit.sync_ns.counts[:-1]) == sum(rig.commit.commit_ns.counts[:-1]) == 2


def test_what_was_gathered_and_is_too_much_is_synced_elsewhere(roomy: CommitRig) -> None:
    release_two(roomy)
    roomy.turn("first", (roomy.a, "2"))
    record = "x" * (SYNC_IN_TURN_BYTES_MAX + 1)
    assert roomy.turn(record, (roomy.b, "2")) == [f"append {record}", "begin"]
    assert roomy.commit.gathers_until_ns == 0
    assert roomy.kernel_syncs() == ["durable 3", "a gets 2", "b gets 2"]


def test_while_syncs_are_elsewhere_nothing_is_gathered(rig: CommitRig) -> None:
    release_two(rig)
    disk_of(rig).sync_takes_ns = SLOW_NS
    release_two(rig)
    disk_of(rig).sync_takes_ns = QUICK_NS
    assert rig.turn("put", (rig.a, "2")) == ["append put", "begin"]
    assert rig.commit.gathers_until_ns == 0
    assert rig.kernel_syncs() == ["durable 3", "a gets 2"]


def test_after_an_error_what_was_gathered_leaves_when_the_fresh_file_is_synced(
    rig: CommitRig,
) -> None:
    release_two(rig)
    rig.turn("first", (rig.a, "2"))
    fail_next(rig, "sync")
    assert rig.turn("second", (rig.b, "2")) == ["append second"]
    assert rig.commit.gathers_until_ns == 0
    assert rig.thread_syncs() == ["durable 3", "a gets 2", "b gets 2"]
    assert rig.failures == []


def test_after_a_second_error_nothing_that_was_gathered_leaves(rig: CommitRig) -> None:
    release_two(rig)
    rig.turn("first", (rig.a, "2"))
    fail_next(rig, "sync")
    fail_next(rig, "allocate")
    assert rig.turn("second", (rig.b, "2")) == ["append second"]
    assert len(rig.failures) == 1
    assert rig.commit.gathers_until_ns == 0
    rig.commit.close()
    assert rig.look() == []


def test_a_stop_releases_what_was_gathered(rig: CommitRig) -> None:
    release_two(rig)
    rig.turn("first", (rig.a, "2"))
    disk_of(rig).may_go_on.set()
    rig.commit.close()
    assert rig.look() == ["a gets 2"]
    rig.disk.crash()
    assert payloads_in(rig.disk) == [b"made", b"two", b"first"]


# --- A slow one ----------------------------------------------------------------------------------


def test_a_disk_that_hangs_once_holds_the_loop_once(rig: CommitRig, watch: Watch) -> None:
    told: list[int] = []
    rig.commit.on_slow_sync = told.append
    begun_ns = watch.now_ns
    meet_a_slow_sync(rig)
    assert told == [20_000]
    watch.now_ns = begun_ns + SLOW_SYNC_PAUSE_TIMES * SLOW_NS - 1
    assert not is_in_turn(rig)
    watch.now_ns = begun_ns + SLOW_SYNC_PAUSE_TIMES * SLOW_NS
    assert is_in_turn(rig)


def test_syncs_that_are_never_quick_hold_the_loop_for_a_hundredth_of_the_time(
    roomy: CommitRig, watch: Watch
) -> None:
    disk_of(roomy).sync_takes_ns = took_ns = 8 * NS_PER_MS
    assert took_ns < SLOW_SYNC_MS * NS_PER_MS
    begun_ns, held_ns = watch.now_ns, 0
    for _ in range(4_000):
        held_ns += took_ns * is_in_turn(roomy)
    assert 0 < held_ns < 4 * (watch.now_ns - begun_ns) // SLOW_SYNC_PAUSE_TIMES


def test_one_slow_sync_among_quick_ones_is_no_reason(roomy: CommitRig) -> None:
    for _ in range(20):
        disk_of(roomy).sync_takes_ns = 4 * QUICK_SYNC_NS
        assert is_in_turn(roomy)
        disk_of(roomy).sync_takes_ns = QUICK_NS // 2
        assert all(is_in_turn(roomy) for _ in range(2 * QUICK_SYNCS_AVERAGED))


# --- A broken one --------------------------------------------------------------------------------


def fail_next(rig: CommitRig, verb: str) -> None:
    rig.disk.fail(rig.disk.verb_counts[verb] + 1, EIO, verb)


def test_after_an_error_the_reply_leaves_when_the_fresh_file_is_synced(rig: CommitRig) -> None:
    fail_next(rig, "sync")
    assert rig.turn("put", (rig.a, "1")) == ["append put"]
    assert rig.journal.fresh_starts == 1
    assert rig.commit.is_syncing
    assert rig.thread_syncs() == ["durable 1", "a gets 1"]
    assert rig.failures == []
    assert is_in_turn(rig)
    rig.disk.crash()
    assert payloads_in(rig.disk) == [b"made", b"put", b"probe"]


def test_nothing_promised_is_lost_whenever_the_power_goes(rng: random.Random, watch: Watch) -> None:
    """Disks quick and slow: each reply that left names a record that survives, in order."""
    for _ in range(40):
        rig = new_rig(watch)
        for number in range(rng.randrange(1, 40)):
            disk_of(rig).sync_takes_ns = rng.choice((QUICK_NS, 30 * QUICK_SYNC_NS))
            watch.now_ns += rng.choice((0, 30 * SLOW_SYNC_PAUSE_TIMES * QUICK_SYNC_NS))
            rig.events.extend(rig.turn(f"{number}", (rig.a, f"{number}")))
            if rig.log._ticket is not None and rng.random() < 0.5:
                rig.kernel.carry_out()
            rig.commit.reap()
        replied = [event.split()[-1] for event in rig.events if "gets" in event]
        assert replied == [str(number) for number in range(len(replied))]
        rig.disk.crash()
        survivors = [payload.decode() for payload in payloads_in(rig.disk)]
        assert survivors[1 : len(replied) + 1] == replied
        rig.log._jobs.put(False)
        rig.log._worker.join()
