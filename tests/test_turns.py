"""Turns: how long the daemon sleeps, what a turn does, and how much room it promises."""

import contextlib
import io
import random
import selectors
import socket
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final, cast

import pytest

from delayd import commit as commit_module
from delayd.core.errors import OutOfSpace
from delayd.core.times import RequestMs
from delayd.exits import Exit
from delayd.limits import (
    ADVANCE_SLICE_JOBS,
    ADVANCE_SLICE_US,
    ROOM_PLENTY_BYTES,
    ROOM_TURNS_MAX,
    SYNC_BREATHER_MS,
)
from delayd.logs import Log
from delayd.service import Service
from delayd.testing.clock import FakeClock
from delayd.testing.disk import SimulatedDisk
from delayd.turns import Turns, TurnSelector
from tests import test_commit_trouble as trouble
from tests.turn_scene import ScriptedLine, Stage, Watch, set_watch

if TYPE_CHECKING:
    import asyncio

    from delayd.commit import Space
    from delayd.line.server import LineServer

BREATHER_S: Final = SYNC_BREATHER_MS / 1_000


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return set_watch(monkeypatch)


@pytest.fixture
def stage(watch: Watch) -> Stage:
    made = Stage(watch)
    made.turns.turn()
    return made


# --- How long it sleeps --------------------------------------------------------------------------


def test_with_nothing_due_it_sleeps_until_something_happens(stage: Stage) -> None:
    assert stage.slept(None) == [None]


def test_the_first_turn_comes_at_once(watch: Watch) -> None:
    assert Stage(watch).slept(None) == [0.0]


def test_the_first_turn_fires_what_came_due_before(watch: Watch) -> None:
    stage = Stage(watch)
    stage.put(delay_ms=250)
    stage.clock.advance(1_000)
    stage.turns.turn()
    assert stage.engine.store.topics.by_name["default"].queues.ready


def test_it_wakes_when_a_job_is_due(stage: Stage) -> None:
    stage.put(delay_ms=250)
    stage.turns.end_turn(stage.clock.request_ms())
    assert stage.slept(None, int) == [0.25, None]
    assert stage.engine.store.topics.by_name["default"].queues.ready


def test_what_is_overdue_is_not_waited_for(stage: Stage) -> None:
    stage.put(delay_ms=250)
    stage.turns.end_turn(stage.clock.request_ms())
    stage.clock.advance(1_000)
    assert stage.slept(None) == [0.0]


def test_it_sleeps_no_longer_than_asyncio_says(stage: Stage) -> None:
    stage.put(delay_ms=250)
    stage.turns.end_turn(stage.clock.request_ms())
    assert stage.slept(0.1) == [0.1]
    assert stage.slept(0.2, int)[0] == 0.15


def test_it_takes_turns_until_the_time_is_over(stage: Stage) -> None:
    for delay_ms in (30, 60, 90, 200):
        stage.put(delay_ms=delay_ms)
    stage.turns.end_turn(stage.clock.request_ms())
    waits_s = stage.slept(0.1, int, int, int, int)
    assert waits_s == pytest.approx([0.03, 0.03, 0.03, 0.01])


def test_without_time_it_looks_once_and_takes_one_turn(stage: Stage) -> None:
    served = len(stage.line.served_ms)
    assert stage.slept(0) == [0.0]
    assert len(stage.line.served_ms) == served + 1


def test_a_nudge_ends_the_sleep_after_the_turn(stage: Stage) -> None:
    served = len(stage.line.served_ms)
    assert stage.slept(None, int, int) == [None, None, None]
    assert len(stage.line.served_ms) == served + 3


def test_a_nudge_from_before_the_sleep_is_forgotten(stage: Stage) -> None:
    stage.turns.nudge()
    assert stage.slept(None, int) == [None, None]


def test_who_asks_for_a_turn_gets_it_at_once_and_once(stage: Stage) -> None:
    stage.turns.ask()
    assert stage.slept(None, int) == [0.0, None]


def test_a_line_with_something_to_do_is_not_waited_for(stage: Stage) -> None:
    stage.line.has_more = True
    assert stage.slept(None, int) == [0.0, None]


