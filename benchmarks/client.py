"""The Python client beside others: the chapter `client`.

    put many         100,000 jobs with `batch()`, over both protocols, with threads and asyncio,
                     beside the load generator with one connection and 100 puts in flight, which
                     counts replies without reading them
    put              one call after the other by one caller or eight, each of which waits for its
                     answer. Over the line the other is greenstalk, with a connection for each
                     thread; over HTTP `aiohttp.ClientSession` with requests written by hand
    reserve + ack    the same for jobs that are reserved, nothing else to do, and acknowledged
    work             the same with `Worker` and `AsyncWorker`, which reserve and acknowledge in
                     batches, beside greenstalk's loop of one connection

Jobs have 100 bytes. Each reading has a daemon of its own; daemon and client share the processors.
`generator's part of a processor` is that of the client.
"""

import asyncio
import functools
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import Any, Final

import aiohttp

from benchmarks.line import HOST
from benchmarks.pace import Pace, Stopwatch
from benchmarks.registry import Bench, Case, Durability, Values
from benchmarks.servers.account import JobAccount
from benchmarks.servers.delayd import RunningDelayd, new_delayd
from benchmarks.servers.generator import Load
from benchmarks.servers.operations import an_hour, closed_puts
from delayd.client import AsyncClient, AsyncJob, AsyncWorker, Client, Job, Worker

JOBS: Final = 100_000
CALLS: Final = 2_000
"""Jobs of a reading in which each call waits for its answer."""
GENERATOR_LOAD: Final = Load(connections=1, in_flight=100)
HOUR_S: Final = 3_600
BODY: Final = b"x" * 100
TOPIC: Final = "bench"

Play = Callable[[RunningDelayd, int], Pace]
"""Does so much with the jobs of the topic."""
Url = Callable[[RunningDelayd], str]
Once = Callable[[], object]


def over_line(daemon: RunningDelayd) -> str:
    """Return where the line is spoken."""
    return daemon.line_url


def over_http(daemon: RunningDelayd) -> str:
    """Return where HTTP is spoken."""
    return daemon.http_url


# --- Threads -------------------------------------------------------------------------------------


def batch(url: Url) -> Play:
    """Put with a batch."""

    def play(daemon: RunningDelayd, jobs: int) -> Pace:
        with Client(url(daemon)) as client:
            client.health()  # connected
            watch = Stopwatch()
            with client.batch() as puts:
                for _ in range(jobs):
                    puts.put(TOPIC, BODY, delay=HOUR_S)
            assert len(puts.results) == jobs
            return watch.pace(jobs)

    return play


