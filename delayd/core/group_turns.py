"""The groups of one topic: which of them may hand out a job now, and whose turn it is.

A job may say which *group* it belongs to: a customer, an order, a host. The topic's policy
(`GroupRule`) says what a group may have at once and in a second, in which order its jobs go, and
whether the groups take turns. Jobs without a group are one of their own, without limits: the
*loose* ones.

All ready jobs of a topic are in one sorted list (`core.ready_queue`), where the key of a job begins
with the number of its group, and that of the loose ones is 0. So the jobs of a group lie side by
side, and its *head* is the first of them:

    number << 96 | priority << 64 | id        with `by_put`, in the order of puts, the priority is 0

Each group that has a ready job and may hand it out has one *turn*, in a sorted list as well, and
the least comes next. So a job costs O(log jobs), however many groups there are and however many
jobs of a group that is at its limits wait before it.

    turn    rank << 64 | id of the head
    rank    the priority of the head; where the policy is `fair`, the group's virtual time

Virtual time is start-time fair queueing (Goyal, Vin and Cheng, 1996) with jobs of one length. It is
what the group had that was served last. A group that is served goes ahead by 1 / weight of a round,
and one that gets a turn anew joins a round ahead of now, so that coming back is no advantage. Hence
a group whose turn has come waits at most for ⌈its weight⁻¹ · the weight of another⌉ + 1 jobs of
each other one, however many they have.

What closes a group and ends by itself is *timed*: a pause, and a rate that is used up. After a
change of the rule all groups are judged anew, a slice at a time (`pending`), and until then the
topic hands out nothing. The state of a group goes with its last job, once it has all of its rate
again.
"""

import enum
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Final, final

from delayd.core.job_parts import attempts_of, group_of
from delayd.core.job_record import PRIORITY_AND_TOPIC, PRIORITY_AT, STATE_AT, State
from delayd.core.job_table import JobTable
from delayd.core.policy import GroupRule
from delayd.core.sorted_keys import SortedKeys
from delayd.core.throttle import Throttle

NUMBER_SHIFT: Final = 96
"""Of a group's number in the key of a ready job; below it are the priority and the id."""
ROUND: Final = 1 << 40
"""By how much the virtual time of a group of weight 1 grows with a job."""
_DELAYED: Final = int(State.DELAYED)


class GroupBlock(enum.Enum):
    """Why a group hands out nothing."""

    PAUSED = "paused"
    FULL = "group_reserved_max"
    RETRYING = "group_on_retry"
    """A job of it waits for another attempt."""
    SLOW = "group_rate_per_s"


@final
class Group:
    """What is known of one group; that of the loose jobs counts only what is ready."""

    __slots__ = (
        *("by_put", "former", "head", "is_slow", "jobs", "name", "number", "origin"),
        *("paused_until_ms", "ready", "reserved", "retrying", "throttle", "turn", "turn_at"),
    )

    def __init__(self, name: bytes, number: int, *, by_put: bool) -> None:
        self.name = name
        self.number = number
        """In the keys of its ready jobs."""
        self.by_put = by_put
        """They are in the order of puts."""
        self.former = 0
        """The number that some of them have who are in the other order still; 0: none."""
        self.jobs = 0
        """Live jobs in whatever state."""
        self.ready = 0
        self.reserved = 0
        self.retrying = 0
        """Delayed jobs that have been worked on."""
        self.paused_until_ms = 0
        """0: it is not paused."""
        self.is_slow = False
        """Its rate is used up until the time that stands in `Groups.timed`."""
        self.throttle: Throttle | None = None
        """How much of its rate is used up; None before the first job."""
        self.head = -1
        """The ready key of the job that has its turn; -1: the group has none."""
        self.turn = -1
        self.turn_at = 0
        """Its virtual time."""
        self.origin = b""
        """The lane in which its head is, to be pushed; empty: none."""


