import tracemalloc

import pytest

from delayd.core.wheel.wheel import BucketView, TimingWheel, ceil_to_tick
from delayd.limits import SORTED_ENTRIES_PER_SLOT
from tests.core.wheels import NO_LIMIT, Owned

SORTED_MAX = 20 * SORTED_ENTRIES_PER_SLOT
"""Of `owned`."""


@pytest.fixture
def owned() -> Owned:
    return Owned(tick_ms=1, wheel_size=20)


# --- The worked numbers of the design, and of the documents it is drawn from ----------------------


@pytest.mark.parametrize(
    ("start_ms", "places"),
    [
        (0, {1: (1, 1, 1), 19: (1, 19, 19), 20: (2, 1, 20), 350: (2, 17, 340), 399: (2, 19, 380)}),
        (0, {400: (3, 1, 400), 799: (3, 1, 400), 7999: (3, 19, 7600), 8000: (4, 1, 8000)}),
        # At 395 the clock of level 2 stands at 380, in slot 19, where 780 would go too.
        (395, {779: (2, 18, 760), 780: (3, 1, 400)}),
    ],
)
def test_intervals_of_a_wheel_of_20_are_20_400_and_8000(
    start_ms: int, places: dict[int, tuple[int, int, int]]
) -> None:
    owned = Owned(start_ms=start_ms)
    for due_ms in places:
        owned.insert(due_ms, due_ms)
    assert owned.places() == places


def test_a_bucket_cascades_to_where_inserts_at_its_time_would_go(owned: Owned) -> None:
    inserted = Owned(start_ms=400)
    dues_ms = (400, 419, 420, 439, 799) * SORTED_MAX
    for entry, due_ms in enumerate(dues_ms):
        owned.insert(entry, due_ms)
        inserted.insert(entry, due_ms)
    assert owned.wheel.next_deadline() == 400
    assert owned.advance(400, limit=len(dues_ms)) == []
    assert owned.wheel.layout() == inserted.wheel.layout()


# --- Never early, never late: wheel.test_wheel_model ----------------------------------------------


@pytest.mark.parametrize(
    ("time_ms", "tick_ms", "ceiling_ms"),
    [(0, 10, 0), (1, 10, 10), (9, 10, 10), (10, 10, 10), (11, 10, 20), (2**64 - 1, 1, 2**64 - 1)],
)
def test_times_are_rounded_up_to_the_tick(time_ms: int, tick_ms: int, ceiling_ms: int) -> None:
    assert ceil_to_tick(time_ms, tick_ms) == ceiling_ms


@pytest.mark.parametrize("wheel_size", [2, 256])
def test_there_is_no_longest_delay_short_of_64_bit_milliseconds(wheel_size: int) -> None:
    for due_ms in (2**63, 2**64 - 1):
        owned = Owned(1, wheel_size)
        owned.insert(2**64 - 1, due_ms)
        assert owned.run() == [(due_ms, 2**64 - 1)]


def test_a_clock_that_goes_back_fires_nothing_and_loses_nothing() -> None:
    owned = Owned(start_ms=1000)
    owned.insert(1, 1500)
    assert owned.advance(1400) == []
    assert owned.advance(900) == []
    assert owned.wheel._clock_ms == 1400
    owned.check()
    assert owned.advance(1500) == [(1500, 1)]


def test_an_insert_after_a_long_idle_time_is_placed_by_the_clock_of_today(owned: Owned) -> None:
    owned.now_ms = 1_000_000
    owned.insert(1, 1_000_005)
    assert owned.places()[1][0] == 1


# --- Order and slices -----------------------------------------------------------------------------


def test_a_crowd_due_at_one_instant_is_cascaded_and_fired_in_slices(owned: Owned) -> None:
    for entry in range(10_000):
        owned.insert(entry, 450)
    fired = []
    turns = 0
    while (deadline_ms := owned.wheel.next_deadline()) is not None and deadline_ms <= 450:
        fired += owned.advance(450, limit=100)
        turns += 1
    assert [entry for _, entry in fired] == list(range(10_000))
    assert turns == 3 * 10_000 / 100


