"""What is wrong with a topic, so that people see the topics that need them first.

    untaken   a ready job has waited for a minute, and in that minute nobody took one or held one
    buried    jobs are buried: they wait for a person
    paused    it is paused, and so hands out nothing until the pause ends
    behind    a ready job has waited for a minute, although jobs are taken
    failing   attempts have failed in the last minute

A topic that is paused is neither untaken nor behind: that is wanted, and easily forgotten.

>>> from delayd.core.engine import Engine
>>> topic = Engine(start_ms=0).store.topic("mail")
>>> trouble_of(topic, 60_000, reserved_per_s=0.0, failed_per_s=0.0)
<Trouble.UNTAKEN: 'untaken'>
>>> trouble_of(topic, 60_000, reserved_per_s=0.5, failed_per_s=0.0)
<Trouble.BEHIND: 'behind'>
>>> topic.paused_until_ms = 90_000
>>> trouble_of(topic, 60_000, reserved_per_s=0.0, failed_per_s=0.0)
<Trouble.PAUSED: 'paused'>
"""

import enum

from delayd.core.topic import Topic
from delayd.limits import READY_AGE_TROUBLE_MS


class Trouble(enum.Enum):
    """What is wrong, the worst first."""

    UNTAKEN = "untaken"
    BURIED = "buried"
    PAUSED = "paused"
    BEHIND = "behind"
    FAILING = "failing"


def trouble_of(
    topic: Topic, ready_age_ms: int | None, reserved_per_s: float, failed_per_s: float
) -> Trouble | None:
    """Return the worst that is wrong with a topic; None: nothing.

    `ready_age_ms` is the age of its oldest ready job, the rates are those of the last minute.
    """
    is_old = ready_age_ms is not None and ready_age_ms >= READY_AGE_TROUBLE_MS
    is_paused = topic.paused_until_ms is not None
    waits = is_old and not is_paused
    if waits and not topic.reserved and not reserved_per_s:
        return Trouble.UNTAKEN
    if topic.queues.buried:
        return Trouble.BURIED
    if is_paused:
        return Trouble.PAUSED
    if waits:
        return Trouble.BEHIND
    return Trouble.FAILING if failed_per_s else None