@final
class Groups:
    """All groups of one topic that has some."""

    __slots__ = (
        *("_last_number", "_tick_ms", "_weights", "alarm", "alarm_ms", "by_name", "has_turns"),
        *("jobs", "loose", "now", "paused", "pending", "rule", "timed", "topic_name", "turns"),
    )

    def __init__(self, jobs: JobTable, topic_name: str, rule: GroupRule, tick_ms: int) -> None:
        """Begin without any; `jobs` has the records."""
        self.jobs = jobs
        self.topic_name = topic_name
        self.rule = rule
        self._tick_ms = tick_ms
        self._weights = dict(rule.weights)
        self._last_number = 0
        self.by_name: dict[bytes, Group] = {}
        self.loose = Group(b"", 0, by_put=False)
        self.turns = SortedKeys()
        self.has_turns = False
        """Whether there were any when the owner was told last."""
        self.now = 0
        """Virtual time."""
        self.paused: dict[bytes, tuple[int, int]] = {}
        """Name of a group → until when it is paused, and how long that is."""
        self.timed: list[tuple[int, int, Group]] = []
        """A heap of when groups may hand out again, with numbers to tell equals apart. Some may
        have been opened since."""
        self.pending: list[Group] = []
        """To be judged by the rule of now."""
        self.alarm: int | None = None
        self.alarm_ms = 0
        """When it rings, while it is set."""

    # --- Which group -----------------------------------------------------------------------------

    def of(self, record: bytes) -> Group:
        """Return the group of a job; it has been joined."""
        name = group_of(record)
        return self.by_name[name] if name else self.loose

    def join(self, name: bytes) -> None:
        """Count one job more of a group, the first of it perhaps."""
        self._named(name).jobs += 1

    def _named(self, name: bytes) -> Group:
        group = self.by_name.get(name)
        if group is None:
            group = Group(name, self._number(), by_put=self.rule.by_put)
            self.by_name[name] = group
        return group

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number

    def leave(self, name: bytes, time_ms: int) -> None:
        """Count one job less; the state of the group goes with its last one."""
        group = self.by_name[name]
        group.jobs -= 1
        self.drop_if_idle(group, time_ms)

    def drop_if_idle(self, group: Group, time_ms: int) -> None:
        """Forget the group if it has no job, is not paused, and has all of its rate again."""
        if group.jobs or group.is_slow or group.paused_until_ms or not group.number:
            return
        throttle = group.throttle
        if throttle is not None and not throttle.is_fresh(time_ms):
            self._time(group, throttle.fresh_ms(self._tick_ms))
        else:
            del self.by_name[group.name]

    def take_some(self, count: int) -> int:
        """Free some turns and groups of a topic that was cleared; return how many, 0 at the end."""
        taken = 0
        while taken < count and (self.turns or self.by_name):
            if self.turns:
                taken += len(self.turns.take_last(count - taken))
            else:
                self.by_name.popitem()
                taken += 1
        return taken

    @property
    def is_over(self) -> bool:
        """Tell whether there is no group any more."""
        return not (self.by_name or self.pending)

    # --- What a group may ------------------------------------------------------------------------

    def block_of(self, group: Group) -> GroupBlock | None:
        """Return why the group may hand out nothing; None: it may."""
        rule = self.rule
        if group.paused_until_ms:
            return GroupBlock.PAUSED
        if rule.reserved_max and group.reserved >= rule.reserved_max and group.number:
            return GroupBlock.FULL
        if group.retrying and rule.waits:
            return GroupBlock.RETRYING
        return GroupBlock.SLOW if group.is_slow else None

    def key(self, group: Group, priority: int, job_id: int) -> int:
        """Return the key of a ready job of the group."""
        order = job_id if group.by_put else priority << 64 | job_id
        return group.number << NUMBER_SHIFT | order

    def former_key(self, group: Group, priority: int, job_id: int) -> int:
        """Return the key of a ready job that is in the former order still."""
        order = priority << 64 | job_id if group.by_put else job_id
        return group.former << NUMBER_SHIFT | order

    def rank(self, group: Group, record: bytes) -> int:
        """Return where the turn of a group stands that has this head."""
        if not self.rule.fair:
            priority: int = PRIORITY_AND_TOPIC.unpack_from(record, PRIORITY_AT)[0]
            return priority
        if group.turn < 0:
            group.turn_at = max(group.turn_at, self.now + self._stride(group))
        return group.turn_at

    def _stride(self, group: Group) -> int:
        return ROUND // self.weight(group)

    def weight(self, group: Group) -> int:
        """Return how often its turn comes where that of others comes once."""
        return self._weights.get(group.name, 1)

    def served(self, group: Group, time_ms: int) -> None:
        """Count a job that the group hands out in its turn."""
        rule = self.rule
        if rule.fair:
            self.now = max(self.now, group.turn_at)
            group.turn_at += self._stride(group)
        if rule.rate_per_s and group.number:
            throttle = group.throttle
            if throttle is None:
                throttle = group.throttle = Throttle(None, rule.rate_per_s)
            throttle.take(1, time_ms)
            self._look_at_rate(group, time_ms)

    def _look_at_rate(self, group: Group, time_ms: int) -> None:
        """Note whether the rate is used up, and until when."""
        throttle = group.throttle
        group.is_slow = throttle is not None and not throttle.is_allowed(time_ms)
        if group.is_slow and throttle is not None:
            self._time(group, throttle.next_ms(self._tick_ms))

    # --- Time ------------------------------------------------------------------------------------

    def wakes_ms(self) -> int | None:
        """Return when something is to be done, 0 for now; None: nothing by itself."""
        if self.pending:
            return 0
        return self.timed[0][0] if self.timed else None

    def pause(self, name: bytes, until_ms: int, pause_ms: int) -> Group:
        """Hand out nothing of the group until then; 0: it is not paused any more."""
        group = self._named(name)
        group.paused_until_ms = until_ms
        if until_ms:
            self.paused[name] = until_ms, pause_ms
            self._time(group, until_ms)
        else:
            self.paused.pop(name, None)
        return group

    def _time(self, group: Group, until_ms: int) -> None:
        heappush(self.timed, (until_ms, self._number(), group))

    def take_timed(self, time_ms: int) -> Group | None:
        """Return a group whose time has come, opened as far as that goes; None: no other has."""
        if not self.timed or self.timed[0][0] > time_ms:
            return None
        _, _, group = heappop(self.timed)
        if 0 < group.paused_until_ms <= time_ms:
            group.paused_until_ms = 0
            del self.paused[group.name]
        if group.is_slow:
            self._look_at_rate(group, time_ms)
        return group

    # --- Another rule ----------------------------------------------------------------------------

    def follow(self, rule: GroupRule) -> None:
        """Follow another rule: all groups are pending."""
        self.rule = rule
        self._weights = dict(rule.weights)
        self.pending = [*self.by_name.values(), self.loose]

    def renew(self, group: Group, time_ms: int) -> None:
        """Give a pending group what the rule says of rate and order, and a turn as to all others.

        Its ready jobs that have the former order then have `Group.former` in their keys.
        """
        group.turn_at = self.now + self._stride(group)
        rate = self.rule.rate_per_s
        throttle = None if rate is None else Throttle(None, rate)
        if throttle is not None and group.throttle is not None:
            throttle.go_on_from(group.throttle, time_ms)
        group.throttle = throttle
        self._look_at_rate(group, time_ms)
        if group.number and group.by_put != self.rule.by_put and not group.former:
            if group.ready:
                group.former, group.number = group.number, self._number()
            group.by_put = self.rule.by_put

    # --- What others see -------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Group]:
        return iter(self.by_name.values())

    def check(self) -> None:
        """Assert that turns and times agree with the groups. O(groups)."""
        groups = [*self.by_name.values(), self.loose]
        for group in groups:
            assert group.jobs >= group.reserved + group.ready + group.retrying or not group.number
            assert (group.turn < 0) == (group.head < 0)
            if not self.pending:
                is_open = bool(group.ready) and self.block_of(group) is None
                assert (group.head >= 0) == is_open, f"{group.name!r} {group.ready}"
                assert not group.former
            assert (group.name in self.paused) == bool(group.paused_until_ms)
        assert sorted(group.turn for group in groups if group.turn >= 0) == [*self.turns]
        for group in groups:
            is_timed = any(each is group for _, _, each in self.timed)
            assert is_timed or not (group.is_slow or group.paused_until_ms), "it is never opened"
            assert is_timed or group.jobs or not group.number, f"{group.name!r} is idle"


def waits_again(record: bytes) -> bool:
    """Tell whether a job is delayed until another attempt."""
    return record[STATE_AT] == _DELAYED and attempts_of(record) > 0
