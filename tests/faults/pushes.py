"""Pushes in a simulated run: a small scheduler, and a receiver that fails, hangs, answers late.

Jobs of one tube have urls of their own, another tube has a target by its policy. To the history the
scheduler is a consumer: it reserves when a call begins, deletes what was taken, and says nack to
what failed. Nobody else is given jobs of these tubes, so what was taken by the receiver must have
come from here. A call has the ttr of its job as its time, so that it is judged as any hold.

Beside what holds for every job: an acknowledged one is taken in the end, unless somebody cancels it
or it is exhausted and moved (`unserved`).
"""

import contextlib
import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from delayd.core.errors import JobNotFound, Refusal
from delayd.core.job import (
    PRIORITY_AND_TOPIC,
    PRIORITY_AT,
    TTR_AT,
    U64,
    Retry,
    body_of,
    retry_of,
)
from delayd.core.operations.finish import delete
from delayd.core.operations.push import fail_call, give_back_call, reserve_call, take_fresh
from delayd.core.operations.reserve import held
from delayd.core.operations.sessions import open_session
from delayd.core.operations.topics import set_policy
from delayd.core.policy import PUSH_STEPS_MS, Policy
from delayd.core.push_lanes import next_key
from delayd.core.queues import job_id_of
from delayd.core.targets import Target, pack_own
from delayd.core.times import RequestMs
from delayd.testing.clock import FakeClock
from tests.core.rig import put
from tests.faults.clients import DEAD, DELAYS_MS, TTRS_MS, World
from tests.faults.digests import Violation
from tests.faults.history import Entry, as_seen
from tests.faults.parts import Daemon, Plan

if TYPE_CHECKING:
    from delayd.core.push_lanes import Lane

OWN: Final = "called"
"""The tube of jobs with urls of their own."""
PUSHED: Final = "pushed"
"""The tube whose policy has a target."""
CALLS_MAX: Final = 3
PUT_SHARE: Final = 0.3
POLICY_SHARE: Final = 0.02
TOOK_MS: Final = (0, 1, 20, 300)
LATE_MS: Final = 50
ASKED_MS: Final = 1_000
"""More than any step of the short ladders, so that it replaces the step."""
ENDS: Final = ("taken",) * 5 + ("failed",) * 3 + ("gone", "hangs", "late")
ORIGINS: Final = ("https://a.example", "https://b.example")
DEFAULT: Final = (PUSH_STEPS_MS, 0, 0)
LADDERS: Final = (DEFAULT, ((40,), 0, 0), ((7, 300), 0, 20), ((40, 1), 2, 0))
"""As in `clients`; `DEFAULT` is what nobody has to say."""


def with_pushes(seed: int) -> Plan:
    """Return a plan with jobs that are pushed, drawn for this seed."""
    plan = Plan.drawn(random.Random(f"plan {seed}"))
    plan.pushes = True
    return plan


class When:
    """Calls back when what was done is durable; never if the daemon ends before."""

    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback = callback

    def done(self) -> bool:
        return False

    def set_result(self, _result: None, /) -> None:
        self._callback()


class Begun(NamedTuple):
    """A call that the receiver has got."""

    ends_ms: int
    how: str
    job_id: int
    record: bytes


