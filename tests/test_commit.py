"""Group commit: the facts of commits.txt, and what no row can say.

The journal of the kernel's facts is a real one on a simulated disk, and the thread is the real one;
it waits in each sync until the test lets it go on. The log of `log` is one in memory.
"""

# ruff: noqa: ANN401 - steps return what they like

import contextlib
import errno
import random
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

from delayd import commit as commit_module
from delayd.clock import NS_PER_MS
from delayd.commit import GroupCommit
from delayd.config import SyncPolicy
from delayd.core.log_records import Kind, pack_put
from delayd.core.stats.histogram import Histogram
from delayd.journal import file_log as file_log_module
from delayd.journal.errors import JournalFailed, JournalFull
from delayd.journal.format import segment_name
from delayd.limits import (
    BATCH_BOUNDS_RECORDS,
    LOOK_MS,
    QUICK_SYNC_NS,
    QUICK_SYNCS_AVERAGED,
    SLOW_SYNC_MS,
    SLOW_SYNC_PAUSE_TIMES,
    SYNC_BOUNDS_NS,
    SYNC_IN_TURN_BYTES_MAX,
    UNSYNCED_BYTES_MAX,
    WATCHED_SYNC_NS,
)  # fmt: skip
from tests.fact_rows import Fact, rows, taken
from tests.journal.journals import CONFIGURED_BYTES, payloads_in
from tests.rigs.commit import (
    DIRECTORY,
    HANG_S_MAX,
    INTERVAL_MS,
    CommitRig,
    GatedDisk,
    Recipient,
    Watch,
    set_watch,
)
from tests.rigs.log import Broken, End, MemoryLog, Place

FACTS: Final = {
    name + ", " * bool(policy) + policy: Fact(fact.given.replace("POLICY", policy), fact.then)
    for name, fact in rows(Path(__file__).parent / "commits.txt")
    for policy in ([each.value for each in SyncPolicy] if "POLICY" in fact.given else [""])
}
EIO: Final = OSError(errno.EIO, "EIO")
BROKEN: Final = JournalFailed("segment", "cannot be synced: I/O error")
PARTS: Final = {
    "sync": "rig.thread_syncs",
    "kernel": "rig.kernel_syncs",
    "carry": "rig.kernel.carry_out",
    "reap": "rig.reaps",
    "ring": "rig.loop.ring",
    "crank": "rig.loop.crank",
    "syncing": "rig.commit.is_syncing",
    "backed_up": "rig.commit.is_backed_up",
    "durable_id": "rig.commit.durable_id",
    "gathers": "rig.commit.gathers_until_ns",
    "fileno": "rig.commit.fileno",
    "thread_syncs": "rig.script.thread_syncs",
    "settling": "rig.log.settling_ms",
    "is_missing": "rig.log.find_lost",
}
"""Steps that a part of the rig takes, or that see how it is."""
QUICK_NS: Final = QUICK_SYNC_NS // 4
SLOW_NS: Final = 20_000 * NS_PER_MS


