"""Looking at jobs and topics without changing them: peeks, statistics, the slow check of all.

Nothing here is journaled, and nothing here may alter what a client could see. Times are given as
they stand at `now_ms`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from delayd.core.engine import Engine
from delayd.core.errors import JobNotFound, TopicNotFound
from delayd.core.job import (
    DUE_AT,
    FLAGS_AT,
    HEADER,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    U64,
    Flag,
    State,
    body_of,
    key_of,
    rank_of,
    state_of,
    tally_of,
    wall_of,
)
from delayd.core.records import LAYOUTS, Kind
from delayd.core.retry_decision import caught_up_expiry, place_of
from delayd.core.store import Store
from delayd.core.throttle import Block
from delayd.core.timekeeper import Handed
from delayd.core.topic import (
    DEFAULT_TOPIC,
    INTERNAL_TOPIC,
    Source,
    Topic,
    checked_name,
    head_key,
    job_id_of,
    ready_key,
)
from delayd.core.transitions import came_due, renumbered
from delayd.limits import PRIORITY_URGENT_BELOW, TOPICS_SHOWN_MAX


class JobView(NamedTuple):
    """One job; times in milliseconds."""

    job_id: int
    topic: str
    state: State
    priority: int
    age_ms: int
    delay_ms: int
    ttr_ms: int
    left_ms: int
    """Until the delay or the reservation ends; 0 in other states."""
    reserves: int
    timeouts: int
    releases: int
    buries: int
    kicks: int


class TopicView(NamedTuple):
    """One topic; times in milliseconds."""

    name: str
    urgent: int
    ready: int
    reserved: int
    delayed: int
    buried: int
    jobs_put: int
    using: int
    watching: int
    waiting: int
    deletes: int
    pauses: int
    pause_ms: int
    pause_left_ms: int


class Totals(NamedTuple):
    """The jobs of all topics, by state."""

    urgent: int
    ready: int
    reserved: int
    delayed: int
    buried: int
    jobs_put: int


def view_job(engine: Engine, job_id: int, now_ms: int) -> JobView:
    """Return all there is to say about a job but its body; `JobNotFound`."""
    record, state = engine.settled(job_id, now_ms)
    _, due_ms, created_ms, ttr_ms, priority, number, _, _ = HEADER.unpack_from(record)
    tally = tally_of(record)
    in_hand = int(state is State.RESERVED)
    if in_hand:
        left_ms = engine.store.leases.sessions[job_id].deadlines[job_id] - now_ms
    else:
        left_ms = due_ms - now_ms if state is State.DELAYED else 0
    return JobView(
        job_id,
        engine.store.topics.by_number[number].name,
        state,
        priority,
        max(0, now_ms - created_ms),
        tally.delay_ms,
        ttr_ms,
        max(0, left_ms),
        tally.reserves + in_hand,
        tally.timeouts,
        tally.releases,
        tally.buries,
        tally.kicks,
    )


def view_topic(engine: Engine, name: str, now_ms: int) -> TopicView:
    """Return the counters of a topic; `TopicNotFound`, `TopicNameInvalid`."""
    topic = engine.store.topics.by_name.get(checked_name(name))
    if topic is None:
        raise TopicNotFound(name)
    until_ms = topic.paused_until_ms
    return TopicView(
        topic.name,
        topic.urgent,
        len(topic.ready),
        topic.reserved,
        topic.delayed,
        len(topic.buried),
        topic.jobs_put,
        topic.users,
        topic.clients_watching,
        len(topic.clients_waiting),
        topic.deletes,
        topic.pauses,
        topic.pause_ms,
        0 if until_ms is None else max(0, until_ms - now_ms),
    )


def totals(engine: Engine) -> Totals:
    """Return the counts over all topics. O(topics)."""
    topics = engine.store.topics.listing
    return Totals(
        sum(topic.urgent for topic in topics),
        sum(len(topic.ready) for topic in topics),
        sum(topic.reserved for topic in topics),
        sum(topic.delayed for topic in topics),
        sum(len(topic.buried) for topic in topics),
        engine.store.jobs_put,
    )


def peek(engine: Engine, job_id: int) -> Handed:
    """Return a job in whatever state, without reserving it; `JobNotFound`."""
    return job_id, body_of(live_record(engine.store, job_id))


def live_record(store: Store, job_id: int) -> bytes:
    """Return the record of a job as it stands, settled or not; `JobNotFound`."""
    record = store.jobs.get(job_id)
    if record is None or (
        store.cleared and job_id not in store.leases.sessions and store.is_cleared(record)
    ):
        raise JobNotFound(job_id)
    return record


def peek_ready(engine: Engine, topic: Topic) -> Handed | None:
    """Return the job that would be handed out next, paused or not."""
    return peek(engine, job_id_of(head_key(topic))) if topic.ready else None


def peek_delayed(engine: Engine, topic: Topic) -> Handed | None:
    """Return the delayed job that comes due first. O(jobs in the first bucket of the wheel)."""
    soonest = topic.delays.wheel.soonest(1)
    return peek(engine, soonest[0]) if soonest else None


def peek_buried(engine: Engine, topic: Topic) -> Handed | None:
    """Return the job that has been buried the longest."""
    return peek(engine, job_id_of(topic.buried[0])) if topic.buried else None


def canonical(engine: Engine) -> Iterator[tuple[str | int | bytes | None, ...]]:
    """Yield all that a restart must keep, as plain values in one order. O(jobs · log jobs).

    Two engines whose values are equal cannot be told apart by whoever comes after a restart. What
    is due counts as having happened, whether or not its slice has come.
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
                ),
                None,
            )
        elif deadline_ms is None and state_of(record) is State.DELAYED:
            now = store.current(job_id, record)
            due_ms: int = U64.unpack_from(now, DUE_AT)[0]
            now = came_due(now) if due_ms <= time_ms else now
            follows_wall |= due_ms > time_ms and wall_of(now) is not None
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


