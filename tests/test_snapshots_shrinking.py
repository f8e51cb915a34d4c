"""A daemon at rest with nearly nothing alive shrinks its log to next to nothing, and safely."""

import errno
import random

import pytest

from delayd.journal.journal import Journal
from delayd.limits import EMERGENCY_BYTES, JOURNAL_SHRUNK_BYTES, SNAPSHOT_CALM_MS
from delayd.testing.disk import PowerCut
from tests.snapshot_scene import HOUR_MS, YEAR_MS, Scene


def after_many_jobs(alive: int) -> Scene:
    """A daemon with so many jobs after 3,000 that are gone, their records in 1 MiB of log."""
    scene = Scene(segment=16 << 20)
    scene.put(alive, delay_ms=YEAR_MS)
    for _ in range(60):
        scene.delete(scene.put(50))
        scene.turn(ms=1)
    return scene


def test_when_nearly_nothing_is_left_a_daemon_at_rest_shrinks_its_log_to_next_to_nothing() -> None:
    scene = after_many_jobs(alive=3)
    assert scene.journal.log_bytes_since_snapshot > 600_000
    scene.rest(SNAPSHOT_CALM_MS // 2)
    assert scene.snapshots.taken == 0, "not before it is at rest"
    scene.rest()
    assert scene.snapshots.taken == 2
    assert scene.chore() is None, "and it sleeps then"
    assert scene.journal.log_bytes_since_snapshot < 1_000
    assert scene.journal.disk_bytes < JOURNAL_SHRUNK_BYTES + 2_000
    names = [name for name in scene.names if name.startswith(("segment-", "spare-"))]
    assert names == ["segment-0000000002.log"]
    assert scene.restarted().state() == scene.state()


def test_what_the_next_turn_may_write_fits_the_shorter_log() -> None:
    scene = after_many_jobs(alive=3)
    room = scene.engine.log_space
    room.limit(scene.journal.room_bytes - room.set_aside_bytes(held=0), lambda *_: 0)
    scene.rest()
    assert scene.journal.room_bytes < 2 * JOURNAL_SHRUNK_BYTES
    assert EMERGENCY_BYTES < room.free_bytes <= scene.journal.room_bytes


def test_the_log_of_a_daemon_that_is_not_at_rest_is_not_shrunk() -> None:
    scene = after_many_jobs(alive=3)
    for _ in range(20):
        scene.delete(scene.put(1))
        scene.turn()
        scene.rest(SNAPSHOT_CALM_MS // 2)
    assert scene.snapshots.taken == 0
    assert scene.chore() is not None, "it looks again"


def test_a_snapshot_that_ends_between_two_operations_makes_no_rest_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = after_many_jobs(alive=3)
    monkeypatch.setattr(Journal, "snapshot_is_due", lambda *_: scene.snapshots.taken < 1)
    for _ in range(2 * SNAPSHOT_CALM_MS):
        scene.rest(1)
        if scene.snapshots.taken:
            break
    scene.rest(SNAPSHOT_CALM_MS // 2)
    assert scene.snapshots.taken == 1
    assert "segment-0000000002.log" not in scene.names
    scene.rest()
    assert scene.snapshots.taken == 3
    assert "segment-0000000001.log" not in scene.names


def test_a_log_of_which_much_is_alive_is_not_shrunk() -> None:
    scene = after_many_jobs(alive=500)
    scene.rest()
    assert scene.snapshots.taken == 0
    assert scene.chore() is None


def test_the_part_of_the_reserve_that_is_not_needed_goes_with_the_log() -> None:
    scene = after_many_jobs(alive=3)
    assert scene.journal.make_room(scene.journal.room_bytes + JOURNAL_SHRUNK_BYTES)
    assert any(name.startswith("spare-") for name in scene.names)
    scene.rest()
    assert not any(name.startswith("spare-") for name in scene.names)


@pytest.mark.parametrize("free_bytes", [JOURNAL_SHRUNK_BYTES // 2, JOURNAL_SHRUNK_BYTES + 500])
def test_on_a_full_disk_the_log_is_not_shrunk_but_a_snapshot_that_is_due_is_taken(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    scene = after_many_jobs(alive=3)
    scene.disk.capacity_bytes = scene.journal.disk_bytes + free_bytes
    scene.rest()
    assert scene.snapshots.taken == 0
    assert scene.chore() is None
    monkeypatch.setattr(Journal, "snapshot_is_due", lambda *_: scene.snapshots.taken < 2)
    scene.put()
    scene.turn()
    scene.rest()
    assert scene.snapshots.taken == 2
    assert "segment-0000000002.log" not in scene.names


def calls_of_a_shrinking() -> int:
    scene = after_many_jobs(alive=3)
    before = scene.disk.call_count
    scene.rest()
    return scene.disk.call_count - before


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_whichever_call_fails_while_the_log_is_shrunk_every_job_is_there(error: int) -> None:
    for number in range(1, calls_of_a_shrinking() + 1):
        scene = after_many_jobs(alive=3)
        scene.disk.fail(scene.disk.call_count + number, OSError(error, "broken"))
        scene.rest(HOUR_MS)
        assert scene.restarted().state() == scene.state(), number


def test_wherever_the_power_goes_while_the_log_is_shrunk_every_job_is_there(
    rng: random.Random,
) -> None:
    for number in range(1, calls_of_a_shrinking() + 1):
        scene = after_many_jobs(alive=3)
        scene.disk.fail(scene.disk.call_count + number, PowerCut())
        with pytest.raises(PowerCut):
            scene.rest(HOUR_MS)
        scene.disk.crash(lambda _: rng.random() < 0.5)
        assert scene.restarted().state() == scene.state(), number
