"""Sessions: open, use and watch topics, close; and the jobs that a closed one gives back.

A session may hold a million jobs, so what `RETURNS_PER_TURN` does not cover comes back in slices,
the longest held first (`core.background_tasks`). All of it counts as returned from the end of the
session on. An operation on such a job finds it returned (`tick.caught_up`); a reserve that finds
nothing ready has some given back (`reserve`); whatever looks at many jobs, clears them or changes
their policy comes after all of them (`tick.catch_up_leases`). Until its slice has come, a job that
no operation names is counted as reserved, and is not in the order of ready jobs.

Each return is a record of its own, and one that a crash keeps out of the log has not happened: that
job is held until its ttr runs out, as after any crash. The same holds of a ttr that runs out before
the slice has come: a replay has no sessions, and could not decide otherwise.
"""

from delayd.core.engine import Engine
from delayd.core.errors import LastWatched, TooManyWatched
from delayd.core.job_parts import Reason
from delayd.core.names import DEFAULT_TOPIC, checked_name
from delayd.core.operations.attempts import give_back
from delayd.core.operations.checks import require_writable
from delayd.core.operations.waiting import cancel_wait
from delayd.core.session import Owner, Session
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.limits import TOPICS_WATCHED_MAX, UNWATCHED_AT_ONCE


def open_session(engine: Engine, owner: Owner | None = None) -> Session:
    """Make a session that uses and watches the default topic."""
    session = Session(owner)
    use(engine, session, DEFAULT_TOPIC)
    watch(engine, session, DEFAULT_TOPIC)
    return session


def close_session(engine: Engine, session: Session, now_ms: RequestMs) -> None:
    """Forget the session; every job that it holds counts as returned from now on."""
    cancel_wait(engine, session)
    leave(engine, session, Reason.EXCUSED if engine.is_stopping else Reason.HOLDER_LEFT, now_ms)
    if len(session.watched) > UNWATCHED_AT_ONCE:
        engine.watchers_gone.append(session)
    else:
        stop_watching(engine, session)
    _unuse(engine, session)


def stop_watching(engine: Engine, session: Session, limit: int = TOPICS_WATCHED_MAX) -> bool:
    """Have the session watch so many topics less; tell whether it watches none any more."""
    for _ in range(min(limit, len(session.watched))):
        _unwatch(engine, session, session.watched[0])  # as beanstalkd does: it can be listed
    return not session.watched


# --- What closed sessions held -------------------------------------------------------------------


def leave(engine: Engine, session: Session, reason: Reason, now_ms: RequestMs) -> None:
    """Take back what the session holds, which has ended for that reason. Never refused.

    `UNDELIVERED`: ready again whatever the rule says, and the attempt does not count, since the
    client was gone before the reply left. O(jobs held) for a list of them: 10 ns each.
    """
    if session.left_for is None and session.deadlines:
        session.left_for, session.left_ms = reason, now_ms
        job_ids = list(session.deadlines)[::-1]
        engine.returns_left -= _give_back_last(
            engine, session, job_ids, engine.returns_left, now_ms
        )
        if job_ids:
            engine.ended_sessions.append((session, job_ids))


def give_back_some(engine: Engine, limit: int, now_ms: RequestMs) -> None:
    """Take back a slice of what sessions held that have ended; of each of them in turn."""
    while engine.ended_sessions and limit > 0:
        session, job_ids = engine.ended_sessions.popleft()
        limit -= _give_back_last(engine, session, job_ids, limit, now_ms)
        if job_ids:
            engine.ended_sessions.append((session, job_ids))


def _give_back_last(
    engine: Engine, session: Session, job_ids: list[int], limit: int, now_ms: RequestMs
) -> int:
    """Take back so many jobs off the end of the list, if there are as many; count them."""
    count = min(limit, len(job_ids))
    for _ in range(count):
        job_id = job_ids.pop()
        if job_id in session.deadlines:  # neither named nor out of time meanwhile
            give_back(engine, session, job_id, now_ms)
    return count


# --- Topics --------------------------------------------------------------------------------------


def use(engine: Engine, session: Session, name: str) -> None:
    """Have the session put to this topic, made when there is none."""
    topic = _topic(engine, name)
    topic.users += 1
    _unuse(engine, session)
    session.used = topic


def _unuse(engine: Engine, session: Session) -> None:
    topic, session.used = session.used, None
    if topic is not None:
        topic.users -= 1
        engine.store.drop_if_unwanted(topic)


def watch(engine: Engine, session: Session, name: str) -> None:
    """Have the session reserve from this topic too, made if needed.

    Raises `TopicIsInternal`, `TooManyWatched`.
    """
    require_writable(engine, name)
    topic = engine.store.topics.by_name.get(name)
    if topic is not None and topic in session.places:
        return
    if len(session.watched) >= TOPICS_WATCHED_MAX:
        raise TooManyWatched(name)
    topic = topic or _topic(engine, name)
    session.places[topic] = len(session.watched)
    session.watched.append(topic)
    topic.watchers += 1


def _topic(engine: Engine, name: str) -> Topic:
    """Return the topic of that name, made when there is none; `TopicNameInvalid`."""
    return engine.store.topics.by_name.get(name) or engine.store.topic(checked_name(name))


def ignore(engine: Engine, session: Session, name: str) -> None:
    """Have the session reserve no longer from this topic; `LastWatched` if it has no other."""
    topic = engine.store.topics.by_name.get(checked_name(name))
    if topic is None or topic not in session.places:
        return
    if len(session.watched) == 1:
        raise LastWatched(name)
    _unwatch(engine, session, topic)


def stop_consuming(engine: Engine, session: Session) -> None:
    """End the session's wait and its watching; it keeps the jobs that it holds."""
    cancel_wait(engine, session)
    stop_watching(engine, session)


def _unwatch(engine: Engine, session: Session, topic: Topic) -> None:
    place = session.places.pop(topic)
    last = session.watched.pop()
    if last is not topic:
        session.watched[place] = last
        session.places[last] = place
    topic.watchers -= 1
    engine.store.drop_if_unwanted(topic)
