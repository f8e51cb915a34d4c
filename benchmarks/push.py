"""Measures deliveries of due jobs: `make bench-push`, or `python -m benchmarks.push --jobs 5000`.

    throughput     jobs a second to a fast endpoint, against a bare loop of aiohttp's client with
                   the same number of calls under way, by turns in the same run
    a host hangs   10,000 jobs for a host that takes connections and never answers, 100 for a
                   healthy one: how late these arrive, against a daemon with nothing else to do, and
                   the daemon's resident memory
    the line       puts, and reserve and delete, while jobs are delivered at a steady rate, and
                   without, beside the part of a processor that the deliveries take

The endpoint, the bare loop and the daemon are a process each. The endpoint reads requests as far as
it must to find the next one. It measures itself: the rate from its first request to its last, and
lateness by the header that says when a job was due, which is exact to a millisecond.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.arguments import names_of, positive
from benchmarks.load import Fleet, Pace, prebuilt, put_request
from benchmarks.peers import TICKS_A_SECOND, Server, ask, cpu_ticks
from benchmarks.table import percentile

ROWS: Final = ("throughput", "hang", "line")
CONCURRENCIES: Final = (8, 64)
HANGING_JOBS: Final = 10_000
HEALTHY_JOBS: Final = 100
HEALTHY_SPREAD_S: Final = 10.0
STEADY_PER_S: Final = 200
LINE_JOBS: Final = 100_000
LINE_CONNECTIONS: Final = 50
IN_FLIGHT: Final = 20
BODY: Final = json.dumps({"order": 1_000_017, "kind": "reminder", "to": "x" * 60}).encode()
READY: Final = re.compile(r"line 127\.0\.0\.1:(\d+)")
LENGTH: Final = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
DUE: Final = re.compile(rb"delayd-due: *(\S+)\r", re.IGNORECASE)
ANSWER: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
FAILING: Final = b"POST /failing "
"""Requests that begin so are refused, and not counted."""
REFUSAL: Final = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"


# --- The endpoint --------------------------------------------------------------------------------


class Report(NamedTuple):
    """What an endpoint has seen since it was asked the last time."""

    requests: int
    seconds: float
    """From the first to the last."""
    lateness_ms: list[float]

    @property
    def per_second(self) -> float:
        """Requests a second."""
        return (self.requests - 1) / self.seconds if self.seconds else 0.0


class _Endpoint(asyncio.Protocol):
    """One connection; `seen` is shared by all."""

    def __init__(self, seen: list[tuple[float, float]], answer: bytes) -> None:
        self._seen = seen
        self._answer = answer
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[: end + 2]
            length = LENGTH.search(head)
            end += 4 + (int(length[1]) if length else 0)
            if len(self._received) < end:
                return
            self._received = self._received[end:]
            if head.startswith(FAILING):
                self._transport.write(REFUSAL)
                continue
            due = DUE.search(head)
            late_s = 0.0
            if due:
                late_s = time.time() - datetime.fromisoformat(due[1].decode()).timestamp()
            self._seen.append((time.monotonic(), late_s * 1_000))
            if self._answer:
                self._transport.write(self._answer)


def _serve(pipe: Connection, answer: bytes) -> None:
    """Answer requests, and what is asked through the pipe: how many have come, or a report."""
    seen: list[tuple[float, float]] = []

    def tell() -> None:
        if pipe.recv() == "count":
            pipe.send(len(seen))
            return
        times = [at_s for at_s, _ in seen]
        spent_s = times[-1] - times[0] if times else 0.0
        pipe.send(Report(len(seen), spent_s, [late_ms for _, late_ms in seen]))
        seen.clear()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Endpoint(seen, answer), "127.0.0.1", 0)
        loop.add_reader(pipe.fileno(), tell)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


class Endpoint:
    """An endpoint in a process of its own."""

    def __init__(self, answer: bytes = ANSWER) -> None:
        self._pipe, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        self._process = context.Process(target=_serve, args=(theirs, answer), daemon=True)
        self._process.start()
        self.port: int = self._pipe.recv()

    def count(self) -> int:
        """Return how many requests have come since the last report."""
        self._pipe.send("count")
        return int(self._pipe.recv())

    def report(self, requests: int = 0, patience_s: float = 120.0) -> Report:
        """Wait for so many requests, and tell what came."""
        until_s = time.monotonic() + patience_s
        while (count := self.count()) < requests:
            assert time.monotonic() < until_s, f"only {count} of {requests} have arrived"
            time.sleep(0.02)
        self._pipe.send("report")
        report: Report = self._pipe.recv()
        return report

    def cpu_seconds(self) -> float:
        """Return the processor time that it has taken so far."""
        stat = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="utf-8")
        return sum(cpu_ticks(stat)) / TICKS_A_SECOND

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()


# --- Who sends -----------------------------------------------------------------------------------

BARE: Final = """
import asyncio, sys
import aiohttp
url, body, jobs, concurrency = sys.argv[1], sys.argv[2].encode(), int(sys.argv[3]), int(sys.argv[4])
async def work(session, left):
    while left[0] > 0:
        left[0] -= 1
        headers = {"Content-Type": "application/json"}
        async with session.post(url, data=body, headers=headers) as response:
            await response.read()
