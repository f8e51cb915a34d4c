"""A stream of jobs: what is sent when, and what becomes of the jobs in hand."""

import select
import socket
import time
from collections.abc import Callable

import pytest

from delayd.client import (
    Client,
    ConnectionLost,
    Forbidden,
    NotReserved,
    NotUnderstood,
    connection,
)
from delayd.client.errors import NotOnThisProtocol
from delayd.client.job_stream import JobStream, StreamedJob
from delayd.testing.daemon import Daemon
from tests.client.peer import Close, Read, ScriptedPeer, Send, Step
from tests.client.worlds import line_url

ASKED = b"reserve-batch 2 60 with=ttr,attempt,key,tube until=input\r\n"
JOB = b"RESERVED_BATCH 1\r\nRESERVED 7 1 60 1 key= default\r\nx\r\n"


def some(stream: JobStream) -> list[StreamedJob]:
    """Wait for jobs."""
    while not (jobs := stream.receive()):
        assert stream.wait(60)
    return jobs


def talk(*steps: Step, then: Callable[[JobStream], object]) -> bytes:
    """Have a stream reserve from a peer that does this; return what it sent."""
    hello = (Read(b"\r\n"), Send(b"USING default\r\n"))
    with ScriptedPeer([[*hello, *steps, Close()]]) as peer:
        stream = Client(peer.line).stream()
        stream.reserve({"default"}, 2)
        then(stream)
        stream.close()
    return peer.received[0].removeprefix(b"list-tube-used\r\n")


def test_one_connection_gets_the_jobs_of_many_topics_and_no_more_than_it_asked_for(
    daemon: Daemon,
) -> None:
    with Client(line_url(daemon)) as client:
        stream = client.stream()
        stream.reserve({"stream-a", "stream-b"}, 2)
        for topic in ("stream-b", "stream-a", "stream-b", "stream-b"):
            client.put(topic, topic)
        jobs = some(stream)
        while len(jobs) < 2:
            stream.reserve({"stream-a", "stream-b"}, 2 - len(jobs))
            jobs += some(stream)
        assert [job.topic for job in jobs] == ["stream-b", "stream-a"]
        assert [client.topic(topic).reserved for topic in ("stream-a", "stream-b")] == [1, 1]
        jobs[0].ack()
        stream.reserve({"stream-b"}, 1)
        jobs += some(stream)
        stream.close()
        assert jobs[0].is_finished
        assert [job.attempts for job in client.jobs("stream-b", bodies=True)] == [0, 0]
        assert client.topic("stream-a").ready == 1


def test_what_is_said_of_a_job_ends_the_wait_and_the_next_reserve_waits_for_its_answer() -> None:
    def then(stream: JobStream) -> None:
        (job,) = some(stream)
        stream.reserve({"default"}, 2)
        job.ack()
        stream.reserve({"default"}, 2)
        (job,) = some(stream)
        assert job.id == 8

    sent = talk(
        *(Read(ASKED), Send(JOB), Read(b"delete 7\r\n")),
        *(Send(b"TIMED_OUT\r\nDELETED\r\n"), Read(ASKED), Send(JOB.replace(b" 7 ", b" 8 "))),
        *(Read(b"nack 8 counts=0\r\n"), Send(b"NACKED\r\n")),
        then=then,
    )
    assert sent == ASKED + ASKED + b"delete 7\r\n" + ASKED + b"nack 8 counts=0\r\n"


def test_a_reserve_that_asks_for_too_much_now_is_ended() -> None:
    def then(stream: JobStream) -> None:
        stream.reserve({"default"}, 1)
        assert stream.wait(60)
        assert stream.receive() == []
        stream.reserve((), 0)

    one = ASKED.replace(b"batch 2", b"batch 1")
    sent = talk(
        *(Read(b"list-tube-used\r\n"), Send(b"TIMED_OUT\r\nUSING default\r\n")),
        *(Read(b"list-tube-used\r\n"), Send(b"TIMED_OUT\r\nUSING default\r\n")),
        then=then,
    )
    assert sent == ASKED + b"list-tube-used\r\n" + one + b"list-tube-used\r\n"


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (b"BAD_FORMAT\r\n", NotUnderstood, "the daemon is older than its client"),
        (b"FORBIDDEN\r\n", Forbidden, "lacks the scope reserve"),
        (b"RESERVED_BATCH 3\r\n", NotUnderstood, "3 jobs, and 2 were asked for"),
        (b"TIMED_OUT\r\nTIMED_OUT\r\nTIMED_OUT\r\n", NotUnderstood, "more was answered"),
        (b"", ConnectionLost, "the daemon closed it"),
    ],
)
def test_an_answer_that_is_none_ends_with_a_sentence(
    answer: bytes, error: type[Exception], words: str
) -> None:
    def then(stream: JobStream) -> None:
        with pytest.raises(error, match=words):
            some(stream)

    talk(Read(ASKED), Send(answer), then=then)


