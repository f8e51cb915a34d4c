"""What a restart must keep of an engine, as plain values: two engines are compared by it."""

from collections.abc import Iterator

from delayd.core.engine import Engine
from delayd.core.job_parts import rank_of, wall_of
from delayd.core.job_record import DUE_AT, U64, State, state_of
from delayd.core.names import DEFAULT_TOPIC
from delayd.core.retry import caught_up_expiry
from delayd.core.topic import Source, place_of
from delayd.core.transitions import came_due
from tests.core.views import live_jobs


def canonical(engine: Engine) -> Iterator[tuple[str | int | bytes | None, ...]]:
    """Yield all that a restart must keep, as plain values in one order. O(jobs · log jobs).

    Two engines with equal values are the same for every client after a restart. What is due counts
    as having happened, whether or not its slice has come. So it does for a job that is held, whose
    state nobody reads: a replay hands it out before it comes due, if both were in one turn.
    """
    store = engine.store
    time_ms = store.time_ms
    yield "last id", store.last_id
    follows_wall = False
    buried: dict[str, list[tuple[int, int]]] = {}
    has_jobs: set[str] = set()
    for job_id, record in sorted(live_jobs(store)):
        holder = store.leases.sessions.get(job_id)
        deadline_ms = None if holder is None else holder.deadlines[job_id]
        now = record
        if deadline_ms is not None and deadline_ms <= time_ms:
            topic = store.topic_of(record)
            now, deadline_ms = (
                caught_up_expiry(
                    record,
                    topic.policy,
                    place_of(topic),
                    deadline_ms,
                    tick_ms=store.tick_ms,
                    time_ms=time_ms,
                    begun_ms=store.leases.begun.get(job_id, 0),
                ),
                None,
            )
        elif state_of(record) is State.DELAYED:
            now = store.wall_times.current(job_id, record) if deadline_ms is None else record
            due_ms: int = U64.unpack_from(now, DUE_AT)[0]
            now = came_due(now) if due_ms <= time_ms else now
            if deadline_ms is None and due_ms > time_ms:
                follows_wall |= wall_of(now) is not None
        name = store.topic_of(now).name
        has_jobs.add(name)
        if deadline_ms is None and state_of(now) is State.BURIED:
            buried.setdefault(name, []).append((rank_of(now), job_id))
        yield "job", job_id, name, now, deadline_ms
    if follows_wall:
        yield "offset", store.wall_times.offset_ms
    for name, topic in sorted(store.topics.by_name.items()):
        if name in buried:
            yield "buried", name, *(job_id for _, job_id in sorted(buried[name]))
        is_run_time = topic.policy_source is Source.RUN_TIME
        if topic.policy is not None and (is_run_time or name in has_jobs):
            yield "policy", name, topic.policy_source, topic.policy.to_json()
        until_ms = topic.paused_until_ms
        is_paused = until_ms is not None and until_ms > time_ms
        if is_paused and (topic.jobs or name == DEFAULT_TOPIC):
            yield "paused", name, until_ms, topic.pause_ms
        groups = topic.queues.ready.groups
        if groups is not None and (topic.jobs or name == DEFAULT_TOPIC):
            for group, (until_ms, pause_ms) in sorted(groups.paused.items()):
                if until_ms > time_ms:
                    yield "paused", name, group, until_ms, pause_ms
