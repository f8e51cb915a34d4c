from collections.abc import Callable
from pathlib import Path

import pytest

from delayd.clock import NS_PER_MS, Clock, SystemClock, processor_wait_ns
from tests.rigs.clock import FakeClock

WALL_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


class Machine:
    """The two clocks of a machine, set by hand."""

    def __init__(self, *, boot_ns: int = 7_000_000, wall_ns: int = WALL_MS * NS_PER_MS) -> None:
        self.boot_ns = boot_ns
        self.wall_ns = wall_ns

    def clock(self) -> SystemClock:
        return SystemClock(boot_ns=lambda: self.boot_ns, wall_ns=lambda: self.wall_ns)

    def pass_time(self, by_ns: int) -> None:
        self.boot_ns += by_ns
        self.wall_ns += by_ns


class MachineClock:
    """A system clock whose machine is moved through it, as FakeClock is."""

    def __init__(self) -> None:
        self.machine = Machine()
        clock = self.machine.clock()
        self.now_ms, self.request_ms, self.read = clock.now_ms, clock.request_ms, clock.read
        self.seconds_until, self.resume = clock.seconds_until, clock.resume
        self.wall_ms, self.wall_at = clock.wall_ms, clock.wall_at
        self.wall_offset_ns = clock.wall_offset_ns

    def advance(self, by_ms: int) -> None:
        self.machine.pass_time(by_ms * NS_PER_MS)

    def step_wall(self, by_ms: int) -> None:
        self.machine.wall_ns += by_ms * NS_PER_MS


MovableClock = MachineClock | FakeClock
both_clocks = pytest.mark.parametrize("new_clock", [MachineClock, FakeClock])


@both_clocks
@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, -WALL_MS, 80 * 365 * 24 * HOUR_MS])
def test_delayd_time_starts_on_the_wall_clock_and_is_not_moved_by_setting_it(
    new_clock: Callable[[], MovableClock], step_ms: int
) -> None:
    clock = new_clock()
    protocol: Clock = clock
    assert protocol.now_ms() == clock.wall_ms() == WALL_MS
    clock.advance(1_234)
    assert clock.now_ms() == clock.wall_ms() == WALL_MS + 1_234
    assert clock.wall_at(clock.now_ms() - 1_000) == WALL_MS + 234
    clock.step_wall(step_ms)
    assert clock.now_ms() == WALL_MS + 1_234
    assert clock.wall_ms() == WALL_MS + 1_234 + step_ms
    assert clock.wall_at(clock.now_ms() - 1_000) == WALL_MS + 234 + step_ms
    assert clock.wall_offset_ns() == (step_ms * NS_PER_MS, step_ms * NS_PER_MS)
    clock.advance(5)
    assert clock.now_ms() == WALL_MS + 1_239


@both_clocks
@pytest.mark.parametrize(
    ("stopped_ms", "at_wall_ms", "resumed_ms"),
    [
        (1_000_000, WALL_MS - 30_000, 1_030_000),
        (WALL_MS + 7, WALL_MS + HOUR_MS, WALL_MS + 7),  # the wall clock went back meanwhile
        (WALL_MS + HOUR_MS, WALL_MS, WALL_MS + HOUR_MS),
    ],
)
def test_a_stop_is_bridged_by_the_wall_clock(
    new_clock: Callable[[], MovableClock], stopped_ms: int, at_wall_ms: int, resumed_ms: int
) -> None:
    clock = new_clock()
    clock.resume(last_time_ms=stopped_ms, last_wall_ms=at_wall_ms)
    assert clock.now_ms() == resumed_ms
    clock.advance(60_001)
    assert clock.now_ms() == resumed_ms + 60_001
    assert clock.now_ms() - clock.wall_ms() == resumed_ms - WALL_MS


def test_now_is_the_millisecond_that_has_begun_and_a_suspended_machine_counts() -> None:
    machine = Machine()
    clock = machine.clock()
    machine.pass_time(NS_PER_MS - 1)
    assert clock.now_ms() == clock.wall_ms() == WALL_MS
    machine.pass_time(1)
    assert clock.now_ms() == clock.wall_ms() == WALL_MS + 1
    machine.boot_ns += HOUR_MS * NS_PER_MS  # the boot-time clock goes on while the machine sleeps
    assert clock.now_ms() == WALL_MS + 1 + HOUR_MS


def test_a_resume_carries_over_to_the_nanosecond_and_never_starts_early() -> None:
    machine = Machine(boot_ns=123_456_789, wall_ns=WALL_MS * NS_PER_MS + 999_999)
    clock = machine.clock()
    clock.resume(last_time_ms=500, last_wall_ms=WALL_MS)
    assert clock.now_ms() == 500
    machine.pass_time(1)
    assert clock.now_ms() == 501


def test_the_real_clocks_are_read_by_default() -> None:
    clock = SystemClock()
    first_ms = clock.now_ms()
    assert clock.now_ms() >= first_ms
    assert abs(clock.wall_ms() - clock.now_ms()) < 60_000


def test_how_long_the_thread_waited_for_a_processor_is_what_the_kernel_counts() -> None:
    counted = Path("/proc/thread-self/schedstat")
    if not counted.exists():
        pytest.skip("this kernel does not count it")
    least = int(counted.read_text().split()[1])
    assert least <= processor_wait_ns() <= int(counted.read_text().split()[1])
