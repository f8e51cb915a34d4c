"""The client beside others, one call after the other: the second table of `make bench-client`.

    puts         `Client.put`, waiting for each answer
    work loop    reserve a job, nothing else to do, acknowledge it
    Worker       the same with `Worker` or `AsyncWorker`, which reserve and acknowledge in batches

Over the line the peer is greenstalk, with one connection for each of its threads; over HTTP it is
`aiohttp.ClientSession` with requests written by hand. Peers and contenders take turns against one
daemon (A B C … A B C …), and a row has the median of the ratios of the rounds: what else the
machine does concerns both. Jobs have 100 bytes.
"""

import asyncio
import statistics
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import aiohttp
import greenstalk

from benchmarks.load import BODY, Pace, Stopwatch
from delayd.client import AsyncClient, AsyncJob, AsyncWorker, Client, Job, Worker
from delayd.testing.daemon import Daemon, running_daemon

Play = Callable[[Daemon, str, int], Pace]
"""Does so much with the jobs of a topic."""


class Row(NamedTuple):
    """What is compared: the peer's way and ours."""

    name: str
    peer: str
    play: Play
    goal: float
    has_jobs: bool
    """Whether the topic has jobs before."""


def line(daemon: Daemon) -> str:
    """Return where the line is spoken."""
    return f"beanstalk://{daemon.listens_on}"


def http(daemon: Daemon) -> str:
    """Return where HTTP is spoken."""
    return f"http://{daemon.http_listens_on}"


# --- Threads -------------------------------------------------------------------------------------


