from collections.abc import Callable, Iterator

import pytest

from delayd import commit as commit_module
from delayd.config import SyncPolicy
from delayd.core.log_records import Kind, pack_put
from delayd.journal.errors import JournalError, JournalFailed, JournalFull
from delayd.limits import (
    UNSYNCED_BYTES_MAX,
)
from tests.rigs.commit import HANG_S_MAX, INTERVAL_MS, CommitRig

Make = Callable[[SyncPolicy], CommitRig]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    rigs: list[CommitRig] = []

    def make_rig(policy: SyncPolicy) -> CommitRig:
        rig = CommitRig(policy)
        monkeypatch.setattr(commit_module, "monotonic_ns", lambda: rig.script.now_ns)
        rigs.append(rig)
        return rig

    yield make_rig
    for rig in rigs:
        rig.script.gate.release(1_000)
        rig.commit.close()
        assert not rig.log._worker.is_alive()


@pytest.fixture
def always(make: Make) -> CommitRig:
    return make(SyncPolicy.ALWAYS)


# --- Always --------------------------------------------------------------------------------------


def test_a_reply_leaves_after_its_record_was_synced(always: CommitRig) -> None:
    assert always.turn("put", (always.a, "INSERTED")) == ["append put"]
    assert always.thread_syncs() == ["synced 1", "a gets INSERTED"]


def test_the_records_of_a_turn_are_one_frame(always: CommitRig) -> None:
    always.commit.commit([b"x", b"yz"], [], must_sync=True, time_ms=1, wall_ms=2)
    assert always.look() == ["append xyz"]


def test_replies_that_depend_on_nothing_leave_at_once(always: CommitRig) -> None:
    assert always.turn("", (always.a, "FOUND")) == ["a gets FOUND"]


def test_a_reserve_alone_needs_no_sync(always: CommitRig) -> None:
    events = always.turn("reserve", (always.a, "RESERVED"), must_sync=False)
    assert events == ["append reserve", "a gets RESERVED"]
    assert always.turn("", (always.a, "FOUND")) == ["a gets FOUND"]
    assert always.turn("delete", (always.a, "DELETED")) == ["append delete"]
    assert always.thread_syncs() == ["synced 2", "a gets DELETED"]


def test_a_record_without_a_reply_is_synced_too(always: CommitRig) -> None:
    assert always.turn("return") == ["append return"]
    assert always.thread_syncs() == ["synced 1"]


def test_what_arrives_during_a_sync_shares_the_next_one(always: CommitRig) -> None:
    always.turn("one", (always.a, "1"))
    assert always.script.sync_begun.acquire(timeout=HANG_S_MAX)
    always.script.sync_begun.release()
    assert always.turn("two", (always.b, "2")) == ["append two"]
    assert always.turn("three", (always.b, "3"), (always.a, "4")) == ["append three"]
    assert always.thread_syncs() == ["synced 1", "a gets 1"]
    assert always.thread_syncs() == ["synced 3", "b gets 2", "b gets 3", "a gets 4"]
    assert always.script.thread_syncs == 2


def test_the_replies_of_a_client_keep_their_order_over_turns(always: CommitRig) -> None:
    seen = []
    always.turn("first", (always.a, "0"))
    for number in range(1, 30):
        record = "r" if number % 3 else ""
        seen += always.turn(record, (always.a, str(number)), must_sync=number % 3 == 1)
        if number % 5 == 0:
            seen += always.thread_syncs()
    while always.commit.is_syncing:
        seen += always.thread_syncs()
    expected = [f"a gets {number}" for number in range(30)]
    assert [event for event in seen if "gets" in event] == expected


def test_what_depends_on_nothing_new_waits_for_the_sync_going_on_and_for_no_other(
    always: CommitRig,
) -> None:
    always.turn("one", (always.a, "1"))
    assert always.turn("", (always.b, "FOUND")) == []
    assert always.turn("reserve", (always.b, "RESERVED"), must_sync=False) == ["append reserve"]
    events = always.thread_syncs()
    assert events[1:] == ["a gets 1", "b gets FOUND", "b gets RESERVED"]
    assert not always.commit.is_syncing
    assert always.turn("", (always.b, "FOUND")) == ["b gets FOUND"]


