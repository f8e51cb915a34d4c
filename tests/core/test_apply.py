"""What records do to a store, and which are refused. Those of operations: the facts."""

from collections.abc import Callable
from typing import Final

import pytest

from delayd.core import apply
from delayd.core.job_parts import Flag
from delayd.core.job_record import HEADER, State
from delayd.core.log_records import Kind
from delayd.core.store import Store
from delayd.core.times import PlayedMs
from tests.rigs.engine import TTR_MS


def test_there_is_a_function_for_each_kind_but_the_one_that_plays_time() -> None:
    assert set(apply.APPLY) == set(Kind) - {Kind.TURN}


WITH_WORD: Final = HEADER.pack(7, 500, 0, TTR_MS, 3, 1, State.READY, Flag.MORE) + b"\1\x80\1\0x"
"""A job with further parts, which must have been announced."""


def store_with(state: State, flags: Flag = Flag.NONE) -> Store:
    store = Store(tick_ms=1, wheel_size=20, start_ms=PlayedMs(0))
    apply.topic(store, 1, b"mail")
    apply.put(store, HEADER.pack(7, 500, 0, TTR_MS, 3, 1, state, flags))
    return store


@pytest.mark.parametrize(
    ("carry_out", "why"),
    [
        (lambda store: apply.kick(store, 8), "names job 8, which is not there"),
        (lambda store: apply.appoint(store, 7, 9, 9, 9), "no record says where the time of 7 is"),
        (lambda store: apply.rank(store, 7, 1), "job 7 has a rank and is not buried"),
        (lambda store: apply.clear(store, 1, 1), "topic 1 is there already"),
        (
            lambda store: apply.parts(store, 1 << 14),
            "parts that this version does not know: 0x4000",
        ),
        (
            lambda store: apply.rewrite(store, WITH_WORD),
            "no record says which parts job 7 may have",
        ),
    ],
)
def test_a_record_that_does_not_fit_is_refused(
    carry_out: Callable[[Store], object], why: str
) -> None:
    with pytest.raises(AssertionError, match=why):
        carry_out(store_with(State.DELAYED))


def test_a_job_that_is_reserved_is_not_changed() -> None:
    store = store_with(State.READY)
    apply.reserve(store, 7, 1_000)
    assert store.leases.sessions == {7: store.orphans}
    with pytest.raises(AssertionError, match="held and cannot be changed"):
        apply.amend(store, 7, 500, 500, 0, 9, 3, State.DELAYED)
