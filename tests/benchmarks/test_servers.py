"""The chapter `servers` in memory: what is said to servers, and that a judge sees what must not be.

Here the generator's sockets are replaced by a server in a few lines that can lose jobs, hand them
out twice or early; tests/integration/test_benchmarks.py has the real ones.
"""

import contextlib
import heapq
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.line import ServerSilentError, UnexpectedReplyError
from benchmarks.registry import EFFORTS, Bench, Durability, NotMeasuredError, Values
from benchmarks.servers import generator, operations
from benchmarks.servers.account import JobAccount
from benchmarks.servers.beanstalk import BeanstalkDialect
from benchmarks.servers.cases import cases
from benchmarks.servers.generator import Doing, Load, Taking, Tally, Unanswered
from benchmarks.servers.operations import Reading
from benchmarks.servers.peer import Dialect, Heard
from benchmarks.servers.redis import Tuned, Vanilla, members
from benchmarks.servers.resp import Replies

BODY_BYTES = 12
SILENCE_S = 10.0


def heard(dialect: Dialect, pieces: Sequence[bytes]) -> Heard:
    """What a connection hears that receives these pieces."""
    whole = Heard()
    for piece in pieces:
        one = dialect.hear(piece)
        whole.put += one.put
        whole.taken += one.taken
        whole.acknowledged += one.acknowledged
        whole.empty += one.empty
        whole.follow += one.follow
    return whole


def assert_cut_anywhere(make: Callable[[], Dialect], said: bytes, expected: Heard) -> None:
    assert heard(make(), [said]) == expected
    assert heard(make(), [said[at : at + 1] for at in range(len(said))]) == expected
    for cut in range(len(said)):
        assert heard(make(), [said[:cut], said[cut:]]) == expected


def test_replies_of_beanstalk_are_the_same_whole_and_cut_anywhere() -> None:
    said = b"DELETED\r\nRESERVED 7 12\r\n0000000003xx\r\nINSERTED 8\r\nINSERTED 9\r\n"
    expected = Heard(put=2, taken=[(3, b"7")], acknowledged=1)
    assert_cut_anywhere(lambda: BeanstalkDialect(BODY_BYTES), said, expected)


def tuned() -> Tuned:
    """A worker that has asked for three jobs and acknowledged two."""
    dialect = Tuned(BODY_BYTES)
    dialect.takes(3)
    dialect.acknowledgements([b"a", b"b"])
    return dialect


def vanilla() -> Vanilla:
    """A worker that has polled for three jobs."""
    dialect = Vanilla(BODY_BYTES)
    dialect.takes(3)
    return dialect


def test_replies_of_redis_are_the_same_whole_and_cut_anywhere() -> None:
    put, puts = b":1\r\n:1\r\n", Heard(put=2)
    assert_cut_anywhere(lambda: Tuned(BODY_BYTES), put, puts)
    assert_cut_anywhere(lambda: Vanilla(BODY_BYTES), put, puts)
    assert_cut_anywhere(
        tuned,
        b"*4\r\n$1\r\n7\r\n$12\r\n0000000007xx\r\n$7\r\norder-8\r\n$12\r\n0000000008xx\r\n:2\r\n",
        Heard(taken=[(7, b"7"), (8, b"order-8")], acknowledged=2, empty=1),
    )
    assert_cut_anywhere(tuned, b"*0\r\n:2\r\n", Heard(acknowledged=2, empty=3))
    removals = b"".join(
        b"*3\r\n$4\r\nZREM\r\n$7\r\ndelayed\r\n$12\r\n%b\r\n" % body
        for body in (b"0000000007xx", b"0000000008xx")
    )
    assert_cut_anywhere(
        vanilla,
        b"*2\r\n$12\r\n0000000007xx\r\n$12\r\n0000000008xx\r\n",
        Heard(empty=1, follow=removals),
    )


