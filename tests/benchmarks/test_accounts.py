"""The arithmetic of a soak: what is lost, what is doubled, what is flat."""

import random

import pytest

from benchmarks.accounts import Flatness, Ledger, Totals, added, rise


@pytest.mark.parametrize(
    ("events", "totals"),
    [
        ("", Totals()),  # a put that was never acknowledged cannot be lost
        ("acknowledged asked received", Totals(acknowledged=1)),  # an end that was not confirmed
        ("acknowledged asked refused", Totals(acknowledged=1, lost=1)),
        ("finished received", Totals(finished=1, doubled=1)),
    ],
)
def test_a_job_is_lost_or_doubled_by_what_was_answered(events: str, totals: Totals) -> None:
    ledger = Ledger()
    job = ledger.number()
    for event in events.split():
        getattr(ledger, event)(job)
    assert ledger.totals() == totals


def test_ledgers_add_up() -> None:
    assert added([Totals(3, 2, 0, 1), Totals(4, 4, 1, 0)]) == Totals(7, 6, 1, 1)


@pytest.mark.parametrize(
    "values",
    [
        [5.0] * 20 + [500.0] + [5.0] * 20,  # one burst
        [*map(float, range(20)), *[20.0] * 80],  # the warm-up
        *([], [1.0], [100.0, 1.0]),  # too few
    ],
)
def test_what_is_no_rise(values: list[float]) -> None:
    assert rise(values) <= 0


def test_a_slow_leak_among_noise_is_no_longer_flat(rng: random.Random) -> None:
    noise = [100 + rng.uniform(-5, 5) for _ in range(360)]
    leak = [value + number * 0.1 for number, value in enumerate(noise)]
    rule = Flatness(share=0.05, allowance=8)
    assert rule.allows(noise)
    assert not rule.allows(leak)


def test_a_small_figure_may_rise_by_the_allowance_and_a_large_one_by_its_share() -> None:
    small = [float(number) for number in range(10)]
    assert Flatness(0.05, 8).allows(small)
    assert not Flatness(0.05, 6).allows(small)
    large = [1_000.0 + number for number in range(101)]
    assert rise(large) == pytest.approx(80)
    assert Flatness(0.1, 0).allows(large)
    assert not Flatness(0.05, 0).allows(large)
