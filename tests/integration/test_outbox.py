"""`delayd relay` with the processes: kill -9 of each, while workers acknowledge at once."""

import random
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import psycopg
import pytest

from delayd import outbox
from delayd.client import Client, Worker
from delayd.exits import Exit
from delayd.testing.daemon import Daemon, running_daemon
from tests.pages import Reader
from tests.postgres_server import PostgresServer, postgres_server
from tests.rigs.process import daemon_of
from tests.rigs.waiting import line_with, until
from tests.servers import free_port

PATIENCE_S: Final = 120.0
ROWS: Final = 3
"""In each transaction."""


KILLS_OF_ALL: Final = ["relay", "daemon", "relay", "database", "daemon", "relay", "database"] * 3

DJANGO: Final = """
import django
from django.conf import settings
settings.configure(INSTALLED_APPS=["delayd.outbox.django"], DATABASES={{"default": {{
    "ENGINE": "django.db.backends.postgresql", "NAME": {name!r}, "USER": "postgres",
    "HOST": "127.0.0.1", "PORT": {port}}}}})
django.setup()
from django.core.management import call_command
from django.db import connection, transaction
from delayd import outbox
call_command("migrate", verbosity=0)
with transaction.atomic(), connection.cursor() as cursor:
    outbox.put(cursor, "mail", "x", delay="1h")
    cursor.execute("SELECT count(*) FROM delayd_outbox")
    print(*cursor.fetchone())
call_command("makemigrations", check=True, dry_run=True, verbosity=0)
call_command("migrate", "delayd_outbox", "zero", verbosity=0)
print("delayd_outbox" in connection.introspection.table_names())
"""


@pytest.fixture(name="server", scope="module")
def started() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        server.ask(outbox.schema("postgresql"))
        yield server


def serve(directory: Path, port: int) -> Daemon:
    return daemon_of(directory, "--http", f"127.0.0.1:{port}")


def end(daemon: Daemon) -> None:
    daemon.kill()
    daemon.__exit__()


class RelayProcess:
    """`delayd relay`, and what it says."""

    def __init__(self, url: str, http: str, *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "delayd", "relay", url, "--url", http, *more],
            stderr=subprocess.PIPE,
            text=True,
        )

    def says(self, text: str) -> str:
        """Wait for a line with this in it; return it."""
        return line_with(text, self.process.stderr)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def stop(self) -> str:
        """End it with SIGTERM; return what it has said since."""
        self.process.terminate()
        _, said = self.process.communicate(timeout=PATIENCE_S)
        assert not self.process.returncode, said
        return said


@contextmanager
def worker(http: str) -> Iterator[dict[str, set[int]]]:
    """Acknowledge at once; which jobs each body came with."""
    jobs: defaultdict[str, set[int]] = defaultdict(set)
    with Client(http, patience=60) as client:
        working = Worker(client, ["mail", "sms"], lambda job: jobs[job.text].add(job.id))
        thread = threading.Thread(target=working.run)
        thread.start()
        try:
            yield jobs
        finally:
            working.stop()
            thread.join()


def commit_for(url: str, is_over: threading.Event, committed: list[str]) -> None:
    """Commit transactions of a few rows, and roll others back; one database at a time is away."""
    number = 0
    draws = random.Random(1)
    while not is_over.is_set():
        try:
            with closing(psycopg.connect(url)) as connection:
                while not is_over.wait(0.002):
                    number += 1
                    bodies = [f"{number}-{each}" for each in range(ROWS)]
                    for body in bodies:
                        topic = draws.choice(("mail", "sms"))
                        outbox.put(connection.cursor(), topic, body, group=f"g{number}")
                    if draws.random() < 0.2:
                        connection.rollback()
                        continue
                    connection.commit()
                    committed += bodies
        except psycopg.Error:  # of what is under way it is not known
            time.sleep(0.05)


def is_empty(server: PostgresServer) -> bool:
    return server.ask("SELECT count(*) FROM delayd_outbox") == "0"


