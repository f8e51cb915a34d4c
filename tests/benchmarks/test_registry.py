"""Every case of the registry works: each subject does each operation once, as small as it goes.

Chapters whose subjects are processes are in tests/integration/test_benchmarks.py.
"""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks import results, runner
from benchmarks.__main__ import main
from benchmarks.registry import (
    CHAPTERS,
    EFFORTS,
    Bench,
    Case,
    Durability,
    NotMeasuredError,
    Selection,
    Values,
    cases_of,
    rounds,
)

MACHINE = {"commit": "49202dae21"}
SETTINGS = {"at": "2026-11-27T21:00:00+00:00", "effort": "tiny"}


def bench(tmp_path: Path, runs: int = 1) -> Bench:
    """What tiny cases get."""
    tiny = EFFORTS["tiny"]
    return Bench(type(tiny)(runs, tiny.seconds, tiny.entries_max), tmp_path)


def case(subject: str, *values: Values | Exception, clients: int = 1) -> Case:
    """A case whose readings are these, one after the other."""
    left = list(values)

    def measure(_: Bench) -> Values:
        value = left.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    size = {"connections": clients}
    return Case("servers", "put", size, subject, measure, Durability.IN_MEMORY, settings="-x")


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_a_chapter_names_each_of_its_cases_once(chapter: str) -> None:
    assert cases_of(chapter)


@pytest.mark.thorough
def test_subjects_take_turns_and_what_must_not_be_is_told(tmp_path: Path) -> None:
    order: list[str] = []
    turns = [
        case("a", {"rate": 1.0, "lost": 0}, {"rate": 3.0, "lost": 0}),
        case("b", {"rate": 2.0, "lost": 1}, ValueError("gone")),
        case("c", NotMeasuredError("there is none")),
        replace(case("a", {"rate": 5.0}, clients=8), runs_max=1),
    ]
    assert [[one.subject for one in turn] for turn in rounds(turns)] == [["a", "b", "c"], ["a"]]
    file = io.StringIO()
    said: list[str] = []
    writer = results.Writer(file, MACHINE, SETTINGS)
    wrong = runner.run(turns, bench(tmp_path, runs=2), writer, said.append)
    order = [
        json.loads(line).get("case", {}).get("subject")
        for line in file.getvalue().split("\n")[1:-1]
    ]
    assert order == ["a", "b", "a", "b", "c", "a"]
    assert wrong == [
        "servers, put, connections=1, b, in memory only: 1 lost",
        "servers, put, connections=1, b, in memory only: failed: ValueError: gone",
    ]
    assert "there is none" in said[0]

    path = tmp_path / "servers.jsonl"
    path.write_text(file.getvalue(), encoding="utf-8")
    a, b, c, eight = results.read(path)
    assert (a.median("rate"), a.worst("rate"), b.median("p50_ms")) == (2.0, 3.0, None)
    assert (c.not_measured, a.machine["commit"], eight.size) == (
        "there is none",
        "49202dae21",
        {"connections": 8},
    )

    # A second run of one case takes the place of its readings alone.
    with path.open("a", encoding="utf-8") as more:
        runner.run(
            [case("a", {"rate": 9.0})],
            bench(tmp_path),
            results.Writer(more, MACHINE | {"commit": "later"}, SETTINGS),
            said.append,
        )
    again = results.read(path)
    assert [one.median("rate") for one in again] == [9.0, 2.0, None, 5.0]
    assert [one.machine["commit"] for one in again][:2] == ["later", "49202dae21"]


def test_a_selection_takes_alternatives_of_one_kind_and_both_of_two() -> None:
    small, large = case("Redis"), case("delayd", clients=8)
    for words, expected in (
        ((), (True, True)),
        (("put",), (True, True)),
        (("take",), (False, False)),
        (("subject=redis", "subject=rabbit"), (True, False)),
        (("subject=memory", "connections=8"), (False, True)),
        (("connections=8", "connections=1"), (True, True)),
        (("connections=8", "connections=50"), (False, True)),
        (("entries=8",), (False, False)),
    ):
        assert tuple(map(Selection.of(words).has, (small, large))) == expected


def test_each_word_that_chooses_cases_must_fit_one() -> None:
    chosen = ("insert", "subject=heapq", "entries=10000")
    ask = ["list", "wheel", *(word for one in chosen for word in ("--only", one))]
    run = CliRunner().invoke(main, ask)
    assert (run.exit_code, run.output) == (0, "wheel, insert, entries=10000, heapq\n")
    for wrong in ("insrt", "subject=heap queue", "entries=7"):
        run = CliRunner().invoke(main, [*ask, "--only", wrong])
        assert f"no case fits '{wrong}'" in run.output
