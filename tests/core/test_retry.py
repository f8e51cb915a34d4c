"""What becomes of a failed attempt: by its rule and its number, and the same for ever."""

from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from delayd.core.job_parts import FAILURE, TALLY, Flag, Note, Reason, Retry
from delayd.core.job_record import HEADER, State
from delayd.core.policy import Policy, parse_ladder
from delayd.core.retry import RetryDecision, decide, is_exhausted, rule_for, step_ms
from delayd.core.transitions import with_note
from delayd.limits import DURATION_MS_MAX

LADDER_MS: Final = parse_ladder("15s 3m 10m 30m 30m 1h 2h 6h 15h")
EXTRA_MS = [5665, 5911, 1134, 4314]


def job(attempt: int, *, was_moved: bool = False) -> bytes:
    """Return the record of job 7 that is held for that attempt."""
    flags = Flag.TALLY | Flag.FAILURE
    head = HEADER.pack(7, 0, 0, 9, 5, 1, State.READY, flags)
    record = head + TALLY.pack(0, attempt - 1, 0, 0, 0, 0) + FAILURE.pack(Reason.NACKED, 0, 0)
    return with_note(record, Note(origin="mail")) if was_moved else record


def judged(
    record: bytes,
    rule: Retry,
    failed_ms: int,
    *,
    tick_ms: int = 1,
    delay_ms: int = 0,
    target: int = 0,
) -> RetryDecision:
    """Decide, and assert that the outcome says what has failed."""
    outcome = decide(
        *(record, rule, Reason.NACKED, failed_ms), tick_ms=tick_ms, delay_ms=delay_ms, target=target
    )
    assert (outcome.job_id, outcome.failed_ms, outcome.priority) == (7, failed_ms, 5)
    assert outcome.reason == Reason.NACKED
    return outcome


def fate(outcome: RetryDecision) -> tuple[int, int, int, int]:
    return outcome.state, outcome.due_ms, outcome.delay_ms, outcome.target


def test_each_failed_attempt_waits_for_the_next_step_and_the_one_after_the_last_is_buried() -> None:
    rule = Retry(LADDER_MS)
    for number, wait_ms in enumerate(LADDER_MS, 1):
        again = judged(job(number), rule, 1_000)
        assert fate(again) == (State.DELAYED, 1_000 + wait_ms, wait_ms, 0)
    last = judged(job(len(LADDER_MS) + 1), rule, 1_000)
    assert fate(last) == (State.BURIED, 1_000, 0, 0)


def test_a_delay_of_the_holders_own_takes_the_place_of_the_step_and_counts_all_the_same() -> None:
    rule = Retry((15_000,))
    assert fate(judged(job(1), rule, 0, delay_ms=5)) == (State.DELAYED, 5, 5, 0)
    assert judged(job(2), rule, 0, delay_ms=5).state == State.BURIED


def test_deadlines_are_rounded_up_to_the_tick() -> None:
    outcome = judged(job(1), Retry((15_001,)), 100, tick_ms=1_000)
    assert (outcome.due_ms, outcome.delay_ms) == (16_000, 15_001)


def test_attempts_are_bounded_without_a_ladder_and_then_follow_each_other_at_once() -> None:
    rule = Retry(attempts_max=3)
    states = [judged(job(number), rule, 0).state for number in (1, 2, 3, 4)]
    assert states == [State.READY, State.READY, State.BURIED, State.BURIED]


def test_whichever_of_steps_and_attempts_is_used_up_first_ends_it() -> None:
    assert [is_exhausted(Retry((1, 2, 3), 2), n) for n in (1, 2, 3)] == [False, True, True]
    assert [is_exhausted(Retry((1, 2), 9), n) for n in (1, 2, 3)] == [False, False, True]


def test_an_exhausted_job_is_moved_once_and_buried_the_next_time() -> None:
    rule = Retry(attempts_max=1)
    first = judged(job(1), rule, 10, target=3)
    second = judged(job(1, was_moved=True), rule, 10, target=3)
    assert fate(first) == (State.READY, 10, 0, 3)
    assert fate(second) == (State.BURIED, 10, 0, 0)


def test_a_jobs_own_ladder_replaces_its_topics_rule_as_a_whole() -> None:
    policy = Policy(retry_ms=(1, 2, 3), attempts_max=2, jitter_percent=50)
    own = Retry((9, 9, 9, 9))
    assert rule_for(own, policy) == own
    assert rule_for(own, None) == own
    assert rule_for(None, policy) == policy.rule
    assert rule_for(None, None) is None
    assert rule_for(None, Policy(jobs_max=1)) is None


def test_a_job_that_only_brings_its_attempts_climbs_its_topics_ladder() -> None:
    own = Retry(attempts_max=3)
    assert rule_for(own, Policy(retry_ms=(1, 2, 3, 4), jitter_percent=5)) == Retry(
        (1, 2, 3, 4), 3, 5
    )
    assert rule_for(own, Policy(jobs_max=1)) == own


@given(
    st.integers(1, 2**64 - 1),
    st.integers(1, 9),
    st.integers(1, 100),
    st.integers(1, DURATION_MS_MAX),
)
def test_jitter_only_lengthens_and_never_beyond_its_share(
    job_id: int, attempt: int, percent: int, wait_ms: int
) -> None:
    rule = Retry((wait_ms,) * 9, jitter_percent=percent)
    waits_ms = step_ms(rule, job_id, attempt)
    assert wait_ms <= waits_ms <= min(DURATION_MS_MAX, wait_ms + wait_ms * percent // 100)
    assert waits_ms == step_ms(rule, job_id, attempt)


def test_jitter_spreads_neighbours_evenly_and_never_changes() -> None:
    rule = Retry((100_000, 100_000), jitter_percent=10)
    extra_ms = [step_ms(rule, job_id, 1) - 100_000 for job_id in range(1, 10_001)]
    tenths = [sum(ms // 1_000 == tenth for ms in extra_ms) for tenth in range(10)]
    assert all(900 < count < 1_100 for count in tenths)
    assert extra_ms != [step_ms(rule, job_id, 2) - 100_000 for job_id in range(1, 10_001)]
    # What journals of today were played with must be what they are played with for ever.
    assert extra_ms[:4] == EXTRA_MS
