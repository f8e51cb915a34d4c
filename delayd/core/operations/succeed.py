"""Succession: a job is put, and the one in whose place it comes ends, both or neither.

    put_instead(engine, session, Predecessor(topic, id, key), into, put, now_ms)

Since a number is never used again, such a put, sent again, is refused: there is no predecessor any
more. So a client that has stored the number of a predecessor may repeat the put at any time, and
there is one job; and a worker that puts what comes next in the place of its job neither loses the
next step nor takes it twice.

>>> from delayd.core.operations.put import put_one
>>> from delayd.core.operations.sessions import open_session
>>> engine = Engine(start_ms=0)
>>> session = open_session(engine)
>>> topic = session.used
>>> put = lambda: (put_one(engine, topic, 0, 0, 9_000, b"", 0), "created")
>>> first = Predecessor("default", put()[0])
>>> put_instead(engine, session, first, topic, put, 0)
(2, 'created')
>>> put_instead(engine, session, first, topic, put, 0)
Traceback (most recent call last):
  ...
delayd.core.errors.JobNotFound: there is no job 1 any more: it was done or deleted
"""

from collections.abc import Callable
from typing import TypeVar

from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound
from delayd.core.job_parts import key_of
from delayd.core.job_record import State
from delayd.core.names import Predecessor
from delayd.core.operations.ack import delete_batch
from delayd.core.operations.checks import require_writable
from delayd.core.operations.tick import caught_up
from delayd.core.session import Session
from delayd.core.times import RequestMs
from delayd.core.topic import Topic

Result = TypeVar("Result")


def put_instead(
    engine: Engine,
    session: Session,
    predecessor: Predecessor,
    into: Topic,
    put: Callable[[], tuple[int, Result]],
    now_ms: RequestMs,
) -> tuple[int, Result]:
    """Put a job into a topic in the place of another one; return what `put` does: its id, and more.

    Raises what `predecessor_id` and `put` do; then nothing has changed.
    """
    old_id = predecessor_id(engine, session, predecessor, into, now_ms)
    with engine.one_item():
        job_id, result = put()
        end_predecessor(engine, session, old_id, job_id, now_ms)
    return job_id, result


def predecessor_id(
    engine: Engine, session: Session, predecessor: Predecessor, into: Topic, now_ms: RequestMs
) -> int:
    """Return the id of a job that is there and may end: it waits, or the session holds it.

    Call it before the put into that topic, whose refusals say less. Raises `TopicIsInternal`;
    `JobNotFound` also for a job of another topic, or with another key.
    """
    topic, job_id, key = predecessor
    require_writable(engine, topic)
    into.users += 1  # that may move its last job to another topic, and it is about to get one
    try:
        record, job_state = caught_up(engine, job_id, now_ms)
    finally:
        into.users -= 1
    is_held = session.deadlines.get(job_id, 0) > engine.store.time_ms
    if (
        engine.store.topic_of(record).name != topic
        or (key and key_of(record) != key)
        or (job_state is State.RESERVED and not is_held)
    ):
        raise JobNotFound(job_id)
    return job_id


def end_predecessor(
    engine: Engine, session: Session, old_id: int, job_id: int, now_ms: RequestMs
) -> None:
    """Delete it, now that the job is put. Where the put has changed that very job, it stays."""
    if job_id != old_id:
        (is_deleted,) = delete_batch(engine, session, (old_id,), now_ms)
        assert is_deleted, old_id
