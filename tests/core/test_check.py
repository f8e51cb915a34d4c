"""`check` finds what is wrong with a state: each fault planted alone, in a state without any."""

from collections.abc import Callable

import pytest

from delayd.core.engine import Engine
from delayd.core.job_record import FLAGS_AT, State, state_of
from delayd.core.operations.put import Conflict, put_keyed
from delayd.core.operations.topics import pause, set_policy
from delayd.core.policy import Policy
from delayd.core.session import Session
from delayd.core.throttle import Block
from delayd.core.topic import Topic
from tests.core.check import check
from tests.rigs.engine import EngineRig, put

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
    topic = engine.store.topic("mail")
    now_ms = rig.now_ms
    put_keyed(
        engine,
        topic,
        b"a",
        Conflict.REJECT,
        priority=0,
        delay_ms=9,
        ttr_ms=9,
        body=b"",
        now_ms=now_ms,
    )
    put(engine, topic, priority=0, due_wall_ms=5_000, ttr_ms=9, body=b"", now_ms=now_ms)
    rig.put("paused")
    pause(engine, "paused", 1_000, now_ms)
    set_policy(engine, "slow", Policy(reserved_max=1), now_ms)
    rig.wait(rig.client("idle"))
    check(engine)
    return engine


def mail(engine: Engine) -> Topic:
    return engine.store.topics.by_name["mail"]


# --- Faults --------------------------------------------------------------------------------------


def lose_a_ready_job(engine: Engine) -> None:
    record = engine.store.jobs.get(READY)
    assert record is not None
    mail(engine).queues.ready.discard(READY, 0, record)


def queue_a_leased_job(engine: Engine) -> None:
    record = engine.store.jobs.get(RESERVED)
    assert record is not None
    mail(engine).queues.ready.add(RESERVED, 0, 0, record, 0)


def lose_a_buried_job(engine: Engine) -> None:
    del mail(engine).queues.buried[0]


def lose_a_record(engine: Engine) -> None:
    engine.store.jobs.pop(DELAYED)


def count_a_job_twice(engine: Engine) -> None:
    mail(engine).jobs += 1


def count_too_many_bytes(engine: Engine) -> None:
    mail(engine).bytes += 1


def count_too_few_jobs_in_the_log(engine: Engine) -> None:
    engine.log_space.jobs -= 1


def count_a_lease_twice(engine: Engine) -> None:
    mail(engine).reserved += 1


def lose_a_lease(engine: Engine) -> None:
    engine.store.leases.sessions.pop(RESERVED)


def lease_to_another_session(engine: Engine) -> None:
    engine.store.leases.sessions[RESERVED] = Session()


def lose_a_key(engine: Engine) -> None:
    mail(engine).keys = None


def lose_a_wall_time(engine: Engine) -> None:
    engine.store.wall_times.discard(TIMED)


def forget_the_offset_in_the_log(engine: Engine) -> None:
    engine.store.wall_times.recorded_ms = None


def lose_a_number(engine: Engine) -> None:
    del engine.store.topics.by_number[mail(engine).number]


def forget_a_pause(engine: Engine) -> None:
    engine.store.blocks.paused.clear()


def end_a_pause_halfway(engine: Engine) -> None:
    engine.store.topics.by_name["paused"].blocks &= ~Block.PAUSED


def block_a_topic_that_has_a_slot(engine: Engine) -> None:
    engine.store.topics.by_name["slow"].blocks |= Block.FULL


def lose_a_waiter(engine: Engine) -> None:
    engine.waits.clear()


def flag_a_rank_that_is_not_there(engine: Engine) -> None:
    record = bytearray(engine.store.jobs.pop(BURIED))
    record[FLAGS_AT] = 0
    engine.store.jobs.put(BURIED, bytes(record))


FAULTS = (
    *(lose_a_ready_job, queue_a_leased_job, lose_a_buried_job, lose_a_record, count_a_job_twice),
    *(count_too_many_bytes, count_too_few_jobs_in_the_log, count_a_lease_twice, lose_a_lease),
    *(lease_to_another_session, lose_a_key, lose_a_wall_time, forget_the_offset_in_the_log),
    *(lose_a_number, forget_a_pause, end_a_pause_halfway, block_a_topic_that_has_a_slot),
    *(lose_a_waiter, flag_a_rank_that_is_not_there),
)


def test_the_state_has_a_job_of_every_kind() -> None:
    store = busy_engine().store
    states = {state_of(record) for job_id, record in store.jobs}
    assert states == {State.READY, State.DELAYED, State.BURIED}, "a leased job is ready at rest"
    assert [*store.leases.sessions] == [RESERVED]
    assert TIMED in store.wall_times.ids()[0]


@pytest.mark.parametrize("plant", FAULTS)
def test_check_finds_a_planted_fault(plant: Callable[[Engine], None]) -> None:
    engine = busy_engine()
    plant(engine)
    with pytest.raises(AssertionError):
        check(engine)
