"""What is true of a server from its start to its end: limits, what a log keeps, its figures.

Each test starts servers of its own, Debian's and ours.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests import servers
from tests.compat.conftest import needs_beanstalkd
from tests.line_client import LineClient
from tests.servers import Server

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


def test_a_body_may_be_as_big_as_the_limit_says_and_no_bigger(start: Start) -> None:
    with LineClient(start("-z", "10").address) as client:
        assert client.put(b"0123456789") == 1
        assert client.stats()["max-job-size"] == "10"
    with LineClient(start("-z", "0").address) as client:
        assert client.put() == 1
        assert client.ask("put 0 0 0", b"x") == "JOB_TOO_BIG"
    with LineClient(start("-z", "2000000000").address) as client:
        assert client.stats()["max-job-size"] == "1073741824"


def test_jobs_come_back_as_they_were_when_the_server_is_killed(
    start: Start, tmp_path: Path
) -> None:
    flags = ("-b", str(tmp_path), "-f", "0")
    started_s = time.monotonic()
    server = start(*flags)
    with LineClient(server.address) as client:
        client.ask("use kept")
        ready, buried, deleted, released, kicked = (client.put() for _ in range(5))
        hurried, delayed = (client.put(b"test\r\n\0body", priority=7, delay=100) for _ in range(2))
        for job in (buried, released, kicked):
            client.ask(f"reserve-job {job}")
        client.ask(f"bury {buried} 0")
        client.ask(f"bury {kicked} 0")
        assert client.ask(f"kick-job {kicked}") == client.ask(f"kick-job {hurried}") == "KICKED"
        client.ask(f"release {released} 7 100")
        client.ask(f"delete {deleted}")
        before = client.stats(f"stats-job {released}")
        client.ask("use soon")
        reserved, due = client.put(b"x", ttr=1), client.put(b"y", delay=2)
        client.ask(f"reserve-job {reserved}")
        server.kill()
    with LineClient(start(*flags).address) as client:
        assert client.ask(f"peek {deleted}") == "NOT_FOUND"
        assert client.ask(f"peek {delayed}") == f"FOUND {delayed} 11\r\ntest\r\n\0body"
        states = {ready: "ready", kicked: "ready", hurried: "ready", buried: "buried"}
        states |= {delayed: "delayed", released: "delayed"}
        assert {job: client.stats(f"stats-job {job}")["state"] for job in states} == states
        after = client.stats(f"stats-job {released}")
        changing = {"age", "file", "time-left"}
        assert {name for name in after if after[name] != before[name]} <= changing
        client.ask("watch soon")
        client.ask("ignore default")
        for job, body in ((reserved, "x"), (due, "y")):
            assert client.ask("reserve-with-timeout 30") == f"RESERVED {job} 1\r\n{body}"
            client.ask(f"delete {job}")
        # beanstalkd counts in whole seconds of the wall clock, and so may be early by one of them.
        assert 1 <= time.monotonic() - started_s < 2 + LATE_S_MAX
        assert client.put() == due + 1


def test_the_figures_of_the_log_tell_its_files_and_what_was_written(
    start: Start, tmp_path: Path
) -> None:
    def figures(client: LineClient) -> list[int]:
        named = (value for key, value in client.stats().items() if key.startswith("binlog-"))
        return [*map(int, named)]

    with LineClient(start("-s", "8192").address) as client:
        client.put()
        assert figures(client) == [0, 0, 0, 0, 8192], "without a directory"
    with LineClient(start("-b", str(tmp_path), "-s", "20480").address) as client:
        jobs = [client.put(bytes(10_000)) for _ in range(60)]
        oldest, current, _, written, max_bytes = figures(client)
        assert (oldest, max_bytes) == (1, 20480)
        assert current > 1
        assert 60 <= written < 200
        client.ask(f"delete {jobs[0]}")
        assert figures(client)[3] > written


def test_only_one_server_uses_a_directory(start: Start, tmp_path: Path) -> None:
    with LineClient(start("-b", str(tmp_path)).address) as client:
        client.put(b"mine")
        with pytest.raises(servers.ServerNotStarted) as refusal:
            start("-b", str(tmp_path)).wait_for_exit()
        assert "lock" in str(refusal.value)
        assert client.ask("peek 1") == "FOUND 1 4\r\nmine"
