"""Pushes in a simulated run: the daemon's scheduler, and a receiver that fails, hangs and counts.

Jobs of one tube have urls of their own, another tube has a target by its policy. To the history the
scheduler is a consumer: it reserves when a call begins, deletes what was taken, and says nack to
what failed. Nobody else is given jobs of these tubes, so what was taken by the receiver must have
come from here. A job has the time of a call as its ttr, so that a call is judged as any hold.

Beside what holds for every job: an acknowledged one is taken in the end, unless somebody cancels it
or it is exhausted and moved (`unserved`).
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

from delayd.core.errors import JobNotFound, OutOfSpace, Refusal
from delayd.core.job_parts import Retry, body_of, retry_of
from delayd.core.job_record import PRIORITY_AND_TOPIC, PRIORITY_AT
from delayd.core.operations.attempts import held
from delayd.core.operations.topics import set_policy
from delayd.core.policy import Policy
from delayd.core.retry import PUSH_STEPS_MS
from delayd.core.targets import Target, pack_own
from delayd.core.times import RequestMs
from delayd.limits import PUSH_LEASE_EXTRA_MS
from delayd.push.scheduler import PushBounds, PushCall, Scheduler
from delayd.push.sinks import DELIVERED, AttemptEnd, Result
from tests.faults.checker import Violation
from tests.faults.clients import DEAD, DELAYS_MS, World
from tests.faults.history import Entry, jobs_seen
from tests.faults.parts import Daemon, Plan
from tests.rigs.clock import FakeClock
from tests.rigs.engine import put

OWN: Final = "called"
"""The tube of jobs with urls of their own."""
PUSHED: Final = "pushed"
"""The tube whose policy has a target."""
BOUNDS: Final = PushBounds(calls_max=3, calls_per_place_max=2, timeout_ms=100)
LEASE_MS: Final = BOUNDS.timeout_ms + PUSH_LEASE_EXTRA_MS
PUT_SHARE: Final = 0.3
POLICY_SHARE: Final = 0.02
TOOK_MS: Final = (0, 1, 20, 300)
LATE_MS: Final = 50
OUTAGE_SHARE: Final = 0.3
"""So many failures are the receiver's own: several of them and nothing more is sent to it."""
DOWN_EACH_MS: Final = 10_000
DOWN_MS: Final = 7_000
ASKED_MS: Final = 1_000
"""More than any step of the short ladders, so that it replaces the step."""
ENDS: Final = ("taken",) * 5 + ("failed",) * 3 + ("gone", "hangs", "late")
ORIGINS: Final = ("https://a.example", "https://b.example")
DEFAULT: Final = (PUSH_STEPS_MS, 0, 0)
LADDERS: Final = (DEFAULT, ((40,), 0, 0), ((7, 300), 0, 20), ((40, 1), 2, 0))
"""As in `clients`; `DEFAULT` is what nobody has to say."""


def with_pushes(seed: int) -> Plan:
    """Return a plan with jobs that are pushed, drawn for this seed."""
    return replace(Plan.drawn(random.Random(f"plan {seed}")), pushes=True)


