"""What keys and changes of waiting jobs do, said simply: whoever has a key is searched for."""

from dataclasses import replace

from delayd.core.errors import BodyTooBig, Draining, JobAlreadyExists, JobNotFound
from delayd.core.job_record import State
from delayd.core.operations.put import Conflict, Outcome
from delayd.core.wheel.wheel import ceil_to_tick
from tests.core.model import LONGEST_MS, Job, Model

LATEST_MS = 253_402_300_799_999


class KeyedModel(Model):
    """With the wall clock as it is when delayd time says the same."""

    def keyed(self, topic: str, key: bytes) -> Job | None:
        for job in self.jobs.values():
            if job.topic == topic and job.key == key:
                return job
        return None

    def vet(
        self, priority: int, delay_ms: int, ttr_ms: int, body: bytes, *, is_put: bool = True
    ) -> None:
        if len(body) > self.body_bytes_max:
            raise BodyTooBig(0, 0)
        if is_put and self.draining:
            raise Draining
        self.check_range(priority, 2**32 - 1)
        self.check_range(delay_ms, LONGEST_MS)
        self.check_range(ttr_ms, LONGEST_MS)

    def when(self, delay_ms: int, due_wall_ms: int | None, now_ms: int) -> tuple[int, int]:
        """When it is due, and the delay that it has then."""
        if due_wall_ms is None:
            return self.due_after(delay_ms, now_ms), delay_ms
        due_ms = ceil_to_tick(due_wall_ms, self.tick_ms)
        if due_ms <= self.time_ms:
            return now_ms, 0
        return due_ms, max(1, due_ms - now_ms)

    def put_keyed(
        self,
        topic: str,
        key: bytes,
        on: Conflict,
        *,
        priority: int,
        delay_ms: int,
        due_wall_ms: int | None,
        ttr_ms: int,
        body: bytes,
        now_ms: int,
    ) -> tuple[int, Outcome]:
        self.vet(priority, delay_ms, ttr_ms, body)
        self.check_range(due_wall_ms or 0, LATEST_MS)
        job = self.keyed(topic, key)
        if job is not None:
            self.settle(job.job_id, now_ms)
            if on is Conflict.REJECT:
                raise JobAlreadyExists(job.job_id, key)
            if on is Conflict.KEEP:
                return job.job_id, Outcome.KEPT
        due_ms, delay_ms = self.when(delay_ms, due_wall_ms, now_ms)
        new = Job(
            *(0, topic, priority, due_ms, now_ms, ttr_ms or 1000, max(0, due_ms - now_ms), body),
            state=State.DELAYED if delay_ms else State.READY,
            key=key,
        )
        if job is None or job.state is State.RESERVED:
            if job is not None:
                job.key = b""
            return self.create(new, now_ms), Outcome.CREATED
        if on is Conflict.PRESERVE:
            job.priority, job.ttr_ms, job.body = priority, new.ttr_ms, body
        else:
            if job.state is State.BURIED:
                self.buried.remove(job.job_id)
            if on is Conflict.REPLACE:
                self.jobs[job.job_id] = replace(new, job_id=job.job_id)
            else:
                job.due_ms, job.delay_ms, job.state = due_ms, delay_ms, new.state
        self.serve(topic, now_ms)
        return job.job_id, Outcome[f"{on.name.removesuffix('E')}ED"]

    def create(self, job: Job, now_ms: int) -> int:
        self.last_id += 1
        self.last_id_put = self.last_id
        self.jobs[self.last_id] = replace(job, job_id=self.last_id)
        self.topics[job.topic].jobs_put += 1
        self.jobs_put += 1
        self.serve(job.topic, now_ms)
        return self.last_id

    def put_keyed_run(
        self,
        topic: str,
        *,
        priority: int,
        delay_ms: int,
        ttr_ms: int,
        keys: list[bytes],
        bodies: list[bytes],
        now_ms: int,
    ) -> int:
        self.vet(priority, delay_ms, ttr_ms, max(bodies, key=len))
        if len(set(keys)) < len(keys) or any(self.keyed(topic, key) for key in keys):
            return 0
        first_id = self.last_id + 1
        due_ms = self.due_after(delay_ms, now_ms)
        state = State.DELAYED if delay_ms else State.READY
        for job_id, (key, body) in enumerate(zip(keys, bodies, strict=True), first_id):
            self.jobs[job_id] = Job(
                *(job_id, topic, priority, due_ms, now_ms, ttr_ms or 1000, due_ms - now_ms, body),
                state=state,
                key=key,
            )
        self.last_id = self.last_id_put = first_id + len(keys) - 1
        self.topics[topic].jobs_put += len(keys)
        self.jobs_put += len(keys)
        self.serve(topic, now_ms)
        return first_id

    def change(
        self,
        job_id: int,
        now_ms: int,
        *,
        delay_ms: int | None,
        due_wall_ms: int | None,
        priority: int | None,
        ttr_ms: int | None,
        body: bytes | None,
    ) -> None:
        self.vet(priority or 0, delay_ms or 0, ttr_ms or 0, body or b"", is_put=False)
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
