"""Circuit breakers, of a topic at a host and of the host: the facts of breakers.txt."""

from pathlib import Path
from typing import Final

import pytest

from delayd.push.breaker import Breaker, HostBreaker, Probe, TopicBreaker
from tests.fact_rows import rows

FACTS: Final = dict(rows(Path(__file__).parent / "breakers.txt"))


class Bench:
    """A breaker by itself, breakers of topics at one host, and their clock."""

    def __init__(self) -> None:
        self.now_ms = 50_000
        self.lone = Breaker()
        self.host = HostBreaker()
        self.topics: dict[str, TopicBreaker] = {}
        self.probes: dict[str, Probe] = {}
        """What `begin` has said last."""

    def take(self, step: str) -> str:
        who, act, *more = step.split()
        if who == "go":
            self.now_ms += int(act)
        elif who == "host":
            return self.of_host(act)
        elif act == "fails":
            for _ in range(int(more[0])):
                self.begin(who)
                self.end(who, "fail")
        elif act == "waits":
            return " ".join(str(self.wait_for_probe(who)) for _ in range(int(more[0])))
        elif act in {"begin", "may", "state"}:
            return str(getattr(self, act)(who))
        else:
            self.end(who, act, is_old="old" in more)
        return ""

    def of_host(self, what: str) -> str:
        match what:
            case "doubt":
                return "yes" if self.host.is_in_doubt else "no"
            case "first":
                return "none" if self.host.next_first_ms is None else "some"
        return f"{self.host.breaker.state.name.lower()} {self.host.breaker.failures}"

    def breaker(self, who: str) -> Breaker | TopicBreaker:
        return self.lone if who == "lone" else self.topics.setdefault(who, TopicBreaker(self.host))

    def may(self, who: str) -> str:
        return "yes" if self.breaker(who).may_begin(self.now_ms) else "no"

    def state(self, who: str) -> str:
        state = self.breaker(who).state.name.lower()
        return f"{state} {self.lone.failures}" if who == "lone" else state

    def begin(self, who: str) -> str:
        if not self.breaker(who).may_begin(self.now_ms):
            with pytest.raises(AssertionError, match="no attempt may begin"):
                self.breaker(who).begin(self.now_ms)
            return "refused"
        self.probes[who] = Probe(self.breaker(who).begin(self.now_ms))
        is_probe = self.probes[who] is not Probe.NONE
        return self.probes[who].name.lower() if who != "lone" else "probe" if is_probe else "none"

    def end(self, who: str, act: str, *, is_old: bool = False) -> None:
        probe = Probe.NONE if is_old else self.probes.get(who, Probe.NONE)
        breaker = self.breaker(who)
        if isinstance(breaker, TopicBreaker):
            getattr(breaker, act)(probe, self.now_ms)
        elif act == "succeed":
            breaker.succeed()
        else:
            getattr(breaker, act)(bool(probe), self.now_ms)

    def wait_for_probe(self, who: str) -> int:
        """Wait until it may begin, and fail then."""
        breaker = self.breaker(who)
        own = breaker.breaker if isinstance(breaker, TopicBreaker) else breaker
        wait_ms = own.opens_again_ms - self.now_ms
        self.now_ms += wait_ms - 1
        assert not breaker.may_begin(self.now_ms)
        self.now_ms += 1
        assert self.begin(who) != "none"
        self.end(who, "fail")
        return wait_ms


@pytest.mark.parametrize("name", FACTS)
def test_fact(name: str) -> None:
    bench = Bench()
    for step in FACTS[name].given.split("; "):
        bench.take(step)
    for steps, outcome in FACTS[name].then:
        *others, last = steps.split("; ")
        for step in others:
            bench.take(step)
        assert bench.take(last) == outcome, steps
