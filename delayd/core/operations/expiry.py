"""Reservations whose ttr ran out: the attempt has failed, and the job goes where its rule says.

    expire(job_id)     one job, when the wheel of leases fires or an operation asks for it

Nothing of it is recorded: the deadline and the policy are in the log, so a replay arrives at the
same outcome with this code. The outcome counts from the deadline, so it does not matter when the
slice of a lease comes.
"""

from delayd.core.engine import Engine
from delayd.core.job import FLAGS_AT
from delayd.core.operations.waiting import serve
from delayd.core.stats.counters import Operation
from delayd.core.times import RequestMs
from delayd.core.topic import Topic, place_of
from delayd.core.transitions import BRINGS_RULE, expired, expired_under


def expire(engine: Engine, job_id: int, now_ms: RequestMs, *, lease_fired: bool = False) -> None:
    """Take back a job whose ttr ran out; `lease_fired`: the wheel has dropped its entry."""
    store = engine.store
    record = store.jobs.get(job_id)
    assert record is not None
    topic = store.topic_of(record)
    store.counters.count(topic, Operation.TIMEOUT)
    if topic.policy is None and record[FLAGS_AT] < BRINGS_RULE:
        changed = expired(record)
    else:
        # Counted from the deadline, not from now: when its slice comes makes no difference.
        deadline_ms = store.leases.sessions[job_id].deadlines[job_id]
        place = place_of(topic)
        changed = expired_under(record, topic.policy, place, deadline_ms, tick_ms=engine.tick_ms)
    here = store.put_back(job_id, record, changed, lease_fired=lease_fired)
    look_after(engine, topic, here, now_ms)


def look_after(engine: Engine, former: Topic, here: Topic, now_ms: RequestMs) -> None:
    """Serve the topic that a job left when its lease ended, and the one that it is in now."""
    if here is not former:
        serve(engine, here, now_ms)
        engine.store.drop_if_unwanted(former)
    serve(engine, former, now_ms)
