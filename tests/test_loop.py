"""The loop until asyncio takes over: who is called when, on a clock that the test moves."""

import asyncio
import os
import select
import signal
import threading
from collections.abc import Iterator

import pytest

from delayd.loop import MainLoop

MS = 1_000_000


class Rig:
    """A loop, the time, and who was called."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.loop = MainLoop(lambda: self.now_ns)
        self.called: list[str] = []

    def note(self, name: str) -> None:
        self.called.append(name)

    def is_woken(self) -> bool:
        return bool(select.select([self.loop.fileno()], [], [], 0)[0])


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.loop.close()


def test_timers_are_called_when_they_are_due_in_their_order(rig: Rig) -> None:
    for name, delay_s in (("c", 0.02), ("a", 0.01), ("b", 0.01)):
        rig.loop.call_later(delay_s, lambda name=name: rig.note(name))  # type: ignore[misc]
    assert rig.loop.wait_s() == 0.01
    rig.now_ns = 10 * MS - 1
    rig.loop.call_due()
    assert rig.called == []
    rig.now_ns = 10 * MS
    rig.loop.call_due()
    assert rig.called == ["a", "b"]
    assert rig.loop.wait_s() == 0.01
    rig.now_ns = 50 * MS
    assert rig.loop.wait_s() == 0
    rig.loop.call_due()
    assert rig.called == ["a", "b", "c"]
    assert rig.loop.wait_s() is None


def test_a_timer_that_sets_itself_again_lets_the_loop_sleep_in_between(rig: Rig) -> None:
    def again() -> None:
        rig.note("again")
        rig.loop.call_later(0, again)

    again()
    rig.loop.call_due()
    assert rig.called == ["again"] * 2
    assert rig.loop.wait_s() == 0


def test_a_call_of_another_thread_wakes_the_loop(rig: Rig) -> None:
    assert not rig.is_woken()
    thread = threading.Thread(
        target=rig.loop.call_soon_threadsafe, args=[lambda: rig.note("called")]
    )
    thread.start()
    thread.join()
    assert rig.is_woken()
    assert rig.loop.wait_s() == 0
    rig.loop.call_due()
    assert rig.called == ["called"]
    assert not rig.is_woken()
    assert rig.loop.wait_s() is None


@pytest.mark.thorough
def test_no_call_is_lost_when_more_come_than_the_pipe_holds(rig: Rig) -> None:
    for _ in range(70_000):
        rig.loop.call_soon_threadsafe(lambda: rig.note("x"))
    rig.loop.call_due()
    assert len(rig.called) == 70_000


def test_a_signal_wakes_the_loop_and_is_carried_out_there(rig: Rig) -> None:
    rig.loop.add_signal_handler(signal.SIGUSR1, lambda: rig.note("signal"))
    os.kill(os.getpid(), signal.SIGUSR1)
    assert rig.is_woken()
    assert rig.called == []
    rig.loop.call_due()
    assert rig.called == ["signal"]


def test_a_signal_wakes_the_loop_before_its_handler_is_carried_out(rig: Rig) -> None:
    """Or one that comes just before the loop sleeps would be carried out after the sleep."""
    rig.loop.add_signal_handler(signal.SIGUSR1, lambda: None)
    woken_by = signal.set_wakeup_fd(-1)
    assert not rig.is_woken()
    os.write(woken_by, b"\0")
    assert rig.is_woken()


def test_it_runs_until_it_is_told_to_stop_and_sleeps_no_longer_than_it_may(rig: Rig) -> None:
    slept: list[float | None] = []

    def sleep(wait_s: float | None) -> None:
        slept.append(wait_s)
        if wait_s is None:
            rig.loop.call_soon_threadsafe(rig.loop.stop)
        else:
            rig.now_ns += int(wait_s * 1_000_000_000)

    rig.loop.call_later(0.5, lambda: rig.note("timer"))
    rig.loop.run(sleep)
    assert rig.called == ["timer"]
    assert slept == [0.5, None]


def test_asyncio_takes_over_timers_calls_of_threads_and_signals(rig: Rig) -> None:
    loop, done = rig.loop, asyncio.Event()
    loop.call_later(0.02, done.set)
    loop.call_later(0.01, lambda: rig.note("timer"))
    loop.call_soon_threadsafe(lambda: rig.note("before"))
    loop.add_signal_handler(signal.SIGUSR1, lambda: rig.note("signal"))
    rig.now_ns = 10 * MS

    async def go_on() -> None:
        loop.hand_over(asyncio.get_running_loop(), done.set)
        assert loop.wait_s() == 0, "the call is still to be made"
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.to_thread(loop.call_soon_threadsafe, lambda: rig.note("thread"))
        await done.wait()
        assert loop.wait_s() is None
        done.clear()
        loop.call_later(0.001, loop.stop)
        await done.wait()

    asyncio.run(go_on())
    assert sorted(rig.called) == ["before", "signal", "thread", "timer"]


def test_who_asks_for_a_call_in_a_turn_ends_the_sleep_after_it(rig: Rig) -> None:
    assert not rig.loop.is_woken
    rig.loop.call_later(1, lambda: None)
    assert rig.loop.is_woken


def test_a_loop_that_is_closed_leaves_signals_as_they_were() -> None:
    loop = MainLoop()
    loop.add_signal_handler(signal.SIGUSR2, lambda: None)
    loop.close()
    assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
