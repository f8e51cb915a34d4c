"""Two daemons and one PostgreSQL: the owner of the log serves, and the standby takes over."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.request import urlopen

import pytest

from delayd.client import (
    Client,
    ConnectionLost,
    Draining,
    NotNow,
    Unreachable,
)
from delayd.exits import Exit
from tests.http_client import HTTP, HttpClient
from tests.line_client import LineClient
from tests.pages import BLOCK, Reader, is_as_told, text_of
from tests.postgres_server import PostgresServer, postgres_server
from tests.rigs.waiting import until
from tests.servers import READY, Server, executable, free_port, launch

T = TypeVar("T")
LEASE = "1s"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


class Machines:
    """Daemons that share one log."""

    def __init__(self, server: PostgresServer) -> None:
        self.environment = {
            "DELAYD_POSTGRES_URL": server.url,
            "DELAYD_POSTGRES_NAME": server.new_log(),
            "DELAYD_POSTGRES_LEASE": LEASE,
        }
        self._running: list[Server] = []

    def start(self, *flags: str, **variables: str) -> Server:
        """Start a daemon; it serves when the log is free."""
        argv = (executable("delayd"), "serve", "--line", "127.0.0.1:0", "--http", "off")
        return self.run((*argv, *flags), {**os.environ, **self.environment, **variables})

    def run(self, argv: tuple[str, ...], environment: Mapping[str, str]) -> Server:
        """Run a command that starts a daemon."""
        daemon = launch("delayd serve", argv, environment=environment)
        self._running.append(daemon)
        return daemon

    def owner(self, *flags: str) -> Server:
        daemon = self.start(*flags)
        daemon.wait_until(ready=READY)
        return daemon

    def standby(self, *flags: str) -> Server:
        daemon = self.start(*flags)
        daemon.wait_until_said(lambda said: "standing by" in said)
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


def test_a_standby_answers_its_health_and_takes_over_at_the_same_address(
    machines: Machines,
) -> None:
    owner, standby = machines.owner(*HTTP), machines.standby(*HTTP)
    addresses = re.findall(
        rb"line ([0-9.]+):([0-9]+), http ([0-9.]+):([0-9]+) on", standby.output()
    )
    (owners, own) = ((host.decode(), int(port)) for host, port, _, _ in addresses)
    owner_http, http = ((host.decode(), int(port)) for _, _, host, port in addresses)
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
    with HttpClient(owner_http) as client:
        until(lambda: client.ask("GET", "/v1/stats").json["ownership"]["standbys"])
        answer = client.ask("POST", "/v1/handover", {})
        assert (answer.status, "line {}:{}".format(*own) in answer.json["standby"]) == (200, True)
    assert owner.process.wait(60) == Exit.HANDED_OVER
    status = 503
    while status in {0, 503}:  # 0: it came at the very moment, and is closed unanswered
        with HttpClient(http) as client:  # refused at no time
            status = client.ask("GET", "/readyz").status
    assert status == 200
    standby.wait_until(ready=READY)
    assert standby.address == own
    another = machines.standby(*HTTP)
    another.signal(signal.SIGTERM)
    assert another.process.wait(60) == Exit.OK


def test_replies_wait_while_the_database_is_away(
    server: PostgresServer, machines: Machines
) -> None:
    owner = machines.owner(*HTTP)
    (port,) = re.findall(rb", http 127.0.0.1:([0-9]+)\n", owner.output())
    with client_of(owner) as client, HttpClient(("127.0.0.1", int(port))) as http:
        client.put(b"one")
        server.kill()
        client.send(b"put 0 0 60 3\r\ntwo\r\nlist-tubes\r\n")
        until(lambda: http.ask("GET", "/readyz").status != 200)
        assert http.ask("GET", "/readyz").json["detail"].count("postgresql://127.0.0.1") == 1
        with client_of(owner) as late:
            assert late.rest() == b""  # it is closed, so that the client looks for the owner
        assert http.ask("POST", "/v1/topics/a/jobs", {"body": 1}).status == 503
        assert http.ask("GET", "/v1/stats").json["ownership"]["trouble"]
        server.start()
        assert client.reply() == b"INSERTED 2\r\n"
        assert client.reply().startswith(b"OK ")
        assert http.ask("GET", "/readyz").status == 200


def test_the_doctor_tells_at_once_what_it_knows_while_the_database_is_away(
    server: PostgresServer, machines: Machines
) -> None:
    urls = [addresses_of(daemon)[1] for daemon in (machines.owner(*HTTP), machines.standby(*HTTP))]
    environment = {**os.environ, **machines.environment, "DELAYD_URL": ",".join(urls)}
    server.kill()
    found = []
    with subprocess.Popen(
        (executable("delayd"), "doctor", "--json"), stdout=subprocess.PIPE, env=environment
    ) as doctor:
        assert doctor.stdout is not None
        for row in map(json.loads, doctor.stdout):
            found.append((row["subject"], row["level"]))
            if row["subject"] != "the daemon":
                assert doctor.poll() is None  # it has yet to ask for that
    server.start()
    assert doctor.returncode == Exit.BAD_CONFIGURATION
    assert found[-2:] == [("database", "wrong"), ("the daemon", "warning")]
    assert "the database cannot be used: postgresql://127.0.0.1" in row["said"]


Ports = tuple[int, int]
"""Of the line and of HTTP."""


def proxy(directory: Path, here: Ports, machines: Mapping[str, Ports]) -> Server:
    """HAProxy with the configuration of the page, but for its addresses."""
    section = text_of("two-machines.md", "Clients find the owner")
    text = section.split("```haproxy\n")[1].split("```")[0]
    for name, (line, http) in machines.items():
        text = text.replace(f"{name}:11300 port 11301", f"127.0.0.1:{line} port {http}")
        text = text.replace(f"{name}:11301", f"127.0.0.1:{http}")
    for written, port in zip((11300, 11301), here, strict=True):
        text = text.replace(f"bind :{written}", f"bind 127.0.0.1:{port}")
    assert "1130" not in text
    file = directory / "haproxy.cfg"
    file.write_text(text)
    command = (shutil.which("haproxy") or "haproxy", "-f", str(file))
    checked = subprocess.run((*command, "-c"), check=False, capture_output=True, text=True)
    assert "WARNING" not in checked.stderr, checked.stderr
    assert checked.returncode == 0, checked.stderr
    return launch("haproxy", (*command, "-db"))


def until_done(call: Callable[[], T]) -> T:
    """Call again while nobody owns the log: a client of a proxy hears of that as a refusal."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return call()
        except (Unreachable, ConnectionLost, NotNow):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_haproxy_leads_to_the_owner_before_and_after_a_takeover(
    machines: Machines, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        here, a, b = (
            (stack.enter_context(free_port()), stack.enter_context(free_port())) for _ in range(3)
        )
        flags = [
            ("--line", f"127.0.0.1:{line}", "--http", f"127.0.0.1:{http}") for line, http in (a, b)
        ]
        owner = machines.owner(*flags[0])
        other = machines.standby(*flags[1])
        stack.enter_context(proxy(tmp_path, here, {"a.example.com": a, "b.example.com": b}))
        over_http = stack.enter_context(Client(f"http://127.0.0.1:{here[1]}"))
        on_line = stack.enter_context(Client(f"beanstalk://127.0.0.1:{here[0]}"))
        put = [
            until_done(lambda: over_http.put("mail", "one")).id,
            until_done(lambda: on_line.put("mail", "two")).id,
        ]
        owner.kill()
        put.append(until_done(lambda: over_http.put("mail", "three")).id)
        put.append(until_done(lambda: on_line.put("mail", "four")).id)
        found: set[int] = set()
        while not found.issuperset(put):  # a put whose answer was lost may be there twice
            with until_done(lambda: over_http.reserve("mail", timeout=5)) as job:
                found.add(job.id)
        other.signal(signal.SIGUSR1)
        time.sleep(1.5)  # HAProxy has asked three times meanwhile
        for client in (over_http, on_line):
            with pytest.raises(Draining):  # by the owner itself, whose workers go on
                client.put("mail", "five")


def addresses_of(daemon: Server) -> tuple[str, str]:
    """Return the urls of a daemon, which need not serve yet, over the line and over HTTP."""
    found = re.findall(rb"line ([0-9.:]+), http ([0-9.:]+)", daemon.output())
    line, http = found[-1]
    return f"beanstalk://{line.decode()}", f"http://{http.decode()}"


def test_the_set_up_of_the_page_lets_clients_of_other_machines_in_with_a_token(
    server: PostgresServer, machines: Machines, tmp_path: Path
) -> None:
    page = text_of("two-machines.md", "Setting it up")
    text = page.split("```toml\n")[1].split("```")[0]
    text = re.sub('"postgresql://.*"', f'"{server.url}"', text)
    text = text.replace("/etc/delayd/", f"{tmp_path}/").replace("/var/lib/", f"{tmp_path}/")
    hosts = set(tomllib.loads(text)["http"]["hosts"])
    password = tmp_path / "database-password"
    password.touch(0o600)
    password.write_text("any")  # the server trusts
    commands = page.split("```sh\n")[1].split("```")[0]
    commands = commands.replace("/etc/delayd/", f"{tmp_path}/a/").replace("/var/lib", f"{tmp_path}")
    with ExitStack() as stack:
        started: list[Server] = []
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            config = tmp_path / name / "delayd.toml"
            ports = [stack.enter_context(free_port()) for _ in range(2)]
            here = text.replace(":11300", f":{ports[0]}").replace(":11301", f":{ports[1]}")
            config.write_text(here)
            if not started:
                commands = commands.replace(" delayd ", f" {executable('delayd')} ")
                subprocess.run(("bash", "-ec", commands), check=True, cwd=tmp_path)
            argv = (executable("delayd"), "serve", "--config", str(config))
            variables = {"DELAYD_POSTGRES_NAME": machines.environment["DELAYD_POSTGRES_NAME"]}
            address = {"DELAYD_POSTGRES_ADDRESS": f"{name}.example.com"}
            started.append(machines.run(argv, {**os.environ, **variables, **address}))
            state = "ready: " if name == "a" else "standing by: "
            started[-1].wait_until_said(lambda said: state in said)  # noqa: B023 - within the turn
        assert b"a.example.com:" in started[1].output()
        token = (tmp_path / "admin.token").read_text().strip()
        owner = re.findall(rb", http 0.0.0.0:([0-9]+)", started[0].output())
        with HttpClient(("127.0.0.1", int(owner[0]))) as client:
            for host, key, status in (
                *((host, token, 200) for host in hosts),
                ("a.example.com", "", 401),
                ("c.example.com", token, 403),
            ):
                head = f"Host: {host}:11301\r\nAuthorization: Bearer {key}\r\n"
                client.send(f"GET /v1/stats HTTP/1.1\r\n{head}\r\n".encode())
                assert client.answer().status == status, host
    whole = text_of("two-machines.md")
    named = re.findall(r"http://([a-z.-]+\.example\.com)", whole)
    assert named
    assert hosts.issuperset(named)


def test_the_drill_ends_with_every_acknowledged_job(
    server: PostgresServer, machines: Machines, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        ports = {
            f"127.0.0.1:{written}": f"127.0.0.1:{stack.enter_context(free_port())}"
            for written in (11300, 11301, 11400, 11401)
        }
        also = {**ports, "127.0.0.1:5432": f"127.0.0.1:{server.port}", "RUNS_S = 20": "RUNS_S = 4"}
        reader = Reader(tmp_path, also=also)
        reader.environment |= machines.environment
        started: list[Server] = []
        for block in BLOCK.finditer(text_of("two-machines.md", "A drill")):
            text = reader.here(block["text"])
            if block["name"]:
                (tmp_path / block["name"]).write_text(text)
            elif text.startswith("$ delayd serve"):
                command, _, told = text.removeprefix("$ ").partition("\n")
                argv = (executable("delayd"), *command.split()[1:])
                started.append(machines.run(argv, reader.environment))
                is_so = partial(is_as_told, told.rstrip())
                started[-1].wait_until_said(lambda said: is_so(said.rstrip()))  # noqa: B023 - within the turn
            else:
                reader.type(text)
        first_one, second, again = started
        assert first_one.process.wait(60) == -signal.SIGKILL
        second.signal(signal.SIGINT)
        again.wait_until(ready=READY)
