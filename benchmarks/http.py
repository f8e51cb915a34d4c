"""The HTTP API beside an aiohttp handler that only parses and echoes the same JSON: chapter `http`.

    put                 one job in a request, or a hundred
    reserve + ack       a hundred jobs reserved by a request and acknowledged by the next
    put over the line   while the API is served but not used, and without it

All connections are kept alive and have one request under way; the next is sent when the answer is
there. The generator builds its requests beforehand and reads of an answer its length only. The
handler keeps nothing, so that its rate is what HTTP alone allows in Python.
"""

import contextlib
import functools
import json
import re
import select
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from benchmarks.endpoint import LENGTH
from benchmarks.line import PATIENCE_S, connect
from benchmarks.pace import Pace, Stopwatch
from benchmarks.processes import OwnServer, reserved_port
from benchmarks.registry import Bench, Case, Durability, Values
from benchmarks.servers.account import JobAccount
from benchmarks.servers.delayd import DelaydPeer, RunningDelayd, new_delayd
from benchmarks.servers.generator import Load
from benchmarks.servers.operations import closed_puts, serving
from benchmarks.servers.peer import case_of
from benchmarks.table import percentile

if TYPE_CHECKING:
    import socket

CONNECTIONS: Final = 50
PIPELINED: Final = Load(CONNECTIONS, 20)
BATCH: Final = 100
WORKED_PER_S_MAX: Final = 120_000
"""More jobs than are reserved and acknowledged a second: so many are put before."""
WARM_UP_PART: Final = 0.25
JOB: Final = {"body": {"order": 1_000_017, "kind": "reminder", "to": "somebody"}, "delay": 3600}
WORK: Final = {"body": {"order": 1_000_017, "kind": "reminder", "to": "somebody"}, "ttr": 600}

ECHO: Final = """
import asyncio, orjson, sys
from aiohttp import web
async def echo(request):
    content = orjson.loads(await request.read())
    return web.Response(body=orjson.dumps(content), content_type="application/json", status=201)
async def main():
    app = web.Application()
    app.router.add_post("/v1/topics/{topic}/jobs", echo)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(sys.argv[1]), reuse_address=True).start()
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


def converse(port: int, following: Next, connections: int = CONNECTIONS) -> Pace:
    """Keep all connections busy until none has a request any more; counts the requests."""
    clients = [Client(port) for _ in range(connections)]
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


class Repeated:
    """Sends the same on all connections for so long, and notes how long each answer took."""

    def __init__(self, message: bytes, status: int, seconds: float) -> None:
        self._message = message
        self._status = status
        self._until = time.perf_counter() + seconds
        self._sent_at: dict[int, float] = {}
        self.times_s: list[float] = []

    def __call__(self, number: int, answer: Answered | None) -> bytes | None:
        """Return the message, until the time is over."""
        now = time.perf_counter()
        if answer is not None:
            assert answer.status == self._status, answer
            self.times_s.append(now - self._sent_at[number])
        self._sent_at[number] = now
        return self._message if now < self._until else None


class Working:
    """Reserves a hundred jobs, acknowledges them, and reserves the next, for so long."""

    def __init__(self, seconds: float) -> None:
        self._reserve = request("/v1/topics/default/reserve", {"max": BATCH})
        self._tokens_of = re.compile(rb'"token":"([^"]+)"')
        self._until = time.perf_counter() + seconds
        self.done = 0
        """Jobs that were acknowledged."""

    def __call__(self, number: int, answer: Answered | None) -> bytes | None:
        """Return what follows the answer."""
        del number
        if answer is not None and b'"jobs"' in answer.body:
            tokens = self._tokens_of.findall(answer.body)
            assert len(tokens) == BATCH, f"{len(tokens)} jobs came"
            return request("/v1/ack", {"tokens": [token.decode() for token in tokens]})
        if answer is not None:
            assert answer.status == 200, answer
            self.done += BATCH
        return self._reserve if time.perf_counter() < self._until else None


# --- Who is measured ------------------------------------------------------------------------------

ECHO_SUBJECT: Final = "an aiohttp handler that echoes"
SYNCED: Final = Durability.BEFORE_ANSWER
POLICIES: Final[Mapping[Durability, str]] = {SYNCED: "always", Durability.WITHIN_50_MS: "interval"}
"""The policies of the log, and delayd's names for them."""


def daemon(
    bench: Bench, policy: Durability, *, is_compiled: bool
) -> AbstractContextManager[RunningDelayd]:
    """Run a delayd."""
    environment = bench.python_path(compiled=is_compiled)
    return new_delayd(bench, "--sync", POLICIES[policy], environment=environment)


@contextlib.contextmanager
def echo(bench: Bench) -> Iterator[int]:
    """Run the handler; give its port."""
    with tempfile.TemporaryDirectory(dir=bench.directory) as directory, reserved_port() as port:

        def is_serving() -> bool:
            connect(port).close()
            return True

        command = (sys.executable, "-c", ECHO, str(port))
        with OwnServer(command, Path(directory), is_serving):
            yield port


# --- One reading ----------------------------------------------------------------------------------


