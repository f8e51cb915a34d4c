"""The outbox: rows relayed a second, and how long a lone row takes: the chapter `outbox`.

    full table    rows a second, from when the relay begins until the last is deleted, and its
                  processor time, its start included. Beside it the same jobs from a client that has
                  no table: what the relay could do at most
    lone row      from before its COMMIT until a worker that waits has the job

PostgreSQL has a synchronous standby here, so that a commit waits for two disks; SQLite is in WAL
mode. All of it runs on this machine.
"""

import contextlib
import functools
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple

from benchmarks.registry import Bench, Case, Durability, Values
from benchmarks.servers.delayd import new_delayd
from benchmarks.table import percentile
from benchmarks.two_machines import database_pair
from delayd import outbox
from delayd.client import Client

BODY: Final = "x" * 100
BATCH: Final = 1_000
ROWS: Final = 20_000
LONE: Final = 200
DATABASES: Final = ("PostgreSQL", "SQLite")
NO_TABLE: Final = "the client alone, no table"
Connect = Callable[[], Any]
"""Connects to the database, by its driver."""


class Database(NamedTuple):
    """A database that runs."""

    url: str
    """For the relay."""
    connect: Connect


@contextlib.contextmanager
def postgresql(directory: Path) -> Iterator[Database]:
    """Run PostgreSQL with a standby; raise `NotMeasuredError`."""
    import psycopg  # noqa: PLC0415 - not for the list of all benchmarks

    with database_pair(directory) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(outbox.schema("postgresql"))
        yield Database(server.url, lambda: psycopg.connect(server.url))


@contextlib.contextmanager
def sqlite(directory: Path) -> Iterator[Database]:
    """Make a file of SQLite."""
    with tempfile.TemporaryDirectory(dir=directory) as home:
        path = Path(home, "shop.db")
        with closing(sqlite3.connect(path)) as file:
            file.execute("PRAGMA journal_mode = WAL")
            file.executescript(outbox.schema("sqlite"))
        yield Database(f"sqlite:///{path}", lambda: sqlite3.connect(path))


def relay(url: str, http: str, *more: str) -> "subprocess.Popen[str]":
    """Start the relay; return it when it is at work."""
    command = [sys.executable, "-m", "delayd", "relay", url, "--url", http, *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "relaying" in line:
            return process
    raise SystemExit("the relay did not start")


def full_table(database: Database, http: str, rows: int) -> Values:
    """Fill the table, and empty it."""
    with closing(database.connect()) as connection:
        for _ in range(rows):
            outbox.put(connection.cursor(), "bench", BODY, delay="1h")
        connection.commit()
    process = relay(database.url, http, "--drain")
    start_s = time.perf_counter()
    _, status, usage = os.wait4(process.pid, 0)
    took_s = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None
    process.stderr.close()
    cpu_s = usage.ru_utime + usage.ru_stime
    return {"rate": rows / took_s, "cpu_s_per_million": cpu_s * 1e6 / rows}


def without_table(http: str, rows: int) -> Values:
    """Put the same jobs, a thousand at once."""
    with Client(http) as client:
        start_s = time.perf_counter()
        for first in range(0, rows, BATCH):
            count = min(BATCH, rows - first)
            client.put_many("bench", [{"body": BODY, "delay": "1h"}] * count)
        return {"rate": rows / (time.perf_counter() - start_s)}


def lone_row(database: Database, http: str, rows: int) -> Values:
    """Commit rows one by one; take each when it arrives."""
    process = relay(database.url, http)
    lags_ms: list[float] = []
    with closing(database.connect()) as connection, Client(http) as client:
        for _ in range(rows):
            outbox.put(connection.cursor(), "lone", BODY)
            start_s = time.perf_counter()
            connection.commit()
            client.reserve("lone", timeout=60).ack()
            lags_ms.append((time.perf_counter() - start_s) * 1_000)
    process.terminate()
    process.communicate()
    return {
        "p50_ms": percentile(lags_ms, 50),
        "p99_ms": percentile(lags_ms, 99),
        "worst_ms": max(lags_ms),
    }


def reading(operation: str, name: str, bench: Bench) -> Values:
    """Measure with a daemon and databases that the chapter shares."""
    http = bench.kept("daemon", lambda: new_delayd(bench)).http_url
    if name == NO_TABLE:
        return without_table(http, bench.entries(ROWS))
    if name == "SQLite":
        database = bench.kept(name, lambda: sqlite(bench.directory))
    else:
        database = bench.kept(name, lambda: postgresql(bench.directory))
    if operation == "lone row":
        return lone_row(database, http, bench.entries(LONE))
    return full_table(database, http, bench.entries(ROWS))


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [
        Case(
            chapter="outbox",
            operation=operation,
            size={"rows": rows},
            subject=name if name == NO_TABLE else f"delayd relay, {name}",
            measure=functools.partial(reading, operation, name),
            policy=Durability.BEFORE_ANSWER,
        )
        for operation, rows, names in (
            ("full table", ROWS, (*DATABASES, NO_TABLE)),
            ("lone row", LONE, DATABASES),
        )
        for name in names
    ]