def test_a_worker_of_redis_has_what_it_removed_and_polls_again_for_what_it_did_not() -> None:
    dialect = vanilla()
    dialect.hear(b"*2\r\n$12\r\n0000000007xx\r\n$12\r\n0000000008xx\r\n")
    heard_of = heard(dialect, [b":1\r\n", b":0\r\n"])
    assert heard_of.taken == [(7, b"0000000007xx")]
    assert b"ZRANGEBYSCORE" in heard_of.follow
    assert heard_of.follow.endswith(b"$5\r\nLIMIT\r\n$1\r\n0\r\n$1\r\n1\r\n")


def test_a_put_of_redis_is_a_command_of_words_of_the_said_lengths() -> None:
    puts = [
        *(Tuned(BODY_BYTES).puts(7, 2, 500), Tuned(BODY_BYTES).keyed_puts(7, 1, 500)),
        Vanilla(BODY_BYTES).puts(7, 1, 0),
    ]
    two, keyed, vanilla_put = (Replies().hear(put) for put in puts)
    assert [words[-3:] for words in map(members, two)] == [
        [b"0000000007", b"0000000007xx", b"500"],
        [b"0000000008", b"0000000008xx", b"500"],
    ]
    assert members(keyed[0])[-3:] == [b"order-0000000007", b"0000000007xx", b"500"]
    assert members(vanilla_put[0])[-1] == b"0000000007xx"


def test_an_error_of_redis_or_a_job_that_was_there_fails_the_reading() -> None:
    with pytest.raises(UnexpectedReplyError, match="OOM"):
        tuned().hear(b"-OOM no memory\r\n")
    for reply in (b":0\r\n", b"-OOM no memory\r\n"):
        with pytest.raises(UnexpectedReplyError, match=reply.decode().strip()):
            Tuned(BODY_BYTES).hear(b":1\r\n" + reply)


@pytest.mark.parametrize("reply", [b"OUT_OF_MEMORY\r\n", b"NOT_FOUND\r\n", b"DEADLINE_SOON\r\n"])
def test_any_other_reply_fails_the_reading(reply: bytes) -> None:
    with pytest.raises(UnexpectedReplyError, match=reply.decode().strip()):
        BeanstalkDialect(BODY_BYTES).hear(b"INSERTED 1\r\n" + reply)


def test_a_put_says_its_number_and_its_delay_and_only_delayd_has_keys() -> None:
    dialect = BeanstalkDialect(BODY_BYTES, has_keys=True)
    assert dialect.puts(9, 2, 3_600_000) == (
        b"put 0 3600 600 12\r\n0000000009xx\r\nput 0 3600 600 12\r\n0000000010xx\r\n"
    )
    assert dialect.puts(9, 1, 1) == b"put 0 0.001 600 12\r\n0000000009xx\r\n"
    assert dialect.puts(9, 1, 0) == b"put 0 0 600 12\r\n0000000009xx\r\n"
    assert dialect.keyed_puts(9, 1, 0) == b"put 0 0 600 12 key=order-9\r\n0000000009xx\r\n"
    with pytest.raises(NotMeasuredError, match="no keys"):
        BeanstalkDialect(BODY_BYTES).keyed_puts(1, 1, 0)


def test_times_belong_to_the_oldest_commands() -> None:
    unanswered, times = Unanswered(), list[tuple[float, int]]()
    unanswered.send(1.0, 3)
    unanswered.send(2.0, 1)
    unanswered.hear(5.0, 2, times)
    unanswered.hear(6.0, 2, times)
    assert times == [(4.0, 2), (5.0, 1), (4.0, 1)]
    with pytest.raises(UnexpectedReplyError, match="more was answered"):
        unanswered.hear(7.0, 1, times)


def test_a_job_that_nobody_put_is_an_error() -> None:
    jobs = JobAccount()
    jobs.put(1, 0.0)
    with pytest.raises(UnexpectedReplyError, match="job 1 arrived"):
        jobs.take([1], 1.0)


# A beanstalk server in memory, with faults