def puts(port: int, connections: int, jobs: int, seconds: float) -> tuple[Repeated, Pace, int]:
    """Put for so long, after a warm-up; return times, the pace in jobs, and all that was put."""
    content = JOB if jobs == 1 else {"jobs": [WORK] * jobs}
    message = request("/v1/topics/default/jobs", content)
    warming = Repeated(message, 201, seconds * WARM_UP_PART)
    before = converse(port, warming, connections).operations
    putting = Repeated(message, 201, seconds)
    pace = converse(port, putting, connections)
    in_jobs = Pace(pace.operations * jobs, pace.seconds, pace.generator_cpu_seconds)
    return putting, in_jobs, (before + pace.operations) * jobs


def paced(pace: Pace, times_s: Sequence[float] = ()) -> dict[str, float]:
    """Return what every reading has, and how long requests took."""
    values = {"rate": pace.per_second, "generator_share": pace.generator_share}
    if times_s:
        values |= {f"p{of}_ms": percentile(times_s, of) * 1e3 for of in (50, 99)}
    return values


def put_reading(
    policy: Durability, connections: int, jobs: int, bench: Bench, *, is_compiled: bool
) -> Values:
    """Put to a delayd; lost is what was acknowledged and is not there."""
    with daemon(bench, policy, is_compiled=is_compiled) as started:
        done, pace, put = puts(started.http_port, connections, jobs, bench.seconds)
        return paced(pace, done.times_s) | {"lost": max(put - started.standing(), 0)}


def echo_reading(connections: int, bench: Bench) -> Values:
    """Have the same requests echoed."""
    with echo(bench) as port:
        done, pace, _ = puts(port, connections, 1, bench.seconds)
        return paced(pace, done.times_s)


def work_reading(policy: Durability, bench: Bench, *, is_compiled: bool) -> Values:
    """Reserve and acknowledge jobs that were put before."""
    seconds = bench.seconds * (1 + WARM_UP_PART)
    jobs = round(WORKED_PER_S_MAX * seconds) + 2 * CONNECTIONS * BATCH
    message = request("/v1/topics/default/jobs", {"jobs": [WORK] * BATCH})
    left = [-(-jobs // BATCH)]

    def filling(_number: int, _answer: Answered | None) -> bytes | None:
        left[0] -= 1
        return message if left[0] >= 0 else None

    with daemon(bench, policy, is_compiled=is_compiled) as started:
        port = started.http_port
        put = converse(port, filling).operations * BATCH
        warming = Working(bench.seconds * WARM_UP_PART)
        converse(port, warming)
        working = Working(bench.seconds)
        pace = converse(port, working)
        lost = put - warming.done - working.done - started.standing()
    in_jobs = Pace(working.done, pace.seconds, pace.generator_cpu_seconds)
    return paced(in_jobs) | {"lost": max(lost, 0), "doubled": max(-lost, 0)}


def line_reading(peer: DelaydPeer, bench: Bench) -> Values:
    """Put over the line, 50 connections with 20 commands in flight each."""
    with serving(peer, bench) as running:
        return closed_puts(running, JobAccount(), PIPELINED, bench.seconds, running.standing)


# --- The chapter ----------------------------------------------------------------------------------


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [*put_cases(), *work_cases(), *line_cases()]


def put_cases() -> Iterator[Case]:
    """Yield puts, one by one beside the handler, and in batches."""
    for connections, jobs in ((1, 1), (8, 1), (CONNECTIONS, 1), (CONNECTIONS, BATCH)):
        size = {"connections": connections, "jobs in a request": jobs}
        if jobs == 1:
            measure = functools.partial(echo_reading, connections)
            yield Case("http", "put", size, ECHO_SUBJECT, measure, settings="aiohttp, orjson")
        for policy, sync in POLICIES.items():
            for subject, is_compiled in SUBJECTS.items():
                taken = functools.partial(
                    put_reading, policy, connections, jobs, is_compiled=is_compiled
                )
                yield Case("http", "put", size, subject, taken, policy, f"--sync {sync}")


def work_cases() -> Iterator[Case]:
    """Yield reserving and acknowledging in batches."""
    size = {"connections": CONNECTIONS, "jobs in a request": BATCH}
    for policy, sync in POLICIES.items():
        for subject, is_compiled in SUBJECTS.items():
            taken = functools.partial(work_reading, policy, is_compiled=is_compiled)
            yield Case("http", "reserve + ack", size, subject, taken, policy, f"--sync {sync}")


def line_cases() -> Iterator[Case]:
    """Yield puts over the line beside an API that is not used, and without one."""
    size = {"connections": PIPELINED.connections, "in flight": PIPELINED.in_flight}
    for is_compiled in SUBJECTS.values():
        for http, name in ((True, "HTTP idle"), (False, "without HTTP")):
            peer = DelaydPeer(POLICIES[SYNCED], is_compiled, http, name)
            taken = functools.partial(line_reading, peer)
            yield case_of(peer, "http", "put over the line", size, taken)


SUBJECTS: Final[Mapping[str, bool]] = {"delayd": False, "delayd, compiled": True}
"""By name: whether it is compiled."""
