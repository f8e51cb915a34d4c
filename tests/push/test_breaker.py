"""The circuit breaker of a place: closed, open, half-open."""

from typing import Final

import pytest

from delayd.limits import BREAKER_FAILURES, BREAKER_OPEN_MS, BREAKER_OPEN_MS_MAX
from delayd.push.breaker import Breaker, BreakerState

CLOSED, OPEN, HALF_OPEN = BreakerState
NOW_MS: Final = 50_000


def failing(times: int = BREAKER_FAILURES, now_ms: int = NOW_MS) -> Breaker:
    """A breaker after so many failures in a row."""
    breaker = Breaker()
    for _ in range(times):
        breaker.fail(breaker.begin(now_ms), now_ms)
    return breaker


def test_one_failure_less_than_the_limit_leaves_it_closed() -> None:
    breaker = failing(BREAKER_FAILURES - 1)
    assert (breaker.state, breaker.may_begin(NOW_MS)) == (CLOSED, True)


def test_as_many_failures_in_a_row_as_the_limit_open_it() -> None:
    breaker = failing()
    assert breaker.state is OPEN
    assert not breaker.may_begin(NOW_MS + BREAKER_OPEN_MS - 1)
    assert breaker.may_begin(NOW_MS + BREAKER_OPEN_MS)


def test_a_success_in_between_begins_the_row_anew() -> None:
    breaker = failing(BREAKER_FAILURES - 1)
    breaker.succeed()
    for _ in range(BREAKER_FAILURES - 1):
        breaker.fail(breaker.begin(NOW_MS), NOW_MS)
    assert breaker.state is CLOSED


def test_when_its_time_is_over_one_probe_is_made_and_no_second() -> None:
    breaker = failing()
    later_ms = NOW_MS + BREAKER_OPEN_MS
    assert breaker.begin(later_ms)
    assert (breaker.state, breaker.may_begin(later_ms + 3_600_000)) == (HALF_OPEN, False)


def test_a_probe_that_succeeds_closes_it_and_the_next_failures_begin_at_one_second() -> None:
    breaker = failing()
    breaker.begin(NOW_MS + BREAKER_OPEN_MS)
    breaker.succeed()
    assert (breaker.state, breaker.is_untroubled) == (CLOSED, True)
    for _ in range(BREAKER_FAILURES):
        breaker.fail(breaker.begin(NOW_MS), NOW_MS)
    assert breaker.opens_again_ms == NOW_MS + BREAKER_OPEN_MS


def test_each_probe_that_fails_doubles_the_time_up_to_the_longest() -> None:
    breaker = failing()
    now_ms = NOW_MS
    open_ms = []
    for _ in range(9):
        open_ms.append(breaker.opens_again_ms - now_ms)
        now_ms = breaker.opens_again_ms
        assert breaker.begin(now_ms)
        breaker.fail(True, now_ms)
    assert open_ms == [1_000, 2_000, 4_000, 8_000, 16_000, 32_000, *[BREAKER_OPEN_MS_MAX] * 3]


def test_a_failure_of_before_it_opened_changes_nothing() -> None:
    breaker = failing()
    breaker.fail(False, NOW_MS + 500)
    assert breaker.opens_again_ms == NOW_MS + BREAKER_OPEN_MS
    breaker.begin(NOW_MS + BREAKER_OPEN_MS)
    breaker.fail(False, NOW_MS + BREAKER_OPEN_MS)
    assert breaker.state is HALF_OPEN, "the probe alone decides"


def test_a_success_of_before_it_opened_closes_it() -> None:
    breaker = failing()
    breaker.succeed()
    assert breaker.may_begin(NOW_MS)


def test_a_probe_without_a_result_lets_the_next_one_begin_at_once() -> None:
    breaker = failing()
    later_ms = NOW_MS + BREAKER_OPEN_MS
    breaker.give_up(breaker.begin(later_ms), later_ms)
    assert breaker.begin(later_ms), "and that is a probe again"
    breaker.fail(True, later_ms)
    assert breaker.opens_again_ms == later_ms + 2 * BREAKER_OPEN_MS


def test_what_ends_without_a_result_and_is_no_probe_changes_nothing() -> None:
    breaker = failing()
    breaker.give_up(False, NOW_MS)
    assert not breaker.may_begin(NOW_MS)
    assert (breaker.state, breaker.failures) == (OPEN, BREAKER_FAILURES)
    breaker.begin(NOW_MS + BREAKER_OPEN_MS)
    breaker.give_up(False, NOW_MS + BREAKER_OPEN_MS)
    assert breaker.state is HALF_OPEN, "the probe is still under way"


def test_no_attempt_begins_while_it_is_open() -> None:
    breaker = failing()
    with pytest.raises(AssertionError, match="no attempt may begin"):
        breaker.begin(NOW_MS)
