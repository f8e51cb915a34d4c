"""What happens because time passes: delays, leases and pauses end, the wall clock is set.

    advance(time_ms)       one slice of what is due: one wheel turns by a bounded number of entries
    caught_up(job_id)      a job as it is now, whether or not its slice has come
    follow_wall(offset)    the wall clock was set: jobs with wall-clock times are placed again

A job whose time has come, but whose slice has not, is *caught up* when an operation asks for it:
the difference is never visible. Changes that the clock alone causes are not recorded; a replay
makes them happen again, with this code.

A job that is put for a wall-clock time is due at that time minus the offset of delayd time, and
has the time in its record. `offset` is wall clock minus delayd time. The caller keeps it right:
the service reads both clocks in each turn in which such a job waits, and before one is put. A job
never fires before its time by the wall clock as it is when it fires. If the clock is set forward
past its time, it comes at once; if set back, it waits longer. What has come due stays due.

Only the offset is recorded. Which jobs it moves follows from that, live (`Store.place_some`) and
replayed alike, and a log in which no wall-clock time was ever put has no such record: a delayd that
does not know them can read it.
"""

from typing import Final

from delayd.core import apply
from delayd.core.errors import JobNotFound
from delayd.core.job import DUE_AT, FLAGS_AT, STATE_AT, TRANSITIONS, U64, Event, State
from delayd.core.operations.checks import require_writable_job
from delayd.core.operations.waiting import end_wait, serve, set_wait_timer
from delayd.core.records import LAYOUTS, Kind, pack
from delayd.core.session import Session, WaitEnd
from delayd.core.state import EngineState
from delayd.core.stats.operations import Operation
from delayd.core.throttle import Throttle
from delayd.core.topic import Topic
from delayd.core.transitions import BRINGS_RULE, came_due, expired, expired_under, place_of
from delayd.limits import ADVANCE_SLICE_JOBS

# An enum member's arithmetic costs 40 ns more than an int's.
_DELAYED: Final = int(State.DELAYED)
OFFSET_BYTES: Final = LAYOUTS[Kind.OFFSET].size


def next_deadline(state: EngineState) -> int | None:
    """Return when `advance` has something to do next; None when nothing is scheduled."""
    store = state.store
    return store.time_ms if store.wall_times.layers else store.timer_queue.next_deadline()


def reach(state: EngineState, time_ms: int) -> None:
    """Set the time, when nothing is due by then."""
    store = state.store
    store.time_ms = max(store.time_ms, time_ms)


def record_time(state: EngineState) -> None:
    """Record how far time has been played; replies that show it must wait for the sync.

    For a clock that stands still: a restart finds the time in the log and nowhere else.
    """
    state.stamp()
    state.must_sync = True


def advance(state: EngineState, due_by_ms: int, now_ms: int) -> bool:
    """Fire one slice of what is due by then; call again until it returns False.

    `now_ms` is the same instant rounded up, from which the ttr of a job handed out now counts.
    """
    store = state.store
    store.time_ms = max(store.time_ms, due_by_ms)
    state.is_crowded = False
    if store.wall_times.layers and state.places_next:
        store.place_some()
        state.places_next = False
        return True
    state.places_next = True
    due = store.timer_queue.take_due(due_by_ms, ADVANCE_SLICE_JOBS)
    if due is None:
        return bool(store.wall_times.layers)
    lane, fired = due
    if len(fired) > ADVANCE_SLICE_JOBS // 2:
        state.is_crowded = lane.wake_ms is not None and lane.wake_ms <= due_by_ms
    if lane.topic_name:
        topic = store.topics.by_name[lane.topic_name]
        store.come_due(topic, fired)
        serve(state, topic, now_ms)
    elif lane is store.leases.lane:
        for job_id in fired:
            expire(state, job_id, now_ms, lease_fired=True)
    else:
        for whose in store.silence(fired):
            _fire_timer(state, whose, now_ms)
    return True


def _fire_timer(state: EngineState, whose: Session | Topic | Throttle, now_ms: int) -> None:
    """End the wait or the pause whose timer has fired, or hand out what is allowed by now."""
    if isinstance(whose, Topic):
        state.store.unpause(whose)
        serve(state, whose, now_ms)
    elif isinstance(whose, Throttle):
        serve(state, state.store.go_on(whose), now_ms)
    elif not whose.waiting:
        return  # it has just got a job, of a topic whose pause ended in the same instant
    elif whose.deadline_soon(now_ms):
        end_wait(state, whose, WaitEnd.DEADLINE_SOON)
    elif whose.wait_ends_ms is not None and whose.wait_ends_ms <= state.store.time_ms:
        end_wait(state, whose, WaitEnd.TIMED_OUT)
    else:
        set_wait_timer(state, whose)


# --- Leases --------------------------------------------------------------------------------------


