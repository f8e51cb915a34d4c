"""Group commit with a kernel that syncs: which replies leave when, and what an error leads to.

    scene = KernelScene(SyncPolicy.ALWAYS)
    assert scene.turn("put", (scene.a, "INSERTED")) == ["append put", "begin"]
    assert scene.kernel_syncs() == ["durable 1", "a gets INSERTED"]

The journal is a real one on a simulated disk; the kernel does what it is told when it is told. The
thread that syncs where the kernel does not is the real one, and the test waits for its callback.
"""

import errno
import random
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, cast

import pytest

from delayd.commit import GroupCommit
from delayd.config import SyncPolicy
from delayd.journal.journal import Journal
from delayd.limits import UNSYNCED_BYTES_MAX
from delayd.testing.disk import SimulatedDisk
from tests.commit_scene import HANG_S_MAX, INTERVAL_MS, CrankedLoop, Sink
from tests.journal.journals import CONFIGURED_BYTES, DIRECTORY, payloads_in

if TYPE_CHECKING:
    from delayd.journal.aio import KernelSync
    from delayd.journal.errors import JournalError

EIO: Final = OSError(errno.EIO, "EIO")
DESCRIPTOR: Final = 77
HALF_A_FILE: Final = "x" * 2_500
"""Two of them do not fit one file of the log."""


class ScriptedKernel:
    """Stands for `KernelSync`: syncs a file of the simulated disk when `carry_out` says so."""

    def __init__(self, disk: SimulatedDisk, events: list[str]) -> None:
        self._disk = disk
        self._events = events
        self._handle: int | None = None
        self._has_ended = False
        self.error: OSError | None = None
        self.refusal: OSError | None = None
        """What `begin` raises."""
        self.is_closed = False

    def fileno(self) -> int:
        return DESCRIPTOR

    def begin(self, handle: int) -> None:
        assert self._handle is None, "one sync at a time"
        assert not self.is_closed
        if self.refusal is not None:
            self._events.append("refused")
            raise self.refusal
        self._handle = handle
        self._has_ended = False
        self._events.append("begin")

    def carry_out(self) -> None:
        assert self._handle is not None, "no sync is going on"
        try:
            self._disk.sync(self._handle)
            self.error = None
        except OSError as error:
            self.error = error
        self._has_ended = True

    def finish(self, *, wait: bool = False) -> bool:
        if self._handle is None:
            return False
        if wait and not self._has_ended:
            self.carry_out()
        if self._has_ended:
            self._handle = None
        return self._has_ended

    def close(self) -> None:
        assert self._handle is None, "the sync going on was forgotten"
        self.is_closed = True


