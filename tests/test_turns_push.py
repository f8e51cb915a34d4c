"""Turns with jobs that are to be pushed: when the scheduler is told, and what is in the frame."""

import pytest

from delayd.core.job_parts import Own
from delayd.core.operations.ack import delete
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.operations.put import put_keyed
from delayd.core.operations.sessions import open_session
from delayd.core.times import RequestMs
from tests.rigs.commit import CommitRig, set_watch

TARGET = b"POST https://a.example/"


class Pushes:
    """A scheduler that takes every job at once, and a rig in which it is told of them."""

    def __init__(self, rig: CommitRig) -> None:
        self.rig = rig
        self.session = open_session(rig.engine)
        self.told: list[list[int]] = []
        rig.turns.on_push = self.on_push
        rig.turns.turn()

    def on_push(self, now_ms: RequestMs) -> None:
        jobs = []
        for lane in take_fresh(self.rig.engine):
            while job := reserve_call(self.rig.engine, self.session, lane, 1_000, now_ms):
                jobs.append(job[0])
        self.told.append(jobs)

    def put(self, delay_ms: int = 0, target: bytes = TARGET) -> int:
        job_id, _ = put_keyed(
            self.rig.engine,
            self.rig.engine.store.topic("default"),
            b"",
            priority=0,
            delay_ms=delay_ms,
            ttr_ms=1_000,
            body=b"",
            own=Own(target=target),
            now_ms=self.rig.now_ms,
        )
        return job_id


@pytest.fixture
def pushes(monkeypatch: pytest.MonkeyPatch) -> Pushes:
    return Pushes(CommitRig(watch=set_watch(monkeypatch)))


def test_a_put_job_is_handed_out_in_the_frame_of_its_put(pushes: Pushes) -> None:
    pushes.rig.look()
    job_id = pushes.put()
    pushes.rig.turns.turn()
    assert pushes.told == [[job_id]]
    commits = [event for event in pushes.rig.look() if event.startswith("commit")]
    assert commits == ["commit 4 up to 1"]  # how far time was, the topic, the put, the reservation


def test_a_job_that_comes_due_is_handed_out_in_that_turn(pushes: Pushes) -> None:
    job_id = pushes.put(delay_ms=250)
    pushes.rig.turns.turn()
    assert pushes.told == []
    pushes.rig.clock.advance(250)
    pushes.rig.turns.turn()
    assert pushes.told == [[job_id]]


def test_who_is_told_once_is_not_told_again_of_the_same(pushes: Pushes) -> None:
    for _ in range(3):
        pushes.put()
    for _ in range(3):
        pushes.rig.turns.turn()
    assert pushes.told == [[1, 2, 3]]
    for job_id in (1, 2, 3):
        delete(pushes.rig.engine, pushes.session, job_id, pushes.rig.clock.request_ms())
    pushes.rig.turns.turn()
    assert len(pushes.told) == 1


def test_plain_jobs_are_nobodys_business(pushes: Pushes) -> None:
    pushes.put(target=b"")
    pushes.rig.turns.turn()
    assert pushes.told == []


def test_where_push_is_off_a_job_with_a_target_stays_ready(pushes: Pushes) -> None:
    pushes.rig.turns.on_push = None
    pushes.put()
    pushes.rig.turns.turn()
    assert len(pushes.rig.engine.store.topic("default").queues.ready) == 1
