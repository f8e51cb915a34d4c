"""An engine on a fake clock with everything around it that a daemon would be: log, turns, restart.

An `EngineRig` keeps the time, takes log and deliveries as the service does, and can play the log
into a second engine. Requests see a time that is `skew_ms` later than the time that has been
played: the service rounds the same instant up for requests and down for what is due.
"""

# ruff: noqa: ANN401 - options go to the operations as they are

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from delayd.core.engine import Engine
from delayd.core.job_parts import Own, Retry
from delayd.core.job_table import Page
from delayd.core.log_records import LAYOUTS, TAILED, Kind
from delayd.core.operations import ack, attempts, change, sessions, topics
from delayd.core.operations.put import Conflict, Outcome, put_alike, put_keyed, put_one, take_id
from delayd.core.operations.reserve import reserve, reserve_batch, reserve_job, touch
from delayd.core.operations.tick import advance, next_deadline
from delayd.core.operations.waiting import wait
from delayd.core.policy import Patterns, Policy
from delayd.core.replay import Replay
from delayd.core.scans.kick import Kick
from delayd.core.session import Session, WaitEnd
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.topic import Topic
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.views import JobDetails, JobView, TopicView, job_details, view_job, view_topic

TTR_MS = 60_000


def put(
    engine: Engine,
    topic: Topic,
    *,
    now_ms: int,
    priority: int = 0,
    delay_ms: int = 0,
    ttr_ms: int = TTR_MS,
    body: bytes = b"",
    job_id: int = 0,
    due_wall_ms: int | None = None,
    retry: Retry | None = None,
    target: bytes = b"",
) -> int:
    """Put a job the cheapest way there is for it; return its id (`job_id` if it was taken)."""
    if retry is None and due_wall_ms is None and not target:
        job_id = job_id or take_id(engine)
        return put_one(engine, topic, priority, delay_ms, ttr_ms, body, RequestMs(now_ms), job_id)
    assert not job_id, "only plain puts take their ids before their bodies are there"
    new_id, _ = put_keyed(
        engine,
        topic,
        b"",
        priority=priority,
        delay_ms=delay_ms,
        due_wall_ms=due_wall_ms,
        ttr_ms=ttr_ms,
        body=body,
        now_ms=RequestMs(now_ms),
        own=Own(retry, target),
    )
    return new_id


class TimedPayload(Protocol):
    """A frame of a log, as far as a replay needs it."""

    @property
    def time_ms(self) -> int: ...

    @property
    def payload(self) -> bytes: ...


def played(frames: Iterable[TimedPayload]) -> Replay | None:
    """Play a log into an engine that begins with it; None: there are no frames."""
    replay = None
    for frame in frames:
        replay = replay or Replay(Engine(start_ms=frame.time_ms))
        replay.play(frame.payload)
    return replay


class CountingPages(dict[int, Page]):
    """The pages of a job table; counts how often a job is looked at or forgotten."""

    def __init__(self, pages: dict[int, Page] | None = None) -> None:
        super().__init__(pages or {})
        self.looks = 0

    def get(self, number: int, default: Any = None) -> Any:  # as the dict has it
        self.looks += 1
        return super().get(number, default)

    def __getitem__(self, number: int) -> Page:
        self.looks += 1
        return super().__getitem__(number)


def kick(engine: Engine, topic: Topic, bound: int, now_ms: int) -> int:
    """Kick up to `bound` jobs of the topic, all at once; return how many were."""
    work = Kick(engine, topic, bound)
    while not work.step(100, RequestMs(now_ms)):
        pass
    return work.done


