"""`check` finds what is wrong with a state: each fault planted alone, in a state without any."""

from typing import Final

import pytest

from delayd.core.engine import Engine
from delayd.core.job_record import FLAGS_AT, State, state_of
from delayd.core.session import Session
from delayd.core.throttle import Block
from delayd.core.times import PlayedMs
from delayd.core.wall_times import IdSet, Layer
from tests.core.check import check
from tests.rigs.engine import EngineRig

IDS: Final = {"READY": 1, "RESERVED": 2, "BURIED": 3, "DELAYED": 4, "TIMED": 6}


def busy_engine() -> Engine:
    """An engine with a job in each state, a key, a wall-clock time, a pause, a rate, a waiter."""
    rig = EngineRig()
    engine, worker = rig.engine, rig.client("mail")
    rig.put_many(3, "mail")
    rig.reserve_job(worker, IDS["RESERVED"])
    rig.reserve_job(worker, IDS["BURIED"])
    rig.bury(worker, IDS["BURIED"])
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


def without_flags(record: bytes) -> bytes:
    return record[:FLAGS_AT] + b"\0" + record[FLAGS_AT + 1 :]


FAULTS: Final = {
    # What is done to the parts of the engine; the jobs have the names of IDS
    "a ready job is lost": "mail.queues.ready.discard(READY, 0, jobs.get(READY))",
    "a leased job is ready": "mail.queues.ready.add(RESERVED, 0, 0, jobs.get(RESERVED), 0)",
    "a buried job is lost": "mail.queues.buried.pop_first()",
    "a record is lost": "jobs.pop(DELAYED)",
    "a job is counted twice": "mail.jobs += 1",
    "too many bytes are counted": "mail.bytes += 1",
    "the log's space counts too few jobs": "engine.log_space.jobs -= 1",
    "a lease is counted twice": "mail.reserved += 1",
    "a lease is lost": "store.leases.sessions.pop(RESERVED)",
    "a lease is another session's": "store.leases.sessions[RESERVED] = Session()",
    "a key is lost": "mail.keys = None",
    "a wall-clock time is lost": "times.discard(TIMED)",
    "a wall-clock time is counted twice": "times.count += 1",
    "an empty layer of wall-clock times is kept": "times.layers.append(Layer(IdSet()))",
    "a job that follows no clock does": "times.add(READY)",
    "a step of the wall clock has no record": "times.step(1, PlayedMs(3_000))",
    "the log's offset is forgotten": "times.recorded_ms = None",
    "a number is lost": "store.topics.by_number.pop(mail.number)",
    "a pause is forgotten": "store.blocks.paused.clear()",
    "a pause has ended halfway": "store.topics.by_name['paused'].blocks = Block(0)",
    "a topic that has a slot is full": "store.topics.by_name['slow'].blocks = Block.FULL",
    "cleared jobs are lost": "cleared.pop()",
    "cleared jobs have another number": "cleared.append(cleared.pop()._replace(number=100))",
    "a waiter is lost": "engine.waits.clear()",
    "a rank is flagged that is not there": "jobs.put(BURIED, without_flags(jobs.pop(BURIED)))",
}


def test_the_state_has_a_job_of_every_kind() -> None:
    store = busy_engine().store
    states = {state_of(record) for job_id, record in store.jobs}
    assert states == {State.READY, State.DELAYED, State.BURIED}, "a leased job is ready at rest"
    assert [*store.leases.sessions] == [IDS["RESERVED"]]
    assert IDS["TIMED"] in store.wall_times.ids()[0]


@pytest.mark.parametrize("fault", FAULTS)
def test_check_finds_a_planted_fault(fault: str) -> None:
    engine = busy_engine()
    store = engine.store
    words = {each.__name__: each for each in (Block, IdSet, Layer, PlayedMs, Session)}
    state = {"engine": engine, "store": store, "mail": store.topics.by_name["mail"]}
    state |= {"jobs": store.jobs, "times": store.wall_times, "cleared": store.cleared.left}
    exec(FAULTS[fault], {**words, **state, **IDS, "without_flags": without_flags})  # noqa: S102
    with pytest.raises(AssertionError):
        check(engine)