def in_threads(callers: int, jobs: int, calls: Callable[[], Once]) -> Pace:
    """Do something so often, in so many threads; `calls` makes what each of them calls."""
    made = [calls() for _ in range(callers)]
    each = max(1, jobs // callers)

    def work(call: Once) -> None:
        for _ in range(each):
            call()

    threads = [threading.Thread(target=work, args=(call,)) for call in made]
    watch = Stopwatch()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return watch.pace(each * callers)


def greenstalk_calls(callers: int, *, puts: bool) -> Play:
    """Put, or reserve and delete, with greenstalk."""
    import greenstalk  # noqa: PLC0415 - not to list cases

    def play(daemon: RunningDelayd, jobs: int) -> Pace:
        with ExitStack() as stack:

            def calls() -> Once:
                address = (HOST, daemon.port)
                client = greenstalk.Client(address, encoding=None, use=TOPIC, watch=TOPIC)
                stack.callback(client.close)
                if puts:
                    return lambda: client.put(BODY)
                return lambda: client.delete(client.reserve())

            return in_threads(callers, jobs, calls)

    return play


def our_calls(url: Url, callers: int, *, puts: bool) -> Play:
    """Put, or reserve and acknowledge, with `Client`."""

    def play(daemon: RunningDelayd, jobs: int) -> Pace:
        with Client(url(daemon)) as client:

            def take() -> None:
                with client.reserve(TOPIC):
                    pass

            call: Once = (lambda: client.put(TOPIC, BODY)) if puts else take
            client.health()
            return in_threads(callers, jobs, lambda: call)

    return play


def our_worker(concurrency: int) -> Play:
    """Work with `Worker`."""

    def play(daemon: RunningDelayd, jobs: int) -> Pace:
        left = iter(range(jobs, 0, -1))

        def handle(_job: Job) -> None:
            if next(left, 1) == 1:
                worker.stop()

        with Client(daemon.line_url) as client:
            worker = Worker(client, TOPIC, handle, concurrency=concurrency)
            watch = Stopwatch()
            worker.run()
            return watch.pace(jobs)

    return play


# --- asyncio -------------------------------------------------------------------------------------


def awaited(run: Callable[[RunningDelayd, int], Coroutine[Any, Any, Pace]]) -> Play:
    """Return the same for those who do not await."""
    return lambda daemon, jobs: asyncio.run(run(daemon, jobs))


def batch_asyncio() -> Play:
    """Put with a batch of `AsyncClient`."""

    async def run(daemon: RunningDelayd, jobs: int) -> Pace:
        async with AsyncClient(daemon.line_url) as client:
            await client.health()
            watch = Stopwatch()
            async with client.batch() as puts:
                for _ in range(jobs):
                    await puts.put(TOPIC, BODY, delay=HOUR_S)
            assert len(puts.results) == jobs
            return watch.pace(jobs)

    return awaited(run)


async def in_tasks(callers: int, jobs: int, call: Callable[[], Awaitable[object]]) -> Pace:
    """Do something so often, in so many tasks."""
    each = max(1, jobs // callers)

    async def work() -> None:
        for _ in range(each):
            await call()

    watch = Stopwatch()
    await asyncio.gather(*(work() for _ in range(callers)))
    return watch.pace(each * callers)


def our_awaited_calls(url: Url, callers: int, *, puts: bool) -> Play:
    """Put, or reserve and acknowledge, with `AsyncClient`."""

    async def run(daemon: RunningDelayd, jobs: int) -> Pace:
        async with AsyncClient(url(daemon)) as client:

            async def take() -> None:
                async with await client.reserve(TOPIC):
                    pass

            await client.health()
            call = (lambda: client.put(TOPIC, BODY)) if puts else take
            return await in_tasks(callers, jobs, call)

    return awaited(run)


def aiohttp_calls(callers: int, *, puts: bool) -> Play:
    """Do the same with requests that are written by hand."""

    async def run(daemon: RunningDelayd, jobs: int) -> Pace:
        base = f"{daemon.http_url}/v1"
        async with aiohttp.ClientSession() as session:

            async def post(path: str, value: object) -> Any:  # noqa: ANN401 - JSON
                async with session.post(base + path, json=value) as answer:
                    return await answer.json()

            async def take() -> None:
                answer = await post(f"/topics/{TOPIC}/reserve", {"wait": 60})
                await post("/ack", {"tokens": [answer["jobs"][0]["token"]]})

            def put() -> Awaitable[object]:
                return post(f"/topics/{TOPIC}/jobs", {"body": BODY.decode()})

            return await in_tasks(callers, jobs, put if puts else take)

    return awaited(run)


def our_async_worker(concurrency: int) -> Play:
    """Work with `AsyncWorker`."""

    async def run(daemon: RunningDelayd, jobs: int) -> Pace:
        left = iter(range(jobs, 0, -1))

        async def handle(_job: AsyncJob) -> None:
            if next(left, 1) == 1:
                worker.stop()

        async with AsyncClient(daemon.line_url) as client:
            worker = AsyncWorker(client, TOPIC, handle, concurrency=concurrency)
            watch = Stopwatch()
            await worker.run()
            return watch.pace(jobs)

    return awaited(run)


# --- The chapter ---------------------------------------------------------------------------------


def generated(bench: Bench) -> Values:
    """Put with the load generator."""
    with new_delayd(bench) as daemon:
        standing = daemon.standing
        load, account = GENERATOR_LOAD, JobAccount()
        found = closed_puts(daemon, account, load, bench.seconds, standing, an_hour)
        return {name: found[name] for name in ("rate", "generator_share", "lost", "doubled")}


def played(make: Callable[[], Play], jobs: int, ready: int, bench: Bench) -> Values:
    """Have a client do something with so many jobs; `ready` of them are there before."""
    count, ready = bench.entries(jobs), bench.entries(ready)
    with new_delayd(bench) as daemon:
        with Client(daemon.line_url) as client, client.batch() as puts:
            for _ in range(ready):
                puts.put(TOPIC, BODY)
        pace = make()(daemon, count)
        expected = ready - pace.operations if ready else pace.operations
        lost = expected - daemon.standing()
    return {
        "rate": pace.per_second,
        "generator_share": pace.generator_share,
        "lost": max(lost, 0),
        "doubled": max(-lost, 0),
    }


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [*batch_cases(), *call_cases(), *worker_cases()]


def case(
    operation: str,
    size: Mapping[str, int | str],
    subject: str,
    make: Callable[[], Play],
    jobs: int = CALLS,
    ready: int = 0,
) -> Case:
    """Return a case of this chapter."""
    taken = functools.partial(played, make, jobs, ready)
    return Case("client", operation, size, subject, taken, Durability.BEFORE_ANSWER)


BATCHES: Final[Mapping[str, Callable[[], Play]]] = MappingProxyType(
    {
        "delayd.client, batch": lambda: batch(over_line),
        "delayd.client, batch, asyncio": batch_asyncio,
        "delayd.client, batch, HTTP": lambda: batch(over_http),
    }
)


def batch_cases() -> Iterator[Case]:
    """Yield many puts at once."""
    size = {"jobs": JOBS}
    synced = Durability.BEFORE_ANSWER
    yield Case("client", "put many", size, "the load generator", generated, synced)
    for subject, make in BATCHES.items():
        yield case("put many", size, subject, make, JOBS)


def call_cases() -> Iterator[Case]:
    """Yield calls that wait for their answers."""
    for operation, puts in (("put", True), ("reserve + ack", False)):
        for protocol, url, other, others in (
            ("line", over_line, "greenstalk", greenstalk_calls),
            ("HTTP", over_http, "aiohttp.ClientSession", aiohttp_calls),
        ):
            for callers in (1, 8):
                size = {"protocol": protocol, "callers": callers}
                for subject, make in (
                    ("delayd.client", functools.partial(our_calls, url)),
                    ("delayd.client, asyncio", functools.partial(our_awaited_calls, url)),
                    (other, others),
                ):
                    play = functools.partial(make, callers, puts=puts)
                    yield case(operation, size, subject, play, ready=0 if puts else CALLS)


def worker_cases() -> Iterator[Case]:
    """Yield workers."""
    for concurrency in (8, 64):
        size = {"at once": concurrency}
        for subject, make in (
            ("delayd.client, Worker", functools.partial(our_worker, concurrency)),
            ("delayd.client, AsyncWorker", functools.partial(our_async_worker, concurrency)),
            ("greenstalk, one by one", functools.partial(greenstalk_calls, 1, puts=False)),
        ):
            yield case("work", size, subject, make, ready=CALLS)
