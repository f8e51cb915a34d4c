"""Each pair of state and event: either the table has it and it happens, or nothing does."""

from collections.abc import Callable
from itertools import product
from types import MappingProxyType
from typing import Final

import pytest

from delayd.core import errors
from delayd.core.errors import (
    BodyTooBig,
    CapReached,
    DelayTooLong,
    Draining,
    JobAlreadyExists,
    JobNotFound,
    KeyInvalid,
    KeyNotFound,
    LastWatched,
    OutOfSpace,
    PoliciesFull,
    PolicyInvalid,
    PushIsOff,
    Refusal,
    TargetRefused,
    TooManyWatched,
    TopicIsInternal,
    TopicNameInvalid,
    TopicNotFound,
    ValueOutOfRange,
)
from delayd.core.job_record import TRANSITIONS, Event, State
from delayd.core.names import INTERNAL_TOPIC
from delayd.core.operations.ack import delete as delete_job
from delayd.core.operations.attempts import bury as bury_job
from delayd.core.operations.attempts import nack
from delayd.core.operations.attempts import release as release_job
from delayd.core.operations.change import bury_waiting as bury_waiting_job
from delayd.core.operations.change import change as change_job
from delayd.core.operations.change import kick_job
from delayd.core.operations.change import reschedule as reschedule_job
from delayd.core.operations.put import find_key as find_job
from delayd.core.operations.reserve import reserve_job
from delayd.core.operations.reserve import touch as touch_job
from delayd.core.operations.sessions import close_session, ignore, use, watch
from delayd.core.operations.topics import pause, policy_of, set_policy
from delayd.core.policy import Policy
from delayd.core.session import Session
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.topic import (
    Source,
)
from delayd.core.views import peek as peek_job
from tests.core import views
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import TTR_MS, EngineRig
from tests.rigs.engine import put as put_job

JOB = 1
HOUR_MS = 3_600_000


class Case:
    """A daemon with one job in some state, its worker, and somebody else."""

    def __init__(self, state: State) -> None:
        self.rig = EngineRig()
        self.worker = self.rig.client()
        self.stranger = self.rig.client()
        delay_ms = HOUR_MS if state is State.DELAYED else 0
        # A job that is held stays so for longer than its delay was, where that matters.
        self.rig.put(delay_ms=delay_ms, ttr_ms=2 * HOUR_MS)
        if state in {State.RESERVED, State.BURIED}:
            self.rig.reserve(self.worker)
        if state is State.BURIED:
            bury_job(self.rig.engine, self.worker, JOB, 5, RequestMs(self.rig.engine.store.time_ms))
        assert self.state is state
        self.rig.take_log()

    @property
    def state(self) -> State | None:
        try:
            return views.view_job(self.rig.engine, JOB, self.rig.now_ms).state
        except JobNotFound:
            return None

    def canonical(self) -> list[object]:
        return list(canonical(self.rig.engine))


def come_due(case: Case) -> None:
    case.rig.run(HOUR_MS)


def end_hold_by_time(case: Case) -> None:
    case.rig.run(2 * HOUR_MS)


def close(case: Case) -> None:
    close_session(case.rig.engine, case.worker, case.rig.now_ms)


def reserve(case: Case) -> None:
    reserve_job(case.rig.engine, case.stranger, JOB, case.rig.now_ms)


def release(case: Case) -> None:
    release_job(case.rig.engine, case.worker, JOB, 0, 0, case.rig.now_ms)


def release_later(case: Case) -> None:
    release_job(case.rig.engine, case.worker, JOB, 0, 1, case.rig.now_ms)


def bury(case: Case) -> None:
    bury_job(case.rig.engine, case.worker, JOB, 0, RequestMs(case.rig.engine.store.time_ms))


def bury_waiting(case: Case) -> None:
    bury_waiting_job(case.rig.engine, JOB, case.rig.now_ms)


def kick(case: Case) -> None:
    kick_job(case.rig.engine, JOB, case.rig.now_ms)


