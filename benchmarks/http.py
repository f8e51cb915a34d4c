"""Measures the HTTP API: `make bench-http`, or `python -m benchmarks.http --jobs 20000 --runs 5`.

    row                                         against
    single durable puts, 50 connections         an aiohttp handler that parses and echoes the JSON
    puts in batches of 100                      a number
    reserve and ack in batches of 100           a number
    puts over the line while HTTP is idle       the same daemon without HTTP

All connections are kept alive and have one request under way; the next is sent when the answer is
there. Both servers of a row are measured in the same run, one after the other, and the median of
the runs and of their ratios is told. The generator builds its requests beforehand and reads of an
answer its length only; its share of one processor is shown: near 1 it was the bottleneck.
"""

import argparse
import contextlib
import json
import re
import select
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.arguments import positive
from benchmarks.load import PATIENCE_S, Fleet, Pace, Stopwatch, connect, prebuilt, put_request

if TYPE_CHECKING:
    import socket

CONNECTIONS: Final = 50
BATCH: Final = 100
LINE_JOBS: Final = 200_000
LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
READY: Final = re.compile(r"(line|http) 127\.0\.0\.1:(\d+)")
JOB: Final = {"body": {"order": 1_000_017, "kind": "reminder", "to": "somebody"}, "delay": 3600}
WORK: Final = {"body": {"order": 1_000_017, "kind": "reminder", "to": "somebody"}, "ttr": 600}

ECHO: Final = """
import asyncio, orjson
from aiohttp import web
async def echo(request):
    content = orjson.loads(await request.read())
    return web.Response(body=orjson.dumps(content), content_type="application/json", status=201)
async def main():
    app = web.Application()
    app.router.add_post("/v1/topics/{topic}/jobs", echo)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print("http 127.0.0.1:%d" % site._server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""


class Answered(NamedTuple):
    """One answer."""

    status: int
    body: bytes


class Client:
    """One connection that is kept alive."""

    def __init__(self, port: int) -> None:
        self.sock: socket.socket = connect(port)
        self._received = b""

    def send(self, request: bytes) -> None:
        """Send a request whole; they are short."""
        self.sock.setblocking(True)
        self.sock.sendall(request)
        self.sock.setblocking(False)

    def answer(self) -> Answered | None:
        """Read what has come; return the answer if it is whole."""
        self._received += self.sock.recv(1 << 20)
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return None
        length = LENGTH.search(head)
        if len(body) < (int(length[1]) if length else 0):
            return None
        self._received = b""
        return Answered(int(head[9:12]), body)


Next = Callable[[int, Answered | None], bytes | None]
"""Given a connection's number and its last answer: the next request; None: there is none."""


def converse(port: int, following: Next) -> Pace:
    """Keep all connections busy until none has a request any more; counts the requests."""
    clients = [Client(port) for _ in range(CONNECTIONS)]
    poll = select.epoll()
    by_descriptor = {client.sock.fileno(): number for number, client in enumerate(clients)}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    watch = Stopwatch()
    done, busy = 0, 0
    for number, client in enumerate(clients):
        request = following(number, None)
        if request is not None:
            client.send(request)
            busy += 1
    while busy:
        events = poll.poll(PATIENCE_S)
        assert events, "the server says nothing"
        for descriptor, _ in events:
            number = by_descriptor[descriptor]
            answer = clients[number].answer()
            if answer is None:
                continue
            done += 1
            request = following(number, answer)
            if request is None:
                busy -= 1
            else:
                clients[number].send(request)
    pace = watch.pace(done)
    for client in clients:
        client.sock.close()
    return pace


def request(path: str, content: object, *headers: str) -> bytes:
    """Return a whole POST."""
    body = json.dumps(content).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += "".join(f"{header}\r\n" for header in headers)
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def repeated(message: bytes, count: int, status: int) -> Next:
    """Send the same so often, over all connections together."""
    left = [count]

    def following(_number: int, answer: Answered | None) -> bytes | None:
        assert answer is None or answer.status == status, answer
        left[0] -= 1
        return message if left[0] >= 0 else None

    return following