class EngineRig:
    def __init__(
        self,
        *,
        time_ms: int = 0,
        tick_ms: int = 1,
        wheel_size: int = 256,
        body_bytes_max: int = 65_535,
        skew_ms: int = 0,
    ) -> None:
        self.skew_ms = skew_ms
        self.start_ms = time_ms
        self.settings = {
            "tick_ms": tick_ms,
            "wheel_size": wheel_size,
            "body_bytes_max": body_bytes_max,
        }
        self.engine = self.new_engine()
        self.log: list[bytes] = []
        """All records since the first start, one payload for each time the log was taken."""

    def new_engine(self) -> Engine:
        return Engine(start_ms=self.start_ms, **self.settings)

    # --- Time ------------------------------------------------------------------------------------

    @property
    def time_ms(self) -> PlayedMs:
        return self.engine.store.time_ms

    @property
    def now_ms(self) -> RequestMs:
        """What a request made now is told."""
        return RequestMs(self.engine.store.time_ms + self.skew_ms)

    def advance(self, time_ms: int) -> bool:
        """Let one slice happen of what is due by then."""
        return advance(self.engine, PlayedMs(time_ms), RequestMs(time_ms + self.skew_ms))

    def run(self, time_ms: int) -> int:
        """Let all happen that is due by then, in one leap; return the number of slices."""
        slices = 0
        while self.advance(time_ms):
            slices += 1
        return slices

    def play(self, time_ms: int) -> None:
        """Let time pass until then as a daemon would: waking for each deadline."""
        while True:
            deadline_ms = next_deadline(self.engine)
            if deadline_ms is None or deadline_ms > time_ms:
                break
            self.advance(max(deadline_ms, self.time_ms))
        self.run(time_ms)

    # --- Jobs ------------------------------------------------------------------------------------

    def put(self, topic: str = "default", **what: Any) -> int:
        """Put a job the cheapest way there is for it, as `put` above; return its id."""
        return put(self.engine, self.engine.store.topic(topic), now_ms=self.now_ms, **what)

    def put_keyed(
        self, key: bytes, on: Conflict = Conflict.REJECT, *, topic: str = "default", **what: Any
    ) -> tuple[int, Outcome]:
        """Put a job under the key, which may be empty; return its id and what became of the put."""
        there = self.engine.store.topic(topic)
        what = {"priority": 0, "ttr_ms": TTR_MS, "body": b"", **what}
        return put_keyed(self.engine, there, key, on, now_ms=self.now_ms, **what)

    def put_many(self, count: int, topic: str = "default", **what: Any) -> list[int]:
        """Put so many equal jobs, one after the other; return their ids."""
        return [self.put(topic, **what) for _ in range(count)]

    def record(self, job_id: int) -> bytes:
        record = self.engine.store.jobs.get(job_id)
        assert record is not None
        return record

    def view(self, job_id: int) -> JobView:
        return view_job(self.engine, job_id, self.now_ms)

    def details(self, job_id: int) -> JobDetails:
        return job_details(self.engine, job_id, self.now_ms)

    def view_topic(self, name: str = "default") -> TopicView:
        return view_topic(self.engine, name, self.now_ms)

    def topic(self, name: str = "default") -> Topic:
        """Return a topic that is there."""
        return self.engine.store.topics.by_name[name]

    def reschedule(self, job_id: int, delay_ms: int = 0, due_wall_ms: int | None = None) -> None:
        change.reschedule(self.engine, job_id, delay_ms, self.now_ms, due_wall_ms)

    def change(self, job_id: int, **what: Any) -> None:
        change.change(self.engine, job_id, self.now_ms, **what)

    def kick_job(self, job_id: int) -> None:
        change.kick_job(self.engine, job_id, self.now_ms)

    def kick_later(self, job_id: int, delay_ms: int) -> None:
        change.kick_later(self.engine, job_id, delay_ms, self.now_ms)

    def bury_waiting(self, job_id: int, **what: Any) -> None:
        change.bury_waiting(self.engine, job_id, self.now_ms, **what)

    # --- Topics ----------------------------------------------------------------------------------

    def set_policy(self, name: str = "default", policy: Policy | None = None, **of: Any) -> Policy:
        """Set the policy, or one `of` these fields; return what is kept. Neither is none."""
        return topics.set_policy(self.engine, name, Policy(**of) if of else policy, self.now_ms)

    def pause(self, name: str, pause_ms: int) -> None:
        topics.pause(self.engine, name, pause_ms, self.now_ms)

    def pause_group(self, name: str, group: bytes, pause_ms: int) -> None:
        topics.pause_group(self.engine, name, group, pause_ms, self.now_ms)

    def clear(self, name: str = "default") -> int:
        return topics.clear(self.engine, self.topic(name))

    def kick(self, bound: int, name: str = "default") -> int:
        return kick(self.engine, self.topic(name), bound, self.now_ms)

    # --- Clients ---------------------------------------------------------------------------------

    def client(self, *watched: str) -> Session:
        """Return a session that watches these topics, and uses the first."""
        session = sessions.open_session(self.engine)
        for name in watched:
            sessions.watch(self.engine, session, name)
        if watched:
            sessions.use(self.engine, session, watched[0])
            if "default" not in watched:
                sessions.ignore(self.engine, session, "default")
        return session

    def reserve(self, session: Session) -> int:
        """Reserve a job; return its id, 0 if there was none."""
        job = reserve(self.engine, session, self.now_ms)
        return 0 if job is None else job[0]

    def reserve_all(self, session: Session) -> list[int]:
        return [
            job[0] for job in reserve_batch(self.engine, session, 1 << 62, 1 << 62, self.now_ms)
        ]

    def reserve_job(self, session: Session, job_id: int) -> tuple[int, bytes]:
        return reserve_job(self.engine, session, job_id, self.now_ms)

    def delete(self, session: Session, *job_ids: int) -> None:
        for job_id in job_ids:
            ack.delete(self.engine, session, job_id, self.now_ms)

    def delete_batch(self, session: Session, job_ids: Sequence[int]) -> list[bool]:
        return ack.delete_batch(self.engine, session, job_ids, self.now_ms)

    def release(self, session: Session, job_id: int, priority: int = 0, delay_ms: int = 0) -> None:
        attempts.release(self.engine, session, job_id, priority, delay_ms, self.now_ms)

    def nack(self, session: Session, job_id: int, **what: Any) -> None:
        attempts.nack(self.engine, session, job_id, self.now_ms, **what)

    def bury(self, session: Session, job_id: int, priority: int = 0, error: str = "") -> None:
        attempts.bury(self.engine, session, job_id, priority, self.now_ms, error)

    def touch(self, session: Session, job_id: int) -> None:
        touch(self.engine, session, job_id, self.now_ms)

    def close(self, session: Session) -> None:
        sessions.close_session(self.engine, session, self.now_ms)

    def put_alike(self, bodies: Sequence[bytes], topic: str = "default", **what: Any) -> int:
        """Put a run; return its first id."""
        there = self.engine.store.topic(topic)
        what = {"priority": 0, "delay_ms": 0, "ttr_ms": TTR_MS, **what}
        return put_alike(self.engine, there, bodies=bodies, now_ms=self.now_ms, **what)

    def wait(self, session: Session, wait_ms: int | None = None) -> None:
        wait(self.engine, session, self.now_ms, wait_ms)

    def delivered(self) -> list[tuple[Session, int | WaitEnd]]:
        """Take the deliveries: who got which job, or why none."""
        return [
            (session, outcome if isinstance(outcome, WaitEnd) else outcome[0])
            for session, outcome in self.engine.take_deliveries()
        ]

    # --- The log ---------------------------------------------------------------------------------

    def take_log(self) -> tuple[bytes, bool]:
        """Take what was recorded since the last time, and whether it must be synced."""
        pieces, must_sync = self.engine.take_log()
        payload = b"".join(pieces)
        if payload:
            self.log.append(payload)
        return payload, must_sync

    def replayed(self, time_ms: int | None = None, patterns: Patterns | None = None) -> Engine:
        """Return what a restart would make of the log so far, then and with this configuration."""
        self.take_log()
        replay = Replay(self.new_engine())
        for payload in self.log:
            replay.play(payload)
        if patterns is not None:
            topics.configure(replay.engine, patterns)
        replay.finish(PlayedMs(self.time_ms if time_ms is None else time_ms))
        return replay.engine

    def agree_with_the_log(self) -> None:
        """See that the log alone makes the same engine, and that both keep their invariants."""
        check(self.engine)
        replayed = self.replayed()
        check(replayed)
        assert [*canonical(replayed)] == [*canonical(self.engine)]

    def kinds(self) -> list[Kind]:
        """Return the kinds of what was recorded since the last time."""
        return kinds_of(self.take_log()[0])

    def restart(self) -> None:
        self.engine = self.replayed()


def kinds_of(payload: bytes) -> list[Kind]:
    """Return the kinds of a payload's records, in order."""
    kinds = []
    at = 0
    while at < len(payload):
        kind = Kind(payload[at])
        layout = LAYOUTS[kind]
        fields = layout.unpack_from(payload, at)
        at += layout.size + (fields[-1] if kind in TAILED else 0)
        kinds.append(kind)
    return kinds
