"""A daemon at rest with nearly nothing alive shrinks its log to next to nothing, and safely."""

import errno
import random
from collections.abc import Callable
from typing import Final

import pytest

from delayd.journal.journal import Journal
from delayd.limits import (
    EMERGENCY_BYTES,
    JOURNAL_SHRUNK_BYTES,
    SHRUNK_BYTES_FULL,
    SNAPSHOT_CALM_MS,
    SPARE_BYTES_MIN,
)
from tests.rigs.commit import DIRECTORY, HOUR_MS, YEAR_MS, CommitRig, snapshot_rig
from tests.rigs.disk import PowerCut


def after_many_jobs(alive: int) -> CommitRig:
    """A daemon with so many jobs after 60 that are gone, their records in 1 MiB of log."""
    rig = snapshot_rig(segment_bytes=16 << 20)
    rig.put(alive, delay_ms=YEAR_MS)
    for _ in range(12):
        rig.delete(rig.put(5, body=b"x" * 12_500))
        rig.pass_turn(ms=1)
    return rig


def test_when_nearly_nothing_is_left_a_daemon_at_rest_shrinks_its_log_to_next_to_nothing() -> None:
    rig = after_many_jobs(alive=3)
    assert rig.journal.retention.log_bytes_since_snapshot > 600_000
    rig.rest(SNAPSHOT_CALM_MS // 2)
    assert rig.snapshots.taken == 0, "not before it is at rest"
    rig.rest()
    assert rig.snapshots.taken == 2
    assert rig.step() is None, "and it sleeps then"
    assert rig.journal.retention.log_bytes_since_snapshot < 1_000
    assert rig.journal.retention.disk_bytes < JOURNAL_SHRUNK_BYTES + 2_000
    names = [name for name in rig.names if name.startswith(("segment-", "spare-"))]
    assert names == ["segment-0000000002.log"]
    assert rig.restarted().state() == rig.state()


def test_what_the_next_turn_may_write_fits_the_shorter_log() -> None:
    rig = after_many_jobs(alive=3)
    space = rig.engine.log_space
    space.limit(rig.journal.space_bytes - space.set_aside_bytes(held=0), lambda *_: 0)
    rig.rest()
    assert rig.journal.space_bytes < 2 * JOURNAL_SHRUNK_BYTES
    assert EMERGENCY_BYTES < space.free_bytes <= rig.journal.space_bytes


def test_the_log_of_a_daemon_that_is_not_at_rest_is_not_shrunk() -> None:
    rig = after_many_jobs(alive=3)
    for _ in range(20):
        rig.delete(rig.put(1))
        rig.pass_turn()
        rig.rest(SNAPSHOT_CALM_MS // 2)
    assert rig.snapshots.taken == 0
    assert rig.step() is not None, "it looks again"


def test_a_snapshot_that_ends_between_two_operations_makes_no_rest_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = after_many_jobs(alive=3)
    monkeypatch.setattr(Journal, "snapshot_is_due", lambda *_, **__: rig.snapshots.taken < 1)
    for _ in range(2 * SNAPSHOT_CALM_MS):
        rig.rest(1)
        if rig.snapshots.taken:
            break
    rig.rest(SNAPSHOT_CALM_MS // 2)
    assert rig.snapshots.taken == 1
    assert "segment-0000000002.log" not in rig.names
    rig.rest()
    assert rig.snapshots.taken == 3
    assert "segment-0000000001.log" not in rig.names


def test_a_log_of_which_much_is_alive_is_not_shrunk() -> None:
    rig = after_many_jobs(alive=500)
    rig.rest()
    assert rig.snapshots.taken == 0
    assert rig.step() is None


def test_the_part_of_the_reserve_that_is_not_needed_goes_with_the_log() -> None:
    rig = after_many_jobs(alive=3)
    assert rig.journal.make_space(rig.journal.space_bytes + JOURNAL_SHRUNK_BYTES)
    assert any(name.startswith("spare-") for name in rig.names)
    rig.rest()
    assert not any(name.startswith("spare-") for name in rig.names)


def test_a_file_of_the_log_that_would_be_too_short_for_what_is_needed_is_not_begun() -> None:
    rig = after_many_jobs(alive=3)
    needed_bytes = rig.journal.space_bytes + rig.journal.segment_bytes
    assert not rig.journal.shrink(needed_bytes, rig.clock.now_ms(), rig.clock.wall_ms())
    assert "segment-0000000002.log" not in rig.names


@pytest.mark.parametrize("free_bytes", [JOURNAL_SHRUNK_BYTES // 2, JOURNAL_SHRUNK_BYTES + 500])
def test_on_a_full_disk_the_log_is_not_shrunk_but_a_snapshot_that_is_due_is_taken(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    rig = after_many_jobs(alive=3)
    rig.disk.capacity_bytes = rig.journal.retention.disk_bytes + free_bytes
    rig.rest()
    assert rig.snapshots.taken == 0
    assert rig.step() is None
    monkeypatch.setattr(Journal, "snapshot_is_due", lambda *_, **__: rig.snapshots.taken < 2)
    rig.put()
    rig.pass_turn()
    rig.rest()
    assert rig.snapshots.taken == 2
    assert "segment-0000000002.log" not in rig.names


def on_a_full_disk(free_bytes: int, *, alive: int = 3) -> CommitRig:
    """A daemon that refuses puts after many jobs; so much is free on the disk."""
    rig = after_many_jobs(alive)
    rig.disk.capacity_bytes = rig.journal.retention.disk_bytes + free_bytes
    rig.journal.retention.is_full = True
    rig.snapshots.ask_soon()
    return rig


def leave_free(rig: CommitRig, free_bytes: int) -> None:
    assert rig.disk.capacity_bytes is not None
    rig.disk.capacity_bytes -= rig.disk.free_bytes(DIRECTORY) - free_bytes


@pytest.mark.parametrize("free_bytes", [4 * JOURNAL_SHRUNK_BYTES, SHRUNK_BYTES_FULL + 1_000])
def test_a_full_disk_is_cleared_while_clients_go_on(free_bytes: int) -> None:
    rig = on_a_full_disk(free_bytes)
    for _ in range(1_000):
        rig.delete(rig.put())
        rig.pass_turn(1)
    assert rig.snapshots.taken == 2, "and no third one"
    assert "segment-0000000001.log" not in rig.names
    assert rig.restarted().state() == rig.state()


def test_a_full_disk_is_cleared_into_a_file_of_the_reserve_where_hardly_anything_is_free() -> None:
    rig = on_a_full_disk(1 << 20)
    assert rig.journal.make_space(rig.journal.space_bytes + SPARE_BYTES_MIN)
    leave_free(rig, 5_000)
    rig.rest()
    assert rig.snapshots.taken == 2
    assert "segment-0000000001.log" not in rig.names


def test_where_only_a_snapshot_would_fit_the_older_snapshot_makes_way(rng: random.Random) -> None:
    rig = on_a_full_disk(8 << 20, alive=1)
    rig.put(delay_ms=YEAR_MS, body=rng.randbytes(60_000))
    rig.pass_turn()
    rig.rest()
    for _ in range(10):
        rig.delete(rig.put(body=b"x" * 50_000))
        rig.append()
    leave_free(rig, 70_000)
    rig.rest()
    assert rig.snapshots.taken == 4
    assert rig.journal.retention.log_bytes_since_snapshot < 1_000


def test_on_a_full_disk_a_snapshot_is_due_as_soon_as_it_frees_more_than_it_takes() -> None:
    rig = snapshot_rig(segment_bytes=4 << 20)  # files of 1 MiB, a snapshot for each half of one
    rig.put(delay_ms=YEAR_MS)
    is_due: set[tuple[bool, bool]] = set()
    while rig.snapshots.taken < 4:
        rig.delete(rig.put(body=b"x" * 50_000))
        rig.pass_turn(SNAPSHOT_CALM_MS // 2)
        retention, live_bytes = rig.journal.retention, rig.engine.store.live_bytes
        usual = retention.is_due(live_bytes)
        retention.is_full = True
        is_due.add((usual, retention.is_due(live_bytes)))
        retention.is_full = False
    assert is_due >= {(False, False), (False, True)}


def test_where_no_file_can_be_made_the_log_goes_on_in_the_one_that_there_is() -> None:
    rig = after_many_jobs(3)
    rig.disk.fail(rig.disk.verb_counts["create"] + 1, OSError(errno.EMFILE, "too many"), "create")
    assert rig.log.space.more(1 << 30, 0, 0) == -1
    assert (rig.log.space.is_full, rig.log.space.trouble) == (True, "too many")
    rig.snapshots.ask_soon()
    rig.rest(SNAPSHOT_CALM_MS // 2)
    assert rig.snapshots.taken == 0
    assert "segment-0000000002.log" not in rig.names


def test_a_full_disk_of_which_half_is_alive_is_left_as_it_is() -> None:
    rig = on_a_full_disk(8 << 20, alive=8_000)
    rig.rest()
    assert rig.snapshots.taken == 0


def test_a_start_on_a_disk_nearly_full_leaves_what_a_snapshot_takes() -> None:
    rig = after_many_jobs(alive=3)
    rig.rest()
    # Its last file has 1 MiB; a start makes it a quarter of a segment again.
    file_bytes = rig.segment_bytes // 4
    full_bytes = rig.journal.retention.disk_bytes + file_bytes - JOURNAL_SHRUNK_BYTES
    for spared_bytes, capacity in ((0, JOURNAL_SHRUNK_BYTES), (10_000, file_bytes)):
        rig.disk.capacity_bytes = full_bytes + spared_bytes
        rig.restarted()
        assert len(rig.disk.file_bytes(f"{DIRECTORY}/segment-0000000002.log")) == capacity


def fullest(alive: int) -> CommitRig:
    return on_a_full_disk(SHRUNK_BYTES_FULL + 1_000, alive=alive)


WAYS: Final = (after_many_jobs, fullest)
Way = Callable[[int], CommitRig]


def calls_of_a_shrinking(way: Way) -> int:
    rig = way(3)
    before = rig.disk.call_count
    rig.rest()
    return rig.disk.call_count - before


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whichever_call_fails_while_the_log_is_shrunk_every_job_is_there(
    error: int, way: Way
) -> None:
    for number in range(1, calls_of_a_shrinking(way) + 1):
        rig = way(3)
        rig.disk.fail(rig.disk.call_count + number, OSError(error, "broken"))
        rig.rest(HOUR_MS)
        assert rig.restarted().state() == rig.state(), number


@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_wherever_the_power_goes_while_the_log_is_shrunk_every_job_is_there(
    rng: random.Random, way: Way
) -> None:
    for number in range(1, calls_of_a_shrinking(way) + 1):
        rig = way(3)
        rig.disk.fail(rig.disk.call_count + number, PowerCut())
        with pytest.raises(PowerCut):
            rig.rest(HOUR_MS)
        rig.disk.crash(lambda _: rng.random() < 0.5)
        assert rig.restarted().state() == rig.state(), number
