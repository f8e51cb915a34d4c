"""A bulk operation does to each job what was asked, once, whatever happens on the way."""

import random
from itertools import pairwise

import pytest

from delayd.core.errors import OutOfSpace, TopicNotFound, ValueOutOfRange
from delayd.core.job_parts import tally_of, wall_of
from delayd.core.job_record import Event, State
from delayd.core.log_records import Kind
from delayd.core.operations.tick import next_deadline
from delayd.core.scans.bulk import Action, Bulk
from delayd.core.scans.scan import Wanted
from delayd.limits import BULK_PER_S_MAX, CAP_MAX, DURATION_MS_MAX, TASK_STEP_JOBS, WALL_MS_MAX
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.crowds import Crowd
from tests.rigs.engine import EngineRig, kinds_of

DELAY_MS = 7_777_777
"""One that nobody else asks for."""
WALL_MS = 3_777_777_777_777
ACTIONS = {
    "cancel": Action.cancel(),
    "kick": Action.kick(),
    "redrive": Action.kick(per_s=3),
    "reschedule": Action.reschedule(DELAY_MS),
    "appoint": Action.reschedule_at(WALL_MS),
}


def carried_out(rig: EngineRig, bulk: Bulk, budget: int = TASK_STEP_JOBS) -> Bulk:
    while not bulk.step(budget, rig.now_ms):
        pass
    return bulk


def is_done(crowd: Crowd, job_id: int, action: Action) -> bool:
    """Whether it shows that this was done to the job, and done once."""
    record = crowd.engine.store.jobs.get(job_id)
    if action == Action.cancel():
        return record is None
    if record is None:
        return False
    if action == Action.reschedule(DELAY_MS):
        return tally_of(record).delay_ms == DELAY_MS
    if action == Action.reschedule_at(WALL_MS):
        return wall_of(record) == WALL_MS
    return tally_of(record).kicks == crowd.kicks[job_id] + 1


@pytest.mark.walk(1, 50)
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_it_is_done_to_all_that_are_wanted_and_to_nobody_else(
    number: int, action: Action, rng: random.Random
) -> None:
    for _ in range(10):
        crowd = Crowd(rng)
        wanted = crowd.some_filter()
        able = crowd.matching(crowd.topic, wanted._replace(states=wanted.states & action.states))
        before = dict(crowd.engine.store.jobs)
        crowd.note_kicks()
        counted = Bulk(crowd.engine, crowd.topic, wanted, action, dry_run=True)
        assert carried_out(crowd.rig, counted, rng.choice((1, 50))).done == len(able)
        assert dict(crowd.engine.store.jobs) == before
        bulk = Bulk(crowd.engine, crowd.topic, wanted, action)
        assert carried_out(crowd.rig, bulk, rng.choice((1, 50))).done == len(able)
        for job_id, record in before.items():
            if job_id in able:
                assert is_done(crowd, job_id, action)
            else:
                assert crowd.engine.store.jobs.get(job_id) == record
        check(crowd.engine)


@pytest.mark.walk(1, 50)
@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_it_is_done_to_a_job_that_nobody_touches_meanwhile(
    number: int, action: Action, rng: random.Random
) -> None:
    checked = 0
    for _ in range(10):
        crowd = Crowd(rng)
        wanted = crowd.some_filter()
        wanted = wanted._replace(states=wanted.states & action.states)
        crowd.note_kicks()
        bulk = Bulk(crowd.engine, crowd.topic, wanted, action)
        waiting = crowd.matching(crowd.topic, wanted)
        last_id = crowd.engine.store.last_id
        for _ in crowd.carried_out(bulk, steps_max=2, spare=frozenset(waiting)):
            check(crowd.engine)
        for job_id in waiting:
            if is_done(crowd, job_id, action):
                checked += 1
            elif crowd.was_left_alone(job_id):
                # Its time came first, and ready jobs were not wanted.
                assert State.READY not in wanted.states
                assert views.view_job(crowd.engine, job_id, crowd.rig.now_ms).state is State.READY
        later = [job_id for job_id in crowd.ids() if job_id > last_id]
        assert not any(
            is_done(crowd, job_id, action) for job_id in later if action.event is Event.RESCHEDULE
        )
        live = list(canonical(crowd.engine))
        assert list(canonical(crowd.rig.replayed())) == live
    assert checked


