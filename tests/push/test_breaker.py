"""Circuit breakers, of a topic at a host and of the host: closed, open, half-open."""

from typing import Final

import pytest

from delayd.limits import (
    BREAKER_FAILURES,
    BREAKER_FIRST_PROBE_MS,
    BREAKER_FIRST_PROBES_MAX,
    BREAKER_OPEN_MS,
    BREAKER_OPEN_MS_MAX,
)
from delayd.push.breaker import Breaker, BreakerState, HostBreaker, Probe, TopicBreaker

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
    assert (breaker.state, breaker.failures) == (CLOSED, 0)
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


# --- Topics at a host ----------------------------------------------------------------------------


def in_doubt() -> tuple[HostBreaker, TopicBreaker]:
    """A host at which all of one topic's attempts have failed."""
    host = HostBreaker()
    topic = TopicBreaker(host)
    for _ in range(BREAKER_FAILURES):
        topic.fail(topic.begin(NOW_MS), NOW_MS)
    return host, topic


def test_failures_of_several_topics_in_a_row_put_the_host_in_doubt() -> None:
    host = HostBreaker()
    topics = [TopicBreaker(host) for _ in range(BREAKER_FAILURES)]
    for topic in topics:
        assert not host.is_in_doubt
        topic.fail(topic.begin(NOW_MS), NOW_MS)
    assert host.is_in_doubt
    assert [topic.state for topic in topics] == [CLOSED] * BREAKER_FAILURES


def test_a_host_that_answers_one_topic_is_not_in_doubt_for_what_fails_of_another() -> None:
    host = HostBreaker()
    bad, good = TopicBreaker(host), TopicBreaker(host)
    for _ in range(BREAKER_FAILURES):
        good.succeed(good.begin(NOW_MS), NOW_MS)
        bad.fail(bad.begin(NOW_MS), NOW_MS)
    assert (bad.state, host.is_in_doubt) == (OPEN, False)
    for _ in range(100):
        now_ms = bad.breaker.opens_again_ms
        assert not bad.may_begin(now_ms - 1)
        assert bad.begin(now_ms) is Probe.OF_TOPIC
        bad.fail(Probe.OF_TOPIC, now_ms)
    assert not host.is_in_doubt, "nothing new is known of it"


def test_a_topic_that_has_not_failed_makes_one_probe_and_one_failure_opens_its_breaker() -> None:
    host, _ = in_doubt()
    topic = TopicBreaker(host)
    assert topic.begin(NOW_MS) is Probe.FIRST
    assert not topic.may_begin(NOW_MS + 3_600_000)
    topic.fail(Probe.FIRST, NOW_MS)
    assert topic.state is OPEN


def test_topics_that_have_not_failed_begin_one_after_the_other_or_each_after_a_second() -> None:
    host, _ = in_doubt()
    first, second = TopicBreaker(host), TopicBreaker(host)
    first.begin(NOW_MS)
    assert not second.may_begin(NOW_MS + BREAKER_FIRST_PROBE_MS - 1)
    assert second.may_begin(NOW_MS + BREAKER_FIRST_PROBE_MS)
    first.give_up(Probe.FIRST, NOW_MS)
    assert second.may_begin(NOW_MS)


def test_so_many_of_them_begin_at_once_and_no_more() -> None:
    host, _ = in_doubt()
    for number in range(BREAKER_FIRST_PROBES_MAX):
        TopicBreaker(host).begin(NOW_MS + number * BREAKER_FIRST_PROBE_MS)
    assert host.next_first_ms is None
    assert not TopicBreaker(host).may_begin(NOW_MS + 3_600_000)


def test_topics_that_have_failed_share_one_probe_which_keeps_no_other_from_seeing_for_itself() -> (
    None
):
    host, topic = in_doubt()
    other = TopicBreaker(host)
    other.fail(other.begin(NOW_MS), NOW_MS)
    later_ms = NOW_MS + BREAKER_OPEN_MS
    assert not other.may_begin(later_ms - 1)
    assert (topic.begin(later_ms), other.may_begin(later_ms)) == (Probe.OF_HOST, False)
    assert TopicBreaker(host).may_begin(later_ms)
    topic.fail(Probe.OF_HOST, later_ms)
    assert not other.may_begin(later_ms + 2 * BREAKER_OPEN_MS - 1)
    assert other.begin(later_ms + 2 * BREAKER_OPEN_MS) is Probe.OF_HOST


def test_after_an_answer_each_topic_that_has_failed_may_make_a_probe_and_then_waits_by_itself() -> (
    None
):
    host, topic = in_doubt()
    good = TopicBreaker(host)
    good.succeed(good.begin(NOW_MS + 1), NOW_MS + 1)
    assert topic.begin(NOW_MS + 1) is Probe.OF_TOPIC
    topic.fail(Probe.OF_TOPIC, NOW_MS + 2)
    assert not topic.may_begin(NOW_MS + 2)
    assert topic.may_begin(NOW_MS + 2 + 2 * BREAKER_OPEN_MS)
    assert good.begin(NOW_MS + 2) is Probe.NONE


def test_a_probe_for_all_without_a_result_lets_the_next_one_begin_at_once() -> None:
    host, topic = in_doubt()
    later_ms = NOW_MS + BREAKER_OPEN_MS
    topic.give_up(topic.begin(later_ms), later_ms)
    assert topic.begin(later_ms) is Probe.OF_HOST
    assert host.breaker.state is HALF_OPEN


def test_a_probe_for_all_that_fails_after_the_host_has_answered_is_its_topics_alone() -> None:
    host, topic = in_doubt()
    later_ms = NOW_MS + BREAKER_OPEN_MS
    probe = topic.begin(later_ms)
    good = TopicBreaker(host)
    good.succeed(good.begin(later_ms), later_ms)
    topic.fail(probe, later_ms)
    assert (topic.state, host.is_in_doubt, host.breaker.failures) == (OPEN, False, 0)
