"""Groups beside a slow model (`core.group_model`), through restarts and whatever else happens."""

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pytest

from delayd.core.job_parts import Own, group_of
from delayd.core.job_record import State
from delayd.core.operations import tick
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.policy import NO_POLICY, Policy
from delayd.core.session import Session
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.targets import Target, pack_own
from tests.core.check import check
from tests.core.copies import restored, state, whole
from tests.core.group_model import GroupModel
from tests.core.views import live_jobs
from tests.rigs.engine import EngineRig

if TYPE_CHECKING:
    from delayd.core.push_lanes import Lane

NAMES: Final = (b"", b"a", b"b", b"c")
TTR_MS: Final = 3_000


class Walk:
    """A topic with a few groups and workers, to which all sorts of things happen."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rig = EngineRig(tick_ms=rng.choice((1, 1, 10)), skew_ms=rng.randrange(2))
        self.model = GroupModel(self.rig, "mail")
        self.workers: list[Session] = []
        self.begin()
        self.set_policy()

    def begin(self) -> None:
        """Begin with what a start does not find in the log."""
        self.rig.engine.vet_target = lambda target: target
        self.workers.clear()
        self.lanes: list[Lane] = []
        """That the scheduler has heard of."""

    def step(self) -> None:
        while len(self.workers) < 3:
            self.workers.append(self.rig.client("mail"))
        weights, doings = zip(*DOINGS, strict=True)
        self.rng.choices(doings, weights)[0](self)
        self.rig.run(self.rig.time_ms)
        check(self.rig.engine)
        self.model.look()

    # --- Who and what ----------------------------------------------------------------------------

    def worker(self) -> Session:
        return self.rng.choice(self.workers)

    def some_job(self, *states: State) -> int:
        """Return a job in one of these states; 0: none is."""
        store = self.rig.engine.store
        job_ids = [
            job_id
            for job_id, _ in live_jobs(store)
            if self.rig.view(job_id).state in states and store.jobs.get(job_id)
        ]
        return self.rng.choice(sorted(job_ids)) if job_ids else 0

    def held(self) -> tuple[Session, int] | None:
        held = [(each, job_id) for each in self.workers for job_id in each.deadlines]
        return self.rng.choice(held) if held else None

    # --- What happens ----------------------------------------------------------------------------

    def put(self) -> None:
        own = Own(group=self.rng.choice(NAMES) or None)
        self.rig.put_keyed(
            b"",
            topic="mail",
            ttr_ms=TTR_MS,
            priority=self.rng.choice((0, 5, 5, 2_000)),
            delay_ms=self.rng.choice((0, 0, 0, 700)),
            own=own._replace(target=self.target()),
        )

    def target(self) -> bytes | None:
        if self.rig.topic("mail").is_pushed or self.rng.randrange(2):
            return None
        return pack_own("POST", self.rng.choice(("https://a.example/x", "https://b.example/y")), ())

    def put_loose(self) -> None:
        self.rig.put_alike([b"x"] * self.rng.randrange(1, 4), "mail", ttr_ms=TTR_MS)

    def reserve(self) -> None:
        nexts = self.model.nexts()
        job_id = self.rig.reserve(self.worker())
        if job_id:
            self.model.came(job_id, group_of(self.rig.record(job_id)), nexts)
        else:
            assert not nexts, "a job that may be handed out was not"

    def reserve_batch(self) -> None:
        nexts, allowed = self.model.nexts(), []
        for job_id in self.rig.reserve_all(self.worker()):
            allowed.append(job_id)
            self.model.served(group_of(self.rig.record(job_id)))
        self.model.passed.clear()
        assert bool(allowed) == bool(nexts)
        assert {job.job_id for job in nexts} & set(allowed) or not nexts
        assert not self.model.nexts(), "one more might have been handed out"

    def reserve_by_id(self) -> None:
        if job_id := self.some_job(State.READY, State.DELAYED, State.BURIED):
            self.rig.reserve_job(self.worker(), job_id)

    def push(self) -> None:
        """Hand out a job to be delivered: the next one, or the next of a lane."""
        nexts = self.model.nexts()
        self.lanes += take_fresh(self.rig.engine)
        while self.lanes:
            lane = self.rng.choice(self.lanes)
            what = reserve_call(self.rig.engine, self.workers[0], lane, TTR_MS, self.rig.now_ms)
            if what is None:
                self.lanes.remove(lane)
                is_lane = lane[0].is_pushed != bool(lane[1])
                assert not (nexts and is_lane and not lane[1]), "a job that may go has not gone"
                continue
            job_id, group = what[0], group_of(self.rig.record(what[0]))
            if not lane[1]:
                self.model.came(job_id, group, nexts)
            else:
                assert not group or job_id in {job.job_id for job in nexts}
                self.model.served(group)
                self.model.passed.clear()
            return

    def ack(self) -> None:
        if held := self.held():
            self.rig.delete(*held)

    def ack_all(self) -> None:
        worker = self.worker()
        self.rig.delete_batch(worker, [*worker.deadlines])

    def nack(self) -> None:
        if held := self.held():
            self.rig.nack(*held, delay_ms=self.rng.choice((0, 400)))

    def release(self) -> None:
        if held := self.held():
            self.rig.release(*held, priority=self.rng.choice((0, 5)), delay_ms=0)

    def bury(self) -> None:
        if held := self.held():
            self.rig.bury(*held)

    def bury_waiting(self) -> None:
        if job_id := self.some_job(State.READY, State.DELAYED):
            self.rig.bury_waiting(job_id)

    def kick(self) -> None:
        if job_id := self.some_job(State.DELAYED, State.BURIED):
            self.rng.choice((self.rig.kick_job, lambda job: self.rig.kick_later(job, 300)))(job_id)

    def delete_waiting(self) -> None:
        if job_id := self.some_job(State.READY, State.DELAYED, State.BURIED):
            self.rig.delete(self.worker(), job_id)

    def change(self) -> None:
        if job_id := self.some_job(State.READY, State.DELAYED, State.BURIED):
            own = Own(group=self.rng.choice(NAMES))
            what: tuple[dict[str, Any], ...] = ({"own": own}, {"priority": 1}, {"delay_ms": 300})
            self.rig.change(job_id, **self.rng.choice(what))

    def close(self) -> None:
        self.rig.close(self.workers.pop(self.rng.randrange(len(self.workers))))

    def pass_time(self) -> None:
        self.play(self.rng.choice((1, 50, 200, 500, 4_000)))

    def play(self, duration_ms: int) -> None:
        """Let so much time pass, up to a tick: a rate is looked at on the tick."""
        tick_ms = self.rig.engine.tick_ms
        self.rig.play(-(-(self.rig.time_ms + duration_ms) // tick_ms) * tick_ms)

    def pause_group(self) -> None:
        group = self.rng.choice(NAMES[1:])
        pause_ms = self.rng.choice((0, 100, 900))
        self.rig.pause_group("mail", group, pause_ms)
        tick_ms = self.rig.engine.tick_ms
        until_ms = -(-(self.rig.now_ms + pause_ms) // tick_ms) * tick_ms
        self.model.paused_until_ms[group] = until_ms if pause_ms else 0

    def set_policy(self) -> None:
        rng = self.rng
        policy = Policy(
            retry_ms=rng.choice((None, (200, 900))),
            exhausted=rng.choice((None, None, "dead")),
            group_reserved_max=rng.choice((None, 1, 1, 2)),
            group_rate_per_s=rng.choice((None, None, 2, 20)),
            is_group_by_put=rng.choice((None, True)),
            group_waits=rng.choice((None, True)),
            fair=rng.choice((None, True)),
            push=rng.choice((None, None, None, Target(topic="out"))),
            group_weights=rng.choice((None, ((b"a", 3),), ((b"a", 2), (b"b", 5)))),
        )
        if rng.randrange(6) == 0:
            policy = NO_POLICY
        self.rig.set_policy("mail", policy)
        if policy.group_rate_per_s != self.model.rule.rate_per_s:
            self.begin_rates()
        self.model.rule = policy.group_rule
        self.model.passed.clear()

    def begin_rates(self) -> None:
        """What was served under another rate counts as one burst at most: let it pass."""
        self.model.served_ms.clear()
        self.play(2_000)

    def clear(self) -> None:
        self.rig.clear("mail")
        while self.rig.engine.store.cleared.left:
            self.rig.engine.store.cleared.sweep(5)

    def restart(self) -> None:
        self.rig.agree_with_the_log()
        copy = whole(self.rig.engine) if SnapshotCopy.can_begin(self.rig.engine.store) else b""
        if copy:
            assert state(restored(self.rig, self.rig.time_ms, copy)) == state(self.rig.engine)
        self.rig.restart()
        check(self.rig.engine)
        self.begin()
        self.begin_rates()
        self.model.passed.clear()

    def empty(self) -> None:
        """Work until nothing is left: no group is stuck."""
        self.play(48 * 3_600_000)
        self.rig.set_policy("mail", Policy(group_reserved_max=1))
        self.model.rule = Policy(group_reserved_max=1).group_rule
        for worker in self.workers:
            self.rig.delete_batch(worker, [*worker.deadlines])
        while job_id := self.some_job(State.BURIED):
            self.rig.kick_job(job_id)
        self.play(48 * 3_600_000)
        worker = self.rig.client("mail")
        while job_ids := self.rig.reserve_all(worker):
            self.rig.delete_batch(worker, job_ids)
        topic = self.rig.engine.store.topics.by_name["mail"]
        assert not topic.jobs
        self.play(60_000)
        assert topic.queues.ready.groups is None, "dead groups are kept"
        self.rig.close(worker)


DOINGS: Final[tuple[tuple[int, Callable[[Walk], None]], ...]] = (
    (14, Walk.put),
    (3, Walk.put_loose),
    (16, Walk.reserve),
    (3, Walk.reserve_batch),
    (2, Walk.reserve_by_id),
    (4, Walk.push),
    (8, Walk.ack),
    (2, Walk.ack_all),
    (4, Walk.nack),
    (2, Walk.release),
    (2, Walk.bury),
    (1, Walk.bury_waiting),
    (3, Walk.kick),
    (2, Walk.delete_waiting),
    (3, Walk.change),
    (1, Walk.close),
    (6, Walk.pass_time),
    (2, Walk.pause_group),
    (2, Walk.set_policy),
    (1, Walk.restart),
    (1, Walk.empty),
)


@pytest.mark.walk(3, 600)
def test_groups_agree_with_the_model_whatever_happens(
    number: int, rng: random.Random, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", rng.choice((1, 3, 128)))
    walk = Walk(rng)
    for _ in range(300):
        walk.step()
    walk.clear()
    walk.empty()
