"""The chapters on lateness and growth do each operation once, with little of everything."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import growth
from benchmarks.registry import EFFORTS, Bench, NotMeasuredError, Values, cases_of
from benchmarks.runner import faults


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(growth, "SETTLE_S", 0)
    monkeypatch.setattr(growth, "LAST_SYNC_S", 0)  # a kill keeps what was only written
    monkeypatch.setenv("DELAYD_JOURNAL_SEGMENT_BYTES", "1MiB")  # a snapshot is soon due
    bench = Bench(EFFORTS["tiny"], tmp_path)
    yield bench
    bench.close()


def measured(chapter: str, subject: str, bench: Bench) -> dict[str, Values | str]:
    """The values of the first case of each operation, or why there are none."""
    found: dict[str, Values | str] = {}
    for case in cases_of(chapter):
        if case.subject == subject and case.operation not in found:
            try:
                values = case.measure(bench)
            except NotMeasuredError as error:
                found[case.operation] = str(error)
            else:
                assert not faults(values), case.name
                found[case.operation] = values
    return found


def test_lateness_is_measured_and_nothing_is_lost_doubled_or_early(bench: Bench) -> None:
    found = measured("lateness", "delayd", bench)
    assert {*found} == {"due one by one", "steady load", "burst", "during a snapshot"}
    # A busy machine may be too late for a burst, which says so and has no values.
    values = {name: each for name, each in found.items() if not isinstance(each, str)}
    assert found.keys() - values.keys() <= {"burst"}, found
    assert all("lost" in each for each in values.values())  # no job may be due in so short a time
    assert {name for name, each in values.items() if "held_ms" in each} == {
        *(values.keys() & {"burst"}),
        "during a snapshot",
    }


@pytest.mark.parametrize(
    ("subject", "size"),
    [
        ("beanstalkd", {"workers": 1}),  # delays are whole seconds
        ("Redis, tuned", {"standing jobs": 1_000_000, "load": "50 %"}),  # it is polled
    ],
)
def test_the_lateness_of_others_is_measured(
    subject: str, size: dict[str, int | str], bench: Bench
) -> None:
    cases = [case for case in cases_of("lateness") if case.size == size]
    case = next(case for case in cases if case.subject == subject)
    try:
        values = case.measure(bench)
    except NotMeasuredError as reason:
        pytest.skip(str(reason))
    assert "lost" in values
    assert not faults(values)


def test_growth_is_measured_and_a_restart_loses_nothing(bench: Bench) -> None:
    found = measured("growth", "delayd", bench)
    assert {name: "recovery_s" in values for name, values in found.items()} == {
        "memory": False,
        "put": False,
        "restart": True,
        "snapshot": False,
        "restart from a snapshot": True,
    }


def test_what_takes_no_snapshots_says_so_and_grows_all_the_same(bench: Bench) -> None:
    found = measured("growth", "beanstalkd", bench)
    if found["memory"] == "beanstalkd is not installed":
        pytest.skip("beanstalkd is not installed")
    assert found["snapshot"] == "it takes no snapshots"
    assert "recovery_s" in found["restart"]
