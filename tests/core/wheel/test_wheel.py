import random
import tracemalloc

import pytest

from delayd.core.wheel.wheel import BucketView, TimingWheel, ceil_to_tick
from delayd.limits import SORTED_ENTRIES_PER_SLOT
from tests.core.wheels import NO_LIMIT, Owned

TICKS_MS = (1, 3, 10, 1000)
SIZES = (2, 3, 20, 64, 256)
SORTED_MAX = 20 * SORTED_ENTRIES_PER_SLOT
"""Of `owned`."""
YEAR_MS = 365 * 24 * 3_600_000


@pytest.fixture
def owned() -> Owned:
    return Owned(tick_ms=1, wheel_size=20)


# --- The worked numbers of the design, and of the documents it is drawn from ----------------------


@pytest.mark.parametrize(
    ("due_ms", "level", "slot"),
    [
        (1, 1, 1),
        (19, 1, 19),
        (20, 2, 1),
        (350, 2, 17),
        (399, 2, 19),
        (400, 3, 1),
        (7999, 3, 19),
        (8000, 4, 1),
    ],
)
def test_intervals_of_a_wheel_of_20_are_20_400_and_8000(
    owned: Owned, due_ms: int, level: int, slot: int
) -> None:
    owned.insert(7, due_ms)
    assert owned.places()[7][:2] == (level, slot)


def test_446_450_455_and_473_share_a_bucket_of_level_3_that_comes_due_at_400(owned: Owned) -> None:
    for due_ms in (446, 450, 455, 473):
        owned.insert(due_ms, due_ms)
    assert owned.wheel.layout() == [BucketView(3, 1, 400, (446, 450, 455, 473))]
    assert owned.wheel.next_deadline() == 400


def test_450_cascades_to_40_60_of_level_2_then_to_10_11_of_level_1_and_fires_at_450(
    owned: Owned,
) -> None:
    owned.insert(450, 450)
    assert owned.advance(399) == []
    assert owned.places() == {450: (3, 1, 400)}
    assert owned.advance(400) == []
    assert owned.places() == {450: (2, 2, 400 + 40)}
    assert owned.advance(440) == []
    assert owned.places() == {450: (1, 10, 400 + 40 + 10)}
    assert owned.advance(449) == []
    assert owned.advance(450) == [(450, 450)]


def test_a_level_reaches_as_far_as_its_own_clock_and_interval_no_slot_is_taken_twice() -> None:
    owned = Owned(tick_ms=1, wheel_size=20, start_ms=395)
    owned.insert(1, 779)
    owned.insert(2, 780)
    # At 395 the clock of level 2 stands at 380, in slot 19, where 780 would go too.
    assert owned.places() == {1: (2, 18, 760), 2: (3, 1, 400)}


@pytest.mark.parametrize(
    ("due_ms", "place"),
    [
        (400, (1, 0, 400)),
        (419, (1, 19, 419)),
        (420, (2, 1, 420)),
        (439, (2, 1, 420)),
        (799, (2, 19, 780)),
    ],
)
def test_a_bucket_of_level_3_cascades_to_where_an_insert_at_its_time_would_go(
    due_ms: int, place: tuple[int, int, int]
) -> None:
    cascaded, inserted = (
        Owned(tick_ms=1, wheel_size=20),
        Owned(tick_ms=1, wheel_size=20, start_ms=400),
    )
    cascaded.insert(1, due_ms)
    inserted.insert(1, due_ms)
    cascaded.advance(400, limit=1)
    assert cascaded.places() == inserted.places() == {1: place}


# --- Never early, never late ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("time_ms", "tick_ms", "ceiling_ms"),
    [(0, 10, 0), (1, 10, 10), (9, 10, 10), (10, 10, 10), (11, 10, 20), (2**64 - 1, 1, 2**64 - 1)],
)
def test_times_are_rounded_up_to_the_tick(time_ms: int, tick_ms: int, ceiling_ms: int) -> None:
    assert ceil_to_tick(time_ms, tick_ms) == ceiling_ms


