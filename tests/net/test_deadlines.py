"""Deadlines against the simplest model, which looks at everything every second; read timeouts."""

import random
from functools import partial

import pytest

from delayd import limits
from delayd.net.deadlines import Deadlines, ReadTimeouts, Sender


class Timed:
    """Is due at `due_ms`, unless that has moved meanwhile; notes when it was found to be."""

    def __init__(self, due_ms: int) -> None:
        self.due_ms = due_ms
        self.look_s = 0
        self.looks = 0
        self.found_ms: int | None = None

    def look(self, now_ms: int) -> int:
        self.looks += 1
        if now_ms < self.due_ms:
            return self.due_ms
        self.found_ms = now_ms
        return 0


def test_everybody_is_found_in_their_second_and_never_early(rng: random.Random) -> None:
    clock_ms = 0
    deadlines = Deadlines[Timed](lambda: clock_ms, Timed.look, lambda _: None)
    waiting: list[Timed] = []
    for _ in range(3_000):
        clock_ms += rng.randrange(1_000)
        match rng.randrange(4):
            case 0:
                one = Timed(clock_ms + rng.randrange(30_000))
                deadlines.watch(one, one.due_ms)
                waiting.append(one)
            case 1 if waiting:
                one = rng.choice(waiting)
                one.due_ms = clock_ms + rng.randrange(30_000)
                deadlines.watch(one, one.due_ms)
            case 2 if waiting:
                one = waiting.pop(rng.randrange(len(waiting)))
                deadlines.forget(one)
            case _:
                pass
        deadlines.check()
        deadlines.go()
        deadlines.check()
        for one in [*waiting]:
            if one.found_ms is not None:
                assert one.found_ms >= one.due_ms
                waiting.remove(one)
            else:
                assert clock_ms < one.due_ms + 1_000
    for one in waiting:
        deadlines.forget(one)
    deadlines.check()


def test_a_deadline_that_moves_away_costs_one_look_a_period_and_is_not_put_off() -> None:
    clock_ms = 0
    deadlines = Deadlines[Timed](lambda: clock_ms, Timed.look, lambda _: None)
    one = Timed(10_000)
    deadlines.watch(one, one.due_ms)
    for _ in range(1_000):
        clock_ms += 100
        one.due_ms = clock_ms + 10_000
        deadlines.watch(one, one.due_ms)
        deadlines.go()
    assert one.looks <= 10
    one.due_ms = 105_500
    deadlines.watch(one, one.due_ms)
    deadlines.watch(one, 200_000)
    looks, clock_ms = one.looks, 105_999
    deadlines.go()
    assert one.looks == looks
    clock_ms = 106_000
    deadlines.go()
    assert one.found_ms == 106_000


def test_the_alarm_is_told_whenever_it_changes() -> None:
    clock_ms = 999
    told: list[int | None] = []
    deadlines = Deadlines[Timed](lambda: clock_ms, Timed.look, told.append)
    one, other = Timed(1_000), Timed(3_000)
    deadlines.watch(other, other.due_ms)
    deadlines.watch(one, one.due_ms)
    clock_ms = 1_000
    deadlines.go()
    assert one.found_ms == 1_000
    deadlines.forget(other)
    assert told == [3_000, 1_000, 3_000, None]


# --- Read timeouts -------------------------------------------------------------------------------


class Incoming:
    """In the middle of something, or not."""

    def __init__(self, incomplete_bytes: int | None) -> None:
        self.incomplete_bytes = incomplete_bytes
        self.is_read = True

    def time_out(self) -> None:
        """Nobody asks."""


class Watch:
    """Read timeouts, and their clock."""

    def __init__(self) -> None:
        self.now_ms = 5_000
        self.timeouts = ReadTimeouts(lambda: self.now_ms)

    def after(self, seconds: float, *, counts: bool = True) -> list[Sender]:
        """Go on, waking whenever asked to; who was too slow by then."""
        ends_ms = self.now_ms + round(seconds * 1_000)
        slow: list[Sender] = []
        while self.timeouts.alarm_ms is not None and self.timeouts.alarm_ms <= ends_ms:
            self.now_ms = max(self.now_ms, self.timeouts.alarm_ms)
            assert self.timeouts.is_due
            slow += self.timeouts.too_slow(counts=counts)
        self.now_ms = ends_ms
        return slow


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_a_line_has_ten_seconds_as_a_handshake_has_and_what_has_ended_is_forgotten(
    watch: Watch,
) -> None:
    assert not watch.timeouts.note(Incoming(None)), "nothing is half said"
    assert watch.timeouts.alarm_ms is None
    assert not watch.timeouts.is_due
    sender, ended = Incoming(0), Incoming(0)
    assert watch.timeouts.note(sender)
    watch.timeouts.note(ended)
    assert not watch.after(limits.LINE_INCOMPLETE_S_MAX + 0.999)
    ended.incomplete_bytes = None
    assert not watch.timeouts.note(ended)
    assert watch.after(0.001) == [sender]
    assert watch.timeouts.is_too_slow(sender)
    assert not watch.timeouts.is_too_slow(ended)
    sender.incomplete_bytes = None
    assert not watch.timeouts.note(sender)
    assert watch.timeouts.alarm_ms is None
    assert limits.TLS_HANDSHAKE_MS == limits.LINE_INCOMPLETE_S_MAX * 1_000


