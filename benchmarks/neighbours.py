"""How long the others wait for one client: `python -m benchmarks.neighbours`.

A real daemon on this machine. One neighbour puts a job a millisecond after the reply to the last
and notes how long each reply took. Beside it one client does something big:

    nothing                     what the neighbour waits on an idle daemon
    unknown names               a batch of 4 MB, each job of which has 300 fields that nobody knows
    unknown names in nacks      the same for `POST /v1/nack`
    retry ladders               a batch of 1,000 jobs with a ladder of 255 steps each
    dense JSON                  one job of 4 MB whose body is a list of numbers
    lines of JSON               a batch of 4 MB
    kick                        200,000 buried jobs by one command of the line
    close                       a connection ends that holds 200,000 jobs
    close with a ladder         the same, where each is a failed attempt
    watch                       40,000 tubes on one connection, then 2,700 reserves in one go
    list and cancel             300,000 jobs, in pages and then at once
    all of it                   each of these at the same time, beside eight workers

Each row has a daemon of its own. A row says how long the client's work took, the neighbour's p50,
p99 and longest wait in ms, and what the client was answered at the end. Run it alone: the daemon,
the neighbour and the client share the processors.
"""

import argparse
import contextlib
import http.client
import json
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.http import delayd, server
from benchmarks.load import PATIENCE_S, connect

JOBS: Final = 200_000
LISTED: Final = 300_000
TUBES: Final = 40_000
RESERVES: Final = 2_700
WORKERS: Final = 8
BATCH: Final = 2_000
BODY_BYTES: Final = 4_000_000
SETTLE_S: Final = 1.0
DONE_S_MAX: Final = 120.0


class Line:
    """A connection of the line protocol that waits for each reply, or for many."""

    def __init__(self, port: int, tube: str) -> None:
        self._sock = connect(port)
        self._sock.settimeout(DONE_S_MAX)
        self._replies = self._sock.makefile("rb")
        self.ask(b"use %b\r\n" % tube.encode())
        self.ask(b"watch %b\r\n" % tube.encode())
        self.ask(b"ignore default\r\n")

    def send(self, commands: bytes) -> None:
        """Send and read nothing; the replies must fit the buffers."""
        self._sock.sendall(commands)

    def reply(self) -> bytes:
        """Read a reply: one line, and its body where it has one."""
        line = self._replies.readline()
        if line.startswith(b"RESERVED "):
            self._replies.read(int(line.split()[2]) + 2)
        return line

    def ask(self, command: bytes) -> bytes:
        """Send one command and return its reply."""
        self.send(command)
        return self.reply()

    def ask_many(self, commands: list[bytes]) -> list[bytes]:
        """Send batches that fit the socket buffers, and return the replies."""
        replies: list[bytes] = []
        for first in range(0, len(commands), BATCH):
            some = commands[first : first + BATCH]
            self.send(b"".join(some))
            replies.extend(self.reply() for _ in some)
        return replies

    def fill(self, jobs: int, *, delay_s: int = 0) -> None:
        """Put jobs with short bodies and a long ttr."""
        self.ask_many([b"put 0 %d 86400 1\r\nx\r\n" % delay_s] * jobs)

    def hold(self, jobs: int) -> list[bytes]:
        """Put and reserve jobs; return their ids."""
        self.fill(jobs)
        return [reply.split()[1] for reply in self.ask_many([b"reserve\r\n"] * jobs)]

    def close(self) -> None:
        """End the connection, also where a forked process has it."""
        self._sock.shutdown(socket.SHUT_RDWR)
        self._replies.close()
        self._sock.close()


def ask_http(port: int, method: str, path: str, body: bytes = b"", kind: str = "json") -> str:
    """Send one request; return the status and how the answer begins."""
    kinds = {"json": "application/json", "lines": "application/x-ndjson"}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DONE_S_MAX)
    try:
        connection.request(method, path, body, {"Content-Type": kinds[kind]})
        response = connection.getresponse()
        return f"{response.status} {response.read()[:40].decode()!r}"
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error!r}"
    finally:
        connection.close()