def live_jobs(store: Store) -> Iterator[tuple[int, bytes]]:
    """Yield (id, record), the records of those in hand with the numbers that their topics have."""
    for job_id, record in store.jobs:
        if job_id in store.leases.sessions:
            yield job_id, renumbered(record, store.topic_of(record).number)
        elif not store.is_cleared(record):
            yield job_id, record


def check(engine: Engine) -> None:
    """Assert every invariant of the engine's state, slowly. For tests, after each step."""
    store = engine.store
    counted = dict.fromkeys(store.topics.listing, 0)
    lengths = dict.fromkeys(store.topics.listing, 0)
    for job_id, record in live_jobs(store):
        topic = store.topic_of(record)
        counted[topic] += 1
        holder = store.leases.sessions.get(job_id)
        priority = HEADER.unpack_from(record)[4]
        delayed = state_of(record) is State.DELAYED and holder is None
        ready = state_of(record) is State.READY and holder is None
        assert (ready_key(priority, job_id) in topic.ready) == ready
        is_buried = state_of(record) is State.BURIED and holder is None
        assert (ready_key(rank_of(record), job_id) in topic.buried) == is_buried
        assert bool(record[FLAGS_AT] & Flag.RANK) == (state_of(record) is State.BURIED)
        if delayed:
            assert U64.unpack_from(record, DUE_AT)[0] >= 0
        if holder is not None:
            assert job_id in holder.deadlines
        lengths[topic] += len(record)
    for topic, jobs in counted.items():
        _check_topic(engine, topic, jobs)
        _check_limits(engine, topic)
        assert topic.bytes == lengths[topic]
    assert engine.room.jobs == sum(counted.values())
    assert set(store.topics.by_name.values()) == set(store.topics.listing)
    assert (
        store.topics.shown
        == sum(topic.has_own_metrics for topic in store.topics.listing)
        <= TOPICS_SHOWN_MAX
    )
    _check_numbers(store)
    _check_keys(store)
    assert sum(topic.reserved for topic in store.topics.listing) == len(store.leases.sessions)
    assert store.jobs.put_bytes == sum(LAYOUTS[Kind.PUT].size + len(job[1]) for job in store.jobs)
    _check_absolute(engine)
    assert store.paused == {
        topic.number: (topic.paused_until_ms, topic.pause_ms)
        for topic in store.topics.listing
        if topic.paused_until_ms is not None
    }
    assert len(store.leases.lane.wheel) == len(store.leases.sessions)
    assert len(store.alarms.lane.wheel) == len(store.alarms.rows)
    lanes = [
        store.leases.lane,
        store.alarms.lane,
        *(topic.delays for topic in store.topics.listing),
    ]
    for lane in lanes:
        lane.wheel.check()
    store.timer_queue.check(lanes, store.time_ms)


