"""The open loop: what a server does wrong, or late, is seen, whatever it does to its clients.

The server of these tests speaks over socket pairs, on a clock that each turn of the loop advances
by a millisecond.
"""

import contextlib
import socket
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.lateness import measures, open_loop
from benchmarks.lateness.beside import Churn, Probe
from benchmarks.lateness.open_loop import (
    STRAGGLERS_S,
    UNANSWERED_MAX,
    Loop,
    Offer,
    at_random,
    spread,
    steadily,
)
from benchmarks.line import UnexpectedReplyError
from benchmarks.registry import NotMeasuredError
from benchmarks.servers.account import JobAccount
from benchmarks.servers.beanstalk import BeanstalkDialect
from benchmarks.servers.delayd import DelaydPeer
from benchmarks.servers.peer import Dialect
from benchmarks.servers.redis import Vanilla
from tests.benchmarks.test_servers import FaultyServer

TURN_S = 0.001


class Rig:
    """A loop on a clock of its own, a server, and what connects them."""

    port = 0

    def __init__(self) -> None:
        self.server = FaultyServer(now=0.0)
        self.loop = Loop(lambda: self.server.now, turn_s=0.0)
        self.stalls_s = (0.0, 0.0)
        """The server does nothing from the one until the other."""
        self.room = 0
        self.ends: list[socket.socket] = []
        self._said: defaultdict[socket.socket, bytes] = defaultdict(bytes)
        self.loop.each_turn(self._serve)

    def _serve(self, _: float) -> None:
        self.server.now += TURN_S
        first, last = self.stalls_s
        if first <= self.server.now < last:
            return
        for end in self.ends:
            with contextlib.suppress(BlockingIOError):
                said = self._said[end] + end.recv(1 << 20, socket.MSG_DONTWAIT)
                self._said[end] = said[self.server.tell(said, end.sendall) :]
        self.server.answer()

    def connect(self, _: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        if self.room:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.room)
        self.ends.append(theirs)
        return ours

    def dialect(self, body_bytes: int) -> Dialect:
        return BeanstalkDialect(body_bytes)

    def offer(self, workers: int = 1, producers: int = 1) -> Offer:
        return Offer(self.loop, self, workers=workers, delay_ms=1_000, producers=producers)

    def played(self, rate: float, seconds: float, **offer: int) -> Offer:
        """Offer jobs at this rate for so long, and let all come."""
        made = self.offer(**offer)
        made.start(steadily(rate))
        self.loop.run_for(seconds)
        made.drain()
        return made

    def turn(self, count: int = 1) -> None:
        left = iter((*[False] * count, True))
        self.loop.run(lambda _: next(left))


