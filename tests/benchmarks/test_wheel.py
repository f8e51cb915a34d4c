"""Each rival of the wheel gives the answers of a list that is searched, and does all operations."""

import json
import random
from pathlib import Path

import pytest

from benchmarks.registry import EFFORTS, Bench, NotMeasuredError, cases_of
from benchmarks.wheel import alone, cases, operations
from benchmarks.wheel.operations import OPERATIONS, order_events
from benchmarks.wheel.timers import TIMERS, HashedWheel, driven

INTERPRETED = [name for name in TIMERS if name != "delayd, compiled"]


@pytest.mark.parametrize("wheel_size", [2, 7, 256])
@pytest.mark.parametrize("name", INTERPRETED)
def test_a_rival_fires_what_a_searched_list_says(
    name: str, wheel_size: int, rng: random.Random
) -> None:
    owner: list[int | None] = [None] * 600
    timer = TIMERS[name](owner, wheel_size)
    unused = list(range(len(owner)))
    now_ms = 0
    while unused or any(due_ms is not None for due_ms in owner):
        for _ in range(rng.randrange(4)):
            if unused:
                entry = unused.pop()
                due_ms = owner[entry] = now_ms + 1 + rng.choice((3, rng.randrange(900)))
                timer.insert(entry, due_ms, now_ms)
        wanted = [entry for entry, due_ms in enumerate(owner) if due_ms is not None]
        if wanted and rng.random() < 0.5:
            entry = rng.choice(wanted)
            cancelled_ms = owner[entry]
            assert cancelled_ms is not None
            owner[entry] = None
            timer.cancel(entry, cancelled_ms)
        first_ms = min((due_ms for due_ms in owner if due_ms is not None), default=None)
        deadline_ms = timer.next_deadline()
        assert first_ms is None or (deadline_ms is not None and deadline_ms <= first_ms)
        now_ms += rng.choice((0, 1, 5, 40))
        due = sum(due_ms is not None and due_ms <= now_ms for due_ms in owner)
        left = [None if due_ms is None or due_ms <= now_ms else due_ms for due_ms in owner]
        fired = 0
        while (deadline_ms := timer.next_deadline()) is not None and deadline_ms <= now_ms:
            fired += timer.expire(now_ms, rng.choice((1, 3, 100)))
        assert (fired, owner) == (due, left)
    timer.close()


def test_the_hashed_wheel_moves_a_bounded_number_a_tick_and_is_late_for_the_others() -> None:
    class Slow(HashedWheel):
        MOVED_MAX = 2

    owner: list[int | None] = [1] * 6
    timer = driven(Slow(owner, 16))
    for entry in range(6):
        timer.insert(entry, 1, 0)
    assert [timer.expire(now_ms, 100) for now_ms in range(4)] == [0, 4, 2, 0]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("name", INTERPRETED)
def test_every_rival_does_every_operation(
    name: str, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "HOUR_MS", 5_000)  # some tick through all of it
    monkeypatch.setattr(operations, "MINUTE_MS", 1_000)
    values = OPERATIONS[operation](TIMERS[name], 4_096, 50)
    wanted = {"entry_bytes"} if operation.startswith("hold") else {"us", "worst_ms"}
    assert set(values) == wanted


def test_orders_are_paid_after_they_are_placed_and_nine_in_ten_are() -> None:
    events = order_events(2000)
    assert sorted(events) == list(events)
    placed = [(event & 0xFFFFFFFF) >> 1 for event in events if not event & 1]
    paid = [(event & 0xFFFFFFFF) >> 1 for event in events if event & 1]
    assert placed == list(range(2000))
    assert len(set(paid)) == len(paid)
    assert 0.85 < len(paid) / 2000 < 0.95


def test_a_reading_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    alone.main("heapq", "insert", "50", "4096")
    assert set(json.loads(capsys.readouterr().out)) == {"us", "worst_ms"}


@pytest.mark.process
def test_a_reading_is_taken_in_a_process_of_its_own(tmp_path: Path) -> None:
    found = {
        (case.operation, case.size["entries"], case.subject): case for case in cases_of("wheel")
    }
    values = found["insert", 10**6, "delayd"].measure(Bench(EFFORTS["tiny"], tmp_path))
    assert values["us"] > 0


def test_what_would_take_too_long_is_not_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = []

    def slow(_: Bench, subject: str, operation: str, entries: int, size: int) -> dict[str, float]:
        taken.append((subject, operation, entries, size))
        return {"us": 1.0}

    monkeypatch.setattr(cases, "alone", slow)
    clock = iter((0.0, 16.2))
    monkeypatch.setattr(cases, "perf_counter", lambda: next(clock))
    bench = Bench(EFFORTS["full"], tmp_path)
    assert cases.reading("heapq", "expire", 10**5, 4_096, bench) == {"us": 1.0}
    for entries, seconds in ((10**6, 160), (10**7, 1_600)):
        with pytest.raises(NotMeasuredError, match=f"not tried: it would take about {seconds} s"):
            cases.reading("heapq", "expire", entries, 4_096, bench)
    assert taken == [("heapq", "expire", 10**5, 4_096)]
    with pytest.raises(NotMeasuredError, match="ends at 100,000 entries"):
        cases.reading("heapq", "expire", 10**6, 4_096, Bench(EFFORTS["short"], tmp_path))
