"""The facts of facts.txt and lanes.txt: of the engine alone, with all that only it can show."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from delayd.core.log_records import Kind
from tests.core.bench import Bench
from tests.fact_rows import Fact, rows
from tests.facts.rows import run
from tests.facts.test_facts import FACTS as FACTS_OF_ALL
from tests.facts.test_facts import STATES

HERE: Final = Path(__file__).parent
FREED: Final = {
    # How a reservation of a ends, and which of four jobs the client gets that waits for a place
    **dict.fromkeys(("ack 1", "batch_ack 1", "release 1 priority=9", "release 1 delay=99"), 3),
    **dict.fromkeys(("nack 1 delay=99", "bury 1"), 3),
    **dict.fromkeys(("leave", "wait 60", "late 60; seen 1"), 1),
}


def tables() -> Iterator[tuple[str, Fact]]:
    for end, job_id in FREED.items():
        given = "set_policy mail reserved_max=2; repeat 4 put priority=5; a: reserve; b: reserve"
        then = [
            ("c: batch mail", "= none"),
            (f"c: listen mail; a: {end}; heard".replace("a: wait", "wait"), f"= c:{job_id}"),
        ]
        yield f"a place is free after {end}", Fact(given, then)
    costly = [f"put key=k on={on} delay=5" for on in ("replace", "preserve", "extend")]
    costly += ["change 1 priority=5", "change 1 body=", "keyed a b"]
    for state, given in STATES.items():
        if state != "reserved":  # to which a key is lost, and another job is put
            then = [(act, f"OutOfSpace; 1 {state}") for act in costly]
            yield f"too little space, {state}", Fact(f"{given}; space 40", then)


FACTS: Final = dict(rows(HERE / "facts.txt")) | dict(tables())
LANES: Final = dict(rows(HERE / "lanes.txt"))


@pytest.mark.parametrize("name", FACTS)
def test_fact(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    play(FACTS[name], Bench(), monkeypatch)


@pytest.mark.parametrize("way", ["url", "sink"])
@pytest.mark.parametrize("name", LANES)
def test_fact_of_pushes(name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.way = way
    bench.engine.vet_target = lambda target: target
    bench.rule()
    play(LANES[name], bench, monkeypatch)


def test_every_record_but_those_of_time_and_of_copies_has_a_fact() -> None:
    told = [outcome for fact in {**FACTS_OF_ALL, **FACTS}.values() for _, outcome in fact.then]
    logs = re.findall(r"log ([A-Z_ ]+)", "; ".join(told))
    assert {*" ".join(logs).split()} == {kind.name for kind in Kind} - {"TURN", "LAST", "RANK"}


def play(fact: Fact, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.patch = monkeypatch  # type: ignore[attr-defined]
    run(fact, bench)
    bench.close()
