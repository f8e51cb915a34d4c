"""How long something that was begun may take, on a clock that is told to go on."""

from functools import partial

import pytest

from delayd.limits import (
    LINE_BODY_BYTES_PER_S_IN_ALL,
    LINE_BODY_BYTES_PER_S_MIN,
    LINE_BODY_IN_ALL_S,
    LINE_HALF_SAID_S_MAX,
    TLS_HANDSHAKE_MS,
)
from delayd.line.read_timeouts import ReadTimeouts, Speaker


class Somebody:
    """In the middle of something, or not."""

    def __init__(self, incomplete_bytes: int | None) -> None:
        self.incomplete_bytes = incomplete_bytes
        self.is_heard = True


class Watch:
    """A patience, and its clock."""

    def __init__(self) -> None:
        self.now_ms = 5_000
        self.patience = ReadTimeouts(lambda: self.now_ms)

    def after(self, seconds: float, *, counts: bool = True) -> list[Speaker]:
        """Go on, waking whenever asked to; who was too slow by then."""
        ends_ms = self.now_ms + round(seconds * 1_000)
        slow: list[Speaker] = []
        while self.patience.alarm_ms is not None and self.patience.alarm_ms <= ends_ms:
            self.now_ms = max(self.now_ms, self.patience.alarm_ms)
            assert self.patience.is_due
            slow += self.patience.too_slow(counts=counts)
        self.now_ms = ends_ms
        return slow


def test_nobody_wakes_anybody_while_nothing_is_half_said() -> None:
    watch = Watch()
    assert not watch.patience.note(Somebody(None))
    assert watch.patience.alarm_ms is None
    assert not watch.patience.is_due


def test_a_line_has_ten_seconds() -> None:
    watch = Watch()
    speaker = Somebody(0)
    assert watch.patience.note(speaker)
    assert not watch.after(LINE_HALF_SAID_S_MAX + 0.999)
    assert watch.after(0.001) == [speaker]
    assert watch.patience.is_too_slow(speaker)


def test_a_handshake_has_as_long_as_a_line() -> None:
    assert TLS_HANDSHAKE_MS == LINE_HALF_SAID_S_MAX * 1_000


def test_what_has_ended_in_time_is_forgotten() -> None:
    watch = Watch()
    speaker = Somebody(0)
    watch.patience.note(speaker)
    watch.after(10)
    speaker.incomplete_bytes = None
    assert not watch.patience.note(speaker)
    assert watch.patience.alarm_ms is None
    assert not watch.patience.is_too_slow(speaker)


def test_a_byte_more_of_the_same_line_wins_no_time_and_the_next_line_does() -> None:
    watch = Watch()
    dripping, talking = Somebody(0), Somebody(0)
    for _ in range(10):
        watch.patience.note(dripping)
        watch.patience.note(talking, has_moved=True)
        assert not watch.after(1)
    assert watch.after(1) == [dripping]


def test_a_body_may_take_as_long_as_its_pace_allows() -> None:
    watch = Watch()
    size = 30 * LINE_BODY_BYTES_PER_S_MIN
    speaker = Somebody(size)
    watch.patience.note(speaker)
    for second in range(1, 30):
        speaker.incomplete_bytes = size - second * LINE_BODY_BYTES_PER_S_MIN
        watch.patience.note(speaker)
        assert not watch.after(1)
    assert not watch.after(1)
    assert watch.after(1) == [speaker]


def test_a_body_that_drips_has_ten_seconds() -> None:
    watch = Watch()
    speaker = Somebody(1_000)
    watch.patience.note(speaker)
    assert not watch.after(10)
    speaker.incomplete_bytes = 999
    watch.patience.note(speaker)
    assert watch.after(1) == [speaker]


@pytest.mark.parametrize(
    ("size", "seconds"),
    [
        (3_900_000, LINE_BODY_IN_ALL_S),
        (1 << 30, (1 << 30) // LINE_BODY_BYTES_PER_S_IN_ALL),
    ],
)
def test_whatever_its_pace_a_body_has_to_end(size: int, seconds: int) -> None:
    watch = Watch()
    speaker = Somebody(size)
    watch.patience.note(speaker)
    speaker.incomplete_bytes = 1
    assert not watch.after(seconds)
    assert watch.after(1) == [speaker]


def test_a_body_begins_anew_where_the_line_has_ended() -> None:
    watch = Watch()
    speaker = Somebody(0)
    watch.patience.note(speaker)
    watch.after(9)
    speaker.incomplete_bytes = 500
    watch.patience.note(speaker)
    assert not watch.after(10)
    assert watch.after(1) == [speaker]


def test_seconds_in_which_nobody_listened_do_not_count() -> None:
    watch = Watch()
    speaker = Somebody(0)
    watch.patience.note(speaker)
    assert not watch.after(5)
    assert not watch.after(30, counts=False)
    watch.now_ms += 60_000  # one long turn
    assert not watch.after(4)
    assert watch.after(1) == [speaker]


def test_who_is_not_read_from_has_all_the_time() -> None:
    watch = Watch()
    speaker = Somebody(0)
    speaker.is_heard = False
    watch.patience.note(speaker)
    assert not watch.after(100)
    speaker.is_heard = True
    assert not watch.after(10)
    assert watch.after(1) == [speaker]


def test_answers_come_when_they_are_to_and_in_order() -> None:
    watch = Watch()
    given: list[int] = []
    for number in range(3):
        watch.patience.postpone(1_000, partial(given.append, number))
        watch.now_ms += 100
    assert watch.patience.alarm_ms == 6_000
    assert watch.patience.wait_s(None) == 0.7
    assert watch.patience.wait_s(0.5) == 0.5
    watch.now_ms = 6_000
    assert watch.patience.is_due
    for answer in watch.patience.answers():
        answer()
    assert given == [0]
    watch.now_ms = 9_000
    assert watch.patience.wait_s(None) == 0
    for answer in watch.patience.answers():
        answer()
    assert given == [0, 1, 2]
    assert watch.patience.alarm_ms is None


def test_an_answer_and_a_slow_client_wake_each_at_its_time() -> None:
    watch = Watch()
    watch.patience.note(Somebody(0))
    watch.now_ms += 600
    watch.patience.postpone(1_000, lambda: None)
    assert watch.patience.alarm_ms == 6_000
    watch.now_ms = 6_000
    assert not watch.patience.too_slow()
    assert watch.patience.alarm_ms == 6_600
