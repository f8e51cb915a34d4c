"""T-R1 to T-R5: crowds, slow clients, clients that do not read, peers and descriptors gone."""

import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import pytest

from delayd import limits
from tests.faults.conftest import Runs
from tests.faults.real_daemon import need, need_root, started
from tests.http_client import HTTP, HttpClient, crowd, descriptors, memory_bytes, request, sockets
from tests.line_client import Address, LineClient
from tests.rigs.waiting import until

KIB: Final = 1 << 10
QUICK: Final = {
    "DELAYD_HTTP_HEADER_TIMEOUT": "1s",
    "DELAYD_HTTP_BODY_TIMEOUT": "1s",
    "DELAYD_HTTP_IDLE_TIMEOUT": "1s",
}
"""Deadlines that a test can wait for."""

IN_TIME_S: Final = 0.5
"""Clearly before the first of them."""

DAEMONS_OWN: Final = 100
"""Descriptors that a daemon may have beside its connections."""

FILES: Final = 5
"""By how many files of its log it may have more or fewer."""

WAITS: Final = b"watch nothing\r\nignore default\r\nreserve\r\n"
"""Of the line: waits for what nobody puts."""


def serve_everybody_else(http: Address, line: Address, times: int = 20) -> None:
    """Put and take jobs by both protocols; each answer comes in time."""
    with HttpClient(http) as client, LineClient(line) as worker:
        for number in range(times):
            answer = client.ask("POST", "/v1/topics/others/jobs", {"body": number})
            assert answer.status == 201, answer
            answer = client.ask("POST", "/v1/topics/others/reserve", {})
            assert answer.status == 200, answer
            (job,) = answer.json["jobs"]
            done = client.ask("POST", f"/v1/jobs/{job['id']}/ack", {"token": job["token"]})
            assert done.status == 200, done
            put = worker.ask("put 0 0 60", b"hello")
            job_id = put.removeprefix("INSERTED ")
            assert worker.ask("reserve").startswith(f"RESERVED {job_id} ")
            assert worker.ask(f"delete {job_id}") == "DELETED"


# --- T-R1: many connections ----------------------------------------------------------------------


