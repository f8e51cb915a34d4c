"""Throttles: never faster than the rate and a burst, never slower than the rate, never stuck."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.core.throttle import BOUNDLESS, Throttle
from delayd.limits import RATE_BURST_MS

RATES = st.integers(1, 1_000_000) | st.floats(0.001, 1e6)


def test_without_limits_everything_is_allowed() -> None:
    throttle = Throttle(None, None)
    throttle.take(10**6, 0)
    assert throttle.allowed(10**6, 0) == BOUNDLESS
    assert not throttle.is_full(10**6)


def test_no_more_jobs_are_held_than_may_be() -> None:
    throttle = Throttle(3, None)
    assert [throttle.allowed(held, 0) for held in (0, 2, 3, 9)] == [3, 1, 0, 0]
    assert [throttle.is_full(held) for held in (0, 2, 3, 9)] == [False, False, True, True]


@pytest.mark.parametrize(("rate", "burst"), [(0.01, 1), (1, 1), (19, 1), (20, 2), (5_000, 500)])
def test_a_rest_is_worth_a_tenth_of_a_second_and_one_job_at_least(rate: float, burst: int) -> None:
    throttle = Throttle(None, rate)
    assert throttle.allowed(0, 10**9) == burst


def test_a_rate_that_is_no_round_number_is_met_to_a_millionth() -> None:
    throttle = Throttle(None, 700_000)
    for time_ms in range(1, 1_001):
        throttle.take(throttle.allowed(0, time_ms), time_ms)
    # From the first millisecond's burst of 100 ms to the last: 1.099 s worth.
    assert abs(throttle.arrival_ns - (1_000 + RATE_BURST_MS) * 1_000_000) < 2 * 1_429


@given(
    RATES,
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 10_000)), min_size=1, max_size=40),
)
def test_in_no_window_is_more_handed_out_than_the_rate_and_a_burst(
    rate: float, steps: list[tuple[int, int]]
) -> None:
    throttle = Throttle(None, rate)
    burst = throttle.allowed(0, 0)
    times_ms = [*accumulate(pause_ms for pause_ms, _ in steps)]
    taken = []
    for time_ms, (_, wanted) in zip(times_ms, steps, strict=True):
        allowed = min(wanted, throttle.allowed(0, time_ms))
        throttle.take(allowed, time_ms)
        taken.append(allowed)
    for first in range(len(steps)):
        for last in range(first, len(steps)):
            window_s = (times_ms[last] - times_ms[first]) / 1_000
            assert sum(taken[first : last + 1]) <= rate * window_s * (1 + 1e-9) + burst + 1e-6


@given(RATES, st.integers(1, 10**9), st.integers(1, 2_000), st.sampled_from((1, 7, 1_000)))
def test_the_next_job_is_allowed_when_it_says_so_and_not_a_tick_before(
    rate: float, time_ms: int, taken: int, tick_ms: int
) -> None:
    throttle = Throttle(None, rate)
    throttle.take(taken, time_ms)
    next_ms = throttle.next_ms(tick_ms)
    assert next_ms % tick_ms == 0
    assert throttle.allowed(0, max(next_ms, time_ms)) >= 1
    if next_ms - tick_ms >= time_ms:
        assert throttle.allowed(0, next_ms - tick_ms) == 0


@given(RATES, RATES, st.integers(0, 10**9), st.integers(0, 5_000))
def test_a_change_of_rate_neither_lets_more_through_at_once_nor_waits_for_the_old_rate(
    old: float, new: float, time_ms: int, taken: int
) -> None:
    before, after = Throttle(None, old), Throttle(None, new)
    burst = after.allowed(0, 0)
    before.take(taken, time_ms)
    after.go_on_from(before, time_ms)
    assert after.allowed(0, time_ms) <= burst
    waits_ms = after.next_ms(1) - time_ms
    assert waits_ms <= 1_000 / new + 1
    if not before.allowed(0, time_ms) and before.next_ms(1) - time_ms > 1_000 / new + 1:
        assert not after.allowed(0, time_ms)


def test_a_topic_that_had_no_rate_begins_with_a_burst() -> None:
    before, after = Throttle(5, None), Throttle(5, 10)
    before.take(100, 1_000)
    after.go_on_from(before, 1_000)
    assert after.allowed(0, 1_000) == 1
