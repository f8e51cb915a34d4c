"""Daemons that share a log in PostgreSQL, and what finds the one that owns it.

    with machines((pair.primary, pair.standby), net, lease_s=1) as cluster:
        cluster.start("a")                     # and wait until it serves or stands by
        cluster.start("b")
        with load(cluster.address, ...): ...   # through HAProxy, to whichever answers
        served = cluster.served_again()        # a job was handed out: by which, and when

Each machine reaches each server of the database over a link of its own (`real_network`). HAProxy
asks a machine over the line protocol: one that is paused accepts connections, and answers nothing.
Without HAProxy the load goes to the owner directly.
"""

import contextlib
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.faults.real_network import Link, Network
from tests.line_client import Address, LineClient
from tests.postgres_server import USER, PostgresServer
from tests.rigs.waiting import until
from tests.servers import HOST, READY, Server, free_port, launch

SEGMENT_BYTES: Final = "256KiB"
"""A snapshot for every 32 KiB of log, so that a standby is left behind at times."""

PROBE: Final = "probe"
"""The topic of the job by which is seen that a daemon serves."""

PROBE_S_MAX: Final = 1.0
WAIT_S_MAX: Final = 60.0
POLL_S: Final = 0.005
PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
HAPROXY: Final = """
defaults
  mode tcp
  timeout connect 1s
  timeout client 10m
  timeout server 10m
frontend clients
  bind {host}:{port}
  default_backend owner
backend owner
  option tcp-check
  tcp-check send list-tube-used\\r\\n
  tcp-check expect string USING
  timeout check 500ms
  default-server check inter 100ms fall 1 rise 1
"""


class Served(NamedTuple):
    """Who handed a job out, and when, by the clock that all machines share."""

    name: str
    at_s: float


class Machine:
    """One of them: a port, its links to the database, and a process."""

    def __init__(self, name: str, port: int, links: tuple[Link, ...]) -> None:
        self.name = name
        self.address: Address = (HOST, port)
        self.links = links
        self.environment: dict[str, str] = {}
        """What it has beside what all have."""
        self.process: Server | None = None

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.process.poll() is None

    def output(self) -> str:
        return "" if self.process is None else self.process.output().decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.signal(number)

    def end(self) -> None:
        """Kill it if it runs."""
        if self.process is not None:
            self.process.kill()
            self.process.stop()
            self.process = None

    def code(self) -> int:
        """Wait until it has ended; return its exit code."""
        assert self.process is not None
        return self.process.process.wait(WAIT_S_MAX)