def test_kills_leave_one_job_for_each_commit(
    server: PostgresServer, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    kills = KILLS_OF_ALL if pytestconfig.getoption("--long") else ["relay"] * 3
    with free_port() as port:
        pass  # the daemon is started again on it
    http = f"http://127.0.0.1:{port}"
    daemon = serve(tmp_path, port)
    committed: list[str] = []
    is_over = threading.Event()
    arguments = (server.url, is_over, committed)
    application = threading.Thread(target=commit_for, args=arguments)
    draws = random.Random(7)
    relay = RelayProcess(server.url, http)
    try:
        with worker(http) as jobs:
            application.start()
            for kind in kills:
                relay.says("relaying")
                done = len(jobs)
                until(lambda: len(jobs) > done, PATIENCE_S)  # noqa: B023 - within the turn
                time.sleep(draws.random() * 0.1)
                if kind == "daemon":
                    end(daemon)
                    daemon = serve(tmp_path, port)
                elif kind == "database":
                    server.kill()
                    server.start()
                relay.kill()
                relay = RelayProcess(server.url, http)
            is_over.set()
            application.join()
            until(lambda: is_empty(server), PATIENCE_S)
            until(lambda: len(jobs) >= len(committed), PATIENCE_S)
            relay.stop()
    finally:
        is_over.set()
        relay.kill()
        end(daemon)
    assert len(committed) > 10
    assert not {body: ids for body, ids in jobs.items() if len(ids) > 1}
    assert not set(committed) - jobs.keys()


def database(server: PostgresServer, name: str) -> str:
    """Make a database; return its url."""
    server.ask(f"CREATE DATABASE {name}")
    return f"{server.url.rpartition('/')[0]}/{name}"


def test_the_page_does_what_it_says(server: PostgresServer, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    also = {"postgresql+psycopg://shop@127.0.0.1/shop": "", "postgresql://shop@127.0.0.1/shop": ""}
    url = database(server, "page")
    also = {name: f"{name.partition(':')[0]}:{url.partition(':')[2]}" for name in also}
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        Reader(home, daemon, also).follow("outbox.md")
        with Client(f"http://{daemon.http_listens_on}") as client:
            bodies = sorted(str(job.body) for job in client.jobs("orders", bodies=True))
            assert bodies == [str(b'{"order":%d}' % number) for number in (17, 17, 18, 19)]
            assert {job.key for job in client.jobs("outbox")} == {"mark"}


def test_a_relay_is_woken_stands_by_and_waits_for_what_is_away(
    server: PostgresServer, tmp_path: Path
) -> None:
    url = database(server, "waits")
    with free_port() as port:
        pass
    http = f"http://127.0.0.1:{port}"
    first = RelayProcess(url, http)
    _, said = first.process.communicate(timeout=PATIENCE_S)
    assert first.process.returncode == Exit.BAD_CONFIGURATION
    assert "delayd relay --schema postgresql prints it" in said
    with psycopg.connect(url) as connection:
        connection.execute(outbox.schema("postgresql"))
    first = RelayProcess(url, http)
    first.says("delayd is away; it is tried again")
    daemon = serve(tmp_path, port)
    try:
        first.says("relaying")
        second = RelayProcess(url, http)
        second.says("this one stands by")
        with Client(http) as client, psycopg.connect(url) as connection:
            for number in range(3):
                outbox.put(connection.cursor(), "mail", f"{number}")
                connection.commit()
                job = client.reserve("mail", timeout=30)  # IDLE_S would be twice that
                assert job.text == f"{number}"
                job.ack()
            first.kill()
            second.says("this one is at work")
            end(daemon)
            outbox.put(connection.cursor(), "mail", "later")
            connection.commit()
            second.says("delayd is away; it is tried again")
            daemon = serve(tmp_path, port)
            second.says("delayd is back")
            assert client.reserve("mail", timeout=30).text == "later"
        said = second.stop()
        assert "relayed" in said
        assert "stopped" in said
    finally:
        end(daemon)
        first.kill()
        second.kill()


def test_a_relay_that_no_trigger_wakes_says_so_at_its_start(server: PostgresServer) -> None:
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        for statement in ("DISABLE TRIGGER delayd_outbox_notify", "ENABLE TRIGGER USER"):
            server.ask(f"ALTER TABLE delayd_outbox {statement}")
            relay = RelayProcess(server.url, f"http://{daemon.http_listens_on}")
            said = relay.says("relay")
            relay.stop()
            assert ("no trigger wakes the relay" in said) == statement.startswith("DISABLE")


def test_django_makes_the_table_in_postgresql_and_removes_it(server: PostgresServer) -> None:
    name = database(server, "django").rpartition("/")[2]
    program = DJANGO.format(name=name, port=server.port)
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert ran.stdout.split() == ["1", "False"], ran.stderr
