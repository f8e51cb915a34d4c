"""The log in PostgreSQL beside the log in files, and tables of jobs: the chapter `two_machines`.

One PostgreSQL with a synchronous standby, both of Debian's package, on this machine; delayd over
it, delayd over files, the same work in SQL by `pgbench`, whose clients are written in C, and
procrastinate, a job queue for Python over such a table.

    put, reserve + ack     as in the chapter `servers`, with 50 connections
    one INSERT             of a lone client: with 50 commands in flight that wait for a commit each,
                           nothing can do more than 50 in that time
    log of a job           bytes that the database writes to its log for the life of a job, put,
                           reserved and deleted one at a time, with bodies of random letters, which
                           hardly shrink, and of JSON
    takeover               from kill -9 of the owner to the first job that the other daemon hands
                           out, with a lease of 5 s

The table in SQL: `INSERT` with a commit each, `UPDATE ... WHERE id = (SELECT ... FOR UPDATE SKIP
LOCKED)` over a partial index, and `DELETE`, with prepared statements. A run has new tables.
"""

import asyncio
import contextlib
import functools
import importlib
import itertools
import random
import re
import shutil
import string
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from benchmarks.line import PATIENCE_S, Line
from benchmarks.registry import Bench, Case, Durability, NotMeasuredError, Values
from benchmarks.servers.account import JobAccount
from benchmarks.servers.beanstalk import Reachable
from benchmarks.servers.delayd import RunningDelayd, new_delayd, running
from benchmarks.servers.generator import Load
from benchmarks.servers.operations import (
    an_hour,
    closed_puts,
    closed_takes,
    empty,
    fill,
    no_delay,
)
from benchmarks.servers.postgres import enterable
from tests.postgres_server import PostgresPair, PostgresServer, programs
from tests.servers import free_port

ONE, MANY = Load(connections=50, in_flight=1), Load(connections=50, in_flight=20)
BODY_BYTES: Final = 100
READY_PER_S: Final = 20_000
"""Jobs that are there for a reading of `reserve + ack`, of each second."""
WAL_JOBS: Final = 20_000
STANDING: Final = (50, 1_000_000)
PGBENCH_S_MIN: Final = 0.1
"""pgbench counts in whole seconds: in a shorter reading each client does it once."""
LEASE_S: Final = 5
LOOK_S: Final = 0.005
SETTINGS: Final = (
    *("shared_buffers=256MB", "max_connections=200"),
    # As the server has them by itself; the tests' own are others.
    *("autovacuum=on", "wal_keep_size=0"),
)
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
FILES: Final = "delayd, the log in files"
DATABASE: Final = "delayd, the log in PostgreSQL"
IN_SQL: Final = "a table in SQL, by pgbench"
PROCRASTINATE: Final = "procrastinate"

_names: Final = itertools.count(1)


# --- The database --------------------------------------------------------------------------------


@contextlib.contextmanager
def database_pair(directory: Path) -> Iterator[PostgresServer]:
    """Run a primary and its synchronous standby below a folder; give the primary."""
    if programs() is None:
        raise NotMeasuredError("PostgreSQL is not installed")
    with contextlib.ExitStack() as stack:
        place = enterable(directory)
        homes = [Path(tempfile.mkdtemp(prefix="bench-postgres-", dir=place)) for _ in range(2)]
        for home in homes:
            stack.callback(shutil.rmtree, home)
        first, second = (stack.enter_context(free_port()) for _ in homes)
        pair = PostgresPair((homes[0], homes[1]), (first, second), {}, SETTINGS)
        stack.callback(pair.stop)
        yield pair.primary


def kept_database(bench: Bench) -> PostgresServer:
    """Return that of the chapter."""
    return bench.kept("database", lambda: database_pair(bench.directory))


def wal_bytes(server: PostgresServer) -> float:
    """Return how much was written to the log of the database so far."""
    return float(server.ask("SELECT pg_current_wal_lsn() - '0/0'"))


def pgbench(
    server: PostgresServer, bench: Bench, script: str, *words: str, clients: int = 0
) -> float:
    """Return how often a second pgbench's clients carry this out; for a reading's time.

    They are as many as the connections of `ONE` unless said otherwise.
    """
    clients = clients or ONE.connections
    lasting = ("-T", str(max(1, round(bench.seconds))))
    amount = words or (lasting if bench.seconds > PGBENCH_S_MIN else ("-t", "1"))
    with tempfile.NamedTemporaryFile("w", dir=enterable(bench.directory), suffix=".sql") as file:
        file.write(script)
        file.flush()
        Path(file.name).chmod(0o644)
        said = server.run(
            *("pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", str(min(clients, 2))),
            *amount,
            *("-f", file.name, server.url),
        )
    found = re.search(r"tps = ([\d.]+)", said)
    return float(found[1]) if found else 0.0  # it did none, and says no rate


