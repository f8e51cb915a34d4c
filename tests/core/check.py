"""Every invariant of the engine's state, recomputed slowly: call `check` after each step.

Each part of the core checks itself by its own `check`; this module checks what connects them.
"""

from collections import Counter

from delayd.core.engine import Engine
from delayd.core.group_turns import waits_again
from delayd.core.job_parts import Flag, group_of, key_of, rank_of, wall_of
from delayd.core.job_record import (
    DUE_AT,
    FLAGS_AT,
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    STATE_AT,
    U64,
    State,
)
from delayd.core.policy import NO_POLICY
from delayd.core.ready_queue import job_id_of, ready_key
from delayd.core.store import Store
from delayd.core.throttle import Block
from delayd.core.topic import Topic
from tests.core.views import live_jobs

# As plain numbers: a check is a quarter of many a test, and `&` of a flag takes ten times as long.
RANK, KEY = int(Flag.RANK), int(Flag.KEY)
PAUSED, FULL, SLOW, HELD = map(int, (Block.PAUSED, Block.FULL, Block.SLOW, Block.HELD))
STATES = {int(state): state for state in State}


def check(engine: Engine) -> None:
    """Assert every invariant. O(jobs)."""
    store = engine.store
    for part in (store.topics, store.leases, store.alarms, store.wall_times, store.jobs):
        part.check()
    counted: Counter[Topic] = Counter()
    lengths: Counter[Topic] = Counter()
    queued: dict[tuple[Topic, State], set[int]] = {}
    live = {job_id: (record, STATES[record[STATE_AT]]) for job_id, record in live_jobs(store)}
    for job_id, (record, state) in live.items():
        topic = store.topic_of(record)
        counted[topic] += 1
        lengths[topic] += len(record)
        assert bool(record[FLAGS_AT] & RANK) == (state is State.BURIED)
        if state is not State.DELAYED and job_id not in store.leases.sessions:
            key = job_id if state is State.READY else ready_key(rank_of(record), job_id)
            queued.setdefault((topic, state), set()).add(key)
    for topic in store.topics.listing:
        assert topic.jobs == counted[topic]
        assert topic.bytes == lengths[topic]
        assert {*map(job_id_of, topic.queues.ready)} == queued.get((topic, State.READY), set())
        assert set(topic.queues.buried) == queued.get((topic, State.BURIED), set())
        _check_topic(store, topic)
        _check_throttle(store, topic)
    assert [*filter(lambda topic: topic.queues.ready.is_listed, store.topics.listing)] == sorted(
        store.ready_topics.stocked, key=lambda topic: topic.place
    )
    for number, session in engine.waits.items():
        assert session.waiting
        assert session.wait_number == number
        assert all(number in topic.waiters for topic in session.watched)
    assert all(topic.waiters.keys() <= engine.waits.keys() for topic in store.topics.listing)
    assert engine.log_space.jobs == counted.total()
    assert sum(topic.reserved for topic in store.topics.listing) == len(store.leases.sessions)
    _check_ended_sessions(engine)
    _check_numbers(store)
    _check_keys(store)
    _check_wall_times(store, live)
    assert store.blocks.paused == {
        topic.number: (topic.paused_until_ms, topic.pause_ms)
        for topic in store.topics.listing
        if topic.paused_until_ms is not None
    }
    check_lanes(engine)
    _check_groups(store, live)
    delays = [topic.queues.delays for topic in store.topics.listing]
    assert not len(store.without_jobs), "a topic has put a job into the queues of all others"
    assert not store.without_jobs.ready.ages.newest
    store.timer_queue.check([store.leases.lane, store.alarms.lane, *delays], store.time_ms)


def _check_ended_sessions(engine: Engine) -> None:
    """Assert that whatever a session holds that has ended is going to come back."""
    coming = {}
    for session, job_ids in engine.ended_sessions:
        assert session.left_for is not None
        assert not session.waiting
        assert session.deadlines.keys() <= set(job_ids)
        coming.update(dict.fromkeys(session.deadlines, session))
    holders = engine.store.leases.sessions
    assert coming == {job: whose for job, whose in holders.items() if whose.left_for is not None}


def _check_topic(store: Store, topic: Topic) -> None:
    queues = topic.queues
    queues.check(store.jobs.get)
    assert not queues.ready.changed, "it was not told who looks for ready jobs"
    assert topic.jobs == len(queues) + topic.reserved
    assert not queues.buried or queues.buried.last() >> 64 <= store.last_rank
    if not topic.blocks:
        assert not (topic.queues.ready and topic.waiters), "a job and a consumer miss each other"


