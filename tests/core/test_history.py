"""The history of a job: its last failed attempts, kept through restarts and copies."""

import pytest

from delayd.core.engine import Engine
from delayd.core.job_parts import (
    ATTEMPT,
    Attempt,
    AttemptOutcome,
    Flag,
    Reason,
    further_of,
    history_of,
    longer_history,
    pack_history,
    with_parts,
)
from delayd.core.job_record import HEADER, State
from delayd.core.log_records import Kind
from delayd.core.operations.sessions import leave
from delayd.core.views import live_record
from delayd.limits import (
    HELD_RETURN_BYTES,
    HISTORY_DEFAULT,
    HISTORY_ERROR_BYTES_MAX,
    HISTORY_MAX,
    HISTORY_WHO_BYTES_MAX,
)
from tests.rigs.engine import EngineRig, kinds_of

RECORD = HEADER.pack(7, 500, 500, 60_000, 3, 1, State.READY, Flag.NONE) + b"hello"


def attempt(number: int, *, who: str = "", error: str = "") -> Attempt:
    return Attempt(1_000 + number, number, Reason.NACKED, AttemptOutcome.READY, who, error)


@pytest.fixture
def rig() -> EngineRig:
    rig = EngineRig()
    rig.set_policy(retry_ms=(1_000,) * 8)
    rig.put(ttr_ms=9_000)
    return rig


def fail(rig: EngineRig, **why: str) -> None:
    me = rig.client()
    me.who = "me"
    rig.nack(me, rig.reserve(me), **why)
    rig.play(rig.time_ms + 1_000)


def history(engine: Engine) -> list[Attempt]:
    return history_of(live_record(engine.store, 1))


@pytest.mark.parametrize("kept", range(5))
def test_of_more_attempts_the_last_ones_are_kept(kept: int) -> None:
    record = with_parts(RECORD, {Flag.HISTORY: b""})
    all_of_them = [attempt(n, who="w" * (n % 3), error="e" * n) for n in range(7)]
    for each in all_of_them:
        record = with_parts(record, {Flag.HISTORY: longer_history(record, each, kept)})
    assert history_of(record) == (all_of_them[-kept:] if kept else [])
    assert (record == RECORD) == (kept == 0)


def test_a_lower_bound_drops_what_is_too_much() -> None:
    record = with_parts(RECORD, {Flag.HISTORY: pack_history(map(attempt, range(9)))})
    record = with_parts(record, {Flag.HISTORY: longer_history(record, attempt(9), 2)})
    assert history_of(record) == [attempt(8), attempt(9)]


def test_the_longest_history_fits_a_part(rig: EngineRig) -> None:
    rig.set_policy(retry_ms=(1_000,) * 99, history=HISTORY_MAX)
    for _ in range(HISTORY_MAX + 1):
        me = rig.client()
        me.who = "ä" * 200
        rig.nack(me, rig.reserve(me), error="ö" * 500)
        rig.play(rig.time_ms + 1_000)
    kept = history(rig.engine)
    assert len(kept) == HISTORY_MAX
    assert len(kept[0].who.encode()) == HISTORY_WHO_BYTES_MAX
    assert len(kept[0].error.encode()) == HISTORY_ERROR_BYTES_MAX
    packed = further_of(live_record(rig.engine.store, 1), Flag.HISTORY)
    entry_bytes = ATTEMPT.size + HISTORY_WHO_BYTES_MAX + HISTORY_ERROR_BYTES_MAX
    assert len(packed) == HISTORY_MAX * entry_bytes < 1 << 16


def test_as_many_are_kept_as_without_a_policy_of_it(rig: EngineRig) -> None:
    for number in range(HISTORY_DEFAULT + 2):
        fail(rig, error=f"no {number}")
    assert [each.error for each in history(rig.engine)] == [
        f"no {number}" for number in range(2, HISTORY_DEFAULT + 2)
    ]
    assert {each.who for each in history(rig.engine)} == {"me"}


def test_in_the_log_space_set_aside_an_attempt_is_kept_without_who_and_how_long(
    rig: EngineRig,
) -> None:
    me = rig.client()
    me.who = "me"
    rig.reserve(me)
    rig.take_log()
    rig.engine.log_space.limit(0, lambda *_: -1)
    leave(rig.engine, me, Reason.HOLDER_LEFT, rig.now_ms)
    payload, _ = rig.take_log()
    assert kinds_of(payload) == [Kind.FAIL]
    assert len(payload) <= HELD_RETURN_BYTES
    assert rig.engine.log_space.free_bytes == 0
    (only,) = history(rig.engine)
    assert (only.reason, only.lasted_ms, only.who) == (Reason.HOLDER_LEFT, 0, "")
