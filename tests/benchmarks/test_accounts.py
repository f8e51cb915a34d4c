"""The arithmetic of a soak: what is lost, what is doubled, what is flat."""

import doctest
import random

import pytest

from benchmarks import accounts
from benchmarks.accounts import Flatness, Ledger, Totals, added, rise


def test_the_examples_in_the_docstrings_hold() -> None:
    assert doctest.testmod(accounts).failed == 0
    assert doctest.testmod(accounts).attempted > 0


def test_a_put_that_was_never_acknowledged_cannot_be_lost() -> None:
    ledger = Ledger()
    ledger.number()
    assert ledger.totals() == Totals()


def test_an_end_that_was_not_confirmed_is_neither_lost_nor_doubled() -> None:
    ledger = Ledger()
    job = ledger.number()
    ledger.acknowledged(job)
    ledger.asked(job)
    ledger.received(job)
    assert ledger.totals() == Totals(acknowledged=1)


def test_a_refused_end_leaves_the_job_to_be_finished() -> None:
    ledger = Ledger()
    job = ledger.number()
    ledger.acknowledged(job)
    ledger.asked(job)
    ledger.refused(job)
    assert ledger.totals().lost == 1


def test_a_job_that_comes_after_its_end_is_doubled() -> None:
    ledger = Ledger()
    job = ledger.number()
    ledger.finished(job)
    ledger.received(job)
    assert ledger.totals().doubled == 1


def test_ledgers_add_up() -> None:
    assert added([Totals(3, 2, 0, 1), Totals(4, 4, 1, 0)]) == Totals(7, 6, 1, 1)


def test_one_burst_is_no_rise() -> None:
    assert rise([5.0] * 20 + [500.0] + [5.0] * 20) == 0


@pytest.mark.parametrize("values", [[], [1.0], [100.0, 1.0]])
def test_too_few_values_do_not_rise(values: list[float]) -> None:
    assert rise(values) <= 0


def test_the_warm_up_does_not_count() -> None:
    assert rise([float(number) for number in range(20)] + [20.0] * 80) == 0


def test_a_slow_leak_among_noise_is_no_longer_flat(rng: random.Random) -> None:
    noise = [100 + rng.uniform(-5, 5) for _ in range(360)]
    leak = [value + number * 0.1 for number, value in enumerate(noise)]
    rule = Flatness(share=0.05, allowance=8)
    assert rule.allows(noise)
    assert not rule.allows(leak)


def test_a_small_figure_may_rise_by_the_allowance() -> None:
    values = [float(number) for number in range(10)]
    assert Flatness(0.05, 8).allows(values)
    assert not Flatness(0.05, 6).allows(values)


def test_a_large_figure_may_rise_by_its_share() -> None:
    values = [1_000.0 + number for number in range(101)]
    assert rise(values) == pytest.approx(80)
    assert Flatness(0.1, 0).allows(values)
    assert not Flatness(0.05, 0).allows(values)
