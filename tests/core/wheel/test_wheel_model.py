"""The wheel against a dict of due times: everything that can happen, in any order."""

import random
from collections.abc import Callable
from functools import partial

import pytest

import delayd.core.wheel.wheel
from delayd.core.wheel.buckets import Mark
from delayd.core.wheel.sweep import Sweep
from delayd.core.wheel.wheel import ceil_to_tick
from tests.core.wheels import NO_LIMIT, Owned

TICKS_MS = (1, 3, 10, 1000)
SIZES = (2, 3, 20, 64, 256)
AHEADS_TICKS = (0, 1, 2, 19, 20, 21, 255, 256, 257, 400, 8000, 65_536, 1 << 40)


@pytest.fixture(params=["sweeps by limits.py", "sweeps all the time", "hunts twins all the time"])
def _sweeps(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "all the time" in request.param:
        monkeypatch.setattr(delayd.core.wheel.wheel, "SWEEP_SLACK_ENTRIES", 2)
        monkeypatch.setattr(delayd.core.wheel.wheel, "SWEEP_CHUNK_ENTRIES", 17)
    if "twins" in request.param:
        hunt = partial(Sweep, hunts_twins=True)
        monkeypatch.setattr(
            delayd.core.wheel.wheel, "Sweep", lambda queue, alive, hunts_twins: hunt(queue, alive)
        )


class Scan:
    """The steps that walks take; each compares the wheel with the model."""

    def __init__(self, rng: random.Random, tick_ms: int, wheel_size: int) -> None:
        self.rng = rng
        self.owned = Owned(tick_ms, wheel_size, rng.choice((0, 12_345, 1 << 41)))
        self.in_time: set[int] = set()
        """Entries that were not yet due when they were inserted."""

    def insert(self, entry: int, due_ms: int, run: int = 1) -> None:
        """Insert so many entries, from this one on, with the same due time."""
        owned, entries = self.owned, range(entry, entry + run)
        owned.cancel(*owned.due_ms.keys() & {*entries})
        before_ms = owned.wheel.next_deadline()
        is_earlier = owned.insert_run(entries, due_ms)
        after_ms = owned.wheel.next_deadline()
        assert after_ms is not None
        assert after_ms <= max(ceil_to_tick(due_ms, owned.wheel.tick_ms), owned.now_ms)
        assert is_earlier or (before_ms is not None and before_ms <= after_ms)
        self.in_time.difference_update(entries)
        if due_ms > owned.now_ms:
            self.in_time.update(entries)

    def advance(self, now_ms: int, limit: int) -> None:
        owned = self.owned
        now_ms = max(now_ms, owned.now_ms)
        due = owned.due(now_ms)
        owned.questions = 0
        fired = owned.advance(now_ms, limit)
        assert owned.questions <= limit
        assert {entry for _, entry in fired} <= due
        deadline_ms = owned.wheel.next_deadline()
        if deadline_ms is None or deadline_ms > now_ms:
            assert {entry for _, entry in fired} == due
        tick_ms = owned.wheel.tick_ms
        order = [ceil_to_tick(due_ms, tick_ms) for due_ms, entry in fired if entry in self.in_time]
        assert order == sorted(order)

    def sleep(self, until_ms: int) -> None:
        """Advance until then, or for once to the next deadline and not beyond it."""
        owned, rng = self.owned, self.rng
        deadline_ms = owned.wheel.next_deadline()
        if deadline_ms is not None and rng.random() < 0.3:
            assert not owned.due(deadline_ms - 1) or deadline_ms <= owned.now_ms
            until_ms = deadline_ms
        self.advance(until_ms, rng.choice((1, 2, 10, NO_LIMIT)))

    def soonest(self, count: int) -> None:
        by_model = sorted((due_ms, entry) for entry, due_ms in self.owned.due_ms.items())
        assert self.owned.wheel.soonest(count) == [entry for _, entry in by_model[:count]]


@pytest.mark.usefixtures("_sweeps")
@pytest.mark.parametrize("tick_ms", TICKS_MS)
@pytest.mark.parametrize("wheel_size", SIZES)
def test_a_long_walk_agrees_with_the_dict_all_the_way(
    tick_ms: int, wheel_size: int, rng: random.Random
) -> None:
    walk = Scan(rng, tick_ms, wheel_size)
    owned = walk.owned
    span_ms = tick_ms * rng.choice((50, 5000, 1_000_000))
    for step in range(600):
        chance = rng.random()
        if chance < 0.5:
            ahead_ms = rng.choice((rng.randrange(span_ms), tick_ms * rng.choice(AHEADS_TICKS)))
            due_ms = owned.now_ms + ahead_ms + rng.choice((-5, 0, 0, 0, 1, tick_ms))
            walk.insert(rng.randrange(200), max(0, due_ms), rng.choice((1, 1, 4)))
        elif chance < 0.75 and owned.due_ms:
            run = rng.choice((1, 1, 1, rng.randrange(len(owned.due_ms) + 1)))
            owned.cancel(*rng.sample(list(owned.due_ms), run))
        elif chance < 0.8:
            walk.soonest(rng.randrange(10))
        else:
            walk.sleep(owned.now_ms + rng.choice((0, 1, tick_ms, rng.randrange(span_ms // 10))))
        if step % 10 == 0:
            owned.check()
    owned.run()
    owned.check()
    assert not owned.due_ms


def look_along(walk: Scan, rng: random.Random, steps_max: int, span_ms: int) -> None:
    """Look along the wheel, with up to so many doings between two looks.

    What nobody touches is seen where it belongs, and nothing is left behind that is due earlier.
    """
    owned = walk.owned
    untouched = dict(owned.due_ms)
    mark, seen = Mark(), set[int]()
    while (span := owned.wheel.enter(mark)) is not None:
        after_ms, until_ms = span
        assert all(due_ms > after_ms for entry, due_ms in untouched.items() if entry not in seen), (
            "something earlier is still to come"
        )
        for entry in owned.wheel.next_entries(mark, rng.choice((1, 2, 10))):
            if after_ms < untouched.get(entry, -1) <= until_ms:  # otherwise a dead one
                seen.add(entry)
        for _ in range(rng.randrange(steps_max + 1)):
            any_step(walk, rng, span_ms)
        untouched = {
            entry: due_ms
            for entry, due_ms in untouched.items()
            if owned.due_ms.get(entry) == due_ms
        }
    assert untouched.keys() <= seen


def any_step(walk: Scan, rng: random.Random, span_ms: int) -> None:
    """Anything but what is inserted: new entries have numbers of their own."""
    owned = walk.owned
    chance = rng.random()
    if chance < 0.3:
        due_ms = owned.now_ms + rng.choice((-5, 0, 1, rng.randrange(span_ms)))
        walk.insert(1000 + rng.randrange(200), max(0, due_ms))
    elif chance < 0.6 and owned.due_ms:
        owned.cancel(rng.choice(list(owned.due_ms)))
    elif chance < 0.7:
        walk.soonest(rng.randrange(10))
    else:
        ahead_ms = rng.choice((0, 1, rng.randrange(1 + span_ms // 10)))
        walk.advance(owned.now_ms + ahead_ms, rng.choice((1, 3, 10)))


@pytest.mark.usefixtures("_sweeps")
@pytest.mark.parametrize("tick_ms", [1, 10])
@pytest.mark.parametrize("wheel_size", [2, 20, 256])
@pytest.mark.parametrize("steps_max", [0, 1, 4])
def test_a_look_along_the_wheel_sees_all_that_is_in_it_all_the_while(
    tick_ms: int,
    wheel_size: int,
    steps_max: int,
    rng: random.Random,
    often: Callable[[int, int], range],
) -> None:
    for _ in often(5, 50):
        walk = Scan(rng, tick_ms, wheel_size)
        span_ms = tick_ms * rng.choice((5, 50, 5000, 1_000_000))
        for entry in range(100):
            walk.insert(entry, walk.owned.now_ms + rng.randrange(span_ms))
            if rng.random() < 0.2:
                any_step(walk, rng, span_ms)
        look_along(walk, rng, steps_max, span_ms)


@pytest.mark.usefixtures("_sweeps")
@pytest.mark.parametrize("wheel_size", [2, 20, 256])
def test_a_wheel_that_is_taken_apart_gives_all_that_it_holds(
    wheel_size: int, rng: random.Random, often: Callable[[int, int], range]
) -> None:
    for _ in often(12, 120):
        walk = Scan(rng, 1, wheel_size)
        span_ms = rng.choice((5, 50, 5000, 1_000_000))
        for entry in range(100):
            walk.insert(entry, walk.owned.now_ms + rng.randrange(span_ms))
            any_step(walk, rng, span_ms)
        taken = list[int]()
        while some := walk.owned.wheel.take_some(7):
            taken += some
        assert walk.owned.due_ms.keys() <= set(taken)
