"""What delayd does, said as simply as it can be: dicts, lists and searches through all of them.

No wheel, no heap, no log, no sorted lists, no index: a key's job is searched for. `Model` has the
engine's operations under the engine's names and answers like it, refusals included. Its wall
clock says what delayd time says. Only one thing it does not decide: in which slices and
in which order of wheels due things happen. It is told by `happen_delays`, `happen_holds` and
`happen_alarms`, and asserts that they were due and came oldest first.

Example: `model.happen_delays("default", [7], now_ms=5)` asserts that job 7 of that topic is
delayed, that its time has come, and that no job left in the topic should have come before it.
"""

from dataclasses import dataclass, field, replace

from delayd.core.errors import (
    BodyTooBig,
    Draining,
    JobAlreadyExists,
    JobNotFound,
    LastWatched,
    Refusal,
    TopicNotFound,
    ValueOutOfRange,
)
from delayd.core.job_record import State
from delayd.core.operations.put import Conflict, Outcome
from delayd.core.session import Handed, WaitEnd
from delayd.core.wheel.wheel import ceil_to_tick

LONGEST_MS = (2**32 - 1) * 1000
LATEST_MS = 253_402_300_799_999


@dataclass(eq=False)
class Client:
    """A session. `name` is what the comparison calls it."""

    name: int
    used: str = "default"
    watched: list[str] = field(default_factory=lambda: ["default"])
    wait_ends_ms: int | None = None
    alarm_ms: int | None = None


@dataclass(eq=False)
class Job:
    job_id: int
    topic: str
    priority: int
    due_ms: int
    created_ms: int
    ttr_ms: int
    delay_ms: int
    body: bytes
    state: State
    key: bytes = b""
    holder: Client | None = None
    deadline_ms: int = 0
    hold: int = 0
    """The how manieth hold it is of all."""
    reserves: int = 0
    timeouts: int = 0
    releases: int = 0
    buries: int = 0
    kicks: int = 0


@dataclass
class TopicCounts:
    paused_until_ms: int | None = None
    pause_ms: int = 0
    jobs_put: int = 0
    deletes: int = 0
    pauses: int = 0


