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
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.arguments import names_of
from benchmarks.peers import ask, free_port

BODY: Final = b"x" * 100
PIPELINED: Final = 20
FEW, MANY = 400, 1_200
START_SECONDS_MAX: Final = 120.0
HERE: Final = Path(__file__).resolve().parent.parent


class Line:
    """A client of the line protocol that counts the replies it waits for."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def send(self, data: bytes, replies: int) -> list[bytes]:
        """Send commands; return the first line of each reply, bodies of jobs left out."""
        self._socket.sendall(data)
        lines: list[bytes] = []
        while len(lines) < replies:
            line, end, rest = self._received.partition(b"\r\n")
            body_bytes = int(line.rsplit(b" ", 1)[1]) + 2 if line.startswith(b"RESERVED") else 0
            if end and len(rest) >= body_bytes:
                self._received = rest[body_bytes:]
                lines.append(line)
                continue
            received = self._socket.recv(65_536)
            assert received, "the daemon closed the connection"
            self._received += received
        return lines


def put(delay_s: int, words: bytes = b"") -> bytes:
    """Return a put of one job."""
    return b"put 0 %d 60 %d%s\r\n%s\r\n" % (delay_s, len(BODY), words, BODY)


def puts(line: Line, jobs: int, run: int, delay_s: int = 3_600, *, keyed: bool = False) -> None:
    """Put jobs in runs of that length."""
    for first in range(0, jobs, run):
        keys = (b" key=customer-%010d-" % number if keyed else b"" for number in range(first, jobs))
        commands = b"".join(put(delay_s, next(keys)) for _ in range(run))
        replies = line.send(commands, run)
        assert all(reply.startswith(b"INSERTED") for reply in replies), replies


def consume(line: Line, jobs: int, run: int) -> None:
    """Reserve and delete jobs in runs of that length."""
    for _ in range(0, jobs, run):
        reserved = line.send(b"reserve\r\n" * run, run)
        ids = [reply.split()[1] for reply in reserved]
        line.send(b"".join(b"delete %b\r\n" % job_id for job_id in ids), run)


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
    ports = Ports(free_port(), free_port())
    with tempfile.TemporaryDirectory(prefix="bench-instructions-") as directory:
        command = [
            *("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"),
            *(sys.executable, "-m", "delayd", "serve", "--data-dir", f"{directory}/data"),
            *("--line", f"127.0.0.1:{ports.line}", "--http", f"127.0.0.1:{ports.http}"),
            *("--sync", sync),
        ]
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0"}
        process = subprocess.Popen(
            command,
            cwd=tree,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _wait_until_serving(ports.line, process)
            yield ports
            process.send_signal(signal.SIGTERM)
            said = process.communicate(timeout=START_SECONDS_MAX)[1]
        finally:
            process.kill()
            process.wait()
    found = re.search(r"I\s+refs:\s+([\d,]+)", said)
    assert found is not None, said[-500:]
    counted.append(int(found[1].replace(",", "")))


def _wait_until_serving(port: int, process: "subprocess.Popen[str]") -> None:
    deadline = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        try:
            ask(port, b"list-tube-used\r\n")
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit("the daemon did not come to serve")


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
