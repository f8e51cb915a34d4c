"""The engine against the model: everything that clients and the clock can do, in any order.

After each step the two are compared in all that can be seen, `check()` recomputes the engine's
invariants, and an engine that knows nothing but the log is compared with the one that wrote it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from delayd.core.errors import Refusal
from delayd.core.group_turns import Groups
from delayd.core.job_parts import key_of, tally_of
from delayd.core.job_record import State
from delayd.core.log_records import Kind
from delayd.core.operations import sessions, tick
from delayd.core.operations.ack import delete_batch
from delayd.core.operations.attempts import bury, release
from delayd.core.operations.change import bury_waiting, change, kick_job, reschedule
from delayd.core.operations.put import Conflict, put_alike, put_keyed, put_keyed_run
from delayd.core.operations.reserve import reserve, reserve_batch, reserve_job, touch
from delayd.core.operations.sessions import close_session, open_session
from delayd.core.operations.tick import leases_are_caught_up, next_deadline
from delayd.core.operations.topics import clear, pause
from delayd.core.operations.waiting import cancel_wait, wait
from delayd.core.reminder import Reminder
from delayd.core.session import NEVER_MS, Session
from delayd.core.stats.counters import Operation
from delayd.core.throttle import Throttle
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.core.topic_blocks import AlarmOwner
from delayd.core.views import peek, peek_buried, peek_delayed, peek_ready
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.core.model import LONGEST_MS, Client, Job, Model
from tests.rigs.engine import EngineRig, kick, kinds_of, put

TOPICS = ("default", "a", "b", "c")
PRIORITIES = (0, 1, 1023, 1024, 2**32 - 1)
YEAR_MS = 365 * 86_400_000
DELAYS_MS = (0, 1, 7, 999, 1000, 5000, 65_536, 3_600_000, 10 * YEAR_MS, LONGEST_MS)
TTRS_MS = (0, 1, 500, 1001, 1500, 5000, 60_000)
WAITS_MS = (None, 0, 1, 999, 3000, 100_000)
STEPS_MS = (0, 1, 2, 7, 400, 1000, 1500, 5000, 70_000, 4_000_000, YEAR_MS)
MOMENTS_MS = (None, None, None, 0, 7, 5000, 70_000)
"""Of the wall clock, from now."""
BODY_BYTES_MAX = 12
KEYS = (b"a", b"b", b"c", b"order-17", "größe".encode(), b"k" * 200)

names = st.sampled_from(TOPICS)
priorities = st.sampled_from((*PRIORITIES * 4, -1, 2**32))
delays = st.sampled_from((*DELAYS_MS * 2, *DELAYS_MS[:6], -1, LONGEST_MS + 1))
ttrs = st.sampled_from((*TTRS_MS * 3, -1, LONGEST_MS + 1))
bodies = st.sampled_from((*(b"", b"x", b"hello", b"y" * BODY_BYTES_MAX) * 3, b"z" * 13))
keys = st.sampled_from(KEYS)
moments = st.sampled_from(MOMENTS_MS)
some = st.integers(0, 2**16)
"""Picks one of what there is, wrapped around."""


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        tick_ms=st.sampled_from((1, 1, 10, 1000)),
        wheel_size=st.sampled_from((2, 20, 256)),
        time_ms=st.sampled_from((0, 12_345, 1_800_000_000_000)),
        skew_ms=st.sampled_from((0, 1)),
    )
    def start(self, tick_ms: int, wheel_size: int, time_ms: int, skew_ms: int) -> None:
        self.rig = EngineRig(
            time_ms=time_ms,
            tick_ms=tick_ms,
            wheel_size=wheel_size,
            body_bytes_max=BODY_BYTES_MAX,
            skew_ms=skew_ms,
        )
        self.model = Model(time_ms, tick_ms, BODY_BYTES_MAX)
        self.sessions: dict[Client, Session] = {}
        self.clients_opened = 0
        self.was_refused = False
        self.open_session()
        self.open_session()

    # --- Picking ---------------------------------------------------------------------------------

    def idle(self) -> list[Client]:
        return [client for client in self.sessions if client not in self.model.waiting]

    def pick(self, number: int) -> Client:
        return self.idle()[number % len(self.idle())]

    def pick_job(self, number: int, held_by: Client | None = None) -> int:
        """Pick a job, of those held if there are any; now and then one that there is not."""
        model = self.model
        if number % 9 == 0:
            return number // 9 % (model.last_id + 2)
        job_ids = list(model.jobs)
        if held_by is not None and number % 9 < 7:
            job_ids = [job.job_id for job in model.held_by(held_by)] or job_ids
        return job_ids[number % len(job_ids)] if job_ids else 1

    def both(self, operation: Callable[..., object], *args: object, **what: object) -> object:
        """Have the engine do it, and the model under the same name; see that they agree.

        The model has its clients in place of sessions, and names of topics.
        """
        by_model = getattr(self.model, operation.__name__)
        names = [each.name if isinstance(each, Topic) else each for each in args]
        theirs = [self.sessions[each] if isinstance(each, Client) else each for each in args]
        return self.agree(
            lambda: by_model(*names, **what),
            lambda: operation(self.rig.engine, *theirs, **what),
        )

    # --- Both side by side ------------------------------------------------------------------------

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

    # --- Clients ---------------------------------------------------------------------------------

    @precondition(lambda self: len(self.sessions) < 5)
    @rule()
    def open_session(self) -> None:
        self.clients_opened += 1
        client = self.model.open_session(self.clients_opened)
        self.sessions[client] = open_session(self.rig.engine)

    @precondition(lambda self: self.sessions)
    @rule(who=some)
    def close_session(self, who: int) -> None:
        client = list(self.sessions)[who % len(self.sessions)]
        self.both(close_session, client, self.rig.now_ms)
        assert not self.sessions.pop(client).deadlines

    @precondition(lambda self: self.idle())
    @rule(who=some, name=names, verb=st.sampled_from(("use", "watch", "watch", "ignore")))
    def use_watch_ignore(self, who: int, name: str, verb: str) -> None:
        self.both(getattr(sessions, verb), self.pick(who), name)

    # --- Putting ---------------------------------------------------------------------------------

    @contextmanager
    def topic_of_that_name(self, name: str) -> Iterator[Topic]:
        """Make the topic; without jobs it goes again."""
        self.model.make_topic(name)
        topic = self.rig.engine.store.topic(name)
        yield topic
        self.model.forget_unwanted(name)
        self.rig.engine.store.drop_if_unwanted(topic)

    @rule(name=names, priority=priorities, delay_ms=delays, ttr_ms=ttrs, body=bodies)
    def put(self, name: str, body: bytes, **numbers: int) -> None:
        what: dict[str, Any] = {**numbers, "now_ms": self.rig.now_ms}
        with self.topic_of_that_name(name) as topic:
            self.agree(
                lambda: self.model.put_alike(name, bodies=[body], **what),
                lambda: put(self.rig.engine, topic, body=body, **what),
            )

    @rule(
        name=names, priority=priorities, delay_ms=delays, ttr_ms=ttrs,
        several=st.lists(bodies, min_size=1, max_size=4),
    )  # fmt: skip
    def put_alike(self, name: str, several: list[bytes], **what: int) -> None:
        with self.topic_of_that_name(name) as topic:
            self.both(put_alike, topic, bodies=several, now_ms=self.rig.now_ms, **what)

    def wall_ms(self, at_ms: int | None) -> int | None:
        """A moment of the wall clock, which goes with delayd time here."""
        return None if at_ms is None else self.rig.time_ms + at_ms

    @rule(
        name=names, key=keys, on=st.sampled_from(Conflict), priority=priorities, delay_ms=delays,
        at_ms=moments, ttr_ms=ttrs, body=bodies,
    )  # fmt: skip
    def put_keyed(
        self, name: str, key: bytes, on: Conflict, at_ms: int | None, **what: int | bytes
    ) -> None:
        more = {"due_wall_ms": self.wall_ms(at_ms), "now_ms": self.rig.now_ms}
        with self.topic_of_that_name(name) as topic:
            self.both(put_keyed, topic, key, on, **what, **more)

    # Until keys of cleared jobs are swept, a run finds them taken.
    @precondition(lambda self: not self.rig.engine.store.cleared.left)
    @rule(
        name=names, pairs=st.lists(st.tuples(keys, bodies), min_size=1, max_size=4),
        priority=priorities, delay_ms=delays, ttr_ms=ttrs,
    )  # fmt: skip
    def put_keyed_run(self, name: str, pairs: list[tuple[bytes, bytes]], **what: int) -> None:
        more = {"keys": [key for key, _ in pairs], "bodies": [body for _, body in pairs]}
        with self.topic_of_that_name(name) as topic:
            first_id = self.both(put_keyed_run, topic, now_ms=self.rig.now_ms, **more, **what)
            self.was_refused |= first_id == 0

    @rule(
        which=some, given=st.integers(0, 15), delay_ms=delays, at_ms=moments, priority=priorities,
        ttr_ms=ttrs, body=bodies,
    )  # fmt: skip
    def change(
        self, which: int, given: int, delay_ms: int, at_ms: int | None, **more: int | bytes
    ) -> None:
        """Change what `given` says, bit by bit."""
        wall_ms = self.wall_ms(at_ms) if given & 1 else None
        what: dict[str, object] = {
            "due_wall_ms": wall_ms,
            "delay_ms": delay_ms if given & 1 and wall_ms is None else None,
        }
        for bit, name in ((2, "priority"), (4, "ttr_ms"), (8, "body")):
            what[name] = more[name] if given & bit else None
        self.both(change, self.pick_job(which), self.rig.now_ms, **what)

    @rule(draining=st.sampled_from((False, False, False, True)))
    def drain(self, draining: bool) -> None:
        self.model.draining = self.rig.engine.draining = draining

    # --- Reserving -------------------------------------------------------------------------------

    @precondition(lambda self: self.idle())
    @rule(who=some, wait_ms=st.sampled_from(WAITS_MS))
    def reserve(self, who: int, wait_ms: int | None) -> None:
        client, now_ms = self.pick(who), self.rig.now_ms
        session = self.sessions[client]
        job = self.both(reserve, client, now_ms)
        if job is not None or self.agree(
            lambda: self.model.deadline_soon(client, now_ms), lambda: session.deadline_soon(now_ms)
        ):
            return
        self.model.wait(client, now_ms, wait_ms)
        wait(self.rig.engine, session, now_ms, wait_ms)

    @precondition(lambda self: self.idle())
    @rule(who=some, jobs_max=st.integers(0, 4), bytes_max=st.sampled_from((-1, 0, 5, 1000)))
    def reserve_batch(self, who: int, jobs_max: int, bytes_max: int) -> None:
        self.both(reserve_batch, self.pick(who), jobs_max, bytes_max, self.rig.now_ms)

    @precondition(lambda self: self.idle())
    @rule(who=some, which=some)
    def reserve_job(self, who: int, which: int) -> None:
        self.both(reserve_job, self.pick(who), self.pick_job(which), self.rig.now_ms)

    @precondition(lambda self: self.sessions)
    @rule(who=some)
    def cancel_wait(self, who: int) -> None:
        self.both(cancel_wait, list(self.sessions)[who % len(self.sessions)])

    # --- With jobs -------------------------------------------------------------------------------

    @precondition(lambda self: self.idle())
    @rule(who=some, which=some, priority=priorities, delay_ms=delays)
    def release(self, who: int, which: int, priority: int, delay_ms: int) -> None:
        client = self.pick(who)
        job_id = self.pick_job(which, client)
        self.both(release, client, job_id, priority, delay_ms, self.rig.now_ms)

    @precondition(lambda self: self.idle())
    @rule(who=some, which=some, priority=priorities)
    def bury(self, who: int, which: int, priority: int) -> None:
        client = self.pick(who)
        now_ms = RequestMs(self.rig.engine.store.time_ms)
        self.both(bury, client, self.pick_job(which, client), priority, now_ms)

    @rule(which=some, priority=st.none() | priorities)
    def bury_waiting(self, which: int, priority: int | None) -> None:
        self.both(bury_waiting, self.pick_job(which), self.rig.now_ms, priority=priority)

    @precondition(lambda self: self.idle())
    @rule(who=some, which=some)
    def touch(self, who: int, which: int) -> None:
        client = self.pick(who)
        self.both(touch, client, self.pick_job(which, client), self.rig.now_ms)

    @precondition(lambda self: self.idle())
    @rule(who=some, which=st.lists(some, min_size=1, max_size=4))
    def delete(self, who: int, which: list[int]) -> None:
        client = self.pick(who)
        job_ids = [self.pick_job(number, client) for number in which]
        deleted = self.both(delete_batch, client, job_ids, self.rig.now_ms)
        assert isinstance(deleted, list)
        self.was_refused = not any(deleted)

    @rule(which=some)
    def kick_job(self, which: int) -> None:
        self.both(kick_job, self.pick_job(which), self.rig.now_ms)

    @rule(name=names, bound=st.integers(0, 3))
    def kick(self, name: str, bound: int) -> None:
        with self.topic_of_that_name(name) as topic:
            self.both(kick, topic, bound, self.rig.now_ms)
        self.was_refused = False

    @rule(which=some, delay_ms=delays)
    def reschedule(self, which: int, delay_ms: int) -> None:
        self.both(reschedule, self.pick_job(which), delay_ms, self.rig.now_ms)

    @rule(name=names, pause_ms=delays)
    def pause(self, name: str, pause_ms: int) -> None:
        self.both(pause, name, pause_ms, self.rig.now_ms)

    @rule(name=names)
    def clear(self, name: str) -> None:
        engine = self.rig.engine
        while not leases_are_caught_up(engine):
            self.go_to(self.model.time_ms, in_full=False)
        topic = engine.store.topics.by_name.get(name)
        if topic is not None:
            assert clear(engine, topic) == self.model.clear(name)
            assert not clear(engine, topic), "there is nothing left to clear"

    @rule(budget=st.sampled_from((0, 1, 5)))
    def sweep(self, budget: int) -> None:
        """Sweep away some of what a clear left behind, of which nobody else may see anything."""
        store = self.rig.engine.store
        if store.cleared.left:
            store.cleared.sweep(budget)

    def sweep_all(self) -> None:
        while self.rig.engine.store.cleared.left:
            self.sweep(1)

    @rule(which=some)
    def look_at_a_job(self, which: int) -> None:
        """What is due to a job happens when somebody looks."""
        job_id, now_ms = self.pick_job(which), self.rig.now_ms

        def view() -> tuple[State, int]:
            seen = views.view_job(self.rig.engine, job_id, now_ms)
            return seen.state, seen.left_ms

        def look() -> tuple[State, int]:
            job = self.model.settle(job_id, now_ms)
            ends_ms = {State.DELAYED: job.due_ms, State.RESERVED: job.deadline_ms}
            return job.state, max(0, ends_ms.get(job.state, 0) - now_ms)

        self.agree(look, view)

    # --- Time and the end of it ------------------------------------------------------------------

    @rule(step_ms=st.sampled_from(STEPS_MS))
    def time_passes(self, step_ms: int) -> None:
        self.go_to(self.model.time_ms + step_ms, in_full=True)

    @rule(step_ms=st.sampled_from(STEPS_MS))
    def one_slice_of_time(self, step_ms: int) -> None:
        self.go_to(self.model.time_ms + step_ms, in_full=False)

    @rule(short_by_ms=st.integers(0, 1))
    def sleep_until_the_deadline(self, short_by_ms: int) -> None:
        deadline_ms = next_deadline(self.rig.engine)
        if deadline_ms is not None:
            self.go_to(max(self.model.time_ms, deadline_ms - short_by_ms), in_full=True)

    def go_to(self, time_ms: int, *, in_full: bool) -> None:
        self.model.time_ms = time_ms
        while True:
            alarms = dict(self.rig.engine.store.alarms.rows)
            if not self.rig.advance(time_ms):
                break
            self.tell_the_model(alarms)
            if not in_full:
                return
        assert not self.model.due(), "something due has not happened"

    def tell_the_model(self, alarms: dict[int, tuple[int, AlarmOwner]]) -> None:
        """Do to the model what the last slice did; `alarms` as they were before it."""
        store = self.rig.engine.store
        assert store.timer_queue.last_due is not None
        lane, fired = store.timer_queue.last_due
        now_ms = self.rig.now_ms
        if lane.topic_name:
            self.model.happen_delays(lane.topic_name, fired, now_ms)
        elif lane is store.leases.lane:
            self.model.happen_holds(fired, now_ms)
        else:
            owners = [alarms[alarm][1] for alarm in fired]
            self.model.happen_alarms(
                [
                    one.name if isinstance(one, Topic) else self.client_of(one)
                    for one in owners
                    # No topic has limits or groups here, nor is a reminder set.
                    if not isinstance(one, Throttle | Groups | Reminder)
                ],
                now_ms,
            )

    @rule(chance=st.integers(0, 3))
    def restart(self, chance: int) -> None:
        if chance:
            return
        self.take_what_came()
        self.rig.restart()
        self.rig.run(self.model.time_ms)
        self.model.restart()
        self.sessions.clear()
        # How much of what is due replay has made happen already is its own affair.
        self.model.timeouts = self.rig.engine.store.counters.operations[Operation.TIMEOUT]
        # The order of creation is not kept; nothing but `list-tubes` shows it.
        listing = [topic.name for topic in self.rig.engine.store.topics.listing]
        assert sorted(listing) == sorted(self.model.listing)
        self.model.listing = listing

    # --- What must hold after each step ----------------------------------------------------------

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

    @invariant()
    def agree_in_all_that_can_be_seen(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.take_what_came()
        check(self.rig.engine)
        self.compare_jobs()
        self.compare_topics()
        self.compare_clients()
        self.compare_deadlines()
        assert self.rig.engine.store.counters.operations[Operation.TIMEOUT] == self.model.timeouts
        assert self.rig.engine.store.last_id == self.model.last_id

    @invariant()
    def the_log_alone_leads_to_the_same_state(self) -> None:
        if not hasattr(self, "rig"):
            return
        replayed = self.rig.replayed()
        check(replayed)
        live = list(canonical(self.rig.engine))
        live[0] = ("last id", self.model.last_id_put)
        assert list(canonical(replayed)) == live
        assert replayed.take_log() == ([], False)
        assert not replayed.take_deliveries()

    def teardown(self) -> None:
        """Everything comes to its end: no job is stuck, nothing is left over."""
        if not hasattr(self, "rig"):
            return
        self.sweep_all()
        for client in list(self.sessions):
            now_ms = self.rig.now_ms
            self.model.close_session(client, now_ms)
            close_session(self.rig.engine, self.sessions[client], now_ms)
            self.take_what_came()
            del self.sessions[client]
        self.go_to(self.model.time_ms + 3 * LONGEST_MS, in_full=True)
        self.agree_in_all_that_can_be_seen()
        assert not self.model.in_state(State.DELAYED)
        assert not self.model.in_state(State.RESERVED)
        assert next_deadline(self.rig.engine) is None
        janitor = open_session(self.rig.engine)
        ids = sorted(self.model.jobs)
        assert self.rig.delete_batch(janitor, ids) == [True] * len(ids)
        self.rig.close(janitor)
        assert [topic.name for topic in self.rig.engine.store.topics.listing] == ["default"]
        assert len(self.rig.engine.store.jobs) == 0
        assert len(self.rig.engine.store.topics.by_number) == 1


@pytest.mark.timeout(600)  # when it fails, hypothesis wants time to find a short example
@pytest.mark.parametrize("slice_jobs", [512, 1, 3])
def test_the_engine_does_what_the_model_says(
    slice_jobs: int, monkeypatch: pytest.MonkeyPatch, examples: Callable[[int], settings]
) -> None:
    monkeypatch.setattr(tick, "ADVANCE_SLICE_JOBS", slice_jobs)
    run_state_machine_as_test(EngineMachine, settings=examples(10))
