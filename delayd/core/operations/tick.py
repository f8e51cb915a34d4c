"""Time: what is due happens, delays, leases, waits and pauses end.

    advance(time_ms)          one slice of what is due: one wheel turns by so many entries at most
    caught_up(job_id)         a job as it is now, whether or not its slice has come
    catch_up_leases(limit)    a slice of all leases that are over

A job whose time has come, but whose slice has not, is *caught up* when an operation asks for it:
the difference is never visible. Changes that the clock alone causes are not recorded; a replay
makes them happen again, with this code.
"""

from typing import Final

from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound
from delayd.core.group_turns import Groups
from delayd.core.job_record import DUE_AT, STATE_AT, TRANSITIONS, U64, Event, State
from delayd.core.operations.attempts import expire, give_back
from delayd.core.operations.checks import require_writable_job
from delayd.core.operations.sessions import give_back_some
from delayd.core.operations.waiting import end_wait, serve, set_wait_timer
from delayd.core.reminder import Reminder
from delayd.core.session import WaitEnd
from delayd.core.throttle import Throttle
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.topic import Topic
from delayd.core.topic_blocks import AlarmOwner
from delayd.core.transitions import came_due
from delayd.limits import ADVANCE_SLICE_JOBS, PASS_ACTION_COST

# An enum member's arithmetic costs 40 ns more than an int's.
_DELAYED: Final = int(State.DELAYED)


def next_deadline(engine: Engine) -> int | None:
    """Return when `advance` has something to do next; None when nothing is scheduled."""
    store = engine.store
    return store.time_ms if store.wall_times.layers else store.timer_queue.next_deadline()


def reach(engine: Engine, time_ms: PlayedMs) -> None:
    """Set the time, when nothing is due by then."""
    engine.store.reach(time_ms)


def record_time(engine: Engine) -> None:
    """Record how far time has been played; replies that show it must wait for the sync.

    For a clock that stands still: a restart finds the time in the log and nowhere else. And where
    the wall clock was set: a restart finds in the log what it was ahead by.
    """
    engine.stamp()
    engine.must_sync = True


def advance(engine: Engine, due_by_ms: PlayedMs, now_ms: RequestMs | None = None) -> bool:
    """Fire one slice of what is due by then; call again until it returns False.

    `now_ms` is the same instant rounded up, from which the ttr of a job handed out now counts.
    """
    if now_ms is None:
        now_ms = RequestMs(due_by_ms)
    store = engine.store
    store.reach(due_by_ms)
    engine.is_crowded = False
    if store.wall_times.layers and engine.places_next:
        store.place_some()
        engine.places_next = False
        return True
    engine.places_next = True
    due = store.timer_queue.take_due(due_by_ms, ADVANCE_SLICE_JOBS)
    if due is None:
        return bool(store.wall_times.layers)
    lane, fired = due
    if len(fired) > ADVANCE_SLICE_JOBS // 2:
        engine.is_crowded = lane.wake_ms is not None and lane.wake_ms <= due_by_ms
    if lane.topic_name:
        topic = store.topics.by_name[lane.topic_name]
        store.come_due(topic, fired)
        if fired:
            _tell_owner(engine, topic)
        serve(engine, topic, now_ms)
    elif lane is store.leases.lane:
        for job_id in fired:
            expire(engine, job_id, now_ms, lease_fired=True)
    else:
        for owner in store.blocks.silence(fired):
            _fire_timer(engine, owner, now_ms)
    return True


def _tell_owner(engine: Engine, topic: Topic) -> None:
    """Tell the daemon's own work that jobs of a topic have come due, if they are for it."""
    if topic.is_internal and engine.on_own_job_due is not None:
        engine.on_own_job_due()