@pytest.fixture
def rig(monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    rig = Rig()
    monkeypatch.setattr(open_loop, "connect", rig.connect)
    yield rig
    rig.loop.close()
    for end in rig.ends:
        end.close()


def late_ms(offer: Offer, first: float, last: float) -> Sequence[int]:
    """The lateness of those due in a span, in whole milliseconds."""
    return [round(late * 1e3) for late in offer.verdict(first, last).lateness_s]


def test_a_server_that_does_what_it_should_is_never_late(rig: Rig) -> None:
    offer = rig.played(100, 3)
    verdict = offer.verdict(1, 4)
    assert max(late_ms(offer, 1, 4)) <= 2
    assert (verdict.early, verdict.lost, verdict.doubled) == (0, 0, 0)
    assert len(verdict.lateness_s) == offer.offered == pytest.approx(300, abs=2)


def test_a_stall_is_seen_by_each_job_that_was_due_in_it(rig: Rig) -> None:
    rig.stalls_s = (2.0, 2.5)
    offer = rig.played(100, 5)
    # The load goes on: the stall neither spreads nor thins it out.
    assert offer.offered == pytest.approx(500, abs=2)
    in_stall = late_ms(offer, 2.0, 2.5)
    assert len(in_stall) == pytest.approx(50, abs=1)
    # Due after 0, 10, 20 … ms of it: 500, 490, 480 … ms late, and a while for the one worker.
    assert in_stall[0] == pytest.approx(500, abs=5)
    assert sorted(in_stall)[len(in_stall) // 2] == pytest.approx(300, abs=60)
    # What was put in the stall was due a second after it was offered.
    assert max(late_ms(offer, 3.0, 3.5)) == pytest.approx(500, abs=5)
    assert max(late_ms(offer, 1.0, 1.95)) <= 2


@pytest.mark.thorough
def test_what_a_full_socket_does_not_take_counts_from_when_it_was_offered(rig: Rig) -> None:
    rig.room = 4_096
    rig.stalls_s = (0.5, 3.5)
    offer = rig.played(200, 5, workers=8)
    assert offer.offered == pytest.approx(1_000, abs=3)
    # Offered at 1 s, due at 2 s, read by the server at 3.5 s and so due there at 4.5 s.
    assert late_ms(offer, 2.0, 2.004)[0] == pytest.approx(2_500, abs=30)
    assert max(seconds for seconds, _ in offer.answers) == pytest.approx(3.0, abs=0.03)
    assert offer.verdict(0, 9).lost == 0


def test_a_job_that_comes_before_it_is_due_is_early(rig: Rig) -> None:
    rig.server.fault, rig.server.is_odd = "is early", bool
    verdict = rig.played(10, 2).verdict(0, 9)
    assert verdict.early == len(verdict.lateness_s) > 0
    assert verdict.values()["early"] == verdict.early


def test_a_job_that_does_not_come_is_lost_and_late_until_it_is_given_up(rig: Rig) -> None:
    offer = rig.offer()
    rig.server.fault, rig.server.is_odd = "loses", (4).__eq__
    offer.start(steadily(10))
    rig.loop.run_for(0.95)
    assert offer.verdict(0, 9).early == 0  # none has come, and none is due
    offer.drain()
    verdict = offer.verdict(0, 9)
    assert (verdict.early, verdict.lost) == (0, 1)
    assert max(verdict.lateness_s) > STRAGGLERS_S - 1


def test_a_job_that_comes_twice_is_doubled(rig: Rig) -> None:
    rig.server.fault, rig.server.is_odd = "doubles", (4).__eq__
    verdict = rig.played(10, 3).verdict(0, 9)
    assert (verdict.doubled, verdict.lost) == (1, 0)


def test_a_job_that_nobody_offers_is_an_error(rig: Rig) -> None:
    offer = Offer(rig.loop, rig, workers=1, delay_ms=1_000, first=1_000)
    offer.start(steadily(10))
    rig.loop.run_for(1.5)
    assert offer.arrived > 0
    worker = rig.ends[-1]
    worker.sendall(b"RESERVED 7 100\r\n%0100d\r\n" % 0)
    with pytest.raises(UnexpectedReplyError, match="job 0 arrived"):
        rig.turn(2)


def test_producers_take_turns_and_the_time_of_a_put_ends_with_its_own_answer(rig: Rig) -> None:
    offer = rig.offer(workers=0, producers=3)
    rig.stalls_s = (0.1, 0.3)
    offer.start(steadily(100))
    rig.loop.run_for(0.5)
    offer.stop()
    rig.loop.run(lambda _: offer.is_answered())
    times_ms = [round(s * 1e3) for s, count in offer.answers for _ in range(count)]
    assert len(times_ms) == offer.offered == pytest.approx(50, abs=1)
    assert max(times_ms) == pytest.approx(200, abs=3)
    assert sum(time > 2 for time in times_ms) == pytest.approx(20, abs=1)


def test_a_worker_waits_for_each_reply(rig: Rig) -> None:
    rig.stalls_s = (0.0, 99.0)  # the test speaks in its place
    offer = rig.offer()
    producer, worker = rig.ends
    offer.start(iter([0.0, 99.0]))
    rig.turn()
    assert producer.recv(1 << 16).startswith(b"put 0 1 ")
    assert worker.recv(1 << 16) == b"reserve\r\n"
    body = b"%010d" % 0 + b"x" * 90
    worker.sendall(b"RESERVED 7 100\r\n" + body + b"\r\n")
    rig.turn(2)
    assert worker.recv(1 << 16) == b"delete 7\r\n"
    worker.sendall(b"DELETED\r\n")
    rig.turn(2)
    assert worker.recv(1 << 16) == b"reserve\r\n"
    assert offer.arrived == 1


def test_a_saturated_offer_puts_one_job_for_each_that_arrives(rig: Rig) -> None:
    offer = rig.offer()
    offer.saturate(0.0005)
    rig.turn(3)
    assert offer.offered == UNANSWERED_MAX
    rig.turn(1_100)
    assert offer.arrived > 0
    assert offer.offered == UNANSWERED_MAX + offer.arrived


def test_a_burst_that_is_put_too_late_has_no_negative_delays_and_is_not_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    delays_ms: list[int] = []

    def slow_fill(
        _server: object, _account: JobAccount, _load: object, jobs: int, delay_ms: Callable[[], int]
    ) -> None:
        nonlocal now
        _account.put(jobs, 0.0)
        now += jobs / 1_000 if jobs < 1_000 else 99.0  # a trial, and what it promised is not kept
        delays_ms.append(delay_ms())

    monkeypatch.setattr(measures, "fill", slow_fill)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    with pytest.raises(NotMeasuredError, match=r"10,000 puts took longer than .* 1 requests"):
        measures.put_for_instant(0, DelaydPeer("always", is_compiled=False), 10_000, 1.0)
    assert delays_ms[-1] == 0


def test_a_worker_that_polls_asks_again_after_the_pause(rig: Rig) -> None:
    rig.stalls_s = (0.0, 99.0)  # the test speaks in its place
    redis: Any = SimpleNamespace(port=0, dialect=Vanilla)
    Offer(rig.loop, redis, workers=1, delay_ms=1_000, poll_s=0.1)
    worker = rig.ends[-1]
    worker.setblocking(False)
    rig.turn()
    assert worker.recv(1 << 16)
    worker.sendall(b"*0\r\n")
    rig.turn(99)
    with pytest.raises(BlockingIOError):
        worker.recv(1)
    rig.turn(3)
    assert worker.recv(1 << 16)


def test_moments_at_random_have_the_rate_and_any_phase_of_a_millisecond() -> None:
    moments = at_random(200, Random(7))
    found = [next(moments) for _ in range(4_000)]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(20, rel=0.1)
    phases = [moment * 1e3 % 1 for moment in found]
    assert all(sum(low <= p < low + 0.25 for p in phases) > 800 for low in (0, 0.25, 0.5, 0.75))


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (0, set()),
        (1, {"least_ms", "worst_ms"}),
        (99, {"least_ms", "p50_ms", "p90_ms", "worst_ms"}),
        (1_000, {"least_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "worst_ms"}),
    ],
)
def test_a_percentile_that_one_job_alone_would_set_is_left_out(count: int, names: set[str]) -> None:
    assert spread([0.001] * count).keys() == names


def test_the_longest_wait_of_a_probe_includes_the_one_under_way(rig: Rig) -> None:
    probe = Probe(rig.loop, 0)
    end = rig.ends[-1]
    rig.turn(2)
    end.sendall(b"USING default\r\n")
    rig.turn(2)
    assert probe.longest_s == pytest.approx(0.002, abs=0.0015)
    rig.turn(50)
    assert probe.longest_s < 0.005
    assert probe.held_s() == pytest.approx(0.05, abs=0.003)


def test_what_makes_a_snapshot_due_deletes_all_that_it_put(rig: Rig) -> None:
    rig.room = 4 << 20
    rig.stalls_s = (0.0, 99.0)  # the test speaks in its place
    churn = Churn(rig.loop, 0)
    rig.turn(2)
    churn.stop()
    end = rig.ends[-1]
    end.sendall(b"INSERTED 7\r\n" * 16)
    rig.turn(3)
    assert not churn.is_done
    end.sendall(b"DELETED\r\n" * 16)
    rig.turn(3)
    assert churn.is_done
