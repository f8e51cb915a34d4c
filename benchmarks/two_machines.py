"""The log in PostgreSQL beside the log in files, and tables of jobs: `make bench-two-machines`.

One PostgreSQL with a synchronous standby, both of Debian's package, on this machine; delayd over
it, delayd over files, the same work in SQL by `pgbench`, whose clients are written in C, and
procrastinate, a job queue for Python over such a table. Each round measures all of them in turn;
the table has medians.

    put 50 x 20, 50 x 1    puts a second with so many connections, and commands in flight on each
    work 50 x 1            jobs a second, each reserved and deleted, one command in flight
    commit                 what one INSERT of a lone client takes: with 50 commands in flight that
                           wait for a commit each, nothing can do more than 50 in that time
    WAL                    bytes that the database writes to its log for the life of a job, with
                           bodies of random letters, which hardly shrink, and of JSON
    takeover               from kill -9 of the owner to the first job that the other daemon hands
                           out, with a lease of 5 s

The table in SQL: `INSERT` with a commit each, `UPDATE ... WHERE id = (SELECT ... FOR UPDATE SKIP
LOCKED)` over a partial index, and `DELETE`, with prepared statements.
"""

import argparse
import asyncio
import contextlib
import importlib
import os
import random
import re
import shutil
import socket
import statistics
import string
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.arguments import length, positive
from benchmarks.daemon import start
from benchmarks.load import BODY_BYTES, HOUR_S, Fleet, prebuilt, put_request
from benchmarks.peers import free_port
from benchmarks.table import render

CONNECTIONS: Final = 50
IN_FLIGHT: Final = 20
LEASE_S: Final = 5
WAIT_S: Final = 60.0
PATIENCE_S: Final = 0.05
DIRECTORY: Final = "/var/tmp"  # noqa: S108 - a real disk almost everywhere, unlike /tmp
USER: Final = "postgres"
SETTINGS: Final = ("shared_buffers=256MB", "max_connections=200", "unix_socket_directories=")
TABLE: Final = """
DROP TABLE IF EXISTS job;
CREATE TABLE job (id bigserial PRIMARY KEY, due timestamptz NOT NULL, priority int NOT NULL,
  expires timestamptz, body bytea NOT NULL);
CREATE INDEX ready ON job (priority, due) WHERE expires IS NULL;
"""
PUT: Final = "INSERT INTO job (due, priority, body) VALUES (now() + interval 'DELAY', 0, 'BODY');\n"
PUT_MANY: Final = (
    "INSERT INTO job (due, priority, body) SELECT now(), 0, 'BODY' FROM generate_series(1, COUNT)"
)
TAKE: Final = (
    "UPDATE job SET expires = now() + interval '600 s' WHERE id = (SELECT id FROM job WHERE"
    " expires IS NULL AND due <= now() ORDER BY priority, due LIMIT 1 FOR UPDATE SKIP LOCKED)"
    " RETURNING id \\gset\nDELETE FROM job WHERE id = :id;\n"
)
Rates = dict[str, list[float]]
Body = Callable[[random.Random], str]
"""Draws a body."""


# --- The database --------------------------------------------------------------------------------