class Pushes:
    """The scheduler of one run, in one life of its daemon after the other."""

    daemon: Daemon

    def __init__(self, world: World, clock: FakeClock, seed: int) -> None:
        self.rng = random.Random(f"push {seed}")
        self.taken: set[int] = set()
        """What the receiver has taken, and said so, whether or not anybody heard it."""
        self.has_faults = True
        self._world = world
        self._clock = clock
        self._lives = 0

    def attach(self, daemon: Daemon) -> None:
        """Go on with a daemon that has just started."""
        self.daemon = daemon
        self._lives += 1
        self._name = f"pushes {self._lives}"
        self._engine = daemon.engine
        self._engine.vet_target = lambda target: target
        self._session = open_session(daemon.engine)
        self._lanes: list[Lane] = []
        self._begun: list[Begun] = []
        self._reserving = 0
        daemon.turns.on_push = self.on_push

    # --- Producers ------------------------------------------------------------------------------

    def act(self) -> None:
        """Put a job or set the policy, now and then."""
        if self.rng.random() < POLICY_SHARE or PUSHED not in self._engine.store.topics.by_name:
            self._set_policy()
        if self.rng.random() < PUT_SHARE:
            self._put()

    def _put(self) -> None:
        rng, world, now_ms = self.rng, self._world, self._clock.now_ms()
        world.bodies[0] += 1
        tube = rng.choice((OWN, OWN, PUSHED))
        rule = rng.choice(LADDERS)
        numbers: dict[str, Any] = {"delay_ms": rng.choice(DELAYS_MS), "ttr_ms": rng.choice(TTRS_MS)}
        body = b"body %d pushed" % world.bodies[0]
        said = {"retry": rule} if tube == OWN or rule != DEFAULT else {}
        number = world.history.invoke(
            "put", now_ms, client=self._name, topic=tube, priority=0, body=body, **numbers, **said
        )
        topic = self._engine.store.topic(tube)
        try:
            job_id = put(
                *(self._engine, topic),
                priority=0,
                body=body,
                now_ms=self._clock.request_ms(),
                retry=None if rule == DEFAULT else Retry(*rule),
                target=pack_own("POST", f"{rng.choice(ORIGINS)}/x", ()) if tube == OWN else b"",
                **numbers,
            )
        except Refusal as refusal:
            world.history.fail(number, now_ms, refusal.word)
            self._engine.store.drop_if_unwanted(topic)
        else:
            self._when_durable(number, job_id=job_id)

    def _set_policy(self) -> None:
        rule, target = self.rng.choice(LADDERS), self.rng.choice(("", DEAD))
        steps_ms, attempts_max, jitter = rule
        policy = Policy(
            push=Target(sink="receiver"),
            retry_ms=None if rule == DEFAULT else steps_ms,
            attempts_max=attempts_max or None,
            jitter_percent=jitter or None,
            exhausted=target or None,
        )
        what = {"topic": PUSHED, "retry": rule, "target": target}
        self._do("policy", lambda now_ms: set_policy(self._engine, PUSHED, policy, now_ms), **what)

    # --- Calls ----------------------------------------------------------------------------------

    def on_push(self, now_ms: RequestMs) -> None:
        """Hear of lanes, and begin calls."""
        self._lanes += [lane for lane in take_fresh(self._engine) if lane not in self._lanes]
        while self._lanes and self._reserving + len(self._begun) < CALLS_MAX:
            lane = self.rng.choice(self._lanes)
            key = next_key(*lane)
            head = b"" if key is None else self._engine.store.jobs.get(job_id_of(key)) or b""
            lease_ms: int = U64.unpack_from(head, TTR_AT)[0] if head else 0
            job = reserve_call(self._engine, self._session, lane, lease_ms, now_ms)
            if job is None:
                self._lanes.remove(lane)
            else:
                self._call(lane[0].name, *job)

    def _call(self, tube: str, job_id: int, record: bytes) -> None:
        history = self._world.history
        number = history.invoke("reserve", self._clock.now_ms(), client=self._name, topics=(tube,))
        deadline_ms = self._session.deadlines[job_id]
        self._reserving += 1

        def begin() -> None:
            now_ms = self._clock.now_ms()
            self._reserving -= 1
            history.ok(number, now_ms, job_id=job_id, body=body_of(record))
            how = self.rng.choice(ENDS) if self.has_faults else "taken"
            ends_ms = now_ms + self.rng.choice(TOOK_MS)
            if how in {"hangs", "late"}:
                ends_ms = deadline_ms + LATE_MS
            self._begun.append(Begun(ends_ms, how, job_id, record))

        self.daemon.turns.when_durable(When(begin))

    def next_ms(self) -> int | None:
        """Return when the next call ends."""
        return min((call.ends_ms for call in self._begun), default=None)

    def work(self) -> None:
        """End the calls whose time has come, and begin others; between two turns."""
        now_ms = self._clock.now_ms()
        over = [call for call in self._begun if call.ends_ms <= now_ms]
        for call in over:
            self._begun.remove(call)
            self._end(call)
        self.on_push(self._clock.request_ms())

    def _end(self, call: Begun) -> None:
        how, job_id = call.how, call.job_id
        if how in {"taken", "late"}:
            self.taken.add(job_id)
        try:
            record = held(self._engine, self._session, job_id)
        except JobNotFound:
            return  # its time is over: the answer is of no use any more
        about = self._engine, self._session, job_id
        if how == "taken":
            self._do("delete", lambda now_ms: delete(*about, now_ms), job_id=job_id)
        elif how == "gone" and self._engine.store.topic_of(record).policy is None:
            priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
            self._do(
                "bury",
                lambda now_ms: fail_call(*about, now_ms, error="410", is_exhausted=True),
                job_id=job_id,
                priority=priority,
            )
        elif how != "hangs":
            delay_ms = ASKED_MS * (retry_of(record) is not None and self.rng.random() < 0.3)
            self._do(
                "nack",
                lambda now_ms: fail_call(*about, now_ms, error="503", delay_ms=delay_ms),
                job_id=job_id,
                delay_ms=delay_ms,
            )

    def stop(self) -> None:
        """Give back what is under way, as a stop does."""
        now_ms = self._clock.now_ms()
        self._world.history.note("closed", now_ms, client=self._name, stops=True)
        for job_id in [*self._session.deadlines]:
            with contextlib.suppress(JobNotFound):
                give_back_call(self._engine, self._session, job_id, self._clock.request_ms())

    # --- The history ----------------------------------------------------------------------------

    def _do(self, kind: str, operation: Callable[[RequestMs], object], **what: object) -> None:
        """Carry out an operation and take it down; it is heard of when it is durable."""
        history, now_ms = self._world.history, self._clock.now_ms()
        number = history.invoke(kind, now_ms, client=self._name, **what)
        try:
            operation(self._clock.request_ms())
        except Refusal as refusal:
            history.fail(number, now_ms, refusal.word)
        else:
            self._when_durable(number)

    def _when_durable(self, number: int, job_id: int = 0) -> None:
        def tell() -> None:
            said = {"job_id": job_id} if job_id else {}
            self._world.history.ok(number, self._clock.now_ms(), **said)
            if job_id:
                self._world.known[job_id] = b""

        self.daemon.turns.when_durable(When(tell))


