"""The daemon's turns on a virtual clock: real sockets and no journal; nothing here sleeps."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from delayd import turns as turns_module
from delayd.clock import NEVER_NS, NS_PER_MS, VirtualClock
from delayd.core.log_records import Kind, pack_turn
from delayd.core.stats.counters import Operation
from delayd.core.stats.refusals import Refusals
from delayd.core.times import RequestMs
from delayd.limits import RETURNS_PER_STOP_TURN, RETURNS_PER_TURN, TASK_SLICE_US
from delayd.turns import Turns
from tests.core.check import check
from tests.line.test_sockets import Play
from tests.rigs.commit import CrankedLoop, set_watch
from tests.rigs.line_sockets import ARRIVAL_S_MAX, START_MS, ServerRig, heard
from tests.rigs.written import Fact, facts_of


class VirtualServer(ServerRig):
    """Everything of the service but its journal and its event loop."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START_MS)
        super().__init__(clock=self.clock)
        self.turns = Turns(
            *(self.engine, self.clock, self.poller, self.server, self.tasks, CrankedLoop())
        )

    @property
    def passed_ms(self) -> int:
        return self.clock.now_ms() - START_MS

    def turn(self, wait_s: float = 0.0) -> None:
        self.turns.turn(self.poller.poll(wait_s))

    def is_quiet(self, within_s: float = 0.0) -> bool:
        return self.turns._wait_s(0, NEVER_NS) != 0.0 and super().is_quiet(within_s)

    def answers(self, client: socket.socket, *lines: bytes) -> list[bytes]:
        self.says(client, b"".join(line + b"\r\n" for line in lines))
        return heard(client).split(b"\r\n")[:-1]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualServer]:
    """One that never has to break off because a slice of its time is over."""
    set_watch(monkeypatch)
    with VirtualServer() as server:
        yield server


class VirtualPlay(Play):
    """A story on a virtual clock."""

    def arrange(self, word: str, *words: str) -> None:
        rig = cast("VirtualServer", self.rig)
        match word:
            case "turns":
                for _ in range(int(words[0])):
                    rig.turn()
            case "settle":
                rig.turn_until_quiet()
            case "arrive":
                rig.turn(ARRIVAL_S_MAX)
            case "passed":
                assert rig.passed_ms == int(words[0])
            case "sleeps":
                assert rig.turns._wait_s(0, NEVER_NS) == pytest.approx(float(words[0]))
            case "busy" | "idle":
                rig.engine.is_calling = lambda: word == "busy"
            case "deadlines":
                job_id, ms = map(int, words)
                assert rig.engine.store.leases.sessions[1].deadlines == {job_id: START_MS + ms}
            case "no_tasks":
                assert not rig.tasks.has_more
            case _:
                super().arrange(word, *words)


@pytest.mark.parametrize(
    "story", facts_of(Path(__file__).parent / "virtual_clock.txt", " ; "), ids=str
)
def test_every_story_goes_as_written(story: Fact, server: VirtualServer) -> None:
    story.play(VirtualPlay(server, Refusals()).step)


def at(ms: int) -> bytes:
    return b"ADVANCED %d.%03d" % divmod(START_MS + ms, 1_000)


