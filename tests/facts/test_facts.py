"""The facts of facts.txt, and tables of what each state, rule and key does, over every world."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.core import errors
from delayd.core.policy import FIELDS
from tests.fact_rows import Fact, rows
from tests.facts.rows import run
from tests.facts.worlds import WORLDS, World
from tests.rigs.written import tables_of

TABLES: Final = tables_of(Path(__file__).parent / "states.txt")
STATES: Final = dict(TABLES["states"])
RULES: Final = dict(TABLES["rules"])
WORDS: Final = {
    # What cells of these tables stand for
    "{held}": "JobNotFound/RESERVED 1; 1 reserved",
    "{wrong}": "JobNotFound/WRONG_STATE 1",
    "{step}": "1 delayed left=15 attempts=1",
    "{five}": "1 delayed left=5 attempts=1",
    "{buried}": "1 buried attempts=1",
    "{moved}": "dead ready=1; 1 ready topic=dead key= origin=mail attempts=0",
}


def table(name: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each act of a table, and its outcomes in full."""
    for act, *outcomes in TABLES[name]:
        row = " | ".join(outcomes)
        for short, whole in WORDS.items():
            row = row.replace(short, whole)
        yield act, row.split(" | ")


def recorded(act: str, outcome: str, *, is_judged: bool = False) -> str:
    """Return the records of the act, and the outcome."""
    log = next((kind.strip("-") for start, kind in TABLES["logs"] if act.startswith(start)), None)
    if log is None or "JobNotFound" in outcome or "created" in outcome:
        return outcome
    return f"log {'ATTEMPT FAIL' if is_judged and log in {'RELEASE', 'BURY'} else log}; {outcome}"


def policies() -> Iterator[tuple[str, Fact]]:
    for field, right, wrong in TABLES["policies"]:
        values = re.findall(r"\[.*?\]|\S+", right.replace("a*200", "a" * 200))
        then = []
        for value in values:
            given = value.replace("', '", ",").strip("[']") if value[0] == "[" else value
            given = f"{field}={given.replace('True', 'true')}"
            if value[0] == "{":
                given = field + re.sub(r"{'(\w+)':'?(\w+)'?}", r".\1=\2", value)
            shown = value.replace("0.001s", "1ms").replace("':", "': ")
            steps = f"set_policy mail {given}; policy mail"
            then.append((steps, f"= {field}={shown}"))
        then += [
            (f"set_policy mail {field}={value}", f"PolicyInvalid {field}")
            for value in wrong.split()
        ]
        yield f"policy of {field}", Fact("push_on", then)


def tables() -> Iterator[tuple[str, Fact]]:
    yield from policies()
    for act, outcomes in table("becomes"):
        for (state, given), outcome in zip(STATES.items(), outcomes, strict=True):
            yield f"{act}, {state}", Fact(given, [(act, recorded(act, outcome))])
    for act, (plain, ladder, *others) in table("endings"):
        ends = (plain, *[ladder] * 3, *others)
        for (rule, given), outcome in zip(RULES.items(), ends, strict=True):
            then = recorded(act, outcome, is_judged=rule != "no rule")
            yield f"{act}, {rule}", Fact(f"{given}; reserve", [(act, then)])


FACTS: Final = {**dict(rows(Path(__file__).parent / "facts.txt")), **dict(tables())}


ASYNC: Final = set([*FACTS][::9])
"""With asyncio the operations are the same: every ninth fact sees that they are awaited."""
AT_ONCE: Final = ("engine", "line")
"""The worlds of `make check`: the engine and the wire that is played fastest."""
CASES: Final = [
    pytest.param(name, world, marks=() if world in AT_ONCE else pytest.mark.thorough)
    for name in FACTS
    for world in WORLDS
    if not world.startswith("async") or name in ASYNC
]


@pytest.mark.parametrize(("name", "world"), CASES, indirect=["world"])
def test_fact(name: str, world: World) -> None:
    run(FACTS[name], world)


def refusals(kind: type[errors.Refusal] = errors.Refusal) -> set[type[errors.Refusal]]:
    below = [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]
    return {*below, *(each for kind in below for each in refusals(kind))}


def test_every_refusal_of_the_engine_has_a_fact() -> None:
    outcomes = " ".join(outcome for fact in FACTS.values() for _, outcome in fact.then)
    names = {refusal.__name__ for refusal in refusals()}
    names -= {name for name in names if "Schedule" in name}  # tests/schedules has those
    assert names <= {*re.findall(r"\w+", outcomes)}


def test_every_field_of_a_policy_has_facts() -> None:
    assert {field for field, *_ in TABLES["policies"]} == {field.name for field in FIELDS}
