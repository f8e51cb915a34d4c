"""The topics as they are now: their names, numbers, places, pauses, policies, and what wakes them.

Between alarms and jobs: `Topics` knows which topics there are and why one hands out nothing;
`Store` above it knows the jobs. Like the store it carries out what the engine has decided, live and
in a replay alike, and trusts its arguments.

A topic exists as long as it is wanted: used, watched, full of jobs, given a policy at run time, or
the target that another topic's exhausted jobs are moved to. In a replay nobody uses or watches
anything, so `keeps_topics` lets none of them vanish before it is over.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from delayd.core.alarms import Alarms
from delayd.core.stats.counters import Counters
from delayd.core.stats.latency import new_histogram
from delayd.core.stats.operations import COUNTED_APART, Operation
from delayd.core.stats.rates import Rates
from delayd.core.throttle import Block, Throttle
from delayd.core.timers import TimerLane
from delayd.core.topic import Source, Topic
from delayd.limits import RATE_CELL_MS, TOPICS_SHOWN_MAX

if TYPE_CHECKING:
    from delayd.core.policy import Policy

# For every job that is handed out; an enum member's arithmetic costs 40 ns more than an int's.
_PAUSED: Final = int(Block.PAUSED)
_FULL: Final = int(Block.FULL)
_SLOW: Final = int(Block.SLOW)


class Topics(Alarms):
    """All topics, by name and number, and what holds for each."""

    def __init__(
        self,
        tick_ms: int,
        wheel_size: int,
        start_ms: int,
        delay_ends: Callable[[int], int | None],
    ) -> None:
        """Start without any, at `start_ms`; `delay_ends` says when the delay of a job ends."""
        super().__init__(tick_ms, wheel_size, start_ms)
        self._due_of_delay = delay_ends
        self.topics: dict[str, Topic] = {}
        self.numbered: dict[int, Topic] = {}
        self.own: Topic | None = None
        """The daemon's own, while there is something in it; see `core.internal_topic`."""
        self.last_topic_number = 0
        self.listing: list[Topic] = []
        """The topics in order of creation, a removed one's place taken by the last (beanstalkd)."""
        self.keeps_topics = False
        """No topic vanishes: a replay goes on."""
        self.jobs_put = 0
        """Jobs taken in since the start, also by topics that have vanished since."""
        self.counters = Counters()
        self.shown = 0
        """Topics whose metrics have their name."""
        self.is_capped = False
        """There are caps on all jobs together, so no put goes unexamined."""
        self.policy_for: Callable[[str], Policy | None] | None = None
        """What the configuration says for a topic of that name; None during a replay."""

    def delays_lane(self) -> TimerLane:
        """Make a lane for the delays of a topic's jobs."""
        return TimerLane(self._wheel(self._due_of_delay))

    # --- Which there are -------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """Return the topic of that name, made when there is none yet."""
        topic = self.topics.get(name)
        return self.number_topic(name, self.last_topic_number + 1) if topic is None else topic

    def number_topic(self, name: str, number: int) -> Topic:
        """Give a topic its number, making it when there is none; a record is about to use it."""
        topic = self.topics.get(name)
        if topic is None:
            lane = self.delays_lane()
            topic = lane.topic = Topic(name, number, lane)
            topic.place = len(self.listing)
            topic.has_own_metrics = self.shown < TOPICS_SHOWN_MAX
            self.shown += topic.has_own_metrics
            self.mark_rules(topic)
            if topic.is_internal:
                self.own = topic
            self.listing.append(topic)
            self.topics[name] = topic
        else:
            # It vanished and has come back: pause and policy of its earlier life are not its own.
            self.pause(topic, 0, 0)
            self.set_policy(topic, None, Source.CONFIGURATION)
            del self.numbered[topic.number]
            topic.number = number
        self.numbered[number] = topic
        self.last_topic_number = max(self.last_topic_number, number)
        if self.policy_for is not None:
            policy = self.policy_for(name)
            if policy is not None:
                self.set_policy(topic, policy, Source.CONFIGURATION)
        return topic

    def drop_if_unwanted(self, topic: Topic) -> None:
        """Let the topic vanish when nobody uses or watches it and it holds no job."""
        if topic.is_wanted or self.keeps_topics or self.topics.get(topic.name) is not topic:
            return
        self.unpause(topic)
        self.agenda.forget(topic.delays)
        del self.topics[topic.name]
        del self.numbered[topic.number]
        if topic.is_internal:
            self.own = None
        self.shown -= topic.has_own_metrics
        last = self.listing.pop()
        if last is not topic:
            self.listing[topic.place] = last
            last.place = topic.place
        if topic.policy is not None:
            self.set_policy(topic, None, Source.CONFIGURATION)

    # --- Figures ---------------------------------------------------------------------------------

    def roll(self, topic: Topic) -> None:
        """Begin a new cell of the topic's rates: something is about to be counted.

        Once in `RATE_CELL_MS`, so what is made anew or tidied up now and then has its place here.
        """
        topic.roll_ms = self.time_ms + RATE_CELL_MS
        if topic.rates is None:
            topic.rates = Rates()
            topic.waited = new_histogram()
        topic.rates.begin(self.time_ms, (topic.jobs_put, topic.reserves, topic.deletes))
        topic.ages.tidy()
        counters = self.counters
        if self.time_ms >= counters.rates.next_ms:
            counts = (self.jobs_put, counters.reserves, counters.deletes)
            counters.rates.begin(self.time_ms, counts)

    def count(self, topic: Topic, operation: Operation, jobs: int = 1) -> None:
        """Count what happened to jobs of the topic; not put, reserve and delete."""
        assert operation >= COUNTED_APART, f"{operation.word} is counted apart"
        if not topic.operations:
            topic.operations = [0] * len(Operation)
        topic.operations[operation] += jobs
        self.counters.operations[operation] += jobs

    def begin_figures(self) -> None:
        """Count from zero: what was counted so far was the past. O(topics)."""
        self.jobs_put = 0
        self.counters = Counters()
        self.wheel_counts.cascaded = 0
        for topic in self.listing:
            topic.begin_figures()
            topic.ages.tidy()

    # --- Policies --------------------------------------------------------------------------------

    def set_policy(self, topic: Topic, policy: "Policy | None", source: Source) -> None:
        """Let this hold for the topic from now on; None: nothing but what holds for all.

        The topic that its exhausted jobs are moved to is made when there is none yet.
        """
        topic.policy = policy
        topic.policy_source = source
        self.mark_rules(topic)
        former, topic.target = topic.target, None
        # Moved to where it is, a job would be buried the next time; so it is at once.
        if policy is not None and policy.exhausted not in {None, topic.name}:
            topic.target = self.topic(policy.exhausted or "")
            topic.target.feeders += 1
        if former is not None:
            former.feeders -= 1
            self.drop_if_unwanted(former)
        self._set_throttle(topic, policy)

    def mark_rules(self, topic: Topic) -> None:
        """Let puts into the topic know whether they have to look at what holds for it."""
        topic.has_no_rules = topic.policy is None and not self.is_capped and not topic.is_internal

    def _set_throttle(self, topic: Topic, policy: "Policy | None") -> None:
        former, throttle = topic.throttle, None
        if policy is not None and (policy.reserved_max or policy.rate_per_s):
            throttle = Throttle(policy.reserved_max, policy.rate_per_s)
        topic.throttle = throttle
        if former is not None:
            if throttle is not None:
                throttle.go_on_from(former, self.time_ms)
            if former.alarm is not None:
                self.cancel_alarm(former.alarm)
            topic.blocks &= _PAUSED
        if throttle is not None:
            throttle.topic = topic
            self.restrain(topic, throttle)

    def restrain(self, topic: Topic, throttle: Throttle, handed_out: int = 0) -> None:
        """Let the topic hand out nothing while its limits say so, or let it go on.

        To be called whenever more or fewer of its jobs are held, with how many were handed out.
        """
        if handed_out:
            throttle.take(handed_out, self.time_ms)
        if throttle.is_full(topic.reserved):
            topic.blocks |= _FULL
        else:
            topic.blocks &= ~_FULL
        if throttle.alarm is None and not throttle.is_allowed(self.time_ms):
            topic.blocks |= _SLOW
            throttle.alarm = self.set_alarm(throttle.next_ms(self.tick_ms), throttle)

    def go_on(self, throttle: Throttle) -> Topic:
        """Let the topic hand out its next job: its alarm has rung."""
        topic = throttle.topic
        assert topic is not None
        topic.blocks &= ~_SLOW
        self.restrain(topic, throttle)
        return topic