class Machines:
    """Some daemons that share one log."""

    def __init__(
        self,
        machines: list[Machine],
        address: Address | None,
        settings: Mapping[str, str],
        database: str,
    ) -> None:
        self.all = {machine.name: machine for machine in machines}
        self._address = address
        self._settings = settings
        self._database = database
        self._probe = 0

    # --- Daemons ---------------------------------------------------------------------------------

    def launch(self, name: str) -> Machine:
        """Start a daemon."""
        machine = self.all[name]
        machine.end()
        ports = ",".join(str(link.port) for link in machine.links)
        hosts = ",".join(HOST for _ in machine.links)
        url = f"postgresql://{USER}@/{self._database}?host={hosts}&port={ports}"
        environment = {**os.environ, **self._settings, **machine.environment}
        command = (sys.executable, "-X", "faulthandler", "-m", "delayd", "serve")
        line = "{}:{}".format(*machine.address)
        machine.process = launch(
            f"delayd {name}",
            (*command, "--line", line, "--http", "off"),
            environment={**environment, "DELAYD_POSTGRES_URL": url},
        )
        return machine

    def start(self, name: str) -> Machine:
        """Start a daemon, and wait until it serves or stands by."""
        machine = self.launch(name)
        until(lambda: self.is_up(machine), seen=machine.output)
        return machine

    def owner(self) -> str:
        """Wait until a daemon answers; return its name."""
        answering: list[str] = []

        def is_there() -> bool:
            answering.extend(name for name, each in self.all.items() if _answers(each.address))
            return bool(answering)

        until(is_there, seen=self.outputs)
        return answering[0]

    def outputs(self) -> list[str]:
        return [each.output() for each in self.all.values()]

    def is_up(self, machine: Machine) -> bool:
        assert machine.is_running, machine.output()
        said = machine.output()
        return "standing by" in said or READY.search(said.encode()) is not None

    def start_ended(self, allowed: tuple[int, ...]) -> None:
        """Start those again that have ended, as systemd does, with one of these exit codes."""
        for machine in self.all.values():
            if not machine.is_running:
                code = -signal.SIGKILL if machine.process is None else machine.code()
                assert code in allowed, f"{machine.name} exited with {code}: {machine.output()}"
                self.start(machine.name)

    # --- Clients ---------------------------------------------------------------------------------

    def address(self, owner: str) -> Address:
        """Where clients of this owner connect."""
        if self._address is None:
            return self.all[owner].address
        address = self._address  # of HAProxy, which has to see it too
        until(lambda: _answers(address), seen=self.all[owner].output)
        return address

    def put_probe(self, owner: str) -> None:
        """Put the job that `served_again` waits for."""
        with LineClient(self.all[owner].address) as client:
            reply = client.ask(f"put-in-tube {PROBE} 0 0 600", b"probe")
            assert reply.startswith("INSERTED"), reply

    def served_again(self) -> Served:
        """Wait until a daemon hands out the job of `put_probe`."""
        found: list[Served] = []
        is_over = threading.Event()

        def ask(machine: Machine) -> None:
            while not is_over.is_set():
                with contextlib.suppress(OSError, EOFError):
                    self._ask_for_probe(machine, found)
                is_over.wait(POLL_S)

        threads = [threading.Thread(target=ask, args=(each,)) for each in self.all.values()]
        for thread in threads:
            thread.start()
        try:
            until(lambda: found, seen=self.outputs)
        finally:
            is_over.set()
            for thread in threads:
                thread.join()
        return found[0]

    @staticmethod
    def _ask_for_probe(machine: Machine, found: list[Served]) -> None:
        with _asked(machine.address) as client:
            client.send(b"watch probe\r\nignore default\r\nreserve-with-timeout 0\r\n")
            client.reply()
            client.reply()
            head, _, _ = client.reply().partition(b"\r\n")
            if head.startswith(b"RESERVED"):
                at_s = time.monotonic()
                client.socket.settimeout(WAIT_S_MAX)
                assert client.ask(f"delete {int(head.split()[1])}") == "DELETED"
                found.append(Served(machine.name, at_s))


def _asked(address: Address) -> LineClient:
    return LineClient(socket.create_connection(address, PROBE_S_MAX))


def _answers(address: Address) -> bool:
    with contextlib.suppress(OSError, EOFError), _asked(address) as client:
        return client.ask("list-tube-used").startswith("USING")
    return False


@contextlib.contextmanager
def _haproxy(ports: Mapping[str, int]) -> Iterator[Address | None]:
    """Run HAProxy before these ports; None where it is not installed."""
    program = shutil.which("haproxy", path=PATH)
    if program is None:
        yield None
        return
    with free_port() as port, tempfile.TemporaryDirectory() as folder:
        servers = [f"  server {name} {HOST}:{to}" for name, to in ports.items()]
        path = Path(folder) / "haproxy.cfg"
        path.write_text(HAPROXY.format(host=HOST, port=port) + "\n".join(servers) + "\n")
        server = launch("haproxy", (program, "-db", "-f", str(path)))
        server.address = (HOST, port)
        server.wait_until(ready=None)
        try:
            yield server.address
        finally:
            server.kill()
            server.stop()


@contextlib.contextmanager
def machines(
    servers: Sequence[PostgresServer],
    net: Network,
    *,
    lease_s: float,
    names: str = "ab",
    database: str = "postgres",
    segment_bytes: str = SEGMENT_BYTES,
) -> Iterator[Machines]:
    """Have these machines, none of which runs yet, with a log of their own."""
    servers[0].logs += 1
    settings = {
        "DELAYD_POSTGRES_NAME": f"log_{servers[0].logs}",
        "DELAYD_POSTGRES_LEASE": f"{lease_s}s",
        "DELAYD_JOURNAL_SEGMENT_BYTES": segment_bytes,
    }
    with contextlib.ExitStack() as stack:
        made = []
        for name in names:
            port = stack.enter_context(free_port())
            made.append(Machine(name, port, tuple(net.link(each.port) for each in servers)))
        ports = {each.name: each.address[1] for each in made}
        cluster = Machines(made, stack.enter_context(_haproxy(ports)), settings, database)
        for each in made:
            stack.callback(each.end)
        yield cluster