def _check_keys(store: Store) -> None:
    """Assert that records and indexes agree, also on what a clear has forgotten."""
    keyed: dict[Topic, dict[bytes, int]] = {topic: {} for topic in store.topics.listing}
    for job_id, record in store.jobs:
        if record[FLAGS_AT] & Flag.KEY:
            jobs = keyed.setdefault(store.topic_of(record), {})
            assert key_of(record) not in jobs, "a key is there twice"
            jobs[key_of(record)] = job_id
    for topic, jobs in keyed.items():
        assert (topic.keys is None) == (not jobs)
        if topic.keys is not None:
            topic.keys.check(jobs)


def _check_numbers(store: Store) -> None:
    numbered = {topic.number: topic for topic in store.topics.listing}
    numbered.update((old, topic) for topic in store.topics.listing for old in topic.old_held)
    numbered.update((ghost.number, ghost.topic) for ghost in store.cleared)
    assert store.topics.by_number == numbered
    assert store.topics.internal is store.topics.by_name.get(INTERNAL_TOPIC)
    held = Counter(
        PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
        for job_id, record in store.jobs
        if job_id in store.leases.sessions
    )
    for topic in store.topics.listing:
        assert topic.old_held == {old: held[old] for old in topic.old_held}
        assert sum(topic.old_held.values()) + held[topic.number] == topic.reserved


def _check_absolute(engine: Engine) -> None:
    store = engine.store
    absolute = store.wall_times
    placed, unplaced = absolute.ids()
    assert not placed & unplaced
    assert absolute.count == len(placed) + len(unplaced)
    assert all(layer.ids for layer in absolute.layers)
    assert absolute.recorded_ms == absolute.offset_ms or not absolute.count
    live = dict(live_jobs(store))
    ghosts = {job_id for job_id, _ in store.jobs} - live.keys()
    placed -= ghosts
    unplaced -= ghosts
    for job_id, record in live.items():
        wall_ms = wall_of(record)
        due_ms: int = U64.unpack_from(record, DUE_AT)[0]
        waits = state_of(record) is State.DELAYED and job_id not in store.leases.sessions
        if wall_ms is None or not waits or job_id in placed | unplaced:
            assert waits or job_id not in placed | unplaced
            assert wall_ms is not None or job_id not in placed | unplaced
        else:
            assert due_ms <= store.time_ms, "a job has lost sight of the wall clock"
        if job_id in placed:
            assert due_ms == absolute.place(wall_ms or 0)
        placed.discard(job_id)
        unplaced.discard(job_id)
    assert not placed | unplaced, "jobs that are gone still follow the wall clock"


def _check_limits(engine: Engine, topic: Topic) -> None:
    store = engine.store
    policy, throttle = topic.policy, topic.throttle
    assert topic.has_no_rules == (
        policy is None and not store.topics.is_capped and not topic.is_internal
    )
    feeders = [each for each in store.topics.listing if each.target is topic]
    assert topic.feeders == len(feeders)
    assert topic is not topic.target
    assert bool(topic.blocks & Block.PAUSED) == (topic.paused_until_ms is not None)
    if throttle is None:
        assert not topic.blocks & ~Block.PAUSED
        assert policy is None or not (policy.reserved_max or policy.rate_per_s)
    else:
        assert bool(topic.blocks & Block.FULL) == throttle.is_full(topic.reserved)
        assert bool(topic.blocks & Block.SLOW) == (throttle.alarm is not None)
        assert throttle.alarm is None or store.alarms.rows[throttle.alarm][1] is throttle


def _check_topic(engine: Engine, topic: Topic, jobs: int) -> None:
    assert topic.jobs == jobs
    assert jobs == len(topic.ready) + topic.reserved + topic.delayed + len(topic.buried)
    assert not topic.buried or topic.buried[-1] >> 64 <= engine.store.last_rank
    ready = [(job_id_of(key), engine.store.jobs.get(job_id_of(key))) for key in topic.ready]
    topic.ages.check((job_id, U64.unpack_from(rec or b"", DUE_AT)[0]) for job_id, rec in ready)
    assert topic.urgent == sum(key >> 64 < PRIORITY_URGENT_BELOW for key in topic.ready)
    assert topic.is_wanted, f"{topic.name} should have vanished"
    assert engine.store.topics.listing[topic.place] is topic
    if not topic.blocks:
        assert not (topic.ready and topic.waiters), "a job and a consumer miss each other"
    for session in topic.waiters:
        assert session.waiting
        assert topic in session.watched
