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
    patterns                    300 topics with 198 hyphens, where the configuration has a pattern
                                with six stars
    dead pipeliners             60 connections that asked for statistics as often as the buffers
                                take, and closed; what share of a processor the daemon still
                                takes after ten seconds
    empty lines                 3 million empty lines of JSON
    idempotency keys            100,000 of them, where 50,000 may be remembered
    failing beside good         a topic whose jobs fail beside one of good jobs for the same host
    answers 32 x 8              32 topics whose jobs go to a receiver each that writes small answers
                                without end, by 8 connections each
    answers 1 x 256             one such receiver, and 256 connections
    answers 32 x 8 TLS, ...     the same with TLS, with 1xx answers (hints) and with chunks of one
                                byte (chunks); `benchmarks.receivers`
    redis replies 1 x 128, ...  a topic whose jobs go to a Redis sink by 128 connections, with a
                                server that answers so; `amqp frames` and `frame` with a broker

Each row has a daemon of its own. A row says how long the client's work took, the neighbour's p50,
p99 and longest wait in ms, the daemon's resident memory before, at its highest and some seconds
after, in MiB, and what the client was answered at the end. Work that is not done after 40 s (`all
of it`: 120 s) is left there, and the wait that the neighbour is in counts as long as it has lasted.
Run it alone: the daemon, the neighbour and the client share the processors.
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
from contextlib import AbstractContextManager
from functools import partial
from itertools import product
from multiprocessing.connection import Connection, wait
from typing import Final, NamedTuple

from benchmarks.arguments import names_of
from benchmarks.daemon import Started, loopback_certificate, push_settings, running
from benchmarks.http import Answered, converse
from benchmarks.http import request as post
from benchmarks.load import PATIENCE_S, connect
from benchmarks.push import Endpoint, put, send_to, set_policy
from benchmarks.receivers import Certificate, hostile
from benchmarks.table import percentile

JOBS: Final = 200_000
LISTED: Final = 300_000
TUBES: Final = 40_000
RESERVES: Final = 2_700
WORKERS: Final = 8
BATCH: Final = 2_000
BODY_BYTES: Final = 4_000_000
SETTLE_S: Final = 1.0
AFTERWARDS_S: Final = 4.0
"""Before the memory after the work is read."""
DONE_S_MAX: Final = 120.0
ROW_S_MAX: Final = 40.0
GRACE_S: Final = 2.0
"""For the neighbour's last reply."""

PATTERN: Final = "*-*-*-*-*-dead"
HYPHENS: Final = 198
PATTERN_TOPICS: Final = 300
PIPELINERS: Final = 60
PIPELINED_BYTES: Final = 4_000_000
EMPTY_LINES: Final = 3_000_000
IDEMPOTENCY_KEYS: Final = 100_000
KEYS_S_MAX: Final = 32.0
KEYS_CONFIG: Final = "[http]\nidempotency_keys_max = 50000\n"
GOOD_JOBS: Final = 100
GOOD_SPREAD_S: Final = 10.0
FAILING_JOBS: Final = 200
WATCHED_S: Final = 10.0
KINDS: Final = ("answers", "hints", "chunks")
SHAPES: Final = ((32, 8), (1, 256))
"""How many topics, each with a receiver of its own, and how many calls to each."""
SINKS: Final = (1, 128)
SINK_KINDS: Final = {
    "redis": ("replies", "bulk", "array", "nested", "errors"),
    "amqp": ("frames", "frame"),
}
CALLED_JOBS: Final = 8_192
MIB: Final = 1 << 20


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
        """Read a reply: one line, and the job's body behind it where it has one."""
        line = self._replies.readline()
        if line.startswith(b"RESERVED "):
            line += self._replies.read(int(line.split()[2]) + 2)
        if not line.endswith(b"\n"):
            raise ConnectionResetError("closed before the reply was whole")
        return line

    def read(self, count: int) -> bytes:
        """Read so many bytes, wherever a reply ends."""
        return self._replies.read(count)

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


# --- What a stranger does ------------------------------------------------------------------------


class Stage(NamedTuple):
    """What a row needs besides a daemon."""

    prepare: Callable[[Started], Work]
    config: str = ""
    trusted: Certificate | None = None


Row = Callable[[], AbstractContextManager[Stage]]


@contextlib.contextmanager
def staged(prepare: Callable[[Started], Work], config: str = "") -> Iterator[Stage]:
    """Return a row that needs no more than settings."""
    yield Stage(prepare, config)


def patterns(daemon: Started) -> Work:
    """Put to topics that take long to tell from the pattern."""

    def work() -> str:
        line = Line(daemon.ports["line"], "default")
        names = (f"t{number:-<{HYPHENS + 1}}" for number in range(PATTERN_TOPICS))
        line.ask_many([b"put-in-tube %b 0 3600 60 1\r\nx\r\n" % name.encode() for name in names])
        return f"{PATTERN_TOPICS} puts"

    return work