def test_with_jobs_due_a_sync_going_on_gets_a_breather(stage: Stage) -> None:
    stage.put(delay_ms=5)
    stage.turns.end_turn(stage.clock.request_ms())
    stage.clock.advance(10)
    stage.commit.is_syncing = True
    assert stage.slept(None) == [BREATHER_S]
    stage.turns.ask()
    assert stage.slept(BREATHER_S / 4) == [BREATHER_S / 4]


def test_a_sync_going_on_shortens_no_sleep(stage: Stage) -> None:
    stage.commit.is_syncing = True
    assert stage.slept(None) == [None]
    stage.put(delay_ms=250)
    stage.turns.end_turn(stage.clock.request_ms())
    assert stage.slept(None) == [0.25]


def test_clients_are_not_heard_while_too_much_waits_for_the_disk(stage: Stage) -> None:
    stage.commit.is_backed_up = True
    stage.slept(None)
    stage.commit.is_backed_up = False
    stage.slept(None)
    assert stage.line.heard_clients == [False, True]


# --- The chore -----------------------------------------------------------------------------------


def test_the_chore_has_a_slice_before_the_sleep_and_after_each_turn(stage: Stage) -> None:
    slices: list[int] = []
    stage.turns.chore = lambda: slices.append(len(stage.line.waits_s))
    stage.slept(None, int, int)
    assert slices == [0, 1, 2, 3]


def test_the_chore_says_when_it_wants_its_next_slice_at_the_latest(stage: Stage) -> None:
    wishes: list[float | None] = [0.5, 0.0, None, 7.0, None]
    stage.turns.chore = lambda: wishes.pop(0)
    assert stage.slept(None, int, int, int) == [0.5, 0.0, None, 7.0]


def test_the_chore_delays_no_job(stage: Stage) -> None:
    stage.put(delay_ms=250)
    stage.turns.end_turn(stage.clock.request_ms())
    stage.turns.chore = lambda: 0.3
    assert stage.slept(None, int) == [0.25, 0.3]


def test_there_is_no_chore_when_all_is_over(stage: Stage) -> None:
    slices: list[int] = []
    stage.turns.chore = lambda: slices.append(1)
    stage.turns.is_over = True
    stage.slept(None)
    assert slices == []


# --- What a turn does ----------------------------------------------------------------------------


def test_what_is_due_happens_before_clients_are_heard_and_all_of_it_is_committed_once(
    stage: Stage,
) -> None:
    stage.put(delay_ms=5)
    stage.turns.end_turn(stage.clock.request_ms())
    stage.engine.wait(stage.session, stage.clock.now_ms(), None)
    stage.look()
    stage.clock.advance(6)
    stage.line.replies = [(stage.a, b"FOUND")]
    stage.turns.turn()
    assert stage.look() == ["reap", "a is told job 1", "commit 2 up to 1", "a gets FOUND"]
    assert stage.line.served_ms[-1] == stage.clock.now_ms() + 1


def test_the_line_is_told_which_jobs_are_durable(stage: Stage) -> None:
    stage.commit.durable_id = 7
    stage.turns.turn()
    assert stage.line.durable_id == 7


def test_a_turn_without_anything_commits_nothing(stage: Stage) -> None:
    stage.look()
    stage.turns.turn()
    assert stage.look() == []


def test_free_replies_leave_behind_the_commit(stage: Stage) -> None:
    stage.put()
    stage.line.free = [(stage.a, b"free")]
    stage.turns.turn()
    events = stage.look()
    assert events[-1] == "a gets free"
    assert events[-2].startswith("commit")


def test_nothing_leaves_of_a_turn_that_could_not_be_committed(stage: Stage) -> None:
    def fail() -> None:
        stage.turns.is_over = True

    stage.commit.on_commit = fail
    stage.put()
    stage.line.free = [(stage.a, b"free")]
    stage.turns.turn()
    assert "a gets free" not in stage.look()