def test_too_much_that_waits_is_told_until_a_sync_takes_it(always: CommitRig) -> None:
    always.turn("one")
    record = "x" * (UNSYNCED_BYTES_MAX // 4)
    for _ in range(2):
        always.turn(record, (always.a, record))
        assert not is_backed_up(always)
    always.turn("x")
    assert is_backed_up(always)
    always.thread_syncs()
    assert not is_backed_up(always)
    always.thread_syncs()
    always.turn(record + record, must_sync=False)
    assert not is_backed_up(always)


def test_what_waits_without_a_sync_of_its_own_is_no_longer_counted_either(
    always: CommitRig,
) -> None:
    always.turn("one")
    always.turn("", (always.a, "x" * (UNSYNCED_BYTES_MAX + 1)))
    assert is_backed_up(always)
    always.thread_syncs()
    assert not is_backed_up(always)


def is_backed_up(rig: CommitRig) -> bool:
    return rig.commit.is_backed_up


# --- Failures ------------------------------------------------------------------------------------

BROKEN = JournalFailed("segment", "cannot be synced: I/O error")


@pytest.mark.parametrize("policy", list(SyncPolicy))
@pytest.mark.parametrize("error", [BROKEN, JournalFull("directory", "no space")])
def test_after_a_failed_append_nothing_leaves_any_more(
    make: Make, policy: SyncPolicy, error: JournalError
) -> None:
    rig = make(policy)
    rig.script.append_error = error
    assert rig.turn("put", (rig.a, "INSERTED"), free=[(rig.b, "OK")]) == []
    rig.script.append_error = None
    assert rig.turn("put", (rig.a, "INSERTED")) == []
    assert rig.turn("", (rig.a, "FOUND"), free=[(rig.b, "OK")]) == []
    rig.loop.ring()
    rig.commit.close()
    assert rig.look() == []
    assert rig.failures == [error]


def test_after_a_failed_sync_in_the_thread_nothing_leaves_and_nothing_is_tried_again(
    always: CommitRig,
) -> None:
    always.turn("put", (always.a, "INSERTED"))
    always.turn("put", (always.b, "INSERTED"))
    always.script.sync_error = BROKEN
    assert always.thread_syncs() == ["sync fails"]
    always.script.sync_error = None
    assert always.turn("put", (always.a, "INSERTED")) == []
    assert always.turn("", (always.a, "FOUND")) == []
    always.commit.close()
    assert always.look() == []
    assert always.failures == [BROKEN]


def test_an_append_that_fails_during_a_sync_stops_the_replies_of_that_sync_too(
    always: CommitRig,
) -> None:
    always.turn("put", (always.a, "1"))
    always.turn("put", (always.a, "2"))
    always.script.append_error = BROKEN
    assert always.turn("put", (always.a, "3")) == []
    events = always.thread_syncs()
    assert [event for event in events if "gets" in event] == []
    always.commit.close()
    assert always.look() == []
    assert always.failures == [BROKEN]
    assert always.script.thread_syncs == 1


def test_an_append_that_fails_within_the_interval_leaves_nothing_to_be_synced(make: Make) -> None:
    rig = make(SyncPolicy.INTERVAL)
    rig.turn("put", (rig.a, "1"))
    rig.script.append_error = BROKEN
    rig.turn("put", (rig.a, "2"))
    rig.loop.ring()
    rig.script.gate.release(10)
    rig.commit.close()
    assert rig.look() == []
    assert rig.script.thread_syncs == 0


def test_a_failed_interval_sync_stops_everything(make: Make) -> None:
    rig = make(SyncPolicy.INTERVAL)
    rig.turn("put", (rig.a, "1"))
    rig.script.sync_error = BROKEN
    rig.loop.ring()
    assert rig.thread_syncs() == ["sync fails"]
    assert rig.turn("put", (rig.a, "2")) == []
    rig.loop.ring()
    assert rig.failures == [BROKEN]
    assert rig.script.thread_syncs == 1


# --- A disk that is nearly full ------------------------------------------------------------------


def put_of(job: bytes) -> list[bytes]:
    """A put as the engine records it."""
    return [pack_put(Kind.PUT, len(job)) + job]


@pytest.mark.parametrize("frame_bytes_max", range(50, 300, 7))
@pytest.mark.parametrize("turns_before", range(3))
def test_a_turn_that_fits_no_file_whole_is_divided_between_records_only(
    always: CommitRig, frame_bytes_max: int, turns_before: int
) -> None:
    log = [b"turn"] * turns_before
    for number in range(7):
        log += [*put_of(b"%d" % number * 45), b"delete"]
    always.script.frame_bytes_max = frame_bytes_max
    always.commit.commit(log, [(always.a, b"x")], must_sync=True, time_ms=1, wall_ms=2)
    frames = always.script.appended
    assert b"".join(frames) == b"".join(log)
    assert max(map(len, frames)) <= frame_bytes_max
    for frame in frames:
        assert frame.count(pack_put(Kind.PUT, 45)) * 45 == sum(
            frame.count(b"%d" % n) for n in range(7)
        )
    always.look()
    assert always.thread_syncs()[1:] == ["a gets x"]


@pytest.mark.parametrize("log", [[b"delete"], put_of(b"x" * 45), [b"turn", *put_of(b"x" * 45)]])
def test_a_record_that_finds_no_space_is_a_failure(always: CommitRig, log: list[bytes]) -> None:
    always.script.frame_bytes_max = 5
    always.commit.commit(log, [(always.a, b"x")], must_sync=True, time_ms=1, wall_ms=2)
    assert len(always.failures) == 1
    assert put_of(b"x" * 45)[0] not in always.script.appended


# --- Interval and never --------------------------------------------------------------------------


def test_with_an_interval_replies_leave_at_once_and_one_sync_follows(make: Make) -> None:
    rig = make(SyncPolicy.INTERVAL)
    assert rig.turn("one", (rig.a, "1")) == ["append one", "a gets 1"]
    assert rig.turn("two", (rig.a, "2")) == ["append two", "a gets 2"]
    assert [delay for delay, _ in rig.loop.timers] == [INTERVAL_MS / 1_000]
    rig.loop.ring()
    assert rig.thread_syncs() == ["synced 2"]
    assert not rig.loop.timers


def test_records_made_while_the_interval_sync_runs_get_the_next_one(make: Make) -> None:
    rig = make(SyncPolicy.INTERVAL)
    rig.turn("one")
    rig.loop.ring()
    assert rig.script.sync_begun.acquire(timeout=HANG_S_MAX)
    rig.script.sync_begun.release()
    assert rig.turn("two", (rig.a, "2")) == ["append two", "a gets 2"]
    rig.loop.ring()
    assert rig.thread_syncs() == ["synced 1"]
    assert rig.thread_syncs() == ["synced 2"]
    assert rig.script.thread_syncs == 2


def test_without_records_no_interval_begins(make: Make) -> None:
    rig = make(SyncPolicy.INTERVAL)
    assert rig.turn("", (rig.a, "FOUND")) == ["a gets FOUND"]
    assert not rig.loop.timers


def test_reserves_are_synced_within_the_interval_too(make: Make) -> None:
    rig = make(SyncPolicy.INTERVAL)
    rig.turn("reserve", (rig.a, "RESERVED"), must_sync=False)
    assert len(rig.loop.timers) == 1


def test_with_never_nothing_is_synced_before_the_end(make: Make) -> None:
    rig = make(SyncPolicy.NEVER)
    assert rig.turn("one", (rig.a, "1")) == ["append one", "a gets 1"]
    assert not rig.loop.timers
    rig.commit.close()
    assert rig.look() == ["synced 1"]


# --- The end -------------------------------------------------------------------------------------


def test_closing_syncs_and_releases_what_waited(always: CommitRig) -> None:
    always.turn("one", (always.a, "1"))
    always.turn("two", (always.b, "2"))
    always.script.gate.release(10)
    always.commit.close()
    assert [event for event in always.look() if "gets" in event] == ["a gets 1", "b gets 2"]
    assert always.script.synced == 2


def test_what_the_thread_calls_back_after_the_close_does_nothing(always: CommitRig) -> None:
    always.turn("one", (always.a, "1"))
    always.turn("two", (always.a, "2"))
    always.script.gate.release(10)
    always.commit.close()
    always.look()
    always.loop.crank()
    assert always.look() == []


def test_a_timer_that_rings_after_the_close_does_nothing(make: Make) -> None:
    rig = make(SyncPolicy.INTERVAL)
    rig.turn("one")
    rig.commit.close()
    rig.look()
    rig.loop.ring()
    assert rig.look() == []
    assert rig.script.thread_syncs == 0


def test_a_sync_that_fails_at_the_close_keeps_the_replies(always: CommitRig) -> None:
    always.turn("one", (always.a, "1"))
    always.script.sync_error = BROKEN
    always.script.gate.release(10)
    always.commit.close()
    assert [event for event in always.look() if "gets" in event] == []
    assert always.failures == [BROKEN]


def test_a_loop_that_was_closed_before_the_sync_ended_is_no_error(
    always: CommitRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(callback: Callable[[], object]) -> object:
        raise RuntimeError("Event loop is closed")

    monkeypatch.setattr(always.loop, "call_soon_threadsafe", closed)
    always.turn("one", (always.a, "1"))
    always.script.gate.release(10)
    always.commit.close()
    assert always.look()[-1] == "a gets 1"
