"""Turns: how long the rig sleeps, what a turn does, and how much space it promises."""

import contextlib
import io
import select
import selectors
import socket
import types
from collections.abc import Callable, Iterator
from typing import Final, cast

import pytest

from delayd.clock import NEVER_NS
from delayd.core.engine import Engine
from delayd.core.operations.put import put_alike
from delayd.core.times import RequestMs
from delayd.exits import Exit
from delayd.limits import (
    ADVANCE_SLICE_JOBS,
    ADVANCE_SLICE_US,
    INTERRUPTED_PAUSE_MS,
    INTERRUPTED_US,
    PASSES_US,
    SPACE_PLENTY_BYTES,
    SPACE_TURNS_MAX,
)
from delayd.log_lines import Log
from delayd.notices import Notices
from delayd.service import Service
from delayd.turns import Turns, TurnSelector
from tests.rigs.commit import DESCRIPTOR, CommitRig, Recipient, ScriptedSnapshots, Watch, set_watch
from tests.rigs.disk import SimulatedDisk
from tests.test_commit_trouble import full_disk_rig

PASS_NS: Final = PASSES_US * 1_000


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return set_watch(monkeypatch)


@pytest.fixture
def rig(watch: Watch) -> CommitRig:
    made = CommitRig(watch=watch)
    made.turns.turn()
    return made


# --- How long it sleeps --------------------------------------------------------------------------


def test_the_first_turn_comes_at_once_and_fires_what_came_due_before(watch: Watch) -> None:
    rig = CommitRig(watch=watch)
    rig.put(delay_ms=250)
    rig.clock.advance(1_000)
    assert rig.slept(None) == [0.0]
    assert rig.engine.store.topics.by_name["default"].queues.ready


def test_what_only_asyncio_has_to_do_needs_no_turn_but_does_not_put_turns_off(
    rig: CommitRig,
) -> None:
    loop_fd = DESCRIPTOR + 1

    def turns_of_a_sleep() -> int:
        rig.line.events = [(loop_fd, select.EPOLLIN)]
        served = len(rig.line.served_ms)
        rig.slept(None)
        return len(rig.line.served_ms) - served

    rig.turns.loop_fd = loop_fd
    assert [turns_of_a_sleep() for _ in range(4)] == [1, 0, 1, 0]
    rig.turns.ask()
    assert turns_of_a_sleep() == 1, "there is something to commit"
    rig.turns.loop_fd = -1
    assert turns_of_a_sleep() == 1, "it is a client"


def test_it_wakes_for_replies_that_wait_for_others(rig: CommitRig) -> None:
    def commit() -> None:
        rig.commits.gathers_until_ns = 0

    rig.commits.gathers_until_ns = rig.watch.now_ns + 200_000
    rig.commits.on_commit = commit
    rig.look()
    assert rig.slept(None, int) == [pytest.approx(0.0002), None]
    assert rig.look() == ["commit 0 up to 0"], "with nothing to commit"


# --- Awake ---------------------------------------------------------------------------------------

EVENT: Final = (99, select.EPOLLIN)
AWAKE_NS: Final = 100_000


def says(rig: CommitRig, after_ns: int = 0) -> Callable[[], None]:
    """A client says something, so long after the poll began."""

    def say() -> None:
        rig.watch.now_ns += after_ns
        rig.line.events = [EVENT]

    return say


@pytest.fixture
def awake(rig: CommitRig) -> CommitRig:
    """Awake for so long, in ten looks."""
    rig.turns.busy_poll_ns = AWAKE_NS
    rig.watch.step_ns = AWAKE_NS // 10
    return rig


def test_behind_clients_that_answer_at_once_it_stays_awake_for_a_moment(awake: CommitRig) -> None:
    waits_s = awake.slept(None, says(awake), *[int] * 3, says(awake), *[int] * 20)
    assert waits_s[:5] == [None, 0.0, 0.0, 0.0, 0.0], "it looks, and hears the second"
    looks = waits_s[5:].index(None)
    assert 5 <= looks <= 10
    assert waits_s[5 : 5 + looks] == [0.0] * looks


def test_a_look_before_a_turn_leaves_it_awake(awake: CommitRig) -> None:
    awake.line.events = [EVENT]
    assert awake.slept(None) == [None], "its client has answered soon"
    awake.turns.reply_when_durable(Recipient("w", []), b"done")
    waits_s = awake.slept(None, *[int] * 20)
    assert waits_s[:3] == [0.0, 0.0, 0.0], "before the turn, and then for a moment"


