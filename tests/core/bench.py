"""What only the engine alone can show of a fact: the world of facts.txt and lanes.txt.

Beside the acts of every world it has several clients (`b: reserve mail`), runs of many jobs, the
scheduler of pushes, a wall clock, restarts, and time that has passed while nothing was done about
it. In the end the log is played back, as in every world of the engine.
"""

# ruff: noqa: ANN401 - options go to the operations as they are

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from delayd.core.background_tasks import BackgroundTasks
from delayd.core.engine import Engine
from delayd.core.job_parts import Own, Reason
from delayd.core.operations import ack, attempts, change, put, sessions, topics, waiting
from delayd.core.operations import reserve as reserving
from delayd.core.operations.checks import vetted_own
from delayd.core.operations.forward import forward
from delayd.core.operations.push import reserve_call, take_fresh
from delayd.core.operations.tick import caught_up, next_deadline, reach
from delayd.core.operations.wall_clock import follow_wall
from delayd.core.policy import Patterns, Policy
from delayd.core.session import Session, WaitEnd
from delayd.core.snapshot_copy import SnapshotCopy
from delayd.core.stats.figures import age_ms, oldest_ready_ms
from delayd.core.targets import Target
from delayd.core.times import PlayedMs
from delayd.limits import EMERGENCY_BYTES
from tests.core.check import check
from tests.facts.worlds import EngineWorld
from tests.rigs.engine import kinds_of

if TYPE_CHECKING:
    from delayd.core.push_lanes import Lane

LEASE_MS: Final = 20_000
WHOLE: Final = 1 << 40
URLS: Final = {"A": "https://a.example/x", "A2": "https://a.example/y?z", "B": "https://b.example/"}
"""Of two origins."""