def touch(case: Case) -> None:
    touch_job(case.rig.engine, case.worker, JOB, case.rig.now_ms)


def reschedule(case: Case) -> None:
    reschedule_job(case.rig.engine, JOB, 0, case.rig.now_ms)


def reschedule_later(case: Case) -> None:
    reschedule_job(case.rig.engine, JOB, 1, case.rig.now_ms)


def change(case: Case) -> None:
    change_job(case.rig.engine, JOB, case.rig.now_ms, priority=7)


def change_time(case: Case) -> None:
    change_job(case.rig.engine, JOB, case.rig.now_ms, delay_ms=0, body=b"new")


def change_time_later(case: Case) -> None:
    change_job(case.rig.engine, JOB, case.rig.now_ms, delay_ms=1)


def delete(case: Case) -> None:
    delete_job(case.rig.engine, case.worker, JOB, case.rig.now_ms)


ASKED: Final = MappingProxyType(
    {
        Event.RESERVE: (reserve,),
        Event.RELEASE: (release, release_later),
        Event.BURY: (bury,),
        Event.BURY_WAITING: (bury_waiting,),
        Event.KICK: (kick,),
        Event.TOUCH: (touch,),
        Event.RESCHEDULE: (reschedule, reschedule_later),
        Event.CHANGE: (change, change_time, change_time_later),
        Event.DELETE: (delete,),
    }
)
UNASKED: Final = MappingProxyType(
    {Event.CAME_DUE: (come_due,), Event.HOLD_ENDED: (end_hold_by_time, close)}
)
"""What nobody asks for cannot be refused; to a job it does not concern it does nothing."""


LADDER: Final = Policy(retry_ms=(10 * HOUR_MS,))
LAST_ATTEMPT: Final = Policy(attempts_max=1)
UNDER_A_RULE: Final = MappingProxyType(
    {
        Event.RELEASE: ((LADDER, release), (LAST_ATTEMPT, release)),
        Event.HOLD_ENDED: (
            *((LADDER, end_hold_by_time), (LAST_ATTEMPT, end_hold_by_time)),
            *((LADDER, close), (LAST_ATTEMPT, close)),
        ),
    }
)


def pairs(*, in_table: bool) -> list[tuple[State, Event]]:
    every = product(State, Event)
    return [pair for pair in every if (pair in TRANSITIONS) == in_table]


@pytest.mark.parametrize(("state", "event"), pairs(in_table=True))
def test_each_pair_of_the_table_leads_to_exactly_the_states_it_names(
    state: State, event: Event
) -> None:
    reached = set()
    for operation in (*ASKED.get(event, ()), *UNASKED.get(event, ())):
        case = Case(state)
        operation(case)
        check(case.rig.engine)
        reached.add(case.state)
    for policy, operation in UNDER_A_RULE.get(event, ()):
        case = Case(state)
        set_policy(case.rig.engine, "default", policy, case.rig.now_ms)
        operation(case)
        check(case.rig.engine)
        reached.add(case.state)
    assert reached == TRANSITIONS[state, event]


@pytest.mark.parametrize(("state", "event"), pairs(in_table=False))
def test_a_pair_that_is_not_in_the_table_is_refused_and_changes_nothing(
    state: State, event: Event
) -> None:
    for operation in ASKED.get(event, ()):
        case = Case(state)
        before = case.canonical()
        with pytest.raises(JobNotFound, match="no job 1, "):
            operation(case)
        assert case.canonical() == before
        assert case.rig.take_log() == (b"", False)
    for operation in UNASKED.get(event, ()):
        case = Case(state)
        operation(case)
        assert case.state in {state, *TRANSITIONS.get((state, Event.CAME_DUE), ())}
        assert case.rig.take_log() == (b"", False)


def test_every_event_is_tried_in_every_state() -> None:
    assert {*ASKED, *UNASKED} == set(Event)
    assert len([*pairs(in_table=True), *pairs(in_table=False)]) == len(State) * len(Event)