def test_awake_it_misses_no_deadline(awake: CommitRig) -> None:
    awake.put(delay_ms=250)
    awake.turns.end_turn()
    awake.turns.ask()
    waits_s = awake.slept(None, says(awake), *[int] * 20)
    asleep = [wait_s for wait_s in waits_s[1:] if wait_s]
    assert asleep == pytest.approx([0.249 - AWAKE_NS / 1e9, 0.001 - AWAKE_NS / 1e9])


def test_before_a_job_is_due_it_stays_awake_for_a_moment(awake: CommitRig) -> None:
    awake.put(delay_ms=19)
    awake.turns.end_turn()
    waits_s = awake.slept(None, *[int] * 5, says(awake))
    assert waits_s[:-1] == pytest.approx([0.019 - AWAKE_NS / 1e9, *[0.0] * 5])
    assert waits_s[-1] is None, "it was awake until then, and the job is no more waited for"
    awake.put(delay_ms=19)
    awake.turns.end_turn()

    def time_out() -> None:
        awake.watch.now_ns -= 10_000_000  # the poll ends so much sooner: for a client

    waits_s = awake.slept(None, time_out, *[int] * 20)
    assert waits_s.index(None) <= 12, "it looks for a moment, and not for the rest of the wait"


def test_while_others_want_the_processor_it_sleeps(rig: CommitRig) -> None:
    rig.turns.busy_poll_ns = AWAKE_NS
    is_interrupted = says(rig, INTERRUPTED_US * 1_000 + 1)
    quick = says(rig)
    assert rig.slept(None, quick, is_interrupted, quick, quick) == [None, 0.0, None, None, None]
    rig.watch.pass_ms(INTERRUPTED_PAUSE_MS)
    rig.watch.step_ns = AWAKE_NS // 10
    assert rig.slept(None, quick, quick, *[int] * 20)[:3] == [None, 0.0, 0.0], "it tries again"


def test_it_stays_asleep_where_that_was_chosen_behind_slow_clients_and_during_a_sync(
    rig: CommitRig,
) -> None:
    assert rig.slept(None, says(rig)) == [None, None]
    rig.turns.busy_poll_ns = AWAKE_NS
    assert rig.slept(None, says(rig, 2 * AWAKE_NS)) == [None, None]
    rig.commits.is_syncing = True
    assert rig.slept(None, says(rig)) == [None, None]


# --- Steps of snapshots --------------------------------------------------------------------------


def test_when_no_step_is_wanted_one_is_taken_once_the_log_has_grown(rig: CommitRig) -> None:
    steps: list[int] = []
    rig.turns.snapshots = ScriptedSnapshots(lambda: steps.append(len(rig.line.waits_s)))
    rig.slept(None, int, rig.put, int, rig.put)
    assert steps == [0, 2, 4]


def test_a_step_is_taken_before_its_time_when_the_log_has_grown_much(rig: CommitRig) -> None:
    steps: list[int] = []

    def step() -> float:
        steps.append(rig.engine.store.counters.jobs_put)
        return 60.0

    def put() -> None:
        rig.put(delay_ms=1_000)

    put()
    rig.turns.turn()
    before_bytes = rig.commits.log_bytes
    put()
    rig.turns.turn()
    rig.turns.snapshots = ScriptedSnapshots(step, 2 * (rig.commits.log_bytes - before_bytes))
    rig.slept(None, *[put] * 5)
    assert steps == [2, 4, 6]


# --- What a turn does ----------------------------------------------------------------------------


def test_of_a_million_jobs_of_one_instant_each_turn_fires_one_slice(rig: CommitRig) -> None:
    jobs = 40 * ADVANCE_SLICE_JOBS
    rig.put(delay_ms=5, jobs=jobs)
    rig.turns.end_turn()
    rig.clock.advance(10)
    ready = rig.engine.store.topics.by_name["default"].queues.ready
    counts = []
    while len(ready) < jobs:
        assert rig.turns._wait_s(0, NEVER_NS) == 0.0
        before = len(ready)
        rig.turns.turn()
        counts.append(len(ready) - before)
    assert counts == [ADVANCE_SLICE_JOBS] * 40


def test_small_topics_share_a_turn_for_a_bounded_time(rig: CommitRig) -> None:
    topics = [rig.engine.store.topic(f"topic-{number}") for number in range(20)]
    for topic in topics:
        put_alike(rig.engine, topic, 0, 5, 60_000, [b"x"], RequestMs(rig.clock.now_ms()))
    rig.turns.end_turn()
    rig.clock.advance(10)
    rig.watch.step_ns = ADVANCE_SLICE_US * 1_000 // 4
    counts = []
    while rig.turns._wait_s(0, NEVER_NS) == 0.0:
        rig.turns.turn()
        counts.append(sum(len(topic.queues.ready) for topic in topics))
    assert counts == [6, 12, 18, 20]


