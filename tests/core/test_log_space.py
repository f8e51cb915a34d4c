"""Space in the log: puts are refused first, then what workers say; removals never are."""

from collections.abc import Callable

import pytest

from delayd.core.engine import Engine
from delayd.core.errors import OutOfSpace
from delayd.core.log_space import (
    PUT_COST_BYTES,
    RESERVE_COST_BYTES,
    TOPIC_COST_BYTES,
    Ask,
    LogSpace,
)
from delayd.core.operations.ack import delete, delete_batch
from delayd.core.operations.attempts import bury, release
from delayd.core.operations.change import bury_waiting, kick_job, reschedule
from delayd.core.operations.reserve import reserve, reserve_batch, reserve_job, touch
from delayd.core.operations.sessions import close_session, open_session
from delayd.core.operations.topics import pause
from delayd.core.session import Session
from delayd.core.times import RequestMs
from delayd.limits import BODY_BYTES_DEFAULT, EMERGENCY_BYTES, LONG_BODY_BYTES
from tests.rigs.engine import kick, put


def none_left(_missing_bytes: int, _body_bytes: int, _places: int) -> int:
    return 0


class Asked:
    """Grants what is asked for, and remembers it."""

    def __init__(self, answer: int | None = None) -> None:
        self.answer = answer
        self.calls: list[tuple[int, int, int]] = []

    def __call__(self, missing_bytes: int, body_bytes: int, places: int) -> int:
        self.calls.append((missing_bytes, body_bytes, places))
        return missing_bytes if self.answer is None else self.answer


def space_of(free_bytes: int, ask: Ask = none_left) -> LogSpace:
    space = LogSpace()
    space.limit(free_bytes, ask)
    return space