@contextlib.contextmanager
def over_database(bench: Bench) -> Iterator[RunningDelayd]:
    """Run a daemon whose log is a new one in the database."""
    with new_delayd(bench, config=configured(kept_database(bench)), has_data=False) as daemon:
        yield daemon


def configured(server: PostgresServer) -> str:
    """Return the configuration of a daemon whose log is there, under a name of its own."""
    name = f"bench_{next(_names)}"
    return f'[postgres]\nurl = "{server.url}"\nname = "{name}"\nlease = "{LEASE_S}s"\n'


def daemon_of(subject: str, bench: Bench) -> contextlib.AbstractContextManager[RunningDelayd]:
    """Run the daemon of a subject."""
    return new_delayd(bench) if subject == FILES else over_database(bench)


# --- What is measured ----------------------------------------------------------------------------


def put(subject: str, load: Load, bench: Bench) -> Values:
    """Put jobs that are due in an hour."""
    with daemon_of(subject, bench) as daemon:
        return closed_puts(daemon, JobAccount(), load, bench.seconds, daemon.standing, an_hour)


def take(subject: str, bench: Bench) -> Values:
    """Take ready jobs and acknowledge each."""
    account = JobAccount()
    with daemon_of(subject, bench) as daemon:
        fill(daemon, account, MANY, bench.entries(int(READY_PER_S * bench.seconds)), no_delay)
        return closed_takes(daemon, account, ONE, bench.seconds, daemon.standing)


def put_script(delay: str) -> str:
    """Return pgbench's script for a put."""
    return PUT.replace("DELAY", delay).replace("BODY", "x" * BODY_BYTES)


def put_in_sql(bench: Bench, clients: int = 0) -> Values:
    """Insert rows, with a commit each."""
    server = kept_database(bench)
    server.ask(TABLE)
    return {"rate": pgbench(server, bench, put_script("1 hour"), clients=clients)}


