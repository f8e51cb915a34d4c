"""The daemon's turns on a virtual clock: real sockets and no journal; nothing here sleeps."""

import socket
import struct
from collections.abc import Iterator

import pytest

from delayd import turns as turns_module
from delayd.clock import NEVER_NS, NS_PER_MS, STANDING_S, VirtualClock
from delayd.core.log_records import Kind, pack_turn
from delayd.core.stats.counters import Operation
from delayd.core.times import RequestMs
from delayd.limits import RETURNS_PER_STOP_TURN, RETURNS_PER_TURN, SYNC_BREATHER_MS, TASK_SLICE_US
from delayd.turns import Turns
from tests.core.check import check
from tests.rigs.commit import CrankedLoop, set_watch
from tests.rigs.line_sockets import ARRIVAL_S_MAX, START_MS, ServerRig, heard


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

    def waits(self, client: socket.socket) -> None:
        assert self.answers(client, b"reserve") == []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualServer]:
    """One that never has to break off because a slice of its time is over."""
    set_watch(monkeypatch)
    with VirtualServer() as server:
        yield server


def at(ms: int) -> bytes:
    return b"ADVANCED %d.%03d" % divmod(START_MS + ms, 1_000)


def test_time_stands_until_it_is_advanced(server: VirtualServer) -> None:
    client = server.client()
    server.answers(client, b"put 0 604800 60 1", b"x")
    for _ in range(100):
        server.turn()
    assert server.passed_ms == 0
    assert server.answers(client, b"advance-clock 0") == [at(0)]


def test_the_clock_stands_still_while_jobs_are_called(server: VirtualServer) -> None:
    client = server.client()
    calls: list[int] = []
    server.engine.is_calling = lambda: bool(calls)
    client.sendall(b"put 0 60 60 1\r\nx\r\nadvance-clock 604800\r\n")
    calls.append(1)
    for _ in range(100):
        server.turn()
    assert server.passed_ms == 0
    assert server.turns._wait_s(0, NEVER_NS) == SYNC_BREATHER_MS / 1_000, "it spins"
    calls.clear()
    server.turn_until_quiet()
    assert heard(client).split(b"\r\n")[1:-1] == [at(604_800_000)]


def test_a_waiting_worker_holds_its_job_from_the_moment_it_was_due(server: VirtualServer) -> None:
    client, worker = server.client(), server.client()
    server.answers(client, b"put 0 2.5 60 1", b"x")
    server.waits(worker)
    assert server.answers(client, b"advance-clock 40") == [at(40_000)]
    assert heard(worker) == b"RESERVED 1 1\r\nx\r\n"
    assert server.engine.store.leases.sessions[1].deadlines == {1: START_MS + 2_500 + 60_000}


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


def test_who_says_no_more_is_still_answered(server: VirtualServer) -> None:
    client = server.client()
    server.answers(client, b"put 0 5 60 1", b"x")
    client.sendall(b"advance-clock 10\r\nreserve-with-timeout 0\r\n")
    client.shutdown(socket.SHUT_WR)
    server.turn_until_quiet(some=True)
    assert client.recv(1_000) == at(10_000) + b"\r\nRESERVED 1 1\r\nx\r\n"
    assert client.recv(1_000) == b""


def test_an_advance_whose_connection_breaks_is_forgotten(server: VirtualServer) -> None:
    client, other = server.client(), server.client()
    server.waits(other)
    server.answers(client, b"put 0 5 60 1", b"x")
    client.sendall(b"advance-clock 10\r\n")
    server.turn(ARRIVAL_S_MAX)
    assert server.passed_ms == 5_000, "it stops where somebody gets a job"
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    server.turn_until_quiet(some=True)
    assert server.passed_ms < 10_000
    assert not server.tasks.has_more
    assert heard(other) == b"RESERVED 1 1\r\nx\r\n"


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


def test_it_never_sleeps_until_a_job_is_due(server: VirtualServer) -> None:
    client = server.client()
    server.answers(client, b"put 0 0.001 60 1", b"x")
    assert server.turns._wait_s(0, NEVER_NS) == pytest.approx(STANDING_S)


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
    server.waits(worker)
    server.answers(producer, b"use other")
    holder.close()
    producer.sendall(b"put 0 0 60 1\r\nx\r\n")
    server.turn(ARRIVAL_S_MAX)
    left = server.engine.store.topics.by_name["default"].reserved
    assert heard(worker) == b"RESERVED 1001 1\r\nx\r\n"
    assert left < 1_000 - RETURNS_PER_TURN


def test_the_clock_does_not_go_on_before_a_worker_knows_of_its_job(server: VirtualServer) -> None:
    client, worker = server.client(), server.client()
    server.says(worker, b"reserve\r\nrelease 1 0 3\r\nreserve\r\n")
    server.answers(client, b"put 0 0 60 1", b"x", b"advance-clock 4.999")
    assert heard(worker) == b"RESERVED 1 1\r\nx\r\nRELEASED\r\nRESERVED 1 1\r\nx\r\n"


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
