"""Deliveries of due jobs: the chapter `push`.

    deliver                as many as come at once to a fast endpoint, beside a bare loop of
                           aiohttp's client with the same number of calls under way
    a host that hangs      10,000 jobs for a host that takes connections and never answers, and 100
                           for a healthy one: how late these arrive, and the daemon's memory; beside
                           a daemon with nothing else to do
    a topic that fails     200 jobs that the host refuses, and 100 good ones for the same host
    deliver steadily       200 a second: what they take of a processor
    put, reserve + ack     over the line, while 200 jobs a second are delivered, and without

The endpoint, the bare loop and the daemon are a process each; see `benchmarks.endpoint`.
"""

import functools
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, closing
from typing import Final

from benchmarks.endpoint import BODY, Endpoint, Report, push_settings, put_each, send_to
from benchmarks.line import ask
from benchmarks.processes import held_bytes, spent_seconds
from benchmarks.registry import Bench, Case, Durability, Values
from benchmarks.servers.account import JobAccount
from benchmarks.servers.beanstalk import standing_jobs
from benchmarks.servers.delayd import RunningDelayd, new_delayd
from benchmarks.servers.generator import Load
from benchmarks.servers.operations import closed_puts, closed_takes, fill, no_delay
from benchmarks.table import percentile

CALLS: Final = (8, 64)
JOBS: Final = 10_000
WARM_UP_CALLS: Final = 20
"""Deliveries of each connection before anything is measured."""
GOOD_JOBS: Final = 100
GOOD_SHARE: Final = 5.0
"""Over so many readings' time the good jobs are spread."""
FAILING_JOBS: Final = 200
NEVER, FAILING = "/never", "/failing"
STEADY_PER_S: Final = 200
STEADY_SHARE: Final = 10.0
"""So many readings' time jobs are there to be delivered."""
LOAD: Final = Load(connections=50, in_flight=20)
READY_PER_S: Final = 40_000
"""Jobs that are there for a reading of `reserve + ack`, of each second."""
LOOP: Final = "a bare loop of aiohttp"
DELAYD: Final = "delayd"

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


def calling(bench: Bench, *endpoints: Endpoint) -> AbstractContextManager[RunningDelayd]:
    """Run a daemon that may call these."""
    config = push_settings([endpoint.port for endpoint in endpoints])
    return new_delayd(bench, config=config, http=False)


def warm(daemon: RunningDelayd, endpoint: Endpoint, tube: str, jobs: int) -> None:
    """Deliver some jobs that count for nothing: connections are made, and modules imported."""
    put_each(daemon.port, tube, [0.0] * jobs)
    endpoint.report(jobs)


def arrived(report: Report, jobs: int) -> Values:
    """Return what must be 0."""
    missing = jobs - report.requests
    return {"lost": max(missing, 0), "doubled": max(-missing, 0), "early": report.early}


def deliver(calls: int, subject: str, bench: Bench) -> Values:
    """Deliver jobs that are due, as fast as it goes."""
    endpoint = bench.kept("endpoint", lambda: closing(Endpoint()))
    jobs = bench.entries(JOBS)
    endpoint.report()
    if subject == LOOP:
        words = [endpoint.url(), BODY.decode(), str(jobs), str(calls)]
        subprocess.run([sys.executable, "-c", BARE, *words], check=True)
        return {"rate": endpoint.report(jobs).per_second}
    with calling(bench, endpoint) as daemon:
        send_to(daemon.port, "out", endpoint.url(), concurrency=calls)
        warm(daemon, endpoint, "out", WARM_UP_CALLS * calls)
        ask(daemon.port, b"pause-tube out 3600\r\n")
        put_each(daemon.port, "out", [0.0] * jobs)
        used_s = spent_seconds(daemon.processes())
        ask(daemon.port, b"pause-tube out 0\r\n")
        report = endpoint.report(jobs)
        used_s = spent_seconds(daemon.processes()) - used_s
    values = {"rate": report.per_second, "cpu_s_per_million": used_s / jobs * 1e6}
    return {**values, **arrived(report, jobs)}


