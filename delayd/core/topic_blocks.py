"""Why topics hand out nothing: they are paused, or at the limits of their policy; and until when.

A topic hands out jobs while its `blocks` are 0. Pauses and rates end by themselves: an alarm is set
for then, and `unpause` or `go_on` is called when it rings. That a topic is full ends when one of
its jobs comes back. The callers serve a topic that hands out again.
"""

from typing import Final, TypeAlias, final

from delayd.core.group_turns import Groups
from delayd.core.policy import Policy
from delayd.core.reminder import Reminder
from delayd.core.session import Session
from delayd.core.throttle import Block, Throttle
from delayd.core.timers import Alarms
from delayd.core.times import PlayedMs
from delayd.core.topic import Topic

AlarmOwner: TypeAlias = Session | Topic | Throttle | Groups | Reminder
"""What an alarm is for: a session's wait or a topic's pause ends, a throttle allows a job, a group
of a topic may hand out again, or the daemon has something to do."""
_PAUSED: Final = int(Block.PAUSED)
_FULL: Final = int(Block.FULL)
_SLOW: Final = int(Block.SLOW)


@final
class TopicBlocks:
    """The pauses and throttles of all topics."""

    __slots__ = ("_alarms", "paused", "tick_ms")

    def __init__(self, alarms: Alarms[AlarmOwner], tick_ms: int) -> None:
        """Start with none; alarms ring for the topic whose pause ends, or for the throttle."""
        self._alarms = alarms
        self.tick_ms = tick_ms
        self.paused: dict[int, tuple[int, int]] = {}
        """Number of a topic → until when it is paused, and how long that is; of all there are."""

    def silence(self, alarms: list[int]) -> list[AlarmOwner]:
        """Forget alarms that have rung; return their owners, before any of them is acted upon."""
        rung = self._alarms.take(alarms)
        for owner in rung:
            if isinstance(owner, Topic):
                owner.pause_alarm = None
            elif isinstance(owner, Throttle | Groups | Reminder):
                owner.alarm = None
            else:
                owner.wait_alarm = None
        return rung

    # --- Pauses ----------------------------------------------------------------------------------

    def pause(self, topic: Topic, until_ms: int, pause_ms: int, time_ms: PlayedMs) -> None:
        """Hand out nothing of the topic until then; with a `pause_ms` of 0, no longer pause it."""
        self.unpause(topic)
        if pause_ms:
            topic.blocks |= _PAUSED
            topic.pause_ms = pause_ms
            topic.paused_until_ms = until_ms
            topic.pause_alarm = self._alarms.add(until_ms, topic, time_ms)
            self.paused[topic.number] = (until_ms, pause_ms)

    def unpause(self, topic: Topic) -> None:
        """Let the topic hand out its jobs again."""
        if topic.pause_alarm is not None:
            self._alarms.cancel(topic.pause_alarm)
            topic.pause_alarm = None
        topic.blocks &= ~_PAUSED
        topic.pause_ms = 0
        topic.paused_until_ms = None
        self.paused.pop(topic.number, None)

    def renumber(self, topic: Topic, number: int) -> None:
        """Know the topic's pause by the number that it is about to get."""
        if topic.number in self.paused:
            self.paused[number] = self.paused.pop(topic.number)

    # --- Limits of a policy ----------------------------------------------------------------------

    def limit(self, topic: Topic, policy: Policy | None, time_ms: PlayedMs) -> None:
        """Have the topic hand out as this policy allows; what was used up stays so."""
        former, throttle = topic.throttle, None
        if policy is not None and (policy.reserved_max or policy.rate_per_s):
            throttle = Throttle(policy.reserved_max, policy.rate_per_s)
        topic.throttle = throttle
        if former is not None:
            if throttle is not None:
                throttle.go_on_from(former, time_ms)
            if former.alarm is not None:
                self._alarms.cancel(former.alarm)
            topic.blocks &= ~(_FULL | _SLOW)
        if throttle is not None:
            throttle.topic_name = topic.name
            self.restrain(topic, throttle, time_ms)

    def restrain(
        self, topic: Topic, throttle: Throttle, time_ms: PlayedMs, handed_out: int = 0
    ) -> None:
        """Stop the topic from handing out jobs while it is at its limits, or resume it.

        Call whenever more or fewer of its jobs are held, with how many were handed out.
        """
        if handed_out:
            throttle.take(handed_out, time_ms)
        if throttle.is_full(topic.reserved):
            topic.blocks |= _FULL
        else:
            topic.blocks &= ~_FULL
        if throttle.alarm is None and not throttle.is_allowed(time_ms):
            topic.blocks |= _SLOW
            throttle.alarm = self._alarms.add(throttle.next_ms(self.tick_ms), throttle, time_ms)

    def go_on(self, topic: Topic, throttle: Throttle, time_ms: PlayedMs) -> None:
        """Resume handing out, at the time that the topic's rate allows the next job."""
        topic.blocks &= ~_SLOW
        self.restrain(topic, throttle, time_ms)

    # --- Groups ----------------------------------------------------------------------------------

    def wake_groups_later(self, groups: Groups, time_ms: PlayedMs) -> None:
        """Set the alarm for when the next of the groups may hand out again by itself."""
        at_ms = groups.wakes_ms()
        if at_ms is not None and (groups.alarm is None or at_ms < groups.alarm_ms):
            self.forget_groups(groups)
            groups.alarm = self._alarms.add(at_ms, groups, time_ms)
            groups.alarm_ms = at_ms

    def forget_groups(self, groups: Groups) -> None:
        """Set no alarm for these groups any more."""
        if groups.alarm is not None:
            self._alarms.cancel(groups.alarm)
            groups.alarm = None