async def main():
    left = [jobs]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        await asyncio.gather(*(work(session, left) for _ in range(concurrency)))
asyncio.run(main())
"""


@contextlib.contextmanager
def delayd(*ports: int, **settings: str) -> Iterator[Server]:
    """Run a daemon that may call these ports of this machine."""
    variables = {
        "DELAYD_PUSH_ALLOW_HTTP": "true",
        "DELAYD_PUSH_PORTS": ",".join(map(str, ports)),
        "DELAYD_PUSH_PRIVATE_NETWORKS": "127.0.0.0/8",
        **{f"DELAYD_PUSH_{name.upper()}": value for name, value in settings.items()},
    }
    command = (sys.executable, "-m", "delayd", "serve", "--data-dir", "data")
    listen = ("--line", "127.0.0.1:0", "--http", "off")
    started = time.perf_counter()
    with (
        tempfile.TemporaryDirectory(prefix="bench-push-") as directory,
        subprocess.Popen(
            [*command, *listen],
            cwd=directory,
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process,
    ):
        try:
            assert process.stdout is not None
            ready = READY.search(process.stdout.readline().decode())
            assert ready is not None, "the daemon did not say where it listens"
            yield Server(process, int(ready[1]), started)
        finally:
            os.kill(process.pid, signal.SIGKILL)


def send_to(server: Server, tube: str, port: int, **push: object) -> None:
    """Have the jobs of a tube delivered to a port."""
    push = {"url": f"http://127.0.0.1:{port}/jobs", **push}
    set_policy(server, tube, {"retry": "30s", "push": push})


def set_policy(server: Server, tube: str, policy: object) -> None:
    """Give a tube its policy."""
    text = json.dumps(policy).encode()
    answer = ask(server.port, b"set-policy %b %d\r\n%b\r\n" % (tube.encode(), len(text), text))
    assert answer == b"POLICY_SET\r\n", answer


def put(server: Server, tube: str, delays_s: list[float]) -> None:
    """Put a job for each of these delays."""
    with Fleet(server.port, 1) as fleet:
        fleet.converse(b"use %b\r\n" % tube.encode(), b"USING %b\r\n" % tube.encode())
        left = iter(delays_s)

        def requests(count: int) -> bytes:
            return b"".join(put_request(next(left), BODY) for _ in range(count))

        fleet.put(requests, IN_FLIGHT, jobs=len(delays_s))


# --- What is measured ----------------------------------------------------------------------------


def throughput(endpoint: Endpoint, jobs: int, concurrency: int) -> tuple[float, float, float]:
    """Return the rates of delayd and of the bare loop, and delayd's part of a processor."""
    words = [f"http://127.0.0.1:{endpoint.port}/jobs", BODY.decode(), str(jobs), str(concurrency)]
    with delayd(endpoint.port) as server:
        send_to(server, "out", endpoint.port, concurrency=concurrency)
        put(server, "out", [0.0] * (20 * concurrency))  # a warm-up: connections, imports
        endpoint.report(20 * concurrency)
        ask(server.port, b"pause-tube out 3600\r\n")
        put(server, "out", [0.0] * jobs)
        used_s, begun_s = server.cpu_seconds(), time.monotonic()
        ask(server.port, b"pause-tube out 0\r\n")
        ours = endpoint.report(jobs)
        share = (server.cpu_seconds() - used_s) / (time.monotonic() - begun_s)
    subprocess.run([sys.executable, "-c", BARE, *words], check=True)
    return ours.per_second, endpoint.report(jobs).per_second, share


