"""Sorted keys: a list that stays sorted, in runs that are neither empty nor too long."""

import random
from bisect import bisect_right, insort

import pytest

from delayd.core.sorted_keys import RUN_KEYS_FEW, RUN_KEYS_MAX, SortedKeys

WHOLE = 3 * RUN_KEYS_MAX


def keys_of(numbers: range | list[int]) -> SortedKeys:
    keys = SortedKeys()
    for number in numbers:
        keys.add(number)
    return keys


@pytest.mark.walk(4, 40)
def test_it_is_a_sorted_list(number: int) -> None:
    rng = random.Random(number)
    keys, model = SortedKeys(), list[int]()
    for step in range(6_000):
        # It grows and shrinks by turns, mostly at its ends, as the jobs of a topic do.
        grows = rng.random() < (0.8 if step // 2_000 % 2 == 0 else 0.1)
        match rng.randrange(4):
            case 0 | 1 if grows:
                key = (model[-1] if model else 0) + rng.randrange(1, 9)
                keys.add(key)
                model.append(key)
            case 2 if grows:
                key = rng.randrange(1 << 66)
                if key not in keys:
                    keys.add(key)
                    insort(model, key)
            case 3 if grows:
                run = [(model[-1] if model else 0) + 2 * more for more in range(1, 40)]
                keys.add_run(run)
                model += run
            case 0 | 1 if model:
                assert keys.pop_first() == model.pop(0)
            case 2 if model:
                keys.remove(model.pop(rng.randrange(len(model))))
            case _:
                count = rng.randrange(3)
                assert keys.take_last(count) == model[len(model) - min(count, len(model)) :]
                del model[len(model) - min(count, len(model)) :]
        assert len(keys) == len(model)
        if model:
            index = rng.randrange(len(model))
            near = model[index] + rng.randrange(-1, 2)
            place = bisect_right(model, near)
            assert (keys.first(), keys.last()) == (model[0], model[-1])
            assert keys.at(index) == model[index]
            assert keys.after(near, 5) == model[place : place + 5]
            assert keys.following(near) == (model[place] if place < len(model) else -1)
            assert (near in keys) == (place > 0 and model[place - 1] == near)
        if step % 500 == 0:
            keys.check()
            assert [*keys] == model


def test_numbers_that_ascend_fill_their_runs() -> None:
    keys = keys_of(range(WHOLE))
    assert [len(run) for run in keys._runs] == [RUN_KEYS_MAX] * 3
    assert keys.after(-1, WHOLE + 1) == [*range(WHOLE)]
    keys.add(-1)
    assert [len(run) for run in keys._runs] == [RUN_KEYS_MAX // 2, RUN_KEYS_MAX // 2 + 1] + (
        [RUN_KEYS_MAX] * 2
    )
    keys.check()


@pytest.mark.parametrize("step", [1, -1])
def test_short_runs_join(step: int) -> None:
    numbers = range(100 * RUN_KEYS_MAX)
    keys = keys_of(numbers)
    few = [*numbers[::64]]
    for number in numbers[::step]:
        if number % 64:
            keys.remove(number)
    keys.check()
    assert [*keys] == few
    assert len(keys._runs) <= 2 * len(few) // RUN_KEYS_FEW


def test_it_is_empty_again() -> None:
    keys = keys_of([5, 3])
    assert keys.take_last(0) == []
    assert keys.take_last(3) == [3, 5]
    assert (len(keys), [*keys], keys.after(0, 9), keys.following(0)) == (0, [], [], -1)
    assert not keys._runs
    assert not keys._lasts
    keys.add(4)
    assert keys.pop_first() == 4
    assert not keys._runs
    assert not keys._lasts


@pytest.mark.parametrize("number", [1, 4, 9])
def test_what_is_not_there_cannot_be_removed(number: int) -> None:
    keys = keys_of([2, 3, 5])
    with pytest.raises((AssertionError, IndexError)):
        keys.remove(number)
    with pytest.raises(IndexError):
        keys.at(3)