def good_jobs(path: str, others: int, bench: Bench) -> Values:
    """Deliver good jobs beside others: those for `/never` have a host of their own."""
    endpoint = bench.kept("endpoint", lambda: closing(Endpoint()))
    jobs = bench.entries(GOOD_JOBS)
    spread_s = GOOD_SHARE * bench.seconds
    with closing(Endpoint()) as stuck, calling(bench, endpoint, stuck) as daemon:
        send_to(daemon.port, "good", endpoint.url())
        send_to(daemon.port, "bad", (stuck if path == NEVER else endpoint).url(path))
        endpoint.report()
        warm(daemon, endpoint, "good", CALLS[0])
        put_each(daemon.port, "bad", [0.0] * bench.entries(others))
        delays_s = [bench.seconds + spread_s * number / jobs for number in range(jobs)]
        put_each(daemon.port, "good", delays_s)
        report = endpoint.report(jobs)
        late_ms = report.lateness_ms
        return {
            **{f"p{of}_ms": percentile(late_ms, of) for of in (50, 99)},
            "worst_ms": percentile(late_ms, 100),
            "memory_bytes": held_bytes(daemon.pid),
            **arrived(report, jobs),
        }


def steadily(daemon: RunningDelayd, endpoint: Endpoint, bench: Bench) -> None:
    """Begin to deliver at a steady rate; of few jobs half are left to be delivered."""
    send_to(daemon.port, "out", endpoint.url(), rate_per_s=STEADY_PER_S)
    jobs = bench.entries(int(STEADY_PER_S * STEADY_SHARE * (bench.seconds + 1)))
    endpoint.report()
    put_each(daemon.port, "out", [0.0] * jobs)
    endpoint.report(min(jobs // 2, STEADY_PER_S))


def deliver_steadily(bench: Bench) -> Values:
    """Deliver at a steady rate, with nothing else to do."""
    endpoint = bench.kept("endpoint", lambda: closing(Endpoint()))
    with calling(bench, endpoint) as daemon:
        steadily(daemon, endpoint, bench)
        used_s, begun_s, own_s = (
            spent_seconds(daemon.processes()),
            time.monotonic(),
            endpoint.spent_seconds(),
        )
        report = endpoint.report(max(2, int(STEADY_PER_S * bench.seconds)))
        used_s = spent_seconds(daemon.processes()) - used_s
        share = (endpoint.spent_seconds() - own_s) / (time.monotonic() - begun_s)
    return {
        "rate": report.per_second,
        "cpu_s_per_million": used_s / max(report.requests, 1) * 1e6,
        "generator_share": share,
        "early": report.early,
    }


def beside_deliveries(operation: str, per_s: int, bench: Bench) -> Values:
    """Use the line while jobs are delivered, or while none is."""
    endpoint = bench.kept("endpoint", lambda: closing(Endpoint()))
    account = JobAccount()
    with calling(bench, endpoint) as daemon:
        if per_s:
            steadily(daemon, endpoint, bench)

        def standing() -> int:
            return standing_jobs(daemon.port, b"default")

        if operation == "put":
            return closed_puts(daemon, account, LOAD, bench.seconds, standing, no_delay)
        ready = bench.entries(int(READY_PER_S * (bench.seconds + 1)))
        fill(daemon, account, LOAD, ready, no_delay)
        return closed_takes(daemon, account, LOAD, bench.seconds, standing)


# --- The chapter ---------------------------------------------------------------------------------


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [*delivery_cases(), *line_cases()]


def delivery_cases() -> Iterator[Case]:
    """Yield what is delivered; the first of hosts that hang is what the other is beside."""
    synced = Durability.BEFORE_ANSWER
    for calls in CALLS:
        for subject in (DELAYD, LOOP):
            taken = functools.partial(deliver, calls, subject)
            policy = synced if subject == DELAYD else Durability.NOT_APPLICABLE
            yield Case("push", "deliver", {"calls at once": calls}, subject, taken, policy)
    for operation, path, most in (
        ("a host that hangs", NEVER, JOBS),
        ("a topic that fails", FAILING, FAILING_JOBS),
    ):
        for others in (0, most):
            taken = functools.partial(good_jobs, path, others)
            yield Case("push", operation, {"its jobs": others}, DELAYD, taken, synced, runs_max=1)
    size = {"deliveries a second": STEADY_PER_S}
    yield Case("push", "deliver steadily", size, DELAYD, deliver_steadily, synced)


def line_cases() -> Iterator[Case]:
    """Yield what the line does beside deliveries, and without."""
    for operation in ("put", "reserve + ack"):
        for per_s in (0, STEADY_PER_S):
            size = {
                "deliveries a second": per_s,
                "connections": LOAD.connections,
                "in flight": LOAD.in_flight,
            }
            taken = functools.partial(beside_deliveries, operation, per_s)
            yield Case("push", operation, size, DELAYD, taken, Durability.BEFORE_ANSWER)
