"""Failed attempts, and what holds for the topics in which they fail.

    release(session, job_id, priority, delay_ms, now_ms)    given back, as beanstalkd knows it
    nack(session, job_id, now_ms, delay_ms=0, priority=None, error="")
                                                            given back as failed, and why
    bury(session, job_id, priority, now_ms, error="")       parked until somebody kicks it
    set_policy(name, policy, now_ms)                        from now on; None: what is configured
    policy_of(name)                                         what holds, and who said so
    configure(patterns, jobs_max, bytes_max)                at the start, behind the replay

Under a *retry rule*, the topic's or the job's own, each of these is a failed attempt: a nack, a
plain release, a bury, a connection that closes (`_give_back`), a ttr that runs out
(`Timekeeper._expire`). `core.policy` decides what becomes of the job. Without a rule everything is
as beanstalkd has it.

What somebody did is recorded with its outcome, as one FAIL record: a restart needs no policy to
play it. What the clock did is not recorded, so a restart judges it again; therefore POLICY records
stand in the log wherever another policy begins to hold, and every reservation that was over by then
has been ended before (`settle_leases`).

The layer between the wall clock's (`core.moments`) and the operations of clients (`core.engine`).
"""

from typing import TYPE_CHECKING, Final

from delayd.core.errors import JobNotFound
from delayd.core.internal_topic import lawful_policy
from delayd.core.job import FLAGS_AT, PRIORITY_AND_TOPIC, PRIORITY_AT, Reason, Retry, State
from delayd.core.log_space import TOPIC_COST_BYTES
from delayd.core.moments import WallClockTimes, check_range
from delayd.core.policy import Policy, Verdict, decide
from delayd.core.records import (
    Kind,
    pack_bury,
    pack_fail,
    pack_release,
    pack_return,
    policy_record,
)
from delayd.core.retry_decision import BRINGS_RULE, attempt_of, cut_error, failed, place_of, rule_of
from delayd.core.stats.operations import Operation
from delayd.core.topic import Source, Topic, checked_name
from delayd.core.transitions import released, returned
from delayd.core.wheel.wheel import ceil_to_tick
from delayd.limits import (
    ADVANCE_SLICE_JOBS,
    DURATION_MS_MAX,
    POLICY_JSON_BYTES_MAX,
    PRIORITY_MAX,
)

if TYPE_CHECKING:
    from delayd.core.policy import Patterns
    from delayd.core.session import Session

_NO_RULE: Final = Retry()
"""Exhausts nothing and delays nothing."""

_COUNTED_AS: Final = {
    Reason.NACKED: Operation.NACK,
    Reason.RELEASED: Operation.RELEASE,
    Reason.BURIED: Operation.BURY,
    Reason.TTR_RAN_OUT: Operation.TIMEOUT,
    Reason.HOLDER_LEFT: Operation.RETURN,
    Reason.EXCUSED: Operation.RETURN,
    Reason.UNDELIVERED: Operation.RETURN,
}

_UNASKED: Final = frozenset({Reason.HOLDER_LEFT, Reason.EXCUSED, Reason.UNDELIVERED})
"""Ends of a reservation that nobody asked for: room is set aside for them."""

_POLICY_COST_BYTES: Final = 2 * TOPIC_COST_BYTES + 2 * (10 + POLICY_JSON_BYTES_MAX)
"""What setting a policy takes at most: two topics' names and the policy."""


