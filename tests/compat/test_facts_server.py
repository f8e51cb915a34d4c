"""What is true of a server from its start to its end: ids, limits, draining, what a log keeps.

Each test starts servers of its own, Debian's and ours.
"""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from tests import servers
from tests.compat.conftest import needs_beanstalkd
from tests.line_client import LineClient
from tests.servers import Server

MIB: Final = 1 << 20
SWALLOWED_BYTES: Final = 64 * MIB
GROWTH_KIB_MAX: Final = 24 * 1024
LATE_S_MAX: Final = 60.0

Start = Callable[..., Server]


@pytest.fixture(params=["beanstalkd", "delayd-beanstalkd"])
def start(request: pytest.FixtureRequest) -> Iterator[Start]:
    """Starts a server with beanstalkd's flags; all are stopped at the end."""
    if request.param == "beanstalkd":
        needs_beanstalkd()
    starter = servers.beanstalkd if request.param == "beanstalkd" else servers.delayd_beanstalkd
    with ExitStack() as stack:
        yield lambda *flags: stack.enter_context(starter(*flags))


class Durable:
    """A server that keeps its jobs in a directory, killed and started again."""

    def __init__(self, start: Callable[[], Server]) -> None:
        self._start = start
        self._stack = ExitStack()
        self._server = self._stack.enter_context(start())

    def connect(self) -> LineClient:
        return self._stack.enter_context(LineClient(self._server.address))

    def killed_and_restarted(self) -> LineClient:
        """Kill the process with SIGKILL, start it on the same directory, and connect."""
        self._server.kill()
        self.stop()
        self._server = self._stack.enter_context(self._start())
        return self.connect()

    def stop(self) -> None:
        self._stack.close()


@pytest.fixture(params=["beanstalkd -b", "delayd-beanstalkd -b", "delayd serve"])
def durable(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Durable]:
    flags = ("-b", str(tmp_path), "-f", "0")
    match request.param:
        case "beanstalkd -b":
            needs_beanstalkd()
            start = partial(servers.beanstalkd, *flags)
        case "delayd-beanstalkd -b":
            start = partial(servers.delayd_beanstalkd, *flags)
        case _:
            start = partial(servers.delayd_serve, tmp_path)
    durable = Durable(start)
    yield durable
    durable.stop()


def test_a_body_may_be_as_big_as_the_limit_says_and_no_bigger(start: Start) -> None:
    with LineClient(start("-z", "10").address) as client:
        client.send(b"put 0 0 0 11\r\ndelete 9999\r\nput 0 0 0 1\r\nx\r\n")
        assert client.reply() == b"JOB_TOO_BIG\r\n"
        assert client.reply() == b"INSERTED 1\r\n"
        assert client.put(b"0123456789") == 2
        assert client.stats()["max-job-size"] == "10"


def test_the_limit_of_a_body_may_be_zero(start: Start) -> None:
    with LineClient(start("-z", "0").address) as client:
        assert client.put() == 1
        assert client.ask("put 0 0 0", b"x") == "JOB_TOO_BIG"


def test_the_limit_of_a_body_is_at_most_a_gibibyte(start: Start) -> None:
    with LineClient(start("-z", "2000000000").address) as client:
        assert client.stats()["max-job-size"] == "1073741824"
        client.send(b"put 0 0 0 4294967296\r\nput 0 0 0 10b\r\nput 0 0 0 1\r\nx\r\n")
        assert client.reply() == client.reply() == b"BAD_FORMAT\r\n"
        assert client.reply() == b"INSERTED 1\r\n"


def resident_kib(server: Server) -> int:
    """The most memory that the process has had."""
    status = Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0])