def _check_throttle(store: Store, topic: Topic) -> None:
    throttle = topic.throttle
    assert bool(topic.blocks & PAUSED) == (topic.paused_until_ms is not None)
    if throttle is not None:
        assert bool(topic.blocks & FULL) == throttle.is_full(topic.reserved)
        assert bool(topic.blocks & SLOW) == (throttle.alarm is not None)
        assert throttle.alarm is None or store.alarms.rows[throttle.alarm][1] is throttle


def _check_groups(store: Store, live: dict[int, tuple[bytes, State]]) -> None:
    """Assert that each group counts its jobs, and that what it may be is what it is."""
    counted: Counter[tuple[Topic, bytes, str]] = Counter()
    for job_id, (record, _state) in live.items():
        if name := group_of(record):
            topic = store.topic_of(record)
            counted[topic, name, "jobs"] += 1
            if job_id in store.leases.sessions:
                counted[topic, name, "reserved"] += 1
            elif waits_again(record):
                counted[topic, name, "retrying"] += 1
    for topic in store.topics.listing:
        ready = topic.queues.ready
        assert bool(topic.blocks & HELD) == ready.is_held
        for group in ready.groups or ():
            for what in ("jobs", "reserved", "retrying"):
                assert getattr(group, what) == counted.pop((topic, group.name, what), 0), what
        if ready.groups is not None:
            groups, rule = ready.groups, (topic.policy or NO_POLICY).group_rule
            assert groups.rule == rule
            wakes_ms = groups.wakes_ms()
            assert wakes_ms is None or (groups.alarm is not None and groups.alarm_ms <= wakes_ms)
            assert groups.alarm is None or store.alarms.rows[groups.alarm][1] is groups
    assert not counted, "a group is not known"


def check_lanes(engine: Engine) -> None:
    """Assert that the scheduler will hear of all jobs to be pushed."""
    store = engine.store
    for topic in store.push_lanes.resting:
        assert topic.blocks or engine.log_space.is_short, "its jobs would never be pushed"
    store.push_lanes.check(store.topics.listing)


def _check_numbers(store: Store) -> None:
    topics = store.topics.listing
    by_number = {topic.number: topic for topic in topics}
    by_number.update((old, topic) for topic in topics for old in topic.old_held)
    by_number.update((cleared.number, cleared.topic) for cleared in store.cleared.left)
    assert store.topics.by_number == by_number
    held = Counter(
        PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[1]
        for job_id, record in store.jobs
        if job_id in store.leases.sessions
    )
    for topic in topics:
        assert topic.old_held == {old: held[old] for old in topic.old_held}
        assert sum(topic.old_held.values()) + held[topic.number] == topic.reserved


def _check_keys(store: Store) -> None:
    """Assert that records and indexes agree, also on cleared jobs."""
    keyed: dict[Topic, dict[bytes, int]] = {topic: {} for topic in store.topics.listing}
    for job_id, record in store.jobs:
        if record[FLAGS_AT] & KEY:
            jobs = keyed.setdefault(store.topic_of(record), {})
            assert key_of(record) not in jobs, "a key is there twice"
            jobs[key_of(record)] = job_id
    for topic, jobs in keyed.items():
        assert (topic.keys is None) == (not jobs)
        if topic.keys is not None:
            topic.keys.check(jobs)


def _check_wall_times(store: Store, live: dict[int, tuple[bytes, State]]) -> None:
    wall_times = store.wall_times
    placed, unplaced = wall_times.ids()
    if store.cleared.left:
        cleared = {job_id for job_id, _ in store.jobs} - live.keys()
        placed, unplaced = placed - cleared, unplaced - cleared
    for job_id, (record, state) in live.items():
        wall_ms = wall_of(record)
        if wall_ms is None:
            continue
        due_ms: int = U64.unpack_from(record, DUE_AT)[0]
        waits = state is State.DELAYED and job_id not in store.leases.sessions
        if job_id in placed or job_id in unplaced:
            assert waits
        elif waits:
            assert due_ms <= store.time_ms, "a job has lost sight of the wall clock"
        if job_id in placed:
            assert due_ms == wall_times.place(wall_ms)
    for job_id in placed | unplaced:
        assert job_id in live, "jobs that are gone still follow the wall clock"
        assert wall_of(live[job_id][0]) is not None
