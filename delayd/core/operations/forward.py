"""Forwarding: a topic whose target is another topic gives its due jobs to that one.

    forward(engine, session, job_id, target_name, now_ms) -> id in the other topic

The job is put there as a producer would: body, priority, ttr and group are its own, and the other
topic's policy decides the rest, such as a delay and what a failed attempt means. Its key goes along
while it is free there; a job whose key is taken arrives without one, since neither of the two may
be lost. The put and the delete here follow one another in the log of one turn.

>>> from delayd.core.operations.put import put_alike
>>> from delayd.core.operations.reserve import reserve
>>> from delayd.core.operations.sessions import open_session, watch
>>> engine = Engine(start_ms=0)
>>> session, worker = open_session(engine), open_session(engine)
>>> watch(engine, worker, "mail")
>>> job_id = put_alike(engine, engine.store.topic("default"), 7, 0, 9_000, (b"hi",), 0)
>>> reserve(engine, session, 0), forward(engine, session, job_id, "mail", 0)
((1, b'hi'), 2)
>>> reserve(engine, worker, 0)
(2, b'hi')
"""

from delayd.core.engine import Engine
from delayd.core.errors import Refusal
from delayd.core.job_parts import Own, body_of, group_of, key_of
from delayd.core.job_record import HEADER
from delayd.core.operations.ack import delete
from delayd.core.operations.attempts import held
from delayd.core.operations.put import put_keyed
from delayd.core.operations.topics import check_way
from delayd.core.session import Session
from delayd.core.times import RequestMs


def forward(
    engine: Engine, session: Session, job_id: int, target_name: str, now_ms: RequestMs
) -> int:
    """Put a job that the session holds into another topic, delete it here; return its id there.

    Nothing has changed after a refusal: `JobNotFound` if the session does not hold it,
    `TargetRefused` if it would go round in a circle by the policies of topics, and those of a put.
    """
    record = held(engine, session, job_id)
    store = engine.store
    check_way(engine, store.topic_of(record).name, target_name)
    target = store.topic(target_name)
    key = key_of(record)
    _, _, _, ttr_ms, priority, *_ = HEADER.unpack_from(record)
    try:
        new_id, _ = put_keyed(
            engine,
            target,
            b"" if key and store.keys.owner_of(target, key) else key,
            priority=priority,
            ttr_ms=ttr_ms,
            body=body_of(record),
            now_ms=now_ms,
            own=Own(group=group) if (group := group_of(record)) else None,
        )
    except Refusal:
        store.drop_if_unwanted(target)
        raise
    delete(engine, session, job_id, now_ms)
    return new_id
