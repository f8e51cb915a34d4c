"""Chapters that measure the engine: each operation can be measured, with a few jobs."""

import gc
from collections.abc import Iterator

import pytest

from benchmarks import groups, keys, passes, scrape
from benchmarks.alone import in_a_process

FEW = 50
OF_KEYS = [(measure, kind) for measure, kinds in keys.OPERATIONS.values() for kind in kinds]


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    """What is measured sets up the garbage collector as in the daemon."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.thorough
@pytest.mark.parametrize(("measure", "kind"), OF_KEYS)
def test_jobs_with_and_without_keys_are_measured(measure: keys.Measure, kind: str) -> None:
    values = measure(kind, FEW)
    assert values
    assert all(figure > 0 for name, figure in values.items() if name == "us")


@pytest.mark.thorough
@pytest.mark.parametrize("kind", groups.KINDS)
def test_a_put_and_a_reserve_are_measured_with_and_without_groups(kind: str) -> None:
    assert groups.putting(kind, FEW)["us"] > 0
    assert groups.reserving(kind, FEW)["us"] > 0


@pytest.mark.parametrize("what", [groups.COME_DUE, *groups.OTHER_RULES])
def test_slices_are_measured(what: str) -> None:
    values = groups.slices(what, FEW)
    assert 0 < values["p50_ms"] <= values["worst_ms"]


@pytest.mark.parametrize("operation", passes.OPERATIONS)
def test_passes_are_measured_until_they_are_over(operation: str) -> None:
    values = passes.measured(operation, FEW)
    assert 0 < values["worst_ms"] <= values["seconds"] * 1e3 + 1e-9


@pytest.mark.thorough
@pytest.mark.parametrize("subject", [scrape.OURS, scrape.WHOLE])
def test_scrapes_are_measured(subject: str) -> None:
    assert scrape.measured(subject, FEW)["p50_ms"] > 0


@pytest.mark.thorough
def test_what_is_measured_alone_comes_back_and_so_does_its_error() -> None:
    assert in_a_process(pow, 2, 10) == 1_024
    with pytest.raises(ZeroDivisionError):
        in_a_process(divmod, 1, 0)
