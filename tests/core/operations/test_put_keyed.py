"""Keys: how they are spelled, runs of them, want of room, and clears. Conflicts: the facts."""

# ruff: noqa: ANN401 - options go to the operations as they are

from typing import Any, Final

import pytest

from delayd.core.errors import (
    BodyTooBig,
    Draining,
    JobAlreadyExists,
    KeyInvalid,
    KeyNotFound,
    OutOfSpace,
    Refusal,
    ValueOutOfRange,
)  # fmt: skip
from delayd.core.job_parts import Own, Retry
from delayd.core.job_record import State
from delayd.core.names import checked_key
from delayd.core.operations.put import Conflict, Outcome, find_key, put_keyed_run
from delayd.core.session import Session
from delayd.limits import EMERGENCY_BYTES
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import TTR_MS, EngineRig

KEY: Final = b"order-17"
HOUR_MS: Final = 3_600_000
WAITING: Final = (State.DELAYED, State.READY, State.BURIED)


def run(rig: EngineRig, keys: list[bytes], delay_ms: int = HOUR_MS) -> int:
    """Put a job under each of the keys at once."""
    numbers = (3, delay_ms, TTR_MS, keys, keys, rig.now_ms)
    return put_keyed_run(rig.engine, rig.engine.store.topic("default"), *numbers)


def job_in(state: State) -> tuple[EngineRig, Session]:
    """A daemon with one keyed job in that state, and the one who works on it."""
    rig = EngineRig()
    worker = rig.client()
    rig.put_keyed(KEY, delay_ms=HOUR_MS if state is State.DELAYED else 0)
    if state in {State.RESERVED, State.BURIED}:
        assert rig.reserve(worker) == 1
    if state is State.BURIED:
        rig.bury(worker, 1, 5)
    rig.take_log()
    return rig, worker


def refused(
    rig: EngineRig, refusal: type[Refusal], on: Conflict = Conflict.REJECT, **what: Any
) -> None:
    with pytest.raises(refusal):
        rig.put_keyed(KEY, on, **what)


def test_jobs_put_by_name_are_the_same_one_by_one_and_in_a_run() -> None:
    names = [b"k%d" % number for number in range(100)]
    in_a_run, one_by_one = EngineRig(), EngineRig()
    assert run(in_a_run, names) == 1
    for name in names:
        one_by_one.put_keyed(name, delay_ms=HOUR_MS, priority=3, body=name)
    for rig in (in_a_run, one_by_one):
        rig.agree_with_the_log()
    assert in_a_run.log == one_by_one.log


@pytest.mark.parametrize("key", [b"a", b"~!", "größe/1".encode(), b"k" * 200, "日本".encode()])
def test_a_key_is_printable_utf_8(rig: EngineRig, key: bytes) -> None:
    assert checked_key(key) == key
    assert rig.put_keyed(key) == (1, Outcome.CREATED)
    assert run(rig, [key, b"other"]) == 0
    assert run(rig, [key + b"1"] if len(key) < 200 else [b"o"]) == 2
    rig.agree_with_the_log()


@pytest.mark.parametrize(
    "key",
    [b"k" * 201, b"a b", b"a\tb", b"\x7f", b"\xff", b"a\0", "a\u00a0b".encode(), b"\xc3", b"\n"],
)
def test_any_other_key_is_refused(rig: EngineRig, key: bytes) -> None:
    with pytest.raises(KeyInvalid, match="be 1 to 200 bytes of printable UTF-8 without spaces"):
        rig.put_keyed(key)
    for keys in ([b"good", key], [key], [b"good", b""]):
        with pytest.raises(KeyInvalid):
            run(rig, keys)
    assert rig.take_log() == (b"", False)
    assert rig.topic().keys is None


def test_keyed_jobs_replaced_five_times_and_cancelled_leave_nothing(rig: EngineRig) -> None:
    me, topic = rig.client(), rig.topic()
    names = [b"customer-%d" % number for number in range(2_000)]
    run(rig, names)
    for _ in range(5):
        for name in names:
            outcome = rig.put_keyed(name, Conflict.REPLACE, delay_ms=HOUR_MS)[1]
            assert outcome is Outcome.REPLACED
    assert topic.jobs == len(names)
    rig.delete(me, *(find_key(rig.engine, "default", name) for name in names))
    assert topic.keys is None
    rig.run(2 * HOUR_MS)
    assert rig.reserve(me) == 0
    check(rig.engine)


@pytest.mark.parametrize("on", Conflict)
def test_what_is_wrong_with_a_put_is_refused_whatever_its_key_means(on: Conflict) -> None:
    rig, _ = job_in(State.DELAYED)
    before = list(canonical(rig.engine))
    refused(rig, BodyTooBig, on, body=b"x" * 65_536)
    for wrong in ("priority", "delay_ms", "due_wall_ms"):
        refused(rig, ValueOutOfRange, on, **{wrong: -1})
    for retry in (Retry((0,) * 256), Retry((-1,)), Retry((1,), 65_536), Retry((1,), 0, 101)):
        refused(rig, ValueOutOfRange, on, own=Own(retry))
    rig.engine.draining = True
    refused(rig, Draining, on)
    assert list(canonical(rig.engine)) == before
    assert rig.take_log() == (b"", False)


@pytest.mark.parametrize("state", [*WAITING, None])
def test_without_space_nothing_happens(state: State | None) -> None:
    rig = job_in(state)[0] if state else EngineRig()
    before = list(canonical(rig.engine))
    rig.engine.log_space.limit(40, lambda *_: -1)
    for on in (Conflict.REPLACE, Conflict.PRESERVE, Conflict.EXTEND):
        refused(rig, OutOfSpace, on, delay_ms=5)
    with pytest.raises(OutOfSpace):
        run(rig, [b"a", b"b"])
    for what in ({"priority": 5}, {"body": b""}) if state else ():
        with pytest.raises(OutOfSpace):
            rig.change(1, **what)
    assert list(canonical(rig.engine)) == before
    assert rig.take_log() == (b"", False)
    check(rig.engine)


def test_a_replacement_leaves_what_puts_leave_to_others() -> None:
    rig, _ = job_in(State.DELAYED)
    rig.engine.log_space.limit(EMERGENCY_BYTES, lambda *_: -1)
    refused(rig, OutOfSpace, Conflict.REPLACE)
    rig.put_keyed(KEY, Conflict.EXTEND)


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_clear_frees_the_keys_of_what_waits_and_leaves_theirs_to_jobs_in_hand(
    is_swept: bool,
) -> None:
    rig, worker = job_in(State.RESERVED)
    topic, cleared = rig.topic(), rig.engine.store.cleared
    names = [b"k%d" % number for number in range(9)]
    run(rig, names)
    rig.clear()
    check(rig.engine)
    while is_swept and cleared.left:
        cleared.sweep(2)
        check(rig.engine)
    assert find_key(rig.engine, "default", KEY) == 1
    refused(rig, JobAlreadyExists)
    with pytest.raises(KeyNotFound):
        find_key(rig.engine, "default", names[0])
    if not is_swept:
        assert run(rig, names[1:3]) == 0
    assert rig.put_keyed(names[1], Conflict.EXTEND) == (11, Outcome.CREATED)
    rig.agree_with_the_log()
    rig.release(worker, 1)
    while cleared.left:
        cleared.sweep(100)
    assert [find_key(rig.engine, "default", name) for name in (KEY, names[1])] == [1, 11]
    assert len(topic.keys or ()) == 2
    rig.agree_with_the_log()
