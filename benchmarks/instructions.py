"""Instructions of one command, counted by valgrind: `python -m benchmarks.instructions`.

A stopwatch on a busy machine cannot tell a change of two percent; the number of instructions that
the daemon executes can. Each row starts the real daemon twice under `cachegrind`, sends it a
smaller and a larger number of commands over a socket, and divides the difference, so that start
and stop cancel out:

    put              one put, the client waits for each answer
    put x 20         one of 20 puts that are sent in one packet
    keyed put x 20   the same, each with a key of its own
    consume          reserve and delete of one job, the client waits for each answer
    consume x 20     20 reserves in one packet, then 20 deletes
    http put         POST /v1/topics/mail/jobs, one after the other on one connection

Bodies have 100 bytes, delays an hour; jobs that are consumed are ready. `--tree` names another
checkout of delayd: the rows are then measured for both, with the ratio.
"""

import argparse
import http.client
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.arguments import names_of
from benchmarks.line import HOST, Line, ask
from benchmarks.processes import OwnServer, reserved_port

BODY: Final = b"x" * 100
PIPELINED: Final = 20
FEW, MANY = 400, 1_200
HERE: Final = Path(__file__).resolve().parent.parent


def put(delay_s: int, words: bytes = b"") -> bytes:
    """Return a put of one job."""
    return b"put 0 %d 60 %d%s\r\n%s\r\n" % (delay_s, len(BODY), words, BODY)


def puts(line: Line, jobs: int, run: int, delay_s: int = 3_600, *, keyed: bool = False) -> None:
    """Put jobs in runs of that length."""
    for first in range(0, jobs, run):
        keys = (b" key=customer-%010d-" % number if keyed else b"" for number in range(first, jobs))
        line.put_all([put(delay_s, next(keys)) for _ in range(run)])


def consume(line: Line, jobs: int, run: int) -> None:
    """Reserve and delete jobs in runs of that length."""
    for _ in range(0, jobs, run):
        reserved = line.ask_many([b"reserve\r\n"] * run)
        line.ask_many([b"delete %b\r\n" % reply.split()[1] for reply in reserved])


def http_puts(port: int, jobs: int) -> None:
    """Put jobs over HTTP, one after the other."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = b'{"body": "%s", "delay": 3600}' % BODY
    for _ in range(jobs):
        connection.request(
            "POST", "/v1/topics/mail/jobs", body, {"Content-Type": "application/json"}
        )
        response = connection.getresponse()
        assert response.status == http.client.CREATED, response.status
        response.read()
    connection.close()


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured; `prepare` is done before, with the larger number in either run."""

    name: str
    run: Callable[["Ports", int], None]
    prepare: Callable[["Ports"], None] | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the daemon under test listens."""

    line: int
    http: int


def _ready_jobs(ports: Ports) -> None:
    puts(Line(ports.line), MANY, PIPELINED, delay_s=0)


ROWS: Final = (
    Row("put", lambda ports, jobs: puts(Line(ports.line), jobs, 1)),
    Row("put x 20", lambda ports, jobs: puts(Line(ports.line), jobs, PIPELINED)),
    Row("keyed put x 20", lambda ports, jobs: puts(Line(ports.line), jobs, PIPELINED, keyed=True)),
    Row("consume", lambda ports, jobs: consume(Line(ports.line), jobs, 1), _ready_jobs),
    Row(
        "consume x 20", lambda ports, jobs: consume(Line(ports.line), jobs, PIPELINED), _ready_jobs
    ),
    Row("http put", lambda ports, jobs: http_puts(ports.http, jobs)),
)


@contextmanager
def counted_daemon(tree: Path, sync: str, counted: list[int]) -> Iterator[Ports]:
    """Run the daemon of that checkout; append how many instructions it took when it has ended."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-instructions-") as directory,
        reserved_port() as line,
        reserved_port() as http,
    ):
        command = [
            *("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"),
            *(sys.executable, "-m", "delayd", "serve", "--data-dir", f"{directory}/data"),
            *("--line", f"{HOST}:{line}", "--http", f"{HOST}:{http}", "--sync", sync),
        ]
        environment = {"PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
        is_serving = lambda: bool(ask(line, b"list-tube-used\r\n"))  # noqa: E731
        with OwnServer(command, Path(directory), is_serving, environment) as server:
            yield Ports(line, http)
            server.stop()
            said = server.said
    found = re.search(r"I\s+refs:\s+([\d,]+)", said)
    assert found is not None, said[-500:]
    counted.append(int(found[1].replace(",", "")))


def measure(row: Row, tree: Path, sync: str) -> float:
    """Return the instructions of one command of the row."""
    counted: list[int] = []
    for jobs in (FEW, MANY):
        with counted_daemon(tree, sync, counted) as ports:
            if row.prepare is not None:
                row.prepare(ports)
            row.run(ports, jobs)
    return (counted[1] - counted[0]) / (MANY - FEW)


def main() -> None:
    """Measure the rows and print them as a table."""
    parser = argparse.ArgumentParser(description="Count the instructions of one command.")
    parser.add_argument("--tree", type=Path, help="another checkout of delayd, as the base")
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", type=names_of(names), default=names, help="with commas (all)")
    parser.add_argument("--sync", default="always", choices=("always", "interval", "never"))
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        raise SystemExit("valgrind is not installed: apt install valgrind")
    print("| instructions a command | base | now | now / base |")
    print("|---|---|---|---|")
    for row in ROWS:
        if row.name not in arguments.rows:
            continue
        now = measure(row, HERE, arguments.sync)
        base = None if arguments.tree is None else measure(row, arguments.tree, arguments.sync)
        ratio = "" if base is None else f"{now / base:.3f}"
        print(f"| {row.name} | {'' if base is None else f'{base:,.0f}'} | {now:,.0f} | {ratio} |")


if __name__ == "__main__":
    main()