def in_threads(count: int, jobs: int, once: Callable[[], Callable[[], object]]) -> Pace:
    """Do something so often, in so many threads; `once` makes what each of them calls."""
    calls = [once() for _ in range(count)]

    def work(call: Callable[[], object]) -> None:
        for _ in range(jobs // count):
            call()

    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    watch = Stopwatch()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return watch.pace(jobs // count * count)


def greenstalk_puts(count: int) -> Play:
    """Put with greenstalk."""

    def play(daemon: Daemon, topic: str, jobs: int) -> Pace:
        def once() -> Callable[[], object]:
            client = greenstalk.Client(daemon.address, encoding=None, use=topic)
            return lambda: client.put(BODY)

        return in_threads(count, jobs, once)

    return play


def greenstalk_loop(count: int) -> Play:
    """Reserve and delete with greenstalk."""

    def play(daemon: Daemon, topic: str, jobs: int) -> Pace:
        def once() -> Callable[[], object]:
            client = greenstalk.Client(daemon.address, encoding=None, watch=topic)
            return lambda: client.delete(client.reserve())

        return in_threads(count, jobs, once)

    return play


def our_puts(url: Callable[[Daemon], str], count: int) -> Play:
    """Put with `Client`."""

    def play(daemon: Daemon, topic: str, jobs: int) -> Pace:
        with Client(url(daemon)) as client:
            client.health()
            return in_threads(count, jobs, lambda: lambda: client.put(topic, BODY))

    return play


def our_loop(url: Callable[[Daemon], str], count: int) -> Play:
    """Reserve and acknowledge with `Client`."""

    def play(daemon: Daemon, topic: str, jobs: int) -> Pace:
        with Client(url(daemon)) as client:

            def call() -> None:
                with client.reserve(topic):
                    pass

            client.health()
            return in_threads(count, jobs, lambda: call)

    return play


def our_worker(url: Callable[[Daemon], str], concurrency: int) -> Play:
    """Work with `Worker`."""

    def play(daemon: Daemon, topic: str, jobs: int) -> Pace:
        done = iter(range(jobs, 0, -1))

        def handle(_job: Job) -> None:
            if next(done, 1) == 1:
                worker.stop()

        with Client(url(daemon)) as client:
            worker = Worker(client, topic, handle, concurrency=concurrency)
            watch = Stopwatch()
            worker.run()
            return watch.pace(jobs)

    return play


# --- asyncio -------------------------------------------------------------------------------------


async def in_tasks(count: int, jobs: int, call: Callable[[], Awaitable[object]]) -> Pace:
    """Do something so often, in so many tasks."""

    async def work() -> None:
        for _ in range(jobs // count):
            await call()

    watch = Stopwatch()
    await asyncio.gather(*(work() for _ in range(count)))
    return watch.pace(jobs // count * count)


def our_async(url: Callable[[Daemon], str], count: int, *, puts: bool) -> Play:
    """Put, or reserve and acknowledge, with `AsyncClient`."""

    async def run(daemon: Daemon, topic: str, jobs: int) -> Pace:
        async with AsyncClient(url(daemon)) as client:

            async def loop() -> None:
                async with await client.reserve(topic):
                    pass

            await client.health()
            return await in_tasks(count, jobs, (lambda: client.put(topic, BODY)) if puts else loop)

    return lambda *what: asyncio.run(run(*what))


def aiohttp_session(count: int, *, puts: bool) -> Play:
    """Do the same with requests that are written by hand."""

    async def run(daemon: Daemon, topic: str, jobs: int) -> Pace:
        base = f"{http(daemon)}/v1"
        async with aiohttp.ClientSession() as session:

            async def post(path: str, value: object) -> Any:  # noqa: ANN401 - JSON
                async with session.post(base + path, json=value) as answer:
                    return await answer.json()

            async def loop() -> None:
                answer = await post(f"/topics/{topic}/reserve", {"wait": 60})
                await post("/ack", {"tokens": [answer["jobs"][0]["token"]]})

            def put() -> Awaitable[object]:
                return post(f"/topics/{topic}/jobs", {"body": BODY.decode()})

            return await in_tasks(count, jobs, put if puts else loop)

    return lambda *what: asyncio.run(run(*what))


def our_async_worker(url: Callable[[Daemon], str], concurrency: int) -> Play:
    """Work with `AsyncWorker`."""

    async def run(daemon: Daemon, topic: str, jobs: int) -> Pace:
        done = iter(range(jobs, 0, -1))

        async def handle(_job: AsyncJob) -> None:
            if next(done, 1) == 1:
                worker.stop()

        async with AsyncClient(url(daemon)) as client:
            worker = AsyncWorker(client, topic, handle, concurrency=concurrency)
            watch = Stopwatch()
            await worker.run()
            return watch.pace(jobs)

    return lambda *what: asyncio.run(run(*what))


# --- The table -----------------------------------------------------------------------------------


def peers() -> dict[str, Play]:
    """Return the peers' ways."""
    return {
        **{f"greenstalk puts {n}": greenstalk_puts(n) for n in (1, 8)},
        **{f"greenstalk loop {n}": greenstalk_loop(n) for n in (1, 8)},
        **{f"aiohttp puts {n}": aiohttp_session(n, puts=True) for n in (1, 8)},
        **{f"aiohttp loop {n}": aiohttp_session(n, puts=False) for n in (1, 8)},
    }


def rows() -> list[Row]:
    """Return what is compared."""
    found = []
    for n in (1, 8):
        puts, loop = f"greenstalk puts {n}", f"greenstalk loop {n}"
        http_puts, http_loop = f"aiohttp puts {n}", f"aiohttp loop {n}"
        found += [
            Row(f"puts, {n}", puts, our_puts(line, n), 0.8, has_jobs=False),
            Row(f"work loop, {n}", loop, our_loop(line, n), 0.8, has_jobs=True),
            Row(f"puts, asyncio, {n}", puts, our_async(line, n, puts=True), 0.6, has_jobs=False),
            Row(f"loop, asyncio, {n}", loop, our_async(line, n, puts=False), 0.6, has_jobs=True),
            Row(f"puts, HTTP, {n}", http_puts, our_puts(http, n), 0.7, has_jobs=False),
            Row(f"work loop, HTTP, {n}", http_loop, our_loop(http, n), 0.7, has_jobs=True),
            *(
                Row(
                    f"{what}, HTTP asyncio, {n}", peer, our_async(http, n, puts=puts), 0.7, not puts
                )
                for what, peer, puts in (("puts", http_puts, True), ("loop", http_loop, False))
            ),
        ]
    for n in (8, 64):
        one = "greenstalk loop 1"
        found += [
            Row(f"Worker, {n}", one, our_worker(line, n), 3.0, has_jobs=True),
            Row(f"AsyncWorker, {n}", one, our_async_worker(line, n), 3.0, has_jobs=True),
        ]
    return found


def fill(daemon: Daemon, topic: str, jobs: int) -> None:
    """Put the jobs of a work loop."""
    with Client(line(daemon)) as client, client.batch() as batch:
        for _ in range(jobs):
            batch.put(topic, BODY)


def measure(rounds: int, jobs: int) -> dict[str, list[float]]:
    """Let all take turns; return by their names what each did a second, in each round.

    Each row follows its peer, so that both meet the same other work of the machine.
    """
    plays = {}
    for peer, play in peers().items():
        plays[peer] = (play, " loop " in peer)
        plays |= {row.name: (row.play, row.has_jobs) for row in rows() if row.peer == peer}
    rates: dict[str, list[float]] = {name: [] for name in plays}
    with running_daemon("--http", "127.0.0.1:0") as daemon:
        for number in range(rounds):
            for place, (name, (play, has_jobs)) in enumerate(plays.items()):
                topic = f"bench-{number}-{place}"
                if has_jobs:
                    fill(daemon, topic, jobs)
                rates[name].append(play(daemon, topic, jobs).per_second)
    return rates


def table(rates: dict[str, list[float]]) -> str:
    """Write the table."""
    lines = [f"{'':24} {'a second':>9} {'beside':18} {'a second':>9} {'ratio':>6}  goal"]
    for name, peer, _play, goal, _has_jobs in rows():
        ours, theirs = rates[name], rates[peer]
        ratio = statistics.median(mine / other for mine, other in zip(ours, theirs, strict=True))
        verdict = "met" if ratio >= goal else "not met"
        lines.append(
            f"{name:24} {statistics.median(ours):9,.0f} {peer:18} {statistics.median(theirs):9,.0f}"
            f" {ratio:6.2f}  {goal} {verdict}"
        )
    return "\n".join(lines)