# --- What the one client does --------------------------------------------------------------------

Ports = dict[str, int]
Work = Callable[[], str]
"""What is done while the neighbour is measured; returns what was answered."""


def nothing(_ports: Ports) -> Work:
    """Leave the neighbour alone for two seconds."""

    def work() -> str:
        time.sleep(2.0)
        return ""

    return work


def repeated(item: dict[str, object]) -> list[dict[str, object]]:
    """Return the item so often that the body is as long as one may be."""
    return [item] * (BODY_BYTES // (len(json.dumps(item)) + 2))


def request(method: str, path: str, content: object) -> Callable[[Ports], Work]:
    """Send a body that has been made before."""
    body = json.dumps(content).encode()

    def row(ports: Ports) -> Work:
        return lambda: ask_http(ports["http"], method, path, body)

    return row


def unknown_names() -> dict[str, object]:
    """Three hundred fields that nobody knows."""
    return {f"delai{number}": 1 for number in range(300)}


def ladders() -> object:
    """A batch of jobs with the longest ladder."""
    steps = [f"{step + 1}s" for step in range(255)]
    return {"jobs": [{"body": "x", "retry": steps, "delay": "1h"}] * 1_000}


def lines(ports: Ports) -> Work:
    """Put a batch as lines of JSON, as many jobs as one batch may have."""
    job = json.dumps({"body": "x" * (BODY_BYTES // 1_000 - 40), "delay": "1h"}) + "\n"
    body = job.encode() * 1_000
    return lambda: ask_http(ports["http"], "POST", "/v1/topics/big/jobs", body, "lines")


def kick(ports: Ports) -> Work:
    """Kick all that is buried by one command."""
    line = Line(ports["line"], "big")
    line.ask_many([b"bury %b 0\r\n" % job_id for job_id in line.hold(JOBS)])
    return lambda: line.ask(b"kick %d\r\n" % JOBS).decode().strip()


def close(ports: Ports) -> Work:
    """End a connection that holds many jobs, and wait until all are ready again."""
    holder = Line(ports["line"], "big")
    holder.hold(JOBS)
    other = Line(ports["line"], "big")

    def work() -> str:
        holder.close()
        deadline = time.monotonic() + DONE_S_MAX
        while time.monotonic() < deadline:
            if reserved_jobs(other) == 0:
                return "all are back"
            time.sleep(0.05)
        return "they are not back"

    return work


def reserved_jobs(line: Line) -> int:
    """Return how many jobs are in somebody's hands."""
    text = line.ask(b"stats-tube big\r\n")
    while not text.endswith(b"\n\r\n"):
        text += line.reply()
    return int(text.split(b"current-jobs-reserved: ")[1].split()[0])


def close_with_ladder(ports: Ports) -> Work:
    """The same where the end of a connection is a failed attempt of each job."""
    policy = json.dumps({"retry": ["15s", "3m", "10m"]}).encode()
    ask_http(ports["http"], "PUT", "/v1/topics/big/policy", policy)
    return close(ports)


def watch(ports: Ports) -> Work:
    """Watch many tubes, then reserve in one go."""

    def work() -> str:
        line = Line(ports["line"], "big")
        last = line.ask_many([b"watch tube-%d\r\n" % number for number in range(TUBES)])[-1]
        line.send(b"reserve-with-timeout 0\r\n" * RESERVES)
        for _ in range(RESERVES):
            line.reply()
        line.close()
        return last.decode().strip()

    return work


def list_and_cancel(ports: Ports) -> Work:
    """Page through many delayed jobs, and cancel all."""
    Line(ports["line"], "big").fill(LISTED, delay_s=3_600)

    def work() -> str:
        for _ in range(50):
            ask_http(ports["http"], "GET", "/v1/topics/big/jobs?limit=1000")
        return ask_http(ports["http"], "DELETE", "/v1/topics/big/jobs?state=delayed")

    return work


ROWS: Final[dict[str, Callable[[Ports], Work]]] = {
    "nothing": nothing,
    "unknown names": request(
        "POST", "/v1/topics/big/jobs", {"jobs": repeated({"body": 1, **unknown_names()})}
    ),
    "unknown names in nacks": request(
        "POST", "/v1/nack", {"nacks": repeated({"token": "1-1-1", **unknown_names()})}
    ),
    "retry ladders": request("POST", "/v1/topics/big/jobs", ladders()),
    "dense JSON": request("POST", "/v1/topics/big/jobs", {"body": [1] * 1_300_000, "delay": "1h"}),
    "lines of JSON": lines,
    "kick": kick,
    "close": close,
    "close with a ladder": close_with_ladder,
    "watch": watch,
    "list and cancel": list_and_cancel,
}


def ordinary(port: int, until: threading.Event) -> None:
    """Put a job, reserve it and delete it, until told to stop."""
    line = Line(port, "ordinary")
    while not until.is_set():
        line.ask(b"put 0 0 60 1\r\nx\r\n")
        line.ask(b"delete %b\r\n" % line.ask(b"reserve\r\n").split()[1])
    line.close()


def all_of_it(ports: Ports) -> Work:
    """Prepare each row, then do all at once beside ordinary traffic."""
    works = []
    for name, row in ROWS.items():
        if name not in {"nothing", "close"}:
            works.append(row(ports))

    def work() -> str:
        until = threading.Event()
        workers = [
            threading.Thread(target=ordinary, args=(ports["line"], until)) for _ in range(WORKERS)
        ]
        clients = [threading.Thread(target=one) for one in works]
        for thread in workers + clients:
            thread.start()
        for thread in clients:
            thread.join()
        until.set()
        for thread in workers:
            thread.join()
        return ""

    return work


# --- The neighbour -------------------------------------------------------------------------------


def put_and_wait(port: int, pipe: Connection) -> None:
    """Put jobs until told to stop; send back how long each reply took, in seconds."""
    sock = connect(port)
    sock.settimeout(DONE_S_MAX)
    waits_s = []
    while not pipe.poll(0.001):
        start_s = time.perf_counter()
        sock.sendall(b"put 0 3600 60 1\r\nx\r\n")
        assert sock.recv(100).startswith(b"INSERTED")
        waits_s.append(time.perf_counter() - start_s)
    pipe.send(waits_s)


@contextlib.contextmanager
def neighbour(port: int) -> Iterator[list[float]]:
    """Measure while the block runs; the list has the waits afterwards."""
    waits_s: list[float] = []
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=put_and_wait, args=(port, there), daemon=True)
    process.start()
    try:
        time.sleep(0.2)
        yield waits_s
    finally:
        here.send(None)
        if here.poll(DONE_S_MAX):
            waits_s.extend(here.recv())
        process.join(PATIENCE_S)


def measured(name: str) -> str:
    """Carry out a row; return its line of the table."""
    row = all_of_it if name == "all of it" else ROWS[name]
    with server(*delayd()) as ports:
        work = row(ports)
        time.sleep(SETTLE_S)
        with neighbour(ports["line"]) as waits_s:
            start_s = time.perf_counter()
            said = work()
            seconds = time.perf_counter() - start_s
            time.sleep(SETTLE_S)
    times_ms = [1e3 * wait_s for wait_s in waits_s]
    p99_ms = statistics.quantiles(times_ms, n=100)[98]
    figures = f"{statistics.median(times_ms):>10.2f}{p99_ms:>10.2f}{max(times_ms):>10.1f}"
    return f"{name:<28}{seconds:>9.2f}{figures}  {said}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*ROWS, "all of it"]
    parser.add_argument("--rows", default=",".join(names), help="separated by commas (all)")
    rows = parser.parse_args().rows.split(",")
    heads = "".join(f"{head:>10}" for head in ("p50 ms", "p99 ms", "max ms"))
    print(f"{'':<28}{'seconds':>9}{heads}  answered")
    for name in rows:
        print(measured(name), flush=True)


if __name__ == "__main__":
    main()