class GatedDisk(SimulatedDisk):
    """Lets other threads sync only while `may_go_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self._main = threading.current_thread()

    def sync(self, handle: int, /) -> None:
        if threading.current_thread() is not self._main:
            assert self.may_go_on.wait(HANG_S_MAX)
        super().sync(handle)


class KernelScene:
    """A group commit, its kernel and its journal, and a list of what happened."""

    def __init__(self, policy: SyncPolicy) -> None:
        self.events: list[str] = []
        self.failures: list[JournalError] = []
        self.disk = GatedDisk()
        self.journal = Journal.open(DIRECTORY, disk=self.disk, segment_bytes=CONFIGURED_BYTES)
        assert not list(self.journal.replay())
        self.journal.append(b"made", 0, 0)
        self.journal.sync()
        self.kernel = ScriptedKernel(self.disk, self.events)
        self.loop = CrankedLoop()
        self.a, self.b = Sink("a", self.events), Sink("b", self.events)
        self.commit = GroupCommit(
            self.journal,
            policy,
            INTERVAL_MS,
            self.loop,
            self.failures.append,
            cast("KernelSync", self.kernel),
        )

    def turn(
        self,
        record: str,
        *replies: tuple[Sink, str],
        must_sync: bool | None = None,
        last_id: int = 0,
    ) -> list[str]:
        """Commit a turn; what has happened since the last look."""
        if record:
            self.events.append(f"append {record}")
        self.commit.commit(
            [record.encode()] if record else [],
            [(sink, text.encode()) for sink, text in replies],
            must_sync=bool(record) if must_sync is None else must_sync,
            time_ms=1,
            wall_ms=2,
            last_id=last_id,
        )
        return self.look()

    def look(self) -> list[str]:
        events, self.events[:] = list(self.events), []
        return events

    def reaps(self) -> list[str]:
        """What happens when the loop asks whether the sync has ended."""
        before = self.journal.synced_sequence
        self.commit.reap()
        if self.journal.synced_sequence != before:
            self.events.insert(0, f"durable {self.journal.synced_sequence - 1}")
        return self.look()

    def kernel_syncs(self) -> list[str]:
        self.kernel.carry_out()
        return self.reaps()

    def thread_syncs(self) -> list[str]:
        """Let the thread sync, once, and its callback run."""
        self.disk.may_go_on.set()
        callback = self.loop._soon.get(timeout=HANG_S_MAX)
        self.disk.may_go_on.clear()
        callback()
        return [f"durable {self.journal.synced_sequence - 1}", *self.look()]

    def begins(self) -> None:
        """See that the kernel is at it, whatever the policy."""
        self.loop.ring()
        if not self.commit.is_syncing:
            self.commit._start_sync()
        self.look()

    def fail_next(self, verb: str, later: int = 1) -> None:
        self.disk.fail(self.disk.verb_counts[verb] + later, EIO, verb)


Make = Callable[[SyncPolicy], KernelScene]


@pytest.fixture
def make() -> Iterator[Make]:
    scenes: list[KernelScene] = []

    def make_scene(policy: SyncPolicy) -> KernelScene:
        scenes.append(KernelScene(policy))
        return scenes[-1]

    yield make_scene
    for scene in scenes:
        scene.disk.may_go_on.set()
        if not scene.commit._is_closed:
            scene.commit.close()
        assert not scene.commit._worker.is_alive()
        assert scene.kernel.is_closed


@pytest.fixture
def always(make: Make) -> KernelScene:
    return make(SyncPolicy.ALWAYS)


# --- Which replies leave when --------------------------------------------------------------------


def test_a_reply_leaves_when_the_end_of_its_sync_was_seen(always: KernelScene) -> None:
    assert always.turn("put", (always.a, "INSERTED")) == ["append put", "begin"]
    assert always.reaps() == []
    always.kernel.carry_out()
    assert always.look() == []
    assert always.reaps() == ["durable 1", "a gets INSERTED"]
    assert always.reaps() == []
    assert not always.commit.is_syncing


def test_the_descriptor_to_be_watched_is_the_kernels(always: KernelScene) -> None:
    assert always.commit.fileno() == DESCRIPTOR


def test_looking_without_a_sync_going_on_changes_nothing(always: KernelScene) -> None:
    assert always.reaps() == []
    assert always.turn("", (always.a, "FOUND")) == ["a gets FOUND"]


def test_what_arrives_during_a_sync_shares_the_next_one(always: KernelScene) -> None:
    always.turn("one", (always.a, "1"))
    assert always.turn("two", (always.b, "2")) == ["append two"]
    assert always.turn("three", (always.b, "3"), (always.a, "4")) == ["append three"]
    assert always.kernel_syncs() == ["durable 1", "begin", "a gets 1"]
    assert always.kernel_syncs() == ["durable 3", "b gets 2", "b gets 3", "a gets 4"]
    assert always.commit.syncs == 2


def test_what_arrives_between_the_end_of_a_sync_and_its_reaping_waits_for_the_next(
    always: KernelScene,
) -> None:
    always.turn("one", (always.a, "1"))
    always.kernel.carry_out()
    assert always.turn("two", (always.b, "2")) == ["append two"]
    assert always.reaps() == ["durable 1", "begin", "a gets 1"]
    assert always.kernel_syncs() == ["durable 2", "b gets 2"]


def test_what_depends_on_nothing_new_leaves_with_the_sync_going_on(always: KernelScene) -> None:
    always.turn("one", (always.a, "1"))
    assert always.turn("", (always.b, "FOUND")) == []
    assert always.turn("reserve", (always.b, "RESERVED"), must_sync=False) == ["append reserve"]
    events = ["durable 1", "a gets 1", "b gets FOUND", "b gets RESERVED"]
    assert always.kernel_syncs() == events
    assert not always.commit.is_syncing


def test_the_thread_syncs_what_fills_several_files_and_the_kernel_goes_on_after_it(
    always: KernelScene,
) -> None:
    always.turn(HALF_A_FILE, (always.a, "1"))
    always.kernel_syncs()
    assert always.turn(HALF_A_FILE, (always.a, "2")) == [f"append {HALF_A_FILE}"]
    assert always.thread_syncs() == ["durable 2", "a gets 2"]
    assert always.turn("put", (always.a, "3")) == ["append put", "begin"]
    assert always.kernel_syncs() == ["durable 3", "a gets 3"]


def test_a_full_file_during_a_sync_leaves_the_next_sync_to_the_thread(
    always: KernelScene,
) -> None:
    always.turn("put", (always.a, "1"))
    always.turn(HALF_A_FILE, (always.b, "2"))
    always.turn(HALF_A_FILE, (always.b, "3"))
    assert always.kernel_syncs() == ["durable 1", "a gets 1"]
    assert always.thread_syncs() == ["durable 3", "b gets 2", "b gets 3"]


def test_too_much_that_waits_is_told_until_the_kernel_has_synced(always: KernelScene) -> None:
    always.turn("one")
    always.turn("", (always.a, "x" * (UNSYNCED_BYTES_MAX + 1)))
    assert always.commit.is_backed_up
    always.kernel_syncs()
    assert not always.commit.is_backed_up


def test_nothing_promised_is_lost_whenever_the_power_goes(rng: random.Random) -> None:
    """Random turns and syncs: each reply that left names a record that survives."""
    for _ in range(40):
        scene = KernelScene(SyncPolicy.ALWAYS)
        for number in range(rng.randrange(1, 40)):
            scene.events.extend(scene.turn(f"{number}", (scene.a, f"{number}")))
            if scene.commit._ticket is not None and rng.random() < 0.3:
                scene.kernel.carry_out()
            if rng.random() < 0.5:
                scene.commit.reap()
        replied = [event.split()[-1] for event in scene.events if "gets" in event]
        assert replied == [str(number) for number in range(len(replied))]
        scene.disk.crash()
        survivors = [payload.decode() for payload in payloads_in(scene.disk)]
        assert survivors[1 : len(replied) + 1] == replied
        scene.commit._jobs.put(False)
        scene.commit._worker.join()


# --- Errors --------------------------------------------------------------------------------------


def test_a_kernel_that_refuses_leaves_the_sync_to_the_thread(always: KernelScene) -> None:
    always.kernel.refusal = OSError(errno.EAGAIN, "EAGAIN")
    assert always.turn("put", (always.a, "1"))[:2] == ["append put", "refused"]
    assert always.thread_syncs() == ["durable 1", "a gets 1"]
    always.kernel.refusal = None
    assert always.turn("put", (always.a, "2")) == ["append put", "begin"]
    assert always.kernel_syncs() == ["durable 2", "a gets 2"]


def test_no_reply_leaves_between_an_error_and_the_sync_of_the_fresh_file(
    always: KernelScene,
) -> None:
    always.turn("one", (always.a, "1"))
    always.turn("two", (always.b, "2"))
    always.fail_next("sync")
    assert always.kernel_syncs() == []
    assert always.commit.is_syncing
    assert always.journal.fresh_starts == 1
    assert always.reaps() == []
    assert always.thread_syncs() == ["durable 2", "begin", "a gets 1"]
    assert always.kernel_syncs() == ["b gets 2"]
    assert always.failures == []
    always.disk.crash()
    assert payloads_in(always.disk) == [b"made", b"one", b"two"]


def test_a_write_that_fails_during_the_sync_leaves_its_replies_to_the_thread(
    always: KernelScene,
) -> None:
    always.turn("one", (always.a, "1"))
    always.fail_next("pwrite")
    always.turn("two", (always.b, "2"))
    assert always.kernel_syncs() == []
    assert always.thread_syncs() == ["durable 2", "begin", "a gets 1"]
    assert always.kernel_syncs() == ["b gets 2"]
    always.disk.crash()
    assert payloads_in(always.disk) == [b"made", b"one", b"two"]


@pytest.mark.parametrize("policy", list(SyncPolicy))
def test_a_second_failure_is_told_once_and_nothing_leaves_after_it(
    make: Make, policy: SyncPolicy
) -> None:
    scene = make(policy)
    scene.turn("one", (scene.a, "1"))
    scene.begins()
    scene.fail_next("sync")
    scene.fail_next("create")
    assert scene.kernel_syncs() == []
    assert len(scene.failures) == 1
    assert scene.turn("two", (scene.b, "2")) == ["append two"]
    assert scene.turn("", (scene.b, "3")) == []
    scene.commit.close()
    assert scene.look() == []
    assert len(scene.failures) == 1


def test_an_append_that_fails_for_good_stops_the_replies_of_the_sync_going_on(
    always: KernelScene,
) -> None:
    always.turn("one", (always.a, "1"))
    always.fail_next("pwrite")
    always.fail_next("create")
    always.turn("two", (always.b, "2"))
    assert len(always.failures) == 1
    assert [event for event in always.kernel_syncs() if "gets" in event] == []
    always.commit.close()
    assert always.look() == []


def test_a_journal_found_broken_at_the_beginning_of_a_sync_is_told_of_by_the_thread(
    always: KernelScene,
) -> None:
    always.turn("one", (always.a, "1"))
    always.turn("two", (always.a, "2"))
    always.fail_next("sync")
    assert always.kernel_syncs() == []
    for later in (1, 2):
        always.fail_next("sync", later)
    always.disk.may_go_on.set()
    always.loop.crank()
    assert always.look() == []
    assert len(always.failures) == 1


# --- The end -------------------------------------------------------------------------------------


def test_closing_waits_for_the_sync_going_on_and_releases_everything(always: KernelScene) -> None:
    always.turn("one", (always.a, "1"))
    always.turn("two", (always.b, "2"))
    always.commit.close()
    assert always.look() == ["a gets 1", "b gets 2"]
    assert always.kernel.is_closed
    always.disk.crash()
    assert payloads_in(always.disk) == [b"made", b"one", b"two"]


def test_closing_survives_an_error_of_the_sync_going_on(always: KernelScene) -> None:
    always.turn("one", (always.a, "1"))
    always.turn("two", (always.b, "2"))
    always.fail_next("sync")
    always.commit.close()
    assert always.look() == ["a gets 1", "b gets 2"]
    assert always.failures == []
    always.disk.crash()
    assert payloads_in(always.disk) == [b"made", b"one", b"two"]


def test_closing_after_a_second_error_releases_nothing(always: KernelScene) -> None:
    always.turn("one", (always.a, "1"))
    always.fail_next("sync")
    always.fail_next("create")
    always.commit.close()
    assert always.look() == []
    assert len(always.failures) == 1


def test_closing_with_nothing_going_on_closes_the_kernel(always: KernelScene) -> None:
    always.commit.close()
    assert always.kernel.is_closed


# --- Up to which id jobs are durable -------------------------------------------------------------


def test_jobs_are_durable_when_the_sync_that_covers_them_has_ended(always: KernelScene) -> None:
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


def test_jobs_of_a_failed_sync_are_durable_after_the_sync_of_the_fresh_file(
    always: KernelScene,
) -> None:
    always.turn("one", last_id=3)
    always.fail_next("sync")
    always.kernel_syncs()
    assert always.commit.durable_id == 0
    always.thread_syncs()
    assert always.commit.durable_id == 3


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_where_no_reply_waits_no_job_has_to_either(make: Make, policy: SyncPolicy) -> None:
    scene = make(policy)
    assert scene.turn("one", (scene.a, "1"), last_id=3) == ["append one", "a gets 1"]
    assert scene.commit.durable_id == 3
    scene.begins()
    scene.turn("two", last_id=5)
    scene.commit.note_late([4])
    assert scene.commit.durable_id == 5
    assert not scene.commit.out_of_order_ids


@pytest.mark.parametrize("policy", [SyncPolicy.INTERVAL, SyncPolicy.NEVER])
def test_the_end_of_a_sync_makes_no_job_less_durable_than_it_had_to_be(
    make: Make, policy: SyncPolicy
) -> None:
    scene = make(policy)
    scene.turn("one", last_id=3)
    scene.begins()
    scene.turn("two", last_id=5)
    scene.kernel_syncs()
    assert scene.commit.durable_id == 5


def test_an_interval_hands_its_sync_to_the_kernel(make: Make) -> None:
    scene = make(SyncPolicy.INTERVAL)
    scene.turn("one", (scene.a, "1"))
    scene.turn("two", (scene.a, "2"))
    scene.loop.ring()
    assert scene.look() == ["begin"]
    assert scene.kernel_syncs() == ["durable 2"]


def test_a_job_whose_put_ended_late_is_durable_when_the_sync_that_covers_it_has_ended(
    always: KernelScene,
) -> None:
    always.turn("put 2", last_id=2)
    always.commit.note_late([1])
    always.turn("put 1", last_id=2)
    always.kernel_syncs()
    assert always.commit.durable_id == 2
    assert list(always.commit.out_of_order_ids) == [1], "it was appended after this sync had begun"
    always.kernel_syncs()
    assert not always.commit.out_of_order_ids