def test_a_byte_more_of_the_same_line_wins_no_time_and_the_next_line_does(watch: Watch) -> None:
    dripping, talking = Incoming(0), Incoming(0)
    for _ in range(10):
        watch.timeouts.note(dripping)
        watch.timeouts.note(talking, has_moved=True)
        assert not watch.after(1)
    assert watch.after(1) == [dripping]


def test_a_body_may_take_as_long_as_its_pace_allows(watch: Watch) -> None:
    size = 30 * limits.BYTES_PER_S_MIN
    sender = Incoming(size)
    watch.timeouts.note(sender)
    for second in range(1, 30):
        sender.incomplete_bytes = size - second * limits.BYTES_PER_S_MIN
        watch.timeouts.note(sender)
        assert not watch.after(1)
    assert not watch.after(1)
    assert watch.after(1) == [sender]


def test_a_body_begins_anew_behind_its_line_and_has_ten_seconds_if_it_drips(watch: Watch) -> None:
    sender = Incoming(0)
    watch.timeouts.note(sender)
    watch.after(9)
    sender.incomplete_bytes = 1_000
    watch.timeouts.note(sender)
    assert not watch.after(10)
    sender.incomplete_bytes = 999
    watch.timeouts.note(sender)
    assert watch.after(1) == [sender]


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        (3_900_000, limits.LINE_BODY_IN_ALL_S),
        (1 << 30, (1 << 30) // limits.LINE_BODY_BYTES_PER_S_IN_ALL),
    ],
)
def test_whatever_its_pace_a_body_has_to_end(watch: Watch, size: int, seconds: int) -> None:
    sender = Incoming(size)
    watch.timeouts.note(sender)
    sender.incomplete_bytes = 1
    assert not watch.after(seconds)
    assert watch.after(1) == [sender]


def test_seconds_in_which_nobody_listened_do_not_count(watch: Watch) -> None:
    sender = Incoming(0)
    watch.timeouts.note(sender)
    assert not watch.after(5)
    assert not watch.after(30, counts=False)
    watch.now_ms += 60_000  # one long turn
    assert not watch.after(4)
    assert watch.after(1) == [sender]


def test_who_is_not_read_from_has_all_the_time(watch: Watch) -> None:
    sender = Incoming(0)
    sender.is_read = False
    watch.timeouts.note(sender)
    assert not watch.after(100)
    sender.is_read = True
    assert not watch.after(10)
    assert watch.after(1) == [sender]


def test_answers_come_when_they_are_to_and_in_order(watch: Watch) -> None:
    given: list[int] = []
    for number in range(3):
        watch.timeouts.postpone(1_000, partial(given.append, number))
        watch.now_ms += 100
    assert watch.timeouts.alarm_ms == 6_000
    assert watch.timeouts.wait_s(None) == 0.7
    assert watch.timeouts.wait_s(0.5) == 0.5
    watch.now_ms = 6_000
    assert watch.timeouts.is_due
    for answer in watch.timeouts.due_calls():
        answer()
    assert given == [0]
    watch.now_ms = 9_000
    assert watch.timeouts.wait_s(None) == 0
    for answer in watch.timeouts.due_calls():
        answer()
    assert given == [0, 1, 2]
    assert watch.timeouts.alarm_ms is None


def test_an_answer_and_a_slow_client_wake_each_at_its_time(watch: Watch) -> None:
    watch.timeouts.note(Incoming(0))
    watch.now_ms += 600
    watch.timeouts.postpone(1_000, lambda: None)
    assert watch.timeouts.alarm_ms == 6_000
    watch.now_ms = 6_000
    assert not watch.timeouts.too_slow()
    assert watch.timeouts.alarm_ms == 6_600


def test_many_that_are_too_slow_at_once_are_told_of_in_slices(watch: Watch) -> None:
    senders = [Incoming(0) for _ in range(2 * limits.LOOKS_MAX + 1)]
    for sender in senders:
        watch.timeouts.note(sender)
    slow = watch.after(limits.LINE_INCOMPLETE_S_MAX + 1)
    assert set(slow) == set(senders)