class Hanging(NamedTuple):
    """What a host that hangs costs."""

    p99_ms: float
    """Of the healthy host's jobs."""
    idle_p99_ms: float
    before_bytes: int
    after_bytes: int


def hanging(endpoint: Endpoint, jobs: int) -> Hanging:
    """Deliver to a host that hangs and to a healthy one."""
    delays_s = [2.0 + HEALTHY_SPREAD_S * number / HEALTHY_JOBS for number in range(HEALTHY_JOBS)]
    found = []
    stuck = Endpoint(b"")
    for stuck_jobs in (0, jobs):
        with delayd(endpoint.port, stuck.port) as server:
            send_to(server, "healthy", endpoint.port)
            send_to(server, "stuck", stuck.port)
            put(server, "healthy", [0.0] * 8)
            endpoint.report(8)
            put(server, "stuck", [0.0] * stuck_jobs)
            before_bytes = server.resident_bytes()
            put(server, "healthy", delays_s)
            report = endpoint.report(HEALTHY_JOBS)
            found.append(
                (percentile(report.lateness_ms, 99), before_bytes, server.resident_bytes())
            )
    stuck.close()
    (idle_ms, _, _), (ms, before_bytes, after_bytes) = found
    return Hanging(ms, idle_ms, before_bytes, after_bytes)


class LinePace(NamedTuple):
    """How fast the line was."""

    per_second: float
    cpu_share: float
    """The part of a processor that the daemon took meanwhile, deliveries included."""


class Beside(NamedTuple):
    """What the line does while jobs are delivered, and without."""

    puts: tuple[LinePace, LinePace]
    work: tuple[LinePace, LinePace]
    sender_share: float
    """The part of a processor that deliveries at this rate take, with nothing else to do."""
    endpoint_share: float
    """The part that the endpoint takes: on two processors the line's clients miss it as well."""
    rates: tuple[float, float]
    """Deliveries a second: alone, and beside the line."""


def paced(server: Server, act: Callable[[], Pace]) -> LinePace:
    """Do it, and see what processor time the daemon takes meanwhile."""
    used_s = server.cpu_seconds()
    pace = act()
    return LinePace(pace.per_second, (server.cpu_seconds() - used_s) / pace.seconds)


