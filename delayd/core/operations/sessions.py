"""Sessions: open, use and watch topics, close. Jobs of a closed session are given back."""

from delayd.core.engine import Engine
from delayd.core.errors import LastWatched, TooManyWatched
from delayd.core.names import DEFAULT_TOPIC, checked_name
from delayd.core.operations.checks import require_writable
from delayd.core.operations.returns import leave
from delayd.core.operations.waiting import cancel_wait
from delayd.core.parts import Reason
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