def test_without_a_journal_space_is_boundless() -> None:
    space = LogSpace()
    space.take_for_puts(10**9, 10**9 // 2)
    space.take(10**12)


def test_a_put_leaves_the_emergency_space_and_a_removal_does_not() -> None:
    cost_bytes = PUT_COST_BYTES + 2 * 100 + TOPIC_COST_BYTES
    space_of(EMERGENCY_BYTES + cost_bytes).take_for_puts(1, 100)
    space = space_of(EMERGENCY_BYTES + cost_bytes - 1)
    with pytest.raises(OutOfSpace):
        space.take_for_puts(1, 100)
    assert space.free_bytes == EMERGENCY_BYTES + cost_bytes - 1
    assert space.jobs == 0
    space.take(space.free_bytes)
    with pytest.raises(OutOfSpace):
        space.take(1)


def test_what_is_missing_is_asked_for_once() -> None:
    asked = Asked()
    space = space_of(1_000, asked)
    space.take(400)
    assert asked.calls == []
    space.take(700)
    assert (asked.calls, space.free_bytes) == ([(100, 0, 0)], 0)


@pytest.mark.parametrize("answer", [-1, 0, 99])
def test_too_little_is_a_refusal(answer: int) -> None:
    space = space_of(1_000, Asked(answer))
    with pytest.raises(OutOfSpace):
        space.take(1_100)


def test_a_long_body_asks_for_a_place_even_with_much_space() -> None:
    asked = Asked(0)
    space = space_of(1 << 40, asked)
    space.take_for_puts(3, LONG_BODY_BYTES)
    assert asked.calls == []
    space.take_for_puts(3, LONG_BODY_BYTES + 1)
    assert asked.calls == [(0, LONG_BODY_BYTES + 1, 3)]
    assert BODY_BYTES_DEFAULT <= LONG_BODY_BYTES


def full_engine() -> tuple[Engine, Session, int]:
    """An engine with one job held, one ready, one buried, and no space left at all."""
    engine = Engine(start_ms=0)
    session = open_session(engine)
    topic = session.used
    assert topic is not None
    for _ in range(3):
        put(engine, topic, priority=0, delay_ms=0, ttr_ms=60_000, body=b"", now_ms=0)
    reserve(engine, session, RequestMs(0))
    bury(engine, session, 1, 0, RequestMs(engine.store.time_ms))
    reserve(engine, session, RequestMs(0))
    engine.take_log()
    engine.log_space.limit(0, none_left)
    return engine, session, 2


REFUSED: dict[str, Callable[[Engine, Session, int], object]] = {
    "put": lambda engine, session, _: put(
        engine,
        engine.store.topics.by_name["default"],
        priority=0,
        delay_ms=0,
        ttr_ms=1,
        body=b"",
        now_ms=0,
    ),
    "reserve": lambda engine, session, _: reserve(engine, session, RequestMs(0)),
    "reserve-job": lambda engine, session, _: reserve_job(engine, session, 3, RequestMs(0)),
    "release": lambda engine, session, held: release(engine, session, held, 0, 0, RequestMs(0)),
    "bury": lambda engine, session, held: bury(
        engine, session, held, 0, RequestMs(engine.store.time_ms)
    ),
    "touch": lambda engine, session, held: touch(engine, session, held, RequestMs(0)),
    "kick": lambda engine, session, _: kick(
        engine, engine.store.topics.by_name["default"], 9, RequestMs(0)
    ),
    "kick-job": lambda engine, session, _: kick_job(engine, 1, RequestMs(0)),
    "bury-waiting": lambda engine, session, _: bury_waiting(engine, 3, RequestMs(0)),
    "reschedule": lambda engine, session, _: reschedule(engine, 3, 5, RequestMs(0)),
    "pause": lambda engine, session, _: pause(engine, "default", 5, RequestMs(0)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_without_any_space_it_is_refused_and_changes_nothing(name: str) -> None:
    engine, session, held = full_engine()
    before = dict(engine.store.jobs), dict(session.deadlines)
    with pytest.raises(OutOfSpace):
        REFUSED[name](engine, session, held)
    assert (dict(engine.store.jobs), dict(session.deadlines)) == before
    assert engine.take_log() == ([], False)
    assert engine.log_space.jobs == 3


def test_without_any_space_deletes_and_returns_are_carried_out() -> None:
    engine, session, held = full_engine()
    assert delete_batch(engine, session, [1, 3], RequestMs(0)) == [True, True]
    close_session(engine, session, RequestMs(0))
    assert engine.store.topics.by_name["default"].queues.ready
    delete(engine, open_session(engine), held, RequestMs(0))
    assert engine.log_space.jobs == 0


def test_a_batch_stops_where_the_space_ends() -> None:
    engine = Engine(start_ms=0)
    session = open_session(engine)
    topic = session.used
    assert topic is not None
    for _ in range(5):
        put(engine, topic, priority=0, delay_ms=0, ttr_ms=60_000, body=b"", now_ms=0)
    engine.log_space.limit(2 * RESERVE_COST_BYTES, none_left)
    assert len(reserve_batch(engine, session, 5, 1_000, RequestMs(0))) == 2
    assert reserve_batch(engine, session, 5, 1_000, RequestMs(0)) == []
    for job_id in (1, 2):
        engine.log_space.limit(1_000, none_left)
        bury(engine, session, job_id, 0, RequestMs(engine.store.time_ms))
    engine.log_space.limit(2 * 9 + 9, none_left)
    assert kick(engine, topic, 5, RequestMs(0)) == 1


@pytest.mark.parametrize("body_bytes", [0, 1, 100, BODY_BYTES_DEFAULT])
def test_what_is_required_for_a_put_is_what_a_put_takes(body_bytes: int) -> None:
    job_bytes = PUT_COST_BYTES + 2 * body_bytes + TOPIC_COST_BYTES
    enough = space_of(job_bytes + EMERGENCY_BYTES)
    enough.require_for_put(body_bytes)
    assert enough.free_bytes == job_bytes + EMERGENCY_BYTES, "nothing is taken"
    enough.take_for_puts(1, body_bytes)
    assert enough.free_bytes == EMERGENCY_BYTES
    too_little = space_of(job_bytes + EMERGENCY_BYTES - 1)
    with pytest.raises(OutOfSpace):
        too_little.require_for_put(body_bytes)
    with pytest.raises(OutOfSpace):
        too_little.take_for_puts(1, body_bytes)


@pytest.mark.parametrize("body_bytes", [0, BODY_BYTES_DEFAULT])
def test_a_rewrite_takes_what_a_put_leaves(body_bytes: int) -> None:
    space = space_of(EMERGENCY_BYTES + 2 * (40 + body_bytes))
    space.take_for_rewrite(40, body_bytes)
    assert space.free_bytes == EMERGENCY_BYTES
    with pytest.raises(OutOfSpace):
        space.take_for_rewrite(1, 0)
