"""What groups of jobs cost, and what they are good for: `python -m benchmarks.groups`.

    cost      one put and one reserve, in µs of processor time, in a topic with so many groups that
              have a ready job each. Beside it by turns a topic with as many ready jobs, each with a
              ladder of its own in place of a group, since a part of a job costs as such; and one of
              bare jobs. A reserve is followed by the ack, which is not counted. And the memory of
              a job, its group included, in bytes
    slices    the longest time in ms for which the engine is busy without a break while the jobs of
              100,000 groups come due at one instant, while the policy changes of as many, and when
              it changes the order of their jobs; others wait as long. And the median of all slices
    share     one customer has 100,000 webhooks that take 0.5 s each, and fifty have ten each that
              take 10 ms, all behind one gateway that is called 8 times at once: how long the fifty
              take alone, and beside the large one where the policy is
              {"fair": true, "group_reserved_max": 2}. The goal is twice as long at most. And how
              many of their 500 have arrived after as long without groups

`cost` and `slices` measure the engine in a process of its own each, without a journal; `share` a
real daemon. Figures are medians of `--runs`.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing.connection import Connection
from time import process_time
from typing import Final

from benchmarks.arguments import names_of, positive
from benchmarks.keys import resident_bytes
from benchmarks.load import Fleet
from benchmarks.peers import Server, ask
from benchmarks.push import LENGTH, delayd, set_policy, verdict
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

ROWS: Final = ("cost", "slices", "share")
KINDS: Final = ("groups", "ladder", "bare")
LADDER: Final = Retry((15_000, 180_000), 3)
COUNTS: Final = (1, 1_000, 100_000, 1_000_000)
"""Of groups that have a ready job each, or of ready jobs."""
BODY: Final = b"x" * 100
TTR_MS: Final = 3_600_000
MEASURED: Final = 20_000
"""Jobs that are put, and then reserved, in the topic that stands."""
RUN: Final = 500
"""Jobs that are held at once."""
STRIDE: Final = 7_919
"""From the group of a job to that of the next: a prime, so that all have their turn."""
RULE: Final = {"fair": True, "group_reserved_max": 1_000_000}
OTHER_RULES: Final = {
    "policy changes": RULE | {"group_weights": {"customer-7": 5}},
    "order changes": RULE | {"group_order": "put"},
}
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
    if kind == "groups":
        return Own(group=b"customer-%d" % (number % groups))
    return Own(retry=LADDER) if kind == "ladder" else None


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
    if kind == "groups":
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


def cost(kind: str, count: int) -> dict[str, float]:
    """Return the microseconds of a put and of a reserve beside so many ready jobs, and memory."""
    began_bytes = resident_bytes()
    engine, topic = filled(kind, count)
    job_bytes = (resident_bytes() - began_bytes) / count
    session = open_session(engine)
    begun = process_time()
    for number in range(MEASURED):
        put_one(engine, topic, own_of(kind, number * STRIDE, count))
        engine.take_log()
    put_us = (process_time() - begun) / MEASURED * 1e6
    spent_s = 0.0
    now_ms = RequestMs(engine.store.time_ms)
    for _ in range(MEASURED // RUN):
        taken = []
        begun = process_time()
        for _ in range(RUN):
            job = reserve(engine, session, now_ms)
            assert job is not None
            taken.append(job[0])
            engine.take_log()
        spent_s += process_time() - begun
        delete_batch(engine, session, taken, now_ms)
        engine.take_log()
    return {"put": put_us, "reserve": spent_s / MEASURED * 1e6, "bytes": job_bytes}


def slices_of(engine: Engine, until_ms: int) -> Iterator[float]:
    """Play what is due by then, a slice at a time; yield how many ms each took."""
    engine.store.reach(PlayedMs(until_ms))
    while (due_ms := next_deadline(engine)) is not None and due_ms <= until_ms:
        begun = process_time()
        advance(engine, PlayedMs(until_ms))
        yield (process_time() - begun) * 1e3
        engine.take_log()


def slices(groups: int) -> dict[str, tuple[float, float]]:
    """Return the longest and the median slice of each of the big things, in ms."""
    engine, topic = filled("groups", groups, DUE_MS)
    due_ms = [*slices_of(engine, DUE_MS)]
    assert len(topic.queues.ready) == groups
    found = {"come due": (max(due_ms), statistics.median(due_ms))}
    for name, rule in OTHER_RULES.items():
        policy = Policy.from_json(json.dumps(rule))
        begun = process_time()
        change_policy(engine, "default", policy, RequestMs(DUE_MS))
        first_ms = (process_time() - begun) * 1e3
        times_ms = [first_ms, *slices_of(engine, DUE_MS)]
        assert not topic.blocks, "it hands out again"
        found[name] = (max(times_ms), statistics.median(times_ms))
    return found


def tell_cost(alone: Executor, counts: list[int], runs: int) -> None:
    """Measure and print the first table."""
    print(f"{'µs; bytes':<10}{'ready jobs':>12}{''.join(f'{kind:>12}' for kind in KINDS)}")
    for count in counts:
        runs_of = [{kind: alone.submit(cost, kind, count) for kind in KINDS} for _ in range(runs)]
        for name in ("put", "reserve", "bytes") if count >= MEASURED else ("put", "reserve"):
            medians = [
                statistics.median(run[kind].result()[name] for run in runs_of) for kind in KINDS
            ]
            shown = "".join(f"{median:>12.2f}" for median in medians)
            print(f"{name:<10}{count:>12,}{shown}", flush=True)


def tell_slices(alone: Executor, groups: int, runs: int) -> None:
    """Measure and print the second table."""
    found = [alone.submit(slices, groups).result() for _ in range(runs)]
    print(f"{f'slices, {groups:,} groups':<34}{'longest ms':>12}{'median ms':>12}")
    for name in found[0]:
        longest, median = (statistics.median(run[name][at] for run in found) for at in (0, 1))
        print(f"{name:<34}{longest:>12.2f}{median:>12.2f}")


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


def tell_share(slow_jobs: int, runs: int) -> None:
    """Measure and print the last rows."""
    jobs = CUSTOMERS * JOBS_EACH
    pairs = []
    for _ in range(runs):
        alone, beside = (share(slow, SHARE_POLICY, PATIENCE_S) for slow in (0, slow_jobs))
        assert alone[0] == jobs, f"only {alone[0]} of {jobs} have arrived"
        pairs.append((alone[1], beside[1] if beside[0] == jobs else float("inf")))
    alone_s, beside_s = (statistics.median(pair[at] for pair in pairs) for at in (0, 1))
    ratio = statistics.median(beside / alone for alone, beside in pairs)
    arrived, _ = share(slow_jobs, {}, 2 * beside_s)
    print(
        f"{CUSTOMERS} customers with {JOBS_EACH} webhooks each: {alone_s:.2f} s alone,"
        f" {beside_s:.2f} s beside one with {slow_jobs:,} slow ones: {ratio:.2f} times"
        f" (goal 2: {verdict(is_met=ratio <= 2)})\n"
        f"without groups {arrived} of the {jobs} have arrived after {2 * beside_s:.1f} s"
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=names_of(ROWS), default=[*ROWS], help="with commas (all)")
    parser.add_argument("--groups-max", type=positive, default=COUNTS[-1], help="(%(default)s)")
    parser.add_argument("--slow", type=positive, default=SLOW_JOBS, help="jobs (%(default)s)")
    parser.add_argument("--runs", type=positive, default=3, help="(%(default)s)")
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as alone:
        if "cost" in options.rows:
            tell_cost(alone, [each for each in COUNTS if each <= options.groups_max], options.runs)
        if "slices" in options.rows:
            tell_slices(alone, min(SLICED, options.groups_max), options.runs)
    if "share" in options.rows:
        tell_share(options.slow, options.runs)


if __name__ == "__main__":
    main()