def test_others_are_served_while_the_clock_is_on_its_way(
    server: VirtualServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = server.client(), server.client()
    for delay in range(1, 51):
        server.answers(client, b"put 0 %d 60 1" % delay, b"x")
    looks = iter(range(0, 10**12, TASK_SLICE_US * 1_000))
    monkeypatch.setattr(turns_module, "monotonic_ns", looks.__next__)
    client.sendall(b"advance-clock 100\r\n")
    server.turn(ARRIVAL_S_MAX)
    times = [server.passed_ms]
    while times[-1] < 100_000:
        other.sendall(b"stats-tube default\r\n")
        server.turn(ARRIVAL_S_MAX)
        times.append(server.passed_ms)
    assert len(times) > 25, "others wait for the whole advance"
    assert heard(other).count(b"OK ") == len(times) - 1
    assert heard(client) == at(100_000) + b"\r\n"


def test_a_second_advance_counts_from_where_the_first_has_come_to(server: VirtualServer) -> None:
    first, second = server.client(), server.client()
    server.answers(first, b"put 0 5 60 1", b"x")
    first.sendall(b"advance-clock 10\r\n")
    second.sendall(b"advance-clock 10\r\n")
    server.turn_until_quiet(some=True)
    server.turn_until_quiet()
    told = sorted([heard(first), heard(second)])
    assert told[0] in {at(10_000) + b"\r\n", at(15_000) + b"\r\n"}
    assert told[1] == at(server.passed_ms) + b"\r\n"


def test_the_time_is_in_the_log_before_it_is_told(server: VirtualServer) -> None:
    client = server.client()
    server.engine.take_log()
    client.sendall(b"advance-clock 10\r\n")
    server.poller.serve(server.poller.poll(ARRIVAL_S_MAX))
    task = server.tasks.step(RequestMs(START_MS))
    assert task is not None
    task.conclude(RequestMs(START_MS))
    assert server.engine.take_log() == ([pack_turn(Kind.TURN, START_MS + 10_000)], True)
    ((_, reply),) = server.take_replies()
    assert reply == at(10_000) + b"\r\n"
    assert not server.server.take_free_replies()


def test_the_virtual_clock_takes_up_where_it_stopped() -> None:
    clock = VirtualClock()
    clock.resume(5_000, 5_000)
    assert (clock.now_ms(), clock.wall_ms(), clock.wall_offset_ns()) == (5_000, 5_000, (0, 0))
    assert clock.seconds_until(5_000) == 0.0


def test_a_virtual_clock_begins_at_the_time_of_the_system() -> None:
    before_ms = VirtualClock().now_ms()
    assert before_ms * NS_PER_MS > 1_700_000_000 * 1_000 * NS_PER_MS
    assert before_ms <= VirtualClock().now_ms()


def hold(server: VirtualServer, jobs: int, ttr: bytes = b"60") -> socket.socket:
    """Return a client that holds so many jobs."""
    holder = server.client()
    for done in range(0, jobs, 1_000):
        some = min(1_000, jobs - done)
        server.answers(holder, *(b"put 0 0 %b 1" % ttr, b"x") * some, *(b"reserve",) * some)
    assert server.engine.store.topics.by_name["default"].reserved == jobs
    return holder


def test_the_clock_goes_on_when_all_has_come_back_that_a_closed_client_held(
    server: VirtualServer,
) -> None:
    holder, client = hold(server, 1_000), server.client()
    holder.close()
    server.says(client, b"advance-clock 3600\r\n")
    assert heard(client) == at(3_600_000) + b"\r\n"
    operations = server.engine.store.counters.operations
    assert (operations[Operation.RETURN], operations[Operation.TIMEOUT]) == (1_000, 0)


def test_jobs_come_back_also_in_a_turn_that_hands_one_out(server: VirtualServer) -> None:
    holder, producer, worker = hold(server, 1_000), server.client(), server.client()
    server.answers(worker, b"watch other", b"ignore default")
    assert server.answers(worker, b"reserve") == []
    server.answers(producer, b"use other")
    holder.close()
    producer.sendall(b"put 0 0 60 1\r\nx\r\n")
    server.turn(ARRIVAL_S_MAX)
    left = server.engine.store.topics.by_name["default"].reserved
    assert heard(worker) == b"RESERVED 1001 1\r\nx\r\n"
    assert left < 1_000 - RETURNS_PER_TURN


@pytest.mark.thorough
def test_at_a_stop_more_comes_back_in_one_turn(server: VirtualServer) -> None:
    jobs = 2 * RETURNS_PER_STOP_TURN
    holder = hold(server, jobs - jobs % 100)
    server.server.close_clients()
    turns = 1
    while server.turns.return_some(server.clock.request_ms()):
        check(server.engine)
        turns += 1
    assert turns == 2
    assert not server.engine.store.leases.sessions
    holder.close()
