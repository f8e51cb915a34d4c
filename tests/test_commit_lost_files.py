"""Nothing is acknowledged while something is missing in the directory of the journal."""

from collections.abc import Iterator

import pytest

from delayd.config import SyncPolicy
from delayd.journal import file_log as file_log_module
from delayd.journal.format import segment_name
from delayd.limits import LOOK_MS
from tests.rigs.commit import DIRECTORY, CommitRig, set_watch
from tests.rigs.disk import SimulatedDisk

FIRST = f"{DIRECTORY}/{segment_name(1)}"


@pytest.fixture(autouse=True)
def _quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """No sync takes so long that the next one is made elsewhere."""
    set_watch(monkeypatch, file_log_module)


class LosingRig:
    """A commit with its snapshots, joined as in the service, and a client that puts."""

    def __init__(self, policy: SyncPolicy) -> None:
        self.disk = SimulatedDisk()
        self.rig = CommitRig(policy, disk=self.disk, snapshots=True, syncs_in_turn=True)
        self.missing: list[str] = []
        self.rig.commit.on_lost = self._lost

    def _lost(self, what: str) -> None:
        self.missing.append(what)
        self.rig.snapshots.ask_soon()

    def put(self, name: str, after_ms: int = 0) -> list[str]:
        """Put a job in a turn of its own; return which replies left."""
        rig = self.rig
        rig.clock.advance(after_ms)
        rig.put(body=name.encode())
        log, must_sync = rig.engine.take_log()
        replies = [(rig.a, name.encode())]
        now_ms = rig.clock.now_ms()
        rig.commit.commit(log, replies, must_sync=must_sync, time_ms=now_ms, wall_ms=now_ms)
        return rig.look()

    def heal(self) -> list[str]:
        """Let the snapshot be taken; return which replies left."""
        self.rig.rest(ms=100)
        while self.rig.commit.is_syncing:
            self.rig.loop.crank()
        return self.rig.look()


@pytest.fixture(params=SyncPolicy)
def losing(request: pytest.FixtureRequest) -> Iterator[LosingRig]:
    made = LosingRig(request.param)
    yield made
    made.rig.commit.close()


def test_replies_are_held_from_the_look_until_a_snapshot_has_what_was_lost(
    losing: LosingRig,
) -> None:
    assert losing.put("early") == ["a gets early"]
    losing.disk.unlink(FIRST)
    assert losing.put("unseen", LOOK_MS - 1) == ["a gets unseen"]
    assert losing.put("held", 1) == []
    assert losing.missing == [f"{FIRST} was removed"]
    assert losing.put("too", LOOK_MS) == []
    assert losing.rig.log.find_lost() == f"{FIRST} was removed"
    assert losing.heal() == ["a gets held", "a gets too"]
    assert losing.put("later") == ["a gets later"]
    assert losing.missing == [f"{FIRST} was removed"]
    assert losing.rig.log.find_lost() == ""
    before = losing.rig.state()
    losing.rig.journal.sync()
    assert losing.rig.restarted().state() == before


def test_a_sync_that_ends_after_the_look_releases_nothing() -> None:
    losing = LosingRig(SyncPolicy.ALWAYS)
    rig = losing.rig
    losing.put("early")
    rig.log._elsewhere_until_ns = 1 << 62
    assert losing.put("syncing") == []
    losing.disk.unlink(FIRST)
    assert rig.log.find_lost()
    rig.loop.crank()
    assert rig.look() == []
    assert losing.heal() == ["a gets syncing"]
    rig.commit.close()


def test_a_commit_that_ends_while_something_is_missing_releases_nothing() -> None:
    losing = LosingRig(SyncPolicy.ALWAYS)
    losing.put("early")
    losing.disk.unlink(FIRST)
    assert losing.put("held", LOOK_MS) == []
    losing.rig.commit.close()
    assert losing.rig.look() == []


def test_without_the_directory_the_commit_fails_before_it_acknowledges(losing: LosingRig) -> None:
    losing.put("early")
    losing.disk.move_directory(DIRECTORY, "elsewhere")
    assert losing.put("unsafe", LOOK_MS) == []
    assert [str(error) for error in losing.rig.failures] == [f"{DIRECTORY}: was removed"]


def test_a_commit_looks_once_a_second_at_most(losing: LosingRig) -> None:
    losing.put("first")
    looks = losing.disk.verb_counts["status"]
    for number in range(50):
        losing.put(str(number), (LOOK_MS - 1) // 50)
    assert losing.disk.verb_counts["status"] == looks
    losing.put("last", LOOK_MS)
    assert losing.disk.verb_counts["status"] <= looks + 4, "the directory, its handle, two files"
