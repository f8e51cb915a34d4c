"""Long seeded walks in which attempts fail under ladders that change, topics have limits, and the
daemon is killed after any step: what a restart makes of the log is what is there.

Slices are small, so that reservations that are over wait for their slice while other things happen
to their topic. Copies are taken meanwhile, a job at a time.
"""

import contextlib
import random
from typing import TYPE_CHECKING, Any, Final

import pytest

from delayd.core.engine import Engine
from delayd.core.errors import CapReached, JobAlreadyExists, JobNotFound, TargetRefused
from delayd.core.job_parts import Own, Reason, Retry
from delayd.core.operations import tick
from delayd.core.operations.attempts import fail_call, give_back_call
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.operations.put import Conflict
from delayd.core.operations.reserve import reserve_batch
from delayd.core.operations.sessions import give_back_some, leave
from delayd.core.operations.tick import catch_up_leases
from delayd.core.operations.topics import clear, configure, policy_of
from delayd.core.operations.waiting import cancel_wait
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.policy import Patterns, Policy
from delayd.core.session import Session
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.targets import Target
from tests.core.check import check
from tests.core.copies import state
from tests.rigs.engine import EngineRig, kick

if TYPE_CHECKING:
    from delayd.core.push_lanes import Lane

TOPICS: Final = ("default", "a", "b", "dead")

POLICIES: Final = (
    None,
    Policy(retry_ms=(500, 1_000)),
    Policy(retry_ms=(1, 700, 3_000), jitter_percent=50),
    Policy(retry_ms=(400,), exhausted="dead"),
    Policy(retry_ms=(400, 400), exhausted="a", returns_on_close=True),
    Policy(attempts_max=2, ttr_ms=300, delay_ms=20),
    Policy(attempts_max=1, exhausted="b"),
    Policy(reserved_max=2),
    Policy(rate_per_s=2, retry_ms=(100,) * 9),
    Policy(jobs_max=8, bytes_max=1_000, reserved_max=1, rate_per_s=100),
    Policy(push=Target(url="https://b.example/")),
    Policy(push=Target(topic="b"), attempts_max=2, exhausted="a", reserved_max=2),
)
CONFIGURATIONS: Final = (
    Patterns(),
    Patterns({"*": Policy(retry_ms=(300, 300))}),
    Patterns({"a": Policy(attempts_max=1, exhausted="dead"), "?": Policy(retry_ms=(50,))}),
    Patterns({"dead": Policy(attempts_max=2, exhausted="a"), "a": Policy(exhausted="dead")}),
    Patterns({"?": Policy(push=Target(sink="s"), retry_ms=(50,), exhausted="dead")}),
)
TARGETS: Final = (b"", b"POST https://a.example/x", b"PUT https://b.example/\nX: y")


def keep(target: Target) -> Target:
    """All targets may be called."""
    return target


