"""Circuit breakers: no attempts while they would fail, for each topic at each host.

    closed      attempts are made; failures that are the host's fault are counted
    open        after five in a row: none is made for a second, then two, four, … a minute at most
    half-open   that time is over: one attempt is made, the probe. It closes or opens the breaker

An attempt that was answered, even with a refusal of this one job, is no such failure. Attempts that
began before a breaker opened end later: one that succeeds closes it, one that fails changes
nothing.

>>> breaker = Breaker()
>>> for attempt in range(5):
...     probe = breaker.begin(now_ms=0)
...     breaker.fail(probe, now_ms=100)
>>> breaker.state, breaker.may_begin(now_ms=1_099), breaker.may_begin(now_ms=1_100)
(<BreakerState.OPEN: 1>, False, True)
>>> probe = breaker.begin(now_ms=1_100)
>>> probe, breaker.may_begin(now_ms=5_000)
(True, False)
>>> breaker.succeed()
>>> breaker.state.name
'CLOSED'

A topic whose jobs fail must not delay the good jobs of others, and a host that is down must not be
called by every topic. So each topic has a breaker at each host, and the host has one for all
topics. While the host's is closed, each topic's own decides. Five failures in a row, with no answer
to any topic between them, put the host *in doubt*:

- a topic that has not failed there is tried at once, with one call. If that fails, its breaker is
  open too. Topics do so one after the other: the next when the call before has ended, or after a
  second;
- all topics that have failed wait for one probe, which they take turns to make, by the host's
  breaker;
- one answer, to any topic, and the host is in doubt no longer. Each topic that has failed meanwhile
  may make a probe of its own at once.

>>> host = HostBreaker()
>>> bad, good = TopicBreaker(host), TopicBreaker(host)
>>> for attempt in range(5):
...     bad.fail(bad.begin(now_ms=0), now_ms=100)
>>> host.is_in_doubt, bad.may_begin(now_ms=100), good.may_begin(now_ms=100)
(True, False, True)
>>> good.begin(now_ms=100), good.may_begin(now_ms=100)
(<Probe.FIRST: 3>, False)
>>> good.succeed(Probe.FIRST, now_ms=110)
>>> host.is_in_doubt, bad.begin(now_ms=110), good.begin(now_ms=110)
(False, <Probe.OF_TOPIC: 1>, <Probe.NONE: 0>)

While other jobs wait, a probe *spares* its job: its failure is the host's and counts as no attempt.
That ends after a day; otherwise jobs for a host that is gone would wait for ever.

Time is an argument, in milliseconds of a clock that never stops: a breaker has to close again even
if delayd time stands still. A host may also be a sink, or another topic.
"""

import enum
from dataclasses import dataclass, field

from delayd.limits import (
    BREAKER_FAILURES,
    BREAKER_FIRST_PROBE_MS,
    BREAKER_FIRST_PROBES_MAX,
    BREAKER_OPEN_MS,
    BREAKER_OPEN_MS_MAX,
    BREAKER_SPARES_MS,
)


class BreakerState(enum.IntEnum):
    """Whether attempts are made."""

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2
    """A probe is under way."""


@dataclass(slots=True, eq=False)
class Breaker:
    """Counts failures in a row, and decides when the next attempt may begin."""

    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    """How many in a row."""
    opens_again_ms: int = 0
    """When a probe may begin, while it is open."""
    failed_ms: int = 0
    """When it opened for the last time, also after a probe."""
    _open_ms: int = 0
    _opened_ms: int = 0
    """When it opened, after it was closed."""

    def may_begin(self, now_ms: int) -> bool:
        """Tell whether an attempt may begin."""
        if self.state is BreakerState.OPEN:
            return now_ms >= self.opens_again_ms
        return self.state is BreakerState.CLOSED

    def begin(self, now_ms: int) -> bool:
        """Begin an allowed attempt; return whether it is the probe."""
        assert self.may_begin(now_ms), "no attempt may begin"
        if self.state is BreakerState.CLOSED:
            return False
        self.state = BreakerState.HALF_OPEN
        return True

    def spares(self, now_ms: int) -> bool:
        """Tell whether the failure of a probe that begins now may be free for its job."""
        return now_ms - self._opened_ms < BREAKER_SPARES_MS

    def succeed(self) -> None:
        """Note that an attempt was answered."""
        self.state = BreakerState.CLOSED
        self.failures = self._open_ms = 0

    def fail(self, is_probe: bool, now_ms: int) -> None:  # noqa: FBT001 (what `begin` returned)
        """Note that an attempt has failed by the host's fault."""
        if self.state is BreakerState.CLOSED:
            self.failures += 1
            if self.failures >= BREAKER_FAILURES:
                self.open(now_ms)
        elif is_probe:
            self.open(now_ms)

    def open(self, now_ms: int) -> None:
        """Open; for twice as long as the last time, if it is open."""
        if self.state is BreakerState.CLOSED:
            self._opened_ms = now_ms
        self.failures = max(self.failures, BREAKER_FAILURES)
        self.failed_ms = now_ms
        self.state = BreakerState.OPEN
        self._open_ms = min(2 * self._open_ms or BREAKER_OPEN_MS, BREAKER_OPEN_MS_MAX)
        self.opens_again_ms = now_ms + self._open_ms

    def give_up(self, is_probe: bool, now_ms: int) -> None:  # noqa: FBT001 (the same)
        """Note that an attempt ended without a result; after a probe the next one may begin."""
        if is_probe and self.state is BreakerState.HALF_OPEN:
            self.state = BreakerState.OPEN
            self.opens_again_ms = now_ms


