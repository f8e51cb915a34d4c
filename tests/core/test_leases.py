"""Leases: session, deadline and lane say the same, whatever happens to a lease."""

from collections.abc import Callable

from delayd.core.leases import Leases
from delayd.core.session import NEVER_MS, Session
from delayd.core.times import PlayedMs
from delayd.core.wheel.buckets import WheelCounts
from delayd.core.wheel.wheel import TimingWheel


def new_wheel(due_of: Callable[[int], int | None]) -> TimingWheel:
    return TimingWheel(1, 20, 0, due_of, WheelCounts())


def test_a_lease_fires_at_its_deadline() -> None:
    leases, session = Leases(new_wheel), Session()
    assert leases.add(7, session, 50, PlayedMs(0))
    leases.check()
    assert (leases.sessions, session.deadlines, session.soonest_ms) == ({7: session}, {7: 50}, 50)
    assert list(leases.lane.wheel.advance(50, 10)) == [7]
    leases.remove(7, has_fired=True)
    leases.check()
    assert session.soonest_deadline() == NEVER_MS


def test_a_lease_that_ends_early_does_not_fire() -> None:
    leases, session = Leases(new_wheel), Session()
    leases.add(7, session, 50, PlayedMs(0))
    leases.remove(7)
    leases.check()
    assert not leases.sessions
    assert list(leases.lane.wheel.advance(50, 10)) == []


def test_an_extended_lease_fires_at_its_new_deadline_and_not_before() -> None:
    leases, session = Leases(new_wheel), Session()
    leases.add(7, session, 15, PlayedMs(0))
    leases.extend(7, 18, PlayedMs(0))
    leases.check()
    assert list(leases.lane.wheel.advance(17, 10)) == []
    assert list(leases.lane.wheel.advance(18, 10)) == [7]


def test_only_a_lease_that_is_the_next_to_fire_asks_for_the_lane_to_be_queued() -> None:
    leases, session = Leases(new_wheel), Session()
    assert [
        leases.add(job_id, session, due_ms, PlayedMs(0)) for job_id, due_ms in ((1, 9), (2, 12))
    ] == [
        True,
        False,
    ]
    assert leases.extend(2, 4, PlayedMs(0))