def dead_pipeliners(daemon: Started) -> Work:
    """Ask for more than anybody waits for, and close."""

    def work() -> str:
        server, port = daemon.server, daemon.ports["line"]
        began_s = server.cpu_seconds()
        sent = sum(pipeline_and_close(port) for _ in range(PIPELINERS))
        time.sleep(WATCHED_S)
        used_s = server.cpu_seconds()
        time.sleep(SETTLE_S)
        share = (server.cpu_seconds() - used_s) / SETTLE_S
        return f"{sent:,} commands: {used_s - began_s:.1f} s of processor, then {share:.0%} of one"

    return work


def pipeline_and_close(port: int) -> int:
    """Ask for statistics as often as the buffers take at once, and close; return how often.

    No reply has come by then, so the end is one like any other and no reset.
    """
    command = b"stats\r\n"
    with connect(port) as sock:
        return sock.send(command * (PIPELINED_BYTES // len(command))) // len(command)


def empty_lines(daemon: Started) -> Work:
    """Send a body that has no jobs."""
    body = b"\n" * EMPTY_LINES
    path = "/v1/topics/big/jobs"
    return lambda: ask_http(daemon.ports["http"], "POST", path, body, "lines")


def idempotency_keys(daemon: Started) -> Work:
    """Put jobs, each with a key of its own; tell what it cost on disk, and who was refused."""
    answers: dict[str, int] = {}

    def work() -> str:
        before = daemon.log_bytes()
        until_s = time.monotonic() + KEYS_S_MAX
        numbers = iter(range(IDEMPOTENCY_KEYS))

        def following(_connection: int, answer: Answered | None) -> bytes | None:
            if answer is not None:
                answers[answered(answer)] = answers.get(answered(answer), 0) + 1
            number = next(numbers, None)
            if number is None or time.monotonic() > until_s:
                return None
            header = f"Idempotency-Key: order-{number}"
            return post("/v1/topics/big/jobs", {"body": number, "delay": "1h"}, header)

        converse(daemon.ports["http"], following)
        said = ", ".join(f"{count:,} {what}" for what, count in answers.items())
        return f"{said}; + {(daemon.log_bytes() - before) / MIB:.0f} MiB of log"

    return work


def answered(answer: Answered) -> str:
    """Return the status, and the word of a refusal."""
    if answer.status < 400:
        return str(answer.status)
    return f"{answer.status} {json.loads(answer.body).get('word')}"


@contextlib.contextmanager
def failing_beside_good() -> Iterator[Stage]:
    """Tell how late good jobs are beside jobs that the same host refuses."""
    endpoint = Endpoint()

    def prepare(daemon: Started) -> Work:
        server = daemon.server
        send_to(server, "good", endpoint.port)
        put(server, "good", [0.0] * 8)
        endpoint.report(8)
        put(server, "failing", [0.0] * FAILING_JOBS)
        delays_s = [2.0 + GOOD_SPREAD_S * number / GOOD_JOBS for number in range(GOOD_JOBS)]

        def work() -> str:
            url = f"http://127.0.0.1:{endpoint.port}/failing"
            send_to(server, "failing", endpoint.port, url=url)
            put(server, "good", delays_s)
            until_s = time.monotonic() + 2 * GOOD_SPREAD_S
            while endpoint.count() < GOOD_JOBS and time.monotonic() < until_s:
                time.sleep(0.02)
            late_ms = endpoint.report().lateness_ms
            p50, p99, longest = (percentile(late_ms, percent) for percent in (50, 99, 100))
            return f"{len(late_ms)} good ones late by {p50:.1f}, {p99:.1f}, {longest:.1f} ms"

        return work

    try:
        yield Stage(prepare, push_settings([endpoint.port]))
    finally:
        endpoint.close()


@contextlib.contextmanager
def hostile_receivers(kind: str, places: int, calls: int, *, is_secure: bool) -> Iterator[Stage]:
    """Send jobs to receivers that never end; they go before the memory after it is read."""
    with contextlib.ExitStack() as stack:
        trusted = stack.enter_context(loopback_certificate()) if is_secure else None
        receivers = stack.enter_context(hostile(kind, places=places, certificate=trusted))

        def prepare(daemon: Started) -> Work:
            for number in range(places):
                put(daemon.server, f"called-{number}", [0.0] * (CALLED_JOBS // places))

            def work() -> str:
                for number, url in enumerate(receivers.urls()):
                    send_to(daemon.server, f"called-{number}", 0, url=url, concurrency=calls)
                time.sleep(WATCHED_S)
                stack.close()
                return f"{places} policies"

            return work

        yield Stage(prepare, push_settings(receivers.ports), trusted)


@contextlib.contextmanager
def hostile_sinks(kind: str, scheme: str) -> Iterator[Stage]:
    """The same with the servers of sinks."""
    places, calls = SINKS
    with contextlib.ExitStack() as stack:
        ports = stack.enter_context(hostile(kind, places=places)).ports
        where = {"redis": 'list = "a"\nconnections_max = 128', "amqp": 'routing_key = "a"'}[scheme]
        config = "".join(
            f'[sinks.sink-{number}]\nkind = "{scheme}"\nurl = "{scheme}://127.0.0.1:{port}/0"\n'
            f"{where}\n"
            for number, port in enumerate(ports)
        )

        def prepare(daemon: Started) -> Work:
            for number in range(places):
                put(daemon.server, f"called-{number}", [0.0] * (CALLED_JOBS // places))

            def work() -> str:
                for number in range(places):
                    push = {"sink": f"sink-{number}", "concurrency": calls}
                    set_policy(daemon.server, f"called-{number}", {"retry": "1s", "push": push})
                time.sleep(WATCHED_S)
                stack.close()
                return f"{places} policies"

            return work

        yield Stage(prepare, config)


STRANGERS: Final[dict[str, Row]] = {
    "patterns": partial(staged, patterns, f'[topics."{PATTERN}"]\nretry = "1s"\n'),
    "dead pipeliners": partial(staged, dead_pipeliners),
    "empty lines": partial(staged, empty_lines),
    "idempotency keys": partial(staged, idempotency_keys, KEYS_CONFIG),
    "failing beside good": failing_beside_good,
    **{
        f"{kind} {places} x {calls}{' TLS' * is_secure}": partial(
            hostile_receivers, kind, places, calls, is_secure=is_secure
        )
        for kind, (places, calls), is_secure in product(KINDS, SHAPES, (False, True))
    },
    **{
        f"{scheme} {kind} {' x '.join(map(str, SINKS))}": partial(hostile_sinks, kind, scheme)
        for scheme, kinds in SINK_KINDS.items()
        for kind in kinds
    },
}


# --- The neighbour -------------------------------------------------------------------------------


def put_and_wait(port: int, pipe: Connection) -> None:
    """Put jobs until told to stop; send back how long each reply took, in seconds.

    A reply that does not come soon after that counts as long as it was waited for.
    """
    sock = connect(port)
    waits_s = []
    is_answered = True
    while is_answered and not pipe.poll(0.001):
        start_s = time.perf_counter()
        sock.sendall(b"put 0 3600 60 1\r\nx\r\n")
        is_answered = sock in wait([sock, pipe]) or sock in wait([sock], GRACE_S)
        waits_s.append(time.perf_counter() - start_s)
        assert not is_answered or sock.recv(100).startswith(b"INSERTED")
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


def row_of(name: str) -> Row:
    """Return what the row needs."""
    if name in STRANGERS:
        return STRANGERS[name]
    row = all_of_it if name == "all of it" else ROWS[name]
    return partial(staged, lambda daemon: row(daemon.ports))


def done_within(work: Work, seconds: float) -> str:
    """Do it in a thread; what is not done in time is left there."""
    answers: list[str] = []

    def act() -> None:
        try:
            answers.append(work())
        except (OSError, http.client.HTTPException, AssertionError) as error:
            answers.append(f"it failed: {error!r}")

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else f"not done after {seconds:.0f} s"


def measured(name: str) -> str:
    """Carry out a row; return its line of the table."""
    with row_of(name)() as stage, running(stage.config, stage.trusted) as daemon:
        work = stage.prepare(daemon)
        time.sleep(SETTLE_S)
        memory = [daemon.server.resident_bytes()]
        daemon.server.forget_highest()
        with neighbour(daemon.ports["line"]) as waits_s:
            start_s = time.perf_counter()
            said = done_within(work, DONE_S_MAX if name == "all of it" else ROW_S_MAX)
            seconds = time.perf_counter() - start_s
            time.sleep(SETTLE_S)
        time.sleep(AFTERWARDS_S)
        memory += [daemon.server.highest_bytes(), daemon.server.resident_bytes()]
    times_ms = [1e3 * wait_s for wait_s in waits_s]
    p99_ms = percentile(times_ms, 99)
    figures = f"{statistics.median(times_ms):>10.2f}{p99_ms:>10.2f}{max(times_ms):>10.1f}"
    held = "".join(f"{figure / MIB:>9.0f}" for figure in memory)
    return f"{name:<28}{seconds:>9.2f}{figures}{held}  {said}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = [*ROWS, "all of it", *STRANGERS]
    parser.add_argument("--rows", type=names_of(names), default=names, help="with commas (all)")
    rows = parser.parse_args().rows
    heads = "".join(f"{head:>10}" for head in ("p50 ms", "p99 ms", "max ms"))
    heads += "".join(f"{head:>9}" for head in ("MiB", "highest", "after"))
    print(f"{'':<28}{'seconds':>9}{heads}  answered")
    for name in rows:
        print(measured(name), flush=True)


if __name__ == "__main__":
    main()
