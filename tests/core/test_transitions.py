"""Each pair of state and event: either the table has it and it happens, or nothing does."""

from collections.abc import Callable
from itertools import product
from types import MappingProxyType
from typing import Final

import pytest

from delayd.core.errors import JobNotFound
from delayd.core.job_record import TRANSITIONS, Event, State
from delayd.core.policy import Policy
from delayd.core.times import PlayedMs
from tests.core.canonical import canonical
from tests.core.check import check
from tests.rigs.engine import EngineRig

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
            self.rig.bury(self.worker, JOB, 5)
        assert self.state is state
        self.rig.take_log()

    @property
    def state(self) -> State | None:
        try:
            return self.rig.view(JOB).state
        except JobNotFound:
            return None

    def canonical(self) -> list[object]:
        return list(canonical(self.rig.engine))


Operation = Callable[[Case], object]


def come_due(case: Case) -> None:
    case.rig.run(HOUR_MS)


def end_hold_by_time(case: Case) -> None:
    case.rig.run(2 * HOUR_MS)


def close(case: Case) -> None:
    case.rig.close(case.worker)


def release(case: Case) -> None:
    case.rig.release(case.worker, JOB)


def bury(case: Case) -> None:
    case.rig.bury(case.worker, JOB)


def touch(case: Case) -> None:
    case.rig.touch(case.worker, JOB)


def delete(case: Case) -> None:
    case.rig.delete(case.worker, JOB)


ASKED: Final[MappingProxyType[Event, tuple[Operation, ...]]] = MappingProxyType(
    {
        Event.RESERVE: (lambda case: case.rig.reserve_job(case.stranger, JOB),),
        Event.RELEASE: (release, lambda case: case.rig.release(case.worker, JOB, 0, 1)),
        Event.BURY: (bury,),
        Event.BURY_WAITING: (lambda case: case.rig.bury_waiting(JOB),),
        Event.KICK: (lambda case: case.rig.kick_job(JOB),),
        Event.TOUCH: (touch,),
        Event.RESCHEDULE: (
            lambda case: case.rig.reschedule(JOB),
            lambda case: case.rig.reschedule(JOB, 1),
        ),
        Event.CHANGE: (
            lambda case: case.rig.change(JOB, priority=7),
            lambda case: case.rig.change(JOB, delay_ms=0, body=b"new"),
            lambda case: case.rig.change(JOB, delay_ms=1),
        ),
        Event.DELETE: (delete,),
    }
)
UNASKED: Final[MappingProxyType[Event, tuple[Operation, ...]]] = MappingProxyType(
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
        case.rig.set_policy("default", policy)
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
def test_only_the_holder_may(operation: Operation) -> None:
    case = Case(State.RESERVED)
    case.worker, case.stranger = case.stranger, case.worker
    before = case.canonical()
    with pytest.raises(JobNotFound):
        operation(case)
    assert case.canonical() == before
    assert case.rig.take_log() == (b"", False)


@pytest.mark.parametrize("operation", [release, bury, touch])
def test_a_holder_whose_time_has_run_out_may_not_even_before_its_slice_has_come(
    operation: Operation,
) -> None:
    case = Case(State.RESERVED)
    case.rig.engine.store.time_ms = PlayedMs(2 * HOUR_MS)
    with pytest.raises(JobNotFound):
        operation(case)
    assert case.rig.take_log() == (b"", False)