class Bench(EngineWorld):
    name = "engine"
    way = ""
    """How `job` says where it is pushed to: by a `url` of its own, or by the topic's `sink`."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: dict[str, Session] = {"me": self._worker}
        self._lanes: list[Lane] = []
        self._start_ms = self._rig.time_ms

    # --- Clients ---------------------------------------------------------------------------------

    @contextmanager
    def as_client(self, name: str) -> Iterator[None]:
        """Let another client do it, which comes when it is first named."""
        me = self._worker
        self._worker = self._clients.get(name) or self._rig.client()
        try:
            yield
        finally:
            self._clients[name], self._worker = self._worker, me

    def watch(self, *names: str) -> None:
        for name in names:
            self._do(sessions.watch, self._worker, name)

    def ignore(self, name: str) -> None:
        self._do(sessions.ignore, self._worker, name)

    def listen(self, *names: str, timeout: float | None = None) -> None:
        """Wait for a job."""
        for name in names:
            sessions.watch(self.engine, self._worker, name)
        self._rig.wait(self._worker, None if timeout is None else round(timeout * 1_000))
        check(self.engine)

    def heard(self) -> list[str]:
        """Return what came to which client that waited."""
        names = {id(session): name for name, session in self._clients.items()}
        names[id(self._worker)] = "me"
        return [
            f"{names[id(session)]}:{what.name if isinstance(what, WaitEnd) else what}"
            for session, what in self._rig.delivered()
        ]

    def batch(self, *names: str, most: int = 99, most_bytes: int = 1 << 30) -> list[int]:
        """Reserve many at once."""
        for name in names:
            sessions.watch(self.engine, self._worker, name)
        now_ms = self._rig.now_ms
        jobs = self._do(reserving.reserve_batch, self._worker, most, most_bytes, now_ms)
        return [job[0] for job in jobs]

    def hold(self, job_id: int) -> None:
        self._do(reserving.reserve_job, self._worker, job_id, self._rig.now_ms)

    def batch_ack(self, *job_ids: int) -> list[bool]:
        return list(self._do(ack.delete_batch, self._worker, job_ids, self._rig.now_ms))

    def forward(self, job_id: int, topic: str) -> int:
        return int(self._do(forward, self._worker, job_id, topic, self._rig.now_ms))

    def undelivered(self, *names: str) -> None:
        """Take back all that it holds; or hand a job of the topic to one that is gone by then."""
        if names:
            gone = self._rig.client(*names)
            assert self._rig.reserve(gone)
            self._do(sessions.leave, gone, Reason.UNDELIVERED, self._rig.now_ms)
            self._rig.close(gone)
        else:
            self._do(sessions.leave, self._worker, Reason.UNDELIVERED, self._rig.now_ms)

    def back(self) -> None:
        """Let all come back that ended sessions held, and sweep away what was cleared."""
        tasks = BackgroundTasks(self.engine)
        while tasks.has_more:
            tasks.step(self._rig.now_ms)
            check(self.engine)

    def consume_no_more(self) -> None:
        self._do(sessions.stop_consuming, self._worker)

    # --- Puts ------------------------------------------------------------------------------------

    def put(self, topic: str = "mail", body: bytes = b"x", **options: Any) -> str:
        options["url"] = URLS.get(options.get("url", ""), options.get("url", ""))
        return super().put(topic, body, **options)

    def _put(
        self, engine: Engine, topic: str, body: bytes, *, at: float | None = None, **what: Any
    ) -> str:
        if at is None:
            return super()._put(engine, topic, body, **what)
        url, key, on = what.pop("url", ""), what.pop("key", ""), what.pop("on", "reject")
        target = vetted_own(engine, Target(url=url), topic) if url else None
        what = {"priority": 0, "now_ms": self._rig.now_ms, "due_wall_ms": self.moment(at), **what}
        job_id, outcome = put.put_keyed(
            *(engine, engine.store.topic(topic), key.encode(), put.Conflict(on)),
            **{"body": body, "own": Own(target=target), **what},
        )
        return f"{job_id} {outcome.value}"

    def moment(self, at: float) -> int:
        """Return that many seconds after the start of the fact, on the wall clock."""
        return self._start_ms + round(at * 1_000)

    def alike(self, jobs: int, *, delay: float = 0, body: bytes = b"x", **what: Any) -> int:
        """Put a run of equal jobs."""
        there = self.engine.store.topic("mail")
        numbers = (0, round(delay * 1_000), 60_000, [body] * jobs, self._rig.now_ms)
        return int(self._do(put.put_alike, there, *numbers, **what))

    def keyed(self, *keys: str) -> int:
        """Put a run of jobs with these keys."""
        there = self.engine.store.topic("mail")
        names = [str(key).encode() for key in keys]
        numbers = (0, 9_000, 60_000, names, [b"x"] * len(names), self._rig.now_ms)
        return int(self._do(put.put_keyed_run, there, *numbers))

    def reschedule(self, *which: Any, delay: float = 0, at: float | None = None) -> None:
        if at is None:
            super().reschedule(*which, delay=delay)
        else:
            job_id, now_ms = self._id(*which), self._rig.now_ms
            self._do(change.reschedule, job_id, 0, now_ms, self.moment(at))

    def change(self, *which: Any, **what: Any) -> None:
        if "url" in what:
            what["url"] = URLS.get(what["url"], what["url"])
        super().change(*which, **what)

    # --- Time, space and the configuration -------------------------------------------------------

    def wait(self, seconds: float) -> None:
        self._rig.take_log()
        super().wait(seconds)
        self.records = [kind.name for kind in self._rig.kinds()]

    def late(self, seconds: float) -> None:
        """Let time have passed, of which nothing that came due is done yet."""
        reach(self.engine, PlayedMs(self._rig.time_ms + round(seconds * 1_000)))

    def slices(self) -> None:
        self._rig.run(self._rig.time_ms)
        check(self.engine)

    def wall(self, seconds: float) -> None:
        """Set the wall clock so far from delayd time, and place all jobs that follow it."""
        follow_wall(self.engine, round(seconds * 1_000))
        self.slices()

    def restart(self) -> None:
        vet = self.engine.vet_target
        self._rig.restart()
        self.engine = self._rig.engine
        self.engine.vet_target = vet
        self._worker, self._other = self._rig.client(), self._rig.client()
        self._clients, self._lanes = {"me": self._worker}, []
        check(self.engine)

    def copy(self) -> list[str]:
        """Let the log begin with a copy of what is there; return its records."""
        self._rig.take_log()
        self._rig.start_ms = self._rig.time_ms
        self._rig.log = [SnapshotCopy(self.engine.store).take(WHOLE, WHOLE)]
        return [kind.name for kind in kinds_of(self._rig.log[0])]

    def wakes(self) -> float | None:
        """Return in how many seconds there is something to be done."""
        deadline_ms = next_deadline(self.engine)
        return None if deadline_ms is None else (deadline_ms - self._rig.time_ms) / 1_000

    def oldest(self, topic: str = "mail") -> int | None:
        """Return for how long the oldest ready job has been ready, in whole seconds."""
        old_ms = age_ms(oldest_ready_ms(self.engine.store.topic(topic)), self._rig.time_ms)
        return None if old_ms is None else round(old_ms / 1_000)

    def space(self, free_bytes: int) -> None:
        self.engine.log_space.limit(free_bytes, lambda *_: -1)

    def emergency(self) -> None:
        """Leave the space that puts leave to others."""
        self.space(EMERGENCY_BYTES)

    def caps(self, jobs: int, size: int) -> None:
        """Cap all topics together."""
        topics.configure(self.engine, None, jobs, size)

    def pattern(self, name: str, **fields: Any) -> None:
        topics.configure(self.engine, Patterns({name: Policy.from_fields(fields)}))

    def source(self, topic: str) -> str:
        """Return where its policy is from."""
        return topics.policy_of(self.engine, topic)[1].name.lower()

    def alarms(self) -> int:
        return len(self.engine.store.alarms.rows)

    def reserved(self, topic: str) -> int:
        return self.engine.store.topics.by_name[topic].reserved

    def seen(self, job_id: int) -> None:
        """Look at a job, which catches up with what came due."""
        caught_up(self.engine, job_id, self._rig.now_ms)
        check(self.engine)

    def wake(self) -> None:
        """Serve who waits."""
        waiting.serve_waiting(self.engine, self._rig.now_ms)

    # --- Pushes ----------------------------------------------------------------------------------

    def job(self, **options: Any) -> str:
        """Put one into mail that is pushed."""
        return self.put(**options, url="A" if self.way == "url" else "")

    def rule(self, **fields: Any) -> None:
        """Set the policy of mail, and its target if it has one."""
        push = {"push": {"sink": "orders"}} if self.way == "sink" else {}
        self.set_policy("mail", **fields, **push)

    def lanes(self) -> list[str]:
        """Hear of lanes, without asking for a job."""
        fresh = take_fresh(self.engine)
        self._lanes = fresh or self._lanes
        return [f"{topic.name}:{origin.decode()}" for topic, origin in fresh]

    def new(self) -> int:
        """Return of how many lanes is heard."""
        return len(self.lanes())

    def ask(self, *, lane: int = 0, skips: int = 0) -> int | None:
        """Ask one of the lanes that were heard of last for a job."""
        return self._call(self._lanes[lane], skips)

    def _call(self, lane: "Lane", skips: int = 0) -> int | None:
        with self.as_client("push"):
            pushes, now_ms = self._worker, self._rig.now_ms
        job = reserve_call(self.engine, pushes, lane, LEASE_MS, now_ms, skips)
        check(self.engine)
        return job[0] if job else None

    def calls(self, most: int = 99) -> list[int]:
        """Hear of lanes, and get all jobs that there are for them."""
        job_ids: list[int] = []
        for lane in take_fresh(self.engine):
            while len(job_ids) < most and (job_id := self._call(lane)):
                job_ids.append(job_id)
        return job_ids

    def fail(self, job_id: int, *, delay: float = 0, exhausted: int = 0, error: str = "") -> None:
        how: Any = {"delay_ms": round(delay * 1_000), "is_exhausted": bool(exhausted)}
        with self.as_client("push"):
            self._held(attempts.fail_call, job_id, error=error, **how)

    def give_back(self, job_id: int, **error: str) -> None:
        with self.as_client("push"):
            self._held(attempts.give_back_call, job_id, **error)