@pytest.mark.parametrize("operation", [release, bury, touch, delete])
def test_only_the_holder_may(operation: Callable[[Case], None]) -> None:
    case = Case(State.RESERVED)
    case.worker, case.stranger = case.stranger, case.worker
    before = case.canonical()
    with pytest.raises(JobNotFound):
        operation(case)
    assert case.canonical() == before
    assert case.rig.take_log() == (b"", False)


@pytest.mark.parametrize("operation", [release, bury, touch])
def test_a_holder_whose_time_has_run_out_may_not_even_before_its_slice_has_come(
    operation: Callable[[Case], None],
) -> None:
    case = Case(State.RESERVED)
    case.rig.engine.store.time_ms = PlayedMs(2 * HOUR_MS)
    with pytest.raises(JobNotFound):
        operation(case)
    assert case.rig.take_log() == (b"", False)


# --- Refusals ------------------------------------------------------------------------------------


def put(rig: EngineRig, **what: int | bytes) -> None:
    values = {"priority": 0, "delay_ms": 0, "ttr_ms": TTR_MS, "body": b"", **what}
    topic = rig.engine.store.topics.by_name["default"]
    put_job(rig.engine, topic, now_ms=rig.now_ms, job_id=99, **values)  # type: ignore[arg-type]


def drained_put(rig: EngineRig) -> None:
    rig.engine.draining = True
    try:
        put(rig)
    finally:
        rig.engine.draining = False


def put_under(rig: EngineRig, policy: Policy, **what: int | bytes) -> None:
    store = rig.engine.store
    topic = store.topics.by_name["default"]
    store.set_policy(topic, policy, Source.RUN_TIME)
    try:
        put(rig, **what)
    finally:
        store.set_policy(topic, None, Source.CONFIGURATION)


def view_topic(rig: EngineRig, name: str) -> None:
    views.view_topic(rig.engine, name, rig.now_ms)


def find_key(rig: EngineRig, key: bytes) -> None:
    find_job(rig.engine, "default", key)


def peek(rig: EngineRig, job_id: int) -> None:
    peek_job(rig.engine, job_id)