def take_in_sql(bench: Bench) -> Values:
    """Take ready rows and delete each."""
    server = kept_database(bench)
    each = max(1, bench.entries(int(READY_PER_S * bench.seconds)) // ONE.connections)
    count = each * ONE.connections
    rows = PUT_MANY.replace("BODY", "x" * BODY_BYTES).replace("COUNT", str(count))
    server.ask(TABLE, rows, "ANALYZE job")
    return {"rate": pgbench(server, bench, TAKE, "-t", str(each))}


def one_insert(bench: Bench) -> Values:
    """Insert rows by a lone client; the rate is that of its commits."""
    return put_in_sql(bench, clients=1)


def procrastinate_rates(bench: Bench) -> tuple[float, float]:
    """Return tasks deferred a second by 50 at once, and tasks done by a worker with 50 at once."""
    try:
        library: Any = importlib.import_module("procrastinate")  # of the peers
    except ImportError as error:
        raise NotMeasuredError("procrastinate is not installed") from error

    async def measure(url: str) -> tuple[float, float]:
        size = ONE.connections
        pool = library.PsycopgConnector(conninfo=url, min_size=size, max_size=size)
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
            await asyncio.gather(*(defer(begun_s + bench.seconds) for _ in range(size)))
            put_s = time.perf_counter() - begun_s
            once = {"wait": False, "listen_notify": False, "delete_jobs": "always"}
            begun_s = time.perf_counter()
            await app.run_worker_async(concurrency=size, install_signal_handlers=False, **once)
            return deferred / put_s, deferred / (time.perf_counter() - begun_s)

    server = kept_database(bench)
    name = f"procrastinate_{next(_names)}"
    server.ask(f"CREATE DATABASE {name}")
    return asyncio.run(measure(f"{server.url.rpartition('/')[0]}/{name}"))


def deferred(bench: Bench) -> Values:
    """Defer tasks."""
    return {"rate": procrastinate_rates(bench)[0]}


def worked(bench: Bench) -> Values:
    """Have the tasks done."""
    return {"rate": procrastinate_rates(bench)[1]}


def letters(count: int) -> bytes:
    """Draw what hardly shrinks."""
    return "".join(random.choices(string.ascii_letters + string.digits, k=count)).encode()


def order(count: int) -> bytes:
    """Draw JSON as programs put it."""
    number, customer, cents = (random.randrange(10**digits) for digits in (8, 6, 7))
    text = f'{{"order":{number},"customer":{customer},"cents":{cents},"currency":"EUR"'
    return f"{text:{count - 1}}}}".encode()[:count]


BODIES: Final[Mapping[str, Callable[[int], bytes]]] = MappingProxyType(
    {"random letters": letters, "JSON": order}
)


def log_of_a_job(body: str, bench: Bench) -> Values:
    """Put, reserve and delete jobs, one at a time on each connection."""
    jobs, account = bench.entries(WAL_JOBS), JobAccount()
    random.seed(1)
    with over_database(bench) as daemon:
        server, reached = kept_database(bench), Reachable(daemon.port, draw=BODIES[body])
        before = wal_bytes(server)
        fill(reached, account, ONE, jobs, no_delay)
        empty(reached, account, ONE)
        return {"log_bytes": (wal_bytes(server) - before) / jobs, "lost": daemon.standing()}


def log_of_a_row(bench: Bench) -> Values:
    """Insert, take and delete rows."""
    server = kept_database(bench)
    each = max(1, bench.entries(WAL_JOBS) // ONE.connections)
    server.ask(TABLE)
    before = wal_bytes(server)
    pgbench(server, bench, put_script("0 s"), "-t", str(each))
    pgbench(server, bench, TAKE, "-t", str(each))
    return {"log_bytes": (wal_bytes(server) - before) / (each * ONE.connections)}


def takeover(standing: int, bench: Bench) -> Values:
    """Kill the owner of a log, and wait until the other daemon hands out a job."""
    account, config = JobAccount(), configured(kept_database(bench))
    with contextlib.ExitStack() as stack:
        homes = [
            Path(stack.enter_context(tempfile.TemporaryDirectory(dir=bench.directory)))
            for _ in range(2)
        ]
        owner = stack.enter_context(running(homes[0], config=config, has_data=False))
        fill(owner, account, MANY, bench.entries(standing), an_hour)
        fill(owner, account, MANY, 1, no_delay)
        follows = running(homes[1], config=config, has_data=False, waits_for="standing by")
        other = stack.enter_context(follows)
        time.sleep(LEASE_S)  # it follows the frames that came meanwhile
        owner.server.kill()
        killed_s = time.perf_counter()
        while time.perf_counter() < killed_s + 2 * PATIENCE_S:
            with contextlib.suppress(OSError), contextlib.closing(Line(other.port)) as line:
                if line.ask(b"reserve\r\n").startswith(b"RESERVED"):
                    seconds = time.perf_counter() - killed_s
                    return {"seconds": seconds, "lost": account.jobs - other.standing()}
            time.sleep(LOOK_S)
    raise NotMeasuredError(f"no job was handed out in {2 * PATIENCE_S:.0f} s")


# --- The chapter ---------------------------------------------------------------------------------


def case(
    operation: str,
    size: Mapping[str, int | str],
    subject: str,
    take_one: Callable[[Bench], Values],
    runs_max: int | None = None,
) -> Case:
    """Return a case of this chapter; commits of all subjects wait for both disks."""
    synced = Durability.BEFORE_ANSWER
    return Case("two_machines", operation, size, subject, take_one, synced, runs_max=runs_max)


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [*load_cases(), *other_cases()]


def load_cases() -> Iterator[Case]:
    """Yield rates, each operation with all subjects that can do it."""
    many, one = (
        {"connections": load.connections, "in flight": load.in_flight} for load in (MANY, ONE)
    )
    for size, load in ((many, MANY), (one, ONE)):
        for subject in (DATABASE, FILES):
            yield case("put", size, subject, functools.partial(put, subject, load))
    yield case("put", one, IN_SQL, put_in_sql)
    yield case("put", one, PROCRASTINATE, deferred, 1)
    for subject in (DATABASE, FILES):
        yield case("reserve + ack", one, subject, functools.partial(take, subject))
    yield case("reserve + ack", one, IN_SQL, take_in_sql)
    yield case("reserve + ack", one, PROCRASTINATE, worked, 1)
    yield case("one INSERT", {"connections": 1}, IN_SQL, one_insert)


def other_cases() -> Iterator[Case]:
    """Yield what a job costs the log of the database, and takeovers."""
    for body in BODIES:
        of_body = {"body": body}
        yield case("log of a job", of_body, DATABASE, functools.partial(log_of_a_job, body), 1)
        yield case("log of a job", of_body, IN_SQL, log_of_a_row, 1)
    for standing in STANDING:
        took = functools.partial(takeover, standing)
        yield case("takeover", {"standing jobs": standing}, DATABASE, took, 1)