def test_a_warning_holds_the_next_reserve_until_something_is_said_of_a_job() -> None:
    def then(stream: JobStream) -> None:
        (job,) = some(stream)
        stream.reserve({"default"}, 2)
        assert stream.wait(60)
        assert stream.receive() == []
        job.bury(9)
        stream.reserve({"default"}, 2)

    end = b"bury 7 9\r\n"
    sent = talk(
        *(Read(ASKED), Send(JOB), Read(ASKED), Send(b"DEADLINE_SOON\r\n")),
        Read(b"list-tube-used\r\n"),
        then=then,
    )
    assert sent == ASKED + ASKED + end + ASKED + b"list-tube-used\r\n"


def test_a_job_whose_ttr_ran_out_is_told_of_once_and_cannot_be_finished(daemon: Daemon) -> None:
    with Client(line_url(daemon)) as client:
        lost: list[StreamedJob] = []
        stream = client.stream()
        stream.on_lost = lost.append
        client.put("stream-lost", "x", ttr=3_600)
        stream.reserve({"stream-lost"}, 1)
        (job,) = some(stream)
        daemon.advance(3_601)
        stream.touch(job)
        stream.touch(job)
        assert stream.wait(60)
        stream.receive()
        assert lost == [job]
        with pytest.raises(NotReserved):
            job.ack()
        stream.close()


def test_http_has_no_stream() -> None:
    with pytest.raises(NotOnThisProtocol, match="a client of beanstalk://"):
        Client("http://127.0.0.1:1").stream()


def test_what_arrived_while_nobody_looked_is_touched_first_and_given_out_if_it_is_still_held(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now_s)

    def then(stream: JobStream) -> None:
        nonlocal now_s
        assert stream.wait(60)
        now_s += 31
        assert some(stream)[0].id == 8
        assert stream.receive() == []

    two = b"RESERVED_BATCH 2\r\n" + JOB.split(b"\r\n", 1)[1]
    two += JOB.split(b"\r\n", 1)[1].replace(b" 7 ", b" 8 ")
    sent = talk(
        *(Read(ASKED), Send(two), Read(b"touch 7\r\ntouch 8\r\n")),
        *(Send(b"NOT_FOUND\r\nTOUCHED\r\n"), Read(b"nack 8 counts=0\r\n"), Send(b"NACKED\r\n")),
        then=then,
    )
    assert b"touch 7\r\ntouch 8\r\n" in sent


class CooperativeSocket:
    """Waits as a socket of gevent does: by its timeout alone, and never in the kernel."""

    def __init__(self, real: socket.socket) -> None:
        self.real = real
        self.timeout_s: float | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def settimeout(self, timeout_s: float | None) -> None:
        self.timeout_s = timeout_s
        self.real.setblocking(False)

    def recv(self, size: int, flags: int = 0) -> bytes:
        assert not flags, "it waits whatever these say"
        if self.timeout_s != 0:
            assert self.timeout_s is not None, "a daemon that hangs is waited for for ever"
            select.select([self.real], [], [], self.timeout_s)
        return self.real.recv(size)


def test_it_looks_without_waiting_over_a_socket_of_gevent_too(
    monkeypatch: pytest.MonkeyPatch, daemon: Daemon
) -> None:
    connected = connection._connected
    monkeypatch.setattr(connection, "_connected", lambda *args: CooperativeSocket(connected(*args)))
    with Client(line_url(daemon)) as client:
        stream = client.stream()
        stream.reserve({"gevent"}, 2)
        assert stream.receive() == []
        client.put("gevent", "x")
        [job] = some(stream)
        assert job.body == b"x"
        stream.close()