class Model:
    def __init__(self, time_ms: int, tick_ms: int, body_bytes_max: int) -> None:
        self.time_ms = time_ms
        self.tick_ms = tick_ms
        self.body_bytes_max = body_bytes_max
        self.draining = False
        self.last_id = 0
        self.last_id_put = 0
        self.timeouts = 0
        self.jobs_put = 0
        self.holds = 0
        self.jobs: dict[int, Job] = {}
        self.buried: list[int] = []
        """Of all topics, the longest buried first."""
        self.topics: dict[str, TopicCounts] = {"default": TopicCounts()}
        self.listing = ["default"]
        self.clients: list[Client] = []
        self.waiting: list[Client] = []
        """Of all topics, the longest waiting first."""
        self.orphans = Client(-1)
        self.deliveries: list[tuple[Client, Handed | WaitEnd]] = []

    # --- Looking ---------------------------------------------------------------------------------

    def in_state(self, state: State, topic: str | None = None) -> list[Job]:
        jobs = sorted(self.jobs.values(), key=lambda job: (job.priority, job.job_id))
        return [job for job in jobs if job.state is state and topic in {None, job.topic}]

    def held_by(self, client: Client) -> list[Job]:
        return [job for job in self.jobs.values() if job.holder is client]

    def waiters(self, topic: str) -> list[Client]:
        return [client for client in self.waiting if topic in client.watched]

    def soonest(self, topic: str) -> list[Job]:
        jobs = self.in_state(State.DELAYED, topic)
        return sorted(jobs, key=lambda job: (job.due_ms, job.job_id))

    def is_paused(self, topic: str) -> bool:
        return self.topics[topic].paused_until_ms is not None

    def deadline_soon(self, client: Client, now_ms: int) -> bool:
        return any(job.deadline_ms <= now_ms + 1000 for job in self.held_by(client))

    # --- What happens by itself ------------------------------------------------------------------

    def timers(self) -> list[tuple[int, object]]:
        """When delays, holds, pauses and waits end."""
        times: list[tuple[int | None, object]] = [
            *((job.due_ms, job) for job in self.in_state(State.DELAYED)),
            *((job.deadline_ms, job) for job in self.in_state(State.RESERVED)),
            *((topic.paused_until_ms, name) for name, topic in self.topics.items()),
            *((client.alarm_ms, client) for client in self.waiting),
        ]
        return [(time_ms, what) for time_ms, what in times if time_ms is not None]

    def due(self) -> list[object]:
        """Everything whose time has come and that has not happened."""
        return [what for time_ms, what in self.timers() if time_ms <= self.time_ms]

    def next_time(self) -> int | None:
        return min((time_ms for time_ms, _ in self.timers()), default=None)

    def assert_order(self, happened: list[int], left: list[int]) -> None:
        assert all(time_ms <= self.time_ms for time_ms in happened), "early"
        assert happened == sorted(happened), "not the oldest first"
        assert not happened or all(time_ms >= happened[-1] for time_ms in left), "one left behind"

    def happen_delays(self, topic: str, job_ids: list[int], now_ms: int) -> None:
        jobs = [self.jobs[job_id] for job_id in job_ids]
        assert all(job.topic == topic and job.state is State.DELAYED for job in jobs)
        left = [job.due_ms for job in self.soonest(topic) if job not in jobs]
        self.assert_order([job.due_ms for job in jobs], left)
        for job in jobs:
            job.state = State.READY
        if job_ids:
            self.serve(topic, now_ms)

    def happen_holds(self, job_ids: list[int], now_ms: int) -> None:
        jobs = [self.jobs[job_id] for job_id in job_ids]
        left = [job.deadline_ms for job in self.in_state(State.RESERVED) if job not in jobs]
        self.assert_order([job.deadline_ms for job in jobs], left)
        for job in jobs:
            self.end_hold(job, now_ms)

    def happen_alarms(self, rung: list[Client | str], now_ms: int) -> None:
        times = {name: topic.paused_until_ms for name, topic in self.topics.items()}
        alarms: dict[Client | str, int] = {k: v for k, v in times.items() if v is not None}
        alarms |= {c: c.alarm_ms for c in self.waiting if c.alarm_ms is not None}
        happened = [alarms.pop(whose) for whose in rung]
        self.assert_order(happened, list(alarms.values()))
        for whose in rung:
            self.end_alarm(whose, now_ms)

    def end_hold(self, job: Job, now_ms: int) -> None:
        """The ttr has run out."""
        job.timeouts += 1
        self.timeouts += 1
        self.put_back(job, State.READY, now_ms)

    def end_alarm(self, whose: Client | str, now_ms: int) -> None:
        """A pause has ended, or a wait or the time until DEADLINE_SOON."""
        if isinstance(whose, str):
            self.topics[whose].paused_until_ms = None
            self.topics[whose].pause_ms = 0
            self.serve(whose, now_ms)
        elif whose in self.waiting:
            whose.alarm_ms = None
            if self.deadline_soon(whose, now_ms):
                self.end_wait(whose, WaitEnd.DEADLINE_SOON)
            elif whose.wait_ends_ms is not None and whose.wait_ends_ms <= self.time_ms:
                self.end_wait(whose, WaitEnd.TIMED_OUT)
            else:
                self.set_alarm(whose)

    def set_alarm(self, client: Client) -> None:
        times = [job.deadline_ms - 1000 for job in self.held_by(client)]
        if client.wait_ends_ms is not None:
            times.append(client.wait_ends_ms)
        client.alarm_ms = min(times, default=None)

    def settle(self, job_id: int, now_ms: int) -> Job:
        """Let happen what is due to one job, because somebody asks for it."""
        if job_id not in self.jobs:
            raise JobNotFound(job_id)
        job = self.jobs[job_id]
        if job.state is State.RESERVED and job.deadline_ms <= self.time_ms:
            self.end_hold(job, now_ms)
        elif job.state is State.DELAYED and job.due_ms <= self.time_ms:
            self.make_ready(job, now_ms)
        return job

    def make_ready(self, job: Job, now_ms: int) -> None:
        job.state = State.READY
        self.serve(job.topic, now_ms)

    def put_back(self, job: Job, state: State, now_ms: int) -> None:
        """Nobody holds the job any more."""
        job.reserves += 1
        job.holder = None
        job.state = state
        if state is State.BURIED:
            self.buried.append(job.job_id)
        self.serve(job.topic, now_ms)

    def serve(self, topic: str, now_ms: int) -> None:
        while not self.is_paused(topic):
            ready, waiters = self.in_state(State.READY, topic), self.waiters(topic)
            if not ready or not waiters:
                break
            self.end_wait(waiters[0], self.hand_out(ready[0], waiters[0], now_ms))

    def end_wait(self, client: Client, outcome: Handed | WaitEnd) -> None:
        self.waiting.remove(client)
        client.alarm_ms = None
        self.deliveries.append((client, outcome))

    def hand_out(self, job: Job, client: Client, now_ms: int) -> Handed:
        if job.state is State.BURIED:
            self.buried.remove(job.job_id)
        self.holds += 1
        job.hold = self.holds
        job.state = State.RESERVED
        job.holder = client
        job.deadline_ms = ceil_to_tick(now_ms + job.ttr_ms, self.tick_ms)
        return job.job_id, job.body

    # --- Sessions and topics ---------------------------------------------------------------------

    def open_session(self, name: int) -> Client:
        client = Client(name)
        self.clients.append(client)
        return client

    def close_session(self, client: Client, now_ms: int) -> None:
        if client in self.waiting:
            self.waiting.remove(client)
        for job in sorted(self.held_by(client), key=lambda job: job.hold):
            if job.deadline_ms <= self.time_ms:
                self.end_hold(job, now_ms)
            else:
                self.put_back(job, State.READY, now_ms)
        while client.watched:
            name = client.watched[0]
            swap_out(client.watched, name)
            self.forget_unwanted(name)
        self.clients.remove(client)
        self.forget_unwanted(client.used)

    def make_topic(self, name: str) -> None:
        if name not in self.topics:
            self.topics[name] = TopicCounts()
            self.listing.append(name)

    def forget_unwanted(self, name: str) -> None:
        holds_jobs = any(job.topic == name for job in self.jobs.values())
        is_wanted = any(name == client.used or name in client.watched for client in self.clients)
        if name in self.topics and name != "default" and not holds_jobs and not is_wanted:
            del self.topics[name]
            swap_out(self.listing, name)

    def use(self, client: Client, name: str) -> None:
        self.make_topic(name)
        old, client.used = client.used, name
        self.forget_unwanted(old)

    def watch(self, client: Client, name: str) -> None:
        self.make_topic(name)
        if name not in client.watched:
            client.watched.append(name)

    def ignore(self, client: Client, name: str) -> None:
        if name not in client.watched:
            return
        if len(client.watched) == 1:
            raise LastWatched(name)
        swap_out(client.watched, name)
        self.forget_unwanted(name)

    def pause(self, name: str, pause_ms: int, now_ms: int) -> None:
        if name not in self.topics:
            raise TopicNotFound(name)
        self.check_range(pause_ms, LONGEST_MS)
        topic = self.topics[name]
        topic.pauses += 1
        topic.pause_ms = pause_ms
        topic.paused_until_ms = ceil_to_tick(now_ms + pause_ms, self.tick_ms) if pause_ms else None
        self.serve(name, now_ms)

    # --- Jobs ------------------------------------------------------------------------------------

    @staticmethod
    def check_range(value: int, highest: int) -> None:
        if not 0 <= value <= highest:
            raise ValueOutOfRange("", value, 0, highest)

    def due_after(self, delay_ms: int, now_ms: int) -> int:
        return ceil_to_tick(now_ms + delay_ms, self.tick_ms) if delay_ms else now_ms

    def when(self, delay_ms: int, due_wall_ms: int | None, now_ms: int) -> tuple[int, int]:
        """When it is due, and the delay that it has then."""
        if due_wall_ms is None:
            return self.due_after(delay_ms, now_ms), delay_ms
        due_ms = ceil_to_tick(due_wall_ms, self.tick_ms)
        if due_ms <= self.time_ms:
            return now_ms, 0
        return due_ms, max(1, due_ms - now_ms)

    def vet_put(self, body: bytes, **numbers: int) -> None:
        self.vet(body)
        if self.draining:
            raise Draining
        self.vet(body, **numbers)

    def vet(self, body: bytes, *, priority: int = 0, delay_ms: int = 0, ttr_ms: int = 0) -> None:
        if len(body) > self.body_bytes_max:
            raise BodyTooBig(0, 0)
        self.check_range(priority, 2**32 - 1)
        self.check_range(delay_ms, LONGEST_MS)
        self.check_range(ttr_ms, LONGEST_MS)

    def keyed(self, topic: str, key: bytes) -> Job | None:
        for job in self.jobs.values():
            if job.topic == topic and job.key == key:
                return job
        return None

    def create(self, *jobs: Job) -> int:
        """Add these jobs, with the next numbers; return the first."""
        first_id, topic, now_ms = self.last_id + 1, jobs[0].topic, jobs[0].created_ms
        for job_id, job in enumerate(jobs, first_id):
            self.jobs[job_id] = replace(job, job_id=job_id)
        self.last_id = self.last_id_put = self.last_id + len(jobs)
        self.topics[topic].jobs_put += len(jobs)
        self.jobs_put += len(jobs)
        self.serve(topic, now_ms)
        return first_id

    def new(
        self, topic: str, key: bytes, body: bytes, now_ms: int, *, priority: int, ttr_ms: int,
        delay_ms: int, due_wall_ms: int | None = None,
    ) -> Job:  # fmt: skip
        due_ms, delay_ms = self.when(delay_ms, due_wall_ms, now_ms)
        state = State.DELAYED if delay_ms else State.READY
        has_ms = max(0, due_ms - now_ms)
        return Job(0, topic, priority, due_ms, now_ms, ttr_ms or 1000, has_ms, body, state, key)

    def put_alike(self, topic: str, *, bodies: list[bytes], now_ms: int, **what: int) -> int:
        self.last_id += len(bodies)  # taken, whatever comes of it
        self.vet_put(max(bodies, key=len), **what)
        self.last_id -= len(bodies)
        return self.create(*(self.new(topic, b"", body, now_ms, **what) for body in bodies))

    def put_keyed_run(
        self, topic: str, *, keys: list[bytes], bodies: list[bytes], now_ms: int, **what: int
    ) -> int:
        self.vet_put(max(bodies, key=len), **what)
        if len(set(keys)) < len(keys) or any(self.keyed(topic, key) for key in keys):
            return 0
        pairs = zip(keys, bodies, strict=True)
        return self.create(*(self.new(topic, key, body, now_ms, **what) for key, body in pairs))

    def put_keyed(
        self, topic: str, key: bytes, on: Conflict, *, body: bytes, now_ms: int,
        due_wall_ms: int | None, **what: int,
    ) -> tuple[int, Outcome]:  # fmt: skip
        self.vet_put(body, **what)
        self.check_range(due_wall_ms or 0, LATEST_MS)
        job = self.keyed(topic, key)
        if job is not None:
            self.settle(job.job_id, now_ms)
            if on is Conflict.REJECT:
                raise JobAlreadyExists(job.job_id, key)
            if on is Conflict.KEEP:
                return job.job_id, Outcome.KEPT
        new = self.new(topic, key, body, now_ms, due_wall_ms=due_wall_ms, **what)
        if job is None or job.state is State.RESERVED:
            if job is not None:
                job.key = b""
            return self.create(new), Outcome.CREATED
        if on is Conflict.PRESERVE:
            job.priority, job.ttr_ms, job.body = new.priority, new.ttr_ms, body
        else:
            if job.state is State.BURIED:
                self.buried.remove(job.job_id)
            if on is Conflict.REPLACE:
                self.jobs[job.job_id] = replace(new, job_id=job.job_id)
            else:
                job.due_ms, job.state = new.due_ms, new.state
                job.delay_ms = self.when(what["delay_ms"], due_wall_ms, now_ms)[1]
        self.serve(topic, now_ms)
        return job.job_id, Outcome[f"{on.name.removesuffix('E')}ED"]

    def change(
        self, job_id: int, now_ms: int, *, delay_ms: int | None, due_wall_ms: int | None,
        priority: int | None, ttr_ms: int | None, body: bytes | None,
    ) -> None:  # fmt: skip
        self.vet(body or b"", priority=priority or 0, delay_ms=delay_ms or 0, ttr_ms=ttr_ms or 0)
        job = self.settle(job_id, now_ms)
        if job.state is State.RESERVED:
            raise JobNotFound(job_id)
        if delay_ms is not None or due_wall_ms is not None:
            if job.state is State.BURIED:
                self.buried.remove(job_id)
            job.due_ms, job.delay_ms = self.when(delay_ms or 0, due_wall_ms, now_ms)
            job.state = State.DELAYED if job.delay_ms else State.READY
        job.priority = job.priority if priority is None else priority
        job.ttr_ms = job.ttr_ms if ttr_ms is None else ttr_ms or 1000
        job.body = job.body if body is None else body
        self.serve(job.topic, now_ms)

    def reserve(self, client: Client, now_ms: int) -> Handed | None:
        for job in self.in_state(State.READY):
            if job.topic in client.watched and not self.is_paused(job.topic):
                return self.hand_out(job, client, now_ms)
        return None

    def reserve_batch(
        self, client: Client, jobs_max: int, bytes_max: int, now_ms: int
    ) -> list[Handed]:
        jobs: list[Handed] = []
        while len(jobs) < jobs_max and sum(len(body) for _, body in jobs) <= bytes_max:
            job = self.reserve(client, now_ms)
            if job is None:
                break
            jobs.append(job)
        return jobs

    def reserve_job(self, client: Client, job_id: int, now_ms: int) -> Handed:
        job = self.settle(job_id, now_ms)
        if job.state is State.RESERVED:
            raise JobNotFound(job_id)
        return self.hand_out(job, client, now_ms)

    def wait(self, client: Client, now_ms: int, wait_ms: int | None) -> None:
        client.wait_ends_ms = (
            None if wait_ms is None else ceil_to_tick(now_ms + wait_ms, self.tick_ms)
        )
        self.waiting.append(client)
        self.set_alarm(client)

    def cancel_wait(self, client: Client) -> None:
        if client in self.waiting:
            self.waiting.remove(client)

    def held(self, client: Client, job_id: int) -> Job:
        job = self.jobs.get(job_id)
        if job is None or job.holder is not client or job.deadline_ms <= self.time_ms:
            raise JobNotFound(job_id)
        return job

    def release(
        self, client: Client, job_id: int, priority: int, delay_ms: int, now_ms: int
    ) -> None:
        job = self.held(client, job_id)
        self.check_range(priority, 2**32 - 1)
        self.check_range(delay_ms, LONGEST_MS)
        job.priority = priority
        job.delay_ms = delay_ms
        job.due_ms = self.due_after(delay_ms, now_ms)
        job.releases += 1
        self.put_back(job, State.DELAYED if delay_ms else State.READY, now_ms)

    def bury(self, client: Client, job_id: int, priority: int, now_ms: int) -> None:
        job = self.held(client, job_id)
        self.check_range(priority, 2**32 - 1)
        job.priority = priority
        job.buries += 1
        self.put_back(job, State.BURIED, now_ms)

    def bury_waiting(self, job_id: int, now_ms: int, *, priority: int | None) -> None:
        self.check_range(priority or 0, 2**32 - 1)
        job = self.settle(job_id, now_ms)
        if job.state not in {State.READY, State.DELAYED}:
            raise JobNotFound(job_id)
        if priority is not None:
            job.priority = priority
        job.buries += 1
        job.state = State.BURIED
        self.buried.append(job_id)

    def touch(self, client: Client, job_id: int, now_ms: int) -> None:
        job = self.held(client, job_id)
        job.deadline_ms = ceil_to_tick(now_ms + job.ttr_ms, self.tick_ms)

    def delete_batch(self, client: Client, job_ids: list[int], now_ms: int) -> list[bool]:
        return [self.delete(client, job_id, now_ms) for job_id in job_ids]

    def delete(self, client: Client, job_id: int, now_ms: int) -> bool:
        try:
            job = self.settle(job_id, now_ms)
        except Refusal:
            return False
        if job.holder not in {None, client}:
            return False
        del self.jobs[job_id]
        if job.state is State.BURIED:
            self.buried.remove(job_id)
        self.topics[job.topic].deletes += 1
        self.forget_unwanted(job.topic)
        return True

    def clear(self, name: str) -> int:
        waiting = [
            job_id
            for job_id, job in self.jobs.items()
            if job.topic == name and job.state is not State.RESERVED
        ]
        for job_id in waiting:
            del self.jobs[job_id]
        self.buried = [job_id for job_id in self.buried if job_id in self.jobs]
        if waiting:
            self.forget_unwanted(name)
        return len(waiting)

    def kick_job(self, job_id: int, now_ms: int) -> None:
        job = self.settle(job_id, now_ms)
        if job.state not in {State.BURIED, State.DELAYED}:
            raise JobNotFound(job_id)
        if job.state is State.BURIED:
            self.buried.remove(job_id)
        job.kicks += 1
        self.make_ready(job, now_ms)

    def kick(self, topic: str, bound: int, now_ms: int) -> int:
        job_ids = [job_id for job_id in self.buried if self.jobs[job_id].topic == topic]
        job_ids = job_ids or [job.job_id for job in self.soonest(topic)]
        kicked = 0
        for job_id in job_ids[:bound]:
            try:
                self.kick_job(job_id, now_ms)
            except JobNotFound:  # it had come due and needed no kick
                continue
            kicked += 1
        return kicked

    def reschedule(self, job_id: int, delay_ms: int, now_ms: int) -> None:
        self.check_range(delay_ms, LONGEST_MS)
        job = self.settle(job_id, now_ms)
        if job.state not in {State.READY, State.DELAYED}:
            raise JobNotFound(job_id)
        job.delay_ms = delay_ms
        job.due_ms = self.due_after(delay_ms, now_ms)
        job.state = State.DELAYED if delay_ms else State.READY
        self.serve(job.topic, now_ms)

    def restart(self) -> None:
        """The daemon stops and starts: clients and counters are gone, jobs and pauses are not."""
        self.clients.clear()
        self.waiting.clear()
        self.draining = False
        self.timeouts = self.jobs_put = 0
        self.last_id = self.last_id_put
        for job in self.in_state(State.RESERVED):
            job.holder = self.orphans
        for name in list(self.topics):
            self.topics[name].jobs_put = self.topics[name].deletes = self.topics[name].pauses = 0
            self.forget_unwanted(name)
        for whose in self.due():
            if isinstance(whose, Job):
                self.settle(whose.job_id, self.time_ms)
            elif isinstance(whose, str):
                self.end_alarm(whose, self.time_ms)


def swap_out(names: list[str], name: str) -> None:
    """Remove a name; the last takes its place, as beanstalkd's lists have it."""
    place = names.index(name)
    names[place] = names[-1]
    names.pop()
