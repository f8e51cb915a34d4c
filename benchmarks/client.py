"""How fast one Python client puts: `python -m benchmarks.client`, which is `make bench-client`.

A real daemon on this machine, and one client after the other, in turn (A B C … A B C …):

    generator     the load generator, 1 connection with 100 puts in flight; its requests are built
                  before the clock starts, and its replies are counted, not read
    batch         `with Client(...).batch()`, over the line: a result for each put
    batch asyncio the same with `AsyncClient`
    batch HTTP    the same over HTTP
    one by one    `Client.put` over the line, waiting for each answer

Each put has a body of 100 bytes and a delay of an hour. The table has the median of the runs, the
spread, how much of one processor the client took, and the ratio to the generator, whose goal is 0.5
for `batch`. A second table compares calls one by one with other clients (`client_peers`). Run it
alone: daemon and client share the processors. The load average before and after is printed, because
a figure that was measured beside other work says little.
"""

import argparse
import asyncio
import os
import statistics
from collections.abc import Callable
from typing import Final, NamedTuple

from benchmarks import client_peers
from benchmarks.arguments import positive
from benchmarks.load import BODY, HOUR_S, Fleet, Pace, Stopwatch, prebuilt, put_request
from delayd.client import AsyncClient, Client
from delayd.testing.daemon import Daemon, running_daemon

JOBS: Final = 100_000
ONE_BY_ONE: Final = 2_000
IN_FLIGHT: Final = 100
RUNS: Final = 5
PEERS_SHARE: Final = 50
"""The calls that wait for each answer are this part of the jobs."""
GOAL: Final = 0.5
TOPIC: Final = "bench"


class Contender(NamedTuple):
    """A client, and how it puts so many jobs."""

    name: str
    put: Callable[[Daemon, int], Pace]
    goal: float | None = None


def generator(daemon: Daemon, jobs: int) -> Pace:
    """Put with the load generator."""
    with Fleet(daemon.address[1], 1) as fleet:
        return fleet.put(prebuilt(put_request(HOUR_S), IN_FLIGHT), IN_FLIGHT, jobs=jobs)


def batch(daemon: Daemon, jobs: int) -> Pace:
    """Put with a batch over the line."""
    return batch_at(client_peers.line(daemon), jobs)


def batch_http(daemon: Daemon, jobs: int) -> Pace:
    """Put with a batch over HTTP."""
    return batch_at(f"http://{daemon.http_listens_on}", jobs)


def batch_at(url: str, jobs: int) -> Pace:
    """Put with a batch."""
    with Client(url) as client:
        client.health()  # connected
        watch = Stopwatch()
        with client.batch() as puts:
            for _ in range(jobs):
                puts.put(TOPIC, BODY, delay=HOUR_S)
        assert len(puts.results) == jobs
        return watch.pace(jobs)


def batch_asyncio(daemon: Daemon, jobs: int) -> Pace:
    """Put with a batch and asyncio."""

    async def run() -> Pace:
        async with AsyncClient(client_peers.line(daemon)) as client:
            await client.health()
            watch = Stopwatch()
            async with client.batch() as puts:
                for _ in range(jobs):
                    await puts.put(TOPIC, BODY, delay=HOUR_S)
            assert len(puts.results) == jobs
            return watch.pace(jobs)

    return asyncio.run(run())


def one_by_one(daemon: Daemon, jobs: int) -> Pace:
    """Put and wait for each answer."""
    jobs = min(jobs, ONE_BY_ONE)
    with Client(client_peers.line(daemon)) as client:
        client.health()
        watch = Stopwatch()
        for _ in range(jobs):
            client.put(TOPIC, BODY, delay=HOUR_S)
        return watch.pace(jobs)


CONTENDERS: Final = (
    Contender("generator", generator),
    Contender("batch", batch, GOAL),
    Contender("batch asyncio", batch_asyncio),
    Contender("batch HTTP", batch_http),
    Contender("one by one", one_by_one),
)


def measure(runs: int, jobs: int) -> dict[str, list[Pace]]:
    """Let all of them put, in turn; the first round warms up and does not count."""
    paces: dict[str, list[Pace]] = {contender.name: [] for contender in CONTENDERS}
    for run in range(runs + 1):
        for contender in CONTENDERS:
            with running_daemon("--http", "127.0.0.1:0") as daemon:
                pace = contender.put(daemon, jobs if run else jobs // 10)
            if run:
                paces[contender.name].append(pace)
    return paces


def table(paces: dict[str, list[Pace]]) -> str:
    """Write the table."""
    rows = [f"{'':14} {'puts/s':>9} {'lowest':>9} {'highest':>9} {'client':>7} {'ratio':>6}  goal"]
    base = statistics.median(pace.per_second for pace in paces["generator"])
    for name, _put, goal in CONTENDERS:
        rates = [pace.per_second for pace in paces[name]]
        share = statistics.median(pace.generator_share for pace in paces[name])
        rate = statistics.median(rates)
        ratio = rate / base
        verdict = "" if goal is None else f"{goal} {'met' if ratio >= goal else 'not met'}"
        rows.append(
            f"{name:14} {rate:9,.0f} {min(rates):9,.0f} {max(rates):9,.0f} {share:7.0%}"
            f" {ratio:6.2f}  {verdict}"
        )
    return "\n".join(rows)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client")
    parser.add_argument("--runs", type=positive, default=RUNS, help=f"({RUNS})")
    parser.add_argument("--jobs", type=positive, default=JOBS, help=f"jobs of each run ({JOBS:,})")
    options = parser.parse_args()
    print("load average before: {:.2f} {:.2f} {:.2f}".format(*os.getloadavg()))
    print(table(measure(options.runs, options.jobs)))
    print()
    print(client_peers.table(client_peers.measure(options.runs, options.jobs // PEERS_SHARE)))
    print("load average after: {:.2f} {:.2f} {:.2f}".format(*os.getloadavg()))


if __name__ == "__main__":
    main()