def unserved(entries: Iterable[Entry], taken: set[int]) -> list[Violation]:
    """Return the acknowledged jobs that were not taken and are no dead letters.

    Nor did anybody cancel them.
    """
    kinds: dict[int, tuple[str, str, int]] = {}
    put_ids: dict[int, int] = {}
    others: set[int] = set()
    buried: set[int] = set()
    for what, number, _, rest in entries:
        if rest.get("what") == "observed":
            jobs = map(as_seen, cast("list[object]", rest["jobs"]))
            buried = {job.job_id for job in jobs if job.state == "buried"}
        elif what == "invoke":
            job_id = rest.get("job_id", 0)
            assert isinstance(job_id, int)
            kind, client = str(rest["kind"]), str(rest["client"])
            kinds[number] = kind, client, job_id
            if kind == "delete" and not client.startswith("pushes"):
                others.add(job_id)  # whoever asks for that does not miss it
        elif what == "ok":
            kind, client, _ = kinds[number]
            job_id = rest.get("job_id", 0)
            assert isinstance(job_id, int)
            is_ours = client.startswith("pushes")
            if kind == "put" and is_ours:
                put_ids[job_id] = number
            elif kind == "reserve" and not is_ours:
                others.add(job_id)  # it was moved
    return [
        Violation("I13", f"job {job_id} was acknowledged and never taken by its target", (number,))
        for job_id, number in put_ids.items()
        if job_id not in taken | others | buried
    ]
