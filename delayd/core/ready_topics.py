"""Which topics have ready jobs: for consumers that watch many topics, and for what is pushed.

A reserve looks only at the topics in `stocked`, or at those watched where these are fewer. Whatever
finds one empty takes it out, so that a job that becomes ready costs one test of a flag
(`ReadyQueue.is_listed`). What a ready queue has noted of its lanes is passed on to the push lanes.
"""

from typing import TYPE_CHECKING, Final, final

from delayd.core.push_lanes import PushLanes
from delayd.core.ready_queue import TURNS, WHOLE_TOPIC
from delayd.core.throttle import Block

if TYPE_CHECKING:
    from delayd.core.topic import Topic

_HELD: Final = int(Block.HELD)


@final
class ReadyTopics:
    """The topics that have ready jobs, and some that had."""

    __slots__ = ("_lanes", "stocked")

    def __init__(self, lanes: PushLanes) -> None:
        self._lanes = lanes
        self.stocked: dict[Topic, None] = {}

    def note(self, topic: "Topic") -> None:
        """Note what has changed in the topic's ready queue; call it when something has."""
        ready, lanes = topic.queues.ready, self._lanes
        for origin in ready.changed:
            if origin == WHOLE_TOPIC:
                self.stocked[topic] = None
                if topic.is_pushed:
                    lanes.note(topic, WHOLE_TOPIC)
            elif origin == TURNS:
                if ready.is_held:
                    topic.blocks |= _HELD
                elif topic.blocks & _HELD:
                    topic.blocks &= ~_HELD
                    if not topic.blocks:
                        lanes.wake(topic)
            elif origin not in (ready.lanes or ()):
                lanes.unnote(topic, origin)
            elif not topic.is_pushed:
                lanes.note(topic, origin)
        ready.changed.clear()

    def unstock(self, topic: "Topic") -> None:
        """Note that the topic has no ready job."""
        topic.queues.ready.is_listed = False
        del self.stocked[topic]
        if topic.is_pushed:
            self._lanes.unnote(topic, WHOLE_TOPIC)

    def drop(self, topic: "Topic") -> None:
        """Forget the topic, whose ready jobs are gone."""
        if topic.queues.ready.is_listed:
            self.unstock(topic)
        self._lanes.forget(topic)

    def renew(self, topic: "Topic") -> None:
        """Tell of the topic's lanes anew: its jobs have another target now, or none."""
        lanes = self._lanes
        lanes.forget(topic)
        if topic.is_pushed:  # to the scheduler it is another lane
            lanes.heard.discard((topic, WHOLE_TOPIC))
        lanes.note_all(topic)
