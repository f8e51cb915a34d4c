"""What groups of jobs cost, and what they are good for: the chapter `groups`.

    put, reserve    one of them, in µs of processor time, in a topic with so many groups that have a
                    ready job each. Beside it a topic with as many ready jobs, each with a ladder of
                    its own in place of a group, since a part of a job costs as such; and one of
                    bare jobs. A reserve is followed by the ack, which is not counted. With the put,
                    the memory of a job, its group included
    slices          the longest time for which the engine is busy without a break, and the median,
                    while the jobs of 100,000 groups come due at one instant, while the policy
                    changes of as many, and when it changes the order of their jobs
    webhooks        fifty customers have ten webhooks each that take 10 ms, behind a gateway that is
                    called 8 times at once: how long they take alone, and beside one that has
                    100,000 which take 0.5 s each, where the policy is `SHARE_POLICY`; and without

Put, reserve and slices measure the engine, in a process of its own for each reading and without a
journal; webhooks a real daemon.
"""

import asyncio
import contextlib
import functools
import gc
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from time import process_time
from typing import Final

from benchmarks.alone import in_a_process
from benchmarks.keys import resident_bytes
from benchmarks.load import Fleet
from benchmarks.peers import Server, ask
from benchmarks.push import LENGTH, delayd, set_policy
from benchmarks.registry import Bench, Case, Durability, NotMeasuredError, Values
from delayd.core.engine import Engine
from delayd.core.job_parts import Own, Retry
from delayd.core.operations.ack import delete_batch
from delayd.core.operations.put import put_keyed
from delayd.core.operations.reserve import reserve
from delayd.core.operations.sessions import open_session
from delayd.core.operations.tick import advance, next_deadline
from delayd.core.operations.topics import set_policy as change_policy
from delayd.core.policy import Policy
from delayd.core.times import PlayedMs, RequestMs
from delayd.core.topic import Topic
from delayd.limits import GC_YOUNG_OBJECTS

GROUPS: Final = "delayd, a group for each job"
KINDS: Final = (GROUPS, "delayd, a ladder for each job", "delayd, bare jobs")
LADDER: Final = Retry((15_000, 180_000), 3)
COUNTS: Final = (1_000, 100_000, 1_000_000)
"""Of groups that have a ready job each, or of ready jobs."""
BODY: Final = b"x" * 100
TTR_MS: Final = 3_600_000
MEASURED: Final = 20_000
"""Jobs at most that are put, or reserved, in the topic that stands."""
RUN: Final = 500
"""Jobs that are held at once."""
STRIDE: Final = 7_919
"""From the group of a job to that of the next: a prime, so that all have their turn."""
RULE: Final = {"fair": True, "group_reserved_max": 1_000_000}
OTHER_RULES: Final = {
    "the policy changes": RULE | {"group_weights": {"customer-7": 5}},
    "the order changes": RULE | {"group_order": "put"},
}
COME_DUE: Final = "the jobs come due"
SLICED: Final = 100_000
DUE_MS: Final = 1_000

CUSTOMERS: Final = 50
JOBS_EACH: Final = 10
SLOW_JOBS: Final = 100_000
SLOW_S, QUICK_S = 0.5, 0.01
"""How long a webhook takes: of the large customer, and of each of the fifty."""
SHARE_POLICY: Final = {"fair": True, "group_reserved_max": 2}
PATIENCE_S: Final = 60.0
IN_FLIGHT: Final = 20


# --- In the engine -------------------------------------------------------------------------------


def own_of(kind: str, number: int, groups: int) -> Own | None:
    """Return what a job of a kind has of its own."""
    if kind == GROUPS:
        return Own(group=b"customer-%d" % (number % groups))
    return Own(retry=LADDER) if kind == KINDS[1] else None


def put_one(engine: Engine, topic: Topic, own: Own | None, delay_ms: int = 0) -> None:
    """Put a job."""
    put_keyed(
        engine,
        topic,
        b"",
        priority=0,
        delay_ms=delay_ms,
        ttr_ms=TTR_MS,
        body=BODY,
        now_ms=RequestMs(engine.store.time_ms),
        own=own,
    )


