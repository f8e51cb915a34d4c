"""A copy is the state of one instant, whatever happens while it is taken.

The walks of `test_engine_walk` keep an engine and a model busy; a copy is taken meanwhile, a few
jobs at a time. Pages are made small, so that most of them change before the copy comes to them.
Copies begin when all that was cleared is swept, and topics are cleared while they are taken.
"""

import random
from collections.abc import Callable

import pytest

from delayd.core.dump import Dump
from delayd.core.log_records import Kind
from delayd.core.operations import tick
from delayd.core.session import Session
from delayd.core.snapshot_copy import SnapshotCopy
from tests.core.copies import WHOLE, copied_on_the_way, small_pages, whole
from tests.core.test_engine_walk import Scan
from tests.core.test_retry_walk import FailingWalk
from tests.core.test_wall_times_walk import ClockWalk
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


@pytest.mark.parametrize(("walks", "steps"), [(FailingWalk, 15), (ClockWalk, 1)])
@pytest.mark.parametrize("slice_jobs", [512, 1, 2])
@pytest.mark.walk(1, 50)
def test_a_copy_judges_by_the_policies_and_the_clock_of_when_it_began(
    walks: type[FailingWalk | ClockWalk], steps: int, slice_jobs: int, number: int,
    rng: random.Random, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    walk = walks(rng)
    for _ in range(6 + number):
        for _ in range(steps):
            walk.step()
        copied_on_the_way(walk, steps_max=3)


@pytest.mark.parametrize(
    "change",
    [
        lambda rig, me: rig.reserve(me),
        lambda rig, me: rig.reserve_all(me),
        lambda rig, me: rig.reserve_job(me, 3),
        lambda rig, me: rig.touch(me, 1),
        lambda rig, me: rig.release(me, 1),
        lambda rig, me: rig.delete(me, 1),
        lambda rig, me: rig.change(2, priority=1),
        lambda rig, me: rig.put(),
    ],
)
def test_a_copy_has_each_job_as_it_was_when_the_copy_began(
    rig: EngineRig, change: Callable[[EngineRig, Session], object]
) -> None:
    me = rig.client()
    rig.put_many(3)
    rig.reserve(me)
    rig.advance(rig.time_ms + 1_000)
    begun = whole(rig.engine)
    copy = SnapshotCopy(rig.engine.store)
    change(rig, me)
    assert copy.take(WHOLE, WHOLE) == begun
    assert whole(rig.engine) != begun


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