LONGEST_MS: Final = (2**32 - 1) * 1000
Operation = Callable[[EngineRig, Session], object]
REFUSALS: Final[tuple[tuple[type[Refusal], Operation], ...]] = (
    (BodyTooBig, lambda rig, _: put(rig, body=b"x" * 65_536)),
    (Draining, lambda rig, _: drained_put(rig)),
    (CapReached, lambda rig, _: put_under(rig, Policy(jobs_max=2))),
    (DelayTooLong, lambda rig, _: put_under(rig, Policy(delay_ms_max=1), delay_ms=2)),
    (BodyTooBig, lambda rig, _: put_under(rig, Policy(body_bytes_max=1), body=b"ab")),
    (PolicyInvalid, lambda _rig, _: Policy.from_json("{]")),
    (TopicNameInvalid, lambda rig, _: set_policy(rig.engine, "a b", LADDER, rig.now_ms)),
    (TopicNameInvalid, lambda rig, _: policy_of(rig.engine, "a b")),
    (ValueOutOfRange, lambda rig, me: nack(rig.engine, me, JOB, rig.now_ms, delay_ms=-1)),
    (ValueOutOfRange, lambda rig, me: nack(rig.engine, me, JOB, rig.now_ms, priority=-1)),
    (JobNotFound, lambda rig, me: nack(rig.engine, me, 2, rig.now_ms)),
    (ValueOutOfRange, lambda rig, _: put(rig, priority=-1)),
    (ValueOutOfRange, lambda rig, _: put(rig, priority=2**32)),
    (ValueOutOfRange, lambda rig, _: put(rig, delay_ms=-1)),
    (ValueOutOfRange, lambda rig, _: put(rig, delay_ms=LONGEST_MS + 1)),
    (ValueOutOfRange, lambda rig, _: put(rig, ttr_ms=-1)),
    (ValueOutOfRange, lambda rig, _: put(rig, ttr_ms=LONGEST_MS + 1)),
    (ValueOutOfRange, lambda rig, me: release_job(rig.engine, me, JOB, 2**32, 0, rig.now_ms)),
    (ValueOutOfRange, lambda rig, me: release_job(rig.engine, me, JOB, 0, -1, rig.now_ms)),
    (
        ValueOutOfRange,
        lambda rig, me: bury_job(rig.engine, me, JOB, -1, RequestMs(rig.engine.store.time_ms)),
    ),
    (ValueOutOfRange, lambda rig, _: reschedule_job(rig.engine, 2, LONGEST_MS + 1, rig.now_ms)),
    (ValueOutOfRange, lambda rig, _: bury_waiting_job(rig.engine, 2, rig.now_ms, priority=2**32)),
    (JobNotFound, lambda rig, _: bury_waiting_job(rig.engine, 7, rig.now_ms)),
    (ValueOutOfRange, lambda rig, _: pause(rig.engine, "default", -1, rig.now_ms)),
    (TopicNotFound, lambda rig, _: pause(rig.engine, "nowhere", 0, rig.now_ms)),
    (TopicNotFound, lambda rig, _: view_topic(rig, "nowhere")),
    (TopicNameInvalid, lambda rig, me: use(rig.engine, me, "")),
    (TopicNameInvalid, lambda rig, me: use(rig.engine, me, "-a")),
    (TopicNameInvalid, lambda rig, me: watch(rig.engine, me, "a b")),
    (TopicNameInvalid, lambda rig, me: watch(rig.engine, me, "x" * 201)),
    (TopicNameInvalid, lambda rig, me: ignore(rig.engine, me, "é")),
    (TopicNameInvalid, lambda rig, _: pause(rig.engine, "a:b", 0, rig.now_ms)),
    (LastWatched, lambda rig, me: ignore(rig.engine, me, "default")),
    (JobNotFound, lambda rig, _: kick_job(rig.engine, 7, rig.now_ms)),
    (JobNotFound, lambda rig, me: delete_job(rig.engine, me, 7, rig.now_ms)),
    (JobNotFound, lambda rig, me: delete_job(rig.engine, me, 2**64 - 1, rig.now_ms)),
    (JobNotFound, lambda rig, _: peek(rig, 7)),
    (JobNotFound, lambda rig, _: change_job(rig.engine, 7, rig.now_ms, priority=1)),
    (KeyNotFound, lambda rig, _: find_key(rig, b"no-such-key")),
    (KeyInvalid, lambda rig, _: find_key(rig, b"two words")),
    (TopicIsInternal, lambda rig, me: watch(rig.engine, me, INTERNAL_TOPIC)),
)


@pytest.mark.parametrize(("refusal", "operation"), REFUSALS)
def test_a_refused_operation_changes_nothing(
    rig: EngineRig, refusal: type[Refusal], operation: Operation
) -> None:
    me = rig.client()
    rig.put()
    rig.put(delay_ms=5000)
    assert rig.reserve(me) == JOB
    rig.run(10)
    rig.take_log()
    before = [*canonical(rig.engine)], views.view_topic(rig.engine, "default", rig.now_ms)
    with pytest.raises(refusal):
        operation(rig, me)
    after = [*canonical(rig.engine)], views.view_topic(rig.engine, "default", rig.now_ms)
    assert after == before
    assert [topic.name for topic in rig.engine.store.topics.listing] == ["default"]
    assert rig.take_log() == (b"", False)
    check(rig.engine)


def test_every_refusal_of_the_core_is_tried() -> None:
    # A full journal refuses before the engine is asked; a key that is taken, see test_keyed; too
    # many topics, see test_watching; too many policies, see operations/test_topics; what may not be
    # called, see operations/test_push.
    of_the_core = {
        refusal for refusal in Refusal.__subclasses__() if refusal.__module__ == errors.__name__
    }
    assert {refusal for refusal, _ in REFUSALS} | {
        OutOfSpace,
        JobAlreadyExists,
        TooManyWatched,
        PoliciesFull,
        TargetRefused,
        PushIsOff,
    } == of_the_core