def boundaries(tick_ms: int, wheel_size: int, start_ms: int) -> list[int]:
    """Due times around the ends of the first five levels, seen from the start."""
    times = set()
    for level in range(6):
        interval_ms = tick_ms * wheel_size**level
        for end_ms in (start_ms + interval_ms, start_ms - start_ms % interval_ms + interval_ms):
            for near_ms in (-tick_ms, -1, 0, 1, tick_ms):
                times.add(end_ms + near_ms)
    return sorted(time_ms for time_ms in times if time_ms > start_ms)


@pytest.mark.parametrize("tick_ms", TICKS_MS)
@pytest.mark.parametrize("wheel_size", SIZES)
@pytest.mark.parametrize("start_ms", [0, 123_457])
def test_around_every_boundary_entries_fire_at_their_tick_and_not_a_ms_before(
    tick_ms: int, wheel_size: int, start_ms: int
) -> None:
    for due_ms in boundaries(tick_ms, wheel_size, start_ms):
        owned = Owned(tick_ms, wheel_size, start_ms)
        owned.insert(1, due_ms)
        owned.check()
        assert owned.advance(ceil_to_tick(due_ms, tick_ms) - 1) == []
        owned.check()
        assert owned.advance(ceil_to_tick(due_ms, tick_ms)) == [(due_ms, 1)]
        owned.check()


@pytest.mark.parametrize("wheel_size", SIZES)
def test_an_entry_wakes_the_loop_at_most_once_a_level(wheel_size: int) -> None:
    for due_ms in boundaries(1, wheel_size, 0):
        owned = Owned(1, wheel_size)
        owned.insert(1, due_ms)
        levels = len(owned.wheel._levels)
        turns = 0
        while (deadline_ms := owned.wheel.next_deadline()) is not None:
            owned.advance(deadline_ms)
            turns += 1
        assert turns <= levels


@pytest.mark.parametrize("wheel_size", SIZES)
@pytest.mark.parametrize("due_ms", [100 * YEAR_MS, 2**63, 2**64 - 1])
def test_there_is_no_longest_delay_short_of_64_bit_milliseconds(
    wheel_size: int, due_ms: int
) -> None:
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


@pytest.mark.parametrize(("due_ms", "place"), [(358, (2, 17, 340)), (360, (2, 18, 360))])
def test_what_belongs_into_the_bucket_of_the_one_before_goes_there_though_time_has_gone_on(
    owned: Owned, due_ms: int, place: tuple[int, int, int]
) -> None:
    owned.insert(1, 350)
    owned.now_ms = 339
    owned.insert(2, due_ms)
    assert owned.places() == {1: (2, 17, 340), 2: place}
    assert owned.run() == [(350, 1), (due_ms, 2)]


def test_insert_tells_when_the_loop_must_wake_earlier(owned: Owned) -> None:
    assert owned.insert(1, 300)
    assert not owned.insert(2, 300)
    assert not owned.insert(3, 1000)
    assert owned.insert(4, 10)
    assert owned.wheel.next_deadline() == 10


# --- Order and slices -----------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize("limit", [1, 2, 7, 100, NO_LIMIT])
@pytest.mark.parametrize("tick_ms", TICKS_MS)
@pytest.mark.parametrize("wheel_size", SIZES)
def test_small_steps_in_slices_fire_what_one_big_advance_does_in_the_same_order(
    tick_ms: int, wheel_size: int, limit: int, rng: random.Random
) -> None:
    big, small = (Owned(tick_ms, wheel_size, 77) for _ in range(2))
    for entry in range(300):
        due_ms = 77 + rng.randrange(1, 5000 * tick_ms)
        big.insert(entry, due_ms)
        small.insert(entry, due_ms)
    end_ms = 77 + 5001 * tick_ms
    at_once = big.advance(end_ms)
    assert sorted(at_once, key=lambda fired: ceil_to_tick(fired[0], tick_ms)) == at_once
    fired = []
    while small.now_ms < end_ms:
        small.now_ms = min(
            end_ms, small.now_ms + rng.randrange(1, rng.choice((100, 9_000)) * tick_ms)
        )
        while (small.wheel.next_deadline() or NO_LIMIT) <= small.now_ms:
            small.questions = 0
            fired += small.advance(small.now_ms, limit)
            assert small.questions <= limit
        small.check()
    assert fired == at_once
    assert len(fired) == 300


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
