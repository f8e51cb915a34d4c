"""Leases: session, deadline and lane say the same, whatever happens to a lease."""

from collections.abc import Callable

from delayd.core.leases import Leases
from delayd.core.session import NEVER_MS, Session
from delayd.core.timers import TimerQueue
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.wheel.buckets import WheelCounts
from delayd.core.wheel.wheel import TimingWheel


def new_wheel(due_of: Callable[[int], int | None]) -> TimingWheel:
    return TimingWheel(1, 20, 0, due_of, WheelCounts())


def new_leases() -> tuple[Leases, TimerQueue]:
    queue = TimerQueue()
    return Leases(new_wheel, queue), queue


def test_a_lease_fires_at_its_deadline() -> None:
    (leases, _), session = new_leases(), Session()
    leases.add(7, session, 50, PlayedMs(0))
    leases.check()
    assert (leases.sessions, session.deadlines, session.soonest_ms) == ({7: session}, {7: 50}, 50)
    assert list(leases.lane.wheel.advance(50, 10)) == [7]
    leases.remove(7, has_fired=True)
    leases.check()
    assert session.soonest_deadline() == NEVER_MS


def test_a_lease_that_ends_early_does_not_fire() -> None:
    (leases, _), session = new_leases(), Session()
    leases.add(7, session, 50, PlayedMs(0))
    leases.remove(7)
    leases.check()
    assert not leases.sessions
    assert list(leases.lane.wheel.advance(50, 10)) == []


def test_an_extended_lease_fires_at_its_new_deadline_and_not_before() -> None:
    (leases, _), session = new_leases(), Session()
    leases.add(7, session, 15, PlayedMs(0))
    leases.extend(7, 18, 15, PlayedMs(0))
    leases.check()
    assert list(leases.lane.wheel.advance(17, 10)) == []
    assert list(leases.lane.wheel.advance(18, 10)) == [7]


def test_a_lease_that_was_extended_keeps_when_it_began() -> None:
    (leases, _), session = new_leases(), Session()
    leases.add(7, session, 15, PlayedMs(5))
    assert (leases.begun_ms(7, 10), leases.begun) == (5, {})
    leases.extend(7, 18, 10, PlayedMs(8))
    leases.extend(7, 21, 10, PlayedMs(11))
    leases.check()
    assert (leases.begun_ms(7, 10), leases.begun) == (5, {7: 5})
    leases.remove(7)
    assert leases.begun == {}


def test_the_lane_is_queued_for_the_next_lease_to_fire() -> None:
    (leases, queue), session = new_leases(), Session()
    wakes = []
    for job_id, due_ms in ((1, 9), (2, 12), (3, 8)):
        leases.add(job_id, session, due_ms, PlayedMs(0))
        wakes.append((queue.next_deadline(), queue.changes))
    leases.extend(2, 4, 12, PlayedMs(0))
    wakes.append((queue.next_deadline(), queue.changes))
    assert wakes == [(9, 1), (9, 1), (8, 2), (4, 3)]


def test_leases_of_a_run_have_a_deadline_for_each_ttr() -> None:
    (leases, queue), session = new_leases(), Session()
    ttrs = [(30, [1, 2]), (10, [3]), (30, [4])]
    leased = leases.add_run(ttrs, session, RequestMs(5), PlayedMs(4))
    assert leased == [(35, [1, 2]), (15, [3]), (35, [4])]
    leases.check()
    assert (session.deadlines, session.soonest_ms) == ({1: 35, 2: 35, 3: 15, 4: 35}, 15)
    assert queue.next_deadline() == 15