class FailingWalk:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        start_ms = rng.choice((0, 1_800_000_000_000))
        self.rig = EngineRig(
            time_ms=start_ms, tick_ms=rng.choice((1, 1, 7, 1_000)), skew_ms=rng.randrange(2)
        )
        self.offset_ms = 0
        configure(self.rig.engine, rng.choice(CONFIGURATIONS))
        self.open()

    def open(self) -> None:
        """Let clients come, and the scheduler of pushes, which has heard of nothing."""
        self.sessions = [self.client() for _ in range(3)]
        self.pushes = self.rig.client()
        self.lanes: list[Lane] = []

    @property
    def engine(self) -> Engine:
        return self.rig.engine

    def client(self) -> Session:
        return self.rig.client(*self.rng.sample(TOPICS, 3))

    def held(self) -> tuple[Session, int] | None:
        holding = [session for session in self.sessions if session.deadlines]
        if not holding:
            return None
        session = self.rng.choice(holding)
        return session, self.rng.choice([*session.deadlines])

    def some_job(self) -> int:
        return self.rng.choice([0, *(job_id for job_id, _ in self.engine.store.jobs)])

    # What happens.

    def put(self) -> None:
        rng = self.rng
        for _ in range(rng.choice((1, 1, 5))):
            self.rig.put(
                rng.choice(TOPICS),
                delay_ms=rng.choice((0, 0, 100, 900)),
                ttr_ms=rng.choice((0, 1, 300, 1_000, 5_000)),
                priority=rng.choice((0, 7, 2_000)),
                body=b"x" * rng.randrange(60),
            )

    def put_keyed(self) -> None:
        """With a key, a ladder of its own, or for a moment of the wall clock."""
        rng = self.rng
        wall_ms = self.rig.time_ms + self.offset_ms + rng.randrange(-500, 2_000)
        self.rig.put_keyed(
            rng.choice((b"", b"k1", b"k2")),
            rng.choice([*Conflict]),
            topic=rng.choice(TOPICS),
            priority=rng.choice((0, 7)),
            delay_ms=rng.choice((0, 500)),
            due_wall_ms=rng.choice((None, None, max(0, wall_ms))),
            ttr_ms=rng.choice((0, 300)),
            body=b"k" * rng.randrange(30),
            own=Own(
                rng.choice((None, Retry((200, 400)), Retry((100,), 1, 100), Retry((), 2))),
                rng.choice(TARGETS),
            ),
        )

    def set_clock(self) -> None:
        self.offset_ms = self.rng.choice((0, 0, self.rng.randrange(-3_000, 3_000)))
        follow_wall(self.engine, self.offset_ms)

    def reserve(self) -> None:
        session = self.rng.choice(self.sessions)
        if session.waiting:
            cancel_wait(self.engine, session)
        match self.rng.randrange(4):
            case 0:
                reserve_batch(self.engine, session, self.rng.randrange(5), 100, self.rig.now_ms)
            case 1:
                is_soon = session.deadline_soon(self.rig.now_ms)
                if not self.rig.reserve(session) and not is_soon:
                    self.rig.wait(session, self.rng.choice((None, 1_000)))
            case 2:
                self.rig.reserve_job(session, self.some_job())
            case _:
                self.rig.reserve(session)

    def give_back(self) -> None:
        held = self.held()
        if held is None:
            return
        rng = self.rng
        delay_ms = rng.choice((0, 0, 0, 250))
        match rng.randrange(8):
            case 0 | 1:
                self.rig.release(*held, rng.choice((0, 2_000)), delay_ms)
            case 2 | 3 | 4:
                error = rng.choice(("", "no route to host", "é" * 700))
                self.rig.nack(*held, delay_ms=delay_ms, error=error)
            case 5:
                self.rig.bury(*held, 3, rng.choice(("", "poison")))
            case 6:
                self.rig.touch(*held)
            case _:
                self.rig.delete(*held)

    def leave(self) -> None:
        session = self.rng.choice(self.sessions)
        self.engine.returns_left = self.rng.choice((0, 0, 1, 100))
        if self.rng.randrange(2):  # no worker has heard of what it holds
            leave(self.engine, session, Reason.UNDELIVERED, self.rig.now_ms)
        self.rig.close(session)
        self.sessions.remove(session)
        self.sessions.append(self.client())

    def returns(self) -> None:
        give_back_some(self.engine, self.rng.choice((1, 1, 5)), self.rig.now_ms)

    def kick(self) -> None:
        topic = self.engine.store.topics.by_name.get(self.rng.choice(TOPICS))
        if topic is not None and self.rng.randrange(2):
            kick(self.engine, topic, self.rng.randrange(4), self.rig.now_ms)
        else:
            self.rig.kick_job(self.some_job())

    def bury_waiting(self) -> None:
        error = self.rng.choice(("", "a person said so", "é" * 700))
        self.rig.bury_waiting(self.some_job(), error=error)

    def reschedule(self) -> None:
        self.rig.reschedule(self.some_job(), self.rng.choice((0, 300)))

    def change_policy(self) -> None:
        name, policy = self.rng.choice(TOPICS), self.rng.choice(POLICIES)
        self.engine.vet_target = keep
        self.rig.set_policy(name, policy)
        holds, _ = (
            policy_of(self.engine, name) if name in self.engine.store.topics.by_name else (None, 0)
        )
        assert policy is None or holds == policy

    def clear(self) -> None:
        topic = self.engine.store.topics.by_name.get(self.rng.choice(TOPICS))
        if topic is not None and not self.rng.randrange(2):
            while not catch_up_leases(self.engine, 2, self.rig.now_ms):
                pass
            clear(self.engine, topic)

    def push(self) -> None:
        """Hear of lanes, and hand out jobs of some of those that are known."""
        rng = self.rng
        if rng.randrange(2):
            self.lanes += [lane for lane in take_fresh(self.engine) if lane not in self.lanes]
        for lane in rng.sample(self.lanes, min(len(self.lanes), rng.randrange(3))):
            lease_ms = rng.choice((100, 3_000))
            job = reserve_call(self.engine, self.pushes, lane, lease_ms, self.rig.now_ms)
            if job is None:
                self.lanes.remove(lane)
            else:
                assert job[0] in self.pushes.deadlines

    def end_calls(self) -> None:
        rng, now_ms = self.rng, self.rig.now_ms
        for job_id in [*self.pushes.deadlines][: rng.randrange(3)]:
            match rng.randrange(4):
                case 0:
                    self.rig.delete(self.pushes, job_id)
                case 1:
                    give_back_call(self.engine, self.pushes, job_id, now_ms)
                case _:
                    ends: dict[str, Any] = {
                        "delay_ms": rng.choice((0, 20_000)),
                        "is_exhausted": rng.random() < 0.2,
                    }
                    fail_call(self.engine, self.pushes, job_id, now_ms, error="503", **ends)

    def sweep(self) -> None:
        if self.engine.store.cleared.left:
            self.engine.store.cleared.sweep(self.rng.choice((1, 100)))

    def slice(self) -> None:
        self.rig.advance(self.rig.time_ms + self.rng.choice((0, 0, 1, 300, 1_500)))

    def everything(self) -> None:
        self.rig.run(self.rig.time_ms + self.rng.choice((0, 1, 2_000)))

    def delete(self) -> None:
        if len(dict(self.engine.store.jobs)) > 20:
            for _ in range(3):
                self.rig.delete(self.rng.choice(self.sessions), self.some_job())

    def step(self) -> None:
        doings = (
            *(self.put, self.reserve, self.reserve, self.reserve, self.give_back, self.give_back),
            *(self.give_back, self.slice, self.slice, self.slice, self.slice, self.everything),
            *(self.leave, self.returns, self.kick, self.bury_waiting, self.reschedule),
            *(self.change_policy, self.delete),
            *(self.clear, self.sweep, self.put_keyed, self.put_keyed, self.set_clock),
            *(self.push, self.push, self.end_calls, self.end_calls),
        )
        with contextlib.suppress(JobNotFound, CapReached, JobAlreadyExists, TargetRefused):
            self.rng.choice(doings)()
        self.engine.take_deliveries()
        check(self.engine)

    def settle(self) -> None:
        """Sweep away what was cleared: a copy may begin."""
        while not SnapshotCopy.can_begin(self.engine.store):
            self.sweep()
            self.rig.advance(self.rig.time_ms)

    def compare(self) -> None:
        """Play the log, and find what is there."""
        replayed = self.rig.replayed()
        assert state(replayed) == state(self.engine)
        check(replayed)

    def restart(self) -> None:
        """Die and come back, with another configuration."""
        patterns, later_ms = self.rng.choice(CONFIGURATIONS), self.rng.choice((0, 5, 10_000))
        self.rig.engine = self.rig.replayed(self.rig.time_ms + later_ms, patterns)
        follow_wall(self.engine, self.offset_ms)
        self.open()


@pytest.mark.parametrize("slice_jobs", [512, 1, 2])
@pytest.mark.walk(1, 50)
def test_whatever_fails_the_log_leads_to_the_same_state(
    slice_jobs: int, number: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    walk = FailingWalk(rng)
    for step in range(300):
        walk.step()
        if step % 4 == number % 4:
            walk.compare()
        if step % 75 == 74:
            walk.restart()
            check(walk.engine)
