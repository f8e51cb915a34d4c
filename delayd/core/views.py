"""Looking at jobs without reserving or changing them.

Nothing here is journaled or changes what a client could see.
"""

from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound
from delayd.core.job_parts import body_of
from delayd.core.ready_queue import job_id_of
from delayd.core.session import Handed
from delayd.core.store import Store
from delayd.core.topic import Topic, head_key


def peek(engine: Engine, job_id: int) -> Handed:
    """Return a job in whatever state, without reserving it; `JobNotFound`."""
    return job_id, body_of(live_record(engine.store, job_id))


def live_record(store: Store, job_id: int) -> bytes:
    """Return the record of a job as it is, caught up or not; `JobNotFound`."""
    record = store.jobs.get(job_id)
    if record is None or (
        store.cleared.left and job_id not in store.leases.sessions and store.cleared.has(record)
    ):
        raise JobNotFound(job_id, store.last_put_id)
    return record


def peek_ready(engine: Engine, topic: Topic) -> Handed | None:
    """Return the job that would be handed out next, paused or not."""
    return peek(engine, job_id_of(head_key(topic))) if topic.queues.ready.count else None


def peek_delayed(engine: Engine, topic: Topic) -> Handed | None:
    """Return the delayed job that comes due first. O(jobs in the first bucket of the wheel)."""
    soonest = topic.queues.delays.wheel.soonest(1)
    return peek(engine, soonest[0]) if soonest else None


def peek_buried(engine: Engine, topic: Topic) -> Handed | None:
    """Return the job that has been buried the longest."""
    return peek(engine, job_id_of(topic.queues.buried.first())) if topic.queues.buried else None
