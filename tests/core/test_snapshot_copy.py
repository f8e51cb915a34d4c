"""A copy is the state of one instant, whatever happens while it is taken.

The walks of `test_engine_walk` keep an engine and a model busy; a copy is taken meanwhile, a few
jobs at a time. Pages are made small, so that most of them change before the copy comes to them.
"""

import random
from collections.abc import Callable

import pytest

from delayd.core.dump import Dump
from delayd.core.engine import Engine
from delayd.core.log_records import Kind, UnknownRecord
from delayd.core.operations import tick
from delayd.core.operations.reserve import reserve, reserve_batch
from delayd.core.operations.sessions import open_session, watch
from delayd.core.operations.tick import advance
from delayd.core.ready_queue import job_id_of
from delayd.core.replay import Replay
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.times import PlayedMs, RequestMs
from tests.core import views
from tests.core.copies import HOUR_MS, WHOLE, copied_on_the_way, restored, small_pages, state, whole
from tests.core.test_engine_walk import Scan
from tests.rigs.engine import EngineRig, kinds_of


@pytest.mark.parametrize("bits", [0, 1, 6])
@pytest.mark.parametrize("slice_jobs", [1, 3, 256])
@pytest.mark.walk(1, 40)
def test_a_copy_is_the_state_it_began_with_and_goes_on_with_the_log_behind_it(
    bits: int,
    slice_jobs: int,
    number: int,
    rng: random.Random,
    monkeypatch: pytest.MonkeyPatch,
    share: Callable[[range], range],
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    small_pages(monkeypatch, bits)
    walk = Scan(rng)
    for _ in share(range(6)):
        for _ in range(rng.randrange(80)):
            walk.step()
        copied_on_the_way(walk, steps_max=number)


def test_nothing_is_left_of_a_copy_when_it_is_over_or_abandoned(rig: EngineRig) -> None:
    rig.put_many(200)
    store = rig.engine.store
    copy = SnapshotCopy(store)
    copy.take(1, 1)
    copy.take(1, 1)
    assert store.jobs.guarded
    copy.abandon()
    assert not store.jobs.guarded
    assert copy.is_over
    copy = SnapshotCopy(store)
    assert copy.take(WHOLE, WHOLE)
    assert copy.is_over
    assert not store.jobs.guarded
    assert copy.jobs == 200
    later = SnapshotCopy(store)
    copy.abandon()  # long over: not the later one's affair
    assert store.jobs.guarded
    later.abandon()


def test_a_slice_stops_at_the_jobs_and_at_the_bytes_it_may_take(rig: EngineRig) -> None:
    for number in range(640):
        rig.put(body=b"x" * 1000 if number < 64 else b"")
    copy = SnapshotCopy(rig.engine.store)
    sizes = []
    while not copy.is_over:
        before = copy.jobs
        taken_bytes = len(copy.take(slice_jobs=100, slice_bytes=10_000))
        sizes.append((copy.jobs - before, taken_bytes))
    assert copy.jobs == 640
    assert max(jobs for jobs, _ in sizes) <= 100 + 64
    assert max(taken_bytes for _, taken_bytes in sizes) < 10_000 + 2_000
    assert len(sizes) < 20


def test_a_slice_stops_at_topics_too(rig: EngineRig) -> None:
    for number in range(50):
        rig.put(f"topic-{number}")
    copy = SnapshotCopy(rig.engine.store)
    assert kinds_of(copy.take(slice_jobs=10, slice_bytes=WHOLE)) == [
        Kind.TURN,
        Kind.LAST,
        *[Kind.TOPIC] * 9,
    ]


def test_topics_without_a_policy_count_when_policies_are_copied(rig: EngineRig) -> None:
    for number in range(100):
        rig.put(f"topic-{number}")
    copy = SnapshotCopy(rig.engine.store)
    slices = 0
    while not copy.is_over:
        copy.take(slice_jobs=10, slice_bytes=WHOLE)
        slices += 1
    assert slices >= 10 + 10 + 100 // 64


def test_buried_jobs_are_kicked_in_the_order_they_were_buried_and_later_ones_after_them(
    rig: EngineRig,
) -> None:
    me = rig.client()
    rig.put_many(5)
    rig.reserve_all(me)
    for job_id in (4, 2, 5):
        rig.bury(me, job_id)
    copied = whole(rig.engine)
    rig.take_log()
    frames = len(rig.log)
    for job_id in (1, 3):
        rig.bury(me, job_id)
    rig.kick_job(2)
    rig.take_log()
    engine = restored(rig, rig.time_ms, copied, *rig.log[frames:])
    buried = engine.store.topics.by_name["default"].queues.buried
    assert [job_id_of(key) for key in buried] == [4, 5, 1, 3]


@pytest.mark.parametrize("due_ms", [5, 5_000])
@pytest.mark.parametrize("attempts_max", [None, 2])
def test_what_was_due_and_had_not_had_its_slice_is_copied_as_having_happened(
    rig: EngineRig, due_ms: int, attempts_max: int | None
) -> None:
    if attempts_max is not None:
        rig.set_policy("a", attempts_max=attempts_max)
    rig.put("a", ttr_ms=due_ms)
    rig.put("b", delay_ms=due_ms)
    rig.put("c")
    rig.pause("c", due_ms)
    rig.reserve(rig.client("a"))
    rig.engine.store.time_ms = PlayedMs(
        due_ms
    )  # the first moment: no slice has come to any of them
    copied = whole(rig.engine)
    assert Kind.RESERVE not in kinds_of(copied)
    assert Kind.PAUSE not in kinds_of(copied)
    engine = restored(rig, due_ms, copied)
    me = open_session(engine)
    for name in ("a", "b", "c"):
        watch(engine, me, name)
    assert [job[0] for job in reserve_batch(engine, me, 9, 9, RequestMs(due_ms))] == [1, 2, 3]
    assert views.view_job(engine, 1, RequestMs(due_ms)).timeouts == 1


def test_what_was_held_is_an_orphan_until_its_deadline(rig: EngineRig) -> None:
    rig.put(ttr_ms=5_000)
    rig.reserve(rig.client())
    engine = restored(rig, 0, whole(rig.engine))
    me = open_session(engine)
    assert reserve(engine, me, RequestMs(4_999)) is None
    assert engine.store.leases.sessions == {1: engine.store.orphans}
    while advance(engine, PlayedMs(5_000)):
        pass
    assert reserve(engine, me, RequestMs(5_000)) == (1, b"")


def test_a_topic_that_vanishes_meanwhile_is_copied_as_it_was(rig: EngineRig) -> None:
    me = rig.client("a")
    rig.put("a")
    rig.pause("a", HOUR_MS)
    rig.take_log()
    expected, frames = state(rig.engine), len(rig.log)
    copy = SnapshotCopy(rig.engine.store)
    rig.put("a")  # without a TOPIC record: the log has one
    rig.delete_batch(me, [1, 2])
    rig.close(me)
    assert "a" not in rig.engine.store.topics.by_name
    rig.put("a")
    rig.take_log()
    copied = copy.take(WHOLE, WHOLE)
    assert state(restored(rig, 0, copied)) == expected
    assert state(restored(rig, 0, copied, *rig.log[frames:])) == state(rig.engine)


def test_a_rank_of_a_job_that_is_not_buried_is_refused(rig: EngineRig) -> None:
    rig.put()
    payload, _ = rig.take_log()
    with pytest.raises(UnknownRecord, match="not buried"):
        Replay(Engine(start_ms=0)).play(
            payload + bytes.fromhex("0e 0100000000000000 05" + "00" * 7)
        )


def test_people_can_read_a_copy(rig: EngineRig) -> None:
    me = rig.client()
    rig.put()
    rig.put()
    rig.reserve_all(me)
    rig.bury(me, 1)
    shown = [(record.kind, record.fields) for record in Dump().records(whole(rig.engine))]
    assert (Kind.RANK, {"id": 0, "rank": 1}) in shown
    assert [fields["rank"] for kind, fields in shown if fields.get("state") == "buried"] == [1]
    assert (Kind.LAST, {"last_id": 2, "last_topic_number": 1}) in shown