def filled(kind: str, jobs: int, delay_ms: int = 0) -> tuple[Engine, Topic]:
    """Return an engine with so many jobs, each in a group of its own if they have groups."""
    engine = Engine(start_ms=0)
    if kind == GROUPS:
        change_policy(engine, "default", Policy.from_json(json.dumps(RULE)), RequestMs(0))
    topic = engine.store.topic("default")
    gc.disable()
    for number in range(jobs):
        put_one(engine, topic, own_of(kind, number, jobs), delay_ms)
        engine.take_log()
    gc.freeze()
    gc.set_threshold(GC_YOUNG_OBJECTS)  # as in the daemon
    gc.enable()
    return engine, topic


def putting(kind: str, count: int) -> Values:
    """Return the microseconds of a put beside so many ready jobs, and the memory of each."""
    began_bytes = resident_bytes()
    engine, topic = filled(kind, count)
    job_bytes = (resident_bytes() - began_bytes) / count
    measured = min(MEASURED, count)
    begun = process_time()
    for number in range(measured):
        put_one(engine, topic, own_of(kind, number * STRIDE, count))
        engine.take_log()
    put_us = (process_time() - begun) / measured * 1e6
    # With a few jobs, memory says more of the process than of them.
    return {"us": put_us} | ({"entry_bytes": job_bytes} if count >= MEASURED else {})


def reserving(kind: str, count: int) -> Values:
    """Return the microseconds of a reserve of so many ready jobs."""
    engine, topic = filled(kind, count)
    for number in range(min(MEASURED, count)):
        put_one(engine, topic, own_of(kind, number * STRIDE, count))
        engine.take_log()
    session = open_session(engine)
    spent_s, reserved = 0.0, 0
    now_ms = RequestMs(engine.store.time_ms)
    while reserved < min(MEASURED, count):
        taken = []
        begun = process_time()
        for _ in range(min(RUN, count)):
            job = reserve(engine, session, now_ms)
            assert job is not None
            taken.append(job[0])
            engine.take_log()
        spent_s += process_time() - begun
        delete_batch(engine, session, taken, now_ms)
        engine.take_log()
        reserved += len(taken)
    return {"us": spent_s / reserved * 1e6}


def slices_of(engine: Engine, until_ms: int) -> Iterator[float]:
    """Play what is due by then, a slice at a time; yield how many ms each took."""
    engine.store.reach(PlayedMs(until_ms))
    while (due_ms := next_deadline(engine)) is not None and due_ms <= until_ms:
        begun = process_time()
        advance(engine, PlayedMs(until_ms))
        yield (process_time() - begun) * 1e3
        engine.take_log()


def slices(what: str, groups: int) -> Values:
    """Return the longest and the median slice of one of the big things."""
    engine, topic = filled(GROUPS, groups, DUE_MS)
    times_ms = [*slices_of(engine, DUE_MS)]
    assert len(topic.queues.ready) == groups
    if what != COME_DUE:
        policy = Policy.from_json(json.dumps(OTHER_RULES[what]))
        begun = process_time()
        change_policy(engine, "default", policy, RequestMs(DUE_MS))
        first_ms = (process_time() - begun) * 1e3
        times_ms = [first_ms, *slices_of(engine, DUE_MS)]
        assert not topic.blocks, "it hands out again"
    return {"p50_ms": statistics.median(times_ms), "worst_ms": max(times_ms)}


# --- With a daemon -------------------------------------------------------------------------------


class _Gateway(asyncio.Protocol):
    """A connection of a gateway that takes its time; notes when quick webhooks have arrived."""

    def __init__(self, arrived_s: list[float]) -> None:
        self._arrived_s = arrived_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        end = self._received.find(b"\r\n\r\n") + 4
        length = LENGTH.search(self._received[:end])
        if end < 4 or len(self._received) < end + (int(length[1]) if length else 0):
            return
        is_slow = self._received.startswith(b"POST /slow ")
        self._received = b""
        later = asyncio.get_running_loop().call_later
        later(SLOW_S if is_slow else QUICK_S, self._answer, not is_slow)

    def _answer(self, is_quick: bool) -> None:  # noqa: FBT001 - call_later takes no keywords
        if is_quick:
            self._arrived_s.append(time.monotonic())
        self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")


def _serve(pipe: Connection) -> None:
    """Send the port through the pipe, and whenever asked the times of arrivals."""
    arrived_s: list[float] = []

    def tell() -> None:
        pipe.recv()
        pipe.send(arrived_s)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Gateway(arrived_s), "127.0.0.1", 0)
        loop.add_reader(pipe.fileno(), tell)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