def test_no_turn_changes_anything_when_all_is_over(stage: Stage) -> None:
    stage.put(delay_ms=5)
    stage.turns.end_turn(stage.clock.request_ms())
    stage.clock.advance(10)
    stage.look()
    stage.turns.is_over = True
    served = len(stage.line.served_ms)
    stage.turns.turn()
    assert (stage.look(), len(stage.line.served_ms)) == ([], served)
    assert not stage.engine.store.topics.by_name["default"].queues.ready


def test_without_a_journal_replies_leave_at_once(watch: Watch) -> None:
    stage = Stage(watch, keeps=False)
    stage.put()
    stage.line.replies = [(stage.a, b"bound")]
    stage.line.free = [(stage.a, b"free")]
    stage.turns.turn()
    assert stage.look() == ["a gets bound", "a gets free"]
    assert stage.turns.records == 0


def test_records_are_counted(stage: Stage) -> None:
    before = stage.turns.records
    stage.put(jobs=5)
    stage.turns.turn()
    assert stage.turns.records == before + 5 + 1 + 1, "a TURN and a TOPIC go before"


def test_of_a_million_jobs_of_one_instant_each_turn_fires_one_slice(stage: Stage) -> None:
    jobs = 40 * ADVANCE_SLICE_JOBS
    stage.put(delay_ms=5, jobs=jobs)
    stage.turns.end_turn(stage.clock.request_ms())
    stage.clock.advance(10)
    ready = stage.engine.store.topics.by_name["default"].queues.ready
    counts = []
    while len(ready) < jobs:
        assert stage.turns._wait_s(None) == 0.0
        before = len(ready)
        stage.turns.turn()
        counts.append(len(ready) - before)
    assert counts == [ADVANCE_SLICE_JOBS] * 40


def test_small_topics_share_a_turn_for_a_bounded_time(stage: Stage) -> None:
    topics = [stage.engine.store.topic(f"topic-{number}") for number in range(20)]
    for topic in topics:
        stage.engine.put_alike(topic, 0, 5, 60_000, [b"x"], stage.clock.now_ms())
    stage.turns.end_turn(stage.clock.request_ms())
    stage.clock.advance(10)
    stage.watch.step_ns = ADVANCE_SLICE_US * 1_000 // 4
    counts = []
    while stage.turns._wait_s(None) == 0.0:
        stage.turns.turn()
        counts.append(sum(len(topic.queues.ready) for topic in topics))
    assert counts == [6, 12, 18, 20]


# --- Room ----------------------------------------------------------------------------------------


class TurningDaemon(trouble.Daemon):
    """Ends its turns as the service does, and looks whether what they promise is there."""

    def __init__(self, disk: SimulatedDisk) -> None:
        super().__init__(disk)
        self.looks = 0
        self.turns_taken = 0
        clock = FakeClock(0)
        line = ScriptedLine(clock, Watch(), [])
        self.turns = Turns(
            self.engine,
            clock,
            cast("LineServer", line),
            self.commit,
            cast("Space", self),
        )
        self.turns.limit_room()

    def beyond(self, set_aside_bytes: int) -> int:
        self.looks += 1
        return self.space.beyond(set_aside_bytes)

    def more(self, missing_bytes: int, body_bytes: int, places: int) -> int:
        return self.space.more(missing_bytes, body_bytes, places)

    def end_turn(self) -> None:
        self.turns_taken += 1
        self.turns.end_turn(RequestMs(self.now_ms))
        assert not self.failures.errors, "something was accepted that could not be recorded"
        room = self.engine.log_space
        set_aside_bytes = room.set_aside_bytes(len(self.engine.store.leases.sessions))
        assert room.free_bytes <= self.journal.room_bytes - set_aside_bytes


@pytest.fixture
def daemons(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int, int], TurningDaemon]]:
    """Daemons with so many bytes of disk, and such files."""
    watch = Watch()
    monkeypatch.setattr(commit_module, "monotonic_ns", watch)
    made: list[TurningDaemon] = []

    def make(disk_bytes: int, segment_bytes: int) -> TurningDaemon:
        monkeypatch.setattr(trouble, "SEGMENT_BYTES", segment_bytes)
        made.append(TurningDaemon(SimulatedDisk(capacity_bytes=disk_bytes)))
        return made[-1]

    yield make
    for daemon in made:
        daemon.stop()


