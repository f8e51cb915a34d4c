"""What a record does: live and played into a second engine it leads to the same.

The tuned forms for whole runs are compared with the plain ones in `test_runs`, which also plays the
log of each into a second engine.
"""

from collections.abc import Callable
from typing import Final

import pytest

from delayd.core import apply
from delayd.core.job_parts import Flag, Own
from delayd.core.job_record import HEADER, State
from delayd.core.log_records import Kind
from delayd.core.operations.topics import clear
from delayd.core.policy import Policy
from delayd.core.session import Session
from delayd.core.store import Store
from delayd.core.times import PlayedMs
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import TTR_MS, EngineRig, kinds_of

WALL_MS: Final = 50_000


def touch_later(rig: EngineRig, me: Session) -> None:
    rig.run(1_500)
    rig.touch(me, 1)


# What is done to a rig: jobs 1 and 2 are reserved, 3 is ready, 4 delayed, 5 buried. The kinds that
# it must leave in the log.
OPERATIONS: Final[tuple[tuple[Callable[[EngineRig, Session], object], set[Kind]], ...]] = (
    (lambda rig, _me: rig.put(), {Kind.PUT}),
    (lambda rig, _me: [rig.put("new", delay_ms=9) for _ in range(3)], {Kind.TOPIC, Kind.PUT}),
    (lambda rig, me: rig.reserve(me), {Kind.RESERVE}),
    (lambda rig, me: rig.reserve_job(me, 4), {Kind.RESERVE}),
    (lambda rig, me: rig.reserve_all(me), {Kind.RESERVE}),
    (touch_later, {Kind.TOUCH}),
    (lambda rig, me: rig.release(me, 1, 7, 0), {Kind.RELEASE}),
    (lambda rig, me: rig.release(me, 1, 7, 100), {Kind.RELEASE}),
    (lambda rig, me: rig.close(me), {Kind.RETURN}),
    (lambda rig, me: rig.bury(me, 1, 7), {Kind.BURY}),
    (lambda rig, me: rig.nack(me, 1, error="why"), {Kind.ATTEMPT, Kind.FAIL}),
    (lambda rig, _me: rig.kick_job(5), {Kind.KICK}),
    (lambda rig, _me: rig.kick_later(5, 100), {Kind.KICK, Kind.RESCHEDULE}),
    (lambda rig, _me: rig.reschedule(4, 100), {Kind.RESCHEDULE}),
    (lambda rig, _me: rig.reschedule(4, 0, WALL_MS), {Kind.OFFSET, Kind.APPOINT}),
    (lambda rig, _me: rig.change(5, priority=9), {Kind.AMEND}),
    (lambda rig, _me: rig.change(4, body=b"new"), {Kind.REWRITE}),
    (lambda rig, _me: rig.change(4, own=Own(group=b"g")), {Kind.PARTS, Kind.REWRITE}),
    (lambda rig, _me: rig.bury_waiting(3), {Kind.REWRITE}),
    (lambda rig, _me: rig.bury_waiting(4, error="why"), {Kind.REWRITE}),
    (lambda rig, me: rig.delete(me, 1), {Kind.DELETE}),
    (lambda rig, me: rig.delete_batch(me, (1, 2)), {Kind.DELETE}),
    (lambda rig, me: rig.delete(me, 5), {Kind.DELETE}),
    (lambda rig, _me: rig.pause("default", 500), {Kind.PAUSE}),
    (lambda rig, _me: rig.pause_group("default", b"g", 500), {Kind.PAUSE_GROUP}),
    (
        lambda rig, _me: rig.set_policy("default", Policy(exhausted="dead")),
        {Kind.TOPIC, Kind.POLICY},
    ),
    (lambda rig, _me: clear(rig.engine, rig.engine.store.topic("default")), {Kind.CLEAR}),
)


def five_jobs() -> tuple[EngineRig, Session]:
    rig = EngineRig(time_ms=1_000)
    me = rig.client()
    rig.put_many(5, delay_ms=0)
    rig.reserve_all(me)
    for job_id, delay_ms in ((3, 0), (4, 1_000)):
        rig.release(me, job_id, 0, delay_ms)
    rig.bury(me, 5)
    rig.take_log()
    return rig, me


@pytest.mark.parametrize(("operation", "kinds"), OPERATIONS)
def test_a_second_engine_that_is_given_the_log_is_where_the_first_one_is(
    operation: Callable[[EngineRig, Session], object], kinds: set[Kind]
) -> None:
    rig, me = five_jobs()
    operation(rig, me)
    payload, _ = rig.take_log()
    assert {*kinds_of(payload)} - {Kind.TURN} == kinds
    check(rig.engine)
    again = rig.replayed()
    check(again)
    assert [*canonical(again)] == [*canonical(rig.engine)]


def test_the_operations_above_write_every_kind_but_the_snapshots_own() -> None:
    written = {kind for _, kinds in OPERATIONS for kind in kinds}
    assert written == set(Kind) - {Kind.TURN, Kind.LAST, Kind.RANK}


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