def test_a_huge_body_is_swallowed_in_little_memory(start: Start) -> None:
    server = start()
    with LineClient(server.address) as client:
        client.put(bytes(60_000))
        before = resident_kib(server)
        client.send(b"put 0 0 0 %d\r\n" % SWALLOWED_BYTES)
        for _ in range(SWALLOWED_BYTES // MIB):
            client.send(bytes(MIB))
        client.send(b"\r\nlist-tube-used\r\n")
        assert client.reply() == b"JOB_TOO_BIG\r\n"
        assert client.reply() == b"USING default\r\n"
        assert resident_kib(server) - before < GROWTH_KIB_MAX


def test_a_draining_server_takes_no_jobs_and_does_all_else(start: Start) -> None:
    server = start()
    with LineClient(server.address) as client:
        client.put(b"a", delay=1)
        assert client.stats()["draining"] == "false"
        server.signal(signal.SIGUSR1)
        while client.stats()["draining"] != "true":
            pass
        assert client.ask("put 0 0 1", b"x") == "DRAINING"
        client.send(b"put 0 0 0 0\r\nxx")
        assert client.reply() == b"EXPECTED_CRLF\r\n"
        assert client.ask("put 0 0 1", b"x" * 65536) == "JOB_TOO_BIG"
        assert client.ask("put x") == "BAD_FORMAT"
        assert client.ask("reserve") == "RESERVED 1 1\r\na"
        assert client.ask("release 1 0 0") == "RELEASED"
        assert client.stats()["total-jobs"] == "1"


def test_an_empty_log_brings_nothing_back(durable: Durable) -> None:
    assert durable.killed_and_restarted().put() == 1


def test_a_kept_job_comes_back_with_all_that_it_was(durable: Durable) -> None:
    client = durable.connect()
    client.ask("use kept")
    job = client.put(b"test\r\n\0body", priority=7, ttr=120)
    for command in (f"reserve-job {job}", f"release {job} 7 100"):
        client.ask(command)
    before = client.stats(f"stats-job {job}")
    client = durable.killed_and_restarted()
    assert client.ask(f"peek {job}") == f"FOUND {job} 11\r\ntest\r\n\0body"
    after = client.stats(f"stats-job {job}")
    changing = {"age", "file", "time-left"}
    assert {name: after[name] for name in after if name not in changing} == {
        name: before[name] for name in before if name not in changing
    }
    assert client.names() == ["default", "kept"]


def test_jobs_come_back_in_the_state_in_which_they_were(durable: Durable) -> None:
    client = durable.connect()
    ready, buried, deleted, released, kicked = (client.put() for _ in range(5))
    delayed, hurried = client.put(delay=100), client.put(delay=100)
    for job in (buried, released, kicked):
        client.ask(f"reserve-job {job}")
    client.ask(f"bury {buried} 0")
    client.ask(f"bury {kicked} 0")
    assert client.ask(f"kick-job {kicked}") == client.ask(f"kick-job {hurried}") == "KICKED"
    client.ask(f"release {released} 0 100")
    client.ask(f"delete {deleted}")
    client = durable.killed_and_restarted()
    assert client.ask(f"peek {deleted}") == "NOT_FOUND"
    expected = {ready: "ready", kicked: "ready", hurried: "ready", buried: "buried"}
    expected |= {delayed: "delayed", released: "delayed"}
    assert {job: client.stats(f"stats-job {job}")["state"] for job in expected} == expected
    assert client.put() == 8


def test_a_reserved_job_comes_back_at_the_latest_when_its_ttr_is_over(durable: Durable) -> None:
    client = durable.connect()
    job = client.put(b"x", ttr=1)
    client.ask("reserve")
    client = durable.killed_and_restarted()
    assert client.ask("reserve-with-timeout 30") == f"RESERVED {job} 1\r\nx"


def test_a_delayed_job_fires_at_its_time_although_the_server_was_killed(durable: Durable) -> None:
    client = durable.connect()
    started = time.monotonic()
    job = client.put(b"x", delay=2)
    client = durable.killed_and_restarted()
    state = client.stats(f"stats-job {job}")["state"]
    assert state == "delayed" or time.monotonic() - started > 1
    assert client.ask("reserve-with-timeout 30") == f"RESERVED {job} 1\r\nx"
    # beanstalkd counts in whole seconds of the wall clock, and so may be early by one of them.
    assert 1 <= time.monotonic() - started < 2 + LATE_S_MAX


def test_many_jobs_outlive_two_kills(durable: Durable) -> None:
    client = durable.connect()
    jobs = [client.put(b"job payload %10d" % number) for number in range(96)]
    client = durable.killed_and_restarted()
    for job in jobs[::2]:
        assert client.ask(f"delete {job}") == "DELETED"
    client = durable.killed_and_restarted()
    for job in jobs[1::2]:
        assert client.ask(f"peek {job}") == f"FOUND {job} 22\r\njob payload {job - 1:10}"
    for number, job in enumerate(jobs):
        assert client.ask(f"delete {job}") == ("DELETED" if number % 2 else "NOT_FOUND")


def log_figures(client: LineClient) -> dict[str, int]:
    stats = client.stats().items()
    return {key: int(value) for key, value in stats if key.startswith("binlog-")}


def test_without_a_directory_the_figures_of_the_log_are_zeros(start: Start) -> None:
    with LineClient(start("-s", "8192").address) as client:
        client.put()
        figures = log_figures(client)
        assert figures.pop("binlog-max-size") == 8192
        assert set(figures.values()) == {0}


def test_the_figures_of_the_log_tell_its_files_and_what_was_written(
    start: Start, tmp_path: Path
) -> None:
    with LineClient(start("-b", str(tmp_path), "-s", "20480").address) as client:
        jobs = [client.put(bytes(10_000)) for _ in range(60)]
        full = log_figures(client)
        assert 1 == full["binlog-oldest-index"] < full["binlog-current-index"]
        assert 60 <= full["binlog-records-written"] < 200
        assert full["binlog-max-size"] == 20480
        client.ask(f"delete {jobs[0]}")
        assert log_figures(client)["binlog-records-written"] > full["binlog-records-written"]


def test_only_one_server_uses_a_directory(start: Start, tmp_path: Path) -> None:
    with LineClient(start("-b", str(tmp_path)).address) as client:
        client.put(b"mine")
        with pytest.raises(servers.ServerNotStarted) as refusal:
            start("-b", str(tmp_path)).wait_for_exit()
        assert "lock" in str(refusal.value)
        assert client.ask("peek 1") == "FOUND 1 4\r\nmine"