class Begun(NamedTuple):
    """A call that the receiver has got."""

    ends_ms: int
    how: str
    call: PushCall


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
        self._scheduler = Scheduler(daemon.engine, BOUNDS)
        self._begun: list[Begun] = []
        daemon.turns.on_push = self.on_push

    # --- Producers ------------------------------------------------------------------------------

    def act(self) -> None:
        """Put a job or set the policy, now and then."""
        if self.rng.random() < POLICY_SHARE or PUSHED not in self._engine.store.topics.by_name:
            self._set_policy()
        if self.rng.random() < PUT_SHARE:
            self._put()

    def _put(self) -> None:
        rng, world = self.rng, self._world
        world.bodies[0] += 1
        tube = rng.choice((OWN, OWN, PUSHED))
        rule = rng.choice(LADDERS)
        numbers: dict[str, Any] = {"delay_ms": rng.choice(DELAYS_MS), "ttr_ms": LEASE_MS}
        body = b"body %d pushed" % world.bodies[0]
        own = pack_own("POST", f"{rng.choice(ORIGINS)}/x", ()) if tube == OWN else b""
        topic = self._engine.store.topic(tube)
        what = {"topic": tube, "priority": 0, "body": body, **numbers}
        what |= {"retry": rule} if tube == OWN or rule != DEFAULT else {}
        retry = None if rule == DEFAULT else Retry(*rule)
        act = partial(put, self._engine, topic, body=body, retry=retry, target=own, **numbers)
        self._do("put", lambda now_ms: act(now_ms=now_ms), **what)
        self._engine.store.drop_if_unwanted(topic)

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
        for call in self._scheduler.take_calls(now_ms, self._clock.now_ms()):
            self._call(call)

    def _call(self, call: PushCall) -> None:
        history = self._world.history
        what: dict[str, Any] = {"client": self._name, "topics": (call.topic,)}
        number = history.invoke("reserve", self._clock.now_ms(), **what)
        deadline_ms = self._scheduler.session.deadlines[call.job_id]

        def begin() -> None:
            now_ms = self._clock.now_ms()
            history.ok(number, now_ms, job_id=call.job_id, body=body_of(call.record))
            how = self.rng.choice(ENDS) if self.has_faults else "taken"
            if self._is_down and how != "gone":
                how = "failed"
            ends_ms = now_ms + self.rng.choice(TOOK_MS)
            if how in {"hangs", "late"}:
                ends_ms = deadline_ms + LATE_MS
            self._begun.append(Begun(ends_ms, how, call))

        self.daemon.turns.when_durable(begin)

    @property
    def _is_down(self) -> bool:
        """Whether the receiver takes nothing for a while, so that breakers open."""
        return self.has_faults and self._clock.now_ms() % DOWN_EACH_MS < DOWN_MS

    def next_ms(self) -> int | None:
        """Return when the next call ends, or may begin."""
        times_ms = [begun.ends_ms for begun in self._begun]
        if self._scheduler.wake_ms is not None:
            times_ms.append(self._scheduler.wake_ms)
        return min(times_ms, default=None)

    def work(self) -> None:
        """End the calls whose time has come, and begin others; between two turns."""
        now_ms = self._clock.now_ms()
        over = [begun for begun in self._begun if begun.ends_ms <= now_ms]
        for begun in over:
            self._begun.remove(begun)
            self._end(begun.how, begun.call)
        self.on_push(self._clock.request_ms())

    def _end(self, how: str, call: PushCall) -> None:
        """Have the receiver answer, and note what that is to the job, if it is still held."""
        job_id = call.job_id
        if how in {"taken", "late"}:
            self.taken.add(job_id)
        try:
            record = held(self._engine, self._scheduler.session, job_id)
        except JobNotFound:
            self._settle(call, DELIVERED)  # the answer is of no use any more
            return
        has_policy = self._engine.store.topic_of(record).policy is not None
        if how in {"taken", "late"}:
            self._noted(call, DELIVERED, "delete")
        elif how == "gone" and not has_policy:
            priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
            self._noted(call, AttemptEnd(Result.EXHAUSTED, "410"), "bury", priority=priority)
        else:
            delay_ms = ASKED_MS * (retry_of(record) is not None and self.rng.random() < 0.3)
            is_outage = self._is_down or self.rng.random() < OUTAGE_SHARE
            end = AttemptEnd(Result.FAILED, "503", b"sorry", delay_ms, is_outage)
            if is_outage and call.is_spared:
                self._noted(call, end, "spare")
            else:
                self._noted(call, end, "nack", delay_ms=delay_ms)

    def _noted(self, call: PushCall, end: AttemptEnd, kind: str, **what: object) -> None:
        """Settle the call of a job that is held, and take down what that does to it."""
        history, now_ms = self._world.history, self._clock.now_ms()
        said: dict[str, Any] = {"client": self._name, "job_id": call.job_id, **what}
        number = history.invoke(kind, now_ms, **said)
        self._settle(call, end)
        if call.job_id in self._scheduler.session.deadlines:
            history.fail(number, now_ms, OutOfSpace.word)
        else:
            self._when_durable(number)

    def _settle(self, call: PushCall, end: AttemptEnd) -> None:
        now_ms = self._clock.now_ms()
        self._scheduler.settle(call, end, self._clock.request_ms(), now_ms)
        self._scheduler.release(call)
        self._scheduler.take_turned()

    def stop(self) -> None:
        """Give back what is under way, as a stop does."""
        now_ms = self._clock.now_ms()
        self._world.history.note("closed", now_ms, client=self._name, stops=True)
        self._scheduler.is_stopping = True
        self._scheduler.give_back_all(self._clock.request_ms(), now_ms)

    # --- The history ----------------------------------------------------------------------------

    def _do(self, kind: str, operation: Callable[[RequestMs], object], **what: object) -> None:
        """Carry out an operation and take it down; it is heard of when it is durable."""
        history, now_ms = self._world.history, self._clock.now_ms()
        number = history.invoke(kind, now_ms, client=self._name, **what)
        try:
            done = operation(self._clock.request_ms())
        except Refusal as refusal:
            history.fail(number, now_ms, refusal.word)
        else:
            self._when_durable(number, job_id=done if isinstance(done, int) else 0)

    def _when_durable(self, number: int, job_id: int = 0) -> None:
        def tell() -> None:
            said = {"job_id": job_id} if job_id else {}
            self._world.history.ok(number, self._clock.now_ms(), **said)
            if job_id:
                self._world.known[job_id] = b"pushed"

        self.daemon.turns.when_durable(tell)


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
            buried = {job.job_id for job in jobs_seen(rest) if job.state == "buried"}
        elif what == "invoke":
            kind, client, job_id = rest["kind"], rest["client"], rest.get("job_id", 0)
            kinds[number] = kind, client, job_id
            if kind == "delete" and not client.startswith("pushes"):
                others.add(job_id)  # whoever asks for that does not miss it
        elif what == "ok":
            kind, client, _ = kinds[number]
            job_id = rest.get("job_id", 0)
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