def test_r1_idle_crowds_cost_little_and_hold_up_nobody(tmp_path: Path, runs: Runs) -> None:
    """T-R1: thousands of idle connections of each kind: bounded memory, others are answered."""
    number = runs.times(200, 9_000)
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit < 2 * number + DAEMONS_OWN:
        pytest.skip(f"this needs {2 * number + DAEMONS_OWN} descriptors")
    with started(tmp_path, *HTTP) as daemon:
        serve_everybody_else(daemon.http_address, daemon.address)
        before_bytes, before = memory_bytes(daemon), descriptors(daemon)
        quick = request("GET", "/v1/jobs/1")
        with (
            crowd(daemon.http_address, number // 2) as silent,
            crowd(daemon.http_address, number // 2, quick),
            crowd(daemon.address, number // 2),
            crowd(daemon.address, number // 2, WAITS),
        ):
            until(lambda: descriptors(daemon) >= before + 2 * number - FILES)
            serve_everybody_else(daemon.http_address, daemon.address)
            each_bytes = (memory_bytes(daemon) - before_bytes) / (2 * number)
            assert each_bytes < 40 * KIB, each_bytes
            assert not select.select(silent[:10], [], [], 0)[0], "they are still welcome"
        until(lambda: descriptors(daemon) <= before + FILES)
        serve_everybody_else(daemon.http_address, daemon.address)
        runs.count("T-R1", 2 * number, "idle connections")


def test_r1_storms_of_connections_hold_up_nobody(tmp_path: Path, runs: Runs) -> None:
    """T-R1: connections that come and go by the hundred: others are answered in between."""
    storms = runs.times(5, 200)
    with started(tmp_path, *HTTP) as daemon:
        serve_everybody_else(daemon.http_address, daemon.address, 2)
        before = descriptors(daemon)
        for storm in range(storms):
            with ExitStack() as stack:
                for address in (daemon.http_address, daemon.address):
                    for _ in range(100):
                        client = stack.enter_context(socket.socket())
                        client.setblocking(False)
                        with suppress(BlockingIOError):
                            client.connect(address)
                serve_everybody_else(daemon.http_address, daemon.address, 2)
            runs.count("T-R1", 200, "connections of storms")
            assert daemon.process.poll() is None, storm
        until(lambda: descriptors(daemon) <= before + FILES)


# --- T-R2: slow clients --------------------------------------------------------------------------


SLOW_REQUESTS: Final = {
    "head": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "body": request("POST", "/v1/topics/mail/jobs", {"body": "x" * 10_000})[:200],
    "chunked": b"POST /v1/topics/mail/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
}


def begun(http: Address, data: bytes) -> HttpClient:
    """A client that has said this in time, even if the machine stopped meanwhile."""
    while True:
        begun_s = time.monotonic()
        client = HttpClient(http)
        client.send_what_it_takes(data)
        if time.monotonic() - begun_s < IN_TIME_S:
            return client
        client.close()


def test_r2_requests_that_drip_are_answered_408_and_closed(tmp_path: Path, runs: Runs) -> None:
    """T-R2: a byte now and then, in a head, in a body, in chunks.

    Of commands tests/line/test_server_deadlines.py says the same.
    """
    with started(tmp_path, *HTTP, environment=QUICK) as daemon:
        idle = begun(daemon.http_address, request("GET", "/v1/jobs/1"))
        assert idle.answer().status == 404
        mute = HttpClient(daemon.http_address)
        clients = {what: begun(daemon.http_address, data) for what, data in SLOW_REQUESTS.items()}
        until_s = time.monotonic() + 90
        while clients:
            assert time.monotonic() < until_s, f"still open: {[*clients]}"
            for what, client in [*clients.items()]:
                if select.select([client.socket], [], [], 0.02)[0]:
                    assert client.answer().status == 408, what
                    assert client.is_closed()
                    clients.pop(what).close()
                else:
                    client.send_what_it_takes(b"1\r\nx\r\n" if what == "chunked" else b"x")
            time.sleep(0.05)
        for client in (idle, mute):
            assert client.is_closed(), "without a word: it has asked for nothing"
            client.close()
        serve_everybody_else(daemon.http_address, daemon.address, 1)
        runs.count("T-R2", len(SLOW_REQUESTS) + 2)


# --- T-R3: clients that do not read --------------------------------------------------------------


def put_long_jobs(client: HttpClient, jobs: int, body_bytes: int) -> None:
    for _ in range(jobs):
        answer = client.ask("POST", "/v1/topics/long/jobs", {"body": "x" * body_bytes, "ttr": "1h"})
        assert answer.status == 201


LONG_JOBS: Final = 60
LONG_BYTES: Final = 65_000
"""Together more than the system keeps for a client that does not read."""


@pytest.mark.parametrize("how", ["dies", pytest.param("waits", marks=pytest.mark.long)])
def test_r3_jobs_that_nobody_has_read_return(tmp_path: Path, runs: Runs, how: str) -> None:
    """T-R3: a batch for a client that does not read it, and dies or is closed: all jobs return."""
    with (
        started(tmp_path, *HTTP, segment_bytes="256MiB") as daemon,
        HttpClient(daemon.http_address) as client,
    ):
        put_long_jobs(client, LONG_JOBS, LONG_BYTES)
        reader = HttpClient(daemon.http_address, receive_bytes=4_096)
        reader.send(request("POST", "/v1/topics/long/reserve", {"max": LONG_JOBS}))
        until(lambda: client.ask("GET", "/v1/jobs/1").json["state"] == "reserved")
        if how == "dies":
            reader.die()

        def again() -> bool:
            answer = client.ask("POST", "/v1/topics/long/reserve", {"max": LONG_JOBS})
            if answer.status == 204:
                return False
            jobs = answer.json["jobs"]
            assert len(jobs) == LONG_JOBS
            assert {job["attempt"] for job in jobs} == {1}, "the attempt does not count"
            return True

        until(again)
        reader.close()
        runs.count("T-R3")


def test_r3_a_waiting_client_that_dies_is_given_nothing(tmp_path: Path, runs: Runs) -> None:
    """T-R3: long polls whose clients have died; the next one that lives gets the job at once."""
    with (
        started(tmp_path, *HTTP) as daemon,
        HttpClient(daemon.http_address) as client,
        HttpClient(daemon.http_address) as living,
    ):
        assert living.ask("GET", "/v1/jobs/1").status == 404
        before = descriptors(daemon)
        dying = [HttpClient(daemon.http_address) for _ in range(10)]
        for each in dying:
            each.send(request("POST", "/v1/topics/mail/reserve", {"wait": "60s"}))
        until(lambda: descriptors(daemon) >= before + len(dying))
        living.send(request("POST", "/v1/topics/mail/reserve", {"wait": "60s"}))
        for each in dying:
            each.die()
        until(lambda: descriptors(daemon) <= before + 1)
        assert client.ask("POST", "/v1/topics/mail/jobs", {"body": 1}).status == 201
        (job,) = living.answer().json["jobs"]
        assert job["attempt"] == 1
        runs.count("T-R3", len(dying))


# --- T-R4: half-open peers -----------------------------------------------------------------------


IN_THE_NETWORK: Final = """
import socket, sys
host, _, port = sys.argv[1].rpartition(":")
client = socket.create_connection((host, int(port)))
client.sendall(sys.argv[2].encode())
print("connected", flush=True)
client.settimeout(60)
if sys.argv[3:] == ["reply"]:
    print(client.recv(1000).decode(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def network() -> Iterator[list[str]]:
    """Words before a command that runs in a network of its own, which can be broken."""
    need_root()
    holder = subprocess.Popen(
        [need("unshare"), "--net", "sh", "-c", "ip link set lo up && echo up && exec cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    if holder.stdout.readline() != b"up\n":
        pytest.skip("no network of its own can be had here")
    yield [need("nsenter"), "--target", str(holder.pid), "--net"]
    holder.stdin.close()
    holder.wait()
    holder.stdout.close()


@pytest.mark.long
def test_r4_peers_that_are_gone_without_a_word_are_noticed(
    tmp_path: Path, runs: Runs, network: list[str]
) -> None:
    """T-R4: the cable is pulled while a job is on its way; it is for somebody else in the end."""
    client = [*network, sys.executable, "-c", IN_THE_NETWORK]
    with started(tmp_path, *HTTP, before=network) as daemon, ExitStack() as stack:

        def join(said: str, *more: str) -> "subprocess.Popen[bytes]":
            member = stack.enter_context(
                subprocess.Popen(
                    [*client, daemon.listens_on, said, *more],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            assert member.stdout is not None
            assert member.stdout.readline() == b"connected\n"
            return member

        listening = sockets(daemon)
        join("put 0 2 3600 5\r\nhello\r\n")
        join("reserve\r\n")
        until(lambda: sockets(daemon) == listening + 2)
        subprocess.run([*network, "ip", "link", "set", "lo", "down"], check=True)
        # The job is sent and never arrives: TCP_USER_TIMEOUT later nobody is taken to be there.
        wait_s = limits.TCP_USER_TIMEOUT_MS / 1_000 + 30
        until(lambda: sockets(daemon) == listening + 1, wait_s)
        subprocess.run([*network, "ip", "link", "set", "lo", "up"], check=True)
        living = join("reserve-with-timeout 30\r\n", "reply")
        assert living.stdout is not None
        assert living.stdout.readline().startswith(b"RESERVED 1 5")
        runs.count("T-R4")


# --- T-R5: no descriptors left -------------------------------------------------------------------


def test_r5_the_journal_never_lacks_descriptors(tmp_path: Path, runs: Runs) -> None:
    """T-R5: all descriptors but those of the journal are in use; it goes on, and recovers."""
    few = [need("prlimit"), "--nofile=64:64", "--"]
    with (
        started(tmp_path, *HTTP, before=few) as daemon,
        HttpClient(daemon.http_address) as client,
        LineClient(daemon.address) as worker,
    ):
        assert client.ask("POST", "/v1/topics/mail/jobs", {"body": 0}).status == 201
        assert worker.ask("put 0 0 60", b"x") == "INSERTED 2"
        assert worker.ask("delete 2") == "DELETED"
        with (
            crowd(daemon.http_address, 100, request("GET", "/v1/jobs/1")),
            crowd(daemon.address, 100, WAITS),
        ):
            # New files of the log and snapshots are made all the while.
            for _ in range(runs.times(40, 2_000)):
                answer = client.ask("POST", "/v1/topics/mail/jobs", {"body": "x" * 20_000})
                assert answer.status == 201
                (job,) = client.ask("POST", "/v1/topics/mail/reserve", {}).json["jobs"]
                done = client.ask("POST", f"/v1/jobs/{job['id']}/ack", {"token": job["token"]})
                assert done.status == 200
                put = worker.ask("put 0 0 60", b"x" * 20_000).removeprefix("INSERTED ")
                assert put.isdigit(), put
                assert worker.ask(f"delete {put}") in {"DELETED", "NOT_FOUND"}
            assert descriptors(daemon) < 64
            assert daemon.process.poll() is None
        until(lambda: descriptors(daemon) < 40)
        serve_everybody_else(daemon.http_address, daemon.address, 1)
        assert "a fault" not in daemon.log()
        runs.count("T-R5")


def test_r5_a_limit_below_what_is_in_use_stops_puts_until_it_is_raised(
    tmp_path: Path, runs: Runs
) -> None:
    """T-R5: not one descriptor more can be had: puts are refused, and go on without a restart."""
    with started(tmp_path, *HTTP) as daemon, HttpClient(daemon.http_address) as client:

        def put() -> int:
            return client.ask("POST", "/v1/topics/mail/jobs", {"body": "x" * 20_000}).status

        assert put() == 201
        before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (8, before[1]))
        until(lambda: put() == 507)
        assert client.ask("GET", "/v1/jobs/1").status == 200
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        until(lambda: put() == 201)
        serve_everybody_else(daemon.http_address, daemon.address, 1)
        assert "a fault" not in daemon.log()
        runs.count("T-R5")