COMMAND = re.compile(
    rb"put 0 (?P<delay>[\d.]+) 600 \d+[^\r]*\r\n(?P<body>\w+)\r\n"
    rb"|(?P<reserve>reserve)\r\n|delete (?P<job>\d+)\r\n"
)

Answer = Callable[[bytes], object]


@dataclass
class FaultyServer:
    """Keeps jobs, on a clock that the test moves; `fault` is what it does to every odd job."""

    fault: str = ""
    is_odd: Callable[[int], bool] = lambda job: job % 5 == 4
    now: float = 100.0
    port: int = 0
    due: list[tuple[float, int, bytes]] = field(default_factory=list)
    reserved: dict[int, bytes] = field(default_factory=dict)
    waiting: deque[Answer] = field(default_factory=deque)
    put_s: float = 0.0
    """How long a put waits for its answer."""
    inserted_at: deque[tuple[float, Answer, bytes]] = field(default_factory=deque)
    inserted: int = 0
    restarts: int = 0

    def dialect(self, body_bytes: int) -> Dialect:
        return BeanstalkDialect(body_bytes)

    def processes(self) -> Sequence[int]:
        return [os.getpid()]

    def standing(self) -> int:
        return len(self.due) + len(self.reserved)

    def log_bytes(self) -> int:
        return 0

    def restart(self) -> float:
        self.restarts += 1
        if self.fault == "forgets":
            self.due.pop()
        return 0.5

    def tell(self, said: bytes, answer: Answer) -> int:
        """Carry out commands, which are so long; answers to reserves may come later."""
        whole = 0
        for command in COMMAND.finditer(said):
            whole = command.end()
            if command["reserve"]:
                self.waiting.append(answer)
            elif command["job"]:
                del self.reserved[int(command["job"])]
                answer(b"DELETED\r\n")
            else:
                self.inserted += 1
                self.put(self.inserted, float(command["delay"]), command["body"])
                reply = b"INSERTED %d\r\n" % self.inserted
                self.inserted_at.append((self.now + self.put_s, answer, reply))
        return whole

    def put(self, job: int, delay: float, body: bytes) -> None:
        fault = self.fault if self.is_odd(job) else ""
        if fault == "loses":
            return
        if fault == "is early":
            delay -= 0.01
        if fault == "doubles":
            heapq.heappush(self.due, (self.now + delay, -job, body))
        heapq.heappush(self.due, (self.now + delay, job, body))

    def answer(self) -> None:
        """Answer the puts and the reserves whose time has come."""
        while self.inserted_at and self.inserted_at[0][0] <= self.now:
            _, answer, reply = self.inserted_at.popleft()
            answer(reply)
        while self.waiting and self.due and self.due[0][0] <= self.now:
            _, job, body = heapq.heappop(self.due)
            job = job if job > 0 else 1_000_000 - job
            self.reserved[job] = body
            self.waiting.popleft()(b"RESERVED %d %d\r\n%b\r\n" % (job, len(body), body))


class WireInMemory:
    """Stands for the generator's connections: each turn is a millisecond."""

    answers_acknowledgements = True

    def __init__(self, server: FaultyServer) -> None:
        self._server = server
        self._clients: list[ClientInMemory] = []

    def open(self, running: FaultyServer, count: int, body_bytes: int) -> "list[ClientInMemory]":
        opened = [ClientInMemory(running, body_bytes) for _ in range(count)]
        self._clients += opened
        return opened

    def begin(self, client: "ClientInMemory", doing: Doing, in_flight: int) -> None:
        client.doing = doing
        doing.begin(in_flight)

    def run(self, seconds: float, is_done: Callable[[], bool]) -> None:
        until = self._server.now + min(seconds, SILENCE_S)
        while self._server.now < until and not is_done():
            self._server.now += 0.001
            self._server.answer()
            for client in self._clients:
                said = b"".join(client.answers)
                client.answers.clear()
                client.doing.hear(said)
        if seconds > SILENCE_S and not is_done():
            raise ServerSilentError("no answer")