# --- Space ---------------------------------------------------------------------------------------


def test_with_plenty_of_space_it_is_looked_at_every_so_many_turns(watch: Watch) -> None:
    disk = SimulatedDisk(capacity_bytes=64 << 20)
    with contextlib.closing(full_disk_rig(disk, 32 << 20, watch)) as rig:
        rig.put()
        rig.end_turn()
        rig.turns.limit_space()
        assert rig.engine.log_space.free_bytes > SPACE_PLENTY_BYTES + (1 << 20)
        rig.space.looks = 0
        for _ in range(3 * (SPACE_TURNS_MAX + 1)):
            rig.put()
            rig.end_turn()
        assert rig.space.looks == 3


def test_with_little_space_it_is_looked_at_after_every_turn_that_records(watch: Watch) -> None:
    disk = SimulatedDisk(capacity_bytes=1 << 20)
    with contextlib.closing(full_disk_rig(disk, 128 << 10, watch)) as rig:
        rig.space.looks = 0
        for _ in range(20):
            rig.put()
            rig.end_turn()
        rig.end_turn()
        assert rig.space.looks == 20


# --- The selector --------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def test_a_selector_that_takes_turns_tells_what_is_ready_after_its_sleep(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    timeouts: list[float | None] = []

    def sleep(timeout_s: float | None) -> None:
        timeouts.append(timeout_s)
        pair[1].send(b"x")

    with TurnSelector() as selector:
        key = selector.register(pair[0], selectors.EVENT_READ, "data")
        assert selector.select(0) == []
        pair[1].send(b"x")
        assert selector.select(None) == [(key, selectors.EVENT_READ)], (
            "without turns an ordinary one"
        )
        pair[0].recv(1)
        selector.sleep = lambda _timeout_s: None
        assert selector.select(None) == [], "its sleep was cut short"
        selector.sleep = sleep
        assert selector.select(5.0) == [(key, selectors.EVENT_READ)]
        assert selector.select(None) == [(key, selectors.EVENT_READ)]
    assert timeouts == [5.0, None]


def test_asyncio_goes_on_for_a_moment_before_the_next_turn_if_it_has_something_to_call(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    timeouts: list[float | None] = []
    times_ns = iter([0, PASS_NS - 1, PASS_NS - 1, PASS_NS, 5, PASS_NS + 4, 7, 8, PASS_NS + 7, 9])
    with TurnSelector(times_ns.__next__) as selector:
        key = selector.register(pair[0], selectors.EVENT_READ)
        selector.sleep = timeouts.append
        selector.select(None)  # awake since 0
        pair[1].send(b"x")
        for _ in range(2):  # what is ready is told in any case
            assert selector.select(0) == [(key, selectors.EVENT_READ)]
        assert timeouts == [None]
        selector.select(0)  # the moment is over; awake since 5
        assert timeouts == [None, 0]
        selector.select(0)
        assert timeouts == [None, 0]
        selector.select(0.001)  # nothing to call: it sleeps however soon; awake since 7
        assert timeouts == [None, 0, 0.001]
        selector.select(0)
        selector.select(0)
    assert timeouts == [None, 0, 0.001, 0]


# --- A fault -------------------------------------------------------------------------------------


def test_a_fault_in_a_turn_ends_the_process_at_once_with_a_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(code: int) -> None:
        raise SystemExit(code)

    def fault(_timeout_s: float | None) -> None:
        raise AssertionError("a fault of ours")

    monkeypatch.setattr("delayd.service.os._exit", end)
    written = io.StringIO()
    service = Service.__new__(Service)
    service._notices = Notices(Log(written, lambda: 0), Engine(start_ms=0), None)
    service._turns = cast("Turns", types.SimpleNamespace(sleep=fault))
    with pytest.raises(SystemExit) as ended:
        service._sleep(None)
    assert ended.value.code == Exit.OUR_FAULT
    assert "a fault of ours" in written.getvalue()


def test_a_frame_has_both_clocks_as_they_stood_when_the_turn_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or each start would lose what the last turn before it took."""
    rig = CommitRig(watch=Watch())
    rig.clock.step_wall(5_000)
    begun_ms = rig.clock.now_ms()

    def serve_slowly(_events: object) -> None:
        rig.put()
        rig.clock.advance(7)

    monkeypatch.setattr(rig.line, "serve", serve_slowly)
    rig.turns.turn()
    assert rig.commits.times_ms == [(begun_ms, begun_ms + 5_000)]