class Probe(enum.IntEnum):
    """The breaker of which an attempt is the probe."""

    NONE = 0
    OF_TOPIC = 1
    """Of this topic's breaker: the host accepts jobs of others."""
    OF_HOST = 2
    """The breaker of the host, for all topics that have failed there."""
    FIRST = 3
    """Of a topic that has not failed at this host, while others have."""


@dataclass(slots=True, eq=False)
class HostBreaker:
    """The state of one host by the attempts of all topics."""

    breaker: Breaker = field(default_factory=Breaker)
    firsts: int = 0
    """First probes that are under way."""
    _first_ms: int = 0
    """When the last of them began."""
    alive_ms: int = -1
    """When the last doubt ended."""

    @property
    def is_in_doubt(self) -> bool:
        """Tell whether attempts there have failed, and none was answered since."""
        return self.breaker.state is not BreakerState.CLOSED

    @property
    def next_first_ms(self) -> int | None:
        """When a first probe may begin though another is under way; None: when one has ended."""
        if self.firsts >= BREAKER_FIRST_PROBES_MAX:
            return None
        return self._first_ms + BREAKER_FIRST_PROBE_MS

    def may_begin_first(self, now_ms: int) -> bool:
        """Tell whether a topic that has not failed there may make its first probe."""
        next_ms = self.next_first_ms
        return not self.firsts or (next_ms is not None and now_ms >= next_ms)

    def begin_first(self, now_ms: int) -> None:
        """Note that a topic makes its first probe."""
        self.firsts += 1
        self._first_ms = now_ms

    def succeed(self, now_ms: int) -> None:
        """Note that the host has answered."""
        if self.is_in_doubt:
            self.alive_ms = now_ms
        self.breaker.succeed()


@dataclass(slots=True, eq=False)
class TopicBreaker:
    """The state of one topic at one host, and when its next attempt may begin."""

    host: HostBreaker
    breaker: Breaker = field(default_factory=Breaker)
    has_first: bool = False
    """Its first probe is under way."""

    @property
    def state(self) -> BreakerState:
        """The state of the topic's own breaker."""
        return self.breaker.state

    @property
    def is_troubled(self) -> bool:
        """Tell whether attempts have failed, so that the breaker has to be kept."""
        return bool(self.breaker.failures)

    @property
    def begins_probes(self) -> bool:
        """Tell whether the next attempt is a probe."""
        return self.state is not BreakerState.CLOSED or self.host.is_in_doubt

    def may_begin(self, now_ms: int) -> bool:
        """Tell whether an attempt may begin."""
        own, host = self.breaker, self.host
        if not host.is_in_doubt:
            is_over = own.state is BreakerState.OPEN and own.failed_ms < host.alive_ms
            return is_over or own.may_begin(now_ms)
        if own.state is BreakerState.CLOSED:
            return not self.has_first and host.may_begin_first(now_ms)
        return own.state is BreakerState.OPEN and host.breaker.may_begin(now_ms)

    def begin(self, now_ms: int) -> Probe:
        """Begin an allowed attempt; return of which breaker it is the probe."""
        assert self.may_begin(now_ms), "no attempt may begin"
        own, host = self.breaker, self.host
        if own.state is BreakerState.CLOSED:
            if not host.is_in_doubt:
                return Probe.NONE
            self.has_first = True
            host.begin_first(now_ms)
            return Probe.FIRST
        own.state = BreakerState.HALF_OPEN
        return Probe.OF_HOST if host.breaker.begin(now_ms) else Probe.OF_TOPIC

    def spares(self, probe: Probe, now_ms: int) -> bool:
        """Tell whether the failure of a probe that begins now may be free for its job."""
        whose = self.breaker if probe is Probe.OF_TOPIC else self.host.breaker
        return probe is not Probe.NONE and whose.spares(now_ms)

    def succeed(self, probe: Probe, now_ms: int) -> None:
        """Note that the host has answered an attempt."""
        self._end_first(probe)
        self.breaker.succeed()
        self.host.succeed(now_ms)

    def fail(self, probe: Probe, now_ms: int) -> None:
        """Note that an attempt has failed by the host's fault."""
        self._end_first(probe)
        own, host = self.breaker, self.host.breaker
        if own.state is not BreakerState.CLOSED:
            # A topic that fails anyway tells nothing new of the host, unless all wait for it.
            own.fail(probe in {Probe.OF_TOPIC, Probe.OF_HOST}, now_ms)
            if probe is Probe.OF_HOST and host.state is BreakerState.HALF_OPEN:
                host.fail(True, now_ms)
        elif self.host.is_in_doubt:
            own.open(now_ms)
        else:
            own.fail(False, now_ms)
            host.fail(False, now_ms)

    def give_up(self, probe: Probe, now_ms: int) -> None:
        """Note that an attempt ended without a result; after a probe the next one may begin."""
        self._end_first(probe)
        self.breaker.give_up(probe in {Probe.OF_TOPIC, Probe.OF_HOST}, now_ms)
        self.host.breaker.give_up(probe is Probe.OF_HOST, now_ms)

    def _end_first(self, probe: Probe) -> None:
        if probe is Probe.FIRST:
            self.has_first = False
            self.host.firsts -= 1