def beside(endpoint: Endpoint) -> Beside:
    """Put, and reserve and delete, while jobs are delivered."""
    paces: list[tuple[LinePace, LinePace]] = []
    share, endpoint_share, rates = 0.0, 0.0, []
    for is_busy in (True, False):
        with delayd(endpoint.port) as server, Fleet(server.port, LINE_CONNECTIONS) as fleet:
            send_to(server, "out", endpoint.port, rate_per_s=STEADY_PER_S)
            if is_busy:
                put(server, "out", [0.0] * 60 * STEADY_PER_S)
                endpoint.report(2 * STEADY_PER_S)
                used_s, begun_s = server.cpu_seconds(), time.monotonic()
                theirs_s = endpoint.cpu_seconds()
                rates.append(endpoint.report(3 * STEADY_PER_S).per_second)
                passed_s = time.monotonic() - begun_s
                share = (server.cpu_seconds() - used_s) / passed_s
                endpoint_share = (endpoint.cpu_seconds() - theirs_s) / passed_s
            requests = prebuilt(put_request(0), IN_FLIGHT)
            fleet.put(requests, IN_FLIGHT, jobs=LINE_JOBS // 4)
            puts = paced(server, partial(fleet.put, requests, IN_FLIGHT, jobs=LINE_JOBS))
            fleet.start_reserving(IN_FLIGHT)
            fleet.work(LINE_JOBS // 10)
            work = paced(server, partial(fleet.work, LINE_JOBS // 2))
            if is_busy:
                rates.append(endpoint.report().per_second)
            paces.append((puts, work))
    (busy_puts, busy_work), (puts, work) = paces
    return Beside((busy_puts, puts), (busy_work, work), share, endpoint_share, (rates[0], rates[1]))


# --- The table -----------------------------------------------------------------------------------


def verdict(*, is_met: bool) -> str:
    """Say whether a goal is met."""
    return "yes" if is_met else "NO"


def tell_throughput(endpoint: Endpoint, jobs: int, runs: int) -> None:
    """Measure and print the first table."""
    print(f"{'throughput':<24}{'delayd':>10}{'bare loop':>12}{'ratio':>8}{'goal':>8}  met   cpu")
    for concurrency in CONCURRENCIES:
        found = [throughput(endpoint, jobs, concurrency) for _ in range(runs)]
        ours, theirs = (statistics.median(row[number] for row in found) for number in (0, 1))
        ratio = statistics.median(row[0] / row[1] for row in found)
        share = statistics.median(row[2] for row in found)
        print(
            f"{f'{concurrency} under way':<24}{ours:>8,.0f}/s{theirs:>10,.0f}/s{ratio:>8.2f}"
            f"{0.5:>8}  {verdict(is_met=ratio >= 0.5):<4}{share:>6.0%}",
            flush=True,
        )


def tell_line(runs: list[Beside]) -> None:
    """Print the last table: medians of all runs."""
    share = statistics.median(run.sender_share for run in runs)
    endpoint_share = statistics.median(run.endpoint_share for run in runs)
    alone, busy_rate = (statistics.median(run.rates[number] for run in runs) for number in (0, 1))
    print(
        f"deliveries {alone:,.0f}/s take {share:.0%} of a processor, their endpoint"
        f" {endpoint_share:.0%}; beside the line {busy_rate:,.0f}/s"
    )
    print(f"{'the line':<24}{'beside':>10}{'alone':>12}{'ratio':>8}{'goal':>8}  met   cpu of both")
    for name, pairs in (
        ("puts", [run.puts for run in runs]),
        ("reserve and delete", [run.work for run in runs]),
    ):
        busy, idle = (
            statistics.median(pair[number].per_second for pair in pairs) for number in (0, 1)
        )
        ratio = statistics.median(pair[0].per_second / pair[1].per_second for pair in pairs)
        shares = [statistics.median(pair[number].cpu_share for pair in pairs) for number in (0, 1)]
        print(
            f"{name:<24}{busy:>8,.0f}/s{idle:>10,.0f}/s{ratio:>8.2f}{1 - share:>8.2f}"
            f"  {verdict(is_met=ratio >= 1 - share):<6}{shares[0]:.0%} {shares[1]:.0%}"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=positive, default=10_000, help="of a row (%(default)s)")
    parser.add_argument("--runs", type=positive, default=3, help="(%(default)s)")
    parser.add_argument("--rows", type=names_of(ROWS), default=",".join(ROWS), help="(%(default)s)")
    options = parser.parse_args()
    print(f"load before: {', '.join(f'{load:.2f}' for load in os.getloadavg())}")
    endpoint = Endpoint()
    if "throughput" in options.rows:
        tell_throughput(endpoint, options.jobs, options.runs)
    if "hang" in options.rows:
        late = hanging(endpoint, HANGING_JOBS)
        above_ms = late.p99_ms - late.idle_p99_ms
        print(
            f"{HANGING_JOBS:,} jobs for a host that hangs: p99 lateness of a healthy one"
            f" {late.p99_ms:.1f} ms, idle {late.idle_p99_ms:.1f} ms, {above_ms:.1f} ms above"
            f" (goal 50: {verdict(is_met=above_ms <= 50)}); resident"
            f" {late.before_bytes / 2**20:.1f} MiB before, {late.after_bytes / 2**20:.1f} after",
            flush=True,
        )
    if "line" in options.rows:
        tell_line([beside(endpoint) for _ in range(options.runs)])
    endpoint.close()
    print(f"load after: {os.getloadavg()[0]:.2f}")


if __name__ == "__main__":
    main()
