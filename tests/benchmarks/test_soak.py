"""What a soak tells: the lines of its table, and what holds."""

import math
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.accounts import Totals
from benchmarks.actors import Noted
from benchmarks.registry import VALUES
from benchmarks.results import read
from benchmarks.soak import Course, Sample, ends, findings, kept_in, middle, reading, tenths

STEADY = Sample(0.0, 50.0, 40.0, 1.0, 5.0, 9.0, 2.0, 8.0, 700.0, 3.0)


def course(samples: list[Sample] | None = None, totals: Totals | None = None) -> Course:
    kept = [STEADY] * 50 if samples is None else samples
    return Course(kept, Counter(), 10, 0, totals or Totals(20, 20), pushes=5, arrived=5)


def wrong(found: Course, *, with_restarts: bool = False) -> list[str]:
    verdict = findings(found, with_restarts=with_restarts)
    return [said.split(" rose")[0] for is_right, said in verdict if not is_right]


@pytest.mark.parametrize(
    ("field", "step", "name"),
    [("memory", 1.0, "memory"), ("descriptors", 1.0, "descriptors"), ("late_p99", 0.5, "lateness")],
)
def test_a_steady_course_holds_and_what_rises_is_named(field: str, step: float, name: str) -> None:
    assert wrong(course()) == []
    rising = [STEADY._replace(**{field: 50 + step * number}) for number in range(50)]
    assert wrong(course(rising)) == [name]


def test_a_sample_in_which_nothing_was_answered_is_not_flat() -> None:
    assert wrong(course([STEADY] * 9 + [STEADY._replace(late_p99=math.nan)])) == ["lateness"]


def test_lost_and_doubled_jobs_are_told() -> None:
    lost = course(totals=Totals(20, 18, doubled=1, lost=2))
    assert wrong(lost) == ["of 25 jobs 2 lost", "1 doubled, 0 pushes repeated"]


def test_a_push_may_come_twice_and_connections_may_break_after_a_kill_alone() -> None:
    found = course()
    found.arrived = 4
    assert wrong(found) == ["of 25 jobs 1 lost"]
    found.arrived = 6
    assert wrong(found) == ["0 doubled, 1 pushes repeated"]
    found.troubles["keys: ConnectionResetError"] = 3
    assert wrong(found, with_restarts=True) == []
    found.troubles["keys: unexpected: reschedule"] = 1
    assert wrong(found, with_restarts=True) == ["troubles: {'keys: unexpected: reschedule': 1}"]


def test_a_job_that_comes_before_its_moment_is_early() -> None:
    found = course()
    found.note([Noted([], [1.0, -0.1], Counter())])
    assert (found.timed, found.early) == (12, 1)
    assert wrong(found) == ["1 of 12 timed jobs and 5 pushes early"]


def test_a_line_has_medians_but_the_longest_of_what_is_longest_and_no_figure_of_nothing() -> None:
    three = [STEADY._replace(memory=m, put_longest=m) for m in (1.0, 2.0, 9.0)]
    assert (middle(three).memory, middle(three).put_longest) == (2.0, 9.0)
    assert math.isnan(middle([STEADY._replace(jobs=math.nan)]).jobs)


@pytest.mark.parametrize(("samples", "lines"), [(0, 0), (1, 1), (10, 10), (11, 6), (360, 10)])
def test_a_table_has_ten_lines_at_most(samples: int, lines: int) -> None:
    assert len(tenths([STEADY] * samples)) == lines


def test_samples_are_kept_as_the_readings_of_their_minute(tmp_path: Path) -> None:
    found = course([])
    found.rate = 500.0
    with kept_in(tmp_path, "--minutes 2") as keep:
        for minute in (0.2, 0.9, 1.1):
            found.samples.append(STEADY._replace(minute=minute, jobs=math.nan))
            keep(found, reading(found.samples[-1], found.rate))
        found.arrived = 4
        keep(found, ends(found, with_restarts=False))
    first, second = read(tmp_path / "soak.jsonl")
    assert (first.size, second.size) == ({"minute": 0}, {"minute": 1})
    assert len(first.readings) == 2
    assert second.worst("lost") == 1
    assert first.median("memory_bytes") == 50 * 2**20
    assert first.median("rate") == 500.0
    assert first.settings == "--minutes 2"
    assert first.median("jobs") is None  # it did not answer
    assert first.readings[0].keys() <= VALUES.keys()
