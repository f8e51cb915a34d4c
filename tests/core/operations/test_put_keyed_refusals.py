"""Keys where something stands in the way: what is wrong with a put, want of room, caps, clears."""

import pytest

from delayd.core.errors import (
    BodyTooBig,
    Draining,
    JobAlreadyExists,
    KeyNotFound,
    OutOfSpace,
    Refusal,
    ValueOutOfRange,
)
from delayd.core.job_parts import Retry
from delayd.core.job_record import State
from delayd.core.operations.attempts import release
from delayd.core.operations.change import change
from delayd.core.operations.put import Conflict, Outcome, find_key, put_keyed_run
from delayd.core.operations.topics import clear
from delayd.core.times import RequestMs
from delayd.limits import EMERGENCY_BYTES
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.operations.test_put_keyed import (
    HOUR_MS,
    KEY,
    WAITING,
    agree_with_the_log,
    job_in,
    put,
)
from tests.rigs.engine import TTR_MS, EngineRig


@pytest.mark.parametrize("on", Conflict)
@pytest.mark.parametrize(
    ("refusal", "wrong"),
    [
        (BodyTooBig, {"body": b"x" * 65_536}),
        (ValueOutOfRange, {"priority": -1}),
        (ValueOutOfRange, {"delay_ms": -1}),
        (ValueOutOfRange, {"due_wall_ms": -1}),
        (ValueOutOfRange, {"retry": Retry((0,) * 256)}),
        (ValueOutOfRange, {"retry": Retry((-1,))}),
        (ValueOutOfRange, {"retry": Retry((1,), 65_536)}),
        (ValueOutOfRange, {"retry": Retry((1,), 0, 101)}),
    ],
)
def test_what_is_wrong_with_a_put_is_refused_whatever_its_key_means(
    on: Conflict, refusal: type[Refusal], wrong: dict[str, int]
) -> None:
    rig, _ = job_in(State.DELAYED)
    before = list(canonical(rig.engine))
    with pytest.raises(refusal):
        put(rig, on=on, **wrong)  # type: ignore[arg-type]
    rig.engine.draining = True
    with pytest.raises(Draining):
        put(rig, on=on)
    assert list(canonical(rig.engine)) == before
    assert rig.take_log() == (b"", False)


@pytest.mark.parametrize("state", [*WAITING, None])
@pytest.mark.parametrize("on", [Conflict.REPLACE, Conflict.PRESERVE, Conflict.EXTEND])
def test_without_space_nothing_happens(state: State | None, on: Conflict) -> None:
    rig = job_in(state)[0] if state else EngineRig()
    topic = rig.engine.store.topics.by_name["default"]
    before = list(canonical(rig.engine))
    rig.engine.log_space.limit(40, lambda *_: -1)
    with pytest.raises(OutOfSpace):
        put(rig, on=on, delay_ms=5)
    with pytest.raises(OutOfSpace):
        put_keyed_run(rig.engine, topic, 0, 0, 9, [b"a", b"b"], [b"", b""], RequestMs(0))
    if state:
        with pytest.raises(OutOfSpace):
            change(rig.engine, 1, rig.now_ms, priority=5)
        with pytest.raises(OutOfSpace):
            change(rig.engine, 1, rig.now_ms, body=b"")
    assert list(canonical(rig.engine)) == before
    assert rig.take_log() == (b"", False)
    check(rig.engine)


def test_a_replacement_leaves_what_puts_leave_to_others() -> None:
    rig, _ = job_in(State.DELAYED)
    rig.engine.log_space.limit(EMERGENCY_BYTES, lambda *_: -1)
    with pytest.raises(OutOfSpace):
        put(rig, on=Conflict.REPLACE)
    put(rig, on=Conflict.EXTEND)


@pytest.mark.parametrize("is_swept", [False, True])
def test_a_clear_frees_the_keys_of_what_waits_and_leaves_theirs_to_jobs_in_hand(
    is_swept: bool,
) -> None:
    rig, worker = job_in(State.RESERVED)
    store = rig.engine.store
    topic = store.topics.by_name["default"]
    names = [b"k%d" % number for number in range(9)]
    put_keyed_run(rig.engine, topic, 0, HOUR_MS, TTR_MS, names, names, RequestMs(0))
    clear(rig.engine, topic)
    check(rig.engine)
    while is_swept and store.cleared.left:
        store.cleared.sweep(2)
        check(rig.engine)
    assert find_key(rig.engine, "default", KEY) == 1
    with pytest.raises(JobAlreadyExists):
        put(rig)
    with pytest.raises(KeyNotFound):
        find_key(rig.engine, "default", names[0])
    if not is_swept:
        assert (
            put_keyed_run(rig.engine, topic, 0, 0, TTR_MS, names[1:3], names[1:3], RequestMs(0))
            == 0
        )
    assert put(rig, names[1], Conflict.EXTEND) == (11, Outcome.CREATED)
    agree_with_the_log(rig)
    release(rig.engine, worker, 1, 0, 0, rig.now_ms)
    while store.cleared.left:
        store.cleared.sweep(100)
    assert {name: find_key(rig.engine, "default", name) for name in (KEY, names[1])} == {
        KEY: 1,
        names[1]: 11,
    }
    assert len(topic.keys or ()) == 2
    agree_with_the_log(rig)
