"""Whose wheel turns next: fairness between lanes, and stale wake-ups that do not pile up."""

import random

from delayd.core.timers import TimerLane, TimerQueue
from delayd.core.times import PlayedMs
from delayd.core.wheel.wheel import TimingWheel
from delayd.limits import TIMER_ROWS_MOVED, TIMER_STALE_ROWS


class Lanes:
    """A timer queue with lanes of entries that carry their due time and never die by themselves."""

    def __init__(self) -> None:
        self.queue = TimerQueue()
        self.due_ms: dict[int, int] = {}
        self.last_entry = 0
        self.lanes: list[TimerLane] = []

    def lane(self) -> TimerLane:
        lane = TimerLane(TimingWheel(1, 256, 0, self.due_ms.get))
        self.lanes.append(lane)
        return lane

    def insert(self, lane: TimerLane, due_ms: int, now_ms: int = 0) -> int:
        self.last_entry += 1
        self.due_ms[self.last_entry] = due_ms
        if lane.wheel.insert(self.last_entry, due_ms, now_ms):
            self.queue.queue(lane)
        self.queue.check(self.lanes, PlayedMs(now_ms))
        return self.last_entry

    def take(self, now_ms: int, slice_entries: int = 1) -> tuple[TimerLane, list[int]] | None:
        due = self.queue.take_due(PlayedMs(now_ms), slice_entries)
        self.queue.check(self.lanes, PlayedMs(now_ms))
        return due


def test_the_lane_with_the_earliest_deadline_turns_first() -> None:
    lanes = Lanes()
    first, second = lanes.lane(), lanes.lane()
    late = lanes.insert(first, 20)
    early = lanes.insert(second, 10)
    assert lanes.queue.next_deadline() == 10
    assert lanes.take(9) is None
    assert lanes.take(30) == (second, [early])
    assert lanes.take(30) == (first, [late])
    assert lanes.take(30) is None
    assert lanes.queue.next_deadline() is None


def test_lanes_that_are_due_take_turns() -> None:
    lanes = Lanes()
    crowds = [lanes.lane() for _ in range(3)]
    for crowd in crowds:
        for _ in range(4):
            lanes.insert(crowd, 10)
    turns = []
    while (due := lanes.take(10)) is not None:
        turns.append(crowds.index(due[0]))
    assert turns[:9] == [0, 1, 2] * 3


def test_a_lane_gets_no_second_turn_for_wake_ups_that_it_asked_for_before() -> None:
    lanes = Lanes()
    greedy, modest = lanes.lane(), lanes.lane()
    for _ in range(20):
        lanes.insert(greedy, 100)
    # Each entry that comes first and goes leaves a row for 100 behind that looks like the live one.
    for now_ms in range(10, 60, 10):
        lanes.insert(greedy, now_ms, now_ms - 5)
        while lanes.take(now_ms) is not None:
            pass
    lanes.insert(modest, 100, 60)
    turns = [lanes.take(100) for _ in range(2)]
    assert modest in [turn[0] for turn in turns if turn is not None]


def test_a_lane_that_becomes_due_while_a_crowd_fires_waits_for_one_slice() -> None:
    lanes = Lanes()
    crowd, quiet = lanes.lane(), lanes.lane()
    for _ in range(50):
        lanes.insert(crowd, 10)
    lanes.take(10)
    entry = lanes.insert(quiet, 11, 10)
    assert (quiet, [entry]) in [lanes.take(11), lanes.take(11)]


def test_stale_rows_are_swept_before_they_outnumber_the_others(rng: random.Random) -> None:
    lanes = Lanes()
    several = [lanes.lane() for _ in range(5)]
    for due_ms in range(20 * TIMER_STALE_ROWS, 0, -1):
        lane = rng.choice(several)
        lanes.due_ms[due_ms] = due_ms
        if lane.wheel.insert(due_ms, due_ms, 0):
            lanes.queue.queue(lane)
        rows = len(lanes.queue._rows) + len(lanes.queue._old_rows)
        assert rows <= 2 * TIMER_STALE_ROWS + 2 * len(several) + 1
    lanes.queue.check(several, PlayedMs(0))
    came: list[int] = []
    for now_ms in range(1, 200):
        while (due := lanes.take(now_ms, 100)) is not None:
            came += due[1]
        assert sorted(came) == list(range(1, now_ms + 1))


def test_no_call_looks_at_more_than_a_few_rows_however_many_lanes_there_are() -> None:
    lanes = Lanes()
    many = [lanes.lane() for _ in range(3 * TIMER_STALE_ROWS)]
    moved = 0
    for round_ms in (900, 800, 700):
        for lane in many:
            entry = lanes.last_entry = lanes.last_entry + 1
            lanes.due_ms[entry] = round_ms
            old_rows = len(lanes.queue._old_rows)
            if lane.wheel.insert(entry, round_ms, 0):
                lanes.queue.queue(lane)
            assert old_rows - len(lanes.queue._old_rows) <= TIMER_ROWS_MOVED
            moved += old_rows > 0
            deadline_ms = lanes.queue.next_deadline()
            assert deadline_ms is not None
            assert deadline_ms <= round_ms
    assert moved
    lanes.queue.check(many, PlayedMs(0))
    came: list[int] = []
    while (due := lanes.queue.take_due(PlayedMs(900), 10)) is not None:
        came += due[1]
    assert sorted(came) == list(range(1, lanes.last_entry + 1))


def test_a_forgotten_lane_wakes_nobody() -> None:
    lanes = Lanes()
    gone, stays = lanes.lane(), lanes.lane()
    entry = lanes.insert(gone, 10)
    lanes.insert(stays, 20)
    del lanes.due_ms[entry]
    gone.wheel.cancel()
    gone.unqueue()
    lanes.lanes.remove(gone)
    assert lanes.queue.next_deadline() == 20