def programs() -> Path:
    """Return the directory of the newest PostgreSQL that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pgbench"))
    if not found:
        raise SystemExit("postgresql is not installed: apt-get install postgresql")
    return found[-1].parent


def as_user(*command: str) -> list[str]:
    """Return the command as it is run by somebody who is not root: PostgreSQL refuses root."""
    prefix = ("setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups")
    return [*(prefix if os.geteuid() == 0 else ()), *command]


class Cluster:
    """A primary and its synchronous standby."""

    def __init__(self, home: Path) -> None:
        self._bin, self._home = programs(), home
        self.port = free_port()
        self.url = f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"
        self._processes: list[subprocess.Popen[bytes]] = []
        if os.geteuid() == 0:
            shutil.chown(home, USER)
        primary, standby = str(home / "primary"), str(home / "standby")
        self._run("initdb", "-D", primary, "-U", USER, "-A", "trust")
        self._start(primary, self.port)
        self._run(
            "pg_basebackup", "-R", "-D", standby, "-d", f"{self.url}?application_name=standby"
        )
        self._start(standby, free_port())
        self.ask("ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        self.ask("SELECT pg_reload_conf()")
        while self.ask("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") != "1":
            time.sleep(PATIENCE_S)

    def _run(self, name: str, *words: str) -> str:
        ran = subprocess.run(
            as_user(str(self._bin / name), *words),
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
        )
        if ran.returncode:
            raise SystemExit(f"{name} failed: {ran.stderr.strip()}")
        return ran.stdout

    def _start(self, directory: str, port: int) -> None:
        flags = [word for setting in SETTINGS for word in ("-c", setting)]
        command = as_user(str(self._bin / "postgres"), "-D", directory, "-p", str(port), *flags)
        with (self._home / f"{port}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, cwd="/"))
        ready = [str(self._bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready, check=False).returncode:
            time.sleep(PATIENCE_S)

    def ask(self, sql: str) -> str:
        """Return what a statement answers, as text."""
        return self._run("psql", "-qAt", "-v", "ON_ERROR_STOP=1", "-d", self.url, "-c", sql).strip()

    def wal_bytes(self) -> float:
        """Return how much was written to the log of the database so far."""
        return float(self.ask("SELECT pg_current_wal_lsn() - '0/0'"))

    def bench(self, script: str, seconds: float, *words: str, clients: int = CONNECTIONS) -> float:
        """Return how often a second pgbench's clients carry this out."""
        path = self._home / "script.sql"
        path.write_text(script, encoding="utf-8")
        path.chmod(0o644)
        time_words = words or ("-T", str(max(1, round(seconds))))
        said = self._run(
            *("pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2))),
            *(*time_words, "-f", str(path), self.url),
        )
        found = re.search(r"tps = ([\d.]+)", said)
        assert found is not None, said
        return float(found[1])

    def close(self) -> None:
        """End both at once."""
        for process in reversed(self._processes):
            process.terminate()
            try:
                process.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Run a primary and a standby while the block runs."""
    with tempfile.TemporaryDirectory(prefix="bench-postgres-", dir=DIRECTORY) as home:
        Path(home).chmod(0o755)
        servers = Cluster(Path(home))
        try:
            yield servers
        finally:
            servers.close()


# --- What is measured ----------------------------------------------------------------------------


def over_database(servers: Cluster, name: str) -> str:
    """Return the configuration of a daemon whose log is there."""
    return f'[postgres]\nurl = "{servers.url}"\nname = "{name}"\nlease = "{LEASE_S}s"\n'


def daemon_rates(config: str, seconds: float, *, has_data_dir: bool) -> tuple[float, float, float]:
    """Return puts a second in flight and one by one, and jobs worked on."""
    with tempfile.TemporaryDirectory(prefix="bench-daemon-", dir=DIRECTORY) as name:
        daemon = start(Path(name), config, {}, has_data_dir=has_data_dir)
        try:
            with Fleet(daemon.server.port, CONNECTIONS) as fleet:
                later, now = put_request(HOUR_S), put_request(0)
                many = fleet.put(prebuilt(later, IN_FLIGHT), IN_FLIGHT, seconds=seconds)
                single = fleet.put(prebuilt(later, 1), 1, seconds=seconds)
                jobs = max(CONNECTIONS, round(single.per_second * seconds))
                spare = 2 * CONNECTIONS
                fleet.put(prebuilt(now, IN_FLIGHT), IN_FLIGHT, jobs=jobs + spare)
                fleet.start_reserving(1)
                worked = fleet.work(jobs)
            return many.per_second, single.per_second, worked.per_second
        finally:
            daemon.server.kill()


def letters(draw: random.Random) -> str:
    """Return a body that hardly shrinks."""
    return "".join(draw.choices(string.ascii_letters + string.digits, k=BODY_BYTES))


def order(draw: random.Random) -> str:
    """Return a body as programs put them, of the same length."""
    number, customer, cents = (draw.randrange(10**digits) for digits in (8, 6, 7))
    text = f'{{"order":{number},"customer":{customer},"cents":{cents},"currency":"EUR"'
    return text + " " * (BODY_BYTES - len(text) - 1) + "}"


def puts_of(body: Body) -> Callable[[int], bytes]:
    """Return a function that gives so many puts, with drawn bodies of this kind."""
    draw = random.Random(1)
    return lambda count: b"".join(put_request(0, body(draw).encode()) for _ in range(count))


def wal_of_daemon(servers: Cluster, body: Body, jobs: int) -> float:
    """Return the bytes of WAL of a job's life: put, reserved and deleted, one at a time."""
    with tempfile.TemporaryDirectory(prefix="bench-daemon-", dir=DIRECTORY) as name:
        config = over_database(servers, f"wal_{body.__name__}")
        daemon = start(Path(name), config, {}, has_data_dir=False)
        puts = puts_of(body)
        try:
            with Fleet(daemon.server.port, CONNECTIONS) as fleet:
                before = servers.wal_bytes()
                fleet.put(puts, 1, jobs=jobs)
                put_bytes = servers.wal_bytes() - before
                fleet.put(puts, 1, jobs=2 * CONNECTIONS)  # for the reserves that are under way
                before = servers.wal_bytes()
                fleet.start_reserving(1)
                fleet.work(jobs)
                return (put_bytes + servers.wal_bytes() - before) / jobs
        finally:
            daemon.server.kill()


def put_script(delay: str) -> str:
    """Return pgbench's script for a put."""
    return PUT.replace("DELAY", delay).replace("BODY", "x" * BODY_BYTES)


def wal_of_table(servers: Cluster, jobs: int) -> float:
    """Return the same for the table in SQL."""
    servers.ask(TABLE)
    each = str(jobs // CONNECTIONS)
    before = servers.wal_bytes()
    servers.bench(put_script("0 s"), 0, "-t", each)
    servers.bench(TAKE, 0, "-t", each)
    return (servers.wal_bytes() - before) / (int(each) * CONNECTIONS)


def table_rates(servers: Cluster, seconds: float) -> tuple[float, float]:
    """Return puts a second, and jobs worked on, of the table in SQL."""
    servers.ask(TABLE)
    puts = servers.bench(put_script("1 hour"), seconds)
    servers.ask(TABLE)
    ready = round(puts * seconds) + 2 * CONNECTIONS
    servers.ask(PUT_MANY.replace("BODY", "x" * BODY_BYTES).replace("COUNT", str(ready)))
    servers.ask("ANALYZE job")
    return puts, servers.bench(TAKE, 0, "-t", str(max(1, ready // CONNECTIONS - 2)))


async def procrastinate_rates(url: str, seconds: float) -> tuple[float, float]:
    """Return tasks deferred a second by 50 at once, and tasks done by a worker with 50 at once."""
    library: Any = importlib.import_module("procrastinate")
    pool = library.PsycopgConnector(conninfo=url, min_size=CONNECTIONS, max_size=CONNECTIONS)
    app = library.App(connector=pool)
    deferred = 0

    async def do_nothing(body: str) -> None:
        del body

    async def defer(until_s: float) -> None:
        nonlocal deferred
        while time.perf_counter() < until_s:
            await task.defer_async(body="x" * BODY_BYTES)
            deferred += 1

    task = app.task(queue="bench")(do_nothing)
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        begun_s = time.perf_counter()
        await asyncio.gather(*(defer(begun_s + seconds) for _ in range(CONNECTIONS)))
        put_s = time.perf_counter() - begun_s
        once: dict[str, Any] = {"wait": False, "listen_notify": False, "delete_jobs": "always"}
        begun_s = time.perf_counter()
        await app.run_worker_async(concurrency=CONNECTIONS, install_signal_handlers=False, **once)
        return deferred / put_s, deferred / (time.perf_counter() - begun_s)


def takeover_s(servers: Cluster, name: str, standing: int) -> float:
    """Return how long no job is handed out after the owner is killed."""
    config = over_database(servers, name)
    with contextlib.ExitStack() as stack:
        homes = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-daemon-")))
            for _ in range(2)
        ]
        listens = [(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}") for _ in range(2)]
        owner = start(homes[0], config, {}, listens[0], has_data_dir=False)
        stack.callback(owner.server.kill)
        with Fleet(owner.server.port, CONNECTIONS) as fleet:
            later = prebuilt(put_request(HOUR_S), IN_FLIGHT)
            fleet.put(later, IN_FLIGHT, jobs=standing)
            fleet.put(prebuilt(put_request(0), 1), 1, jobs=CONNECTIONS)
        path = homes[1] / "delayd.toml"
        path.write_text(config, encoding="utf-8")
        line, http = listens[1]
        command = (sys.executable, "-m", "delayd", "serve", "--config", str(path))
        with (homes[1] / "log").open("wb") as log:
            other = subprocess.Popen(
                [*command, "--line", line, "--http", http], cwd=homes[1], stdout=log, stderr=log
            )
        stack.callback(other.wait)
        stack.callback(other.kill)
        log_path = homes[1] / "log"
        while "standing by" not in log_path.read_text(encoding="utf-8"):
            time.sleep(PATIENCE_S)
        time.sleep(LEASE_S)  # it follows the frames that came meanwhile
        owner.server.kill()
        killed_s = time.perf_counter()
        port = int(line.rpartition(":")[2])
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as own:
                own.sendall(b"reserve\r\n")
                own.settimeout(WAIT_S)
                if own.recv(8) == b"RESERVED":
                    return time.perf_counter() - killed_s
            time.sleep(PATIENCE_S / 10)


# --- The table -----------------------------------------------------------------------------------


def measure(servers: Cluster, rounds: int, seconds: float, wal_jobs: int) -> Rates:
    """Return the readings of all rounds, by what was measured."""
    found: Rates = {}

    def note(name: str, *values: float) -> None:
        for number, value in enumerate(values):
            found.setdefault(f"{name} {number}", []).append(value)

    for number in range(rounds):
        note("files", *daemon_rates("", seconds, has_data_dir=True))
        config = over_database(servers, f"round_{number}")
        note("database", *daemon_rates(config, seconds, has_data_dir=False))
        note("table", *table_rates(servers, seconds))
        note("commit", servers.bench(put_script("1 hour"), seconds, clients=1))
        print(f"round {number + 1} of {rounds}", file=sys.stderr)
    note("procrastinate", *asyncio.run(procrastinate_rates(servers.url, seconds)))
    ours = [wal_of_daemon(servers, body, wal_jobs) for body in (letters, order)]
    note("wal", *ours, wal_of_table(servers, wal_jobs))
    return found


def rows_of(found: Rates) -> Iterator[tuple[str, ...]]:
    """Write the readings, and what they come to."""
    median = {name: statistics.median(values) for name, values in found.items()}
    for number, name in enumerate(("put 50 x 20", "put 50 x 1", "work 50 x 1")):
        ours, files = median[f"database {number}"], median[f"files {number}"]
        yield f"{name}, a second", f"{ours:,.0f}", f"files {files:,.0f}", f"{ours / files:.2f}"
    for peer in ("table", "procrastinate"):
        for number, name in enumerate(("put 50 x 1", "work 50 x 1")):
            ours, theirs = median[f"database {number + 1}"], median[f"{peer} {number}"]
            yield (
                f"{name}, a second",
                f"{ours:,.0f}",
                f"{peer} {theirs:,.0f}",
                f"{ours / theirs:.2f}",
            )
    most = CONNECTIONS * median["commit 0"]
    commit_ms = f"a commit {1_000 / median['commit 0']:.2f} ms"
    for number, name, commits in ((1, "put 50 x 1", 1), (2, "work 50 x 1", 2)):
        ours = median[f"database {number}"]
        share = f"{ours * commits / most:.2f}"
        yield (
            f"{name}, a second",
            f"{ours:,.0f}",
            f"at most {most / commits:,.0f}: {commit_ms}",
            share,
        )
    table = median["wal 2"]
    for number, body in enumerate(("random letters", "JSON")):
        ours = median[f"wal {number}"]
        what = f"WAL, bytes a job of {body}"
        yield what, f"{ours:,.0f}", f"table {table:,.0f}", f"{ours / table:.2f}"


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=positive, default=3, help="(%(default)s)")
    parser.add_argument("--seconds", type=length, default=3.0, help="of a reading (%(default)s)")
    parser.add_argument("--wal-jobs", type=positive, default=20_000, help="(%(default)s)")
    parser.add_argument("--standing", type=positive, default=1_000_000, help="(%(default)s)")
    options = parser.parse_args()
    with cluster() as servers:
        found = measure(servers, options.rounds, options.seconds, options.wal_jobs)
        rows = [*rows_of(found)]
        for standing in (CONNECTIONS, options.standing):
            took_s = takeover_s(servers, f"takeover_{standing}", standing)
            rows.append((f"takeover, {standing:,} standing", f"{took_s:.1f} s", "lease 5 s", ""))
    print(render(rows, ("", "PostgreSQL", "beside", "ratio")))


if __name__ == "__main__":
    main()