def test_while_a_bucket_is_pending_the_wheel_asks_to_be_called_again_at_once(owned: Owned) -> None:
    for entry in range(SORTED_MAX + 1):
        owned.insert(entry, 450)
    for _ in range(SORTED_MAX):
        owned.advance(400, limit=1)
        assert owned.wheel.next_deadline() == 400
    owned.advance(400, limit=1)
    assert owned.wheel.next_deadline() == 440


# --- Few entries are sorted -----------------------------------------------------------------------


def test_few_entries_wake_the_loop_once_each_after_their_bucket_came_due() -> None:
    owned = Owned(1, 256)
    dues_ms = [3_600_000 + 137 * number for number in range(200)]
    for entry, due_ms in enumerate(dues_ms):
        owned.insert(entry, due_ms)
    deadlines = []
    while (deadline_ms := owned.wheel.next_deadline()) is not None:
        deadlines.append(deadline_ms)
        owned.advance(deadline_ms)
        owned.check()
    early = [due_ms for due_ms in dues_ms if due_ms < 3_604_480]
    assert deadlines == [3_538_944, *early, 3_604_480, *dues_ms[len(early) :]]


def test_what_was_sorted_and_what_comes_between_fire_in_order(owned: Owned) -> None:
    for entry, due_ms in enumerate((450, 449, 473, 450)):
        owned.insert(entry, due_ms)
    assert owned.advance(400) == []
    for entry, due_ms in enumerate((450, 448, 472, 1000), 10):
        owned.insert(entry, due_ms)
    owned.cancel(2)
    assert owned.wheel.layout() == [
        BucketView(2, 2, 440, (1, 0, 3, 10, 11)),
        BucketView(2, 3, 460, (2, 12)),
        BucketView(3, 2, 800, (13,)),
    ]
    owned.check()
    fired = owned.run()
    assert fired[:5] == [(448, 11), (449, 1), (450, 0), (450, 3), (450, 10)]
    assert fired[5:] == [(472, 12), (1000, 13)]
    assert owned.held() == 0


def test_a_bucket_is_cascaded_when_too_many_would_be_sorted(owned: Owned) -> None:
    for entry in range(SORTED_MAX):
        owned.insert(entry, 790)
    owned.advance(400)
    assert owned.wheel.next_deadline() == 790
    owned.insert(1000, 450)
    owned.advance(440)
    assert owned.wheel.next_deadline() == 450
    owned.check()
    assert len(owned.run()) == SORTED_MAX + 1


# --- Cancelled and rescheduled entries ------------------------------------------------------------


def test_a_cancel_is_right_before_and_after_the_owner_has_changed_its_mind() -> None:
    due_ms = {1: 450, 2: 450}
    wheel = TimingWheel(1, 20, 0, due_ms.get)
    wheel.insert(1, 450, 0)
    wheel.insert(2, 450, 0)
    wheel.cancel()
    del due_ms[1]
    del due_ms[2]
    wheel.cancel()
    wheel.check()
    assert len(wheel) == 0
    assert wheel.advance(1000, NO_LIMIT) == []


# --- The soonest ----------------------------------------------------------------------------------


def test_asking_again_for_the_soonest_does_not_go_over_the_crowd_again() -> None:
    owned = Owned(tick_ms=1, wheel_size=256)
    for entry in range(10_000):
        owned.insert(entry, 3_600_000 + entry)
    assert owned.wheel.soonest(2) == [0, 1]
    owned.questions = 0
    assert owned.wheel.soonest(2) == [0, 1]
    assert owned.questions <= 10


# --- Size -----------------------------------------------------------------------------------------


def test_an_empty_wheel_takes_less_than_a_kilobyte() -> None:
    due_ms: dict[int, int] = {}
    tracemalloc.start()
    wheels = [TimingWheel(1, 256, 1 << 41, due_ms.get) for _ in range(100)]
    bytes_held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert bytes_held / len(wheels) < 1000
