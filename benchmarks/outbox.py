"""The outbox: rows relayed a second, and how long a lone row takes. `make bench-outbox`.

    rows/s        of a table full of rows, from when the relay begins until the last is deleted
    relay CPU     processor seconds of the relay for each thousand of them, its start included
    put_many/s    the same jobs from a client that has no table: what the relay could do at most
    lag p50, p99  from before the COMMIT of a lone row until a worker that waits has the job

PostgreSQL has a synchronous standby here, so that a commit waits for two disks; SQLite is in WAL
mode. All of it runs on this machine.
"""

import argparse
import contextlib
import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from benchmarks.arguments import positive
from benchmarks.daemon import Started, running
from benchmarks.table import render
from benchmarks.two_machines import DIRECTORY, cluster
from delayd import outbox
from delayd.client import Client

BODY: Final = "x" * 100
HEADINGS: Final = ("database", "rows/s", "CPU ms/1000", "put_many/s", "lag p50 ms", "lag p99 ms")
Connect = Callable[[], Any]
"""Connects to the database, by its driver."""


@contextlib.contextmanager
def databases() -> Iterator[dict[str, tuple[str, Connect]]]:
    """Run them; by name, the url for the relay, and how to connect."""
    import psycopg  # noqa: PLC0415 - not for the list of all benchmarks

    with cluster() as servers, tempfile.TemporaryDirectory(dir=DIRECTORY) as home:
        path = Path(home, "shop.db")
        with closing(sqlite3.connect(path)) as file:
            file.execute("PRAGMA journal_mode = WAL")
            file.executescript(outbox.schema("sqlite"))
        with psycopg.connect(servers.url, autocommit=True) as server:
            server.execute(outbox.schema("postgresql"))
        yield {
            "PostgreSQL": (servers.url, lambda: psycopg.connect(servers.url)),
            "SQLite": (f"sqlite:///{path}", lambda: sqlite3.connect(path)),
        }


def relay(url: str, http: str, *more: str) -> "subprocess.Popen[str]":
    """Start the relay; return it when it is at work."""
    command = [sys.executable, "-m", "delayd", "relay", url, "--url", http, *more]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "relaying" in line:
            return process
    raise SystemExit("the relay did not start")


def rows_per_s(url: str, connect: Connect, http: str, rows: int) -> tuple[float, float]:
    """Return rows a second, and the processor seconds of the relay."""
    with closing(connect()) as connection:
        for _ in range(rows):
            outbox.put(connection.cursor(), "bench", BODY, delay="1h")
        connection.commit()
    process = relay(url, http, "--drain")
    start_s = time.perf_counter()
    _, status, usage = os.wait4(process.pid, 0)
    took_s = time.perf_counter() - start_s
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.stderr is not None
    process.stderr.close()
    return rows / took_s, usage.ru_utime + usage.ru_stime


def put_many_per_s(client: Client, rows: int) -> float:
    """Return the same jobs a second from a client alone, a thousand at once."""
    start_s = time.perf_counter()
    for _ in range(0, rows, 1_000):
        client.put_many("bench", [{"body": BODY, "delay": "1h"}] * 1_000)
    return rows / (time.perf_counter() - start_s)


def lags_ms(url: str, connect: Connect, http: str, client: Client, rows: int) -> list[float]:
    """Return for lone rows how long after the commit began a worker had the job."""
    process = relay(url, http)
    lags: list[float] = []
    with closing(connect()) as connection:
        for _ in range(rows):
            outbox.put(connection.cursor(), "lone", BODY)
            start_s = time.perf_counter()
            connection.commit()
            client.reserve("lone", timeout=60).ack()
            lags.append((time.perf_counter() - start_s) * 1_000)
    process.terminate()
    process.communicate()
    return sorted(lags)


def line_of(
    name: str, url: str, connect: Connect, daemon: Started, rows: int, lone: int
) -> list[str]:
    """Measure one database; return its line."""
    http = f"http://127.0.0.1:{daemon.ports['http']}"
    with Client(http) as client:
        rates = [rows_per_s(url, connect, http, rows) for _ in range(3)]
        alone = statistics.median(put_many_per_s(client, rows) for _ in range(3))
        lags = lags_ms(url, connect, http, client, lone)
    rate = statistics.median(each for each, _ in rates)
    cpu_ms = statistics.median(cpu_s for _, cpu_s in rates) * 1_000_000 / rows
    p99 = lags[int(len(lags) * 0.99)]
    figures = (rate, cpu_ms, alone, statistics.median(lags), p99)
    return [name, *(f"{figure:,.0f}" if figure >= 100 else f"{figure:.1f}" for figure in figures)]


def main() -> None:
    """Measure both databases, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=positive, default=20_000)
    parser.add_argument("--lone", type=positive, default=200, help="rows that are committed alone")
    given = parser.parse_args()
    with running() as daemon, databases() as each:
        lines = [
            line_of(name, url, connect, daemon, given.rows, given.lone)
            for name, (url, connect) in each.items()
        ]
    print(render(lines, HEADINGS))


if __name__ == "__main__":
    main()
