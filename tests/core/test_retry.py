"""Jitter and ticks of what becomes of a failed attempt. What rules do: the facts."""

from hypothesis import given
from hypothesis import strategies as st

from delayd.core.job_parts import Retry, tally_of
from delayd.core.retry import step_ms
from delayd.limits import DURATION_MS_MAX
from tests.rigs.engine import EngineRig

EXTRA_MS = [5665, 5911, 1134, 4314]


def test_deadlines_are_rounded_up_to_the_tick() -> None:
    rig = EngineRig(tick_ms=1_000)
    rig.set_policy(retry_ms=(15_001,))
    me = rig.client()
    rig.nack(me, rig.put() and rig.reserve(me))
    assert (rig.view(1).left_ms, tally_of(rig.record(1)).delay_ms) == (16_000, 15_001)


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