@contextlib.contextmanager
def gateway() -> Iterator[tuple[int, Connection]]:
    """Run a gateway in a process of its own; its port, and a pipe that tells what has arrived."""
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield ours.recv(), ours
    finally:
        process.kill()
        process.join()


def put_webhooks(server: Server, port: int, path: str, names: list[str], group: str) -> None:
    """Put a webhook for each of these customers; without `group` no job has one."""
    requests = [
        f"put 0 0 60 2 url=http://127.0.0.1:{port}/{path}{group and f' group={name}'}\r\n{{}}\r\n"
        for name in names
    ]
    left = iter(requests)
    with Fleet(server.port, 1) as fleet:
        fleet.converse(b"use hooks\r\n", b"USING hooks\r\n")
        fleet.put(
            lambda count: "".join(next(left) for _ in range(count)).encode(),
            IN_FLIGHT,
            jobs=len(requests),
        )


def share(slow_jobs: int, policy: Mapping[str, object], patience_s: float) -> tuple[int, float]:
    """Deliver beside so many slow webhooks; how many of the fifty's arrived, and the last when.

    In seconds from the first call.
    """
    quick = [f"small-{number % CUSTOMERS}" for number in range(CUSTOMERS * JOBS_EACH)]
    with gateway() as (port, pipe), delayd(port) as server:
        if policy:
            set_policy(server, "hooks", policy)
        put_webhooks(server, port, "quick", ["warm-up"], "group" * bool(policy))
        until_s = time.monotonic() + patience_s
        arrived_s: list[float] = []

        def look(count: int) -> None:
            while len(arrived_s) < count and time.monotonic() < until_s:
                time.sleep(0.02)
                pipe.send(None)
                arrived_s[:] = pipe.recv()

        look(1)
        ask(server.port, b"pause-tube hooks 3600\r\n")
        put_webhooks(server, port, "slow", ["large"] * slow_jobs, "group" * bool(policy))
        put_webhooks(server, port, "quick", quick, "group" * bool(policy))
        begun_s = time.monotonic()
        until_s = begun_s + patience_s
        ask(server.port, b"pause-tube hooks 0\r\n")
        look(1 + len(quick))
    return len(arrived_s) - 1, arrived_s[-1] - begun_s


# --- The chapter ---------------------------------------------------------------------------------


def engine_reading(
    measure: Callable[[str, int], Values], what: str, count: int, bench: Bench
) -> Values:
    """Measure the engine in a new process."""
    return in_a_process(measure, what, bench.entries(count))


def webhooks(slow_jobs: int, policy: Mapping[str, object], bench: Bench) -> Values:
    """Return how long the webhooks of the fifty take beside so many slow ones."""
    arrived, seconds = share(bench.entries(slow_jobs), policy, PATIENCE_S)
    if arrived < CUSTOMERS * JOBS_EACH:
        raise NotMeasuredError(f"{arrived} of {CUSTOMERS * JOBS_EACH} came in {PATIENCE_S:.0f} s")
    return {"seconds": seconds}


def cases() -> Sequence[Case]:
    """Return the chapter."""
    return [*engine_cases(), *webhook_cases()]


def engine_cases() -> Iterator[Case]:
    """Yield what is measured without a daemon."""
    for operation, measure in (("put", putting), ("reserve", reserving)):
        for count in COUNTS:
            for kind in KINDS:
                took = functools.partial(engine_reading, measure, kind, count)
                yield Case("groups", operation, {"ready jobs": count}, kind, took)
    for what in (COME_DUE, *OTHER_RULES):
        took = functools.partial(engine_reading, slices, what, SLICED)
        yield Case("groups", f"slices while {what}", {"groups": SLICED}, "delayd", took)


def webhook_cases() -> Iterator[Case]:
    """Yield what is measured with one; the first is what the others are compared with."""
    for slow_jobs, policy in ((0, SHARE_POLICY), (SLOW_JOBS, SHARE_POLICY), (SLOW_JOBS, {})):
        yield Case(
            chapter="groups",
            operation="500 webhooks of fifty customers",
            size={"slow webhooks of another": slow_jobs},
            subject="delayd, fair groups" if policy else "delayd, without groups",
            measure=functools.partial(webhooks, slow_jobs, policy),
            policy=Durability.BEFORE_ANSWER,
            settings=json.dumps(policy),
            runs_max=None if policy else 1,
        )