def _fire_timer(engine: Engine, owner: AlarmOwner, now_ms: RequestMs) -> None:
    """End the wait or the pause whose timer has fired, hand out what is allowed by now, or ring."""
    if isinstance(owner, Topic):
        engine.store.blocks.unpause(owner)
        serve(engine, owner, now_ms)
    elif isinstance(owner, Throttle):
        topic = engine.store.topics.by_name[owner.topic_name]
        engine.store.blocks.go_on(topic, owner, engine.store.time_ms)
        serve(engine, topic, now_ms)
    elif isinstance(owner, Groups):
        topic_named = engine.store.topics.by_name.get(owner.topic_name)
        if topic_named is not None:
            engine.store.groups.wake(topic_named, owner, engine.store.time_ms)
            serve(engine, topic_named, now_ms)
    elif isinstance(owner, Reminder):
        owner.ring(now_ms)
    elif not owner.waiting:
        return  # it has just got a job, of a topic whose pause ended in the same instant
    elif owner.deadline_soon(now_ms):
        end_wait(engine, owner, WaitEnd.DEADLINE_SOON)
    elif owner.wait_ends_ms is not None and owner.wait_ends_ms <= engine.store.time_ms:
        end_wait(engine, owner, WaitEnd.TIMED_OUT)
    else:
        set_wait_timer(engine, owner)


# --- One job as it is now ------------------------------------------------------------------------


def caught_up(engine: Engine, job_id: int, now_ms: RequestMs) -> tuple[bytes, State]:
    """Return record and state of a job, now that what was due has happened; `JobNotFound`."""
    store = engine.store
    record = store.jobs.get(job_id)
    if record is None:
        raise JobNotFound(job_id, store.last_put_id)
    holder = store.leases.sessions.get(job_id)
    if holder is not None:
        if holder.left_for is not None:
            give_back(engine, holder, job_id, now_ms)
        elif holder.deadlines[job_id] > store.time_ms:
            return record, State.RESERVED
        else:
            expire(engine, job_id, now_ms)
        return caught_up(engine, job_id, now_ms)
    if store.cleared.left and store.cleared.has(record):
        raise JobNotFound(job_id, store.last_put_id)
    if record[STATE_AT] == _DELAYED:
        if store.wall_times.layers:
            record = store.place_anew(job_id)
        due_ms: int = U64.unpack_from(record, DUE_AT)[0]
        if due_ms <= store.time_ms:
            topic = store.move(job_id, came_due(record))
            store.counters.count_overdue(topic, due_ms, due_ms, 1, store.time_ms)
            _tell_owner(engine, topic)
            serve(engine, topic, now_ms)
            return caught_up(engine, job_id, now_ms)
    return record, State(record[STATE_AT])


def job_for(engine: Engine, job_id: int, event: Event, now_ms: RequestMs) -> bytes:
    """Return the record of a job that the event may happen to; `JobNotFound`, `TopicIsInternal`."""
    record, job_state = caught_up(engine, job_id, now_ms)
    if engine.store.topics.internal:
        require_writable_job(engine, record)
    if (job_state, event) not in TRANSITIONS:
        raise JobNotFound(job_id)
    return record


# --- Leases that are over ------------------------------------------------------------------------


def leases_are_caught_up(engine: Engine) -> bool:
    """Tell whether every lease has ended whose session or ttr has."""
    deadline_ms = engine.store.leases.lane.wheel.next_deadline()
    return not engine.ended_sessions and (deadline_ms is None or deadline_ms > engine.store.time_ms)


def catch_up_leases(engine: Engine, limit: int, now_ms: RequestMs) -> bool:
    """End a slice of the leases that are over; tell whether all have ended."""
    if engine.ended_sessions:
        give_back_some(engine, 1 + limit // PASS_ACTION_COST, now_ms)
    elif not leases_are_caught_up(engine):
        for job_id in engine.store.leases.lane.wheel.advance(engine.store.time_ms, limit):
            expire(engine, job_id, now_ms, lease_fired=True)
    return leases_are_caught_up(engine)
