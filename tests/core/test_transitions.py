"""Each pair of state and event: either the table has it and it happens, or nothing does.

Acts are written as in facts.txt, whose world plays them: each is followed by a check of the whole
engine, records nothing when it is refused, and its log is played back in the end.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from delayd.core.job_record import TRANSITIONS, Event, State
from tests.core.bench import Bench
from tests.facts.rows import take
from tests.facts.worlds import Told, everything
from tests.rigs.written import tables_of

TABLES: Final = tables_of(Path(__file__).parent / "transitions.txt")
GIVEN: Final = {State[state]: steps for state, steps in TABLES["given"]}
ASKED: Final = {Event[event]: acts for event, *acts in TABLES["asked"]}
UNASKED: Final = {Event[event]: acts for event, *acts in TABLES["unasked"]}
"""What nobody asks for cannot be refused; to a job it does not concern it does nothing."""
JUDGED: Final = {Event[event]: acts for event, *acts in TABLES["judged"]}
RULES: Final = [rule for (rule,) in TABLES["rules"]]


@contextmanager
def job_in(state: State, rule: str = "") -> Iterator[Bench]:
    """A world with one job in that state, under the rule."""
    bench = Bench()
    for step in filter(None, (*GIVEN[state].split("; "), rule)):
        take(step, bench)
    assert state_in(bench) is state
    yield bench
    bench.close()


def state_in(bench: Bench) -> State | None:
    try:
        return State[bench.look(1)["state"].upper()]
    except Told:
        return None


def pairs(*, in_table: bool) -> list[tuple[State, Event]]:
    every = product(State, Event)
    return [pair for pair in every if (pair in TRANSITIONS) == in_table]


@pytest.mark.parametrize(("state", "event"), pairs(in_table=True))
def test_each_pair_of_the_table_leads_to_exactly_the_states_it_names(
    state: State, event: Event
) -> None:
    reached = set()
    plain = [("", act) for act in (*ASKED.get(event, ()), *UNASKED.get(event, ()))]
    for rule, act in (*plain, *product(RULES, JUDGED.get(event, ()))):
        with job_in(state, rule) as bench:
            take(act, bench)
            reached.add(state_in(bench))
    assert reached == TRANSITIONS[state, event]


@pytest.mark.parametrize(("state", "event"), pairs(in_table=False))
def test_a_pair_that_is_not_in_the_table_is_refused_and_changes_nothing(
    state: State, event: Event
) -> None:
    for act in ASKED.get(event, ()):
        with job_in(state) as bench:
            before = everything(bench.engine)
            with pytest.raises(Told, match="no job 1, ") as refused:
                take(act, bench)
            assert refused.value.word == "NOT_FOUND"
            assert everything(bench.engine) == before
    for act in UNASKED.get(event, ()):
        with job_in(state) as bench:
            take(act, bench)
            assert state_in(bench) in {state, *TRANSITIONS.get((state, Event.CAME_DUE), ())}
            assert bench.records == []


def test_every_event_is_tried_in_every_state() -> None:
    assert {*ASKED, *UNASKED} == set(Event)
    assert len([*pairs(in_table=True), *pairs(in_table=False)]) == len(State) * len(Event)