def test_jobs_put_after_the_beginning_are_not_touched(rig: EngineRig) -> None:
    rig.put_many(10, delay_ms=50)
    bulk = Bulk(rig.engine, "default", Wanted(), Action.cancel())
    bulk.step(1, rig.now_ms)
    later = [rig.put(delay_ms=delay_ms) for delay_ms in (0, 50, 900)]
    assert carried_out(rig, bulk).done == 10
    assert [job_id for job_id, _ in rig.engine.store.jobs] == later


def test_kicked_at_a_rate_the_first_comes_at_once_and_the_others_one_after_the_other(
    rig: EngineRig,
) -> None:
    me = rig.client()
    for _ in range(6):
        rig.bury(me, rig.put() and rig.reserve(me))
    rig.take_log()
    bulk = Bulk(rig.engine, "default", Wanted(frozenset({State.BURIED})), Action.kick(per_s=4))
    assert carried_out(rig, bulk).done == 6
    pieces, _ = rig.engine.take_log()
    rig.log.append(b"".join(pieces))
    assert [kinds_of(piece) for piece in pieces if piece[0] != Kind.TURN] == [
        [Kind.KICK],
        *[[Kind.KICK, Kind.RESCHEDULE]] * 5,
    ], "half of such a pair would make the job ready too soon"
    got = []
    while rig.topic().jobs > rig.topic().reserved:
        job_id = rig.reserve(me)
        if job_id:
            got.append((rig.time_ms, job_id))
        else:
            rig.play(next_deadline(rig.engine) or 0)
    assert got == [(0, 1), (250, 2), (500, 3), (750, 4), (1000, 5), (1250, 6)]
    for job_id in me.deadlines:
        record = rig.engine.store.jobs.get(job_id)
        assert record is not None
        assert tally_of(record).kicks == 1
    rig.agree_with_the_log()


def test_at_most_so_many_are_changed(rig: EngineRig) -> None:
    rig.put_many(10, delay_ms=50)
    bulk = Bulk(rig.engine, "default", Wanted(), Action.kick(), limit=3)
    assert carried_out(rig, bulk).done == 3
    topic = rig.topic()
    assert (len(topic.queues.ready), topic.delayed) == (3, 7)


def test_when_there_is_no_space_it_ends_and_says_so_with_what_was_done_kept(rig: EngineRig) -> None:
    rig.put_many(10, delay_ms=50)
    asked = []

    def ask(missing_bytes: int, _body_bytes: int, _places: int) -> int:
        asked.append(missing_bytes)
        return 0

    rig.engine.log_space.limit(200, ask)
    bulk = carried_out(rig, Bulk(rig.engine, "default", Wanted(), Action.reschedule(900)))
    assert len(asked) == 1, "it tried once more"
    assert isinstance(bulk.refusal, OutOfSpace)
    assert 0 < bulk.done < 10
    rig.agree_with_the_log()
    assert carried_out(rig, Bulk(rig.engine, "default", Wanted(), Action.cancel())).done == 10


def test_a_job_that_goes_to_a_waiting_consumer_is_not_counted(rig: EngineRig) -> None:
    rig.pause("default", 100)
    rig.put_many(3, delay_ms=50)
    rig.run(60)
    me = rig.client()
    rig.wait(me)
    rig.put(delay_ms=50)
    rig.pause("default", 0)  # the first goes to the one who waited
    bulk = carried_out(rig, Bulk(rig.engine, "default", Wanted(), Action.cancel()))
    assert (bulk.done, len(me.deadlines)) == (3, 1)


def test_what_cannot_be_done_is_refused_at_once() -> None:
    engine = EngineRig().engine
    with pytest.raises(TopicNotFound):
        Bulk(engine, "nobody", Wanted(), Action.cancel())
    for limit in (0, CAP_MAX + 1):
        with pytest.raises(ValueOutOfRange):
            Bulk(engine, "default", Wanted(), Action.cancel(), limit=limit)
    for per_s in (-1, BULK_PER_S_MAX + 1):
        with pytest.raises(ValueOutOfRange):
            Action.kick(per_s)
    with pytest.raises(ValueOutOfRange):
        Action.reschedule(DURATION_MS_MAX + 1)
    with pytest.raises(ValueOutOfRange):
        Action.reschedule_at(WALL_MS_MAX + 1)


def test_kicked_at_the_highest_rate_they_keep_their_order(rig: EngineRig) -> None:
    rig.put_many(100, delay_ms=50)
    carried_out(rig, Bulk(rig.engine, "default", Wanted(), Action.kick(BULK_PER_S_MAX)))
    rig.run(1)
    topic = rig.topic()
    assert len(topic.queues.ready) == 100
    assert all(earlier < later for earlier, later in pairwise(topic.queues.ready))
