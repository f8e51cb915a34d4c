"""The ends of waits and pauses: alarms, on a wheel of their own.

The part of the store that has nothing to do with jobs. An alarm rings once, at its time, for the
session whose wait or the topic whose pause then ends, or for the throttle of a topic whose next job
is allowed then; its number is an entry of the wheel.
"""

from collections.abc import Callable
from typing import Final

from delayd.core.session import Session
from delayd.core.throttle import Block, Throttle
from delayd.core.timers import TimerLane, TimerQueue
from delayd.core.topic import Topic
from delayd.core.wheel.buckets import WheelCounts
from delayd.core.wheel.wheel import TimingWheel

_PAUSED: Final = int(Block.PAUSED)


class Alarms:
    """The time, who must be woken when, and which topics are paused."""

    def __init__(self, tick_ms: int, wheel_size: int, start_ms: int) -> None:
        """Start without alarms, at `start_ms` of delayd time."""
        self.tick_ms = tick_ms
        self.wheel_size = wheel_size
        self.time_ms = start_ms
        """Everything due by then has happened, or is settled when somebody asks."""
        self.agenda = TimerQueue()
        self.wheel_counts = WheelCounts()
        self.paused: dict[int, tuple[int, int]] = {}
        """Number of a topic → until when it is paused, and how long that is; of all there are."""
        self.alarms: dict[int, tuple[int, Session | Topic | Throttle]] = {}
        """Alarm → when it rings, and whose wait or pause then ends, or who may go on."""
        self.alarm_lane = TimerLane(self._wheel(self._alarm_rings))
        self._last_alarm = 0

    def _wheel(self, due_of: Callable[[int], int | None]) -> TimingWheel:
        counts = self.wheel_counts
        return TimingWheel(self.tick_ms, self.wheel_size, self.time_ms, due_of, counts)

    def _alarm_rings(self, alarm: int) -> int | None:
        row = self.alarms.get(alarm)
        return None if row is None else row[0]

    def pause(self, topic: Topic, until_ms: int, pause_ms: int) -> None:
        """Hand out nothing of the topic until then; with a `pause_ms` of 0, no longer pause it."""
        self.unpause(topic)
        if pause_ms:
            topic.blocks |= _PAUSED
            topic.pause_ms = pause_ms
            topic.paused_until_ms = until_ms
            topic.pause_alarm = self.set_alarm(until_ms, topic)
            self.paused[topic.number] = (until_ms, pause_ms)

    def unpause(self, topic: Topic) -> None:
        """Let the topic hand out its jobs again."""
        if topic.pause_alarm is not None:
            self.cancel_alarm(topic.pause_alarm)
            topic.pause_alarm = None
        topic.blocks &= ~_PAUSED
        topic.pause_ms = 0
        topic.paused_until_ms = None
        self.paused.pop(topic.number, None)

    def set_alarm(self, ring_ms: int, whose: Session | Topic | Throttle) -> int:
        """Have somebody's wait, pause or turn come at that time; return the alarm's number."""
        self._last_alarm += 1
        self.alarms[self._last_alarm] = (ring_ms, whose)
        if self.alarm_lane.wheel.insert(self._last_alarm, ring_ms, self.time_ms):
            self.agenda.queue(self.alarm_lane)
        return self._last_alarm

    def silence(self, alarms: list[int]) -> list[Session | Topic | Throttle]:
        """Forget alarms that have rung; return whose they were, before any is acted upon."""
        rung = [self.alarms.pop(alarm)[1] for alarm in alarms]
        for whose in rung:
            if isinstance(whose, Topic):
                whose.pause_alarm = None
            elif isinstance(whose, Throttle):
                whose.alarm = None
            else:
                whose.wait_alarm = None
        return rung

    def cancel_alarm(self, alarm: int) -> None:
        """Forget an alarm that has not rung."""
        ring_ms = self.alarms.pop(alarm)[0]
        self.alarm_lane.wheel.cancel(alarm, ring_ms)
