"""Lanes of jobs that are ready to be pushed, and which of them the scheduler has yet to hear of.

A lane is a topic and an origin, and its jobs go to one place. Jobs with a target of their own have
a lane for each scheme, host and port (`ReadyQueue.lanes`). A topic that has a target by its policy
is one lane, with no origin: its jobs are all that are ready, and the lanes of their own targets
rest. A job that was moved here, exhausted, is in no lane by its own target.

    note       a lane has a job that may be handed out: it is *fresh*, unless it is heard of
    take       the scheduler hears of all fresh lanes
    rest       it found nothing there to hand out, and need not ask again until it is fresh
    wake       a topic hands out jobs again, so what rested of it is fresh

So the scheduler hears of a lane once, however many jobs there are, and takes one after the other.
At times it finds none, since workers may have taken them; but it misses no lane that has jobs.

>>> from delayd.core.store import Store
>>> store = Store(tick_ms=1, wheel_size=256, start_ms=0)
>>> lanes, topic = store.push_lanes, store.topic("mail")
>>> lanes.note(topic, b"https://a.example"); lanes.note(topic, b"https://a.example")
>>> [origin for _, origin in lanes.take()], lanes.take()
([b'https://a.example'], [])
>>> lanes.note(topic, b"https://a.example"); lanes.take()
[]

All of it follows from the jobs and policies, so a replay leads to it.
"""

from typing import TYPE_CHECKING, final

from delayd.core.ready_queue import WHOLE_TOPIC

if TYPE_CHECKING:
    from delayd.core.topic import Topic

    Lane = tuple[Topic, bytes]
    """A topic and an origin; the origin is empty where the topic itself has a target."""


@final
class PushLanes:
    """Which lanes the scheduler is to hear of, and has heard of."""

    __slots__ = ("fresh", "heard", "resting")

    def __init__(self) -> None:
        self.fresh: dict[Topic, dict[bytes, None]] = {}
        """Topic → origins of lanes that the scheduler has not heard of since they rested."""
        self.heard: set[Lane] = set()
        """Lanes that it asks for jobs by itself."""
        self.resting: dict[Topic, None] = {}
        """Topics that hand out nothing now, and of which a lane with jobs rests."""

    def note(self, topic: "Topic", origin: bytes) -> None:
        """Note that a lane has a job which may be handed out."""
        if (topic, origin) not in self.heard:
            self.fresh.setdefault(topic, {})[origin] = None

    def unnote(self, topic: "Topic", origin: bytes) -> None:
        """Note that a lane has no job."""
        origins = self.fresh.get(topic)
        if origins is not None:
            origins.pop(origin, None)
            if not origins:
                del self.fresh[topic]

    def forget(self, topic: "Topic") -> None:
        """Forget the topic's lanes: its jobs are gone, or go elsewhere."""
        self.fresh.pop(topic, None)
        self.resting.pop(topic, None)

    def take(self) -> "list[Lane]":
        """Return the fresh lanes; from now on the scheduler has heard of them."""
        if not self.fresh:
            return []
        lanes = [(topic, origin) for topic, origins in self.fresh.items() for origin in origins]
        self.fresh = {}
        self.heard.update(lanes)
        return lanes

    def rest(self, lane: "Lane") -> None:
        """Note that the scheduler found nothing there to hand out."""
        self.heard.discard(lane)
        topic, origin = lane
        is_held = topic.is_pushed and not origin and topic.queues.ready.is_held
        if next_key(topic, origin) is not None or (is_held and topic.queues.ready.count):
            self.resting[topic] = None

    def wake(self, topic: "Topic") -> None:
        """Note that the topic may hand out jobs again; O(lanes) if it has some that rested."""
        if topic in self.resting:
            del self.resting[topic]
            self.note_all(topic)

    def note_all(self, topic: "Topic") -> None:
        """Note all of the topic's lanes that have a job."""
        if topic.is_pushed:
            if topic.queues.ready.is_listed:
                self.note(topic, WHOLE_TOPIC)
        else:
            for origin in topic.queues.ready.lanes or ():
                self.note(topic, origin)

    def check(self, topics: "list[Topic]") -> None:
        """Assert that the scheduler will hear of every lane with a job. O(lanes)."""
        for topic in topics:
            lanes = topic.queues.ready.lanes
            if topic.is_pushed:
                has_jobs = [WHOLE_TOPIC] if topic.queues.ready.is_listed else []
            else:
                has_jobs = [*(lanes or ())]
            fresh = self.fresh.get(topic, {})
            for origin in has_jobs:
                assert origin in fresh or (topic, origin) in self.heard or topic in self.resting
            assert fresh.keys() <= set(has_jobs)
        assert self.fresh.keys() | self.resting.keys() <= set(topics)


def next_key(topic: "Topic", origin: bytes, skips: int = 0) -> int | None:
    """Return the ready key of the lane's next job; None: there is none, or the lane rests.

    Or of the one that comes after so many others, counted round and round.
    """
    if topic.is_pushed == bool(origin):  # the topic's own target counts before those of its jobs
        return None
    return topic.queues.ready.key_at(origin, skips)
