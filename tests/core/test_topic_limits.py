"""In no second is more handed out than the rate. Single limits: facts.txt."""

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayd.core.errors import DelayTooLong
from delayd.core.operations.tick import next_deadline
from tests.core.check import check
from tests.rigs.engine import EngineRig

if TYPE_CHECKING:
    from delayd.core.session import Session

HOUR_MS: Final = 3_600_000


def test_a_delay_and_a_moment_that_are_too_far_are_told_apart(rig: EngineRig) -> None:
    rig.set_policy(delay_ms_max=HOUR_MS)
    with pytest.raises(DelayTooLong) as refused:
        rig.put(delay_ms=HOUR_MS + 1)
    assert not refused.value.is_moment
    with pytest.raises(DelayTooLong) as refused:
        rig.put(due_wall_ms=HOUR_MS + 1)
    assert refused.value.is_moment


@given(
    st.integers(1, 40),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 400), st.sampled_from(("wait", "batch", "delete", "put")))),
)
def test_in_no_second_is_more_handed_out_than_the_rate_and_a_burst(
    rate: int, reserved_max: int, steps: list[tuple[int, str]]
) -> None:
    rig = EngineRig()
    rig.set_policy("mail", rate_per_s=rate, reserved_max=reserved_max)
    topic = rig.topic("mail")
    sessions: list[Session] = []
    times_ms: list[int] = []
    for pause_ms, doing in steps:
        until_ms = rig.time_ms + pause_ms
        while (next_ms := next_deadline(rig.engine)) is not None and next_ms <= until_ms:
            rig.run(next_ms)
            times_ms += [next_ms] * len(rig.delivered())
        rig.run(until_ms)
        session = rig.client("mail")
        sessions.append(session)
        match doing:
            case "wait":
                rig.wait(session) if topic.blocks or not topic.queues.ready else None
            case "batch":
                times_ms += [rig.time_ms] * len(rig.reserve_all(session))
            case "delete":
                for each in sessions:
                    rig.delete_batch(each, [*each.deadlines])
            case _:
                rig.put_many(10, "mail", ttr_ms=HOUR_MS)
        times_ms += [rig.time_ms] * len(rig.delivered())
        assert sum(len(session.deadlines) for session in sessions) <= reserved_max
        check(rig.engine)
    burst = max(1, rate // 10)
    for first, begins_ms in enumerate(times_ms):
        within = sum(time_ms <= begins_ms + 1_000 for time_ms in times_ms[first:])
        assert within <= rate + burst