class TimedDisk(GatedDisk):
    """A disk whose syncs take time on the watch."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch
        self.sync_takes_ns = QUICK_NS
        self.then_waits_ns = self.waited_ns = 0
        """How long the thread waits for a processor behind each sync, and has waited so far."""

    def sync(self, handle: int, /) -> None:
        self._watch.now_ns += self.sync_takes_ns + self.then_waits_ns
        self.waited_ns += self.then_waits_ns
        super().sync(handle)


class Bench:
    """A group commit, and what its journal and disk do."""

    def __init__(self, watch: Watch, kind: str, *options: str) -> None:
        self.watch = watch
        self.disk, self.place = TimedDisk(watch), Place()
        self.is_closed, self.lengths = False, dict[str, int]()
        if kind == "log":
            self.commit_to_a_log(*options)
            return
        if kind == "lost":
            self.take_snapshots(SyncPolicy(options[0]))
            return
        is_thread, is_quick = kind == "thread", kind == "quick"
        self.rig = CommitRig(
            SyncPolicy.ALWAYS if is_quick else SyncPolicy(options[0]),
            disk=None if is_thread else self.disk,
            segment_bytes=8 << 20 if "roomy" in options else CONFIGURED_BYTES,
            kernel=not is_thread,
            syncs_in_turn=is_quick,
        )
        # Two halves do not fit one file of the log; of the thread's they are those of the bound.
        bound = UNSYNCED_BYTES_MAX + 4 if is_thread else 5_000
        self.lengths = {"half": bound // 2, "whole": bound, "many": SYNC_IN_TURN_BYTES_MAX + 1}
        if is_thread:
            self.lengths["half"] = UNSYNCED_BYTES_MAX // 4
        else:
            self.rig.journal.append(b"made", 0, 0)
            self.rig.journal.sync()
        self.slow_syncs_ms: list[int] = []
        self.rig.commit.on_slow_sync = self.slow_syncs_ms.append

    def commit_to_a_log(self, *ends: str) -> None:
        """Have a group commit on a log in memory, whose appends end so; `shared`: as a database."""
        self.rig = CommitRig()
        self.log = self.taken()
        self.log.is_shared = "shared" in ends
        self.log.ends.extend(End(each) for each in ends if each != "shared")
        self.rig.commit = GroupCommit(
            self.log, SyncPolicy.ALWAYS, INTERVAL_MS, self.rig.loop, self.rig.failures.append
        )

    def take_snapshots(self, policy: SyncPolicy) -> None:
        """Have a group commit that asks for a snapshot of what is lost, as in the service."""
        rig = CommitRig(policy, disk=self.disk, snapshots=True, syncs_in_turn=True)
        self.rig, self.missing = rig, list[str]()
        rig.commit.on_lost = self.lost

    def lost(self, what: str) -> None:
        self.missing.append(what)
        self.rig.snapshots.ask_soon()

    def text(self, word: str) -> str:
        """What a word of a row stands for."""
        return "x" * self.lengths[word] if word in self.lengths else word

    # --- Steps -----------------------------------------------------------------------------------

    def turn(self, record: str, *words: str) -> list[str]:
        to: dict[str, Recipient] = {"a": self.rig.a, "b": self.rig.b}
        pairs = [word.partition("=")[::2] for word in words if word != "nosync"]
        given = [(name, self.text(text)) for name, text in pairs]
        record = "" if record == "-" else self.text(record)
        records = [part.encode() for part in record.split("+") if part]
        if records and not self.rig.is_scripted:
            self.rig.events.append(f"append {record}")
        self.rig.commit.commit(
            records,
            [(to[name], text.encode()) for name, text in given if name in to],
            must_sync=bool(record) and "nosync" not in words,
            time_ms=1,
            wall_ms=2,
            last_id=int(dict(given).get("id", 0)),
            free=[(to[n[5:]], text.encode()) for n, text in given if n.startswith("free:")],
        )
        return self.rig.look()

    def begun(self) -> None:
        """Wait until the thread is at its sync."""
        assert self.rig.script.sync_begun.acquire(timeout=HANG_S_MAX)
        self.rig.script.sync_begun.release()

    def at_it(self) -> None:
        """See that the kernel is at it, whatever the policy."""
        self.rig.loop.ring()
        if not self.rig.commit.is_syncing:
            self.rig.commit._settle(in_turn=False)
        self.rig.look()

    def go_on(self) -> None:
        """Let the thread sync whatever it wants."""
        self.rig.script.gate.release(1_000)
        self.disk.may_go_on.set()

    def close(self) -> list[str]:
        self.go_on()
        self.rig.commit.close()
        self.is_closed = True
        return self.rig.look()

    def slow(self, *others: str) -> None:
        """Have one slow sync in the turn, after which the next ones are elsewhere."""
        self.disk.sync_takes_ns = SLOW_NS
        said = self.turn("slow", "a=0", *(f"{other}=0" for other in others))
        assert said == ["append slow", "a gets 0", *(f"{other} gets 0" for other in others)]
        self.disk.sync_takes_ns = QUICK_NS

    def pass_pause(self) -> None:
        self.watch.now_ns += SLOW_SYNC_PAUSE_TIMES * SLOW_NS

    def late(self, *job_ids: str) -> None:
        self.rig.commit.note_late([*map(int, job_ids)])

    # --- How long it takes -----------------------------------------------------------------------

    def pass_ms(self, ms: str) -> None:
        self.watch.pass_ms(int(ms))

    def ended(self, took_ms: str, sequence: str = "0") -> None:
        """Have the loop hear of a sync elsewhere, which took so long; up to this frame, 0: all."""
        self.rig.sync_ended(int(took_ms) * NS_PER_MS, int(sequence))

    def took(self, what: str, *values: str) -> bool:
        """Whether these were counted and no others; times in ms."""
        counted: Histogram = getattr(self.rig.commit, what)
        is_time = what.endswith("_ns")
        expected = Histogram(SYNC_BOUNDS_NS if is_time else BATCH_BOUNDS_RECORDS)
        for value in values:
            expected.note(int(value) * (NS_PER_MS if is_time else 1))
        return counted.counts == expected.counts

    def told(self) -> str:
        """Return of which slow syncs was told, in ms."""
        return " ".join(map(str, self.slow_syncs_ms))

    # --- A log in memory -------------------------------------------------------------------------

    def taken(self) -> MemoryLog:
        """Let a daemon take the log over, from an owner that may only be paused."""
        log, self.place.is_owned = MemoryLog(self.place), False
        assert None not in log.follow()
        assert log.take_over()
        return log

    def tell(self, end: str = "durable") -> None:
        self.log.tell(End(end))

    def unsure(self) -> None:
        """Let the lease perhaps be over."""
        self.log.is_whole = False

    def sure(self) -> None:
        self.log.is_whole = True
        self.rig.commit.restored()

    def breaks(self) -> None:
        self.log._failure = Broken("disk")

    # --- Files that are lost ---------------------------------------------------------------------

    def put(self, name: str, after_ms: str = "0") -> list[str]:
        """Put a job in a turn of its own, so long after the last."""
        rig = self.rig
        rig.clock.advance(int(after_ms))
        rig.put(body=name.encode())
        log, must_sync = rig.engine.take_log()
        replies, now_ms = [(rig.a, name.encode())], rig.clock.now_ms()
        rig.commit.commit(log, replies, must_sync=must_sync, time_ms=now_ms, wall_ms=now_ms)
        return rig.look()

    def unlink(self) -> None:
        self.disk.unlink(f"{DIRECTORY}/{segment_name(1)}")

    def move_away(self) -> None:
        self.disk.move_directory(DIRECTORY, "elsewhere")

    def elsewhere(self) -> None:
        """Let the thread sync from now on."""
        self.rig.log._elsewhere_until_ns = 1 << 62
        self.disk.may_go_on.set()

    def heal(self) -> None:
        """Let the snapshot be taken."""
        self.disk.may_go_on.set()
        self.rig.rest(ms=100)
        while self.rig.commit.is_syncing:
            self.rig.loop.crank()

    def was_missing(self) -> str:
        return ", ".join(self.missing)

    def same(self) -> bool:
        """Whether a start finds all that there is."""
        before = self.rig.state()
        self.rig.journal.sync()
        return self.rig.restarted().state() == before

    # --- Faults ----------------------------------------------------------------------------------

    def fail(self, verb: str, count: str = "1") -> None:
        self.disk.fail(self.disk.verb_counts[verb] + int(count), EIO, verb)

    def append_fails(self, how: str = "") -> None:
        self.rig.script.append_error = JournalFull("directory", "no space") if how else BROKEN

    def sync_fails(self) -> None:
        self.rig.script.sync_error = BROKEN

    def fails_elsewhere(self) -> None:
        """Let the journal fail in another thread, as it does where a snapshot is made durable."""
        with contextlib.suppress(JournalFailed):
            self.rig.journal._fail("data", "broken", None)

    def heals(self) -> None:
        self.rig.script.append_error = self.rig.script.sync_error = None

    def refuses(self) -> None:
        self.rig.kernel.refusal = OSError(errno.EAGAIN, "EAGAIN")

    def accepts(self) -> None:
        self.rig.kernel.refusal = None

    # --- What is seen ----------------------------------------------------------------------------

    def crash(self) -> str:
        """Return what is there after a power cut."""
        if not self.is_closed:
            self.close()
        self.disk.crash()
        return " ".join(payload.decode() for payload in payloads_in(self.disk) if payload)

    def out_of_order(self) -> str:
        return " ".join(map(str, self.rig.commit.out_of_order_ids))

    def timers(self) -> str:
        return " ".join(str(delay) for delay, _ in self.rig.loop.timers)

    def failures(self) -> int:
        return len(self.rig.failures)

    def why(self) -> str:
        return ", ".join(map(str, self.rig.failures))

    def codes(self) -> str:
        return " ".join(error.exit_code.name for error in self.rig.failures)

    def kept(self) -> str:
        return " ".join(frame.payload.decode() for frame in self.place.frames)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return set_watch(monkeypatch, commit_module, file_log_module)


Make = Callable[..., Bench]


@pytest.fixture
def make(watch: Watch) -> Iterator[Make]:
    """Make benches; in the end their threads are gone."""
    made: list[Bench] = []

    def bench(*how: str) -> Bench:
        made.append(Bench(watch, *how))
        return made[-1]

    yield bench
    for each in made:
        if not each.is_closed:
            each.close()
        assert not each.rig.log._worker.is_alive()


@pytest.mark.parametrize("name", FACTS)
def test_fact(name: str, make: Make) -> None:
    fact = FACTS[name]
    how, _, given = fact.given.partition("; ")
    bench = make(*how.split())

    def take(step: str) -> Any:
        act, *words = step.split()
        found = attrgetter(PARTS.get(act, act))(bench)
        return found(*words) if callable(found) else found

    for returned, outcome in taken(Fact(given, fact.then), take):
        if outcome.startswith("="):
            assert str(returned) == outcome[1:].strip()
        else:
            # Long records go by their names.
            names = {length: word for word, length in bench.lengths.items()}
            is_told = "gets" if outcome.startswith(">") else ""
            seen = returned if isinstance(returned, list) else bench.rig.look()
            events = (event.split(" ") for event in seen if is_told in event)
            said = ", ".join(" ".join(names.get(len(w), w) for w in event) for event in events)
            assert said == outcome.removeprefix(">").strip()


# --- What no row can say -------------------------------------------------------------------------


def test_the_replies_of_a_client_keep_their_order_over_turns(make: Make) -> None:
    bench = make("thread", "always")
    seen = bench.turn("first", "a=0")
    for number in range(1, 30):
        record = "r" if number % 3 else "-"
        how = () if number % 3 == 1 else ("nosync",)
        seen += bench.turn(record, f"a={number}", *how)
        if number % 5 == 0:
            seen += bench.rig.thread_syncs()
    while bench.rig.commit.is_syncing:
        seen += bench.rig.thread_syncs()
    assert [e for e in seen if "gets" in e] == [f"a gets {number}" for number in range(30)]


def put_of(job: bytes) -> list[bytes]:
    """A put as the engine records it."""
    return [pack_put(Kind.PUT, len(job)) + job]


@pytest.mark.parametrize("turns_before", range(3))
def test_a_turn_that_fits_no_file_whole_is_divided_between_records_only(
    make: Make, turns_before: int
) -> None:
    log = [b"turn"] * turns_before
    for number in range(7):
        log += [*put_of(b"%d" % number * 45), b"delete"]
    rig = make("thread", "always").rig
    for frame_bytes_max in range(50, 300, 7):
        frames_before = len(rig.script.appended)
        rig.script.frame_bytes_max = frame_bytes_max
        rig.commit.commit(log, [(rig.a, b"x")], must_sync=True, time_ms=1, wall_ms=2)
        frames = rig.script.appended[frames_before:]
        assert b"".join(frames) == b"".join(log)
        assert max(map(len, frames)) <= frame_bytes_max
        for frame in frames:
            whole = sum(frame.count(b"%d" % n) for n in range(7))
            assert frame.count(pack_put(Kind.PUT, 45)) * 45 == whole
        rig.look()
        assert rig.thread_syncs()[1:] == ["a gets x"]


@pytest.mark.parametrize("log", [[b"delete"], put_of(b"x" * 45), [b"turn", *put_of(b"x" * 45)]])
def test_a_record_that_finds_no_space_is_a_failure(make: Make, log: list[bytes]) -> None:
    rig = make("thread", "always").rig
    rig.script.frame_bytes_max = 5
    rig.commit.commit(log, [(rig.a, b"x")], must_sync=True, time_ms=1, wall_ms=2)
    assert len(rig.failures) == 1
    assert put_of(b"x" * 45)[0] not in rig.script.appended


def test_a_loop_that_was_closed_before_the_sync_ended_is_no_error(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(callback: Callable[[], object]) -> object:
        raise RuntimeError("Event loop is closed")

    bench = make("thread", "always")
    monkeypatch.setattr(bench.rig.loop, "call_soon_threadsafe", closed)
    bench.turn("one", "a=1")
    assert bench.close()[-1] == "a gets 1"


@pytest.mark.parametrize("kind", ["kernel", "quick"])
def test_nothing_promised_is_lost_whenever_the_power_goes(
    kind: str, make: Make, rng: random.Random, watch: Watch
) -> None:
    """Disks quick and slow: each reply that left names a record that survives, in order."""
    for _ in range(40):
        bench = make(kind, "always")
        rig, seen = bench.rig, []
        for number in range(rng.randrange(1, 40)):
            bench.disk.sync_takes_ns = rng.choice((QUICK_NS, 30 * QUICK_SYNC_NS))
            watch.now_ns += rng.choice((0, 30 * SLOW_SYNC_PAUSE_TIMES * QUICK_SYNC_NS))
            seen += bench.turn(f"{number}", f"a={number}")
            if rig.log._ticket is not None and rng.random() < 0.4:
                rig.kernel.carry_out()
            if rng.random() < 0.5:
                rig.commit.reap()
        replied = [event.split()[-1] for event in [*seen, *rig.look()] if "gets" in event]
        assert replied == [str(number) for number in range(len(replied))]
        bench.disk.crash()
        survivors = [payload.decode() for payload in payloads_in(bench.disk)]
        assert survivors[1 : len(replied) + 1] == replied
        rig.log._jobs.put(False)
        rig.log._worker.join()
        bench.is_closed = True


@pytest.mark.parametrize("policy", SyncPolicy)
def test_a_commit_looks_for_its_files_once_a_second_at_most(make: Make, policy: SyncPolicy) -> None:
    bench = make("lost", policy.value)
    bench.put("first")
    looks = bench.disk.verb_counts["status"]
    for number in range(50):
        bench.put(str(number), str((LOOK_MS - 1) // 50))
    assert bench.disk.verb_counts["status"] == looks
    bench.put("last", str(LOOK_MS))
    assert bench.disk.verb_counts["status"] <= looks + 4, "the directory, its handle, two files"


# --- The turn itself -----------------------------------------------------------------------------


def is_in_turn(bench: Bench) -> bool:
    """Whether the next sync is; one elsewhere is brought to its end."""
    said = bench.turn("probe", "a=reply")
    if said == ["append probe", "a gets reply"]:
        return True
    assert said == ["append probe", "begin"]
    assert bench.rig.kernel_syncs()[-1] == "a gets reply"
    return False


def test_replies_that_need_no_sync_leave_before_it(make: Make, watch: Watch) -> None:
    commit, begun_ns, left_ns = make("quick").rig.commit, watch.now_ns, dict[bytes, int]()
    client: Any = SimpleNamespace(send=lambda data: left_ns.setdefault(data, watch.now_ns))
    replies, free = [(client, b"INSERTED")], [(client, b"OK")]
    commit.commit([b"put"], replies, must_sync=True, time_ms=1, wall_ms=2, free=free)
    assert left_ns == {b"OK": begun_ns, b"INSERTED": begun_ns + QUICK_NS}


def counted(bench: Bench) -> list[tuple[int, int]]:
    """How many syncs and commits there were, and how long they took together."""
    commit = bench.rig.commit
    return [(sum(each.counts[:-1]), each.counts[-1]) for each in (commit.sync_ns, commit.commit_ns)]


def test_it_is_counted_as_other_syncs_are(make: Make) -> None:
    bench = make("quick")
    bench.turn("one", "a=1")
    bench.turn("two", "a=2")
    assert counted(bench) == [(2, 2 * QUICK_NS)] * 2
    assert bench.rig.commit.batch_records.counts[-1] == 2


def test_who_comes_alone_waits_as_long_as_a_sync_takes_which_counts(
    make: Make, watch: Watch
) -> None:
    bench = make("quick")
    for _ in range(times := 4 * QUICK_SYNCS_AVERAGED):
        bench.turn("two", "a=1", "b=1")
    assert bench.turn("first", "a=2") == ["append first"]
    wait_ns = bench.rig.commit.gathers_until_ns - watch.now_ns
    assert QUICK_NS * 9 // 10 < wait_ns <= QUICK_NS
    watch.now_ns += wait_ns - 1
    assert bench.turn("-") == []
    watch.now_ns += 1
    assert bench.turn("-") == ["a gets 2"]
    assert counted(bench) == [
        (times + 1, (times + 1) * QUICK_NS),
        (times + 1, (times + 1) * QUICK_NS + wait_ns),
    ]
    assert bench.rig.commit.gathers_until_ns == 0
    assert bench.turn("next", "a=3") == ["append next", "a gets 3"], "alone, as the last time"


def test_a_disk_that_hangs_once_holds_the_loop_once(make: Make, watch: Watch) -> None:
    bench = make("quick")
    begun_ns = watch.now_ns
    bench.slow()
    assert bench.slow_syncs_ms == [20_000]
    watch.now_ns = begun_ns + SLOW_SYNC_PAUSE_TIMES * SLOW_NS - 1
    assert not is_in_turn(bench)
    watch.now_ns = begun_ns + SLOW_SYNC_PAUSE_TIMES * SLOW_NS
    assert is_in_turn(bench)


@pytest.mark.thorough
def test_syncs_that_are_never_quick_hold_the_loop_for_a_hundredth_of_the_time(
    make: Make, watch: Watch
) -> None:
    bench = make("quick", "roomy")
    bench.disk.sync_takes_ns = took_ns = 8 * NS_PER_MS
    assert took_ns < SLOW_SYNC_MS * NS_PER_MS
    begun_ns, held_ns = watch.now_ns, 0
    for _ in range(4_000):
        held_ns += took_ns * is_in_turn(bench)
    assert 0 < held_ns < 4 * (watch.now_ns - begun_ns) // SLOW_SYNC_PAUSE_TIMES


def test_a_wait_for_a_processor_is_no_reason_either(make: Make) -> None:
    bench = make("quick", "roomy")
    bench.rig.processor_wait_ns = lambda: bench.disk.waited_ns
    bench.disk.sync_takes_ns = WATCHED_SYNC_NS + NS_PER_MS // 4
    assert all(is_in_turn(bench) for _ in range(4 * QUICK_SYNCS_AVERAGED))
    bench.disk.then_waits_ns = 8 * QUICK_SYNC_NS
    assert all(is_in_turn(bench) for _ in range(4 * QUICK_SYNCS_AVERAGED)), "the disk is quick"
    bench.rig.processor_wait_ns = int
    assert not all(is_in_turn(bench) for _ in range(QUICK_SYNCS_AVERAGED)), "where nothing says so"


def test_one_slow_sync_among_quick_ones_is_no_reason(make: Make) -> None:
    bench = make("quick", "roomy")
    for _ in range(20):
        bench.disk.sync_takes_ns = 4 * QUICK_SYNC_NS
        assert is_in_turn(bench)
        bench.disk.sync_takes_ns = QUICK_NS // 2
        assert all(is_in_turn(bench) for _ in range(2 * QUICK_SYNCS_AVERAGED))
