"""A slow model of groups: looks at all jobs of a topic each time, and says which may come next."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

from delayd.core.job_parts import attempts_of, group_of
from delayd.core.job_record import PRIORITY_AND_TOPIC, PRIORITY_AT, State, state_of
from delayd.core.policy import GroupRule
from delayd.limits import RATE_BURST_MS
from tests.core.views import live_jobs
from tests.rigs.engine import EngineRig


class Ready(NamedTuple):
    """A ready job."""

    priority: int
    job_id: int
    group: bytes


class GroupModel:
    """The groups of one topic."""

    def __init__(self, rig: EngineRig, name: str) -> None:
        self.rig: Final = rig
        self.name: Final = name
        self.rule = GroupRule()
        self.paused_until_ms: dict[bytes, int] = {}
        self.served_ms: dict[bytes, list[int]] = {}
        """When each group had its turns, since the last start or change of the rate."""
        self.passed: dict[bytes, Counter[bytes]] = {}
        """Group that may hand out a job → how often the others were served meanwhile."""

    def may(self, group: bytes, reserved: Counter[bytes], retrying: Counter[bytes]) -> bool:
        """Tell whether the group may hand out a job now."""
        rule = self.rule
        if not group:
            return True
        return not (
            self.paused_until_ms.get(group, 0) > self.rig.time_ms
            or (rule.reserved_max is not None and reserved[group] >= rule.reserved_max)
            or (rule.waits and retrying[group])
            or self._is_too_fast(group)
        )

    def _is_too_fast(self, group: bytes) -> bool:
        """Tell whether one job more would be more than the rate and a burst, in any time."""
        rate, now_ms = self.rule.rate_per_s, self.rig.time_ms
        if rate is None:
            return False
        burst = max(1, int(rate * RATE_BURST_MS / 1_000))
        times_ms = self.served_ms.get(group, [])
        return any(
            len(times_ms) - first + 1 > burst + (now_ms - since_ms) * rate / 1_000
            for first, since_ms in enumerate(times_ms)
        )

    def nexts(self) -> list[Ready]:
        """Return the job of each group that may come next, the best of them first."""
        heads: dict[bytes, Ready] = {}
        reserved: Counter[bytes] = Counter()
        retrying: Counter[bytes] = Counter()
        for job, state in self._jobs():
            reserved[job.group] += state is State.RESERVED
            retrying[job.group] += state is State.DELAYED
            if state is State.READY:
                head = heads.get(job.group)
                if head is None or self._order(job) < self._order(head):
                    heads[job.group] = job
        return sorted(job for group, job in heads.items() if self.may(group, reserved, retrying))

    def _order(self, job: Ready) -> tuple[int, int]:
        return (0 if self.rule.by_put and job.group else job.priority), job.job_id

    def _jobs(self) -> Iterator[tuple[Ready, State]]:
        """Yield the jobs that are ready, reserved, or delayed after an attempt."""
        store = self.rig.engine.store
        for job_id, record in live_jobs(store):
            if store.topic_of(record).name == self.name:
                is_held = job_id in store.leases.sessions
                state = State.RESERVED if is_held else state_of(record)
                priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
                if state is not State.DELAYED or attempts_of(record):
                    yield Ready(priority, job_id, group_of(record)), state

    def look(self) -> None:
        """Notice which groups could not hand out a job just now: their wait begins anew."""
        may = {job.group for job in self.nexts()}
        self.passed = {group: passed for group, passed in self.passed.items() if group in may}

    def came(self, job_id: int, group: bytes, nexts: list[Ready]) -> None:
        """See that this job may be the one that was handed out, of those that might."""
        assert job_id in {job.job_id for job in nexts}, "its group may not hand it out"
        if not self.rule.fair:
            assert nexts[0].job_id == job_id, "another is better"
        self.served(group)
        self._nobody_waits_too_long(group, {job.group for job in nexts})

    def served(self, group: bytes) -> None:
        """Note that the group has had its turn."""
        self.served_ms.setdefault(group, []).append(self.rig.time_ms)

    def _nobody_waits_too_long(self, served: bytes, may: set[bytes]) -> None:
        """See that no group that may hand out a job is passed more often than weights allow."""
        weights = dict(self.rule.weights)
        self.passed = {group: self.passed.get(group, Counter()) for group in may - {served}}
        for group, passed in self.passed.items():
            passed[served] += 1
            bound = -(-weights.get(served, 1) // weights.get(group, 1)) + 1
            assert not self.rule.fair or passed[served] <= bound, f"{served!r} before {group!r}"
