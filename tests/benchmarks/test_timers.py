import random

import pytest

from benchmarks.timers import TIMERS
from benchmarks.wheel import OPERATIONS, losses, measure, order_events, table


@pytest.mark.parametrize("name", TIMERS)
def test_every_rival_fires_what_is_due_and_nothing_that_was_cancelled(
    name: str, rng: random.Random
) -> None:
    owner: list[int | None] = [None] * 300
    timer = TIMERS[name](owner)
    for entry in range(300):
        due_ms = owner[entry] = rng.randrange(1, 5000)
        timer.insert(entry, due_ms, 0)
    for entry in range(0, 300, 3):
        cancelled_ms = owner[entry]
        assert cancelled_ms is not None
        owner[entry] = None
        timer.cancel(entry, cancelled_ms)
    fired = 0
    while (deadline_ms := timer.next_deadline()) is not None:
        wanted = sum(due_ms is not None and due_ms <= deadline_ms for due_ms in owner)
        assert timer.expire(deadline_ms) == wanted
        fired += wanted
    timer.close()
    assert fired == 200


def test_orders_are_paid_after_they_are_placed_and_nine_in_ten_are(rng: random.Random) -> None:
    events = order_events(2000, rng)
    assert sorted(events) == list(events)
    placed = [(event & 0xFFFFFFFF) >> 1 for event in events if not event & 1]
    paid = [(event & 0xFFFFFFFF) >> 1 for event in events if event & 1]
    assert placed == list(range(2000))
    assert len(set(paid)) == len(paid)
    assert 0.85 < len(paid) / 2000 < 0.95


def test_the_table_has_a_line_for_each_operation_and_says_where_the_wheel_loses() -> None:
    results = {name: measure(TIMERS[name], 200, 1) for name in ("wheel", "heapq")}
    lines = list(table(200, results))
    assert [line.split()[0] for line in lines[1:-1]] == [*OPERATIONS, "memory", "memory_cancel"]
    results["heapq"]["insert"] = results["wheel"]["insert"] / 2
    assert "insert_200 takes the wheel 2.00 times what heapq takes" in losses(200, results)
