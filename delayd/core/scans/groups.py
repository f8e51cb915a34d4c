"""The groups of a topic: those with most ready jobs, with the oldest, or one after the other.

    GroupList(engine, topic_name, order, limit)    .rows, when it is over

A background task (`core.background_tasks`) that looks at every group once. In the order of names
`after` leads from page to page, also while groups come and go.

>>> from delayd.core.job_parts import Own
>>> from delayd.core.operations.put import put_keyed
>>> engine = Engine(start_ms=0)
>>> mail, what = engine.store.topic("mail"), {"priority": 0, "ttr_ms": 9, "body": b"", "now_ms": 0}
>>> for name in (b"acme", b"zeta", b"acme"):
...     _ = put_keyed(engine, mail, b"", own=Own(group=name), **what)
>>> groups = GroupList(engine, "mail", GroupOrder.READY, limit=1)
>>> while not groups.step(100, 0): pass
>>> [(row.name, row.ready) for row in groups.rows], groups.count
([('acme', 2)], 2)
"""

import enum
from heapq import nsmallest
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, final

from delayd.core.engine import Engine
from delayd.core.group_turns import Group, GroupBlock, Groups
from delayd.core.job_record import DUE_AT, U64
from delayd.core.operations.checks import check_range, topic_named
from delayd.core.ready_queue import ID_MASK
from delayd.core.times import RequestMs
from delayd.core.topic import Topic
from delayd.limits import GROUPS_SHOWN_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUP_COST: Final = 2
"""Jobs that could have been looked at in the time that one group takes."""


class GroupOrder(enum.Enum):
    """Which groups come first."""

    NAME = "name"
    READY = "ready"
    """Those with most ready jobs."""
    OLDEST = "oldest"
    """Those whose next job has been ready for longest."""
    RESERVED = "reserved"


class GroupRow(NamedTuple):
    """One group; times are delayd's."""

    name: str
    jobs: int
    ready: int
    reserved: int
    retrying: int
    """Delayed jobs that are to be tried again."""
    ready_since_ms: int | None
    """Since when the job that comes next has been ready; None: none is."""
    paused_until_ms: int | None
    weight: int
    block: GroupBlock | None
    """Why it hands out nothing now; None: it hands out what is ready."""


def group_row(topic: Topic, groups: Groups, group: Group) -> GroupRow:
    """Return what there is to say of a group of the topic."""
    return GroupRow(
        group.name.decode(),
        group.jobs,
        group.ready,
        group.reserved,
        group.retrying,
        _ready_since_ms(topic, groups, group),
        group.paused_until_ms or None,
        groups.weight(group),
        groups.block_of(group),
    )


def group_named(topic: Topic, name: bytes) -> GroupRow:
    """Return what there is to say of the group, also if no job has it."""
    groups = topic.queues.ready.groups
    group = None if groups is None else groups.by_name.get(name)
    if groups is not None and group is not None:
        return group_row(topic, groups, group)
    weights = () if topic.policy is None else topic.policy.group_rule.weights
    weight = dict(weights).get(name, 1)
    return GroupRow(name.decode(), 0, 0, 0, 0, None, None, weight, None)


def _ready_since_ms(topic: Topic, groups: Groups, group: Group) -> int | None:
    key = topic.queues.ready.first_of(group)
    record = None if key < 0 else groups.jobs.get(key & ID_MASK)
    if record is None:
        return None
    due_ms: int = U64.unpack_from(record, DUE_AT)[0]
    since = topic.queues.ready.ages.since
    return due_ms if since is None else since.get(key & ID_MASK, due_ms)


@final
class GroupList:
    """Looks for the first groups of a topic in an order."""

    def __init__(
        self,
        engine: Engine,
        topic_name: str,
        order: GroupOrder = GroupOrder.NAME,
        limit: int = GROUPS_SHOWN_MAX,
        after: str = "",
    ) -> None:
        """Begin behind the name `after`; `TopicNotFound`, `TopicNameInvalid`, `ValueOutOfRange`."""
        check_range("limit", limit, GROUPS_SHOWN_MAX, lowest=1)
        self._topic = topic_named(engine, topic_name)
        self._order = order
        self._limit = limit
        self._first = after
        groups = self._topic.queues.ready.groups
        self._left: Iterator[Group] = iter(() if groups is None else tuple(groups))
        self.rows: list[GroupRow] = []
        """In the order, once the list is over."""
        self.count = 0
        """How many groups there are."""
        self.after: str | None = None
        """In the order of names: behind which the next page begins; None: there is none."""

    def step(self, budget: int, _now_ms: RequestMs) -> bool:
        """Look at some more groups; tell whether that was all."""
        topic, groups = self._topic, self._topic.queues.ready.groups
        some = tuple(islice(self._left, max(1, budget // _GROUP_COST)))
        if groups is None or not some:
            self._finish()
            return True
        for group in some:
            if groups.by_name.get(group.name) is group:
                self.count += 1
                if not self._first or group.name.decode() > self._first:
                    self.rows.append(group_row(topic, groups, group))
        if len(self.rows) > 4 * self._limit:
            self.rows = nsmallest(self._limit + 1, self.rows, key=self._rank)
        return False

    def _finish(self) -> None:
        rows = nsmallest(self._limit + 1, self.rows, key=self._rank)
        self.rows = rows[: self._limit]
        if len(rows) > self._limit and self._order is GroupOrder.NAME:
            self.after = self.rows[-1].name

    def _rank(self, row: GroupRow) -> tuple[int, str]:
        """Return what is the least for the first; equals follow their names."""
        if self._order is GroupOrder.READY:
            return -row.ready, row.name
        if self._order is GroupOrder.RESERVED:
            return -row.reserved, row.name
        if self._order is GroupOrder.OLDEST:
            return (1 << 64 if row.ready_since_ms is None else row.ready_since_ms), row.name
        return 0, row.name
