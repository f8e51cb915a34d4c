"""What is done to many jobs at once has the effects that it has one by one.

Two engines go the same way. One is given runs, the other the same operations singly; everything
that can be seen of them, what they recorded and when they want to be woken is then equal.
"""

import random
from typing import TYPE_CHECKING, Final

import pytest

from delayd.core.operations import tick
from delayd.core.operations.ack import delete_batch
from delayd.core.operations.put import put_alike
from delayd.core.operations.reserve import reserve, reserve_batch
from delayd.core.operations.sessions import ignore, watch
from delayd.core.operations.tick import next_deadline
from delayd.core.session import Session
from delayd.core.stats.counters import Operation
from delayd.core.times import RequestMs
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.wheels import Owned
from tests.rigs.engine import EngineRig

if TYPE_CHECKING:
    from delayd.core.session import Handed

TOPICS: Final = ("default", "a", "b", "c", "d")


class Twins:
    """Two engines, of which the second never does more than one thing at a time."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        tick_ms = rng.choice((1, 1, 10))
        self.rigs = [EngineRig(tick_ms=tick_ms, wheel_size=20, skew_ms=1) for _ in range(2)]
        self.sessions = [[rig.client(*TOPICS[:1]) for _ in range(3)] for rig in self.rigs]

    def put(self, topic: str, delay_ms: int, priority: int, ttr_ms: int, jobs: int) -> None:
        bodies = [b"x" * self.rng.randrange(30) for _ in range(jobs)]
        run, single = self.rigs
        terms = (priority, delay_ms, ttr_ms)
        target = run.engine.store.topic(topic)
        first = put_alike(run.engine, target, *terms, bodies, run.now_ms)
        ids = [
            single.put(topic, delay_ms=delay_ms, priority=priority, ttr_ms=ttr_ms, body=body)
            for body in bodies
        ]
        assert ids == list(range(first, first + jobs))

    def reserve(self, which: int, jobs_max: int, bytes_max: int) -> None:
        run, single = self.rigs
        session, other = self.sessions[0][which], self.sessions[1][which]
        jobs = reserve_batch(run.engine, session, jobs_max, bytes_max, run.now_ms)
        singly: list[Handed] = []
        while len(singly) < jobs_max and bytes_max >= 0:
            job = reserve(single.engine, other, single.now_ms)
            if job is None:
                break
            singly.append(job)
            bytes_max -= len(job[1])
        assert jobs == singly

    def delete(self, which: int, job_ids: list[int]) -> None:
        run, single = self.rigs
        session, other = self.sessions[0][which], self.sessions[1][which]
        deleted = run.delete_batch(session, job_ids)
        assert deleted == [single.delete_batch(other, (job_id,))[0] for job_id in job_ids]

    def pass_time(self, ms: int) -> None:
        for rig in self.rigs:
            rig.play(rig.time_ms + ms)

    def watch(self, which: int, topics: list[str]) -> None:
        for rig, sessions in zip(self.rigs, self.sessions, strict=True):
            session = sessions[which]
            for name in topics:
                watch(rig.engine, session, name)
            for topic in list(session.watched):
                if topic.name not in topics:
                    ignore(rig.engine, session, topic.name)

    def step(self) -> None:
        rng = self.rng
        which = rng.randrange(3)
        chance = rng.random()
        if chance < 0.3:
            delay_ms, priority = rng.choice((0, 0, 0, 3, 50)), rng.choice((0, 5, 1023, 1024))
            self.put(
                rng.choice(TOPICS), delay_ms, priority, rng.choice((1, 7, 500)), rng.randrange(1, 9)
            )
        elif chance < 0.5:
            self.reserve(which, rng.randrange(8), rng.randrange(80))
        elif chance < 0.75:
            self.delete(which, self.some_ids(which))
        elif chance < 0.9:
            self.watch(which, rng.sample(TOPICS, rng.choice((1, 1, 1, 2))))
        else:
            self.pass_time(rng.choice((1, 1, 10, 100)))

    def some_ids(self, which: int) -> list[int]:
        """Most often what the session holds, each once; otherwise anything."""
        rng = self.rng
        held = list(self.sessions[0][which].deadlines)
        rng.shuffle(held)
        if rng.random() < 0.8:
            return held[: rng.randrange(1, 9)]
        anything = [rng.randrange(self.rigs[0].engine.store.last_id + 2) for _ in range(3)]
        return held[:2] + held[:1] + anything

    def compare(self) -> None:
        seen = [
            what_can_be_seen(rig, sessions)
            for rig, sessions in zip(self.rigs, self.sessions, strict=True)
        ]
        assert seen[0] == seen[1]
        for rig in self.rigs:
            check(rig.engine)

    def compare_logs(self) -> None:
        for rig in self.rigs:
            rig.take_log()
        assert b"".join(self.rigs[0].log) == b"".join(self.rigs[1].log)
        recovered = [list(canonical(rig.replayed())) for rig in self.rigs]
        assert recovered[0] == recovered[1] == list(canonical(self.rigs[0].engine))


def what_can_be_seen(rig: EngineRig, sessions: list[Session]) -> dict[str, object]:
    engine, store = rig.engine, rig.engine.store
    return {
        "jobs": list(canonical(engine)),
        "topics": [rig.view_topic(topic.name) for topic in store.topics.listing],
        "urgent": [topic.queues.ready.urgent for topic in store.topics.listing],
        "totals": views.totals(engine),
        "held": [dict(session.deadlines) for session in sessions],
        "soonest": [session.soonest_ms for session in sessions],
        "wake-up": next_deadline(engine),
        "jobs in the room": engine.log_space.jobs,
        "must sync": engine.must_sync,
        "leases": len(store.leases.lane.wheel),
        "timeouts": engine.store.counters.operations[Operation.TIMEOUT],
    }


@pytest.mark.parametrize("slice_jobs", [1, 128])
@pytest.mark.walk(1, 60)
def test_random_walks_in_runs_and_one_by_one_end_alike(
    number: int, slice_jobs: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    twins = Twins(rng)
    for step in range(150):
        twins.step()
        twins.compare()
        if step % 50 == 49:
            twins.compare_logs()


def test_topics_vanish_in_the_order_in_which_a_run_empties_them(rng: random.Random) -> None:
    """The last topic of the listing takes the place of one that vanishes, so the order shows."""
    twins = Twins(rng)
    for topic in "abcd":
        twins.put(topic, 0, 0, 500, 2 if topic == "a" else 1)
    twins.watch(0, ["a"])
    twins.reserve(0, 2, 1_000)
    twins.watch(0, ["b"])
    twins.reserve(0, 1, 1_000)
    twins.watch(0, ["default"])
    twins.delete(0, [1, 3, 2])
    twins.compare()


def test_a_run_that_takes_nothing_records_nothing(rig: EngineRig) -> None:
    session = rig.client()
    assert reserve_batch(rig.engine, session, 5, 1_000, RequestMs(0)) == []
    rig.put()
    rig.take_log()
    assert reserve_batch(rig.engine, session, 0, 1_000, RequestMs(0)) == []
    assert delete_batch(rig.engine, session, [], RequestMs(0)) == []
    assert rig.take_log() == (b"", False)


# --- Of a wheel ----------------------------------------------------------------------------------


def test_inserting_a_run_leaves_what_as_many_inserts_leave(rng: random.Random) -> None:
    twins = [Owned(wheel_size=20) for _ in range(2)]
    last = 0
    for _ in range(200):
        run = range(last + 1, last + 1 + rng.randrange(1, 5))
        last = run[-1]
        due_ms = twins[0].now_ms + rng.choice((0, 1, 30, 30, 5_000))
        twins[0].due_ms.update(dict.fromkeys(run, due_ms))
        is_earlier = twins[0].wheel.insert_run(run, due_ms, twins[0].now_ms)
        singly = [twins[1].insert(entry, due_ms) for entry in run]
        assert is_earlier == any(singly)
        if rng.random() < 0.3:
            now_ms = twins[0].now_ms + rng.choice((1, 7, 400))
            assert twins[0].advance(now_ms, 3) == twins[1].advance(now_ms, 3)
        for owned in twins:
            owned.check()
        assert twins[0].wheel.layout() == twins[1].wheel.layout()
        assert twins[0].wheel.next_deadline() == twins[1].wheel.next_deadline()
