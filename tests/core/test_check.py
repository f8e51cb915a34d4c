"""`check` finds what is wrong with a state: each fault planted alone, in a state without any."""

from collections.abc import Callable
from typing import Final

import pytest

from delayd.core.engine import Engine
from delayd.core.job_record import FLAGS_AT, State, state_of
from delayd.core.session import Session
from delayd.core.throttle import Block
from delayd.core.topic import Topic
from tests.core.check import check
from tests.rigs.engine import EngineRig

READY, RESERVED, BURIED, DELAYED, KEYED, TIMED = range(1, 7)


def busy_engine() -> Engine:
    """An engine with a job in each state, a key, a wall-clock time, a pause, a rate, a waiter."""
    rig = EngineRig()
    engine, worker = rig.engine, rig.client("mail")
    rig.put_many(3, "mail")
    rig.reserve_job(worker, RESERVED)
    rig.reserve_job(worker, BURIED)
    rig.bury(worker, BURIED)
    rig.put("mail", delay_ms=50)
    rig.put_keyed(b"a", topic="mail", delay_ms=9)
    rig.put("mail", due_wall_ms=5_000)
    rig.put("swept", delay_ms=9)
    rig.clear("swept")
    rig.put("paused")
    rig.pause("paused", 1_000)
    rig.set_policy("slow", reserved_max=1)
    rig.wait(rig.client("idle"))
    check(engine)
    return engine


def record(engine: Engine, job_id: int) -> bytes:
    return engine.store.jobs.get(job_id) or b""


def become(thing: object, **values: object) -> None:
    """Have these values in place of what it had."""
    for name, value in values.items():
        setattr(thing, name, value)


def without_flags(record: bytes) -> bytes:
    return record[:FLAGS_AT] + b"\0" + record[FLAGS_AT + 1 :]


FAULTS: Final[dict[str, Callable[[Engine, Topic], object]]] = {
    "a ready job is lost": lambda engine, mail: mail.queues.ready.discard(
        READY, 0, record(engine, READY)
    ),
    "a leased job is ready": lambda engine, mail: mail.queues.ready.add(
        RESERVED, 0, 0, record(engine, RESERVED), 0
    ),
    "a buried job is lost": lambda _, mail: mail.queues.buried.pop_first(),
    "a record is lost": lambda engine, _: engine.store.jobs.pop(DELAYED),
    "a job is counted twice": lambda _, mail: become(mail, jobs=mail.jobs + 1),
    "too many bytes are counted": lambda _, mail: become(mail, bytes=mail.bytes + 1),
    "the log's space counts too few jobs": lambda engine, _: become(
        engine.log_space, jobs=engine.log_space.jobs - 1
    ),
    "a lease is counted twice": lambda _, mail: become(mail, reserved=mail.reserved + 1),
    "a lease is lost": lambda engine, _: engine.store.leases.sessions.pop(RESERVED),
    "a lease is another session's": lambda engine, _: engine.store.leases.sessions.update(
        {RESERVED: Session()}
    ),
    "a key is lost": lambda _, mail: become(mail, keys=None),
    "a wall-clock time is lost": lambda engine, _: engine.store.wall_times.discard(TIMED),
    "the log's offset is forgotten": lambda engine, _: become(
        engine.store.wall_times, recorded_ms=None
    ),
    "a number is lost": lambda engine, mail: engine.store.topics.by_number.pop(mail.number),
    "a pause is forgotten": lambda engine, _: engine.store.blocks.paused.clear(),
    "a pause has ended halfway": lambda engine, _: become(
        engine.store.topics.by_name["paused"], blocks=Block(0)
    ),
    "a topic that has a slot is full": lambda engine, _: become(
        engine.store.topics.by_name["slow"], blocks=Block.FULL
    ),
    "cleared jobs are lost": lambda engine, _: engine.store.cleared.left.pop(),
    "cleared jobs have another number": lambda engine, _: engine.store.cleared.left.append(
        engine.store.cleared.left.pop()._replace(number=100)
    ),
    "a waiter is lost": lambda engine, _: engine.waits.clear(),
    "a rank is flagged that is not there": lambda engine, _: engine.store.jobs.put(
        BURIED, without_flags(engine.store.jobs.pop(BURIED))
    ),
}


def test_the_state_has_a_job_of_every_kind() -> None:
    store = busy_engine().store
    states = {state_of(record) for job_id, record in store.jobs}
    assert states == {State.READY, State.DELAYED, State.BURIED}, "a leased job is ready at rest"
    assert [*store.leases.sessions] == [RESERVED]
    assert TIMED in store.wall_times.ids()[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_check_finds_a_planted_fault(fault: str) -> None:
    engine = busy_engine()
    FAULTS[fault](engine, engine.store.topics.by_name["mail"])
    with pytest.raises(AssertionError):
        check(engine)