def leases_are_caught_up(state: EngineState) -> bool:
    """Tell whether every reservation whose deadline has passed has ended."""
    deadline_ms = state.store.leases.lane.wheel.next_deadline()
    return deadline_ms is None or deadline_ms > state.store.time_ms


def catch_up_leases(state: EngineState, limit: int, now_ms: int) -> bool:
    """End a slice of the reservations that are over; tell whether all have ended."""
    if not leases_are_caught_up(state):
        for job_id in state.store.leases.lane.wheel.advance(state.store.time_ms, limit):
            expire(state, job_id, now_ms, lease_fired=True)
    return leases_are_caught_up(state)


def expire(state: EngineState, job_id: int, now_ms: int, *, lease_fired: bool = False) -> None:
    """Take back a job whose ttr ran out; `lease_fired`: the wheel has let go of the lease."""
    store = state.store
    record = store.jobs.get(job_id)
    assert record is not None
    state.timeouts += 1
    topic = store.topic_of(record)
    store.count(topic, Operation.TIMEOUT)
    if topic.policy is None and record[FLAGS_AT] < BRINGS_RULE:
        changed = expired(record)
    else:
        # Counted from the deadline, not from now: when its slice comes makes no difference.
        deadline_ms = store.leases.sessions[job_id].deadlines[job_id]
        place = place_of(topic)
        changed = expired_under(record, topic.policy, place, deadline_ms, tick_ms=state.tick_ms)
    here = store.topic_of(changed)
    put_back = store.put_back if here is topic else store.move_over
    put_back(job_id, changed, lease_fired=lease_fired)
    look_after(state, topic, here, now_ms)


def look_after(state: EngineState, former: Topic, here: Topic, now_ms: int) -> None:
    """Serve the topic that a job left when its lease ended, and the one that it is in now."""
    if here is not former:
        serve(state, here, now_ms)
        state.store.drop_if_unwanted(former)
    serve(state, former, now_ms)


# --- One job as it is now ------------------------------------------------------------------------


def caught_up(state: EngineState, job_id: int, now_ms: int) -> tuple[bytes, State]:
    """Return record and state of a job, now that what was due has happened; `JobNotFound`."""
    store = state.store
    record = store.jobs.get(job_id)
    if record is None:
        raise JobNotFound(job_id)
    holder = store.leases.sessions.get(job_id)
    if holder is not None:
        if holder.deadlines[job_id] > store.time_ms:
            return record, State.RESERVED
        expire(state, job_id, now_ms)
        return caught_up(state, job_id, now_ms)
    if store.cleared and store.is_cleared(record):
        raise JobNotFound(job_id)
    if record[STATE_AT] == _DELAYED:
        if store.wall_times.layers:
            record = store.place_anew(job_id)
        due_ms: int = U64.unpack_from(record, DUE_AT)[0]
        if due_ms <= store.time_ms:
            topic = store.move(job_id, came_due(record))
            store.count_overdue(topic, due_ms, due_ms)
            serve(state, topic, now_ms)
            return caught_up(state, job_id, now_ms)
    return record, State(record[STATE_AT])


def job_for(state: EngineState, job_id: int, event: Event, now_ms: int) -> bytes:
    """Return the record of a job that the event may happen to; `JobNotFound`, `TopicIsInternal`."""
    record, job_state = caught_up(state, job_id, now_ms)
    if state.store.topics.internal is not None:
        require_writable_job(state, record)
    if (job_state, event) not in TRANSITIONS:
        raise JobNotFound(job_id)
    return record


# --- The wall clock ------------------------------------------------------------------------------


def follow_wall(state: EngineState, offset_ms: int) -> None:
    """Set how far the wall clock is ahead of delayd time; negative: behind.

    `advance` then places the jobs with wall-clock times again, a slice at a time. The offset is
    rounded down: rounded up, a job could fire before its time.
    """
    wall_times = state.store.wall_times
    if offset_ms == wall_times.offset_ms:
        return
    if wall_times.count:
        _record_offset(state, offset_ms)
    else:
        state.store.step_wall(offset_ms)


def tell_offset(state: EngineState) -> None:
    """See that the log says where wall-clock times are, before a record depends on it."""
    wall_times = state.store.wall_times
    if wall_times.recorded_ms != wall_times.offset_ms:
        _record_offset(state, wall_times.offset_ms)


def _record_offset(state: EngineState, offset_ms: int) -> None:
    """Record the offset; never refused, since the clock was not set by a client.

    It need not be synced before a reply leaves: if lost, it is computed again at the start.
    """
    if state.turn_ms != state.store.time_ms:
        state.stamp()
    state.log.append(pack(Kind.OFFSET, offset_ms))
    state.log_space.free_bytes -= 2 * OFFSET_BYTES
    apply.offset(state.store, offset_ms)