@pytest.mark.parametrize("segment_bytes", [128 << 10, 12 << 20])
def test_never_is_more_room_promised_than_there_is(
    segment_bytes: int,
    rng: random.Random,
    daemons: Callable[[int, int], TurningDaemon],
) -> None:
    daemon = daemons(9 << 20, segment_bytes)
    daemon.engine.state.body_bytes_max = 200_000
    for _ in range(1_200):
        for _operation in range(rng.choice((1, 1, 3, 40))):
            with contextlib.suppress(OutOfSpace):
                trouble.do_something(daemon, rng)
            daemon.engine.take_deliveries()
        daemon.end_turn()
    if segment_bytes > 1 << 20:
        assert daemon.looks < daemon.turns_taken, "with plenty it need not be looked every time"


def test_with_plenty_of_room_it_is_looked_at_every_so_many_turns(
    daemons: Callable[[int, int], TurningDaemon],
) -> None:
    daemon = daemons(64 << 20, 32 << 20)
    daemon.put()
    daemon.end_turn()
    daemon.turns.limit_room()
    assert daemon.engine.log_space.free_bytes > ROOM_PLENTY_BYTES + (1 << 20)
    daemon.looks = 0
    for _ in range(3 * (ROOM_TURNS_MAX + 1)):
        daemon.put()
        daemon.end_turn()
    assert daemon.looks == 3


def test_with_little_room_it_is_looked_at_after_every_turn_that_records(
    daemons: Callable[[int, int], TurningDaemon],
) -> None:
    daemon = daemons(1 << 20, 128 << 10)
    daemon.looks = 0
    for _ in range(20):
        daemon.put()
        daemon.end_turn()
    assert daemon.looks == 20
    daemon.end_turn()
    assert daemon.looks == 20


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
        selector.sleep = sleep
        assert selector.select(5.0) == [(key, selectors.EVENT_READ)]
        assert selector.select(None) == [(key, selectors.EVENT_READ)]
    assert timeouts == [5.0, None]


def test_a_selector_whose_sleep_was_cut_short_tells_of_nothing_and_does_not_wait(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    with TurnSelector() as selector:
        selector.register(pair[0], selectors.EVENT_READ)
        selector.sleep = lambda _timeout_s: None
        assert selector.select(None) == []


def test_a_selector_without_turns_is_an_ordinary_one(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    with TurnSelector() as selector:
        key = selector.register(pair[0], selectors.EVENT_READ)
        assert selector.select(0) == []
        pair[1].send(b"x")
        assert selector.select(None) == [(key, selectors.EVENT_READ)]


# --- A fault -------------------------------------------------------------------------------------


class Ended(BaseException):
    """Stands for the end of the process."""


def test_a_fault_in_a_turn_ends_the_process_at_once_with_a_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(code: int) -> None:
        raise Ended(code)

    def fault(_timeout_s: float | None) -> None:
        raise AssertionError("a fault of ours")

    monkeypatch.setattr("delayd.service.os._exit", end)
    written = io.StringIO()
    service = Service.__new__(Service)
    service._log = Log(written, lambda: 0)
    service._loop = cast("asyncio.AbstractEventLoop", None)
    service._turns = cast("Turns", types.SimpleNamespace(sleep=fault))
    with pytest.raises(Ended) as ended:
        service._sleep(None)
    assert ended.value.args == (Exit.OUR_FAULT,)
    assert "a fault of ours" in written.getvalue()


def test_a_frame_has_both_clocks_as_they_stood_when_the_turn_began(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or each start would lose what the last turn before it took."""
    stage = Stage(Watch())
    stage.clock.step_wall(5_000)
    begun_ms = stage.clock.now_ms()

    def serve_slowly(_events: object, _now_ms: int) -> None:
        stage.put()
        stage.clock.advance(7)

    monkeypatch.setattr(stage.line, "serve", serve_slowly)
    stage.turns.turn()
    assert stage.commit.times_ms == [(begun_ms, begun_ms + 5_000)]
