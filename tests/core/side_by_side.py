"""The engine and the model next to each other: both do the same, and are compared in all they show.

`SideBySide` is what machines and walks share: rig, model, and which session is which client.
"""

from collections.abc import Callable

from delayd.core.errors import Refusal
from delayd.core.job_parts import key_of, tally_of
from delayd.core.job_record import State
from delayd.core.log_records import Kind
from delayd.core.operations.tick import next_deadline
from delayd.core.session import NEVER_MS, Session
from delayd.core.times import RequestMs
from delayd.core.views import peek, peek_buried, peek_delayed, peek_ready
from tests.core import views
from tests.core.model import Client, Job, Model
from tests.rigs.engine import EngineRig, kinds_of


class SideBySide:
    rig: EngineRig
    model: Model
    sessions: dict[Client, Session]
    was_refused: bool

    def agree(self, by_model: Callable[[], object], by_engine: Callable[[], object]) -> object:
        """Carry out an operation twice; both answer the same, or refuse for the same reason."""
        answers: list[object] = []
        for operation in (by_model, by_engine):
            try:
                answers.append(operation())
            except Refusal as refusal:
                answers.append(type(refusal))
        assert answers[0] == answers[1]
        self.was_refused = isinstance(answers[0], type) or answers[0] in (False, [False])
        return answers[0]

    def client_of(self, session: Session) -> Client:
        orphans = self.rig.engine.store.orphans
        everybody = {**self.sessions, self.model.orphans: orphans}
        return next(client for client, other in everybody.items() if other is session)

    def take_what_came(self) -> None:
        deliveries = [
            (self.client_of(session), outcome)
            for session, outcome in self.rig.engine.take_deliveries()
        ]
        assert deliveries == self.model.deliveries
        payload, must_sync = self.rig.take_log()
        kinds = kinds_of(payload)
        assert must_sync or {*kinds} <= {Kind.TURN, Kind.RESERVE}
        if self.was_refused and not deliveries:
            assert not kinds, "a refused operation has left something in the log"
        self.was_refused = False
        self.model.deliveries = []

    def compare_jobs(self) -> None:
        store = self.rig.engine.store
        live = dict(views.live_jobs(store))
        assert live.keys() == self.model.jobs.keys()
        for job_id, record in live.items():
            job = self.model.jobs[job_id]
            assert peek(self.rig.engine, job_id) == (job_id, job.body)
            assert tally_of(record) == (
                job.delay_ms,
                job.reserves,
                job.timeouts,
                job.releases,
                job.buries,
                job.kicks,
            )
            assert key_of(record) == job.key
            holder = store.leases.sessions.get(job_id)
            assert (None if holder is None else self.client_of(holder)) is job.holder
            assert job.holder is None or job.state is State.RESERVED
            if not self.model.due():  # otherwise looking would make it happen
                self.compare_view(job)

    def compare_view(self, job: Job) -> None:
        now_ms = self.rig.now_ms
        seen = views.view_job(self.rig.engine, job.job_id, now_ms)
        assert seen[:7] == (
            job.job_id,
            job.topic,
            job.state,
            job.priority,
            now_ms - job.created_ms,
            job.delay_ms,
            job.ttr_ms,
        )
        assert seen.reserves == job.reserves + (job.state is State.RESERVED)

    def compare_topics(self) -> None:
        engine, model = self.rig.engine, self.model
        assert [topic.name for topic in engine.store.topics.listing] == model.listing
        for name, counts in model.topics.items():
            topic = engine.store.topics.by_name[name]
            jobs = {state: model.in_state(state, name) for state in State}
            until_ms = counts.paused_until_ms
            assert self.rig.view_topic(name) == (
                name,
                sum(job.priority < 1024 for job in jobs[State.READY]),
                len(jobs[State.READY]),
                len(jobs[State.RESERVED]),
                len(jobs[State.DELAYED]),
                len(jobs[State.BURIED]),
                counts.jobs_put,
                sum(client.used == name for client in model.clients),
                sum(name in client.watched for client in model.clients),
                len(model.waiters(name)),
                counts.deletes,
                counts.pauses,
                counts.pause_ms,
                0 if until_ms is None else max(0, until_ms - self.rig.now_ms),
            )
            ready = [job.job_id for job in jobs[State.READY]]
            assert [key & (2**64 - 1) for key in topic.queues.ready] == ready
            soonest = [job.job_id for job in model.soonest(name)]
            buried = [job_id for job_id in model.buried if model.jobs[job_id].topic == name]
            assert [key & (2**64 - 1) for key in topic.queues.buried] == buried
            peeks = (peek_ready, peek_delayed, peek_buried)
            for look, order in zip(peeks, (ready, soonest, buried), strict=True):
                job = look(engine, topic)
                assert (None if job is None else job[0]) == (order[0] if order else None)
        rows = [views.view_topic(engine, name, RequestMs(0))[1:6] for name in model.topics]
        sums = [sum(column) for column in zip(*rows, strict=True)]
        assert views.totals(engine) == (*sums, model.jobs_put)

    def compare_clients(self) -> None:
        for client, session in self.sessions.items():
            assert session.used is not None
            assert session.used.name == client.used
            assert [topic.name for topic in session.watched] == client.watched
            assert session.waiting == (client in self.model.waiting)
            held = {job.job_id: job.deadline_ms for job in self.model.held_by(client)}
            assert session.deadlines == held
            assert session.soonest_ms <= min(held.values(), default=NEVER_MS)
        for topic in self.rig.engine.store.topics.listing:
            waits = self.rig.engine.waits
            waiters = [self.client_of(waits[number]) for number in topic.waiters]
            assert waiters == self.model.waiters(topic.name)

    def compare_deadlines(self) -> None:
        next_ms = self.model.next_time()
        deadline_ms = next_deadline(self.rig.engine)
        if next_ms is not None:
            assert deadline_ms is not None
            assert deadline_ms <= max(next_ms, self.model.time_ms)
