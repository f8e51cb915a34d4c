"""Two daemons and one PostgreSQL: the owner of the log serves, and the standby takes over."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

import pytest

from delayd.exits import Exit
from tests.http_client import HTTP, HttpClient
from tests.line_client import LineClient
from tests.postgres_server import PostgresServer, postgres_server
from tests.servers import READY, Server, ServerNotStarted, executable, launch

LEASE = "1s"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


class Machines:
    """Daemons that share one log."""

    def __init__(self, server: PostgresServer) -> None:
        self._url = server.url
        server.logs += 1
        self._name = f"log_{server.logs}"
        self._running: list[Server] = []

    def start(self, *flags: str, **variables: str) -> Server:
        """Start a daemon; it serves when the log is free."""
        argv = (executable("delayd"), "serve", "--line", "127.0.0.1:0", "--http", "off")
        environment = {
            **os.environ,
            "DELAYD_POSTGRES_URL": self._url,
            "DELAYD_POSTGRES_NAME": self._name,
            "DELAYD_POSTGRES_LEASE": LEASE,
            **variables,
        }
        daemon = launch("delayd serve", (*argv, *flags), environment=environment)
        self._running.append(daemon)
        return daemon

    def owner(self, *flags: str) -> Server:
        daemon = self.start(*flags)
        daemon.wait_until(ready=READY)
        return daemon

    def standby(self, *flags: str) -> Server:
        daemon = self.start(*flags)
        while b"standing by" not in daemon.output():
            assert daemon.process.poll() is None, daemon.output()
        assert b"ready" not in daemon.output()
        return daemon

    def stop(self) -> None:
        for daemon in self._running:
            if daemon.process.poll() is None:
                daemon.kill()
            daemon.stop()


@pytest.fixture
def machines(server: PostgresServer) -> Iterator[Machines]:
    made = Machines(server)
    yield made
    made.stop()


@contextmanager
def client_of(daemon: Server) -> Iterator[LineClient]:
    with LineClient(daemon.address) as client:
        yield client


def test_jobs_are_there_after_a_kill_with_the_same_daemon(machines: Machines) -> None:
    first = machines.owner()
    with client_of(first) as client:
        ids = [client.put(b"body %d" % number, delay=3_600) for number in range(20)]
        client.put(b"ready")
    first.kill()
    with client_of(machines.owner()) as client:
        assert client.ask("reserve-with-timeout 0") == "RESERVED 21 5\r\nready"
        for job_id in ids:
            assert client.ask(f"delete {job_id}") == "DELETED"


def test_a_standby_takes_over_from_an_owner_that_was_killed(machines: Machines) -> None:
    owner, standby = machines.owner(), machines.standby()
    with client_of(owner) as client:
        kept = client.put(b"kept")
    owner.kill()
    standby.wait_until(ready=READY)
    with client_of(standby) as client:
        assert client.ask("reserve-with-timeout 5") == f"RESERVED {kept} 4\r\nkept"


def test_a_standby_takes_over_at_once_from_an_owner_that_stops(machines: Machines) -> None:
    owner, standby = machines.owner(), machines.standby()
    with client_of(owner) as client:
        held = client.put(b"held")
        client.ask("reserve")
        owner.signal(signal.SIGTERM)
        assert owner.process.wait(60) == Exit.OK
    standby.wait_until(ready=READY)
    with client_of(standby) as client:  # it was given back
        assert client.ask("reserve-with-timeout 0") == f"RESERVED {held} 4\r\nheld"


def test_a_standby_answers_its_health_and_serves_on_at_the_same_address(
    machines: Machines,
) -> None:
    owner, standby = machines.owner(*HTTP), machines.standby(*HTTP)
    addresses = re.findall(
        rb"line ([0-9.]+):([0-9]+), http ([0-9.]+):([0-9]+) on", standby.output()
    )
    (owners, own) = ((host.decode(), int(port)) for host, port, _, _ in addresses)
    http = (addresses[1][2].decode(), int(addresses[1][3]))
    assert owners == owner.address
    with HttpClient(http) as client:
        assert client.ask("GET", "/healthz").status == 200
        with urlopen("http://{}:{}/metrics".format(*http)) as metrics:  # noqa: S310 - it is http
            assert b"delayd_log_owner 0.0\n" in metrics.read()
        for path in ("/readyz", "/v1/stats"):
            answer = client.ask("GET", path)
            assert (answer.status, answer.json["kind"]) == (503, "standing_by")
            assert "line {}:{}".format(*owners) in answer.json["owner"]
    with pytest.raises(ConnectionRefusedError):
        LineClient(own)
    owner.signal(signal.SIGTERM)
    status = 503
    while status == 503:
        with HttpClient(http) as client:  # refused at no time
            status = client.ask("GET", "/readyz").status
    assert status == 200
    standby.wait_until(ready=READY)
    assert standby.address == own
    another = machines.standby(*HTTP)
    another.signal(signal.SIGTERM)
    assert another.process.wait(60) == Exit.OK


def test_an_owner_that_was_paused_answers_nothing_any_more_and_ends(machines: Machines) -> None:
    owner, standby = machines.owner(), machines.standby()
    with client_of(owner) as client:
        client.put(b"kept")
        owner.signal(signal.SIGSTOP)
        client.send(b"put 0 0 60 4\r\nlost\r\nreserve-with-timeout 0\r\nlist-tubes\r\n")
        standby.wait_until(ready=READY)
        owner.signal(signal.SIGCONT)
        assert client.rest() == b""
    assert owner.process.wait(60) == Exit.FENCED
    assert b"owns the log by now" in owner.output()
    with client_of(standby) as client:
        assert client.ask("reserve-with-timeout 0") == "RESERVED 1 4\r\nkept"
        assert client.ask("reserve-with-timeout 0") == "TIMED_OUT"


def test_replies_wait_while_the_database_is_away(
    server: PostgresServer, machines: Machines
) -> None:
    with client_of(machines.owner()) as client:
        client.put(b"one")
        server.kill()
        client.send(b"put 0 0 60 3\r\ntwo\r\nlist-tubes\r\n")
        server.start()
        assert client.reply() == b"INSERTED 2\r\n"
        assert client.reply().startswith(b"OK ")


@pytest.mark.parametrize(
    ("flags", "code", "why"),
    [
        (("--clock", "virtual"), Exit.BAD_CONFIGURATION, "needs clock = ..system"),
        (("--sync", "never"), Exit.BAD_CONFIGURATION, "journal.sync = ..always"),
        (
            ("--postgres", "postgresql://ada@127.0.0.1:1/jobs"),
            Exit.JOURNAL_FAILED,
            "postgresql://127.0.0.1:1/jobs cannot be reached",
        ),
        (
            ("--postgres", "postgresql://ada:s3cret@127.0.0.1:1/jobs"),
            Exit.BAD_CONFIGURATION,
            "without a password",
        ),
    ],
)
def test_what_cannot_be_is_named_without_secrets(
    machines: Machines, flags: tuple[str, ...], code: Exit, why: str
) -> None:
    daemon = machines.start(*flags)
    assert daemon.process.wait(60) == code
    with pytest.raises(ServerNotStarted, match=why) as said:
        daemon.fail_to_start()
    assert "s3cret" not in str(said.value)