class ClientInMemory:
    """One connection of them."""

    def __init__(self, server: FaultyServer, body_bytes: int) -> None:
        self.dialect = server.dialect(body_bytes)
        self.answers: list[bytes] = []
        self.doing: Doing
        self._server = server

    def send(self, request: bytes) -> None:
        self._server.tell(request, self.answers.append)


@dataclass(frozen=True)
class PeerInMemory:
    """What an operation asks of a peer."""

    policy: Durability = Durability.BEFORE_ANSWER
    delay_unit_ms: int = 1
    poll_pause_s: float = 0.0


Play = Callable[..., Values]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Plays an operation with a server in memory."""

    def played(
        name: str, server: FaultyServer, policy: Durability = Durability.BEFORE_ANSWER
    ) -> Values:
        @contextlib.contextmanager
        def connections(_: float) -> Iterator[WireInMemory]:
            yield WireInMemory(server)

        monkeypatch.setattr(operations, "connections", connections)
        monkeypatch.setattr(operations, "LAST_SYNC_S", 0)
        monkeypatch.setattr(generator, "clock", lambda: server.now)
        peer: Any = PeerInMemory(policy)
        of = (server, Load(4, 3, BODY_BYTES), Bench(EFFORTS["tiny"], tmp_path), JobAccount(first=5))
        return operations.OPERATIONS[name](Reading(peer, *of))

    return played


MUST_NOT = ("lost", "doubled", "early")


@pytest.mark.parametrize(
    ("name", "fault", "expected"),
    [
        *((name, "", ()) for name in ("put", "reserve + ack", "mixed", "idle", "recovery")),
        ("put", "loses", ("lost",)),
        ("put", "doubles", ("doubled",)),
        ("recovery", "forgets", ("lost",)),
        ("recovery", "loses", ("lost",)),
        ("reserve + ack", "loses", ("lost",)),
        ("reserve + ack", "doubles", ("doubled",)),
        ("mixed", "loses", ("lost",)),
        ("mixed", "doubles", ("doubled",)),
        ("mixed", "is early", ("early",)),
    ],
)
def test_what_must_not_be_is_seen(
    name: str, fault: str, expected: tuple[str, ...], play: Play
) -> None:
    values = play(name, FaultyServer(fault))
    assert tuple(word for word in MUST_NOT if values[word]) == expected


@pytest.mark.parametrize("put_s", [0.0, 0.02])  # takers that lag, and takers that wait
def test_a_reading_under_load_leaves_nothing_in_flight(put_s: float, play: Play) -> None:
    server = FaultyServer(put_s=put_s)
    values = play("mixed", server)
    assert server.standing() == len(server.waiting) == 0
    assert values["rate"] > 0
    assert values["p50_ms"] == pytest.approx(1.0)


def test_a_worker_that_polls_asks_again_after_a_pause_and_not_when_all_is_over() -> None:
    client: Any = SimpleNamespace(dialect=Tuned(BODY_BYTES), said=[])
    client.send = client.said.append
    tally = Tally(JobAccount())
    taking = Taking(client, tally, times_takes=True)
    taking.begin(2)
    assert taking.hear(b"*0\r\n")  # it has to be asked to go on
    assert len(client.said) == 1
    taking.go_on()
    assert client.said == [client.said[0]] * 2
    assert tally.asked == 2
    tally.is_giving_up = True
    taking.hear(b"*0\r\n")
    taking.go_on()
    assert len(client.said) == 2
    assert tally.is_quiet


def test_what_keeps_nothing_is_not_started_again(play: Play) -> None:
    server = FaultyServer()
    values = play("recovery", server, Durability.IN_MEMORY)
    assert server.restarts == 0
    assert "recovery_s" not in values
    assert "resident_bytes" in values


def test_every_case_says_how_its_server_was_set_up() -> None:
    assert all(case.settings and case.policy for case in cases())