def working(jobs: int) -> Next:
    """Reserve a hundred, acknowledge them, reserve the next."""
    reserve = request("/v1/topics/default/reserve", {"max": BATCH})
    tokens_of = re.compile(rb'"token":"([^"]+)"')
    left = [jobs // BATCH]

    def following(_number: int, answer: Answered | None) -> bytes | None:
        if answer is not None and b'"jobs"' in answer.body:
            tokens = tokens_of.findall(answer.body)
            assert len(tokens) == BATCH, len(tokens)
            return request("/v1/ack", {"tokens": [token.decode() for token in tokens]})
        assert answer is None or answer.status == 200, answer
        left[0] -= 1
        return reserve if left[0] >= 0 else None

    return following


@contextlib.contextmanager
def server(*command: str) -> Iterator[dict[str, int]]:
    """Start a server and yield its ports, by what is spoken there."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-http-") as directory,
        subprocess.Popen(
            command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            ports = {what: int(port) for what, port in READY.findall(process.stdout.readline())}
            assert ports, "the server did not say where it listens"
            yield ports
        finally:
            process.kill()


def delayd(http: str = "127.0.0.1:0") -> tuple[str, ...]:
    """Return the command of a daemon."""
    listen = ("--line", "127.0.0.1:0", "--http", http)
    return (sys.executable, "-m", "delayd", "serve", "--data-dir", "data", *listen)


def single_puts(jobs: int) -> tuple[Pace, Pace]:
    """Measure puts, and the echo."""
    put = request("/v1/topics/default/jobs", JOB)
    paces = []
    for command in (delayd(), (sys.executable, "-c", ECHO)):
        with server(*command) as ports:
            converse(ports["http"], repeated(put, CONNECTIONS * 20, 201))
            paces.append(converse(ports["http"], repeated(put, jobs, 201)))
    return paces[0], paces[1]


def batches(jobs: int) -> tuple[Pace, Pace]:
    """Measure puts in batches; then reserving and acknowledging in batches. Counted in jobs."""
    put = request("/v1/topics/default/jobs", {"jobs": [WORK] * BATCH})
    with server(*delayd()) as ports:
        puts = converse(ports["http"], repeated(put, 10 * jobs // BATCH, 201))
        work = converse(ports["http"], working(5 * jobs))
    return (
        Pace(puts.operations * BATCH, puts.seconds, puts.generator_cpu_seconds),
        Pace(5 * jobs, work.seconds, work.generator_cpu_seconds),
    )


def line_puts() -> tuple[Pace, Pace]:
    """Measure puts over the line beside an idle API, and without one."""
    paces = []
    for http in ("127.0.0.1:0", "off"):
        with server(*delayd(http)) as ports, Fleet(ports["line"], CONNECTIONS) as fleet:
            requests = prebuilt(put_request(3_600), 20)
            fleet.put(requests, 20, jobs=LINE_JOBS // 4)
            paces.append(fleet.put(requests, 20, jobs=LINE_JOBS))
    return paces[0], paces[1]


def told(name: str, paces: Sequence[Pace], peers: Sequence[Pace], target: float) -> str:
    """Return a row of the table: a ratio where there are peers, a rate otherwise."""
    ours = statistics.median(pace.per_second for pace in paces)
    share = statistics.median(pace.generator_share for pace in paces)
    row = f"{name:<40}{ours:>12,.0f}/s"
    if peers:
        theirs = statistics.median(pace.per_second for pace in peers)
        ratio = statistics.median(
            pace.per_second / peer.per_second for pace, peer in zip(paces, peers, strict=True)
        )
        row += f"{theirs:>12,.0f}/s{ratio:>8.2f}{target:>12}"
        is_met = ratio >= target
    else:
        row += f"{'':>14}{'':>8}{target:>12,.0f}"
        is_met = ours >= target
    return f"{row}  {'yes' if is_met else 'NO':<5}{share:>6.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=positive, default=20_000, help="of a row (%(default)s)")
    parser.add_argument("--runs", type=positive, default=3, help="(%(default)s)")
    options = parser.parse_args()
    singles, echoes, puts, works, beside, alone = [], [], [], [], [], []
    for _ in range(options.runs):
        single, echo = single_puts(options.jobs)
        singles.append(single)
        echoes.append(echo)
        put, work = batches(options.jobs)
        puts.append(put)
        works.append(work)
        with_http, without = line_puts()
        beside.append(with_http)
        alone.append(without)
    print(f"{'':<40}{'delayd':>14}{'peer':>14}{'ratio':>8}{'target':>12}  met  generator")
    print(told("single durable puts / aiohttp echo", singles, echoes, 0.6))
    print(told("puts in batches of 100, jobs", puts, (), 100_000))
    print(told("reserve and ack in batches of 100, jobs", works, (), 60_000))
    print(told("line puts, HTTP idle / off", beside, alone, 0.95))


if __name__ == "__main__":
    main()