class Failing(WallClockTimes):
    """An engine in which attempts fail by rules, and topics have policies."""

    def __init__(self, start_ms: int, tick_ms: int, wheel_size: int, body_bytes_max: int) -> None:
        """Start without jobs and policies at `start_ms` of delayd time."""
        super().__init__(start_ms, tick_ms, wheel_size, body_bytes_max)
        self.is_stopping = False
        """The daemon closes the connections itself: no attempt has failed."""

    # --- What holders say ------------------------------------------------------------------------

    def _held(self, session: "Session", job_id: int) -> bytes:
        """Return the record of a job that the session holds and whose time has not run out."""
        deadline_ms = session.deadlines.get(job_id)
        if deadline_ms is None or deadline_ms <= self.store.time_ms:
            raise JobNotFound(job_id)
        record = self.store.jobs.get(job_id)
        assert record is not None
        return record

    def release(
        self, session: "Session", job_id: int, priority: int, delay_ms: int, now_ms: int
    ) -> None:
        """Give a job back, ready at once or after a delay; `JobNotFound`, `ValueOutOfRange`.

        Under a retry rule an attempt has failed: the ladder takes the place of a delay of 0.
        """
        record = self._held(session, job_id)
        check_range("priority", priority, PRIORITY_MAX)
        check_range("delay in ms", delay_ms, DURATION_MS_MAX)
        topic = self.store.topic_of(record)
        rule = self._rule(topic, record)
        if rule is None:
            due_ms = ceil_to_tick(now_ms + delay_ms, self.tick_ms) if delay_ms else now_ms
            self._write(pack_release(Kind.RELEASE, job_id, due_ms, delay_ms, priority))
            changed = released(record, due_ms, delay_ms, priority)
            self.store.count(topic, Operation.RELEASE)
            self._serve(self.store.put_back(job_id, changed), now_ms)
        else:
            verdict = self._judge(topic, record, rule, now_ms, delay_ms)
            self._fail(topic, job_id, record, verdict, Reason.RELEASED, now_ms, priority)

    def nack(
        self,
        session: "Session",
        job_id: int,
        now_ms: int,
        *,
        delay_ms: int = 0,
        priority: int | None = None,
        error: str = "",
    ) -> None:
        """Give a job back as failed, and say why; `JobNotFound`, `ValueOutOfRange`, `OutOfSpace`.

        Without a retry rule it is ready again after the delay, and the error is kept all the same:
        at most `ERROR_BYTES_MAX` of it.
        """
        record = self._held(session, job_id)
        check_range("delay in ms", delay_ms, DURATION_MS_MAX)
        if priority is not None:
            check_range("priority", priority, PRIORITY_MAX)
        topic = self.store.topic_of(record)
        rule = self._rule(topic, record) or _NO_RULE
        verdict = self._judge(topic, record, rule, now_ms, delay_ms)
        self._fail(topic, job_id, record, verdict, Reason.NACKED, now_ms, priority, error)

    def bury(
        self,
        session: "Session",
        job_id: int,
        priority: int,
        now_ms: int,
        error: str = "",
    ) -> None:
        """Park a job until it is kicked; `JobNotFound`, `ValueOutOfRange`, `OutOfSpace`.

        Under a retry rule, or with an error, it is a dead letter like those that are exhausted.
        """
        record = self._held(session, job_id)
        check_range("priority", priority, PRIORITY_MAX)
        store = self.store
        topic = store.topic_of(record)
        if self._rule(topic, record) is None and not error:
            self._write(pack_bury(Kind.BURY, job_id, priority))
            store.bury(job_id, priority)
            store.count(topic, Operation.BURY)
            if topic.throttle is not None:
                self._serve(topic, now_ms)
        else:
            verdict = Verdict(State.BURIED, now_ms)
            self._fail(topic, job_id, record, verdict, Reason.BURIED, now_ms, priority, error)

    def _give_back(self, job_id: int, now_ms: int) -> None:
        """Take back a job whose holder's connection has closed. Never refused."""
        record = self.store.jobs.get(job_id)
        assert record is not None
        topic = self.store.topic_of(record)
        rule = self._rule(topic, record)
        if rule is None:
            self._write_promised(pack_return(Kind.RETURN, job_id))
            self.store.count(topic, Operation.RETURN)
            self._serve(self.store.put_back(job_id, returned(record)), now_ms)
            return
        reason = Reason.HOLDER_LEFT
        if self.is_stopping or (topic.policy is not None and topic.policy.returns_on_close):
            reason = Reason.EXCUSED
            verdict = Verdict(State.READY, now_ms)
        else:
            verdict = self._judge(topic, record, rule, now_ms)
        self._fail(topic, job_id, record, verdict, reason, now_ms)

    def take_undelivered(self, session: "Session", now_ms: int) -> None:
        """Take back what the session holds and nobody has heard of. Never refused.

        Ready again at once, whatever the rule says, and the attempt does not count: whoever asked
        was gone before the answer left. O(jobs held).
        """
        for job_id, deadline_ms in list(session.deadlines.items()):
            if deadline_ms <= self.store.time_ms:
                self._expire(job_id, now_ms, lease_fired=False)
                continue
            record = self.store.jobs.get(job_id)
            assert record is not None
            topic = self.store.topic_of(record)
            verdict = Verdict(State.READY, now_ms)
            self._fail(topic, job_id, record, verdict, Reason.UNDELIVERED, now_ms)

    # --- Judging ---------------------------------------------------------------------------------

    def _rule(self, topic: Topic, record: bytes) -> Retry | None:
        if topic.policy is None and record[FLAGS_AT] < BRINGS_RULE:
            return None
        return rule_of(record, topic.policy)

    def _judge(
        self, topic: Topic, record: bytes, rule: Retry, now_ms: int, delay_ms: int = 0
    ) -> Verdict:
        target = place_of(topic).target
        attempt = attempt_of(record)
        return decide(attempt, rule, now_ms, tick_ms=self.tick_ms, delay_ms=delay_ms, target=target)

    def _fail(
        self,
        topic: Topic,
        job_id: int,
        record: bytes,
        verdict: Verdict,
        reason: Reason,
        now_ms: int,
        priority: int | None = None,
        error: str = "",
    ) -> None:
        """Record the failed attempt with its outcome, and let it be so.

        There is room set aside for one that nobody asked for.
        """
        if priority is None:
            priority = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
        text = cut_error(error)
        item = pack_fail(
            Kind.FAIL,
            job_id,
            now_ms,
            verdict.due_ms,
            verdict.delay_ms,
            priority,
            reason,
            verdict.state,
            verdict.target,
            len(text),
        )
        if reason in _UNASKED:
            self._write_promised(item + text)
        else:
            self._write(item + text)
        self.store.count(topic, _COUNTED_AS[reason])
        changed = failed(
            record,
            verdict,
            reason,
            now_ms,
            origin=topic.name,
            rank=self.store.next_rank(),
            priority=priority,
            error=text.decode(),
        )
        self._take_back(topic, job_id, changed, now_ms)

    # --- Policies --------------------------------------------------------------------------------

    def set_policy(self, name: str, policy: Policy | None, now_ms: int) -> Policy:
        """Let this policy hold for the topic from now on, and return what holds.

        It takes the place of what the configuration says, as a whole; None, or one that says
        nothing, gives way to that again. Makes the topic, and the one that its exhausted jobs are
        moved to. Raises `TopicNameInvalid`, `TopicIsInternal`, `OutOfSpace`. O(reservations that
        are over).
        """
        store = self.store
        self.vet_policy(name, policy)
        self.room.require(_POLICY_COST_BYTES)
        while not self.settle_leases(ADVANCE_SLICE_JOBS, now_ms):
            pass
        topic = store.topic(name)
        source = Source.RUN_TIME
        if not policy:
            policy = None if store.topics.policy_for is None else store.topics.policy_for(name)
            source = Source.CONFIGURATION
        if (policy, source) != (topic.policy, topic.policy_source):
            self._change_policy(topic, policy, source)
            self._serve(topic, now_ms)
        store.drop_if_unwanted(topic)
        return policy or Policy()

    def vet_policy(self, name: str, policy: Policy | None) -> None:
        """Raise `TopicNameInvalid` or `TopicIsInternal` if the policy may not be set."""
        self.require_writable(checked_name(name))
        if policy is not None and policy.exhausted is not None:
            self.require_writable(policy.exhausted)  # its jobs would be put there

    def _change_policy(self, topic: Topic, policy: Policy | None, source: Source) -> None:
        """Record that this holds for the topic from now on, and let it be so."""
        if not topic.recorded:
            self._record_topic(topic)
        self.store.set_policy(topic, policy, source)
        if topic.target is not None and not topic.target.recorded:
            self._record_topic(topic.target)
        text = "" if policy is None else policy.to_json()
        self._write(policy_record(topic.number, source, text))

    def policy_of(self, name: str) -> tuple[Policy, Source]:
        """Return what holds for the topic, and who said so; `TopicNameInvalid`.

        Of a topic that is not there: what would hold if somebody used it.
        """
        topic = self.store.topics.by_name.get(checked_name(name))
        if topic is not None:
            return topic.policy or Policy(), topic.policy_source
        policy = (
            None if self.store.topics.policy_for is None else self.store.topics.policy_for(name)
        )
        return policy or Policy(), Source.CONFIGURATION

    def configure(
        self,
        patterns: "Patterns | None" = None,
        jobs_max: int | None = None,
        bytes_max: int | None = None,
    ) -> None:
        """Let the configuration hold from now on: policies by patterns, caps on all jobs.

        To be called once, behind the replay and before time goes on, so that what runs out later is
        judged by this. What is new of it is recorded. O(topics).
        """
        store = self.store
        assert self.leases_are_settled, "something would be judged by another policy in a replay"
        self.jobs_max, self.bytes_max = jobs_max, bytes_max
        store.topics.is_capped = jobs_max is not None or bytes_max is not None
        store.topics.policy_for = None if patterns is None else patterns.of
        for topic in list(store.topics.listing):
            if store.topics.by_name.get(topic.name) is not topic:
                continue  # it was there for the sake of a policy that is no more
            store.topics.mark_rules(topic)
            source = topic.policy_source
            policy = lawful_policy(topic) if source is Source.RUN_TIME else None
            if not policy:
                source = Source.CONFIGURATION
                policy = None if patterns is None else patterns.of(topic.name)
            if policy == topic.policy:
                continue
            if topic.recorded:
                self._change_policy(topic, policy, source)
            else:
                store.set_policy(topic, policy, source)
            store.drop_if_unwanted(topic)


class SetPolicy:
    """Sets the policy of a topic, a slice at a time (a pass: `core.background`).

    Where a million reservations have just run out, ending them first takes seconds.
    """

    __slots__ = ("_engine", "_name", "_policy")

    def __init__(self, engine: Failing, name: str, policy: Policy | None) -> None:
        """Begin; `TopicNameInvalid`, `TopicIsInternal`."""
        engine.vet_policy(name, policy)
        self._engine = engine
        self._name = name
        self._policy = policy

    def step(self, budget: int, now_ms: int) -> bool:
        """Set the policy, unless there is more to be settled before; `OutOfSpace`."""
        if not self._engine.settle_leases(budget, now_ms):
            return False
        self._engine.set_policy(self._name, self._policy, now_ms)
        return True
