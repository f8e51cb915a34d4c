"""Space in the log: puts are refused first, then what workers say; removals never are."""

import pytest

from delayd.core.errors import OutOfSpace
from delayd.core.log_space import PUT_COST_BYTES, TOPIC_COST_BYTES, Ask, LogSpace
from delayd.limits import BODY_BYTES_DEFAULT, EMERGENCY_BYTES, LONG_BODY_BYTES


def none_left(_missing_bytes: int, _body_bytes: int, _places: int) -> int:
    return 0


class Asked:
    """Grants what is asked for, and remembers it."""

    def __init__(self, answer: int | None = None) -> None:
        self.answer = answer
        self.calls: list[tuple[int, int, int]] = []

    def __call__(self, missing_bytes: int, body_bytes: int, places: int) -> int:
        self.calls.append((missing_bytes, body_bytes, places))
        return missing_bytes if self.answer is None else self.answer


def space_of(free_bytes: int, ask: Ask = none_left) -> LogSpace:
    space = LogSpace()
    space.limit(free_bytes, ask)
    return space


def test_without_a_journal_space_is_boundless() -> None:
    space = LogSpace()
    space.take_for_puts(10**9, 10**9 // 2)
    space.take(10**12)


def test_a_put_leaves_the_emergency_space_and_a_removal_does_not() -> None:
    cost_bytes = PUT_COST_BYTES + 2 * 100 + TOPIC_COST_BYTES
    space_of(EMERGENCY_BYTES + cost_bytes).take_for_puts(1, 100)
    space = space_of(EMERGENCY_BYTES + cost_bytes - 1)
    with pytest.raises(OutOfSpace):
        space.take_for_puts(1, 100)
    assert space.free_bytes == EMERGENCY_BYTES + cost_bytes - 1
    assert space.jobs == 0
    space.take(space.free_bytes)
    with pytest.raises(OutOfSpace):
        space.take(1)


def test_what_is_missing_is_asked_for_once() -> None:
    asked = Asked()
    space = space_of(1_000, asked)
    space.take(400)
    assert asked.calls == []
    space.take(700)
    assert (asked.calls, space.free_bytes) == ([(100, 0, 0)], 0)


@pytest.mark.parametrize("answer", [-1, 0, 99])
def test_too_little_is_a_refusal(answer: int) -> None:
    space = space_of(1_000, Asked(answer))
    with pytest.raises(OutOfSpace):
        space.take(1_100)


def test_a_long_body_asks_for_a_place_even_with_much_space() -> None:
    asked = Asked(0)
    space = space_of(1 << 40, asked)
    space.take_for_puts(3, LONG_BODY_BYTES)
    assert asked.calls == []
    space.take_for_puts(3, LONG_BODY_BYTES + 1)
    assert asked.calls == [(0, LONG_BODY_BYTES + 1, 3)]
    assert BODY_BYTES_DEFAULT <= LONG_BODY_BYTES


@pytest.mark.parametrize("body_bytes", [0, 1, 100, BODY_BYTES_DEFAULT])
def test_what_is_required_for_a_put_is_what_a_put_takes(body_bytes: int) -> None:
    job_bytes = PUT_COST_BYTES + 2 * body_bytes + TOPIC_COST_BYTES
    enough = space_of(job_bytes + EMERGENCY_BYTES)
    enough.require_for_put(body_bytes)
    assert enough.free_bytes == job_bytes + EMERGENCY_BYTES, "nothing is taken"
    enough.take_for_puts(1, body_bytes)
    assert enough.free_bytes == EMERGENCY_BYTES
    too_little = space_of(job_bytes + EMERGENCY_BYTES - 1)
    with pytest.raises(OutOfSpace):
        too_little.require_for_put(body_bytes)
    with pytest.raises(OutOfSpace):
        too_little.take_for_puts(1, body_bytes)


@pytest.mark.parametrize("body_bytes", [0, BODY_BYTES_DEFAULT])
def test_a_rewrite_takes_what_a_put_leaves(body_bytes: int) -> None:
    space = space_of(EMERGENCY_BYTES + 2 * (40 + body_bytes))
    space.take_for_rewrite(40, body_bytes)
    assert space.free_bytes == EMERGENCY_BYTES
    with pytest.raises(OutOfSpace):
        space.take_for_rewrite(1, 0)
