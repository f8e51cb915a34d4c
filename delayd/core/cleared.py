"""What a clear leaves: jobs that are deleted for every client, and not swept yet.

Deleting two million jobs takes seconds; a clear takes microseconds. It gives the topic another
number and new, empty queues. A job at rest whose record still has an old number is *cleared*:

    before    topic "mail" is 7      records of its jobs say 7
    cleared   topic "mail" is 9      at rest, record says 7: cleared. No operation finds it
                                     reserved, record says 7: stays, and says 9 once it is back
                                     put from now on: says 9

Number 7 leads to the topic until the last of them has gone, the cleared ones swept by `Store.sweep`
a slice at a time, reserved ones deleted or given back (`topic.old_held` counts them). A cleared job
costs nothing but its memory. Until then no snapshot is begun: a copy would have to look at every
job twice.
"""

from typing import TYPE_CHECKING, final

from delayd.core.topic import Topic

if TYPE_CHECKING:
    from delayd.core.queues import Queues


@final
class ClearedJobs:
    """The queues that a topic had when it was cleared, and its number then."""

    __slots__ = ("number", "queues", "topic")

    def __init__(self, topic: Topic) -> None:
        """Keep the queues that the topic is about to lose."""
        self.topic = topic
        self.number = topic.number
        self.queues: Queues = topic.queues
